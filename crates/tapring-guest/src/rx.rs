//! The receive virtqueue: host to guest.
//!
//! 1. [`RxQueue::refill`] posts buffers, as many as configured, and decides one kick for all of them.
//! 2. The device spreads a frame over one or (MRG_RXBUF) several chains and publishes them under one index store.
//! 3. [`RxQueue::receive`] takes them, holds header, lengths and order against the rules, and shows the frame.
//!
//! Buffers are not posted again by `receive`: when to refill is the caller's choice ([`RxQueue::refill_as_linux`] is virtio-net's).

use std::time::Duration;

use crate::chains::{Chains, RAW};
use crate::config::HEADER_BYTES;
use crate::counters::Counters;
use crate::error::{SendError, Violation};
use crate::layout::{Layout, Piece};
use crate::notify::{Until, Woken};
use crate::ring::{DESC_WRITE, DriverRing, Used};

/// The longest frame virtio-net can carry, with its header: a 64 KiB segment behind Ethernet and VLAN.
pub const LONGEST_BYTES: usize = HEADER_BYTES + 65_550;

/// virtio-net's NAPI budget; it refills once half of it is free.
const LINUX_BUDGET: u16 = 64;

/// How the buffers posted under one setting lie in memory.
#[derive(Debug)]
struct Shape {
    pieces: Vec<Piece>,
    capacity: usize,
}

/// The driver's side of a receive virtqueue.
#[derive(Debug)]
pub struct RxQueue {
    chains: Chains,
    mergeable: bool,
    /// Header flags and GSO types may appear: some GUEST_* offload was acknowledged.
    offloads: bool,
    /// Most buffers posted at once.
    most: u16,
    layout: Layout,
    /// One per setting so far; the last is in use.
    shapes: Vec<Shape>,
    /// Per slot, index of the shape it was posted with.
    shape_of: Vec<u16>,
    /// The frame being received, header first.
    frame: Vec<u8>,
}

/// What the driver may expect in a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxRules {
    pub(crate) mergeable: bool,
    pub(crate) offloads: bool,
    pub(crate) most: u16,
}

impl RxQueue {
    pub(crate) fn new(
        chains: Chains,
        rules: RxRules,
        bytes: usize,
        layout: &Layout,
    ) -> Result<Self, SendError> {
        let mut queue = Self {
            chains,
            mergeable: rules.mergeable,
            offloads: rules.offloads,
            most: rules.most,
            layout: Layout::ONE,
            shapes: Vec::new(),
            shape_of: Vec::new(),
            frame: vec![0; LONGEST_BYTES],
        };
        queue.reshape(bytes, layout)?;
        Ok(queue)
    }

    /// Buffers posted from now on take `bytes` and are cut as `layout` says.
    ///
    /// # Errors
    /// They do not fit a slot (the configured `rx_buffer_bytes`) or an indirect table.
    pub fn reshape(&mut self, bytes: usize, layout: &Layout) -> Result<(), SendError> {
        self.chains.cut(layout, bytes, HEADER_BYTES.min(bytes))?;
        let pieces = self.chains.pieces.clone();
        self.shapes.push(Shape {
            pieces,
            capacity: bytes,
        });
        self.layout = layout.clone();
        Ok(())
    }

    /// Changes how many buffers are posted at most.
    pub const fn post_at_most(&mut self, most: u16) {
        self.most = most;
    }

    /// Posts buffers until as many as configured are out, then decides one kick; returns how many were posted.
    pub fn refill(&mut self) -> u16 {
        let posted = self.post(u16::MAX);
        if posted > 0 {
            self.kick_if_needed();
        }
        posted
    }

    /// Refills as virtio-net does after receiving: only once half its NAPI budget (or half the ring) is free.
    pub fn refill_as_linux(&mut self) -> u16 {
        let due = self.chains.ring.free() > LINUX_BUDGET.min(self.chains.ring.size()) / 2;
        if due { self.refill() } else { 0 }
    }

    /// Posts up to `count` buffers without a kick; returns how many were.
    pub fn post(&mut self, count: u16) -> u16 {
        let mut posted = 0;
        while posted < count && self.chains.ring.outstanding() < self.most && self.post_one() {
            posted += 1;
        }
        posted
    }

    /// Receives up to `limit` frames, without their headers; returns how many.
    ///
    /// # Errors
    /// The backend broke a rule; the queue is not usable any further.
    pub fn receive(
        &mut self,
        limit: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<usize, Violation> {
        self.take_frames(limit, true, |frame| each(&frame[HEADER_BYTES..]))
    }

    /// [`Self::receive`], with the 12-byte header in front.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_with_header(
        &mut self,
        limit: usize,
        each: impl FnMut(&[u8]),
    ) -> Result<usize, Violation> {
        self.take_frames(limit, true, each)
    }

