//! Stop and wake of the receiveq (rules 8 and 9).

use std::time::Duration;

use tapring_queue::{DROP_AFTER, Direction, Door, Policy, RxEnd, RxWake, State, THRESHOLD_TIMER};

use crate::frames::frame;
use crate::rig::{ALL, EVENT_IDX, Rig};

const EACH: [u64; 2] = [ALL, ALL & !EVENT_IDX];

/// What a worker does with the receiveq in a turn, and at the door if that left nothing to do.
pub(crate) fn turn(rig: &mut Rig) {
    let now = rig.now;
    rig.tx_batch();
    rig.pair.rx.on_timer(&rig.memory, &mut rig.tap, now);
    if let RxEnd::NoBuffers(need) = rig.fill_rx() {
        let held = !rig.tap.held.is_empty();
        rig.pair.rx.starve(need, held, now);
    }
    rig.door();
}

/// A guest that once had `most` chains posted, used them all up, with a frame waiting.
fn starved_after(features: u64, most: usize) -> Rig {
    starved_under(RxWake::Half, features, most)
}

pub(crate) fn starved_under(rx_wake: RxWake, features: u64, most: usize) -> Rig {
    let mut rig = Rig::new(features);
    let policy = Policy {
        rx_wake,
        ..Policy::DEFAULT
    };
    rig.pair.set_policy(policy, Some(&rig.memory));
    for _ in 0..most {
        rig.post_rx(&[2048]);
    }
    rig.rx.publish(&rig.memory);
    rig.tap.held.extend((0..=most).map(|n| frame(n, 60)));
    turn(&mut rig);
    assert_eq!(rig.rx.collect(&rig.memory).len(), most);
    assert_eq!(rig.state(Direction::Rx), State::Starved);
    rig
}

/// Posts chains one by one until the driver kicks; how many that took.
pub(crate) fn post_until_kick(rig: &mut Rig, most: usize) -> Option<usize> {
    for chains in 1..=most {
        rig.post_rx(&[2048]);
        if rig.rx.expose(&rig.memory) {
            return Some(chains);
        }
    }
    None
}

#[test]
fn the_kick_is_asked_for_at_half_of_what_the_driver_ever_had_posted() {
    for (most, half) in [(256, 128), (8, 4), (13, 6), (2, 1), (1, 1)] {
        let mut rig = starved_after(ALL, most);
        assert_eq!(post_until_kick(&mut rig, most), Some(half), "{most} posted");
        rig.kick(Direction::Rx);
        turn(&mut rig);
        assert!(!rig.rx.collect(&rig.memory).is_empty());
        if half == 1 {
            // The one chain was used; it starves again.
            continue;
        }
        let asked = rig.rx.asked_for(&rig.memory, 256);
        assert!(!asked, "awake: kicks are off");
        let stats = rig.stats(Direction::Rx);
        assert_eq!(
            (stats.rx_stops, stats.rx_wakes, stats.spurious_kicks),
            (1, 1, 0)
        );
    }
}

#[test]
fn without_event_idx_every_chain_kicks_until_there_are_enough() {
    let mut rig = starved_after(ALL & !EVENT_IDX, 16);
    for chains in 1..=8 {
        assert_eq!(post_until_kick(&mut rig, 1), Some(1), "chain {chains}");
        rig.kick(Direction::Rx);
        turn(&mut rig);
        assert_eq!(
            rig.state(Direction::Rx) == State::Starved,
            chains < 8,
            "{chains}"
        );
    }
    assert_eq!(post_until_kick(&mut rig, 1), None);
}

#[test]
fn a_kick_below_the_target_asks_again() {
    for features in EACH {
        let mut rig = starved_after(features, 64);
        rig.kick(Direction::Rx);
        turn(&mut rig);
        assert_eq!(rig.state(Direction::Rx), State::Starved);
        assert!(rig.rx.asked_for(&rig.memory, 32));
        assert_eq!(rig.stats(Direction::Rx).spurious_kicks, 1);
    }
}

#[test]
fn chains_posted_just_before_the_request_was_written_are_found_by_the_look() {
    for features in EACH {
        let mut rig = starved_after(features, 8);
        rig.advance(THRESHOLD_TIMER);
        turn(&mut rig);
        for _ in 0..5 {
            rig.post_rx(&[2048]);
        }
        rig.rx.publish(&rig.memory);
        // The kick on its way is for an older request: it does not matter whether it comes.
        rig.kick(Direction::Rx);
        assert!(matches!(rig.state(Direction::Rx), State::Requeued(_)));
        assert_eq!(rig.door(), Door::Busy);
        turn(&mut rig);
        assert_eq!(rig.rx.collect(&rig.memory).len(), 1);
    }
}

