//! The hand-shakes under loom, which tries every order of their loads and stores that the C11 memory
//! model allows: a load may return an older value than was stored last.
//!
//! The driver's side is Linux': `virtqueue_add` and `virtqueue_kick_prepare`, `virtqueue_enable_cb`.
//! The device's is the engine's own code. Taken away from it, the fence or the look let loom find the
//! wake-up that is lost.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use loom::thread;

use super::{NO_INTERRUPT, NO_NOTIFY, Word, Words, ask, publish, tell};
use crate::index::{distance, quiet_event};

/// Where indices begin: anywhere, and so that each step of a test is the one that wraps.
const STARTS: [u16; 5] = [0, 0x7fff, 0xfffd, 0xfffe, 0xffff];

/// The words of a ring, in loom's memory, and the two eventfds.
struct Ring {
    words: [AtomicU16; 6],
    kick: AtomicBool,
    call: AtomicBool,
    event_idx: bool,
    /// Whether the device fences.
    fences: bool,
}

impl Ring {
    /// All indices at `start`, and both sides awake.
    fn new(start: u16, event_idx: bool, fences: bool) -> Arc<Self> {
        let ring = Self {
            words: [
                NO_INTERRUPT,
                start,
                quiet_event(start),
                NO_NOTIFY,
                start,
                quiet_event(start),
            ]
            .map(AtomicU16::new),
            kick: AtomicBool::new(false),
            call: AtomicBool::new(false),
            event_idx,
            fences,
        };
        Arc::new(ring)
    }

    fn word(&self, word: Word) -> &AtomicU16 {
        &self.words[word as usize]
    }
}

impl Words for Ring {
    fn load(&self, word: Word, order: Ordering) -> u16 {
        self.word(word).load(order)
    }

    fn store(&self, word: Word, value: u16, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn fence(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }
}

/// Every start, with and without EVENT_IDX.
fn in_each_case(check: impl Fn(u16, bool) + Sync + Send + Copy + 'static) {
    for start in STARTS {
        for event_idx in [true, false] {
            loom::model(move || check(start, event_idx));
        }
    }
}

// ---- kicks --------------------------------------------------------------------------------

/// Linux' vring_need_event, in its own words.
const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The driver makes `batches` of chains available and decides after each.
fn drive(ring: &Ring, start: u16, batches: &[u16]) {
    let mut old = start;
    for chains in batches {
        let new = old.wrapping_add(*chains);
        ring.word(Word::AvailIndex).store(new, Ordering::Release);
        fence(Ordering::SeqCst);
        let kick = if ring.event_idx {
            let event = ring.word(Word::AvailEvent).load(Ordering::Relaxed);
            need_event(event, new, old)
        } else {
            ring.word(Word::UsedFlags).load(Ordering::Relaxed) & NO_NOTIFY == 0
        };
        if kick {
            ring.kick.store(true, Ordering::SeqCst);
        }
        old = new;
    }
}

/// The device asks for a kick at the `target`th chain to come, and sleeps if the look finds fewer.
/// Else kicks are off, it takes them all and asks again. Returns the index it sleeps at.
fn device(ring: &Ring, mut next: u16, target: u16, looks: bool) -> u16 {
    loop {
        ring.kick.swap(false, Ordering::SeqCst);
        let event = next.wrapping_add(target).wrapping_sub(1);
        let found = ask(ring, ring.event_idx, event);
        if !looks || distance(next, found) < target {
            return next;
        }
        next = found;
        tell(ring, ring.event_idx, false, quiet_event(next));
    }
}

/// Whether the device sleeps with as many chains there as it waits for, and no kick on its way.
fn kick_is_lost(ring: &Ring, asleep_at: u16, target: u16) -> bool {
    let posted = distance(
        asleep_at,
        ring.word(Word::AvailIndex).load(Ordering::SeqCst),
    );
    posted >= target && !ring.kick.load(Ordering::SeqCst)
}

fn no_kick_is_lost(
    ring: &Arc<Ring>,
    start: u16,
    target: u16,
    batches: &'static [u16],
    looks: bool,
) {
    let shared = Arc::clone(ring);
    let driver = thread::spawn(move || drive(&shared, start, batches));
    let asleep_at = device(ring, start, target, looks);
    driver.join().unwrap();
    assert!(!kick_is_lost(ring, asleep_at, target), "lost wake-up");
}

#[test]
fn no_kick_for_a_chain_is_lost() {
    in_each_case(|start, event_idx| {
        no_kick_is_lost(&Ring::new(start, event_idx, true), start, 1, &[1, 1], true);
    });
}

#[test]
fn no_kick_for_a_batch_is_lost() {
    in_each_case(|start, event_idx| {
        no_kick_is_lost(&Ring::new(start, event_idx, true), start, 1, &[2], true);
    });
}

#[test]
fn no_kick_at_a_threshold_is_lost() {
    in_each_case(|start, event_idx| {
        no_kick_is_lost(
            &Ring::new(start, event_idx, true),
            start,
            2,
            &[1, 1, 1],
            true,
        );
    });
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_the_fence_a_kick_is_lost_by_event() {
    loom::model(|| no_kick_is_lost(&Ring::new(0, true, false), 0, 1, &[1], true));
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_the_fence_a_kick_is_lost_by_flag() {
    loom::model(|| no_kick_is_lost(&Ring::new(0, false, false), 0, 1, &[1], true));
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_the_look_a_kick_is_lost() {
    loom::model(|| no_kick_is_lost(&Ring::new(0, true, true), 0, 1, &[1], false));
}

// ---- calls --------------------------------------------------------------------------------

/// The driver asks for a call at the next used element, and looks. Whether it sleeps.
fn falls_asleep(ring: &Ring, last_used: u16) -> bool {
    ring.call.swap(false, Ordering::SeqCst);
    if ring.event_idx {
        ring.word(Word::UsedEvent)
            .store(last_used, Ordering::Relaxed);
    } else {
        ring.word(Word::AvailFlags).store(0, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    ring.word(Word::UsedIndex).load(Ordering::Acquire) == last_used
}

fn no_call_is_lost(ring: &Arc<Ring>, start: u16, batches: &'static [u16]) {
    let shared = Arc::clone(ring);
    let driver = thread::spawn(move || falls_asleep(&shared, start));
    let mut used = start;
    for elements in batches {
        let old = used;
        used = used.wrapping_add(*elements);
        if publish(&**ring, ring.event_idx, used, Some(old)) {
            ring.call.store(true, Ordering::SeqCst);
        }
    }
    let asleep = driver.join().unwrap();
    let called = ring.call.load(Ordering::SeqCst);
    assert!(!asleep || called, "lost wake-up");
}

#[test]
fn no_call_is_lost_for_one_element_or_a_batch() {
    in_each_case(|start, event_idx| {
        no_call_is_lost(&Ring::new(start, event_idx, true), start, &[1]);
    });
    in_each_case(|start, event_idx| {
        no_call_is_lost(&Ring::new(start, event_idx, true), start, &[3]);
    });
}

#[test]
fn no_call_is_lost_for_several_batches() {
    in_each_case(|start, event_idx| {
        no_call_is_lost(&Ring::new(start, event_idx, true), start, &[1, 2, 1]);
    });
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_the_fence_a_call_is_lost_by_event() {
    loom::model(|| no_call_is_lost(&Ring::new(0, true, false), 0, &[1]));
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_the_fence_a_call_is_lost_by_flag() {
    loom::model(|| no_call_is_lost(&Ring::new(0, false, false), 0, &[1]));
}
