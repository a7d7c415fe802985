//! What a guest can do wrong, on both rings: it costs the guest that frame and nothing else.

use tapring_queue::{Block, Direction, Fault, Features, RingAddresses, State};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{Buffer, INDIRECT, NEXT, Used, WRITE, readable, writable, write_table};
use crate::frames::frame;
use crate::rig::{
    ALL, BEHIND_HOLE, END, HOLE, INDIRECT_DESC, MRG_RXBUF, Rig, SEAM, all_faults, count_of,
};

/// How the descriptors of a chain are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Direct,
    Table,
    /// A normal descriptor, then the rest in a table (§2.7.5.3.2).
    Mixed,
}

const FORMS: [Form; 3] = [Form::Direct, Form::Table, Form::Mixed];

fn post(rig: &mut Rig, direction: Direction, form: Form, buffers: &[Buffer]) -> u16 {
    let table = rig.alloc(16 * buffers.len());
    let first_in_ring = match form {
        Form::Direct => buffers.len(),
        Form::Table => 0,
        Form::Mixed => 1,
    };
    let mut chain = buffers[..first_in_ring].to_vec();
    let rest = &buffers[first_in_ring..];
    if form != Form::Direct {
        write_table(&rig.memory, table, rest);
        let len = u32::try_from(16 * rest.len()).unwrap();
        chain.push(Buffer {
            addr: table,
            len,
            flags: INDIRECT,
        });
    }
    let memory = rig.memory.clone();
    rig.driver(direction).add(&memory, &chain)
}

/// A malformed transmit chain comes back with length 0, is counted once, and the next is sent.
fn expect_refused_tx(form: Form, fault: Fault, buffers: &[Buffer]) {
    let mut rig = Rig::new(ALL);
    post(&mut rig, Direction::Tx, form, buffers);
    let good = frame(1, 60);
    rig.post_tx(&good);
    let used = rig.run_tx();
    let context = format!("{form:?} {fault} {buffers:?}");
    assert_eq!(used.len(), 2, "{context}");
    assert!(used.iter().all(|used| used.len == 0), "{context}");
    assert_eq!(rig.tap.sent, [good], "{context}");
    let stats = rig.stats(Direction::Tx);
    assert_eq!(
        (count_of(&stats, fault), all_faults(&stats)),
        (1, 1),
        "{context}"
    );
    assert_eq!((stats.packets, stats.bytes), (1, 60), "{context}");
    assert_eq!(rig.tx.room(), 256, "{context}");
}

/// The same for a receive chain, and the frame goes into the next one, whole.
fn expect_refused_rx(features: u64, form: Form, fault: Fault, buffers: &[Buffer]) {
    let mut rig = Rig::new(features);
    post(&mut rig, Direction::Rx, form, buffers);
    let good = frame(1, 60);
    let room = rig.post_rx(&[2048]);
    rig.deliver(std::slice::from_ref(&good));
    let used = rig.rx.collect(&rig.memory);
    let context = format!("{features:x} {form:?} {fault} {buffers:?}");
    assert_eq!(
        used.iter().map(|used| used.len).collect::<Vec<_>>(),
        [0, 72],
        "{context}"
    );
    assert_eq!(rig.contents(&room, 72)[12..], good, "{context}");
    let stats = rig.stats(Direction::Rx);
    assert_eq!(
        (count_of(&stats, fault), all_faults(&stats)),
        (1, 1),
        "{context}"
    );
    assert_eq!(rig.rx.room(), 256, "{context}");
}

/// Buffers that are not guest memory: in a hole, running into one, behind everything, and
/// running over the end of the address space.
const NOWHERE: [(u64, u32); 8] = [
    (HOLE, 100),
    (HOLE + 0x1000, 1),
    (HOLE - 10, 100),
    (BEHIND_HOLE - 1, 100),
    (END - 10, 100),
    (END, 1),
    (u64::MAX - 49, 100),
    (SEAM - 10, 0xffff_ffff),
];

// ---- bad addresses ------------------------------------------------------------------------

#[test]
fn transmit_buffers_that_are_not_guest_memory_are_refused() {
    for form in FORMS {
        for (addr, len) in NOWHERE.into_iter().filter(|(_, len)| *len < 0x1_0000) {
            expect_refused_tx(
                form,
                Fault::BadAddress,
                &[readable(0x8000, 12), readable(addr, len)],
            );
            expect_refused_tx(
                form,
                Fault::BadAddress,
                &[readable(addr, len), readable(0x8000, 90)],
            );
        }
    }
}

