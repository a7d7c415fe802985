//! The guest: its drivers' steps as Linux takes them, each on its own.
//!
//! **Add** takes back what was used, writes an entry and publishes the index. **Decide** fences and
//! looks whether the device asked for a kick; several chains may be added before it. **Ring** is the
//! kick's way to the device: a guest that decided to kick may be held up before its eventfd is
//! written. All but the first are owed once the one before was done; a guest that is idle owes
//! nothing, and least of all another chain.

use tapring_queue::Direction;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::case::{Case, Ring};
use crate::choice::Choices;
use crate::driver::{Driver, need_event, readable, writable};
use crate::frames::{frame, number_of, with_header};
use crate::notes::Notes;

/// Bytes of a frame to the host.
const TX_BYTES: usize = 14;

/// Where its memory has what; rings are of 4 at most, and so are buffers. All of it is part of a state,
/// so it is small.
const TX_RING: u64 = 0;
const RX_RING: u64 = 0x80;
pub(crate) const RINGS: usize = 0x100;
const TX_DATA: u64 = 0x100;
const RX_DATA: u64 = 0x200;
/// Room for the buffer of one chain.
const STRIDE: u64 = 0x40;
pub(crate) const MEMORY: usize = 0x300;

/// One step of one of its drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Add,
    Decide,
    Ring,
    /// Asks for a call when the next chain is used, looks once more, and sleeps.
    Sleep,
}

/// A driver of one ring.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Side {
    pub(crate) driver: Driver,
    /// Chains it may still add, and how many it has with the device at most.
    left: u8,
    most: u8,
    /// Published, and still to decide whether to kick.
    undecided: bool,
    /// Decided to kick, and still to write the eventfd.
    ringing: bool,
    /// The eventfd.
    pub(crate) kicked: bool,
    /// Sleeps until the device used this entry.
    sleeping: Option<u16>,
    /// How often it may yet go to sleep.
    naps: u8,
    /// Frames it made, or received.
    pub(crate) frames: u8,
}

#[derive(Clone)]
pub(crate) struct Guest<'s> {
    memory: &'s GuestMemoryMmap,
    sides: [Option<Side>; 2],
    start_at: u16,
    /// Frames to the guest that the device dropped, one bit each.
    pub(crate) dropped: u32,
    /// Bytes of a receive chain, and of a frame to the guest.
    rx_capacity: usize,
    rx_bytes: usize,
    /// Steps it may still take inside of the call into the engine that runs.
    pub(crate) inside: u8,
    pub(crate) choices: Choices,
    pub(crate) notes: Notes,
}

impl<'s> Guest<'s> {
    pub(crate) fn new(case: &Case, memory: &'s GuestMemoryMmap) -> Self {
        let side = |ring: Option<Ring>, base| {
            ring.map(|ring| {
                let event_idx = case.event_idx;
                Side {
                    driver: Driver::new(memory, base, ring.size, case.start_at, event_idx),
                    left: ring.chains + ring.posted + case.warm_up,
                    most: ring.most,
                    undecided: false,
                    ringing: false,
                    kicked: false,
                    sleeping: None,
                    naps: ring.naps,
                    frames: 0,
                }
            })
        };
        let mut guest = Self {
            memory,
            sides: [side(case.rx, RX_RING), side(case.tx, TX_RING)],
            start_at: case.start_at,
            dropped: 0,
            rx_capacity: case.rx_capacity(),
            rx_bytes: case.rx_bytes(),
            inside: 0,
            choices: Choices::default(),
            notes: Notes::default(),
        };
        for direction in Direction::ALL {
            guest.begin(direction, case.ring(direction));
        }
        guest
    }

    /// What it added before anything else happens.
    fn begin(&mut self, direction: Direction, ring: Option<Ring>) {
        for _ in 0..ring.map_or(0, |ring| ring.posted) {
            self.add(direction);
        }
        if self.can(direction, Does::Decide) {
            self.decide(direction);
        }
        if let Some(side) = self.side_mut(direction) {
            side.ringing = false;
        }
    }

    pub(crate) const fn side(&self, direction: Direction) -> Option<&Side> {
        self.sides[direction.index()].as_ref()
    }

