//! The transmitq: order, publication, rewinding.

use tapring_queue::{BATCH, Block, Direction, State, TxOutcome};

use crate::driver::Used;
use crate::frames::frame;
use crate::rig::{ALL, Rig, all_faults};
use crate::rng::Rng;

const FULL: State = State::Blocked(Block::TapFull);

fn post_numbered(rig: &mut Rig, numbers: std::ops::Range<usize>) {
    for n in numbers {
        rig.post_tx(&frame(n, 60 + n % 100));
    }
    rig.tx.publish(&rig.memory);
}

fn expect_numbered(rig: &Rig, frames: usize) {
    let sent: Vec<_> = rig
        .tap
        .sent
        .iter()
        .map(|f| crate::frames::number_of(f))
        .collect();
    assert_eq!(sent, (0..frames).collect::<Vec<_>>());
    for (n, sent) in rig.tap.sent.iter().enumerate() {
        assert_eq!(*sent, frame(n, 60 + n % 100));
    }
}

#[test]
fn a_batch_is_at_most_64_frames_and_the_rest_waits_for_the_next_turn() {
    let mut rig = Rig::new(ALL);
    post_numbered(&mut rig, 0..200);
    assert_eq!(rig.tx_batch(), BATCH);
    assert_eq!(
        rig.state(Direction::Tx),
        State::Requeued(tapring_queue::Requeue::Budget)
    );
    assert_eq!(
        (
            rig.tx_batch(),
            rig.tx_batch(),
            rig.tx_batch(),
            rig.tx_batch()
        ),
        (64, 64, 8, 0)
    );
    expect_numbered(&rig, 200);
}

#[test]
fn a_batch_is_published_under_one_index_store_after_its_completions() {
    let mut rig = Rig::new(ALL);
    post_numbered(&mut rig, 0..50);
    rig.pair.tx.fill(&rig.memory, &mut rig.tap);
    assert_eq!(rig.state(Direction::Tx), State::InFlight);
    assert_eq!(
        rig.tx.used_index(&rig.memory),
        0,
        "nothing is returned before it was sent"
    );
    let mut seen = Vec::new();
    let (memory, driver) = (rig.memory.clone(), &rig.tx);
    let outcomes = rig
        .tap
        .write()
        .into_iter()
        .inspect(|_| seen.push(driver.used_index(&memory)));
    rig.pair.tx.complete(&rig.memory, outcomes);
    assert!(seen.iter().all(|index| *index == 0));
    assert_eq!(rig.tx.used_index(&rig.memory), 50);
    assert_eq!(rig.stats(Direction::Tx).batches, 1);
}

#[test]
fn malformed_chains_are_returned_in_their_turn() {
    let mut rig = Rig::new(ALL);
    let mut heads = Vec::new();
    for n in 0..60 {
        heads.push(match n % 3 {
            0 => rig
                .tx
                .add(&rig.memory, &[crate::driver::readable(0x8000, 3)]),
            _ => rig.post_tx(&frame(n, 60)),
        });
    }
    let used = rig.run_tx();
    assert_eq!(
        used,
        heads
            .iter()
            .map(|&head| Used { head, len: 0 })
            .collect::<Vec<_>>()
    );
    assert_eq!(rig.tap.sent.len(), 40);
    assert_eq!(all_faults(&rig.stats(Direction::Tx)), 20);
}

#[test]
fn a_batch_of_malformed_chains_only_is_returned_at_once() {
    let mut rig = Rig::new(ALL);
    for _ in 0..100 {
        rig.tx
            .add(&rig.memory, &[crate::driver::readable(0x8000, 3)]);
    }
    rig.tx.publish(&rig.memory);
    assert_eq!(rig.pair.tx.fill(&rig.memory, &mut rig.tap), 0);
    assert_eq!(rig.tx.collect(&rig.memory).len(), 64);
    assert!(rig.pair.tx.take_call());
    assert_eq!(
        rig.door(),
        tapring_queue::Door::Busy,
        "the rest is looked at next turn"
    );
}

