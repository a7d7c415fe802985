//! What becomes of frames on their way out.

use crate::encoding::Encoding;
use crate::slots::TapFault;

/// What became of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxOutcome {
    /// The tap took it.
    #[default]
    Sent,
    /// The tap will not take more now (EAGAIN; of a packet socket ENOBUFS too), or the frame stands behind one that it did
    /// not take.
    TapFull,
    /// The tap is administratively down (EIO; of a packet socket ENETDOWN).
    Down,
    /// The kernel refused this frame, with this error number.
    Refused(i32),
    /// The tap was deleted (EBADFD; of a packet socket ENXIO).
    Gone,
}

impl TxOutcome {
    pub(super) const fn of_errno(errno: i32, encoding: Encoding) -> Self {
        match (errno, encoding, TapFault::from_errno(errno)) {
            (libc::EAGAIN, _, _) | (libc::ENOBUFS, Encoding::Packet, _) => Self::TapFull,
            (_, _, TapFault::Down) => Self::Down,
            (_, _, TapFault::Gone) => Self::Gone,
            (_, _, TapFault::Errno(errno)) => Self::Refused(errno),
        }
    }
}

/// A frame cannot join the batch being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// No room for another frame, its header or its parts.
    #[error("the batch is full: submit it and gather the frame into the next one")]
    BatchFull,
    /// More parts than one write may have.
    #[error("the frame has more than 1023 parts: copy it instead")]
    TooManyParts,
    /// A part is not in the memory given to `set_memory`.
    #[error("a part of the frame lies outside of the guest's memory: drop the frame")]
    OutsideMemory,
}
