//! A counter of time.
//!
//! The exporter's counters are whole numbers, and a whole second is too long a step for what a worker spends in a turn. This
//! one counts nanoseconds and is shown in seconds, the base unit of Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

const NANOSECONDS: f64 = 1e9;

/// Time spent, ever.
#[derive(Debug, Default)]
pub struct Seconds(AtomicU64);

impl Seconds {
    /// Adds nanoseconds.
    pub fn add_nanoseconds(&self, nanoseconds: u64) {
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Appends the one series of this counter.
    pub(crate) fn render(&self, name: &str, labels: &str, out: &mut String) {
        let seconds = self.0.load(Ordering::Relaxed) as f64 / NANOSECONDS;
        out.push_str(&format!("{name}{{{labels}}} {seconds}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_second_are_kept() {
        let seconds = Seconds::default();
        let shown = || {
            let mut out = String::new();
            seconds.render("s_total", "device=\"t0\"", &mut out);
            out
        };
        assert_eq!(shown(), "s_total{device=\"t0\"} 0\n");
        seconds.add_nanoseconds(1);
        seconds.add_nanoseconds(2_500_000_000);
        assert_eq!(shown(), "s_total{device=\"t0\"} 2.500000001\n");
    }
}
