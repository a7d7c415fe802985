//! Where each policy pays and where it does not: one sender, over what a kick and what a datagram cost the guest.
//!
//! Along the guest's cost there are three regions, and where they lie depends on the machine:
//!
//! 1. The guest is faster than the backend. The ring is never empty, nobody kicks, and no policy matters.
//! 2. The guest is slower than a full batch and faster than a batch of one. The old way kicks for each batch; the new way finds
//!    more work behind each batch and never asks.
//! 3. The guest is slower than a batch of one. The worker sleeps after each datagram, so each is kicked for; only a busy poll
//!    can do without, and `auto` polls while the next datagram is expected sooner than a kick costs.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapring_queue::{BusyPoll, Policy};

use super::bench::Bench;
use super::figures::{Figures, to_f64};
use super::host::PAYLOAD_BYTES;
use super::measure::Measured;
use super::sections::{BEFORE_SUBMIT, NEWER, Rounds};
use super::tx::{self, TxLoad};

const EXIT_COSTS_US: [u64; 4] = [0, 2, 5, 20];

const GUEST_COSTS_NS: [u64; 9] = [0, 1000, 1500, 2000, 3000, 4000, 6000, 10_000, 20_000];

const AUTO: Policy = Policy {
    busy_poll: BusyPoll::Auto,
    ..NEWER
};

/// Runs in a round.
#[allow(clippy::cast_possible_truncation)] // a hundred
pub(super) const RUNS: u32 = (EXIT_COSTS_US.len() * GUEST_COSTS_NS.len() * 3) as u32;

/// The figures at one pair of costs.
#[derive(Debug, Serialize)]
struct Point {
    exit_cost_us: u64,
    guest_cost_ns: u64,
    old: Figures,
    new: Figures,
    auto: Figures,
}

/// All points.
#[derive(Debug, Serialize)]
pub(super) struct Sweep {
    payload_bytes: usize,
    policies: [&'static str; 3],
    points: Vec<Point>,
    #[serde(skip)]
    clean: bool,
}

impl Sweep {
    pub(super) fn run(bench: &mut Bench, rounds: &Rounds<'_>) -> Result<Self> {
        let mut sweep = Self {
            payload_bytes: PAYLOAD_BYTES,
            policies: [
                "kick_rearm=before-submit",
                "kick_rearm=after-completion",
                "kick_rearm=after-completion busy_poll_us=auto",
            ],
            points: Vec::new(),
            clean: true,
        };
        for exit_cost_us in EXIT_COSTS_US {
            bench.set_exit_cost(Duration::from_micros(exit_cost_us));
            for guest_cost_ns in GUEST_COSTS_NS {
                let load = TxLoad {
                    guest_cost: Duration::from_nanos(guest_cost_ns),
                    ..TxLoad::SATURATING
                };
                let policies = [BEFORE_SUBMIT, NEWER, AUTO];
                let runs = rounds.alternate(bench, "sweep", &policies, |bench, time| {
                    tx::run(bench, &load, time)
                })?;
                sweep.add(exit_cost_us, guest_cost_ns, &runs);
            }
        }
        Ok(sweep)
    }

    fn add(&mut self, exit_cost_us: u64, guest_cost_ns: u64, runs: &[Vec<Measured>; 3]) {
        let [old, new, auto] = runs;
        self.clean &= runs.iter().flatten().all(Measured::is_clean);
        self.points.push(Point {
            exit_cost_us,
            guest_cost_ns,
            old: Figures::of(old),
            new: Figures::of(new),
            auto: Figures::of(auto),
        });
    }

    pub(super) const fn is_clean(&self) -> bool {
        self.clean
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [old, new, auto] = self.policies;
        writeln!(f, "Sweep: {} bytes, one sender", self.payload_bytes)?;
        writeln!(
            f,
            "  (o)ld:  {old}\n  (n)ew:  {new}\n  (a)uto: {auto}\n  *: several"
        )?;
        EXIT_COSTS_US
            .iter()
            .try_for_each(|exit_cost_us| self.block(*exit_cost_us, f))
    }
}

impl Sweep {
    fn block(&self, exit_cost_us: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nA kick costs the guest {exit_cost_us} µs besides its system call"
        )?;
        writeln!(
            f,
            "{:>9}{:^24}{:^21}{:^14}{:^18} kicks per million, logarithmic",
            "datagram", "kicks per million", "thousand/s", "against old", "worker, ns each"
        )?;
        writeln!(
            f,
            "{:>9}{:>8}{:>8}{:>8}{:>7}{:>7}{:>7}{:>7}{:>7}{:>6}{:>6}{:>6} {PLOT_AXIS}",
            "costs, ns",
            "old",
            "new",
            "auto",
            "old",
            "new",
            "auto",
            "new",
            "auto",
            "old",
            "new",
            "auto"
        )?;
        self.points
            .iter()
            .filter(|point| point.exit_cost_us == exit_cost_us)
            .try_for_each(|point| writeln!(f, "{point}"))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [&self.old, &self.new, &self.auto];
        let kicks = all.map(|figures| figures.kicks_per_million_frames);
        let rates = all.map(|figures| figures.frames_per_second);
        let cpu = all.map(|figures| figures.worker_cpu_ns_per_frame);
        write!(f, "{:>9}", self.guest_cost_ns)?;
        kicks
            .iter()
            .try_for_each(|kicks| write!(f, "{kicks:>8.0}"))?;
        rates
            .iter()
            .try_for_each(|rate| write!(f, "{:>7.1}", rate / 1e3))?;
        for rate in &rates[1..] {
            write!(f, "{:>6.2}x", rate / rates[0].max(1.0))?;
        }
        cpu.iter().try_for_each(|cpu| write!(f, "{cpu:>6.0}"))?;
        write!(f, " {}", plot(kicks))
    }
}

/// Six decades, logarithmic.
const PLOT_AXIS: &str = "1---10--100-1k--10k-100k1M";

/// Columns a decade.
const DECADE: usize = 4;

/// A line with a letter for each policy.
fn plot(kicks_per_million: [f64; 3]) -> String {
    let mut line = [' '; 6 * DECADE + 1];
    for (kicks, letter) in kicks_per_million.iter().zip(['o', 'n', 'a']) {
        let column = (1..line.len())
            .take_while(|column| *kicks >= begin(*column))
            .count();
        line[column] = if line[column] == ' ' { letter } else { '*' };
    }
    line.iter().collect::<String>().trim_end().to_owned()
}

/// Where a column of the plot begins.
fn begin(column: usize) -> f64 {
    10f64.powf(to_f64(column as u64) / to_f64(DECADE as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_logarithmic() {
        assert_eq!(plot([1_000_000.0, 0.0, 10.0]), "n   a                   o");
        assert_eq!(plot([100.0, 90.0, 100.0]), "       n*");
    }
}
