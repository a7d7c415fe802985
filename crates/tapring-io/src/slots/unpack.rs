//! What the slots of a packet socket need besides: messages to receive with, and super-frames that are being cut.
//!
//! Only the frame at the front is ever cut, and segment by segment, as the guest takes them.

use super::Place;
use crate::offload::{HEADERS_MAX, Segments};
use crate::packet::{Arrived, Message};
use crate::{BATCH_FRAMES, HEADER_BYTES};

/// One message and one note for every slot, and what is known of the super-frame at the front.
pub(super) struct Unpack {
    /// The kernel writes to those of slots in flight.
    messages: [Message; BATCH_FRAMES],
    supers: [Option<Super>; BATCH_FRAMES],
    /// Which segment of the front slot is shown.
    shown: usize,
    /// The headers of the super-frame in the front slot, as they came.
    headers: [u8; HEADERS_MAX],
}

/// A super-frame in a slot.
#[derive(Clone, Copy)]
struct Super {
    /// Where it begins in the slot, without the 12-byte header.
    at: usize,
    segments: Segments,
}

impl Unpack {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            messages: [const { Message::new() }; BATCH_FRAMES],
            supers: [None; BATCH_FRAMES],
            shown: 0,
            headers: [0; HEADERS_MAX],
        })
    }

    #[inline]
    pub(super) const fn message(&mut self, slot: u8) -> &mut Message {
        &mut self.messages[slot as usize]
    }

    /// Notes how the frame in a slot is to be cut. Returns how many frames it will be.
    pub(super) fn note(&mut self, slot: u8, arrived: Arrived) -> usize {
        let at = arrived.start + HEADER_BYTES;
        self.supers[usize::from(slot)] = arrived.segments.map(|segments| Super { at, segments });
        arrived.segments.map_or(1, |segments| segments.count())
    }

    /// Whether the frame in a slot has to be cut.
    #[inline]
    pub(super) const fn is_super(&self, slot: u8) -> bool {
        self.supers[slot as usize].is_some()
    }

    /// The slot has come to the front: where the first segment is, if it is a super-frame. `space` is all of the slot.
    pub(super) fn open(&mut self, slot: u8, space: &mut [u8]) -> Option<Place> {
        let Super { at, segments } = self.supers[usize::from(slot)]?;
        let headers = segments.headers(&space[at..]);
        self.headers[..headers.len()].copy_from_slice(headers);
        self.show(slot, space, 0)
    }

    /// Where the next segment of the slot at the front is; `None` behind the last one.
    pub(super) fn next(&mut self, slot: u8, space: &mut [u8]) -> Option<Place> {
        self.show(slot, space, self.shown + 1)
    }

    fn show(&mut self, slot: u8, space: &mut [u8], index: usize) -> Option<Place> {
        let Super { at, segments } = self.supers[usize::from(slot)]?;
        if index >= segments.count() {
            return None;
        }
        self.shown = index;
        let frame = segments.write(&self.headers, &mut space[at..], index);
        let start = at + frame.start - HEADER_BYTES;
        space[start..start + HEADER_BYTES].fill(0);
        Some(Place {
            start,
            len: HEADER_BYTES + frame.len(),
        })
    }
}
