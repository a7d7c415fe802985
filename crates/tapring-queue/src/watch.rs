//! What a busy poll looks at: two available indices.

use crate::index;
use crate::ring::Ring;

/// The rings of a pair that wait for chains, resolved for the length of a poll.
#[derive(Debug)]
pub struct Watch<'m> {
    rings: [Option<Watched<'m>>; 2],
}

/// One ring.
#[derive(Debug)]
pub(crate) struct Watched<'m> {
    pub(crate) ring: Ring<'m>,
    pub(crate) next_avail: u16,
    /// Chains that make a difference.
    pub(crate) wanted: u16,
}

impl<'m> Watch<'m> {
    pub(crate) const fn new(tx: Option<Watched<'m>>, rx: Option<Watched<'m>>) -> Self {
        Self { rings: [tx, rx] }
    }

    /// Whether a ring has as many chains as it waits for. An index that makes no sense is news too.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.rings.iter().flatten().any(|watched| {
            let posted = index::distance(watched.next_avail, watched.ring.avail_index());
            posted >= watched.wanted
        })
    }
}
