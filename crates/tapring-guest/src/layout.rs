//! How a buffer is cut into descriptors.
//!
//! The device must not rely on any framing (virtio 1.3 §2.7.4): header and frame may share a descriptor, the header may be
//! spread over several, pieces may be empty. A [`Layout`] says where the cuts are; the pieces then lie in the buffer with a
//! gap between them, so that a device that only looks at the first address and the total length is found out.

/// Bytes left between two pieces of one buffer; odd, so that pieces start unaligned.
pub(crate) const GAP_BYTES: usize = 7;

/// Where a chain's bytes are cut, and whether the descriptors sit in an indirect table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The cuts.
    pub cut: Cut,
    /// `Some(n)`: an indirect table at an address that is `n` modulo 16 (it needs no alignment, §2.7.5.3).
    pub indirect: Option<u8>,
}

/// Where a chain's bytes (12-byte header first) are cut into pieces, one descriptor each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// One piece: header and frame together, as Linux sends a linear frame.
    Whole,
    /// Header, then frame: as Linux does without room in front of the frame, and as old drivers do.
    HeaderApart,
    /// Header, then the frame in this many about equal pieces.
    Frame(u16),
    /// Cuts at these offsets from the first header byte, ascending; equal ones make an empty piece.
    At(Vec<usize>),
}

/// One piece of a chain: `bytes` of it, at `place` in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) place: usize,
    pub(crate) bytes: usize,
}

impl Layout {
    /// One direct descriptor.
    pub const ONE: Self = Self::direct(Cut::Whole);
    /// Two direct descriptors, header and frame.
    pub const TWO: Self = Self::direct(Cut::HeaderApart);
    /// Header and frame in an indirect table.
    pub const INDIRECT: Self = Self {
        cut: Cut::HeaderApart,
        indirect: Some(0),
    };

    /// Direct descriptors.
    #[must_use]
    pub const fn direct(cut: Cut) -> Self {
        Self {
            cut,
            indirect: None,
        }
    }

    /// The frame behind its header in `pieces` direct descriptors.
    #[must_use]
    pub const fn pieces(pieces: u16) -> Self {
        Self::direct(Cut::Frame(pieces))
    }

    /// The same cuts, in an indirect table at an address that is `misaligned` modulo 16.
    #[must_use]
    pub fn in_table(self, misaligned: u8) -> Self {
        Self {
            indirect: Some(misaligned % 16),
            ..self
        }
    }

    /// Puts the pieces of `total` bytes into `out` and returns the buffer room they take.
    pub(crate) fn place(&self, total: usize, header: usize, out: &mut Vec<Piece>) -> usize {
        out.clear();
        let mut start = 0;
        let mut end_of_last = 0;
        self.for_each_cut(total, header, |cut| {
            let cut = cut.clamp(start, total);
            let place = if out.is_empty() {
                0
            } else {
                end_of_last + GAP_BYTES
            };
            let bytes = cut - start;
            out.push(Piece { place, bytes });
            end_of_last = place + bytes;
            start = cut;
        });
        end_of_last
    }

    fn for_each_cut(&self, total: usize, header: usize, mut cut_at: impl FnMut(usize)) {
        match &self.cut {
            Cut::Whole => {}
            Cut::HeaderApart => cut_at(header),
            Cut::Frame(pieces) => {
                cut_at(header);
                let pieces = usize::from(*pieces).max(1);
                let frame = total.saturating_sub(header);
                (1..pieces).for_each(|n| cut_at(header + frame * n / pieces));
            }
            Cut::At(cuts) => cuts.iter().for_each(|&cut| cut_at(cut)),
        }
        cut_at(total);
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::ONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(layout: &Layout, total: usize) -> Vec<usize> {
        let mut pieces = Vec::new();
        layout.place(total, 12, &mut pieces);
        pieces.iter().map(|piece| piece.bytes).collect()
    }

    #[test]
    fn every_cut_keeps_the_total() {
        assert_eq!(lengths(&Layout::ONE, 72), [72]);
        assert_eq!(lengths(&Layout::TWO, 72), [12, 60]);
        assert_eq!(lengths(&Layout::pieces(4), 72), [12, 15, 15, 15, 15]);
        let odd = Layout::direct(Cut::At(vec![0, 5, 5, 12]));
        assert_eq!(lengths(&odd, 72), [0, 5, 0, 7, 60]);
        assert_eq!(lengths(&Layout::direct(Cut::At(vec![100])), 72), [72, 0]);
    }

    #[test]
    fn pieces_do_not_touch() {
        let mut pieces = Vec::new();
        let room = Layout::pieces(3).place(72, 12, &mut pieces);
        for pair in pieces.windows(2) {
            assert_eq!(pair[1].place, pair[0].place + pair[0].bytes + GAP_BYTES);
        }
        assert_eq!(room, 72 + 3 * GAP_BYTES);
    }
}
