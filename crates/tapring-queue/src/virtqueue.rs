//! What both virtqueues of a pair have in common: their indices, when to call the driver and when
//! to ask it for kicks.

mod policy;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vm_memory::{GuestMemoryMmap, VolatileSlice};

use crate::fault::Fault;
use crate::handshake::{self, Word, Words};
use crate::index::{self, QUIET_FOR};
use crate::kick::{Block, DrainEnd, Requeue, State};
use crate::lookup::Lookup;
use crate::policy::Policy;
use crate::poll::PollClock;
use crate::ring::Ring;
use crate::setup::{Features, RingAddresses, RingPosition, RingSetup};
use crate::stats::QueueStats;
use crate::weakened::{Weakenable, Weakness};

/// A batch is not cut to fewer chains than this, with which it has 95 % of what a whole one gives.
const SMALLEST_CUT: u16 = 16;

/// One virtqueue. The ring's areas are passed to it, resolved, in each call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Virtqueue {
    setup: Option<RingSetup>,
    features: Features,
    enabled: bool,
    state: State,
    /// The available index of the next chain to pop.
    next_avail: u16,
    /// The used index of the next element to write; elements from `published` on are not the
    /// driver's yet.
    next_used: u16,
    published: u16,
    /// The used index at the last decision whether to call. `None` makes the next one a call:
    /// what the driver was told by an earlier backend is unknown.
    signalled: Option<u16>,
    /// Whether the driver was asked for kicks.
    kicks_on: bool,
    /// `next_avail` when avail_event was last written.
    event_at: u16,
    /// Most chains this driver has ever had posted.
    most_posted: u16,
    /// Decides what happens next, never what has: whether kicks are on is `kicks_on`.
    policy: Policy,
    clock: PollClock,
    /// When the worker last came back from a sleep or a poll.
    pub(crate) woke: Option<Instant>,
    /// A kick was taken while asleep and its look is still to come.
    kicked: bool,
    /// The ring broke and the frontend has not been told.
    error: bool,
    pub(crate) stats: QueueStats,
    pub(crate) weak: Weakenable,
}

// ---- life cycle ---------------------------------------------------------------------------

impl Virtqueue {
    /// Takes the ring into service. It is looked at before it can be armed (rule 5).
    pub(crate) fn start(&mut self, setup: RingSetup, memory: Option<&GuestMemoryMmap>) {
        self.setup = Some(setup);
        self.next_avail = setup.next_avail;
        self.most_posted = 0;
        self.kicked = false;
        self.resume(Requeue::Started, memory);
    }

    /// Takes the ring out of service; nothing may be in flight.
    pub(crate) fn stop(&mut self) -> RingPosition {
        self.setup = None;
        self.enter(DrainEnd::Stopped.state());
        RingPosition {
            next_avail: self.next_avail,
            next_used: self.published,
        }
    }

    pub(crate) fn enable(&mut self, memory: Option<&GuestMemoryMmap>) {
        if !self.enabled {
            self.enabled = true;
            self.resume(Requeue::Enabled, memory);
        }
    }

    pub(crate) fn disable(&mut self, memory: Option<&GuestMemoryMmap>) {
        self.enabled = false;
        if self.state == DrainEnd::Broken.state() {
            return;
        }
        if let Some(ring) = memory.and_then(|memory| self.open(memory)) {
            self.quiet(&ring);
            self.enter(DrainEnd::Disabled.state());
        }
    }

    /// SET_VRING_ADDR on a started ring.
    pub(crate) fn set_addresses(
        &mut self,
        addresses: RingAddresses,
        memory: Option<&GuestMemoryMmap>,
    ) {
        if let Some(setup) = &mut self.setup {
            setup.addresses = addresses;
            self.resume(Requeue::NewMemory, memory);
        }
    }

    pub(crate) fn set_features(&mut self, features: Features, memory: Option<&GuestMemoryMmap>) {
        self.features = features;
        self.resume(Requeue::NewMemory, memory);
    }

    /// The memory map was replaced.
    pub(crate) fn remap(&mut self, memory: Option<&GuestMemoryMmap>) {
        self.resume(Requeue::NewMemory, memory);
    }

    /// Everything that brings a ring back comes through here: kicks are turned off explicitly,
    /// for who knows what an earlier backend or configuration left, and the ring is requeued.
    fn resume(&mut self, reason: Requeue, memory: Option<&GuestMemoryMmap>) {
        let Some(setup) = self.setup else { return };
        if self.state == State::Blocked(Block::Broken) && reason != Requeue::Started {
            return;
        }
        // A frontend may start rings before it says where memory is; that is nobody's fault yet.
        let Some(memory) = memory else {
            self.enter(DrainEnd::MemoryFault.state());
            return;
        };
        let Some(ring) = Ring::resolve(memory, setup.size, &setup.addresses) else {
            self.fail(Fault::BadRing, DrainEnd::MemoryFault);
            return;
        };
        if reason == Requeue::Started || self.state == State::Blocked(Block::MemoryFault) {
            self.next_used = ring.used_index();
            self.published = self.next_used;
        }
        self.signalled = None;
        // With EVENT_IDX the driver ignores the flag, but an older backend may have left it set.
        handshake::tell(&ring, false, true, 0);
        self.quiet(&ring);
        if self.weak.lacks(Weakness::ArmedOnStart) && self.enabled {
            self.kicks_on = true;
            self.store_event(&ring, self.next_avail);
            self.enter(State::Armed);
            return;
        }
        self.enter(if self.enabled {
            State::Requeued(reason)
        } else {
            DrainEnd::Disabled.state()
        });
    }
}

