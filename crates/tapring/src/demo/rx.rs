//! Host to guest: a socket that sends as fast as it can, and a driver that verifies each frame.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tapring_guest::traffic::{Flow, Verifier, fill_payload};
use tapring_guest::{RxQueue, Until};

use super::LIMIT;
use super::bench::Bench;
use super::host::PAYLOAD_BYTES;
use super::measure::{Measured, Snapshot, spin_until, thread_cpu};
use super::placement::pin;
use super::tx::{arrived, damaged};

/// virtio-net's NAPI budget.
const BUDGET: usize = 64;

/// How long the driver sleeps before it looks whether the sender is done.
const NAP: Duration = Duration::from_millis(20);

/// Datagrams between two looks at the clock.
const STRIDE: u64 = 16;

/// What the guest did.
struct Received {
    verifier: Verifier,
    elapsed: Duration,
    cpu: Duration,
}

/// Floods the tap for `time`; each frame costs the guest `guest_cost` before it takes the next.
pub(super) fn run(bench: &mut Bench, guest_cost: Duration, time: Duration) -> Result<Measured> {
    let (rig, pair) = (&bench.rig, &mut bench.pair);
    pair.rx.refill();
    let (socket, flow) = rig.host.sender()?;
    let before = Snapshot::take(rig, pair)?;
    let dropped = || Ok(rig.host.counts()?.tx_dropped - before.link.tx_dropped);
    let (start, flood) = (Barrier::new(2), Flood::default());
    let (sent, received) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let pinned = pin(rig.placement.receiver_cpu);
            start.wait();
            let sent = pinned.and_then(|()| send(&socket, time));
            flood.end(*sent.as_ref().unwrap_or(&0));
            sent
        });
        let guest = scope.spawn(|| {
            let pinned = pin(rig.placement.guest_cpu);
            start.wait();
            pinned.and_then(|()| receive(&mut pair.rx, flow, guest_cost, &flood, dropped))
        });
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        let received = guest.join().map_err(|_| anyhow!("the guest panicked"))?;
        anyhow::Ok((sent?, received?))
    })?;
    let (after, dropped) = (Snapshot::take(rig, pair)?, dropped()?);
    let (report, moved) = (
        received.verifier.report(sent),
        after.usage.rx - before.usage.rx,
    );
    Ok(Measured {
        payload_bytes: PAYLOAD_BYTES,
        frames: after.rx.frames - before.rx.frames,
        elapsed: received.elapsed,
        guest_cpu: received.cpu,
        packets: moved.packets,
        batches: moved.batches,
        verified: report.received,
        damaged: damaged(&report),
        lost: (sent - dropped).saturating_sub(arrived(&received.verifier)),
        receiver_dropped: dropped,
        ..after.since(&before)
    })
}

/// How much was sent, once that is known.
#[derive(Default)]
struct Flood(OnceLock<u64>);

impl Flood {
    fn end(&self, sent: u64) {
        // It ends once.
        let _ = self.0.set(sent);
    }

    fn sent(&self) -> Option<u64> {
        self.0.get().copied()
    }
}

/// What does not fit the tap's queue is dropped there, as it would be behind a switch.
fn send(socket: &UdpSocket, time: Duration) -> Result<u64> {
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
    }
    Ok(sent)
}

/// The driver's poll loop, until the sender is done and all that the tap's queue took has arrived, or nothing more comes.
fn receive(
    queue: &mut RxQueue,
    flow: Flow,
    guest_cost: Duration,
    flood: &Flood,
    dropped: impl Fn() -> Result<u64>,
) -> Result<Received> {
    let mut verifier = Verifier::new(flow);
    let (began, cpu) = (Instant::now(), thread_cpu());
    let mut last = began;
    loop {
        let frames = queue.receive(BUDGET, |frame| {
            let began = Instant::now();
            verifier.frame(frame);
            spin_until(began, guest_cost);
        })?;
        queue.refill_as_linux();
        if frames > 0 {
            last = Instant::now();
            continue;
        }
        let is_all = match flood.sent() {
            Some(sent) => arrived(&verifier) >= sent - dropped()?,
            None => false,
        };
        if is_all || last.elapsed() > LIMIT {
            return Ok(Received {
                verifier,
                elapsed: last - began,
                cpu: thread_cpu().saturating_sub(cpu),
            });
        }
        queue.wait_for_call(Until::Next, NAP)?;
    }
}