#[test]
fn what_the_batch_has_no_room_for_stays_on_the_ring() {
    let mut rig = Rig::new(ALL);
    rig.tap.batch_limit = Some(7);
    post_numbered(&mut rig, 0..20);
    assert_eq!([(); 4].map(|()| rig.tx_batch()), [7, 7, 6, 0]);
    expect_numbered(&rig, 20);
    assert_eq!(rig.tx.collect(&rig.memory).len(), 20);
}

#[test]
fn a_full_tap_blocks_the_ring_until_it_is_writable() {
    let mut rig = Rig::new(ALL);
    rig.tap.room = Some(10);
    post_numbered(&mut rig, 0..30);
    assert_eq!(rig.tx_batch(), 30);
    assert_eq!(rig.state(Direction::Tx), FULL);
    assert_eq!(
        rig.tx.collect(&rig.memory).len(),
        10,
        "what was sent is returned"
    );
    assert_eq!(rig.tx_batch(), 0, "blocked is not polled");
    rig.kick(Direction::Tx);
    assert_eq!((rig.tx_batch(), rig.state(Direction::Tx)), (0, FULL));
    assert!(!rig.tx.kicks_on(&rig.memory));
    rig.tap.room = None;
    rig.pair.tx.on_writable();
    assert_eq!(rig.tx_batch(), 20);
    expect_numbered(&rig, 30);
}

#[test]
fn a_refused_frame_is_returned_and_costs_only_itself() {
    let mut rig = Rig::new(ALL);
    post_numbered(&mut rig, 0..3);
    rig.pair.tx.fill(&rig.memory, &mut rig.tap);
    let outcomes = rig
        .tap
        .write_as([TxOutcome::Sent, TxOutcome::Dropped, TxOutcome::Sent]);
    rig.pair.tx.complete(&rig.memory, outcomes.into_iter());
    assert_eq!(rig.tx.collect(&rig.memory).len(), 3);
    assert_eq!(rig.stats(Direction::Tx).packets, 2);
    assert_ne!(rig.state(Direction::Tx), FULL);
}

#[test]
fn outcomes_that_are_missing_count_as_not_sent() {
    let mut rig = Rig::new(ALL);
    post_numbered(&mut rig, 0..3);
    rig.pair.tx.fill(&rig.memory, &mut rig.tap);
    rig.tap.batch.clear();
    rig.pair
        .tx
        .complete(&rig.memory, std::iter::once(TxOutcome::Sent));
    assert_eq!(rig.tx.collect(&rig.memory).len(), 1);
    assert_eq!(rig.state(Direction::Tx), FULL);
}

/// The tap turned full and less full within a batch: frames behind a hole were sent.
#[test]
fn frames_sent_behind_a_hole_are_not_sent_twice() {
    let mut rig = Rig::new(ALL);
    post_numbered(&mut rig, 0..6);
    rig.pair.tx.fill(&rig.memory, &mut rig.tap);
    use TxOutcome::{NotSent, Sent};
    let outcomes = rig.tap.write_as([Sent, NotSent, Sent, NotSent, Sent, Sent]);
    rig.pair.tx.complete(&rig.memory, outcomes.into_iter());
    assert_eq!(
        rig.tx.collect(&rig.memory).len(),
        1,
        "only what is before the hole is returned"
    );
    rig.pair.tx.on_writable();
    assert_eq!(rig.tx_batch(), 2);
    assert_eq!(rig.tx.collect(&rig.memory).len(), 5);
    let mut sent: Vec<_> = rig
        .tap
        .sent
        .iter()
        .map(|f| crate::frames::number_of(f))
        .collect();
    sent.sort_unstable();
    assert_eq!(sent, [0, 1, 2, 3, 4, 5]);
    assert_eq!(rig.stats(Direction::Tx).packets, 6);
}

