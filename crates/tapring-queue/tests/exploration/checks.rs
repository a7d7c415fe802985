//! What must hold in every state of a world.
//!
//! - **No lost wake-up**: when the worker sleeps and no event is on its way to it, there is nothing
//!   it could do.
//! - **No frame lost, doubled or out of order**: frames are numbered, and both ends check. When the
//!   worker sleeps, used elements and frames agree.
//! - **Kicks are on only in `Armed` and `Starved`**, where a policy of old adds `ArmedInFlight`; and
//!   under the default policies never while the worker is awake.
//! - **No spinning**: turns that move nothing, with nobody else acting, come to an end.
//! - **A poll is bounded**: no longer than its time behind the moment a ring ran dry.
//! - **Starvation is bounded**: neither ring waits for long while only the other moves, nor takes
//!   more than its budget in a turn, and a starved receiveq waits for more than the frame needs no
//!   longer than its timer.

use std::time::Duration;

use tapring_queue::{
    Block, BusyPoll, BusyPollInterrupt, Direction, KickRearm, RxWake, State, THRESHOLD_TIMER,
    Weakness,
};

use crate::case::Lacks;
use crate::worker::At;
use crate::world::World;

/// Turns in a row that may move nothing.
const PATIENCE: u8 = 4;
/// Turns in a row in which a ring with work may not move while the other does.
const FAIR: u8 = 2;
/// The longest `BusyPoll::Auto` polls: what a kick costs (`src/poll.rs`).
const LONGEST_AUTO: Duration = Duration::from_micros(10);

impl World<'_> {
    pub(crate) fn check(&self) {
        self.check_kicks();
        match self.worker.at {
            At::Asleep(_) => self.check_sleep(),
            At::Polling(_) => self.check_poll(),
            _ => {}
        }
    }

    fn check_kicks(&self) {
        // It leaves kicks on, which is soon found; what counts is the wake-up that it loses.
        if self.case.lacks == Lacks::Rule(Weakness::PolicyReadAfresh) {
            return;
        }
        let guest = self.guest.borrow();
        for direction in Direction::ALL {
            let state = self.pair.state(direction);
            let may = match state {
                State::Armed | State::Starved | State::Stopped => true,
                State::ArmedInFlight => self.policy.kick_rearm == KickRearm::BeforeSubmit,
                _ => false,
            };
            let on = guest.is_asked(direction);
            assert!(may || !on, "KICKS ON: {direction} is {state:?}");
        }
        let old = self.policy.kick_rearm == KickRearm::BeforeSubmit
            || self.policy.busy_poll_interrupt == BusyPollInterrupt::Rearm;
        if !self.at_rest() && self.worker.turn.woken && !old {
            let armed = self.pair.state(Direction::Tx) == State::Armed;
            assert!(!armed, "KICKS ON: the worker is awake");
        }
    }

    fn check_poll(&self) {
        let time = match self.policy.busy_poll {
            BusyPoll::Off => Duration::ZERO,
            BusyPoll::For(time) => time,
            BusyPoll::Auto => LONGEST_AUTO,
        };
        let dry = self.worker.dry.into_iter().flatten().max();
        let until = self.worker.until();
        let bound = dry.map(|dry| dry + time);
        assert!(until <= bound, "LONG POLL: its time is over");
    }
}

// ---- turns --------------------------------------------------------------------------------

impl World<'_> {
    /// Which rings have something to do that nothing but the worker keeps waiting.
    pub(crate) fn have_work(&self) -> [bool; 2] {
        let guest = self.guest.borrow();
        let runs = |direction| {
            matches!(
                self.pair.state(direction),
                State::Draining | State::Requeued(_)
            )
        };
        let frames = !self.host.held.is_empty() || !self.host.queue.is_empty();
        // With as many chains as it ever has, the guest is above every threshold.
        let most = self.case.rx.map_or(0, |ring| u16::from(ring.most));
        let rx = runs(Direction::Rx) && frames && guest.posted(Direction::Rx) == most;
        let idle = !self.host.in_flight();
        let tx = runs(Direction::Tx) && idle && guest.posted(Direction::Tx) > 0;
        [rx, tx]
    }

    /// At the end of a turn that another follows.
    pub(crate) fn check_turn(&mut self) {
        let turn = self.worker.turn;
        self.worker.idle = if turn.progress {
            0
        } else {
            self.worker.idle + 1
        };
        assert!(self.worker.idle <= PATIENCE, "SPINNING: turns move nothing");
        let budgets = [self.policy.rx_budget, self.policy.tx_budget];
        for direction in Direction::ALL {
            let (here, there) = (direction.index(), 1 - direction.index());
            let moved = turn.moved[here];
            let budget = budgets[here].frames();
            assert!(
                moved <= budget,
                "BUDGET: {direction} moved {moved} of {budget}"
            );
            let neglected = turn.work[here] && moved == 0 && turn.moved[there] > 0;
            let turns = &mut self.worker.neglected[here];
            *turns = if neglected { *turns + 1 } else { 0 };
            assert!(
                *turns <= FAIR,
                "STARVED: {direction} waits, the other moves"
            );
        }
    }
}

