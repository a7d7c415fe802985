//! Guest memory that ring entries may point into: kept mapped, and checked before its address goes to the kernel.

use std::sync::Arc;

use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// The present memory of the guest and the host addresses of its regions.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    /// Held so that no region is unmapped while the kernel may read from it.
    memory: Option<Arc<GuestMemoryMmap>>,
    regions: Vec<Region>,
    /// The region of the last answer: most guests have all their buffers in one.
    last: usize,
}

/// Host addresses `start..end`.
#[derive(Clone, Copy, Debug)]
struct Region {
    start: usize,
    end: usize,
}

impl Guest {
    pub(crate) fn new(memory: Option<Arc<GuestMemoryMmap>>) -> Self {
        let regions = memory
            .iter()
            .flat_map(|memory| memory.iter())
            .filter_map(Region::of)
            .collect();
        Self {
            memory,
            regions,
            last: 0,
        }
    }

    /// Whether all of `bytes` bytes from host address `start` are in one region.
    #[inline]
    pub(crate) fn contains(&mut self, start: usize, bytes: usize) -> bool {
        if self
            .regions
            .get(self.last)
            .is_some_and(|region| region.contains(start, bytes))
        {
            return true;
        }
        let found = self
            .regions
            .iter()
            .position(|region| region.contains(start, bytes));
        self.last = found.unwrap_or(0);
        found.is_some()
    }

    /// Keeps the memory mapped for ever: for when the kernel could not be made to let go.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

impl Region {
    fn of(region: &impl GuestMemoryRegion) -> Option<Self> {
        let slice = region.as_volatile_slice().ok()?;
        let start = slice.ptr_guard().as_ptr().addr();
        Some(Self {
            start,
            end: start + slice.len(),
        })
    }

    #[inline]
    const fn contains(self, start: usize, bytes: usize) -> bool {
        start >= self.start && start <= self.end && bytes <= self.end - start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::GuestAddress;

    fn address_of(memory: &GuestMemoryMmap, at: u64) -> usize {
        memory
            .get_slice(GuestAddress(at), 1)
            .unwrap()
            .ptr_guard()
            .as_ptr()
            .addr()
    }

    #[test]
    fn only_bytes_within_one_region_are_inside() {
        let ranges = [(GuestAddress(0), 0x1000), (GuestAddress(0x10_0000), 0x2000)];
        let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap());
        let mut guest = Guest::new(Some(Arc::clone(&memory)));
        let first = address_of(&memory, 0);
        let second = address_of(&memory, 0x10_0000);

        assert!(guest.contains(first, 0x1000));
        assert!(guest.contains(second + 0x1fff, 1));
        assert!(!guest.contains(first + 1, 0x1000));
        assert!(!guest.contains(second, usize::MAX));
        assert!(!guest.contains(first.min(second) - 1, 1));
    }

    #[test]
    fn without_memory_nothing_is_inside() {
        assert!(!Guest::default().contains(0, 0));
    }
}
