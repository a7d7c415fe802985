//! A guest in software: a vhost-user frontend and a real virtio-net driver.
//!
//! It talks to the daemon as a stranger would, over the socket and through shared memory, and shares no code with the queue
//! engine: rings, notification arithmetic and layouts are written a second time here, after Linux' `virtio_ring.c` and
//! `virtio_net.c`, so that one side cannot hide the other's mistake.
//!
//! ```text
//!   Guest ── Session ── vhost-user socket ──────────────── backend
//!     │ take_pairs()                                          │
//!   Pair { TxQueue, RxQueue } ── rings and buffers (memfd) ───┤
//!                              ── kick and call eventfds ─────┘
//! ```
//!
//! Life of a frame to the host: [`TxQueue::send`] copies it into guest memory and makes a chain available,
//! [`TxQueue::kick_if_needed`] decides the kick as Linux does, [`TxQueue::collect`] takes the chain back.
//! Life of a frame to the guest: [`RxQueue::refill`] posts buffers, [`RxQueue::wait_for_call`] sleeps, [`RxQueue::receive`] checks
//! what the device wrote and shows the frame. [`traffic`] builds frames whose every byte can be verified, and verifies them.
//!
//! ```no_run
//! use std::time::Duration;
//! use tapring_guest::{Guest, GuestConfig, Pair, Until};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut guest = Guest::connect(&GuestConfig::new("/run/tapring/vm0.sock"))?;
//! let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
//! rx.refill();
//! tx.send(&[0xff; 60])?;
//! tx.kick_if_needed();
//! tx.wait_for_all(Duration::from_secs(1))?;
//! rx.wait_for_call(Until::Next, Duration::from_secs(1))?;
//! rx.receive(64, |frame| println!("{} bytes", frame.len()))?;
//! # Ok(())
//! # }
//! ```
//!
//! A backend that breaks the virtqueue protocol is reported as a [`Violation`]; nothing the backend writes panics the guest.
//!
//! Directions are the guest's: TX is guest to host, RX host to guest. It does not do offloads, the packed ring, a control queue
//! or migration.
#![forbid(unsafe_code)]

mod chains;
mod config;
mod control;
mod counters;
mod error;
mod guest;
mod layout;
mod memory;
mod notify;
mod place;
mod pool;
mod random;
mod raw;
mod ring;
mod rx;
mod session;
pub mod traffic;
mod tx;
mod watchdog;

pub use chains::RAW;
pub use config::{
    F_EVENT_IDX, F_INDIRECT_DESC, F_MRG_RXBUF, F_PROTOCOL_FEATURES, F_VERSION_1, GuestConfig,
    HEADER_BYTES,
};
pub use counters::Counters;
pub use error::{GuestError, SendError, Violation};
pub use guest::{Guest, Pair, Resume};
pub use layout::{Cut, Layout};
pub use memory::{Ram, USER_BASE};
pub use notify::{Until, Woken, need_event};
pub use random::Random;
pub use ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DriverRing, NoRoom, Used};
pub use rx::{LONGEST_BYTES, RxQueue};
pub use tx::{LINUX_RESERVE, PLAIN_HEADER, TransmitError, TxQueue};
