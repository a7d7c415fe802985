//! The comparisons: the same load under an older and the newer policy, in turn, on a live device.
//!
//! A round runs every policy once, each for the same time. Rounds begin with another policy in turn, so that what drifts
//! (heat, a neighbour on the machine, the order itself) does not always meet the same one. Ratios are taken within a round and
//! their median over the rounds is shown. Load, CPUs and costs are those of the whole section; nothing but the policy changes.

mod busy_poll;
mod deferred_rearm;
mod rx_wake;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapring_queue::{BusyPoll, Policy};

pub(super) use busy_poll::BusyPollSection;
pub(super) use deferred_rearm::{BEFORE_SUBMIT, DeferredRearm};
pub(super) use rx_wake::RxWakeSection;

use super::Progress;
use super::bench::Bench;
use super::figures::{Counts, Figures, Ratio};
use super::measure::Measured;

/// What all comparisons share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds<'a> {
    pub(super) count: usize,
    /// Of one run.
    pub(super) time: Duration,
    pub(super) progress: &'a Progress,
}

/// An older policy and the newer one.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) policies: Policies,
    pub(super) old: Figures,
    pub(super) new: Figures,
    pub(super) ratio: Ratio,
    rounds: Vec<Round>,
    #[serde(skip)]
    clean: bool,
}

/// What differs, as settings.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Policies {
    pub(super) old: &'static str,
    pub(super) new: &'static str,
}

/// The raw counts of a round.
#[derive(Debug, Serialize)]
struct Round {
    old: Counts,
    new: Counts,
}

impl Comparison {
    fn of(policies: Policies, [old, new]: &[Vec<Measured>; 2]) -> Self {
        let rounds = old.iter().zip(new).map(|(old, new)| Round {
            old: old.into(),
            new: new.into(),
        });
        Self {
            policies,
            old: Figures::of(old),
            new: Figures::of(new),
            ratio: Ratio::between(old, new),
            rounds: rounds.collect(),
            clean: old.iter().chain(new).all(Measured::is_clean),
        }
    }

    pub(super) const fn is_clean(&self) -> bool {
        self.clean
    }
}

/// The newer policies, without a busy poll: it would hide what the others do.
pub(super) const NEWER: Policy = Policy {
    busy_poll: BusyPoll::Off,
    ..Policy::DEFAULT
};

impl Rounds<'_> {
    /// Runs the load under each policy, in turn.
    pub(super) fn alternate<const N: usize>(
        &self,
        bench: &mut Bench,
        section: &'static str,
        policies: &[Policy; N],
        mut load: impl FnMut(&mut Bench, Duration) -> Result<Measured>,
    ) -> Result<[Vec<Measured>; N]> {
        let mut runs = [const { Vec::new() }; N];
        for round in 0..self.count {
            self.progress.say(section, round, self.count);
            for turn in 0..N {
                let which = (round + turn) % N;
                bench.set_policy(policies[which])?;
                runs[which].push(load(bench, self.time)?);
            }
        }
        Ok(runs)
    }
}
