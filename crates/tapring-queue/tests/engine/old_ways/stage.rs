//! The actors of a scene.

use std::time::{Duration, Instant};

use tapring_queue::{
    Direction, Door, Features, Policy, QueuePair, RxEnd, RxSource, State, TxFrame, TxOutcome,
    TxSink,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::driver::{Driver, readable, writable};
use crate::frames::{frame, with_header};
use crate::rig::EVENT_IDX;

use super::scene::{Figures, Scene};

/// What a frame costs the worker.
const FRAME: u64 = 200;
/// How soon a poll sees what it waits for.
const NOTICE: u64 = 100;
/// What a kick costs the guest.
const EXIT: u64 = 2_000;
/// Chains of each ring, and frames the tap holds.
const SIZE: u16 = 64;
const TAP: usize = 500;
/// Where the frame lies that the guest sends, and where its buffers are.
const TX_DATA: u64 = 0x2000;
const RX_DATA: u64 = 0x4000;
const NEVER: u64 = u64::MAX / 2;

/// What the worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Awake,
    Asleep,
    Polling,
}

pub(super) struct Stage {
    scene: Scene,
    policy: Policy,
    memory: GuestMemoryMmap,
    pair: QueuePair,
    tx: Driver,
    rx: Driver,
    begin: Instant,
    pub(super) now: u64,
    /// When each acts next.
    tx_at: u64,
    rx_at: u64,
    host_at: u64,
    worker_at: u64,
    rest: Rest,
    kicked: [bool; 2],
    pollin: bool,
    /// Frames with the kernel, in the tap, and with the worker.
    batch: usize,
    tap: usize,
    held: Held,
    /// Frames the guest has taken and not worked on.
    taken: usize,
    pub(super) figures: Figures,
}

/// Frames with the worker, all alike.
struct Held(usize, Vec<u8>);

impl RxSource for Held {
    fn front(&self) -> Option<&[u8]> {
        (self.0 > 0).then_some(&self.1)
    }

    fn pop(&mut self) {
        self.0 -= 1;
    }
}

struct Count(usize);

impl TxSink for Count {
    fn push(&mut self, _: &TxFrame<'_>) -> bool {
        self.0 += 1;
        true
    }
}

// ---- the play -----------------------------------------------------------------------------

impl Stage {
    pub(super) fn new(scene: Scene, policy: Policy, event_idx: bool) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x4_0000)]).unwrap();
        let mut pair = QueuePair::new(policy);
        let features = if event_idx { EVENT_IDX } else { 0 } | Features::VERSION_1;
        pair.set_features(Features(features), Some(&memory));
        let tx = Driver::new(&memory, 0, SIZE, 0, event_idx);
        let rx = Driver::new(&memory, 0x1000, SIZE, 0, event_idx);
        for (direction, driver) in [(Direction::Tx, &tx), (Direction::Rx, &rx)] {
            pair.start(direction, driver.setup(), Some(&memory));
            pair.enable(direction, Some(&memory));
        }
        let bytes = with_header(&frame(1, 60));
        memory.write_slice(&bytes, GuestAddress(TX_DATA)).unwrap();
        let mut stage = Self {
            scene,
            policy,
            memory,
            pair,
            tx,
            rx,
            begin: Instant::now(),
            now: 0,
            tx_at: scene.tx_gap.unwrap_or(NEVER),
            rx_at: 0,
            host_at: scene.host_gap.unwrap_or(NEVER),
            worker_at: 0,
            rest: Rest::Awake,
            kicked: [false; 2],
            pollin: false,
            batch: 0,
            tap: 0,
            held: Held(0, frame(1, 60)),
            taken: 0,
            figures: Figures::default(),
        };
        for _ in 0..SIZE {
            stage.post();
        }
        stage.kicked = [false; 2];
        stage
    }

    /// Whoever is next acts.
    pub(super) fn act(&mut self) {
        let others = self.tx_at.min(self.rx_at).min(self.host_at);
        self.now = others.min(self.worker_at);
        if self.worker_at <= others {
            self.work();
        } else if self.tx_at == self.now {
            self.guest_sends();
        } else if self.rx_at == self.now {
            self.guest_receives();
        } else {
            self.host_sends();
        }
    }

    fn instant(&self) -> Instant {
        self.begin + Duration::from_nanos(self.now)
    }

    /// Something that ends a sleep, or a poll.
    fn event(&mut self) {
        let delay = match self.rest {
            Rest::Awake => return,
            Rest::Asleep => self.scene.wake_up,
            Rest::Polling => NOTICE,
        };
        self.worker_at = self.worker_at.min(self.now + delay);
    }

    /// A poll sees chains.
    fn look(&mut self) {
        if self.rest == Rest::Polling && self.pair.watch(&self.memory).has_news() {
            self.event();
        }
    }
}

// ---- the others ---------------------------------------------------------------------------

