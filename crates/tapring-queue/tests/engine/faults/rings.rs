//! Rings that are not rings.

use tapring_queue::{Block, Direction, Fault, Features, RingAddresses, State};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::readable;
use crate::frames::frame;
use crate::rig::{ALL, BEHIND_HOLE, END, HOLE, INDIRECT_DESC, MRG_RXBUF, Rig, count_of};

/// How far off the avail index is that the driver writes.
const NONSENSE: [u16; 5] = [257, 300, 0x8000, 0xffff, 0xff00];

#[test]
fn an_impossible_avail_index_ends_that_ring_alone_and_a_restart_cures_it() {
    for direction in Direction::ALL {
        for offset in NONSENSE {
            let mut rig = Rig::new(ALL);
            rig.expect_tx_works();
            rig.expect_rx_works();
            let memory = rig.memory.clone();
            let driver = rig.driver(direction);
            let (at, honest) = (driver.avail() + 2, driver.last_used);
            driver.store(&memory, at, honest.wrapping_add(offset));
            rig.pair.rx.on_readable();
            rig.pair.tx.fill(&memory, &mut rig.tap);
            rig.fill_rx();

            assert_eq!(
                rig.state(direction),
                State::Blocked(Block::Broken),
                "{offset}"
            );
            assert!(rig.pair.take_error(direction) && !rig.pair.take_error(direction));
            assert_eq!(count_of(&rig.stats(direction), Fault::BadIndex), 1);
            expect_broken_stays_broken(&mut rig, direction);
            rig.driver(direction).store(&memory, at, honest);
            rig.start(direction);
            rig.expect_tx_works();
            rig.expect_rx_works();
        }
    }
}

/// Neither kicks nor turns nor disabling bring it back, and it never keeps the worker awake.
fn expect_broken_stays_broken(rig: &mut Rig, direction: Direction) {
    let memory = rig.memory.clone();
    for _ in 0..3 {
        rig.kick(direction);
        rig.pair.tx.on_writable();
        rig.pair.rx.on_readable();
        rig.pair.tx.fill(&memory, &mut rig.tap);
        rig.fill_rx();
        rig.door();
        assert!(matches!(rig.door(), tapring_queue::Door::Asleep(_)));
        rig.pair.disable(direction, Some(&memory));
        rig.pair.enable(direction, Some(&memory));
        rig.pair.remap(Some(&memory));
        assert_eq!(rig.state(direction), State::Blocked(Block::Broken));
    }
    // What the other ring did meanwhile is not this test's business.
    rig.pair.tx.fill(&memory, &mut rig.tap);
    rig.fill_rx();
}

#[test]
fn rings_that_are_not_guest_memory_or_misaligned_are_blocked_until_they_move() {
    let good = RingAddresses {
        desc: GuestAddress(0x10_0000),
        avail: GuestAddress(0x10_1000),
        used: GuestAddress(0x10_2000),
    };
    let placed = |place: fn(&mut RingAddresses) -> &mut GuestAddress, at: u64| {
        let mut addresses = good;
        *place(&mut addresses) = GuestAddress(at);
        addresses
    };
    let spots = [
        HOLE,
        HOLE - 16,
        HOLE - 64,
        BEHIND_HOLE - 16,
        END - 16,
        END,
        u64::MAX - 15,
    ];
    let mut bad = Vec::new();
    for at in spots {
        bad.push(placed(|a| &mut a.desc, at));
        bad.push(placed(|a| &mut a.avail, at));
        bad.push(placed(|a| &mut a.used, at));
    }
    bad.push(placed(|a| &mut a.desc, 0x10_0008));
    bad.push(placed(|a| &mut a.avail, 0x10_1001));
    bad.push(placed(|a| &mut a.used, 0x10_2002));

    for direction in Direction::ALL {
        for addresses in &bad {
            let mut rig = Rig::new(ALL);
            let memory = rig.memory.clone();
            rig.pair.set_addresses(direction, *addresses, Some(&memory));
            assert_eq!(
                rig.state(direction),
                State::Blocked(Block::MemoryFault),
                "{addresses:?}"
            );
            assert!(rig.pair.take_error(direction));
            assert_eq!(count_of(&rig.stats(direction), Fault::BadRing), 1);
            rig.pair.tx.fill(&memory, &mut rig.tap);
            rig.fill_rx();
            assert_eq!(rig.state(direction), State::Blocked(Block::MemoryFault));
            let back = rig.driver(direction).addresses();
            rig.pair.set_addresses(direction, back, Some(&memory));
            rig.expect_tx_works();
            rig.expect_rx_works();
        }
    }
}

#[test]
fn a_used_ring_that_overlaps_the_descriptor_table_harms_nobody_else() {
    let mut rig = Rig::new(ALL);
    let mut addresses = rig.tx.addresses();
    addresses.used = addresses.desc;
    let memory = rig.memory.clone();
    rig.pair
        .set_addresses(Direction::Tx, addresses, Some(&memory));
    for n in 0..200 {
        rig.post_tx(&frame(n, 60));
    }
    rig.tx.publish(&memory);
    for _ in 0..20 {
        rig.tx_batch();
    }
    rig.expect_rx_works();
}

#[test]
fn a_ring_filled_with_noise_ends_in_a_fault_or_a_frame_and_never_in_a_panic() {
    let mut rng = crate::rng::Rng::new(42);
    for size in [1u16, 2, 8, 256] {
        for _ in 0..50 {
            let mut rig = Rig::with(ALL, size, 0);
            for direction in Direction::ALL {
                let memory = rig.memory.clone();
                let driver = rig.driver(direction);
                for at in (driver.base..driver.used()).step_by(8) {
                    // Small numbers often: they pass the first checks.
                    let noise = rng.next() >> rng.below(64);
                    memory.write_obj(noise, GuestAddress(at)).unwrap();
                }
                let index = u16::try_from(rng.below(usize::from(size) + 1)).unwrap();
                let at = driver.avail() + 2;
                driver.store(&memory, at, index);
            }
            rig.tap.held.extend((0..10).map(|n| frame(n, 1514)));
            for _ in 0..20 {
                rig.tx_batch();
                rig.fill_rx();
            }
        }
    }
}

#[test]
fn features_never_change_what_is_malformed() {
    for features in [0, Features::EVENT_IDX, MRG_RXBUF, INDIRECT_DESC, ALL] {
        let mut rig = Rig::new(features);
        rig.tx.add(&rig.memory, &[readable(0x8000, 23)]);
        rig.rx.add(&rig.memory, &[readable(0x8000, 2000)]);
        rig.run_tx();
        rig.deliver(&[frame(1, 60)]);
        assert_eq!(count_of(&rig.stats(Direction::Tx), Fault::TooShort), 1);
        assert_eq!(
            count_of(&rig.stats(Direction::Rx), Fault::WrongDirection),
            1
        );
    }
}
