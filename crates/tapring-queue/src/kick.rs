//! The kick state machine: when may a guest be asked to ring the doorbell?
//!
//! # Theory of operation
//!
//! A kick costs the guest a VM exit, so kicks are off whenever the worker is going to look at the
//! ring anyway, and on only while it sleeps. Two mistakes are possible, and both are mistakes of
//! the tables below: a *lost wake-up* (a chain waits, kicks are off, nobody will look) and a
//! *busy loop* (looking again cannot help, yet the ring is looked at again).
//!
//! What to do next depends on **why** draining ended, and that is a value, [`DrainEnd`]:
//!
//! | draining ended because      | state                 | kicks          | looked at again       |
//! | --------------------------- | --------------------- | -------------- | --------------------- |
//! | `Empty`                     | `Draining`            | off            | once a turn, and at the door |
//! | `BudgetSpent`               | `Requeued(Budget)`    | off            | next turn             |
//! | `Interrupted`               | `Requeued(Interrupted)` | off          | next turn             |
//! | `TapFull`                   | `Blocked(TapFull)`    | off            | when POLLOUT fires    |
//! | `NoGuestBuffers`            | `Draining`, short of chains | off      | once a turn, and at the door |
//! | `Disabled`                  | `Blocked(Disabled)`   | off            | when enabled          |
//! | `MemoryFault`               | `Blocked(MemoryFault)`| off            | new memory, new ring  |
//! | `Broken`                    | `Blocked(Broken)`     | off            | when set up again     |
//! | `Stopped`                   | `Stopped`             | off            | when started          |
//!
//! There is **one door to sleep**. The worker goes through it when a turn did nothing, and it
//! asks each ring, by its state:
//!
//! | state at the door   | the door                                                           |
//! | ------------------- | ------------------------------------------------------------------ |
//! | `Requeued`          | no sleep: there is work                                             |
//! | `Draining`, dry for less than its poll | `BusyPoll`: no sleep, memory is watched until the poll's deadline. A receiveq with chains is `Waiting` meanwhile, and a ring whose own poll is over is watched as it is |
//! | `Draining`, TX      | arms: ask for a kick, full fence, look once more. Found a chain: kicks off, `Requeued(Found)`, no sleep. Else `Armed` |
//! | `Draining`, RX      | `Waiting`: POLL on the tap is armed in the entry to sleep           |
//! | `Draining`, RX, short of chains | asks for a kick at the threshold, fence, look: `Starved`, or enough: `Requeued(Found)` |
//! | `InFlight`          | waits for the completions only                                      |
//! | all others          | may sleep: an event of their own brings them back                   |
//!
//! Everything that brings a ring back (start, enable, new memory, a new policy) makes it
//! `Requeued`, so it is looked at before it can be armed. A kick that arrives while asleep always
//! leads to a look, even where an earlier look already found the chain: eventfds coalesce, and the
//! kick that is swallowed as expected may stand for two. In any other state a kick is discarded,
//! for a look precedes sleep anyway. Awake for any reason, the worker turns the kicks of an `Armed`
//! transmitq off again: it looks once a turn, and each acknowledgement of a stream the guest
//! receives would kick.
//!
//! Whether kicks are on is state of the ring (`Virtqueue::kicks_on`), written when it changes and
//! never derived from anything else, a policy least of all: policies change while batches are in
//! flight. A new one requeues every ring that is not in flight, so that whatever was decided under
//! the old one is decided again.
//!
//! # The old ways
//!
//! Two policies ask for kicks while the worker is awake, as vhost-net did; they are here to be
//! measured. `kick_rearm = before-submit` arms as soon as a drain has seen the ring empty, with its
//! batch still to be sent: `ArmedInFlight`, from which a completion leads to `Armed` without a look
//! (a chain that came since has kicked), and a kick back to `InFlight`. `busy_poll_interrupt =
//! rearm` arms when other work ends a busy poll. Both are right, in that no wake-up is lost; their
//! fault is the kicks.

/// Where a virtqueue stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    #[default]
    /// Not started, or drained for GET_VRING_BASE.
    Stopped,
    /// TX only: empty, nothing in flight, looked at after kicks were turned on.
    Armed,
    /// Looked at in each turn.
    Draining,
    /// TX only: a batch is with the kernel.
    InFlight,
    /// Has to be looked at before anything sleeps.
    Requeued(Requeue),
    /// RX only: the guest has buffers and the tap has no frames; POLL on the tap is armed.
    Waiting,
    /// RX only: a frame is held or the tap may have some, and the guest has too few chains.
    Starved,
    /// Cannot progress by trying again.
    Blocked(Block),
    /// Dry, and watched for a while before anything sleeps.
    BusyPoll,
    /// TX only, the old way: a batch is with the kernel and kicks are on.
    ArmedInFlight,
}

impl State {
    /// The label values of [`Self::index`].
    pub const NAMES: [&'static str; 10] = [
        "stopped",
        "armed",
        "draining",
        "in_flight",
        "requeued",
        "waiting",
        "starved",
        "blocked",
        "busy_poll",
        "armed_in_flight",
    ];