// ---- state --------------------------------------------------------------------------------

impl Virtqueue {
    pub(crate) const fn state(&self) -> State {
        self.state
    }

    pub(crate) const fn features(&self) -> Features {
        self.features
    }

    pub(crate) const fn is_started(&self) -> bool {
        self.setup.is_some()
    }

    pub(crate) const fn most_posted(&self) -> u16 {
        self.most_posted
    }

    /// The size of a started ring, else 0.
    pub(crate) fn size(&self) -> u16 {
        self.setup.map_or(0, |setup| setup.size.as_u16())
    }

    /// The one place where the state changes, so that it is counted once.
    pub(crate) const fn enter(&mut self, state: State) {
        match state {
            State::Requeued(reason) => self.stats.requeues[reason as usize] += 1,
            State::Blocked(reason) => self.stats.blocked[reason as usize] += 1,
            _ => {}
        }
        self.state = state;
    }

    /// Ends the ring's work until somebody sets it up again.
    pub(crate) const fn fail(&mut self, fault: Fault, end: DrainEnd) {
        self.stats.fault(fault);
        self.error = true;
        self.enter(end.state());
    }

    /// Whether the ring broke since this was last asked.
    pub(crate) const fn take_error(&mut self) -> bool {
        std::mem::replace(&mut self.error, false)
    }

    /// A kick arrived. Asleep, it leads to a look; in other states a look comes anyway (rule 4).
    /// Returns whether it was asked for.
    pub(crate) fn on_kick(&mut self) -> bool {
        self.stats.kicks += 1;
        let asked = matches!(
            self.state,
            State::Armed | State::Starved | State::ArmedInFlight
        );
        if !asked || self.weak.swallows() {
            return false;
        }
        self.kicked = self.state != State::ArmedInFlight;
        true
    }
}

// ---- rings --------------------------------------------------------------------------------

