//! A frame in guest memory: a short list of pieces, reused from frame to frame.

use vm_memory::{VolatileMemory, VolatileSlice};

use crate::header::HEADER_BYTES;

/// Pieces kept as they are. A Linux driver makes at most MAX_SKB_FRAGS + 2 = 19; a chain of more
/// is gathered into a bounce buffer instead.
pub(crate) const MAX_PARTS: usize = 20;

/// Up to [`MAX_PARTS`] pieces of guest memory.
#[derive(Debug)]
pub(crate) struct Parts<'m> {
    slices: [VolatileSlice<'m>; MAX_PARTS],
    len: usize,
}

impl<'m> Parts<'m> {
    /// An empty list; `any` only fills the unused places.
    pub(crate) const fn new(any: VolatileSlice<'m>) -> Self {
        Self {
            slices: [any; MAX_PARTS],
            len: 0,
        }
    }

    #[inline]
    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }

    /// `false`: no place left.
    #[inline]
    pub(crate) const fn push(&mut self, slice: VolatileSlice<'m>) -> bool {
        let room = self.len < MAX_PARTS;
        if room {
            self.slices[self.len] = slice;
            self.len += 1;
        }
        room
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[VolatileSlice<'m>] {
        &self.slices[..self.len]
    }
}

/// Copies pieces of guest memory into `to`, in order, as much as both hold. Returns the bytes
/// copied.
#[inline]
pub(crate) fn gather(parts: &[VolatileSlice<'_>], to: &mut [u8]) -> usize {
    let mut at = 0;
    for part in parts {
        at += part.copy_to(&mut to[at..]);
    }
    at
}

/// Takes a header that lies whole in front of `slice`, as it nearly always does, and returns the
/// rest: two loads, where a copy of variable length costs 9 ns a frame.
#[inline]
pub(crate) fn take_header<'m>(
    slice: &VolatileSlice<'m>,
    to: &mut [u8; HEADER_BYTES],
) -> Option<VolatileSlice<'m>> {
    let rest = slice.offset(HEADER_BYTES).ok()?;
    let front = slice.get_ref::<u64>(0).ok()?.load();
    let back = slice.get_ref::<u32>(8).ok()?.load();
    to[..8].copy_from_slice(&front.to_ne_bytes());
    to[8..].copy_from_slice(&back.to_ne_bytes());
    Some(rest)
}

/// Takes the first bytes of `slice` off into `to`, as many as both hold, and leaves the rest.
#[inline]
pub(crate) fn split_front<'m>(
    slice: VolatileSlice<'m>,
    to: &mut [u8],
) -> (VolatileSlice<'m>, usize) {
    let taken = slice.copy_to(to);
    // `copy_to` copied at most the length of the slice, so the offset is inside it.
    (slice.offset(taken).unwrap_or(slice), taken)
}
