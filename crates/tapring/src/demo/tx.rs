//! Guest to host: one sender, as `iperf3 -u -b 0`, and a socket whose receiver sleeps until something comes.
//!
//! ```text
//!  guest's CPU                        worker's CPU                     receiver's CPU
//!  make a datagram, spin until it     tap: the host's stack, which     recv, verify
//!  took as long as a guest would,  ─► puts it into the socket and   ─► sleep
//!  add, kick if asked, spin again     wakes the receiver
//! ```

use std::net::UdpSocket;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tapring_guest::TxQueue;
use tapring_guest::traffic::{Flow, Report, Verifier};

use super::LIMIT;
use super::bench::Bench;
use super::host::{Host, PAYLOAD_BYTES};
use super::measure::{Measured, Snapshot, spin_until, thread_cpu};
use super::placement::pin;

/// Frames between two looks at the clock.
const STRIDE: u64 = 16;

/// Payloads shorter than this have no room for a sequence number.
const SEQUENCE_BYTES: usize = 8;

/// What the guest sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxLoad {
    pub(super) payload_bytes: usize,
    /// From the start of one datagram to when the guest hands it over.
    pub(super) guest_cost: Duration,
}

impl TxLoad {
    /// Datagrams that fill an MTU, as fast as the guest can.
    pub(super) const SATURATING: Self = Self {
        payload_bytes: PAYLOAD_BYTES,
        guest_cost: Duration::ZERO,
    };
}

/// What the guest did.
pub(super) struct Sent {
    pub(super) frames: u64,
    pub(super) elapsed: Duration,
    pub(super) cpu: Duration,
}

/// What the receiver got.
struct Received {
    verified: u64,
    damaged: u64,
}

/// Runs the load for `time`, and waits until everything has arrived.
pub(super) fn run(bench: &mut Bench, load: &TxLoad, time: Duration) -> Result<Measured> {
    let (socket, flow) = bench.rig.host.receiver()?;
    let (rig, pair) = (&bench.rig, &mut bench.pair);
    let before = Snapshot::take(rig, pair)?;
    let (start, sent_all) = (Barrier::new(2), AtomicBool::new(false));
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let pinned = pin(rig.placement.receiver_cpu);
            start.wait();
            pinned.and_then(|()| receive(&socket, flow, load, &sent_all))
        });
        let guest = scope.spawn(|| {
            let pinned = pin(rig.placement.guest_cpu);
            start.wait();
            pinned.and_then(|()| send(&mut pair.tx, flow, load, time))
        });
        let sent = guest.join().map_err(|_| anyhow!("the guest panicked"))?;
        sent_all.store(true, Ordering::Release);
        Host::end(&socket)?;
        let received = receiver.join();
        let received = received.map_err(|_| anyhow!("the receiver panicked"))?;
        anyhow::Ok((sent?, received?))
    })?;
    let after = Snapshot::take(rig, pair)?;
    let reached = after.link.rx_packets - before.link.rx_packets;
    let moved = after.usage.tx - before.usage.tx;
    Ok(Measured {
        payload_bytes: load.payload_bytes,
        frames: sent.frames,
        elapsed: sent.elapsed,
        guest_cpu: sent.cpu,
        packets: moved.packets,
        batches: moved.batches,
        verified: received.verified,
        damaged: received.damaged,
        lost: sent.frames.saturating_sub(reached),
        receiver_dropped: reached.saturating_sub(received.verified + received.damaged),
        ..after.since(&before)
    })
}

/// Verified datagrams that were not as they should be.
pub(super) const fn damaged(report: &Report) -> u64 {
    report.corrupt + report.duplicated + report.reordered
}

/// Frames of the flow, good or not.
pub(super) fn arrived(verifier: &Verifier) -> u64 {
    let report = verifier.report(0);
    report.received + report.duplicated + report.corrupt
}

fn send(queue: &mut TxQueue, flow: Flow, load: &TxLoad, time: Duration) -> Result<Sent> {
    let mut frame = vec![0; flow.header_bytes() + load.payload_bytes];
    let (began, cpu) = (Instant::now(), thread_cpu());
    let mut sent = 0;
    while began.elapsed() < time {
        for _ in 0..STRIDE {
            write(flow, sent, &mut frame, load.guest_cost);
            queue.transmit(&frame, false, LIMIT)?;
            sent += 1;
        }
    }
    queue.wait_for_all(LIMIT)?;
    Ok(Sent {
        frames: sent,
        elapsed: began.elapsed(),
        cpu: thread_cpu().saturating_sub(cpu),
    })
}

/// Makes a datagram, which takes the guest at least `cost`.
fn write(flow: Flow, sequence: u64, frame: &mut [u8], cost: Duration) {
    let began = Instant::now();
    if frame.len() < flow.header_bytes() + SEQUENCE_BYTES {
        flow.wrap(sequence, frame);
    } else {
        flow.write(sequence, frame);
    }
    spin_until(began, cost);
}

/// Verifies datagrams until the sender is done and no more come.
fn receive(
    socket: &UdpSocket,
    flow: Flow,
    load: &TxLoad,
    sent_all: &AtomicBool,
) -> Result<Received> {
    let mut tally = Tally::new(flow, load);
    let mut datagram = [0; PAYLOAD_BYTES + 1];
    loop {
        let done = sent_all.load(Ordering::Acquire);
        match socket.recv(&mut datagram) {
            Ok(0) => return Ok(tally.end()),
            Ok(bytes) => tally.take(&datagram[..bytes]),
            Err(error) if is_timeout(&error) && done => return Ok(tally.end()),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error).context("cannot receive from the tap"),
        }
    }
}

/// The receiver's count.
struct Tally {
    verifier: Verifier,
    payload_bytes: usize,
    /// Datagrams too short for a sequence number, told by their length alone; the kernel has held their checksums against
    /// their bytes.
    short: u64,
    wrong: u64,
}

impl Tally {
    fn new(flow: Flow, load: &TxLoad) -> Self {
        Self {
            verifier: Verifier::new(flow),
            payload_bytes: load.payload_bytes,
            short: 0,
            wrong: 0,
        }
    }

    fn take(&mut self, datagram: &[u8]) {
        if datagram.len() != self.payload_bytes {
            self.wrong += 1;
        } else if self.payload_bytes < SEQUENCE_BYTES {
            self.short += 1;
        } else {
            self.verifier.payload(datagram);
        }
    }

    fn end(&self) -> Received {
        let report = self.verifier.report(0);
        Received {
            verified: self.short + report.received,
            damaged: self.wrong + damaged(&report),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
