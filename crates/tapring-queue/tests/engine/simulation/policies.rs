//! Policies at random.

use std::time::Duration;

use tapring_queue::{Budget, BusyPoll, BusyPollInterrupt, KickRearm, Policy, RxWake, TxPoll};

use crate::rng::Rng;

/// Any policy; one in three is all defaults.
pub(super) fn any(rng: &mut Rng) -> Policy {
    if rng.once_in(3) {
        return Policy::DEFAULT;
    }
    let rx_wake = [
        RxWake::Half,
        RxWake::FirstFree,
        RxWake::Empty,
        RxWake::Chains(2),
        RxWake::Chains(64),
    ];
    Policy {
        kick_rearm: rng.pick(&[KickRearm::AfterCompletion, KickRearm::BeforeSubmit]),
        busy_poll: rng.pick(&[
            BusyPoll::Off,
            BusyPoll::Auto,
            BusyPoll::For(Duration::from_micros(10)),
            BusyPoll::For(Duration::from_micros(50)),
        ]),
        busy_poll_interrupt: rng.pick(&[BusyPollInterrupt::Requeue, BusyPollInterrupt::Rearm]),
        tx_poll: rng.pick(&[TxPoll::OnEagain, TxPoll::Always]),
        rx_wake: rng.pick(&rx_wake),
        tx_budget: budget(rng),
        rx_budget: budget(rng),
    }
}

fn budget(rng: &mut Rng) -> Budget {
    Budget::new(rng.pick(&[1, 3, 64])).expect("at least one, and at most a batch")
}
