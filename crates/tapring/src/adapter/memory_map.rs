//! Where the guest's memory lies, as the frontend tells it.
//!
//! The crate behind the adapter refuses a map it cannot use, but then ends the session, which costs the guest its
//! network card. So what can be told from the message is checked here, where a refusal is only an error reply and the
//! old map stays.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use thiserror::Error;

use super::message::{MAX_DESCRIPTORS, u32_at, u64_at};

/// Regions that may be added one by one: what the crate answers to GET_MAX_MEM_SLOTS.
const MAX_REGIONS: usize = 509;

/// Bytes of a region: guest address, size, user address, offset into the file.
const REGION_BYTES: usize = 32;

/// Bytes in front of the regions: a count and padding in SET_MEM_TABLE, padding in ADD_MEM_REG and REM_MEM_REG.
const PREFIX_BYTES: usize = 8;

/// Why a memory map is not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum MemoryFault {
    #[error("the message does not hold the regions it announces")]
    Shape,
    #[error("{regions} memory regions came with {descriptors} descriptors: one each is needed")]
    Descriptors { regions: usize, descriptors: usize },
    #[error("{0} memory regions: at most {MAX_DESCRIPTORS} fit in a table")]
    TableTooLong(usize),
    #[error("memory region at {0:#x} is empty or goes past the end of the address space")]
    Range(u64),
    #[error("memory region at {0:#x} is longer than its file: to touch it would kill this process")]
    PastFile(u64),
    #[error("memory region at {0:#x} overlaps another: remove that one first")]
    Overlap(u64),
    #[error("more than {MAX_REGIONS} memory regions: remove some first")]
    Full,
    #[error("no memory region of {size} bytes at {start:#x}: remove regions as they were added")]
    Missing { start: u64, size: u64 },
}

/// A region's file: which it is, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backing {
    device: u64,
    inode: u64,
    /// `u64::MAX` where the kernel does not say, as for a device.
    bytes: u64,
}

impl Backing {
    pub(crate) fn of(descriptor: &OwnedFd) -> Self {
        let Ok(stat) = fstat(descriptor) else {
            return Self::UNKNOWN;
        };
        let sized = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let bytes = u64::try_from(stat.st_size).ok().filter(|_| sized);
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: bytes.unwrap_or(u64::MAX),
        }
    }

    const UNKNOWN: Self = Self {
        device: 0,
        inode: 0,
        bytes: u64::MAX,
    };
}

/// What a change that was taken means for the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has to hear of it.
    New,
    /// Its map stays as it is. QEMU keeps a book of regions for each queue pair and adds and removes every region once
    /// for each of them.
    Same,
}

/// The regions in force, in guest-physical addresses.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    regions: Vec<Region>,
}

impl MemoryMap {
    /// SET_MEM_TABLE: the regions of `body` take the place of all others.
    pub(crate) fn replace(
        &mut self,
        body: &[u8],
        files: &[Backing],
    ) -> Result<Change, MemoryFault> {
        let count = table_length(body)?;
        one_each(count, files)?;
        let mut table = Self::default();
        let regions = body[PREFIX_BYTES..].chunks_exact(REGION_BYTES);
        for (bytes, file) in regions.zip(files) {
            table.insert(Region::parse(bytes, *file)?)?;
        }
        *self = table;
        Ok(Change::New)
    }

    /// ADD_MEM_REG.
    pub(crate) fn add(&mut self, body: &[u8], files: &[Backing]) -> Result<Change, MemoryFault> {
        one_each(1, files)?;
        let region = single(body, files[0])?;
        if let Some(known) = self.regions.iter_mut().find(|known| known.is(&region)) {
            known.additions = known.additions.saturating_add(1);
            return Ok(Change::Same);
        }
        self.insert(region)?;
        Ok(Change::New)
    }

