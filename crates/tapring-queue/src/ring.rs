//! A split virtqueue's three areas in guest memory, resolved once per batch (virtio 1.3 §2.7).
//!
//! ```text
//! Descriptor Table   n x { addr u64, len u32, flags u16, next u16 }
//! Available Ring     flags u16, idx u16, n x u16 head, used_event u16       driver writes
//! Used Ring          flags u16, idx u16, n x { id u32, len u32 }, avail_event u16   device writes
//! ```
//!
//! Looking an address up in the memory map costs more than reading a descriptor, so a [`Ring`]
//! does it once for each area and is then used for a whole batch. Every access after that is one
//! bounds check and one load or store of shared memory: the guest may change any of it at any
//! time, so nothing is read twice and nothing read is believed.

use std::sync::atomic::{Ordering, fence};

use virtio_queue::desc::split::Descriptor;
use vm_memory::{
    ByteValued, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory,
    VolatileSlice,
};

use crate::handshake::{Word, Words};
use crate::setup::{QueueSize, RingAddresses};

const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
const HEAD_BYTES: usize = size_of::<u16>();
const USED_BYTES: usize = size_of::<u64>();

/// The resolved areas of one virtqueue, valid as long as the memory map they were found in.
#[derive(Debug)]
pub(crate) struct Ring<'m> {
    size: QueueSize,
    desc: VolatileSlice<'m>,
    avail: VolatileSlice<'m>,
    used: VolatileSlice<'m>,
}

impl<'m> Ring<'m> {
    /// `None` if an area is misaligned (§2.7) or not inside one region of `memory`.
    pub(crate) fn resolve(
        memory: &'m GuestMemoryMmap,
        size: QueueSize,
        addresses: &RingAddresses,
    ) -> Option<Self> {
        let n = usize::from(size.as_u16());
        Some(Self {
            size,
            desc: area(memory, addresses.desc, n * DESCRIPTOR_BYTES, 16)?,
            avail: area(memory, addresses.avail, ENTRIES + (n + 1) * HEAD_BYTES, 2)?,
            used: area(
                memory,
                addresses.used,
                ENTRIES + n * USED_BYTES + HEAD_BYTES,
                4,
            )?,
        })
    }

    /// An empty piece of memory that lives as long as the ring.
    pub(crate) fn any(&self) -> VolatileSlice<'m> {
        self.desc.subslice(0, 0).unwrap_or(self.desc)
    }

    pub(crate) const fn size(&self) -> QueueSize {
        self.size
    }

    /// How far the driver has made chains available. The acquire pairs with the driver's barrier
    /// between its entries and this index (§2.7.13.3.1): what it covers may be read after it.
    #[inline]
    pub(crate) fn avail_index(&self) -> u16 {
        self.load(Word::AvailIndex, Ordering::Acquire)
    }

    /// The head the driver put at `index`.
    #[inline]
    pub(crate) fn head(&self, index: u16) -> u16 {
        let slot = usize::from(self.size.slot(index));
        u16::from_le(load(&self.avail, ENTRIES + slot * HEAD_BYTES))
    }

    /// A descriptor of the table; `index` must be below the size.
    #[inline]
    pub(crate) fn descriptor(&self, index: u16) -> Descriptor {
        load(&self.desc, usize::from(index) * DESCRIPTOR_BYTES)
    }

    /// Writes a used element. It belongs to the driver once the used index covers it.
    #[inline]
    pub(crate) fn write_used(&self, index: u16, head: u16, written: u32) {
        let slot = usize::from(self.size.slot(index));
        let element = u64::from(head) | u64::from(written) << 32;
        store(&self.used, ENTRIES + slot * USED_BYTES, element.to_le());
    }

    /// The used index as last published, also by an earlier backend.
    pub(crate) fn used_index(&self) -> u16 {
        self.load(Word::UsedIndex, Ordering::Acquire)
    }
}

impl Words for Ring<'_> {
    #[inline]
    fn load(&self, word: Word, order: Ordering) -> u16 {
        let (area, offset) = self.place(word);
        u16::from_le(load_atomic(area, offset, order))
    }

    #[inline]
    fn store(&self, word: Word, value: u16, order: Ordering) {
        let (area, offset) = self.place(word);
        store_atomic(area, offset, value.to_le(), order);
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl<'m> Ring<'m> {
    #[inline]
    fn place(&self, word: Word) -> (&VolatileSlice<'m>, usize) {
        let size = usize::from(self.size.as_u16());
        match word {
            Word::AvailFlags => (&self.avail, FLAGS),
            Word::AvailIndex => (&self.avail, INDEX),
            Word::UsedEvent => (&self.avail, ENTRIES + size * HEAD_BYTES),
            Word::UsedFlags => (&self.used, FLAGS),
            Word::UsedIndex => (&self.used, INDEX),
            Word::AvailEvent => (&self.used, ENTRIES + size * USED_BYTES),
        }
    }
}

/// An area of the ring, if it is aligned and wholly inside one region.
fn area(
    memory: &GuestMemoryMmap,
    address: GuestAddress,
    bytes: usize,
    align: u64,
) -> Option<VolatileSlice<'_>> {
    let slice = memory.get_slice(address, bytes).ok()?;
    // The mapping's own alignment counts too: atomic accesses are made through it.
    let host = slice.ptr_guard().as_ptr() as u64;
    (address.0.is_multiple_of(align) && host.is_multiple_of(align.min(4))).then_some(slice)
}

// Offsets below are in range because `resolve` took the areas at their full length, and slots
// and descriptor indices are below the size. Should that ever be wrong, a load reads 0 and a
// store does nothing: no panic, whatever a guest does.

#[inline]
fn load<T: ByteValued + Default>(area: &VolatileSlice<'_>, offset: usize) -> T {
    area.get_ref(offset)
        .map_or_else(|_| T::default(), |r| r.load())
}

#[inline]
fn store<T: ByteValued>(area: &VolatileSlice<'_>, offset: usize, value: T) {
    if let Ok(target) = area.get_ref(offset) {
        target.store(value);
    }
}

#[inline]
fn load_atomic(area: &VolatileSlice<'_>, offset: usize, order: Ordering) -> u16 {
    area.load(offset, order).unwrap_or_default()
}

#[inline]
fn store_atomic(area: &VolatileSlice<'_>, offset: usize, value: u16, order: Ordering) {
    let _ = area.store(value, offset, order);
}