    pub(crate) const fn side_mut(&mut self, direction: Direction) -> Option<&mut Side> {
        self.sides[direction.index()].as_mut()
    }

    pub(crate) fn fingerprint(&self) -> impl std::hash::Hash {
        (&self.sides, self.dropped)
    }
}

// ---- what it can do -----------------------------------------------------------------------

impl Guest<'_> {
    pub(crate) fn can(&self, direction: Direction, does: Does) -> bool {
        let Some(side) = self.side(direction) else {
            return false;
        };
        match does {
            Does::Add => side.left > 0 && side.sleeping.is_none() && self.has_place(side),
            Does::Decide => side.undecided,
            Does::Ring => side.ringing,
            Does::Sleep => side.naps > 0 && side.sleeping.is_none() && !side.undecided,
        }
    }

    fn has_place(&self, side: &Side) -> bool {
        let used = side.driver.used_index(self.memory);
        side.driver.published.wrapping_sub(used) < u16::from(side.most)
    }

    pub(crate) fn does(&mut self, direction: Direction, does: Does) {
        match does {
            Does::Add => self.add(direction),
            Does::Decide => self.decide(direction),
            Does::Ring => self.ring(direction),
            Does::Sleep => self.sleep(direction),
        }
    }

    /// Called in the middle of a call into the engine: takes a step, or does not.
    pub(crate) fn may_act(&mut self) {
        if self.inside == 0 {
            return;
        }
        let mut possible = Vec::new();
        for direction in Direction::ALL {
            for does in [Does::Add, Does::Decide] {
                if self.can(direction, does) {
                    possible.push((direction, does));
                }
            }
        }
        if possible.is_empty() {
            return;
        }
        if let Some(index) = self.choices.choose(possible.len() + 1).checked_sub(1) {
            let (direction, does) = possible[index];
            self.inside -= 1;
            self.notes
                .step(|| "(in the middle of the next step:)".to_owned());
            self.does(direction, does);
        }
    }

    /// Whether the device will hear of the ring without the guest having a new idea.
    pub(crate) fn owes(&self) -> bool {
        let owes = |side: &Side| side.undecided || side.ringing || side.kicked;
        self.sides.iter().flatten().any(owes)
    }
}

// ---- its steps ----------------------------------------------------------------------------

impl Guest<'_> {
    fn add(&mut self, direction: Direction) {
        self.take_back(direction);
        let memory = self.memory;
        let capacity = self.rx_capacity;
        let side = self.sides[direction.index()].as_mut().unwrap();
        let slot = u64::from(side.driver.free[0]) * STRIDE;
        let buffer = match direction {
            Direction::Tx => {
                let bytes = with_header(&frame(usize::from(side.frames), TX_BYTES));
                let at = TX_DATA + slot;
                memory.write_slice(&bytes, GuestAddress(at)).unwrap();
                side.frames += 1;
                readable(at, u32::try_from(bytes.len()).unwrap())
            }
            Direction::Rx => writable(RX_DATA + slot, u32::try_from(capacity).unwrap()),
        };
        let batched = if side.undecided { " (batched)" } else { "" };
        let added = side.frames;
        side.driver.add(memory, &[buffer]);
        side.driver.publish(memory);
        side.left -= 1;
        side.undecided = true;
        self.notes.step(|| match direction {
            Direction::Tx => format!("guest adds chain {}{batched}", added - 1),
            Direction::Rx => format!("guest posts a buffer{batched}"),
        });
    }

    fn decide(&mut self, direction: Direction) {
        let memory = self.memory;
        let side = self.sides[direction.index()].as_mut().unwrap();
        side.undecided = false;
        let kick = side.driver.wants_kick(memory);
        side.ringing |= kick;
        let kick = if kick { "KICK" } else { "no kick" };
        self.notes
            .step(|| format!("guest checks {direction}: {kick}"));
    }

    fn ring(&mut self, direction: Direction) {
        let side = self.sides[direction.index()].as_mut().unwrap();
        side.ringing = false;
        side.kicked = true;
        self.notes.step(|| format!("the {direction} kick arrives"));
    }

    /// The kick fd is new. What the old one held is lost, and maybe what is still on its way to it.
    pub(crate) fn lose_kicks(&mut self, direction: Direction) {
        let Some(side) = self.sides[direction.index()].as_mut() else {
            return;
        };
        side.kicked = false;
        if side.ringing && self.choices.choose(2) == 1 {
            side.ringing = false;
            self.notes
                .step(|| format!("a {direction} kick is lost with the old kick fd"));
        }
    }

    /// Virtio 1.3 §2.7.7.2.
    fn sleep(&mut self, direction: Direction) {
        self.take_back(direction);
        let memory = self.memory;
        let side = self.sides[direction.index()].as_mut().unwrap();
        let event = side.driver.last_used;
        side.naps -= 1;
        side.driver.store_used_event(memory, event);
        side.driver.store_no_interrupt(memory, false);
        let asleep = side.driver.used_index(memory) == event;
        side.sleeping = asleep.then_some(event);
        self.notes.step(|| match asleep {
            true => format!("guest asks for a {direction} call, and sleeps"),
            false => format!("guest asks for a {direction} call, and finds used chains"),
        });
    }

    pub(crate) fn called(&mut self, direction: Direction) {
        if let Some(side) = self.side_mut(direction) {
            side.sleeping = None;
        }
    }

    /// Sleeps through what it should have been called for.
    pub(crate) fn missed_a_call(&self) -> bool {
        self.sides.iter().flatten().any(|side| {
            let used = side.driver.used_index(self.memory);
            let due = |event| need_event(event, used, side.driver.last_used);
            side.sleeping.is_some_and(due)
        })
    }
}

