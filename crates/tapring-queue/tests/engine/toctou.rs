//! A guest that changes everything while it is looked at: descriptors, tables, headers, entries
//! and indices flip in a second thread while the engine runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapring_queue::{
    Block, Direction, Fault, MAX_FRAME_BYTES, RxEnd, State, TxFrame, TxOutcome, TxSink,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::driver::{INDIRECT, NEXT, WRITE};
use crate::frames::frame;
use crate::rig::{ALL, HOLE, MRG_RXBUF, Rig, SEAM};
use crate::rng::Rng;

/// Longer where the machine is busy: it goes on until enough has happened.
const TIME: Duration = Duration::from_millis(1200);
const LIMIT: Duration = Duration::from_secs(60);
/// Frames each way, and kinds of faults, that are enough.
const FRAMES: u64 = 1000;
const KINDS: usize = 7;

/// Buffers and tables lie here; the rest of memory is nobody's.
const TABLES: u64 = 0x0100_0000;
const BUFFERS: u64 = 0x0110_0000;
const NOBODYS: u64 = 0x0200_0000;

/// Takes what it is given and checks that it is a frame.
#[derive(Default)]
struct Checking {
    bytes: Vec<u8>,
}

impl TxSink for Checking {
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        assert!((14..=MAX_FRAME_BYTES).contains(&frame.bytes()));
        assert!(
            frame.header()[0] & 1 == 0 && frame.header()[1] == 0,
            "checked, then changed"
        );
        self.bytes.resize(frame.bytes(), 0);
        frame.copy_to(&mut self.bytes);
        if let Some(parts) = frame.parts() {
            assert_eq!(
                parts
                    .iter()
                    .map(vm_memory::VolatileSlice::len)
                    .sum::<usize>(),
                frame.bytes()
            );
        }
        true
    }
}

/// Where one ring lies.
#[derive(Clone, Copy)]
struct Place {
    desc: u64,
    avail: u64,
    size: u16,
    writable: bool,
}

fn flip(memory: &GuestMemoryMmap, rng: &mut Rng, place: Place) {
    let index = rng.below(usize::from(place.size)) as u64;
    let desc = match rng.once_in(3) {
        true => TABLES + index * 16,
        false => place.desc + index * 16,
    };
    let flags = [
        0,
        NEXT,
        WRITE,
        WRITE | NEXT,
        INDIRECT,
        INDIRECT | NEXT,
        0xffff,
    ];
    let usual = if place.writable { WRITE } else { 0 };
    match rng.below(10) {
        0 => write(
            memory,
            desc,
            rng.pick(&[BUFFERS, SEAM - 700, HOLE, HOLE - 9, TABLES, u64::MAX]),
        ),
        1 | 2 => write(memory, desc, BUFFERS + index * 1024),
        3 => write(
            memory,
            desc + 8,
            rng.pick(&[0u32, 5, 12, 60, 64, 1514, 16 * 7, 17, 70_000, u32::MAX]),
        ),
        4 => write(memory, desc + 8, rng.pick(&[72u32, 1024])),
        5 => write(memory, desc + 12, rng.pick(&flags)),
        6 => write(memory, desc + 12, usual | rng.pick(&[0, NEXT])),
        7 => write(
            memory,
            desc + 14,
            rng.pick(&[0u16, 1, 7, place.size - 1, place.size, 0xffff]),
        ),
        8 => {
            let head = u16::try_from(index).unwrap() * u16::from(!rng.once_in(4));
            write(
                memory,
                place.avail + 4 + index * 2,
                head | u16::from(rng.once_in(50)) << 15,
            );
        }
        _ => write(
            memory,
            BUFFERS + index * 1024,
            rng.pick(&[0u64, 0, 0, 1, 0x100, u64::MAX]),
        ),
    }
}

fn write<T: vm_memory::ByteValued>(memory: &GuestMemoryMmap, at: u64, value: T) {
    memory.write_obj(value, GuestAddress(at)).unwrap();
}

