//! RX: host to guest.

use rustix::fd::AsFd;
use rustix::io::{Errno, read, retry_on_intr};

use super::Port;
use crate::packet;
use crate::slots::{Landed, RxBatch, TapFault};

/// Reads of one [`Port::rx_discard`]: more than any tap's queue holds by default (1000), or a packet socket of the smallest
/// frames (5500), and no endless loop against a host that fills it as fast.
pub(super) const DISCARD_READS: usize = 8192;

/// What one read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxRead {
    /// A frame, held now.
    Frame,
    /// No frame.
    Empty,
    /// A frame that filled the slot whole, and was dropped because it may be incomplete.
    Cut,
    /// A frame that was dropped because its sender left work to others that cannot be made up for here.
    Unsupported,
    /// No free slot, or a batch of reads is in flight, which this one would overtake. Nothing was read.
    NoSlot,
    /// The tap is administratively down.
    Down,
    /// The tap was deleted.
    Gone,
    /// Another error number.
    Error(i32),
}

impl From<Landed> for RxRead {
    fn from(landed: Landed) -> Self {
        match landed {
            Landed::Frame => Self::Frame,
            Landed::Empty => Self::Empty,
            Landed::Cut => Self::Cut,
            Landed::Unsupported => Self::Unsupported,
            Landed::Fault(TapFault::Down) => Self::Down,
            Landed::Fault(TapFault::Gone) => Self::Gone,
            Landed::Fault(TapFault::Errno(errno)) => Self::Error(errno),
        }
    }
}

/// What [`Port::rx_discard`] threw away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Frames that were held.
    pub held: usize,
    /// Frames read from the tap's queue.
    pub queued: usize,
}

impl Port {
    /// One read(2), or recvmsg(2), into the next free slot.
    pub fn rx_read(&mut self) -> RxRead {
        if self.rx.in_flight() > 0 {
            return RxRead::NoSlot;
        }
        let tap = self.tap.as_fd();
        let landed = self.rx.read_with(|space| space.read(tap));
        match landed {
            Some(Landed::Fault(fault)) => RxRead::from(Landed::Fault(self.note_fault(fault))),
            landed => landed.map_or(RxRead::NoSlot, RxRead::from),
        }
    }

    /// Begins a batch of up to `frames` reads, as many as there are free slots; returns how many.
    ///
    /// None while the result of the last batch is not taken ([`rx_batch_done`](Self::rx_batch_done)). The reads go to
    /// the kernel with the next enter (with SQPOLL, at once).
    pub fn rx_submit(&mut self, frames: usize) -> usize {
        let frames = self.rx.start(frames);
        if !self.nowait {
            self.read_now(frames);
            return frames;
        }
        // SAFETY: each entry points into a slot that was free and is in flight now: it is neither shown nor given out
        // before its completion, and `Drop` waits for that or leaks the slots.
        let pushed = unsafe { self.ring.room(frames) }.map(|mut room| {
            self.rx
                .each_read(frames, self.registered, |entry| room.push(entry));
        });
        if pushed.is_err() {
            // No room, and no way to make any.
            self.read_now(frames);
        }
        frames
    }

    /// The batch by plain reads, up to the first that finds nothing.
    fn read_now(&mut self, frames: usize) {
        let tap = self.tap.as_fd();
        for _ in 0..frames {
            let landed = self.rx.read_in_batch(|space| space.read(tap));
            if matches!(landed, None | Some(Landed::Empty | Landed::Fault(_))) {
                return;
            }
        }
    }

    /// A read failed. That the interface of a packet socket is down is all that is said when it went away.
    #[cold]
    fn note_fault(&mut self, fault: TapFault) -> TapFault {
        let is_gone = fault == TapFault::Gone
            || fault == TapFault::Down
                && self.encoding.is_packet()
                && packet::is_gone(self.tap.as_fd());
        if !is_gone {
            return fault;
        }
        self.polls.note_gone();
        TapFault::Gone
    }

    /// Reads the kernel has not completed yet.
    #[inline]
    pub fn rx_in_flight(&self) -> usize {
        self.rx.in_flight()
    }

    /// What the batch of reads brought, once all of it is reaped. A hole (an empty read before a frame) is normal.
    pub fn rx_batch_done(&mut self) -> Option<RxBatch> {
        let mut batch = self.rx.take_batch()?;
        batch.fault = batch.fault.map(|fault| self.note_fault(fault));
        Some(batch)
    }

    /// The oldest frame read and not yet released, with its 12-byte header.
    #[inline]
    pub fn rx_front(&self) -> Option<&[u8]> {
        self.rx.front()
    }

    /// Releases the slot of the oldest frame.
    #[inline]
    pub fn rx_pop(&mut self) {
        self.rx.pop();
    }

    /// Frames read and not yet released.
    #[inline]
    pub fn rx_held(&self) -> usize {
        self.rx.held()
    }

    /// Slots free to read into.
    #[inline]
    pub fn rx_free(&self) -> usize {
        self.rx.free()
    }

    /// Drops the held frames, those in flight, and what the tap's queue holds, at most 8192 of these.
    pub fn rx_discard(&mut self) -> Discarded {
        // On an error the slots stay in flight and the reads below find none free, or free ones: both are sound.
        let _ = self.finish_reads();
        let mut discarded = Discarded::default();
        while self.rx.pop() {
            discarded.held += 1;
        }
        let mut scratch = [0; 64]; // the tap cuts what does not fit
        for _ in 0..DISCARD_READS {
            match retry_on_intr(|| read(&self.tap, &mut scratch)) {
                Ok(_) => discarded.queued += 1,
                // Of a packet socket's: that it was down, and a frame that the kernel has no header for.
                Err(Errno::NETDOWN) => {}
                Err(Errno::INVAL) if self.encoding.is_packet() => discarded.queued += 1,
                Err(_) => break,
            }
        }
        discarded
    }
}
