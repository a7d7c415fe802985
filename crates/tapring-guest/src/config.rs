//! What kind of guest to be.

use std::path::PathBuf;
use std::time::Duration;

use crate::layout::Layout;

/// Length of `virtio_net_hdr_mrg_rxbuf`, which VERSION_1 puts before every frame (virtio 1.3 §5.1.6).
pub const HEADER_BYTES: usize = 12;

/// `VIRTIO_NET_F_MRG_RXBUF`.
pub const F_MRG_RXBUF: u64 = 1 << 15;
/// `VIRTIO_F_INDIRECT_DESC`.
pub const F_INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// `VHOST_USER_F_PROTOCOL_FEATURES`, which lives in the virtio feature space but never reaches the driver.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`.
pub const F_VERSION_1: u64 = 1 << 32;

/// Everything that can be chosen about a [`Guest`](crate::Guest). The defaults are those of a small Linux guest behind
/// cloud-hypervisor.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The backend's unix socket.
    pub socket: PathBuf,
    /// RX/TX pairs; ring `2n` is RX (host to guest) and ring `2n + 1` TX of pair `n`.
    pub queue_pairs: u16,
    /// Descriptors per ring. Not checked here: refusing a bad size is the backend's business.
    pub queue_size: u16,
    /// Guest memory, one memfd region from address 0 up. It must hold the rings and all buffers.
    pub memory_bytes: usize,
    /// Acknowledge EVENT_IDX if offered.
    pub event_idx: bool,
    /// Acknowledge INDIRECT_DESC if offered.
    pub indirect: bool,
    /// Acknowledge MRG_RXBUF if offered.
    pub mrg_rxbuf: bool,
    /// Further virtio feature bits to acknowledge if offered.
    pub more_features: u64,
    /// Bytes of one RX buffer, header included (Linux: 1536 with mergeable buffers, 1530 without).
    pub rx_buffer_bytes: usize,
    /// How many RX buffers the driver ever has posted at once; `u16::MAX` means a full ring, iPXE posts 8.
    pub rx_buffers: u16,
    /// How an RX buffer is cut into descriptors.
    pub rx_layout: Layout,
    /// RX buffers are spread at random over this many bytes (at least a ring's worth of buffers is made).
    pub rx_span_bytes: usize,
    /// Bytes of one TX buffer, header included; it bounds the frames that can be sent.
    pub tx_buffer_bytes: usize,
    /// TX buffers are spread at random over this many bytes: 64 MiB keeps caches as cold as in a real guest.
    pub tx_span_bytes: usize,
    /// Entries an indirect table can have.
    pub indirect_entries: u16,
    /// Where avail.idx, used.idx and SET_VRING_BASE start, for tests of the wrap at 65,536.
    pub start_index: u16,
    /// Leave O_NONBLOCK off the kick and call eventfds, as some frontends do.
    pub blocking_eventfds: bool,
    /// A VM's kick is an exit to the hypervisor; this long the sender's CPU spins for each one on top of the write(2).
    pub exit_cost: Duration,
    /// A halted virtual CPU is not asleep at once: KVM looks for an interrupt first, 200 µs by default (`halt_poll_ns`), while
    /// nothing else wants its CPU. Waits for a call begin with this.
    pub halt_poll: Duration,
    /// How long to retry the connect: the daemon may still be starting.
    pub connect_limit: Duration,
    /// How long the backend may take to answer one message before the connection is cut.
    pub reply_limit: Duration,
}

impl GuestConfig {
    /// A guest of one pair with default settings behind `socket`.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            ..Self::default()
        }
    }

    /// The virtio features this guest acknowledges when they are offered, transport bits included.
    #[must_use]
    pub fn wanted_features(&self) -> u64 {
        let when = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
        F_VERSION_1
            | F_PROTOCOL_FEATURES
            | self.more_features
            | when(self.event_idx, F_EVENT_IDX)
            | when(self.indirect, F_INDIRECT_DESC)
            | when(self.mrg_rxbuf, F_MRG_RXBUF)
    }
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            queue_pairs: 1,
            queue_size: 256,
            memory_bytes: 64 << 20,
            event_idx: true,
            indirect: true,
            mrg_rxbuf: true,
            more_features: 0,
            rx_buffer_bytes: 1536,
            rx_buffers: u16::MAX,
            rx_layout: Layout::ONE,
            rx_span_bytes: 0,
            tx_buffer_bytes: 2048,
            tx_span_bytes: 0,
            indirect_entries: 64,
            start_index: 0,
            blocking_eventfds: false,
            exit_cost: Duration::ZERO,
            halt_poll: Duration::ZERO,
            connect_limit: Duration::from_secs(10),
            reply_limit: Duration::from_secs(10),
        }
    }
}
