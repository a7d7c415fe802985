//! The life of rings on one connection and across backends: B03 B14 B17 B18 B20 B41 B58.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::{Guest, GuestConfig, Pair, Resume, Until, Woken};
use tapring_tests::{
    Daemon, DaemonOptions, Effort, Net, Rig, TO_GUEST, TO_HOST, Wire, scenario, until,
};

use crate::NEEDS;
use crate::raw::{NEED_REPLY, RawFrontend, VERSION, request, ring_state};

pub(crate) const RX: u16 = 0;

pub(crate) const TX: u16 = 1;

pub(crate) const SOON: Duration = Duration::from_secs(2);

/// B19, B18: restarts under traffic.
pub(crate) const RESTARTS: u64 = 100;

const REBOOTS: u64 = 10;

const FRAMES_A_REBOOT: u64 = 300;

/// Sends numbered frames, and takes back what was sent.
fn send_some(rig: &mut Rig, sequences: std::ops::Range<u64>) -> Result<()> {
    for sequence in sequences {
        rig.tx
            .transmit(&TO_HOST.build(sequence, 120), false, SOON)
            .with_context(|| format!("frame {sequence}\n{}", rig.daemon.tail()))?;
    }
    Ok(())
}

/// That the host receives exactly these frames, in order.
pub(crate) fn expect_at_host(wire: &mut Wire, sequences: std::ops::Range<u64>) -> Result<()> {
    for sequence in sequences {
        let found = wire.receive(SOON)?;
        ensure!(
            found == Some(&TO_HOST.build(sequence, 120)[..]),
            "frame {sequence} did not arrive, or another in its place ({:?} bytes)",
            found.map(<[u8]>::len)
        );
    }
    Ok(())
}

pub(crate) fn send_to_guest(wire: &Wire, sequences: std::ops::Range<u64>) -> Result<()> {
    for sequence in sequences {
        wire.send(&TO_GUEST.build(sequence, 120))?;
    }
    Ok(())
}

/// That the guest receives exactly these frames, in order, without refilling the ring.
pub(crate) fn expect_at_guest(rig: &mut Rig, sequences: std::ops::Range<u64>) -> Result<()> {
    for sequence in sequences {
        let found = rig.receive(SOON)?;
        ensure!(
            found.as_deref() == Some(&TO_GUEST.build(sequence, 120)[..]),
            "frame {sequence} did not arrive, or another in its place ({:?} bytes)\n{}",
            found.map(|frame| frame.len()),
            rig.daemon.tail()
        );
    }
    Ok(())
}

/// A daemon that can be replaced under its guest.
struct Replaceable {
    options: DaemonOptions,
    daemon: Daemon,
    _folder: tempfile::TempDir,
}

impl Replaceable {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let options = DaemonOptions::on_tap("t0").socket(&folder.path().join("vm0.sock"));
        Ok(Self {
            daemon: Daemon::start(&options)?,
            options,
            _folder: folder,
        })
    }

    fn replace(self) -> Result<Self> {
        self.daemon.signal(Signal::SIGKILL)?;
        self.daemon.finish(SOON)?;
        Ok(Self {
            daemon: Daemon::start(&self.options)?,
            ..self
        })
    }
}

#[test]
fn b03_a_receiveq_runs_without_a_kick_after_a_restart() {
    scenario("B03 rx-no-kick-after-restart", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let wire = Wire::on("t0")?;
        let first = Replaceable::start()?;
        let mut guest = Guest::connect(&GuestConfig::new(first.daemon.socket()))?;
        let Pair { mut rx, .. } = guest.take_pairs().remove(0);
        rx.refill();
        let mut received = 0;
        send_to_guest(&wire, 0..50)?;
        until(SOON, "50 frames", || {
            received += rx.receive(64, |_| ()).ok()?;
            (received == 50).then_some(())
        })?;
        let second = first.replace()?;
        guest.detach();
        guest.attach(Resume::Used)?;
        send_to_guest(&wire, 50..60)?;
        until(SOON, "10 frames without a kick", || {
            received += rx.receive(64, |_| ()).ok()?;
            (received == 60).then_some(())
        })
        .with_context(|| second.daemon.tail())
    });
}