/// Makes the whole ring available again, or an impossible number of chains.
fn move_index(rig: &mut Rig, direction: Direction, rng: &mut Rng) {
    let memory = rig.memory.clone();
    let driver = rig.driver(direction);
    let off = if rng.once_in(1000) { 5000 } else { 0 };
    let index = driver
        .used_index(&memory)
        .wrapping_add(driver.size / 2)
        .wrapping_add(off);
    driver.store(&memory, driver.avail() + 2, index);
}

fn run_turns(rig: &mut Rig, sink: &mut Checking, rng: &mut Rng) {
    let memory = rig.memory.clone();
    for direction in Direction::ALL {
        move_index(rig, direction, rng);
        if rig.state(direction) == State::Blocked(Block::Broken) {
            let mut setup = rig.driver(direction).setup();
            setup.next_avail = rig.driver(direction).used_index(&memory);
            rig.pair.start(direction, setup, Some(&memory));
        }
    }
    let frames = rig.pair.tx.fill(&memory, sink);
    if frames > 0 {
        let outcomes =
            (0..frames).map(|_| rng.pick(&[TxOutcome::Sent, TxOutcome::Sent, TxOutcome::NotSent]));
        rig.pair.tx.complete(&memory, outcomes);
    }
    rig.pair.tx.on_writable();
    if rig.tap.held.is_empty() {
        rig.tap
            .held
            .extend((0..8).map(|n| frame(n, 14 + rng.below(1500))));
    }
    if let RxEnd::NoBuffers(need) = rig.fill_rx() {
        let now = rig.now;
        rig.pair.rx.starve(need, true, now);
    }
    rig.door();
    rig.kick(Direction::Rx);
    rig.kick(Direction::Tx);
    rig.pair.rx.on_readable();
    rig.advance(Duration::from_millis(50));
    let now = rig.now;
    rig.pair.rx.on_timer(&memory, &mut rig.tap, now);
}

/// What happened so far.
#[derive(Debug, Default)]
struct Seen {
    sent: u64,
    received: u64,
    faults: [u64; Fault::ALL.len()],
}

impl Seen {
    fn add(&mut self, rig: &mut Rig) {
        let [rx, tx] = Direction::ALL.map(|direction| rig.stats(direction));
        self.sent += tx.packets;
        self.received += rx.packets;
        for (sum, count) in self.faults.iter_mut().zip(tx.guest_faults) {
            *sum += count;
        }
    }

    fn is_enough(&self) -> bool {
        let kinds = self.faults.iter().filter(|count| **count > 0).count();
        self.sent > FRAMES && self.received > FRAMES && kinds >= KINDS
    }
}

fn run(features: u64, size: u16) {
    let mut rig = Rig::with(features, size, 0);
    rig.memory
        .write_slice(&vec![0x5a; 0x1_0000], GuestAddress(NOBODYS))
        .unwrap();
    rig.memory
        .write_slice(&vec![0; 0x10_0000], GuestAddress(BUFFERS))
        .unwrap();
    let places = [(&rig.tx, false), (&rig.rx, true)].map(|(driver, writable)| Place {
        desc: driver.base,
        avail: driver.avail(),
        size,
        writable,
    });
    let (memory, stop) = (rig.memory.clone(), AtomicBool::new(false));
    let (mut sink, mut seen) = (Checking::default(), Seen::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(1);
            while !stop.load(Ordering::Relaxed) {
                let place = rng.pick(&places);
                flip(&memory, &mut rng, place);
            }
        });
        let mut rng = Rng::new(2);
        let start = Instant::now();
        let turns = std::panic::AssertUnwindSafe(|| {
            while start.elapsed() < TIME || !seen.is_enough() {
                run_turns(&mut rig, &mut sink, &mut rng);
                seen.add(&mut rig);
                assert!(start.elapsed() < LIMIT, "too little happened: {seen:?}");
            }
        });
        let result = std::panic::catch_unwind(turns);
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(
        rig.bytes_at(NOBODYS, 0x1_0000)
            .iter()
            .all(|byte| *byte == 0x5a)
    );
}

#[test]
fn a_guest_that_changes_what_is_being_read_breaks_nothing() {
    run(ALL, 64);
}

#[test]
fn a_guest_that_changes_what_is_being_read_breaks_nothing_without_mergeable_buffers() {
    run(ALL & !MRG_RXBUF, 256);
}
