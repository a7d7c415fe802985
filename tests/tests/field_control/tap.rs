//! A tap that is down, deleted, of the wrong kind, or not ours to change: B07 B31 B52, memlock, sqpoll-denied.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::{Guest, GuestConfig};
use tapring_tests::{
    Daemon, DaemonOptions, Effort, Home, METRICS, Need, Net, Process, Rig, TO_GUEST, TO_HOST, USER,
    Vitals, Wire, as_user, ensure_refused, scenario, until, with_tun_mode,
};

use crate::NEEDS;

const SOON: Duration = Duration::from_secs(2);

/// How long the tap goes up and down (B07).
const FLAPPING: Duration = Duration::from_secs(3);

#[test]
fn b07_frames_for_a_tap_that_is_down_are_dropped_and_counted() {
    for mode in ["--poll inline", "--poll sqpoll", "--plain-io"] {
        scenario(&format!("B07 tap-down-eio: {mode}"), NEEDS, || {
            let mut rig = Rig::start(mode, |_| {})?;
            rig.ensure_alive()?;
            rig.net.ip("link set t0 down")?;
            rig.ensure_down_drops(1000, SOON)?;
            rig.net.ip("link set t0 up")?;
            rig.wire = Wire::on("t0")?;
            rig.ensure_alive()?;
            rig.daemon.signal(Signal::SIGTERM)?;
            let lines = rig.daemon.finish(SOON)?.lines;
            ensure!(lines.len() < 20, "{} lines", lines.len());
            Ok(())
        });
    }
}

#[test]
fn b07_a_tap_that_flaps_strands_nothing() {
    scenario(
        "B07 tap-down-eio: 50 times a second under load",
        NEEDS,
        || {
            let mut rig = Rig::start("", |_| {})?;
            rig.ensure_alive()?;
            let stop = AtomicBool::new(false);
            let sequence = thread::scope(|scope| {
                // In this namespace, as it is started from this thread.
                let flapper = scope.spawn(|| flap(&stop));
                let sent = send_while_flapping(&mut rig);
                stop.store(true, Ordering::Relaxed);
                flapper.join().expect("the flapper")?;
                sent
            })?;
            rig.ensure_tx_whole()?;
            rig.net.ip("link set t0 up")?;
            rig.wire = Wire::on("t0")?;
            // What was still waiting for the guest must come by itself. Silence of this length is its end.
            let quiet = Duration::from_millis(300);
            until(SOON, "the tap to run dry", || {
                rig.rx.refill();
                rig.receive(quiet).ok()?.is_none().then_some(())
            })?;
            rig.ensure_alive()?;
            ensure!(sequence > 1000, "only {sequence} frames");
            rig.daemon.stop()
        },
    );
}

/// Down and up 50 times a second, and up at the end.
fn flap(stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        for state in ["down", "up"] {
            let status = Command::new("ip")
                .args(["link", "set", "t0", state])
                .status()?;
            ensure!(status.success(), "ip link set t0 {state}");
            thread::sleep(Duration::from_millis(8));
        }
    }
    Ok(())
}

fn send_while_flapping(rig: &mut Rig) -> Result<u64> {
    let end = Instant::now() + FLAPPING;
    let mut sequence = 0;
    while Instant::now() < end {
        rig.tx
            .transmit(&TO_HOST.build(sequence, 100), false, SOON)
            .with_context(|| rig.daemon.tail())?;
        sequence += 1;
        // Refused while it is down.
        let _ = rig.wire.send(&TO_GUEST.build(sequence, 100));
        rig.rx.receive(64, |_| ())?;
        rig.rx.refill_as_linux();
    }
    Ok(sequence)
}

#[test]
fn b07_a_daemon_may_start_before_its_tap_is_up() {
    scenario("B07 tap-down-eio: down from the start", NEEDS, || {
        let net = Net::enter()?;
        net.ip("tuntap add dev t0 mode tap")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        until(SOON, "a warning that the tap is down", || {
            daemon.tail().contains("down").then_some(())
        })?;
        let mut guest = Guest::connect(&GuestConfig::new(daemon.socket()))?;
        let mut pair = guest.take_pairs().remove(0);
        pair.rx.refill();
        pair.tx.transmit(&TO_HOST.build(1, 100), false, SOON)?;
        pair.tx.wait_for_all(SOON).context("a head came not back")?;
        net.ip("link set t0 up")?;
        let mut wire = Wire::on("t0")?;
        pair.tx.transmit(&TO_HOST.build(2, 100), false, SOON)?;
        let found = wire.receive(SOON)?;
        ensure!(
            found == Some(&TO_HOST.build(2, 100)[..]),
            "the frame after `up`"
        );
        wire.send(&TO_GUEST.build(3, 100))?;
        until(SOON, "a frame at the guest", || {
            (pair.rx.receive(1, |_| ()).ok()? == 1).then_some(())
        })
        .with_context(|| daemon.tail())?;
        daemon.stop()
    });
}