/// Outcomes, batch limits and life-cycle calls at random: each frame is sent once and returned
/// once, whatever holes there were.
#[test]
fn holes_of_every_shape_lose_and_double_nothing() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::with(ALL, 128, 65_500);
        let mut posted = 0;
        let mut returned = 0;
        for step in 0.. {
            assert!(step < 10_000, "seed {seed}: {returned} of 500 returned");
            if returned == 500 {
                break;
            }
            while posted < 500 && rig.tx.room() > 0 && !rng.once_in(20) {
                rig.post_tx(&frame(posted, 60));
                posted += 1;
            }
            rig.tx.publish(&rig.memory);
            rig.tap.batch_limit = Some(1 + rng.below(70));
            let frames = rig.pair.tx.fill(&rig.memory, &mut rig.tap);
            if frames > 0 {
                let holes = 1 + rng.below(6);
                let outcomes: Vec<_> = (0..frames)
                    .map(|_| match rng.once_in(holes) {
                        true => TxOutcome::NotSent,
                        false => TxOutcome::Sent,
                    })
                    .collect();
                let outcomes = rig.tap.write_as(outcomes);
                rig.pair.tx.complete(&rig.memory, outcomes.into_iter());
            }
            returned += rig.tx.collect(&rig.memory).len();
            if rng.once_in(10) {
                upset(&mut rig, &mut rng);
            }
            rig.pair.tx.on_writable();
        }
        let mut sent: Vec<_> = rig
            .tap
            .sent
            .iter()
            .map(|f| crate::frames::number_of(f))
            .collect();
        sent.sort_unstable();
        assert_eq!(sent, (0..500).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// What a frontend may do to a running ring without stopping it.
fn upset(rig: &mut Rig, rng: &mut Rng) {
    let memory = rig.memory.clone();
    match rng.below(4) {
        0 => {
            rig.pair.disable(Direction::Tx, Some(&memory));
            rig.pair.enable(Direction::Tx, Some(&memory));
        }
        1 => rig.pair.remap(Some(&memory)),
        2 => {
            let addresses = rig.tx.addresses();
            rig.pair
                .set_addresses(Direction::Tx, addresses, Some(&memory));
        }
        _ => {
            // VHOST_F_LOG_ALL comes and goes at the start and end of a migration.
            let log = u64::from(rng.once_in(2)) << 26;
            rig.pair
                .set_features(tapring_queue::Features(ALL | log), Some(&memory));
        }
    }
}

#[test]
fn without_holes_frames_leave_in_ring_order_however_often_the_tap_fills() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::with(ALL, 256, 65_400);
        let mut posted = 0;
        for step in 0.. {
            assert!(
                step < 10_000,
                "seed {seed}: {} of 1000 sent",
                rig.tap.sent.len()
            );
            if rig.tap.sent.len() == 1000 {
                break;
            }
            while posted < 1000 && rig.tx.room() > 0 {
                rig.post_tx(&frame(posted, 60 + posted % 100));
                posted += 1;
            }
            rig.tx.publish(&rig.memory);
            rig.tap.room = Some(rng.below(100));
            rig.pair.tx.on_writable();
            rig.tx_batch();
            rig.tx.collect(&rig.memory);
        }
        expect_numbered(&rig, 1000);
    }
}

#[test]
fn used_lengths_of_transmitted_chains_are_0_whatever_became_of_them() {
    let mut rig = Rig::new(ALL);
    let mut rng = Rng::new(7);
    for n in 0..10_000 {
        if rig.tx.room() < 2 {
            assert!(rig.run_tx().iter().all(|used| used.len == 0));
        }
        match rng.below(3) {
            0 => rig
                .tx
                .add(&rig.memory, &[crate::driver::writable(0x8000, 100)]),
            1 => rig
                .tx
                .add(&rig.memory, &[crate::driver::readable(0x8000, 5)]),
            _ => rig.post_tx(&frame(n, 60)),
        };
    }
    rig.run_tx();
    assert_eq!(rig.tx.room(), 256);
}
