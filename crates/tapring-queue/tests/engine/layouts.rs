//! Layouts that are odd but legal: each must give the same bytes as the plain one.

use tapring_queue::{Direction, RxEnd};

use crate::driver::{Buffer, INDIRECT, readable, writable, write_table};
use crate::frames::{frame, with_header};
use crate::rig::{ALL, MRG_RXBUF, Rig, SEAM, all_faults};
use vm_memory::{Bytes, GuestAddress};

/// Ways of handing a list of buffers over as one chain.
fn post_each_way(rig: &mut Rig, direction: Direction, buffers: &[Buffer]) -> usize {
    let memory = rig.memory.clone();
    rig.driver(direction).add(&memory, buffers);
    let mut ways = 1;
    for odd in [0, 1, 2, 8] {
        let table = rig.alloc(16 * buffers.len() + 32).next_multiple_of(16) + odd;
        rig.driver(direction).add_indirect(&memory, table, buffers);
        ways += 1;
    }
    if buffers.len() > 1 {
        let table = rig.alloc(16 * buffers.len());
        write_table(&memory, table, &buffers[1..]);
        let len = u32::try_from(16 * (buffers.len() - 1)).unwrap();
        let hop = Buffer {
            addr: table,
            len,
            flags: INDIRECT,
        };
        rig.driver(direction).add(&memory, &[buffers[0], hop]);
        ways += 1;
    }
    ways
}

fn expect_sent(lengths: &[usize], frame_bytes: usize) {
    let mut rig = Rig::new(ALL);
    let whole = frame(1, frame_bytes);
    let buffers = rig.cut(&with_header(&whole), lengths);
    let ways = post_each_way(&mut rig, Direction::Tx, &buffers);
    let used = rig.run_tx();
    assert_eq!(used.len(), ways, "{lengths:?}");
    assert!(used.iter().all(|used| used.len == 0));
    assert!(rig.tap.sent == vec![whole; ways], "{lengths:?}");
    assert_eq!(all_faults(&rig.stats(Direction::Tx)), 0);
}

/// The chain of `lengths` holds exactly header and frame, or more.
fn expect_received(features: u64, lengths: &[usize], frame_bytes: usize) {
    let mut rig = Rig::new(features);
    let buffers = rig.room_for(lengths);
    let ways = post_each_way(&mut rig, Direction::Rx, &buffers);
    rig.rx.publish(&rig.memory);
    for n in 0..ways {
        let whole = frame(n, frame_bytes);
        rig.deliver(std::slice::from_ref(&whole));
        let used = rig.rx.collect(&rig.memory);
        let len = u32::try_from(12 + frame_bytes).unwrap();
        assert_eq!(
            used.iter().map(|used| used.len).collect::<Vec<_>>(),
            [len],
            "{lengths:?}"
        );
        let got = rig.contents(&buffers, len);
        assert_eq!(
            got[..12],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
            "{lengths:?}"
        );
        assert_eq!(got[12..], whole, "{lengths:?}");
    }
    assert_eq!(all_faults(&rig.stats(Direction::Rx)), 0);
}

fn expect_both(lengths: &[usize]) {
    let frame_bytes = lengths.iter().sum::<usize>() - 12;
    expect_sent(lengths, frame_bytes);
    for features in [ALL, ALL & !MRG_RXBUF] {
        expect_received(features, lengths, frame_bytes);
    }
}

#[test]
fn the_header_may_be_cut_in_two_at_every_byte() {
    for cut in 0..=13 {
        expect_both(&[cut, 72 - cut]);
        expect_both(&[cut, 0, 72 - cut]);
    }
}

#[test]
fn the_header_may_be_cut_in_three_at_every_byte() {
    for first in 0..=12 {
        for second in 0..=13 - first {
            expect_both(&[first, second, 72 - first - second]);
        }
    }
}

#[test]
fn the_header_may_come_in_twelve_pieces() {
    let mut lengths = vec![1; 12];
    lengths.push(60);
    expect_both(&lengths);
    // The same with the payload beginning in the last piece, and nothing between the others.
    let mut lengths = vec![1; 11];
    lengths.push(61);
    expect_both(&lengths);
    let with_nothing_between: Vec<_> = lengths.iter().flat_map(|length| [0, *length, 0]).collect();
    expect_both(&with_nothing_between);
}

#[test]
fn receive_chains_may_be_longer_than_the_frame() {
    for features in [ALL, ALL & !MRG_RXBUF] {
        for lengths in [
            &[12, 1514][..],
            &[2048],
            &[5, 7, 30, 30, 2000],
            &[72, 1],
            &[71, 2, 0],
        ] {
            expect_received(features, lengths, 60);
        }
    }
}

#[test]
fn frames_in_few_pieces_stay_in_guest_memory_and_others_are_gathered() {
    for (pieces, kept) in [(1, true), (20, true), (21, false), (200, false)] {
        let mut rig = Rig::new(ALL);
        let mut lengths = vec![12];
        lengths.resize(pieces + 1, 20);
        let buffers = rig.cut(&with_header(&frame(1, 20 * pieces)), &lengths);
        rig.tx.add(&rig.memory, &buffers);
        rig.tx.publish(&rig.memory);
        rig.pair.tx.fill(&rig.memory, &mut rig.tap);
        assert_eq!(rig.tap.pieces, [kept.then_some(pieces)], "{pieces} pieces");
    }
}

