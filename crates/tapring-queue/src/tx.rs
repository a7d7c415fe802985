//! The transmitq: guest to host.
//!
//! # The life of a frame
//!
//! 1. **pop**: [`TxQueue::fill`] takes up to [`BATCH`](crate::BATCH) available entries, walks each chain, copies
//!    and checks its header, and hands the frame to a [`TxSink`].
//! 2. The sink sends the batch; the ring is `InFlight` and its kicks are off.
//! 3. **fill, flush**: [`TxQueue::complete`] gets one [`TxOutcome`] a frame, writes the used
//!    elements in avail order and publishes them under one index store.
//! 4. **notify**: [`TxQueue::take_call`] says whether the driver wants a call for it.
//!
//! What the tap did not take is rewound: it stays on the ring and the ring is `Blocked` until the
//! tap is writable. Should the tap have taken a *later* frame of the same batch (possible only
//! where it turned full while the batch ran, and only without links), that one is remembered and
//! not sent twice.

use vm_memory::{GuestMemoryMmap, VolatileSlice};

use crate::chain::Walk;
use crate::fault::Fault;
use crate::header::{HEADER_BYTES, PLAIN_HEADER, is_plain};
use crate::in_flight::{BATCH, Entry, InFlight, Kind};
use crate::kick::{DrainEnd, Requeue, State};
use crate::lookup::Lookup;
use crate::parts::{Parts, gather, split_front, take_header};
use crate::ring::Ring;
use crate::setup::Features;
use crate::virtqueue::Virtqueue;
use crate::weakened::Weakness;

/// Bytes of an Ethernet header; the kernel refuses less (tun answers EINVAL).
pub(crate) const ETHERNET_BYTES: usize = 14;

/// Largest frame, without the virtio-net header: the largest IP packet, an Ethernet header, and
/// a byte to spare. A tap itself would take 131072.
pub const MAX_FRAME_BYTES: usize = 65_550;

/// Takes the frames of a batch.
pub trait TxSink {
    /// Copies or notes the frame. `false`: no room in this batch; the frame stays on the ring.
    /// An empty batch has to have room for any frame, or the worker would try again for ever.
    fn push(&mut self, frame: &TxFrame<'_>) -> bool;

    /// A later [`push`](Self::push) will read `memory`: worth a prefetch. It may never come.
    fn expect(&self, memory: &VolatileSlice<'_>) {
        let _ = memory;
    }
}

/// A frame popped from the transmitq, still in guest memory. Its header was copied and checked.
#[derive(Debug)]
pub struct TxFrame<'a> {
    header: &'a [u8; HEADER_BYTES],
    body: Body<'a>,
    bytes: usize,
}

#[derive(Debug)]
enum Body<'a> {
    Parts(&'a [VolatileSlice<'a>]),
    Gathered(&'a [u8]),
}

impl TxFrame<'_> {
    /// The virtio-net header for the tap: what the driver's asked for, in a private copy.
    pub const fn header(&self) -> &[u8; HEADER_BYTES] {
        self.header
    }

    /// Bytes of the frame, without the header.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the frame, without the header, into `to`.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) {
        match &self.body {
            Body::Parts(parts) => {
                gather(parts, to);
            }
            Body::Gathered(bytes) => to.copy_from_slice(&bytes[..to.len()]),
        }
    }

    /// The pieces of guest memory the frame lies in; `None` if there were so many that they have
    /// been gathered already and only [`Self::copy_to`] is left.
    pub const fn parts(&self) -> Option<&[VolatileSlice<'_>]> {
        match &self.body {
            Body::Parts(parts) => Some(parts),
            Body::Gathered(_) => None,
        }
    }
}

/// What became of a frame handed to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxOutcome {
    /// The tap took it.
    Sent,
    /// The tap refused it and would again; the frame is lost, its chain is returned.
    Dropped,
    /// The tap was full; the frame stays on the ring.
    NotSent,
}

/// The transmitq of a pair.
#[derive(Debug)]
pub struct TxQueue {
    pub(crate) vq: Virtqueue,
    in_flight: InFlight,
    /// Entries from `next_avail` on whose frames have been sent already, one bit each.
    sent_before: u64,
    /// Where a frame in very many pieces is gathered.
    bounce: Box<[u8]>,
    call: bool,
}

