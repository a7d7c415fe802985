//! What is offered to frontends, and which answers are taken.

use std::fmt;

use tapring_queue::Features;
use thiserror::Error;
use vhost::vhost_user::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_net::{VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_MQ};

/// VIRTIO_NET_F_CTRL_VQ. The control virtqueue itself is the VMM's: cloud-hypervisor gives the guest one only if the
/// backend offers the bit, QEMU and DPDK do not look at it, and none of them ever shows us the ring.
const CTRL_VQ: u64 = 1 << VIRTIO_NET_F_CTRL_VQ;
const MQ: u64 = 1 << VIRTIO_NET_F_MQ;
const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Every bit that is ever offered, by the name the specification gives it.
const NAMES: [(u64, &str); 7] = [
    (Features::MRG_RXBUF, "MRG_RXBUF"),
    (CTRL_VQ, "CTRL_VQ"),
    (MQ, "MQ"),
    (Features::INDIRECT_DESC, "INDIRECT_DESC"),
    (Features::EVENT_IDX, "EVENT_IDX"),
    (PROTOCOL_FEATURES, "PROTOCOL_FEATURES"),
    (Features::VERSION_1, "VERSION_1"),
];

/// Why SET_FEATURES is not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FeatureFault {
    /// Bits that GET_FEATURES did not show.
    #[error("features {0:#x} were not offered: acknowledge only what GET_FEATURES answers")]
    NotOffered(u64),
}

/// The unit of the answer to GET_QUEUE_NUM, about which frontends do not agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum QueueNum {
    /// Rings if SET_OWNER came before the question, else pairs.
    #[default]
    Auto,
    /// Queue pairs: QEMU.
    Pairs,
    /// Virtqueues: cloud-hypervisor and every frontend on the `vhost` crate.
    Rings,
}

/// What the device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The answer to GET_FEATURES.
    pub virtio: u64,
    /// The answer to GET_PROTOCOL_FEATURES.
    pub protocol: VhostUserProtocolFeatures,
    /// Virtqueues: two a pair.
    pub rings: u32,
    /// The largest SET_VRING_NUM that is taken.
    pub max_ring_size: u16,
}

impl Offer {
    /// The offer of a device with this many queue pairs.
    ///
    /// Not offered for want of a proof that it works: CONFIG, STATUS, RARP, MTU, INFLIGHT_SHMFD, LOG_SHMFD, RESET_DEVICE.
    pub fn new(queue_pairs: u16, max_ring_size: u16) -> Self {
        let mq = if queue_pairs > 1 { MQ } else { 0 };
        Self {
            virtio: Features::VERSION_1
                | Features::EVENT_IDX
                | Features::INDIRECT_DESC
                | Features::MRG_RXBUF
                | CTRL_VQ
                | PROTOCOL_FEATURES
                | mq,
            protocol: VhostUserProtocolFeatures::MQ
                | VhostUserProtocolFeatures::REPLY_ACK
                | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS,
            rings: u32::from(queue_pairs) * 2,
            max_ring_size,
        }
    }

    /// Whether a frontend may acknowledge these bits.
    pub fn accepts(&self, features: u64) -> Result<(), FeatureFault> {
        match features & !self.virtio {
            0 => Ok(()),
            strange => Err(FeatureFault::NotOffered(strange)),
        }
    }
}

/// Shows feature bits by name, for logs.
#[derive(Clone, Copy, Debug)]
pub struct Named(pub u64);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = NAMES.iter().filter(|(bit, _)| self.0 & bit != 0);
        for (position, (_, name)) in present.enumerate() {
            let gap = if position == 0 { "" } else { " " };
            write!(f, "{gap}{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mq_is_offered_for_several_pairs_only() {
        assert_eq!(Offer::new(1, 256).virtio & MQ, 0);
        assert_eq!(Offer::new(2, 256).virtio & MQ, MQ);
        assert_eq!(Offer::new(2, 256).rings, 4);
    }

    #[test]
    fn the_offer_is_exactly_what_the_documents_say() {
        let bits = [15, 17, 28, 29, 30, 32].map(|bit: u32| 1u64 << bit);
        assert_eq!(Offer::new(1, 256).virtio, bits.iter().sum::<u64>());
        assert_eq!(Offer::new(1, 256).protocol.bits(), 0x8009);
    }

    #[test]
    fn every_single_bit_that_was_not_offered_is_refused() {
        let offer = Offer::new(1, 256);
        for bit in (0..64).map(|shift| 1u64 << shift) {
            let answer = offer.accepts(Features::VERSION_1 | bit);
            match offer.virtio & bit {
                0 => assert_eq!(answer, Err(FeatureFault::NotOffered(bit))),
                _ => assert_eq!(answer, Ok(())),
            }
        }
    }

    #[test]
    fn legacy_drivers_are_served() {
        assert_eq!(Offer::new(1, 256).accepts(0), Ok(()));
    }

    #[test]
    fn bits_are_shown_by_name() {
        let bits = Features::VERSION_1 | Features::EVENT_IDX;
        assert_eq!(Named(bits).to_string(), "EVENT_IDX VERSION_1");
        assert_eq!(Named(0).to_string(), "");
    }
}
