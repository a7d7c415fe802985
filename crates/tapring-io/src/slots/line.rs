//! A line of slot numbers, first in, first out.

use crate::BATCH_FRAMES;

/// As many places as there can be slots, so it cannot be full.
#[derive(Debug)]
pub(super) struct Line64 {
    slots: [u8; BATCH_FRAMES],
    first: usize,
    len: usize,
}

impl Line64 {
    pub(super) const EMPTY: Self = Self {
        slots: [0; BATCH_FRAMES],
        first: 0,
        len: 0,
    };

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u8) {
        debug_assert!(self.len < BATCH_FRAMES);
        self.slots[(self.first + self.len) % BATCH_FRAMES] = slot;
        self.len += 1;
    }

    #[inline]
    pub(super) fn front(&self) -> Option<u8> {
        (self.len > 0).then(|| self.slots[self.first])
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<u8> {
        let slot = self.front()?;
        self.first = (self.first + 1) % BATCH_FRAMES;
        self.len -= 1;
        Some(slot)
    }
}
