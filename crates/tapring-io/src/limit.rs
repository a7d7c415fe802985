//! Raw loops that show what a tap can do at most, for the benchmarks.
//!
//! # Theory of operation
//!
//! The limit is a loop that does nothing but move frames: one ring with the flags of an inline [`Port`](crate::Port),
//! one registered file, one registered buffer cut into 64 slots, entries that are made once and pushed again and again.
//! No virtqueue, no copy, no event, no bookkeeping. What a whole data path reaches is a fraction of that, and the fraction
//! is what benchmarks report: this machine's absolute speed varies by more than 2x from one run to the next.
//!
//! ```text
//!   RawWriter   64 x WRITE_FIXED ─► enter ─► reap 64, until the time is over
//!   RawReader   64 x READ_FIXED  ─► enter ─► reap 64, until the frames that wait in the tap are read
//! ```
//!
//! All entries carry RWF_NOWAIT, so that they complete within the enter that submits them.
//!
//! The reader is not run against a sender: with two cores a sender is slower than a reader (about 400 against 250 ns a
//! frame), so that the reader would be measured waiting. The tap is filled first and then drained.
//!
//! # Assumed of the caller
//!
//! Linux 6.4 (RWF_NOWAIT on a tap) and 2 MiB of RLIMIT_MEMLOCK. Nobody else reads or writes the tap queue meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue};

use crate::arena::ARENA_BUFFER as BUFFER;
use crate::mapping::Mapping;
use crate::poll::TAP_FILE;
use crate::port::PortError;
use crate::ring::{PollMode, Ring};
use crate::{BATCH_FRAMES, HEADER_BYTES};

/// Slots begin on a cache line.
const LINE: usize = 64;

/// A raw loop cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No ring.
    #[error(transparent)]
    Ring(#[from] PortError),
    /// No memory for the frames, or none that may be registered.
    #[error("cannot register memory for 64 frames: raise RLIMIT_MEMLOCK (`ulimit -l`)")]
    Memory {
        /// What the kernel said.
        source: io::Error,
    },
    /// A frame was refused.
    #[error("the tap refused a frame: {source}: is it up, and Linux 6.4 or newer?")]
    Refused {
        /// What the kernel said.
        source: io::Error,
    },
    /// The tap was expected to hold more frames than it did.
    #[error("the tap ran empty with {missing} frames still to come: raise its txqueuelen")]
    RanEmpty {
        /// Frames that were expected and not there.
        missing: usize,
    },
}

/// Frames, and the time in which they were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many frames.
    pub frames: usize,
    /// In what time.
    pub took: Duration,
}

/// Writes one frame into a tap as fast as it goes.
#[allow(missing_debug_implementations)] // io_uring's types have none
pub struct RawWriter(Batch);

impl RawWriter {
    /// A writer of `frame`, in front of which it puts a header that asks for nothing.
    pub fn new(tap: OwnedFd, frame: &[u8]) -> Result<Self, LimitError> {
        let mut batch = Batch::new(tap, HEADER_BYTES + frame.len())?;
        batch.fill(frame);
        batch.make_entries(|start, bytes| {
            let write = opcode::WriteFixed::new(TAP_FILE, start, bytes, BUFFER);
            write.rw_flags(libc::RWF_NOWAIT).build()
        });
        Ok(Self(batch))
    }

    /// Writes until `time` is over. A frame that finds the tap full does not count.
    pub fn write_for(&mut self, time: Duration) -> Result<Moved, LimitError> {
        let start = Instant::now();
        let mut frames = 0;
        loop {
            frames += self.0.run(BATCH_FRAMES)?;
            let took = start.elapsed();
            if took >= time {
                return Ok(Moved { frames, took });
            }
        }
    }
}

/// Reads the frames that wait in a tap as fast as it goes.
#[allow(missing_debug_implementations)] // io_uring's types have none
pub struct RawReader(Batch);

impl RawReader {
    /// A reader of frames of at most `frame_bytes`.
    pub fn new(tap: OwnedFd, frame_bytes: usize) -> Result<Self, LimitError> {
        let mut batch = Batch::new(tap, HEADER_BYTES + frame_bytes)?;
        batch.make_entries(|start, bytes| {
            let read = opcode::ReadFixed::new(TAP_FILE, start, bytes, BUFFER);
            read.rw_flags(libc::RWF_NOWAIT).build()
        });
        Ok(Self(batch))
    }

