//! Policies as they are asked for and shown: one name for each setting, on the command line with dashes.

use std::fmt;

use clap::Args;
use serde::{Deserialize, Serialize, Serializer};
use tapring_metrics::PolicyWords;
use tapring_queue::{Budget, BusyPoll, BusyPollInterrupt, KickRearm, Policy, RxWake, TxPoll};

use crate::value::{Value, show, word};

/// Some settings of a policy, to be put in force together; the others stay as they are.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyChange {
    /// When kicks are asked for again: after-completion (the default), or before-submit (the older way)
    #[arg(long, value_name = "WHEN", value_parser = KickRearm::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub kick_rearm: Option<KickRearm>,

    /// Microseconds to look on after the rings ran dry: auto (the default), or 0 (off) to 10000
    #[arg(long, value_name = "N|auto", value_parser = BusyPoll::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub busy_poll_us: Option<BusyPoll>,

    /// What becomes of a busy poll that other work ends: requeue (the default), or rearm (the older way)
    #[arg(long, value_name = "WHAT", value_parser = BusyPollInterrupt::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub busy_poll_interrupt: Option<BusyPollInterrupt>,

    /// When the tap is polled for room: on-eagain (the default), or always (the older way)
    #[arg(long, value_name = "WHEN", value_parser = TxPoll::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub tx_poll: Option<TxPoll>,

    /// At how many free buffers a guest that ran out of them is served again: half (the default), first-free, empty, or a
    /// number
    #[arg(long, value_name = "WHEN|N", value_parser = RxWake::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub rx_wake: Option<RxWake>,

    /// Frames that may go from the guest before those to it have their turn, 1 to 64 (the default)
    #[arg(long, value_name = "N", value_parser = Budget::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub tx_budget: Option<Budget>,

    /// Frames that may go to the guest before those from it have their turn, 1 to 64 (the default)
    #[arg(long, value_name = "N", value_parser = Budget::read)]
    #[serde(
        deserialize_with = "word",
        serialize_with = "setting",
        skip_serializing_if = "Option::is_none"
    )]
    pub rx_budget: Option<Budget>,
}

impl PolicyChange {
    /// The policy that this makes of another.
    #[must_use]
    pub fn applied_to(&self, policy: Policy) -> Policy {
        Policy {
            kick_rearm: self.kick_rearm.unwrap_or(policy.kick_rearm),
            busy_poll: self.busy_poll_us.unwrap_or(policy.busy_poll),
            busy_poll_interrupt: self
                .busy_poll_interrupt
                .unwrap_or(policy.busy_poll_interrupt),
            tx_poll: self.tx_poll.unwrap_or(policy.tx_poll),
            rx_wake: self.rx_wake.unwrap_or(policy.rx_wake),
            tx_budget: self.tx_budget.unwrap_or(policy.tx_budget),
            rx_budget: self.rx_budget.unwrap_or(policy.rx_budget),
        }
    }

    /// These settings, and those of `base` where this has none.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        Self {
            kick_rearm: self.kick_rearm.or(base.kick_rearm),
            busy_poll_us: self.busy_poll_us.or(base.busy_poll_us),
            busy_poll_interrupt: self.busy_poll_interrupt.or(base.busy_poll_interrupt),
            tx_poll: self.tx_poll.or(base.tx_poll),
            rx_wake: self.rx_wake.or(base.rx_wake),
            tx_budget: self.tx_budget.or(base.tx_budget),
            rx_budget: self.rx_budget.or(base.rx_budget),
        }
    }

    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// All settings of a policy.
impl From<Policy> for PolicyChange {
    fn from(policy: Policy) -> Self {
        Self {
            kick_rearm: Some(policy.kick_rearm),
            busy_poll_us: Some(policy.busy_poll),
            busy_poll_interrupt: Some(policy.busy_poll_interrupt),
            tx_poll: Some(policy.tx_poll),
            rx_wake: Some(policy.rx_wake),
            tx_budget: Some(policy.tx_budget),
            rx_budget: Some(policy.rx_budget),
        }
    }
}

