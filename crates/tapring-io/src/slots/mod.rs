//! The RX slots: registered memory for frames read from the tap and not yet in the guest.
//!
//! ```text
//!          take            read completed
//!   free --------> in flight -----------> held (oldest first) --pop--> free
//!     ^                |  empty, cut, failed
//!     +----------------+
//! ```
//! Every slot is in exactly one of the three. The kernel writes only to those in flight, and frames are held in the
//! order of their completions, which is the order of the wire (the order of the slots is not).
//!
//! A slot of a packet socket may hold a super-frame. It is shown as the frames it stands for, one after the other, and
//! counts as so many.

mod line;
mod received;
mod unpack;

use std::io;

use io_uring::{opcode, squeue};
use rustix::fd::BorrowedFd;
use rustix::io::{read, retry_on_intr};

use crate::encoding::Encoding;
use crate::mapping::Mapping;
use crate::packet::{self, Message};
use crate::poll::TAP_FILE;
use crate::token::{Kind, Token};
use crate::{BATCH_FRAMES, HEADER_BYTES};

use line::Line64;
use received::receive;
use unpack::Unpack;

/// Index of the slots among the registered buffers.
pub(crate) const SLOT_BUFFER: u16 = 1;

const LINE: usize = 64;

/// Slots of a packet socket that has room for super-frames: 1 MiB, which may have to be locked. A batch of 16 has nearly all
/// that one of 64 gives.
const SUPER_SLOTS: usize = 16;

/// Larger slots than this are for super-frames.
const SUPER_BYTES: usize = 16 << 10;

/// Addresses and type.
const ETHERNET_BYTES: usize = 14;

/// Why the tap would not read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapFault {
    /// It is administratively down (EIO; of a packet socket ENETDOWN).
    Down,
    /// It was deleted (EBADFD; of a packet socket ENXIO).
    Gone,
    /// Another error number.
    Errno(i32),
}

impl TapFault {
    /// From a positive error number.
    pub(crate) const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EIO | libc::ENETDOWN => Self::Down,
            libc::EBADFD | libc::ENXIO | libc::ENODEV => Self::Gone,
            other => Self::Errno(other),
        }
    }
}

/// What became of a batch of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxBatch {
    /// Frames that are now held. A super-frame counts as one here, and as what it stands for when it is held.
    pub frames: usize,
    /// Reads that found the tap empty.
    pub empty: usize,
    /// Frames dropped because they filled a slot whole: the tap cuts silently, so that they may be incomplete.
    pub cut: usize,
    /// Frames dropped because their sender left work to others that cannot be made up for here.
    pub unsupported: usize,
    /// The last read that failed, if any.
    pub fault: Option<TapFault>,
}

/// What became of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    Frame,
    Empty,
    Cut,
    Unsupported,
    Fault(TapFault),
}

impl RxBatch {
    fn count(&mut self, landed: Landed) {
        match landed {
            Landed::Frame => self.frames += 1,
            Landed::Empty => self.empty += 1,
            Landed::Cut => self.cut += 1,
            Landed::Unsupported => self.unsupported += 1,
            Landed::Fault(fault) => self.fault = Some(fault),
        }
    }
}

/// Where in its slot a frame is, its 12-byte header included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    start: usize,
    len: usize,
}

/// What a plain read is to read into.
pub(crate) struct Space<'a> {
    bytes: &'a mut [u8],
    /// How, when it is a packet socket.
    message: Option<&'a mut Message>,
}

impl Space<'_> {
    /// Reads one frame now.
    pub(crate) fn read(self, tap: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        match self.message {
            None => retry_on_intr(|| read(tap, &mut *self.bytes)),
            Some(message) => message.receive(tap, self.bytes),
        }
    }
}

/// The slots of a port and the batch of reads into them.
pub(crate) struct Slots {
    mapping: Mapping,
    stride: usize,
    bytes: u32,
    /// The frame in each held slot; of a super-frame the segment that is shown.
    places: [Place; BATCH_FRAMES],
    held: Line64,
    /// Frames held, all segments counted.
    frames: usize,
    free: Line64,
    in_flight: usize,
    generation: u32,
    batch: RxBatch,
    /// A batch was submitted and its result not yet taken.
    started: bool,
    /// Of a packet socket.
    unpack: Option<Box<Unpack>>,
}

impl Slots {
    /// Slots of `bytes` bytes: 64, or fewer where they are so large.
    pub(crate) fn new(encoding: Encoding, bytes: u32) -> io::Result<Self> {
        let stride = stride(bytes as usize);
        let count = if encoding.is_packet() && stride > SUPER_BYTES {
            SUPER_SLOTS
        } else {
            BATCH_FRAMES
        };
        let mut free = Line64::EMPTY;
        (0..count)
            .filter_map(|slot| u8::try_from(slot).ok())
            .for_each(|slot| free.push(slot));
        Ok(Self {
            mapping: Mapping::new(stride * count)?,
            stride,
            bytes,
            places: [Place::default(); BATCH_FRAMES],
            held: Line64::EMPTY,
            frames: 0,
            free,
            in_flight: 0,
            generation: 0,
            batch: RxBatch::default(),
            started: false,
            unpack: encoding.is_packet().then(Unpack::new),
        })
    }

    pub(crate) const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Never frees what the kernel may still write to.
    pub(crate) fn leak(&mut self) {
        self.mapping.leak();
        std::mem::forget(self.unpack.take());
    }

