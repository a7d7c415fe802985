//! The driver's side of one virtqueue, written from the specification and from Linux'
//! `virtio_ring.c`.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use tapring_queue::{QueueSize, RingAddresses, RingSetup};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A buffer of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
}

/// A buffer the device reads.
pub(crate) const fn readable(addr: u64, len: u32) -> Buffer {
    Buffer {
        addr,
        len,
        flags: 0,
    }
}

/// A buffer the device writes.
pub(crate) const fn writable(addr: u64, len: u32) -> Buffer {
    Buffer {
        addr,
        len,
        flags: WRITE,
    }
}

/// A used element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) head: u16,
    pub(crate) len: u32,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Driver {
    pub(crate) base: u64,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    /// The available index as written, and as it will be with the next publication.
    pub(crate) published: u16,
    pub(crate) avail: u16,
    /// The available index at the last decision whether to kick.
    checked: u16,
    pub(crate) last_used: u16,
    /// Heads not returned, in avail order.
    pub(crate) outstanding: VecDeque<(u16, Vec<u16>)>,
    pub(crate) free: VecDeque<u16>,
}

impl Driver {
    /// A driver of a ring at `base`, its indices at `index`; EVENT_IDX or not.
    pub(crate) fn new(
        memory: &GuestMemoryMmap,
        base: u64,
        size: u16,
        index: u16,
        event_idx: bool,
    ) -> Self {
        let driver = Self {
            base,
            size,
            event_idx,
            published: index,
            avail: index,
            checked: index,
            last_used: index,
            outstanding: VecDeque::new(),
            free: (0..size).collect(),
        };
        memory
            .write_slice(&vec![0; driver.ring_bytes()], GuestAddress(base))
            .unwrap();
        driver.store(memory, driver.avail() + 2, index);
        driver.store(memory, driver.used() + 2, index);
        driver.store_used_event(memory, index);
        driver
    }

    pub(crate) fn addresses(&self) -> RingAddresses {
        RingAddresses {
            desc: GuestAddress(self.base),
            avail: GuestAddress(self.avail()),
            used: GuestAddress(self.used()),
        }
    }

    /// The set-up for a device that goes on where the used index stands.
    pub(crate) fn setup(&self) -> RingSetup {
        RingSetup {
            size: QueueSize::new(self.size).unwrap(),
            addresses: self.addresses(),
            next_avail: self.last_used,
        }
    }

    pub(crate) fn avail(&self) -> u64 {
        self.base + u64::from(self.size) * 16
    }

    pub(crate) fn used(&self) -> u64 {
        (self.avail() + 6 + u64::from(self.size) * 2).next_multiple_of(4)
    }

    /// From `base` on, all three areas.
    pub(crate) fn ring_bytes(&self) -> usize {
        usize::try_from(self.used() - self.base).unwrap() + 6 + usize::from(self.size) * 8
    }
}

// ---- making chains available --------------------------------------------------------------

impl Driver {
    /// Descriptors that are not in use.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Makes a chain of direct descriptors; it is the device's with the next publication.
    pub(crate) fn add(&mut self, memory: &GuestMemoryMmap, buffers: &[Buffer]) -> u16 {
        let indices: Vec<u16> = self.free.drain(..buffers.len()).collect();
        for (i, buffer) in buffers.iter().enumerate() {
            let next = indices.get(i + 1).copied();
            self.write_descriptor(memory, indices[i], buffer, next);
        }
        let head = indices[0];
        self.add_head(memory, head);
        self.outstanding.push_back((head, indices));
        head
    }

    /// Makes a chain of one descriptor that refers to a table at `table`.
    pub(crate) fn add_indirect(
        &mut self,
        memory: &GuestMemoryMmap,
        table: u64,
        buffers: &[Buffer],
    ) -> u16 {
        write_table(memory, table, buffers);
        let bytes = u32::try_from(buffers.len() * 16).unwrap();
        self.add(
            memory,
            &[Buffer {
                addr: table,
                len: bytes,
                flags: INDIRECT,
            }],
        )
    }

    /// Puts anything into the available ring.
    pub(crate) fn add_head(&mut self, memory: &GuestMemoryMmap, head: u16) {
        let slot = u64::from(self.avail & (self.size - 1));
        self.store(memory, self.avail() + 4 + slot * 2, head);
        self.avail = self.avail.wrapping_add(1);
    }

    /// Writes a descriptor; `next` links it.
    pub(crate) fn write_descriptor(
        &self,
        memory: &GuestMemoryMmap,
        index: u16,
        buffer: &Buffer,
        next: Option<u16>,
    ) {
        let at = self.base + u64::from(index) * 16;
        write_descriptor(memory, at, buffer, next);
    }

