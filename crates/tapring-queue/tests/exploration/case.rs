//! What a small world consists of, and what may happen in it.

use tapring_queue::{Direction, Features, Policy, Weakness};

use crate::frontend::Kind;

/// One virtqueue of a small world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) size: u16,
    /// Chains the guest adds in all, and how many the device has of them at most.
    pub(crate) chains: u8,
    pub(crate) most: u8,
    /// Chains it has added before anything else happens.
    pub(crate) posted: u8,
    /// How often the guest sleeps until it is called.
    pub(crate) naps: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) event_idx: bool,
    /// The first is in force; a switch goes to any other.
    pub(crate) policies: Vec<Policy>,
    /// Where both indices begin.
    pub(crate) start_at: u16,
    pub(crate) tx: Option<Ring>,
    pub(crate) rx: Option<Ring>,
    /// Rings are started by the frontend, at any time and with chains in them, or are from the beginning.
    pub(crate) started: bool,
    /// Frames the host sends, those that are in the tap before anything else happens, and chains each needs.
    pub(crate) frames: u8,
    pub(crate) queued: u8,
    pub(crate) need: u8,
    /// How often the tap becomes full, and whether writes behind one that failed may succeed.
    pub(crate) tap_fills: u8,
    pub(crate) holes: bool,
    /// What the frontend may do, and how often in all.
    pub(crate) frontend: Vec<Kind>,
    pub(crate) moves: u8,
    /// Chains sent at short intervals before anything else happens, so that `BusyPoll::Auto` polls.
    pub(crate) warm_up: u8,
    /// How often time passes.
    pub(crate) ticks: u8,
    /// Steps the guest may take inside of one call into the engine.
    pub(crate) inside: u8,
    pub(crate) lacks: Lacks,
}

/// The rule that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lacks {
    #[default]
    Nothing,
    /// One of the engine's.
    Rule(Weakness),
    /// Rule 7, which is the worker's: a later frame's success disarms POLLOUT.
    Writability,
}

impl Lacks {
    pub(crate) const fn in_engine(self) -> Option<Weakness> {
        match self {
            Self::Rule(weakness) => Some(weakness),
            Self::Nothing | Self::Writability => None,
        }
    }
}

impl Case {
    /// A world with nothing in it.
    pub(crate) fn new(name: &str, event_idx: bool) -> Self {
        let mode = if event_idx { "EVENT_IDX" } else { "flags" };
        Self {
            name: format!("{mode}: {name}"),
            event_idx,
            policies: vec![Policy::DEFAULT],
            start_at: 0,
            tx: None,
            rx: None,
            started: true,
            frames: 0,
            queued: 0,
            need: 1,
            tap_fills: 0,
            holes: false,
            frontend: Vec::new(),
            moves: 0,
            warm_up: 0,
            ticks: 0,
            inside: 1,
            lacks: Lacks::Nothing,
        }
    }

    /// More of everything: more than a test should take. Two rings have enough.
    pub(crate) fn deepen(&mut self) {
        let ((None, Some(ring)) | (Some(ring), None)) = (&mut self.tx, &mut self.rx) else {
            return;
        };
        ring.chains += 1;
        self.inside += 1;
        self.frames += u8::from(self.rx.is_some());
        self.ticks += u8::from(self.ticks > 0);
        self.moves += u8::from(self.moves > 0);
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policies[0]
    }

    pub(crate) fn features(&self) -> u64 {
        let event_idx = if self.event_idx {
            Features::EVENT_IDX
        } else {
            0
        };
        Features::VERSION_1 | Features::MRG_RXBUF | event_idx
    }

    pub(crate) const fn ring(&self, direction: Direction) -> Option<Ring> {
        match direction {
            Direction::Rx => self.rx,
            Direction::Tx => self.tx,
        }
    }

    pub(crate) const fn rx_capacity(&self) -> usize {
        40
    }

    /// Bytes of a frame to the guest, so that it needs as many chains as it should.
    pub(crate) const fn rx_bytes(&self) -> usize {
        self.rx_capacity() * self.need as usize - 20
    }
}
