//! The guest of the simulation.

use std::collections::VecDeque;

use tapring_queue::Direction;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::driver::{Buffer, Driver, need_event, readable, writable};
use crate::frames::{frame, number_of, with_header};
use crate::rng::Rng;

/// Frames each way in one run.
pub(super) const FRAMES: usize = 60;

/// The length of frame `number`, known to both ends.
pub(super) fn length_of(number: usize) -> usize {
    match number % 7 {
        0 => 400,
        n => 14 + 11 * n,
    }
}

/// Data for buffers: taken in turn, long reused by the time it comes around.
const DATA: u64 = 0x8_0000;
const DATA_END: u64 = 0x20_0000;

pub(super) struct Guest {
    pub(super) memory: GuestMemoryMmap,
    pub(super) rng: Rng,
    pub(super) tx: Driver,
    pub(super) rx: Driver,
    /// What the eventfds say, by direction.
    pub(super) kicked: [bool; 2],
    /// Published, and the decision whether to kick still to come.
    pub(super) undecided: [bool; 2],
    /// The used event a driver sleeps on, and whether it was called.
    pub(super) sleeping: [Option<u16>; 2],
    pub(super) called: [bool; 2],
    /// Frames made, and whether more may be.
    pub(super) made: usize,
    /// Chains returned malformed are not frames.
    pub(super) received: Vec<usize>,
    /// The receive chains posted, oldest first; `None` is malformed.
    pub(super) room: VecDeque<Option<Buffer>>,
    /// Most chains it adds in one step.
    pub(super) chains_at_once: usize,
    /// Most receive chains it posts, and what each holds.
    most: usize,
    pub(super) capacity: usize,
    pub(super) uneven: bool,
    mergeable: bool,
    faulty: bool,
    data: u64,
}

impl Guest {
    pub(super) fn new(
        memory: GuestMemoryMmap,
        seed: u64,
        event_idx: bool,
        mergeable: bool,
    ) -> Self {
        let mut rng = Rng::new(seed ^ 0x6775_6573);
        let start = rng.pick(&[0, 0x7ff0, 0xffd0]);
        let size = rng.pick(&[4u16, 8, 16, 64]);
        let tx = Driver::new(&memory, 0x1000, rng.pick(&[2, 8, 64]), start, event_idx);
        let rx = Driver::new(&memory, 0x4000, size, start, event_idx);
        let most = 1 + rng.below(usize::from(size));
        Self {
            tx,
            rx,
            kicked: [false; 2],
            undecided: [false; 2],
            sleeping: [None; 2],
            called: [false; 2],
            made: 0,
            received: Vec::new(),
            room: VecDeque::new(),
            chains_at_once: 8,
            most,
            capacity: if mergeable {
                rng.pick(&[112, 200, 600])
            } else {
                600
            },
            uneven: mergeable && rng.once_in(3),
            mergeable,
            faulty: rng.once_in(3),
            data: DATA,
            memory,
            rng,
        }
    }

    pub(super) fn driver(&mut self, direction: Direction) -> &mut Driver {
        match direction {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        }
    }

    /// One action at random, or none.
    pub(super) fn step(&mut self) {
        let direction = self.rng.pick(&Direction::ALL);
        match self.rng.below(16) {
            0..3 => self.add(direction),
            3..6 => self.publish(direction),
            6..9 => self.decide(direction),
            9..11 => self.collect(direction),
            11 => self.sleep(direction),
            12 if self.rng.once_in(10) => self.kicked[direction.index()] = true,
            _ => {}
        }
    }

    /// What it owes the device when it has no more ideas: to tell it what it posted.
    pub(super) fn finish(&mut self) {
        for direction in Direction::ALL {
            self.publish(direction);
            self.decide(direction);
        }
    }

    /// Whether the device may still hear from it about what is in the rings already.
    pub(super) fn owes(&self) -> bool {
        self.undecided.contains(&true) || self.kicked.contains(&true)
    }

    fn alloc(&mut self, bytes: usize) -> u64 {
        if self.data + bytes as u64 > DATA_END {
            self.data = DATA;
        }
        let at = self.data;
        self.data += bytes as u64;
        at
    }
}

// ---- posting ------------------------------------------------------------------------------

impl Guest {
    fn add(&mut self, direction: Direction) {
        let chains = 1 + self.rng.below(self.chains_at_once);
        for _ in 0..chains {
            match direction {
                Direction::Tx => self.add_tx(),
                Direction::Rx => self.add_rx(),
            }
        }
    }

    fn add_tx(&mut self) {
        if self.tx.room() < 2 || self.made == FRAMES {
            return;
        }
        if self.faulty && self.rng.once_in(10) {
            self.tx.add(&self.memory, &[readable(0x100, 3)]);
            return;
        }
        let bytes = with_header(&frame(self.made, length_of(self.made)));
        let addr = self.alloc(bytes.len());
        self.memory.write_slice(&bytes, GuestAddress(addr)).unwrap();
        let cut = u32::try_from(self.rng.below(bytes.len())).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        let two = [
            readable(addr, cut),
            readable(addr + u64::from(cut), len - cut),
        ];
        self.tx.add(&self.memory, &two);
        self.made += 1;
    }

