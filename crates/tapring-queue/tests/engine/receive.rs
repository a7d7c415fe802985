//! The receiveq: merged buffers, what does not fit, and chains that are malformed on the way.

use tapring_queue::{Direction, Fault, RxEnd, State};

use crate::driver::{readable, writable};
use crate::frames::frame;
use crate::rig::{ALL, MRG_RXBUF, Rig, count_of};
use crate::rng::Rng;

fn num_buffers(header: &[u8]) -> u16 {
    assert_eq!(header[..10], [0; 10]);
    u16::from_le_bytes([header[10], header[11]])
}

/// The chains a frame of `bytes` takes of chains with these capacities, and their used lengths.
fn expected_lengths(bytes: usize, capacities: &[usize]) -> Vec<u32> {
    let mut left = bytes + 12;
    let mut lengths = Vec::new();
    for capacity in capacities {
        if left == 0 {
            break;
        }
        let taken = left.min(*capacity);
        left -= taken;
        lengths.push(u32::try_from(taken).unwrap());
    }
    assert_eq!(left, 0);
    lengths
}

#[test]
fn a_merged_frame_takes_just_enough_chains_and_counts_them() {
    for capacity in [12, 13, 25, 26, 27, 100, 1514, 1526, 4096] {
        for bytes in [14, 15, 60, 88, 89, 1502, 1514, 1515, 3040, 9014] {
            let mut rig = Rig::with(ALL, 1024, 0);
            let whole = frame(1, bytes);
            let lengths = expected_lengths(bytes, &vec![capacity; 1024]);
            let mut room = Vec::new();
            for _ in 0..lengths.len() + 2 {
                room.extend(rig.post_rx(&[capacity]));
            }
            let end = rig.deliver(std::slice::from_ref(&whole));
            assert_eq!(end, RxEnd::Delivered(2));
            let used = rig.rx.collect(&rig.memory);
            assert_eq!(
                used.iter().map(|used| used.len).collect::<Vec<_>>(),
                lengths
            );
            let got = rig.contents(&room, u32::try_from(bytes + 12).unwrap());
            assert_eq!(usize::from(num_buffers(&got)), lengths.len());
            assert_eq!(got[12..], whole);
        }
    }
}

#[test]
fn merged_frames_over_chains_of_mixed_sizes_stay_whole_and_in_order() {
    let mut rng = Rng::new(99);
    let mut rig = Rig::with(ALL, 256, 65_000);
    let mut chains = std::collections::VecDeque::new();
    let mut next = 0;
    let mut expected = std::collections::VecDeque::new();
    for _ in 0..500 {
        while rig.rx.room() >= 3 {
            let lengths: Vec<_> = (0..1 + rng.below(3)).map(|_| 12 + rng.below(700)).collect();
            chains.push_back(rig.post_rx(&lengths));
        }
        let frames: Vec<_> = (0..rng.below(8))
            .map(|_| {
                next += 1;
                frame(next, 14 + rng.below(3000))
            })
            .collect();
        expected.extend(frames.iter().cloned());
        rig.deliver(&frames);
        let mut used = rig.rx.collect(&rig.memory).into_iter();
        while let Some(first) = used.next() {
            let mut got = rig.contents(&chains.pop_front().unwrap(), first.len);
            for _ in 1..num_buffers(&got) {
                let more = used.next().expect("all chains of a frame appear together");
                got.extend(rig.contents(&chains.pop_front().unwrap(), more.len));
            }
            assert_eq!(Some(&got[12..]), expected.pop_front().as_deref());
        }
    }
    assert!(next > 1000 && expected.len() <= rig.tap.held.len());
}

#[test]
fn frames_of_one_turn_are_published_under_one_index_store() {
    let mut rig = Rig::new(ALL);
    for _ in 0..100 {
        rig.post_rx(&[600]);
    }
    let frames: Vec<_> = (0..30).map(|n| frame(n, 1514)).collect();
    rig.deliver(&frames);
    assert_eq!(rig.rx.collect(&rig.memory).len(), 90);
    let stats = rig.stats(Direction::Rx);
    assert_eq!(
        (stats.batches, stats.packets, stats.bytes),
        (1, 30, 30 * 1514)
    );
}

#[test]
fn without_mergeable_buffers_a_frame_that_does_not_fit_is_dropped_and_the_next_arrives() {
    for (capacity, bytes) in [(1526, 1515), (26, 15), (12 + 500, 501), (1526, 9000)] {
        let mut rig = Rig::new(ALL & !MRG_RXBUF);
        let room = rig.post_rx(&[capacity]);
        let next = frame(2, capacity - 12);
        rig.deliver(&[frame(1, bytes), next.clone()]);
        let used = rig.rx.collect(&rig.memory);
        assert_eq!(used.len(), 1, "no cut frame is handed over");
        assert_eq!(used[0].len as usize, capacity);
        let got = rig.contents(&room, used[0].len);
        assert_eq!((num_buffers(&got), &got[12..]), (1, &next[..]));
        assert_eq!(rig.stats(Direction::Rx).too_large, 1);
    }
}

