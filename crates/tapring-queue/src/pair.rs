//! A queue pair: both virtqueues, and the one door to sleep.

use std::time::Instant;

use vm_memory::GuestMemoryMmap;

use crate::kick::{AtDoor, Requeue, State};
use crate::rx::RxQueue;
use crate::setup::{Direction, Features, RingAddresses, RingPosition, RingSetup};
use crate::stats::QueueStats;
use crate::tx::TxQueue;
use crate::virtqueue::Virtqueue;

/// Both virtqueues of a pair. One worker owns it.
///
/// The life-cycle calls expect that nothing of the ring is in flight; the worker drains first.
#[derive(Debug, Default)]
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
    /// Every ring has an event of its own to bring it back, or this moment, whichever comes first.
    Asleep(Option<Instant>),
}

// ---- life cycle ---------------------------------------------------------------------------

impl QueuePair {
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
        match direction {
            Direction::Tx => self.tx.disarm(memory),
            Direction::Rx => {
                if let Some(memory) = memory {
                    self.rx.on_starved_kick(memory);
                }
            }
        }
    }

    /// The door: called when a turn had nothing to do, and the only way to sleep.
    pub fn door(&mut self, memory: Option<&GuestMemoryMmap>) -> Door {
        // With work left on either ring nobody sleeps, so nothing is armed (rule 1).
        if self.at_door(AtDoor::Stay) {
            return Door::Busy;
        }
        if let Some(memory) = memory {
            self.tx.arm(memory);
        }
        // The look behind the arming may have found a chain.
        if self.at_door(AtDoor::Stay) {
            return Door::Busy;
        }
        self.rx.wait();
        if self.at_door(AtDoor::Await) {
            Door::Completions
        } else {
            Door::Asleep(self.rx.deadline())
        }
    }

    fn at_door(&self, answer: AtDoor) -> bool {
        [&self.rx.vq, &self.tx.vq]
            .map(|vq| vq.state().at_door())
            .contains(&answer)
    }
}

impl TxQueue {
    /// Rule 1: ask for a kick, fence, look once more.
    fn arm(&mut self, memory: &GuestMemoryMmap) {
        if self.vq.state().at_door() != AtDoor::Arm {
            return;
        }
        let Some(ring) = self.vq.open(memory) else {
            return;
        };
        match self.vq.ask(&ring, 1) {
            None => {}
            Some(0) => {
                self.vq.stats.rearms_armed += 1;
                self.vq.enter(State::Armed);
            }
            Some(_) => {
                self.vq.stats.rearms_raced += 1;
                self.vq.quiet(&ring);
                self.vq.enter(State::Requeued(Requeue::Found));
            }
        }
    }

    /// A kick ended the sleep: kicks off, and look.
    fn disarm(&mut self, memory: Option<&GuestMemoryMmap>) {
        if self.vq.state() != State::Armed {
            return;
        }
        if let Some(ring) = memory.and_then(|memory| self.vq.open(memory)) {
            self.vq.quiet(&ring);
            self.vq.enter(State::Draining);
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
