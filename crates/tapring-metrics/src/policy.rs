//! The policy in force, as labels of a series that is always 1.
//!
//! The exporter never forgets a series, and one for each policy that ever was would be a lie. So this one is written by us,
//! and has the labels of the present.

use std::sync::{Mutex, PoisonError};

use metrics::Counter;

use crate::series::{self, Labels};
use crate::table::POLICY_LABELS;

/// A policy, in the words of its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyWords {
    /// When kicks are asked for again.
    pub kick_rearm: String,
    /// How long to look on, in microseconds, or `auto`.
    pub busy_poll_us: String,
    /// What becomes of a busy poll that other work ends.
    pub busy_poll_interrupt: String,
    /// When the tap is polled for room.
    pub tx_poll: String,
    /// At how many chains a starved receiveq resumes.
    pub rx_wake: String,
    /// Frames the transmitq may take in a row.
    pub tx_budget: String,
    /// Frames the receiveq may take in a row.
    pub rx_budget: String,
}

impl PolicyWords {
    /// By the labels, in their order.
    fn labels(&self) -> Labels {
        let words = [
            &self.kick_rearm,
            &self.busy_poll_us,
            &self.busy_poll_interrupt,
            &self.tx_poll,
            &self.rx_wake,
            &self.tx_budget,
            &self.rx_budget,
        ];
        POLICY_LABELS
            .into_iter()
            .zip(words.map(String::clone))
            .collect()
    }
}

/// The `policy_info` series of a device: none until the first policy is known, then exactly one.
#[derive(Debug)]
pub struct PolicyInfo {
    /// The labels as text.
    shown: Mutex<Option<String>>,
    changes: Counter,
}

impl PolicyInfo {
    /// Changes are counted in `changes`.
    pub(crate) fn new(changes: Counter) -> Self {
        let shown = Mutex::default();
        Self { shown, changes }
    }

    /// Shows this policy in place of the last, and counts the change if it is one.
    pub fn set(&self, words: &PolicyWords) {
        let text = series::text(&words.labels());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.as_ref().is_some_and(|before| *before != text) {
            self.changes.increment(1);
        }
        *shown = Some(text);
    }

    /// Appends the series, behind the labels of its device.
    pub(crate) fn render(&self, name: &str, labels: &str, out: &mut String) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = &*shown {
            out.extend([name, "{", labels, ",", policy, "} 1\n"]);
        }
    }
}
