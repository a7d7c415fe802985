//! A driver that believes nothing the device writes: used elements are forged in guest memory and must be found out.

use tapring_guest::{
    Descriptor, DriverRing, Guest, GuestConfig, HEADER_BYTES, Pair, RAW, Ram, RxQueue, TxQueue,
    Until, Violation, Woken,
};

use std::sync::Arc;
use std::time::{Duration, Instant};

struct Bench {
    ram: Arc<Ram>,
    tx: TxQueue,
    rx: RxQueue,
    _guest: Guest,
}

fn bench(change: impl FnOnce(&mut GuestConfig)) -> Bench {
    let mut config = GuestConfig::new("nobody");
    config.start_index = 65_534;
    change(&mut config);
    let mut guest = Guest::prepare(&config).unwrap();
    let Pair { tx, rx } = guest.take_pairs().remove(0);
    Bench {
        ram: guest.ram(),
        tx,
        rx,
        _guest: guest,
    }
}

/// Writes used elements from the ring's used index on, and the index.
fn publish(ram: &Ram, ring: &DriverRing, elements: &[(u32, u32)]) {
    let used = ring.addresses()[2];
    let mut index = ring.used_index();
    for (id, length) in elements {
        let at = used + 4 + u64::from(index % ring.size()) * 8;
        assert!(ram.write(at, &id.to_le_bytes()) && ram.write(at + 4, &length.to_le_bytes()));
        index = index.wrapping_add(1);
    }
    ring.store_used_index(index);
}

/// The buffer of the chain made available `n` chains after `start_index`, found through guest memory.
fn buffer(ram: &Ram, ring: &DriverRing, index: u16) -> u64 {
    let [table, avail, _] = ring.addresses();
    let mut head = [0; 2];
    assert!(ram.read(avail + 4 + u64::from(index % ring.size()) * 2, &mut head));
    let mut address = [0; 8];
    assert!(ram.read(
        table + u64::from(u16::from_le_bytes(head)) * 16,
        &mut address
    ));
    u64::from_le_bytes(address)
}

fn send(bench: &mut Bench, frames: usize) {
    for _ in 0..frames {
        bench.tx.send(&[7; 60]).unwrap();
    }
}

#[test]
fn heads_come_back_once_in_order_and_empty() {
    let mut bench = bench(|_| ());
    send(&mut bench, 3);

    publish(&bench.ram, bench.tx.ring(), &[(0, 0), (1, 0), (2, 0)]);

    assert_eq!(bench.tx.collect(), Ok(3));
    assert_eq!(bench.tx.ring().free(), 256);
    assert_eq!(bench.tx.counters().chains, 3);
}

#[test]
fn a_head_returned_twice_is_a_violation() {
    let mut bench = bench(|_| ());
    send(&mut bench, 2);
    bench.tx.ring_mut().in_order = false;
    publish(&bench.ram, bench.tx.ring(), &[(1, 0), (1, 0)]);
    assert!(matches!(
        bench.tx.collect(),
        Err(Violation::HeadNotOutstanding { head: 1, .. })
    ));
}

#[test]
fn a_head_never_posted_is_a_violation() {
    let mut bench = bench(|_| ());
    send(&mut bench, 2);
    publish(&bench.ram, bench.tx.ring(), &[(9, 0)]);
    assert!(matches!(
        bench.tx.collect(),
        Err(Violation::HeadNotOutstanding { head: 9, .. })
    ));
}

#[test]
fn a_head_beyond_the_ring_is_a_violation() {
    let mut bench = bench(|_| ());
    send(&mut bench, 1);
    publish(&bench.ram, bench.tx.ring(), &[(0x1_0000, 0)]);
    assert!(matches!(
        bench.tx.collect(),
        Err(Violation::HeadOutOfRange { head: 0x1_0000, .. })
    ));
}

#[test]
fn a_head_out_of_order_is_a_violation() {
    let mut bench = bench(|_| ());
    send(&mut bench, 2);
    publish(&bench.ram, bench.tx.ring(), &[(1, 0)]);
    let expected = Violation::OutOfOrder {
        queue: "tx 0".to_owned(),
        index: 65_534,
        head: 1,
        expected: 0,
    };
    assert_eq!(bench.tx.collect(), Err(expected));
}

