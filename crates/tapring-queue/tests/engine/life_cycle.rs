//! Start, stop, enable, disable, new memory, new features: with chains pending, and without kicks.

use tapring_queue::{
    Block, Direction, Door, Features, QueueSize, Requeue, RingPosition, RingSetup, RxEnd, State,
};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap};

use crate::driver::Driver;
use crate::frames::{frame, number_of};
use crate::rig::{ALL, EVENT_IDX, MRG_RXBUF, Rig};

#[test]
fn a_stopped_ring_says_where_it_stands_and_goes_on_there() {
    let mut rig = Rig::with(ALL, 256, 65_000);
    let mut posted = 0;
    let mut position = RingPosition {
        next_avail: 65_000,
        next_used: 65_000,
    };
    for round in 1..=10usize {
        for _ in 0..200 {
            rig.post_tx(&frame(posted, 60));
            posted += 1;
        }
        rig.tx.publish(&rig.memory);
        // Some of it is still on the ring when it is stopped.
        rig.tx_batch();
        rig.tx_batch();
        position = rig.pair.stop(Direction::Tx);
        let taken = u16::try_from(rig.tap.sent.len()).unwrap();
        assert_eq!(position.next_avail, 65_000u16.wrapping_add(taken));
        assert_eq!(position.next_used, position.next_avail);
        assert_eq!(rig.tx_batch(), 0, "stopped is stopped");
        rig.tx.collect(&rig.memory);
        rig.start(Direction::Tx);
        rig.run_tx();
        assert_eq!(rig.tap.sent.len(), 200 * round);
    }
    assert_ne!(position.next_avail, 65_000);
    let sent: Vec<_> = rig.tap.sent.iter().map(|f| number_of(f)).collect();
    assert_eq!(sent, (0..2000).collect::<Vec<_>>());
}

#[test]
fn receive_frames_that_are_held_are_delivered_after_a_restart_without_a_kick() {
    let mut rig = Rig::with(ALL, 256, 65_000);
    rig.deliver(&[frame(1, 60), frame(2, 60)]);
    rig.pair.stop(Direction::Rx);
    rig.post_rx(&[128]);
    rig.post_rx(&[128]);
    rig.rx.publish(&rig.memory);
    assert_eq!(rig.fill_rx(), RxEnd::NotRunning);
    rig.start(Direction::Rx);
    assert_eq!(rig.door(), Door::Busy);
    rig.fill_rx();
    assert_eq!(rig.rx.collect(&rig.memory).len(), 2);
}

#[test]
fn whatever_brings_a_ring_back_has_it_looked_at_before_anything_sleeps() {
    type ComeBack = fn(&mut Rig, &GuestMemoryMmap);
    let reasons: [(Requeue, ComeBack); 5] = [
        (Requeue::Started, |rig, memory| {
            rig.pair.stop(Direction::Tx);
            let setup = rig.tx.setup();
            rig.pair.start(Direction::Tx, setup, Some(memory));
        }),
        (Requeue::Enabled, |rig, memory| {
            rig.pair.disable(Direction::Tx, Some(memory));
            rig.pair.enable(Direction::Tx, Some(memory));
        }),
        (Requeue::NewMemory, |rig, memory| {
            rig.pair.remap(Some(memory));
        }),
        (Requeue::NewMemory, |rig, memory| {
            let addresses = rig.tx.addresses();
            rig.pair
                .set_addresses(Direction::Tx, addresses, Some(memory));
        }),
        (Requeue::NewMemory, |rig, memory| {
            rig.pair.set_features(Features(ALL | 1 << 26), Some(memory));
        }),
    ];
    for (reason, come_back) in reasons {
        let mut rig = Rig::new(ALL);
        rig.fill_rx();
        rig.tx_batch();
        rig.door();
        assert_eq!(rig.state(Direction::Tx), State::Armed);
        for n in 0..10 {
            rig.post_tx(&frame(n, 60));
        }
        // The kick is lost: its fd was replaced.
        rig.tx.expose(&rig.memory);
        let memory = rig.memory.clone();
        come_back(&mut rig, &memory);
        assert_eq!(rig.state(Direction::Tx), State::Requeued(reason));
        assert!(!rig.tx.kicks_on(&memory));
        assert_eq!(rig.door(), Door::Busy);
        assert_eq!(rig.run_tx().len(), 10);
    }
}

#[test]
fn a_new_kick_fd_has_a_sleeping_ring_looked_at() {
    let mut rig = Rig::new(ALL);
    rig.fill_rx();
    rig.tx_batch();
    rig.door();
    rig.post_tx(&frame(0, 60));
    assert!(
        rig.tx.expose(&rig.memory),
        "a kick, through the fd that goes"
    );
    let memory = rig.memory.clone();
    rig.pair.on_new_kick(Direction::Tx, Some(&memory));
    assert_eq!(rig.run_tx().len(), 1);
    let stats = rig.stats(Direction::Tx);
    assert_eq!((stats.kicks, stats.spurious_kicks), (0, 0));
}

#[test]
fn disabled_rings_touch_nothing_and_lose_nothing() {
    let mut rig = Rig::new(ALL);
    let memory = rig.memory.clone();
    for direction in Direction::ALL {
        rig.pair.disable(direction, Some(&memory));
    }
    for n in 0..10 {
        rig.post_tx(&frame(n, 60));
        rig.post_rx(&[128]);
    }
    rig.tx.publish(&memory);
    let frames: Vec<_> = (0..10).map(|n| frame(n, 60)).collect();
    assert_eq!(rig.deliver(&frames), RxEnd::NotRunning);
    assert_eq!(rig.tx_batch(), 0);
    assert_eq!(rig.door(), Door::Asleep(None));
    assert!(rig.tx.collect(&memory).is_empty() && rig.rx.collect(&memory).is_empty());
    for direction in Direction::ALL {
        rig.pair.enable(direction, Some(&memory));
    }
    assert_eq!(rig.run_tx().len(), 10);
    rig.fill_rx();
    assert_eq!(rig.rx.collect(&memory).len(), 10);
}