#[test]
fn b14_a_stale_avail_event_is_rewritten() {
    scenario("B14 stale-avail-event", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut wire = Wire::on("t0")?;
        let mut guest = Guest::prepare(&GuestConfig {
            start_index: 30,
            ..GuestConfig::new(daemon.socket())
        })?;
        let Pair { mut tx, .. } = guest.take_pairs().remove(0);
        for sequence in 0..10 {
            tx.send(&TO_HOST.build(sequence, 120))?;
        }
        tx.ring().store_avail_event(25);
        guest.attach(Resume::At(30))?;
        expect_at_host(&mut wire, 0..10).with_context(|| daemon.tail())?;
        until(SOON, "avail_event", || {
            (tx.ring().avail_event() == 40).then_some(())
        })?;
        tx.collect()?;
        tx.send(&TO_HOST.build(10, 120))?;
        ensure!(tx.kick_if_needed(), "no kick was asked for");
        expect_at_host(&mut wire, 10..11)
    });
}

#[test]
fn b17_the_base_is_the_next_avail_index() {
    scenario("B17 vring-base-value", NEEDS, || {
        let mut rig = Rig::start("", |config| config.start_index = 65_000)?;
        send_some(&mut rig, 0..936)?;
        rig.ensure_tx_whole()?;
        for sequence in 936..1000 {
            rig.tx.send(&TO_HOST.build(sequence, 120))?;
        }
        rig.tx.kick_if_needed();
        let base = rig.guest.stop(TX)?;
        rig.tx.collect()?;
        let returned = 1000 - rig.tx.ring().outstanding();
        let expected = u32::from(65_000u16.wrapping_add(returned));
        ensure!(
            base == expected,
            "base {base} after {returned} were returned, not {expected}"
        );
        ensure!(rig.guest.stop(TX)? == base, "another base the second time");
        rig.guest.start(TX, Resume::At(u16::try_from(base)?))?;
        send_some(&mut rig, 1000..2000)?;
        expect_at_host(&mut rig.wire, 0..2000)?;
        rig.ensure_tx_whole()?;
        ensure!(
            rig.guest.stop(TX)? == (65_000 + 2000) % 65_536,
            "the base does not wrap"
        );
        Ok(())
    });
}

#[test]
fn b17_restarts_under_traffic_lose_and_repeat_nothing() {
    scenario("B17 restarts under traffic", NEEDS, || {
        let mut rig = Rig::start("", |config| config.start_index = 64_000)?;
        for round in 0..RESTARTS {
            for sequence in round * 60..round * 60 + 60 {
                rig.tx.send(&TO_HOST.build(sequence, 120))?;
            }
            rig.tx.kick_if_needed();
            rig.guest.restart(TX)?;
            rig.rx.refill();
            send_to_guest(&rig.wire, round * 60..round * 60 + 60)?;
            rig.guest.restart(RX)?;
            expect_at_guest(&mut rig, round * 60..round * 60 + 60)
                .with_context(|| format!("round {round}"))?;
            rig.ensure_tx_whole()
                .with_context(|| format!("round {round}"))?;
        }
        expect_at_host(&mut rig.wire, 0..RESTARTS * 60)
    });
}

#[test]
fn b18_a_reboot_starts_over_with_what_was_negotiated_last() {
    scenario("B18 ring-re-setup", NEEDS, || {
        let mut rig = Rig::start("", |config| config.rx_buffers = 64)?;
        let os = GuestConfig::new(rig.daemon.socket());
        let firmware = GuestConfig {
            queue_size: 16,
            event_idx: false,
            indirect: false,
            mrg_rxbuf: false,
            ..os.clone()
        };
        for round in 0..REBOOTS {
            let config = if round % 2 == 0 { &firmware } else { &os };
            let Pair { tx, rx } = rig.guest.reboot(config)?.remove(0);
            (rig.tx, rig.rx) = (tx, rx);
            ensure!(rig.tx.ring().size() == config.queue_size, "the ring's size");
            for sequence in 0..FRAMES_A_REBOOT {
                send_some(&mut rig, sequence..sequence + 1)?;
                expect_at_host(&mut rig.wire, sequence..sequence + 1)?;
                rig.rx.refill();
                send_to_guest(&rig.wire, sequence..sequence + 1)?;
                expect_at_guest(&mut rig, sequence..sequence + 1)
                    .with_context(|| format!("round {round}"))?;
            }
            let used = u64::from(rig.rx.ring().used_index());
            ensure!(used == FRAMES_A_REBOOT, "used.idx is {used} after a reboot");
        }
        Ok(())
    });
}

