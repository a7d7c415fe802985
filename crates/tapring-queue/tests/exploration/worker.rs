//! The worker: the steps of the daemon's turn (`crates/tapring/src/worker/turn.rs`), each on its own.
//!
//! ```text
//!  Events   wake up; kicks, POLLOUT, POLLIN, the end of a sleep or a poll
//!  Complete the batch that was in flight
//!  Fill     pop chains, submit
//!  Deliver  the timer; frames held -> chains
//!  Read     frames from the tap, into what room there is
//!  Door     nothing done: sleep, poll, or another turn
//! ```
//!
//! A step that would neither look at shared memory nor change anything is left out, so that no
//! interleavings are tried that differ in nothing. Reads from the tap complete at once; batches of
//! reads in the ring are the port's business and do not reach the engine.

use std::hash::{Hash, Hasher};
use std::time::Instant;

use tapring_queue::{Block, Direction, Door, RxEnd, State};

use crate::case::Lacks;
use crate::host::{Sink, Source, outcomes};
use crate::world::World;

/// Frames the worker can hold.
const SLOTS: usize = 2;

/// Where in its turn the worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum At {
    #[default]
    Events,
    Complete,
    Fill,
    Deliver,
    Read(usize),
    Door,
    Asleep(Option<Instant>),
    Polling(Instant),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    pub(crate) at: At,
    /// When the last sleep or poll ended, if that has still to be told.
    woke: Option<Instant>,
    /// What this turn did.
    pub(crate) turn: Turn,
    /// Turns in a row that moved nothing, with nobody else doing anything.
    pub(crate) idle: u8,
    /// When each ring ran dry.
    pub(crate) dry: [Option<Instant>; 2],
    /// Turns in a row in which a ring had work and only the other moved.
    pub(crate) neglected: [u8; 2],
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    /// Anything at all, so that there is no door.
    busy: bool,
    /// Frames each way.
    pub(crate) moved: [u16; 2],
    /// Frames popped, or delivered, or that reached the host.
    pub(crate) progress: bool,
    /// Rings that had work when it began.
    pub(crate) work: [bool; 2],
    /// It began with the end of a sleep or a poll.
    pub(crate) woken: bool,
}

impl Worker {
    pub(crate) const fn is_polling(&self) -> bool {
        matches!(self.at, At::Polling(_))
    }

    /// Until when it sleeps or polls.
    pub(crate) const fn until(&self) -> Option<Instant> {
        match self.at {
            At::Asleep(until) => until,
            At::Polling(until) => Some(until),
            _ => None,
        }
    }

    /// Between two turns it carried out a command, and another turn comes before it sleeps.
    pub(crate) const fn is_told(&mut self) {
        self.at = At::Events;
    }

    pub(crate) const fn forget_polls(&mut self) {
        self.dry = [None; 2];
    }

    pub(crate) fn fingerprint(&self, now: Instant, into: &mut impl Hasher) {
        let left = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
        std::mem::discriminant(&self.at).hash(into);
        if let At::Read(room) = self.at {
            room.hash(into);
        }
        left(self.until()).hash(into);
        self.woke.map(|at| now - at).hash(into);
        self.dry.map(|at| at.map(|at| now - at)).hash(into);
        (self.turn, self.idle, self.neglected).hash(into);
    }
}

// ---- one step -----------------------------------------------------------------------------