impl Default for TxQueue {
    fn default() -> Self {
        Self {
            vq: Virtqueue::default(),
            in_flight: InFlight::default(),
            sent_before: 0,
            bounce: vec![0; MAX_FRAME_BYTES].into_boxed_slice(),
            call: false,
        }
    }
}

impl TxQueue {
    /// Pops a batch into `sink`; nothing may be in flight. Returns the frames handed over.
    pub fn fill(&mut self, memory: &GuestMemoryMmap, sink: &mut impl TxSink) -> usize {
        if !self.vq.state().runnable() {
            return 0;
        }
        let Some(ring) = self.vq.open(memory) else {
            return 0;
        };
        let Some(posted) = self.vq.posted(&ring) else {
            return 0;
        };
        self.vq.keep_quiet(&ring);
        let before_submit = self.vq.arms_before_submit();
        let budget = self.vq.policy().tx_budget.frames();
        let chains = self.vq.up_to_call(&ring, posted.min(budget));
        let frames = self.pop_batch(&ring, memory, chains, sink);
        let popped = self.in_flight.entries().len();
        if popped > 0 {
            self.vq.moved();
        }
        self.vq.enter(match popped {
            0 => DrainEnd::Empty.state(),
            _ => State::InFlight,
        });
        if before_submit && popped == usize::from(posted) {
            self.arm(&ring);
        }
        if popped > 0 && frames == 0 {
            self.give_back(&ring, std::iter::empty());
        }
        frames
    }

    /// Rule 1: asks for a kick, fences, looks once more. In the old way this happens with a batch
    /// in flight.
    pub(crate) fn arm(&mut self, ring: &Ring<'_>) {
        let in_flight = self.vq.state() == State::InFlight;
        match self.vq.ask(ring, 1) {
            None => {}
            Some(0) => {
                self.vq.stats.rearms_armed += 1;
                self.vq.enter(match in_flight {
                    true => State::ArmedInFlight,
                    false => State::Armed,
                });
            }
            Some(_) => {
                self.vq.stats.rearms_raced += 1;
                self.vq.weak.raced();
                self.vq.quiet(ring);
                if !in_flight {
                    self.vq.enter(State::Requeued(Requeue::Found));
                }
            }
        }
    }

