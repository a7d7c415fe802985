//! Guest memory: memfd regions mapped shared, handed to the backend by descriptor.
//!
//! Guest physical addresses start at 0 with the main region. The "user address" that vhost-user wants for each region is only
//! a name both sides agree on; it is made up here ([`USER_BASE`] above the physical one), so that a backend that mixes up the
//! two kinds of address is found out at once.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::bitmap::BitmapSlice;
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory, VolatileSlice};

use crate::error::GuestError;

/// User address of guest physical address 0.
pub const USER_BASE: u64 = 0x5a00_0000_0000;

/// One region of guest memory.
#[derive(Debug)]
pub(crate) struct Bank {
    base: u64,
    map: MmapRegion<()>,
}

impl Bank {
    pub(crate) fn new(base: u64, bytes: usize) -> Result<Self, GuestError> {
        let map = map_memfd(bytes).map_err(|source| GuestError::Host {
            what: "memory",
            source,
        })?;
        Ok(Self { base, map })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.size()
    }

    /// Offset of `bytes` at guest physical `address`, if they lie inside.
    fn locate(&self, address: u64, bytes: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        (offset.checked_add(bytes)? <= self.bytes()).then_some(offset)
    }

    /// The region as SET_MEM_TABLE and ADD_MEM_REG want it.
    pub(crate) fn describe(&self) -> VhostUserMemoryRegionInfo {
        let handle = self
            .map
            .file_offset()
            .map_or(-1, |at| at.file().as_raw_fd());
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.base,
            memory_size: self.bytes() as u64,
            userspace_addr: USER_BASE + self.base,
            mmap_offset: 0,
            mmap_handle: handle,
        }
    }
}

fn map_memfd(bytes: usize) -> io::Result<MmapRegion<()>> {
    let fd = memfd_create("tapring-guest", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, bytes as u64)?;
    MmapRegion::from_file(FileOffset::new(File::from(fd), 0), bytes).map_err(io::Error::other)
}

/// All guest memory, by guest physical address.
#[derive(Debug)]
pub struct Ram {
    banks: RwLock<Vec<Arc<Bank>>>,
}

impl Ram {
    pub(crate) fn new(bytes: usize) -> Result<Self, GuestError> {
        let main = Arc::new(Bank::new(0, bytes)?);
        Ok(Self {
            banks: RwLock::new(vec![main]),
        })
    }

    pub(crate) fn banks(&self) -> Vec<Arc<Bank>> {
        self.banks
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn main(&self) -> Arc<Bank> {
        Arc::clone(&self.banks.read().unwrap_or_else(PoisonError::into_inner)[0])
    }

    pub(crate) fn plug(&self, bank: Arc<Bank>) {
        self.banks
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(bank);
    }

    /// Takes the region that starts at `address` out; the main region stays.
    pub(crate) fn unplug(&self, address: u64) -> Option<Arc<Bank>> {
        let mut banks = self.banks.write().unwrap_or_else(PoisonError::into_inner);
        let at = banks
            .iter()
            .position(|bank| bank.base == address && address != 0)?;
        Some(banks.remove(at))
    }

    /// First address behind the main region.
    #[must_use]
    pub fn end_of_main(&self) -> u64 {
        self.main().bytes() as u64
    }

    /// Writes `bytes` at guest physical `address`; false if they do not lie in one region.
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.at(address, bytes.len(), |bank, offset| {
            bank.map
                .as_volatile_slice()
                .write_slice(bytes, offset)
                .is_ok()
        })
    }

    /// Reads into `bytes` from guest physical `address`; false if they do not lie in one region.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.at(address, bytes.len(), |bank, offset| {
            bank.map
                .as_volatile_slice()
                .read_slice(bytes, offset)
                .is_ok()
        })
    }

    /// Overwrites the whole main region with `byte`, rings included: what a rebooted guest might do with it.
    pub fn fill(&self, byte: u8) {
        let bank = self.main();
        let page = [byte; 4096];
        for offset in (0..bank.bytes()).step_by(page.len()) {
            let bytes = page.len().min(bank.bytes() - offset);
            self.write(offset as u64, &page[..bytes]);
        }
    }

    /// Everything in the main region, to be compared with a later snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.main().bytes()];
        self.read(0, &mut bytes);
        bytes
    }

    /// The first address of the main region whose byte is not `byte`.
    #[must_use]
    pub fn first_other_than(&self, byte: u8) -> Option<u64> {
        let bank = self.main();
        let mut page = [0; 4096];
        (0..bank.bytes()).step_by(page.len()).find_map(|offset| {
            let bytes = page.len().min(bank.bytes() - offset);
            self.read(offset as u64, &mut page[..bytes]);
            let at = page[..bytes].iter().position(|&found| found != byte)?;
            Some((offset + at) as u64)
        })
    }

    fn at(&self, address: u64, bytes: usize, act: impl FnOnce(&Bank, usize) -> bool) -> bool {
        let banks = self.banks.read().unwrap_or_else(PoisonError::into_inner);
        let found = banks
            .iter()
            .find_map(|bank| Some((bank, bank.locate(address, bytes)?)));
        found.is_some_and(|(bank, offset)| act(bank, offset))
    }
}

/// A piece of the main region that belongs to one ring or pool. Offsets are the caller's own arithmetic over its own layout,
/// never the backend's word, so one that is out of range is a bug here and panics.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    bank: Arc<Bank>,
    start: usize,
    bytes: usize,
}

impl Area {
    /// Guest physical address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.bank.base + self.start as u64
    }

    pub(crate) fn u16_at(&self, offset: usize) -> &AtomicU16 {
        self.bank
            .map
            .get_atomic_ref(self.start + offset)
            .expect("an aligned offset inside the area")
    }

    pub(crate) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        self.bank
            .map
            .get_atomic_ref(self.start + offset)
            .expect("an aligned offset inside the area")
    }

    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        self.bank
            .map
            .get_atomic_ref(self.start + offset)
            .expect("an aligned offset inside the area")
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.slice(offset, bytes.len()).copy_from(bytes);
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.slice(offset, bytes.len()).copy_to(bytes);
    }

    pub(crate) fn zero(&self) {
        let page = [0; 4096];
        for offset in (0..self.bytes).step_by(page.len()) {
            self.write(offset, &page[..page.len().min(self.bytes - offset)]);
        }
    }

    fn slice(&self, offset: usize, bytes: usize) -> VolatileSlice<'_, impl BitmapSlice> {
        self.bank
            .map
            .get_slice(self.start + offset, bytes)
            .expect("a range inside the area")
    }
}

/// Hands out areas of the main region from the bottom up.
#[derive(Debug)]
pub(crate) struct Carver {
    bank: Arc<Bank>,
    next: usize,
}

impl Carver {
    /// Page 0 stays unused, so that address 0 is never a valid buffer.
    pub(crate) fn new(bank: Arc<Bank>) -> Self {
        Self { bank, next: 4096 }
    }

    /// The next `bytes`, from a multiple of `align` on.
    pub(crate) fn carve(&mut self, bytes: usize, align: usize) -> Result<Area, GuestError> {
        let start = self.next.next_multiple_of(align);
        let have = self.bank.bytes();
        let need = start.saturating_add(bytes);
        if need > have {
            return Err(GuestError::MemoryTooSmall { have, need });
        }
        self.next = need;
        Ok(Area {
            bank: Arc::clone(&self.bank),
            start,
            bytes,
        })
    }
}
