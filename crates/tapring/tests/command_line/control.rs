//! The control socket, and `tapring policy` at its other end.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use crate::daemon::{Daemon, LIMIT, failure, tapring};

/// More than may be connected.
const CROWD: usize = 40;

fn client(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.control()).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream.set_write_timeout(Some(LIMIT)).expect("a limit");
    stream
}

fn ask(stream: &UnixStream, line: &str) -> String {
    let mut writer = stream;
    writer.write_all(line.as_bytes()).expect("it is read");
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    read.expect("it is answered");
    assert!(answer.ends_with('\n'), "{line}: {answer}");
    answer
}

#[test]
fn settings_are_shown_and_changed_alone_or_together() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let shown = daemon.policy("");
    let text = String::from_utf8(shown.stdout).expect("text");
    assert!(
        text.starts_with("kick_rearm = \"after-completion\"\nbusy_poll_us = \"auto\"\n"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 7, "{text}");

    let changed = daemon.policy("--json --rx-wake 8 --tx-poll always");
    let json: serde_json::Value = serde_json::from_slice(&changed.stdout).expect("JSON");
    assert_eq!(
        (&json["rx_wake"], &json["tx_poll"]),
        (&8.into(), &"always".into())
    );
    assert_eq!(json["kick_rearm"], "after-completion");
    assert_eq!(daemon.setting("rx_wake"), "rx_wake = 8");

    let same = daemon.policy("--rx-wake 8");
    assert!(same.status.success());
    let log = daemon.log();
    let changes: Vec<_> = log
        .lines()
        .filter(|line| line.contains("policy: "))
        .collect();
    assert_eq!(changes.len(), 1, "{log}");
    assert!(changes[0].contains("tx_poll from on-eagain to always, rx_wake from half to 8"));
    assert!(changes[0].contains("device=\"t0\""), "{log}");
}

#[test]
fn what_is_refused_changes_nothing() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let line = failure(&daemon.policy("--rx-wake 1025 --tx-poll always"), 2);
    assert!(
        line.contains("rx_wake") && line.contains("1 to 1024"),
        "{line}"
    );
    let line = failure(&daemon.policy("--kick-rearm never"), 2);
    assert!(
        line.contains("--kick-rearm") && line.contains("before-submit"),
        "{line}"
    );
    assert_eq!(daemon.setting("tx_poll"), "tx_poll = \"on-eagain\"");
    assert_eq!(daemon.setting("rx_wake"), "rx_wake = \"half\"");

    let nobody = tapring("policy --control-socket /no/such/socket");
    assert!(failure(&nobody, 1).contains("/no/such/socket"));
    let frontends = daemon.path().display().to_string();
    let wrong = tapring(&format!("policy --control-socket {frontends}"));
    assert!(failure(&wrong, 1).contains(&frontends));
}

#[test]
fn clients_come_and_go_and_see_each_others_changes() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let (first, second) = (client(&daemon), client(&daemon));
    for busy_poll_us in 1..100 {
        let policy = format!("\"busy_poll_us\":{busy_poll_us},");
        let set = format!("{{\"set_policy\":{{{}}}}}\n", policy.trim_end_matches(','));
        assert!(ask(&first, &set).contains(&policy));
        assert!(ask(&second, "\"policy\"\n").contains(&policy));
    }
    // Half a request, and the other half.
    let mut writer = &first;
    writer.write_all(b"{\"policy\"").expect("it is read");
    assert!(ask(&second, "{\"policy\":null}\n").contains("\"busy_poll_us\":99,"));
    assert!(ask(&first, ":null}\n").contains("\"busy_poll_us\":99,"));
    // One who stops writing without an end of line.
    writer.write_all(b"\"policy\"").expect("it is read");
    first.shutdown(Shutdown::Write).expect("connected");
    let mut rest = String::new();
    let mut reader = &first;
    reader
        .read_to_string(&mut rest)
        .expect("answered and closed");
    assert!(rest.contains("\"busy_poll_us\":99,"), "{rest}");
}

#[test]
fn garbage_silence_and_deafness_cost_nothing() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let before = daemon.log().lines().count();
    let garbage = client(&daemon);
    for line in ["\n", "\0\n", "{}\n", "[[[[\n", "{\"set_policy\":[]}\n"] {
        assert!(ask(&garbage, line).contains("error"), "{line}");
    }
    assert!(ask(&garbage, &"x".repeat(5000)).contains("at most 4096 bytes"));
    // More than it takes from one who takes no answers.
    let deaf = client(&daemon);
    deaf.set_nonblocking(true).expect("non-blocking");
    let full = loop {
        if let Err(error) = (&deaf).write(b"\"policy\"\n") {
            break error.kind();
        }
        thread::yield_now();
    };
    assert!(matches!(
        full,
        ErrorKind::WouldBlock | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    ));
    let _silent: Vec<_> = (0..CROWD).map(|_| client(&daemon)).collect();

    assert!(ask(&client(&daemon), "\"policy\"\n").contains("kick_rearm"));
    assert!(daemon.policy("").status.success());
    assert_eq!(daemon.log().lines().count(), before, "{}", daemon.log());
}
