//! Host to guest.
//!
//! # Theory of operation
//!
//! A reader at its limit needs a tap that is never empty, and on two cores nobody can keep one full: a sender needs about
//! 400 ns a frame, a reader 250, and the daemon's guest needs the second core as well. So both contestants drain what was
//! put there before, and only the drain is timed:
//!
//! 1. A packet socket on core B puts N frames into the tap's queue. 1000 are what the queue of a new tap holds, so no tap that
//!    was left as it is has more to drain (`--waiting` changes the queue too). Longer queues flatter us: their frames have
//!    left the caches, which costs both contestants the same (ratio 0.68 with 1000 frames, 0.77 with 8000).
//! 2. Raw: a thread that stays on core A, asleep meanwhile as the daemon is, drains `raw0` ([`Reader`]).
//! 3. Daemon: up to now its guest has no buffer posted, so that the receiveq is Starved and the tap is left alone. The
//!    guest posts a ring of buffers and kicks, as any guest does after it was out of them, takes frames out of the used
//!    ring on core B without sleeping, reads their headers, and posts again 32 or more at a time (Linux refills when half
//!    its NAPI budget is gone). It posts N buffers in all, so that at the end it has none left and the next filling finds
//!    the daemon Starved again.
//! 4. For both, time begins when the first frames are in (the first batch of the reader; the first used elements the guest
//!    sees) and ends with frame N; the frames that were in at the beginning do not count. The wake-up is in neither, and a
//!    worker that has published k frames has read no more than those k, so that nothing is read before its time.
//!
//! Drains are repeated until their times add up to the time asked for. Buffers lie at random over 64 MiB.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tapring_guest::RxQueue;
use tapring_io::limit::Moved;

use crate::daemon::TAP;
use crate::filler::Filler;
use crate::reader::Reader;
use crate::report::{Report, Sample};
use crate::rig::{Contestant, RAW_TAP, Rig, frame};
use crate::settings::Settings;
use crate::tx::per_second;
use crate::{BenchError, cpu, place};

/// Buffers posted under one kick decision: half of virtio-net's NAPI budget.
const REFILL: usize = 32;

/// Frames taken from the used ring in one go.
const BUDGET: usize = 64;

/// Frames that are drained before a contestant is measured: then each of the guest's 43,690 buffers was touched.
const WARM_UP_FRAMES: usize = 44_000;

/// A daemon that delivers nothing for this long is stuck.
const LIMIT: Duration = Duration::from_secs(5);

/// The contest in this direction.
pub fn run(settings: &Settings) -> Result<Report, BenchError> {
    let mut rig = Rig::new(settings)?;
    for tap in [RAW_TAP, TAP] {
        // Also its default: a frame less would be lost, and one more would be nobody's.
        place::ip(&format!("link set {tap} txqueuelen {}", settings.waiting))?;
    }
    rig.pair.rx.ring_mut().disable_calls();
    let mut sizes = BTreeMap::new();
    let mut warm = false;
    for &bytes in &settings.sizes {
        let frame = frame(bytes.into());
        let reader = Reader::start(rig.raw_queue()?, frame.len(), settings.cpus.mover)?;
        let (to_raw, to_daemon) = (Filler::new(RAW_TAP, &frame)?, Filler::new(TAP, &frame)?);
        let size = rig.contest(|rig, contestant| match contestant {
            Contestant::Raw => raw(rig, &to_raw, &reader),
            Contestant::Daemon => daemon(rig, &to_daemon, &mut warm),
        })?;
        sizes.insert(bytes, size);
    }
    Ok(rig.report("rx", sizes))
}

fn raw(rig: &Rig, filler: &Filler, reader: &Reader) -> Result<Sample, BenchError> {
    let waiting = usize::from(rig.settings.waiting);
    cpu::pin(rig.settings.cpus.guest)?;
    let frames_per_second = add_up(rig.settings.time(), || {
        filler.fill(waiting)?;
        reader.drain(waiting)
    })?;
    Ok(Sample {
        frames_per_second,
        ..Sample::default()
    })
}

fn daemon(rig: &mut Rig, filler: &Filler, warm: &mut bool) -> Result<Sample, BenchError> {
    let waiting = usize::from(rig.settings.waiting);
    let time = rig.settings.time();
    rig.observe("rx", |rig| {
        let mut fill_and_drain = || {
            filler.fill(waiting)?;
            drain(&mut rig.pair.rx, waiting)
        };
        if !std::mem::replace(warm, true) {
            for _ in 0..WARM_UP_FRAMES.div_ceil(waiting) {
                fill_and_drain()?;
            }
        }
        add_up(time, fill_and_drain)
    })
}

/// Repeats a drain until `time` is full; returns frames per second of drain.
fn add_up(
    time: Duration,
    mut drain: impl FnMut() -> Result<Moved, BenchError>,
) -> Result<f64, BenchError> {
    drain()?; // the first finds cold code
    let mut total = Moved::default();
    while total.took < time {
        let moved = drain()?;
        total.frames += moved.frames;
        total.took += moved.took;
    }
    Ok(per_second(total.frames, total.took))
}

/// Posts `waiting` buffers, as many at a time as the ring takes, and receives as many frames.
fn drain(rx: &mut RxQueue, waiting: usize) -> Result<Moved, BenchError> {
    let mut unposted = waiting - post(rx, waiting);
    let mut missing = waiting;
    let mut begun: Option<(Instant, usize)> = None;
    let mut last = Instant::now();
    while missing > 0 {
        let received = rx.discard(BUDGET)?;
        if received == 0 {
            wait(last)?;
            continue;
        }
        missing -= received;
        last = Instant::now();
        begun.get_or_insert((last, missing));
        if usize::from(rx.ring().free()) >= REFILL {
            unposted -= post(rx, unposted);
        }
    }
    let (start, frames) = begun.unwrap_or((last, 0));
    Ok(Moved {
        frames,
        took: last - start,
    })
}

fn post(rx: &mut RxQueue, most: usize) -> usize {
    let posted = rx.post(u16::try_from(most).unwrap_or(u16::MAX));
    if posted > 0 {
        rx.kick_if_needed();
    }
    usize::from(posted)
}

fn wait(last: Instant) -> Result<(), BenchError> {
    std::hint::spin_loop();
    if last.elapsed() > LIMIT {
        return Err(BenchError::Stuck {
            what: "the daemon to deliver a frame".into(),
            limit: LIMIT,
        });
    }
    Ok(())
}
