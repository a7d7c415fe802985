//! Arithmetic on ring indices, which run freely through 16 bits and wrap (virtio 1.3 §2.7.6).
//!
//! Everything here is proven over all 2^16 starting points by its tests.

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
mod tests {
    use super::*;

    /// The specification's words, taken literally: walk from `old` to `new` and look.
    fn passed_by_walking(event: u16, new: u16, old: u16) -> bool {
        let mut at = old;
        while at != new {
            if at == event {
                return true;
            }
            at = at.wrapping_add(1);
        }
        false
    }

    #[test]
    fn passed_is_a_walk_over_every_start() {
        for old in 0..=u16::MAX {
            for step in [0, 1, 2, 64, 256] {
                let new = old.wrapping_add(step);
                for offset in [0, 1, 2, 63, 64, 255, 256, 0x7fff, 0x8000, 0xffff] {
                    let event = old.wrapping_add(offset);
                    let expected = passed_by_walking(event, new, old);
                    assert_eq!(passed(event, new, old), expected, "{event} {new} {old}");
                }
            }
        }
    }

    #[test]
    fn passed_is_a_walk_over_every_event() {
        for event in 0..=u16::MAX {
            for (old, new) in [(0, 5), (0xfff0, 0x10), (0x7fff, 0x8001), (9, 9)] {
                assert_eq!(
                    passed(event, new, old),
                    passed_by_walking(event, new, old),
                    "{event} {new} {old}"
                );
            }
        }
    }

    #[test]
    fn quiet_event_is_not_passed_before_it_is_stored_again() {
        const LARGEST_QUEUE: u16 = 0x8000;
        for next in 0..=u16::MAX {
            let event = quiet_event(next);
            for popped in [0, 1, 64, QUIET_FOR - 1, QUIET_FOR + 64, 2 * QUIET_FOR - 1] {
                let old = next.wrapping_add(popped);
                for added in [1, 64, 256, LARGEST_QUEUE] {
                    let new = old.wrapping_add(added);
                    assert!(!passed(event, new, old), "{next} {popped} {added}");
                }
            }
        }
    }

    #[test]
    fn distance_wraps() {
        assert_eq!(distance(0xffff, 1), 2);
        assert_eq!(distance(7, 7), 0);
    }
}