/// Frames of before a change of features belong to a driver that is gone.
#[test]
fn b18_another_driver_gets_no_frames_of_the_first() {
    scenario("B18 held frames do not survive new features", NEEDS, || {
        let mut rig = Rig::start("", |config| config.rx_buffers = 4)?;
        rig.rx.refill();
        send_to_guest(&rig.wire, 0..40)?;
        expect_at_guest(&mut rig, 0..4)?;
        let firmware = GuestConfig {
            mrg_rxbuf: false,
            ..GuestConfig::new(rig.daemon.socket())
        };
        let Pair { tx, rx } = rig.guest.reboot(&firmware)?.remove(0);
        (rig.tx, rig.rx) = (tx, rx);
        rig.rx.refill();
        send_to_guest(&rig.wire, 100..101)?;
        expect_at_guest(&mut rig, 100..101)?;
        rig.daemon.wait_metric(
            "tapring_dropped_packets_total",
            &["direction=\"rx\"", "reason=\"session_end\""],
            36.0,
        )
    });
}

#[test]
fn b18_the_same_driver_gets_frames_that_waited_for_its_restart() {
    scenario("B18 held frames survive a restart", NEEDS, || {
        let mut rig = Rig::start("", |config| config.rx_buffers = 4)?;
        rig.rx.refill();
        send_to_guest(&rig.wire, 0..40)?;
        expect_at_guest(&mut rig, 0..4)?;
        rig.guest.restart(RX)?;
        rig.rx.post_at_most(u16::MAX);
        rig.rx.refill();
        expect_at_guest(&mut rig, 4..40)
    });
}

#[test]
fn b20_a_killed_backend_leaves_no_head_behind() {
    scenario("B20 backend-crash-inflight", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let mut wire = Wire::on("t0")?;
        let mut running = Replaceable::start()?;
        let mut guest = Guest::connect(&GuestConfig::new(running.daemon.socket()))?;
        let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
        let mut next = 0;
        for round in 0..4 {
            rx.refill();
            running.daemon.signal(Signal::SIGSTOP)?;
            for _ in 0..200 {
                tx.send(&TO_HOST.build(next, 120))?;
                next += 1;
            }
            tx.kick_if_needed();
            running.daemon.signal(Signal::SIGCONT)?;
            running = running.replace()?;
            guest.detach();
            guest.attach(Resume::Used)?;
            tx.wait_for_all(SOON)
                .with_context(|| format!("round {round}\n{}", running.daemon.tail()))?;
        }
        let mut last = None;
        while let Some(frame) = wire.receive(Duration::from_millis(100))? {
            let sequence = u64::from_be_bytes(frame[14..22].try_into()?);
            ensure!(
                frame == TO_HOST.build(sequence, 120),
                "frame {sequence} was spoilt"
            );
            last = last.max(Some(sequence));
        }
        ensure!(last == Some(next - 1), "the last frame is {last:?}");
        // With the avail index as base what was under way is skipped; new buffers flow all the same.
        tx.ring_mut().in_order = false;
        running = running.replace()?;
        guest.detach();
        for _ in 0..20 {
            tx.send(&TO_HOST.build(next, 120))?;
            next += 1;
        }
        guest.attach(Resume::Avail)?;
        tx.send(&TO_HOST.build(next, 120))?;
        tx.kick_if_needed();
        let found = wire.receive(SOON)?;
        ensure!(
            found == Some(&TO_HOST.build(next, 120)[..]),
            "new buffers do not flow\n{}",
            running.daemon.tail()
        );
        Ok(())
    });
}

