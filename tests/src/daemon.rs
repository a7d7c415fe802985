//! The daemon as a user runs it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::files::daemon_binary;
use crate::metrics::Scrape;
use crate::process::{Finished, Process, until};

/// Where every daemon of ours answers `/metrics`: each is in a namespace of its own.
pub const METRICS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9650));

/// What `tapring serve` is told.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    tap: String,
    pairs: u16,
    socket: Option<PathBuf>,
    more: Vec<String>,
}

impl DaemonOptions {
    /// One queue pair on `tap`, a socket in a folder of its own.
    #[must_use]
    pub fn on_tap(tap: &str) -> Self {
        Self {
            tap: tap.to_owned(),
            pairs: 1,
            socket: None,
            more: Vec::new(),
        }
    }

    /// Sets `--queue-pairs`.
    #[must_use]
    pub fn pairs(mut self, pairs: u16) -> Self {
        self.pairs = pairs;
        self
    }

    /// Sets `--socket-path`.
    #[must_use]
    pub fn socket(mut self, path: &Path) -> Self {
        self.socket = Some(path.to_owned());
        self
    }

    /// Adds further words to the command line.
    #[must_use]
    pub fn with(mut self, words: &str) -> Self {
        self.more
            .extend(words.split_whitespace().map(str::to_owned));
        self
    }

    /// The command line, with its socket at `socket` unless another was set.
    #[must_use]
    pub fn command(&self, socket: &Path) -> Command {
        let mut command = Command::new(daemon_binary());
        command
            .arg("serve")
            .args(["--tap", &self.tap, "--queue-pairs", &self.pairs.to_string()]);
        command
            .args(["--metrics", &METRICS.to_string()])
            .args(&self.more);
        command
            .arg("--socket-path")
            .arg(self.socket.as_deref().unwrap_or(socket));
        command
    }
}

/// A daemon that listens. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    socket: PathBuf,
    _folder: TempDir,
}

impl Daemon {
    /// Starts the daemon and waits until it listens.
    ///
    /// # Errors
    /// When it ends before, or does not listen within ten seconds.
    pub fn start(options: &DaemonOptions) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = options
            .socket
            .clone()
            .unwrap_or_else(|| folder.path().join("tapring.sock"));
        let mut process = Process::start("tapring", &options.command(&socket))?;
        until(Duration::from_secs(10), "the daemon to listen", || {
            (process.ended() || listens(&socket)).then_some(())
        })
        .with_context(|| process.tail())?;
        ensure!(
            !process.ended(),
            "the daemon ended at once:\n{}",
            process.tail()
        );
        Ok(Self {
            process,
            socket,
            _folder: folder,
        })
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it printed last, for an error message.
    #[must_use]
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// What it counted up to now.
    ///
    /// # Errors
    /// When `/metrics` does not answer.
    pub fn metrics(&self) -> Result<Scrape> {
        Scrape::of(METRICS).with_context(|| self.tail())
    }

    /// Waits until a metric, summed over the series with these labels, has this value.
    ///
    /// # Errors
    /// When it has another after ten seconds.
    pub fn wait_metric(&self, name: &str, labels: &[&str], value: f64) -> Result<()> {
        let mut last = None;
        let reached = || {
            last = self
                .metrics()
                .and_then(|scrape| scrape.sum(name, labels))
                .ok();
            (last == Some(value)).then_some(())
        };
        until(Duration::from_secs(10), name, reached)
            .with_context(|| format!("{name} {labels:?} is {last:?}, not {value}"))
    }

    /// That no frame of either direction was the guest's fault, and none that the guest sent was dropped.
    ///
    /// # Errors
    /// When a counter says otherwise.
    pub fn ensure_no_faults(&self) -> Result<()> {
        let scrape = self.metrics()?;
        let faults = scrape.sum("tapring_guest_faults_total", &[])?;
        ensure!(
            faults == 0.0,
            "guest faults: {:?}",
            scrape.non_zero("tapring_guest_faults_total")
        );
        let dropped = scrape.sum("tapring_dropped_packets_total", &["direction=\"tx\""])?;
        ensure!(
            dropped == 0.0,
            "dropped: {:?}",
            scrape.non_zero("tapring_dropped_packets_total")
        );
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it is still running at `limit`.
    pub fn finish(self, limit: Duration) -> Result<Finished> {
        self.process.finish(limit)
    }

    /// Stops it as systemd does: SIGTERM, exit code 0 within two seconds, the socket file gone.
    ///
    /// # Errors
    /// When any of it does not hold.
    pub fn stop(self) -> Result<()> {
        let (socket, _folder) = (self.socket, self._folder);
        self.process.signal(Signal::SIGTERM)?;
        let finished = self
            .process
            .finish(Duration::from_secs(2))
            .context("within 2 s of SIGTERM")?;
        ensure!(
            finished.status.code() == Some(0),
            "after SIGTERM: {}\n{}",
            finished.status,
            finished.lines.join("\n")
        );
        ensure!(!socket.exists(), "the socket file outlived the daemon");
        Ok(())
    }
}

/// Runs the daemon with options that it must refuse.
///
/// # Errors
/// When it serves all the same.
pub fn refused(options: &DaemonOptions) -> Result<Finished> {
    let folder = tempfile::tempdir()?;
    let command = options.command(&folder.path().join("tapring.sock"));
    let finished = Process::run("tapring", &command, Duration::from_secs(10))?;
    let left: Vec<_> = fs::read_dir(folder.path())?.collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(finished)
}

/// Whether somebody listens on the path, as the kernel's table of this namespace has it. Connecting to find out would be a
/// session of its own.
fn listens(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let table = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let path = socket.to_string_lossy();
    table
        .lines()
        .map(str::split_whitespace)
        .any(|mut row| row.nth(3) == Some(ACCEPTS) && row.nth(3) == Some(&*path))
}
