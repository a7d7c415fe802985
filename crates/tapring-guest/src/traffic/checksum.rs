//! The Internet checksum (RFC 1071), summed in the machine's own byte order and eight bytes at a time.

use std::net::Ipv4Addr;

use super::PROTOCOL_UDP;

/// A ones' complement sum in progress. Each summed piece but the last must have an even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    /// The sum of `bytes`, padded with a zero if odd.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let (words, tail) = bytes.as_chunks::<8>();
        let sum: u64 = words
            .iter()
            .map(|word| halves(u64::from_ne_bytes(*word)))
            .sum();
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        Self(sum + halves(u64::from_ne_bytes(last)))
    }

    /// UDP's pseudo header (RFC 768).
    pub(crate) fn pseudo(source: Ipv4Addr, destination: Ipv4Addr, length: u16) -> Self {
        let mut header = [0; 12];
        header[..4].copy_from_slice(&source.octets());
        header[4..8].copy_from_slice(&destination.octets());
        header[9] = PROTOCOL_UDP;
        header[10..].copy_from_slice(&length.to_be_bytes());
        Self::of(&header)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum as a number in host order; 0 means that the summed bytes contained a right one.
    pub(crate) fn checksum(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let sum = u16::try_from(sum).unwrap_or(u16::MAX);
        !u16::from_be_bytes(sum.to_ne_bytes())
    }

    /// UDP says "no checksum" by 0, so a sum that comes to 0 is sent as its other representation.
    pub(crate) fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            check => check,
        }
    }
}

/// 32-bit halves summed without overflow for 2^32 terms.
const fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}