#[test]
fn without_mergeable_buffers_the_frame_sizes_at_the_edge_fit_exactly() {
    for capacity in [26, 12 + 500, 12 + 1514] {
        for bytes in [14, 60, 500, 501, 1000, 1514, 1518] {
            let mut rig = Rig::new(ALL & !MRG_RXBUF);
            rig.post_rx(&[capacity]);
            rig.deliver(&[frame(1, bytes)]);
            let lengths: Vec<_> = rig.rx.collect(&rig.memory).iter().map(|u| u.len).collect();
            let fits = bytes + 12 <= capacity;
            let expected = u32::try_from(bytes + 12).unwrap();
            assert_eq!(lengths, if fits { vec![expected] } else { vec![] });
        }
    }
}

#[test]
fn a_frame_larger_than_the_whole_ring_is_dropped() {
    let mut rig = Rig::with(ALL, 4, 0);
    let mut room = Vec::new();
    for _ in 0..4 {
        room.extend(rig.post_rx(&[100]));
    }
    let next = frame(2, 388);
    rig.deliver(&[frame(1, 389), next.clone()]);
    let used = rig.rx.collect(&rig.memory);
    assert_eq!(used.len(), 4);
    assert_eq!(rig.contents(&room, 400)[12..], next);
    assert_eq!(rig.stats(Direction::Rx).too_large, 1);
}

#[test]
fn too_few_chains_take_nothing_until_there_are_enough() {
    let mut rig = Rig::new(ALL);
    for _ in 0..3 {
        rig.post_rx(&[1526]);
    }
    let big = frame(1, 9000);
    assert_eq!(rig.deliver(std::slice::from_ref(&big)), RxEnd::NoBuffers(6));
    assert!(rig.rx.collect(&rig.memory).is_empty());
    for _ in 0..3 {
        rig.post_rx(&[1526]);
    }
    rig.rx.publish(&rig.memory);
    assert_eq!(rig.fill_rx(), RxEnd::NoBuffers(1));
    assert_eq!(rig.rx.collect(&rig.memory).len(), 6);
}

/// Asked too late, the frame would wait for its drop timer.
#[test]
fn what_a_frame_needs_is_estimated_from_the_largest_chain_seen() {
    let mut rig = Rig::new(ALL);
    for capacity in [1526, 1526, 100] {
        rig.post_rx(&[capacity]);
    }
    assert_eq!(rig.deliver(&[frame(1, 9000)]), RxEnd::NoBuffers(3 + 4));
}

#[test]
fn a_malformed_chain_in_the_middle_of_a_merged_frame_comes_back_empty_with_those_before_it() {
    let bad = [
        (Fault::WrongDirection, readable(0x8000, 100)),
        (Fault::BadAddress, writable(crate::rig::HOLE, 100)),
        (Fault::TooShort, writable(0x8000, 0)),
    ];
    for (fault, buffer) in bad {
        for before in 0..4 {
            let mut rig = Rig::new(ALL);
            for _ in 0..before {
                rig.post_rx(&[100]);
            }
            rig.rx.add(&rig.memory, &[buffer]);
            let mut room = Vec::new();
            for _ in 0..5 {
                room.extend(rig.post_rx(&[100]));
            }
            let whole = frame(1, 450);
            rig.deliver(std::slice::from_ref(&whole));
            let used = rig.rx.collect(&rig.memory);
            let lengths: Vec<_> = used.iter().map(|used| used.len).collect();
            let mut expected = vec![0; before + 1];
            expected.extend([100, 100, 100, 100, 62]);
            assert_eq!(lengths, expected, "{fault} behind {before}");
            let got = rig.contents(&room, 462);
            assert_eq!((num_buffers(&got), &got[12..]), (5, &whole[..]));
            assert_eq!(count_of(&rig.stats(Direction::Rx), fault), 1);
        }
    }
}

#[test]
fn a_head_out_of_range_in_the_middle_of_a_merged_frame_returns_those_before_it() {
    let mut rig = Rig::new(ALL);
    rig.post_rx(&[100]);
    rig.post_rx(&[100]);
    rig.rx.add_head(&rig.memory, 0xffff);
    let mut room = Vec::new();
    for _ in 0..5 {
        room.extend(rig.post_rx(&[100]));
    }
    let whole = frame(1, 450);
    rig.deliver(std::slice::from_ref(&whole));
    let lengths: Vec<_> = rig
        .rx
        .collect(&rig.memory)
        .iter()
        .map(|used| used.len)
        .collect();
    assert_eq!(lengths, [0, 0, 100, 100, 100, 100, 62]);
    assert_eq!(rig.contents(&room, 462)[12..], whole);
}

#[test]
fn bytes_behind_the_used_length_are_not_written() {
    for features in [ALL, ALL & !MRG_RXBUF] {
        let mut rig = Rig::new(features);
        let room = rig.post_rx(&[2048]);
        rig.deliver(&[frame(1, 60)]);
        let behind = &rig.contents(&room, 2048)[72..];
        assert!(behind.iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn a_waiting_queue_is_not_looked_at_before_the_tap_is_readable() {
    let mut rig = Rig::new(ALL);
    rig.post_rx(&[2048]);
    rig.tx_batch();
    rig.deliver(&[]);
    rig.door();
    assert_eq!(rig.state(Direction::Rx), State::Waiting);
    rig.tap.held.push_back(frame(1, 60));
    rig.kick(Direction::Rx);
    assert_eq!(rig.fill_rx(), RxEnd::NotRunning);
    rig.pair.rx.on_readable();
    assert_eq!(rig.fill_rx(), RxEnd::NoBuffers(1));
}
