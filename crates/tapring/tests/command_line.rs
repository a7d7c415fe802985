//! The daemon as its users start and stop it: exit codes, one line for each failure, the socket's file, limits, idleness.
//!
//! Where a tap is needed the daemon runs in a network namespace of its own, which needs root or user namespaces, and
//! /dev/net/tun. Where they are missing the test says SKIP.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(10);

/// GET_FEATURES, version 1, no body.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

fn tapring(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapring"));
    command
        .args(words.split_whitespace())
        .env_remove("RUST_LOG");
    command.output().expect("the binary runs")
}

/// The one line of a failure, without what was logged before it.
fn failure(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    let failures: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("tapring: "))
        .collect();
    assert_eq!(failures.len(), 1, "{text}");
    assert_eq!(text.lines().last(), failures.last().copied(), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    failures[0].to_owned()
}

/// How to run something in a network namespace of its own, if it can be done here.
fn in_namespace() -> Option<Command> {
    let flags = if rustix::process::getuid().is_root() {
        "-n"
    } else {
        "-rn"
    };
    let allowed = Command::new("unshare").args([flags, "true"]).status();
    let tun = File::options().read(true).write(true).open("/dev/net/tun");
    if !allowed.is_ok_and(|status| status.success()) || tun.is_err() {
        eprintln!(
            "SKIP: no network namespace or no /dev/net/tun for this user: run the tests as root"
        );
        return None;
    }
    let mut command = Command::new("unshare");
    command.args([flags, env!("CARGO_BIN_EXE_tapring")]);
    Some(command)
}

/// A daemon with a tap of its own. Dropping it kills it.
struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// `None` where it cannot be done.
    fn start() -> Option<Self> {
        Self::start_in(tempfile::tempdir().expect("a temporary folder"))
    }

    fn start_in(folder: TempDir) -> Option<Self> {
        let child = spawn(in_namespace()?, &folder, "");
        let mut daemon = Self { child, folder };
        until("it listens", || {
            let ended = daemon.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{}", daemon.log());
            daemon.log().contains("listens on")
        });
        Some(daemon)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("t.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(began.elapsed() < LIMIT, "it does not end: {}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A frontend that has been answered.
    fn connect(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.path()).expect("it listens");
        assert!(answered(&mut stream), "{}", self.log());
        stream
    }

    /// utime and stime of all threads, in clock ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(self.proc("stat")).expect("it runs");
        let fields = stat
            .rsplit(')')
            .next()
            .expect("a command")
            .split_whitespace();
        fields
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().expect("a number"))
            .sum()
    }

    /// How often any thread has gone to sleep or was made to.
    fn switches(&self) -> u64 {
        let threads = fs::read_dir(self.proc("task")).expect("it runs");
        let count = |path: &Path| -> u64 {
            let status = fs::read_to_string(path.join("status")).expect("it runs");
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            let number = |line: &str| line.split_whitespace().last().map(str::parse::<u64>);
            lines
                .filter_map(number)
                .map(|number| number.expect("a number"))
                .sum()
        };
        threads
            .map(|thread| count(&thread.expect("a thread").path()))
            .sum()
    }

    fn proc(&self, what: &str) -> PathBuf {
        Path::new("/proc")
            .join(self.child.id().to_string())
            .join(what)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(mut command: Command, folder: &TempDir, more: &str) -> Child {
    let socket = folder.path().join("t.sock");
    let log = File::create(folder.path().join("log")).expect("a log");
    command.arg("serve").arg("--socket-path").arg(socket);
    command
        .args(["--tap", "t0", "--create-tap"])
        .args(more.split_whitespace());
    command
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stderr(log);
    command.spawn().expect("unshare runs")
}

/// Whether the daemon serves this connection.
fn answered(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut reply = [0; 20];
    stream.write_all(&GET_FEATURES).is_ok() && stream.read_exact(&mut reply).is_ok()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

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
        assert!(!daemon.path().exists());
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
    assert!(daemon.path().exists(), "its file is still there");
    let folder = std::mem::replace(&mut daemon.folder, tempfile::tempdir().expect("a folder"));
    let daemon = Daemon::start_in(folder).expect("as before");
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
fn the_socket_has_the_mode_it_was_given() {
    let Some(command) = in_namespace() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let child = spawn(command, &folder, "--socket-mode 0660 --socket-group 0");
    let daemon = Daemon { child, folder };
    until("it listens", || daemon.log().contains("listens on"));
    let metadata = fs::metadata(daemon.path()).expect("it is there");
    assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o660, 0));
}