#[test]
fn receive_buffers_that_are_not_guest_memory_are_refused() {
    for features in [ALL, ALL & !MRG_RXBUF] {
        for form in FORMS {
            for (addr, len) in NOWHERE {
                let (bad, good) = (writable(addr, len), writable(0x8000, 2000));
                expect_refused_rx(features, form, Fault::BadAddress, &[good, bad]);
                expect_refused_rx(features, form, Fault::BadAddress, &[bad, good]);
            }
        }
    }
}

#[test]
fn empty_buffers_may_point_anywhere() {
    let mut rig = Rig::new(ALL);
    let good = frame(3, 60);
    let bytes = crate::frames::with_header(&good);
    let mut buffers = rig.cut(&bytes, &[12, 60]);
    buffers.insert(1, readable(HOLE, 0));
    buffers.push(readable(u64::MAX, 0));
    rig.tx.add(&rig.memory, &buffers);
    rig.run_tx();
    assert_eq!(rig.tap.sent, [good]);
}

// ---- wrong direction ----------------------------------------------------------------------

#[test]
fn a_writable_buffer_in_a_transmit_chain_is_refused() {
    for form in FORMS {
        for at in 0..3 {
            let mut buffers = [
                readable(0x8000, 12),
                readable(0x9000, 60),
                readable(0xa000, 60),
            ];
            buffers[at].flags = WRITE;
            expect_refused_tx(form, Fault::WrongDirection, &buffers);
        }
    }
}

#[test]
fn a_readable_buffer_in_a_receive_chain_is_refused_and_never_written() {
    for features in [ALL, ALL & !MRG_RXBUF] {
        for form in FORMS {
            for at in 0..3 {
                let mut buffers = [0x8000, 0x9000, 0xa000].map(|addr| writable(addr, 40));
                buffers[at].flags = 0;
                expect_refused_rx(features, form, Fault::WrongDirection, &buffers);
            }
        }
    }
    let mut rig = Rig::new(ALL);
    let secret = rig.place(&[0x5a; 100]);
    rig.rx
        .add(&rig.memory, &[writable(0x8000, 20), readable(secret, 100)]);
    rig.rx.add(&rig.memory, &[readable(secret, 100)]);
    rig.deliver(&[frame(1, 60)]);
    assert_eq!(rig.bytes_at(secret, 100), [0x5a; 100]);
}

#[test]
fn the_write_flag_of_a_descriptor_that_refers_to_a_table_means_nothing() {
    let mut rig = Rig::new(ALL);
    let good = frame(3, 60);
    let bytes = crate::frames::with_header(&good);
    let buffers = rig.cut(&bytes, &[72]);
    let table = rig.alloc(16);
    write_table(&rig.memory, table, &buffers);
    rig.tx.add(
        &rig.memory,
        &[Buffer {
            addr: table,
            len: 16,
            flags: INDIRECT | WRITE,
        }],
    );
    rig.run_tx();
    assert_eq!(rig.tap.sent, [good]);
}

// ---- sizes --------------------------------------------------------------------------------

#[test]
fn transmit_chains_without_a_whole_header_and_ethernet_header_are_refused_wherever_they_are_cut() {
    for total in [0u32, 1, 5, 11, 12, 13, 25] {
        for cut in 0..=total {
            let buffers = [readable(0x8000, cut), readable(0x9000, total - cut)];
            for form in FORMS {
                expect_refused_tx(form, Fault::TooShort, &buffers);
            }
        }
    }
}

#[test]
fn a_transmit_chain_of_just_the_headers_is_sent() {
    for cut in 0..=26 {
        let mut rig = Rig::new(ALL);
        let least = frame(9, 14);
        let buffers = rig.cut(&crate::frames::with_header(&least), &[cut, 26 - cut]);
        rig.tx.add(&rig.memory, &buffers);
        assert_eq!(rig.run_tx().len(), 1);
        assert_eq!(rig.tap.sent, [least]);
    }
}