    /// Receives up to `limit` frames reading only their headers, for benchmarks; returns how many.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn discard(&mut self, limit: usize) -> Result<usize, Violation> {
        self.take_frames(limit, false, |_| ())
    }

    /// Kicks if the device asked for it; says whether it did.
    pub fn kick_if_needed(&mut self) -> bool {
        self.chains.ring.kick_if_needed()
    }

    /// Sleeps until `until` is reached or `limit` passes, woken by calls only.
    ///
    /// # Errors
    /// The device published more than it was given, or the wait failed.
    pub fn wait_for_call(&mut self, until: Until, limit: Duration) -> Result<Woken, Violation> {
        self.chains.ring.wait_for_call(until, limit)
    }

    /// What was counted.
    pub fn counters(&mut self) -> Counters {
        self.chains.ring.counters()
    }

    /// The ring below.
    #[must_use]
    pub const fn ring(&self) -> &DriverRing {
        &self.chains.ring
    }

    /// The ring below, to add chains of one's own (with token [`RAW`]) or to spoil it.
    pub const fn ring_mut(&mut self) -> &mut DriverRing {
        &mut self.chains.ring
    }

    fn post_one(&mut self) -> bool {
        let shape = self.shapes.len() - 1;
        let Some(slot) = self.chains.pool.take() else {
            return false;
        };
        self.chains.pieces.clone_from(&self.shapes[shape].pieces);
        let capacity = u32::try_from(self.shapes[shape].capacity).unwrap_or(u32::MAX);
        if self
            .chains
            .expose(slot, DESC_WRITE, self.layout.indirect, capacity)
            .is_err()
        {
            self.chains.pool.untake(slot);
            return false;
        }
        let slot = slot as usize;
        self.shape_of.resize(self.shape_of.len().max(slot + 1), 0);
        self.shape_of[slot] = u16::try_from(shape).unwrap_or(u16::MAX);
        true
    }

    fn take_frames(
        &mut self,
        limit: usize,
        whole: bool,
        mut each: impl FnMut(&[u8]),
    ) -> Result<usize, Violation> {
        let mut frames = 0;
        while frames < limit {
            let Some(first) = self.next_filled()? else {
                break;
            };
            let length = self.assemble(first, whole)?;
            let counters = &mut self.chains.ring.counters;
            counters.frames += 1;
            counters.bytes += (length - HEADER_BYTES) as u64;
            each(&self.frame[..if whole { length } else { HEADER_BYTES }]);
            frames += 1;
        }
        Ok(frames)
    }

    /// The next used buffer with something in it.
    fn next_filled(&mut self) -> Result<Option<Used>, Violation> {
        while let Some(used) = self.take()? {
            if used.length > 0 && used.token != RAW {
                return Ok(Some(used));
            }
            self.chains.ring.counters.returned_empty += u64::from(used.length == 0);
            self.chains.recycle(used.token);
        }
        Ok(None)
    }

    /// Reads the frame that starts in `first`; returns its length with the header.
    fn assemble(&mut self, first: Used, whole: bool) -> Result<usize, Violation> {
        let mut length = self.append(first, 0, whole)?;
        let num_buffers = self.check_header(first.length)?;
        let mut last = first;
        for n in 1..num_buffers {
            self.check_filled(last)?;
            last = self.take()?.ok_or_else(|| self.partial(num_buffers, n))?;
            length = self.append(last, length, whole)?;
        }
        self.chains.ring.counters.merged_frames += u64::from(num_buffers > 1);
        if length == HEADER_BYTES {
            return Err(Violation::ShortFrame {
                queue: self.name(),
                length: first.length,
            });
        }
        Ok(length)
    }

    fn take(&mut self) -> Result<Option<Used>, Violation> {
        let used = self.chains.ring.take_used()?;
        self.chains.ring.counters.chains += u64::from(used.is_some());
        Ok(used)
    }

    /// Appends a buffer's bytes to the frame and frees the buffer; returns the new length.
    fn append(&mut self, used: Used, start: usize, whole: bool) -> Result<usize, Violation> {
        let end = start + used.length as usize;
        if end > LONGEST_BYTES {
            return Err(Violation::FrameTooLong {
                queue: self.name(),
                limit: LONGEST_BYTES,
            });
        }
        let wanted = if whole { end } else { end.min(HEADER_BYTES) };
        if wanted > start {
            self.gather(used.token, start, wanted);
        }
        self.chains.recycle(used.token);
        Ok(end)
    }

    fn gather(&mut self, slot: u32, mut start: usize, end: usize) {
        let shape = self
            .shape_of
            .get(slot as usize)
            .map_or(0, |&shape| usize::from(shape));
        for piece in &self.shapes[shape].pieces {
            let stop = end.min(start + piece.bytes);
            self.chains
                .pool
                .read(slot, piece.place, &mut self.frame[start..stop]);
            start = stop;
            if start == end {
                break;
            }
        }
    }

    /// num_buffers, if the header is one that the features allow (virtio 1.3 §5.1.6.4.1).
    fn check_header(&self, first_bytes: u32) -> Result<u16, Violation> {
        if (first_bytes as usize) < HEADER_BYTES {
            return Err(Violation::ShortFrame {
                queue: self.name(),
                length: first_bytes,
            });
        }
        let num_buffers = u16::from_le_bytes([self.frame[10], self.frame[11]]);
        let fault = |field, value| {
            Err(Violation::Header {
                queue: self.name(),
                field,
                value,
            })
        };
        if !self.offloads && self.frame[0] != 0 {
            return fault("flags", u16::from(self.frame[0]));
        }
        if !self.offloads && self.frame[1] != 0 {
            return fault("gso_type", u16::from(self.frame[1]));
        }
        if num_buffers == 0 || (num_buffers > 1 && !self.mergeable) {
            return fault("num_buffers", num_buffers);
        }
        Ok(num_buffers)
    }

    fn check_filled(&self, used: Used) -> Result<(), Violation> {
        let shape = self
            .shape_of
            .get(used.token as usize)
            .map_or(0, |&shape| usize::from(shape));
        let capacity = u32::try_from(self.shapes[shape].capacity).unwrap_or(u32::MAX);
        if used.length == capacity {
            return Ok(());
        }
        Err(Violation::NotFilled {
            queue: self.name(),
            length: used.length,
            capacity,
        })
    }

    fn partial(&self, num_buffers: u16, visible: u16) -> Violation {
        Violation::PartialFrame {
            queue: self.name(),
            num_buffers,
            visible,
        }
    }

    fn name(&self) -> String {
        self.chains.ring.name.clone()
    }
}
