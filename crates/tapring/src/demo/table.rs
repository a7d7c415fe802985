//! The document for people.

use std::fmt;

use super::figures::{Figures, Ratio, to_f64};
use super::host::PAYLOAD_BYTES;
use super::placement::Placement;
use super::report::{Machine, REAL, Report, SIMULATED};
use super::sections::{BusyPollSection, Comparison, DeferredRearm, RxWakeSection};
use super::series::{self, Series};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        if let Some(sweep) = &self.sweep {
            write!(f, "\n{sweep}")?;
        }
        self.directions(f)?;
        let sections = &self.sections;
        if let Some(section) = &sections.deferred_rearm {
            self.deferred_rearm(section, f)?;
        }
        if let Some(section) = &sections.busy_poll {
            busy_poll(section, f)?;
        }
        if let Some(section) = &sections.rx_wake {
            rx_wake(section, f)?;
        }
        self.foot(f)
    }
}

impl Report {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cpus, kernel } = &self.machine;
        let settings = &self.settings;
        writeln!(
            f,
            "tapring demo: UDP, {PAYLOAD_BYTES} bytes a datagram, one sender, over a tap"
        )?;
        writeln!(f, "{cpu}, {cpus} CPUs, Linux {kernel}")?;
        self.placement(f)?;
        writeln!(
            f,
            "Medians of {} rounds, {:.2} s a run; rings of {} (--queue-size).{}",
            settings.rounds,
            settings.run_seconds,
            settings.queue_size,
            match self.sweep {
                Some(_) => String::new(),
                None => format!(
                    "\nA kick costs the guest {} µs besides its system call (--exit-cost-us).",
                    settings.exit_cost_us
                ),
            }
        )
    }

    fn directions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [("guest to host", &self.tx), ("host to guest", &self.rx)];
        let columns = columns
            .iter()
            .filter_map(|(name, figures)| Some((*name, figures.as_ref()?)));
        let columns: Vec<_> = columns.collect();
        if columns.is_empty() {
            return Ok(());
        }
        let Placement {
            guest_cpu,
            worker_cpu,
            receiver_cpu,
            ..
        } = self.settings.flood_placement;
        writeln!(
            f,
            "\nAs fast as it goes, under the default policy\n  \
             (host to guest: guest on CPU {guest_cpu}, worker on {worker_cpu}, sender on {receiver_cpu})"
        )?;
        table(f, &columns, &ROWS)
    }

    fn placement(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placement {
            guest_cpu,
            worker_cpu,
            receiver_cpu,
            three_cpus,
        } = self.settings.placement;
        writeln!(
            f,
            "Guest on CPU {guest_cpu}, worker on {worker_cpu}, sleeping receiver on {receiver_cpu}"
        )?;
        if three_cpus {
            return Ok(());
        }
        writeln!(
            f,
            "*** FEWER THAN THREE CPUS: threads that share one wait for each other ***"
        )
    }

    fn deferred_rearm(&self, section: &DeferredRearm, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = self.settings.guest_cost_ns;
        let title = |bytes| {
            format!(
                "Deferred rearm: {bytes}, one sender, {cost} ns a datagram before it is handed over"
            )
        };
        let full = title(format!("{PAYLOAD_BYTES} bytes"));
        comparison(f, &full, &section.full, Some(&series::DEFERRED_REARM))?;
        comparison(f, &title("1 byte".to_owned()), &section.one_byte, None)
    }

    fn foot(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_clean() {
            "Every datagram that arrived was verified byte by byte; none was lost between guest and tap."
        } else {
            "FAILED: frames were lost or damaged between guest and tap."
        };
        writeln!(f, "\n{verdict}")?;
        writeln!(
            f,
            "Dropped behind the tap: by the receiver's socket, or by the tap's full queue."
        )?;
        writeln!(
            f,
            "Kicks in all: {} sent by the guest, {} taken by the daemon (several before it looks are one to it).",
            self.kicks.guest, self.kicks.daemon
        )?;
        writeln!(f, "Simulated: {}.", SIMULATED.join(";\n  "))?;
        write!(f, "Real: {}.", REAL.join(";\n  "))
    }
}

fn busy_poll(section: &BusyPollSection, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let title = format!(
        "Busy poll: {PAYLOAD_BYTES} bytes, one sender, {} ns a datagram, and one back for every other one.\n  \
         No sleeping receiver here: the guest's thread is also its peer on the host",
        section.guest_cost_ns
    );
    comparison(f, &title, &section.comparison, Some(&series::BUSY_POLL))
}

fn rx_wake(section: &RxWakeSection, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "\nRX wake: a flood of {PAYLOAD_BYTES} bytes a datagram to a guest that needs {} ns for each",
        section.guest_cost_ns
    )?;
    writeln!(f, "  kernel series: {}", series::RX_WAKE)?;
    let columns = [
        ("first-free", &section.first_free),
        ("half", &section.half),
        ("empty", &section.empty),
    ];
    table(f, &columns, &COMPARED)?;
    let (to_first_free, to_empty) = (&section.half_to_first_free, &section.half_to_empty);
    writeln!(
        f,
        "half against first-free: {:.2}x the datagrams/s, {:.1}x fewer kicks/s; against empty: {:.2}x the datagrams/s",
        to_first_free.frames_per_second, to_first_free.kicks_per_second, to_empty.frames_per_second
    )
}

