//! A histogram that never grows.
//!
//! The exporter's own histograms keep every sample until somebody scrapes, and want a task that wakes
//! up to tidy them. This one is an array of atomics, one per bucket, made once: recording is two additions.
//!
//! The count is the sum of the buckets and not a number of its own, so `_count` and the `+Inf` bucket agree even when a
//! scrape meets a recording halfway. `_sum` may then be one batch ahead or behind, which no query can notice.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::table::Buckets;

/// Counts of values by fixed buckets, and their sum.
#[derive(Debug)]
pub struct Histogram {
    buckets: &'static Buckets,
    /// One per bound, then one for what lies above the last.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(buckets: &'static Buckets) -> Self {
        let counts = (0..=buckets.bounds.len())
            .map(|_| AtomicU64::new(0))
            .collect();
        Self {
            buckets,
            counts,
            sum: AtomicU64::new(0),
        }
    }

    /// Records one value, in the unit of the buckets' bounds.
    pub fn observe(&self, value: u64) {
        self.observe_n(value, 1);
    }

    /// Records the same value `n` times.
    pub fn observe_n(&self, value: u64, n: u64) {
        let bucket = self.buckets.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(n, Ordering::Relaxed);
        self.sum.fetch_add(value.wrapping_mul(n), Ordering::Relaxed);
    }

    /// Appends the series of this histogram: `name_bucket`, `name_sum` and `name_count`.
    pub(crate) fn render(&self, name: &str, labels: &str, out: &mut String) {
        let mut cumulative = 0;
        for (position, count) in self.counts.iter().enumerate() {
            cumulative += count.load(Ordering::Relaxed);
            let le = self.bound(position);
            line(
                out,
                format_args!("{name}_bucket{{{labels},le=\"{le}\"}} {cumulative}"),
            );
        }
        let sum = self.shown(self.sum.load(Ordering::Relaxed));
        line(out, format_args!("{name}_sum{{{labels}}} {sum}"));
        line(out, format_args!("{name}_count{{{labels}}} {cumulative}"));
    }

    fn bound(&self, position: usize) -> String {
        let bound = self.buckets.bounds.get(position);
        bound.map_or_else(|| "+Inf".to_owned(), |bound| self.shown(*bound).to_string())
    }

    /// A recorded value in the unit that is shown. `f64` is what Prometheus computes with.
    fn shown(&self, value: u64) -> f64 {
        value as f64 / self.buckets.per_unit as f64
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes all text");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{BATCH_BUCKETS, COMPLETION_BUCKETS};

    fn rendered(histogram: &Histogram) -> String {
        let mut out = String::new();
        histogram.render("h", "device=\"t0\"", &mut out);
        out
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let histogram = Histogram::new(&BATCH_BUCKETS);
        for value in [0, 1, 2, 3, 64, 65, 128, 129, u64::MAX - 391] {
            histogram.observe(value);
        }
        assert_eq!(
            rendered(&histogram),
            "h_bucket{device=\"t0\",le=\"1\"} 2\n\
             h_bucket{device=\"t0\",le=\"2\"} 3\n\
             h_bucket{device=\"t0\",le=\"4\"} 4\n\
             h_bucket{device=\"t0\",le=\"8\"} 4\n\
             h_bucket{device=\"t0\",le=\"16\"} 4\n\
             h_bucket{device=\"t0\",le=\"32\"} 4\n\
             h_bucket{device=\"t0\",le=\"64\"} 5\n\
             h_bucket{device=\"t0\",le=\"128\"} 7\n\
             h_bucket{device=\"t0\",le=\"+Inf\"} 9\n\
             h_sum{device=\"t0\"} 0\n\
             h_count{device=\"t0\"} 9\n",
            "the sum wraps instead of panicking"
        );
    }

    #[test]
    fn n_equal_values_count_n_times() {
        let histogram = Histogram::new(&BATCH_BUCKETS);
        histogram.observe_n(16, 1000);
        histogram.observe_n(16, 0);
        let text = rendered(&histogram);
        assert!(text.contains("le=\"8\"} 0\n"));
        assert!(text.contains("le=\"16\"} 1000\n"));
        assert!(text.contains("h_sum{device=\"t0\"} 16000\nh_count{device=\"t0\"} 1000\n"));
    }

    #[test]
    fn nanoseconds_are_shown_as_seconds() {
        let histogram = Histogram::new(&COMPLETION_BUCKETS);
        histogram.observe(1_000);
        histogram.observe(1_500_000_000);
        let text = rendered(&histogram);
        assert!(text.contains("le=\"0.000001\"} 1\n"), "{text}");
        assert!(text.contains("le=\"0.00005\"} 1\n"), "{text}");
        assert!(text.contains("le=\"1\"} 1\n"), "{text}");
        assert!(text.contains("le=\"+Inf\"} 2\n"), "{text}");
        assert!(text.contains("h_sum{device=\"t0\"} 1.500001\n"), "{text}");
    }

    #[test]
    fn two_threads_lose_nothing() {
        let histogram = Histogram::new(&BATCH_BUCKETS);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| histogram.observe(2)));
            }
        });
        assert!(
            rendered(&histogram)
                .ends_with("h_sum{device=\"t0\"} 40000\nh_count{device=\"t0\"} 20000\n")
        );
    }
}
