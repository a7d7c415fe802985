//! The configuration file, and SIGHUP.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::daemon::{Daemon, failure, in_namespace, spawn, tapring, until};

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("t.toml")
}

/// A daemon with this file.
fn start(text: &str) -> Option<Daemon> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(file(&folder), text).expect("written");
    let words = format!("--config {}", file(&folder).display());
    Daemon::start_in(folder, &words)
}

impl Daemon {
    fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Changes the file and waits for what the daemon says to it.
    fn reload(&self, text: &str, said: &str) {
        fs::write(file(&self.folder), text).expect("written");
        let before = self.count(said);
        self.signal(Signal::HUP);
        until(said, || self.count(said) > before);
    }
}

#[test]
fn a_file_that_is_wrong_is_one_line_and_code_2() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = file(&folder).display().to_string();
    let serve = || tapring(&format!("serve --config {path}"));
    let line = failure(&serve(), 2);
    assert!(
        line.contains(&path) && line.contains("No such file"),
        "{line}"
    );
    for (text, parts) in [
        ("tap = \"t0\"", ["`socket_path`", "--socket-path"]),
        (
            "tap = \"t0\"\n[policy]\ntx_poll = \"never\"",
            [":3: policy.tx_poll: ", "on-eagain or always"],
        ),
        ("tap = \"t0\"\nspeed = 9", [":2: ", "`speed`"]),
        (
            "tap = \"t0\"\nsocket_path = \"s\"\nqueue_size = 64\n[policy]\nrx_wake = 65",
            ["rx_wake", "1 to 64"],
        ),
        ("tap = t0", [":1: ", "tap = t0"]),
    ] {
        fs::write(&path, text).expect("written");
        let line = failure(&serve(), 2);
        assert!(
            parts.iter().all(|part| line.contains(part)),
            "{text}: {line}"
        );
    }
}

#[test]
fn the_command_line_goes_before_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "tap = \"none\"\nsocket_path = \"/none\"\n[policy]\ntx_budget = 8\nrx_budget = 8\n";
    fs::write(file(&folder), text).expect("written");
    let words = format!("--config {} --rx-budget 16", file(&folder).display());
    let Some(daemon) = Daemon::start_in(folder, &words) else {
        return;
    };
    assert_eq!(daemon.setting("tx_budget"), "tx_budget = 8");
    assert_eq!(daemon.setting("rx_budget"), "rx_budget = 16");
    let changed = text.replace('8', "9");
    daemon.reload(&changed, "the policy of the file is in force");
    assert_eq!(daemon.setting("tx_budget"), "tx_budget = 9");
    assert_eq!(daemon.setting("rx_budget"), "rx_budget = 16");
}

#[test]
fn sighup_puts_the_policy_of_the_file_in_force() {
    let Some(mut daemon) = start("[policy]\nkick_rearm = \"before-submit\"\n") else {
        return;
    };
    assert_eq!(
        daemon.setting("kick_rearm"),
        "kick_rearm = \"before-submit\""
    );
    assert!(daemon.policy("--busy-poll-us 7").status.success());

    let stays = "the policy stays";
    daemon.reload("[policy]\nkick_rearm = \"later\"\n", stays);
    daemon.reload("[policy]\nrx_wake = 1025\n", stays);
    daemon.reload("policy", stays);
    fs::remove_file(file(&daemon.folder)).expect("it is there");
    daemon.signal(Signal::HUP);
    until("it says so", || daemon.count(stays) == 4);
    assert!(
        daemon.log().contains("t.toml:2: policy.kick_rearm: "),
        "{}",
        daemon.log()
    );
    assert_eq!(
        daemon.setting("kick_rearm"),
        "kick_rearm = \"before-submit\""
    );
    assert_eq!(daemon.setting("busy_poll_us"), "busy_poll_us = 7");

    let session = daemon.connect();
    daemon.reload(
        "poll = \"inline\"\nqueue_pairs = 2\n[policy]\nbusy_poll_us = \"auto\"\n",
        "needs a restart",
    );
    assert!(
        daemon.log().contains("queue_pairs, poll: changed"),
        "{}",
        daemon.log()
    );
    assert_eq!(
        daemon.setting("kick_rearm"),
        "kick_rearm = \"after-completion\""
    );
    assert_eq!(daemon.setting("busy_poll_us"), "busy_poll_us = \"auto\"");
    drop(session);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn without_a_file_sighup_is_said_once() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let said = "there is no --config";
    daemon.signal(Signal::HUP);
    until(said, || daemon.count(said) == 1);
    daemon.signal(Signal::HUP);
    daemon.connect();
    assert_eq!(daemon.setting("tx_budget"), "tx_budget = 64");
    assert_eq!(daemon.count(said), 1);
}

#[test]
fn a_sighup_that_comes_before_it_can_be_caught_waits() {
    let Some(namespace) = in_namespace() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(file(&folder), "[policy]\ntx_budget = 3\n").expect("written");
    // Held back from before its first line on, so that it is there when the daemon starts.
    let mut command = Command::new("env");
    command.args([
        "--block-signal=HUP",
        "sh",
        "-c",
        "kill -HUP $$; exec \"$@\"",
        "sh",
    ]);
    command
        .arg(namespace.get_program())
        .args(namespace.get_args());
    let child = spawn(
        command,
        &folder,
        &format!("--config {}", file(&folder).display()),
    );
    let daemon = Daemon { child, folder };
    until("it reloads", || {
        daemon.count("the policy of the file is in force") == 1
    });
    assert_eq!(daemon.setting("tx_budget"), "tx_budget = 3");
}
