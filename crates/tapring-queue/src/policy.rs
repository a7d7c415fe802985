//! When to ask the driver for kicks, how long to look for work before sleeping, and when a starved
//! receiveq resumes.
//!
//! Each policy has the behaviour of a piece of vhost-net or tun work as its default and, beside it,
//! the behaviour that work replaced, so that anyone can measure the difference. `kick.rs` has the
//! rules they steer; none of them can lose a wake-up, in any combination, changed at any moment.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::in_flight::BATCH;

/// How one queue pair treats its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// When kicks are asked for again.
    pub kick_rearm: KickRearm,
    /// How long to look on after the rings ran dry.
    pub busy_poll: BusyPoll,
    /// What becomes of a busy poll that other work ends.
    pub busy_poll_interrupt: BusyPollInterrupt,
    /// When the tap is polled for room.
    pub tx_poll: TxPoll,
    /// At how many chains a starved receiveq resumes.
    pub rx_wake: RxWake,
    /// Frames the transmitq may take before the receiveq has its turn.
    pub tx_budget: Budget,
    /// Frames the receiveq may take before the transmitq has its turn.
    pub rx_budget: Budget,
}

impl Policy {
    /// All defaults.
    pub const DEFAULT: Self = Self {
        kick_rearm: KickRearm::AfterCompletion,
        busy_poll: BusyPoll::Auto,
        busy_poll_interrupt: BusyPollInterrupt::Requeue,
        tx_poll: TxPoll::OnEagain,
        rx_wake: RxWake::Half,
        tx_budget: Budget::BATCH,
        rx_budget: Budget::BATCH,
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// When kicks are asked for again (vhost/net, 2025: defer TX re-enable until after sendmsg).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KickRearm {
    /// When completions have returned and another look found nothing.
    #[default]
    AfterCompletion,
    /// The old way: as soon as the ring looks empty, with the batch still to be sent.
    BeforeSubmit,
}

/// How long to look on, with kicks off, after the rings ran dry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BusyPoll {
    /// Not at all: sleep at once.
    Off,
    /// At most this long.
    For(Duration),
    /// While the next chain is expected sooner than a kick costs.
    #[default]
    Auto,
}

impl BusyPoll {
    /// A longer poll is a mistake in the unit.
    pub const LONGEST: Duration = Duration::from_millis(10);
}

/// What becomes of a busy poll that other work ends (vhost_net, 2018: avoid vq kicks during
/// busyloop).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BusyPollInterrupt {
    /// The ring is looked at again behind that work, and kicks stay off.
    #[default]
    Requeue,
    /// The old way: kicks are asked for, although the worker is awake.
    Rearm,
}

/// When the tap is polled for room (vhost_net, 2017: conditionally enable tx polling).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TxPoll {
    /// Once, after it took no more.
    #[default]
    OnEagain,
    /// The old way: all the time.
    Always,
}

/// At how many chains a receiveq whose guest had too few resumes (tun/tap & vhost-net, 2026: qdisc
/// backpressure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RxWake {
    /// Half the ring, or half of what the driver has ever posted.
    #[default]
    Half,
    /// The first chain: flaps.
    FirstFree,
    /// All the driver has ever posted: none of them is left in use. Starves the guest.
    Empty,
    /// This many, or what the driver has ever posted.
    Chains(u16),
}

/// Frames one direction may take before the other has its turn: 1 to [`BATCH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget(u16);

impl Budget {
    /// A whole batch.
    pub const BATCH: Self = Self(64);

    /// `None` unless 1 to [`BATCH`].
    pub const fn new(frames: u16) -> Option<Self> {
        if frames >= 1 && frames as usize <= BATCH {
            Some(Self(frames))
        } else {
            None
        }
    }

    /// The number of frames.
    pub const fn frames(self) -> u16 {
        self.0
    }
}

const _: () = assert!(Budget::BATCH.0 as usize == BATCH);

/// A word that names no policy; it says which would.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("give {0}")]
pub struct UnknownPolicy(&'static str);

/// A policy with a word for each of its values.
macro_rules! words {
    ($policy:ident, $allowed:literal, $($word:literal => $value:ident),+) => {
        impl $policy {
            /// The words for its values, for a help text.
            pub const ALLOWED: &'static str = $allowed;
        }

        impl FromStr for $policy {
            type Err = UnknownPolicy;

            fn from_str(word: &str) -> Result<Self, UnknownPolicy> {
                match word {
                    $($word => Ok(Self::$value),)+
                    _ => Err(UnknownPolicy(Self::ALLOWED)),
                }
            }
        }

        impl fmt::Display for $policy {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$value => $word),+ })
            }
        }
    };
}

