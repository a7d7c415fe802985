//! A queue pair: both virtqueues, and the one door to sleep.

use std::time::Instant;

use vm_memory::GuestMemoryMmap;

use crate::kick::{AtDoor, DrainEnd, State};
use crate::policy::Policy;
use crate::rx::RxQueue;
use crate::setup::{Direction, Features, RingAddresses, RingPosition, RingSetup};
use crate::stats::QueueStats;
use crate::tx::TxQueue;
use crate::virtqueue::Virtqueue;
use crate::watch::Watch;

/// Both virtqueues of a pair. One worker owns it.
///
/// The life-cycle calls expect that nothing of the ring is in flight; the worker drains first.
#[derive(Debug, Default)]
#[cfg_attr(feature = "weakened", derive(Clone))]
pub struct QueuePair {
    /// The receiveq.
    pub rx: RxQueue,
    /// The transmitq.
    pub tx: TxQueue,
}

/// The answer at the door to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A ring has work.
    Busy,
    /// No ring has work before a completion arrives.
    Completions,
    /// Nothing to do yet: memory and completions are to be watched, without sleeping, until
    /// [`Watch::has_news`], a completion or this moment.
    Poll(Instant),
    /// Every ring has an event of its own to bring it back, or this moment, whichever comes first.
    Asleep(Option<Instant>),
}

// ---- life cycle ---------------------------------------------------------------------------

impl QueuePair {
    /// A pair that is not started.
    pub fn new(policy: Policy) -> Self {
        let mut pair = Self::default();
        pair.set_policy(policy, None);
        pair
    }

    /// Puts a policy in force, at any time, also with a batch in flight. Running rings are looked
    /// at before they are armed again (rule 5).
    pub fn set_policy(&mut self, policy: Policy, memory: Option<&GuestMemoryMmap>) {
        self.tx.vq.set_policy(policy, memory);
        self.rx.vq.set_policy(policy, memory);
        // The threshold is another one. What a held frame has waited still counts.
        if self.rx.vq.state().runnable() {
            self.rx.starving = None;
        }
    }

    /// SET_FEATURES for both; the same bits again change nothing. Whether the driver's bits
    /// changed, as when another driver took over.
    pub fn set_features(&mut self, features: Features, memory: Option<&GuestMemoryMmap>) -> bool {
        let before = self.rx.vq.features();
        if features == before {
            return false;
        }
        self.rx.stop_starving();
        self.rx.vq.set_features(features, memory);
        self.tx.vq.set_features(features, memory);
        (features.0 ^ before.0) & !Features::TRANSPORT != 0
    }

    /// Takes a ring into service.
    pub fn start(
        &mut self,
        direction: Direction,
        setup: RingSetup,
        memory: Option<&GuestMemoryMmap>,
    ) {
        self.forget(direction);
        self.vq(direction).start(setup, memory);
    }

    /// Takes a ring out of service and says where it stands.
    pub fn stop(&mut self, direction: Direction) -> RingPosition {
        self.forget(direction);
        self.vq(direction).stop()
    }

    /// SET_VRING_ENABLE 1.
    pub fn enable(&mut self, direction: Direction, memory: Option<&GuestMemoryMmap>) {
        self.vq(direction).enable(memory);
    }

    /// SET_VRING_ENABLE 0.
    pub fn disable(&mut self, direction: Direction, memory: Option<&GuestMemoryMmap>) {
        if direction == Direction::Rx {
            self.rx.stop_starving();
        }
        self.vq(direction).disable(memory);
    }

    /// SET_VRING_ADDR on a started ring.
    pub fn set_addresses(
        &mut self,
        direction: Direction,
        addresses: RingAddresses,
        memory: Option<&GuestMemoryMmap>,
    ) {
        if direction == Direction::Rx {
            self.rx.stop_starving();
        }
        self.vq(direction).set_addresses(addresses, memory);
    }

    /// The memory map was replaced.
    pub fn remap(&mut self, memory: Option<&GuestMemoryMmap>) {
        self.rx.stop_starving();
        self.rx.vq.remap(memory);
        self.tx.vq.remap(memory);
    }

    /// What was remembered between batches no longer holds.
    fn forget(&mut self, direction: Direction) {
        match direction {
            Direction::Rx => self.rx.stop_starving(),
            Direction::Tx => self.tx.forget_sent(),
        }
    }
}

// ---- events -------------------------------------------------------------------------------

impl QueuePair {
    /// Kicks were taken from a ring's eventfd. Asleep, they lead to a look.
    pub fn on_kick(&mut self, direction: Direction, memory: Option<&GuestMemoryMmap>) {
        if self.vq(direction).on_kick() {
            self.look(direction, memory);
        }
    }

    /// The kick eventfd was replaced. A kick through the old one may have come too late to be
    /// seen, so a ring that sleeps is looked at (rule 5).
    pub fn on_new_kick(&mut self, direction: Direction, memory: Option<&GuestMemoryMmap>) {
        self.look(direction, memory);
    }

    /// Ends the sleep of a ring that waits for a kick.
    fn look(&mut self, direction: Direction, memory: Option<&GuestMemoryMmap>) {
        let Some(memory) = memory else { return };
        match direction {
            Direction::Tx => self.tx.disarm(memory),
            Direction::Rx => self.rx.on_starved_kick(memory),
        }
    }