#[test]
fn the_door_looks_once_more() {
    for features in EACH {
        let mut rig = Rig::new(features);
        rig.deliver(&[frame(1, 60)]);
        // The driver posts between the last look of the turn and the request.
        rig.post_rx(&[2048]);
        rig.rx.expose(&rig.memory);
        let now = rig.now;
        rig.pair.rx.starve(1, true, now);
        rig.tx_batch();
        assert_eq!(rig.door(), Door::Busy);
        assert!(matches!(rig.state(Direction::Rx), State::Requeued(_)));
        turn(&mut rig);
        assert_eq!(rig.rx.collect(&rig.memory).len(), 1);
    }
}

#[test]
fn one_timer_stands_behind_the_threshold_and_then_the_frames_own_need_counts() {
    for features in EACH {
        let mut rig = starved_after(features, 64);
        let deadline = rig.pair.rx.deadline();
        assert_eq!(deadline, Some(rig.now + THRESHOLD_TIMER));
        assert_eq!(rig.door(), Door::Asleep(deadline));
        rig.post_rx(&[2048]);
        rig.rx.publish(&rig.memory);
        rig.advance(THRESHOLD_TIMER - Duration::from_nanos(1));
        turn(&mut rig);
        assert_eq!(
            rig.state(Direction::Rx),
            State::Starved,
            "not before its time"
        );
        rig.advance(Duration::from_nanos(1));
        turn(&mut rig);
        assert_eq!(rig.rx.collect(&rig.memory).len(), 1);
    }
}

#[test]
fn after_the_timer_the_first_chain_that_is_enough_kicks() {
    let mut rig = starved_after(ALL, 64);
    rig.advance(THRESHOLD_TIMER);
    turn(&mut rig);
    assert_eq!(rig.state(Direction::Rx), State::Starved);
    assert_eq!(
        rig.pair.rx.deadline(),
        Some(rig.now - THRESHOLD_TIMER + DROP_AFTER)
    );
    assert_eq!(post_until_kick(&mut rig, 64), Some(1));
}

#[test]
fn a_guest_that_is_out_of_chains_with_no_frame_held_has_no_drop_timer() {
    let mut rig = Rig::new(ALL);
    turn(&mut rig);
    assert_eq!(rig.state(Direction::Rx), State::Starved);
    rig.advance(THRESHOLD_TIMER);
    turn(&mut rig);
    assert_eq!(rig.pair.rx.deadline(), None, "nothing wakes an idle worker");
    assert_eq!(rig.door(), Door::Asleep(None));
}

#[test]
fn a_frame_that_needs_several_chains_sets_the_threshold() {
    let mut rig = Rig::new(ALL);
    for _ in 0..2 {
        rig.post_rx(&[1526]);
    }
    rig.rx.publish(&rig.memory);
    rig.tap.held.push_back(frame(1, 9000));
    turn(&mut rig);
    assert_eq!(
        post_until_kick(&mut rig, 20),
        Some(4),
        "6 are needed, 2 are there"
    );
    rig.kick(Direction::Rx);
    turn(&mut rig);
    assert!(rig.tap.held.is_empty());
}

#[test]
fn a_held_frame_that_never_fits_is_dropped_after_its_time_and_the_next_goes_on() {
    for features in EACH {
        let mut rig = Rig::new(features);
        rig.post_rx(&[1526]);
        rig.rx.publish(&rig.memory);
        rig.tap.held.extend([frame(1, 9000), frame(2, 60)]);
        let start = rig.now;
        turn(&mut rig);
        while rig.tap.held.len() == 2 {
            let deadline = rig.pair.rx.deadline().expect("a drop timer");
            assert!(deadline > rig.now, "no spinning");
            rig.now = deadline;
            turn(&mut rig);
        }
        assert_eq!(rig.now - start, DROP_AFTER);
        assert_eq!(rig.stats(Direction::Rx).too_large, 1);
        turn(&mut rig);
        assert_eq!(rig.rx.collect(&rig.memory).len(), 1);
    }
}

#[test]
fn a_held_frame_outlasts_a_guest_with_no_chain_at_all() {
    for features in EACH {
        let mut rig = Rig::new(features);
        rig.tap.held.extend([frame(1, 9000), frame(2, 60)]);
        turn(&mut rig);
        while let Some(deadline) = rig.pair.rx.deadline() {
            assert!(deadline > rig.now, "no spinning");
            rig.now = deadline;
            turn(&mut rig);
        }
        rig.advance(100 * DROP_AFTER);
        turn(&mut rig);
        assert_eq!(
            rig.tap.held.len(),
            2,
            "dropped with nothing behind it that would fit"
        );

        // The first chain decides: the frame has had its time, and the next one fits.
        rig.post_rx(&[1526]);
        assert!(rig.rx.expose(&rig.memory), "the first chain kicks");
        rig.kick(Direction::Rx);
        for _ in 0..4 {
            turn(&mut rig);
        }
        assert_eq!(rig.stats(Direction::Rx).too_large, 1);
        assert_eq!(rig.rx.collect(&rig.memory).len(), 1);
        assert!(rig.tap.held.is_empty());
    }
}

