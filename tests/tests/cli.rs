//! Bad input, and the life of the process and its socket: what a user who mistypes, or a supervisor that restarts, meets.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_tests::{
    Daemon, DaemonOptions, Home, METRICS, Need, Net, Process, USER, daemon_binary, ensure_one_line,
    ensure_refused, scenario,
};

const NEEDS: [Need; 3] = [Need::Root, Need::Tun, Need::Tool("ip")];
const AS_ANOTHER: [Need; 4] = [
    Need::RealRoot,
    Need::Tun,
    Need::Tool("ip"),
    Need::Tool("setpriv"),
];
const SOMEBODY_ELSE: u32 = 1002;
const SECOND_METRICS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9651));

fn on_t0() -> DaemonOptions {
    DaemonOptions::on_tap("t0")
}

/// That the daemon refuses, and that no interface came or went.
fn ensure_refused_in(net: &Net, options: &DaemonOptions, parts: &[&str]) -> Result<()> {
    let before = net.interfaces()?;
    ensure_refused(options, parts)?;
    let after = net.interfaces()?;
    ensure!(before == after, "interfaces {before:?} became {after:?}");
    Ok(())
}

#[test]
fn wrong_options_are_a_matter_of_usage() {
    scenario("cli: wrong options end with 2 and one line", &[], || {
        let wrong = [
            ("", "--help"),
            ("fly", "fly"),
            ("serve", "--socket-path"),
            ("serve --tap t0", "--socket-path"),
            ("serve --socket-path /nowhere/s", "--tap"),
            (
                "serve --socket-path /nowhere/s --tap t0 --colour red",
                "--colour",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --queue-pairs 0",
                "--queue-pairs",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --queue-pairs many",
                "many",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --queue-size 100",
                "--queue-size",
            ),
            (
                "serve --socket-path /nowhere/s --tap sixteen-bytes-16",
                "sixteen-bytes-16",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --poll maybe",
                "maybe",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --poll inline --sqpoll-cpu 0",
                "--sqpoll-cpu",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --sqpoll-cpu 9999",
                "9999",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --worker-cpus 3-1",
                "3-1",
            ),
            (
                "serve --socket-path /nowhere/s --tap t0 --metrics here",
                "here",
            ),
            ("demo --seconds long", "long"),
        ];
        for (words, part) in wrong {
            let mut command = Command::new(daemon_binary());
            command.args(words.split_whitespace());
            let finished = Process::run("tapring", &command, Duration::from_secs(10))?;
            ensure_one_line(&finished, 2, &[part]).with_context(|| format!("tapring {words}"))?;
        }
        Ok(())
    });
}

#[test]
fn a_missing_tap_is_not_made_by_surprise() {
    scenario("cli: tap missing", &NEEDS, || {
        let net = Net::enter()?;
        ensure_refused_in(
            &net,
            &on_t0(),
            &["t0", "does not exist", "ip tuntap add", "--create-tap"],
        )
    });
}

#[test]
fn a_tap_that_another_process_holds_is_left_to_it() {
    scenario("cli: tap taken", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let holder = Daemon::start(&on_t0())?;
        let second = on_t0().metrics(SECOND_METRICS);
        ensure_refused_in(&net, &second, &["t0", "another process"])?;
        holder.stop()
    });
}

#[test]
fn interfaces_of_another_kind_are_refused() {
    scenario("cli: a tun, a veth", &NEEDS, || {
        let net = Net::enter()?;
        net.ip("tuntap add dev t0 mode tun")?;
        ensure_refused_in(&net, &on_t0(), &["t0", "tun"])?;
        net.ip("link add v0 type veth peer name v1")?;
        ensure_refused_in(&net, &DaemonOptions::on_tap("v0"), &["v0", "tap"])
    });
}

#[test]
fn the_tap_must_have_as_many_queues_as_asked_for() {
    scenario("cli: single-queue tap and 2 pairs", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        ensure_refused_in(&net, &on_t0().pairs(2), &["t0", "multi_queue"])?;
        net.tap("t1", "multi_queue")?;
        for pairs in [1, 2] {
            Daemon::start(&DaemonOptions::on_tap("t1").pairs(pairs))?.stop()?;
        }
        Ok(())
    });
}

#[test]
fn a_created_tap_goes_with_the_process() {
    scenario("cli: --create-tap", &NEEDS, || {
        let net = Net::enter()?;
        let daemon = Daemon::start(&on_t0().pairs(2).with("--create-tap"))?;
        ensure!(net.exists("t0"), "no tap was made");
        daemon.stop()?;
        ensure!(!net.exists("t0"), "the tap outlived the daemon");
        net.tap("t0", "")?;
        Daemon::start(&on_t0().with("--create-tap"))?.stop()?;
        ensure!(
            net.exists("t0"),
            "a tap that was there before went with the daemon"
        );
        Ok(())
    });
}

