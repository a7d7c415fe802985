//! The data path: one turn of a worker.
//!
//! ```text
//!           ┌───────────────────────── turn ─────────────────────────┐
//!           │ kicks, POLLIN, POLLOUT of the last enter               │
//!  TX       │ outcomes of the batch in flight ─► used ring           │
//!           │ pop up to 64 chains ─► arena ─► WRITE_FIXED entries    │
//!  RX       │ frames held ─► chains ─► used ring                     │
//!           │ read(2) x 8, then READ_FIXED entries, 8 doubling to 64 │
//!  notify   │ a WRITE entry for each call the guest wants            │
//!           │ nothing done? the door to sleep                        │
//!  enter    │ io_uring_enter: submit all of it, reap all of it       │
//!           │ dry for a moment only? watch memory for the next chain │
//!           └────────────────────────────────────────────────────────┘
//! ```

use std::hint::spin_loop;
use std::sync::Arc;
use std::time::Instant;

use tapring_io::{CallFd, Events, Port, PortError, RxRead, TxOutcome, Wait, Watch};
use tapring_queue::{self as queue, Block, Direction, Door, Policy, QueuePair, RxEnd, State};
use vm_memory::GuestMemoryMmap;

use super::counters::{Counters, Losses};
use super::pace::{Pace, Step};
use super::ports::{Batch, Held};

/// Looks at memory between two looks at the clock, which costs ten times as much.
const LOOKS: usize = 16;

/// One queue pair at work.
pub(super) struct DataPath {
    pub(super) port: Port,
    pub(super) rings: QueuePair,
    /// In force for this session and all that follow.
    pub(super) policy: Policy,
    pub(super) memory: Option<Arc<GuestMemoryMmap>>,
    /// Where each ring's driver is called, by [`Direction::index`].
    pub(super) calls: [Option<CallFd>; 2],
    /// Where each ring's frontend hears that it broke.
    pub(super) errs: [Option<CallFd>; 2],
    pub(super) counters: Counters,
    pub(super) pace: Pace,
    /// The queue of the first pair, which guests always use, keeps its share of the host's flows.
    pub(super) first: bool,
    /// When the batches in flight were submitted, by [`Direction::index`].
    submitted: [Instant; 2],
    /// When the last turn's sleep or poll ended, if it had one.
    woke: Option<Instant>,
}

/// What comes behind a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The next turn.
    None,
    /// A busy poll that began and is to end at these moments.
    Poll(Instant, Instant),
    /// Sleep.
    Sleep(Wait),
}

impl DataPath {
    pub(super) fn new(port: Port, counters: Counters, first: bool) -> Self {
        Self {
            first,
            port,
            rings: QueuePair::default(),
            policy: Policy::DEFAULT,
            memory: None,
            calls: [None, None],
            errs: [None, None],
            counters,
            pace: Pace::default(),
            submitted: [Instant::now(); 2],
            woke: None,
        }
    }

    /// One turn. Returns whether the worker was told that there are commands.
    pub(super) fn turn(&mut self) -> Result<bool, PortError> {
        let events = self.port.take_events();
        let memory = self.memory.take();
        self.on_events(&events, memory.as_deref());
        let rest = match &memory {
            Some(memory) if self.tx_turn(memory) | self.rx_turn(memory) => Rest::None,
            // A command waits: no ring is led to the door, for nobody goes through it.
            _ if events.command => Rest::None,
            memory => self.door(memory.as_deref()),
        };
        self.notify();
        self.counters.add(&mut self.rings, &mut self.port);
        match (rest, &memory) {
            (Rest::Sleep(wait), _) => {
                self.port.enter(wait)?;
                self.woke = Some(Instant::now());
            }
            (Rest::Poll(began, until), Some(memory)) => {
                self.port.enter(Wait::No)?;
                self.busy_poll(memory, began, until)?;
            }
            _ => self.port.enter(Wait::No)?,
        }
        self.memory = memory;
        Ok(events.command)
    }

    fn on_events(&mut self, events: &Events, memory: Option<&GuestMemoryMmap>) {
        for direction in Direction::ALL {
            for _ in 0..events.kicks[direction.index()] {
                self.rings.on_kick(direction, memory);
            }
        }
        if events.tap_writable {
            self.rings.tx.on_writable();
        }
        if events.tap_readable {
            self.pace.on_readable();
            self.rings.rx.on_readable();
        }
        if events.tap_gone {
            self.counters.tap_gone();
            // No POLLOUT comes any more: what waits for one is dropped and counted like the rest.
            self.rings.tx.on_writable();
        }
        if let Some(woke) = self.woke.take() {
            self.rings.woke(memory, woke);
        }
    }

    /// Guest to host. Returns whether there was anything to do.
    fn tx_turn(&mut self, memory: &GuestMemoryMmap) -> bool {
        let completed = self.complete_tx(memory);
        if self.port.tx_in_flight() > 0 {
            return completed;
        }
        // Ahead of the next batch's writes, which the kernel makes in this order: a driver whose ring ran dry has the time they
        // take to fill it again.
        self.notify();
        let frames = self.rings.tx.fill(memory, &mut Batch(&mut self.port));
        if frames > 0 {
            self.submitted[Direction::Tx.index()] = Instant::now();
            self.port.tx_submit();
        }
        completed || frames > 0
    }