/// No spinning, no crash, one line, drops counted, and SIGTERM as ever.
#[test]
fn b31_a_deleted_tap_is_noticed_and_survived() {
    for mode in ["--poll inline", "--poll sqpoll", "--plain-io"] {
        scenario(
            &format!("B31 worker-dies-silently: tap deleted, {mode}"),
            NEEDS,
            || {
                let mut rig = Rig::start(mode, |_| {})?;
                rig.ensure_alive()?;
                let threads = Vitals::of(rig.daemon.id())?.threads;
                rig.net.ip("link del t0")?;
                for sequence in 0..300 {
                    rig.tx
                        .transmit(&TO_HOST.build(sequence, 100), false, SOON)?;
                }
                rig.ensure_tx_whole()?;
                let reason = ["direction=\"tx\"", "reason=\"tap_gone\""];
                rig.daemon
                    .wait_metric("tapring_dropped_packets_total", &reason, 300.0)?;
                let before = Effort::of(rig.daemon.id())?;
                thread::sleep(Duration::from_millis(500));
                let cost = Effort::of(rig.daemon.id())?.since(before);
                ensure!(cost.cpu < Duration::from_millis(25), "it spins: {cost:?}");
                ensure!(
                    Vitals::of(rig.daemon.id())?.threads == threads,
                    "a thread is gone"
                );
                ensure!(
                    rig.daemon.tail().contains("was deleted"),
                    "no line:\n{}",
                    rig.daemon.tail()
                );
                rig.guest.stop_all()?;
                rig.daemon.stop()
            },
        );
    }
}

/// Deleted with nothing to send: the receiving side must notice by itself, and not spin either.
#[test]
fn b31_a_tap_deleted_in_silence() {
    scenario(
        "B31 worker-dies-silently: tap deleted while idle",
        NEEDS,
        || {
            for session in [true, false] {
                let mut rig = Rig::start("", |_| {})?;
                rig.ensure_alive()?;
                rig.rx.refill();
                if !session {
                    rig.guest.detach();
                    rig.daemon
                        .wait_metric("tapring_device_connected", &[], 0.0)?;
                }
                rig.net.ip("link del t0")?;
                let before = Effort::of(rig.daemon.id())?;
                thread::sleep(Duration::from_millis(500));
                let cost = Effort::of(rig.daemon.id())?.since(before);
                ensure!(cost.cpu < Duration::from_millis(25), "it spins: {cost:?}");
                rig.daemon.metrics()?;
                rig.daemon.stop()?;
            }
            Ok(())
        },
    );
}

#[test]
fn b52_a_tap_that_does_not_fit_is_named_with_its_remedy() {
    scenario("B52 tap-setup-errors", NEEDS, || {
        let net = Net::enter()?;
        net.tap("single", "")?;
        net.tap("multi", "multi_queue")?;
        net.ip("tuntap add dev tun0 mode tun")?;
        let before = net.interfaces()?;
        let on = DaemonOptions::on_tap;
        ensure_refused(&on("single").pairs(4), &["single", "multi_queue"])?;
        ensure_refused(&on("missing"), &["missing", "--create-tap"])?;
        ensure_refused(&on("tun0"), &["tun0", "tun"])?;
        ensure_refused(&on("lo"), &["lo"])?;
        let holder = Daemon::start(&on("single"))?;
        let other = "127.0.0.1:0".parse()?;
        ensure_refused(&on("single").metrics(other), &["single", "another process"])?;
        holder.stop()?;
        ensure!(
            net.interfaces()? == before,
            "an interface too many: {:?}",
            net.interfaces()?
        );
        for (tap, pairs) in [("single", 1), ("multi", 1), ("multi", 4)] {
            let daemon = Daemon::start(&on(tap).pairs(pairs))
                .with_context(|| format!("{tap} with {pairs} pairs"))?;
            let mut guest = Guest::connect(&GuestConfig {
                queue_pairs: pairs,
                memory_bytes: 128 << 20,
                ..GuestConfig::new(daemon.socket())
            })?;
            let mut wire = Wire::on(tap)?;
            for (n, pair) in guest.take_pairs().iter_mut().enumerate() {
                let frame = TO_HOST.build(n as u64, 100);
                pair.tx.transmit(&frame, false, SOON)?;
                ensure!(
                    wire.receive(SOON)? == Some(&frame[..]),
                    "pair {n} of {pairs}"
                );
            }
            daemon.stop()?;
        }
        Ok(())
    });
}

