//! What a frontend may ask and does not get, in words for the log.

use thiserror::Error;
use vhost::vhost_user::message::FrontendReq;

use super::memory_map::MemoryFault;
use super::message::HeaderFault;
use crate::features::FeatureFault;

/// A request that is not carried out. If the frontend waits for an acknowledgement it gets an error and the session
/// goes on; else it would believe that all is well, and the session ends.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[error(
        "ring {ring}: size {size} refused: use a power of two up to {max} (raise --queue-size for more)"
    )]
    RingSize { ring: u32, size: u32, max: u16 },
    #[error(
        "{request:?} for ring {ring}, the device has {rings}: use fewer queues or raise --queue-pairs"
    )]
    RingIndex {
        request: FrontendReq,
        ring: u64,
        rings: u32,
    },
    #[error("ring {ring}: index {base} does not fit 16 bits: only split virtqueues are served")]
    RingBase { ring: u32, base: u32 },
    #[error("ring {ring}: SET_VRING_ENABLE {value}: must be 0 or 1")]
    EnableValue { ring: u32, value: u32 },
    #[error(
        "ring {ring} cannot be disabled: negotiate VHOST_USER_F_PROTOCOL_FEATURES to have enable messages"
    )]
    CannotDisable { ring: u32 },
    #[error("ring {ring} has no kick descriptor: polled rings are not served, give it an eventfd")]
    NoKick { ring: u64 },
    #[error(transparent)]
    Features(#[from] FeatureFault),
    #[error("protocol features {0:#x} were not offered: acknowledge only what was")]
    ProtocolFeatures(u64),
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    #[error("{0:?} is not supported: its feature was not offered")]
    Unsupported(FrontendReq),
}

/// What ends a session at once.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Fault {
    #[error(transparent)]
    Header(#[from] HeaderFault),
    #[error("request {0} is unknown to this version")]
    UnknownRequest(u32),
    #[error("the frontend sent a reply ({0:?}) instead of a request")]
    ReplyFromFrontend(FrontendReq),
    #[error("{request:?} with a body of {bytes} bytes: the frontend speaks another dialect")]
    BodySize { request: FrontendReq, bytes: usize },
    #[error("{request:?} with {count} descriptors: one or none is right")]
    Descriptors { request: FrontendReq, count: usize },
    #[error("{request:?} for ring {ring}: {reason}")]
    NoEventfd {
        request: FrontendReq,
        ring: u64,
        reason: String,
    },
    #[error(transparent)]
    Refused(#[from] Refusal),
}
