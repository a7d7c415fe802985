//! Frontends that come and go: B05 B39, emfile-accept.

use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tapring_guest::{Guest, GuestConfig, Pair, Random};
use tapring_tests::{
    Daemon, DaemonOptions, Effort, Net, Rig, TO_GUEST, TO_HOST, Vitals, Wire, scenario, until,
};

use crate::NEEDS;
use crate::mini::{MRG_RXBUF, MiniGuest, RX, TX, VERSION_1};
use crate::raw::{NEED_REPLY, RawFrontend, VERSION, request};

const SOON: Duration = Duration::from_secs(2);

/// Sessions that are cut off under load (B05).
const KILLS: u64 = 60;

/// Sessions of which nothing may be left (B39).
const RECONNECTS: u64 = 300;

/// One frame each way through a guest of its own.
pub(crate) fn ensure_serves(daemon: &Daemon, wire: &mut Wire) -> Result<()> {
    let mut guest = Guest::connect(&GuestConfig::new(daemon.socket()))?;
    exchange(&mut guest.take_pairs().remove(0), wire, 1).with_context(|| daemon.tail())
}

/// `frames` frames each way, whatever else the host still receives.
fn exchange(pair: &mut Pair, wire: &mut Wire, frames: u64) -> Result<()> {
    for sequence in 0..frames {
        let frame = TO_HOST.build(1 << 50 | sequence, 100);
        pair.rx.refill();
        pair.tx.transmit(&frame, false, SOON)?;
        until(SOON, "a frame at the host", || {
            let found = wire.receive(SOON).ok()??;
            (found == &frame[..]).then_some(())
        })?;
        let frame = TO_GUEST.build(1 << 50 | sequence, 100);
        wire.send(&frame)?;
        let mut found = None;
        until(SOON, "a frame at the guest", || {
            pair.rx
                .receive(1, |bytes| found = Some(bytes.to_vec()))
                .ok()?;
            found.is_some().then_some(())
        })?;
        ensure!(
            found.as_deref() == Some(&frame[..]),
            "the guest received another frame"
        );
    }
    Ok(())
}

/// What a killed VMM leaves: the kernel closes everything at once, in the middle of anything. Frames it left in the tap are
/// not the next one's.
#[test]
fn b05_frontends_that_are_killed_make_room() {
    scenario("B05 frontend-killed: under load", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut wire = Wire::on("t0")?;
        let mut random = Random::new(5);
        for round in 0..KILLS {
            let mut guest = Guest::connect(&GuestConfig::new(daemon.socket()))
                .with_context(|| format!("round {round}\n{}", daemon.tail()))?;
            let mut pair = guest.take_pairs().remove(0);
            exchange(&mut pair, &mut wire, 1).with_context(|| format!("round {round}"))?;
            let until_then =
                Instant::now() + Duration::from_micros(random.between(0, 20_000) as u64);
            let mut sequence = 0;
            while Instant::now() < until_then {
                for _ in 0..32 {
                    wire.send(&TO_GUEST.build(sequence, 200))?;
                    let _ = pair.tx.send(&TO_HOST.build(sequence, 200));
                    sequence += 1;
                }
                pair.tx.kick_if_needed();
                pair.tx.collect()?;
            }
            drop(guest);
            // What it sent is not the next one's; the session is over when its frames are out or gone.
            daemon.wait_metric("tapring_device_connected", &[], 0.0)?;
            while wire.try_receive()?.is_some() {}
        }
        ensure_serves(&daemon, &mut wire)?;
        daemon.stop()
    });
}

/// The steps of a set-up, each followed by the end of the connection.
#[test]
fn b05_a_connection_may_end_at_any_point_of_the_set_up() {
    scenario(
        "B05 frontend-killed: at every point of the set-up",
        NEEDS,
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let mut wire = Wire::on("t0")?;
            ensure_serves(&daemon, &mut wire)?;
            let before = settled(&daemon)?;
            for half in [false, true] {
                for steps in 0..=set_up().len() {
                    let guest = MiniGuest::new(256)?;
                    let frontend = RawFrontend::connect(daemon.socket())?;
                    for step in &set_up()[..steps] {
                        step(&guest, &frontend)?;
                    }
                    if half {
                        frontend.half_close()?;
                        while frontend.answer()? != crate::raw::Answer::Closed {}
                    }
                    drop(frontend);
                    ensure_serves(&daemon, &mut wire)
                        .with_context(|| format!("after {steps} steps, half-close: {half}"))?;
                }
            }
            let after = settled(&daemon)?;
            ensure!(
                (after.fds, after.threads) == (before.fds, before.threads),
                "{before:?} became {after:?}"
            );
            daemon.stop()
        },
    );
}

type Step = fn(&MiniGuest, &RawFrontend) -> Result<()>;

fn set_up() -> Vec<Step> {
    vec![
        |_, frontend| frontend.send(request::SET_OWNER, VERSION, &[], &[]),
        |_, frontend| frontend.send(request::GET_FEATURES, VERSION, &[], &[]),
        |_, frontend| {
            let features = (VERSION_1 | MRG_RXBUF).to_ne_bytes();
            frontend.send(request::SET_FEATURES, VERSION, &features, &[])
        },
        // Half a message, with its descriptor.
        |guest, frontend| {
            let table = guest.table();
            let bytes = crate::raw::message(
                request::SET_MEM_TABLE,
                VERSION,
                u32::try_from(table.len())?,
                &table,
            );
            frontend.send_bytes(&bytes[..20], &[guest.memory()])?;
            frontend.send_bytes(&bytes[20..], &[])
        },
        |guest, frontend| guest.send_ring(frontend, RX, Some(0)),
        |guest, frontend| guest.send_call(frontend, RX),
        |guest, frontend| guest.send_ring(frontend, TX, Some(0)),
        |guest, _| {
            guest.make_frame(0, &TO_HOST.build(3, 100))?;
            guest.kick(TX)
        },
        |_, frontend| {
            let body = crate::raw::ring_state(0, 0);
            frontend.send(request::GET_VRING_BASE, VERSION, &body, &[])
        },
    ]
}