/// Runs the daemon as [`USER`], without a right, under `limit`, which is a prlimit option or empty.
fn start_unprivileged(tap: &str, words: &str, limit: &str) -> Result<(Process, Home)> {
    let home = Home::new()?;
    let mut daemon = Command::new("prlimit");
    if !limit.is_empty() {
        daemon.arg(limit);
    }
    daemon
        .arg(home.path().join("tapring"))
        .args(["serve", "--tap", tap, "--metrics", &METRICS.to_string()])
        .args(words.split_whitespace())
        .arg("--socket-path")
        .arg(home.path().join("vm0.sock"));
    let process = Process::start("tapring", &with_tun_mode("0666", &as_user(&daemon)))?;
    Ok((process, home))
}

const LISTENS: &str = "listens on";
const START: Duration = Duration::from_secs(5);

const USER_NEEDS: &[Need] = &[
    Need::RealRoot,
    Need::Tun,
    Need::Tool("ip"),
    Need::Tool("setpriv"),
    Need::Tool("prlimit"),
];

/// One frame each way for every pair.
fn ensure_moves(socket: &std::path::Path, tap: &str, pairs: u16) -> Result<()> {
    let mut guest = Guest::connect(&GuestConfig {
        queue_pairs: pairs,
        memory_bytes: 32 << 20,
        queue_size: 64,
        ..GuestConfig::new(socket)
    })?;
    let mut wire = Wire::on(tap)?;
    for (n, pair) in guest.take_pairs().iter_mut().enumerate() {
        let frame = TO_HOST.build(n as u64, 100);
        pair.rx.refill();
        pair.tx.transmit(&frame, false, SOON)?;
        ensure!(
            wire.receive(SOON)? == Some(&frame[..]),
            "pair {n} of {pairs}"
        );
    }
    Ok(())
}

#[test]
fn b52_a_user_without_rights_runs_it_on_a_tap_of_theirs() {
    scenario("B52 tap-setup-errors: unprivileged", USER_NEEDS, || {
        let net = Net::enter()?;
        net.tap("mine", &format!("user {USER}"))?;
        net.tap("many", &format!("user {USER} multi_queue"))?;
        net.ip("link set many mtu 1400")?;
        net.tap("other", &format!("user {}", USER + 1))?;
        for (tap, words, pairs) in [("mine", "", 1), ("many", "--queue-pairs 4", 4)] {
            let (process, home) = start_unprivileged(tap, words, "")?;
            process.wait_line(LISTENS, START)?;
            ensure_moves(&home.path().join("vm0.sock"), tap, pairs)
                .with_context(|| process.tail())?;
            process.signal(Signal::SIGTERM)?;
            ensure!(process.finish(SOON)?.status.code() == Some(0), "its end");
        }
        let (process, _home) = start_unprivileged("other", "", "")?;
        let finished = process.finish(SOON)?;
        tapring_tests::ensure_one_line(&finished, 1, &["other", "CAP_NET_ADMIN"])
    });
}

