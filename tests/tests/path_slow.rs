//! A tap that will not take more: nothing is lost, nothing is reordered, nothing is left behind without a kick.
#![allow(clippy::cast_possible_truncation)] // of lengths and indices that are made up here

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::traffic::Verifier;
use tapring_guest::{GuestConfig, Resume, Until};
use tapring_tests::{Bottleneck, Mode, Need, TO_GUEST, TO_HOST, Wire, cases, until};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tun,
    Need::Tool("tc"),
    Need::Tool("bridge"),
    Need::Tool("perl"),
];

const LIMIT: Duration = Duration::from_secs(20);

/// B25, B35: frames wait in the ring while the tap is full; what the host sends goes on arriving; after the release all leave
/// in order without a kick.
fn waits_and_leaves_in_order(mode: Mode, total: u64, stopped: bool) -> Result<()> {
    let (mut rig, bottleneck) = Bottleneck::rig(mode.words(), |_| ())?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    bottleneck.close()?;
    until(LIMIT, "the tap to be full", || {
        rig.fill(&mut next, total, 1000).ok()?;
        let blocked = rig.metric("tapring_blocked_total", &["reason=\"tap_full\""]);
        (blocked.ok()? > 0.0).then_some(())
    })?;
    rig.fill(&mut next, total, 1000)?;
    let kicks = rig.tx.counters().kicks_sent;

    let host = Wire::on("t0")?;
    rig.rx.refill();
    for n in 0..500 {
        let frame = TO_GUEST.build(n, 700);
        host.send(&frame)?;
        let found = rig.receive(Duration::from_secs(1))?;
        ensure!(
            found.as_deref() == Some(&frame[..]),
            "RX frame {n} did not come, but {found:02x?}"
        );
        rig.rx.refill();
    }
    let waiting = rig.tx.ring().outstanding();
    ensure!(waiting > 0, "the tap was not full any more");

    if stopped {
        rig.daemon.signal(Signal::SIGSTOP)?;
    }
    bottleneck.open()?;
    if stopped {
        thread::sleep(Duration::from_millis(300));
        rig.daemon.signal(Signal::SIGCONT)?;
    }
    rig.ensure_all_leave(&mut verifier, next)?;
    ensure!(rig.tx.counters().kicks_sent == kicks, "it took a kick");
    while next < total {
        rig.fill(&mut next, total, 1000)?;
        rig.wire.drain(&mut verifier)?;
    }
    rig.ensure_all_leave(&mut verifier, total)
}

#[test]
fn frames_wait_while_the_tap_is_full_and_then_leave_in_order() {
    cases(
        "a full tap",
        NEEDS,
        Mode::with(&[false, true]),
        |(mode, stopped)| waits_and_leaves_in_order(mode, 2000, stopped),
    );
}

/// One frame more than the tap takes, and then nothing: that one must not be stranded.
fn last_frame(mode: Mode) -> Result<()> {
    let (mut rig, bottleneck) = Bottleneck::rig(mode.words(), |_| ())?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    bottleneck.close()?;
    until(LIMIT, "one frame too many", || {
        rig.tx.collect().ok()?;
        if rig.tx.ring().outstanding() == 0 {
            let end = next + 1;
            rig.fill(&mut next, end, 1000).ok()?;
        }
        rig.tx
            .wait_for_call(Until::Next, Duration::from_millis(50))
            .ok()?;
        rig.tx.collect().ok()?;
        (rig.tx.ring().outstanding() == 1).then_some(())
    })?;
    let kicks = rig.tx.counters().kicks_sent;
    bottleneck.open()?;
    rig.ensure_all_leave(&mut verifier, next)?;
    ensure!(rig.tx.counters().kicks_sent == kicks, "it took a kick");
    Ok(())
}

#[test]
fn a_single_frame_left_behind_leaves_without_a_kick() {
    cases("a full tap and one frame", NEEDS, Mode::ALL, last_frame);
}

/// The bottleneck opens and closes while frames go through.
fn toggled(mode: Mode, event_idx: bool) -> Result<()> {
    let (mut rig, bottleneck) =
        Bottleneck::rig(mode.words(), |config| config.event_idx = event_idx)?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    for _ in 0..6 {
        bottleneck.close()?;
        let closed = Instant::now() + Duration::from_millis(150);
        while Instant::now() < closed {
            let end = next + 1 + next % 100;
            let bytes = 60 + (next as usize * 37) % 1400;
            rig.fill(&mut next, end, bytes)?;
            rig.wire.drain(&mut verifier)?;
        }
        bottleneck.open()?;
        let mut before = Instant::now();
        let mut used = rig.tx.ring().used_index();
        while rig.tx.ring().used_index() != rig.tx.ring().avail_index() {
            rig.wire.drain(&mut verifier)?;
            if used != rig.tx.ring().used_index() {
                used = rig.tx.ring().used_index();
                before = Instant::now();
            }
            ensure!(
                before.elapsed() < Duration::from_secs(3),
                "stranded: {}",
                rig.daemon.tail()
            );
        }
    }
    rig.ensure_all_leave(&mut verifier, next)
        .context(format!("after {next} frames"))?;
    Ok(())
}

