//! tapring's data path against the raw limit of a tap.
//!
//! # Theory of operation
//!
//! Absolute speeds of one machine drift by more than 2x from one run to the next, so every figure here is a ratio of two
//! contestants that took turns within one run: [`rounds`] lets each measure once a round, in alternating order, and takes
//! medians. The contestants:
//!
//! - **raw**: the loops of [`tapring_io::limit`], from core A, on a tap of their own.
//! - **daemon**: the real `tapring serve` as a child process, all its threads bound to core A, with the software guest of
//!   `tapring-guest` on core B behind a socket, on another tap that was made by the same code with the same flags.
//!
//! ```text
//!            core A                                   core B
//!   raw      WRITE_FIXED x64 ──► tap `raw0`           idle
//!   daemon   worker ──► tap `tap0`            ◄────── guest: rings and buffers at random over 64 MiB
//! ```
//!
//! All of it happens in a network namespace of its own ([`place`]), with IPv6 off, so that nobody else sends a frame.
//! [`tx`] and [`rx`] say what is measured in each direction, and [`idle`] what a daemon costs that has nothing to do.
//!
//! What it does not do: no VM (a kick of this guest is a write(2), without the exit), no network card, no peers yet.
#![forbid(unsafe_code)]

pub mod cpu;
pub mod daemon;
pub mod daemon_build;
pub mod error;
pub mod filler;
pub mod idle;
pub mod machine;
pub mod place;
pub mod process;
pub mod reader;
pub mod report;
pub mod rig;
pub mod rounds;
pub mod rx;
pub mod scrape;
pub mod settings;
pub mod tx;

pub use error::BenchError;
