//! The worker, the tap and the frontend of the simulation.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tapring_queue::{
    Block, Direction, Door, Features, QueuePair, RxEnd, RxSource, State, TxFrame, TxOutcome, TxSink,
};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::guest::{FRAMES, Guest, length_of};
use crate::frames::{frame, number_of};
use crate::rig::{EVENT_IDX, MRG_RXBUF};
use crate::rng::Rng;

/// Frames the worker has slots for.
const SLOTS: usize = 8;
/// Turns in a row that may find work without doing any.
const PATIENCE: usize = 6;

pub(super) struct World {
    pub(super) guest: RefCell<Guest>,
    pub(super) pair: QueuePair,
    pub(super) memory: GuestMemoryMmap,
    rng: Rng,
    features: u64,
    pub(super) now: Instant,
    pub(super) tap: Tap,
    /// Completions come at once, or some time later as under SQPOLL.
    inline: bool,
    /// Frames behind one that was not sent may be sent (no links).
    holes: bool,
    /// The worker sleeps, until this moment at most.
    pub(super) asleep: Option<Option<Instant>>,
    idle_turns: usize,
    dropped: usize,
    /// What the frontend has done to a ring.
    stopped: [bool; 2],
}

#[derive(Default)]
pub(super) struct Tap {
    sent: Vec<usize>,
    /// Frames in flight, and whether their completions are in.
    pub(super) batch: Vec<Vec<u8>>,
    done: bool,
    pub(super) full: bool,
    pub(super) pollout: bool,
    pub(super) pollin: bool,
    /// Frames of the host, made and not read; and read and not delivered.
    made: usize,
    pub(super) queue: VecDeque<Vec<u8>>,
    pub(super) held: VecDeque<Vec<u8>>,
}

/// The guest acts between the frames of a batch.
struct Sink<'w>(&'w mut Tap, &'w RefCell<Guest>);

impl TxSink for Sink<'_> {
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        self.1.borrow_mut().step();
        let mut bytes = vec![0; frame.bytes()];
        frame.copy_to(&mut bytes);
        self.0.batch.push(bytes);
        true
    }
}

struct Source<'w>(&'w mut VecDeque<Vec<u8>>, &'w RefCell<Guest>);

impl RxSource for Source<'_> {
    fn front(&self) -> Option<&[u8]> {
        self.1.borrow_mut().step();
        self.0.front().map(Vec::as_slice)
    }

    fn pop(&mut self) {
        self.0.pop_front().expect("a frame is held");
    }
}

// ---- the run ------------------------------------------------------------------------------------

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x20_0000)]).unwrap();
        let event_idx = rng.once_in(2);
        let mergeable = rng.once_in(2);
        let mut features = Features::VERSION_1;
        features |= if event_idx { EVENT_IDX } else { 0 };
        features |= if mergeable { MRG_RXBUF } else { 0 };
        let mut pair = QueuePair::default();
        pair.set_features(Features(features), Some(&memory));
        let guest = Guest::new(memory.clone(), seed, event_idx, mergeable);
        pair.start(Direction::Rx, guest.rx.setup(), Some(&memory));
        pair.start(Direction::Tx, guest.tx.setup(), Some(&memory));
        for direction in Direction::ALL {
            pair.enable(direction, Some(&memory));
        }
        Self {
            guest: RefCell::new(guest),
            pair,
            memory,
            features,
            now: Instant::now(),
            tap: Tap::default(),
            inline: rng.once_in(2),
            holes: rng.once_in(3),
            asleep: None,
            idle_turns: 0,
            dropped: 0,
            stopped: [false; 2],
            rng,
        }
    }

    pub(super) fn run(&mut self) {
        for _ in 0..400 {
            self.guest_steps();
            self.outside();
            self.worker();
        }
        self.wind_down();
        self.check_frames();
    }

    /// Everything that was begun is finished, and then nothing may be left undone.
    fn wind_down(&mut self) {
        for direction in Direction::ALL {
            self.bring_back(direction);
        }
        for step in 0.. {
            assert!(step < 20_000, "it never comes to rest");
            self.tap.full = false;
            let mut guest = self.guest.borrow_mut();
            guest.finish();
            drop(guest);
            self.worker();
            if self.asleep.is_some() && !self.owed() {
                let mut guest = self.guest.borrow_mut();
                for direction in Direction::ALL {
                    guest.sleeping[direction.index()] = None;
                    guest.take_back(direction);
                }
                let refilled = guest.room.len();
                guest.add_rx();
                let settled = guest.room.len() == refilled;
                let told = guest.tx.avail == guest.tx.published;
                if settled && told && self.tap.held.is_empty() && self.tap.queue.is_empty() {
                    return;
                }
            }
        }
    }

    fn guest_steps(&mut self) {
        let steps = self.rng.below(4);
        let mut guest = self.guest.borrow_mut();
        for _ in 0..steps {
            guest.step();
        }
    }

    /// The host, the tap and the clock.
    fn outside(&mut self) {
        match self.rng.below(12) {
            0 | 1 => self.host_sends(),
            2 => self.tap.full = !self.tap.full,
            3 => self.tap.full = false,
            4 => self.now += Duration::from_micros(self.rng.next() % 300),
            5 if self.rng.once_in(8) => self.now += Duration::from_millis(self.rng.next() % 120),
            6 if self.rng.once_in(6) => self.frontend(),
            _ => {}
        }
    }

    fn host_sends(&mut self) {
        for _ in 0..1 + self.rng.below(6) {
            if self.tap.made < FRAMES && self.tap.queue.len() < 64 {
                self.tap
                    .queue
                    .push_back(frame(self.tap.made, length_of(self.tap.made)));
                self.tap.made += 1;
            }
        }
    }

    fn check_frames(&mut self) {
        self.dropped += usize::try_from(self.pair.take_stats(Direction::Rx).too_large).unwrap();
        let guest = self.guest.borrow();
        assert!(
            guest.received.is_sorted_by(|a, b| a < b),
            "{:?}",
            guest.received
        );
        assert_eq!(
            guest.received.len() + self.dropped,
            self.tap.made,
            "every frame accounted for"
        );
        let sent = &mut self.tap.sent;
        if self.holes {
            sent.sort_unstable();
        }
        assert_eq!(*sent, (0..guest.made).collect::<Vec<_>>());
        assert_eq!(
            guest.tx.room(),
            usize::from(guest.tx.size),
            "every head was returned"
        );
    }
}