#[test]
fn transmit_chains_above_the_largest_frame_are_refused_and_the_largest_is_sent() {
    for total in [65_563, 70_012, 131_084, 16 << 20, u32::MAX] {
        let len = total.min(0x40_0000);
        let rest = total - len;
        for form in FORMS {
            expect_refused_tx(
                form,
                Fault::TooLarge,
                &[readable(0x8000, len), readable(0x8000, rest)],
            );
        }
    }
    let mut rig = Rig::new(ALL);
    let largest = frame(1, tapring_queue::MAX_FRAME_BYTES);
    rig.post_tx(&largest);
    rig.run_tx();
    assert!(rig.tap.sent == [largest]);
}

#[test]
fn a_sum_of_lengths_that_overflows_32_bits_is_too_large_not_short() {
    let halves = [readable(0x8000, 0x8000_0000), readable(0x8000, 0x8000_0000)];
    expect_refused_tx(Form::Direct, Fault::TooLarge, &halves);
}

#[test]
fn receive_chains_that_could_hold_no_frame_are_refused() {
    for total in [0u32, 1, 8, 11, 12, 13, 25] {
        for cut in 0..=total {
            let buffers = [writable(0x8000, cut), writable(0x9000, total - cut)];
            expect_refused_rx(ALL & !MRG_RXBUF, Form::Direct, Fault::TooShort, &buffers);
            if total < 12 {
                expect_refused_rx(ALL, Form::Direct, Fault::TooShort, &buffers);
            }
        }
    }
}

#[test]
fn a_header_that_asks_for_an_offload_is_refused() {
    for (at, value) in [
        (0, 1u8),
        (0, 3),
        (1, 1),
        (1, 3),
        (1, 4),
        (1, 5),
        (1, 0x80),
        (1, 0x81),
    ] {
        let mut rig = Rig::new(ALL);
        let mut bytes = crate::frames::with_header(&frame(1, 60));
        bytes[at] = value;
        for lengths in [vec![72], vec![at, 72 - at], vec![at + 1, 71 - at]] {
            let buffers = rig.cut(&bytes, &lengths);
            rig.tx.add(&rig.memory, &buffers);
        }
        assert_eq!(rig.run_tx().len(), 3);
        assert_eq!(count_of(&rig.stats(Direction::Tx), Fault::BadHeader), 3);
        rig.expect_tx_works();
    }
}

// ---- chains and tables --------------------------------------------------------------------

/// Both rings, with a chain whose descriptors `spoil` writes; the fault must cost only itself.
fn expect_bad_chain(fault: Fault, features: u64, spoil: impl Fn(&mut Rig, Direction, u16)) {
    for direction in Direction::ALL {
        let mut rig = Rig::new(features);
        let memory = rig.memory.clone();
        let buffers = match direction {
            Direction::Tx => [readable(0x8000, 50), readable(0x9000, 50)],
            Direction::Rx => [writable(0x8000, 20), writable(0x9000, 2000)],
        };
        let head = rig.driver(direction).add(&memory, &buffers);
        spoil(&mut rig, direction, head);
        let used = match direction {
            Direction::Tx => rig.run_tx(),
            Direction::Rx => {
                rig.deliver(&[frame(1, 60)]);
                rig.rx.collect(&memory)
            }
        };
        assert_eq!(used, [Used { head, len: 0 }], "{direction} {fault}");
        let stats = rig.stats(direction);
        assert_eq!(
            (count_of(&stats, fault), all_faults(&stats)),
            (1, 1),
            "{direction}"
        );
        rig.tap.held.clear();
        rig.expect_tx_works();
        rig.expect_rx_works();
    }
}

fn buffer_for(direction: Direction) -> Buffer {
    match direction {
        Direction::Tx => readable(0x8000, 50),
        Direction::Rx => writable(0x8000, 20),
    }
}

#[test]
fn next_out_of_range_is_refused() {
    for next in [256, 257, 0x7fff, 0xffff] {
        expect_bad_chain(Fault::BadChain, ALL, |rig, direction, head| {
            let memory = rig.memory.clone();
            let buffer = buffer_for(direction);
            rig.driver(direction)
                .write_descriptor(&memory, head, &buffer, Some(next));
        });
    }
}

