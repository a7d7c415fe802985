//! The queue engine: split virtqueues in, frames out.
#![forbid(unsafe_code)]

mod setup;

pub use setup::{Direction, Features, QueueSize, RingAddresses, RingPosition, RingSetup};