    /// REM_MEM_REG. The offset into the file and the user's address are not compared: the specification leaves them out.
    pub(crate) fn remove(&mut self, body: &[u8]) -> Result<Change, MemoryFault> {
        let Region { start, size, .. } = single(body, Backing::UNKNOWN)?;
        let is_it = |region: &Region| region.start == start && region.size == size;
        let position = self.regions.iter().position(is_it);
        let position = position.ok_or(MemoryFault::Missing { start, size })?;
        if self.regions[position].additions > 1 {
            self.regions[position].additions -= 1;
            return Ok(Change::Same);
        }
        self.regions.swap_remove(position);
        Ok(Change::New)
    }

    fn insert(&mut self, region: Region) -> Result<(), MemoryFault> {
        if self.regions.iter().any(|other| other.overlaps(region)) {
            return Err(MemoryFault::Overlap(region.start));
        }
        if self.regions.len() == MAX_REGIONS {
            return Err(MemoryFault::Full);
        }
        self.regions.push(region);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Region {
    start: u64,
    size: u64,
    user: u64,
    offset: u64,
    file: (u64, u64),
    /// How often it was added and not removed.
    additions: u32,
}

impl Region {
    fn parse(bytes: &[u8], file: Backing) -> Result<Self, MemoryFault> {
        let [start, size, user, offset] = [0, 8, 16, 24].map(|at| u64_at(bytes, at));
        let fits = |base: u64| base.checked_add(size).is_some();
        if size == 0 || ![start, user, offset].into_iter().all(fits) {
            return Err(MemoryFault::Range(start));
        }
        if offset + size > file.bytes {
            return Err(MemoryFault::PastFile(start));
        }
        Ok(Self {
            start,
            size,
            user,
            offset,
            file: (file.device, file.inode),
            additions: 1,
        })
    }

    /// Whether the same memory lies at the same place.
    fn is(&self, other: &Self) -> bool {
        let place = |region: &Self| (region.start, region.size, region.user);
        let memory = |region: &Self| (region.file, region.offset);
        place(self) == place(other) && memory(self) == memory(other)
    }

    /// No end overflows: [`Self::parse`] saw to that.
    const fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

fn one_each(regions: usize, files: &[Backing]) -> Result<(), MemoryFault> {
    let descriptors = files.len();
    if regions == descriptors {
        return Ok(());
    }
    Err(MemoryFault::Descriptors {
        regions,
        descriptors,
    })
}

fn table_length(body: &[u8]) -> Result<usize, MemoryFault> {
    if body.len() < PREFIX_BYTES {
        return Err(MemoryFault::Shape);
    }
    let count = u32_at(body, 0) as usize;
    if count > MAX_DESCRIPTORS {
        return Err(MemoryFault::TableTooLong(count));
    }
    if count == 0 || body.len() != PREFIX_BYTES + count * REGION_BYTES {
        return Err(MemoryFault::Shape);
    }
    Ok(count)
}

fn single(body: &[u8], file: Backing) -> Result<Region, MemoryFault> {
    if body.len() != PREFIX_BYTES + REGION_BYTES {
        return Err(MemoryFault::Shape);
    }
    Region::parse(&body[PREFIX_BYTES..], file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Backing = Backing {
        inode: 1,
        ..Backing::UNKNOWN
    };

    fn region(start: u64, size: u64) -> Vec<u8> {
        [start, size, start + 0x7000_0000, 0]
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect()
    }

    fn table(regions: &[(u64, u64)]) -> Vec<u8> {
        let mut body = (regions.len() as u64).to_ne_bytes().to_vec();
        for (start, size) in regions {
            body.extend(region(*start, *size));
        }
        body
    }

    fn one(start: u64, size: u64) -> Vec<u8> {
        [vec![0; 8], region(start, size)].concat()
    }

    #[test]
    fn a_bad_table_leaves_the_old_one_in_force() {
        let mut map = MemoryMap::default();
        assert_eq!(
            map.replace(&table(&[(0, 0x1000)]), &[FILE; 1]),
            Ok(Change::New)
        );
        let overlapping = table(&[(0x1000, 0x1000), (0x1fff, 1)]);
        assert_eq!(
            map.replace(&overlapping, &[FILE; 2]),
            Err(MemoryFault::Overlap(0x1fff))
        );
        assert_eq!(map.remove(&one(0, 0x1000)), Ok(Change::New));
    }

    #[test]
    fn regions_are_counted_and_measured() {
        let mut map = MemoryMap::default();
        let many: Vec<_> = (0..33).map(|n| (n * 0x1000, 0x1000)).collect();
        assert_eq!(
            map.replace(&table(&many), &[FILE; 33]),
            Err(MemoryFault::TableTooLong(33))
        );
        assert_eq!(
            map.replace(&table(&many[..32]), &[FILE; 32]),
            Ok(Change::New)
        );
        assert_eq!(
            map.replace(&table(&[(0, 1)]), &[]),
            Err(MemoryFault::Descriptors {
                regions: 1,
                descriptors: 0
            })
        );
        assert_eq!(
            map.replace(&table(&[(0, 0)]), &[FILE]),
            Err(MemoryFault::Range(0))
        );
        assert_eq!(map.replace(&[0; 7], &[]), Err(MemoryFault::Shape));
        assert_eq!(map.replace(&[0; 8], &[]), Err(MemoryFault::Shape));
    }

    #[test]
    fn regions_come_and_go_one_by_one() {
        let mut map = MemoryMap::default();
        assert_eq!(map.add(&one(0x1000, 0x1000), &[FILE; 1]), Ok(Change::New));
        assert_eq!(
            map.add(&one(0x1800, 0x1000), &[FILE; 1]),
            Err(MemoryFault::Overlap(0x1800))
        );
        assert_eq!(map.add(&one(0x2000, 0x1000), &[FILE; 1]), Ok(Change::New));
        let missing = MemoryFault::Missing {
            start: 0x1000,
            size: 0x2000,
        };
        assert_eq!(map.remove(&one(0x1000, 0x2000)), Err(missing));
        assert_eq!(map.remove(&one(0x1000, 0x1000)), Ok(Change::New));
        assert_eq!(map.add(&one(0x1800, 0x800), &[FILE; 1]), Ok(Change::New));
    }

    #[test]
    fn a_region_added_twice_is_there_until_removed_twice() {
        let mut map = MemoryMap::default();
        let region = one(0x1000, 0x1000);
        assert_eq!(map.add(&region, &[FILE]), Ok(Change::New));
        assert_eq!(map.add(&region, &[FILE]), Ok(Change::Same));
        let other_file = map.add(&region, &[Backing { inode: 2, ..FILE }]);
        assert_eq!(other_file, Err(MemoryFault::Overlap(0x1000)));
        assert_eq!(map.remove(&region), Ok(Change::Same));
        assert_eq!(map.remove(&region), Ok(Change::New));
        assert!(map.remove(&region).is_err());
    }

    /// Where a mapping goes past its file the first touch is a SIGBUS.
    #[test]
    fn a_region_ends_where_its_file_does() {
        let mut map = MemoryMap::default();
        let short = Backing {
            bytes: 0x1000,
            ..FILE
        };
        let past = Err(MemoryFault::PastFile(0));
        assert_eq!(map.replace(&table(&[(0, 0x1001)]), &[short]), past);
        assert_eq!(map.add(&one(0, 0x2000), &[short]), past);
        assert_eq!(map.add(&one(0, 0x1000), &[short]), Ok(Change::New));
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        let mut map = MemoryMap::default();
        for n in 0..MAX_REGIONS as u64 {
            assert_eq!(
                map.add(&one(n * 0x1000, 0x1000), &[FILE; 1]),
                Ok(Change::New)
            );
        }
        assert_eq!(
            map.add(&one(1 << 40, 0x1000), &[FILE; 1]),
            Err(MemoryFault::Full)
        );
    }
}