/// What differs between two policies, for a log line.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// The policy before.
    pub from: Policy,
    /// The policy after.
    pub to: Policy,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = words(&self.from).into_iter().zip(words(&self.to));
        let changed = settings.filter(|((_, from), (_, to))| from != to);
        for (n, ((name, from), (_, to))) in changed.enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{name} from {from} to {to}")?;
        }
        Ok(())
    }
}

/// A policy, a setting a line, as the table `[policy]` of the configuration has it.
#[derive(Clone, Copy, Debug)]
pub struct Lines(pub Policy);

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, word) in words(&self.0) {
            match word.parse::<u64>() {
                Ok(number) => writeln!(f, "{name} = {number}")?,
                Err(_) => writeln!(f, "{name} = \"{word}\"")?,
            }
        }
        Ok(())
    }
}

/// A policy for `/metrics`.
pub(crate) fn for_metrics(policy: &Policy) -> PolicyWords {
    let [
        kick_rearm,
        busy_poll_us,
        busy_poll_interrupt,
        tx_poll,
        rx_wake,
        tx_budget,
        rx_budget,
    ] = words(policy).map(|(_, word)| word);
    PolicyWords {
        kick_rearm,
        busy_poll_us,
        busy_poll_interrupt,
        tx_poll,
        rx_wake,
        tx_budget,
        rx_budget,
    }
}

/// The settings by name, each by the word for it.
fn words(policy: &Policy) -> [(&'static str, String); 7] {
    [
        ("kick_rearm", policy.kick_rearm.to_string()),
        ("busy_poll_us", policy.busy_poll.to_string()),
        (
            "busy_poll_interrupt",
            policy.busy_poll_interrupt.to_string(),
        ),
        ("tx_poll", policy.tx_poll.to_string()),
        ("rx_wake", policy.rx_wake.to_string()),
        ("tx_budget", policy.tx_budget.to_string()),
        ("rx_budget", policy.rx_budget.to_string()),
    ]
}

fn setting<S: Serializer>(setting: &Option<impl fmt::Display>, to: S) -> Result<S::Ok, S::Error> {
    match setting {
        Some(setting) => show(setting, to),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERWISE: Policy = Policy {
        kick_rearm: KickRearm::BeforeSubmit,
        busy_poll: BusyPoll::Off,
        rx_wake: RxWake::Chains(8),
        ..Policy::DEFAULT
    };

    #[test]
    fn a_change_touches_what_it_names() {
        let change = PolicyChange {
            rx_wake: Some(RxWake::Empty),
            ..PolicyChange::default()
        };
        let changed = change.applied_to(OTHERWISE);
        assert_eq!(changed.rx_wake, RxWake::Empty);
        assert_eq!(changed.kick_rearm, KickRearm::BeforeSubmit);
        let all = PolicyChange::from(OTHERWISE);
        assert_eq!(all.applied_to(Policy::DEFAULT), OTHERWISE);
        assert_eq!(change.over(&all).applied_to(Policy::DEFAULT), changed);
        assert!(PolicyChange::default().is_empty() && !change.is_empty());
    }

    #[test]
    fn a_difference_names_what_changed() {
        let difference = |from, to| Difference { from, to }.to_string();
        assert_eq!(difference(OTHERWISE, OTHERWISE), "");
        assert_eq!(
            difference(Policy::DEFAULT, OTHERWISE),
            "kick_rearm from after-completion to before-submit, busy_poll_us from auto to 0, rx_wake from half to 8"
        );
    }

    #[test]
    fn the_lines_are_those_of_a_file() {
        let text = Lines(OTHERWISE).to_string();
        let read: PolicyChange = toml::from_str(&text).expect("TOML");
        assert_eq!(read, PolicyChange::from(OTHERWISE));
    }
}
