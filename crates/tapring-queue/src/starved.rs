//! Stop and wake of the receiveq with hysteresis (rules 8 and 9).
//!
//! # Theory of operation
//!
//! When the guest has too few chains for the next frame, reading from the tap stops and the guest
//! is asked for **one** kick. Asking for it at the first free chain makes the two flap: a kick a
//! frame. Asking for it when the whole ring is free starves the guest. So the kick is asked for
//! at a threshold between the two:
//!
//! ```text
//! T = max(chains the first held frame needs, min(the policy's threshold, most ever posted))
//! ```
//!
//! where the policy's threshold ([`RxWake`]) is half the ring, or half the most ever posted, by
//! default. The most ever posted matters: iPXE posts 8 chains of 256 and would never reach half the
//! ring.
//!
//! While the worker is awake it looks at the ring once a turn and asks for no kick; like any other,
//! this kick is asked for at the door to sleep.
//!
//! A driver need not refill up to T at all, so T is backed by **one** timer. When it fires and the
//! first frame fits, delivery goes on; if not, the kick is asked for at what that frame needs, and
//! no further timer is started: that kick delivers it. Each time a kick is asked for, a full fence
//! and another look follow, for chains made available before the request was seen come without a
//! kick.
//!
//! A held frame that still does not fit [`DROP_AFTER`] after the first ask is dropped, so that it
//! cannot block the queue for ever; but not while the guest has no chain at all, for then nothing
//! waits behind it that would fit.

use std::time::{Duration, Instant};

use vm_memory::GuestMemoryMmap;

use crate::kick::{AtDoor, DrainEnd, Requeue, State};
use crate::policy::RxWake;
use crate::ring::Ring;
use crate::rx::{RxQueue, RxSource};
use crate::weakened::Weakness;

/// How long a guest may take to refill up to the threshold before the first frame's own need is
/// enough.
pub const THRESHOLD_TIMER: Duration = Duration::from_micros(200);

/// How long a held frame may wait for chains.
pub const DROP_AFTER: Duration = Duration::from_millis(100);

/// What a starved queue waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starving {
    /// Chains the first frame needs.
    need: u16,
    /// Chains the kick was asked for at.
    target: u16,
    /// When `need` becomes the target.
    timer: Option<Instant>,
    /// When the held frame is dropped.
    drop_at: Option<Instant>,
}

impl RxQueue {
    /// The guest has too few chains: `need` are needed, for a frame that is `held` or for the
    /// first the tap may have. Reading stops until there are as many as the threshold says.
    pub fn starve(&mut self, need: u16, held: bool, now: Instant) {
        if !self.vq.state().runnable() || self.starving.is_some() {
            return;
        }
        self.vq.stats.rx_stops += 1;
        let first_ask = held.then(|| *self.first_ask.get_or_insert(now));
        let timer = !self.vq.weak.lacks(Weakness::ThresholdWithoutTimer);
        self.starving = Some(Starving {
            need,
            target: self.threshold(need),
            timer: timer.then_some(now + THRESHOLD_TIMER),
            drop_at: first_ask.map(|ask| ask + DROP_AFTER),
        });
    }

    fn threshold(&self, need: u16) -> u16 {
        let most = self.vq.size().min(self.vq.most_posted());
        let wake = match self.vq.policy().rx_wake {
            RxWake::Half => most / 2,
            RxWake::FirstFree => 1,
            RxWake::Empty => most,
            RxWake::Chains(chains) => chains.min(most),
        };
        need.max(wake).max(1)
    }

    /// The chains it waits for, while it is starved.
    pub(crate) fn wanted(&self) -> Option<u16> {
        self.starving.map(|starving| starving.target)
    }

    /// Once a turn, awake: whether there are enough chains to go on.
    pub(crate) fn may_resume(&mut self, ring: &Ring<'_>) -> bool {
        self.starving.is_none() || self.check(ring).is_none()
    }

    /// Looks, and where the worker sleeps asks for a kick before it does. Enough chains end the
    /// starving, and so does a broken ring; else this is how many there are.
    fn check(&mut self, ring: &Ring<'_>) -> Option<u16> {
        let target = self.starving?.target;
        let posted = match self.vq.state() {
            State::Starved => self.vq.ask(ring, target),
            _ => self.vq.posted(ring),
        };
        let Some(posted) = posted else {
            self.starving = None;
            return None;
        };
        if posted >= target {
            self.wake(ring);
            return None;
        }
        Some(posted)
    }