    fn pop_batch<'m>(
        &mut self,
        ring: &Ring<'m>,
        memory: &'m GuestMemoryMmap,
        posted: u16,
        sink: &mut impl TxSink,
    ) -> usize {
        let indirect = self.vq.features().has(Features::INDIRECT_DESC);
        let header_bytes = self.vq.features().header_bytes();
        let mut parser = Parser::new(ring, header_bytes, &mut self.bounce);
        let mut memory = Lookup::new(memory);
        let mut frames = 0;
        let room = u16::try_from(self.in_flight.room()).unwrap_or(u16::MAX);
        let chains = posted.min(room);
        self.vq
            .announce(ring, &mut memory, 0..chains, |buffer| sink.expect(buffer));
        for _ in 0..chains {
            let (index, head) = self.vq.pop(ring);
            let sent_before = self.sent_before & 1 == 1;
            let kind = match parser.parse(ring, &mut memory, head, indirect) {
                Err(fault) => Kind::Malformed(fault),
                Ok(bytes) if sent_before => Kind::SentBefore { bytes },
                Ok(bytes) if sink.push(&parser.frame(bytes)) => {
                    frames += 1;
                    Kind::Frame { bytes }
                }
                Ok(_) => {
                    self.vq.rewind(index);
                    break;
                }
            };
            self.sent_before >>= 1;
            self.in_flight.push(Entry { index, head, kind });
        }
        frames
    }

    /// The whole batch is done: one outcome a frame, in order.
    pub fn complete(
        &mut self,
        memory: &GuestMemoryMmap,
        outcomes: impl Iterator<Item = TxOutcome>,
    ) {
        match self.vq.open(memory) {
            Some(ring) => self.give_back(&ring, outcomes),
            // The ring's memory is gone; so are its chains.
            None => self.in_flight.clear(),
        }
    }

    fn give_back(&mut self, ring: &Ring<'_>, outcomes: impl Iterator<Item = TxOutcome>) {
        let budget = usize::from(self.vq.policy().tx_budget.frames());
        let budget_spent = self.in_flight.entries().len() >= budget;
        let unsent = self.return_sent(ring, outcomes);
        self.call |= self.vq.flush(ring);
        self.in_flight.clear();
        if let Some(index) = unsent {
            self.vq.rewind(index);
        }
        // The look behind an early arming may have found the ring broken.
        if !self.vq.state().in_flight() {
            return;
        }
        if unsent.is_some() {
            self.vq.quiet(ring);
            let end = match self.vq.weak.lacks(Weakness::FullTapIsTried) {
                true => DrainEnd::BudgetSpent,
                false => DrainEnd::TapFull,
            };
            self.vq.enter(end.state());
        } else if self.kicks_are_on() {
            // The old way: whatever came since the batch was popped has kicked.
            self.vq.enter(State::Armed);
        } else {
            self.look_again(ring, budget_spent);
        }
    }

    fn kicks_are_on(&self) -> bool {
        match self.vq.weak.lacks(Weakness::PolicyReadAfresh) {
            true => self.vq.arms_before_submit(),
            false => self.vq.state() == State::ArmedInFlight,
        }
    }

    /// Rule 1's "one more look" after the completions: what is found waits until the other ring
    /// had its turn.
    fn look_again(&mut self, ring: &Ring<'_>, budget_spent: bool) {
        let state = match self.vq.posted(ring) {
            None => return,
            Some(0) => DrainEnd::Empty.state(),
            Some(_) if budget_spent => DrainEnd::BudgetSpent.state(),
            Some(_) => State::Requeued(Requeue::Found),
        };
        self.vq.enter(state);
    }

    /// Returns all entries up to the first that was not sent, whose index is the result.
    fn return_sent(
        &mut self,
        ring: &Ring<'_>,
        mut outcomes: impl Iterator<Item = TxOutcome>,
    ) -> Option<u16> {
        let mut unsent = None;
        let entries = self.in_flight.entries();
        for (i, entry) in entries.iter().enumerate() {
            let outcome = match entry.kind {
                Kind::Frame { .. } => outcomes.next().unwrap_or(TxOutcome::NotSent),
                Kind::SentBefore { .. } => TxOutcome::Sent,
                Kind::Malformed(_) => TxOutcome::Dropped,
            };
            match unsent {
                None if outcome == TxOutcome::NotSent => {
                    unsent = Some(entry.index);
                    // The bits left over are counted from behind the batch; the ring is rewound.
                    self.sent_before = match entries.len() - i {
                        BATCH => 0,
                        rewound => self.sent_before << rewound,
                    };
                }
                None => return_entry(&mut self.vq, ring, entry, outcome),
                Some(first) if outcome == TxOutcome::Sent => {
                    self.sent_before |= 1 << entry.index.wrapping_sub(first);
                }
                Some(_) => {}
            }
        }
        unsent
    }

    /// POLLOUT: the tap takes frames again.
    pub fn on_writable(&mut self) {
        if self.vq.state() == DrainEnd::TapFull.state() {
            self.vq.enter(State::Draining);
        }
    }

    /// Whether the driver is to be called for what was published since this was last asked.
    pub const fn take_call(&mut self) -> bool {
        std::mem::replace(&mut self.call, false)
    }

    pub(crate) const fn forget_sent(&mut self) {
        self.sent_before = 0;
    }
}

#[cfg(feature = "weakened")]
impl TxQueue {
    pub(crate) fn fingerprint(&self, now: std::time::Instant) -> impl std::hash::Hash {
        let (vq, entries) = (self.vq.fingerprint(now), self.in_flight.entries());
        (vq, entries, self.sent_before, self.call)
    }
}

#[cfg(feature = "weakened")]
impl Clone for TxQueue {
    /// All but the room to gather frames in very many pieces, which small worlds do not have.
    fn clone(&self) -> Self {
        Self {
            vq: self.vq.clone(),
            in_flight: self.in_flight.clone(),
            sent_before: self.sent_before,
            bounce: Box::default(),
            call: self.call,
        }
    }
}