// ---- what comes back ----------------------------------------------------------------------

impl Guest<'_> {
    /// Takes used chains back; the driver checks their order.
    fn take_back(&mut self, direction: Direction) {
        let memory = self.memory;
        let side = self.sides[direction.index()].as_mut().unwrap();
        let heads: Vec<u16> = side
            .driver
            .outstanding
            .iter()
            .map(|chain| chain.0)
            .collect();
        let used = side.driver.collect(memory);
        if direction == Direction::Tx {
            assert!(used.iter().all(|used| used.len == 0), "TX writes nothing");
            return;
        }
        let mut chains = heads.into_iter().zip(used);
        while let Some((head, used)) = chains.next() {
            let mut bytes = self.contents(head, used.len);
            let num_buffers = u16::from_le_bytes([bytes[10], bytes[11]]);
            for _ in 1..num_buffers {
                let (head, used) = chains.next().expect("a merged frame appears whole");
                bytes.extend(self.contents(head, used.len));
            }
            self.receive(&bytes[12..]);
        }
    }

    fn contents(&self, head: u16, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let at = GuestAddress(RX_DATA + u64::from(head) * STRIDE);
        self.memory.read_slice(&mut bytes, at).unwrap();
        bytes
    }

    fn receive(&mut self, bytes: &[u8]) {
        let number = number_of(bytes);
        assert_eq!(
            bytes,
            frame(number, self.rx_bytes),
            "a frame arrives unchanged"
        );
        let dropped = self.dropped;
        let side = self.sides[Direction::Rx.index()].as_mut().unwrap();
        let next = (side.frames..).find(|&next| dropped & (1 << next) == 0);
        let number = u8::try_from(number).unwrap();
        assert_eq!(Some(number), next, "frames arrive once each and in order");
        side.frames = number + 1;
    }

    /// Chains published and not used.
    pub(crate) fn posted(&self, direction: Direction) -> u16 {
        self.side(direction).map_or(0, |side| {
            let used = side.driver.used_index(self.memory);
            side.driver.published.wrapping_sub(used)
        })
    }

    /// Whether the device asked to be kicked for any chain to come.
    pub(crate) fn is_asked(&self, direction: Direction) -> bool {
        self.side(direction)
            .is_some_and(|side| side.driver.asked_for(self.memory, side.driver.size))
    }

    /// Chains used since the ring was new.
    pub(crate) fn used(&self, direction: Direction) -> u16 {
        self.side(direction).map_or(0, |side| {
            let used = side.driver.used_index(self.memory);
            used.wrapping_sub(self.start_at)
        })
    }
}
