//! Each older policy shows the fault it was replaced for, and the newer does not: a switch that did
//! nothing would be noticed here.
//!
//! Time is simulated (`old_ways/scene.rs`) and nothing is random, so every figure is the same in
//! each run. They are of the scene, not of any machine.
//!
//! `tx_poll` is not here: the engine never reads it. That a poll for room all the time wakes the
//! worker for nothing is shown where the poll is, in the port's tests.

mod scene;
mod stage;

use std::time::Duration;

use tapring_queue::{BusyPoll, BusyPollInterrupt, KickRearm, Policy, RxWake};

use scene::{Figures, Scene};

const POLL: Duration = Duration::from_micros(10);

/// The newer policies, without a poll: it would hide what the others do.
const NEWER: Policy = Policy {
    busy_poll: BusyPoll::Off,
    ..Policy::DEFAULT
};

const BEFORE_SUBMIT: Policy = Policy {
    kick_rearm: KickRearm::BeforeSubmit,
    ..NEWER
};

const POLLING: Policy = Policy {
    busy_poll: BusyPoll::For(POLL),
    ..NEWER
};

const POLLING_REARM: Policy = Policy {
    busy_poll_interrupt: BusyPollInterrupt::Rearm,
    ..POLLING
};

/// Ten milliseconds of a scene under both policies, with EVENT_IDX and with flags.
fn compare(scene: Scene, old: Policy, new: Policy, check: impl Fn(&Figures, &Figures)) {
    for event_idx in [true, false] {
        compare_in_mode(event_idx, scene, old, new, &check);
    }
}

fn compare_in_mode(
    event_idx: bool,
    scene: Scene,
    old: Policy,
    new: Policy,
    check: impl Fn(&Figures, &Figures),
) {
    let (old, new) = (scene.play(old, event_idx), scene.play(new, event_idx));
    println!("old: {old:?}\nnew: {new:?}");
    check(&old, &new);
}

#[test]
fn before_submit_is_kicked_while_its_batch_is_in_flight() {
    // The guest makes a chain every 1.5 µs, and a batch takes longer: its receiver is woken.
    let sender = Scene {
        tx_gap: Some(1_500),
        turn: 5_000,
        ..Scene::IDLE
    };
    compare(sender, BEFORE_SUBMIT, NEWER, |old, new| {
        assert!(old.tx_kicks_in_flight >= 1_000);
        assert_eq!(new.tx_kicks_in_flight, 0);
        assert!(old.tx_kicks >= 100 * new.tx_kicks);
        assert!(new.sent >= old.sent);
    });
}

#[test]
fn rearm_is_kicked_in_the_middle_of_its_poll() {
    // Chains come before the poll is over; what interrupts it are frames to the guest.
    let both = Scene {
        tx_gap: Some(8_000),
        host_gap: Some(3_000),
        refill: 500,
        ..Scene::IDLE
    };
    compare(both, POLLING_REARM, POLLING, |old, new| {
        assert!(old.tx_kicks >= 900 && new.tx_kicks <= 1);
        assert!(new.sent >= old.sent);
    });
}

#[test]
fn a_poll_that_nothing_interrupts_is_kicked_by_neither() {
    let sender = Scene {
        tx_gap: Some(8_000),
        ..Scene::IDLE
    };
    compare(sender, POLLING_REARM, POLLING, |old, new| {
        assert!(old.tx_kicks <= 1 && new.tx_kicks <= 1);
    });
}

#[test]
fn without_a_poll_each_chain_of_a_slow_sender_kicks() {
    let sender = Scene {
        tx_gap: Some(8_000),
        ..Scene::IDLE
    };
    compare(sender, NEWER, POLLING, |off, on| {
        assert!(off.tx_kicks >= 900 && on.tx_kicks <= 1);
        assert!(on.sent >= off.sent);
    });
}

#[test]
fn auto_polls_for_a_steady_sender_and_not_for_a_slow_one() {
    let steady = Scene {
        tx_gap: Some(6_000),
        ..Scene::IDLE
    };
    compare(steady, NEWER, Policy::DEFAULT, |off, auto| {
        // It has to see some gaps first.
        assert!(off.tx_kicks >= 20 * auto.tx_kicks);
        assert!(auto.sent >= off.sent);
    });
    let slow = Scene {
        tx_gap: Some(100_000),
        ..Scene::IDLE
    };
    compare(slow, NEWER, Policy::DEFAULT, |off, auto| {
        assert_eq!(off.tx_kicks, auto.tx_kicks);
        // It tries one dry spell in sixteen.
        assert!(auto.polls <= off.tx_kicks / 16);
    });
}

// ---- a guest that is out of buffers -------------------------------------------------------

/// The tap has more than the guest can take.
const FLOOD: Scene = Scene {
    host_gap: Some(1_000),
    ..Scene::IDLE
};

const fn waking(rx_wake: RxWake) -> Policy {
    Policy { rx_wake, ..NEWER }
}

// With EVENT_IDX only: a flag asks for each kick or for none, and knows no threshold.

#[test]
fn first_free_flaps() {
    let slow = Scene {
        refill: 6_000,
        ..FLOOD
    };
    let old = waking(RxWake::FirstFree);
    compare_in_mode(true, slow, old, NEWER, |old, new| {
        assert!(old.rx_kicks >= 20 * new.rx_kicks);
        assert!(new.received >= old.received);
    });
}

#[test]
fn empty_starves_the_guest() {
    // The worker comes late, and by then the guest has worked off what it had.
    let late = Scene {
        refill: 2_000,
        wake_up: 20_000,
        ..FLOOD
    };
    let old = waking(RxWake::Empty);
    compare_in_mode(true, late, old, NEWER, |old, new| {
        assert!(old.guest_idle >= 1_000_000 && new.guest_idle == 0);
        assert!(new.received > old.received);
    });
}
