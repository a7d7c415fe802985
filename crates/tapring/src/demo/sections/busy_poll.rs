//! `busy_poll_interrupt`: what becomes of a busy poll that other work ends.
//!
//! The guest sends a datagram every few microseconds, well within the poll, so that the worker needs no kick for it. For every
//! other one its peer sends one back, as TCP acknowledges every other segment. That is work of the receiveq's, and it ends the
//! poll of the transmitq's: the old way then asked for kicks, although the worker is awake, and the guest's next datagram kicked.
//!
//! With a guest so fast that the ring never runs dry there is no poll to interrupt, and with one slower than the poll each
//! datagram kicks in either case.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapring_queue::{BusyPoll, BusyPollInterrupt, Policy};

use super::{Bench, Comparison, NEWER, Policies, Rounds};
use crate::demo::duplex;
use crate::demo::host::PAYLOAD_BYTES;

const POLL: Duration = Duration::from_micros(10);

/// What a datagram costs the guest here: well below the poll, and enough for the worker to be done with the last one when half of
/// it has passed and the peer sends, and for what the peer does then.
const GUEST_COST: Duration = Duration::from_micros(6);

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

/// One sender, with answers.
#[derive(Debug, Serialize)]
pub(in crate::demo) struct BusyPollSection {
    payload_bytes: usize,
    pub(in crate::demo) guest_cost_ns: u128,
    #[serde(flatten)]
    pub(in crate::demo) comparison: Comparison,
}

impl BusyPollSection {
    pub(in crate::demo) fn run(bench: &mut Bench, rounds: &Rounds<'_>) -> Result<Self> {
        let runs = rounds.alternate(bench, "busy poll", &[REARM, REQUEUE], |bench, time| {
            duplex::run(bench, GUEST_COST, time)
        })?;
        Ok(Self {
            payload_bytes: PAYLOAD_BYTES,
            guest_cost_ns: GUEST_COST.as_nanos(),
            comparison: Comparison::of(POLICIES, &runs),
        })
    }

    pub(in crate::demo) const fn is_clean(&self) -> bool {
        self.comparison.is_clean()
    }
}
