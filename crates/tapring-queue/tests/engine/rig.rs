//! An engine with a driver on each ring and a tap behind it.

use std::time::{Duration, Instant};

use tapring_queue::{Direction, Door, Fault, Features, QueuePair, QueueStats, RxEnd, State};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::driver::{Buffer, Driver, Used, readable, writable};
use crate::frames::with_header;
use crate::tap::Tap;

pub(crate) const EVENT_IDX: u64 = Features::EVENT_IDX;
pub(crate) const INDIRECT_DESC: u64 = Features::INDIRECT_DESC;
pub(crate) const MRG_RXBUF: u64 = Features::MRG_RXBUF;
pub(crate) const ALL: u64 = EVENT_IDX | INDIRECT_DESC | MRG_RXBUF | Features::VERSION_1;

/// Three regions: two adjacent, then a hole, then one more.
pub(crate) const SEAM: u64 = 0x0400_0000;
pub(crate) const HOLE: u64 = 0x0500_0000;
pub(crate) const BEHIND_HOLE: u64 = 0x0600_0000;
pub(crate) const END: u64 = 0x0610_0000;

const TX_RING: u64 = 0x0010_0000;
const RX_RING: u64 = 0x0020_0000;
/// Where buffers come from; the last address before the seam.
const DATA: u64 = 0x0100_0000;

pub(crate) fn guest_memory() -> GuestMemoryMmap {
    let length = |from: u64, to: u64| usize::try_from(to - from).unwrap();
    GuestMemoryMmap::from_ranges(&[
        (GuestAddress(0), length(0, SEAM)),
        (GuestAddress(SEAM), length(SEAM, HOLE)),
        (GuestAddress(BEHIND_HOLE), length(BEHIND_HOLE, END)),
    ])
    .unwrap()
}

pub(crate) struct Rig {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) pair: QueuePair,
    pub(crate) tx: Driver,
    pub(crate) rx: Driver,
    pub(crate) tap: Tap,
    pub(crate) now: Instant,
    data: u64,
}

impl Rig {
    /// Both rings of 256, started and enabled, nothing looked at yet.
    pub(crate) fn new(features: u64) -> Self {
        Self::with(features, 256, 0)
    }

    pub(crate) fn with(features: u64, size: u16, index: u16) -> Self {
        let mut rig = Self::stopped(features, size, index);
        for direction in Direction::ALL {
            rig.start(direction);
            rig.pair.enable(direction, Some(&rig.memory));
        }
        rig
    }

    pub(crate) fn stopped(features: u64, size: u16, index: u16) -> Self {
        let memory = guest_memory();
        let event_idx = features & EVENT_IDX != 0;
        let mut pair = QueuePair::default();
        pair.set_features(Features(features), Some(&memory));
        Self {
            tx: Driver::new(&memory, TX_RING, size, index, event_idx),
            rx: Driver::new(&memory, RX_RING, size, index, event_idx),
            pair,
            memory,
            tap: Tap::default(),
            now: Instant::now(),
            data: DATA,
        }
    }

    pub(crate) fn start(&mut self, direction: Direction) {
        let setup = self.driver(direction).setup();
        self.pair.start(direction, setup, Some(&self.memory));
    }

    pub(crate) fn driver(&mut self, direction: Direction) -> &mut Driver {
        match direction {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        }
    }

    /// Guest memory nobody uses.
    pub(crate) fn alloc(&mut self, bytes: usize) -> u64 {
        if self.data + bytes as u64 >= SEAM {
            self.data = DATA;
        }
        let at = self.data;
        self.data += bytes as u64;
        at
    }

    pub(crate) fn place(&mut self, bytes: &[u8]) -> u64 {
        let at = self.alloc(bytes.len());
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
        at
    }

    pub(crate) fn bytes_at(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(addr))
            .unwrap();
        bytes
    }

    pub(crate) fn state(&self, direction: Direction) -> State {
        self.pair.state(direction)
    }

    pub(crate) fn door(&mut self) -> Door {
        self.pair.door(Some(&self.memory), self.now)
    }

    pub(crate) fn kick(&mut self, direction: Direction) {
        self.pair.on_kick(direction, Some(&self.memory));
    }

    pub(crate) fn stats(&mut self, direction: Direction) -> QueueStats {
        self.pair.take_stats(direction)
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.now += time;
    }
}

// ---- guest to host ------------------------------------------------------------------------

