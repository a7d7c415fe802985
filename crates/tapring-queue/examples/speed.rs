//! Nanoseconds a frame: the engine beside virtio-queue's own way, in one run.
//!
//! `cargo run --release -p tapring-queue --example speed` (or `-- tx`, `rx`, `tx-peer`, `rx-peer`
//! alone, under perf)
//!
//! 64-byte frames in chains of one descriptor, 64 a batch; sink and source copy. The rounds are
//! interleaved, for a machine's speed varies more than the ratios do, and the fastest counts: it is
//! the least disturbed.

use std::time::Instant;

use tapring_queue::{
    BATCH, Direction, Features, HEADER_BYTES, QueuePair, QueueSize, RingAddresses, RingSetup,
    RxSource, TxFrame, TxOutcome, TxSink,
};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SIZE: u16 = 256;
const FRAME: usize = 64;
const SLOT: usize = 2048;
const BUFFERS: u64 = 0x10_0000;
const BATCHES: usize = 300;
const ROUNDS: usize = 201;
const BATCH_U16: u16 = 64;

const _: () = assert!(BATCH_U16 as usize == BATCH);

fn main() {
    if let Some(only) = std::env::args().nth(1) {
        // One column alone, for perf.
        let measure = match only.as_str() {
            "tx" => tx_engine,
            "rx" => rx_engine,
            "tx-peer" => tx_peer,
            _ => rx_peer,
        };
        let times: Vec<_> = (0..ROUNDS).map(|_| measure()).collect();
        println!("{only}: {times:.1?}");
        return;
    }
    let mut columns: [(&str, Vec<f64>); 4] = [
        ("tx engine", Vec::new()),
        ("tx virtio-queue", Vec::new()),
        ("rx engine", Vec::new()),
        ("rx virtio-queue", Vec::new()),
    ];
    for _ in 0..ROUNDS {
        for (times, measure) in columns
            .iter_mut()
            .zip([tx_engine, tx_peer, rx_engine, rx_peer])
        {
            times.1.push(measure());
        }
    }
    let fastest = columns.map(|(name, mut times)| {
        times.sort_by(f64::total_cmp);
        println!(
            "{name:16} {:6.1} ns a frame, median {:.1}",
            times[0],
            times[ROUNDS / 2]
        );
        times[0]
    });
    println!(
        "ratio tx {:.2}, rx {:.2}",
        fastest[0] / fastest[1],
        fastest[2] / fastest[3]
    );
}

/// A ring whose every entry names the descriptor of the same number: to post chains again, only
/// the index has to move.
struct Guest {
    memory: GuestMemoryMmap,
    posted: u16,
}

const DESC: u64 = 0x1000;
const AVAIL: u64 = 0x3000;
const USED: u64 = 0x4000;

impl Guest {
    fn new(flags: u16, len: u32) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x20_0000)]).unwrap();
        for i in 0..SIZE {
            let at = DESC + 16 * u64::from(i);
            let buffer = BUFFERS + SLOT as u64 * u64::from(i);
            memory.write_obj(buffer, GuestAddress(at)).unwrap();
            memory.write_obj(len, GuestAddress(at + 8)).unwrap();
            memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
            memory
                .write_obj(i, GuestAddress(AVAIL + 4 + 2 * u64::from(i)))
                .unwrap();
        }
        Self { memory, posted: 0 }
    }

    fn post(&mut self) {
        self.posted = self.posted.wrapping_add(BATCH_U16);
        self.memory
            .write_obj(self.posted, GuestAddress(AVAIL + 2))
            .unwrap();
    }

    fn pair(&self, direction: Direction) -> QueuePair {
        let mut pair = QueuePair::default();
        let memory = Some(&self.memory);
        let bits = Features::VERSION_1 | Features::EVENT_IDX | Features::MRG_RXBUF;
        pair.set_features(Features(bits | Features::INDIRECT_DESC), memory);
        let addresses = RingAddresses {
            desc: GuestAddress(DESC),
            avail: GuestAddress(AVAIL),
            used: GuestAddress(USED),
        };
        let size = QueueSize::new(SIZE).unwrap();
        let setup = RingSetup {
            size,
            addresses,
            next_avail: 0,
        };
        pair.start(direction, setup, memory);
        pair.enable(direction, memory);
        pair
    }

    fn queue(&self) -> Queue {
        let mut queue = Queue::new(SIZE).unwrap();
        queue.set_size(SIZE);
        queue.set_desc_table_address(Some(u32::try_from(DESC).unwrap()), Some(0));
        queue.set_avail_ring_address(Some(u32::try_from(AVAIL).unwrap()), Some(0));
        queue.set_used_ring_address(Some(u32::try_from(USED).unwrap()), Some(0));
        queue.set_event_idx(true);
        queue.set_ready(true);
        queue
    }
}

