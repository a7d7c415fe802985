//! Finding guest memory by address.
//!
//! A search of the memory map costs more than copying a small frame, and a guest's buffers nearly
//! always lie in one region. A [`Lookup`] remembers the region of the last search, for one batch.

use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, VolatileSlice,
};

use crate::fault::Fault;

/// Looks addresses up in a memory map.
#[derive(Debug)]
pub(crate) struct Lookup<'m> {
    memory: &'m GuestMemoryMmap,
    /// Where the last region starts, and all of it.
    last: Option<(u64, VolatileSlice<'m>)>,
}

impl<'m> Lookup<'m> {
    pub(crate) const fn new(memory: &'m GuestMemoryMmap) -> Self {
        Self { memory, last: None }
    }

    /// `bytes` of guest memory in one piece; `None` if they are not, or not in one region.
    #[inline]
    pub(crate) fn slice(
        &mut self,
        address: GuestAddress,
        bytes: usize,
    ) -> Option<VolatileSlice<'m>> {
        if let Some((start, region)) = &self.last
            && let Ok(offset) = usize::try_from(address.0.wrapping_sub(*start))
            && let Ok(slice) = region.subslice(offset, bytes)
        {
            return Some(slice);
        }
        self.search(address, bytes)
    }

    #[cold]
    fn search(&mut self, address: GuestAddress, bytes: usize) -> Option<VolatileSlice<'m>> {
        let region = self.memory.find_region(address)?;
        let start = region.start_addr().0;
        let whole = region.as_volatile_slice().ok()?;
        self.last = Some((start, whole));
        let offset = usize::try_from(address.0 - start).ok()?;
        whole.subslice(offset, bytes).ok()
    }

    /// Calls `visit` with each piece of a buffer: one, unless it runs across adjacent regions of
    /// the memory map, as hot-plugged memory may.
    #[inline]
    pub(crate) fn pieces(
        &mut self,
        address: GuestAddress,
        bytes: usize,
        mut visit: impl FnMut(VolatileSlice<'m>),
    ) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        if let Some(slice) = self.slice(address, bytes) {
            visit(slice);
            return Ok(());
        }
        for slice in self.memory.get_slices(address, bytes) {
            visit(slice.map_err(|_| Fault::BadAddress)?);
        }
        Ok(())
    }
}
