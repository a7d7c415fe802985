//! TX: guest to host.

use vm_memory::VolatileSlice;

use super::Port;
use crate::HEADER_BYTES;
use crate::tx::{GatherError, TxOutcome};
use rustix::fd::AsFd;

impl Port {
    /// Frames that can still join the batch being built; 0 from its submission until its outcomes are taken.
    #[inline]
    pub fn tx_room(&self) -> usize {
        self.tx.room()
    }

    /// Memory for one frame of `bytes` bytes, its 12-byte header included, to be filled before the submission.
    ///
    /// It holds whatever was there before. `None` when the batch or its arena is full.
    #[inline]
    pub fn tx_copy(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.tx.copy(bytes)
    }

    /// One frame from a copy of `header` and the guest's buffers, which are read when the batch is sent.
    ///
    /// At most 1023 parts, each within one region of the memory given to [`set_memory`](Self::set_memory). On an
    /// error the batch is as it was.
    pub fn tx_gather<'a>(
        &mut self,
        header: &[u8; HEADER_BYTES],
        parts: impl Iterator<Item = VolatileSlice<'a>>,
    ) -> Result<(), GatherError> {
        self.tx.gather(&mut self.guest, header, parts)
    }

    /// Forgets the batch being built; nothing of it was submitted.
    pub fn tx_cancel(&mut self) {
        self.tx.cancel();
    }

    /// Closes the batch. It goes to the kernel with the next enter (with SQPOLL, at once).
    #[inline]
    pub fn tx_submit(&mut self) {
        if !self.tx.start() {
            return;
        }
        if self.nowait {
            self.push_writes();
        } else {
            self.tx.write_now(self.tap.as_fd());
            self.note_tx_done();
        }
    }

    /// Pushes the entries of the present submission, all under one tail.
    #[inline]
    pub(super) fn push_writes(&mut self) {
        // SAFETY: the entries point into the arena, the iovecs and, through these, the guest's memory. The batch
        // leaves the first two alone while it is in flight, `set_memory` is refused meanwhile, and `Drop` waits for
        // the completions or leaks all three.
        match unsafe { self.ring.room(self.tx.in_flight()) } {
            Ok(mut room) => self.tx.each_entry(|entry| room.push(entry)),
            // No room, and no way to make any.
            Err(_) => self.tx.write_now(self.tap.as_fd()),
        }
    }

    /// Writes the kernel has not completed yet.
    #[inline]
    pub fn tx_in_flight(&self) -> usize {
        self.tx.in_flight()
    }

    /// One outcome a frame, in order, once the whole batch is reaped; with that the next one can be built.
    ///
    /// From the first [`TxOutcome::TapFull`] on no frame was sent when the tap was known to fill up (a finite send
    /// buffer, or an earlier such outcome). The very first time, later frames of the batch may have been sent.
    #[inline]
    pub fn tx_outcomes(&mut self) -> Option<&[TxOutcome]> {
        self.tx.take_outcomes()
    }

    /// To be done when a batch may have become done.
    #[inline]
    pub(super) fn note_tx_done(&mut self) {
        if self.tx.is_done() && self.tx.has_failed() {
            self.note_tx_failures();
        }
    }

    #[cold]
    fn note_tx_failures(&mut self) {
        if self.tx.met(TxOutcome::Gone) {
            self.polls.note_gone();
        }
        if !self.encoding.is_packet() {
            return;
        }
        let socket = self.tap.as_fd();
        if self.tx.met_no_buffers() {
            if !self.room.narrow(socket) {
                self.tx.refuse_first();
            }
        } else if self.tx.met(TxOutcome::TapFull) {
            self.room.widen(socket);
        }
    }
}