#[test]
fn loops_are_refused() {
    for back in [0, 1] {
        expect_bad_chain(Fault::BadChain, ALL, |rig, direction, head| {
            let memory = rig.memory.clone();
            let buffer = Buffer {
                len: 1,
                ..buffer_for(direction)
            };
            rig.driver(direction)
                .write_descriptor(&memory, head, &buffer, Some(head + 1));
            rig.driver(direction)
                .write_descriptor(&memory, head + 1, &buffer, Some(head + back));
        });
    }
}

#[test]
fn a_table_with_a_loop_or_next_out_of_range_is_refused() {
    for next in [0, 1, 2, 0xffff] {
        expect_bad_chain(Fault::BadChain, ALL, |rig, direction, head| {
            let memory = rig.memory.clone();
            let table = rig.alloc(32);
            let buffer = Buffer {
                len: 1,
                ..buffer_for(direction)
            };
            write_table(&memory, table, &[buffer; 2]);
            crate::driver::write_descriptor(&memory, table + 16, &buffer, Some(next));
            let hop = Buffer {
                addr: table,
                len: 32,
                flags: INDIRECT,
            };
            rig.driver(direction)
                .write_descriptor(&memory, head, &hop, None);
        });
    }
}

#[test]
fn tables_of_impossible_length_or_address_are_refused() {
    let bad = [
        (0x8000, 0),
        (0x8000, 8),
        (0x8000, 15),
        (0x8000, 17),
        (0x8000, 16 * 257),
        (0x8000, 0xffff_fff0),
        (HOLE, 16),
        (HOLE - 16, 32),
        (u64::MAX - 15, 32),
    ];
    for (addr, len) in bad {
        expect_bad_chain(Fault::BadIndirect, ALL, |rig, direction, head| {
            let memory = rig.memory.clone();
            let hop = Buffer {
                addr,
                len,
                flags: INDIRECT,
            };
            rig.driver(direction)
                .write_descriptor(&memory, head, &hop, None);
        });
    }
}

#[test]
fn a_table_in_a_table_is_refused() {
    for at in [0, 1] {
        expect_bad_chain(Fault::BadIndirect, ALL, |rig, direction, head| {
            let memory = rig.memory.clone();
            let table = rig.alloc(32);
            let mut entries = [Buffer {
                len: 30,
                ..buffer_for(direction)
            }; 2];
            entries[at] = Buffer {
                addr: table,
                len: 32,
                flags: INDIRECT,
            };
            write_table(&memory, table, &entries);
            let hop = Buffer {
                addr: table,
                len: 32,
                flags: INDIRECT,
            };
            rig.driver(direction)
                .write_descriptor(&memory, head, &hop, None);
        });
    }
}

#[test]
fn a_table_that_is_chained_on_is_refused() {
    expect_bad_chain(Fault::BadIndirect, ALL, |rig, direction, head| {
        let memory = rig.memory.clone();
        let table = rig.alloc(16);
        write_table(&memory, table, &[buffer_for(direction)]);
        let hop = Buffer {
            addr: table,
            len: 16,
            flags: INDIRECT | NEXT,
        };
        rig.driver(direction)
            .write_descriptor(&memory, head, &hop, Some(head + 1));
    });
}

#[test]
fn a_table_that_was_not_negotiated_is_refused() {
    expect_bad_chain(
        Fault::BadIndirect,
        ALL & !INDIRECT_DESC,
        |rig, direction, head| {
            let memory = rig.memory.clone();
            let table = rig.alloc(16);
            write_table(&memory, table, &[buffer_for(direction)]);
            let hop = Buffer {
                addr: table,
                len: 16,
                flags: INDIRECT,
            };
            rig.driver(direction)
                .write_descriptor(&memory, head, &hop, None);
        },
    );
}

// ---- heads --------------------------------------------------------------------------------

#[test]
fn a_head_out_of_range_returns_nothing_and_does_not_stop_the_next() {
    for direction in Direction::ALL {
        for head in [256, 257, 0x7fff, 0xffff] {
            let mut rig = Rig::new(ALL);
            let memory = rig.memory.clone();
            rig.driver(direction).add_head(&memory, head);
            rig.expect_tx_works();
            rig.expect_rx_works();
            assert_eq!(count_of(&rig.stats(direction), Fault::BadHead), 1);
        }
    }
}

