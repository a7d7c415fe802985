//! The real daemon as a child process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::process::{Usage, resident_bytes, usage};
use crate::settings::Settings;
use crate::{BenchError, cpu, scrape};

/// The tap it creates.
pub const TAP: &str = "tap0";

/// What the software guest calls its memory.
const GUEST_MEMORY: &str = "memfd:tapring-guest";

/// How long it may take to listen, and to end.
const LIMIT: Duration = Duration::from_secs(10);

/// A daemon that listens, all of it bound to one CPU. Dropping it ends it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// Starts it; the calling thread is on the mover's CPU afterwards.
    pub fn start(settings: &Settings) -> Result<Self, BenchError> {
        let program = settings.daemon_path()?;
        let folder = tempfile::tempdir().map_err(BenchError::read("a temporary folder"))?;
        cpu::pin(settings.cpus.mover)?;
        let log = fs::File::create(folder.path().join("log"))
            .map_err(BenchError::read("the daemon's log"))?;
        let mut command = command(&program, settings);
        command
            .arg("--socket-path")
            .arg(socket_in(folder.path()))
            .stderr(log);
        let child = command
            .spawn()
            .map_err(BenchError::read(program.display().to_string()))?;
        let mut daemon = Self { child, folder };
        daemon.wait_until_it_listens()?;
        Ok(daemon)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.folder.path())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What all its threads have used.
    pub fn usage(&self) -> Result<Usage, BenchError> {
        usage(self.id())
    }

    /// Bytes of it in memory, without the guest's.
    pub fn resident_bytes(&self) -> Result<u64, BenchError> {
        resident_bytes(self.id(), GUEST_MEMORY)
    }

    /// That it ended, if it has; what was to be reported otherwise.
    pub fn explain(&mut self, error: BenchError) -> BenchError {
        match self.child.try_wait() {
            Ok(Some(status)) => BenchError::DaemonEnded {
                said: format!("{status}: {}", self.log()),
            },
            _ => error,
        }
    }

    /// The socket file appears when it listens.
    fn wait_until_it_listens(&mut self) -> Result<(), BenchError> {
        let deadline = Instant::now() + LIMIT;
        while !self.socket().exists() {
            let silent = BenchError::Stuck {
                what: format!("the daemon to listen: {}", self.log()),
                limit: LIMIT,
            };
            match self.explain(silent) {
                BenchError::Stuck { .. } if Instant::now() < deadline => {
                    sleep(Duration::from_millis(2));
                }
                error => return Err(error),
            }
        }
        Ok(())
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.trim().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(id) = i32::try_from(self.id()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(2));
        }
        // Both fail only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `setpriv` (util-linux) becomes the daemon, and has the kernel end it should this program be killed.
fn command(program: &Path, settings: &Settings) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command.args([
        "serve",
        "--create-tap",
        "--tap",
        TAP,
        "--poll",
        &settings.poll,
    ]);
    command.args(["--metrics", &scrape::ADDRESS.to_string()]);
    command.args(["--worker-cpus", &settings.cpus.mover.to_string()]);
    if let Some(cpu) = settings.sqpoll_cpu {
        command.args(["--sqpoll-cpu", &cpu.to_string()]);
    }
    command
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("tapring.sock")
}
