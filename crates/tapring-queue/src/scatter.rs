//! Writing a received frame into chains.

use vm_memory::{VolatileMemory, VolatileSlice};

use crate::chain::Walk;
use crate::fault::Fault;
use crate::header::{HEADER_BYTES, NUM_BUFFERS_AT, PLAIN_HEADER};
use crate::lookup::Lookup;
use crate::ring::Ring;
use crate::setup::QueueSize;

/// A header and a frame on their way into one or more chains. Bytes are written as room for them
/// is found: nothing of it is the driver's until used elements are published, so an attempt that
/// runs out of chains is simply made again.
#[derive(Debug)]
pub(crate) struct Scatter<'f, 'm> {
    frame: &'f [u8],
    header_bytes: usize,
    /// Bytes written so far, the header counted in.
    written: usize,
    /// Descriptors that may still be walked for this frame. A layout without empty buffers never
    /// needs more than one a byte and the rest of the last chain; without the bound, chains made
    /// of empty buffers would cost the square of the queue size.
    descriptors_left: usize,
    /// Where num_buffers went, in one piece or two; it is known only when the last chain is.
    num_buffers: [Option<VolatileSlice<'m>>; 2],
}

/// What one chain took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes the chain can hold.
    pub(crate) capacity: u64,
    /// Bytes written to it.
    pub(crate) written: u32,
}

impl<'f, 'm> Scatter<'f, 'm> {
    pub(crate) const fn new(frame: &'f [u8], header_bytes: usize, size: QueueSize) -> Self {
        Self {
            frame,
            header_bytes,
            written: 0,
            descriptors_left: header_bytes + frame.len() + size.as_u16() as usize,
            num_buffers: [None; 2],
        }
    }

    /// Bytes that have found no room yet.
    pub(crate) const fn left(&self) -> usize {
        self.header_bytes + self.frame.len() - self.written
    }

    /// Writes as much as the chain at `head` holds. The whole chain is walked, for one that is
    /// malformed behind the bytes needed is malformed all the same.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        ring: &Ring<'m>,
        memory: &mut Lookup<'m>,
        head: u16,
        indirect: bool,
    ) -> Result<Taken, Fault> {
        let before = self.written;
        let mut capacity = 0;
        let mut walk = Walk::new(ring, memory, head, indirect);
        while let Some(descriptor) = walk.next()? {
            self.descriptors_left = self
                .descriptors_left
                .checked_sub(1)
                .ok_or(Fault::BadChain)?;
            if !descriptor.is_write_only() {
                return Err(Fault::WrongDirection);
            }
            capacity += u64::from(descriptor.len());
            walk.pieces(&descriptor, |slice| self.put(slice))?;
        }
        // At most a frame and its header were written.
        let written = u32::try_from(self.written - before).map_err(|_| Fault::TooLarge)?;
        Ok(Taken { capacity, written })
    }

    #[inline]
    fn put(&mut self, mut slice: VolatileSlice<'m>) {
        if self.written < self.header_bytes {
            slice = self.put_header(slice);
        }
        if self.written >= self.header_bytes {
            let rest = &self.frame[self.written - self.header_bytes..];
            let bytes = rest.len().min(slice.len());
            slice.copy_from(&rest[..bytes]);
            self.written += bytes;
        }
    }

    /// Writes header bytes to the front of `slice` and returns what is left of it.
    #[inline]
    fn put_header(&mut self, slice: VolatileSlice<'m>) -> VolatileSlice<'m> {
        if self.written == 0
            && self.header_bytes == HEADER_BYTES
            && let Some(rest) = self.put_whole_header(slice)
        {
            return rest;
        }
        let from = self.written;
        let bytes = (self.header_bytes - from).min(slice.len());
        slice.copy_from(&PLAIN_HEADER[..bytes]);
        for (i, place) in self.num_buffers.iter_mut().enumerate() {
            let at = NUM_BUFFERS_AT + i;
            if (from..from + bytes).contains(&at) {
                *place = slice.subslice(at - from, 1).ok();
            }
        }
        self.written += bytes;
        slice.offset(bytes).unwrap_or(slice)
    }

    /// The usual case, two stores: a copy of variable length costs more than the frame's.
    #[inline]
    fn put_whole_header(&mut self, slice: VolatileSlice<'m>) -> Option<VolatileSlice<'m>> {
        const { assert!(matches!(PLAIN_HEADER, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) };
        let rest = slice.offset(HEADER_BYTES).ok()?;
        slice.get_ref::<u64>(0).ok()?.store(0);
        slice.get_ref::<u32>(8).ok()?.store(0);
        self.num_buffers[0] = slice.subslice(NUM_BUFFERS_AT, 2).ok();
        self.written = HEADER_BYTES;
        Some(rest)
    }

    /// Writes num_buffers, now that it is known (§5.1.6.4).
    #[inline]
    pub(crate) fn finish(&self, num_buffers: u16) {
        let bytes = num_buffers.to_le_bytes();
        match &self.num_buffers {
            [Some(both), None] => {
                let _ = both.get_ref(0).map(|both| both.store(bytes));
            }
            places => {
                for (place, byte) in places.iter().flatten().zip(bytes) {
                    place.copy_from(&[byte]);
                }
            }
        }
    }
}
