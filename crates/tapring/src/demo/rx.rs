//! Host to guest: a socket that sends as fast as it can, and a driver that verifies each frame.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tapring_guest::traffic::{Flow, Verifier, fill_payload};
use tapring_guest::{RxQueue, Until};

use super::daemon::Daemon;
use super::host::{Host, PAYLOAD_BYTES};
use super::report::{Figures, Measured};
use super::{LIMIT, Progress};

/// virtio-net's NAPI budget.
const BUDGET: usize = 64;

/// How long the driver sleeps before it looks whether the sender is done.
const NAP: Duration = Duration::from_millis(50);

/// Datagrams between two looks at the clock.
const STRIDE: u64 = 256;

pub(super) fn run(
    queue: &mut RxQueue,
    host: &Host,
    daemon: &Daemon,
    time: Duration,
    progress: &Progress,
) -> Result<Figures> {
    queue.refill();
    let (socket, flow) = host.sender()?;
    let (link, usage, counters) = (host.counts()?, daemon.usage("rx")?, queue.counters());
    let sent_all = AtomicBool::new(false);
    let (sent, elapsed, verifier) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let sent = send(&socket, time, progress);
            sent_all.store(true, Ordering::Release);
            sent
        });
        let received = receive(queue, flow, &sent_all, |frames| {
            Ok(host.counts()?.tx_packets - link.tx_packets <= frames)
        });
        let sent = sender
            .join()
            .map_err(|_| anyhow!("the sender panicked"))??;
        let (verifier, elapsed) = received?;
        anyhow::Ok((sent, elapsed, verifier))
    })?;
    let (report, now) = (verifier.report(sent), queue.counters());
    let (after, frames) = (host.counts()?, now.frames - counters.frames);
    Ok(Figures::new(&Measured {
        frames,
        elapsed,
        kicks: now.kicks_sent - counters.kicks_sent,
        calls: now.calls - counters.calls,
        usage: daemon.usage("rx")? - usage,
        verified: report.received,
        damaged: report.corrupt + report.duplicated + report.reordered,
        lost: (after.tx_packets - link.tx_packets).saturating_sub(frames),
        receiver_dropped: after.tx_dropped - link.tx_dropped,
    }))
}

/// What does not fit the tap's queue is dropped there, as it would be behind a switch.
fn send(socket: &UdpSocket, time: Duration, progress: &Progress) -> Result<u64> {
    let mut payload = [0; PAYLOAD_BYTES];
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < time {
        for _ in 0..STRIDE {
            fill_payload(sent, &mut payload);
            match socket.send(&payload) {
                Ok(_) => sent += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot send to the tap"),
            }
        }
        progress.frames(sent, began.elapsed());
    }
    Ok(sent)
}

/// The driver's poll loop, until the sender is done and all that left the tap has arrived.
fn receive(
    queue: &mut RxQueue,
    flow: Flow,
    sent_all: &AtomicBool,
    is_all: impl Fn(u64) -> Result<bool>,
) -> Result<(Verifier, Duration)> {
    let mut verifier = Verifier::new(flow);
    let (began, first) = (Instant::now(), queue.counters().frames);
    let mut last = began;
    loop {
        let frames = queue.receive(BUDGET, |frame| {
            verifier.frame(frame);
        })?;
        queue.refill_as_linux();
        if frames > 0 {
            last = Instant::now();
        } else if sent_all.load(Ordering::Acquire) && is_all(queue.counters().frames - first)? {
            return Ok((verifier, last - began));
        } else {
            ensure!(
                last.elapsed() < LIMIT,
                "the guest received nothing for {} s",
                LIMIT.as_secs()
            );
            queue.wait_for_call(Until::Next, NAP)?;
        }
    }
}
