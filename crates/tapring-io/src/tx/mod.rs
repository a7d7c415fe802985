//! The TX batch: frames on their way to the tap.
//!
//! ```text
//!              tx_submit                 last completion                outcomes taken
//!   Building ------------> InFlight(n) ------------------> Done ---------------------> Building
//!                             ^   |  a refused frame broke the chain:
//!                             +---+  the rest is submitted again
//! ```
//! Every write is RWF_NOWAIT: without it io_uring never reports EAGAIN but waits by itself, and the frames that wait
//! leave in reverse order (behind a slow egress 3012 inversions in 6270 frames). Where the tap's send buffer is finite
//! the batch is a chain of linked entries (6 to 9 % slower): the frame that gets EAGAIN cancels all behind it, so that
//! none overtakes it. An EAGAIN is how a buffer that was made finite under us shows, and from the first one on all
//! batches are linked: when links ended with the next whole batch, 5580 of 171,669 frames were overtaken behind an
//! egress of 400 Mbit/s.
//!
//! While a batch is in flight its arena and iovecs are not touched: with SQPOLL the kernel reads the iovecs long after
//! they were pushed.
//!
//! All of this holds for a packet socket too, whose send buffer is finite always. What differs is in `encode.rs`.

mod encode;
mod outcome;

use std::io;

use io_uring::squeue;
use rustix::fd::BorrowedFd;
use vm_memory::VolatileSlice;

use crate::arena::Arena;
use crate::encoding::Encoding;
use crate::guest::Guest;
use crate::token::{Kind, Token};
use crate::{BATCH_FRAMES, HEADER_BYTES};

use encode::{Messages, messages};
pub use outcome::{GatherError, TxOutcome};

/// Most iovecs a frame may have, its header's included (UIO_MAXIOV).
const FRAME_IOVECS: usize = 1024;

/// iovecs of a batch: one frame of the largest kind and a little more.
const BATCH_IOVECS: usize = FRAME_IOVECS + BATCH_FRAMES;

/// One frame of the batch: arena memory, or iovecs.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// Offset in the arena, or index of the first iovec.
    start: usize,
    /// Bytes, or iovecs.
    count: u32,
    gathered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Building,
    InFlight,
    Done,
}

/// The one batch of a port.
pub(crate) struct TxBatch {
    state: State,
    encoding: Encoding,
    arena: Arena,
    iovecs: Box<[libc::iovec]>,
    /// Of gathered frames, for a packet socket.
    messages: Messages,
    iovecs_used: usize,
    frames: [Frame; BATCH_FRAMES],
    len: usize,
    /// First frame of the present submission; those before it have their outcome.
    first: usize,
    pending: usize,
    results: [i32; BATCH_FRAMES],
    outcomes: [TxOutcome; BATCH_FRAMES],
    failed: bool,
    /// Some frame met ENOBUFS.
    no_buffers: bool,
    generation: u32,
    /// The entries behind a refused frame have to be pushed once more.
    resubmit: bool,
    /// The tap can be full.
    linked: bool,
    registered: bool,
}

impl TxBatch {
    /// `finite` when the tap has a send buffer that can be full; `registered` when the arena is a registered buffer.
    pub(crate) fn new(encoding: Encoding, finite: bool) -> io::Result<Self> {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Ok(Self {
            state: State::Building,
            encoding,
            arena: Arena::new()?,
            iovecs: vec![none; BATCH_IOVECS].into_boxed_slice(),
            messages: messages(),
            iovecs_used: 0,
            frames: [Frame::default(); BATCH_FRAMES],
            len: 0,
            first: 0,
            pending: 0,
            results: [0; BATCH_FRAMES],
            outcomes: [TxOutcome::Sent; BATCH_FRAMES],
            failed: false,
            no_buffers: false,
            generation: 0,
            resubmit: false,
            linked: finite,
            registered: false,
        })
    }

    pub(crate) const fn set_registered(&mut self, registered: bool) {
        self.registered = registered;
    }