#[test]
fn chains_as_long_as_the_queue_are_served_and_longer_ones_refused() {
    for length in [16usize, 64, 255, 1023, 1024, 1025] {
        let frame_bytes = length * 3 - 12;
        let whole = frame(length, frame_bytes);
        let mut rig = Rig::with(ALL, 1024, 0);
        let buffers = rig.cut(&with_header(&whole), &vec![3; length]);
        let (table, memory) = (rig.alloc(16 * length), rig.memory.clone());
        rig.tx.add_indirect(&memory, table, &buffers);
        let room = rig.room_for(&vec![3; length]);
        let table = rig.alloc(16 * length);
        rig.rx.add_indirect(&memory, table, &room);
        let used = rig.run_tx();
        rig.deliver(std::slice::from_ref(&whole));
        let received = rig.rx.collect(&memory);
        assert_eq!((used.len(), received.len()), (1, 1), "{length}");
        if length <= 1024 {
            assert!(rig.tap.sent == [whole.clone()]);
            assert_eq!(rig.contents(&room, received[0].len)[12..], whole);
        } else {
            assert!(rig.tap.sent.is_empty());
            assert_eq!(received[0].len, 0);
        }
        rig.expect_tx_works();
    }
}

#[test]
fn direct_chains_may_use_every_descriptor_there_is() {
    for length in [255usize, 1023, 1024] {
        let whole = frame(length, length * 3 - 12);
        let mut rig = Rig::with(ALL, 1024, 0);
        let buffers = rig.cut(&with_header(&whole), &vec![3; length]);
        rig.tx.add(&rig.memory, &buffers);
        rig.run_tx();
        let room = rig.post_rx(&vec![3; length]);
        rig.deliver(std::slice::from_ref(&whole));
        let received = rig.rx.collect(&rig.memory);
        assert!(rig.tap.sent == [whole.clone()]);
        assert_eq!(rig.contents(&room, received[0].len)[12..], whole);
    }
}

#[test]
fn buffers_may_run_across_adjacent_regions() {
    for before in [1, 5, 11, 12, 13, 50, 71] {
        let mut rig = Rig::new(ALL);
        let whole = frame(1, 60);
        let addr = SEAM - before;
        rig.memory
            .write_slice(&with_header(&whole), GuestAddress(addr))
            .unwrap();
        rig.tx.add(&rig.memory, &[readable(addr, 72)]);
        rig.run_tx();
        assert_eq!(rig.tap.sent, [whole], "{before} before the seam");

        let whole = frame(2, 60);
        let room = crate::driver::writable(addr, 72);
        rig.rx.add(&rig.memory, &[room]);
        rig.deliver(std::slice::from_ref(&whole));
        let used = rig.rx.collect(&rig.memory);
        assert_eq!(rig.contents(&[room], used[0].len)[12..], whole);
    }
}

#[test]
fn every_subset_of_the_features_moves_frames() {
    for subset in 0..16u32 {
        let bits = [
            ALL & crate::rig::EVENT_IDX,
            crate::rig::INDIRECT_DESC,
            MRG_RXBUF,
            1 << 32,
        ];
        let features = (0..4)
            .filter(|i| subset >> i & 1 == 1)
            .fold(0, |sum, i| sum | bits[i]);
        // A legacy driver leaves num_buffers out (virtio 1.3 §5.1.6.1).
        let header = if features & (MRG_RXBUF | 1 << 32) == 0 {
            10
        } else {
            12
        };
        let mut rig = Rig::new(features);
        for n in 0..1000 {
            let whole = frame(n, 60 + n);
            rig.post_tx_bytes(&[vec![0; header], whole.clone()].concat());
            assert_eq!(rig.run_tx().len(), 1);
            assert_eq!(rig.tap.sent.pop(), Some(whole.clone()));
            let room = rig.post_rx(&[header + 60 + n]);
            assert!(matches!(
                rig.deliver(std::slice::from_ref(&whole)),
                RxEnd::NoBuffers(1)
            ));
            let used = rig.rx.collect(&rig.memory);
            assert_eq!(used[0].len as usize, header + whole.len());
            assert_eq!(rig.contents(&room, used[0].len)[header..], whole);
        }
    }
}

#[test]
fn every_ring_size_moves_frames_over_several_rounds() {
    for power in 0..=15u32 {
        let size = 1u16 << power;
        for start in [0, 65_000] {
            let mut rig = Rig::with(ALL, size, start);
            let frames = usize::from(size) * 2 + 7;
            for n in 0..frames {
                rig.tx.add(&rig.memory, &[readable(0x8000, 72)]);
                rig.rx.add(&rig.memory, &[writable(0x9000, 128)]);
                if rig.tx.room() == 0 || n + 1 == frames {
                    let pending = usize::from(size) - rig.tx.room();
                    assert_eq!(rig.run_tx().len(), pending);
                    let batch: Vec<_> = rig.tap.sent.drain(..).collect();
                    rig.deliver(&batch);
                    let received = rig.rx.collect(&rig.memory);
                    assert!(received.iter().all(|used| used.len == 72));
                    assert_eq!(received.len(), batch.len());
                }
            }
        }
    }
}
