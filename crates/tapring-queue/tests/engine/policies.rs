//! What each policy changes, and what none may.

use std::time::Duration;

use tapring_queue::{Budget, BusyPoll, Direction, Door, KickRearm, Policy, RxEnd, RxWake, State};

use crate::frames::frame;
use crate::rig::{ALL, EVENT_IDX, MRG_RXBUF, Rig};
use crate::starving::{post_until_kick, starved_under, turn};

const US: Duration = Duration::from_micros(1);

const POLLING: Policy = Policy {
    busy_poll: BusyPoll::For(Duration::from_micros(50)),
    ..Policy::DEFAULT
};

fn rig_under(policy: Policy) -> Rig {
    let mut rig = Rig::new(ALL);
    rig.pair.set_policy(policy, Some(&rig.memory));
    rig
}

// ---- rx_wake ------------------------------------------------------------------------------

#[test]
fn the_kick_is_asked_for_at_the_policys_threshold_or_what_the_driver_ever_had() {
    for (rx_wake, most, threshold) in [
        (RxWake::Half, 256, 128),
        (RxWake::Half, 13, 6),
        (RxWake::FirstFree, 256, 1),
        (RxWake::FirstFree, 8, 1),
        (RxWake::Empty, 256, 256),
        (RxWake::Empty, 13, 13),
        (RxWake::Chains(200), 256, 200),
        (RxWake::Chains(200), 8, 8),
        (RxWake::Chains(5), 13, 5),
    ] {
        let mut rig = starved_under(rx_wake, ALL, most);
        let kick = post_until_kick(&mut rig, most);
        assert_eq!(kick, Some(threshold), "{rx_wake} with {most} posted");
    }
}

/// iPXE posts 8 chains and refills each as it is used; a guest without mergeable buffers a dozen.
#[test]
fn drivers_that_post_few_chains_receive_everything() {
    for rx_wake in [
        RxWake::Half,
        RxWake::FirstFree,
        RxWake::Empty,
        RxWake::Chains(10),
        RxWake::Chains(256),
    ] {
        for features in [ALL, ALL & !MRG_RXBUF, ALL & !EVENT_IDX] {
            for most in [1, 8, 13] {
                receives_everything(rx_wake, features, most);
            }
        }
    }
}

fn receives_everything(rx_wake: RxWake, features: u64, most: usize) {
    const FRAMES: usize = 300;
    let mut rig = starved_under(rx_wake, features, most);
    for n in 0..FRAMES {
        rig.tap.held.push_back(frame(n, 60 + n));
    }
    let mut used = most;
    let mut received = 0;
    for _ in 0..100_000 {
        for _ in 0..used {
            rig.post_rx(&[1526]);
        }
        if rig.rx.expose(&rig.memory) {
            rig.kick(Direction::Rx);
        } else if let Some(deadline) = rig.pair.rx.deadline() {
            rig.now = deadline;
        }
        turn(&mut rig);
        used = rig.rx.collect(&rig.memory).len();
        received += used;
        if rig.tap.held.is_empty() {
            break;
        }
    }
    // The first was held when the driver had used its chains up.
    assert_eq!(received, FRAMES + 1, "{rx_wake} with {most} posted");
    assert_eq!(rig.stats(Direction::Rx).too_large, 0);
}

// ---- budgets ------------------------------------------------------------------------------

#[test]
fn with_both_directions_under_load_neither_is_below_a_third() {
    for (tx, rx) in [(64, 64), (1, 1), (16, 16), (8, 16)] {
        let budgets = Policy {
            tx_budget: Budget::new(tx).unwrap(),
            rx_budget: Budget::new(rx).unwrap(),
            ..Policy::DEFAULT
        };
        let mut rig = rig_under(budgets);
        let mut frames = [0, 0];
        for _ in 0..100 {
            top_up(&mut rig);
            let sent = rig.tx_batch();
            let before = rig.tap.held.len();
            let end = rig.pair.rx.fill(&rig.memory, &mut rig.tap);
            assert_eq!(end, RxEnd::BudgetSpent);
            let received = before - rig.tap.held.len();
            assert!(sent <= usize::from(tx) && received <= usize::from(rx));
            frames = [frames[0] + sent, frames[1] + received];
        }
        let third = (frames[0] + frames[1]) / 3;
        assert!(frames.iter().all(|frames| *frames >= third), "{frames:?}");
    }
}

