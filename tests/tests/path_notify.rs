//! Kicks and calls: each one that is owed comes, and those that nobody asked for do not.
#![allow(clippy::cast_possible_truncation)] // of lengths and indices that are made up here

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tapring_guest::traffic::Verifier;
use tapring_guest::{DriverRing, GuestConfig, Random, TxQueue, Until, Woken};
use tapring_tests::{Mode, Need, Rig, TO_GUEST, TO_HOST, cases};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

/// What is owed comes within this time: a lost wake-up never comes, and a kernel thread on a busy machine has been seen to wait
/// for a second until it ran.
const OWED: Duration = Duration::from_secs(5);

const STARTS: [u16; 5] = [0, 32_767, 32_768, 65_500, 65_535];

/// Waits until the device has returned everything, without a kick; says how long nothing moved at most.
fn wait_used(tx: &TxQueue) -> Result<()> {
    let mut last = (tx.ring().used_index(), Instant::now());
    loop {
        let used = tx.ring().used_index();
        if used == tx.ring().avail_index() {
            return Ok(());
        }
        if used != last.0 {
            last = (used, Instant::now());
        }
        ensure!(
            last.1.elapsed() < OWED,
            "a lost wake-up: used {used}, available {}, event {}, flags {}",
            tx.ring().avail_index(),
            tx.ring().avail_event(),
            tx.ring().used_flags()
        );
        thread::yield_now();
    }
}

/// B02: bursts that straddle the batch, sleeps of any length, the next burst right when completions come back.
fn hang_hunt(rig: &mut Rig, random: &mut Random, until: Instant) -> Result<()> {
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    while Instant::now() < until {
        for _ in 0..=random.between(0, 129) {
            rig.tx.collect()?;
            if rig.tx.ring().free() == 0 {
                rig.tx.kick_if_needed();
                wait_first(&rig.tx)?;
                rig.tx.collect()?;
            }
            rig.tx.send(&TO_HOST.build(next, 60 + next as usize % 64))?;
            next += 1;
        }
        rig.tx.kick_if_needed();
        match random.between(0, 3) {
            0 => wait_first(&rig.tx)?,
            1 => wait_used(&rig.tx)?,
            _ => thread::sleep(Duration::from_micros(random.between(0, 300) as u64)),
        }
        rig.wire.drain(&mut verifier)?;
    }
    wait_used(&rig.tx)?;
    rig.wire.drain(&mut verifier)?;
    let report = verifier.report(next);
    ensure!(report.is_perfect(), "{report:?}");
    Ok(())
}

/// Until used.idx moves for the first time.
fn wait_first(tx: &TxQueue) -> Result<()> {
    let (used, start) = (tx.ring().used_index(), Instant::now());
    while tx.ring().used_index() == used && used != tx.ring().avail_index() {
        ensure!(start.elapsed() < OWED, "a lost wake-up at {used}");
        thread::yield_now();
    }
    Ok(())
}

fn hunt_seconds() -> u64 {
    std::env::var("TAPRING_HUNT_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2)
}

fn hunt(mode: Mode, event_idx: bool) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.event_idx = event_idx)?;
    let end = Instant::now() + Duration::from_secs(hunt_seconds());
    hang_hunt(&mut rig, &mut Random::new(7), end).with_context(|| rig.daemon.tail())?;
    for left in [1, 63, 64, 65, 128] {
        for n in 0..left {
            rig.tx.send(&TO_HOST.build(n, 60))?;
        }
        rig.tx.kick_if_needed();
        wait_used(&rig.tx)?;
        rig.tx.collect()?;
    }
    rig.ensure_tx_whole()?;
    rig.ensure_counted()
}

#[test]
fn no_wake_up_is_lost() {
    cases(
        "no lost wake-up",
        NEEDS,
        Mode::with(&[true, false]),
        |(mode, event_idx)| hunt(mode, event_idx),
    );
}

/// Rounds after which a ring is stopped and started again, with the used_event of before left in place.
const RESTART: u64 = 100;

/// Waits until `frames` are used and a call came for them, looking at memory only behind a call.
fn wait_called(ring: &mut DriverRing, before: u64, frames: u16) -> Result<()> {
    let deadline = Instant::now() + OWED;
    let mut seen = before;
    loop {
        let calls = ring.counters().calls;
        if calls != seen && ring.pending()? >= frames {
            return Ok(());
        }
        seen = calls;
        ensure!(
            Instant::now() < deadline,
            "no call: {} of {frames} frames are used, of {} outstanding",
            ring.pending()?,
            ring.outstanding()
        );
        thread::sleep(Duration::from_micros(20));
    }
}

/// At most 5 % of calls that nobody asked for; those for a new call descriptor and for the first frames after a start apart.
fn ensure_few(calls: u64, rounds: u64) -> Result<()> {
    let most = rounds + rounds / 20 + 2 * (rounds / RESTART + 1);
    ensure!(
        calls >= rounds && calls <= most,
        "{calls} calls in {rounds} rounds"
    );
    Ok(())
}

