//! Both ways at once, with two threads: the guest's also is its peer on the host.
//!
//! ```text
//!  guest's CPU                                          worker's CPU
//!  make a datagram ─┬─ half of its cost has passed:
//!                   │  send one to the guest ────────► tap: ends the worker's poll, and is work for the receiveq
//!                   │  take what arrived at the socket
//!                   └─ all of its cost has passed:
//!  add, kick if asked ──────────────────────────────► tap: the host's stack, the socket
//!  take what came, refill, kick if asked ◄───────────
//! ```
//!
//! A busy poll is for a host that has a CPU to spare for it. A sleeping receiver of its own would, on two CPUs, share that
//! one, and not run before the scheduler ends the poll's turn. So nobody sleeps here, and what comes the other way always comes
//! while the worker polls: that is what is to be shown.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tapring_guest::traffic::{Flow, Verifier, fill_payload};
use tapring_guest::{Pair, RxQueue};

use super::LIMIT;
use super::bench::Bench;
use super::host::PAYLOAD_BYTES;
use super::measure::{Measured, Snapshot, spin_until, thread_cpu};
use super::placement::pin;
use super::tx::{Sent, arrived, damaged};

/// Datagrams between two turns of the peer, and between two looks of the guest at its receiveq.
const STRIDE: u64 = 2;

/// About what a TCP acknowledgement has.
const ANSWER_BYTES: usize = 24;

/// virtio-net's NAPI budget.
const BUDGET: usize = 64;

/// The guest's peer, on the host.
struct Peer {
    receiver: UdpSocket,
    received: Verifier,
    sender: UdpSocket,
    sent: u64,
}

/// Runs the load for `time`, each datagram taking the guest `guest_cost`, and waits until everything has arrived.
pub(super) fn run(bench: &mut Bench, guest_cost: Duration, time: Duration) -> Result<Measured> {
    let (rig, pair) = (&bench.rig, &mut bench.pair);
    let (receiver, there) = rig.host.receiver()?;
    let (sender, back) = rig.host.sender()?;
    receiver.set_nonblocking(true)?;
    let mut peer = Peer {
        receiver,
        received: Verifier::new(there),
        sender,
        sent: 0,
    };
    let mut answers = Verifier::new(back);
    let before = Snapshot::take(rig, pair)?;
    let sent = thread::scope(|scope| {
        let guest = scope.spawn(|| {
            pin(rig.placement.guest_cpu)?;
            send(pair, there, guest_cost, time, &mut peer, &mut answers)
        });
        guest.join().map_err(|_| anyhow!("the guest panicked"))?
    })?;
    peer.take()?;
    let counts = rig.host.counts()?;
    let reached = counts.rx_packets - before.link.rx_packets;
    let dropped = counts.tx_dropped - before.link.tx_dropped;
    let lost = take_the_rest(&mut pair.rx, &mut answers, peer.sent - dropped)?;
    let after = Snapshot::take(rig, pair)?;
    let (received, answers) = (peer.received.report(0), answers.report(0));
    let moved = after.usage.tx - before.usage.tx;
    Ok(Measured {
        payload_bytes: PAYLOAD_BYTES,
        frames: sent.frames,
        elapsed: sent.elapsed,
        guest_cpu: sent.cpu,
        packets: moved.packets,
        batches: moved.batches,
        verified: received.received,
        answers: answers.received,
        damaged: damaged(&received) + damaged(&answers),
        lost: sent.frames.saturating_sub(reached) + lost,
        receiver_dropped: reached.saturating_sub(arrived(&peer.received)) + dropped,
        ..after.since(&before)
    })
}

fn send(
    pair: &mut Pair,
    flow: Flow,
    guest_cost: Duration,
    time: Duration,
    peer: &mut Peer,
    answers: &mut Verifier,
) -> Result<Sent> {
    let mut frame = vec![0; flow.header_bytes() + PAYLOAD_BYTES];
    // This guest looks by itself, as a driver in NAPI's polling mode.
    pair.rx.ring_mut().disable_calls();
    let (start, cpu) = (Instant::now(), thread_cpu());
    let mut sent = 0;
    while start.elapsed() < time {
        for turn in 0..STRIDE {
            let began = Instant::now();
            flow.write(sent, &mut frame);
            if turn == 0 {
                spin_until(began, guest_cost / 2);
                peer.turn()?;
            }
            spin_until(began, guest_cost);
            pair.tx.transmit(&frame, false, LIMIT)?;
            sent += 1;
        }
        take_answers(&mut pair.rx, answers)?;
    }
    pair.tx.wait_for_all(LIMIT)?;
    Ok(Sent {
        frames: sent,
        elapsed: start.elapsed(),
        cpu: thread_cpu().saturating_sub(cpu),
    })
}

impl Peer {
    fn turn(&mut self) -> Result<()> {
        // Ahead of the rest, so that the worker has heard of it when the guest hands its datagram over.
        self.answer()?;
        self.take()
    }

    /// Takes all that has arrived.
    fn take(&mut self) -> Result<()> {
        let mut datagram = [0; PAYLOAD_BYTES + 1];
        loop {
            match self.receiver.recv(&mut datagram) {
                Ok(bytes) => self.received.payload(&datagram[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot receive from the tap"),
            };
        }
    }

    /// What does not fit the tap's queue is dropped there and counted by the kernel.
    fn answer(&mut self) -> Result<()> {
        let mut payload = [0; ANSWER_BYTES];
        fill_payload(self.sent, &mut payload);
        self.sender
            .send(&payload)
            .context("cannot send to the tap")?;
        self.sent += 1;
        Ok(())
    }
}

fn take_answers(queue: &mut RxQueue, answers: &mut Verifier) -> Result<()> {
    queue.receive(BUDGET, |frame| {
        answers.frame(frame);
    })?;
    queue.refill_as_linux();
    Ok(())
}

/// Takes answers until there are `all`; returns how many never came.
fn take_the_rest(queue: &mut RxQueue, answers: &mut Verifier, all: u64) -> Result<u64> {
    let began = Instant::now();
    loop {
        let taken = arrived(answers);
        if taken >= all || began.elapsed() > LIMIT {
            return Ok(all.saturating_sub(taken));
        }
        take_answers(queue, answers)?;
    }
}
