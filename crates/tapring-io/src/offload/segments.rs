//! Cutting a super-frame into the segments it stands for.
//!
//! ```text
//!   super-frame    | eth | ip | tcp | payload 0 | payload 1 | payload 2 |
//!   segment 0      | eth | ip | tcp | payload 0 |
//!   segment 1            | eth | ip | tcp | payload 1 |
//!   segment 2                        | eth | ip | tcp | payload 2 |
//! ```

use std::ops::Range;

use super::checksum::{fold, sum};
use super::{Asked, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Unsupported};

/// Ethernet with two tags, and the longest headers of IPv4 and TCP.
pub(crate) const HEADERS_MAX: usize = 14 + 2 * 4 + 60 + 60;

const TYPE_AT: usize = 12;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_CHECKSUM_AT: usize = 16;
const UDP_CHECKSUM_AT: usize = 6;
const UDP_HEADER: usize = 8;

const TCP_FLAGS_AT: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ip {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// How a super-frame is cut. All offsets are from its Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    ip: Ip,
    transport: Transport,
    ip_at: usize,
    transport_at: usize,
    /// All headers together, which every segment gets a copy of.
    headers: usize,
    /// Payload of every segment but the last.
    size: usize,
    bytes: usize,
}

impl Segments {
    /// Takes the headers of a super-frame apart.
    pub(super) fn of(frame: &[u8], asked: &Asked) -> Result<Self, Unsupported> {
        Self::parse(frame, asked).ok_or(Unsupported)
    }

    fn parse(frame: &[u8], asked: &Asked) -> Option<Self> {
        let (ip, ip_at) = network(frame)?;
        let (transport, transport_at) = match ip {
            Ip::V4 => v4(frame, ip_at)?,
            Ip::V6 => v6(frame, ip_at)?,
        };
        let (transport, headers, checksum_at) = match transport {
            TCP => {
                let words = frame.get(transport_at + 12)? >> 4;
                let headers = transport_at + 4 * usize::from(words.max(5));
                (Transport::Tcp, headers, TCP_CHECKSUM_AT)
            }
            UDP => (Transport::Udp, transport_at + UDP_HEADER, UDP_CHECKSUM_AT),
            _ => return None,
        };
        let segments = Self {
            ip,
            transport,
            ip_at,
            transport_at,
            headers,
            size: usize::from(asked.gso_size),
            bytes: frame.len(),
        };
        // In a tunnel the checksum is the inner packet's, and lies somewhere else.
        let is_plain = asked.needs_checksum() && asked.checksum() == (transport_at, checksum_at);
        let is_as_said = asked.gso_type & !GSO_ECN == segments.gso_type();
        let has_payload = segments.size > 0 && headers < frame.len() && headers <= HEADERS_MAX;
        (is_plain && is_as_said && has_payload).then_some(segments)
    }

    const fn gso_type(&self) -> u8 {
        match (self.transport, self.ip) {
            (Transport::Udp, _) => GSO_UDP_L4,
            (Transport::Tcp, Ip::V4) => GSO_TCPV4,
            (Transport::Tcp, Ip::V6) => GSO_TCPV6,
        }
    }

    /// How many there are: at least one.
    pub(crate) const fn count(&self) -> usize {
        (self.bytes - self.headers).div_ceil(self.size)
    }

