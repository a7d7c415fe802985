//! What a guest can do wrong, on both rings: it costs the guest that frame and nothing else.

mod chains;
mod rings;

use tapring_queue::{Direction, Fault};

use crate::driver::{Buffer, INDIRECT, WRITE, readable, writable, write_table};
use crate::frames::frame;
use crate::rig::{ALL, BEHIND_HOLE, END, HOLE, MRG_RXBUF, Rig, SEAM, all_faults, count_of};

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

// ---- bad addresses ------------------------------------------------------------------------------

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

// ---- wrong direction ----------------------------------------------------------------------------

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

// ---- sizes --------------------------------------------------------------------------------------

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
