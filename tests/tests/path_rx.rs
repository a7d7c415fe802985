//! Receiving with too few buffers, too small ones, or none.
#![allow(clippy::cast_possible_truncation)] // of lengths and indices that are made up here

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tapring_guest::traffic::Verifier;
use tapring_guest::{GuestConfig, Layout, Resume};
use tapring_tests::{Mode, Need, Rig, TO_GUEST, cases, ensure_share, until};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

const SOON: Duration = Duration::from_secs(5);
const RX: &str = "direction=\"rx\"";

/// Receives all there is until nothing has come for a while; refills each time.
fn receive_all(rig: &mut Rig, verifier: &mut Verifier, refill: bool) -> Result<()> {
    loop {
        let got = rig
            .rx
            .receive(usize::MAX, |frame| _ = verifier.frame(frame))?;
        if refill {
            rig.rx.refill();
        }
        if got == 0 {
            return Ok(());
        }
    }
}

/// A frame larger than any buffer, then one that fits (B24 a, B42).
fn too_big_without_merging(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| {
        config.mrg_rxbuf = false;
        config.rx_buffer_bytes = 1526;
    })?;
    rig.net.ip("link set t0 mtu 9000")?;
    rig.rx.refill();
    for n in 0..200 {
        rig.wire.send(&TO_GUEST.build(n, 9000))?;
        let small = TO_GUEST.build(n, 100);
        rig.wire.send(&small)?;
        let found = rig.receive(SOON)?;
        ensure!(
            found.as_deref() == Some(&small[..]),
            "small frame {n} behind a large one"
        );
        rig.rx.refill();
    }
    rig.daemon.wait_metric(
        "tapring_dropped_packets_total",
        &[RX, "reason=\"too_large\""],
        200.0,
    )?;
    rig.ensure_alive()
}

/// B42: buffers of every awkward size, one at a time.
fn awkward_sizes(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.mrg_rxbuf = false)?;
    for room in [26, 27, 12 + 500, 12 + 1514] {
        for bytes in [60, 499, 500, 501, 1000, 1513, 1514] {
            rig.rx.reshape(room, &Layout::ONE)?;
            rig.rx.post(1);
            rig.rx.kick_if_needed();
            let frame = TO_GUEST.build(bytes as u64, bytes);
            let before = rig.metric(
                "tapring_dropped_packets_total",
                &[RX, "reason=\"too_large\""],
            )?;
            rig.wire.send(&frame)?;
            if bytes + 12 <= room {
                let found = rig.receive(SOON)?;
                ensure!(
                    found.as_deref() == Some(&frame[..]),
                    "{bytes} bytes in {room}"
                );
                continue;
            }
            rig.daemon.wait_metric(
                "tapring_dropped_packets_total",
                &[RX, "reason=\"too_large\""],
                before + 1.0,
            )?;
            ensure!(
                rig.rx.ring().outstanding() == 1,
                "a frame that does not fit took the buffer"
            );
            if room >= 12 + 60 {
                let small = TO_GUEST.build(9, 60);
                rig.wire.send(&small)?;
                let found = rig.receive(SOON)?;
                ensure!(
                    found.as_deref() == Some(&small[..]),
                    "after {bytes} bytes for {room}"
                );
            } else {
                // No frame of ours fits: let the next round's buffers be used.
                let config = GuestConfig {
                    mrg_rxbuf: false,
                    ..GuestConfig::default()
                };
                let pair = rig.guest.reboot(&config)?.remove(0);
                (rig.tx, rig.rx) = (pair.tx, pair.rx);
            }
        }
    }
    Ok(())
}

/// B24 b, c: a merged frame that lacks buffers waits without a spin, and then goes or is dropped; the ring stops meanwhile.
fn lacking_buffers(mode: Mode, stop: bool) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.rx_buffer_bytes = 1526)?;
    rig.net.ip("link set t0 mtu 9000")?;
    rig.rx.post(3);
    rig.rx.kick_if_needed();
    for n in 0..5 {
        rig.wire.send(&TO_GUEST.build(n, 9000))?;
    }
    ensure_share(&rig.daemon, "a frame that waits", 10)?;
    if stop {
        let start = Instant::now();
        let base = rig.guest.stop(0)?;
        ensure!(
            start.elapsed() < SOON,
            "the stop took {:?}",
            start.elapsed()
        );
        rig.guest.start(0, Resume::At(u16::try_from(base)?))?;
    }
    rig.rx.post(10);
    rig.rx.kick_if_needed();
    let small = TO_GUEST.build(77, 100);
    rig.wire.send(&small)?;
    let mut found = Vec::new();
    until(SOON, "the small frame", || {
        rig.rx
            .receive(64, |frame| found.push(frame.to_vec()))
            .ok()?;
        (found.last() == Some(&small)).then_some(())
    })?;
    for (n, frame) in found[..found.len() - 1].iter().enumerate() {
        ensure!(
            (0..5).any(|n| *frame == TO_GUEST.build(n, 9000)),
            "frame {n} is cut"
        );
    }
    rig.rx.refill();
    rig.ensure_alive()
}

