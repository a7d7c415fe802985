//! The worker of the simulation.

use std::time::Instant;

use tapring_queue::{Block, Direction, Door, RxEnd, State, TxOutcome};
use vm_memory::GuestMemoryMmap;

use super::tap::{Sink, Source};
use super::world::{Rest, World};
use crate::frames::number_of;

/// Frames the worker has slots for.
const SLOTS: usize = 8;
/// Turns in a row that may find work without doing any.
const PATIENCE: usize = 6;

impl World {
    pub(super) fn worker(&mut self) {
        if self.rest == Rest::None {
            self.turn();
        } else if self.rng.once_in(3) {
            self.check_sleep();
            self.wake_if_owed();
        }
        self.check_kicks();
    }

    fn wake(&mut self) {
        self.woke = Some(self.now);
        self.rest = Rest::None;
    }

    /// Until when it sleeps or polls at most.
    pub(super) const fn until(&self) -> Option<Instant> {
        match self.rest {
            Rest::None => None,
            Rest::Sleep(until) => until,
            Rest::Poll(until) => Some(until),
        }
    }

    /// The next event arrives; time passes if nothing else does.
    fn wake_if_owed(&mut self) {
        let polls = matches!(self.rest, Rest::Poll(_));
        let events = self.guest.borrow().kicked.contains(&true)
            || !self.tap.batch.is_empty()
            || self.tap.pollout && !self.tap.full
            || self.tap.pollin && !self.tap.queue.is_empty()
            || polls && self.pair.watch(&self.memory).has_news();
        let until = self.until();
        if events || until.is_some_and(|at| at <= self.now) {
            self.wake();
        } else if let Some(at) = until
            && self.rng.once_in(4)
        {
            self.now = at;
        }
    }

    fn turn(&mut self) {
        self.take_events();
        let before = self.progress();
        let busy = self.tx_turn() | self.rx_turn();
        self.guest_steps();
        if !busy {
            self.door();
        }
        self.notify();
        // Without progress and with nobody's doing, finding work again and again is a busy loop.
        self.idle_turns = match before == self.progress() && self.rest == Rest::None {
            true => self.idle_turns + 1,
            false => 0,
        };
        assert!(self.idle_turns < PATIENCE, "busy without progress");
    }

    /// What a turn can change: elements returned, frames handed over, indices the guest moved.
    fn progress(&self) -> (u16, u16, u16, u16, usize, usize) {
        let guest = self.guest.borrow();
        (
            guest.tx.used_index(&self.memory),
            guest.rx.used_index(&self.memory),
            guest.tx.published,
            guest.rx.published,
            self.tap.sent.len() + self.tap.batch.len(),
            self.tap.held.len() + self.tap.queue.len(),
        )
    }

    fn take_events(&mut self) {
        let memory = self.memory.clone();
        for direction in Direction::ALL {
            if std::mem::replace(&mut self.guest.get_mut().kicked[direction.index()], false) {
                self.pair.on_kick(direction, Some(&memory));
                self.guest_steps();
            }
        }
        if self.tap.pollout && !self.tap.full {
            self.tap.pollout = false;
            self.pair.tx.on_writable();
        }
        if self.tap.pollin && !self.tap.queue.is_empty() {
            self.tap.pollin = false;
            self.pair.rx.on_readable();
        }
        if !self.tap.batch.is_empty() && (self.inline || self.rng.once_in(2)) {
            self.tap.done = true;
        }
        if let Some(woke) = self.woke.take() {
            self.pair.woke(Some(&memory), woke);
        }
    }

    fn tx_turn(&mut self) -> bool {
        let completed = self.complete();
        if !self.tap.batch.is_empty() {
            return completed;
        }
        self.guest_steps();
        let memory = self.memory.clone();
        let used = self.used(Direction::Tx);
        let frames = self
            .pair
            .tx
            .fill(&memory, &mut Sink(&mut self.tap, &self.guest));
        assert_eq!(frames, self.tap.batch.len());
        self.moved(Direction::Tx, frames, used);
        completed || frames > 0
    }

