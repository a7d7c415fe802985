//! `kick_rearm`: kicks asked for again before the batch is sent, or after it has completed and another look found nothing.
//!
//! The old way costs a kick a batch whenever the guest adds a datagram while a batch is on its way. That needs a guest about as
//! fast as the backend: a faster one keeps the ring full, a much slower one finds the worker asleep each time, and then both
//! ways are the same. The sweep shows all of that.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tapring_queue::{KickRearm, Policy};

use super::{Bench, Comparison, NEWER, Policies, Rounds};
use crate::demo::host::PAYLOAD_BYTES;
use crate::demo::tx::{self, TxLoad};

/// The older policy.
pub(in crate::demo) const BEFORE_SUBMIT: Policy = Policy {
    kick_rearm: KickRearm::BeforeSubmit,
    ..NEWER
};

const POLICIES: Policies = Policies {
    old: "kick_rearm=before-submit",
    new: "kick_rearm=after-completion",
};

/// One sender, datagrams that fill an MTU; and beside it the shortest.
#[derive(Debug, Serialize)]
pub(in crate::demo) struct DeferredRearm {
    payload_bytes: usize,
    #[serde(flatten)]
    pub(in crate::demo) full: Comparison,
    pub(in crate::demo) one_byte: Comparison,
}

impl DeferredRearm {
    pub(in crate::demo) fn run(
        bench: &mut Bench,
        rounds: &Rounds<'_>,
        guest_cost: Duration,
    ) -> Result<Self> {
        let mut compare = |payload_bytes| -> Result<Comparison> {
            let load = TxLoad {
                payload_bytes,
                guest_cost,
            };
            let runs = rounds.alternate(
                bench,
                "deferred rearm",
                &[BEFORE_SUBMIT, NEWER],
                |bench, time| tx::run(bench, &load, time),
            )?;
            Ok(Comparison::of(POLICIES, &runs))
        };
        Ok(Self {
            payload_bytes: PAYLOAD_BYTES,
            full: compare(PAYLOAD_BYTES)?,
            one_byte: compare(1)?,
        })
    }

    pub(in crate::demo) const fn is_clean(&self) -> bool {
        self.full.is_clean() && self.one_byte.is_clean()
    }
}