/// More than a budget's worth on either ring.
fn top_up(rig: &mut Rig) {
    rig.tx.collect(&rig.memory);
    rig.rx.collect(&rig.memory);
    while rig.tx.room() > 100 {
        rig.post_tx(&frame(1, 60));
    }
    while rig.rx.room() > 100 {
        rig.post_rx(&[2048]);
    }
    rig.tx.publish(&rig.memory);
    rig.rx.publish(&rig.memory);
    while rig.tap.held.len() < 100 {
        rig.tap.held.push_back(frame(2, 60));
    }
}

// ---- busy poll ----------------------------------------------------------------------------

#[test]
fn a_poll_ends_when_its_time_is_over_whatever_interrupts_it() {
    let mut rig = rig_under(POLLING);
    turn_without_timers(&mut rig);
    let end = rig.now + 50 * US;
    assert_eq!(rig.door(), Door::Poll(end));
    for _ in 0..4 {
        rig.advance(10 * US);
        rig.pair.woke(Some(&rig.memory), rig.now);
        turn_without_timers(&mut rig);
        assert_eq!(rig.door(), Door::Poll(end));
        assert!(!rig.tx.kicks_on(&rig.memory));
    }
    rig.advance(10 * US);
    rig.pair.woke(Some(&rig.memory), rig.now);
    turn_without_timers(&mut rig);
    assert!(matches!(rig.door(), Door::Asleep(_)));
    assert_eq!(rig.state(Direction::Tx), State::Armed);
    assert!(rig.tx.kicks_on(&rig.memory));
}

#[test]
fn a_poll_sees_a_chain_that_came_without_a_kick() {
    let mut rig = rig_under(POLLING);
    turn_without_timers(&mut rig);
    assert!(matches!(rig.door(), Door::Poll(_)));
    assert!(!rig.pair.watch(&rig.memory).has_news());
    rig.post_tx(&frame(1, 60));
    assert!(!rig.tx.expose(&rig.memory), "kicks are off");
    assert!(rig.pair.watch(&rig.memory).has_news());
    rig.advance(10 * US);
    rig.pair.woke(Some(&rig.memory), rig.now);
    assert_eq!(rig.tx_batch(), 1);
}

fn turn_without_timers(rig: &mut Rig) {
    while rig.tx_batch() > 0 || matches!(rig.state(Direction::Tx), State::Requeued(_)) {}
    rig.fill_rx();
}

// ---- switches -----------------------------------------------------------------------------

#[test]
fn a_new_policy_with_a_batch_in_flight_looks_before_it_sleeps() {
    let before_submit = Policy {
        kick_rearm: KickRearm::BeforeSubmit,
        ..Policy::DEFAULT
    };
    for (from, to) in [
        (before_submit, Policy::DEFAULT),
        (Policy::DEFAULT, before_submit),
    ] {
        let mut rig = rig_under(from);
        rig.post_tx(&frame(1, 60));
        rig.tx.publish(&rig.memory);
        assert_eq!(rig.pair.tx.fill(&rig.memory, &mut rig.tap), 1);
        rig.pair.set_policy(to, Some(&rig.memory));
        assert_eq!(rig.state(Direction::Tx), State::InFlight);
        rig.post_tx(&frame(2, 60));
        assert!(!rig.tx.expose(&rig.memory), "kicks are off");
        let outcomes = rig.tap.write();
        rig.pair.tx.complete(&rig.memory, outcomes.into_iter());
        assert!(matches!(rig.state(Direction::Tx), State::Requeued(_)));
        assert_eq!(rig.tx_batch(), 1);
    }
}