impl Virtqueue {
    /// The ring's areas, resolved for one batch; `None` leaves the state saying why.
    #[inline]
    pub(crate) fn open<'m>(&mut self, memory: &'m GuestMemoryMmap) -> Option<Ring<'m>> {
        let setup = self.setup?;
        let ring = Ring::resolve(memory, setup.size, &setup.addresses);
        if ring.is_none() {
            self.fail(Fault::BadRing, DrainEnd::MemoryFault);
        }
        ring
    }

    /// How many chains the driver has made available and we have not popped. An index that moved
    /// by more than the queue size is nonsense and ends the ring (`None`).
    #[inline]
    pub(crate) fn posted(&mut self, ring: &Ring<'_>) -> Option<u16> {
        self.posted_up_to(ring, ring.avail_index())
    }

    #[inline]
    fn posted_up_to(&mut self, ring: &Ring<'_>, avail_index: u16) -> Option<u16> {
        let posted = index::distance(self.next_avail, avail_index);
        if posted > ring.size().as_u16() {
            self.quiet(ring);
            self.fail(Fault::BadIndex, DrainEnd::Broken);
            return None;
        }
        self.most_posted = self.most_posted.max(posted);
        if std::mem::replace(&mut self.kicked, false) && posted == 0 {
            self.stats.spurious_kicks += 1;
        }
        Some(posted)
    }

    /// How many of the next `chains` to take, so that a driver that sleeps on a full ring is called as
    /// soon as what it waits for is done. Called at the end of the batch, it would have less of the
    /// ring left to wake up in, and a ring that runs dry meanwhile costs a kick. A driver that wants a
    /// call for whatever comes next has no such reason, and its batches stay whole.
    #[inline]
    pub(crate) fn up_to_call(&self, ring: &Ring<'_>, chains: u16) -> u16 {
        if !self.features.has(Features::EVENT_IDX) {
            return chains;
        }
        let wanted = index::distance(
            self.next_used,
            ring.load(Word::UsedEvent, Ordering::Relaxed),
        );
        if (SMALLEST_CUT..chains).contains(&wanted) {
            wanted + 1
        } else {
            chains
        }
    }

    /// Pops the next available entry: its index and its head, which may be out of range.
    #[inline]
    pub(crate) fn pop(&mut self, ring: &Ring<'_>) -> (u16, u16) {
        let index = self.next_avail;
        self.next_avail = index.wrapping_add(1);
        (index, ring.head(index))
    }

    /// Shows the first buffers of the chains `ahead` of the next one, for a prefetch. A chain is
    /// walked and checked when its turn comes, whatever was shown.
    ///
    /// A prefetch of memory that no TLB knows waits for a page walk. Several in a row walk at the
    /// same time, so a whole batch is shown at once and not one chain a frame.
    #[inline]
    pub(crate) fn announce<'m>(
        &self,
        ring: &Ring<'m>,
        memory: &mut Lookup<'m>,
        ahead: Range<u16>,
        show: impl Fn(&VolatileSlice<'m>),
    ) {
        for ahead in ahead {
            let head = self.peek(ring, ahead);
            if head >= ring.size().as_u16() {
                return;
            }
            let descriptor = ring.descriptor(head);
            let bytes = descriptor.len() as usize;
            if let Some(buffer) = memory.slice(descriptor.addr(), bytes) {
                show(&buffer);
            }
        }
    }

    /// The entry `ahead` of the next one, without popping it.
    #[inline]
    pub(crate) fn peek(&self, ring: &Ring<'_>, ahead: u16) -> u16 {
        ring.head(self.next_avail.wrapping_add(ahead))
    }

    /// Writes the used element of an entry `ahead` of the next one; [`Self::commit`] makes it count.
    #[inline]
    pub(crate) fn write_ahead(&self, ring: &Ring<'_>, ahead: u16, head: u16, written: u32) {
        ring.write_used(self.next_used.wrapping_add(ahead), head, written);
    }

    /// Pops `count` entries whose used elements were written ahead.
    #[inline]
    pub(crate) const fn commit(&mut self, count: u16) {
        self.next_avail = self.next_avail.wrapping_add(count);
        self.next_used = self.next_used.wrapping_add(count);
    }

    /// Pops `count` entries that were peeked at and name no chain.
    #[inline]
    pub(crate) const fn advance(&mut self, count: u16) {
        self.next_avail = self.next_avail.wrapping_add(count);
    }

    /// Un-pops everything from `index` on.
    pub(crate) const fn rewind(&mut self, index: u16) {
        self.next_avail = index;
    }

    /// Writes a used element; [`Self::flush`] makes it the driver's.
    #[inline]
    pub(crate) fn fill(&mut self, ring: &Ring<'_>, head: u16, written: u32) {
        ring.write_used(self.next_used, head, written);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Whether elements were written that are not the driver's yet.
    pub(crate) const fn has_unpublished(&self) -> bool {
        self.published != self.next_used
    }

    /// Publishes all elements written, under one index store. Returns whether to call the driver;
    /// the first publication after a start always does (rule 5).
    #[inline]
    pub(crate) fn flush(&mut self, ring: &Ring<'_>) -> bool {
        if !self.has_unpublished() {
            return false;
        }
        self.published = self.next_used;
        let old = self.signalled.replace(self.published);
        let call = handshake::publish(ring, self.event_idx(), self.published, old);
        self.stats.batches += 1;
        if call {
            self.stats.calls += 1;
        } else {
            self.stats.calls_suppressed += 1;
        }
        call
    }

    /// Turns kicks off. EVENT_IDX has no flag for it, so the event goes where the index will not
    /// come for long; [`Self::keep_quiet`] moves it on before it does.
    pub(crate) fn quiet(&mut self, ring: &Ring<'_>) {
        self.kicks_on = false;
        self.store_event(ring, index::quiet_event(self.next_avail));
    }

    /// Stores a quiet event again before the index comes around to it.
    #[inline]
    pub(crate) fn keep_quiet(&mut self, ring: &Ring<'_>) {
        if !self.kicks_on && index::distance(self.event_at, self.next_avail) >= QUIET_FOR {
            self.store_event(ring, index::quiet_event(self.next_avail));
        }
    }

    /// Asks for a kick when `chains` more chains are available, fences, and looks: a driver that
    /// made them available before it saw the request did not kick, and is seen here (rule 1).
    /// Returns how many there are now, `None` if the ring is broken.
    pub(crate) fn ask(&mut self, ring: &Ring<'_>, chains: u16) -> Option<u16> {
        self.kicks_on = true;
        let last = self.next_avail.wrapping_add(chains).wrapping_sub(1);
        self.event_at = self.next_avail;
        let avail_index = handshake::ask(ring, self.event_idx(), last);
        if self.weak.lacks(Weakness::NoLookAfterArming)
            || self.weak.lacks(Weakness::ThresholdWithoutLook) && chains > 1
        {
            return Some(0);
        }
        self.posted_up_to(ring, avail_index)
    }

    /// Tells the driver about `kicks_on`, by `event` with EVENT_IDX.
    fn store_event(&mut self, ring: &Ring<'_>, event: u16) {
        self.event_at = self.next_avail;
        handshake::tell(ring, self.event_idx(), self.kicks_on, event);
    }

    const fn event_idx(&self) -> bool {
        self.features.has(Features::EVENT_IDX)
    }
}
