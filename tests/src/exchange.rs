//! Frames both ways at once between the guest in software and the host's end, each byte of them verified.
//!
//! The host's end is the kernel's own UDP, so that its checks are made too. Senders stay within a window of their receivers:
//! a frame that is lost was lost by the daemon.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tapring_guest::traffic::{Report, SHORTEST_BYTES, Verifier};
use tapring_guest::{Guest, GuestConfig, Pair, Random, RxQueue, TxQueue, Until};

use crate::daemon::{Daemon, DaemonOptions};
use crate::host_end::HostEnd;
use crate::threads::ThreadWatch;
use crate::window::Window;

/// How long anything may stand still.
const LIMIT: Duration = Duration::from_secs(10);

/// Frames on their way in one direction: well below the tap's queue of 1000 and the host socket's buffer, so that a frame that
/// is lost was lost by the daemon.
const WINDOW: u64 = 256;

/// Most frames between two looks at the window, and between two kicks.
const BURST: u64 = 32;

/// What goes each way.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many frames.
    pub frames: u64,
    /// The longest, in bytes; the shortest has 60.
    pub longest: usize,
    /// Of their lengths.
    pub seed: u64,
}

impl Load {
    /// The length of one frame after the other.
    pub fn sizes(self) -> impl FnMut() -> usize {
        let mut random = Random::new(self.seed);
        move || random.between(SHORTEST_BYTES, self.longest)
    }
}

/// The guest sends, as fast as the window lets it, and gets every head back.
fn guest_sends(tx: &mut TxQueue, load: Load, window: &Window) -> Result<()> {
    let (flow, mut size, mut frame) = (HostEnd::to_host(), load.sizes(), vec![0; load.longest]);
    for sequence in 0..load.frames {
        let bytes = size();
        flow.write(sequence, &mut frame[..bytes]);
        let last_of_burst = sequence % BURST == BURST - 1 || sequence + 1 == load.frames;
        tx.transmit(&frame[..bytes], !last_of_burst, LIMIT)
            .with_context(|| format!("send frame {sequence}"))?;
        if last_of_burst {
            window.wait(sequence + 1, WINDOW)?;
        }
    }
    tx.wait_for_all(LIMIT)?;
    let counters = tx.counters();
    ensure!(
        counters.chains == load.frames,
        "{} chains came back for {} frames",
        counters.chains,
        load.frames
    );
    Ok(())
}

fn host_receives(host: &mut HostEnd, load: Load, window: &Window) -> Result<Report> {
    let mut verifier = Verifier::new(HostEnd::to_host());
    for received in 0..load.frames {
        let verdict = host.receive(&mut verifier, LIMIT)?;
        ensure!(
            verdict.is_some(),
            "the host received {received} of {} frames",
            load.frames
        );
        window.advance(1);
    }
    Ok(verifier.report(load.frames))
}

fn host_sends(host: &mut HostEnd, load: Load, window: &Window) -> Result<()> {
    let mut size = load.sizes();
    for sequence in 0..load.frames {
        host.send(sequence, size())?;
        if sequence % BURST == BURST - 1 {
            window.wait(sequence + 1, WINDOW)?;
        }
    }
    Ok(())
}

fn guest_receives(rx: &mut RxQueue, frames: u64, window: &Window) -> Result<Report> {
    let mut verifier = Verifier::new(HostEnd::to_guest());
    let mut received = 0;
    rx.refill();
    while received < frames {
        let taken = rx.receive(64, |frame| {
            verifier.frame(frame);
        })?;
        rx.refill_as_linux();
        if taken == 0 {
            rx.wait_for_call(Until::Next, LIMIT)
                .with_context(|| format!("after {received} of {frames} frames"))?;
        }
        received += taken as u64;
        window.advance(taken as u64);
    }
    Ok(verifier.report(frames))
}

/// Both directions at once. Returns what the host and what the guest received.
///
/// # Errors
/// When a frame does not arrive in ten seconds, or the backend breaks a rule.
///
/// # Panics
/// When one of the threads does.
pub fn exchange(pair: &mut Pair, host: &HostEnd, load: Load) -> Result<(Report, Report)> {
    let (to_host, to_guest) = (Window::default(), Window::default());
    let (mut sender, mut receiver) = (host.try_clone()?, host.try_clone()?);
    thread::scope(|scope| {
        let sent = scope.spawn(|| guest_sends(&mut pair.tx, load, &to_host));
        let at_host = scope.spawn(|| host_receives(&mut receiver, load, &to_host));
        let host_sent = scope.spawn(|| host_sends(&mut sender, load, &to_guest));
        let at_guest = guest_receives(&mut pair.rx, load.frames, &to_guest);
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().expect("a thread of this test")
        };
        join(sent).context("guest sends")?;
        join(host_sent).context("host sends")?;
        let at_host = at_host
            .join()
            .expect("a thread of this test")
            .context("host receives")?;
        Ok((at_host, at_guest.context("guest receives")?))
    })
}

/// The same with a daemon and a guest that are there for it alone: all arrive, `accounts` holds, and no io-wq thread comes up.
///
/// # Errors
/// When not.
pub fn verify_both_ways(
    options: &DaemonOptions,
    host: &HostEnd,
    load: Load,
    accounts: impl FnOnce(&Daemon) -> Result<()>,
) -> Result<()> {
    let daemon = Daemon::start(options)?;
    let watch = ThreadWatch::start(daemon.id());
    let mut guest = Guest::connect(&GuestConfig {
        tx_buffer_bytes: 9216,
        ..GuestConfig::new(daemon.socket())
    })?;
    let mut pair = guest.take_pairs().remove(0);
    let (at_host, at_guest) = exchange(&mut pair, host, load).with_context(|| daemon.tail())?;
    ensure_perfect("guest to host", at_host, load.frames)?;
    ensure_perfect("host to guest", at_guest, load.frames)?;
    accounts(&daemon)?;
    ensure!(
        watch.finish().most("iou-wrk") == 0,
        "an io-wq worker came up"
    );
    drop(guest);
    daemon.stop()
}

/// That all of them arrived, in order, and nothing else.
///
/// # Errors
/// When not.
pub fn ensure_perfect(direction: &str, report: Report, frames: u64) -> Result<()> {
    ensure!(
        report.is_perfect() && report.foreign == 0 && report.received == frames,
        "{direction}: {report:?}"
    );
    Ok(())
}