    pub(crate) const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Frames that can still join.
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        match self.state {
            State::Building => BATCH_FRAMES - self.len,
            State::InFlight | State::Done => 0,
        }
    }

    /// Writes the kernel has not completed.
    #[inline]
    pub(crate) const fn in_flight(&self) -> usize {
        self.pending
    }

    /// Whether the frames go out as a chain of linked entries.
    pub(crate) const fn is_linked(&self) -> bool {
        self.linked
    }

    /// Whether iovecs of this batch point into guest memory and may still be used.
    pub(crate) fn points_into_guest(&self) -> bool {
        self.iovecs_used > 0 && self.state != State::Done
    }

    /// Arena memory for one frame of `bytes` bytes.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.room() == 0 {
            return None;
        }
        let count = u32::try_from(bytes).ok()?;
        let start = self.arena.take(bytes)?;
        self.frames[self.len] = Frame {
            start,
            count,
            gathered: false,
        };
        self.len += 1;
        // SAFETY: the kernel reads the arena only while a batch is in flight, and this one is being built.
        Some(unsafe { self.arena.mapping_mut().slice_mut(start, bytes) })
    }

    /// One frame out of a private copy of `header` and the guest's `parts`.
    pub(crate) fn gather<'a>(
        &mut self,
        guest: &mut Guest,
        header: &[u8; HEADER_BYTES],
        parts: impl Iterator<Item = VolatileSlice<'a>>,
    ) -> Result<(), GatherError> {
        if self.room() == 0 || self.iovecs_used == self.iovecs.len() {
            return Err(GatherError::BatchFull);
        }
        let mark = self.arena.mark();
        let first = self.iovecs_used;
        let offset = self
            .arena
            .take(HEADER_BYTES)
            .ok_or(GatherError::BatchFull)?;
        // SAFETY: as in `copy`: the batch is being built, so that the kernel does not look at the arena.
        unsafe { self.arena.mapping_mut().slice_mut(offset, HEADER_BYTES) }.copy_from_slice(header);
        // Of a packet socket's header the first bytes are sent, and from where they are.
        let bytes = HEADER_BYTES - self.skip();
        let address = self.arena.mapping().address(offset, bytes);
        self.iovecs[first] = libc::iovec {
            iov_base: address.cast(),
            iov_len: bytes,
        };
        let gathered = self.gather_parts(guest, first + 1, parts);
        let Ok(end) = gathered else {
            self.arena.rewind(mark);
            return gathered.map(|_| ());
        };
        let count = u32::try_from(end - first).map_err(|_| GatherError::TooManyParts)?;
        self.iovecs_used = end;
        self.frames[self.len] = Frame {
            start: first,
            count,
            gathered: true,
        };
        self.len += 1;
        Ok(())
    }

    /// Notes `parts` from iovec `at` on; returns the index behind the last.
    fn gather_parts<'a>(
        &mut self,
        guest: &mut Guest,
        mut at: usize,
        parts: impl Iterator<Item = VolatileSlice<'a>>,
    ) -> Result<usize, GatherError> {
        let end = at + FRAME_IOVECS - 1;
        for part in parts.filter(|part| !part.is_empty()) {
            let address = part.ptr_guard().as_ptr();
            if !guest.contains(address.addr(), part.len()) {
                return Err(GatherError::OutsideMemory);
            }
            if at == end {
                return Err(GatherError::TooManyParts);
            }
            let iovec = self.iovecs.get_mut(at).ok_or(GatherError::BatchFull)?;
            *iovec = libc::iovec {
                iov_base: address.cast_mut().cast(),
                iov_len: part.len(),
            };
            at += 1;
        }
        Ok(at)
    }

    /// Forgets the batch being built.
    pub(crate) fn cancel(&mut self) {
        if self.state == State::Building {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.state = State::Building;
        self.arena.rewind(0);
        self.iovecs_used = 0;
        self.len = 0;
        self.first = 0;
    }

    /// Closes the batch; `false` when there is nothing to send or one is on its way.
    pub(crate) fn start(&mut self) -> bool {
        if self.state != State::Building || self.len == 0 {
            return false;
        }
        self.state = State::InFlight;
        if self.encoding.is_packet() {
            self.shorten_headers();
        }
        self.begin_submission(0);
        true
    }

    fn begin_submission(&mut self, first: usize) {
        self.first = first;
        self.pending = self.len - first;
        self.failed = false;
        self.no_buffers = false;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Gives every entry of the present submission to `push`, in order.
    #[inline]
    pub(crate) fn each_entry(&self, mut push: impl FnMut(&squeue::Entry)) {
        for index in self.first..self.len {
            if self.registered && !self.frames[index].gathered {
                push(&self.fixed_entry(index));
            } else {
                push(&self.slower_entry(index));
            }
        }
    }

    /// The last one is not linked: what other parties push next is no business of this chain.
    #[inline]
    const fn link(&self, index: usize) -> squeue::Flags {
        if self.linked && index + 1 < self.len {
            squeue::Flags::IO_LINK
        } else {
            squeue::Flags::empty()
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a batch has 64 frames
    const fn token(&self, index: usize) -> Token {
        Token::new(Kind::Tx, index as u8, self.generation)
    }

    /// A write completed.
    #[inline]
    pub(crate) fn complete(&mut self, token: Token, result: i32) {
        if token.generation() != self.generation || self.pending == 0 {
            return;
        }
        self.failed |= result < 0;
        self.results[token.index() % BATCH_FRAMES] = result;
        self.pending -= 1;
        if self.pending == 0 {
            self.settle();
        }
    }

    /// All writes of the submission are in: outcomes, and what has to be submitted again.
    fn settle(&mut self) {
        if !self.failed {
            self.outcomes[self.first..self.len].fill(TxOutcome::Sent);
            self.state = State::Done;
            return;
        }
        let mut broken_by = None;
        for index in self.first..self.len {
            self.outcomes[index] = match (self.results[index], broken_by) {
                (0.., _) => TxOutcome::Sent,
                (cancelled, Some(TxOutcome::Refused(_))) if cancelled == -libc::ECANCELED => {
                    self.resubmit = true;
                    return self.begin_submission(index);
                }
                (cancelled, _) if cancelled == -libc::ECANCELED => {
                    broken_by.unwrap_or(TxOutcome::TapFull)
                }
                (error, _) => {
                    self.no_buffers |= error == -libc::ENOBUFS;
                    *broken_by.insert(TxOutcome::of_errno(-error, self.encoding))
                }
            };
        }
        self.linked |= self.outcomes[..self.len].contains(&TxOutcome::TapFull);
        self.state = State::Done;
    }

    /// Whether a refused frame broke the chain, so that [`each_entry`](Self::each_entry) has to be pushed again. Said once.
    #[inline]
    pub(crate) const fn take_resubmission(&mut self) -> bool {
        std::mem::replace(&mut self.resubmit, false)
    }

    /// Sends the batch with write(2) and writev(2), up to the first EAGAIN, and settles it.
    pub(crate) fn write_now(&mut self, tap: BorrowedFd<'_>) {
        let mut full = false;
        for index in self.first..self.len {
            let result = if full {
                -libc::ECANCELED
            } else {
                self.send_frame(tap, index)
            };
            full |= self.is_full(result);
            self.failed |= result < 0;
            self.results[index] = result;
        }
        self.pending = 0;
        self.settle();
    }

    fn is_full(&self, result: i32) -> bool {
        result < 0 && TxOutcome::of_errno(-result, self.encoding) == TxOutcome::TapFull
    }

    /// Whether the outcomes are there to be taken.
    #[inline]
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether some frame was not sent; asked when the batch is done.
    #[inline]
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether this became of some frame; asked when the batch is done.
    pub(crate) fn met(&self, outcome: TxOutcome) -> bool {
        self.outcomes[..self.len].contains(&outcome)
    }

    /// Whether the interface behind a packet socket was full, and not the socket.
    pub(crate) const fn met_no_buffers(&self) -> bool {
        self.no_buffers
    }

    /// Nothing says when the interface takes frames again. The first that it did not take is refused, unless others were
    /// taken, so that to try again always gets somewhere.
    pub(crate) fn refuse_first(&mut self) {
        let submitted = &mut self.outcomes[self.first..self.len];
        if let [first @ TxOutcome::TapFull, ..] = submitted {
            *first = TxOutcome::Refused(libc::ENOBUFS);
        }
    }

    /// The outcomes, once all are in; with that the batch is free again.
    #[inline]
    pub(crate) fn take_outcomes(&mut self) -> Option<&[TxOutcome]> {
        if self.state != State::Done {
            return None;
        }
        let len = self.len;
        self.reset();
        Some(&self.outcomes[..len])
    }

    /// Never frees what the kernel may still read.
    pub(crate) fn leak(&mut self) {
        self.arena.mapping_mut().leak();
        std::mem::forget(std::mem::take(&mut self.iovecs));
        std::mem::forget(std::mem::replace(&mut self.messages, messages()));
    }
}

#[cfg(test)]
mod tests;
