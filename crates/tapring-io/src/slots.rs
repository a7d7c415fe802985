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

use std::io;

use io_uring::{opcode, squeue};

use crate::mapping::Mapping;
use crate::poll::TAP_FILE;
use crate::token::{Kind, Token};
use crate::{BATCH_FRAMES, HEADER_BYTES};

/// Index of the slots among the registered buffers.
pub(crate) const SLOT_BUFFER: u16 = 1;

const LINE: usize = 64;

/// Why the tap would not read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapFault {
    /// It is administratively down (EIO).
    Down,
    /// It was deleted (EBADFD).
    Gone,
    /// Another error number.
    Errno(i32),
}

impl TapFault {
    /// From a positive error number.
    pub(crate) const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EIO => Self::Down,
            libc::EBADFD => Self::Gone,
            other => Self::Errno(other),
        }
    }
}

/// What became of a batch of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxBatch {
    /// Frames that are now held.
    pub frames: usize,
    /// Reads that found the tap empty.
    pub empty: usize,
    /// Frames dropped because they filled a slot whole: the tap cuts silently, so that they may be incomplete.
    pub cut: usize,
    /// The last read that failed, if any.
    pub fault: Option<TapFault>,
}

/// What became of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    Frame,
    Empty,
    Cut,
    Fault(TapFault),
}

impl RxBatch {
    fn count(&mut self, landed: Landed) {
        match landed {
            Landed::Frame => self.frames += 1,
            Landed::Empty => self.empty += 1,
            Landed::Cut => self.cut += 1,
            Landed::Fault(fault) => self.fault = Some(fault),
        }
    }
}

/// A ring of slot numbers; as many places as there are slots, so it cannot be full.
#[derive(Debug)]
struct Line64 {
    slots: [u8; BATCH_FRAMES],
    first: usize,
    len: usize,
}

impl Line64 {
    const EMPTY: Self = Self {
        slots: [0; BATCH_FRAMES],
        first: 0,
        len: 0,
    };

    #[inline]
    fn push(&mut self, slot: u8) {
        debug_assert!(self.len < BATCH_FRAMES);
        self.slots[(self.first + self.len) % BATCH_FRAMES] = slot;
        self.len += 1;
    }

    #[inline]
    fn front(&self) -> Option<u8> {
        (self.len > 0).then(|| self.slots[self.first])
    }

    #[inline]
    fn pop(&mut self) -> Option<u8> {
        let slot = self.front()?;
        self.first = (self.first + 1) % BATCH_FRAMES;
        self.len -= 1;
        Some(slot)
    }
}

/// The slots of a port and the batch of reads into them.
#[derive(Debug)]
pub(crate) struct Slots {
    mapping: Mapping,
    stride: usize,
    bytes: u32,
    /// Length of the frame in each held slot.
    lens: [u32; BATCH_FRAMES],
    held: Line64,
    free: Line64,
    in_flight: usize,
    generation: u32,
    batch: RxBatch,
    /// A batch was submitted and its result not yet taken.
    started: bool,
}

impl Slots {
    /// 64 slots of `bytes` bytes.
    pub(crate) fn new(bytes: u32) -> io::Result<Self> {
        let stride = stride(bytes as usize);
        let mut free = Line64::EMPTY;
        (0..BATCH_FRAMES)
            .filter_map(|slot| u8::try_from(slot).ok())
            .for_each(|slot| free.push(slot));
        Ok(Self {
            mapping: Mapping::new(stride * BATCH_FRAMES)?,
            stride,
            bytes,
            lens: [0; BATCH_FRAMES],
            held: Line64::EMPTY,
            free,
            in_flight: 0,
            generation: 0,
            batch: RxBatch::default(),
            started: false,
        })
    }

