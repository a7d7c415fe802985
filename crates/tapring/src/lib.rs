//! A vhost-user-net backend over io_uring: the daemon.
//!
//! # Theory of operation
//!
//! ```text
//!                    control thread (tokio-uring)
//!   VMM ── socket ── supervisor ── /metrics ── control ── signals
//!                        │ one at a time
//!                    session thread ── adapter ── vhost-user-backend (its own thread)
//!                                                     │ ring object: one command a transition
//!   guest memory ◄──────────────────────────────── worker (one a queue pair) ── io_uring ── tap
//! ```
//!
//! Nothing of the control plane is per frame: [`worker`]s do that, and hear of the control plane only by commands that
//! have no vhost-user-backend type in them. [`serve`] puts it all together.
#![forbid(unsafe_code)]

mod adapter;
pub mod attachment;
mod backend;
pub mod cli;
pub mod config;
pub mod control;
pub mod cpus;
mod deletion;
pub mod demo;
pub mod device;
pub mod features;
pub mod interface;
mod link;
pub mod log_limit;
pub mod logging;
pub mod open;
mod options;
pub mod policy;
pub mod serve;
mod session;
pub mod settings;
pub mod signals;
pub mod socket;
mod supervisor;
mod tap_drops;
mod value;
mod vring;
pub mod worker;

pub use supervisor::ServeError;
