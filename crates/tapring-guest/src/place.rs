//! Where the parts of a split virtqueue lie (virtio 1.3 §2.7), and its two eventfds. Shared by the driver, which works the ring, and
//! by the frontend, which announces it.

use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Release};

use vmm_sys_util::eventfd::EventFd;

use crate::memory::Area;

/// Bytes of a descriptor.
pub(crate) const DESC_BYTES: usize = 16;
/// Bytes of a used element.
pub(crate) const USED_ELEM_BYTES: usize = 8;
/// Flags and index in front of the entries of the avail and the used ring.
pub(crate) const RING_HEAD_BYTES: usize = 4;

/// One ring in guest memory.
#[derive(Debug)]
pub(crate) struct RingPlace {
    pub(crate) size: u16,
    pub(crate) table: Area,
    pub(crate) avail: Area,
    pub(crate) used: Area,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
}

impl RingPlace {
    pub(crate) const fn table_bytes(size: u16) -> usize {
        size as usize * DESC_BYTES
    }

    /// Entries, flags, index and used_event.
    pub(crate) const fn avail_bytes(size: u16) -> usize {
        RING_HEAD_BYTES + size as usize * 2 + 2
    }

    /// Elements, flags, index and avail_event.
    pub(crate) const fn used_bytes(size: u16) -> usize {
        RING_HEAD_BYTES + size as usize * USED_ELEM_BYTES + 2
    }

    /// An empty ring whose indices stand at `start`.
    pub(crate) fn clear(&self, start: u16) {
        [&self.table, &self.avail, &self.used]
            .into_iter()
            .for_each(Area::zero);
        self.avail.u16_at(2).store(start.to_le(), Release);
        self.used.u16_at(2).store(start.to_le(), Release);
        self.used_event_cell().store(start.to_le(), Release);
    }

    pub(crate) fn avail_index(&self) -> u16 {
        u16::from_le(self.avail.u16_at(2).load(Acquire))
    }

    pub(crate) fn used_index(&self) -> u16 {
        u16::from_le(self.used.u16_at(2).load(Acquire))
    }

    pub(crate) fn used_event_cell(&self) -> &AtomicU16 {
        self.avail
            .u16_at(RING_HEAD_BYTES + usize::from(self.size) * 2)
    }

    pub(crate) fn avail_event_cell(&self) -> &AtomicU16 {
        self.used
            .u16_at(RING_HEAD_BYTES + usize::from(self.size) * USED_ELEM_BYTES)
    }
}