    /// Publishes the batch that was in flight, if it is whole.
    pub(super) fn complete_tx(&mut self, memory: &GuestMemoryMmap) -> bool {
        let Some(outcomes) = self.port.tx_outcomes() else {
            return false;
        };
        let took = self.submitted[Direction::Tx.index()].elapsed();
        self.counters.completed(Direction::Tx, took);
        let mut losses = Losses::default();
        let outcomes = outcomes.iter().map(|outcome| match outcome {
            TxOutcome::Sent => queue::TxOutcome::Sent,
            TxOutcome::TapFull => queue::TxOutcome::NotSent,
            lost => {
                losses.note(*lost);
                queue::TxOutcome::Dropped
            }
        });
        self.rings.tx.complete(memory, outcomes);
        self.counters.lost(&losses);
        if self.rings.state(Direction::Tx) == State::Blocked(Block::TapFull) {
            self.port.poll_writable();
        }
        true
    }

    /// Host to guest. Returns whether there was anything to do.
    fn rx_turn(&mut self, memory: &GuestMemoryMmap) -> bool {
        if let Some(batch) = self.port.rx_batch_done() {
            let took = self.submitted[Direction::Rx.index()].elapsed();
            self.counters.completed(Direction::Rx, took);
            self.pace.after_batch(&batch);
            self.counters.read(&batch);
        }
        if self.rings.rx.deadline().is_some() {
            let now = Instant::now();
            self.rings
                .rx
                .on_timer(memory, &mut Held(&mut self.port), now);
        }
        let held = self.port.rx_held();
        let room = self.deliver(memory);
        let delivered = held - self.port.rx_held();
        (room > 0 && self.read(memory, room, delivered)) || delivered > 0
    }

    /// Hands held frames to the guest. Returns for how many more it has room.
    fn deliver(&mut self, memory: &GuestMemoryMmap) -> usize {
        match self.rings.rx.fill(memory, &mut Held(&mut self.port)) {
            RxEnd::Delivered(chains) => usize::from(chains),
            RxEnd::NotRunning | RxEnd::StillStarved | RxEnd::BudgetSpent => 0,
            RxEnd::NoBuffers(need) => {
                let held = self.port.rx_held() > 0;
                self.rings.rx.starve(need, held, Instant::now());
                0
            }
        }
    }

    /// Reads from the tap what the guest has room for. A batch in the ring comes out of the next turn's budget, plain reads out
    /// of what has been `delivered` in this one.
    fn read(&mut self, memory: &GuestMemoryMmap, room: usize, delivered: usize) -> bool {
        if self.port.rx_in_flight() > 0 {
            return false;
        }
        let budget = usize::from(self.policy.rx_budget.frames());
        match self.pace.step(room.min(budget)) {
            Step::Rest => false,
            Step::Ring(frames) => {
                self.submitted[Direction::Rx.index()] = Instant::now();
                self.port.rx_submit(frames) > 0
            }
            Step::Plain(reads) => {
                let reads = reads.min(budget.saturating_sub(delivered));
                let frames = self.read_plain(reads);
                self.pace.after_reads(reads, frames);
                if frames > 0 {
                    self.deliver(memory);
                }
                frames > 0
            }
        }
    }

    fn read_plain(&mut self, reads: usize) -> usize {
        let (mut frames, mut cut, mut unsupported) = (0, 0, 0);
        for _ in 0..reads {
            match self.port.rx_read() {
                RxRead::Frame => frames += 1,
                RxRead::Cut => cut += 1,
                RxRead::Unsupported => unsupported += 1,
                RxRead::Error(_) => {
                    self.counters.read_failed();
                    break;
                }
                RxRead::Empty | RxRead::NoSlot | RxRead::Down | RxRead::Gone => break,
            }
        }
        self.counters.cut(cut);
        self.counters.unsupported(unsupported);
        frames
    }

    /// Calls the drivers that want it, and tells frontends of rings that broke.
    pub(super) fn notify(&mut self) {
        let wanted = [self.rings.rx.take_call(), self.rings.tx.take_call()];
        for direction in Direction::ALL {
            let i = direction.index();
            if let (true, Some(call)) = (wanted[i], &self.calls[i]) {
                self.port.call(call);
            }
            if let (true, Some(err)) = (self.rings.take_error(direction), &self.errs[i]) {
                err.signal();
            }
        }
    }

    /// How long to wait for the next event: the door to sleep decides.
    fn door(&mut self, memory: Option<&GuestMemoryMmap>) -> Rest {
        if self.port.tx_in_flight() > 0 || self.port.rx_in_flight() > 0 {
            return Rest::Sleep(Wait::Forever);
        }
        let now = Instant::now();
        let door = self.rings.door(memory, now);
        if door != Door::Busy && self.rings.state(Direction::Rx) == State::Waiting {
            self.port.poll_readable();
        }
        match door {
            Door::Busy => Rest::None,
            Door::Completions | Door::Asleep(None) => Rest::Sleep(Wait::Forever),
            Door::Poll(until) => Rest::Poll(now, until),
            Door::Asleep(Some(at)) => Rest::Sleep(Wait::For(at.saturating_duration_since(now))),
        }
    }

    /// Watches for chains, completions and readiness, in memory alone, and takes what came.
    fn busy_poll(
        &mut self,
        memory: &GuestMemoryMmap,
        began: Instant,
        until: Instant,
    ) -> Result<(), PortError> {
        let watch = self.rings.watch(memory);
        let mut looks = 0;
        let ended = loop {
            let news = watch.has_news() || self.port.has_news();
            if news || looks % LOOKS == 0 {
                let now = Instant::now();
                if news || now >= until {
                    break now;
                }
            }
            looks += 1;
            spin_loop();
        };
        self.counters.busy_polled(ended - began);
        self.woke = Some(ended);
        self.port.enter(Wait::No)
    }
}

/// The eventfd a ring is kicked through.
pub(super) const fn kick_of(direction: Direction) -> Watch {
    match direction {
        Direction::Rx => Watch::Kick(0),
        Direction::Tx => Watch::Kick(1),
    }
}