// ---- the frontend -------------------------------------------------------------------------------

impl World {
    /// Something takes a ring out and, sooner or later, brings it back.
    fn frontend(&mut self) {
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
            3 => self.pair.remap(None),
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
        self.wake();
    }

    fn bring_back(&mut self, direction: Direction) {
        if std::mem::replace(&mut self.stopped[direction.index()], false) {
            let mut setup = self.guest.get_mut().driver(direction).setup();
            let memory = self.memory.clone();
            if !self.pair.is_started(direction) {
                setup.next_avail = self.guest.get_mut().driver(direction).used_index(&memory);
                self.pair.start(direction, setup, Some(&memory));
            }
            self.pair.enable(direction, Some(&memory));
            self.guest.get_mut().kicked[direction.index()] = false;
            self.wake();
        }
    }

    fn drain(&mut self) {
        self.tap.done = !self.tap.batch.is_empty();
        self.complete();
        self.notify();
    }
}

// ---- the worker ---------------------------------------------------------------------------------

impl World {
    fn worker(&mut self) {
        if self.asleep.is_none() {
            self.turn();
        } else if self.rng.once_in(3) {
            self.check_sleep();
            self.wake_if_owed();
        }
        self.check_kicks();
    }

    fn wake(&mut self) {
        self.asleep = None;
    }

    /// The next event arrives; time passes if nothing else does.
    fn wake_if_owed(&mut self) {
        let events = self.guest.borrow().kicked.contains(&true)
            || !self.tap.batch.is_empty()
            || self.tap.pollout && !self.tap.full
            || self.tap.pollin && !self.tap.queue.is_empty();
        let deadline = self.asleep.flatten();
        if events || deadline.is_some_and(|at| at <= self.now) {
            self.wake();
        } else if let Some(at) = deadline
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
        self.idle_turns = match before == self.progress() && self.asleep.is_none() {
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
    }

    fn tx_turn(&mut self) -> bool {
        let completed = self.complete();
        if !self.tap.batch.is_empty() {
            return completed;
        }
        self.guest_steps();
        let memory = self.memory.clone();
        let frames = self
            .pair
            .tx
            .fill(&memory, &mut Sink(&mut self.tap, &self.guest));
        assert_eq!(frames, self.tap.batch.len());
        completed || frames > 0
    }

    fn complete(&mut self) -> bool {
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
        let before = self.tap.held.len();
        let room = self.deliver(&memory);
        let delivered = self.tap.held.len() < before;
        self.guest_steps();
        if room == 0 {
            return delivered;
        }
        let frames = room
            .min(SLOTS - self.tap.held.len())
            .min(self.tap.queue.len());
        self.tap.held.extend(self.tap.queue.drain(..frames));
        if frames > 0 {
            self.guest_steps();
            self.deliver(&memory);
        }
        delivered || frames > 0
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
            self.asleep = Some(None);
            return;
        }
        let memory = self.memory.clone();
        match self.pair.door(Some(&memory), self.now) {
            Door::Busy => {}
            Door::Completions => panic!("nothing is in flight"),
            Door::Poll(_) => panic!("the policy does not poll"),
            Door::Asleep(deadline) => {
                self.tap.pollin |= self.pair.state(Direction::Rx) == State::Waiting;
                self.asleep = Some(deadline);
            }
        }
    }

    fn notify(&mut self) {
        let called = [self.pair.rx.take_call(), self.pair.tx.take_call()];
        let guest = self.guest.get_mut();
        for direction in Direction::ALL {
            guest.called[direction.index()] |= called[direction.index()];
        }
    }
}
