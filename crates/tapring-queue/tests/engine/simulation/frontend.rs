//! What a frontend does to rings that run.

use tapring_queue::{Block, Direction, Features, State};

use vm_memory::GuestMemoryMmap;

use super::policies;
use super::world::{Rest, World};

impl World {
    /// Something takes a ring out and, sooner or later, brings it back.
    pub(super) fn frontend(&mut self) {
        let direction = self.rng.pick(&Direction::ALL);
        self.drain();
        if self.stopped[direction.index()] {
            self.bring_back(direction);
            return;
        }
        let memory = self.memory.clone();
        match self.rng.below(6) {
            // What was sent behind a hole is not remembered over a stop: the next driver may be
            // another. It is sent again rather than lost.
            0 | 1 if self.holes && direction == Direction::Tx => {}
            0 | 1 => {
                let position = self.pair.stop(direction);
                assert_eq!(
                    position.next_avail, position.next_used,
                    "nothing is in flight"
                );
                self.stopped[direction.index()] = true;
            }
            2 => {
                self.pair.disable(direction, Some(&memory));
                self.stopped[direction.index()] = true;
            }
            3 => {
                self.pair.remap(None);
                if self.rng.once_in(3) {
                    self.switch(None);
                }
            }
            4 => {
                let log = u64::from(self.rng.once_in(2)) << 26;
                self.pair
                    .set_features(Features(self.features | log), Some(&memory));
            }
            _ => {
                let addresses = self.guest.get_mut().driver(direction).addresses();
                self.pair.set_addresses(direction, addresses, Some(&memory));
            }
        }
        self.guest_steps();
        // New memory follows the old within one message.
        if self.pair.state(direction) == State::Blocked(Block::MemoryFault) {
            self.pair.remap(Some(&memory));
        }
        if self.rng.once_in(2) {
            // A new kick fd: what the old one held is lost (rule 5).
            self.guest.get_mut().kicked[direction.index()] = false;
            self.pair.on_new_kick(direction, Some(&memory));
        }
        self.tell();
    }

    pub(super) fn bring_back(&mut self, direction: Direction) {
        if std::mem::replace(&mut self.stopped[direction.index()], false) {
            let mut setup = self.guest.get_mut().driver(direction).setup();
            let memory = self.memory.clone();
            if !self.pair.is_started(direction) {
                setup.next_avail = self.guest.get_mut().driver(direction).used_index(&memory);
                self.pair.start(direction, setup, Some(&memory));
            }
            self.pair.enable(direction, Some(&memory));
            self.guest.get_mut().kicked[direction.index()] = false;
            self.tell();
        }
    }

    /// A new policy, between any two turns and with whatever in flight.
    pub(super) fn switch(&mut self, memory: Option<&GuestMemoryMmap>) {
        self.policy = policies::any(&mut self.rng);
        self.pair.set_policy(self.policy, memory);
        self.dry = [None; 2];
        self.tell();
    }

    /// The worker carried out a command, and has another turn before it sleeps.
    fn tell(&mut self) {
        self.rest = Rest::None;
    }

    fn drain(&mut self) {
        self.tap.done = !self.tap.batch.is_empty();
        self.complete();
        self.notify();
    }
}
