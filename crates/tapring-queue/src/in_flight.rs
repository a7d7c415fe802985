//! The transmit chains that were popped and not yet returned, oldest first.
//!
//! Used elements are published in avail order, so this is a queue. A chain that turned out
//! malformed waits in it for its turn like any other. One batch is in flight at a time, so it
//! empties from the front and is then reset; it needs no ring of its own.

use crate::fault::Fault;

/// Most frames popped, sent and returned together. A batch of 16 already has 95 % of what 64
/// gives, 128 gives nothing more.
pub const BATCH: usize = 64;

/// One available entry that was popped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// Its available index, to which a rewind returns.
    pub(crate) index: u16,
    pub(crate) head: u16,
    pub(crate) kind: Kind,
}

/// What became of an entry when it was popped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Handed to the tap; the header is not counted in.
    Frame { bytes: u32 },
    /// Handed to the tap in an earlier batch, of which an earlier frame was not sent.
    SentBefore { bytes: u32 },
    /// Malformed: returned with nothing sent.
    Malformed(Fault),
}

/// A batch of popped entries.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    entries: [Entry; BATCH],
    len: usize,
}

impl Default for InFlight {
    fn default() -> Self {
        let nothing = Entry {
            index: 0,
            head: 0,
            kind: Kind::Frame { bytes: 0 },
        };
        Self {
            entries: [nothing; BATCH],
            len: 0,
        }
    }
}

impl InFlight {
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        BATCH - self.len
    }

    /// The caller checked that there is room.
    #[inline]
    pub(crate) const fn push(&mut self, entry: Entry) {
        self.entries[self.len] = entry;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    #[inline]
    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }
}
