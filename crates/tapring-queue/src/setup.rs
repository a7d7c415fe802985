//! What a frontend says about a virtqueue, in types that carry the invariants.

use std::fmt;

use vm_memory::GuestAddress;

use crate::header::{HEADER_BYTES, LEGACY_HEADER_BYTES};

/// The two virtqueues of a pair, named from the guest's side (virtio 1.3 §5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// receiveq: host to guest.
    Rx,
    /// transmitq: guest to host.
    Tx,
}

impl Direction {
    /// Both, in the order of their virtqueue indices within a pair.
    pub const ALL: [Self; 2] = [Self::Rx, Self::Tx];

    /// The word used in labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }

    /// Position within the pair: virtqueue `2 * pair + index` (virtio 1.3 §5.1.2).
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Negotiated virtio feature bits, as SET_FEATURES carries them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// VIRTIO_NET_F_MRG_RXBUF: a frame may span several receive chains (virtio 1.3 §5.1.6.3.1).
    pub const MRG_RXBUF: u64 = 1 << virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
    /// VIRTIO_F_INDIRECT_DESC: a descriptor may point at a table of descriptors (§2.7.5.3).
    pub const INDIRECT_DESC: u64 = 1 << virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
    /// VIRTIO_F_EVENT_IDX: notifications are asked for by index (§2.7.7, §2.7.10).
    pub const EVENT_IDX: u64 = 1 << virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
    /// VIRTIO_F_VERSION_1: not a legacy device (§6.1).
    pub const VERSION_1: u64 = 1 << virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;

    /// Bits that are the frontend's and change under a running driver: VHOST_F_LOG_ALL (26) when
    /// a migration begins or fails, VHOST_USER_F_PROTOCOL_FEATURES (30).
    pub(crate) const TRANSPORT: u64 = 1 << 26 | 1 << 30;

    /// Bytes of the virtio-net header in front of each frame (§5.1.6, §5.1.6.1).
    pub const fn header_bytes(self) -> usize {
        if self.has(Self::VERSION_1) || self.has(Self::MRG_RXBUF) {
            HEADER_BYTES
        } else {
            LEGACY_HEADER_BYTES
        }
    }

    /// Whether every bit of `mask` was negotiated.
    pub const fn has(self, mask: u64) -> bool {
        self.0 & mask == mask
    }
}

/// The size of a virtqueue in descriptors: a power of two, at most 32768 (virtio 1.3 §2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSize(u16);

impl QueueSize {
    /// `None` unless `size` is a power of two (which excludes 0 and anything above 32768).
    pub const fn new(size: u16) -> Option<Self> {
        if size.is_power_of_two() {
            Some(Self(size))
        } else {
            None
        }
    }

    /// The number of descriptors.
    pub const fn as_u16(self) -> u16 {
        self.0
    }

    /// The slot of a free-running ring index.
    pub(crate) const fn slot(self, index: u16) -> u16 {
        index & (self.0 - 1)
    }
}

/// Guest-physical addresses of a split virtqueue's three areas (virtio 1.3 §2.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor Table, 16 bytes a descriptor.
    pub desc: GuestAddress,
    /// Available Ring, 6 + 2 bytes a descriptor.
    pub avail: GuestAddress,
    /// Used Ring, 6 + 8 bytes a descriptor.
    pub used: GuestAddress,
}

/// All a virtqueue needs in order to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSetup {
    /// SET_VRING_NUM.
    pub size: QueueSize,
    /// SET_VRING_ADDR, already translated to guest-physical addresses.
    pub addresses: RingAddresses,
    /// SET_VRING_BASE: the next available index to look at. The next used index is read from the
    /// used ring itself when the ring starts.
    pub next_avail: u16,
}

/// Where a virtqueue stands; the answer to GET_VRING_BASE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPosition {
    /// The available index that would be popped next: everything before it was returned.
    pub next_avail: u16,
    /// The used index as published.
    pub next_used: u16,
}
