//! Rules of the kick state machine that can be taken out, so that the exploration in tests/ can
//! show that it would notice.
//!
//! Only with the feature `weakened`, which this crate's own tests turn on. Without it
//! [`Weakenable::lacks`] is `false` at compile time and nothing of this is left.

#[cfg(feature = "weakened")]
use crate::pair::QueuePair;

/// A shorter version of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weakness {
    /// Rule 1: asks for a kick and sleeps, without another look.
    NoLookAfterArming,
    /// Rule 4: takes the kick behind an arming that raced for the one it expected.
    SwallowedLateKick,
    /// Rule 5: a ring that starts asks for kicks instead of being looked at.
    ArmedOnStart,
    /// Rule 8: asks at the threshold without another look.
    ThresholdWithoutLook,
    /// Rule 8: waits for the threshold for ever.
    ThresholdWithoutTimer,
    /// Rule 3: a completion asks the policy, not the ring, whether kicks are on.
    PolicyReadAfresh,
    /// Rule 6: a poll that was interrupted begins anew.
    PollStartsAnew,
    /// Rule 2: a ring whose tap is full is tried again, in place of waiting for POLLOUT.
    FullTapIsTried,
}

impl Weakness {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::NoLookAfterArming,
        Self::SwallowedLateKick,
        Self::ArmedOnStart,
        Self::ThresholdWithoutLook,
        Self::ThresholdWithoutTimer,
        Self::PolicyReadAfresh,
        Self::PollStartsAnew,
        Self::FullTapIsTried,
    ];
}

/// Which rule is missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weakenable {
    #[cfg(feature = "weakened")]
    pub(crate) weakness: Option<Weakness>,
    /// An arming raced, and the kick of the chain that was found may still come.
    #[cfg(feature = "weakened")]
    pub(crate) expects_late_kick: bool,
}

#[cfg(feature = "weakened")]
impl Weakenable {
    #[inline]
    pub(crate) fn lacks(&self, weakness: Weakness) -> bool {
        self.weakness == Some(weakness)
    }

    pub(crate) const fn raced(&mut self) {
        self.expects_late_kick = true;
    }

    /// Whether a kick is swallowed.
    pub(crate) fn swallows(&mut self) -> bool {
        let expected = std::mem::replace(&mut self.expects_late_kick, false);
        expected && self.lacks(Weakness::SwallowedLateKick)
    }
}

#[cfg(not(feature = "weakened"))]
#[allow(clippy::unused_self)] // the same calls either way
impl Weakenable {
    #[inline]
    pub(crate) const fn lacks(self, _: Weakness) -> bool {
        false
    }

    #[inline]
    pub(crate) const fn raced(self) {}

    #[inline]
    pub(crate) const fn swallows(self) -> bool {
        self.lacks(Weakness::SwallowedLateKick)
    }
}

#[cfg(feature = "weakened")]
impl QueuePair {
    /// Takes a rule out of both rings.
    pub const fn weaken(&mut self, weakness: Weakness) {
        self.tx.vq.weak.weakness = Some(weakness);
        self.rx.vq.weak.weakness = Some(weakness);
    }

    /// All that decides what the pair does next, so that states can be told apart: two pairs with
    /// the same hash, the same guest memory and the same future behave the same. Times are
    /// relative to `now`.
    pub fn fingerprint(&self, now: std::time::Instant) -> impl std::hash::Hash {
        (self.tx.fingerprint(now), self.rx.fingerprint(now))
    }
}
