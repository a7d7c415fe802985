//! The daemon as a user runs it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use rustix::process::{Pid, setpriority_process};
use tempfile::TempDir;

use crate::control::Control;
use crate::files::daemon_binary;
use crate::metrics::Scrape;
use crate::process::{Finished, Process, until};
use crate::user::{Home, as_user, with_tun_mode};

/// Where every daemon of ours answers `/metrics`: each is in a namespace of its own.
pub const METRICS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9650));

/// A tenth of the CPU time of somebody who is not nice.
const NICE: i32 = 10;

/// What `tapring serve` is told.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    interface: [String; 2],
    pairs: u16,
    socket: Option<PathBuf>,
    metrics: SocketAddr,
    binary: PathBuf,
    unprivileged: bool,
    controlled: bool,
    more: Vec<String>,
}

impl DaemonOptions {
    /// One queue pair on `tap`, a socket in a folder of its own.
    #[must_use]
    pub fn on_tap(tap: &str) -> Self {
        Self::on("--tap", tap)
    }

    /// The same on what another option names.
    #[must_use]
    pub fn on(option: &str, interface: &str) -> Self {
        Self {
            interface: [option, interface].map(str::to_owned),
            pairs: 1,
            socket: None,
            metrics: METRICS,
            binary: daemon_binary().to_owned(),
            unprivileged: false,
            controlled: false,
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

    /// Sets `--metrics`, for a second daemon in the namespace.
    #[must_use]
    pub fn metrics(mut self, address: SocketAddr) -> Self {
        self.metrics = address;
        self
    }

    /// Sets `--control-socket`, for [`Daemon::control`].
    #[must_use]
    pub fn controlled(mut self) -> Self {
        self.controlled = true;
        self
    }

    /// Runs it as the user whose home this is, without any capability, with a `/dev/net/tun` that is open to all.
    #[must_use]
    pub fn at(mut self, home: &Home) -> Self {
        self.unprivileged = true;
        self.binary = home.daemon();
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
        let mut command = Command::new(&self.binary);
        command.arg("serve").args(&self.interface);
        command.args(["--queue-pairs", &self.pairs.to_string()]);
        command
            .args(["--metrics", &self.metrics.to_string()])
            .args(&self.more);
        command
            .arg("--socket-path")
            .arg(self.socket.as_deref().unwrap_or(socket));
        if self.controlled {
            command.arg("--control-socket").arg(control_beside(socket));
        }
        if self.unprivileged {
            with_tun_mode("0666", &as_user(&command))
        } else {
            command
        }
    }
}

/// A daemon that listens. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    socket: PathBuf,
    metrics: SocketAddr,
    control: Control,
    _folder: TempDir,
}

impl Daemon {
    /// Starts the daemon and waits until it answers `/metrics`, which it does once the socket listens and the tap is open.
    ///
    /// # Errors
    /// When it ends before, or does not answer within ten seconds.
    pub fn start(options: &DaemonOptions) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = folder.path().join("tapring.sock");
        let process = Process::start("tapring", &options.command(&own))?;
        let control = Control::new(&options.binary, control_beside(&own));
        let socket = options.socket.clone().unwrap_or(own);
        let mut daemon = Self {
            process,
            socket,
            metrics: options.metrics,
            control,
            _folder: folder,
        };
        let bound = || {
            (daemon.process.ended() || TcpStream::connect(options.metrics).is_ok()).then_some(())
        };
        until(Duration::from_secs(10), "the daemon to start", bound)
            .with_context(|| daemon.tail())?;
        // One that fails after it has bound the port breaks the connection and then says why.
        if let Err(error) = daemon.metrics() {
            let why = daemon
                .process
                .finish(Duration::from_secs(5))?
                .lines
                .join("\n");
            return Err(error.context(format!("the daemon does not start:\n{why}")));
        }
        ensure!(daemon.socket.exists(), "it serves, and there is no socket");
        Ok(daemon)
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its control socket, if it was [`DaemonOptions::controlled`].
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
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
        Scrape::of(self.metrics).with_context(|| self.tail())
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

    /// Lets others run before its threads: on a busy machine it is then the daemon that is slow, and not who feeds it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stand_back(&self) -> Result<()> {
        for task in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let id = task?.file_name().to_string_lossy().parse()?;
            setpriority_process(Pid::from_raw(id), NICE)?;
        }
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

/// The control socket of a daemon whose own socket would be here.
fn control_beside(socket: &Path) -> PathBuf {
    socket.with_file_name("control.sock")
}

/// Runs the daemon with options that it must refuse: exit code 1, one line that has all of `parts`, and no file left in the
/// folder that its socket was to be in.
///
/// # Errors
/// When any of it does not hold.
pub fn ensure_refused(options: &DaemonOptions, parts: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let command = options.command(&folder.path().join("tapring.sock"));
    let finished = Process::run("tapring", &command, Duration::from_secs(10))?;
    ensure_one_line(&finished, 1, parts)?;
    let left: Vec<_> = fs::read_dir(folder.path())?.collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

/// That a run ended with this code and printed one line, which has all of `parts`.
///
/// # Errors
/// When any of it does not hold.
pub fn ensure_one_line(finished: &Finished, code: i32, parts: &[&str]) -> Result<()> {
    let printed = finished.lines.join("\n");
    ensure!(
        finished.status.code() == Some(code),
        "{} instead of exit code {code}:\n{printed}",
        finished.status
    );
    let [line] = &finished.lines[..] else {
        bail!("not one line:\n{printed}");
    };
    let missing: Vec<_> = parts.iter().filter(|part| !line.contains(**part)).collect();
    ensure!(missing.is_empty(), "{missing:?} is not in: {line}");
    Ok(())
}
