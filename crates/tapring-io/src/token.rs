//! What a ring entry's `user_data` says: which table it belongs to, which place in it, and which use of that place.
//!
//! ```text
//!   63           32 31      16 15     8 7     0
//!   +--------------+----------+--------+-------+
//!   |  generation  |    0     | index  | kind  |
//!   +--------------+----------+--------+-------+
//! ```
//! The generation tells a late completion from one of the present use.

/// The table a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Tx = 1,
    Rx = 2,
    Poll = 3,
    Cancel = 4,
    Call = 5,
    Probe = 6,
}

/// One `user_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(u64);

impl Token {
    #[inline]
    pub(crate) const fn new(kind: Kind, index: u8, generation: u32) -> Self {
        Self(((generation as u64) << 32) | ((index as u64) << 8) | kind as u64)
    }

    #[inline]
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// `None` for a number no entry of ours carries.
    #[inline]
    pub(crate) const fn kind(self) -> Option<Kind> {
        Some(match self.0.to_le_bytes()[0] {
            1 => Kind::Tx,
            2 => Kind::Rx,
            3 => Kind::Poll,
            4 => Kind::Cancel,
            5 => Kind::Call,
            6 => Kind::Probe,
            _ => return None,
        })
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0.to_le_bytes()[1] as usize
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // after the shift 32 bits are left
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        for kind in [
            Kind::Tx,
            Kind::Rx,
            Kind::Poll,
            Kind::Cancel,
            Kind::Call,
            Kind::Probe,
        ] {
            let token = Token::from_raw(Token::new(kind, 63, u32::MAX - 1).raw());
            assert_eq!(
                (token.kind(), token.index(), token.generation()),
                (Some(kind), 63, u32::MAX - 1)
            );
        }
    }

    #[test]
    fn a_foreign_number_has_no_kind() {
        assert_eq!(Token::from_raw(0).kind(), None);
        assert_eq!(Token::from_raw(u64::MAX).kind(), None);
    }
}
