//! From the counts of several runs to figures: rates are medians over the runs, counts are sums.

use std::time::Duration;

use serde::Serialize;

use super::measure::Measured;

/// The figures of all runs of one kind.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) frames: u64,
    pub(super) seconds: f64,
    pub(super) frames_per_second: f64,
    pub(super) gbit_per_second: f64,
    pub(super) kicks: u64,
    /// As the daemon counts them: several that come before it looks are one to it.
    pub(super) daemon_kicks: u64,
    pub(super) kicks_per_second: f64,
    pub(super) kicks_per_million_frames: f64,
    pub(super) calls_per_second: f64,
    pub(super) mean_batch: f64,
    /// Of all the daemon's threads.
    pub(super) cpu_ns_per_frame: f64,
    pub(super) worker_cpu_ns_per_frame: f64,
    /// With what `--guest-cost-ns` and `--exit-cost-us` add.
    pub(super) guest_cpu_ns_per_frame: f64,
    pub(super) frames_delivered: u64,
    pub(super) frames_verified: u64,
    pub(super) frames_damaged: u64,
    pub(super) frames_lost: u64,
    pub(super) receiver_dropped: u64,
    pub(super) answers: u64,
}

/// How two policies compare, each figure the median over the rounds of the ratio within a round.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Ratio {
    /// How many times fewer: old / new, with at least one kick a round below.
    pub(super) kicks_per_second: f64,
    /// The same a frame.
    pub(super) kicks_per_million_frames: f64,
    /// How many times more: new / old.
    pub(super) frames_per_second: f64,
    /// How many times less: old / new.
    pub(super) worker_cpu_ns_per_frame: f64,
}

/// The counts that a ratio was made of.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Counts {
    frames: u64,
    kicks: u64,
    seconds: f64,
}

impl Measured {
    pub(super) fn frames_per_second(&self) -> f64 {
        per_second(self.frames, self.elapsed)
    }

    fn kicks_per_second(&self) -> f64 {
        per_second(self.kicks, self.elapsed)
    }

    fn kicks_per_million_frames(&self) -> f64 {
        ratio(self.kicks, self.frames) * 1e6
    }

    fn worker_cpu_ns_per_frame(&self) -> f64 {
        self.ns_per_frame(self.worker_cpu)
    }

    fn ns_per_frame(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / to_f64(self.frames).max(1.0)
    }

    fn gbit_per_second(&self) -> f64 {
        self.frames_per_second() * self.payload_bytes as f64 * 8.0 / 1e9
    }

    /// What stands below a fraction of kicks.
    fn with_a_kick(&self) -> Self {
        Self {
            kicks: self.kicks.max(1),
            ..*self
        }
    }

    /// Nothing was lost or damaged between guest and tap, and something arrived.
    pub(super) const fn is_clean(&self) -> bool {
        self.lost == 0 && self.damaged == 0 && self.verified > 0
    }
}

impl Figures {
    pub(super) fn of(runs: &[Measured]) -> Self {
        let rate = |of: fn(&Measured) -> f64| median(runs.iter().map(of));
        let sum = |of: fn(&Measured) -> u64| runs.iter().map(of).sum::<u64>();
        let elapsed: Duration = runs.iter().map(|run| run.elapsed).sum();
        Self {
            frames: sum(|run| run.frames),
            seconds: elapsed.as_secs_f64(),
            frames_per_second: rate(Measured::frames_per_second),
            gbit_per_second: rate(Measured::gbit_per_second),
            kicks: sum(|run| run.kicks),
            daemon_kicks: sum(|run| run.daemon_kicks),
            kicks_per_second: rate(Measured::kicks_per_second),
            kicks_per_million_frames: rate(Measured::kicks_per_million_frames),
            calls_per_second: rate(|run| per_second(run.calls, run.elapsed)),
            mean_batch: rate(|run| ratio(run.packets, run.batches)),
            cpu_ns_per_frame: rate(|run| run.ns_per_frame(run.cpu)),
            worker_cpu_ns_per_frame: rate(Measured::worker_cpu_ns_per_frame),
            guest_cpu_ns_per_frame: rate(|run| run.ns_per_frame(run.guest_cpu)),
            frames_delivered: sum(|run| run.verified),
            frames_verified: sum(|run| run.verified),
            frames_damaged: sum(|run| run.damaged),
            frames_lost: sum(|run| run.lost),
            receiver_dropped: sum(|run| run.receiver_dropped),
            answers: sum(|run| run.answers),
        }
    }
}

impl Ratio {
    pub(super) fn between(old: &[Measured], new: &[Measured]) -> Self {
        let fewer = |of: fn(&Measured) -> f64| {
            let pairs = old.iter().zip(new);
            median(pairs.map(|(old, new)| over(of(old), of(&new.with_a_kick()))))
        };
        let more = old.iter().zip(new);
        Self {
            kicks_per_second: fewer(Measured::kicks_per_second),
            kicks_per_million_frames: fewer(Measured::kicks_per_million_frames),
            frames_per_second: median(
                more.map(|(old, new)| over(new.frames_per_second(), old.frames_per_second())),
            ),
            worker_cpu_ns_per_frame: fewer(Measured::worker_cpu_ns_per_frame),
        }
    }
}

impl From<&Measured> for Counts {
    fn from(run: &Measured) -> Self {
        Self {
            frames: run.frames,
            kicks: run.kicks,
            seconds: run.elapsed.as_secs_f64(),
        }
    }
}

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = values.len().saturating_sub(1) / 2;
    match (values.get(lower), values.get(upper)) {
        (Some(lower), Some(upper)) => f64::midpoint(*lower, *upper),
        _ => 0.0,
    }
}

fn over(above: f64, below: f64) -> f64 {
    if below > 0.0 { above / below } else { 0.0 }
}

/// A rate; 0 where no time passed.
fn per_second(count: u64, elapsed: Duration) -> f64 {
    to_f64(count) / elapsed.as_secs_f64().max(1e-9)
}

fn ratio(part: u64, whole: u64) -> f64 {
    to_f64(part) / to_f64(whole).max(1.0)
}

/// Counts stay far below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(super) const fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(frames: u64, kicks: u64) -> Measured {
        Measured {
            frames,
            kicks,
            elapsed: Duration::from_secs(1),
            ..Measured::default()
        }
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([].into_iter()), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let old = [run(100, 50), run(10, 1000), run(100, 70)];
        let new = [run(200, 0), run(20, 1000), run(200, 7)];
        let ratio = Ratio::between(&old, &new);
        assert_eq!(ratio.kicks_per_second, 10.0);
        assert_eq!(ratio.frames_per_second, 2.0);
        assert_eq!(ratio.kicks_per_million_frames, 20.0);
    }
}