    /// Position in [`Self::NAMES`].
    pub const fn index(self) -> usize {
        match self {
            Self::Stopped => 0,
            Self::Armed => 1,
            Self::Draining => 2,
            Self::InFlight => 3,
            Self::Requeued(_) => 4,
            Self::Waiting => 5,
            Self::Starved => 6,
            Self::Blocked(_) => 7,
            Self::BusyPoll => 8,
            Self::ArmedInFlight => 9,
        }
    }

    /// Whether looking at the ring may help.
    pub(crate) const fn runnable(self) -> bool {
        matches!(self, Self::Draining | Self::Requeued(_) | Self::BusyPoll)
    }

    /// Whether the ring is in service: neither out of it nor kept from it.
    pub(crate) const fn running(self) -> bool {
        !matches!(self, Self::Stopped | Self::Blocked(_))
    }

    /// Whether a batch is with the kernel.
    pub(crate) const fn in_flight(self) -> bool {
        matches!(self, Self::InFlight | Self::ArmedInFlight)
    }
}

/// Why a ring has to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requeue {
    /// SET_VRING_KICK started it; chains may have been there before.
    Started,
    /// SET_VRING_ENABLE 1.
    Enabled,
    /// The memory map or the ring's addresses are new.
    NewMemory,
    /// The last look before sleeping, or after a batch completed, found chains.
    Found,
    /// It had its share of this turn.
    Budget,
    /// Its busy poll was ended by other work.
    Interrupted,
    /// The policy is new.
    NewPolicy,
}

impl Requeue {
    /// The label values, in order.
    pub const NAMES: [&'static str; 7] = [
        "started",
        "enabled",
        "new_memory",
        "found",
        "budget",
        "interrupted",
        "new_policy",
    ];
}

/// What a ring that cannot progress is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    /// The tap takes no more; POLLOUT is armed.
    TapFull,
    /// SET_VRING_ENABLE 0.
    Disabled,
    /// The ring is not in guest memory, or there is none.
    MemoryFault,
    /// The driver's available index made no sense.
    Broken,
}

impl Block {
    /// The label values, in order.
    pub const NAMES: [&'static str; 4] = ["tap_full", "disabled", "memory_fault", "broken"];
}

/// Why draining a ring ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainEnd {
    /// No more chains (TX) or no more frames (RX).
    Empty,
    /// More to do, but the other ring comes first.
    BudgetSpent,
    /// Nothing to do yet, but other work came before the end of its busy poll.
    Interrupted,
    /// The tap took no more.
    TapFull,
    /// The guest has too few chains for the frame.
    NoGuestBuffers,
    /// Not enabled.
    Disabled,
    /// An area of the ring is not guest memory.
    MemoryFault,
    /// The available index is impossible.
    Broken,
    /// The ring was stopped.
    Stopped,
}

impl DrainEnd {
    /// The first table above.
    pub const fn state(self) -> State {
        match self {
            // Whether a ring is short of chains is not the state's business: `RxQueue::starving`.
            Self::Empty | Self::NoGuestBuffers => State::Draining,
            Self::BudgetSpent => State::Requeued(Requeue::Budget),
            Self::Interrupted => State::Requeued(Requeue::Interrupted),
            Self::TapFull => State::Blocked(Block::TapFull),
            Self::Disabled => State::Blocked(Block::Disabled),
            Self::MemoryFault => State::Blocked(Block::MemoryFault),
            Self::Broken => State::Blocked(Block::Broken),
            Self::Stopped => State::Stopped,
        }
    }
}

/// What the door to sleep does with a ring: the second table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtDoor {
    /// Watch it for the rest of its poll, or turn its event source on and look once more.
    Arm,
    /// There is work.
    Stay,
    /// Completions are on their way.
    Await,
    /// Its own event brings it back.
    Pass,
}

impl State {
    pub(crate) const fn at_door(self) -> AtDoor {
        match self {
            Self::Draining | Self::BusyPoll => AtDoor::Arm,
            Self::Requeued(_) => AtDoor::Stay,
            Self::InFlight | Self::ArmedInFlight => AtDoor::Await,
            Self::Stopped | Self::Armed | Self::Waiting | Self::Starved | Self::Blocked(_) => {
                AtDoor::Pass
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_cannot_progress_are_never_looked_at_in_a_loop() {
        for end in [
            DrainEnd::TapFull,
            DrainEnd::Disabled,
            DrainEnd::MemoryFault,
            DrainEnd::Broken,
            DrainEnd::Stopped,
        ] {
            assert!(!end.state().runnable(), "{end:?}");
            assert_eq!(end.state().at_door(), AtDoor::Pass, "{end:?}");
        }
    }

    #[test]
    fn only_a_ring_with_nothing_to_do_is_armed() {
        for end in [DrainEnd::Empty, DrainEnd::NoGuestBuffers] {
            assert_eq!(end.state().at_door(), AtDoor::Arm, "{end:?}");
        }
        for end in [DrainEnd::BudgetSpent, DrainEnd::Interrupted] {
            assert_eq!(end.state().at_door(), AtDoor::Stay, "{end:?}");
        }
    }

    #[test]
    fn state_names_are_in_order() {
        let blocked = State::Blocked(Block::Broken);
        assert_eq!(State::NAMES[blocked.index()], "blocked");
        assert_eq!(State::NAMES[State::Waiting.index()], "waiting");
        assert_eq!(
            State::NAMES[State::ArmedInFlight.index()],
            "armed_in_flight"
        );
    }
}