#[test]
fn nothing_is_stranded_when_the_tap_fills_and_empties() {
    cases("a tap full and empty in turn", NEEDS, Mode::ALL, |mode| {
        toggled(mode, matches!(mode, Mode::Inline | Mode::SqpollPlaced))
    });
}

/// Most frames that can overtake one: those of the first batch that finds the tap full, which nobody knew could be.
const BATCH: u64 = 64;

/// B35: a bottleneck that empties as fast as the daemon fills it, so that the tap turns full and takes frames again in the
/// middle of a batch.
fn fast_bottleneck(mode: Mode) -> Result<()> {
    let (mut rig, bottleneck) = Bottleneck::rig(mode.words(), |_| ())?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    bottleneck.limit("400mbit")?;
    bottleneck.send_buffer(40_000)?;
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        let more = next + 300;
        let bytes = 60 + (next as usize * 97) % 1400;
        rig.fill(&mut next, more, bytes)?;
        rig.wire.drain(&mut verifier)?;
    }
    rig.ensure_tx_whole()?;
    let deadline = Instant::now() + LIMIT;
    while verifier.report(next).lost > 0 && Instant::now() < deadline {
        rig.wire.drain(&mut verifier)?;
    }
    let report = verifier.report(next);
    ensure!(
        report.lost + report.corrupt + report.duplicated == 0,
        "{report:?}"
    );
    ensure!(report.reordered < BATCH, "{report:?}");
    Ok(())
}

#[test]
fn a_tap_that_is_full_time_and_again_keeps_the_order() {
    cases("a fast bottleneck", NEEDS, Mode::ALL, fast_bottleneck);
}

/// What a VMM may do to a ring whose frames wait for the tap.
fn interfered(mode: Mode) -> Result<()> {
    let (mut rig, bottleneck) =
        Bottleneck::rig(mode.words(), |config| config.memory_bytes = 4 << 20)?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    bottleneck.close()?;
    until(LIMIT, "the tap to be full", || {
        rig.fill(&mut next, 1000, 1000).ok()?;
        let blocked = rig.metric("tapring_blocked_total", &["reason=\"tap_full\""]);
        (blocked.ok()? > 0.0).then_some(())
    })?;
    for round in 0..8 {
        let used = rig.tx.ring().used_index();
        let base = rig.guest.stop(1)?;
        ensure!(
            base == u32::from(rig.tx.ring().used_index()),
            "base {base} in round {round}, used {used} before"
        );
        let memory = rig.guest.ram().snapshot();
        thread::sleep(Duration::from_millis(5));
        ensure!(
            memory == rig.guest.ram().snapshot(),
            "memory was written after the stop"
        );
        rig.guest.start(1, Resume::Used)?;
        rig.guest.set_enable(1, false)?;
        rig.guest.resend_memory()?;
        rig.guest.set_enable(1, true)?;
    }
    bottleneck.open()?;
    rig.ensure_all_leave(&mut verifier, next)
}

#[test]
fn a_ring_that_waits_for_the_tap_can_be_stopped() {
    cases("a full tap and a stop", NEEDS, Mode::ALL, interfered);
}

/// B23: the same head again and again while its frame waits. One completion for each entry.
fn duplicates(mode: Mode) -> Result<()> {
    let (mut rig, bottleneck) = Bottleneck::rig(mode.words(), |_| ())?;
    bottleneck.close()?;
    let mut next = 0;
    rig.fill(&mut next, 40, 1000)?;
    let ring = rig.tx.ring_mut();
    let mut index = ring.avail_index();
    for repeats in [2, 3, 64, 64] {
        for _ in 0..repeats {
            ring.write_avail_entry(index, 5);
            index = index.wrapping_add(1);
        }
        ring.store_avail_index(index);
        ring.kick();
    }
    bottleneck.open()?;
    until(LIMIT, "a completion for each entry", || {
        (rig.tx.ring().used_index() == index).then_some(())
    })?;
    rig.daemon.wait_metric(
        "tapring_packets_total",
        &["direction=\"tx\""],
        f64::from(index),
    )?;
    let pair = rig.guest.reboot(&GuestConfig::default())?.remove(0);
    (rig.tx, rig.rx) = (pair.tx, pair.rx);
    until(LIMIT, "the bottleneck to run empty", || {
        matches!(rig.wire.receive(Duration::from_millis(100)), Ok(None)).then_some(())
    })?;
    rig.tx.send(&TO_HOST.build(1 << 40, 60))?;
    rig.tx.kick_if_needed();
    let found = rig.wire.receive(LIMIT)?;
    ensure!(
        found == Some(&TO_HOST.build(1 << 40, 60)[..]),
        "nothing leaves any more"
    );
    Ok(())
}

#[test]
fn a_head_made_available_twice_comes_back_twice() {
    cases("duplicate heads", NEEDS, Mode::ALL, duplicates);
}