    /// The worker is back from a sleep or a poll, for whatever reason; the kicks that came have
    /// been told.
    pub fn woke(&mut self, memory: Option<&GuestMemoryMmap>, now: Instant) {
        self.tx.vq.woke = Some(now);
        self.rx.vq.woke = Some(now);
        let Some(memory) = memory else { return };
        self.tx.end_poll(memory, now);
        self.rx.end_poll(memory, now);
        if self.tx.vq.is_quiet_while_awake() {
            self.tx.disarm(memory);
        }
    }
}

// ---- the door -----------------------------------------------------------------------------

impl QueuePair {
    /// The door: called when a turn had nothing to do, and the only way to sleep.
    pub fn door(&mut self, memory: Option<&GuestMemoryMmap>, now: Instant) -> Door {
        // With work left on either ring nobody sleeps, so nothing is armed (rule 1).
        if self.at_door(AtDoor::Stay) {
            return Door::Busy;
        }
        if let Some(until) = self.watched_until(now) {
            self.tx.watch_on(now);
            self.rx.watch_on(now);
            self.rx.wait();
            return Door::Poll(until);
        }
        if let Some(memory) = memory
            && self.rests(memory)
        {
            return Door::Busy;
        }
        self.rx.wait();
        if self.at_door(AtDoor::Await) {
            Door::Completions
        } else {
            Door::Asleep(self.rx.deadline())
        }
    }

    /// Asks for kicks, the ring that is likelier to have something first. Whether the look behind
    /// it found something.
    fn rests(&mut self, memory: &GuestMemoryMmap) -> bool {
        self.rx.rest(memory);
        if self.at_door(AtDoor::Stay) {
            return true;
        }
        self.tx.rest(memory);
        self.at_door(AtDoor::Stay)
    }

    /// The end of the longest poll, or an earlier moment at which the receiveq has to act.
    fn watched_until(&mut self, now: Instant) -> Option<Instant> {
        let polls = [&mut self.tx.vq, &mut self.rx.vq].map(|vq| vq.poll_deadline(now));
        let until = polls.into_iter().flatten().max()?;
        Some(self.rx.deadline().map_or(until, |at| at.min(until)))
    }

    /// What a busy poll watches: each look is a load or two.
    pub fn watch<'m>(&self, memory: &'m GuestMemoryMmap) -> Watch<'m> {
        Watch::new(
            self.tx.vq.watched(memory, 1),
            self.rx
                .wanted()
                .and_then(|wanted| self.rx.vq.watched(memory, wanted)),
        )
    }

    fn at_door(&self, answer: AtDoor) -> bool {
        [&self.rx.vq, &self.tx.vq]
            .map(|vq| vq.state().at_door())
            .contains(&answer)
    }
}

impl TxQueue {
    /// The door, where nothing is left but to sleep.
    fn rest(&mut self, memory: &GuestMemoryMmap) {
        if self.vq.state().at_door() == AtDoor::Arm
            && let Some(ring) = self.vq.open(memory)
        {
            self.arm(&ring);
        }
    }

    /// Its poll goes on, if it is not over.
    fn watch_on(&mut self, now: Instant) {
        if self.vq.poll_deadline(now).is_some() {
            self.vq.enter(State::BusyPoll);
        }
    }

    /// The poll is over: chains, its end, or something else to do.
    fn end_poll(&mut self, memory: &GuestMemoryMmap, now: Instant) {
        if self.vq.state() != State::BusyPoll {
            return;
        }
        let Some(ring) = self.vq.open(memory) else {
            return;
        };
        match self.vq.posted(&ring) {
            None => {}
            Some(0) if self.vq.poll_deadline(now).is_none() => {
                self.vq.enter(DrainEnd::Empty.state());
            }
            Some(0) if self.vq.rearms_when_interrupted() => self.arm(&ring),
            Some(0) => self.vq.enter(DrainEnd::Interrupted.state()),
            Some(_) => self.vq.enter(DrainEnd::Empty.state()),
        }
    }

    /// A kick ended the sleep, or something else the worker has to do: kicks off, and look.
    fn disarm(&mut self, memory: &GuestMemoryMmap) {
        let state = match self.vq.state() {
            State::Armed => DrainEnd::Empty.state(),
            State::ArmedInFlight => State::InFlight,
            _ => return,
        };
        if let Some(ring) = self.vq.open(memory) {
            self.vq.quiet(&ring);
            self.vq.enter(state);
        }
    }
}

// ---- what others see ----------------------------------------------------------------------

impl QueuePair {
    fn vq(&mut self, direction: Direction) -> &mut Virtqueue {
        match direction {
            Direction::Rx => &mut self.rx.vq,
            Direction::Tx => &mut self.tx.vq,
        }
    }

    /// Where a ring stands.
    pub const fn state(&self, direction: Direction) -> State {
        match direction {
            Direction::Rx => self.rx.vq.state(),
            Direction::Tx => self.tx.vq.state(),
        }
    }

    /// Whether a ring was started and not stopped.
    pub const fn is_started(&self, direction: Direction) -> bool {
        match direction {
            Direction::Rx => self.rx.vq.is_started(),
            Direction::Tx => self.tx.vq.is_started(),
        }
    }

    /// The counts of a ring since they were last taken.
    pub fn take_stats(&mut self, direction: Direction) -> QueueStats {
        self.vq(direction).stats.take()
    }

    /// Whether a ring broke since this was last asked; the frontend is told through its err fd.
    pub fn take_error(&mut self, direction: Direction) -> bool {
        self.vq(direction).take_error()
    }
}
