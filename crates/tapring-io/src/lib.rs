//! The tap over io_uring: frames in, completions out.
//!
//! # Theory of operation
//!
//! A [`Tap`] is opened once by the control plane. Each worker makes one [`Port`] out of one of its queues: a raw
//! io_uring, the tap queue, the registered memory and everything in flight. Nothing here knows virtio beyond the
//! 12-byte header in front of each frame.
//!
//! In the tap's place there may be a [`PacketSocket`], on an interface that exists. Its port is used in the same way; where
//! these pages say tap, it is meant too. (`encoding.rs` has the differences in a table.)
//!
//! ```text
//!            tx_copy / tx_gather            tx_submit          enter
//!   worker ----------------------> batch ------------> SQ ------------> tap
//!     ^                             (arena, iovecs)                      |
//!     |  tx_outcomes, rx_front, take_events               reap           |
//!     +-------------------------------------- state <---------- CQ <-----+
//! ```
//!
//! The life of a frame from the guest (TX):
//! 1. [`Port::tx_copy`] hands out registered arena memory, or [`Port::tx_gather`] notes the guest's buffers.
//! 2. [`Port::tx_submit`] turns the batch into non-blocking WRITE_FIXED and WRITEV entries.
//! 3. [`Port::enter`] submits them, in one system call with whatever else waits, and reaps the completions.
//! 4. [`Port::tx_outcomes`] gives one outcome a frame, in order, when the whole batch is in.
//!
//! And of a frame from the host (RX): [`Port::rx_read`] or [`Port::rx_submit`] put it into a slot,
//! [`Port::rx_front`] shows the oldest, [`Port::rx_pop`] gives its slot back.
//!
//! Kicks, commands and the tap's readiness are polls in the same ring, so that an idle worker sleeps in exactly one
//! system call. Nothing on these paths allocates, locks or logs.
//!
//! # Assumed of the caller
//!
//! One thread makes a port, uses it and drops it (`SINGLE_ISSUER`); the type is not `Send`.
//!
//! # What it does not do
//!
//! It reads no descriptor, decides nothing about kicks, and never waits for a tap that will not take more: that is
//! an outcome ([`TxOutcome::TapFull`]) and a poll ([`Port::poll_writable`]).
//!
//! This is the only crate of the workspace with `unsafe` in it.

mod arena;
mod call;
mod encoding;
mod guest;
pub mod limit;
mod mapping;
mod offload;
mod packet;
mod poll;
mod port;
mod prefetch;
mod probe;
mod ring;
mod slots;
mod sys;
mod tap;
mod token;
mod tx;

pub use call::{CallFd, NotEventfd, require_eventfd};
pub use packet::{PacketError, PacketOptions, PacketSocket};
pub use poll::{Events, Watch};
pub use port::{Discarded, Port, PortDescription, PortError, PortOptions, PortStats, RxRead, Wait};
pub use prefetch::{Intent, prefetch};
pub use ring::PollMode;
pub use slots::{RxBatch, TapFault};
pub use tap::{Tap, TapError, TapOptions, is_tap_name};
pub use tx::{GatherError, TxOutcome};

/// Frames in a batch, each way.
///
/// A batch of 16 has 95 % of what 64 gives; 128 gains nothing (64 B frames to a tap, ns per frame: 1: 569, 16: 355,
/// 64: 338, 128: 337).
pub const BATCH_FRAMES: usize = 64;

/// Bytes of `struct virtio_net_hdr_v1` (virtio 1.3 §5.1.6), in front of every frame both ways.
pub const HEADER_BYTES: usize = 12;