    pub(crate) const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) const fn mapping_mut(&mut self) -> &mut Mapping {
        &mut self.mapping
    }

    pub(crate) const fn free(&self) -> usize {
        self.free.len
    }

    pub(crate) const fn held(&self) -> usize {
        self.held.len
    }

    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Begins a batch of at most `frames` reads and returns how many it may have: none while one is not taken yet.
    pub(crate) fn start(&mut self, frames: usize) -> usize {
        if self.started {
            return 0;
        }
        let frames = frames.min(self.free.len);
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
            let start = self.mapping.address(offset, self.bytes as usize);
            let token = Token::new(Kind::Rx, slot, self.generation).raw();
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
        read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
    ) -> Option<Landed> {
        let slot = self.free.pop()?;
        let offset = usize::from(slot) * self.stride;
        // SAFETY: the slot was free, so that no read is in flight into it.
        let space = unsafe { self.mapping.slice_mut(offset, self.bytes as usize) };
        let result = match read(space) {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Err(errno) => -errno.raw_os_error(),
        };
        Some(self.land(slot, result))
    }

    /// As [`read_with`](Self::read_with), as a part of the started batch.
    pub(crate) fn read_in_batch(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
    ) -> Option<Landed> {
        let landed = self.read_with(read)?;
        self.batch.count(landed);
        Some(landed)
    }

    /// Files the slot of a finished read: a whole frame is held, everything else frees it.
    #[inline]
    fn land(&mut self, slot: u8, result: i32) -> Landed {
        let landed = match u32::try_from(result) {
            Ok(bytes) if bytes < self.bytes && bytes as usize >= HEADER_BYTES => {
                self.lens[usize::from(slot)] = bytes;
                self.held.push(slot);
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
        // SAFETY: a held slot is not in flight, and writing to it takes `&mut self`.
        Some(unsafe {
            self.mapping
                .slice(slot * self.stride, self.lens[slot] as usize)
        })
    }

    /// Frees the slot of the oldest held frame; `false` when none is held.
    #[inline]
    pub(crate) fn pop(&mut self) -> bool {
        let slot = self.held.pop();
        if let Some(slot) = slot {
            self.free.push(slot);
        }
        slot.is_some()
    }
}

/// Distance between slots: whole cache lines and an odd number of them, so that the 64 headers fall into 64 different
/// sets of a 4 KiB-per-way L1 cache and not all into one.
const fn stride(bytes: usize) -> usize {
    let lines = bytes.div_ceil(LINE);
    (lines + 1 - lines % 2) * LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(slots: &mut Slots, frames: usize) -> Vec<Token> {
        let mut tokens = Vec::new();
        slots.each_read(frames, true, |entry| {
            tokens.push(Token::from_raw(entry.get_user_data()));
        });
        tokens
    }

    #[test]
    fn slots_do_not_share_cache_sets() {
        for bytes in [1526, 4096, 9229, 65_549] {
            let sets: std::collections::HashSet<_> = (0..BATCH_FRAMES)
                .map(|slot| slot * stride(bytes) / LINE % 64)
                .collect();
            assert_eq!(sets.len(), BATCH_FRAMES, "{bytes}");
            assert!(stride(bytes) >= bytes);
        }
    }

    #[test]
    fn frames_are_held_in_order_of_completion() {
        let mut slots = Slots::new(2048).unwrap();
        assert_eq!(slots.start(3), 3);
        let tokens = tokens(&mut slots, 3);

        slots.complete(tokens[2], 100);
        assert_eq!(slots.take_batch(), None);
        slots.complete(tokens[0], -libc::EAGAIN);
        slots.complete(tokens[1], 200);

        assert_eq!(
            slots.take_batch(),
            Some(RxBatch {
                frames: 2,
                empty: 1,
                ..RxBatch::default()
            })
        );
        assert_eq!(slots.front().unwrap().len(), 100);
        assert!(slots.pop());
        assert_eq!(slots.front().unwrap().len(), 200);
        assert!(slots.pop());
        assert!(!slots.pop());
        assert_eq!(slots.free(), BATCH_FRAMES);
    }

    #[test]
    fn a_full_slot_is_a_cut_frame_and_is_dropped() {
        let mut slots = Slots::new(100).unwrap();
        assert_eq!(slots.read_with(|space| Ok(space.len())), Some(Landed::Cut));
        assert_eq!(
            slots.read_with(|space| Ok(space.len() - 1)),
            Some(Landed::Frame)
        );
        assert_eq!((slots.held(), slots.free()), (1, BATCH_FRAMES - 1));
    }

    #[test]
    fn only_as_many_reads_as_free_slots_and_one_batch_at_a_time() {
        let mut slots = Slots::new(100).unwrap();
        for _ in 0..60 {
            slots.read_with(|_| Ok(50));
        }
        assert_eq!(slots.start(64), 4);
        let token = tokens(&mut slots, 1)[0];
        assert_eq!(slots.start(1), 0);
        slots.complete(token, -libc::EBADFD);
        assert_eq!(slots.take_batch().unwrap().fault, Some(TapFault::Gone));
        slots.complete(token, 50);
        assert_eq!(slots.held(), 60, "a stale completion changes nothing");
    }
}
