//! What a guest can do wrong. A fault costs the guest that frame, never more.

use std::fmt;

/// One kind of malformed input from a guest driver. Except for the last two, the chain is
/// returned with length 0 and counted, and the next one is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An available ring entry names a descriptor the queue does not have; nothing to return.
    BadHead,
    /// `next` out of range, a loop, or a chain longer than the queue (virtio 1.3 §2.7.5.3.1).
    BadChain,
    /// An indirect table that is empty, of odd length, too long, nested, chained on, or that was
    /// not negotiated (§2.7.5.3.1).
    BadIndirect,
    /// A buffer that is not, or not wholly, guest memory.
    BadAddress,
    /// A writable buffer on the transmitq or a readable one on the receiveq (§5.1.6.2, §5.1.6.3).
    WrongDirection,
    /// Less than a header and an Ethernet header on the transmitq; a receive chain that could
    /// not hold them.
    TooShort,
    /// More than the largest frame there is.
    TooLarge,
    /// The header asks for an offload that was not negotiated (§5.1.6.2).
    BadHeader,
    /// The available index moved by more than the queue size; the ring stands until it is set up
    /// again (§2.7.13.3).
    BadIndex,
    /// One of the ring's areas is not guest memory; the ring stands until it or the memory moves.
    BadRing,
}

impl Fault {
    /// All of them, in the order of their labels.
    pub const ALL: [Self; 10] = [
        Self::BadHead,
        Self::BadChain,
        Self::BadIndirect,
        Self::BadAddress,
        Self::WrongDirection,
        Self::TooShort,
        Self::TooLarge,
        Self::BadHeader,
        Self::BadIndex,
        Self::BadRing,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadHead => "bad_head",
            Self::BadChain => "bad_chain",
            Self::BadIndirect => "bad_indirect",
            Self::BadAddress => "bad_address",
            Self::WrongDirection => "wrong_direction",
            Self::TooShort => "too_short",
            Self::TooLarge => "too_large",
            Self::BadHeader => "bad_header",
            Self::BadIndex => "bad_index",
            Self::BadRing => "bad_ring",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
