//! What can go wrong, by who is to blame: [`GuestError`] for the connection and its messages, [`Violation`] for a backend that
//! breaks the virtqueue protocol, [`SendError`] for a frame that cannot be queued.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The session could not be set up or a message was refused.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Nobody accepted the connection in time.
    #[error(
        "cannot connect to `{socket}` within {limit:?}: {source}; is the backend running and listening there?"
    )]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// How long it was tried.
        limit: Duration,
        /// The last attempt's error.
        source: io::Error,
    },
    /// A vhost-user message failed; the backend's log says why.
    #[error("the backend failed {message}{}: {source}; see its log", on_ring(*.ring))]
    Message {
        /// The message's name in the vhost-user specification.
        message: &'static str,
        /// The ring it was for.
        ring: Option<u16>,
        /// What the frontend saw.
        source: vhost::Error,
    },
    /// The backend took longer than [`reply_limit`](crate::GuestConfig::reply_limit), and the connection was cut.
    #[error("the backend did not answer {message}{} within {limit:?}; see its log", on_ring(*.ring))]
    Unanswered {
        /// The message's name.
        message: &'static str,
        /// The ring it was for.
        ring: Option<u16>,
        /// The limit that passed.
        limit: Duration,
    },
    /// A feature that this guest cannot do without is not offered.
    #[error("the backend does not offer {0}, which every modern guest needs")]
    NotOffered(&'static str),
    /// The backend serves fewer rings than asked for.
    #[error("the backend has {offered} rings, {wanted} are needed: start it with more queue pairs")]
    TooFewRings {
        /// Rings the backend answered to GET_QUEUE_NUM.
        offered: u64,
        /// Rings this guest was to have.
        wanted: u64,
    },
    /// Rings and buffers do not fit.
    #[error(
        "guest memory of {have} bytes cannot hold rings and buffers of {need}: raise memory_bytes"
    )]
    MemoryTooSmall {
        /// Bytes there are.
        have: usize,
        /// Bytes needed so far when it ran out.
        need: usize,
    },
    /// Memory or an eventfd could not be had from this host.
    #[error("cannot make guest {what}: {source}")]
    Host {
        /// What was to be made.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The operation needs a connection.
    #[error("not connected: call attach first")]
    NotConnected,
}

fn on_ring(ring: Option<u16>) -> String {
    ring.map_or_else(String::new, |ring| format!(" for ring {ring}"))
}

/// The backend broke the virtqueue protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More used elements than chains the driver has outstanding.
    #[error(
        "{queue}: used.idx went from {last} to {used} with only {outstanding} chains outstanding"
    )]
    UsedIndex {
        /// The virtqueue.
        queue: String,
        /// Index of the last element the driver took.
        last: u16,
        /// What the device wrote.
        used: u16,
        /// Chains that could have been returned.
        outstanding: u16,
    },
    /// A used element names a descriptor that the ring does not have.
    #[error("{queue}: used element {index} returns head {head}, beyond the ring")]
    HeadOutOfRange {
        /// The virtqueue.
        queue: String,
        /// Index of the used element.
        index: u16,
        /// Its id.
        head: u32,
    },
    /// A used element names a head that is not outstanding: returned twice, or never posted.
    #[error("{queue}: used element {index} returns head {head}, which is not outstanding")]
    HeadNotOutstanding {
        /// The virtqueue.
        queue: String,
        /// Index of the used element.
        index: u16,
        /// Its id.
        head: u32,
    },
    /// Used elements are not in avail order.
    #[error("{queue}: used element {index} returns head {head}, avail order wants {expected}")]
    OutOfOrder {
        /// The virtqueue.
        queue: String,
        /// Index of the used element.
        index: u16,
        /// Its id.
        head: u32,
        /// The head made available at that index.
        expected: u16,
    },
    /// A used length that cannot be: not 0 on TX, or more than the chain can take on RX (virtio 1.3 §2.7.8.2).
    #[error(
        "{queue}: used element {index} says {length} bytes were written, at most {capacity} could be"
    )]
    UsedLength {
        /// The virtqueue.
        queue: String,
        /// Index of the used element.
        index: u16,
        /// Its length.
        length: u32,
        /// Device-writable bytes of the chain.
        capacity: u32,
    },
    /// A frame without a whole header, or without any byte behind it.
    #[error("{queue}: a received frame of {length} bytes is no header and frame")]
    ShortFrame {
        /// The virtqueue.
        queue: String,
        /// Bytes including the header.
        length: u32,
    },
    /// A header field that the negotiated features forbid.
    #[error("{queue}: header field {field} is {value}, which the negotiated features forbid")]
    Header {
        /// The virtqueue.
        queue: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u16,
    },
    /// The buffers of one mergeable frame were not all published under one index store.
    #[error("{queue}: a frame of {num_buffers} buffers with only {visible} published")]
    PartialFrame {
        /// The virtqueue.
        queue: String,
        /// The header's num_buffers.
        num_buffers: u16,
        /// Used elements visible, the first included.
        visible: u16,
    },
    /// A buffer of a mergeable frame that is not the last was not filled whole (virtio 1.3 §5.1.6.4.1).
    #[error("{queue}: a buffer inside a merged frame holds {length} of {capacity} bytes")]
    NotFilled {
        /// The virtqueue.
        queue: String,
        /// Bytes written.
        length: u32,
        /// Bytes it could take.
        capacity: u32,
    },
    /// A frame longer than any that virtio-net can carry.
    #[error("{queue}: a received frame is longer than {limit} bytes")]
    FrameTooLong {
        /// The virtqueue.
        queue: String,
        /// The longest possible, header included.
        limit: usize,
    },
    /// Waiting on the call eventfd failed; this one is the host's fault.
    #[error("{queue}: cannot wait for a call: {reason}")]
    Wait {
        /// The virtqueue.
        queue: String,
        /// The system's answer.
        reason: String,
    },
}

/// A frame that was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No descriptors or buffers left: collect, or wait for room. An outcome, not a fault.
    #[error("the ring is full: collect used buffers first")]
    Full,
    /// The frame, cut as asked, does not fit a TX buffer.
    #[error("{bytes} bytes do not fit a buffer of {room}: raise tx_buffer_bytes")]
    TooLong {
        /// Bytes needed with header and gaps.
        bytes: usize,
        /// Bytes of a buffer.
        room: usize,
    },
    /// More pieces than an indirect table of this guest has entries.
    #[error("{pieces} pieces do not fit an indirect table of {entries}: raise indirect_entries")]
    TooManyPieces {
        /// Pieces the layout makes.
        pieces: usize,
        /// Entries there are.
        entries: u16,
    },
}
