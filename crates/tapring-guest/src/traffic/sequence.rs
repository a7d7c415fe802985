//! Which sequence numbers have been seen.

use std::collections::BTreeMap;

/// What a sequence number told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// At or beyond the one expected next.
    InOrder,
    /// New, but behind one that came later in the sequence: reordered.
    Late,
    /// Seen before.
    Again,
}

/// Sequence numbers seen so far, as "all below `next` except these ranges".
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    next: u64,
    /// Start to end (exclusive) of what was skipped and has not come since.
    missing: BTreeMap<u64, u64>,
}

impl Sequence {
    /// Expects `first` to come first.
    #[must_use]
    pub const fn starting_at(first: u64) -> Self {
        Self {
            next: first,
            missing: BTreeMap::new(),
        }
    }

    /// Takes note of one number.
    pub fn see(&mut self, sequence: u64) -> Seen {
        if sequence < self.next {
            return if self.fill(sequence) {
                Seen::Late
            } else {
                Seen::Again
            };
        }
        if sequence > self.next {
            self.missing.insert(self.next, sequence);
        }
        self.next = sequence + 1;
        Seen::InOrder
    }

    /// The number expected next.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Numbers below `end` that have not come.
    #[must_use]
    pub fn missing_below(&self, end: u64) -> u64 {
        let inside: u64 = self.missing.iter().map(|(start, stop)| stop - start).sum();
        inside + end.saturating_sub(self.next)
    }

    /// The lowest number that has not come, if any below the highest seen is missing.
    #[must_use]
    pub fn first_missing(&self) -> Option<u64> {
        self.missing.first_key_value().map(|(&start, _)| start)
    }

    /// Takes `sequence` out of the ranges; false if it is in none.
    fn fill(&mut self, sequence: u64) -> bool {
        let Some((&start, &stop)) = self.missing.range(..=sequence).next_back() else {
            return false;
        };
        if sequence >= stop {
            return false;
        }
        self.missing.remove(&start);
        if start < sequence {
            self.missing.insert(start, sequence);
        }
        if sequence + 1 < stop {
            self.missing.insert(sequence + 1, stop);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_late_and_repeated_are_told_apart() {
        let mut sequence = Sequence::default();
        let seen: Vec<_> = [0, 1, 5, 3, 3, 1, 6].map(|n| sequence.see(n)).into();
        use Seen::{Again, InOrder, Late};
        assert_eq!(
            seen,
            [InOrder, InOrder, InOrder, Late, Again, Again, InOrder]
        );
        assert_eq!(sequence.missing_below(10), 2 + 3);
        assert_eq!(sequence.first_missing(), Some(2));
    }
}