/// A figure a row, a kind of run a column.
fn table(f: &mut fmt::Formatter<'_>, columns: &[(&str, &Figures)], rows: &[Row]) -> fmt::Result {
    write!(f, "{:28}", "")?;
    columns
        .iter()
        .try_for_each(|(name, _)| write!(f, "{name:>16}"))?;
    writeln!(f)?;
    for (name, decimals, figure) in rows {
        write!(f, "{name:28}")?;
        for (_, figures) in columns {
            write!(f, "{:>16.decimals$}", figure(figures))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// The kernel series' figures on the left, ours on the right.
fn comparison(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    comparison: &Comparison,
    series: Option<&Series>,
) -> fmt::Result {
    let policies = &comparison.policies;
    writeln!(f, "\n{title}")?;
    writeln!(f, "  before: {}; after: {}", policies.old, policies.new)?;
    if let Some(series) = series {
        writeln!(f, "  kernel series: {}", series.name)?;
        writeln!(f, "{:28}{:^36}  {:^36}", "", "kernel series", "here")?;
    }
    write!(f, "{:28}", "")?;
    if series.is_some() {
        write!(f, "{:>11}{:>11}{:>14}  ", "before", "after", "change")?;
    }
    writeln!(f, "{:>11}{:>11}{:>14}", "before", "after", "change")?;
    for (name, decimals, figure) in &COMPARED {
        write!(f, "{name:28}")?;
        if let Some(series) = series {
            let [before, after, change] = series.row(name);
            write!(f, "{before:>11}{after:>11}{change:>14}  ")?;
        }
        let (old, new) = (figure(&comparison.old), figure(&comparison.new));
        let change = change(name, &comparison.ratio);
        writeln!(f, "{old:>11.decimals$}{new:>11.decimals$}{change:>14}")?;
    }
    Ok(())
}

/// The median ratio, of the figures that have one.
fn change(name: &str, ratio: &Ratio) -> String {
    match name {
        KICKS_A_SECOND => format!("{:.1}x fewer", ratio.kicks_per_second),
        KICKS_A_MILLION => format!("{:.1}x fewer", ratio.kicks_per_million_frames),
        DATAGRAMS_A_SECOND | GBIT_A_SECOND => format!("{:.2}x", ratio.frames_per_second),
        WORKER_CPU => format!("{:.2}x less", ratio.worker_cpu_ns_per_frame),
        _ => String::new(),
    }
}

/// Name, decimals, and where it is.
type Row = (&'static str, usize, fn(&Figures) -> f64);

pub(super) const DATAGRAMS_A_SECOND: &str = "datagrams/s";
pub(super) const GBIT_A_SECOND: &str = "Gbit/s of payload";
pub(super) const KICKS_A_SECOND: &str = "kicks/s";
const KICKS_A_MILLION: &str = "kicks per million frames";
const WORKER_CPU: &str = "worker CPU per frame, ns";

const FRAMES_A_SECOND: Row = (DATAGRAMS_A_SECOND, 0, |figures| figures.frames_per_second);
const GBIT: Row = (GBIT_A_SECOND, 2, |figures| figures.gbit_per_second);
const KICK_RATE: Row = (KICKS_A_SECOND, 1, |figures| figures.kicks_per_second);
const KICK_SHARE: Row = (KICKS_A_MILLION, 1, |figures| {
    figures.kicks_per_million_frames
});
const KICKS: Row = ("kicks", 0, |figures| to_f64(figures.kicks));
const CALL_RATE: Row = ("calls/s", 0, |figures| figures.calls_per_second);
const BATCH: Row = ("mean batch, frames", 1, |figures| figures.mean_batch);
const WORKER: Row = (WORKER_CPU, 0, |figures| figures.worker_cpu_ns_per_frame);
const DAEMON: Row = ("daemon CPU per frame, ns", 0, |figures| {
    figures.cpu_ns_per_frame
});
const GUEST: Row = ("guest CPU per frame, ns", 0, |figures| {
    figures.guest_cpu_ns_per_frame
});
const VERIFIED: Row = ("datagrams verified", 0, |figures| {
    to_f64(figures.frames_verified)
});
const DAMAGED: Row = ("datagrams damaged", 0, |figures| {
    to_f64(figures.frames_damaged)
});
const LOST: Row = ("lost, guest to tap and back", 0, |figures| {
    to_f64(figures.frames_lost)
});
const BEHIND: Row = ("dropped behind the tap", 0, |figures| {
    to_f64(figures.receiver_dropped)
});

const COMPARED: [Row; 11] = [
    KICK_RATE,
    KICK_SHARE,
    KICKS,
    FRAMES_A_SECOND,
    GBIT,
    BATCH,
    WORKER,
    GUEST,
    VERIFIED,
    LOST,
    BEHIND,
];

const ROWS: [Row; 13] = [
    FRAMES_A_SECOND,
    GBIT,
    KICK_RATE,
    KICK_SHARE,
    CALL_RATE,
    BATCH,
    WORKER,
    DAEMON,
    GUEST,
    VERIFIED,
    DAMAGED,
    LOST,
    BEHIND,
];
