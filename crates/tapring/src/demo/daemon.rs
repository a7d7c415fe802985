//! The daemon under demonstration: a child process, so that its CPU time is its own.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::LIMIT;

/// The tap, in a namespace where nothing else is.
pub(super) const TAP: &str = "demo0";

/// The namespace is fresh, so the port is free.
const METRICS: &str = "127.0.0.1:9650";

/// A running `tapring serve`. Dropped, it is told to end.
pub(super) struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

/// What the daemon has done and what it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Frames moved.
    pub(super) packets: u64,
    /// Batches they were moved in.
    pub(super) batches: u64,
    /// CPU time of all its threads.
    pub(super) cpu: Duration,
}

impl std::ops::Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            batches: self.batches - earlier.batches,
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }
}

impl Daemon {
    /// Starts it, and returns when its socket is there.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let socket = folder.join("demo.sock");
        let log = folder.join("daemon.log");
        let program = std::env::current_exe().context("cannot find the program's own file")?;
        let child = Command::new(program)
            .args(["serve", "--die-with-parent", "--create-tap"])
            .args(["--tap", TAP, "--metrics", METRICS, "--socket-path"])
            .arg(&socket)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).context("cannot write the daemon's log")?)
            .spawn()
            .context("cannot start the daemon")?;
        let mut daemon = Self { child, socket, log };
        daemon.wait_for_socket()?;
        Ok(daemon)
    }

    fn wait_for_socket(&mut self) -> Result<()> {
        let began = Instant::now();
        while !self.socket.exists() {
            if let Some(status) = self.child.try_wait()? {
                return Err(self.ended(status));
            }
            if began.elapsed() > LIMIT {
                bail!(
                    "the daemon did not open its socket in {} s",
                    LIMIT.as_secs()
                );
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let reason = log.lines().last().unwrap_or("it said nothing");
        anyhow!("the daemon ended ({status}): {reason}")
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it has done in one direction since it started.
    pub(super) fn usage(&self, direction: &str) -> Result<Usage> {
        let metrics = scrape().context("cannot read the daemon's metrics")?;
        Ok(Usage {
            packets: series(&metrics, "tapring_packets_total", direction),
            batches: series(&metrics, "tapring_batches_total", direction),
            cpu: self.cpu()?,
        })
    }

    /// Time on a CPU, of all threads, kernel ones of SQPOLL included.
    fn cpu(&self) -> Result<Duration> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut nanoseconds = 0;
        for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
            let schedstat = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            let on_cpu = schedstat
                .split(' ')
                .next()
                .and_then(|word| word.parse::<u64>().ok());
            nanoseconds += on_cpu.unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Ends it as an operator would, and insists that it ends well.
    pub(super) fn stop(mut self) -> Result<()> {
        self.terminate();
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(self.ended(status))
        }
    }

    fn terminate(&self) {
        if let Ok(Some(pid)) = i32::try_from(self.child.id()).map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
            let _ = self.child.wait();
        }
    }
}

fn scrape() -> Result<String> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The sum of a counter over its series of one direction.
fn series(metrics: &str, name: &str, direction: &str) -> u64 {
    let direction = format!("direction=\"{direction}\"");
    metrics
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(&direction))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}