#[test]
fn a_used_length_on_tx_is_a_violation() {
    let mut bench = bench(|_| ());
    send(&mut bench, 1);
    publish(&bench.ram, bench.tx.ring(), &[(0, 72)]);
    assert!(matches!(
        bench.tx.collect(),
        Err(Violation::UsedLength {
            length: 72,
            capacity: 0,
            ..
        })
    ));
}

#[test]
fn a_used_index_beyond_what_was_given_is_a_violation() {
    let mut bench = bench(|_| ());
    send(&mut bench, 2);
    bench.tx.ring().store_used_index(65_534_u16.wrapping_add(3));
    assert!(matches!(
        bench.tx.collect(),
        Err(Violation::UsedIndex { outstanding: 2, .. })
    ));
    let wait = bench.tx.wait_for_call(Until::Next, Duration::ZERO);
    assert!(matches!(wait, Err(Violation::UsedIndex { .. })));
}

fn header(num_buffers: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[10..].copy_from_slice(&num_buffers.to_le_bytes());
    header
}

/// Posts two buffers and puts a header in front of the first one.
fn receive(header: [u8; HEADER_BYTES], elements: &[(u32, u32)]) -> Result<Vec<usize>, Violation> {
    let mut bench = bench(|config| config.rx_buffer_bytes = 100);
    bench.rx.post(2);
    let first = buffer(&bench.ram, bench.rx.ring(), 65_534);
    assert!(bench.ram.write(first, &header));
    publish(&bench.ram, bench.rx.ring(), elements);
    let mut lengths = Vec::new();
    bench
        .rx
        .receive(10, |frame| lengths.push(frame.len()))
        .map(|_| lengths)
}

#[test]
fn frames_of_one_and_two_buffers_are_put_together() {
    assert_eq!(receive(header(1), &[(0, 72)]), Ok(vec![60]));
    assert_eq!(receive(header(2), &[(0, 100), (1, 30)]), Ok(vec![118]));
}

#[test]
fn a_buffer_returned_empty_is_skipped() {
    assert_eq!(receive(header(1), &[(0, 0)]), Ok(vec![]));
}

#[test]
fn a_frame_published_in_part_is_a_violation() {
    let outcome = receive(header(2), &[(0, 100)]);
    assert!(matches!(
        outcome,
        Err(Violation::PartialFrame {
            num_buffers: 2,
            visible: 1,
            ..
        })
    ));
}

#[test]
fn a_gap_inside_a_merged_frame_is_a_violation() {
    let outcome = receive(header(2), &[(0, 99), (1, 30)]);
    assert!(matches!(
        outcome,
        Err(Violation::NotFilled {
            length: 99,
            capacity: 100,
            ..
        })
    ));
}

#[test]
fn more_bytes_than_a_buffer_has_are_a_violation() {
    let outcome = receive(header(1), &[(0, 101)]);
    assert!(matches!(
        outcome,
        Err(Violation::UsedLength {
            length: 101,
            capacity: 100,
            ..
        })
    ));
}

#[test]
fn a_header_without_a_frame_is_a_violation() {
    for bytes in [1, 11, 12] {
        assert!(matches!(
            receive(header(1), &[(0, bytes)]),
            Err(Violation::ShortFrame { .. })
        ));
    }
}

