//! One worker per queue pair.
//!
//! # Theory of operation
//!
//! A worker is a thread that owns one queue pair: both virtqueues (the engine of
//! `tapring-queue`), the tap queue and its io_uring (a [`Port`](tapring_io::Port)), and everything
//! in flight. Nothing it touches per frame is shared, so nothing is locked.
//!
//! ```text
//!  control plane          command.rs                    turn.rs
//!  WorkerHandle ── Envelope ──► commands between turns   complete, fill, notify, door, enter
//!               ◄── Reply ───── when it holds               │
//!                                                           └─ counters.rs, once a turn
//! ```
//!
//! The loop in `thread.rs` is: a turn, then any commands. An idle worker sleeps in exactly one
//! system call, in which kicks, the tap's readiness and the command eventfd all arrive.

pub mod command;
mod control;
mod counters;
pub mod handle;
mod pace;
mod ports;
mod thread;
mod turn;

pub use thread::{SpawnError, Worker, WorkerOptions, spawn};
