//! Frames from a packet socket: finished when they arrive, and cut when they come to the front.

use io_uring::{opcode, squeue};

use super::unpack::Unpack;
use super::{ETHERNET_BYTES, Landed, Place, Slots, TapFault};
use crate::packet;
use crate::poll::TAP_FILE;

impl Slots {
    /// As [`land`](Self::land). The frame is finished: its tag put back, its checksum completed, its cuts found.
    pub(super) fn land_received(&mut self, slot: u8, result: i32) -> Landed {
        let landed = match usize::try_from(result) {
            Ok(bytes) => match self.finish(slot, bytes) {
                Ok(frames) => {
                    self.frames += frames;
                    self.held.push(slot);
                    if self.held.len() == 1 {
                        self.show_first();
                    }
                    return Landed::Frame;
                }
                Err(landed) => landed,
            },
            Err(_) => match -result {
                libc::EAGAIN => Landed::Empty,
                // A frame that the kernel has no header for: UDP segments before Linux 6.2, tunnels.
                libc::EINVAL => Landed::Unsupported,
                errno => Landed::Fault(TapFault::from_errno(errno)),
            },
        };
        self.free.push(slot);
        landed
    }

    /// Finishes the frame in a slot, of `bytes` bytes with its 10-byte header. Returns how many it stands for.
    fn finish(&mut self, slot: u8, bytes: usize) -> Result<usize, Landed> {
        let end = packet::HEADER_AT + bytes;
        let unpack = self.unpack.as_mut().ok_or(Landed::Cut)?;
        if end >= self.bytes as usize || end < packet::FRAME_AT + ETHERNET_BYTES {
            return Err(Landed::Cut);
        }
        let offset = usize::from(slot) * self.stride;
        // SAFETY: the slot's read is done, and the slot not yet held.
        let space = unsafe { self.mapping.slice_mut(offset, end) };
        let tag = unpack.message(slot).tag();
        let arrived = packet::arrive(space, tag).map_err(|_| Landed::Unsupported)?;
        self.places[usize::from(slot)] = Place {
            start: arrived.start,
            len: end - arrived.start,
        };
        Ok(unpack.note(slot, arrived))
    }

    /// A slot has come to the front: a super-frame in it is shown by its first segment.
    #[inline]
    pub(super) fn show_first(&mut self) {
        if let (Some(unpack), Some(slot)) = (&self.unpack, self.held.front())
            && unpack.is_super(slot)
        {
            self.show(slot, Unpack::open);
        }
    }

    /// Whether the slot at the front has another segment, which is shown then.
    pub(super) fn show_next(&mut self, slot: u8) -> bool {
        self.show(slot, Unpack::next)
    }

    fn show(
        &mut self,
        slot: u8,
        which: impl FnOnce(&mut Unpack, u8, &mut [u8]) -> Option<Place>,
    ) -> bool {
        let Some(unpack) = &mut self.unpack else {
            return false;
        };
        let offset = usize::from(slot) * self.stride;
        // SAFETY: a held slot is not in flight, and `&mut self` excludes that its frame is being looked at.
        let space = unsafe { self.mapping.slice_mut(offset, self.bytes as usize) };
        let place = which(unpack, slot, space);
        if let Some(place) = place {
            self.places[usize::from(slot)] = place;
        }
        place.is_some()
    }
}

/// The read of a message. MSG_TRUNC has the kernel say how long a frame was that was cut.
pub(super) fn receive(message: *mut libc::msghdr) -> squeue::Entry {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    opcode::RecvMsg::new(TAP_FILE, message)
        .flags(flags.unsigned_abs())
        .build()
}