/// Writes an entry's used element and counts it. A transmitted chain has nothing written to it,
/// so its length is 0 (§2.7.8.2). A bad head names no chain, so there is nothing to return.
fn return_entry(vq: &mut Virtqueue, ring: &Ring<'_>, entry: &Entry, outcome: TxOutcome) {
    match entry.kind {
        Kind::Frame { bytes } | Kind::SentBefore { bytes } if outcome == TxOutcome::Sent => {
            vq.stats.packets += 1;
            vq.stats.bytes += u64::from(bytes);
        }
        Kind::Malformed(fault) => vq.stats.fault(fault),
        Kind::Frame { .. } | Kind::SentBefore { .. } => {}
    }
    if entry.kind != Kind::Malformed(Fault::BadHead) {
        vq.fill(ring, entry.head, 0);
    }
}

/// Turns chains into frames; its lists are reused from one to the next.
struct Parser<'m, 'b> {
    /// What the driver puts in front of a frame; shorter than `header` for a legacy one, whose rest stays 0.
    header_bytes: usize,
    header: [u8; HEADER_BYTES],
    header_len: usize,
    parts: Parts<'m>,
    bounce: &'b mut [u8],
    /// Bytes gathered in `bounce`; with any there, `parts` is empty.
    gathered: usize,
}

impl<'m, 'b> Parser<'m, 'b> {
    fn new(ring: &Ring<'m>, header_bytes: usize, bounce: &'b mut [u8]) -> Self {
        Self {
            header_bytes,
            header: [0; HEADER_BYTES],
            header_len: 0,
            parts: Parts::new(ring.any()),
            bounce,
            gathered: 0,
        }
    }

    /// Walks a chain. On success the frame's bytes, without the header.
    #[inline]
    fn parse(
        &mut self,
        ring: &Ring<'m>,
        memory: &mut Lookup<'m>,
        head: u16,
        indirect: bool,
    ) -> Result<u32, Fault> {
        if head >= ring.size().as_u16() {
            return Err(Fault::BadHead);
        }
        self.header_len = 0;
        self.gathered = 0;
        self.parts.clear();
        let mut total = 0usize;
        let mut walk = Walk::new(ring, memory, head, indirect);
        while let Some(descriptor) = walk.next()? {
            if descriptor.is_write_only() {
                return Err(Fault::WrongDirection);
            }
            total = total.saturating_add(descriptor.len() as usize);
            if total > self.header_bytes + MAX_FRAME_BYTES {
                return Err(Fault::TooLarge);
            }
            walk.pieces(&descriptor, |slice| self.take(slice))?;
        }
        self.check(total)
    }

    fn check(&mut self, total: usize) -> Result<u32, Fault> {
        if total < self.header_bytes + ETHERNET_BYTES {
            return Err(Fault::TooShort);
        }
        if !is_plain(&self.header) {
            return Err(Fault::BadHeader);
        }
        // What its other fields hold means nothing then (§5.1.6.2.1). The kernel looks all the
        // same: tun refuses a frame that is shorter than hdr_len.
        self.header = PLAIN_HEADER;
        u32::try_from(total - self.header_bytes).map_err(|_| Fault::TooLarge)
    }

    /// The header may be cut anywhere and share a descriptor with the frame (§2.7.4.1).
    #[inline]
    fn take(&mut self, mut slice: VolatileSlice<'m>) {
        if self.header_len == 0
            && self.header_bytes == HEADER_BYTES
            && let Some(rest) = take_header(&slice, &mut self.header)
        {
            self.header_len = HEADER_BYTES;
            if rest.is_empty() {
                return;
            }
            slice = rest;
        } else if self.header_len < self.header_bytes {
            let missing = &mut self.header[self.header_len..self.header_bytes];
            let (rest, taken) = split_front(slice, missing);
            self.header_len += taken;
            if rest.is_empty() {
                return;
            }
            slice = rest;
        }
        if self.gathered > 0 || !self.parts.push(slice) {
            self.gather(slice);
        }
    }

    #[cold]
    fn gather(&mut self, slice: VolatileSlice<'m>) {
        self.gathered += gather(self.parts.as_slice(), &mut self.bounce[self.gathered..]);
        self.parts.clear();
        self.gathered += slice.copy_to(&mut self.bounce[self.gathered..]);
    }

    #[inline]
    fn frame(&self, bytes: u32) -> TxFrame<'_> {
        let body = if self.gathered > 0 {
            Body::Gathered(&self.bounce[..self.gathered])
        } else {
            Body::Parts(self.parts.as_slice())
        };
        TxFrame {
            header: &self.header,
            body,
            bytes: bytes as usize,
        }
    }
}
