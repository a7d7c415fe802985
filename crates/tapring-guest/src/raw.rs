//! Raw access to a ring: no bookkeeping, no rules. For tests of bad guests, and of rings found in odd states.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vmm_sys_util::eventfd::EventFd;

use crate::memory::Area;
use crate::place::{DESC_BYTES, RING_HEAD_BYTES, USED_ELEM_BYTES};
use crate::ring::{Descriptor, DriverRing};

/// Raw access: no bookkeeping, no rules.
impl DriverRing {
    /// Writes a descriptor table entry.
    pub fn write_descriptor(&self, index: u16, descriptor: Descriptor) {
        let offset = usize::from(index) * DESC_BYTES;
        let table = &self.place.table;
        table
            .u64_at(offset)
            .store(descriptor.address.to_le(), Relaxed);
        table
            .u64_at(offset + 8)
            .store(descriptor.second_half().to_le(), Relaxed);
    }

    /// Writes `head` into the avail entry of ring index `index`.
    pub fn write_avail_entry(&self, index: u16, head: u16) {
        let offset = RING_HEAD_BYTES + self.slot(index) * 2;
        self.place.avail.u16_at(offset).store(head.to_le(), Relaxed);
    }

    /// Writes avail.idx, with Release.
    pub fn store_avail_index(&self, index: u16) {
        self.place.avail.u16_at(2).store(index.to_le(), Release);
    }

    /// Writes used.idx, which is the device's: for rings that are to look half worked off before a start.
    pub fn store_used_index(&self, index: u16) {
        self.place.used.u16_at(2).store(index.to_le(), Release);
    }

    /// Writes avail_event, which is the device's: for rings that are to look stale before a start.
    pub fn store_avail_event(&self, index: u16) {
        self.place.avail_event_cell().store(index.to_le(), Release);
    }

    /// avail.idx as it stands in memory.
    #[must_use]
    pub fn avail_index(&self) -> u16 {
        self.place.avail_index()
    }

    /// used.idx as it stands in memory.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.place.used_index()
    }

    /// Id and length of the used element at ring index `index`, published or not.
    #[must_use]
    pub fn used_element(&self, index: u16) -> (u32, u32) {
        let offset = RING_HEAD_BYTES + self.slot(index) * USED_ELEM_BYTES;
        let id = self.place.used.u32_at(offset).load(Relaxed);
        let length = self.place.used.u32_at(offset + 4).load(Relaxed);
        (u32::from_le(id), u32::from_le(length))
    }

    /// Guest physical addresses of descriptor table, avail ring and used ring.
    #[must_use]
    pub fn addresses(&self) -> [u64; 3] {
        let place = &self.place;
        [&place.table, &place.avail, &place.used].map(Area::address)
    }

    /// A duplicate of the kick eventfd, to write to it or to see who did.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn kick_fd(&self) -> io::Result<EventFd> {
        self.place.kick.try_clone()
    }
}
