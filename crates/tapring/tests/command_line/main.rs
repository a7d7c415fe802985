//! The daemon as its users start and stop it: exit codes, one line for each failure, the socket's file, limits, idleness.
//!
//! Where a tap is needed the daemon runs in a network namespace of its own, which needs root or user namespaces, and
//! /dev/net/tun. Where they are missing the test says SKIP.

mod control;
mod daemon;
mod reload;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, prlimit};

use daemon::{Daemon, answered, failure, in_namespace, tapring, until};

#[test]
fn a_wrong_command_line_is_one_line_and_code_2() {
    for words in [
        "",
        "strange",
        "serve",
        "serve --socket s --tap t0 --queue-pairs 0",
        "serve --socket s --tap t0 --queue-pairs 33",
        "serve --socket s --tap t0 --queue-size 1000",
        "serve --socket s --tap t0 --poll inline --sqpoll-cpu 0",
        "serve --socket s --tap t0 --sqpoll-cpu 8000",
        "serve --socket s --tap t0 --worker-cpus 8000",
        "serve --socket s --tap t0 --rx-wake 1025",
        "serve --socket s --tap t0 --queue-size 256 --rx-wake 257",
        "serve --socket s --tap t0 --control-socket s",
        "policy --control-socket s --tx-budget 0",
    ] {
        failure(&tapring(words), 2);
    }
}

#[test]
fn answers_go_to_stdout() {
    let version = tapring("--version");
    assert!(version.status.success());
    assert_eq!(
        version.stdout,
        format!("tapring {}\n", env!("CARGO_PKG_VERSION")).as_bytes()
    );
    assert!(
        tapring("serve --help")
            .stdout
            .starts_with(b"Serve one device")
    );
}

#[test]
fn what_is_in_the_way_is_named_and_stays() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.sock");
    let serve = || {
        tapring(&format!(
            "serve --tap no-such-tap --socket {}",
            path.display()
        ))
    };

    let line = failure(&serve(), 1);
    assert!(
        line.contains("no-such-tap") && line.contains("--create-tap"),
        "{line}"
    );
    assert_eq!(
        fs::read_dir(&folder).expect("there").count(),
        0,
        "nothing is left"
    );

    fs::write(&path, "precious").expect("written");
    assert!(failure(&serve(), 1).contains("is no socket"));
    assert_eq!(fs::read(&path).expect("there"), b"precious");
    fs::remove_file(&path).expect("removed");

    let _live = UnixListener::bind(&path).expect("bound");
    assert!(failure(&serve(), 1).contains("a running process listens"));
    UnixStream::connect(&path).expect("it is still there");
}

#[test]
fn a_taken_metrics_port_and_a_missing_folder_are_named() {
    let Some(mut command) = in_namespace() else {
        return;
    };
    command.args([
        "serve",
        "--tap",
        "t0",
        "--create-tap",
        "--socket",
        "/no/such/folder/t.sock",
    ]);
    assert!(failure(&command.output().expect("it runs"), 1).contains("its folder does not exist"));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let words = format!("serve --tap no-such-tap --socket /no/t.sock --metrics {address}");
    assert!(failure(&tapring(&words), 1).contains(&address.to_string()));
}

#[test]
fn it_ends_at_once_when_told_to() {
    for (signal, session) in [
        (Signal::TERM, false),
        (Signal::INT, false),
        (Signal::TERM, true),
    ] {
        let Some(mut daemon) = Daemon::start() else {
            return;
        };
        let mut stream = session.then(|| daemon.connect());
        let began = Instant::now();
        daemon.signal(signal);
        let status = daemon.wait();
        assert_eq!(status.code(), Some(0), "{}", daemon.log());
        assert!(began.elapsed() < Duration::from_secs(2));
        assert!(!daemon.path().exists() && !daemon.control().exists());
        if let Some(stream) = &mut stream {
            assert!(!answered(stream), "the session is over");
        }
    }
}