#[test]
fn b41_a_spoilt_avail_index_breaks_that_ring_until_its_restart() {
    scenario("B41 ring-index-corruption", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        let broken = ["direction=\"tx\"", "reason=\"broken\""];
        for (round, spoil) in [257u16, 0xffff, 32_768].into_iter().enumerate() {
            rig.ensure_alive()?;
            rig.ensure_tx_whole()?;
            let at = rig.tx.ring().avail_index();
            rig.tx.ring().store_avail_index(at.wrapping_add(spoil));
            rig.tx.ring_mut().kick();
            rig.daemon
                .wait_metric("tapring_blocked_total", &broken, (round + 1) as f64)?;
            let before = Effort::of(rig.daemon.id())?;
            for _ in 0..20 {
                rig.tx.ring_mut().kick();
                std::thread::sleep(Duration::from_millis(10));
            }
            let cost = Effort::of(rig.daemon.id())?.since(before);
            ensure!(cost.cpu < Duration::from_millis(60), "it spins: {cost:?}");
            // The other ring goes on.
            rig.rx.refill();
            send_to_guest(&rig.wire, 0..10)?;
            expect_at_guest(&mut rig, 0..10)?;
            let base = rig.guest.stop(TX)?;
            ensure!(
                base == u32::from(at),
                "base {base} of a ring that broke at {at}"
            );
            rig.tx.ring().store_avail_index(at);
            rig.guest.start(TX, Resume::At(at))?;
        }
        rig.ensure_alive()?;
        rig.daemon.signal(Signal::SIGTERM)?;
        let lines = rig.daemon.finish(SOON)?.lines;
        let said = lines
            .iter()
            .filter(|line| line.contains("bad_index"))
            .count();
        ensure!(
            (1..=3).contains(&said),
            "{said} lines:\n{}",
            lines.join("\n")
        );
        Ok(())
    });
}

#[test]
fn b41_a_bad_head_does_not_stop_the_next_good_one() {
    scenario("B41 bad heads", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        for bad in [256, 0x7fff, 0xffff] {
            rig.ensure_alive()?;
            rig.ensure_tx_whole()?;
            let at = rig.tx.ring().avail_index();
            rig.tx.ring().write_avail_entry(at, bad);
            rig.tx.ring().store_avail_index(at.wrapping_add(1));
            rig.tx.ring_mut().kick();
            let labels = ["direction=\"tx\"", "kind=\"bad_head\""];
            until(SOON, "the fault", || {
                (rig.metric("tapring_guest_faults_total", &labels).ok()? >= 1.0).then_some(())
            })?;
            // The device's next avail index is one ahead of the driver's book from here on: start over.
            rig.guest.stop(TX)?;
            rig.tx.ring().store_avail_index(at);
            rig.guest.start(TX, Resume::At(at))?;
        }
        rig.ensure_alive()
    });
}

#[test]
fn b58_ring_sizes() {
    scenario("B58 ring-size", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut wire = Wire::on("t0")?;
        for size in [
            0u32,
            3,
            100,
            255,
            2048,
            4096,
            32_768,
            65_535,
            65_536,
            0x10100,
            u32::MAX,
        ] {
            let frontend = RawFrontend::connect(daemon.socket())?;
            frontend.ask(request::GET_FEATURES, VERSION, &[], &[])?;
            let ack = 8u64.to_ne_bytes();
            frontend.send(request::SET_PROTOCOL_FEATURES, VERSION, &ack, &[])?;
            let code = request::SET_VRING_NUM;
            let body = ring_state(1, size);
            let answer = frontend.ask(code, VERSION | NEED_REPLY, &body, &[])?;
            ensure!(
                answer.number(code).is_some_and(|number| number != 0),
                "size {size}: {answer:?} instead of an error"
            );
            frontend.expect_done(code, &ring_state(1, 256), &[])?;
        }
        daemon.wait_metric("tapring_device_connected", &[], 0.0)?;
        let tail = daemon.tail();
        ensure!(
            tail.contains("size 2048") && tail.contains("1024"),
            "no line with both numbers:\n{tail}"
        );
        for size in [1, 2, 4, 16, 256, 1024] {
            let mut guest = Guest::connect(&GuestConfig {
                queue_size: size,
                ..GuestConfig::new(daemon.socket())
            })?;
            let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
            for sequence in 0..200 {
                rx.refill();
                tx.transmit(&TO_HOST.build(sequence, 120), false, SOON)
                    .with_context(|| format!("size {size}"))?;
                send_to_guest(&wire, sequence..sequence + 1)?;
                let mut got = 0;
                while got == 0 {
                    ensure!(
                        rx.wait_for_call(Until::Next, SOON)? != Woken::TimedOut,
                        "size {size}: frame {sequence}\n{}",
                        daemon.tail()
                    );
                    got = rx.receive(1, |_| ())?;
                }
            }
            tx.wait_for_all(SOON)?;
            expect_at_host(&mut wire, 0..200).with_context(|| format!("size {size}"))?;
        }
        Ok(())
    });
}