impl World<'_> {
    /// Between two turns.
    pub(crate) const fn at_rest(&self) -> bool {
        matches!(self.worker.at, At::Events | At::Asleep(_) | At::Polling(_))
    }

    pub(crate) fn may_work(&self) -> bool {
        let due = self.worker.until().is_some_and(|until| until <= self.now);
        match self.worker.at {
            At::Asleep(_) => due || self.has_event(),
            At::Polling(_) => {
                due || self.has_event() || self.pair.watch(&self.stage.memory).has_news()
            }
            _ => true,
        }
    }

    /// Whether the worker's io_uring has something for it.
    fn has_event(&self) -> bool {
        let guest = self.guest.borrow();
        let kicked = |direction| guest.side(direction).is_some_and(|side| side.kicked);
        Direction::ALL.into_iter().any(kicked) || self.host.has_event()
    }

    pub(crate) fn work(&mut self) {
        self.guest.get_mut().inside = self.case.inside;
        match self.worker.at {
            At::Events | At::Asleep(_) | At::Polling(_) => self.events(),
            At::Complete => self.complete(),
            At::Fill => self.fill(),
            At::Deliver => self.deliver_held(),
            At::Read(room) => self.read(room),
            At::Door => self.door(),
        }
        self.guest.get_mut().inside = 0;
    }

    /// Goes on with the first of these steps that has something to look at.
    fn go_on(&mut self, steps: &[At]) {
        let next = steps.iter().find(|step| self.is_due(**step));
        self.worker.at = next.copied().unwrap_or(At::Door);
        if self.worker.at == At::Door && self.worker.turn.busy {
            self.end_turn();
        }
    }

    fn is_due(&self, step: At) -> bool {
        let runs = |direction| {
            matches!(
                self.pair.state(direction),
                State::Draining | State::Requeued(_)
            )
        };
        match step {
            At::Complete => self.host.done.is_some(),
            At::Fill => !self.host.in_flight() && runs(Direction::Tx),
            At::Deliver => runs(Direction::Rx) || self.is_timer_due(),
            _ => true,
        }
    }

    fn is_timer_due(&self) -> bool {
        self.pair.rx.deadline().is_some_and(|at| at <= self.now)
    }

    fn events(&mut self) {
        self.begin_turn();
        let memory = &self.stage.memory;
        for direction in Direction::ALL {
            let side = self.guest.get_mut().side_mut(direction);
            if side.is_some_and(|side| std::mem::replace(&mut side.kicked, false)) {
                self.pair.on_kick(direction, Some(memory));
                let state = self.pair.state(direction);
                self.note(|| format!("{direction} kick taken -> {state:?}"));
                self.guest.get_mut().may_act();
            }
        }
        if self.host.is_writable() {
            self.host.pollout = false;
            self.pair.tx.on_writable();
            self.note(|| "POLLOUT taken".to_owned());
        }
        if self.host.is_readable() {
            self.host.pollin = false;
            self.pair.rx.on_readable();
            self.note(|| "POLLIN taken".to_owned());
        }
        if let Some(woke) = self.worker.woke.take() {
            self.pair.woke(Some(memory), woke);
            self.worker.turn.woken = true;
            let [rx, tx] = Direction::ALL.map(|direction| self.pair.state(direction));
            self.note(|| format!("worker is awake: RX {rx:?}, TX {tx:?}"));
        }
        self.worker.turn.work = self.have_work();
        self.go_on(&[At::Complete, At::Fill, At::Deliver]);
    }

    fn begin_turn(&mut self) {
        if self.worker.at != At::Events {
            self.worker.woke = Some(self.now);
            self.worker.at = At::Events;
        }
        self.worker.turn = Turn::default();
    }
}

// ---- guest to host ------------------------------------------------------------------------

impl World<'_> {
    fn complete(&mut self) {
        let sent = self.host.done.take().unwrap_or_default();
        self.host.batch.clear();
        let outcomes = outcomes(&sent, &self.guest);
        self.pair.tx.complete(&self.stage.memory, outcomes);
        let state = self.pair.state(Direction::Tx);
        if state == State::Blocked(Block::TapFull) {
            // The mutant: a frame behind the one that armed the poll disarms it.
            let forgets = self.case.lacks == Lacks::Writability && sent.last() == Some(&true);
            self.host.pollout = !forgets;
        }
        self.worker.turn.busy = true;
        self.worker.turn.progress |= sent.contains(&true);
        self.note(|| format!("completed, publish, one more look -> {state:?}"));
        self.go_on(&[At::Fill, At::Deliver]);
    }

    fn fill(&mut self) {
        let mut sink = Sink {
            batch: &mut self.host.batch,
            guest: &self.guest,
        };
        let frames = self.pair.tx.fill(&self.stage.memory, &mut sink);
        assert_eq!(frames, self.host.batch.len(), "frames handed over");
        self.moved(Direction::Tx, frames);
        self.worker.turn.busy |= frames > 0;
        let state = self.pair.state(Direction::Tx);
        self.note(|| match frames {
            0 => format!("TX: ring empty -> {state:?}"),
            _ => format!("TX: pop {frames}, submit -> {state:?}"),
        });
        self.go_on(&[At::Deliver]);
    }

    fn moved(&mut self, direction: Direction, frames: usize) {
        let index = direction.index();
        if frames > 0 {
            self.worker.turn.moved[index] += u16::try_from(frames).unwrap();
            self.worker.dry[index] = None;
        }
    }
}

// ---- host to guest ------------------------------------------------------------------------