    pub(super) fn add_rx(&mut self) {
        if self.rx.room() == 0 || self.room.len() >= self.most {
            return;
        }
        if self.faulty && self.rng.once_in(10) {
            self.rx.add(&self.memory, &[readable(0x100, 600)]);
            self.room.push_back(None);
            return;
        }
        let bytes = match self.uneven {
            true => 12 + self.rng.below(600),
            false => self.capacity,
        };
        let addr = self.alloc(bytes);
        let buffer = writable(addr, u32::try_from(bytes).unwrap());
        self.rx.add(&self.memory, &[buffer]);
        self.room.push_back(Some(buffer));
    }

    fn publish(&mut self, direction: Direction) {
        let memory = self.memory.clone();
        let driver = self.driver(direction);
        if driver.avail != driver.published {
            driver.publish(&memory);
            self.undecided[direction.index()] = true;
        }
    }

    fn decide(&mut self, direction: Direction) {
        if std::mem::replace(&mut self.undecided[direction.index()], false) {
            let memory = self.memory.clone();
            let kick = self.driver(direction).wants_kick(&memory);
            self.kicked[direction.index()] |= kick;
        }
    }
}

// ---- taking back --------------------------------------------------------------------------

impl Guest {
    /// NAPI's way: look at the ring while awake, else wait for the call.
    fn collect(&mut self, direction: Direction) {
        let i = direction.index();
        if self.sleeping[i].is_some() && !self.called[i] {
            return;
        }
        self.sleeping[i] = None;
        self.called[i] = false;
        self.take_back(direction);
    }

    pub(super) fn take_back(&mut self, direction: Direction) {
        let memory = self.memory.clone();
        let used = self.driver(direction).collect(&memory);
        if direction == Direction::Tx {
            assert!(used.iter().all(|used| used.len == 0));
            return;
        }
        let mut used = used.into_iter();
        while let Some(first) = used.next() {
            let mut bytes = self.taken(first.len);
            if bytes.is_empty() {
                continue;
            }
            let num_buffers = u16::from_le_bytes([bytes[10], bytes[11]]);
            assert!(self.mergeable || num_buffers == 1);
            for _ in 1..num_buffers {
                let more = used.next().expect("a merged frame appears whole");
                bytes.extend(self.taken(more.len));
            }
            let number = number_of(&bytes[12..]);
            assert_eq!(bytes[12..], frame(number, length_of(number)));
            self.received.push(number);
        }
    }

    /// The bytes of the oldest receive chain.
    fn taken(&mut self, len: u32) -> Vec<u8> {
        let buffer = self.room.pop_front().expect("a chain was posted");
        let mut bytes = vec![0; len as usize];
        match buffer {
            Some(buffer) => self
                .memory
                .read_slice(&mut bytes, GuestAddress(buffer.addr))
                .unwrap(),
            None => assert_eq!(len, 0, "a malformed chain holds nothing"),
        }
        bytes
    }

    /// Asks for a call some elements on, fences, and looks (§2.7.7.2).
    fn sleep(&mut self, direction: Direction) {
        let ahead = u16::try_from(self.rng.below(4)).unwrap();
        let memory = self.memory.clone();
        let driver = self.driver(direction);
        let event = match driver.event_idx {
            true => driver.last_used.wrapping_add(ahead),
            false => driver.last_used,
        };
        driver.store_used_event(&memory, event);
        driver.store_no_interrupt(&memory, false);
        let awake = self.is_due(direction, event);
        self.sleeping[direction.index()] = (!awake).then_some(event);
        self.called[direction.index()] = false;
    }

    /// Whether the used index has passed the event a driver sleeps on.
    fn is_due(&self, direction: Direction, event: u16) -> bool {
        let driver = match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        };
        need_event(event, driver.used_index(&self.memory), driver.last_used)
    }

    /// Sleeps through what it should have been called for.
    pub(super) fn missed_a_call(&self) -> bool {
        Direction::ALL.into_iter().any(|direction| {
            let i = direction.index();
            let due = self.sleeping[i].is_some_and(|event| self.is_due(direction, event));
            due && !self.called[i]
        })
    }

    /// Whether `bytes` of header and frame fit into what is posted and published.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let posted = self
            .rx
            .published
            .wrapping_sub(self.rx.used_index(&self.memory));
        let returned = self
            .rx
            .used_index(&self.memory)
            .wrapping_sub(self.rx.last_used);
        let chains: Vec<_> = self
            .room
            .iter()
            .skip(usize::from(returned))
            .take(usize::from(posted))
            .copied()
            .collect();
        let good = chains.split(Option::is_none).next_back().unwrap_or(&[]);
        let capacity: usize = good
            .iter()
            .flatten()
            .map(|buffer| buffer.len as usize)
            .sum();
        match self.mergeable {
            true => capacity >= bytes,
            false => !good.is_empty(),
        }
    }

    pub(super) fn tx_pending(&self) -> bool {
        self.tx.published != self.tx.used_index(&self.memory)
    }
}
