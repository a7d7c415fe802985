//! Malformed chains, tables and heads.

use tapring_queue::{Direction, Fault, State};

use crate::driver::{Buffer, INDIRECT, NEXT, Used, readable, writable, write_table};
use crate::frames::frame;
use crate::rig::{ALL, HOLE, INDIRECT_DESC, Rig, all_faults, count_of};
// ---- chains and tables --------------------------------------------------------------------------

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

// ---- heads --------------------------------------------------------------------------------------

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

// ---- many of them -------------------------------------------------------------------------------

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
    rig.deliver(&frames);
    let stats = rig.stats(Direction::Rx);
    assert!(count_of(&stats, Fault::BadChain) > 0, "no bound was met");
    assert!(matches!(rig.state(Direction::Rx), State::Requeued(_)));
}
