//! The receiveq: host to guest.
//!
//! # The life of a frame
//!
//! 1. The worker reads frames from the tap into slots of its own; an [`RxSource`] shows them in
//!    order.
//! 2. **pop**: [`RxQueue::fill`] copies each into just enough chains: one, or several where
//!    mergeable buffers were negotiated (virtio 1.3 §5.1.6.4). A chain is peeked at and popped
//!    only when the whole frame fits, so a frame that does not fit costs the guest nothing.
//! 3. **fill, flush**: used elements of all frames are published under one index store, so a
//!    merged frame appears whole.
//! 4. **notify**: [`RxQueue::take_call`].
//!
//! When the guest has too few chains the frame stays in its slot and the queue is
//! [`Starved`](crate::State::Starved); see `starved.rs`.

use std::time::Instant;

use vm_memory::{GuestMemoryMmap, VolatileSlice};

use crate::fault::Fault;
use crate::header::HEADER_BYTES;
use crate::in_flight::BATCH;
use crate::kick::{AtDoor, DrainEnd, State};
use crate::lookup::Lookup;
use crate::ring::Ring;
use crate::scatter::Scatter;
use crate::setup::Features;
use crate::starved::Starving;
use crate::tx::ETHERNET_BYTES;
use crate::virtqueue::Virtqueue;

/// Frames read from the tap and not yet delivered, oldest first, without their header.
pub trait RxSource {
    /// The oldest frame.
    fn front(&self) -> Option<&[u8]>;
    /// The oldest frame has been delivered or dropped.
    fn pop(&mut self);

    /// How many frames there are, as far as [`expect`](Self::expect) is to hear of them.
    fn held(&self) -> usize {
        0
    }

    /// A frame that is held will be written to `memory`: worth a prefetch. It may go elsewhere.
    fn expect(&self, memory: &VolatileSlice<'_>) {
        let _ = memory;
    }
}

/// How [`RxQueue::fill`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxEnd {
    /// All frames were delivered; the guest has this many chains left.
    Delivered(u16),
    /// The guest has too few chains for the next frame, or none at all; about this many are
    /// needed. [`RxQueue::starve`] comes next.
    NoBuffers(u16),
    /// It had too few before, and has not come to the threshold since.
    StillStarved,
    /// Frames are left, but the other ring comes first; or a guest posts malformed chains as fast
    /// as they are refused. The next turn goes on.
    BudgetSpent,
    /// The queue cannot be looked at now.
    NotRunning,
}

/// The receiveq of a pair.
#[derive(Debug, Default)]
#[cfg_attr(feature = "weakened", derive(Clone))]
pub struct RxQueue {
    pub(crate) vq: Virtqueue,
    pub(crate) starving: Option<Starving>,
    /// When chains were first asked for, for the frame that is held now.
    pub(crate) first_ask: Option<Instant>,
    /// Chains that were not enough when a frame was last tried.
    pub(crate) tried: u16,
    call: bool,
}

/// What became of one frame.
enum Delivery {
    Done,
    TooLarge,
    NoBuffers(u16),
    /// So many chains were refused that the other ring comes first.
    Refused,
    Broken,
}

impl RxQueue {
    /// Delivers frames until there are no more or the guest has no room.
    pub fn fill(&mut self, memory: &GuestMemoryMmap, source: &mut impl RxSource) -> RxEnd {
        if !self.vq.state().runnable() {
            return RxEnd::NotRunning;
        }
        let Some(ring) = self.vq.open(memory) else {
            return RxEnd::NotRunning;
        };
        self.vq.keep_quiet(&ring);
        let end = if self.may_resume(&ring) {
            self.deliver_all(&ring, memory, source)
        } else {
            RxEnd::StillStarved
        };
        if self.vq.has_unpublished() {
            self.vq.moved();
        }
        self.call |= self.vq.flush(&ring);
        let drained = match end {
            // The ring broke, which is a state already.
            _ if !self.vq.state().runnable() => return RxEnd::NotRunning,
            RxEnd::BudgetSpent => DrainEnd::BudgetSpent,
            RxEnd::NoBuffers(_) | RxEnd::StillStarved => DrainEnd::NoGuestBuffers,
            RxEnd::Delivered(_) | RxEnd::NotRunning => DrainEnd::Empty,
        };
        self.vq.enter(drained.state());
        end
    }

