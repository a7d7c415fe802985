//! When the driver is asked to kick: at the door to sleep, and nowhere else.

use tapring_queue::{Block, Direction, Door, State};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{readable, writable};
use crate::frames::frame;
use crate::rig::{ALL, EVENT_IDX, Rig};

const ASLEEP: Door = Door::Asleep(None);
const EACH: [u64; 2] = [ALL, ALL & !EVENT_IDX];

/// A pair that looked at both rings, with receive chains posted, and sleeps.
fn asleep(features: u64) -> Rig {
    let mut rig = Rig::new(features);
    for _ in 0..16 {
        rig.post_rx(&[2048]);
    }
    rig.deliver(&[]);
    rig.run_tx();
    assert_eq!(rig.door(), ASLEEP);
    rig
}

#[test]
fn an_empty_pair_sleeps_with_kicks_on_for_the_transmitq_only() {
    for features in EACH {
        let rig = asleep(features);
        assert_eq!(rig.state(Direction::Tx), State::Armed);
        assert_eq!(rig.state(Direction::Rx), State::Waiting);
        assert!(rig.tx.kicks_on(&rig.memory));
        assert!(!rig.rx.asked_for(&rig.memory, 256));
    }
}

#[test]
fn one_kick_wakes_and_a_burst_behind_it_does_not_kick() {
    for features in EACH {
        let mut rig = asleep(features);
        rig.post_tx(&frame(0, 60));
        assert!(rig.tx.expose(&rig.memory));
        rig.kick(Direction::Tx);
        for n in 1..200 {
            rig.post_tx(&frame(n, 60));
            assert!(!rig.tx.expose(&rig.memory), "{features:x} {n}");
        }
        rig.run_tx();
        assert_eq!(rig.tap.sent.len(), 200);
        assert_eq!(rig.stats(Direction::Tx).spurious_kicks, 0);
    }
}

#[test]
fn kicks_stay_off_while_a_batch_is_in_flight_and_the_last_look_finds_what_came_meanwhile() {
    for features in EACH {
        let mut rig = asleep(features);
        rig.post_tx(&frame(0, 60));
        assert!(rig.tx.expose(&rig.memory));
        rig.kick(Direction::Tx);
        rig.pair.tx.fill(&rig.memory, &mut rig.tap);
        assert_eq!(rig.door(), Door::Completions);
        rig.post_tx(&frame(1, 60));
        assert!(!rig.tx.expose(&rig.memory));
        let outcomes = rig.tap.write();
        rig.pair.tx.complete(&rig.memory, outcomes.into_iter());
        assert_eq!(rig.door(), Door::Busy);
        assert!(!rig.tx.kicks_on(&rig.memory));
    }
}

#[test]
fn a_chain_that_comes_between_the_last_turn_and_the_door_is_found_there() {
    for features in EACH {
        let mut rig = asleep(features);
        rig.kick(Direction::Tx);
        rig.tx_batch();
        rig.post_tx(&frame(0, 60));
        assert!(!rig.tx.expose(&rig.memory), "kicks are off");
        assert_eq!(rig.door(), Door::Busy);
        assert!(!rig.tx.kicks_on(&rig.memory), "raced: off again");
        assert_eq!(rig.run_tx().len(), 1);
        assert_eq!(rig.stats(Direction::Tx).rearms_raced, 1);
    }
}

#[test]
fn nothing_is_armed_while_the_other_ring_has_work() {
    for features in EACH {
        // RX was found to have work.
        let mut rig = asleep(features);
        rig.kick(Direction::Tx);
        rig.tx_batch();
        let memory = rig.memory.clone();
        rig.pair.disable(Direction::Rx, Some(&memory));
        rig.pair.enable(Direction::Rx, Some(&memory));
        assert_eq!(rig.door(), Door::Busy);
        assert!(!rig.tx.kicks_on(&rig.memory), "rule 1");
        // TX was: the receiveq must go on being read in the turns to come.
        rig.fill_rx();
        rig.post_tx(&frame(0, 60));
        rig.tx.publish(&rig.memory);
        assert_eq!(rig.door(), Door::Busy);
        assert_eq!(rig.state(Direction::Rx), State::Draining);
    }
}

#[test]
fn every_kick_taken_asleep_leads_to_a_look() {
    for features in EACH {
        let mut rig = asleep(features);
        for n in 0..5 {
            rig.kick(Direction::Tx);
            assert_eq!(rig.state(Direction::Tx), State::Draining);
            rig.tx_batch();
            assert_eq!(rig.door(), ASLEEP);
            assert_eq!(rig.stats(Direction::Tx).spurious_kicks, 1, "{n}");
        }
        // The late kick of a raced arm, coalesced with a real one.
        rig.post_tx(&frame(1, 60));
        assert!(rig.tx.expose(&rig.memory));
        rig.kick(Direction::Tx);
        assert_eq!(rig.run_tx().len(), 1);
    }
}

#[test]
fn kicks_while_awake_are_discarded_and_the_look_that_comes_anyway_finds_the_chain() {
    let mut rig = asleep(ALL);
    rig.post_tx(&frame(0, 60));
    rig.tx.expose(&rig.memory);
    rig.kick(Direction::Tx);
    rig.pair.tx.fill(&rig.memory, &mut rig.tap);
    rig.kick(Direction::Tx);
    assert_eq!(rig.state(Direction::Tx), State::InFlight);
    let outcomes = rig.tap.write();
    rig.pair.tx.complete(&rig.memory, outcomes.into_iter());
    assert_eq!(rig.door(), ASLEEP);
    let stats = rig.stats(Direction::Tx);
    assert_eq!((stats.kicks, stats.spurious_kicks), (2, 0));
}

