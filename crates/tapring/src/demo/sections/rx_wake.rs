//! `rx_wake`: at how many buffers a receiveq that ran out of them goes on.
//!
//! A flood into the tap against a guest that is slower: its buffers are full most of the time, and the question is how often the
//! worker stops and is kicked awake (first free), or how long the guest has nothing to do because the worker still waits
//! (empty). What the tap's own queue cannot hold meanwhile, the kernel drops and counts.
//!
//! A starved receiveq has a timer besides its threshold (200 µs), and so the thresholds differ only where the guest refills about as
//! fast as that: measured with 256 buffers, refilled by Linux' rule, from 2.5 to 4 µs a datagram. A faster guest is not out of
//! buffers often. To a slower one all three are the same: the timer passes before it has refilled at all, and then each asks
//! for the first buffer.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapring_queue::{Policy, RxWake};

use super::{Bench, NEWER, Rounds};
use crate::demo::figures::{Counts, Figures, Ratio};
use crate::demo::host::PAYLOAD_BYTES;
use crate::demo::measure::Measured;
use crate::demo::rx;

/// One figure a policy.
#[derive(Debug, Serialize)]
pub(in crate::demo) struct RxWakeSection {
    payload_bytes: usize,
    pub(in crate::demo) guest_cost_ns: u128,
    pub(in crate::demo) first_free: Figures,
    pub(in crate::demo) half: Figures,
    pub(in crate::demo) empty: Figures,
    /// First free against half.
    pub(in crate::demo) half_to_first_free: Ratio,
    /// Empty against half.
    pub(in crate::demo) half_to_empty: Ratio,
    rounds: Vec<Round>,
    #[serde(skip)]
    clean: bool,
}

#[derive(Debug, Serialize)]
struct Round {
    first_free: Counts,
    half: Counts,
    empty: Counts,
}

impl RxWakeSection {
    pub(in crate::demo) fn run(
        bench: &mut Bench,
        rounds: &Rounds<'_>,
        guest_cost: Duration,
    ) -> Result<Self> {
        let policies = [RxWake::FirstFree, RxWake::Half, RxWake::Empty]
            .map(|rx_wake| Policy { rx_wake, ..NEWER });
        let runs = rounds.alternate(bench, "rx wake", &policies, |bench, time| {
            rx::run(bench, guest_cost, time)
        })?;
        Ok(Self::of(guest_cost, &runs))
    }

    fn of(guest_cost: Duration, runs: &[Vec<Measured>; 3]) -> Self {
        let [first_free, half, empty] = runs;
        let rounds = first_free.iter().zip(half).zip(empty);
        let rounds = rounds.map(|((first_free, half), empty)| Round {
            first_free: first_free.into(),
            half: half.into(),
            empty: empty.into(),
        });
        Self {
            payload_bytes: PAYLOAD_BYTES,
            guest_cost_ns: guest_cost.as_nanos(),
            first_free: Figures::of(first_free),
            half: Figures::of(half),
            empty: Figures::of(empty),
            half_to_first_free: Ratio::between(first_free, half),
            half_to_empty: Ratio::between(empty, half),
            rounds: rounds.collect(),
            clean: runs.iter().flatten().all(Measured::is_clean),
        }
    }

    pub(in crate::demo) const fn is_clean(&self) -> bool {
        self.clean
    }
}