    fn deliver_all<'m>(
        &mut self,
        ring: &Ring<'m>,
        memory: &'m GuestMemoryMmap,
        source: &mut impl RxSource,
    ) -> RxEnd {
        let Some(mut posted) = self.vq.posted(ring) else {
            return RxEnd::NotRunning;
        };
        let mut refusals = BATCH;
        let mut budget = self.vq.policy().rx_budget.frames();
        let mut memory = Lookup::new(memory);
        let held = u16::try_from(source.held()).unwrap_or(u16::MAX);
        self.vq
            .announce(ring, &mut memory, 0..posted.min(held), |buffer| {
                source.expect(buffer);
            });
        while let Some(frame) = source.front() {
            if budget == 0 {
                return RxEnd::BudgetSpent;
            }
            match self.deliver(ring, &mut memory, frame, &mut posted, &mut refusals) {
                Delivery::Done => self.vq.stats.packets += 1,
                Delivery::TooLarge => self.vq.stats.too_large += 1,
                Delivery::NoBuffers(need) => {
                    self.tried = posted;
                    return RxEnd::NoBuffers(need);
                }
                Delivery::Refused => return RxEnd::BudgetSpent,
                Delivery::Broken => return RxEnd::NotRunning,
            }
            source.pop();
            budget -= 1;
            self.frame_left();
        }
        match posted {
            0 => {
                self.tried = 0;
                RxEnd::NoBuffers(1)
            }
            posted => RxEnd::Delivered(posted),
        }
    }

    /// Puts one frame into the chains at the front of the ring, of which `posted` are known.
    #[inline]
    fn deliver<'m>(
        &mut self,
        ring: &Ring<'m>,
        memory: &mut Lookup<'m>,
        frame: &[u8],
        posted: &mut u16,
        refusals: &mut usize,
    ) -> Delivery {
        let mergeable = self.vq.features().has(Features::MRG_RXBUF);
        let header_bytes = self.vq.features().header_bytes();
        let mut scatter = Scatter::new(frame, header_bytes, ring.size());
        let mut chains = 0;
        let mut capacity = 1;
        loop {
            if chains == *posted {
                match self.vq.posted(ring) {
                    None => return Delivery::Broken,
                    Some(now) => *posted = now,
                }
            }
            if chains == *posted {
                return self.out_of_chains(ring, chains, scatter.left(), capacity);
            }
            let head = self.vq.peek(ring, chains);
            match self.take_chain(ring, memory, head, &mut scatter, chains) {
                Err(fault) => {
                    self.refuse(ring, head, chains, fault);
                    *posted -= chains + 1;
                    if *refusals == 0 {
                        return Delivery::Refused;
                    }
                    *refusals -= 1;
                    scatter = Scatter::new(frame, header_bytes, ring.size());
                    chains = 0;
                    continue;
                }
                Ok(taken) => capacity = capacity.max(taken),
            }
            if scatter.left() == 0 {
                break;
            }
            if !mergeable {
                return Delivery::TooLarge;
            }
            chains += 1;
        }
        chains += 1;
        scatter.finish(chains);
        self.vq.commit(chains);
        *posted -= chains;
        self.vq.stats.bytes += frame.len() as u64;
        Delivery::Done
    }

    /// Fills the chain `ahead` of the next one and writes its used element, which counts only
    /// when the frame is whole. Returns the bytes the chain can hold.
    #[inline]
    fn take_chain<'m>(
        &self,
        ring: &Ring<'m>,
        memory: &mut Lookup<'m>,
        head: u16,
        scatter: &mut Scatter<'_, 'm>,
        ahead: u16,
    ) -> Result<u64, Fault> {
        if head >= ring.size().as_u16() {
            return Err(Fault::BadHead);
        }
        let indirect = self.vq.features().has(Features::INDIRECT_DESC);
        let taken = scatter.fill(ring, memory, head, indirect)?;
        if taken.capacity < self.least_capacity(ahead) {
            return Err(Fault::TooShort);
        }
        self.vq.write_ahead(ring, ahead, head, taken.written);
        Ok(taken.capacity)
    }

    /// What a chain must hold to be of any use: a header and an Ethernet header, or, where
    /// frames may span chains, the header in the first (§5.1.6.3.1) and something in the others.
    fn least_capacity(&self, ahead: u16) -> u64 {
        match (self.vq.features().has(Features::MRG_RXBUF), ahead) {
            (false, _) => (self.vq.features().header_bytes() + ETHERNET_BYTES) as u64,
            (true, 0) => HEADER_BYTES as u64,
            (true, _) => 1,
        }
    }

    /// Returns a malformed chain with length 0, and with it the `before` chains peeked at ahead
    /// of it: used elements follow the avail order, and the frame starts over behind it.
    #[cold]
    fn refuse(&mut self, ring: &Ring<'_>, head: u16, before: u16, fault: Fault) {
        self.vq.stats.fault(fault);
        for ahead in 0..before {
            let head = self.vq.peek(ring, ahead);
            self.vq.write_ahead(ring, ahead, head, 0);
        }
        self.vq.commit(before);
        if fault == Fault::BadHead {
            self.vq.advance(1);
        } else {
            self.vq.write_ahead(ring, 0, head, 0);
            self.vq.commit(1);
        }
    }

    /// The guest has posted `chains` and the frame needs more: wait for them, unless the ring
    /// cannot hold more (rule 9). `capacity` is the largest chain seen: to ask too early costs a
    /// kick, to ask too late the frame.
    fn out_of_chains(&self, ring: &Ring<'_>, chains: u16, left: usize, capacity: u64) -> Delivery {
        let size = ring.size().as_u16();
        if chains >= size {
            return Delivery::TooLarge;
        }
        let more = if chains == 0 {
            1
        } else {
            (left as u64).div_ceil(capacity.max(1))
        };
        let need = u64::from(chains).saturating_add(more).min(u64::from(size));
        Delivery::NoBuffers(u16::try_from(need).unwrap_or(size))
    }

    /// The tap is empty and the worker about to sleep: POLL on the tap brings the queue back.
    pub(crate) fn wait(&mut self) {
        if self.vq.state().at_door() == AtDoor::Arm && self.starving.is_none() {
            self.vq.enter(State::Waiting);
        }
    }

    /// The tap has frames again.
    pub fn on_readable(&mut self) {
        if self.vq.state() == State::Waiting {
            self.vq.enter(State::Draining);
        }
    }

    /// Whether the driver is to be called for what was published since this was last asked.
    pub const fn take_call(&mut self) -> bool {
        std::mem::replace(&mut self.call, false)
    }
}

#[cfg(feature = "weakened")]
impl RxQueue {
    pub(crate) fn fingerprint(&self, now: Instant) -> impl std::hash::Hash + use<> {
        let (vq, tried, call) = (self.vq.fingerprint(now), self.tried, self.call);
        let first_ask = self.first_ask.map(|at| now.saturating_duration_since(at));
        let starving = self.starving.map(|starving| starving.fingerprint(now));
        (vq, tried, call, first_ask, starving)
    }
}
