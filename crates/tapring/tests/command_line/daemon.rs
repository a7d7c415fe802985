//! A daemon under test, as a child process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// GET_FEATURES, version 1, no body.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

pub(crate) fn tapring(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapring"));
    command
        .args(words.split_whitespace())
        .env_remove("RUST_LOG");
    command.output().expect("the binary runs")
}

/// The one line of a failure, without what was logged before it.
pub(crate) fn failure(output: &Output, code: i32) -> String {
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
pub(crate) fn in_namespace() -> Option<Command> {
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
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) folder: TempDir,
}

impl Daemon {
    /// `None` where it cannot be done.
    pub(crate) fn start() -> Option<Self> {
        Self::start_in(tempfile::tempdir().expect("a temporary folder"), "")
    }

    /// With these words after the usual ones.
    pub(crate) fn start_in(folder: TempDir, more: &str) -> Option<Self> {
        let child = spawn(in_namespace()?, &folder, more);
        let mut daemon = Self { child, folder };
        until("it listens", || {
            let ended = daemon.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{}", daemon.log());
            daemon.log().contains("listens on")
        });
        Some(daemon)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("t.sock")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Runs `tapring policy` on it.
    pub(crate) fn policy(&self, words: &str) -> Output {
        let socket = self.control();
        tapring(&format!(
            "policy --control-socket {} {words}",
            socket.display()
        ))
    }

    /// The line of one setting.
    pub(crate) fn setting(&self, name: &str) -> String {
        let shown = self.policy("");
        assert!(shown.status.success(), "{}", self.log());
        let text = String::from_utf8(shown.stdout).expect("text");
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
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
    pub(crate) fn connect(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.path()).expect("it listens");
        assert!(answered(&mut stream), "{}", self.log());
        stream
    }

    /// utime and stime of all threads, in clock ticks of 10 ms.
    pub(crate) fn ticks(&self) -> u64 {
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
    pub(crate) fn switches(&self) -> u64 {
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

    pub(crate) fn proc(&self, what: &str) -> PathBuf {
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

pub(crate) fn spawn(mut command: Command, folder: &TempDir, more: &str) -> Child {
    let socket = folder.path().join("t.sock");
    let control = folder.path().join("control.sock");
    let log = File::create(folder.path().join("log")).expect("a log");
    command.arg("serve").arg("--socket-path").arg(socket);
    command.arg("--control-socket").arg(control);
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
pub(crate) fn answered(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut reply = [0; 20];
    stream.write_all(&GET_FEATURES).is_ok() && stream.read_exact(&mut reply).is_ok()
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