#[test]
fn the_time_of_a_held_frame_starts_when_it_is_held() {
    let mut rig = Rig::new(ALL);
    // Out of chains with nothing held, for long.
    turn(&mut rig);
    rig.advance(10 * DROP_AFTER);
    turn(&mut rig);
    rig.post_rx(&[1526]);
    assert!(rig.rx.expose(&rig.memory));
    rig.kick(Direction::Rx);
    turn(&mut rig);
    rig.tap.held.push_back(frame(1, 9000));
    rig.pair.rx.on_readable();
    turn(&mut rig);
    rig.advance(THRESHOLD_TIMER);
    turn(&mut rig);
    assert_eq!(rig.tap.held.len(), 1, "dropped without its 100 ms");
    for _ in 0..5 {
        rig.post_rx(&[1526]);
    }
    rig.rx.publish(&rig.memory);
    rig.kick(Direction::Rx);
    turn(&mut rig);
    assert_eq!(rig.rx.collect(&rig.memory).len(), 6);
}

#[test]
fn each_held_frame_has_its_own_time() {
    let mut rig = Rig::new(ALL);
    rig.post_rx(&[1526]);
    rig.rx.publish(&rig.memory);
    rig.tap.held.extend([frame(1, 9000), frame(2, 9000)]);
    let start = rig.now;
    turn(&mut rig);
    for _ in 0..10 {
        if rig.tap.held.is_empty() {
            break;
        }
        rig.now = rig.pair.rx.deadline().expect("a drop timer");
        assert!(rig.now - start <= 2 * DROP_AFTER);
        turn(&mut rig);
    }
    assert_eq!(rig.now - start, 2 * DROP_AFTER);
}

#[test]
fn a_held_frames_time_starts_again_with_a_new_ring() {
    let mut rig = starved_after(ALL, 4);
    rig.pair.stop(Direction::Rx);
    rig.advance(2 * DROP_AFTER);
    rig.start(Direction::Rx);
    turn(&mut rig);
    turn(&mut rig);
    assert_eq!(rig.tap.held.len(), 1);
    assert!(rig.pair.rx.deadline().unwrap() > rig.now);
}

#[test]
fn a_held_frames_time_does_not_run_while_the_queue_is_disabled() {
    let mut rig = starved_after(ALL, 4);
    let memory = rig.memory.clone();
    rig.pair.disable(Direction::Rx, Some(&memory));
    rig.advance(2 * DROP_AFTER);
    rig.pair.enable(Direction::Rx, Some(&memory));
    turn(&mut rig);
    turn(&mut rig);
    assert_eq!(rig.tap.held.len(), 1);
    assert_eq!(rig.state(Direction::Rx), State::Starved);
}

#[test]
fn chains_that_came_without_a_kick_save_the_frame_at_the_last_moment() {
    let mut rig = starved_after(ALL, 64);
    rig.advance(THRESHOLD_TIMER);
    turn(&mut rig);
    rig.post_rx(&[2048]);
    rig.rx.publish(&rig.memory);
    rig.advance(DROP_AFTER);
    turn(&mut rig);
    assert_eq!(rig.rx.collect(&rig.memory).len(), 1);
    assert_eq!(rig.stats(Direction::Rx).too_large, 0);
}

#[test]
fn a_disabled_or_stopped_queue_cannot_be_made_to_starve() {
    let mut rig = starved_after(ALL, 4);
    let memory = rig.memory.clone();
    rig.pair.disable(Direction::Rx, Some(&memory));
    let now = rig.now;
    rig.pair.rx.starve(1, true, now);
    assert_ne!(rig.state(Direction::Rx), State::Starved);
    assert!(!rig.rx.asked_for(&memory, 256));
    assert_eq!(rig.pair.rx.deadline(), None);
}

#[test]
fn timers_of_a_queue_that_left_starving_do_nothing() {
    let mut rig = starved_after(ALL, 4);
    let memory = rig.memory.clone();
    rig.pair.disable(Direction::Rx, Some(&memory));
    rig.pair.enable(Direction::Rx, Some(&memory));
    rig.advance(2 * DROP_AFTER);
    let now = rig.now;
    rig.pair.rx.on_timer(&memory, &mut rig.tap, now);
    assert_eq!(rig.tap.held.len(), 1);
}
