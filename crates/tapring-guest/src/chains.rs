//! What TX and RX share: buffers cut into chains as a [`Layout`] says, direct or through an indirect table.

use crate::error::{GuestError, SendError};
use crate::layout::{Layout, Piece};
use crate::memory::{Area, Carver};
use crate::pool::Pool;
use crate::ring::{DESC_INDIRECT, Descriptor, DriverRing};

/// Token of chains that a caller added to the ring itself; their memory is not the pool's.
pub const RAW: u32 = u32::MAX;

/// One indirect table per head.
#[derive(Debug)]
struct Tables {
    area: Area,
    entries: u16,
}

impl Tables {
    /// 15 bytes more than the entries, so that every misalignment has room.
    const fn bytes(entries: u16) -> usize {
        (entries as usize + 1) * 16
    }

    fn carve(carver: &mut Carver, heads: u16, entries: u16) -> Result<Self, GuestError> {
        let area = carver.carve(usize::from(heads) * Self::bytes(entries), 4096)?;
        Ok(Self { area, entries })
    }

    /// Writes the table of `head` and returns the descriptor that points to it.
    fn write(&self, head: u16, misaligned: u8, chain: &[Descriptor]) -> Descriptor {
        let start = usize::from(head) * Self::bytes(self.entries) + usize::from(misaligned % 16);
        for (n, descriptor) in chain.iter().enumerate() {
            self.area.write(start + n * 16, &descriptor.to_bytes());
        }
        Descriptor {
            address: self.area.address() + start as u64,
            bytes: u32::from(
                self.entries
                    .min(u16::try_from(chain.len()).unwrap_or(u16::MAX)),
            ) * 16,
            flags: DESC_INDIRECT,
            next: 0,
        }
    }
}

/// A ring, its buffers and its indirect tables.
#[derive(Debug)]
pub(crate) struct Chains {
    pub(crate) ring: DriverRing,
    pub(crate) pool: Pool,
    pub(crate) slot_bytes: usize,
    tables: Tables,
    pub(crate) pieces: Vec<Piece>,
    descriptors: Vec<Descriptor>,
}

impl Chains {
    pub(crate) fn carve(
        carver: &mut Carver,
        ring: DriverRing,
        slot_bytes: usize,
        span_bytes: usize,
        indirect_entries: u16,
    ) -> Result<Self, GuestError> {
        let size = ring.size();
        Ok(Self {
            pool: Pool::carve(carver, usize::from(size), slot_bytes, span_bytes)?,
            tables: Tables::carve(carver, size, indirect_entries)?,
            pieces: Vec::new(),
            descriptors: Vec::new(),
            slot_bytes,
            ring,
        })
    }

    /// Cuts `total` bytes of a slot; the result is in `pieces`.
    pub(crate) fn cut(
        &mut self,
        layout: &Layout,
        total: usize,
        header: usize,
    ) -> Result<(), SendError> {
        let room = self.slot_bytes;
        let bytes = layout.place(total, header, &mut self.pieces);
        let (pieces, entries) = (self.pieces.len(), self.tables.entries);
        if bytes > room {
            return Err(SendError::TooLong { bytes, room });
        }
        if layout.indirect.is_some() && pieces > usize::from(entries) {
            return Err(SendError::TooManyPieces { pieces, entries });
        }
        Ok(())
    }

    /// Makes the pieces of `slot` available as one chain.
    pub(crate) fn expose(
        &mut self,
        slot: u32,
        flags: u16,
        indirect: Option<u8>,
        capacity: u32,
    ) -> Result<u16, SendError> {
        self.describe(slot, flags, indirect.is_some());
        let Some(misaligned) = indirect else {
            return self
                .ring
                .add(&self.descriptors, slot, capacity)
                .map_err(|_| SendError::Full);
        };
        let head = self
            .ring
            .reserve(1, slot, capacity)
            .map_err(|_| SendError::Full)?;
        let table = self.tables.write(head, misaligned, &self.descriptors);
        self.ring.write_descriptor(head, table);
        self.ring.expose(head);
        Ok(head)
    }

    /// Takes the slot of a returned chain back.
    pub(crate) fn recycle(&mut self, token: u32) {
        if token != RAW {
            self.pool.put(token);
        }
    }

    /// Inside a table the entries are linked here; in the ring's own table `DriverRing::add` does it.
    fn describe(&mut self, slot: u32, flags: u16, linked: bool) {
        let pieces = self.pieces.len();
        self.descriptors.clear();
        for (n, piece) in self.pieces.iter().enumerate() {
            let more = linked && n + 1 < pieces;
            self.descriptors.push(Descriptor {
                address: self.pool.address(slot, piece.place),
                bytes: u32::try_from(piece.bytes).unwrap_or(u32::MAX),
                flags: flags | if more { crate::ring::DESC_NEXT } else { 0 },
                next: if more {
                    u16::try_from(n + 1).unwrap_or(0)
                } else {
                    0
                },
            });
        }
    }
}
