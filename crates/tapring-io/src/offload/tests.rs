#![allow(clippy::cast_possible_truncation)] // of numbers made up here

use super::*;

/// RFC 1071 as it is written, to check against: 0 for what adds up.
fn adds_up(bytes: impl IntoIterator<Item = u8>) -> bool {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

/// A super-frame in the making.
#[derive(Clone, Copy)]
struct Made {
    tags: usize,
    v6: bool,
    udp: bool,
    payload: usize,
    size: u16,
}

impl Made {
    fn ip_at(self) -> usize {
        14 + 4 * self.tags
    }

    fn transport_at(self) -> usize {
        self.ip_at() + if self.v6 { 40 } else { 20 }
    }

    /// TCP has 12 bytes of options.
    fn headers(self) -> usize {
        self.transport_at() + if self.udp { 8 } else { 32 }
    }

    fn asked(self) -> Asked {
        Asked {
            flags: NEEDS_CSUM,
            gso_type: match (self.udp, self.v6) {
                (true, _) => GSO_UDP_L4,
                (_, true) => GSO_TCPV6,
                (_, false) => GSO_TCPV4,
            },
            gso_size: self.size,
            csum_start: self.transport_at() as u16,
            csum_offset: if self.udp { 6 } else { 16 },
        }
    }

    fn frame(self) -> Vec<u8> {
        let mut frame = vec![0x22; 12];
        for tag in 0..self.tags {
            frame.extend([0x81, 0, 0, tag as u8]);
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        let protocol = if self.udp { 17 } else { 6 };
        if self.v6 {
            frame.extend([0x60, 0, 0, 0, 0xff, 0xff, protocol, 64]);
            frame.extend((1..33).map(|n| n * 7));
        } else {
            frame.extend([0x45, 0, 0xff, 0xff, 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend([0x1f, 0x90, 0x00, 0x50]);
        if self.udp {
            frame.extend([0xff, 0xff, 0xab, 0xcd]);
        } else {
            // Sequence number just below its end; CWR, PSH, ACK and FIN; a timestamp.
            frame.extend([
                0xff, 0xff, 0xff, 0x00, 0, 0, 0, 9, 0x80, 0x99, 1, 0, 0xab, 0xcd,
            ]);
            frame.extend([0, 0, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert_eq!(frame.len(), self.headers());
        frame.extend((0..self.payload).map(|at| (at * 31 % 251) as u8));
        frame
    }
}

/// Cuts it in place and returns the segments, each looked at before the next is made.
fn cut(made: Made) -> Vec<Vec<u8>> {
    let mut frame = made.frame();
    let segments = finish(&mut frame, &made.asked()).unwrap().unwrap();
    let headers = segments.headers(&frame).to_vec();
    let cut = (0..segments.count()).map(|index| {
        let range = segments.write(&headers, &mut frame, index);
        frame[range].to_vec()
    });
    cut.collect()
}

fn check_ip(made: Made, index: usize, segment: &[u8]) {
    let ip = &segment[made.ip_at()..];
    let length = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
    if made.v6 {
        assert_eq!(length(4), ip.len() - 40);
    } else {
        assert_eq!(length(2), ip.len());
        assert_eq!(length(4) as u16, 0xfffe_u16.wrapping_add(index as u16));
        assert!(adds_up(ip[..20].iter().copied()), "header of {index}");
    }
}

fn check_transport(made: Made, segment: &[u8]) {
    let addresses = if made.v6 { 8..40 } else { 12..20 };
    let addresses = segment[made.ip_at()..][addresses].iter().copied();
    let transport = &segment[made.transport_at()..];
    let length = (transport.len() as u32).to_be_bytes();
    let protocol = [0, 0, 0, if made.udp { 17 } else { 6 }];
    let pseudo = addresses.chain(length).chain(protocol);
    assert!(adds_up(pseudo.chain(transport.iter().copied())));
    if made.udp {
        let length = u16::from_be_bytes([transport[4], transport[5]]);
        assert_eq!(usize::from(length), transport.len());
    }
}

fn every_kind() -> impl Iterator<Item = Made> {
    let sizes = [
        (1, 1),
        (1, 8),
        (536, 4000),
        (1448, 65_000),
        (9000, 9000),
        (1448, 7),
        (100, 201),
    ];
    let kinds =
        [0, 1, 2].map(|tags| [false, true].map(|v6| [false, true].map(|udp| (tags, v6, udp))));
    let kinds = kinds.into_iter().flatten().flatten();
    kinds.flat_map(move |(tags, v6, udp)| {
        sizes.map(move |(size, payload)| Made {
            tags,
            v6,
            udp,
            payload,
            size,
        })
    })
}

#[test]
fn segments_are_whole_packets_and_carry_the_payload_in_order() {
    for made in every_kind() {
        let segments = cut(made);
        let size = usize::from(made.size);
        assert_eq!(segments.len(), made.payload.div_ceil(size));
        for (index, segment) in segments.iter().enumerate() {
            assert_eq!(segment[..12], [0x22; 12]);
            check_ip(made, index, segment);
            check_transport(made, segment);
        }
        let payloads: Vec<u8> = segments
            .iter()
            .flat_map(|segment| segment[made.headers()..].to_vec())
            .collect();
        assert!(payloads == made.frame()[made.headers()..]);
    }
}

#[test]
fn tcp_counts_on_and_keeps_its_flags_where_they_belong() {
    let made = Made {
        tags: 0,
        v6: false,
        udp: false,
        payload: 1000,
        size: 400,
    };
    let segments = cut(made);
    let fields = segments.iter().map(|segment| {
        let tcp = &segment[made.transport_at()..];
        (
            u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
            tcp[13],
        )
    });
    // 0x80 CWR, 0x10 ACK, 0x08 PSH, 0x01 FIN
    let expected = [(0xffff_ff00, 0x90), (0x90, 0x10), (0x220, 0x19)];
    assert!(fields.eq(expected));
    assert!(
        segments
            .iter()
            .all(|segment| segment[54..66] == segments[0][54..66])
    );
}

#[test]
fn what_is_not_understood_is_not_touched() {
    let made = Made {
        tags: 0,
        v6: false,
        udp: false,
        payload: 3000,
        size: 1000,
    };
    let asked = made.asked();
    let tunnel = Asked {
        csum_start: 84,
        ..asked
    };
    let other = |gso_type| Asked { gso_type, ..asked };
    let wrong = [
        tunnel,
        other(GSO_TCPV6),
        other(GSO_UDP_L4),
        other(3),
        other(0x20 | GSO_TCPV4),
        Asked { flags: 0, ..asked },
        Asked {
            gso_size: 0,
            ..asked
        },
    ];
    for asked in wrong {
        let mut frame = made.frame();
        assert_eq!(finish(&mut frame, &asked), Err(Unsupported), "{asked:?}");
        assert!(frame == made.frame());
    }
    let ecn = other(GSO_ECN | GSO_TCPV4);
    assert!(finish(&mut made.frame(), &ecn).is_ok());
}

#[test]
fn no_frame_however_short_or_strange_is_read_beyond_its_end() {
    for made in every_kind().filter(|made| made.payload < 10) {
        let whole = made.frame();
        for len in 0..whole.len() {
            let mut frame = whole[..len].to_vec();
            let _ = finish(&mut frame, &made.asked());
        }
        for (at, byte) in (0..made.headers()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
            let mut frame = whole.clone();
            frame[at] = byte;
            if let Ok(Some(segments)) = finish(&mut frame, &made.asked()) {
                let headers = segments.headers(&frame).to_vec();
                (0..segments.count()).for_each(|index| {
                    segments.write(&headers, &mut frame, index);
                });
            }
        }
    }
}

#[test]
fn a_header_is_read_in_the_order_of_this_machine() {
    let mut header = [1, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    header[4..6].copy_from_slice(&1448_u16.to_ne_bytes());
    header[6..8].copy_from_slice(&34_u16.to_ne_bytes());
    header[8..10].copy_from_slice(&16_u16.to_ne_bytes());
    let asked = Asked::read(&header);
    assert_eq!((asked.gso_size, asked.gso_type), (1448, GSO_TCPV6));
    assert_eq!(asked.moved(4).checksum(), (38, 16));
    assert!(!asked.is_nothing());
    assert!(
        Asked::read(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_nothing(),
        "DATA_VALID"
    );
}