#[test]
fn a_killed_daemon_is_replaced_and_a_live_one_is_not() {
    let Some(mut daemon) = Daemon::start() else {
        return;
    };
    daemon.connect();
    daemon.signal(Signal::KILL);
    assert_eq!(daemon.wait().signal(), Some(Signal::KILL.as_raw()));
    assert!(
        daemon.path().exists() && daemon.control().exists(),
        "its files are still there"
    );
    let folder = std::mem::replace(&mut daemon.folder, tempfile::tempdir().expect("a folder"));
    let daemon = Daemon::start_in(folder, "").expect("as before");
    daemon.connect();

    let path = daemon.path();
    let second = tapring(&format!(
        "serve --tap no-such-tap --socket {}",
        path.display()
    ));
    assert!(failure(&second, 1).contains("a running process listens"));
    daemon.connect();
}

#[test]
fn two_thousand_short_visits() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let inode = || fs::metadata(daemon.path()).expect("it is there").ino();
    let before = inode();
    for _ in 0..2000 {
        drop(UnixStream::connect(daemon.path()).expect("it listens all the time"));
    }
    assert_eq!(inode(), before);
    daemon.connect();
    let lines = daemon.log().lines().count();
    assert!(lines < 60, "{lines} lines in the log");
}

#[test]
fn a_thousand_bad_messages_make_a_bounded_log() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    for _ in 0..1000 {
        let mut stream = UnixStream::connect(daemon.path()).expect("it listens");
        stream.write_all(&[0xff; 12]).expect("sent");
        assert!(!answered(&mut stream));
    }
    daemon.connect();
    let lines = daemon.log().lines().count();
    assert!(lines < 60, "{lines} lines in the log");
}

#[test]
fn without_descriptors_it_waits_and_comes_back() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    let open = || -> BTreeSet<u64> {
        let names = fs::read_dir(daemon.proc("fd")).expect("it runs");
        let number = |name: &OsStr| name.to_str().expect("digits").parse().expect("a number");
        names
            .map(|entry| number(&entry.expect("an entry").file_name()))
            .collect()
    };
    let idle = open();
    daemon.connect();
    until("the first session is over", || open() == idle);
    let first_free = (0..)
        .find(|number| !idle.contains(number))
        .expect("some are free");
    let limit = |current| Rlimit {
        current: Some(current),
        maximum: Some(4096),
    };
    prlimit(Some(daemon.pid()), Resource::Nofile, limit(first_free)).expect("allowed");
    let mut starved = UnixStream::connect(daemon.path()).expect("the kernel's queue takes it");
    until("it notices", || {
        daemon.log().contains("cannot accept a frontend")
    });
    let before = daemon.ticks();
    thread::sleep(Duration::from_secs(2));
    assert!(
        daemon.ticks() - before <= 4,
        "busy for {} ticks",
        daemon.ticks() - before
    );
    prlimit(Some(daemon.pid()), Resource::Nofile, limit(1024)).expect("allowed");
    assert!(answered(&mut starved), "{}", daemon.log());
    let lines = daemon
        .log()
        .lines()
        .filter(|line| line.contains("cannot accept"))
        .count();
    assert!(lines <= 10, "{lines} lines");
}

#[test]
fn idle_it_sleeps() {
    let Some(daemon) = Daemon::start() else {
        return;
    };
    for session in [false, true] {
        let _stream = session.then(|| daemon.connect());
        let _client = UnixStream::connect(daemon.control()).expect("it listens");
        // Whatever has just begun comes to rest first.
        until("it is at rest", || {
            let before = daemon.switches();
            thread::sleep(Duration::from_millis(300));
            daemon.switches() == before
        });
        let before = (daemon.switches(), daemon.ticks());
        thread::sleep(Duration::from_secs(3));
        assert_eq!(
            (daemon.switches(), daemon.ticks()),
            before,
            "with a session: {session}"
        );
    }
}

#[test]
fn the_sockets_have_their_modes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(daemon) = Daemon::start_in(folder, "--socket-mode 0660 --socket-group 0") else {
        return;
    };
    let metadata = fs::metadata(daemon.path()).expect("it is there");
    assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o660, 0));
    let metadata = fs::metadata(daemon.control()).expect("it is there");
    assert_eq!(metadata.mode() & 0o7777, 0o600);
}