#[test]
fn a_head_offered_more_than_once_comes_back_once_an_entry() {
    for times in [2, 3, 64, 200] {
        let mut rig = Rig::new(ALL);
        let first = frame(1, 60);
        let head = rig.post_tx(&first);
        let room = rig.post_rx(&[2048]);
        for _ in 1..times {
            rig.tx.add_head(&rig.memory, head);
            rig.tx.outstanding.push_back((head, Vec::new()));
            rig.rx.add_head(&rig.memory, 0);
            rig.rx.outstanding.push_back((0, Vec::new()));
        }
        assert_eq!(rig.run_tx().len(), times);
        assert_eq!(rig.tap.sent, vec![first; times]);
        let frames: Vec<_> = (0..times).map(|n| frame(n, 100)).collect();
        rig.deliver(&frames);
        assert_eq!(
            rig.rx.collect(&rig.memory),
            vec![Used { head: 0, len: 112 }; times]
        );
        assert_eq!(rig.contents(&room, 112)[12..], frames[times - 1]);
    }
}

// ---- many of them -------------------------------------------------------------------------

#[test]
fn thousands_of_faults_leave_every_slot_usable() {
    for direction in Direction::ALL {
        let mut rig = Rig::new(ALL);
        let memory = rig.memory.clone();
        let bad = match direction {
            Direction::Tx => [
                readable(0x8000, 3),
                writable(0x8000, 100),
                readable(HOLE, 100),
                Buffer {
                    addr: 0x8000,
                    len: 17,
                    flags: INDIRECT,
                },
            ],
            Direction::Rx => [
                writable(0x8000, 3),
                readable(0x8000, 100),
                writable(HOLE, 100),
                Buffer {
                    addr: 0x8000,
                    len: 17,
                    flags: INDIRECT,
                },
            ],
        };
        let mut returned = 0;
        for i in 0..2000 {
            if rig.driver(direction).room() == 0 {
                returned += turn_until_quiet(&mut rig, direction);
            }
            rig.driver(direction).add(&memory, &[bad[i % bad.len()]]);
        }
        returned += turn_until_quiet(&mut rig, direction);
        assert_eq!(returned, 2000);
        assert_eq!(all_faults(&rig.stats(direction)), 2000);
        assert_eq!(rig.driver(direction).room(), 256);
        rig.tap.held.clear();
        rig.expect_tx_works();
        rig.expect_rx_works();
    }
}

fn turn_until_quiet(rig: &mut Rig, direction: Direction) -> usize {
    if direction == Direction::Tx {
        return rig.run_tx().len();
    }
    rig.deliver(&[frame(1, 60)]);
    while matches!(rig.state(direction), State::Requeued(_)) {
        rig.fill_rx();
    }
    let used = rig.rx.collect(&rig.memory);
    assert!(used.iter().all(|used| used.len == 0));
    used.len()
}

#[test]
fn a_guest_that_posts_malformed_chains_without_end_does_not_keep_the_worker() {
    let mut rig = Rig::new(ALL);
    for _ in 0..256 {
        rig.rx.add(&rig.memory, &[readable(0x8000, 100)]);
    }
    rig.deliver(&[frame(1, 60)]);
    let refused = rig.rx.collect(&rig.memory).len();
    assert!((1..=100).contains(&refused), "{refused} in one turn");
    assert!(matches!(rig.state(Direction::Rx), State::Requeued(_)));
}

#[test]
fn chains_of_empty_buffers_do_not_cost_the_square_of_the_queue_size() {
    let mut rig = Rig::with(ALL, 32768, 0);
    let empty = writable(0x8000, 0);
    let mut buffers = vec![empty; 32767];
    buffers.push(writable(0x8000, 12));
    let head = rig.rx.add(&rig.memory, &buffers);
    for _ in 1..32768 {
        rig.rx.add_head(&rig.memory, head);
        rig.rx.outstanding.push_back((head, Vec::new()));
    }
    let frames: Vec<_> = (0..64).map(|n| frame(n, 1514)).collect();
    let start = std::time::Instant::now();
    rig.deliver(&frames);
    assert!(
        start.elapsed().as_secs() < 60,
        "one turn took {:?}",
        start.elapsed()
    );
}

// ---- rings --------------------------------------------------------------------------------

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
        rig.tx.add(&rig.memory, &[readable(0x8000, 25)]);
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