#[test]
fn frames_too_large_for_a_buffer_are_dropped_and_block_nothing() {
    cases(
        "frames too large for a buffer",
        NEEDS,
        Mode::ALL,
        too_big_without_merging,
    );
}

#[test]
fn a_buffer_takes_what_fits_and_no_cut_frame() {
    cases("buffers of awkward sizes", NEEDS, Mode::ALL, awkward_sizes);
}

#[test]
fn a_frame_that_lacks_buffers_waits_without_a_spin() {
    let all = Mode::with(&[false, true]);
    cases("a frame that lacks buffers", NEEDS, all, |(mode, stop)| {
        lacking_buffers(mode, stop)
    });
}

/// A flood against a driver with few buffers: nothing is lost but what the tap's own queue drops.
fn starving(mode: Mode, mergeable: bool, buffers: u16, bytes: usize) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| {
        config.mrg_rxbuf = mergeable;
        config.rx_buffers = buffers;
        config.rx_buffer_bytes = bytes;
        config.event_idx = mode != Mode::Plain;
    })?;
    rig.flood_guest(2000)?;
    rig.ensure_alive()
}

#[test]
fn few_buffers_do_not_starve_the_driver() {
    let all = Mode::with(&[
        (true, 8, 1536),
        (false, 13, 1536),
        (false, 8, 1536),
        (true, 256, 300),
        (true, 12, 256),
        (true, 1, 1536),
        (false, 1, 1536),
        (true, 2, 1536),
        (true, 256, 12),
        (true, 256, 13),
        (true, 200, 64),
    ]);
    cases(
        "few or small buffers",
        NEEDS,
        all,
        |(mode, (mergeable, buffers, bytes))| starving(mode, mergeable, buffers, bytes),
    );
}

/// A flood without any buffer: what the tap drops is counted and shown; the rest waits there, whole and in order.
fn visible_drops(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    for n in 0..3000 {
        rig.wire.send(&TO_GUEST.build(n, 100))?;
    }
    let dropped = rig.net.counters("t0")?.tx_dropped;
    ensure!(dropped > 1000, "only {dropped} dropped");
    #[allow(clippy::cast_precision_loss)]
    rig.daemon
        .wait_metric("tapring_tap_dropped_packets_total", &[], dropped as f64)?;
    let mut verifier = Verifier::new(TO_GUEST);
    rig.rx.refill();
    until(SOON, "what the tap holds", || {
        receive_all(&mut rig, &mut verifier, true).ok()?;
        (verifier.report(3000).lost == dropped).then_some(())
    })
    .with_context(|| format!("{:?} of 3000, {dropped} dropped", verifier.report(3000)))?;
    let report = verifier.report(3000);
    ensure!(
        report.reordered + report.corrupt + report.duplicated == 0,
        "{report:?}"
    );
    rig.ensure_alive()
}

#[test]
fn what_the_tap_drops_is_shown() {
    cases("what the tap drops", NEEDS, Mode::ALL, visible_drops);
}

/// Frames that were read and found no buffers go to the same driver after a stop and a start, in order.
fn held_over_a_restart(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.rx_buffer_bytes = 300)?;
    let mut verifier = Verifier::new(TO_GUEST);
    let total = 400;
    rig.rx.post(64);
    rig.rx.kick_if_needed();
    for n in 0..total {
        rig.wire.send(&TO_GUEST.build(n, 1400))?;
    }
    for _ in 0..300 {
        let base = rig.guest.stop(0)?;
        let memory = rig.rx.ring().used_index();
        ensure!(base == u32::from(memory), "base {base}, used {memory}");
        rig.guest.start(0, Resume::At(u16::try_from(base)?))?;
        rig.rx
            .receive(usize::MAX, |frame| _ = verifier.frame(frame))?;
        rig.rx.post(7);
        rig.rx.kick_if_needed();
    }
    rig.rx.refill();
    let labels = [RX, "reason=\"too_large\""];
    until(SOON, "all frames", || {
        receive_all(&mut rig, &mut verifier, true).ok()?;
        // On a busy machine a frame may lack buffers for 100 ms, and is then dropped and counted.
        let dropped = rig.metric("tapring_dropped_packets_total", &labels).ok()? as u64;
        (verifier.report(total).lost == dropped).then_some(())
    })
    .with_context(|| format!("{:?}", verifier.report(total)))?;
    let report = verifier.report(total);
    ensure!(
        report.reordered + report.duplicated + report.corrupt == 0,
        "{report:?}"
    );
    rig.ensure_alive()
}

#[test]
fn held_frames_survive_a_restart() {
    cases(
        "held frames over a restart",
        NEEDS,
        Mode::ALL,
        held_over_a_restart,
    );
}
