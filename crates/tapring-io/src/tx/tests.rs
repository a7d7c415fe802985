use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::*;

fn batch_of(frames: usize, finite: bool) -> (TxBatch, Vec<Token>) {
    let mut batch = TxBatch::new(Encoding::Tap, finite).unwrap();
    for _ in 0..frames {
        batch.copy(76).unwrap();
    }
    assert!(batch.start());
    let tokens = tokens_of(&batch);
    (batch, tokens)
}

fn tokens_of(batch: &TxBatch) -> Vec<Token> {
    let mut tokens = Vec::new();
    batch.each_entry(|entry| tokens.push(Token::from_raw(entry.get_user_data())));
    tokens
}

fn complete(batch: &mut TxBatch, tokens: &[Token], results: &[i32]) {
    assert_eq!(tokens.len(), results.len());
    for (&token, &result) in tokens.iter().zip(results) {
        batch.complete(token, result);
    }
}

const SENT: TxOutcome = TxOutcome::Sent;
const FULL: TxOutcome = TxOutcome::TapFull;
const CANCELLED: i32 = -libc::ECANCELED;

#[test]
fn a_batch_is_free_again_when_its_outcomes_are_taken() {
    let (mut batch, tokens) = batch_of(2, false);
    assert_eq!((batch.room(), batch.in_flight()), (0, 2));
    assert!(batch.copy(76).is_none());
    batch.complete(tokens[1], 76);
    assert!(batch.take_outcomes().is_none());
    batch.complete(tokens[0], 76);

    assert_eq!(batch.room(), 0);
    assert_eq!(batch.take_outcomes(), Some(&[SENT, SENT][..]));

    assert_eq!(batch.room(), BATCH_FRAMES);
    batch.complete(tokens[0], 76);
    assert!(!batch.is_done(), "a stale completion changes nothing");
}

#[test]
fn frames_behind_eagain_are_told_that_the_tap_is_full() {
    let (mut batch, tokens) = batch_of(4, true);
    complete(
        &mut batch,
        &tokens,
        &[76, -libc::EAGAIN, CANCELLED, CANCELLED],
    );
    assert_eq!(batch.take_outcomes(), Some(&[SENT, FULL, FULL, FULL][..]));
}

#[test]
fn a_refused_frame_costs_only_itself() {
    let (mut batch, tokens) = batch_of(4, true);
    complete(
        &mut batch,
        &tokens,
        &[76, -libc::EINVAL, CANCELLED, CANCELLED],
    );
    assert!(batch.take_outcomes().is_none());
    assert!(batch.take_resubmission());
    assert!(!batch.take_resubmission());
    assert_eq!(batch.in_flight(), 2);

    let tokens = tokens_of(&batch);
    complete(&mut batch, &tokens, &[76, 76]);

    let refused = TxOutcome::Refused(libc::EINVAL);
    assert_eq!(
        batch.take_outcomes(),
        Some(&[SENT, refused, SENT, SENT][..])
    );
}

#[test]
fn a_tap_that_is_down_or_gone_is_not_tried_again_within_the_batch() {
    for (errno, outcome) in [
        (libc::EIO, TxOutcome::Down),
        (libc::EBADFD, TxOutcome::Gone),
    ] {
        let (mut batch, tokens) = batch_of(3, true);
        complete(&mut batch, &tokens, &[76, -errno, CANCELLED]);
        assert!(!batch.take_resubmission());
        assert_eq!(batch.met(TxOutcome::Gone), outcome == TxOutcome::Gone);
        assert_eq!(batch.take_outcomes(), Some(&[SENT, outcome, outcome][..]));
    }
}

#[test]
fn links_begin_with_eagain_and_stay() {
    let (mut batch, tokens) = batch_of(2, false);
    assert!(!batch.is_linked());
    complete(&mut batch, &tokens, &[76, -libc::EAGAIN]);
    batch.take_outcomes();
    assert!(batch.is_linked());

    batch.copy(76).unwrap();
    batch.start();
    let tokens = tokens_of(&batch);
    complete(&mut batch, &tokens, &[76]);
    assert!(batch.is_linked());
}

#[test]
fn a_finite_send_buffer_keeps_the_links() {
    let (mut batch, tokens) = batch_of(2, true);
    complete(&mut batch, &tokens, &[76, 76]);
    assert!(batch.is_linked());
}

#[test]
fn cancelling_forgets_what_was_built_but_nothing_in_flight() {
    let mut batch = TxBatch::new(Encoding::Tap, false).unwrap();
    batch.copy(76).unwrap();
    batch.cancel();
    assert!(!batch.start());

    let (mut batch, _) = batch_of(1, false);
    batch.cancel();
    assert_eq!(batch.in_flight(), 1);
}

fn memory() -> (Arc<GuestMemoryMmap>, Guest) {
    let ranges = [(GuestAddress(0), 0x10000)];
    let memory = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    let guest = Guest::new(Some(Arc::clone(&memory)));
    (memory, guest)
}