    pub(super) fn complete(&mut self) -> bool {
        if !std::mem::replace(&mut self.tap.done, false) {
            return false;
        }
        let batch = std::mem::take(&mut self.tap.batch);
        let room = match self.tap.full {
            true => self.rng.below(batch.len() + 1),
            false => batch.len(),
        };
        let mut outcomes = Vec::new();
        for (i, frame) in batch.iter().enumerate() {
            let sent = i < room || self.holes && self.rng.once_in(3);
            if sent {
                self.tap.sent.push(number_of(frame));
            }
            outcomes.push(if sent {
                TxOutcome::Sent
            } else {
                TxOutcome::NotSent
            });
        }
        let memory = self.memory.clone();
        let guest = &self.guest;
        let outcomes = outcomes.into_iter().inspect(|_| guest.borrow_mut().step());
        self.pair.tx.complete(&memory, outcomes);
        if self.pair.state(Direction::Tx) == State::Blocked(Block::TapFull) {
            self.tap.pollout = true;
        }
        true
    }

    fn rx_turn(&mut self) -> bool {
        let memory = self.memory.clone();
        if self.pair.rx.deadline().is_some() {
            let held = self.tap.held.front().map(Vec::len);
            let fits = held.is_some_and(|len| self.guest.borrow().has_room_for(len + 12));
            let before = self.tap.held.len();
            let mut source = Source(&mut self.tap.held, &self.guest);
            self.pair.rx.on_timer(&memory, &mut source, self.now);
            assert!(
                !fits || before == self.tap.held.len(),
                "dropped a frame that fits"
            );
        }
        let used = self.used(Direction::Rx);
        let before = self.tap.held.len();
        let room = self.deliver(&memory);
        let delivered = before - self.tap.held.len();
        self.moved(Direction::Rx, delivered, used);
        self.guest_steps();
        let budget = usize::from(self.policy.rx_budget.frames()) - delivered;
        let frames = room
            .min(budget)
            .min(SLOTS - self.tap.held.len())
            .min(self.tap.queue.len());
        if frames == 0 {
            return delivered > 0;
        }
        self.tap.held.extend(self.tap.queue.drain(..frames));
        self.guest_steps();
        self.deliver(&memory);
        let held = self.tap.held.len();
        self.moved(Direction::Rx, before + frames - delivered - held, used);
        true
    }

    fn used(&self, direction: Direction) -> u16 {
        let mut guest = self.guest.borrow_mut();
        guest.driver(direction).used_index(&self.memory)
    }

    /// Neither direction takes more than its budget, and a ring that moved, be it only chains that
    /// are malformed, is not dry. It had used chains up to `used` before.
    fn moved(&mut self, direction: Direction, frames: usize, used: u16) {
        let budget = match direction {
            Direction::Rx => self.policy.rx_budget,
            Direction::Tx => self.policy.tx_budget,
        };
        assert!(frames <= usize::from(budget.frames()), "over the budget");
        if frames > 0 || self.used(direction) != used {
            self.dry[direction.index()] = None;
        }
    }

    fn deliver(&mut self, memory: &GuestMemoryMmap) -> usize {
        match self
            .pair
            .rx
            .fill(memory, &mut Source(&mut self.tap.held, &self.guest))
        {
            RxEnd::Delivered(chains) => usize::from(chains),
            RxEnd::NotRunning | RxEnd::StillStarved | RxEnd::BudgetSpent => 0,
            RxEnd::NoBuffers(need) => {
                self.guest_steps();
                let held = !self.tap.held.is_empty();
                self.pair.rx.starve(need, held, self.now);
                0
            }
        }
    }

    fn door(&mut self) {
        if !self.tap.batch.is_empty() {
            self.rest = Rest::Sleep(None);
            return;
        }
        let watched = Direction::ALL.map(|direction| may_poll(self.pair.state(direction)));
        let memory = self.memory.clone();
        let door = self.pair.door(Some(&memory), self.now);
        if door != Door::Busy {
            for (dry, _) in self.dry.iter_mut().zip(watched).filter(|ring| ring.1) {
                dry.get_or_insert(self.now);
            }
            self.tap.pollin |= self.pair.state(Direction::Rx) == State::Waiting;
        }
        self.rest = match door {
            Door::Busy => Rest::None,
            Door::Completions => panic!("nothing is in flight"),
            Door::Poll(until) => Rest::Poll(until),
            Door::Asleep(until) => Rest::Sleep(until),
        };
        self.check_poll();
    }

    pub(super) fn notify(&mut self) {
        let called = [self.pair.rx.take_call(), self.pair.tx.take_call()];
        let guest = self.guest.get_mut();
        for direction in Direction::ALL {
            guest.called[direction.index()] |= called[direction.index()];
        }
    }
}

/// Whether a ring that is dry would be watched.
const fn may_poll(state: State) -> bool {
    matches!(state, State::Draining | State::BusyPoll | State::Waiting)
}