    pub(crate) const fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) const fn held(&self) -> usize {
        self.frames
    }

    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Begins a batch of at most `frames` reads and returns how many it may have: none while one is not taken yet.
    pub(crate) fn start(&mut self, frames: usize) -> usize {
        if self.started {
            return 0;
        }
        let frames = frames.min(self.free.len());
        self.started = frames > 0;
        self.generation = self.generation.wrapping_add(1);
        self.batch = RxBatch::default();
        frames
    }

    /// Gives the entries of `frames` reads into the next free slots to `push`, in order.
    #[inline]
    pub(crate) fn each_read(
        &mut self,
        frames: usize,
        registered: bool,
        mut push: impl FnMut(&squeue::Entry),
    ) {
        for _ in 0..frames {
            let Some(slot) = self.free.pop() else { return };
            self.in_flight += 1;
            let offset = usize::from(slot) * self.stride;
            let token = Token::new(Kind::Rx, slot, self.generation).raw();
            if let Some(unpack) = &mut self.unpack {
                let bytes = self.bytes as usize - packet::HEADER_AT;
                let start = self.mapping.address(offset + packet::HEADER_AT, bytes);
                let message = unpack.message(slot).prepare(start, bytes);
                push(&receive(message).user_data(token));
                continue;
            }
            let start = self.mapping.address(offset, self.bytes as usize);
            if registered {
                let read = opcode::ReadFixed::new(TAP_FILE, start, self.bytes, SLOT_BUFFER);
                push(&read.rw_flags(libc::RWF_NOWAIT).build().user_data(token));
            } else {
                let read = opcode::Read::new(TAP_FILE, start, self.bytes);
                push(&read.rw_flags(libc::RWF_NOWAIT).build().user_data(token));
            }
        }
    }

    /// A read of the ring completed.
    #[inline]
    pub(crate) fn complete(&mut self, token: Token, result: i32) {
        if token.generation() != self.generation || self.in_flight == 0 {
            return;
        }
        self.in_flight -= 1;
        let landed = self.land(token.raw().to_le_bytes()[1], result);
        self.batch.count(landed);
    }

    /// Whether a batch is in and its result not taken.
    #[inline]
    pub(crate) const fn is_done(&self) -> bool {
        self.started && self.in_flight == 0
    }

    /// The result of the batch, once all of it is in.
    pub(crate) fn take_batch(&mut self) -> Option<RxBatch> {
        if !self.is_done() {
            return None;
        }
        self.started = false;
        Some(self.batch)
    }

    /// One plain read into the next free slot by `read`; `None` when there is no slot.
    pub(crate) fn read_with(
        &mut self,
        read: impl FnOnce(Space<'_>) -> rustix::io::Result<usize>,
    ) -> Option<Landed> {
        let slot = self.free.pop()?;
        let skip = if self.unpack.is_some() {
            packet::HEADER_AT
        } else {
            0
        };
        let offset = usize::from(slot) * self.stride + skip;
        let space = Space {
            // SAFETY: the slot was free, so that no read is in flight into it.
            bytes: unsafe { self.mapping.slice_mut(offset, self.bytes as usize - skip) },
            message: self.unpack.as_mut().map(|unpack| unpack.message(slot)),
        };
        let result = match read(space) {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Err(errno) => -errno.raw_os_error(),
        };
        Some(self.land(slot, result))
    }

    /// As [`read_with`](Self::read_with), as a part of the started batch.
    pub(crate) fn read_in_batch(
        &mut self,
        read: impl FnOnce(Space<'_>) -> rustix::io::Result<usize>,
    ) -> Option<Landed> {
        let landed = self.read_with(read)?;
        self.batch.count(landed);
        Some(landed)
    }

    /// Files the slot of a finished read: a whole frame is held, everything else frees it.
    #[inline]
    fn land(&mut self, slot: u8, result: i32) -> Landed {
        if self.unpack.is_some() {
            return self.land_received(slot, result);
        }
        let landed = match u32::try_from(result) {
            Ok(bytes) if bytes < self.bytes && bytes as usize >= HEADER_BYTES => {
                let len = bytes as usize;
                self.places[usize::from(slot)] = Place { start: 0, len };
                self.held.push(slot);
                self.frames += 1;
                return Landed::Frame;
            }
            Ok(_) => Landed::Cut,
            Err(_) if result == -libc::EAGAIN => Landed::Empty,
            Err(_) => Landed::Fault(TapFault::from_errno(-result)),
        };
        self.free.push(slot);
        landed
    }

    /// The oldest held frame with its header.
    #[inline]
    pub(crate) fn front(&self) -> Option<&[u8]> {
        let slot = usize::from(self.held.front()?);
        let Place { start, len } = self.places[slot];
        // SAFETY: a held slot is not in flight, and writing to it takes `&mut self`.
        Some(unsafe { self.mapping.slice(slot * self.stride + start, len) })
    }

    /// Takes the oldest held frame away, and frees its slot when it was the last one in it; `false` when none is held.
    #[inline]
    pub(crate) fn pop(&mut self) -> bool {
        let Some(slot) = self.held.front() else {
            return false;
        };
        self.frames -= 1;
        if self.unpack.is_some() && self.show_next(slot) {
            return true;
        }
        self.held.pop();
        self.free.push(slot);
        self.show_first();
        true
    }
}

/// Distance between slots: whole cache lines and an odd number of them, so that the 64 headers fall into 64 different
/// sets of a 4 KiB-per-way L1 cache and not all into one.
const fn stride(bytes: usize) -> usize {
    let lines = bytes.div_ceil(LINE);
    (lines + 1 - lines % 2) * LINE
}

#[cfg(test)]
mod tests;
