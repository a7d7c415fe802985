//! All of the simulation, and how a run goes.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tapring_queue::{BusyPoll, Direction, Features, Policy, QueuePair};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::guest::{FRAMES, Guest, length_of};
use super::policies;
use super::tap::Tap;
use crate::frames::frame;
use crate::rig::{EVENT_IDX, MRG_RXBUF};
use crate::rng::Rng;

/// What comes behind a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Another turn.
    None,
    /// Sleep, until this moment at most.
    Sleep(Option<Instant>),
    /// A busy poll.
    Poll(Instant),
}

pub(super) struct World {
    pub(super) guest: RefCell<Guest>,
    pub(super) pair: QueuePair,
    pub(super) memory: GuestMemoryMmap,
    pub(super) rng: Rng,
    pub(super) features: u64,
    pub(super) policy: Policy,
    pub(super) now: Instant,
    pub(super) tap: Tap,
    /// Completions come at once, or some time later as under SQPOLL.
    pub(super) inline: bool,
    /// Chains and frames come one by one, with no long pauses and few new policies, so that
    /// `BusyPoll::Auto` has something to go by.
    steady: bool,
    /// Frames behind one that was not sent may be sent (no links).
    pub(super) holes: bool,
    pub(super) rest: Rest,
    /// When the last sleep or poll ended, if the engine has still to hear of it.
    pub(super) woke: Option<Instant>,
    /// When each ring ran dry.
    pub(super) dry: [Option<Instant>; 2],
    pub(super) idle_turns: usize,
    dropped: usize,
    /// What the frontend has done to a ring.
    pub(super) stopped: [bool; 2],
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
        let mut policy = policies::any(&mut rng);
        let steady = rng.once_in(3);
        if steady {
            policy.busy_poll = BusyPoll::Auto;
        }
        let mut pair = QueuePair::new(policy);
        pair.set_features(Features(features), Some(&memory));
        let mut guest = Guest::new(memory.clone(), seed, event_idx, mergeable);
        if steady {
            guest.chains_at_once = 1;
        }
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
            policy,
            now: Instant::now(),
            tap: Tap::default(),
            inline: rng.once_in(2),
            steady,
            holes: rng.once_in(3),
            rest: Rest::None,
            woke: None,
            dry: [None; 2],
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
            if self.rest != Rest::None && !self.owed() {
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

    pub(super) fn guest_steps(&mut self) {
        let steps = self.rng.below(4);
        let mut guest = self.guest.borrow_mut();
        for _ in 0..steps {
            guest.step();
        }
    }

    /// The host, the tap and the clock.
    fn outside(&mut self) {
        match self.rng.below(14) {
            0 | 1 => self.host_sends(),
            2 => self.tap.full = !self.tap.full,
            3 => self.tap.full = false,
            4 if !self.steady => self.now += Duration::from_micros(self.rng.next() % 300),
            5 if !self.steady && self.rng.once_in(8) => {
                self.now += Duration::from_millis(self.rng.next() % 120);
            }
            6 if self.rng.once_in(6) => self.frontend(),
            7 | 8 => self.now += Duration::from_micros(self.rng.next() % 8),
            9 if self.rng.once_in(if self.steady { 30 } else { 3 }) => {
                let memory = self.memory.clone();
                self.switch(Some(&memory));
            }
            _ => {}
        }
    }

    fn host_sends(&mut self) {
        let most = if self.steady { 1 } else { 6 };
        for _ in 0..1 + self.rng.below(most) {
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
