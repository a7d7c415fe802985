//! Where the guest's memory lies, as the frontend tells it.
//!
//! The crate behind the adapter refuses a map it cannot use, but then ends the session, which costs the guest its
//! network card. So what can be told from the message is checked here, where a refusal is only an error reply and the
//! old map stays.

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
    #[error("memory region at {0:#x} overlaps another: remove that one first")]
    Overlap(u64),
    #[error("more than {MAX_REGIONS} memory regions: remove some first")]
    Full,
    #[error("no memory region of {size} bytes at {start:#x}: remove regions as they were added")]
    Missing { start: u64, size: u64 },
}

/// The regions in force, in guest-physical addresses.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    regions: Vec<Region>,
}

impl MemoryMap {
    /// SET_MEM_TABLE: the regions of `body` take the place of all others.
    pub(crate) fn replace(&mut self, body: &[u8], descriptors: usize) -> Result<(), MemoryFault> {
        let count = table_length(body)?;
        if count != descriptors {
            return Err(MemoryFault::Descriptors {
                regions: count,
                descriptors,
            });
        }
        let mut table = Self::default();
        for bytes in body[PREFIX_BYTES..].chunks_exact(REGION_BYTES) {
            table.insert(Region::parse(bytes)?)?;
        }
        *self = table;
        Ok(())
    }

    /// ADD_MEM_REG.
    pub(crate) fn add(&mut self, body: &[u8], descriptors: usize) -> Result<(), MemoryFault> {
        if descriptors != 1 {
            return Err(MemoryFault::Descriptors {
                regions: 1,
                descriptors,
            });
        }
        self.insert(single(body)?)
    }

    /// REM_MEM_REG.
    pub(crate) fn remove(&mut self, body: &[u8]) -> Result<(), MemoryFault> {
        let Region { start, size } = single(body)?;
        let is_it = |region: &Region| region.start == start && region.size == size;
        let position = self.regions.iter().position(is_it);
        let position = position.ok_or(MemoryFault::Missing { start, size })?;
        self.regions.swap_remove(position);
        Ok(())
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
}

impl Region {
    fn parse(bytes: &[u8]) -> Result<Self, MemoryFault> {
        let [start, size, user, offset] = [0, 8, 16, 24].map(|at| u64_at(bytes, at));
        let fits = |base: u64| base.checked_add(size).is_some();
        if size == 0 || ![start, user, offset].into_iter().all(fits) {
            return Err(MemoryFault::Range(start));
        }
        Ok(Self { start, size })
    }

    /// No end overflows: [`Self::parse`] saw to that.
    const fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
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

fn single(body: &[u8]) -> Result<Region, MemoryFault> {
    if body.len() != PREFIX_BYTES + REGION_BYTES {
        return Err(MemoryFault::Shape);
    }
    Region::parse(&body[PREFIX_BYTES..])
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(map.replace(&table(&[(0, 0x1000)]), 1), Ok(()));
        let overlapping = table(&[(0x1000, 0x1000), (0x1fff, 1)]);
        assert_eq!(
            map.replace(&overlapping, 2),
            Err(MemoryFault::Overlap(0x1fff))
        );
        assert_eq!(map.remove(&one(0, 0x1000)), Ok(()));
    }

    #[test]
    fn regions_are_counted_and_measured() {
        let mut map = MemoryMap::default();
        let many: Vec<_> = (0..33).map(|n| (n * 0x1000, 0x1000)).collect();
        assert_eq!(
            map.replace(&table(&many), 33),
            Err(MemoryFault::TableTooLong(33))
        );
        assert_eq!(map.replace(&table(&many[..32]), 32), Ok(()));
        assert_eq!(
            map.replace(&table(&[(0, 1)]), 0),
            Err(MemoryFault::Descriptors {
                regions: 1,
                descriptors: 0
            })
        );
        assert_eq!(
            map.replace(&table(&[(0, 0)]), 1),
            Err(MemoryFault::Range(0))
        );
        assert_eq!(map.replace(&[0; 7], 0), Err(MemoryFault::Shape));
        assert_eq!(map.replace(&[0; 8], 0), Err(MemoryFault::Shape));
    }

    #[test]
    fn regions_come_and_go_one_by_one() {
        let mut map = MemoryMap::default();
        assert_eq!(map.add(&one(0x1000, 0x1000), 1), Ok(()));
        assert_eq!(
            map.add(&one(0x1800, 0x1000), 1),
            Err(MemoryFault::Overlap(0x1800))
        );
        assert_eq!(map.add(&one(0x2000, 0x1000), 1), Ok(()));
        let missing = MemoryFault::Missing {
            start: 0x1000,
            size: 0x2000,
        };
        assert_eq!(map.remove(&one(0x1000, 0x2000)), Err(missing));
        assert_eq!(map.remove(&one(0x1000, 0x1000)), Ok(()));
        assert_eq!(map.add(&one(0x1800, 0x800), 1), Ok(()));
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        let mut map = MemoryMap::default();
        for n in 0..MAX_REGIONS as u64 {
            assert_eq!(map.add(&one(n * 0x1000, 0x1000), 1), Ok(()));
        }
        assert_eq!(map.add(&one(1 << 40, 0x1000), 1), Err(MemoryFault::Full));
    }
}
