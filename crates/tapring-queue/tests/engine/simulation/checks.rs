//! What the simulation checks while it runs.

use std::time::Duration;

use tapring_queue::{Block, BusyPoll, Direction, KickRearm, State, THRESHOLD_TIMER};

use super::guest::Guest;
use super::world::{Rest, World};

/// The longest `BusyPoll::Auto` polls: what a kick costs (`src/poll.rs`).
const LONGEST_AUTO: Duration = Duration::from_micros(10);

impl World {
    /// Whether an event is on its way to the sleeping worker.
    pub(super) fn owed(&self) -> bool {
        self.guest.borrow().owes()
            || !self.tap.batch.is_empty()
            || self.tap.pollout && !self.tap.full
            || self.tap.pollin && !self.tap.queue.is_empty()
            || self.until().is_some()
    }

    /// Kicks are on in Armed and Starved, and where a stopped ring left them; in the old way also
    /// with a batch in flight.
    pub(super) fn check_kicks(&self) {
        let guest = self.guest.borrow();
        for (direction, driver) in [(Direction::Rx, &guest.rx), (Direction::Tx, &guest.tx)] {
            let state = self.pair.state(direction);
            let may = match state {
                State::Armed | State::Starved | State::Stopped => true,
                State::ArmedInFlight => self.policy.kick_rearm == KickRearm::BeforeSubmit,
                _ => false,
            };
            let on = driver.asked_for(&self.memory, driver.size);
            assert!(may || !on, "{direction} is {state:?} with kicks on");
        }
    }

    /// A poll ends by the time the last ring ran dry, and its time is over.
    pub(super) fn check_poll(&self) {
        let Rest::Poll(until) = self.rest else {
            return;
        };
        let time = match self.policy.busy_poll {
            BusyPoll::Off => panic!("a poll, and the policy does not poll"),
            BusyPoll::For(time) => time,
            BusyPoll::Auto => LONGEST_AUTO,
        };
        let dry = self.dry.into_iter().flatten().max();
        let bound = dry.expect("a ring ran dry") + time;
        assert!(until <= bound, "a poll goes on too long");
    }

    pub(super) fn check_sleep(&self) {
        let guest = self.guest.borrow();
        assert!(
            !guest.missed_a_call(),
            "a driver sleeps that should have been called"
        );
        self.check_late_wake(&guest);
        if self.owed() {
            return;
        }
        let (rx, tx) = (
            self.pair.state(Direction::Rx),
            self.pair.state(Direction::Tx),
        );
        match tx {
            State::Armed => assert!(!guest.tx_pending(), "lost wake-up: TX chains wait"),
            State::Blocked(Block::TapFull) => assert!(self.tap.pollout && self.tap.full),
            State::Stopped | State::Blocked(Block::Disabled) => {}
            _ => panic!("asleep with TX {tx:?}"),
        }
        let next = self.tap.held.front().or_else(|| self.tap.queue.front());
        match rx {
            State::Waiting => {
                assert!(self.tap.held.is_empty(), "lost wake-up: a frame is held");
                assert!(
                    self.tap.queue.is_empty(),
                    "lost wake-up: the tap has frames"
                );
            }
            State::Starved => {
                let fits = next.is_some_and(|frame| guest.has_room_for(frame.len() + 12));
                assert!(!fits, "lost wake-up: there is room for the frame");
            }
            State::Stopped | State::Blocked(Block::Disabled) => {}
            _ => panic!("asleep with RX {rx:?}"),
        }
    }

    /// With chains of one size what a frame needs is exact, and its own need is all it waits for
    /// once the threshold's timer has passed: waiting for the drop timer is a lost wake-up.
    fn check_late_wake(&self, guest: &Guest) {
        let (Some(deadline), false) = (self.until(), guest.uneven) else {
            return;
        };
        let starved = self.pair.state(Direction::Rx) == State::Starved;
        if !starved || guest.owes() || deadline <= self.now + THRESHOLD_TIMER {
            return;
        }
        let fits = |frame: &Vec<u8>| guest.has_room_for(frame.len() + 12);
        let late = self.tap.held.front().is_some_and(fits);
        assert!(!late, "lost wake-up: only the drop timer is left");
    }
}