#[test]
fn a_ring_that_was_never_enabled_is_not_looked_at() {
    let mut rig = Rig::stopped(ALL, 64, 0);
    rig.start(Direction::Tx);
    rig.post_tx(&frame(0, 60));
    rig.tx.publish(&rig.memory);
    assert_eq!(rig.tx_batch(), 0);
    assert_eq!(rig.state(Direction::Tx), State::Blocked(Block::Disabled));
}

#[test]
fn enable_may_come_before_start() {
    let mut rig = Rig::stopped(ALL, 64, 0);
    let memory = rig.memory.clone();
    rig.pair.enable(Direction::Tx, Some(&memory));
    rig.start(Direction::Tx);
    rig.post_tx(&frame(0, 60));
    assert_eq!(rig.run_tx().len(), 1);
}

#[test]
fn the_same_features_again_change_nothing() {
    let mut rig = Rig::new(ALL);
    rig.fill_rx();
    rig.tx_batch();
    rig.door();
    let memory = rig.memory.clone();
    rig.pair.set_features(Features(ALL), Some(&memory));
    assert_eq!(rig.state(Direction::Tx), State::Armed);
}

#[test]
fn new_memory_without_the_ring_blocks_it_and_memory_with_it_brings_it_back() {
    let mut rig = Rig::new(ALL);
    rig.expect_tx_works();
    let memory = rig.memory.clone();
    let other = GuestMemoryMmap::from_ranges(&[(vm_memory::GuestAddress(0), 0x1000)]).unwrap();
    for without in [None, Some(&other)] {
        rig.pair.remap(without);
        for direction in Direction::ALL {
            assert_eq!(rig.state(direction), State::Blocked(Block::MemoryFault));
        }
        assert_eq!(rig.pair.door(without, rig.now), Door::Asleep(None));
        for n in 0..10 {
            rig.post_tx(&frame(n, 60));
        }
        rig.tx.publish(&memory);
        rig.pair.remap(Some(&memory));
        assert_eq!(rig.run_tx().len(), 10);
    }
    rig.expect_rx_works();
}

#[test]
fn nothing_is_read_from_the_old_memory_after_a_remap() {
    let mut rig = Rig::new(ALL);
    rig.expect_tx_works();
    let old = std::mem::replace(&mut rig.memory, crate::rig::guest_memory());
    rig.tx = Driver::new(&rig.memory, rig.tx.base, 256, rig.tx.last_used, true);
    rig.rx = Driver::new(&rig.memory, rig.rx.base, 256, rig.rx.last_used, true);
    let memory = rig.memory.clone();
    rig.pair.remap(Some(&memory));
    drop(old);
    rig.expect_tx_works();
    rig.expect_rx_works();
    assert_eq!(memory.num_regions(), 3);
}

#[test]
fn a_reboot_begins_at_zero_with_whatever_was_negotiated_last() {
    let mut rig = Rig::new(ALL);
    let phases = [
        (16, Features::VERSION_1),
        (256, ALL),
        (16, Features::VERSION_1 | EVENT_IDX),
        (1024, ALL & !EVENT_IDX),
    ];
    for round in 0..12 {
        let (size, features) = phases[round % phases.len()];
        let event_idx = features & EVENT_IDX != 0;
        let memory = rig.memory.clone();
        for direction in Direction::ALL {
            rig.pair.stop(direction);
        }
        rig.tap.held.clear();
        rig.pair.set_features(Features(features), Some(&memory));
        rig.tx = Driver::new(&memory, rig.tx.base, size, 0, event_idx);
        rig.rx = Driver::new(&memory, rig.rx.base, size, 0, event_idx);
        for direction in Direction::ALL {
            rig.start(direction);
        }
        for _ in 0..1234 {
            rig.expect_tx_works();
            rig.expect_rx_works();
        }
        assert_eq!(rig.tx.used_index(&memory), 1234);
        assert_eq!(rig.rx.used_index(&memory), 1234);
        let merged = rig.deliver(&[frame(1, 3000)]);
        assert_eq!(merged, RxEnd::NoBuffers(1));
        assert_eq!(features & MRG_RXBUF, ALL & MRG_RXBUF & features);
    }
}

#[test]
fn a_second_start_without_a_stop_takes_the_new_position() {
    let mut rig = Rig::new(ALL);
    rig.expect_tx_works();
    let memory = rig.memory.clone();
    rig.tx = Driver::new(&memory, rig.tx.base + 0x8000, 64, 40_000, true);
    let setup = RingSetup {
        size: QueueSize::new(64).unwrap(),
        addresses: rig.tx.addresses(),
        next_avail: 40_000,
    };
    rig.pair.start(Direction::Tx, setup, Some(&memory));
    rig.expect_tx_works();
    assert_eq!(rig.tx.used_index(&memory), 40_001);
}

#[test]
fn queue_sizes_are_powers_of_two() {
    for size in [0u16, 3, 100, 257, 32_767, 32_769, 65_535] {
        assert_eq!(QueueSize::new(size), None);
    }
    for power in 0..16 {
        assert_eq!(QueueSize::new(1 << power).unwrap().as_u16(), 1 << power);
    }
}
