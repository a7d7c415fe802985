//! How long a ring that ran dry is looked at before the driver is asked for kicks.
//!
//! # Theory of operation
//!
//! A poll costs CPU time, a kick costs the guest an exit and the worker a sleep. Each ring has a
//! clock of its own: it starts at the first door behind which the ring moved nothing, stands for
//! as long as the ring stays dry, and starts again when the ring has moved something. So a poll has
//! a deadline that is fixed when it begins, whatever interrupts it.
//!
//! ```text
//!   moves   dry                     moves
//!  ───────┐  ├──── watched ────┤ asleep   ┌─────
//!         └──┴─────────────────┴──────────┘
//!          dry_at       dry_at + poll   woke
//!            ◄────────── gap ─────────────►
//! ```
//!
//! With [`BusyPoll::Auto`] the poll is as long as a kick is dear, and only happens while the next
//! chain is expected before that: whoever waits as long as the alternative costs never pays more
//! than twice what he would have paid knowing the future, and the expectation keeps a quiet guest
//! from paying even that. What is expected is a moving average of the gaps, each of them capped so
//! that one pause does not outweigh a steady stream; two pauses end the polling.
//!
//! Only gaps that were watched count: one that ended a sleep has the kick and the wake-up in it, and
//! a stream of which each chain finds the worker asleep would never be noticed. So one dry spell in
//! sixteen is watched whatever is expected.

use std::time::{Duration, Instant};

use crate::policy::BusyPoll;

/// What a kick costs, about: the guest's exit, and the worker's sleep and wake-up
/// (docs/measurements.md).
pub(crate) const KICK_COST: Duration = Duration::from_micros(10);

/// A longer gap says no more than this one: the guest pauses.
const LONGEST_GAP: Duration = Duration::from_micros(40);

/// One dry spell in so many is polled, whatever is expected.
const TRIAL: u8 = 16;

/// One ring's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PollClock {
    /// When the ring ran dry; none while it moves.
    pub(crate) dry_at: Option<Instant>,
    /// The expected gap between running dry and the next chain or frame.
    pub(crate) expected: Duration,
    /// Dry spells since one was polled with [`BusyPoll::Auto`] although the next chain was expected later.
    spells: u8,
}

impl Default for PollClock {
    fn default() -> Self {
        Self {
            dry_at: None,
            expected: KICK_COST,
            spells: 0,
        }
    }
}

impl PollClock {
    /// Until when a dry ring is to be watched, if it still is at `now`.
    pub(crate) fn deadline(&mut self, policy: BusyPoll, now: Instant) -> Option<Instant> {
        if self.dry_at.is_none() {
            self.spells = (self.spells + 1) % TRIAL;
        }
        let dry_at = *self.dry_at.get_or_insert(now);
        let deadline = dry_at + self.time(policy)?;
        (deadline > now).then_some(deadline)
    }

    /// How long the ring is watched when it runs dry.
    pub(crate) fn time(&self, policy: BusyPoll) -> Option<Duration> {
        match policy {
            BusyPoll::Off => None,
            BusyPoll::For(time) => Some(time),
            BusyPoll::Auto => (self.expected < KICK_COST || self.spells == 0).then_some(KICK_COST),
        }
    }

    /// The ring moved something; the worker last came back from a sleep or a poll at `woke`. What ended a sleep without a poll
    /// says nothing: the kick and the wake-up are in it.
    pub(crate) fn moved(&mut self, policy: BusyPoll, woke: Option<Instant>) {
        let watched = self.time(policy).is_some();
        if let (Some(dry_at), Some(woke), true) = (self.dry_at.take(), woke, watched) {
            let gap = woke.saturating_duration_since(dry_at).min(LONGEST_GAP);
            self.expected = (self.expected * 7 + gap) / 8;
        }
    }

    /// A new policy begins a new poll.
    pub(crate) const fn restart(&mut self) {
        self.dry_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// A ring that runs dry again and again, each time for `gap`.
    fn after(gaps: impl IntoIterator<Item = Duration>) -> (PollClock, Instant) {
        let mut clock = PollClock::default();
        let mut now = Instant::now();
        for gap in gaps {
            clock.deadline(BusyPoll::Auto, now);
            now += gap;
            clock.moved(BusyPoll::Auto, Some(now));
        }
        (clock, now)
    }

    #[test]
    fn the_deadline_stands_until_the_ring_moves() {
        let (mut clock, now) = after([]);
        let policy = BusyPoll::For(50 * US);
        assert_eq!(clock.deadline(policy, now), Some(now + 50 * US));
        assert_eq!(clock.deadline(policy, now + 49 * US), Some(now + 50 * US));
        assert_eq!(clock.deadline(policy, now + 50 * US), None);
        assert_eq!(clock.deadline(policy, now + 900 * US), None);
        clock.moved(policy, Some(now + 950 * US));
        let later = now + 1000 * US;
        assert_eq!(clock.deadline(policy, later), Some(later + 50 * US));
    }

    /// Time enough to notice: one dry spell in sixteen is looked at.
    const STEADY: usize = 20 * TRIAL as usize;

    #[test]
    fn off_never_polls() {
        let (mut clock, now) = after([US; STEADY]);
        assert_eq!(clock.deadline(BusyPoll::Off, now), None);
    }

    #[test]
    fn auto_polls_for_a_steady_stream_and_for_no_longer_than_a_kick_costs() {
        let (mut clock, now) = after([3 * US; STEADY]);
        assert_eq!(clock.deadline(BusyPoll::Auto, now), Some(now + KICK_COST));
    }

    /// A gap that ends a sleep has the kick and the wake-up in it, and would hide a stream from whoever slept when it began.
    #[test]
    fn auto_finds_out_about_a_stream_of_which_each_chain_wakes_it() {
        let mut clock = PollClock::default();
        let mut now = Instant::now();
        for _ in 0..STEADY {
            let polls = clock.deadline(BusyPoll::Auto, now).is_some();
            now += if polls { 3 * US } else { 60 * US };
            clock.moved(BusyPoll::Auto, Some(now));
        }
        assert!(clock.deadline(BusyPoll::Auto, now).is_some());
    }

    #[test]
    fn auto_leaves_a_quiet_guest_alone() {
        let (mut fresh, now) = after([]);
        assert_eq!(fresh.deadline(BusyPoll::Auto, now), None);
        let (mut slow, now) = after([Duration::from_secs(1); 3]);
        assert_eq!(slow.deadline(BusyPoll::Auto, now), None);
    }

    #[test]
    fn auto_gives_up_after_few_polls_in_vain() {
        let steady = std::iter::repeat_n(3 * US, STEADY);
        let (mut clock, now) = after(steady.chain([Duration::from_secs(1); 8]));
        assert_eq!(clock.deadline(BusyPoll::Auto, now), None);
    }

    #[test]
    fn one_pause_does_not_end_a_steady_stream() {
        let steady = std::iter::repeat_n(3 * US, STEADY);
        let (mut clock, now) = after(steady.chain([Duration::from_secs(1)]));
        assert!(clock.deadline(BusyPoll::Auto, now).is_some());
    }
}
