//! `busy_poll_interrupt`: what becomes of a busy poll that other work ends.
//!
//! The guest sends, and the receiver answers every other datagram, as TCP acknowledges every other segment. Each answer is
//! work of the receiveq's that ends the poll of the transmitq's. The old way then asked for kicks, although the worker is awake.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapring_queue::{BusyPoll, BusyPollInterrupt, Policy};

use super::{Bench, Comparison, NEWER, Policies, Rounds};
use crate::demo::host::PAYLOAD_BYTES;
use crate::demo::tx::{self, TxLoad};

const POLL: Duration = Duration::from_micros(10);

const REQUEUE: Policy = Policy {
    busy_poll: BusyPoll::For(POLL),
    ..NEWER
};

const REARM: Policy = Policy {
    busy_poll_interrupt: BusyPollInterrupt::Rearm,
    ..REQUEUE
};

const POLICIES: Policies = Policies {
    old: "busy_poll_us=10 busy_poll_interrupt=rearm",
    new: "busy_poll_us=10 busy_poll_interrupt=requeue",
};

/// TCP acknowledges every other segment.
const ANSWER_EVERY: u64 = 2;

/// One sender, with answers.
#[derive(Debug, Serialize)]
pub(in crate::demo) struct BusyPollSection {
    payload_bytes: usize,
    answer_every: u64,
    #[serde(flatten)]
    pub(in crate::demo) comparison: Comparison,
}

impl BusyPollSection {
    pub(in crate::demo) fn run(
        bench: &mut Bench,
        rounds: &Rounds<'_>,
        guest_cost: Duration,
    ) -> Result<Self> {
        let load = TxLoad {
            payload_bytes: PAYLOAD_BYTES,
            guest_cost,
            answer_every: Some(ANSWER_EVERY),
        };
        let runs = rounds.alternate(bench, "busy poll", &[REARM, REQUEUE], |bench, time| {
            tx::run(bench, &load, time)
        })?;
        Ok(Self {
            payload_bytes: PAYLOAD_BYTES,
            answer_every: ANSWER_EVERY,
            comparison: Comparison::of(POLICIES, &runs),
        })
    }

    pub(in crate::demo) const fn is_clean(&self) -> bool {
        self.comparison.is_clean()
    }
}
