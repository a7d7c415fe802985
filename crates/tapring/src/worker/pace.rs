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

    /// A ring batch is in.
    pub(super) const fn after_batch(&mut self, batch: &RxBatch) {
        self.empty = batch.empty > 0;
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