#[test]
fn a_stale_avail_event_is_rewritten_and_pending_chains_are_sent_without_a_kick() {
    for direction in Direction::ALL {
        let mut rig = Rig::stopped(ALL, 64, 30);
        for n in 30..40 {
            rig.post_tx(&frame(n, 60));
            rig.post_rx(&[128]);
        }
        let memory = rig.memory.clone();
        for driver in [&mut rig.tx, &mut rig.rx] {
            driver.publish(&memory);
            let avail_event = driver.used() + 4 + 64 * 8;
            memory.write_obj(25u16, GuestAddress(avail_event)).unwrap();
            // The flags of an older backend, which EVENT_IDX makes meaningless.
            memory.write_obj(1u16, GuestAddress(driver.used())).unwrap();
            driver.wants_kick(&memory);
        }
        rig.start(direction);
        rig.pair.enable(direction, Some(&memory));
        let flags = GuestAddress(rig.driver(direction).used());
        assert_eq!(memory.read_obj::<u16>(flags).unwrap(), 0, "§2.7.10.1");
        match direction {
            Direction::Tx => {
                rig.tx_batch();
                assert_eq!(rig.tap.sent.len(), 10);
                assert_eq!(rig.door(), ASLEEP);
                rig.post_tx(&frame(41, 60));
                assert!(rig.tx.expose(&memory), "the 41st kicks");
                rig.kick(Direction::Tx);
                assert_eq!(rig.run_tx().len(), 11);
            }
            Direction::Rx => {
                rig.tap.held.extend((0..10).map(|n| frame(n, 60)));
                rig.fill_rx();
                assert_eq!(rig.rx.collect(&memory).len(), 10);
            }
        }
    }
}

#[test]
fn a_no_notify_left_by_an_older_backend_is_cleared_before_sleep() {
    let mut rig = Rig::stopped(ALL & !EVENT_IDX, 64, 0);
    let memory = rig.memory.clone();
    memory.write_obj(1u16, GuestAddress(rig.tx.used())).unwrap();
    rig.start(Direction::Tx);
    rig.pair.enable(Direction::Tx, Some(&memory));
    rig.tx_batch();
    assert_eq!(rig.door(), ASLEEP);
    assert!(rig.tx.kicks_on(&memory));
}

/// More than 65,536 chains while the ring never rests: the index comes around to the event that
/// says "no kicks", which has to be moved on before.
#[test]
fn kicks_that_are_off_stay_off_while_the_index_wraps() {
    for size in [2, 256, 1024, 16_384] {
        let mut rig = Rig::with(ALL, size, 60_000);
        let chains = 64.min(size);
        for _ in 0..140_000 / usize::from(chains) {
            while rig.tx.room() > 0 {
                rig.tx.add(&rig.memory, &[readable(0x8000, 72)]);
            }
            assert!(!rig.tx.expose(&rig.memory), "a ring of {size}");
            rig.tx_batch();
            rig.tap.sent.clear();
            rig.tx.collect(&rig.memory);
        }
    }
}

#[test]
fn receive_kicks_stay_off_while_the_index_wraps() {
    let mut rig = Rig::with(ALL, 256, 60_000);
    let frames: Vec<_> = (0..64).map(|n| frame(n, 60)).collect();
    for _ in 0..70_000 / 64 {
        while rig.rx.room() > 0 {
            rig.rx.add(&rig.memory, &[writable(0x9000, 128)]);
        }
        assert!(!rig.rx.expose(&rig.memory));
        rig.deliver(&frames);
        rig.door();
        rig.rx.collect(&rig.memory);
    }
}

#[test]
fn a_long_quiet_time_without_a_look_cannot_bring_the_event_back() {
    let mut rig = asleep(ALL);
    let memory = rig.memory.clone();
    rig.pair.disable(Direction::Tx, Some(&memory));
    while rig.tx.room() > 0 {
        rig.post_tx(&frame(1, 60));
        assert!(!rig.tx.expose(&memory));
    }
}

#[test]
fn blocked_and_stopped_rings_have_kicks_off_and_let_the_worker_sleep() {
    for features in EACH {
        let mut rig = asleep(features);
        let memory = rig.memory.clone();
        rig.kick(Direction::Tx);
        rig.tap.room = Some(0);
        rig.post_tx(&frame(0, 60));
        rig.tx.publish(&memory);
        rig.tx_batch();
        assert_eq!(rig.state(Direction::Tx), State::Blocked(Block::TapFull));
        assert!(!rig.tx.kicks_on(&memory));
        assert_eq!(rig.door(), ASLEEP);
        rig.pair.disable(Direction::Tx, Some(&memory));
        assert!(!rig.tx.kicks_on(&memory));
        rig.pair.tx.on_writable();
        assert_eq!(rig.door(), ASLEEP, "a writable tap does not enable a ring");
        rig.pair.stop(Direction::Tx);
        rig.pair.stop(Direction::Rx);
        assert_eq!(rig.door(), ASLEEP);
    }
}