    fn wake(&mut self, ring: &Ring<'_>) {
        self.starving = None;
        self.vq.stats.rx_wakes += 1;
        if self.vq.state() == State::Starved {
            self.vq.quiet(ring);
        }
        self.vq.enter(State::Requeued(Requeue::Found));
    }

    /// When [`Self::on_timer`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let starving = self.starving.filter(|_| self.vq.state().running())?;
        match (starving.timer, starving.drop_at) {
            (Some(timer), Some(drop_at)) => Some(timer.min(drop_at)),
            (timer, drop_at) => timer.or(drop_at),
        }
    }

    /// The kick that was asked for came, or a late one: looks, and below the target asks again.
    pub(crate) fn on_starved_kick(&mut self, memory: &GuestMemoryMmap) {
        if self.vq.state() != State::Starved {
            return;
        }
        if let Some(ring) = self.vq.open(memory) {
            self.check(&ring);
        }
    }

    /// The door, where nothing is left but to sleep: asks for the kick.
    pub(crate) fn rest(&mut self, memory: &GuestMemoryMmap) {
        if self.starving.is_some() && self.vq.state().at_door() == AtDoor::Arm {
            self.starve_asleep(memory);
        }
    }

    fn starve_asleep(&mut self, memory: &GuestMemoryMmap) {
        if let Some(ring) = self.vq.open(memory) {
            self.vq.enter(State::Starved);
            self.check(&ring);
        }
    }

    /// Its poll goes on, if it is not over.
    pub(crate) fn watch_on(&mut self, now: Instant) {
        if self.starving.is_some() && self.vq.poll_deadline(now).is_some() {
            self.vq.enter(State::BusyPoll);
        }
    }

    /// The poll is over: chains, its end, or something else to do.
    pub(crate) fn end_poll(&mut self, memory: &GuestMemoryMmap, now: Instant) {
        if self.vq.state() != State::BusyPoll {
            return;
        }
        if self.vq.poll_deadline(now).is_none() {
            self.vq.enter(DrainEnd::NoGuestBuffers.state());
        } else if self.vq.rearms_when_interrupted() {
            self.starve_asleep(memory);
        } else {
            self.vq.enter(DrainEnd::Interrupted.state());
        }
    }

    /// Time passed: lowers the target once, and drops a held frame that waited too long. What a
    /// frame needs is an estimate, so any chain it was not tried with gets it another try first.
    pub fn on_timer(&mut self, memory: &GuestMemoryMmap, source: &mut impl RxSource, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let (Some(ring), Some(mut starving)) = (self.vq.open(memory), self.starving) else {
            return;
        };
        starving.timer = None;
        starving.target = starving.need;
        self.starving = Some(starving);
        let posted = self.check(&ring);
        if posted.is_some_and(|posted| posted > self.tried) {
            self.wake(&ring);
        }
        let waited = starving.drop_at.is_some_and(|at| now >= at);
        if waited && self.starving.is_some() {
            self.give_up(&ring, source, posted);
        }
    }

    /// A held frame waited its time. It is dropped if a smaller one might fit in its place. Where
    /// the guest has nothing posted at all, none would: then the frame stays, without a timer, and
    /// the first chain decides.
    fn give_up(&mut self, ring: &Ring<'_>, source: &mut impl RxSource, posted: Option<u16>) {
        if let (Some(0), Some(starving)) = (posted, &mut self.starving) {
            starving.target = 1;
            starving.drop_at = None;
            self.check(ring);
            return;
        }
        source.pop();
        self.vq.stats.too_large += 1;
        self.frame_left();
        self.wake(ring);
    }

    /// The first held frame is a new one: its time starts with the next ask.
    pub(crate) const fn frame_left(&mut self) {
        self.first_ask = None;
    }

    /// The ring is another or begins anew: a held frame's time starts with the next ask.
    pub(crate) const fn stop_starving(&mut self) {
        self.starving = None;
        self.first_ask = None;
    }
}

#[cfg(feature = "weakened")]
impl Starving {
    pub(crate) fn fingerprint(self, now: Instant) -> impl std::hash::Hash + use<> {
        let left = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
        (self.need, self.target, left(self.timer), left(self.drop_at))
    }
}