#[test]
fn a_header_the_features_forbid_is_a_violation() {
    let field = |change: fn(&mut [u8; HEADER_BYTES])| {
        let mut header = header(1);
        change(&mut header);
        match receive(header, &[(0, 72)]) {
            Err(Violation::Header { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(field(|header| header[0] = 1), "flags");
    assert_eq!(field(|header| header[1] = 3), "gso_type");
    assert_eq!(field(|header| header[10] = 0), "num_buffers");
}

#[test]
fn two_buffers_without_mergeable_buffers_are_a_violation() {
    let mut bench = bench(|config| config.mrg_rxbuf = false);
    bench.rx.post(2);
    let first = buffer(&bench.ram, bench.rx.ring(), 65_534);
    assert!(bench.ram.write(first, &header(2)));
    publish(&bench.ram, bench.rx.ring(), &[(0, 1536), (1, 30)]);
    assert!(matches!(
        bench.rx.receive(1, |_| ()),
        Err(Violation::Header { value: 2, .. })
    ));
}

#[test]
fn kicks_are_decided_as_linux_does() {
    let mut bench = bench(|config| config.start_index = 65_535);
    // Asked for at the first chain, which is the last before the wrap.
    bench.tx.ring().store_avail_event(65_535);
    send(&mut bench, 1);
    assert!(bench.tx.kick_if_needed());
    // Passed already: no kick until the index comes round.
    send(&mut bench, 1);
    assert!(!bench.tx.kick_if_needed());
    // Within a burst.
    bench.tx.ring().store_avail_event(5);
    send(&mut bench, 10);
    assert!(bench.tx.kick_if_needed());
    // No chain, no kick.
    assert!(!bench.tx.kick_if_needed());
    let counters = bench.tx.counters();
    assert_eq!((counters.kicks_sent, counters.kicks_suppressed), (2, 1));
}

#[test]
fn a_kick_costs_the_exit_and_nothing_else_does() {
    const EXIT: Duration = Duration::from_millis(20);
    let mut bench = bench(|config| config.start_index = 0);
    bench.tx.ring_mut().set_exit_cost(EXIT);
    // The fastest of several: whatever else ran meanwhile did not run in all of them.
    let mut took = |kicks: bool| {
        let tries = (0..8).map(|_| {
            let next = bench.tx.ring().avail_index();
            let event = if kicks { next } else { next.wrapping_sub(1) };
            bench.tx.ring().store_avail_event(event);
            bench.tx.send(&[7; 60]).unwrap();
            let began = Instant::now();
            assert_eq!(bench.tx.kick_if_needed(), kicks);
            began.elapsed()
        });
        tries.min().unwrap()
    };
    assert!(took(true) >= EXIT);
    assert!(took(false) < EXIT);
}

#[test]
fn without_event_idx_the_flag_decides() {
    let mut bench = bench(|config| config.event_idx = false);
    send(&mut bench, 1);
    assert!(bench.tx.kick_if_needed());
    let flags = bench.tx.ring().addresses()[2];
    assert!(bench.ram.write(flags, &1u16.to_le_bytes()));
    send(&mut bench, 1);
    assert!(!bench.tx.kick_if_needed());
}

#[test]
fn used_event_is_written_as_linux_does() {
    let mut bench = bench(|config| config.start_index = 0);
    send(&mut bench, 100);
    let event = |bench: &Bench| {
        let mut bytes = [0; 2];
        assert!(
            bench
                .ram
                .read(bench.tx.ring().addresses()[1] + 4 + 256 * 2, &mut bytes)
        );
        u16::from_le_bytes(bytes)
    };
    assert_eq!(bench.tx.ring_mut().enable_calls(Until::Next), Ok(true));
    assert_eq!(event(&bench), 0);
    assert_eq!(
        bench.tx.ring_mut().enable_calls(Until::MostOutstanding),
        Ok(true)
    );
    assert_eq!(event(&bench), 75);
    assert_eq!(bench.tx.ring_mut().enable_calls(Until::Used(10)), Ok(true));
    assert_eq!(event(&bench), 9);
    publish(&bench.ram, bench.tx.ring(), &[(0, 0), (1, 0)]);
    assert_eq!(bench.tx.ring_mut().enable_calls(Until::Used(2)), Ok(false));
    assert_eq!(
        bench.tx.wait_for_call(Until::Used(2), Duration::ZERO),
        Ok(Woken::AtOnce)
    );
    assert_eq!(
        bench
            .tx
            .wait_for_call(Until::Used(3), Duration::from_millis(1)),
        Ok(Woken::TimedOut)
    );
    // While calls are on, taking an element asks for a call at the next (virtqueue_get_buf).
    bench.tx.collect().unwrap();
    assert_eq!(event(&bench), 2);
}

#[test]
fn raw_chains_keep_the_free_list_whole() {
    let mut bench = bench(|config| config.queue_size = 8);
    let piece = Descriptor {
        address: 0x1000,
        bytes: 30,
        ..Descriptor::default()
    };
    let ring = bench.tx.ring_mut();
    let first = ring.add(&[piece; 3], RAW, 0).unwrap();
    let second = ring.add(&[piece; 5], RAW, 0).unwrap();
    assert!(ring.add(&[piece], RAW, 0).is_err());
    assert_eq!(ring.chain(second).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    publish(
        &bench.ram,
        bench.tx.ring(),
        &[(first.into(), 0), (second.into(), 0)],
    );
    assert_eq!(bench.tx.collect(), Ok(2));
    assert_eq!(bench.tx.ring().free(), 8);
    let again = bench.tx.ring_mut().add(&[piece; 8], RAW, 0).unwrap();
    let mut all: Vec<_> = bench.tx.ring().chain(again).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
}
