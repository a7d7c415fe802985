//! The frontend: takes rings out of service and brings them back, and switches policies.
//!
//! The worker carries its commands out between two turns. All but a switch of policies wait until
//! nothing is in flight.

use tapring_queue::{Direction, Policy};

use crate::case::Case;
use crate::world::World;

/// What a frontend may do in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Stop,
    Disable,
    NewKick,
    NewMemory,
    /// It kicks, for no reason the guest has.
    Kick,
    Switch,
}

/// One thing it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Begin(Kind, Direction),
    /// Ends what was begun.
    Start(Direction),
    Enable(Direction),
    Switch(usize),
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Frontend {
    left: u8,
    stopped: [bool; 2],
    disabled: [bool; 2],
    /// The policy in force, as its place in the case.
    policy: usize,
}

impl Frontend {
    pub(crate) fn new(case: &Case) -> Self {
        Self {
            left: case.moves,
            stopped: [!case.started; 2],
            disabled: [false; 2],
            policy: 0,
        }
    }

    pub(crate) const fn in_service(&self, direction: Direction) -> bool {
        let index = direction.index();
        !self.stopped[index] && !self.disabled[index]
    }
}

impl World<'_> {
    /// Both rings enabled, and started unless that is left to the frontend.
    pub(crate) fn set_up(&mut self) {
        for direction in Direction::ALL {
            let Some(ring) = self.case.ring(direction) else {
                continue;
            };
            debug_assert!(ring.size.is_power_of_two());
            self.pair.enable(direction, Some(&self.stage.memory));
            if self.case.started {
                self.start(direction);
            }
        }
    }

    fn start(&mut self, direction: Direction) {
        let memory = &self.stage.memory;
        let guest = self.guest.get_mut();
        let side = guest.side_mut(direction).expect("the case has the ring");
        let mut setup = side.driver.setup();
        setup.next_avail = side.driver.used_index(memory);
        guest.lose_kicks(direction);
        self.pair.start(direction, setup, Some(memory));
        let state = self.pair.state(direction);
        self.note(|| format!("start {direction} ring -> {state:?}"));
    }

    pub(crate) fn frontend_moves(&self) -> impl Iterator<Item = Move> + use<> {
        let mut moves = Vec::new();
        for direction in Direction::ALL {
            if self.case.ring(direction).is_some() && !self.host.in_flight() {
                self.moves_of(direction, &mut moves);
            }
        }
        if self.frontend.left > 0 && self.case.frontend.contains(&Kind::Switch) {
            let others = (0..self.case.policies.len()).filter(|at| *at != self.frontend.policy);
            moves.extend(others.map(Move::Switch));
        }
        moves.into_iter()
    }

    fn moves_of(&self, direction: Direction, into: &mut Vec<Move>) {
        let index = direction.index();
        if self.frontend.stopped[index] {
            into.push(Move::Start(direction));
        } else if self.frontend.disabled[index] {
            into.push(Move::Enable(direction));
        } else if self.frontend.left > 0 {
            let kinds = self
                .case
                .frontend
                .iter()
                .filter(|kind| **kind != Kind::Switch);
            into.extend(kinds.map(|kind| Move::Begin(*kind, direction)));
        }
    }

    pub(crate) fn frontend_does(&mut self, does: Move) {
        let unseen = matches!(does, Move::Begin(Kind::Kick, _));
        let memory = &self.stage.memory;
        match does {
            Move::Begin(kind, direction) => {
                self.frontend.left -= 1;
                self.begin(kind, direction);
            }
            Move::Start(direction) => {
                self.frontend.stopped[direction.index()] = false;
                self.start(direction);
            }
            Move::Enable(direction) => {
                self.frontend.disabled[direction.index()] = false;
                self.pair.enable(direction, Some(memory));
                let state = self.pair.state(direction);
                self.note(|| format!("enable {direction} -> {state:?}"));
            }
            Move::Switch(at) => {
                self.frontend.left -= 1;
                self.frontend.policy = at;
                self.switch(self.case.policies[at]);
            }
        }
        if !unseen {
            self.worker.is_told();
        }
    }

    fn begin(&mut self, kind: Kind, direction: Direction) {
        let memory = &self.stage.memory;
        let index = direction.index();
        match kind {
            Kind::Stop => {
                let position = self.pair.stop(direction);
                let returned = position.next_avail == position.next_used;
                assert!(returned, "a stopped ring keeps chains: {position:?}");
                self.frontend.stopped[index] = true;
                self.note(|| format!("stop {direction} ring"));
            }
            Kind::Disable => {
                self.pair.disable(direction, Some(memory));
                self.frontend.disabled[index] = true;
                self.note(|| format!("disable {direction}"));
            }
            Kind::NewKick => {
                self.guest.get_mut().lose_kicks(direction);
                self.pair.on_new_kick(direction, Some(memory));
                self.note(|| format!("a new {direction} kick fd"));
            }
            Kind::NewMemory => {
                self.pair.remap(None);
                self.pair.remap(Some(memory));
                self.note(|| "new memory".to_owned());
            }
            Kind::Kick => {
                if let Some(side) = self.guest.get_mut().side_mut(direction) {
                    side.kicked = true;
                }
                self.note(|| format!("the frontend kicks {direction}"));
            }
            Kind::Switch => unreachable!("a switch is not of a ring"),
        }
    }

    fn switch(&mut self, policy: Policy) {
        self.policy = policy;
        self.pair.set_policy(policy, Some(&self.stage.memory));
        self.worker.forget_polls();
        let state = self.pair.state(Direction::Tx);
        self.note(|| format!("policy switch -> TX {state:?}"));
    }
}