impl World<'_> {
    fn deliver_held(&mut self) {
        self.timer();
        let room = self.deliver();
        if room > 0 && !self.host.queue.is_empty() {
            self.worker.at = At::Read(room);
        } else {
            self.go_on(&[]);
        }
    }

    fn timer(&mut self) {
        if self.pair.rx.deadline().is_none() {
            return;
        }
        let fits = !self.host.held.is_empty() && self.next_frame_fits();
        let mut source = Source {
            held: &mut self.host.held,
            frames: &self.stage.frames,
            left: Vec::new(),
            guest: &self.guest,
        };
        self.pair
            .rx
            .on_timer(&self.stage.memory, &mut source, self.now);
        let dropped = source.left;
        for frame in dropped {
            assert!(!fits, "frame {frame} is dropped, and there is room for it");
            self.guest.get_mut().dropped |= 1 << frame;
            self.note(|| format!("frame {frame} waited too long, and is dropped"));
        }
    }

    /// Hands frames to the guest. Returns for how many more it has room.
    fn deliver(&mut self) -> usize {
        let mut source = Source {
            held: &mut self.host.held,
            frames: &self.stage.frames,
            left: Vec::new(),
            guest: &self.guest,
        };
        let end = self.pair.rx.fill(&self.stage.memory, &mut source);
        let delivered = source.left.len();
        self.host.delivered += u16::try_from(delivered).unwrap();
        self.moved(Direction::Rx, delivered);
        self.worker.turn.busy |= delivered > 0;
        self.worker.turn.progress |= delivered > 0;
        self.note(|| format!("RX: {delivered} delivered, {end:?}"));
        let spent = usize::from(self.worker.turn.moved[Direction::Rx.index()]);
        match end {
            RxEnd::Delivered(room) => {
                let budget = usize::from(self.policy.rx_budget.frames());
                usize::from(room).min(budget - spent)
            }
            RxEnd::NoBuffers(need) => {
                self.guest.get_mut().may_act();
                let held = !self.host.held.is_empty();
                self.pair.rx.starve(need, held, self.now);
                0
            }
            RxEnd::NotRunning | RxEnd::StillStarved | RxEnd::BudgetSpent => 0,
        }
    }

    fn read(&mut self, room: usize) {
        let slots = SLOTS - self.host.held.len();
        let frames = room.min(slots).min(self.host.queue.len());
        self.host.held.extend(self.host.queue.drain(..frames));
        self.note(|| format!("RX: read {frames}"));
        if frames > 0 {
            self.worker.turn.busy = true;
            self.worker.turn.progress = true;
            self.deliver();
        }
        self.go_on(&[]);
    }
}

// ---- the end of a turn --------------------------------------------------------------------

impl World<'_> {
    fn door(&mut self) {
        self.call();
        self.worker.at = match self.host.in_flight() {
            true => At::Asleep(None),
            false => self.through_the_door(),
        };
        let (at, now) = (self.worker.at, self.now);
        let [rx, tx] = Direction::ALL.map(|direction| self.pair.state(direction));
        self.note(|| match at {
            At::Asleep(None) => format!("sleep: RX {rx:?}, TX {tx:?}"),
            At::Asleep(Some(until)) => {
                format!("sleep for {:?}: RX {rx:?}, TX {tx:?}", until - now)
            }
            At::Polling(until) => format!("poll for {:?}: RX {rx:?}, TX {tx:?}", until - now),
            _ => format!("no sleep: RX {rx:?}, TX {tx:?}"),
        });
        if at == At::Events {
            self.end_turn();
        }
    }

    fn through_the_door(&mut self) -> At {
        let memory = &self.stage.memory;
        for direction in Direction::ALL {
            let state = self.pair.state(direction);
            if matches!(state, State::Draining | State::BusyPoll | State::Waiting) {
                self.worker.dry[direction.index()].get_or_insert(self.now);
            }
        }
        let door = self.pair.door(Some(memory), self.now);
        if door != Door::Busy && self.pair.state(Direction::Rx) == State::Waiting {
            self.host.pollin = true;
        }
        match door {
            Door::Busy => At::Events,
            Door::Completions => panic!("nothing is in flight"),
            Door::Poll(until) => At::Polling(until),
            Door::Asleep(until) => At::Asleep(until),
        }
    }

    /// Another turn follows at once.
    fn end_turn(&mut self) {
        self.call();
        self.worker.at = At::Events;
        self.check_turn();
    }

    fn call(&mut self) {
        let wanted = [self.pair.rx.take_call(), self.pair.tx.take_call()];
        for direction in Direction::ALL {
            if wanted[direction.index()] {
                self.guest.get_mut().called(direction);
            }
        }
    }
}
