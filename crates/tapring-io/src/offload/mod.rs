//! Finishing frames that a sender left to somebody else: checksums, and segmentation.
//!
//! # Theory of operation
//!
//! A tap does both for us, for no offload is switched on there. A packet socket shows frames as they are inside of the
//! kernel, and says in the header in front of each (`struct virtio_net_hdr`) what is still to be done. That is no rarity:
//! a veth promises its senders every offload, and a card's GRO puts segments together before anybody sees them.
//!
//! ```text
//!   at the far end of a veth                     here
//!   UDP, TCP with little to say                  checksum left out: partial, NEEDS_CSUM
//!   TCP with much to say, UDP_SEGMENT            up to 64 KiB behind one header, to be cut at every `gso_size`
//!   a card with GRO                              the same
//! ```
//!
//! The guest has negotiated no offload, so each frame is finished before it is shown:
//!
//! 1. [`Asked::read`] takes the header apart.
//! 2. [`finish`] completes a partial checksum in place, or finds out how a super-frame is to be cut.
//! 3. [`Segments::write`] makes segment after segment *in the super-frame's own memory*: the headers of a segment are
//!    written right in front of its payload, over the end of the one before, which is with the guest by then. Nothing but
//!    headers is copied.
//!
//! What a segment looks like follows the kernel's own segmentation (tcp_gso_segment, __udp_gso_segment,
//! inet_gso_segment): the guest could have received it from a card.
//!
//! # What it does not do
//!
//! Tunnels, IPv6 with extension headers, IP fragments to be made (the UFO of old): [`Unsupported`]. Before Linux 6.2 the
//! kernel has no header for segments of UDP (UDP_SEGMENT, which QUIC uses) and gives nothing at all. Such a frame is dropped
//! and counted, and the log says how to make its sender do the work (`ethtool -K`).

mod checksum;
mod segments;

pub(crate) use segments::{HEADERS_MAX, Segments};

/// Bytes of `struct virtio_net_hdr`, without num_buffers: what a packet socket puts in front of a frame.
pub(crate) const ASKED_BYTES: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// The first segment alone carries CWR, which all of ours do as they should.
const GSO_ECN: u8 = 0x80;

/// A frame that cannot be finished here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsupported;

/// What a header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    flags: u8,
    gso_type: u8,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl Asked {
    /// Reads a header. A packet socket writes it in the host's own byte order.
    #[inline]
    pub(crate) const fn read(header: &[u8; ASKED_BYTES]) -> Self {
        let h = header;
        Self {
            flags: h[0],
            gso_type: h[1],
            gso_size: u16::from_ne_bytes([h[4], h[5]]),
            csum_start: u16::from_ne_bytes([h[6], h[7]]),
            csum_offset: u16::from_ne_bytes([h[8], h[9]]),
        }
    }

    /// Whether the frame is whole as it is.
    #[inline]
    pub(crate) const fn is_nothing(&self) -> bool {
        !self.needs_checksum() && self.gso_type == GSO_NONE
    }

    /// The same for a frame that had `bytes` bytes inserted behind its addresses.
    #[must_use]
    pub(crate) const fn moved(self, bytes: u16) -> Self {
        Self {
            csum_start: self.csum_start.saturating_add(bytes),
            ..self
        }
    }

    const fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    const fn checksum(&self) -> (usize, usize) {
        (self.csum_start as usize, self.csum_offset as usize)
    }
}

/// Completes the checksum of `frame`, or says how it is to be cut.
pub(crate) fn finish(frame: &mut [u8], asked: &Asked) -> Result<Option<Segments>, Unsupported> {
    if asked.gso_type != GSO_NONE {
        return Segments::of(frame, asked).map(Some);
    }
    if asked.needs_checksum() {
        let (start, offset) = asked.checksum();
        checksum::complete(frame, start, offset).ok_or(Unsupported)?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
