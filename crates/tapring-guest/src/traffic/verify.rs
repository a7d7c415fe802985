//! What arrived, held against what was sent.

use super::checksum::Sum;
use super::payload::check_payload;
use super::sequence::{Seen, Sequence};
use super::{ETHERNET_BYTES, Flow, IPV4_BYTES, PROTOCOL_UDP, UDP_BYTES, Wrapping};

/// What one frame or payload was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every byte right, and no later number came before it.
    Good,
    /// Every byte right, but after a later number.
    Reordered,
    /// Every byte right, and seen before.
    Duplicate,
    /// Of the flow, but with a wrong byte.
    Corrupt(Fault),
    /// Not of the flow: another ethertype, address or port. Hosts send such frames by themselves.
    Foreign,
}

/// Where a frame of the flow is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The IPv4 header's checksum.
    Ipv4Checksum,
    /// A length field does not agree with the frame's length.
    Length,
    /// The UDP checksum.
    UdpChecksum,
    /// The payload's byte at this offset.
    Payload(usize),
}

/// Sums over everything that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Good frames, each number once; reordered ones included.
    pub received: u64,
    /// Their bytes, as given to the verifier.
    pub bytes: u64,
    /// Numbers that never came.
    pub lost: u64,
    /// Numbers that came again.
    pub duplicated: u64,
    /// Numbers that came after a later one.
    pub reordered: u64,
    /// Frames of the flow with a wrong byte.
    pub corrupt: u64,
    /// Frames that are none of the flow's.
    pub foreign: u64,
    /// The first fault found.
    pub first_fault: Option<Fault>,
}

impl Report {
    /// Nothing lost, repeated, reordered or corrupt. Foreign frames are no fault.
    #[must_use]
    pub const fn is_perfect(&self) -> bool {
        self.lost + self.duplicated + self.reordered + self.corrupt == 0
    }
}

/// Verifies one flow at its receiver.
#[derive(Clone, Debug)]
pub struct Verifier {
    flow: Flow,
    sequence: Sequence,
    report: Report,
}

impl Verifier {
    /// Expects `flow` from sequence number 0 on.
    #[must_use]
    pub fn new(flow: Flow) -> Self {
        Self::starting_at(flow, 0)
    }

    /// Expects `flow` from sequence number `first` on.
    #[must_use]
    pub fn starting_at(flow: Flow, first: u64) -> Self {
        Self {
            flow,
            sequence: Sequence::starting_at(first),
            report: Report::default(),
        }
    }

    /// Takes a whole Ethernet frame.
    pub fn frame(&mut self, frame: &[u8]) -> Verdict {
        let unwrapped = self.unwrap(frame);
        self.judge(unwrapped, frame.len())
    }

    /// Takes a UDP payload whose headers the host's stack has already looked at.
    pub fn payload(&mut self, payload: &[u8]) -> Verdict {
        self.judge(Ok(payload), payload.len())
    }

    /// Numbers seen so far.
    #[must_use]
    pub const fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Sums, if numbers below `end` were sent.
    #[must_use]
    pub fn report(&self, end: u64) -> Report {
        Report {
            lost: self.sequence.missing_below(end),
            ..self.report
        }
    }

    fn judge(&mut self, unwrapped: Result<&[u8], Verdict>, bytes: usize) -> Verdict {
        let verdict = match unwrapped.map(check_payload) {
            Err(verdict) => verdict,
            Ok(Err(offset)) => Verdict::Corrupt(Fault::Payload(offset)),
            Ok(Ok(sequence)) => match self.sequence.see(sequence) {
                Seen::InOrder => Verdict::Good,
                Seen::Late => Verdict::Reordered,
                Seen::Again => Verdict::Duplicate,
            },
        };
        self.count(verdict, bytes);
        verdict
    }

    fn count(&mut self, verdict: Verdict, bytes: usize) {
        let report = &mut self.report;
        let new = matches!(verdict, Verdict::Good | Verdict::Reordered);
        report.received += u64::from(new);
        report.bytes += if new { bytes as u64 } else { 0 };
        match verdict {
            Verdict::Good => {}
            Verdict::Reordered => report.reordered += 1,
            Verdict::Duplicate => report.duplicated += 1,
            Verdict::Foreign => report.foreign += 1,
            Verdict::Corrupt(fault) => {
                report.corrupt += 1;
                report.first_fault.get_or_insert(fault);
            }
        }
    }

    /// The payload of a frame of this flow.
    fn unwrap<'a>(&self, frame: &'a [u8]) -> Result<&'a [u8], Verdict> {
        let mut expected = [0; ETHERNET_BYTES];
        self.flow.write_ethernet(&mut expected);
        let packet = frame.strip_prefix(&expected[..]).ok_or(Verdict::Foreign)?;
        match self.flow.wrapping {
            Wrapping::Raw => Ok(packet),
            Wrapping::Udp => self.unwrap_udp(packet),
        }
    }

    /// Addresses, ports and protocol are compared; every other header byte is covered by a checksum.
    fn unwrap_udp<'a>(&self, packet: &'a [u8]) -> Result<&'a [u8], Verdict> {
        let (ip, segment) = packet
            .split_at_checked(IPV4_BYTES)
            .ok_or(Verdict::Foreign)?;
        let (udp, payload) = segment
            .split_at_checked(UDP_BYTES)
            .ok_or(Verdict::Foreign)?;
        if !self.is_ours(ip, udp) {
            return Err(Verdict::Foreign);
        }
        let corrupt = |fault| Err(Verdict::Corrupt(fault));
        if Sum::of(ip).checksum() != 0 {
            return corrupt(Fault::Ipv4Checksum);
        }
        if big_endian(&ip[2..]) != packet.len() || big_endian(&udp[4..]) != segment.len() {
            return corrupt(Fault::Length);
        }
        if big_endian(&udp[6..]) != 0 && self.udp_checksum(segment) != 0 {
            return corrupt(Fault::UdpChecksum);
        }
        Ok(payload)
    }

    fn is_ours(&self, ip: &[u8], udp: &[u8]) -> bool {
        let (source, destination) = (&self.flow.source, &self.flow.destination);
        ip[0] == 0x45
            && ip[9] == PROTOCOL_UDP
            && ip[12..16] == source.ip.octets()
            && ip[16..20] == destination.ip.octets()
            && udp[..2] == source.port.to_be_bytes()
            && udp[2..4] == destination.port.to_be_bytes()
    }

    fn udp_checksum(&self, segment: &[u8]) -> u16 {
        let length = u16::try_from(segment.len()).unwrap_or(u16::MAX);
        let pseudo = Sum::pseudo(self.flow.source.ip, self.flow.destination.ip, length);
        pseudo.and(Sum::of(segment)).checksum()
    }
}

/// The number in the first two bytes.
fn big_endian(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}
