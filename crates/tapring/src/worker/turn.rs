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
//!           └────────────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;
use std::time::Instant;

use tapring_io::{CallFd, Events, Port, PortError, RxRead, TxOutcome, Wait, Watch};
use tapring_queue::{self as queue, Block, Direction, Door, Policy, QueuePair, RxEnd, State};
use vm_memory::GuestMemoryMmap;

use super::counters::{Counters, Losses};
use super::pace::{Pace, Step};
use super::ports::{Batch, Held};

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
}

impl DataPath {
    pub(super) fn new(port: Port, counters: Counters, policy: Policy, first: bool) -> Self {
        Self {
            first,
            port,
            rings: QueuePair::default(),
            policy,
            memory: None,
            calls: [None, None],
            errs: [None, None],
            counters,
            pace: Pace::default(),
            submitted: [Instant::now(); 2],
        }
    }

    /// One turn. Returns whether the worker was told that there are commands.
    pub(super) fn turn(&mut self) -> Result<bool, PortError> {
        let events = self.port.take_events();
        let memory = self.memory.take();
        self.on_events(&events, memory.as_deref());
        let wait = match &memory {
            Some(memory) if self.tx_turn(memory) | self.rx_turn(memory) => Wait::No,
            memory => self.door(memory.as_deref()),
        };
        self.memory = memory;
        self.notify();
        self.counters.add(&mut self.rings, &mut self.port);
        let wait = if events.command { Wait::No } else { wait };
        self.port.enter(wait)?;
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
    }

    /// Guest to host. Returns whether there was anything to do.
    fn tx_turn(&mut self, memory: &GuestMemoryMmap) -> bool {
        let completed = self.complete_tx(memory);
        if self.port.tx_in_flight() > 0 {
            return completed;
        }
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
        let delivered = self.port.rx_held() < held;
        (room > 0 && self.read(memory, room)) || delivered
    }

    /// Hands held frames to the guest. Returns for how many more it has room.
    fn deliver(&mut self, memory: &GuestMemoryMmap) -> usize {
        match self.rings.rx.fill(memory, &mut Held(&mut self.port)) {
            RxEnd::Delivered(chains) => usize::from(chains),
            RxEnd::NotRunning | RxEnd::BudgetSpent => 0,
            RxEnd::NoBuffers(need) => {
                let held = self.port.rx_held() > 0;
                self.rings.rx.starve(memory, need, held, Instant::now());
                0
            }
        }
    }

    /// Reads from the tap what the guest has room for.
    fn read(&mut self, memory: &GuestMemoryMmap, room: usize) -> bool {
        if self.port.rx_in_flight() > 0 {
            return false;
        }
        match self.pace.step(room) {
            Step::Rest => false,
            Step::Ring(frames) => {
                self.submitted[Direction::Rx.index()] = Instant::now();
                self.port.rx_submit(frames) > 0
            }
            Step::Plain(reads) => {
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
        let mut frames = 0;
        for _ in 0..reads {
            match self.port.rx_read() {
                RxRead::Frame => frames += 1,
                RxRead::Cut => self.counters.cut(1),
                RxRead::Error(_) => {
                    self.counters.read_failed();
                    break;
                }
                RxRead::Empty | RxRead::NoSlot | RxRead::Down | RxRead::Gone => break,
            }
        }
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
    fn door(&mut self, memory: Option<&GuestMemoryMmap>) -> Wait {
        if self.port.tx_in_flight() > 0 || self.port.rx_in_flight() > 0 {
            return Wait::Forever;
        }
        match self.rings.door(memory) {
            Door::Busy => Wait::No,
            Door::Completions => Wait::Forever,
            Door::Asleep(deadline) => {
                if self.rings.state(Direction::Rx) == State::Waiting {
                    self.port.poll_readable();
                }
                deadline.map_or(Wait::Forever, |at| {
                    Wait::For(at.saturating_duration_since(Instant::now()))
                })
            }
        }
    }
}

/// The eventfd a ring is kicked through.
pub(super) const fn kick_of(direction: Direction) -> Watch {
    match direction {
        Direction::Rx => Watch::Kick(0),
        Direction::Tx => Watch::Kick(1),
    }
}
