//! A small world: one guest, one engine with its worker, one tap, a frontend and a clock.
//!
//! [`World::step`] is one atomic step of one of them; which is a choice. Choices that cannot make a
//! difference are not offered: a worker's step that would touch nothing shared is taken together
//! with the one before it.

use std::cell::{Ref, RefCell};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use tapring_queue::{Direction, Features, Policy, QueuePair};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::case::Case;
use crate::choice::{Choices, Script};
use crate::frames::frame;
use crate::frontend::{Frontend, Move};
use crate::guest::{Does, Guest, MEMORY, RINGS};
use crate::host::{Happens, Host};
use crate::mix::Mix;
use crate::worker::Worker;

/// What all worlds of a thread have in common: memory, and what never changes.
pub(crate) struct Stage {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) frames: Vec<Vec<u8>>,
    begin: Instant,
}

impl Stage {
    pub(crate) fn new(case: &Case) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let frames = 0..usize::from(case.queued + case.frames);
        Self {
            memory,
            frames: frames.map(|n| frame(n, case.rx_bytes())).collect(),
            begin: Instant::now(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct World<'s> {
    pub(crate) case: &'s Case,
    pub(crate) stage: &'s Stage,
    pub(crate) guest: RefCell<Guest<'s>>,
    pub(crate) pair: QueuePair,
    pub(crate) host: Host,
    pub(crate) worker: Worker,
    pub(crate) frontend: Frontend,
    /// The policy in force.
    pub(crate) policy: Policy,
    pub(crate) now: Instant,
    /// How often time may yet pass.
    ticks: u8,
    /// The guest's memory between two steps.
    memory: [u8; MEMORY],
}

/// Who takes the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Worker,
    Guest(Direction, Does),
    Host(Happens),
    Frontend(Move),
    Time(Duration),
}

impl<'s> World<'s> {
    pub(crate) fn new(case: &'s Case, stage: &'s Stage) -> Self {
        let mut pair = QueuePair::new(case.policy());
        if let Some(weakness) = case.lacks.in_engine() {
            pair.weaken(weakness);
        }
        pair.set_features(Features(case.features()), Some(&stage.memory));
        let mut world = Self {
            case,
            stage,
            guest: RefCell::new(Guest::new(case, &stage.memory)),
            pair,
            host: Host::new(case),
            worker: Worker::default(),
            frontend: Frontend::new(case),
            policy: case.policy(),
            now: stage.begin,
            ticks: case.ticks,
            memory: [0; MEMORY],
        };
        world.set_up();
        world.warm_up();
        world.put_memory_away();
        world
    }

    /// Chains one by one, each sent before the next.
    fn warm_up(&mut self) {
        for _ in 0..self.case.warm_up {
            self.now += Duration::from_micros(1);
            self.take(Next::Guest(Direction::Tx, Does::Add));
            self.settle();
        }
    }

    /// Whatever is owed happens, until the worker rests.
    fn settle(&mut self) {
        let mut possible = Vec::new();
        loop {
            self.guest.get_mut().choices.follow(Script::default());
            self.possible(&mut possible);
            let owed = possible.drain(..).find(|next| {
                let guest = matches!(next, Next::Guest(_, Does::Decide | Does::Ring));
                guest || matches!(next, Next::Worker | Next::Host(Happens::Complete))
            });
            match owed {
                Some(next) => self.take(next),
                None => return,
            }
        }
    }

    /// One step by somebody. Whether there was anything left to do.
    pub(crate) fn step(&mut self, script: Script) -> bool {
        self.take_memory_out();
        self.guest.get_mut().choices.follow(script);
        let mut possible = Vec::with_capacity(16);
        self.possible(&mut possible);
        if possible.is_empty() {
            return false;
        }
        let choice = self.guest.get_mut().choices.choose(possible.len());
        self.take(possible[choice]);
        self.check();
        self.put_memory_away();
        true
    }

    fn take_memory_out(&self) {
        let memory = &self.stage.memory;
        memory.write_slice(&self.memory, GuestAddress(0)).unwrap();
    }

    fn put_memory_away(&mut self) {
        let memory = &self.stage.memory;
        memory
            .read_slice(&mut self.memory, GuestAddress(0))
            .unwrap();
    }

    fn possible(&self, into: &mut Vec<Next>) {
        if self.may_work() {
            into.push(Next::Worker);
        }
        let guest = self.guest.borrow();
        for direction in Direction::ALL {
            let all = [Does::Add, Does::Decide, Does::Ring, Does::Sleep];
            let can = all.into_iter().filter(|does| guest.can(direction, *does));
            into.extend(can.map(|does| Next::Guest(direction, does)));
        }
        let all = [
            Happens::Send,
            Happens::Fill,
            Happens::Drain,
            Happens::Complete,
        ];
        let can = all.into_iter().filter(|happens| self.host.can(*happens));
        into.extend(can.map(Next::Host));
        if self.at_rest() {
            into.extend(self.frontend_moves().map(Next::Frontend));
        }
        into.extend(self.time_to_pass().map(Next::Time));
    }

    fn take(&mut self, next: Next) {
        // That the tap took nothing is no reason to try again.
        if !matches!(next, Next::Worker | Next::Host(Happens::Complete)) {
            self.worker.idle = 0;
        }
        match next {
            Next::Worker => self.work(),
            Next::Guest(direction, does) => self.guest.get_mut().does(direction, does),
            Next::Host(happens) => self.host.happens(happens, self.guest.get_mut()),
            Next::Frontend(does) => self.frontend_does(does),
            Next::Time(time) => self.pass(time),
        }
    }
}

// ---- time ---------------------------------------------------------------------------------

impl World<'_> {
    /// Nothing happens at any other moment than the next that somebody waits for; and one before
    /// it, where a poll may be interrupted.
    fn time_to_pass(&self) -> impl Iterator<Item = Duration> + use<> {
        let next = if self.ticks == 0 {
            None
        } else {
            self.waited_for()
        };
        let whole = next.map(|at| at - self.now);
        let part = whole
            .filter(|_| self.worker.is_polling())
            .map(|time| time / 2);
        whole.into_iter().chain(part)
    }

    /// The earliest moment that is waited for.
    fn waited_for(&self) -> Option<Instant> {
        let moments = [self.pair.rx.deadline(), self.worker.until()];
        moments
            .into_iter()
            .flatten()
            .filter(|at| *at > self.now)
            .min()
    }

    fn pass(&mut self, time: Duration) {
        self.ticks -= 1;
        self.now += time;
        self.note(|| format!("{time:?} pass"));
    }
}

// ---- what the explorer wants to know ------------------------------------------------------

impl World<'_> {
    /// Tells this state from all in which something else may come next.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = Mix::default();
        self.pair.fingerprint(self.now).hash(&mut hasher);
        self.guest.borrow().fingerprint().hash(&mut hasher);
        self.memory[..RINGS].hash(&mut hasher);
        self.host.hash(&mut hasher);
        self.worker.fingerprint(self.now, &mut hasher);
        self.frontend.hash(&mut hasher);
        self.ticks.hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn choices(&self) -> Ref<'_, Choices> {
        Ref::map(self.guest.borrow(), |guest| &guest.choices)
    }

    pub(crate) fn take_notes(&mut self) {
        self.guest.get_mut().notes.begin();
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.guest.borrow().notes.steps()
    }

    pub(crate) fn note(&mut self, words: impl FnOnce() -> String) {
        self.guest.get_mut().notes.step(words);
    }
}
