//! The payload: an 8-byte big-endian sequence number, then 8-byte words that follow from it.

use crate::random::{STEP, mix};

const SEQUENCE_BYTES: usize = 8;

/// Fills `payload` with the sequence number and the pattern that follows from it.
///
/// # Panics
/// `payload` is shorter than 8 bytes.
pub fn fill_payload(sequence: u64, payload: &mut [u8]) {
    let (head, body) = payload.split_at_mut(SEQUENCE_BYTES);
    head.copy_from_slice(&sequence.to_be_bytes());
    let (words, tail) = body.as_chunks_mut::<8>();
    let mut word = mix(sequence);
    for place in words {
        *place = word.to_le_bytes();
        word = word.wrapping_add(STEP);
    }
    let bytes = tail.len();
    tail.copy_from_slice(&word.to_le_bytes()[..bytes]);
}

/// The sequence number of `payload` if every byte is what [`fill_payload`] writes.
///
/// # Errors
/// Offset of the first wrong byte (a wrong sequence number shows as a wrong pattern), or the length if there is no room for a
/// sequence number.
pub fn check_payload(payload: &[u8]) -> Result<u64, usize> {
    let (head, body) = payload
        .split_first_chunk::<SEQUENCE_BYTES>()
        .ok_or(payload.len())?;
    let sequence = u64::from_be_bytes(*head);
    let (words, tail) = body.as_chunks::<8>();
    let mut word = mix(sequence);
    let mut difference = 0;
    for found in words {
        // Without a branch, so that it runs as fast as memory: this is most of the work of verifying.
        difference |= u64::from_le_bytes(*found) ^ word;
        word = word.wrapping_add(STEP);
    }
    if difference == 0 && *tail == word.to_le_bytes()[..tail.len()] {
        return Ok(sequence);
    }
    Err(first_difference(sequence, payload))
}

#[cold]
fn first_difference(sequence: u64, payload: &[u8]) -> usize {
    let mut expected = vec![0; payload.len()];
    fill_payload(sequence, &mut expected);
    let pairs = expected.iter().zip(payload);
    pairs
        .take_while(|(expected, found)| expected == found)
        .count()
}