#[test]
fn gathering_takes_1023_parts_and_no_more() {
    let (memory, mut guest) = memory();
    let mut batch = TxBatch::new(Encoding::Tap, false).unwrap();
    let parts =
        |count: usize| (0..count).map(|at| memory.get_slice(GuestAddress(at as u64), 1).unwrap());

    assert_eq!(
        batch.gather(&mut guest, &[0; 12], parts(1024)),
        Err(GatherError::TooManyParts)
    );
    assert_eq!(batch.gather(&mut guest, &[0; 12], parts(1023)), Ok(()));
    assert_eq!(
        batch.gather(&mut guest, &[0; 12], parts(64)),
        Err(GatherError::BatchFull)
    );
    assert_eq!(batch.gather(&mut guest, &[0; 12], parts(63)), Ok(()));
    assert_eq!(
        batch.gather(&mut guest, &[0; 12], parts(0)),
        Err(GatherError::BatchFull)
    );

    assert_eq!(batch.room(), BATCH_FRAMES - 2);
    assert!(batch.points_into_guest());
    batch.cancel();
    assert!(!batch.points_into_guest());
}

#[test]
fn a_part_outside_of_the_memory_is_refused_and_leaves_no_trace() {
    let (_, mut guest) = memory();
    let (other, _) = memory();
    let part = other.get_slice(GuestAddress(0), 16).unwrap();
    let mut batch = TxBatch::new(Encoding::Tap, false).unwrap();

    let refused = batch.gather(&mut guest, &[0; 12], std::iter::once(part));

    assert_eq!(refused, Err(GatherError::OutsideMemory));
    assert_eq!((batch.room(), batch.arena().mark()), (BATCH_FRAMES, 0));
    assert!(!batch.points_into_guest());
}

fn packets(frames: usize) -> (TxBatch, Vec<Token>) {
    let mut batch = TxBatch::new(Encoding::Packet, true).unwrap();
    for _ in 0..frames {
        batch.copy(76).unwrap();
    }
    assert!(batch.start());
    let tokens = tokens_of(&batch);
    (batch, tokens)
}

#[test]
fn the_header_for_a_packet_socket_is_moved_up_once() {
    let mut batch = TxBatch::new(Encoding::Packet, true).unwrap();
    for frame in 1..=2_u8 {
        let space = batch.copy(20).unwrap();
        space.copy_from_slice(&[frame; 20]);
        space[..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    }
    assert!(batch.start());
    let tokens = tokens_of(&batch);
    // What is submitted again is sent from the same place.
    complete(&mut batch, &tokens, &[-libc::EMSGSIZE, CANCELLED]);
    assert!(batch.take_resubmission());
    let frame = batch.frames[1];
    // SAFETY: nothing of it was really submitted.
    let bytes = unsafe { batch.arena.mapping().slice(frame.start, 20) };
    assert_eq!(bytes[2..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(bytes[12..], [2; 8]);
}

#[test]
fn an_interface_without_room_is_full_and_one_of_a_tap_refuses() {
    let results = [76, -libc::ENOBUFS, CANCELLED];
    let (mut batch, tokens) = packets(3);
    complete(&mut batch, &tokens, &results);
    assert!(batch.met_no_buffers());
    assert_eq!(batch.take_outcomes(), Some(&[SENT, FULL, FULL][..]));

    let (mut batch, tokens) = batch_of(3, true);
    complete(&mut batch, &tokens, &results);
    assert!(batch.take_resubmission());
}

#[test]
fn with_nothing_to_wait_for_a_batch_that_got_nowhere_loses_one_frame() {
    let (mut batch, tokens) = packets(3);
    complete(&mut batch, &tokens, &[76, -libc::ENOBUFS, CANCELLED]);
    batch.refuse_first();
    assert_eq!(batch.take_outcomes(), Some(&[SENT, FULL, FULL][..]));

    let (mut batch, tokens) = packets(3);
    complete(&mut batch, &tokens, &[-libc::ENOBUFS, CANCELLED, CANCELLED]);
    batch.refuse_first();
    let refused = TxOutcome::Refused(libc::ENOBUFS);
    assert_eq!(batch.take_outcomes(), Some(&[refused, FULL, FULL][..]));
}

#[test]
fn what_a_packet_socket_says_of_its_interface_is_understood() {
    for (errno, outcome) in [
        (libc::ENETDOWN, TxOutcome::Down),
        (libc::ENXIO, TxOutcome::Gone),
        (libc::EAGAIN, TxOutcome::TapFull),
        (libc::EMSGSIZE, TxOutcome::Refused(libc::EMSGSIZE)),
    ] {
        let (mut batch, tokens) = packets(1);
        complete(&mut batch, &tokens, &[-errno]);
        assert_eq!(batch.take_outcomes(), Some(&[outcome][..]));
    }
}
