//! Buffers of one queue: equal slots of one area, used in a random order that never repeats a slot soon.

use std::collections::VecDeque;

use crate::error::GuestError;
use crate::memory::{Area, Carver};
use crate::random::Random;

/// Slots start on cache lines, as Linux' receive buffers do.
const SLOT_ALIGN: usize = 64;

/// Free slots, oldest first: a slot comes round again only after all others, whatever the ring's size is.
#[derive(Debug)]
pub(crate) struct Pool {
    area: Area,
    stride: usize,
    free: VecDeque<u32>,
}

impl Pool {
    /// At least `slots` slots of `slot_bytes`, or as many as fill `span_bytes`.
    pub(crate) fn carve(
        carver: &mut Carver,
        slots: usize,
        slot_bytes: usize,
        span_bytes: usize,
    ) -> Result<Self, GuestError> {
        let stride = slot_bytes.max(1).next_multiple_of(SLOT_ALIGN);
        let slots = slots.max(span_bytes / stride);
        let area = carver.carve(slots.saturating_mul(stride), 4096)?;
        let mut order: Vec<u32> = (0..).take(slots).collect();
        Random::new(area.address()).shuffle(&mut order);
        Ok(Self {
            area,
            stride,
            free: order.into(),
        })
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    pub(crate) fn put(&mut self, slot: u32) {
        self.free.push_back(slot);
    }

    /// Puts a slot back where it was taken from.
    pub(crate) fn untake(&mut self, slot: u32) {
        self.free.push_front(slot);
    }

    /// Free slots in the order in which they will be taken.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied()
    }

    /// Guest physical address of byte `at` of a slot.
    pub(crate) fn address(&self, slot: u32, at: usize) -> u64 {
        self.area.address() + self.offset(slot, at) as u64
    }

    pub(crate) fn write(&self, slot: u32, at: usize, bytes: &[u8]) {
        self.area.write(self.offset(slot, at), bytes);
    }

    pub(crate) fn read(&self, slot: u32, at: usize, bytes: &mut [u8]) {
        self.area.read(self.offset(slot, at), bytes);
    }

    fn offset(&self, slot: u32, at: usize) -> usize {
        slot as usize * self.stride + at
    }
}