/// A call that used_event asked for comes, wherever the index stands, also to a driver that looks at nothing else.
fn calls_tx(mode: Mode, start: u16, rounds: u64) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.start_index = start)?;
    let mut random = Random::new(u64::from(start));
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    for round in 1..=rounds {
        let frames = random.between(1, 255) as u16;
        let ring = rig.tx.ring_mut();
        let calls = ring.counters().calls;
        ensure!(
            ring.enable_calls(Until::Used(frames))?,
            "nothing is used yet"
        );
        for _ in 0..frames {
            rig.tx.send(&TO_HOST.build(next, 60))?;
            next += 1;
        }
        rig.tx.kick_if_needed();
        wait_called(rig.tx.ring_mut(), calls, frames).with_context(|| format!("round {round}"))?;
        rig.tx.ring_mut().disable_calls();
        ensure!(
            rig.tx.collect()? == usize::from(frames),
            "not all came back"
        );
        rig.wire.drain(&mut verifier)?;
        if round % RESTART == 0 {
            rig.guest.restart(1)?;
        }
    }
    ensure_few(rig.tx.counters().calls, rounds)?;
    ensure!(
        verifier.report(next).is_perfect(),
        "{:?}",
        verifier.report(next)
    );
    Ok(())
}

fn calls_rx(mode: Mode, start: u16, rounds: u64) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.start_index = start)?;
    let mut random = Random::new(u64::from(start));
    let mut verifier = Verifier::new(TO_GUEST);
    let mut next = 0;
    rig.rx.refill();
    for round in 1..=rounds {
        let frames = random.between(1, 64) as u16;
        let ring = rig.rx.ring_mut();
        let calls = ring.counters().calls;
        ensure!(
            ring.enable_calls(Until::Used(frames))?,
            "nothing is used yet"
        );
        for _ in 0..frames {
            rig.wire.send(&TO_GUEST.build(next, 60))?;
            next += 1;
        }
        wait_called(rig.rx.ring_mut(), calls, frames).with_context(|| format!("round {round}"))?;
        rig.rx.ring_mut().disable_calls();
        rig.rx
            .receive(usize::MAX, |frame| _ = verifier.frame(frame))?;
        ensure!(
            verifier.report(next).is_perfect(),
            "{:?}",
            verifier.report(next)
        );
        rig.rx.refill();
        if round % RESTART == 0 {
            rig.guest.restart(0)?;
        }
    }
    ensure_few(rig.rx.counters().calls, rounds)
}

#[test]
fn calls_for_tx_come_when_asked_for() {
    let all = Mode::with(&STARTS);
    cases("calls for TX", NEEDS, all, |(mode, start)| {
        calls_tx(mode, start, 200)
    });
}

#[test]
fn calls_for_rx_come_when_asked_for() {
    let all = Mode::with(&STARTS);
    cases("calls for RX", NEEDS, all, |(mode, start)| {
        calls_rx(mode, start, 200)
    });
}

/// A driver that fills its ring and looks at no memory until it is called.
fn full_ring(words: &str, configure: impl FnOnce(&mut GuestConfig)) -> Result<()> {
    let mut rig = Rig::start(words, configure)?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    while next < 10_000 {
        while rig.tx.send(&TO_HOST.build(next, 60)).is_ok() {
            next += 1;
        }
        rig.tx.ring_mut().enable_calls(Until::Next)?;
        rig.tx.kick_if_needed();
        if rig.tx.wait_for_call(Until::Next, OWED)? == Woken::TimedOut {
            bail!("no call for a full ring after {next} frames");
        }
        rig.tx.collect()?;
        rig.wire.drain(&mut verifier)?;
    }
    rig.ensure_tx_whole()?;
    rig.wire.drain(&mut verifier)?;
    ensure!(
        verifier.report(next).is_perfect(),
        "{:?}",
        verifier.report(next)
    );
    rig.ensure_alive()?;
    rig.ensure_counted()
}

#[test]
fn a_driver_that_only_waits_for_calls_goes_on() {
    let all = Mode::with(&[(true, true), (true, false), (false, true), (false, false)]);
    cases(
        "a driver that only waits for calls",
        NEEDS,
        all,
        |(mode, (event_idx, blocking))| {
            full_ring(mode.words(), |config| {
                config.event_idx = event_idx;
                config.blocking_eventfds = blocking;
            })
        },
    );
}

#[test]
fn rings_of_every_size_work() {
    cases("rings of every size", NEEDS, 1..=15, |power| {
        full_ring("--queue-size 32768", |config| {
            config.queue_size = 1 << power;
            config.start_index = 65_530;
            config.memory_bytes = 256 << 20;
            config.tx_buffer_bytes = 512;
            config.indirect_entries = 4;
        })
    });
}

/// Kicks without end, for nothing, while frames go both ways.
fn kick_storm(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    let kicks = [rig.tx.ring().kick_fd()?, rig.rx.ring().kick_fd()?];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for kick in &kicks {
                    let _ = kick.write(1);
                }
            }
        });
        let outcome = (0..2000).try_for_each(|_| rig.ensure_alive());
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    rig.ensure_alive()
}

#[test]
fn a_storm_of_kicks_stops_nothing() {
    cases("a storm of kicks", NEEDS, Mode::ALL, kick_storm);
}
