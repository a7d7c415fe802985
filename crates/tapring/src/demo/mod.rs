//! `tapring demo`: what it does and how fast, on the machine at hand, with nothing set up.
//!
//! ```text
//!  guest in software ──vhost-user──► tapring serve (a child process) ──► tap ──► the host's UDP
//!   1 thread, as iperf3 -u -b 0                                     0/1 demo0     a socket
//! ```
//!
//! It moves into a network namespace of its own (with a user namespace in front, unless it is
//! root), so it needs no rights and leaves nothing behind. The daemon is the real one, the tap is
//! real, and so is the host's network stack; the guest is a driver in this process instead of a
//! kernel in a virtual machine, so a kick costs an eventfd write here and not a VM exit.

mod daemon;
mod host;
mod namespace;
mod report;
mod rx;
mod tx;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tapring_guest::{Guest, GuestConfig, Pair};

use daemon::Daemon;
use host::Host;
use report::Report;

/// How long anything may take that should take no time.
const LIMIT: Duration = Duration::from_secs(10);

/// Options of `demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Seconds of traffic in all, half of them each way
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Print the figures as one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the demo. The process must still have one thread: namespaces are entered by it alone.
pub fn run(args: &DemoArgs) -> Result<()> {
    namespace::enter()?;
    host::loopback_up()?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder: set TMPDIR")?;
    let daemon = Daemon::start(folder.path())?;
    let host = Host::set_up(daemon::TAP)?;
    let (guest, mut pair) = connect(&daemon)?;
    let each = Duration::from_millis(args.seconds * 500);
    let progress = Progress::new(args.json);

    progress.say("guest to host");
    let tx = tx::run(&mut pair.tx, &host, &daemon, each, &progress)?;
    progress.say("host to guest");
    let rx = rx::run(&mut pair.rx, &host, &daemon, each, &progress)?;
    progress.done();

    drop(guest);
    daemon.stop()?;
    let report = Report::new(tx, rx);
    if args.json {
        println!("{}", report.json()?);
    } else {
        println!("{report}");
    }
    ensure!(
        report.is_clean(),
        "frames were lost or damaged between guest and tap: see above"
    );
    Ok(())
}

fn connect(daemon: &Daemon) -> Result<(Guest, Pair)> {
    let config = GuestConfig {
        connect_limit: LIMIT,
        ..GuestConfig::new(daemon.socket())
    };
    let mut guest = Guest::connect(&config)?;
    let pair = guest
        .take_pairs()
        .pop()
        .context("the guest has no queue pair")?;
    Ok((guest, pair))
}

/// One line that moves while the demo runs; nothing where nobody sees it.
struct Progress(ProgressBar);

impl Progress {
    fn new(hidden: bool) -> Self {
        if hidden || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self(bar)
    }

    fn say(&self, phase: &'static str) {
        self.0.set_prefix(phase);
    }

    fn frames(&self, frames: u64, elapsed: Duration) {
        if !self.0.is_hidden() {
            let rate = report::per_second(frames, elapsed);
            let seconds = elapsed.as_secs_f64();
            self.0
                .set_message(format!("{seconds:.1} s, {rate:.0} datagrams/s"));
            self.0.tick();
        }
    }

    fn done(&self) {
        self.0.finish_and_clear();
    }
}
