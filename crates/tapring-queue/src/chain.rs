//! Strict walking of descriptor chains (virtio 1.3 §2.7.5).
//!
//! A malformed chain is a [`Fault`], never a shorter chain: a frame that is silently cut is worse
//! than one that is refused. Each descriptor is read once, so that the guest cannot change it
//! between the check and the use.
//!
//! ```text
//!  head -> desc -> desc -> desc                 direct
//!  head -> INDIRECT -> table[0] -> table[1]     indirect: one hop, then the table is walked alone
//!  head -> desc -> INDIRECT -> table[0]         unusual but valid (§2.7.5.3.2)
//! ```

use virtio_queue::desc::split::Descriptor;
use vm_memory::{ByteValued, VolatileMemory, VolatileSlice};

use crate::fault::Fault;
use crate::lookup::Lookup;
use crate::ring::Ring;

const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();

/// Walks the descriptors of one chain.
#[derive(Debug)]
pub(crate) struct Walk<'r, 'm> {
    ring: &'r Ring<'m>,
    memory: &'r mut Lookup<'m>,
    /// Whether indirect tables were negotiated.
    indirect: bool,
    /// The table being walked: the ring's own, or an indirect one with its number of entries.
    table: Option<(VolatileSlice<'m>, u16)>,
    next: Option<u16>,
    /// Descriptors the chain may still have: a chain is no longer than the queue (§2.7.5.3.1),
    /// which also ends every loop.
    left: u16,
}

impl<'r, 'm> Walk<'r, 'm> {
    /// Starts at `head`, following an indirect table only where that was negotiated.
    #[inline]
    pub(crate) fn new(
        ring: &'r Ring<'m>,
        memory: &'r mut Lookup<'m>,
        head: u16,
        indirect: bool,
    ) -> Self {
        Self {
            ring,
            memory,
            indirect,
            table: None,
            next: Some(head),
            left: ring.size().as_u16(),
        }
    }

    /// Puts the table that `hop` refers to in place of the ring's (§2.7.5.3). The hop's own
    /// WRITE flag means nothing (§2.7.5.3.2).
    fn enter_table(&mut self, hop: &Descriptor) -> Result<(), Fault> {
        let bytes = hop.len() as usize;
        let entries = u16::try_from(bytes / DESCRIPTOR_BYTES).map_err(|_| Fault::BadIndirect)?;
        let whole = bytes.is_multiple_of(DESCRIPTOR_BYTES);
        let allowed = self.indirect && self.table.is_none() && !hop.has_next();
        if !allowed || !whole || entries == 0 || entries > self.ring.size().as_u16() {
            return Err(Fault::BadIndirect);
        }
        let table = self.memory.slice(hop.addr(), bytes);
        self.table = Some((table.ok_or(Fault::BadIndirect)?, entries));
        Ok(())
    }

    /// The next descriptor, `None` behind the last.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Descriptor>, Fault> {
        let Some(index) = self.next else {
            return Ok(None);
        };
        let mut descriptor = self.read(index)?;
        if descriptor.refers_to_indirect_table() {
            self.enter_table(&descriptor)?;
            descriptor = self.read(0)?;
            if descriptor.refers_to_indirect_table() {
                return Err(Fault::BadIndirect);
            }
        }
        self.left = self.left.checked_sub(1).ok_or(Fault::BadChain)?;
        self.next = descriptor.has_next().then(|| descriptor.next());
        Ok(Some(descriptor))
    }

    #[inline]
    fn read(&self, index: u16) -> Result<Descriptor, Fault> {
        match &self.table {
            None if index < self.ring.size().as_u16() => Ok(self.ring.descriptor(index)),
            Some((table, entries)) if index < *entries => Ok(table_entry(table, index)),
            _ => Err(Fault::BadChain),
        }
    }

    /// Calls `visit` with each piece of guest memory a descriptor covers.
    #[inline]
    pub(crate) fn pieces(
        &mut self,
        descriptor: &Descriptor,
        visit: impl FnMut(VolatileSlice<'m>),
    ) -> Result<(), Fault> {
        let bytes = descriptor.len() as usize;
        self.memory.pieces(descriptor.addr(), bytes, visit)
    }
}

/// An indirect table may lie at any address (§2.7.5.3 asks for no alignment), so it is read as
/// bytes.
fn table_entry(table: &VolatileSlice<'_>, index: u16) -> Descriptor {
    let mut descriptor = Descriptor::default();
    if let Ok(entry) = table.get_slice(usize::from(index) * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES) {
        entry.copy_to(descriptor.as_mut_slice());
    }
    descriptor
}
