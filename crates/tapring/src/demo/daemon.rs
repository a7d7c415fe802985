//! The daemon under demonstration: a child process, so that its CPU time is its own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tapring_queue::Policy;

use super::LIMIT;
use super::placement::bind;
use crate::control::client;

/// The tap, in a namespace where nothing else is.
pub(super) const TAP: &str = "demo0";

/// The name of the worker's thread: the device and the queue pair.
const WORKER: &str = "demo0/0";

/// The namespace is fresh, so the port is free.
const METRICS: &str = "127.0.0.1:9650";

/// A running `tapring serve`. Dropped, it is told to end.
pub(super) struct Daemon {
    child: Child,
    socket: PathBuf,
    control: PathBuf,
    log: PathBuf,
}

/// What the daemon has moved in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Frames.
    pub(super) packets: u64,
    /// Batches they were moved in.
    pub(super) batches: u64,
    /// Kicks it took.
    pub(super) kicks: u64,
}

/// What the daemon has done and what it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Guest to host.
    pub(super) tx: Moved,
    /// Host to guest.
    pub(super) rx: Moved,
    /// CPU time of all its threads.
    pub(super) cpu: Duration,
    /// CPU time of the worker alone.
    pub(super) worker_cpu: Duration,
}

impl std::ops::Sub for Moved {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            batches: self.batches - earlier.batches,
            kicks: self.kicks - earlier.kicks,
        }
    }
}

impl std::ops::Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            tx: self.tx - earlier.tx,
            rx: self.rx - earlier.rx,
            cpu: self.cpu.saturating_sub(earlier.cpu),
            worker_cpu: self.worker_cpu.saturating_sub(earlier.worker_cpu),
        }
    }
}

impl Daemon {
    /// Starts it with its worker on `worker_cpu`, and returns when its socket is there.
    pub(super) fn start(folder: &Path, worker_cpu: u32) -> Result<Self> {
        let socket = folder.join("demo.sock");
        let control = folder.join("control.sock");
        let log = folder.join("daemon.log");
        let program = std::env::current_exe().context("cannot find the program's own file")?;
        let child = Command::new(program)
            .args(["serve", "--die-with-parent", "--create-tap"])
            .args(["--worker-cpus", &worker_cpu.to_string()])
            .args(["--tap", TAP, "--metrics", METRICS, "--socket-path"])
            .arg(&socket)
            .arg("--control-socket")
            .arg(&control)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).context("cannot write the daemon's log")?)
            .spawn()
            .context("cannot start the daemon")?;
        let mut daemon = Self {
            child,
            socket,
            control,
            log,
        };
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

    /// Puts a policy in force on the live device; it is when this returns.
    pub(super) fn set_policy(&self, policy: Policy) -> Result<()> {
        let in_force = client::set_policy(&self.control, &policy.into())?;
        ensure!(
            in_force == policy,
            "the daemon runs another policy than it was told"
        );
        Ok(())
    }

    /// What it has done since it started.
    pub(super) fn usage(&self) -> Result<Usage> {
        let metrics = scrape().context("cannot read the daemon's metrics")?;
        let (cpu, worker_cpu) = self.cpu()?;
        Ok(Usage {
            tx: moved(&metrics, "tx"),
            rx: moved(&metrics, "rx"),
            cpu,
            worker_cpu,
        })
    }

    /// Binds the worker to another CPU.
    pub(super) fn move_worker(&self, cpu: u32) -> Result<()> {
        for task in self.tasks()?.iter().filter(|task| is_worker(task)) {
            let name = task.file_name().and_then(OsStr::to_str);
            let thread = name.and_then(|name| Pid::from_raw(name.parse().ok()?));
            bind(
                Some(thread.context("the worker's thread has no number")?),
                cpu,
            )?;
        }
        Ok(())
    }

    /// Time on a CPU, of all threads, kernel ones of SQPOLL included, and of the worker.
    fn cpu(&self) -> Result<(Duration, Duration)> {
        let tasks = self.tasks()?;
        let all = tasks.iter().map(|task| time_on_cpu(task)).sum();
        let worker = tasks.iter().filter(|task| is_worker(task));
        Ok((all, worker.map(|task| time_on_cpu(task)).sum()))
    }

    /// Its threads, in /proc.
    fn tasks(&self) -> Result<Vec<PathBuf>> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let entries = fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))?;
        let paths = entries.map(|entry| Ok(entry?.path()));
        paths.collect()
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

fn is_worker(task: &Path) -> bool {
    fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == WORKER)
}

/// A thread's own count; one that has just ended took none that matters.
fn time_on_cpu(task: &Path) -> Duration {
    let schedstat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let nanoseconds = schedstat.split(' ').next().map(str::parse);
    Duration::from_nanos(nanoseconds.and_then(Result::ok).unwrap_or(0))
}

fn scrape() -> Result<String> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn moved(metrics: &str, direction: &str) -> Moved {
    let count = |name| series(metrics, name, direction);
    Moved {
        packets: count("tapring_packets_total{"),
        batches: count("tapring_batches_total{"),
        kicks: count("tapring_kicks_total{"),
    }
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