#[test]
fn a_live_socket_stays_with_its_daemon() {
    scenario("cli: socket path alive", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        net.tap("t1", "")?;
        let first = Daemon::start(&on_t0())?;
        let inode = fs::metadata(first.socket())?.ino();
        let second = DaemonOptions::on_tap("t1")
            .socket(first.socket())
            .metrics(SECOND_METRICS);
        ensure_refused_in(
            &net,
            &second,
            &[&first.socket().to_string_lossy(), "--socket-path"],
        )?;
        ensure!(
            fs::metadata(first.socket())?.ino() == inode,
            "the socket file was replaced"
        );
        UnixStream::connect(first.socket()).context("the first daemon still listens")?;
        first.stop()
    });
}

#[test]
fn a_file_that_is_no_socket_is_kept() {
    scenario("cli: socket path is a regular file", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("precious");
        fs::write(&path, "do not lose")?;
        ensure_refused_in(
            &net,
            &on_t0().socket(&path),
            &[&path.to_string_lossy(), "no socket"],
        )?;
        ensure!(
            fs::read_to_string(&path)? == "do not lose",
            "the file was changed"
        );
        Ok(())
    });
}

#[test]
fn the_socket_of_a_dead_daemon_is_replaced() {
    scenario("cli: stale socket replaced after SIGKILL", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let folder = tempfile::tempdir()?;
        let options = on_t0().socket(&folder.path().join("vm0.sock"));
        let killed = Daemon::start(&options)?;
        let path = killed.socket().to_owned();
        killed.signal(Signal::SIGKILL)?;
        killed.finish(Duration::from_secs(5))?;
        ensure!(
            path.exists(),
            "SIGKILL leaves the file, or this test shows nothing"
        );
        let second = Daemon::start(&options)?;
        UnixStream::connect(&path).context("the second daemon listens")?;
        second.stop()
    });
}

#[test]
fn a_missing_folder_is_named() {
    scenario("cli: folder of the socket missing", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let path = Path::new("/nowhere/at/all.sock");
        ensure_refused_in(
            &net,
            &on_t0().socket(path),
            &["/nowhere/at/all.sock", "create"],
        )?;
        ensure!(!Path::new("/nowhere").exists(), "the folder was made");
        Ok(())
    });
}

#[test]
fn a_taken_metrics_port_is_named() {
    scenario("cli: metrics port taken", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let _holder = TcpListener::bind(METRICS)?;
        ensure_refused_in(&net, &on_t0(), &["127.0.0.1:9650", "--metrics"])
    });
}

#[test]
fn an_unprivileged_user_is_told_what_is_missing() {
    scenario("cli: no permission", &AS_ANOTHER, || {
        let net = Net::enter()?;
        let home = Home::new()?;
        let options = |tap: &str| {
            DaemonOptions::on_tap(tap)
                .at(&home)
                .socket(&home.path().join("s"))
        };
        // A tap without an owner may be opened by everybody.
        net.tap("t0", &format!("user {SOMEBODY_ELSE}"))?;
        ensure_refused_in(&net, &options("t0"), &["t0", "CAP_NET_ADMIN", "user"])?;
        ensure_refused_in(
            &net,
            &options("t1").with("--create-tap"),
            &["t1", "CAP_NET_ADMIN"],
        )?;
        net.tap("t2", &format!("user {USER}"))?;
        let closed = tempfile::tempdir_in("/tmp")?;
        let path = closed.path().join("s");
        ensure_refused_in(
            &net,
            &options("t2").socket(&path),
            &[&path.to_string_lossy(), "ermission denied"],
        )?;
        let left = fs::read_dir(home.path())?.count();
        ensure!(
            left == 1,
            "{left} files in the folder instead of the binary alone"
        );
        Ok(())
    });
}

#[test]
fn an_unprivileged_user_serves_a_tap_of_its_own() {
    scenario(
        "cli: unprivileged user with a tap made for it",
        &AS_ANOTHER,
        || {
            let net = Net::enter()?;
            let home = Home::new()?;
            for kind in ["", "multi_queue"] {
                net.tap("t0", &format!("user {USER} {kind}"))?;
                Daemon::start(&on_t0().at(&home).socket(&home.path().join("s")))?.stop()?;
                net.ip("link del t0")?;
            }
            Ok(())
        },
    );
}

#[test]
fn sigterm_ends_it_in_order() {
    scenario(
        "cli: SIGTERM and SIGINT, and the tap is free at once",
        &NEEDS,
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            for signal in [Signal::SIGTERM, Signal::SIGINT] {
                let daemon = Daemon::start(&on_t0())?;
                let socket = daemon.socket().to_owned();
                daemon.signal(signal)?;
                let finished = daemon
                    .finish(Duration::from_secs(2))
                    .with_context(|| format!("within 2 s of {signal}"))?;
                ensure!(
                    finished.status.success(),
                    "after {signal}: {}",
                    finished.status
                );
                ensure!(!socket.exists(), "the socket outlived {signal}");
            }
            // An open connection that says nothing does not hold it up.
            let daemon = Daemon::start(&on_t0())?;
            let _silent = UnixStream::connect(daemon.socket())?;
            daemon.stop()
        },
    );
}
