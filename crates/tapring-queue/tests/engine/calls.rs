//! When the driver is called (virtio 1.3 §2.7.7).

use tapring_queue::Direction;

use crate::driver::{need_event, readable, writable};
use crate::rig::{ALL, EVENT_IDX, Rig};
use crate::rng::Rng;

/// Has `chains` completed in one batch and says whether the driver was called.
fn complete(rig: &mut Rig, direction: Direction, chains: usize) -> bool {
    match direction {
        Direction::Tx => {
            for _ in 0..chains {
                rig.tx.add(&rig.memory, &[readable(0x8000, 72)]);
            }
            rig.run_tx();
            rig.tap.sent.clear();
            rig.pair.tx.take_call()
        }
        Direction::Rx => {
            for _ in 0..chains {
                rig.rx.add(&rig.memory, &[writable(0x9000, 128)]);
            }
            rig.deliver(&vec![vec![0; 60]; chains]);
            rig.rx.collect(&rig.memory);
            rig.pair.rx.take_call()
        }
    }
}

fn set_used_event(rig: &mut Rig, direction: Direction, ahead: u16) {
    let memory = rig.memory.clone();
    let driver = rig.driver(direction);
    driver.store_used_event(&memory, driver.last_used.wrapping_add(ahead));
}

#[test]
fn a_call_comes_exactly_when_used_event_is_passed_over_many_wraps() {
    for direction in Direction::ALL {
        for base in [0, 32_767, 32_768, 65_500, 65_535] {
            let mut rng = Rng::new(u64::from(base));
            let mut rig = Rig::with(ALL, 64, base);
            complete(&mut rig, direction, 1);
            for _ in 0..500 {
                let ahead = u16::try_from(rng.below(64)).unwrap();
                let chains = 1 + rng.below(63);
                set_used_event(&mut rig, direction, ahead);
                let called = complete(&mut rig, direction, chains);
                assert_eq!(called, chains > usize::from(ahead), "{direction} {base}");
            }
        }
    }
}

#[test]
fn a_call_is_not_repeated_for_an_event_already_passed() {
    for direction in Direction::ALL {
        let mut rig = Rig::with(ALL, 64, 65_530);
        complete(&mut rig, direction, 1);
        set_used_event(&mut rig, direction, 2);
        let calls: Vec<_> = (0..20).map(|_| complete(&mut rig, direction, 1)).collect();
        assert_eq!(calls.iter().filter(|called| **called).count(), 1);
        assert!(calls[2]);
        let stats = rig.stats(direction);
        assert_eq!((stats.calls, stats.calls_suppressed), (2, 19));
    }
}

#[test]
fn the_first_publication_after_every_start_calls_whatever_is_in_the_ring() {
    for direction in Direction::ALL {
        for features in [ALL, ALL & !EVENT_IDX] {
            for base in [0, 32_767, 65_535] {
                let mut rig = Rig::with(features, 64, base);
                for _ in 0..3 {
                    // An old used_event far away, and the flag that wants no calls.
                    set_used_event(&mut rig, direction, 0x4000);
                    let memory = rig.memory.clone();
                    rig.driver(direction).store_no_interrupt(&memory, true);
                    assert!(
                        complete(&mut rig, direction, 3),
                        "{direction} {features:x} {base}"
                    );
                    assert!(!complete(&mut rig, direction, 3));
                    rig.pair.stop(direction);
                    rig.start(direction);
                }
            }
        }
    }
}

#[test]
fn without_event_idx_the_flag_decides() {
    for direction in Direction::ALL {
        let mut rig = Rig::new(ALL & !EVENT_IDX);
        complete(&mut rig, direction, 1);
        let memory = rig.memory.clone();
        for off in [false, true, true, false] {
            rig.driver(direction).store_no_interrupt(&memory, off);
            // used_event is not to be looked at.
            set_used_event(&mut rig, direction, 0);
            assert_eq!(complete(&mut rig, direction, 5), !off);
        }
    }
}

#[test]
fn with_event_idx_the_flag_is_ignored() {
    for direction in Direction::ALL {
        let mut rig = Rig::new(ALL);
        complete(&mut rig, direction, 1);
        let memory = rig.memory.clone();
        rig.driver(direction).store_no_interrupt(&memory, true);
        set_used_event(&mut rig, direction, 0);
        assert!(complete(&mut rig, direction, 5));
    }
}

#[test]
fn a_full_transmitq_always_calls() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let mut rig = Rig::with(features, 256, 65_500);
        for round in 0..40 {
            set_used_event(&mut rig, Direction::Tx, 255);
            assert!(
                complete(&mut rig, Direction::Tx, 256),
                "{features:x} round {round}"
            );
        }
    }
}

#[test]
fn nothing_published_calls_nobody() {
    let mut rig = Rig::new(ALL);
    rig.tx_batch();
    rig.deliver(&[]);
    assert!(!rig.pair.tx.take_call() && !rig.pair.rx.take_call());
}

#[test]
fn the_drivers_own_arithmetic_agrees_with_a_walk() {
    for old in [0u16, 100, 65_535] {
        for (event, expected) in [(0, true), (1, true), (2, false), (0xffff, false)] {
            let event = old.wrapping_add(event);
            assert_eq!(need_event(event, old.wrapping_add(2), old), expected);
        }
    }
}

/// A driver that sleeps on a full ring is called when what it waits for is done, and not at the end of the batch; one that
/// wants a call for whatever comes next, or for little, gets whole batches.
#[test]
fn a_batch_ends_where_a_sleeping_driver_waits() {
    for (ahead, batch) in [(0, 64), (15, 64), (16, 17), (20, 21), (63, 64), (200, 64)] {
        for index in [0, 65_500] {
            let mut rig = Rig::with(ALL, 256, index);
            for _ in 0..200 {
                rig.tx.add(&rig.memory, &[readable(0x8000, 72)]);
            }
            rig.tx.publish(&rig.memory);
            set_used_event(&mut rig, Direction::Tx, ahead);
            assert_eq!(rig.tx_batch(), batch, "{ahead} ahead");
            assert!(rig.pair.tx.take_call(), "the first always calls");
            assert_eq!(rig.tx_batch(), 64, "behind it");
        }
    }
}
