//! The document for people.

use std::fmt;

use super::figures::{Figures, Ratio, to_f64};
use super::host::PAYLOAD_BYTES;
use super::report::{Machine, REAL, Report, SIMULATED};
use super::sections::{BusyPollSection, Comparison, DeferredRearm, RxWakeSection};
use super::series::{self, Series};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        let sections = &self.sections;
        if let Some(sweep) = &self.sweep {
            writeln!(f, "\n{sweep}")?;
        }
        self.directions(f)?;
        if let Some(section) = &sections.deferred_rearm {
            write!(f, "{section}")?;
        }
        if let Some(section) = &sections.busy_poll {
            write!(f, "{section}")?;
        }
        if let Some(section) = &sections.rx_wake {
            write!(f, "{section}")?;
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
        writeln!(f, "{}", settings.placement)?;
        writeln!(
            f,
            "Medians of {} rounds, {:.2} s a run. A kick costs the guest {} µs more than its system call.",
            settings.rounds, settings.run_seconds, settings.exit_cost_us
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
        writeln!(f, "\nAs fast as it goes, policies as by default")?;
        table(f, &columns, &ROWS)
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
            "Kicks in all: {} sent by the guest, {} taken by the daemon.",
            self.kicks.guest, self.kicks.daemon
        )?;
        writeln!(f, "Simulated: {}.", SIMULATED.join(";\n  "))?;
        write!(f, "Real: {}.", REAL.join(";\n  "))
    }
}

impl fmt::Display for DeferredRearm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("Deferred rearm, {PAYLOAD_BYTES} bytes");
        comparison(f, &title, &self.full, Some(&series::DEFERRED_REARM))?;
        comparison(f, "Deferred rearm, 1 byte", &self.one_byte, None)
    }
}

impl fmt::Display for BusyPollSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("Busy poll, {PAYLOAD_BYTES} bytes, answers");
        comparison(f, &title, &self.comparison, Some(&series::BUSY_POLL))
    }
}

impl fmt::Display for RxWakeSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nRX wake, {PAYLOAD_BYTES} bytes: a flood to a slower guest"
        )?;
        writeln!(f, "{}", series::RX_WAKE)?;
        let columns = [
            ("first-free", &self.first_free),
            ("half", &self.half),
            ("empty", &self.empty),
        ];
        table(f, &columns, &ROWS)?;
        let best = self
            .first_free
            .frames_per_second
            .max(self.empty.frames_per_second);
        writeln!(
            f,
            "half delivers {:.2} of the better of the others, with {} kicks against {} of first-free",
            self.half.frames_per_second / best.max(1.0),
            self.half.kicks,
            self.first_free.kicks
        )
    }
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
    let Comparison {
        policies,
        old,
        new,
        ratio,
        ..
    } = comparison;
    writeln!(f, "\n{title}: {} against {}", policies.old, policies.new)?;
    if let Some(series) = series {
        writeln!(f, "kernel series: {}", series.name)?;
    }
    writeln!(
        f,
        "{:28}{:^28}{:^30}",
        "",
        if series.is_some() {
            "kernel series"
        } else {
            ""
        },
        "here"
    )?;
    writeln!(
        f,
        "{:28}{:>9}{:>9}{:>10}{:>10}{:>10}{:>10}",
        "", "before", "after", "", "before", "after", ""
    )?;
    for (name, decimals, figure) in &ROWS {
        let theirs = series
            .and_then(|series| series.row(name))
            .unwrap_or_default();
        let (old, new) = (figure(old), figure(new));
        let change = change(name, ratio);
        writeln!(
            f,
            "{name:28}{theirs:28}{old:>10.decimals$}{new:>10.decimals$}{change:>10}"
        )?;
    }
    Ok(())
}

/// The median ratio, of the figures that have one.
fn change(name: &str, ratio: &Ratio) -> String {
    match name {
        KICKS_A_SECOND => format!("{:.1} x", ratio.kicks_per_second),
        KICKS_A_MILLION => format!("{:.1} x", ratio.kicks_per_million_frames),
        DATAGRAMS_A_SECOND | GBIT_A_SECOND => format!("{:.2} x", ratio.frames_per_second),
        WORKER_CPU => format!("{:.2} x", ratio.worker_cpu_ns_per_frame),
        _ => String::new(),
    }
}

type Row = (&'static str, usize, fn(&Figures) -> f64);

pub(super) const DATAGRAMS_A_SECOND: &str = "datagrams/s";
pub(super) const GBIT_A_SECOND: &str = "Gbit/s of payload";
pub(super) const KICKS_A_SECOND: &str = "kicks/s";
const KICKS_A_MILLION: &str = "kicks per million frames";
const WORKER_CPU: &str = "worker CPU per frame, ns";

const ROWS: [Row; 14] = [
    (DATAGRAMS_A_SECOND, 0, |figures| figures.frames_per_second),
    (GBIT_A_SECOND, 2, |figures| figures.gbit_per_second),
    (KICKS_A_SECOND, 1, |figures| figures.kicks_per_second),
    (KICKS_A_MILLION, 1, |figures| {
        figures.kicks_per_million_frames
    }),
    ("kicks", 0, |figures| to_f64(figures.kicks)),
    ("calls/s", 0, |figures| figures.calls_per_second),
    ("mean batch, frames", 1, |figures| figures.mean_batch),
    (WORKER_CPU, 0, |figures| figures.worker_cpu_ns_per_frame),
    ("daemon CPU per frame, ns", 0, |figures| {
        figures.cpu_ns_per_frame
    }),
    ("guest CPU per frame, ns", 0, |figures| {
        figures.guest_cpu_ns_per_frame
    }),
    ("datagrams verified", 0, |figures| {
        to_f64(figures.frames_verified)
    }),
    ("datagrams damaged", 0, |figures| {
        to_f64(figures.frames_damaged)
    }),
    ("lost, guest to tap and back", 0, |figures| {
        to_f64(figures.frames_lost)
    }),
    ("dropped behind the tap", 0, |figures| {
        to_f64(figures.receiver_dropped)
    }),
];
