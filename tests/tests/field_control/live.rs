//! Rings that run and are told something, or nothing any more: B04 B19.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tapring_guest::{Guest, GuestConfig, Pair};
use tapring_tests::{Daemon, DaemonOptions, Net, Rig, TO_GUEST, TO_HOST, Wire, scenario, until};

use crate::NEEDS;
use crate::raw::{RawFrontend, request};
use crate::rings::{RESTARTS, RX, SOON, TX, expect_at_guest, expect_at_host, send_to_guest};

/// What a guest does with its memory after the backend has let go of it must stay as it is.
fn ensure_untouched(rig: &mut Rig, what: &str, settle: Duration) -> Result<()> {
    let ram = rig.guest.ram();
    ram.fill(0xa5);
    send_to_guest(&rig.wire, 0..200)?;
    let end = Instant::now() + settle;
    while Instant::now() < end {
        if let Some(address) = ram.first_other_than(0xa5) {
            bail!(
                "{what}: guest memory at {address:#x} was written\n{}",
                rig.daemon.tail()
            );
        }
    }
    Ok(())
}

#[test]
fn b04_nothing_is_written_after_a_stop() {
    for (name, act) in [
        ("stopped", stop_both as fn(&mut Rig) -> Result<()>),
        ("disabled", |rig| {
            rig.guest.set_enable(RX, false)?;
            Ok(rig.guest.set_enable(TX, false)?)
        }),
        ("hung up", |rig| {
            rig.guest.detach();
            rig.daemon.wait_metric("tapring_device_connected", &[], 0.0)
        }),
    ] {
        for mode in ["--poll inline", "--poll sqpoll", "--plain-io"] {
            scenario(
                &format!("B04 stop-no-late-writes: {name}, {mode}"),
                NEEDS,
                || {
                    let mut rig = Rig::start(mode, |config| config.memory_bytes = 4 << 20)?;
                    rig.ensure_alive()?;
                    rig.rx.refill();
                    send_to_guest(&rig.wire, 0..100)?;
                    for sequence in 0..100 {
                        rig.tx.send(&TO_HOST.build(sequence, 1000))?;
                    }
                    rig.tx.kick_if_needed();
                    act(&mut rig)?;
                    ensure_untouched(&mut rig, name, Duration::from_millis(300))
                },
            );
        }
    }
}

fn stop_both(rig: &mut Rig) -> Result<()> {
    let bases = rig.guest.stop_all()?;
    ensure!(
        bases.iter().all(|base| *base <= u32::from(u16::MAX)),
        "{bases:?}"
    );
    Ok(())
}

#[test]
fn b19_what_a_live_ring_is_told_again_changes_nothing() {
    scenario("B19 live-ring-state: told again", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        for round in 0..RESTARTS {
            let frames = round * 40..round * 40 + 40;
            for sequence in frames.clone() {
                rig.tx.send(&TO_HOST.build(sequence, 120))?;
            }
            rig.tx.kick_if_needed();
            rig.rx.refill();
            send_to_guest(&rig.wire, frames.clone())?;
            match round % 5 {
                0 => rig.guest.resend_features()?,
                1 => [RX, TX]
                    .iter()
                    .try_for_each(|ring| rig.guest.resend_addresses(*ring))?,
                2 => [RX, TX]
                    .iter()
                    .try_for_each(|ring| rig.guest.resend_eventfds(*ring))?,
                3 => rig.guest.resend_memory()?,
                _ => [RX, TX]
                    .iter()
                    .try_for_each(|ring| rig.guest.set_enable(*ring, true))?,
            }
            expect_at_guest(&mut rig, frames).with_context(|| format!("round {round}"))?;
            rig.ensure_tx_whole()?;
        }
        expect_at_host(&mut rig.wire, 0..RESTARTS * 40)?;
        rig.daemon.ensure_no_faults()
    });
}

#[test]
fn b19_a_disabled_ring_does_nothing_and_goes_on_unkicked() {
    scenario("B19 live-ring-state: disabled", NEEDS, || {
        let mut rig = Rig::start("", |config| config.rx_buffers = 64)?;
        rig.ensure_alive()?;
        rig.rx.refill();
        rig.guest.set_enable(RX, false)?;
        rig.guest.set_enable(TX, false)?;
        let before = rig.guest.ram().snapshot();
        send_to_guest(&rig.wire, 0..20)?;
        std::thread::sleep(Duration::from_millis(200));
        ensure!(
            rig.guest.ram().snapshot() == before,
            "a disabled ring wrote"
        );
        for sequence in 0..10 {
            rig.tx.send(&TO_HOST.build(sequence, 120))?;
        }
        rig.tx.ring_mut().kick();
        let leak = rig.wire.receive(Duration::from_millis(300))?;
        ensure!(leak.is_none(), "a disabled ring sent");
        rig.guest.set_enable(TX, true)?;
        expect_at_host(&mut rig.wire, 0..10)?;
        rig.guest.set_enable(RX, true)?;
        expect_at_guest(&mut rig, 0..20)?;
        send_to_guest(&rig.wire, 20..40)?;
        expect_at_guest(&mut rig, 20..40)?;
        rig.ensure_alive()
    });
}

