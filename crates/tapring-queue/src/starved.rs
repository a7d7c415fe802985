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
//! T = max(chains the first held frame needs, min(half the ring, half the most ever posted))
//! ```
//!
//! The second half matters: iPXE posts 8 chains of 256 and would never reach half the ring.
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

use crate::kick::{DrainEnd, Requeue, State};
use crate::ring::Ring;
use crate::rx::{RxQueue, RxSource};

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
    /// first the tap may have. Asks for a kick at the threshold; `Starved`, unless the last look
    /// found enough.
    pub fn starve(&mut self, memory: &GuestMemoryMmap, need: u16, held: bool, now: Instant) {
        if !self.vq.state().runnable() {
            return;
        }
        let Some(ring) = self.vq.open(memory) else {
            return;
        };
        self.vq.stats.rx_stops += 1;
        self.vq.enter(DrainEnd::NoGuestBuffers.state());
        let first_ask = held.then(|| *self.first_ask.get_or_insert(now));
        self.starving = Some(Starving {
            need,
            target: self.threshold(need),
            timer: Some(now + THRESHOLD_TIMER),
            drop_at: first_ask.map(|ask| ask + DROP_AFTER),
        });
        self.ask(&ring);
    }

    fn threshold(&self, need: u16) -> u16 {
        let half = self.vq.size().min(self.vq.most_posted()) / 2;
        need.max(half).max(1)
    }

    /// Asks for a kick at the target and looks; enough ends the starving, else this is how many
    /// chains there are.
    fn ask(&mut self, ring: &Ring<'_>) -> Option<u16> {
        let target = self.starving?.target;
        let Some(posted) = self.vq.ask(ring, target) else {
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
        self.vq.quiet(ring);
        self.vq.enter(State::Requeued(Requeue::Found));
    }

    /// When [`Self::on_timer`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let starving = self
            .starving
            .filter(|_| self.vq.state() == State::Starved)?;
        match (starving.timer, starving.drop_at) {
            (Some(timer), Some(drop_at)) => Some(timer.min(drop_at)),
            (timer, drop_at) => timer.or(drop_at),
        }
    }

    /// The kick that was asked for came, or a late one: looks, and below the target asks again.
    pub fn on_starved_kick(&mut self, memory: &GuestMemoryMmap) {
        if self.vq.state() != State::Starved {
            return;
        }
        if let Some(ring) = self.vq.open(memory) {
            self.ask(&ring);
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
        let posted = self.ask(&ring);
        if posted.is_some_and(|posted| posted > self.tried) {
            self.wake(&ring);
        }
        let waited = starving.drop_at.is_some_and(|at| now >= at);
        if waited && self.vq.state() == State::Starved {
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
            self.ask(ring);
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
