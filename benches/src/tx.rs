//! Guest to host.
//!
//! # Theory of operation
//!
//! 1. Raw: [`RawWriter`] writes one frame into `raw0` for the given time, on core A.
//! 2. Daemon: frames lie ready in 32,768 buffers, used in random order over 64 MiB, so that each is as cold as a real
//!    guest's. The guest makes bursts of up to 32 available as the ring has room, decides one kick a burst (as Linux does
//!    with xmit_more and DPDK with its bursts) and takes used buffers back; it never sleeps and wants no calls. Frames
//!    count when they come back as used.
//! 3. Behind both taps a frame meets the same end: it is addressed to another machine and has an ethertype (0x88b5) that
//!    nobody listens to, so that the kernel frees it at the end of `__netif_receive_skb_core`, without having looked into
//!    it. Measured beside an IPv4 frame to another machine, which `ip_rcv` frees: 623 against 646 ns for the whole write.
//!    A drop by `tc` or nftables would come earlier, but only after a classifier has run, and many kernels have neither.
//! 4. After each measurement the tap's own counter must agree with the guest's.
//!
//! The raw loop writes the same 64 slots again and again, out of the cache: the copy out of cold memory is the daemon's
//! alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tapring_guest::TxQueue;
use tapring_io::limit::RawWriter;

use crate::daemon::TAP;
use crate::report::{Report, Sample};
use crate::rig::{Contestant, Rig, frame};
use crate::settings::Settings;
use crate::{BenchError, cpu, place};

/// Frames made available under one kick decision.
const BURST: u32 = 32;

/// Every contestant runs this long before it is measured: 32,768 frames take 30 ms, and then each buffer was touched.
const WARM_UP: Duration = Duration::from_millis(60);

/// A daemon that takes no frame for this long is stuck.
const LIMIT: Duration = Duration::from_secs(5);

/// The contest in this direction.
pub fn run(settings: &Settings) -> Result<Report, BenchError> {
    let mut rig = Rig::new(settings)?;
    rig.pair.tx.ring_mut().disable_calls();
    let mut sizes = BTreeMap::new();
    for &bytes in &settings.sizes {
        let frame = frame(bytes.into());
        let mut writer = RawWriter::new(rig.raw_queue()?, &frame)?;
        rig.pair
            .tx
            .prepare(|_, buffer| buffer.extend_from_slice(&frame))?;
        let size = rig.contest(|rig, contestant| match contestant {
            Contestant::Raw => raw(rig, &mut writer),
            Contestant::Daemon => daemon(rig),
        })?;
        sizes.insert(bytes, size);
    }
    Ok(rig.report("tx", sizes))
}

fn raw(rig: &Rig, writer: &mut RawWriter) -> Result<Sample, BenchError> {
    cpu::pin(rig.settings.cpus.mover)?;
    writer.write_for(WARM_UP)?;
    let moved = writer.write_for(rig.settings.time())?;
    Ok(Sample {
        frames_per_second: per_second(moved.frames, moved.took),
        ..Sample::default()
    })
}

fn daemon(rig: &mut Rig) -> Result<Sample, BenchError> {
    let counted = place::counted(TAP)?.received;
    let chains = rig.pair.tx.counters().chains;
    let time = rig.settings.time();
    let sample = rig.observe("tx", |rig| {
        flood(&mut rig.pair.tx, WARM_UP)?;
        let speed = flood(&mut rig.pair.tx, time)?;
        rig.pair.tx.wait_for_all(LIMIT)?;
        rig.pair.tx.ring_mut().disable_calls();
        Ok(speed)
    })?;
    let sent = rig.pair.tx.counters().chains - chains;
    let counted = place::counted(TAP)?.received - counted;
    if sent == counted {
        Ok(sample)
    } else {
        Err(BenchError::Lost { sent, counted })
    }
}

/// Sends prepared frames for `time`; returns how many came back a second.
fn flood(tx: &mut TxQueue, time: Duration) -> Result<f64, BenchError> {
    let start = Instant::now();
    let mut last = start;
    let mut frames = 0;
    loop {
        let mut returned = 0;
        for _ in 0..64 {
            returned += turn(tx)?;
        }
        frames += returned;
        let now = Instant::now();
        if returned > 0 {
            last = now;
        }
        if now - last > LIMIT {
            return Err(BenchError::Stuck {
                what: "the daemon to take a frame".into(),
                limit: LIMIT,
            });
        }
        if now - start >= time {
            return Ok(per_second(frames, now - start));
        }
    }
}

/// One burst out, whatever is done back in.
fn turn(tx: &mut TxQueue) -> Result<usize, BenchError> {
    let returned = tx.collect()?;
    let mut sent = 0;
    while sent < BURST && tx.send_prepared().is_ok() {
        sent += 1;
    }
    if sent > 0 {
        tx.kick_if_needed();
    } else if returned == 0 {
        std::hint::spin_loop();
    }
    Ok(returned)
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^53
pub(crate) fn per_second(frames: usize, took: Duration) -> f64 {
    frames as f64 / took.as_secs_f64()
}