/// Vitals once the last session is over and its threads are gone.
fn settled(daemon: &Daemon) -> Result<Vitals> {
    daemon.wait_metric("tapring_device_connected", &[], 0.0)?;
    let mut last = Vitals::of(daemon.id())?;
    until(SOON, "vitals that do not change", || {
        thread::sleep(Duration::from_millis(20));
        let now = Vitals::of(daemon.id()).ok()?;
        let same = (now.fds, now.threads) == (last.fds, last.threads);
        last = now;
        same.then_some(now)
    })
}

#[test]
fn b05_half_a_message_and_an_unanswered_request_are_no_hindrance() {
    scenario("B05 frontend-killed: in mid-message", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut wire = Wire::on("t0")?;
        let guest = MiniGuest::new(256)?;
        let table = guest.table();
        let size = u32::try_from(table.len())?;
        let bytes = crate::raw::message(request::SET_MEM_TABLE, VERSION, size, &table);
        for cut in 1..bytes.len() {
            let frontend = RawFrontend::connect(daemon.socket())?;
            frontend.send_bytes(&bytes[..cut], &[guest.memory()])?;
        }
        for _ in 0..20 {
            let frontend = RawFrontend::connect(daemon.socket())?;
            frontend.send(request::GET_FEATURES, VERSION, &[], &[])?;
            guest.send_table(&frontend)?;
        }
        ensure_serves(&daemon, &mut wire)?;
        daemon.stop()
    });
}

#[test]
fn b39_nothing_is_left_of_a_session() {
    scenario("B39 reconnect-leak", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut wire = Wire::on("t0")?;
        let series = || -> Result<usize> { Ok(crate::watch::series()?.len()) };
        let session = |round: u64, wire: &mut Wire| -> Result<()> {
            let mut guest = Guest::connect(&GuestConfig::new(daemon.socket()))?;
            let mut pair = guest.take_pairs().remove(0);
            exchange(&mut pair, wire, 5)?;
            if round.is_multiple_of(2) {
                guest.stop_all()?;
            }
            Ok(())
        };
        for round in 0..20 {
            session(round, &mut wire)?;
        }
        let (before, series_before) = (settled(&daemon)?, series()?);
        for round in 0..RECONNECTS {
            session(round, &mut wire).with_context(|| format!("session {round}"))?;
        }
        let (after, series_after) = (settled(&daemon)?, series()?);
        ensure!(
            series_before == series_after,
            "{series_before} series became {series_after}"
        );
        ensure!(
            (after.fds, after.threads) == (before.fds, before.threads)
                && after.maps <= before.maps + 4
                && after.rss_kib <= before.rss_kib + 1024,
            "{before:?} became {after:?}"
        );
        daemon.stop()
    });
}

/// Out of descriptors the daemon waits, without spinning, and the frontend that could not be taken is served later.
#[test]
fn emfile_accept_is_a_pause_and_no_end() {
    scenario("emfile-accept", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut wire = Wire::on("t0")?;
        ensure_serves(&daemon, &mut wire)?;
        let fds = settled(&daemon)?.fds;
        for spare in (0..16).step_by(2) {
            limit_fds(&daemon, fds + spare)?;
            let frontend = RawFrontend::connect(daemon.socket())?;
            let guest = MiniGuest::new(256)?;
            for step in set_up() {
                if step(&guest, &frontend).is_err() {
                    break;
                }
            }
            let before = Effort::of(daemon.id())?;
            thread::sleep(Duration::from_millis(400));
            let cost = Effort::of(daemon.id())?.since(before);
            ensure!(cost.cpu < Duration::from_millis(100), "it spins: {cost:?}");
            limit_fds(&daemon, 1024)?;
            drop(frontend);
            ensure_serves(&daemon, &mut wire).with_context(|| format!("{spare} to spare"))?;
        }
        let left = settled(&daemon)?.fds;
        ensure!(left == fds, "{fds} descriptors became {left}");
        daemon.stop()
    });
}

fn limit_fds(daemon: &Daemon, count: usize) -> Result<()> {
    let (id, limit) = (daemon.id(), format!("--nofile={count}:4096"));
    let status = Command::new("prlimit")
        .args(["--pid", &id.to_string(), &limit])
        .status()?;
    ensure!(status.success(), "prlimit failed");
    Ok(())
}

/// A frontend that comes while another is served is turned away, and the first hears nothing of it.
#[test]
fn b05_a_second_frontend_is_turned_away() {
    scenario("B05 a second frontend", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        for _ in 0..50 {
            let second = RawFrontend::connect(rig.daemon.socket())?;
            let answer = second.ask(request::GET_FEATURES, VERSION | NEED_REPLY, &[], &[])?;
            ensure!(answer == crate::raw::Answer::Closed, "{answer:?}");
            rig.ensure_alive()?;
        }
        let _ = rig.guest.stream().map(|stream| stream.as_fd());
        Ok(())
    });
}
