//! The queue engine: split virtqueues in, frames out.
//!
//! # Theory of operation
//!
//! A [`QueuePair`] is the device's side of one pair of virtqueues. It does no I/O, makes no
//! system call and has no clock: guest memory, readiness, completions and time are passed in, so
//! every interleaving of guest, engine and kernel can be played in one thread.
//!
//! ```text
//!            TxQueue::fill           TxSink            TxQueue::complete
//!  guest ---- pop 64 chains ----> frames to send ----> outcomes, in order ---> used ring, call?
//!
//!            RxSource                RxQueue::fill
//!  tap ----- frames read ---------> chains filled ---> used ring, call?
//! ```
//!
//! One turn of a worker is: complete what came back, [`TxQueue::fill`], [`RxQueue::fill`], and,
//! if neither had anything to do, [`QueuePair::door`]. The door is the only way to sleep, and the
//! only place that asks the guest for kicks; `kick.rs` has the table.
//!
//! # Promises
//!
//! - Frames leave in ring order, and used elements are published in avail order.
//! - Every popped head is returned exactly once, or rewound before its frame was sent.
//! - Nothing a guest writes makes this crate panic, loop without bound, or touch memory outside
//!   the map it was given. A malformed chain is returned with length 0 and counted as a [`Fault`].
//! - Nothing is allocated, locked or formatted per frame.
//!
//! # What it does not do
//!
//! Packed virtqueues, and offloads: no header field but num_buffers is ever set or honoured.
#![forbid(unsafe_code)]

mod chain;
mod fault;
mod handshake;
mod header;
mod in_flight;
mod index;
mod kick;
mod lookup;
mod pair;
mod parts;
mod policy;
mod poll;
mod ring;
mod rx;
mod scatter;
mod setup;
mod starved;
mod stats;
mod tx;
mod virtqueue;
mod watch;
mod weakened;

pub use fault::Fault;
pub use header::HEADER_BYTES;
pub use in_flight::BATCH;
pub use kick::{Block, DrainEnd, Requeue, State};
pub use pair::{Door, QueuePair};
pub use policy::{
    Budget, BusyPoll, BusyPollInterrupt, KickRearm, Policy, RxWake, TxPoll, UnknownPolicy,
};
pub use rx::{RxEnd, RxQueue, RxSource};
pub use setup::{Direction, Features, QueueSize, RingAddresses, RingPosition, RingSetup};
pub use starved::{DROP_AFTER, THRESHOLD_TIMER};
pub use stats::QueueStats;
pub use tx::{MAX_FRAME_BYTES, TxFrame, TxOutcome, TxQueue, TxSink};
pub use watch::Watch;
#[doc(hidden)]
pub use weakened::Weakness;