impl Stage {
    fn guest_sends(&mut self) {
        let mut cost = self.scene.tx_gap.unwrap_or(NEVER);
        self.tx.collect(&self.memory);
        if self.tx.room() > 0 {
            self.tx.add(&self.memory, &[readable(TX_DATA, 72)]);
            if self.tx.expose(&self.memory) {
                cost += EXIT;
                self.figures.tx_kicks += 1;
                self.figures.tx_kicks_in_flight += u64::from(self.batch > 0);
                self.kicked[Direction::Tx.index()] = true;
                self.event();
            }
            self.look();
        }
        self.tx_at = self.now + cost;
    }

    /// One frame, and its buffer is posted again.
    fn guest_receives(&mut self) {
        self.taken += self.rx.collect(&self.memory).len();
        if self.taken == 0 {
            self.rx_at = self.now + NOTICE;
            let waits = self.figures.received > 0 && self.tap + self.held.0 > 0;
            self.figures.guest_idle += if waits { NOTICE } else { 0 };
            return;
        }
        self.taken -= 1;
        self.figures.received += 1;
        let kicks = self.post();
        let exit = if kicks { EXIT } else { 0 };
        self.rx_at = self.now + self.scene.refill + exit;
    }

    /// Whether it kicks.
    fn post(&mut self) -> bool {
        let at = RX_DATA + u64::from(self.rx.free[0]) * 128;
        self.rx.add(&self.memory, &[writable(at, 128)]);
        let kicks = self.rx.expose(&self.memory);
        if kicks {
            self.figures.rx_kicks += 1;
            self.kicked[Direction::Rx.index()] = true;
            self.event();
        }
        self.look();
        kicks
    }

    /// What the tap does not hold is lost.
    fn host_sends(&mut self) {
        self.tap = TAP.min(self.tap + 1);
        if self.pollin {
            self.event();
        }
        self.host_at = self.now + self.scene.host_gap.unwrap_or(NEVER);
    }
}

// ---- the worker ---------------------------------------------------------------------------

impl Stage {
    fn work(&mut self) {
        let woke = std::mem::replace(&mut self.rest, Rest::Awake) != Rest::Awake;
        let memory = self.memory.clone();
        for direction in Direction::ALL {
            if std::mem::replace(&mut self.kicked[direction.index()], false) {
                self.pair.on_kick(direction, Some(&memory));
            }
        }
        if self.pollin && self.tap > 0 {
            self.pollin = false;
            self.pair.rx.on_readable();
        }
        if woke {
            let now = self.instant();
            self.pair.woke(Some(&memory), now);
        }
        let completed = self.complete(&memory);
        let frames = self.fill(&memory) + self.receive(&memory);
        self.worker_at = self.now + self.scene.turn + FRAME * frames as u64;
        if !completed && frames == 0 {
            self.door(&memory);
        }
    }

    fn complete(&mut self, memory: &GuestMemoryMmap) -> bool {
        let frames = std::mem::take(&mut self.batch);
        if frames > 0 {
            let outcomes = std::iter::repeat_n(TxOutcome::Sent, frames);
            self.pair.tx.complete(memory, outcomes);
            self.figures.sent += frames as u64;
        }
        frames > 0
    }

    fn fill(&mut self, memory: &GuestMemoryMmap) -> usize {
        let mut sink = Count(0);
        self.batch = self.pair.tx.fill(memory, &mut sink);
        sink.0
    }

    /// Frames read and delivered.
    fn receive(&mut self, memory: &GuestMemoryMmap) -> usize {
        if self.pair.rx.deadline().is_some() {
            let now = self.instant();
            self.pair.rx.on_timer(memory, &mut self.held, now);
        }
        let (room, delivered) = self.deliver(memory);
        let budget = usize::from(self.policy.rx_budget.frames());
        let frames = room.min(budget - delivered).min(self.tap);
        if frames == 0 {
            return delivered;
        }
        self.tap -= frames;
        self.held.0 += frames;
        delivered + self.deliver(memory).1
    }

    /// For how many more frames there is room, and how many were delivered.
    fn deliver(&mut self, memory: &GuestMemoryMmap) -> (usize, usize) {
        let before = self.held.0;
        let room = match self.pair.rx.fill(memory, &mut self.held) {
            RxEnd::Delivered(chains) => usize::from(chains),
            RxEnd::NoBuffers(need) => {
                let now = self.instant();
                self.pair.rx.starve(need, self.held.0 > 0, now);
                0
            }
            RxEnd::NotRunning | RxEnd::StillStarved | RxEnd::BudgetSpent => 0,
        };
        (room, before - self.held.0)
    }

    fn door(&mut self, memory: &GuestMemoryMmap) {
        let now = self.instant();
        let door = self.pair.door(Some(memory), now);
        if door != Door::Busy && self.pair.state(Direction::Rx) == State::Waiting {
            self.pollin = true;
        }
        let until = |at: Instant| u64::try_from((at - self.begin).as_nanos()).unwrap();
        (self.rest, self.worker_at) = match door {
            Door::Busy => return,
            Door::Completions => panic!("nothing is in flight"),
            Door::Poll(at) => (Rest::Polling, until(at)),
            Door::Asleep(at) => (Rest::Asleep, at.map_or(NEVER, until)),
        };
        self.figures.polls += u64::from(self.rest == Rest::Polling);
        if self.kicked.contains(&true) || self.pollin && self.tap > 0 {
            self.event();
        }
        self.look();
    }
}