/// The average over all batches of the time `batch` takes, guest's part apart.
fn per_frame(guest: &mut Guest, mut batch: impl FnMut(&GuestMemoryMmap)) -> f64 {
    let mut total = std::time::Duration::ZERO;
    for _ in 0..BATCHES {
        guest.post();
        let start = Instant::now();
        batch(&guest.memory);
        total += start.elapsed();
    }
    total.as_secs_f64() * 1e9 / (BATCHES * BATCH) as f64
}

/// Frames one behind the other, as in the worker's arena.
struct Arena {
    bytes: Box<[u8]>,
    at: usize,
}

impl Arena {
    fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * SLOT].into(),
            at: 0,
        }
    }
}

impl TxSink for Arena {
    #[inline]
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        let total = HEADER_BYTES + frame.bytes();
        let Some(slot) = self.bytes.get_mut(self.at..self.at + total) else {
            return false;
        };
        let (header, body) = slot.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(frame.header());
        frame.copy_to(body);
        self.at += total.next_multiple_of(64);
        true
    }
}

fn tx_engine() -> f64 {
    let mut guest = Guest::new(0, 76);
    let mut pair = guest.pair(Direction::Tx);
    let mut arena = Arena::new();
    per_frame(&mut guest, |memory| {
        arena.at = 0;
        assert_eq!(pair.tx.fill(memory, &mut arena), BATCH);
        pair.tx
            .complete(memory, (0..BATCH).map(|_| TxOutcome::Sent));
        pair.tx.take_call();
    })
}

fn tx_peer() -> f64 {
    let mut guest = Guest::new(0, 76);
    let mut queue = guest.queue();
    let mut arena = Arena::new();
    per_frame(&mut guest, |memory| {
        arena.at = 0;
        while let Some(chain) = queue.pop_descriptor_chain(memory) {
            let head = chain.head_index();
            for descriptor in chain {
                let len = descriptor.len() as usize;
                let slot = &mut arena.bytes[arena.at..arena.at + len];
                memory.read_slice(slot, descriptor.addr()).unwrap();
                arena.at += len.next_multiple_of(64);
            }
            queue.add_used(memory, head, 0).unwrap();
        }
        queue.needs_notification(memory).unwrap();
    })
}

/// Frames in slots, as in the worker's port.
struct Slots {
    bytes: Box<[u8]>,
    next: usize,
}

impl Slots {
    fn new() -> Self {
        Self {
            bytes: vec![0x5a; BATCH * SLOT].into(),
            next: 0,
        }
    }
}

impl RxSource for Slots {
    #[inline]
    fn front(&self) -> Option<&[u8]> {
        let at = self.next * SLOT;
        (self.next < BATCH).then(|| &self.bytes[at + HEADER_BYTES..at + HEADER_BYTES + FRAME])
    }

    #[inline]
    fn pop(&mut self) {
        self.next += 1;
    }
}

fn rx_engine() -> f64 {
    let mut guest = Guest::new(2, 1526);
    let mut pair = guest.pair(Direction::Rx);
    let mut slots = Slots::new();
    per_frame(&mut guest, |memory| {
        slots.next = 0;
        pair.rx.fill(memory, &mut slots);
        assert_eq!(slots.next, BATCH);
        pair.rx.take_call();
    })
}

fn rx_peer() -> f64 {
    let mut guest = Guest::new(2, 1526);
    let mut queue = guest.queue();
    let mut slots = Slots::new();
    let header = [0u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    per_frame(&mut guest, |memory| {
        slots.next = 0;
        while let Some(mut chain) = queue.pop_descriptor_chain(memory) {
            let head = chain.head_index();
            let descriptor = chain.next().unwrap();
            let behind = descriptor.addr().0 + HEADER_BYTES as u64;
            memory.write_slice(&header, descriptor.addr()).unwrap();
            memory
                .write_slice(slots.front().unwrap(), GuestAddress(behind))
                .unwrap();
            slots.pop();
            queue.add_used(memory, head, 76).unwrap();
        }
        queue.needs_notification(memory).unwrap();
    })
}
