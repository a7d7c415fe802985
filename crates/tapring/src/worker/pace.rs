//! How many frames to ask the tap for.
//!
//! A ring batch that finds one frame costs twenty times a read(2), and one that finds 64 costs a
//! third less a frame. What waits in the tap is unknown until it is read, so each burst starts
//! with a few plain reads and goes on with ring batches that double: 8, 16, 32, 64.

use tapring_io::{BATCH_FRAMES, RxBatch};

/// Plain reads at the start of a burst.
const PLAIN_READS: usize = 8;

/// The next step of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The tap was seen empty and nothing said otherwise.
    Rest,
    /// Up to this many read(2).
    Plain(usize),
    /// One batch of this many in the ring.
    Ring(usize),
}

/// Decides the next [`Step`].
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The size of the next ring batch; 0: plain reads.
    batch: usize,
    /// The tap was seen empty since the last look.
    empty: bool,
}

impl Pace {
    /// What to do now, with room for `room` frames.
    pub(super) fn step(&mut self, room: usize) -> Step {
        if std::mem::replace(&mut self.empty, false) {
            return Step::Rest;
        }
        match self.batch {
            0 => Step::Plain(PLAIN_READS.min(room)),
            batch => Step::Ring(batch.min(room)),
        }
    }

    /// `asked` plain reads found `got` frames.
    pub(super) const fn after_reads(&mut self, asked: usize, got: usize) {
        self.empty = got < asked;
        self.batch = if got == PLAIN_READS { PLAIN_READS } else { 0 };
    }

    /// A ring batch is in. A read that failed would fail again: POLL says when to try, and a tap that was deleted
    /// never says so.
    pub(super) const fn after_batch(&mut self, batch: &RxBatch) {
        self.empty = batch.empty > 0 || batch.fault.is_some();
        self.batch = match (self.empty, self.batch * 2) {
            (true, _) => 0,
            (false, next) if next > BATCH_FRAMES => BATCH_FRAMES,
            (false, next) => next,
        };
    }

    /// POLLIN: the tap has frames.
    pub(super) const fn on_readable(&mut self) {
        self.empty = false;
    }
}

#[cfg(test)]
mod tests {
    use tapring_io::TapFault;

    use super::*;

    /// A pace in the middle of a burst.
    fn bursting() -> Pace {
        let mut pace = Pace::default();
        assert_eq!(pace.step(256), Step::Plain(PLAIN_READS));
        pace.after_reads(PLAIN_READS, PLAIN_READS);
        pace
    }

    fn batch(frames: usize, empty: usize, fault: Option<TapFault>) -> RxBatch {
        RxBatch {
            frames,
            empty,
            fault,
            ..RxBatch::default()
        }
    }

    #[test]
    fn batches_double_while_frames_come() {
        let mut pace = bursting();
        for frames in [8, 16, 32, 64, 64] {
            assert_eq!(pace.step(256), Step::Ring(frames));
            pace.after_batch(&batch(frames, 0, None));
        }
    }

    #[test]
    fn an_empty_tap_is_left_alone_once_and_then_read_plainly() {
        let mut pace = bursting();
        pace.after_batch(&batch(7, 1, None));
        assert_eq!(pace.step(256), Step::Rest);
        assert_eq!(pace.step(256), Step::Plain(PLAIN_READS));
    }

    /// A batch of failures has no empty read in it, and would be made again and again.
    #[test]
    fn a_tap_that_fails_in_the_middle_of_a_burst_is_not_read_in_a_loop() {
        for fault in [TapFault::Gone, TapFault::Down, TapFault::Errno(5)] {
            let mut pace = bursting();
            pace.after_batch(&batch(0, 0, Some(fault)));
            assert_eq!(pace.step(256), Step::Rest, "{fault:?}");
        }
    }
}
