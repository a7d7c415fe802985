//! The frontend adapter: a relay between the frontend's connection and vhost-user-backend.
//!
//! # Theory of operation
//!
//! ```text
//!  frontend ◄──► accepted socket ◄──► [ Receiver │ Adapter │ send ] ◄──► private socket ◄──► vhost-user-backend
//! ```
//!
//! 1. [`wire`] puts a message together: header with its descriptors, then the body.
//! 2. [`rules`] decides, without I/O: pass it on, answer it here, hold it, refuse it, or end the session.
//! 3. [`relay`] carries that out. If the crate will answer, its answer goes to the frontend before the next request is
//!    read, so answers made here and there never overtake each other.
//! 4. Before an answer of the crate leaves, [`Link::failure`](crate::link::Link::failure) is asked: the acknowledgement
//!    of something that did not happen is kept back.
//!
//! It mends what frontends and the crate do not agree about:
//!
//! - QEMU sends SET_VRING_ENABLE long before SET_FEATURES, many times, where the crate ends the session. The last value
//!   for each ring is held and goes out right behind SET_FEATURES, with no acknowledgement asked; a newer QEMU that
//!   waits for one gets it at once. Holding resumes after RESET_OWNER.
//! - GET_QUEUE_NUM is answered in the unit the frontend counts in ([`QueueNum`](crate::features::QueueNum)).
//! - What the crate would end the session for, though it could be refused: sizes and indices of rings, memory maps that
//!   overlap, features that were not offered, optional requests. With NEED_REPLY the frontend gets an error and goes on.
//! - What the crate would take, though it must not: descriptors that are no eventfds, ring sizes that are no power of
//!   two, ring indices beyond 8 bits.
//! - A second SET_OWNER is no second owner.
//!
//! It does not: hold packet state, touch guest memory, or know what a worker is. Any error of the crate ends the session,
//! so what the adapter remembers of accepted messages never disagrees with the crate.

mod inner;
mod memory_map;
mod message;
mod refusal;
mod relay;
mod rules;
mod wire;

pub(crate) use inner::{InnerError, connected_pair};
pub(crate) use relay::{End, Relay};
pub(crate) use rules::Adapter;
