//! Frames whose every byte can be verified: [`Flow`] builds them, [`Verifier`] holds what arrives against what was sent.
//!
//! ```text
//!  Ethernet 14 | IPv4 20 | UDP 8 | sequence 8 | pattern ...     (or Ethernet 14 | sequence 8 | pattern, type 0x88b5)
//! ```
//!
//! The pattern follows from the sequence number alone, so a byte that moved, was cut or belongs to another frame shows. All
//! other bytes of a frame are either compared with the flow's or covered by a checksum.

mod checksum;
mod payload;
mod sequence;
mod verify;

use std::net::Ipv4Addr;

use checksum::Sum;

pub use payload::{check_payload, fill_payload};
pub use sequence::{Seen, Sequence};
pub use verify::{Fault, Report, Verdict, Verifier};

/// Shortest frame without FCS.
pub const SHORTEST_BYTES: usize = 60;
/// Longest frame without FCS on a link with an MTU of 9000.
pub const LONGEST_BYTES: usize = 9014;

/// IEEE 802 local experimental ethertype 1.
pub const ETHERTYPE_RAW: u16 = 0x88b5;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// IPv4 address; unused in raw frames.
    pub ip: Ipv4Addr,
    /// UDP port; unused in raw frames.
    pub port: u16,
}

/// What stands around the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    /// IPv4 and UDP, with checksums.
    Udp,
    /// Nothing but Ethernet with type 0x88b5.
    Raw,
}

/// A sequence of frames from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Sender.
    pub source: Endpoint,
    /// Receiver.
    pub destination: Endpoint,
    /// Headers.
    pub wrapping: Wrapping,
}

impl Flow {
    /// Bytes in front of the payload.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        match self.wrapping {
            Wrapping::Udp => ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES,
            Wrapping::Raw => ETHERNET_BYTES,
        }
    }

    /// Frame number `sequence`, `bytes` long.
    ///
    /// # Panics
    /// As [`Self::write`].
    #[must_use]
    pub fn build(&self, sequence: u64, bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; bytes];
        self.write(sequence, &mut frame);
        frame
    }

    /// Fills `frame` with frame number `sequence`.
    ///
    /// # Panics
    /// `frame` has no room for headers and sequence number ([`SHORTEST_BYTES`] always suffice), or is longer than 65,549 bytes.
    pub fn write(&self, sequence: u64, frame: &mut [u8]) {
        fill_payload(sequence, &mut frame[self.header_bytes()..]);
        self.wrap(sequence, frame);
    }

    /// Writes the headers of frame number `sequence` around the payload that is in `frame` already, be it a single byte.
    ///
    /// # Panics
    /// `frame` has no room for the headers, or is longer than 65,549 bytes.
    pub fn wrap(&self, sequence: u64, frame: &mut [u8]) {
        let (header, payload) = frame.split_at_mut(self.header_bytes());
        self.write_ethernet(header);
        if self.wrapping == Wrapping::Udp {
            self.write_ipv4(&mut header[ETHERNET_BYTES..], payload.len(), sequence);
            self.write_udp(&mut header[ETHERNET_BYTES + IPV4_BYTES..], payload);
        }
    }

    fn write_ethernet(&self, header: &mut [u8]) {
        header[..6].copy_from_slice(&self.destination.mac);
        header[6..12].copy_from_slice(&self.source.mac);
        let ethertype = match self.wrapping {
            Wrapping::Udp => ETHERTYPE_IPV4,
            Wrapping::Raw => ETHERTYPE_RAW,
        };
        header[12..14].copy_from_slice(&ethertype.to_be_bytes());
    }

    fn write_ipv4(&self, header: &mut [u8], payload_bytes: usize, sequence: u64) {
        let total = wire_length(IPV4_BYTES + UDP_BYTES + payload_bytes);
        header[..IPV4_BYTES].fill(0);
        header[0] = 0x45;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        // The low bits of the sequence number as identification, as a host that counts would do.
        header[4..6].copy_from_slice(&sequence.to_be_bytes()[6..]);
        header[6] = 0x40; // do not fragment
        header[8] = 64; // time to live
        header[9] = PROTOCOL_UDP;
        header[12..16].copy_from_slice(&self.source.ip.octets());
        header[16..20].copy_from_slice(&self.destination.ip.octets());
        let check = Sum::of(&header[..IPV4_BYTES]).checksum();
        header[10..12].copy_from_slice(&check.to_be_bytes());
    }

    fn write_udp(&self, header: &mut [u8], payload: &[u8]) {
        let length = wire_length(UDP_BYTES + payload.len());
        header[..2].copy_from_slice(&self.source.port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination.port.to_be_bytes());
        header[4..6].copy_from_slice(&length.to_be_bytes());
        header[6..8].fill(0);
        let pseudo = Sum::pseudo(self.source.ip, self.destination.ip, length);
        let sum = pseudo
            .and(Sum::of(&header[..UDP_BYTES]))
            .and(Sum::of(payload));
        header[6..8].copy_from_slice(&sum.udp_checksum().to_be_bytes());
    }
}

impl Default for Flow {
    /// 02:00:00:00:00:01, 10.0.0.1:7001 to 02:00:00:00:00:02, 10.0.0.2:7002 over UDP.
    fn default() -> Self {
        let end = |n: u8| Endpoint {
            mac: [2, 0, 0, 0, 0, n],
            ip: Ipv4Addr::new(10, 0, 0, n),
            port: 7000 + u16::from(n),
        };
        Self {
            source: end(1),
            destination: end(2),
            wrapping: Wrapping::Udp,
        }
    }
}

fn wire_length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a frame that fits IPv4's total length")
}

#[cfg(test)]
mod tests;
