//! What a policy decides about one virtqueue.

use std::time::Instant;

use vm_memory::GuestMemoryMmap;

use super::Virtqueue;
use crate::kick::{AtDoor, Requeue, State};
use crate::policy::{BusyPollInterrupt, KickRearm, Policy};
use crate::ring::Ring;
use crate::watch::Watched;
use crate::weakened::Weakness;

impl Virtqueue {
    /// Puts a policy in force. A batch in flight stays so; its ring is looked at when it is back.
    pub(crate) fn set_policy(&mut self, policy: Policy, memory: Option<&GuestMemoryMmap>) {
        self.policy = policy;
        self.clock.restart();
        if !self.state.running() {
            return;
        }
        let Some(ring) = memory.and_then(|memory| self.open(memory)) else {
            return;
        };
        if self.weak.lacks(Weakness::PolicyReadAfresh) && self.state.in_flight() {
            return;
        }
        self.quiet(&ring);
        self.enter(match self.state {
            state if state.in_flight() => State::InFlight,
            _ => State::Requeued(Requeue::NewPolicy),
        });
    }

    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The old way of rule 1. Where the ring is watched when it runs dry, arming comes after that
    /// in any case.
    pub(crate) fn arms_before_submit(&self) -> bool {
        self.policy.kick_rearm == KickRearm::BeforeSubmit
            && self.clock.time(self.policy.busy_poll).is_none()
    }

    /// The old way of an interrupted poll.
    pub(crate) fn rearms_when_interrupted(&self) -> bool {
        self.policy.busy_poll_interrupt == BusyPollInterrupt::Rearm
    }

    /// Neither of the old ways, which left kicks on while the worker was awake.
    pub(crate) fn is_quiet_while_awake(&self) -> bool {
        self.policy.kick_rearm == KickRearm::AfterCompletion && !self.rearms_when_interrupted()
    }

    /// Until when the ring is to be watched before it is armed, if it has nothing to do.
    pub(crate) fn poll_deadline(&mut self, now: Instant) -> Option<Instant> {
        if self.weak.lacks(Weakness::PollStartsAnew) && self.state == State::BusyPoll {
            self.clock.restart();
        }
        match self.state {
            State::Draining | State::BusyPoll | State::Waiting => {
                self.clock.deadline(self.policy.busy_poll, now)
            }
            _ => None,
        }
    }

    /// The ring moved a chain or a frame: it is not dry.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.clock.moved(self.policy.busy_poll, self.woke);
    }

    /// What a busy poll looks at, if the ring has nothing else that brings it back.
    pub(crate) fn watched<'m>(
        &self,
        memory: &'m GuestMemoryMmap,
        wanted: u16,
    ) -> Option<Watched<'m>> {
        let setup = self.setup.filter(|_| self.state.at_door() == AtDoor::Arm)?;
        Some(Watched {
            ring: Ring::resolve(memory, setup.size, &setup.addresses)?,
            next_avail: self.next_avail,
            wanted,
        })
    }
}

#[cfg(feature = "weakened")]
impl Virtqueue {
    /// What decides what the ring does next; statistics do not.
    pub(crate) fn fingerprint(&self, now: Instant) -> impl std::hash::Hash + use<> {
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let place = (self.next_avail, self.next_used, self.published);
        let asked = (self.kicks_on, self.event_at, self.kicked, self.signalled);
        let state = (self.setup.is_some(), self.enabled, self.state);
        let poll = (
            since(self.clock.dry_at),
            self.clock.expected,
            since(self.woke),
        );
        // How many dry spells there have been is left out: it says when `auto` tries a poll, and polls
        // have cases of their own.
        let rest = (self.most_posted, self.policy, self.weak.expects_late_kick);
        (place, asked, state, poll, rest)
    }
}
