//! The two hand-shakes between device and driver, on the few words that both sides touch.
//!
//! # Theory of operation
//!
//! A side that wants to sleep says so in one word, and whoever has news for it looks at that word
//! after writing the news into another. Each side writes, fences, and reads what the other writes:
//!
//! ```text
//!  kick   device, falling asleep            driver, with a chain
//!         ask:   avail_event, or the flag   avail index
//!         ─────────────────── full fence on both sides ───────────────────
//!         look:  avail index                avail_event, or the flag: kick?
//!
//!  call   device, with a used element       driver, falling asleep
//!         used index                        used_event, or the flag
//!         ─────────────────── full fence on both sides ───────────────────
//!         look:  used_event, or the flag    used index: work left?
//! ```
//!
//! Sequentially consistent fences have one order. Whichever side fences second reads what the other
//! wrote before its fence, so not both can miss each other. With no fence both can: each write may
//! still be in its CPU's store buffer when the other side reads. With no look after the asking, what
//! came before the asking is missed.
//!
//! The functions here are generic over the words, so that `handshake/tests.rs` runs these very lines
//! under a memory-model checker.

use std::sync::atomic::Ordering;

use crate::index;

/// VIRTQ_AVAIL_F_NO_INTERRUPT: the driver wants no calls (virtio 1.3 §2.7.7).
const NO_INTERRUPT: u16 = 1;
/// VIRTQ_USED_F_NO_NOTIFY: the device wants no kicks (§2.7.10).
const NO_NOTIFY: u16 = 1;

/// A word of a ring that one side writes and the other reads at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The driver's: whether it wants calls, without EVENT_IDX.
    AvailFlags,
    /// The driver's: how far it has made chains available.
    AvailIndex,
    /// The driver's: where it wants to be called, with EVENT_IDX.
    UsedEvent,
    /// The device's: whether it wants kicks, without EVENT_IDX.
    UsedFlags,
    /// The device's: how far it has used chains.
    UsedIndex,
    /// The device's: where it wants to be kicked, with EVENT_IDX.
    AvailEvent,
}

/// The words of one ring.
pub(crate) trait Words {
    /// Reads a word.
    fn load(&self, word: Word, order: Ordering) -> u16;
    /// Writes a word.
    fn store(&self, word: Word, value: u16, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// Tells the driver whether to kick: where the event is with EVENT_IDX, else by the flag (§2.7.10.1:
/// each makes the driver ignore the other). Nobody sleeps on it, so there is no look.
#[inline]
pub(crate) fn tell(words: &impl Words, event_idx: bool, kicks_on: bool, event: u16) {
    if event_idx {
        words.store(Word::AvailEvent, event, Ordering::Relaxed);
    } else {
        let flags = if kicks_on { 0 } else { NO_NOTIFY };
        words.store(Word::UsedFlags, flags, Ordering::Relaxed);
    }
}

/// Asks for a kick when the chain at `event` is made available, and looks: returns how far chains
/// are available, also by a driver that did not see the request.
#[inline]
pub(crate) fn ask(words: &impl Words, event_idx: bool, event: u16) -> u16 {
    tell(words, event_idx, true, event);
    words.fence();
    words.load(Word::AvailIndex, Ordering::Acquire)
}

/// Hands all used elements before `new` to the driver (§2.7.8.2: elements first, index after), and
/// looks whether to call it. It last was looked at with the index at `old`; if that is unknown, the
/// driver is called (§2.7.7.1).
#[inline]
pub(crate) fn publish(words: &impl Words, event_idx: bool, new: u16, old: Option<u16>) -> bool {
    words.store(Word::UsedIndex, new, Ordering::Release);
    let Some(old) = old else { return true };
    words.fence();
    if event_idx {
        let event = words.load(Word::UsedEvent, Ordering::Relaxed);
        index::passed(event, new, old)
    } else {
        words.load(Word::AvailFlags, Ordering::Relaxed) & NO_INTERRUPT == 0
    }
}

#[cfg(test)]
mod tests;
