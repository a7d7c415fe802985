//! Guest to host: one sender, as `iperf3 -u -b 0`, and a socket that verifies each datagram.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tapring_guest::TxQueue;
use tapring_guest::traffic::{Flow, Verifier};

use super::daemon::Daemon;
use super::host::{FRAME_BYTES, Host, PAYLOAD_BYTES};
use super::report::{Figures, Measured};
use super::{LIMIT, Progress};

/// Frames between two looks at the clock.
const STRIDE: u64 = 256;

pub(super) fn run(
    queue: &mut TxQueue,
    host: &Host,
    daemon: &Daemon,
    time: Duration,
    progress: &Progress,
) -> Result<Figures> {
    let (socket, flow) = host.receiver()?;
    let (link, usage, counters) = (host.counts()?, daemon.usage("tx")?, queue.counters());
    let sent_all = AtomicBool::new(false);
    let (sent, elapsed, verifier) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&socket, flow, &sent_all));
        let sent = send(queue, flow, time, progress);
        sent_all.store(true, Ordering::Release);
        let verifier = receiver
            .join()
            .map_err(|_| anyhow!("the receiver panicked"))??;
        let (sent, elapsed) = sent?;
        anyhow::Ok((sent, elapsed, verifier))
    })?;
    let report = verifier.report(sent);
    let reached = host.counts()?.rx_packets - link.rx_packets;
    let now = queue.counters();
    Ok(Figures::new(&Measured {
        frames: sent,
        elapsed,
        kicks: now.kicks_sent - counters.kicks_sent,
        calls: now.calls - counters.calls,
        usage: daemon.usage("tx")? - usage,
        verified: report.received,
        damaged: report.corrupt + report.duplicated + report.reordered,
        lost: sent.saturating_sub(reached),
        receiver_dropped: reached.saturating_sub(report.received + report.corrupt),
    }))
}

fn send(
    queue: &mut TxQueue,
    flow: Flow,
    time: Duration,
    progress: &Progress,
) -> Result<(u64, Duration)> {
    let mut frame = [0; FRAME_BYTES];
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < time {
        for _ in 0..STRIDE {
            flow.write(sent, &mut frame);
            queue.transmit(&frame, false, LIMIT)?;
            sent += 1;
        }
        progress.frames(sent, began.elapsed());
    }
    queue.wait_for_all(LIMIT)?;
    Ok((sent, began.elapsed()))
}

/// Verifies datagrams until the sender is done and no more come.
fn receive(socket: &UdpSocket, flow: Flow, sent_all: &AtomicBool) -> Result<Verifier> {
    let mut verifier = Verifier::new(flow);
    let mut datagram = [0; PAYLOAD_BYTES + 1];
    loop {
        let done = sent_all.load(Ordering::Acquire);
        match socket.recv(&mut datagram) {
            Ok(bytes) => {
                verifier.payload(&datagram[..bytes]);
            }
            Err(error) if is_timeout(&error) && done => return Ok(verifier),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error).context("cannot receive from the tap"),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
