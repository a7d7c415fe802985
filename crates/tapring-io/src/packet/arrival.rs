//! A frame that a packet socket has just put into a slot, and how it is made to look like one of a tap.
//!
//! ```text
//!   received    | 6 free | header, 10 | addresses | type ...
//!   shown           | 12 zeroes       | addresses | type ...      without a tag
//!   shown       | 12 zeroes   | addresses | tag, 4 | type ...     with one
//! ```
//! With a tag the addresses move to the front, so that the rest of the frame stays where it is.

use crate::HEADER_BYTES;
use crate::offload::{self, ASKED_BYTES, Asked, Segments, Unsupported};

use super::HEADER_SKIP;
use super::message::Tag;

const TAG_BYTES: usize = size_of::<Tag>();
const ADDRESSES_BYTES: usize = 12;

/// Where the kernel is to put the header of a frame, in a slot.
pub(crate) const HEADER_AT: usize = TAG_BYTES + HEADER_SKIP;

/// Where the frame itself comes to lie then.
pub(crate) const FRAME_AT: usize = HEADER_AT + ASKED_BYTES;

/// A frame that can be shown, or is to be cut first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Where its 12-byte header begins in the slot.
    pub(crate) start: usize,
    /// How it is to be cut.
    pub(crate) segments: Option<Segments>,
}

/// Finishes the frame in `slot`, which ends where the frame does and has at least addresses and a type.
pub(crate) fn arrive(slot: &mut [u8], tag: Option<Tag>) -> Result<Arrived, Unsupported> {
    let mut header = [0; ASKED_BYTES];
    header.copy_from_slice(&slot[HEADER_AT..FRAME_AT]);
    let asked = Asked::read(&header);
    let (start, moved) = match tag {
        Some(tag) => {
            put_back(slot, tag);
            (0, TAG_BYTES)
        }
        None => (TAG_BYTES, 0),
    };
    let (header, frame) = slot[start..].split_at_mut(HEADER_BYTES);
    header.fill(0);
    let segments = if asked.is_nothing() {
        None
    } else {
        #[allow(clippy::cast_possible_truncation)] // 4 or none
        offload::finish(frame, &asked.moved(moved as u16))?
    };
    Ok(Arrived { start, segments })
}

fn put_back(slot: &mut [u8], tag: Tag) {
    let (from, to) = (FRAME_AT, FRAME_AT - TAG_BYTES);
    slot.copy_within(from..from + ADDRESSES_BYTES, to);
    slot[to + ADDRESSES_BYTES..][..TAG_BYTES].copy_from_slice(&tag);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(asked: [u8; ASKED_BYTES], frame: &[u8]) -> Vec<u8> {
        let mut slot = vec![0xee; HEADER_AT];
        slot.extend(asked);
        slot.extend(frame);
        slot
    }

    fn numbers(count: u8) -> Vec<u8> {
        (0..count).collect()
    }

    #[test]
    fn a_plain_frame_stays_where_it_is_behind_an_empty_header() {
        let mut slot = received([2, 0, 9, 9, 9, 9, 9, 9, 9, 9], &numbers(20));
        let arrived = arrive(&mut slot, None).unwrap();
        assert_eq!(arrived.segments, None);
        assert_eq!(slot[arrived.start..][..HEADER_BYTES], [0; HEADER_BYTES]);
        assert_eq!(slot[arrived.start + HEADER_BYTES..], numbers(20));
    }

    #[test]
    fn a_tag_is_put_back_behind_the_addresses() {
        let mut slot = received([0; ASKED_BYTES], &numbers(20));
        let arrived = arrive(&mut slot, Some([0x81, 0, 0x60, 9])).unwrap();
        let shown = &slot[arrived.start..];
        assert_eq!(shown[..HEADER_BYTES], [0; HEADER_BYTES]);
        let frame = &shown[HEADER_BYTES..];
        assert_eq!(frame[..12], numbers(12));
        assert_eq!(frame[12..16], [0x81, 0, 0x60, 9]);
        assert_eq!(frame[16..], numbers(20)[12..]);
    }

    #[test]
    fn a_partial_checksum_is_found_behind_a_tag_too() {
        let mut asked = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        asked[6..8].copy_from_slice(&14_u16.to_ne_bytes());
        asked[8..10].copy_from_slice(&2_u16.to_ne_bytes());
        let finished = [None, Some([0x81, 0, 0, 1])].map(|tag| {
            let mut slot = received(asked, &numbers(20));
            arrive(&mut slot, tag).unwrap();
            slot[FRAME_AT + 12..].to_vec()
        });
        // 0e0f + 1011 + 1213
        assert_eq!(finished[0][4..6], (!0x3033_u16).to_be_bytes());
        assert_eq!(finished[0], finished[1]);
    }
}