impl Rig {
    /// Pieces of the given lengths that hold `bytes`.
    pub(crate) fn cut(&mut self, bytes: &[u8], lengths: &[usize]) -> Vec<Buffer> {
        assert_eq!(lengths.iter().sum::<usize>(), bytes.len());
        let mut rest = bytes;
        let mut buffers = Vec::new();
        for &length in lengths {
            let (piece, behind) = rest.split_at(length);
            let addr = self.place(piece);
            buffers.push(readable(addr, u32::try_from(length).unwrap()));
            rest = behind;
            self.alloc(1);
        }
        buffers
    }

    /// Makes a chain of one buffer available; it is published with the next `expose`.
    pub(crate) fn post_tx(&mut self, frame: &[u8]) -> u16 {
        self.post_tx_bytes(&with_header(frame))
    }

    /// A chain of one buffer with these bytes, the header's included.
    pub(crate) fn post_tx_bytes(&mut self, bytes: &[u8]) -> u16 {
        let buffers = self.cut(bytes, &[bytes.len()]);
        self.tx.add(&self.memory, &buffers)
    }

    /// Pops a batch and completes it. Returns the frames handed to the tap.
    pub(crate) fn tx_batch(&mut self) -> usize {
        let frames = self.pair.tx.fill(&self.memory, &mut self.tap);
        if frames > 0 {
            let outcomes = self.tap.write();
            self.pair.tx.complete(&self.memory, outcomes.into_iter());
        }
        frames
    }

    /// Publishes, runs the ring until it rests, and takes back what was used.
    pub(crate) fn run_tx(&mut self) -> Vec<Used> {
        if self.tx.expose(&self.memory) {
            self.kick(Direction::Tx);
        }
        self.tx_batch();
        while matches!(self.state(Direction::Tx), State::Requeued(_)) {
            self.tx_batch();
        }
        self.tx.collect(&self.memory)
    }

    /// Sends one frame and expects it on the host, unchanged.
    pub(crate) fn expect_tx_works(&mut self) {
        let frame = crate::frames::frame(4711, 64);
        self.tap.sent.clear();
        let head = self.post_tx(&frame);
        let used = self.run_tx();
        assert_eq!(used.last(), Some(&Used { head, len: 0 }));
        assert_eq!(self.tap.sent, [frame]);
    }
}

// ---- host to guest ------------------------------------------------------------------------

impl Rig {
    /// Makes a chain of writable buffers of the given lengths available.
    pub(crate) fn post_rx(&mut self, lengths: &[usize]) -> Vec<Buffer> {
        let buffers = self.room_for(lengths);
        self.rx.add(&self.memory, &buffers);
        buffers
    }

    pub(crate) fn room_for(&mut self, lengths: &[usize]) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        for &length in lengths {
            let addr = self.place(&vec![0xee; length]);
            self.alloc(1);
            buffers.push(writable(addr, u32::try_from(length).unwrap()));
        }
        buffers
    }

    /// Delivers what is held, in as many turns as that takes.
    pub(crate) fn fill_rx(&mut self) -> RxEnd {
        loop {
            let held = self.tap.held.len();
            let end = self.pair.rx.fill(&self.memory, &mut self.tap);
            if end != RxEnd::BudgetSpent || self.tap.held.len() == held {
                return end;
            }
        }
    }

    /// Publishes and delivers `frames`.
    pub(crate) fn deliver(&mut self, frames: &[Vec<u8>]) -> RxEnd {
        self.rx.publish(&self.memory);
        self.tap.held.extend(frames.iter().cloned());
        self.pair.rx.on_readable();
        self.fill_rx()
    }

    /// What `used` bytes of a chain hold.
    pub(crate) fn contents(&self, buffers: &[Buffer], used: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for buffer in buffers {
            bytes.extend(self.bytes_at(buffer.addr, buffer.len as usize));
        }
        bytes.truncate(used as usize);
        bytes
    }

    /// Delivers one frame into a fresh chain and expects it there, unchanged.
    pub(crate) fn expect_rx_works(&mut self) {
        let frame = crate::frames::frame(4711, 64);
        let buffers = self.post_rx(&[2048]);
        self.deliver(std::slice::from_ref(&frame));
        let used = self.rx.collect(&self.memory);
        let last = used.last().expect("a used element");
        assert_eq!(last.len, 76);
        assert_eq!(self.contents(&buffers, 76)[12..], frame);
    }
}

/// How often a fault was counted.
pub(crate) fn count_of(stats: &QueueStats, fault: Fault) -> u64 {
    let at = Fault::ALL.iter().position(|f| *f == fault).unwrap();
    stats.guest_faults[at]
}

/// How often any was.
pub(crate) fn all_faults(stats: &QueueStats) -> u64 {
    stats.guest_faults.iter().sum()
}
