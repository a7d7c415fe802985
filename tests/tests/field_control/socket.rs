//! The life of the socket and its file: B50.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use tapring_tests::{
    Daemon, DaemonOptions, Need, Net, Process, Wire, ensure_refused, scenario, until,
};

use crate::NEEDS;
use crate::life::ensure_serves;

const SOON: Duration = Duration::from_secs(2);

/// Connections that say nothing (B50).
const KNOCKS: u32 = 1000;

#[test]
fn b50_a_dead_daemons_socket_is_replaced_and_nothing_else_is() {
    scenario("B50 socket-life-cycle: who owns the path", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        net.tap("t1", "")?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vm0.sock");
        let options = DaemonOptions::on_tap("t0").socket(&socket);
        let first = Daemon::start(&options)?;
        first.signal(Signal::SIGKILL)?;
        first.finish(SOON)?;
        ensure!(socket.exists(), "a killed daemon leaves its file");
        let second = Daemon::start(&options)?;
        let inode = fs::metadata(&socket)?.ino();
        let elsewhere = DaemonOptions::on_tap("t1").metrics("127.0.0.1:0".parse()?);
        ensure_refused(
            &elsewhere.clone().socket(&socket),
            &["listens", "--socket-path"],
        )?;
        ensure!(
            fs::metadata(&socket)?.ino() == inode,
            "the live one lost its path"
        );
        ensure_serves(&second, &mut Wire::on("t0")?)?;
        second.stop()?;
        let file = folder.path().join("precious");
        fs::write(&file, "precious")?;
        ensure_refused(&elsewhere.clone().socket(&file), &["no socket", "precious"])?;
        ensure!(fs::read(&file)? == b"precious", "a file was touched");
        let nowhere = folder.path().join("missing/vm0.sock");
        ensure_refused(&elsewhere.socket(&nowhere), &["folder does not exist"])
    });
}

#[test]
fn b50_nobody_is_turned_away_for_want_of_a_listener() {
    scenario(
        "B50 socket-life-cycle: connect and close without pause",
        NEEDS,
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let mut wire = Wire::on("t0")?;
            let inode = fs::metadata(daemon.socket())?.ino();
            for knock in 0..KNOCKS {
                UnixStream::connect(daemon.socket())
                    .with_context(|| format!("connection {knock}"))?;
            }
            ensure!(
                fs::metadata(daemon.socket())?.ino() == inode,
                "another inode"
            );
            ensure_serves(&daemon, &mut wire)?;
            daemon.signal(Signal::SIGTERM)?;
            let lines = daemon.finish(SOON)?.lines;
            ensure!(
                lines.len() < 120,
                "{} lines for {KNOCKS} connections",
                lines.len()
            );
            Ok(())
        },
    );
}

#[test]
fn b50_the_sockets_permissions() {
    scenario(
        "B50 socket-life-cycle: umask, mode and group",
        &[Need::RealRoot, Need::Tun, Need::Tool("ip")],
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            for (umask, words, mode, group) in [
                ("000", "", 0o600, 0),
                ("077", "", 0o600, 0),
                ("077", "--socket-mode 0660 --socket-group 1002", 0o660, 1002),
                ("000", "--socket-mode 0666", 0o666, 0),
            ] {
                let folder = tempfile::tempdir()?;
                let socket = folder.path().join("vm0.sock");
                let daemon = DaemonOptions::on_tap("t0").with(words).command(&socket);
                let mut command = Command::new("sh");
                command
                    .arg("-c")
                    .arg(format!("umask {umask}; exec \"$@\""))
                    .arg("sh")
                    .arg(daemon.get_program())
                    .args(daemon.get_args());
                let process = Process::start("tapring", &command)?;
                let found = until(SOON, "the socket", || fs::symlink_metadata(&socket).ok())
                    .with_context(|| process.tail())?;
                ensure!(found.file_type().is_socket(), "no socket");
                ensure!(
                    (found.permissions().mode() & 0o777, found.gid()) == (mode, group),
                    "umask {umask} {words}: mode {:o}, group {}",
                    found.permissions().mode(),
                    found.gid()
                );
                process.signal(Signal::SIGTERM)?;
                ensure!(process.finish(SOON)?.status.code() == Some(0), "its end");
            }
            Ok(())
        },
    );
}