    /// Reads `waiting` frames, which the tap must hold, and times those behind the first batch.
    pub fn drain(&mut self, waiting: usize) -> Result<Moved, LimitError> {
        let first = self.read(waiting)?;
        let start = Instant::now();
        let mut frames = 0;
        while first + frames < waiting {
            frames += self.read(waiting - first - frames)?;
        }
        Ok(Moved {
            frames,
            took: start.elapsed(),
        })
    }

    fn read(&mut self, missing: usize) -> Result<usize, LimitError> {
        match self.0.run(missing.min(BATCH_FRAMES))? {
            0 if missing > 0 => Err(LimitError::RanEmpty { missing }),
            frames => Ok(frames),
        }
    }
}

/// 64 entries over 64 slots of registered memory.
///
/// The kernel holds the pages of a registered buffer for as long as the ring has requests that use it, so that even an
/// entry that is in flight when a loop ends with an error writes to no memory that is anybody else's.
struct Batch {
    ring: Ring,
    entries: Vec<squeue::Entry>,
    memory: Mapping,
    slot_bytes: usize,
    _tap: OwnedFd,
}

impl Batch {
    fn new(tap: OwnedFd, slot_bytes: usize) -> Result<Self, LimitError> {
        let refused = |source| LimitError::Refused { source };
        let no_memory = |source| LimitError::Memory { source };
        let memory = Mapping::new(stride(slot_bytes) * BATCH_FRAMES).map_err(no_memory)?;
        let ring = Ring::new(PollMode::Inline)?;
        ring.register_file(tap.as_fd()).map_err(refused)?;
        // SAFETY: `memory` is dropped behind `ring`, by the order of the fields.
        let registered = unsafe { ring.register_buffers(&[memory.as_iovec()]) };
        if !registered.map_err(no_memory)? {
            return Err(no_memory(io::ErrorKind::OutOfMemory.into()));
        }
        Ok(Self {
            ring,
            entries: Vec::with_capacity(BATCH_FRAMES),
            memory,
            slot_bytes,
            _tap: tap,
        })
    }

    /// Puts a plain header and `frame` into every slot.
    fn fill(&mut self, frame: &[u8]) {
        for slot in 0..BATCH_FRAMES {
            let at = slot * stride(self.slot_bytes) + HEADER_BYTES;
            // SAFETY: no entry was pushed yet, so that the kernel looks at no slot.
            unsafe { self.memory.slice_mut(at, frame.len()) }.copy_from_slice(frame);
        }
    }

    fn make_entries(&mut self, make: impl Fn(*mut u8, u32) -> squeue::Entry) {
        let bytes = u32::try_from(self.slot_bytes).unwrap_or(u32::MAX);
        for slot in 0..BATCH_FRAMES {
            let at = slot * stride(self.slot_bytes);
            let start = self.memory.address(at, self.slot_bytes);
            self.entries.push(make(start, bytes));
        }
    }

    /// Pushes the first `count` entries, submits them and reaps them; returns how many moved a frame.
    fn run(&mut self, count: usize) -> Result<usize, LimitError> {
        let enter = |source| LimitError::Ring(PortError::Enter { source });
        let entries = self.entries[..count].iter().cloned();
        // SAFETY: the entries point into registered memory (see `Batch`), nothing of which is borrowed now.
        unsafe { self.ring.push(count, entries) }.map_err(enter)?;
        let (mut moved, mut pending, mut want) = (0, count, 0);
        while pending > 0 {
            self.ring.submit(want, None).map_err(enter)?;
            for completion in self.ring.completions() {
                pending -= 1;
                moved += usize::from(was_moved(completion.result())?);
            }
            want = pending; // short submits only: all of it completes within the first enter
        }
        Ok(moved)
    }
}

/// Whether a frame was moved; `false` when the tap was full or empty.
fn was_moved(result: i32) -> Result<bool, LimitError> {
    match result {
        0.. => Ok(true),
        full_or_empty if full_or_empty == -libc::EAGAIN => Ok(false),
        errno => Err(LimitError::Refused {
            source: io::Error::from_raw_os_error(-errno),
        }),
    }
}

const fn stride(slot_bytes: usize) -> usize {
    slot_bytes.next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_tap_is_an_outcome_and_a_refusal_an_error() {
        assert!(was_moved(76).unwrap());
        assert!(!was_moved(-libc::EAGAIN).unwrap());
        let error = was_moved(-libc::EIO).unwrap_err().to_string();
        assert!(error.contains("is it up"), "{error}");
    }
}
