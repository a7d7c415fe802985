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
//! kernel in a virtual machine, so a kick costs an eventfd write here and not a VM exit, and a
//! busy wait stands for the difference.
//!
//! First each direction as fast as it goes, then the policies of the kernel series against the
//! behaviour they replaced (`sections`), or both over what a kick and a datagram cost (`sweep`).

mod bench;
mod daemon;
mod duplex;
mod figures;
mod host;
mod measure;
mod namespace;
mod options;
mod placement;
mod report;
mod rx;
mod sections;
mod series;
mod sweep;
mod table;
mod tx;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tapring_queue::Policy;

use bench::Bench;
use options::Section;
use placement::Placement;
use report::Report;
use sections::{BusyPollSection, DeferredRearm, Rounds, RxWakeSection};
use sweep::Sweep;
use tx::TxLoad;

pub use options::DemoArgs;

/// How long anything may take that should take no time.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs the demo. The process must still have one thread: namespaces are entered by it alone.
pub fn run(args: &DemoArgs) -> Result<()> {
    let placement = Placement::find(args.cpus.map(|three| three.0))?;
    namespace::enter()?;
    host::loopback_up()?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder: set TMPDIR")?;
    let mut bench = Bench::start(folder.path(), placement, args)?;
    let mut report = Report::new(args, placement);
    let progress = Progress::new(args.json);
    run_all(&mut bench, args, &progress, &mut report)?;
    progress.done();
    report.kicks = bench.kicks()?;
    bench.stop()?;
    if args.json {
        println!("{}", report.json()?);
    } else {
        println!("{report}");
    }
    ensure!(
        report.is_clean(),
        "frames were lost or damaged between guest and tap: see above"
    );
    ensure!(
        report.kicks.agrees(),
        "guest and daemon disagree about how many kicks there were: see above"
    );
    Ok(())
}

fn run_all(
    bench: &mut Bench,
    args: &DemoArgs,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let rounds = Rounds {
        count: args.rounds(),
        time: args.run_time(),
        progress,
    };
    if args.sweep {
        report.sweep = Some(Sweep::run(bench, &rounds)?);
        return Ok(());
    }
    if args.has(Section::Tx) {
        let [runs] =
            rounds.alternate(bench, "guest to host", &[Policy::DEFAULT], |bench, time| {
                tx::run(bench, &TxLoad::SATURATING, time)
            })?;
        report.tx = Some(report.direction(&runs));
    }
    if args.has(Section::Rx) {
        let placement = bench.rig.placement;
        bench.place(report.settings.flood_placement)?;
        let [runs] =
            rounds.alternate(bench, "host to guest", &[Policy::DEFAULT], |bench, time| {
                rx::run(bench, Duration::ZERO, time)
            })?;
        bench.place(placement)?;
        report.rx = Some(report.direction(&runs));
    }
    let guest_cost = args.guest_cost(&bench.rig.placement);
    let sections = &mut report.sections;
    if args.has(Section::DeferredRearm) {
        sections.deferred_rearm = Some(DeferredRearm::run(bench, &rounds, guest_cost)?);
    }
    if args.has(Section::BusyPoll) {
        sections.busy_poll = Some(BusyPollSection::run(bench, &rounds)?);
    }
    if args.has(Section::RxWake) {
        sections.rx_wake = Some(RxWakeSection::run(bench, &rounds, args.rx_guest_cost())?);
    }
    Ok(())
}

/// One line that moves while the demo runs; nothing where nobody sees it.
#[derive(Debug)]
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

    fn say(&self, phase: &'static str, round: usize, rounds: usize) {
        if !self.0.is_hidden() {
            self.0.set_prefix(phase);
            self.0
                .set_message(format!("round {} of {rounds}", round + 1));
            self.0.tick();
        }
    }

    fn done(&self) {
        self.0.finish_and_clear();
    }
}