/// Frames that come while the ring is disabled, with no kick when it is enabled again, many times over.
#[test]
fn b19_enabling_needs_no_kick() {
    scenario("B19 live-ring-state: toggled", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        for round in 0..RESTARTS {
            let frames = round * 8..round * 8 + 8;
            rig.guest.set_enable(TX, false)?;
            for sequence in frames.clone() {
                rig.tx.send(&TO_HOST.build(sequence, 120))?;
            }
            rig.guest.set_enable(TX, true)?;
            rig.tx
                .wait_for_all(SOON)
                .with_context(|| format!("round {round}"))?;
            rig.guest.set_enable(RX, false)?;
            rig.rx.post(u16::MAX);
            send_to_guest(&rig.wire, frames.clone())?;
            rig.guest.set_enable(RX, true)?;
            expect_at_guest(&mut rig, frames).with_context(|| format!("round {round}"))?;
        }
        expect_at_host(&mut rig.wire, 0..RESTARTS * 8)
    });
}

/// A kick through an eventfd that is being replaced must not be lost.
#[test]
fn b19_a_kick_through_a_replaced_eventfd_counts() {
    scenario("B19 live-ring-state: another kick eventfd", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        rig.ensure_alive()?;
        until(SOON, "the ring to sleep", || {
            let state = ["direction=\"tx\"", "state=\"armed\""];
            (rig.metric("tapring_ring_state", &state).ok()? == 1.0).then_some(())
        })?;
        rig.tx.send(&TO_HOST.build(7, 120))?;
        let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
        let stream = rig.guest.stream().context("connected")?.try_clone()?;
        let index = u64::from(TX).to_ne_bytes();
        RawFrontend::over(stream)?.expect_done(
            request::SET_VRING_KICK,
            &index,
            &[other.as_fd()],
        )?;
        expect_at_host(&mut rig.wire, 7..8)
    });
}

/// A guest may use fewer pairs than there are, and all flows of the host must find those it uses.
#[test]
fn b19_pairs_that_are_not_used_get_no_frames() {
    scenario(
        "B19 live-ring-state: fewer pairs than queues",
        NEEDS,
        || {
            let net = Net::enter()?;
            net.tap("t0", "multi_queue")?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0").pairs(4))?;
            let wire = Wire::on("t0")?;
            for used in [1, 2, 4] {
                let mut guest = Guest::connect(&GuestConfig {
                    queue_pairs: used,
                    memory_bytes: 64 << 20,
                    ..GuestConfig::new(daemon.socket())
                })?;
                let mut pairs = guest.take_pairs();
                for pair in &mut pairs {
                    pair.rx.refill();
                }
                expect_flows(&wire, &mut pairs).with_context(|| format!("{used} of 4 pairs"))?;
                for lowered in (1..used).rev() {
                    guest.set_enable(lowered * 2, false)?;
                    guest.set_enable(lowered * 2 + 1, false)?;
                    expect_flows(&wire, &mut pairs)
                        .with_context(|| format!("{used} pairs lowered to {lowered}"))?;
                }
                for raised in 1..used {
                    guest.set_enable(raised * 2, true)?;
                    guest.set_enable(raised * 2 + 1, true)?;
                    expect_flows(&wire, &mut pairs)
                        .with_context(|| format!("raised to {}", raised + 1))?;
                }
                drop(guest);
                daemon.wait_metric("tapring_device_connected", &[], 0.0)?;
            }
            daemon.stop()
        },
    );
}

/// Sends a datagram of each of 64 flows to the guest and finds them all, on whichever pair.
fn expect_flows(wire: &Wire, pairs: &mut [Pair]) -> Result<()> {
    for port in 0..64 {
        let mut flow = TO_GUEST;
        flow.wrapping = tapring_guest::traffic::Wrapping::Udp;
        flow.source.port = 5000 + port;
        wire.send(&flow.build(port.into(), 100))?;
    }
    let mut found = 0;
    until(SOON, "64 flows", || {
        for pair in pairs.iter_mut() {
            found += pair.rx.receive(64, |_| ()).ok()?;
            pair.rx.refill();
        }
        (found == 64).then_some(())
    })
    .with_context(|| format!("{found} of 64 flows arrived"))
}
