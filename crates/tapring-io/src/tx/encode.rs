//! How the frames of a batch are written: as entries of the ring, or at once.
//!
//! A packet socket has a header of 10 bytes, the first ten of the 12 that every frame has here. They are moved up against
//! the frame once, when the batch is closed, and sent from there: two bytes behind the place of the longer header.

use io_uring::{opcode, squeue};
use rustix::fd::BorrowedFd;
use rustix::io::{retry_on_intr, write};
use rustix::net::{SendFlags, send};

use super::{Frame, TxBatch};
use crate::arena::ARENA_BUFFER;
use crate::encoding::Encoding;
use crate::offload::ASKED_BYTES;
use crate::packet::HEADER_SKIP;
use crate::poll::TAP_FILE;
use crate::{BATCH_FRAMES, HEADER_BYTES, sys};

/// A message for each gathered frame, which SENDMSG takes in place of its iovecs.
pub(super) type Messages = Box<[libc::msghdr; BATCH_FRAMES]>;

/// Messages of no parts.
pub(super) fn messages() -> Messages {
    // SAFETY: numbers and raw pointers only, for which all zeroes is a value.
    Box::new([unsafe { std::mem::zeroed() }; BATCH_FRAMES])
}

impl TxBatch {
    /// Makes the headers those of a packet socket. Once, before the first entry is pushed.
    pub(super) fn shorten_headers(&mut self) {
        for index in 0..self.len {
            let frame = self.frames[index];
            if frame.gathered {
                self.messages[index].msg_iov = (&raw mut self.iovecs[frame.start]).cast();
                self.messages[index].msg_iovlen = frame.count as _;
                continue;
            }
            // SAFETY: the batch is not submitted yet, so that the kernel does not look at the arena.
            let header = unsafe {
                self.arena
                    .mapping_mut()
                    .slice_mut(frame.start, HEADER_BYTES)
            };
            header.copy_within(..ASKED_BYTES, HEADER_SKIP);
        }
    }

    /// The entry of a frame that is gathered, or copied into an arena that is not registered, or for a packet socket.
    #[inline(never)]
    pub(super) fn slower_entry(&self, index: usize) -> squeue::Entry {
        let frame = self.frames[index];
        let entry = match (self.encoding, frame.gathered) {
            (Encoding::Tap, true) => {
                let iovecs = self.iovecs[frame.start..].as_ptr();
                opcode::Writev::new(TAP_FILE, iovecs, frame.count)
                    .rw_flags(libc::RWF_NOWAIT)
                    .build()
            }
            (Encoding::Tap, false) => {
                let (address, bytes) = self.copied(frame);
                opcode::Write::new(TAP_FILE, address, bytes)
                    .rw_flags(libc::RWF_NOWAIT)
                    .build()
            }
            (Encoding::Packet, true) => {
                opcode::SendMsg::new(TAP_FILE, &raw const self.messages[index])
                    .flags(libc::MSG_DONTWAIT.unsigned_abs())
                    .build()
            }
            (Encoding::Packet, false) => {
                let (address, bytes) = self.copied(frame);
                opcode::Send::new(TAP_FILE, address, bytes)
                    .flags(libc::MSG_DONTWAIT)
                    .build()
            }
        };
        entry
            .flags(self.link(index))
            .user_data(self.token(index).raw())
    }

    /// The entry of a frame that was copied into a registered arena, which is what most are.
    #[inline]
    pub(super) fn fixed_entry(&self, index: usize) -> squeue::Entry {
        let (address, bytes) = self.copied(self.frames[index]);
        let write = opcode::WriteFixed::new(TAP_FILE, address, bytes, ARENA_BUFFER);
        write
            .rw_flags(libc::RWF_NOWAIT)
            .build()
            .flags(self.link(index))
            .user_data(self.token(index).raw())
    }

    /// What is sent of a copied frame.
    #[inline]
    fn copied(&self, frame: Frame) -> (*mut u8, u32) {
        let skip = self.skip();
        let start = frame.start + skip;
        #[allow(clippy::cast_possible_truncation)] // none or 2
        let bytes = frame.count - skip as u32;
        (self.arena.mapping().address(start, bytes as usize), bytes)
    }

    /// Bytes of the 12-byte header that are not sent.
    #[inline]
    pub(super) const fn skip(&self) -> usize {
        match self.encoding {
            Encoding::Tap => 0,
            Encoding::Packet => HEADER_SKIP,
        }
    }

    /// Sends a frame at once; the negative error number when the kernel does not take it.
    pub(super) fn send_frame(&self, tap: BorrowedFd<'_>, index: usize) -> i32 {
        let frame = self.frames[index];
        if frame.gathered {
            return self.send_gathered(tap, index);
        }
        let skip = self.skip();
        // SAFETY: no ring entry is in flight, and the kernel only reads here.
        let bytes = unsafe {
            self.arena
                .mapping()
                .slice(frame.start + skip, frame.count as usize - skip)
        };
        let sent = match self.encoding {
            Encoding::Tap => retry_on_intr(|| write(tap, bytes)),
            Encoding::Packet => retry_on_intr(|| send(tap, bytes, SendFlags::DONTWAIT)),
        };
        sent.map_or_else(|errno| -errno.raw_os_error(), |_| 0)
    }

    fn send_gathered(&self, tap: BorrowedFd<'_>, index: usize) -> i32 {
        let frame = self.frames[index];
        if self.encoding.is_packet() {
            // SAFETY: the message points to iovecs as below.
            let sent = unsafe { sys::packet::send(tap, &raw const self.messages[index]) };
            return sent.map_or_else(|errno| -errno.raw_os_error(), |_| 0);
        }
        let iovecs = &self.iovecs[frame.start..frame.start + frame.count as usize];
        // SAFETY: the iovecs were made by `gather` for this batch: the header's points into the arena, the others
        // into regions of the guest's memory, which `Port` keeps mapped while `points_into_guest`.
        unsafe { sys::writev(tap, iovecs) }
    }
}
