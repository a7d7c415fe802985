//! Arithmetic on ring indices, which run freely through 16 bits and wrap (virtio 1.3 §2.7.6).
//!
//! Everything here depends on differences only, and its tests try every difference from one
//! starting point and the edges from all 2^16.

/// Whether moving an index from `old` to `new` passed `event`, so that the other side asked to be
/// told: one of `old, old + 1, … new - 1` equals `event` (virtio 1.3 §2.7.7.1, §2.7.10).
pub(crate) const fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// How many entries lie between our index and the other side's.
pub(crate) const fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from)
}

/// An event index so far behind `next` that no entry soon reaches it: the way to say "no
/// notifications" where EVENT_IDX is negotiated and no flag can say so.
///
/// The event lies a quarter of the index space behind `next`, so the other side's index has three
/// quarters of it to go. It may be up to a queue size (half the index space at most) ahead of
/// `next`, which leaves [`QUIET_FOR`] entries, and as many again for a batch that runs over.
pub(crate) const fn quiet_event(next: u16) -> u16 {
    next.wrapping_sub(0x4000)
}

/// Entries after which [`quiet_event`] has to be stored again, or the index would come around to it.
pub(crate) const QUIET_FOR: u16 = 0x2000;

#[cfg(test)]
mod tests;