words!(KickRearm, "after-completion or before-submit",
    "after-completion" => AfterCompletion, "before-submit" => BeforeSubmit);
words!(BusyPollInterrupt, "requeue or rearm", "requeue" => Requeue, "rearm" => Rearm);
words!(TxPoll, "on-eagain or always", "on-eagain" => OnEagain, "always" => Always);

impl BusyPoll {
    /// The words for its values, for a help text.
    pub const ALLOWED: &'static str = "auto, or 0 to 10000 µs (0: off)";
}

impl FromStr for BusyPoll {
    type Err = UnknownPolicy;

    fn from_str(word: &str) -> Result<Self, UnknownPolicy> {
        if word == "auto" {
            return Ok(Self::Auto);
        }
        match word.parse().map(Duration::from_micros) {
            Ok(Duration::ZERO) => Ok(Self::Off),
            Ok(time) if time <= Self::LONGEST => Ok(Self::For(time)),
            _ => Err(UnknownPolicy(Self::ALLOWED)),
        }
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("0"),
            Self::For(time) => write!(f, "{}", time.as_micros()),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl RxWake {
    /// The words for its values, for a help text.
    pub const ALLOWED: &'static str =
        "half, first-free, empty, or a number of buffers from 1 to the queue size";

    /// Whether a ring of `size` can have that many chains.
    pub const fn fits(self, size: u16) -> bool {
        !matches!(self, Self::Chains(chains) if chains > size)
    }
}

impl FromStr for RxWake {
    type Err = UnknownPolicy;

    fn from_str(word: &str) -> Result<Self, UnknownPolicy> {
        match (word, word.parse()) {
            ("half", _) => Ok(Self::Half),
            ("first-free", _) => Ok(Self::FirstFree),
            ("empty", _) => Ok(Self::Empty),
            (_, Ok(chains)) if chains >= 1 => Ok(Self::Chains(chains)),
            _ => Err(UnknownPolicy(Self::ALLOWED)),
        }
    }
}

impl fmt::Display for RxWake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Half => f.write_str("half"),
            Self::FirstFree => f.write_str("first-free"),
            Self::Empty => f.write_str("empty"),
            Self::Chains(chains) => write!(f, "{chains}"),
        }
    }
}

impl Budget {
    /// Its values, for a help text.
    pub const ALLOWED: &'static str = "1 to 64 frames";
}

impl FromStr for Budget {
    type Err = UnknownPolicy;

    fn from_str(word: &str) -> Result<Self, UnknownPolicy> {
        let frames = word.parse().ok().and_then(Self::new);
        frames.ok_or(UnknownPolicy(Self::ALLOWED))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<P: FromStr<Err = UnknownPolicy> + fmt::Display>(good: &[&str], bad: &[&str]) {
        for word in good {
            let policy = P::from_str(word).unwrap_or_else(|error| panic!("{word}: {error}"));
            assert_eq!(policy.to_string(), *word);
        }
        for word in bad {
            let error = P::from_str(word).err();
            assert!(error.is_some_and(|error| error.to_string().starts_with("give ")));
        }
    }

    #[test]
    fn words_and_policies_are_the_same() {
        round_trip::<KickRearm>(&["after-completion", "before-submit"], &["", "always"]);
        round_trip::<BusyPoll>(&["0", "50", "10000", "auto"], &["10001", "-1", "1s", "on"]);
        round_trip::<BusyPollInterrupt>(&["requeue", "rearm"], &["Requeue"]);
        round_trip::<TxPoll>(&["on-eagain", "always"], &["never"]);
        round_trip::<RxWake>(
            &["half", "first-free", "empty", "1", "256"],
            &["0", "-3", "65536", "full"],
        );
        round_trip::<Budget>(&["1", "64"], &["0", "65"]);
    }

    #[test]
    fn a_threshold_must_fit_the_ring() {
        assert!(RxWake::Chains(256).fits(256) && RxWake::Empty.fits(2));
        assert!(!RxWake::Chains(257).fits(256));
    }
}