    /// The headers that [`write`](Self::write) wants a copy of, made before the first segment is written.
    pub(crate) fn headers<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        &frame[..self.headers]
    }

    /// Makes segment `index` and returns where it lies. The segments before it are destroyed; `headers` begins with a copy
    /// of the super-frame's.
    pub(crate) fn write(&self, headers: &[u8], frame: &mut [u8], index: usize) -> Range<usize> {
        let payload = self.headers + index * self.size;
        let end = (payload + self.size).min(self.bytes);
        let start = payload - self.headers;
        let segment = &mut frame[start..end];
        segment[..self.headers].copy_from_slice(&headers[..self.headers]);
        self.set_ip(segment, index);
        match self.transport {
            Transport::Tcp => self.set_tcp(segment, index, end == self.bytes),
            Transport::Udp => {
                let length = segment.len() - self.transport_at;
                put(segment, self.transport_at + 4, short(length));
            }
        }
        self.set_checksum(segment);
        start..end
    }

    fn set_ip(&self, segment: &mut [u8], index: usize) {
        let at = self.ip_at;
        let length = segment.len() - at;
        match self.ip {
            Ip::V4 => {
                let id = word(segment, at + 4).wrapping_add(short(index));
                put(segment, at + 2, short(length));
                put(segment, at + 4, id);
                put(segment, at + 10, 0);
                let checksum = fold(sum(&segment[at..self.transport_at]));
                put(segment, at + 10, checksum);
            }
            Ip::V6 => put(segment, at + 4, short(length - 40)),
        }
    }

    /// FIN and PSH belong to the last segment, CWR to the first.
    fn set_tcp(&self, segment: &mut [u8], index: usize, is_last: bool) {
        let tcp = &mut segment[self.transport_at..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        // Of at most 256 KiB, which a slot can hold.
        let ahead = u32::try_from(index * self.size).unwrap_or(0);
        tcp[4..8].copy_from_slice(&sequence.wrapping_add(ahead).to_be_bytes());
        if !is_last {
            tcp[TCP_FLAGS_AT] &= !(FIN | PSH);
        }
        if index > 0 {
            tcp[TCP_FLAGS_AT] &= !CWR;
        }
    }

    fn set_checksum(&self, segment: &mut [u8]) {
        let (protocol, checksum_at) = match self.transport {
            Transport::Tcp => (TCP, TCP_CHECKSUM_AT),
            Transport::Udp => (UDP, UDP_CHECKSUM_AT),
        };
        let addresses = match self.ip {
            Ip::V4 => self.ip_at + 12..self.ip_at + 20,
            Ip::V6 => self.ip_at + 8..self.ip_at + 40,
        };
        put(segment, self.transport_at + checksum_at, 0);
        let length = (segment.len() - self.transport_at) as u64;
        let pseudo = sum(&segment[addresses]) + u64::from(protocol) + length;
        let checksum = fold(pseudo + sum(&segment[self.transport_at..]));
        put(segment, self.transport_at + checksum_at, checksum);
    }
}

/// The version of IP and where its header begins, behind up to two tags.
fn network(frame: &[u8]) -> Option<(Ip, usize)> {
    let mut at = TYPE_AT;
    for _ in 0..3 {
        match word_at(frame, at)? {
            IPV4 => return Some((Ip::V4, at + 2)),
            IPV6 => return Some((Ip::V6, at + 2)),
            tag if TAGS.contains(&tag) => at += 4,
            _ => return None,
        }
    }
    None
}

/// The protocol in an IPv4 packet and where its header begins; not of a fragment.
fn v4(frame: &[u8], at: usize) -> Option<(u8, usize)> {
    let header = frame.get(at..at + 20)?;
    let bytes = 4 * usize::from(header[0] & 0x0f);
    let is_whole = word_at(header, 6)? & 0x3fff == 0;
    (header[0] >> 4 == 4 && bytes >= 20 && is_whole).then_some((header[9], at + bytes))
}

/// The same of an IPv6 packet without extension headers.
fn v6(frame: &[u8], at: usize) -> Option<(u8, usize)> {
    let header = frame.get(at..at + 40)?;
    (header[0] >> 4 == 6).then_some((header[6], at + 40))
}

fn word_at(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([word[0], word[1]]))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// What fits a 16-bit field: lengths below a segment's size and its headers, and indices, which wrap as the field does.
#[allow(clippy::cast_possible_truncation)]
const fn short(number: usize) -> u16 {
    number as u16
}