    /// The new chains are the device's: entries first, index after (§2.7.13.3).
    pub(crate) fn publish(&mut self, memory: &GuestMemoryMmap) {
        fence(Ordering::SeqCst);
        self.published = self.avail;
        self.store(memory, self.avail() + 2, self.published);
    }

    /// Linux' virtqueue_kick_prepare_split.
    pub(crate) fn wants_kick(&mut self, memory: &GuestMemoryMmap) -> bool {
        fence(Ordering::SeqCst);
        let (old, new) = (self.checked, self.published);
        self.checked = new;
        if self.event_idx {
            need_event(self.avail_event(memory), new, old)
        } else {
            self.load(memory, self.used()) & 1 == 0
        }
    }

    /// Publishes and decides.
    pub(crate) fn expose(&mut self, memory: &GuestMemoryMmap) -> bool {
        self.publish(memory);
        self.wants_kick(memory)
    }

    pub(crate) fn avail_event(&self, memory: &GuestMemoryMmap) -> u16 {
        self.load(memory, self.used() + 4 + u64::from(self.size) * 8)
    }

    /// Whether adding one more chain now would kick: kicks are on for the next chain.
    pub(crate) fn kicks_on(&self, memory: &GuestMemoryMmap) -> bool {
        self.asked_for(memory, 1)
    }

    /// Whether any of the next `chains` would kick.
    pub(crate) fn asked_for(&self, memory: &GuestMemoryMmap, chains: u16) -> bool {
        if self.event_idx {
            let new = self.published.wrapping_add(chains);
            need_event(self.avail_event(memory), new, self.published)
        } else {
            self.load(memory, self.used()) & 1 == 0
        }
    }
}

// ---- taking chains back -------------------------------------------------------------------

impl Driver {
    /// Takes back what was used, checking that each head was outstanding, in avail order.
    pub(crate) fn collect(&mut self, memory: &GuestMemoryMmap) -> Vec<Used> {
        let mut result = Vec::new();
        while self.last_used != self.used_index(memory) {
            let slot = u64::from(self.last_used & (self.size - 1));
            let at = self.used() + 4 + slot * 8;
            let id: u32 = memory.read_obj(GuestAddress(at)).unwrap();
            let len: u32 = memory.read_obj(GuestAddress(at + 4)).unwrap();
            let head = u16::try_from(id).expect("an id of a head");
            let (expected, indices) = self
                .outstanding
                .pop_front()
                .expect("a head was outstanding");
            assert_eq!(head, expected, "used elements follow the avail order");
            self.free.extend(indices);
            self.last_used = self.last_used.wrapping_add(1);
            result.push(Used { head, len });
        }
        result
    }

    pub(crate) fn used_index(&self, memory: &GuestMemoryMmap) -> u16 {
        let index = self.load(memory, self.used() + 2);
        fence(Ordering::SeqCst);
        index
    }

    /// Asks for a call when the element at `event` is used.
    pub(crate) fn store_used_event(&self, memory: &GuestMemoryMmap, event: u16) {
        self.store(memory, self.avail() + 4 + u64::from(self.size) * 2, event);
    }

    /// VIRTQ_AVAIL_F_NO_INTERRUPT.
    pub(crate) fn store_no_interrupt(&self, memory: &GuestMemoryMmap, off: bool) {
        self.store(memory, self.avail(), u16::from(off));
    }

    fn load(&self, memory: &GuestMemoryMmap, at: u64) -> u16 {
        memory.load(GuestAddress(at), Ordering::Acquire).unwrap()
    }

    pub(crate) fn store(&self, memory: &GuestMemoryMmap, at: u64, value: u16) {
        memory
            .store(value, GuestAddress(at), Ordering::Release)
            .unwrap();
    }
}

/// Linux' vring_need_event.
pub(crate) const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Writes a descriptor table, each entry linked to the next.
pub(crate) fn write_table(memory: &GuestMemoryMmap, table: u64, buffers: &[Buffer]) {
    for (i, buffer) in buffers.iter().enumerate() {
        let next = (i + 1 < buffers.len()).then(|| u16::try_from(i + 1).unwrap());
        write_descriptor(memory, table + 16 * i as u64, buffer, next);
    }
}

pub(crate) fn write_descriptor(
    memory: &GuestMemoryMmap,
    at: u64,
    buffer: &Buffer,
    next: Option<u16>,
) {
    let flags = buffer.flags | next.map_or(0, |_| NEXT);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&buffer.addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&buffer.len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.unwrap_or(0).to_le_bytes());
    memory.write_slice(&bytes, GuestAddress(at)).unwrap();
}