/// What is locked in memory is limited for a user. With little the frames' buffers are not registered, and that is said;
/// with less still there is no ring, and what is needed is said. Frontends may come and go as often as they like.
#[test]
fn memlock_a_small_limit_is_no_hindrance() {
    scenario("memlock", USER_NEEDS, || {
        let net = Net::enter()?;
        net.tap("many", &format!("user {USER} multi_queue"))?;
        let mut served = 0;
        for (kib, pairs) in [(0, 1), (16, 1), (64, 1), (64, 8), (512, 8)] {
            let limit = format!("--memlock={}", kib * 1024);
            let words = format!("--queue-pairs {pairs}");
            let (mut process, home) = start_unprivileged("many", &words, &limit)?;
            until(START, "its start or end", || {
                (process.ended() || process.tail().contains(LISTENS)).then_some(())
            })
            .with_context(|| process.tail())?;
            if process.ended() {
                let finished = process.finish(SOON)?;
                let last = finished.lines.last().context("it says nothing")?;
                ensure!(
                    finished.status.code() == Some(1) && last.contains("RLIMIT_MEMLOCK"),
                    "{limit}: {}, {last}",
                    finished.status
                );
                continue;
            }
            ensure!(
                process.tail().contains("RLIMIT_MEMLOCK"),
                "{limit}: {}",
                process.tail()
            );
            for _ in 0..10 {
                ensure_moves(&home.path().join("vm0.sock"), "many", pairs)
                    .with_context(|| process.tail())?;
            }
            served += 1;
            process.signal(Signal::SIGTERM)?;
            ensure!(process.finish(SOON)?.status.code() == Some(0), "its end");
        }
        ensure!(served >= 2, "64 KiB must do for a pair, 512 for eight");
        Ok(())
    });
}

/// A polling thread that may not run where it was told to: no silent fall-back.
#[test]
fn sqpoll_denied_says_why() {
    scenario("sqpoll-denied", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        ensure_refused_as(
            &DaemonOptions::on_tap("t0").with("--poll sqpoll --sqpoll-cpu 4000"),
            2,
            "--sqpoll-cpu",
        )?;
        let folder = tempfile::tempdir()?;
        let daemon = DaemonOptions::on_tap("t0").with("--poll sqpoll --sqpoll-cpu 1");
        let daemon = daemon.command(&folder.path().join("s"));
        let mut command = Command::new("taskset");
        command
            .args(["-c", "0"])
            .arg(daemon.get_program())
            .args(daemon.get_args());
        let process = Process::start("tapring", &command)?;
        // The kernel looks at the cpuset and not at the mask of affinity: it may well work.
        let outcome = until(SOON, "an answer", || {
            let said = process.tail();
            ["listens on", "SQPOLL"]
                .iter()
                .any(|part| said.contains(part))
                .then_some(said)
        })?;
        if outcome.contains("listens on") {
            process.signal(Signal::SIGTERM)?;
            process.finish(SOON)?;
        }
        Ok(())
    });
}

fn ensure_refused_as(options: &DaemonOptions, code: i32, part: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let command = options.command(&folder.path().join("s"));
    let finished = Process::run("tapring", &command, SOON)?;
    tapring_tests::ensure_one_line(&finished, code, &[part])
}

/// The fewer descriptors, the earlier it fails; but always with one line, and with nothing left behind.
#[test]
fn nofile_too_few_descriptors_are_said() {
    scenario("RLIMIT_NOFILE small", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vm0.sock");
        let daemon = DaemonOptions::on_tap("t0").command(&socket);
        let mut started = false;
        for limit in 3..100 {
            let mut command = Command::new("prlimit");
            command
                .arg(format!("--nofile={limit}"))
                .arg(daemon.get_program())
                .args(daemon.get_args());
            let mut process = Process::start("tapring", &command)?;
            until(SOON, "its start or end", || {
                (process.ended() || process.tail().contains("listens on")).then_some(())
            })
            .with_context(|| format!("{limit} descriptors: {}", process.tail()))?;
            if !process.ended() {
                process.signal(Signal::SIGTERM)?;
                let finished = process.finish(SOON)?;
                ensure!(
                    finished.status.code() == Some(0),
                    "{limit}: {}",
                    finished.status
                );
                started = true;
                break;
            }
            let finished = process.finish(SOON)?;
            let said = finished.lines.join("\n");
            ensure!(
                finished.status.code() == Some(1) && !said.contains("panicked")
                    || finished.status.code() == Some(127),
                "{limit} descriptors: {}\n{said}",
                finished.status
            );
            ensure!(
                finished.status.code() == Some(127)
                    || said.contains("LimitNOFILE")
                    || said.contains("open files"),
                "{limit} descriptors: no remedy in\n{said}"
            );
            ensure!(!socket.exists(), "{limit} descriptors: the socket is left");
        }
        ensure!(started, "it does not start with 99 descriptors");
        Ok(())
    });
}
