//! Why a benchmark cannot go on.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tapring_guest::{GuestError, SendError, TransmitError, Violation};
use tapring_io::TapError;
use tapring_io::limit::LimitError;

/// Why a benchmark cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No network namespace.
    #[error(
        "cannot make a network namespace: run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns)"
    )]
    Namespace {
        /// What the kernel said.
        source: io::Error,
    },
    /// iproute2 refused or is missing.
    #[error("`ip {arguments}` failed: {said}: is iproute2 installed?")]
    Ip {
        /// What it was told.
        arguments: String,
        /// What it answered.
        said: String,
    },
    /// A CPU cannot be used.
    #[error("cannot run on CPU {cpu}: {source}: choose others with --cpus")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The daemon's source does not compile.
    #[error("cannot build the daemon: see cargo's errors above, or name one with --daemon")]
    NotBuilt,
    /// No daemon next to this program.
    #[error("there is no daemon at {}: build it with `cargo build --release` first, or pass --daemon", path.display())]
    NoDaemon {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The daemon did not start, or ended.
    #[error("the daemon ended: {said}")]
    DaemonEnded {
        /// Its last words.
        said: String,
    },
    /// The raw reader's thread panicked.
    #[error("the raw reader's thread is gone: look at the panic above")]
    ReaderGone,
    /// A file or a socket.
    #[error("cannot read {what}: {source}")]
    Read {
        /// Which one.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The packet socket.
    #[error("cannot send to {interface} through a packet socket: {source}")]
    Send {
        /// The tap.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The tap counted something else than was sent: the figures would be wrong.
    #[error("{sent} frames were sent and the tap counted {counted}: the measurement is void")]
    Lost {
        /// Frames the guest got back as sent.
        sent: u64,
        /// Frames the kernel counted.
        counted: u64,
    },
    /// Something did not happen.
    #[error("waited {limit:?} in vain for {what}")]
    Stuck {
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
    },
    /// The tap of the raw loop.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The raw loop.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The guest could not be made or connected.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The daemon broke the virtqueue protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// A frame does not fit a buffer.
    #[error(transparent)]
    Frame(#[from] SendError),
    /// The daemon takes no frames.
    #[error(transparent)]
    Transmit(#[from] TransmitError),
}

impl BenchError {
    /// Something that could not be read.
    pub fn read(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read {
            what: what.into(),
            source,
        }
    }
}