// ---- sleep --------------------------------------------------------------------------------

impl World<'_> {
    fn check_sleep(&self) {
        let guest = self.guest.borrow();
        assert!(!guest.missed_a_call(), "LOST CALL: the guest sleeps");
        if self.host.in_flight() {
            return;
        }
        self.check_accounts();
        self.check_late_wake();
        self.check_threshold();
        let owed = guest.owes() || self.host.has_event();
        if owed {
            return;
        }
        if self.frontend.in_service(Direction::Tx) {
            self.check_tx_sleep();
        }
        if self.frontend.in_service(Direction::Rx) && self.worker.until().is_none() {
            self.check_rx_sleep();
        }
    }

    fn check_tx_sleep(&self) {
        let pending = self.guest.borrow().posted(Direction::Tx);
        match self.pair.state(Direction::Tx) {
            State::Stopped if self.case.tx.is_none() => {}
            State::Armed => assert!(
                pending == 0,
                "LOST WAKE-UP: {pending} chains pending, worker asleep"
            ),
            State::Blocked(Block::TapFull) => assert!(
                self.host.pollout,
                "LOST WAKE-UP: {pending} chains pending, worker blocked, POLLOUT not armed"
            ),
            state => panic!("LOST WAKE-UP: asleep with TX {state:?}"),
        }
    }

    fn check_rx_sleep(&self) {
        let frames = self.host.held.len() + self.host.queue.len();
        match self.pair.state(Direction::Rx) {
            State::Stopped if self.case.rx.is_none() => {}
            State::Waiting => assert!(
                frames == 0,
                "LOST WAKE-UP: {frames} frames waiting, worker asleep"
            ),
            State::Starved => assert!(
                frames == 0 || !self.next_frame_fits(),
                "RX STARVED: {} buffers there, need {}, {frames} frames waiting, nobody will look",
                self.guest.borrow().posted(Direction::Rx),
                self.case.need
            ),
            state => panic!("LOST WAKE-UP: asleep with RX {state:?}"),
        }
    }

    /// A frame's own need is all it waits for once the threshold's timer has passed.
    fn check_late_wake(&self) {
        let starved = self.pair.state(Direction::Rx) == State::Starved;
        let late = self
            .worker
            .until()
            .is_some_and(|at| at > self.now + THRESHOLD_TIMER);
        if starved && late && !self.guest.borrow().owes() {
            let fits = !self.host.held.is_empty() && self.next_frame_fits();
            assert!(
                !fits,
                "RX STARVED: only the timer that drops the frame is left"
            );
        }
    }

    /// A guest that refilled up to the threshold is not left to the timer.
    fn check_threshold(&self) {
        let starved = self.pair.state(Direction::Rx) == State::Starved;
        let guest = self.guest.borrow();
        let Some(ring) = self.case.rx.filter(|_| starved && !guest.owes()) else {
            return;
        };
        let most = u16::from(ring.most);
        let wake = match self.policy.rx_wake {
            RxWake::Half => most / 2,
            RxWake::FirstFree => 1,
            RxWake::Empty => most,
            RxWake::Chains(chains) => chains.min(most),
        };
        let threshold = wake.max(u16::from(self.case.need));
        let posted = guest.posted(Direction::Rx);
        assert!(
            posted < threshold,
            "RX STARVED: {posted} buffers there, enough to go on, and only the timer will look"
        );
    }

    /// Whether the guest has posted as many chains as the next frame needs.
    pub(crate) fn next_frame_fits(&self) -> bool {
        self.guest.borrow().posted(Direction::Rx) >= u16::from(self.case.need)
    }

    /// With nothing in flight, frames that left and chains that came back are as many.
    fn check_accounts(&self) {
        let guest = self.guest.borrow();
        let (used, sent) = (guest.used(Direction::Tx), self.host.received);
        let right = used == sent || self.case.holes && used < sent;
        assert!(
            right,
            "LOST FRAME: {used} chains returned, {sent} frames sent"
        );
        let used = guest.used(Direction::Rx);
        let delivered = self.host.delivered * u16::from(self.case.need);
        assert!(
            used == delivered,
            "LOST FRAME: {used} chains used for {delivered}"
        );
    }
}
