//! Frames that a veth delivers unfinished are finished as the kernel itself would have: its own segmentation and its own
//! checksums are what ours are compared with, byte by byte.
#![allow(clippy::cast_possible_truncation)] // of lengths made up here

mod rig;

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use rig::{
    Far, all_modes, enter_until, ethernet, in_namespace, packet_port, packet_socket, read_frames,
    read_next, sh,
};
use tapring_io::{Port, PortOptions, RxRead};

const ALL: [u8; 6] = [0xff; 6];

/// VIRTIO_NET_HDR_F_NEEDS_CSUM and VIRTIO_NET_HDR_GSO_*.
const NEEDS_CSUM: u8 = 1;
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP_L4: u8 = 5;

/// The far end, whose frames may ask for everything a header can say.
struct Sender(std::os::fd::OwnedFd);

impl Sender {
    fn new() -> Self {
        Self(packet_socket("v1").try_clone_socket().unwrap())
    }

    fn send(&self, asked: Asked, frame: &[u8]) {
        let mut bytes = vec![asked.flags, asked.gso_type];
        for word in [asked.headers, asked.size, asked.start, asked.offset] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(frame);
        rustix::net::send(&self.0, &bytes, rustix::net::SendFlags::empty()).unwrap();
    }
}

/// Before Linux 6.2 the header has no word for segments of UDP: to send them is EINVAL, and so is to receive them.
fn knows_udp_segments() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers = release.split(['.', '-']).take(2);
    let numbers: Vec<u32> = numbers
        .map(|number| number.trim().parse().unwrap())
        .collect();
    numbers >= vec![6, 2]
}

/// A header for [`Sender`].
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    flags: u8,
    gso_type: u8,
    headers: u16,
    size: u16,
    start: u16,
    offset: u16,
}

/// A packet with a partial checksum, to be cut where `size` is not zero.
#[derive(Clone, Copy, Debug)]
struct Packet {
    tags: usize,
    v6: bool,
    udp: bool,
    payload: usize,
    size: u16,
}

impl Packet {
    fn build(self) -> (Asked, Vec<u8>) {
        let mut frame = vec![2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 0x66];
        for tag in 0..self.tags {
            frame.extend([0x81, 0, 0x20, 5 + tag as u8]);
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        let transport = if self.udp { 8 } else { 32 };
        let length = transport + self.payload;
        let ip = frame.len();
        self.push_ip(&mut frame, length);
        let start = frame.len();
        let addresses = if self.v6 {
            ip + 8..start
        } else {
            ip + 12..start
        };
        let protocol = if self.udp { 17 } else { 6 };
        let pseudo = add(&frame[addresses], protocol + length as u32).to_be_bytes();
        frame.extend([0x1f, 0x90, 0x1f, 0x91]);
        if self.udp {
            frame.extend((length as u16).to_be_bytes());
            frame.extend(pseudo);
        } else {
            // Sequence number about to wrap; CWR, ACK, PSH and FIN; a timestamp.
            frame.extend([0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x80, 0x99, 1, 0]);
            frame.extend(pseudo);
            frame.extend([0, 0, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
        let asked = Asked {
            flags: NEEDS_CSUM,
            gso_type: match (self.size, self.udp, self.v6) {
                (0, ..) => 0,
                (_, true, _) => UDP_L4,
                (_, false, true) => TCPV6,
                (_, false, false) => TCPV4,
            },
            headers: frame.len() as u16,
            size: self.size,
            start: start as u16,
            offset: if self.udp { 6 } else { 16 },
        };
        frame.extend((0..self.payload).map(|at| (at * 31 % 251) as u8));
        (asked, frame)
    }

    fn push_ip(self, frame: &mut Vec<u8>, length: usize) {
        let protocol = if self.udp { 17 } else { 6 };
        if self.v6 {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((length as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        } else {
            let at = frame.len();
            frame.extend([0x45, 0]);
            frame.extend((20 + length as u16).to_be_bytes());
            frame.extend([
                0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]);
            let checksum = !add(&frame[at..], 0);
            frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

fn add(bytes: &[u8], with: u32) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.sum::<u32>() + with;
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Every kind, with sizes that leave a rest and that leave none.
fn packets() -> Vec<Packet> {
    let sizes = [
        (100, 0),
        (1, 0),
        (3000, 1000),
        (3001, 1000),
        (60_000, 1448),
        (2000, 9),
        (5, 8),
    ];
    let mut packets = Vec::new();
    for (tags, v6, udp) in (0..8).map(|bits| (bits & 1, bits & 2 != 0, bits & 4 != 0)) {
        packets.extend(sizes.map(|(payload, size)| Packet {
            tags,
            v6,
            udp,
            payload,
            size,
        }));
    }
    // The kernel takes no more than 128 datagrams at once, and no super-frame that is none.
    packets.retain(|it| it.size == 0 || it.payload > usize::from(it.size));
    packets.retain(|it| !it.udp || it.size == 0 || it.payload / usize::from(it.size) <= 64);
    packets.retain(|it| !it.udp || it.size == 0 || knows_udp_segments());
    packets
}

/// Has the far end do its own work, or leave it to us (what `ethtool -K v1 tx on|off` does).
fn set_offloads(on: bool) {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    #[repr(C)]
    struct Value(u32, u32);
    let mut value = Value(ETHTOOL_STXCSUM, u32::from(on));
    // SAFETY: plain old data for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = libc::c_char::from_ne_bytes([b'v']);
    request.ifr_name[1] = libc::c_char::from_ne_bytes([b'1']);
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: the ioctl reads a name and follows `ifru_data` to the two numbers that `value` is.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn segments_of(packet: Packet) -> usize {
    match packet.size {
        0 => 1,
        size => packet.payload.div_ceil(usize::from(size)),
    }
}

#[test]
fn frames_are_finished_exactly_as_the_kernel_finishes_them() {
    in_namespace(|| {
        rig::veth();
        for (mode, options) in all_modes() {
            let sender = Sender::new();
            let mut port = packet_port("v0", options.with_super_frames());
            for packet in packets() {
                let (asked, frame) = packet.build();
                let count = segments_of(packet);
                set_offloads(true);
                sender.send(asked, &frame);
                assert_eq!(read_next(&mut port), RxRead::Frame, "{mode} {packet:?}");
                assert_eq!(port.rx_held(), count, "one for all");
                let ours = read_frames(&mut port, count);
                set_offloads(false);
                sender.send(asked, &frame);
                let mut kernels = Vec::new();
                for _ in 0..count {
                    assert_eq!(read_next(&mut port), RxRead::Frame, "{mode} {packet:?}");
                    assert_eq!(port.rx_held(), 1, "each on its own");
                    kernels.extend(read_frames(&mut port, 1));
                }
                for (index, (ours, kernels)) in ours.iter().zip(&kernels).enumerate() {
                    assert!(
                        ours == kernels,
                        "{mode} {packet:?}, segment {index} of {count}:\n{:02x?}\n{:02x?}",
                        &ours[..ours.len().min(90)],
                        &kernels[..kernels.len().min(90)]
                    );
                }
            }
        }
    });
}

/// What really arrives: datagrams of a socket that leaves the cutting to others.
#[test]
fn what_a_socket_sends_arrives_in_segments_that_fit_the_mtu() {
    in_namespace(|| {
        rig::veth();
        sh("ip link set v1 mtu 1500");
        sh("ip addr add 10.0.0.1/24 dev v1");
        sh("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:77 dev v1 nud permanent");
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        socket.connect("10.0.0.2:9").unwrap();
        let size: libc::c_int = 1400;
        // SAFETY: the option reads an int.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                4,
            )
        };
        assert_eq!(set, 0);
        for (mode, options) in all_modes() {
            let mut port = packet_port("v0", options.with_super_frames());
            let payload: Vec<u8> = (0..56_100).map(|at| (at % 251) as u8).collect();
            socket.send(&payload).unwrap();
            if !knows_udp_segments() {
                assert_eq!(read_next(&mut port), RxRead::Unsupported, "{mode}");
                continue;
            }
            let frames = read_frames(&mut port, 41);
            assert!(frames.iter().all(|frame| frame.len() <= 1514), "{mode}");
            let received: Vec<u8> = frames.iter().flat_map(|it| it[42..].to_vec()).collect();
            assert!(received == payload, "{mode}");
        }
    });
}

/// A super-frame counts as what it stands for, and its slot is free when the last of it is gone.
#[test]
fn a_super_frame_is_held_and_discarded_like_the_frames_it_stands_for() {
    in_namespace(|| {
        rig::veth();
        for (mode, options) in all_modes() {
            let sender = Sender::new();
            let host = Far::end();
            let mut port = packet_port("v0", options.with_super_frames());
            let slots = port.rx_free();
            assert_eq!(slots, 16);
            let packet = Packet {
                tags: 0,
                v6: false,
                udp: false,
                payload: 10_000,
                size: 1000,
            };
            let (asked, frame) = packet.build();
            host.send(&ethernet(ALL, 1, 100));
            // Frames arrive in order: these have when the last one has.
            sender.send(asked, &frame);
            sender.send(asked, &frame);
            host.send(&ethernet(ALL, 2, 100));
            (0..2).for_each(|_| assert_eq!(read_next(&mut port), RxRead::Frame));
            port.rx_submit(2);
            assert_eq!(enter_until(&mut port, Port::rx_batch_done).frames, 2);
            assert_eq!((port.rx_held(), port.rx_free()), (22, slots - 4), "{mode}");
            assert_eq!(port.rx_front().unwrap()[12..], ethernet(ALL, 1, 100));
            port.rx_pop();
            for left in (0..10).rev() {
                assert_eq!(port.rx_front().unwrap().len(), 12 + 66 + 1000);
                port.rx_pop();
                assert_eq!(port.rx_held(), 11 + left);
            }
            assert_eq!(port.rx_free(), slots - 2);
            port.rx_pop();
            assert_eq!(port.rx_discard().held, 10);
            assert_eq!((port.rx_held(), port.rx_free()), (0, slots));
            sender.send(asked, &frame);
            assert_eq!(read_frames(&mut port, 10).len(), 10);
        }
    });
}

#[test]
fn a_super_frame_that_no_slot_can_hold_is_cut_and_counted() {
    in_namespace(|| {
        rig::veth();
        for (mode, options) in all_modes() {
            let sender = Sender::new();
            let mut port = packet_port("v0", options);
            let packet = Packet {
                tags: 0,
                v6: false,
                udp: false,
                payload: 60_000,
                size: 1448,
            };
            let (asked, frame) = packet.build();
            sender.send(asked, &frame);
            assert_eq!(read_next(&mut port), RxRead::Cut, "{mode}");
        }
    });
}

/// One that says to be a fragment, whose segments would be anything but TCP.
#[test]
fn what_cannot_be_finished_is_dropped_and_counted() {
    in_namespace(|| {
        rig::veth();
        for (mode, options) in all_modes() {
            let sender = Sender::new();
            let mut port = packet_port("v0", options.with_super_frames());
            let packet = Packet {
                tags: 0,
                v6: false,
                udp: false,
                payload: 3000,
                size: 1000,
            };
            let (asked, mut frame) = packet.build();
            frame[20] |= 0x20;
            sender.send(asked, &frame);
            assert_eq!(read_next(&mut port), RxRead::Unsupported, "{mode}");
            sender.send(asked, &frame);
            Far::end().send(&ethernet(ALL, 1, 100));
            port.rx_submit(4);
            let done = enter_until(&mut port, Port::rx_batch_done);
            assert_eq!((done.unsupported, done.frames, done.fault), (1, 1, None));
        }
    });
}

/// The kernel takes tags off all frames it receives, and a frame without its tag would be in another network.
#[test]
fn tags_come_and_go_with_their_frames() {
    in_namespace(|| {
        rig::veth();
        let tagged = |tags: &[[u8; 4]], number| {
            let plain = ethernet(ALL, number, 100);
            [&plain[..12], &tags.concat(), &plain[12..]].concat()
        };
        let frames = [
            tagged(&[[0x81, 0, 0x60, 9]], 0),
            tagged(&[], 1),
            tagged(&[[0x88, 0xa8, 0, 9], [0x81, 0, 0, 7]], 2),
            tagged(&[[0x81, 0, 0, 0]], 3),
            tagged(&[[0x81, 0, 0, 1], [0x81, 0, 0, 2]], 4),
        ];
        for (mode, options) in all_modes() {
            let mut near = packet_port("v0", options);
            let mut far = packet_port("v1", PortOptions::default());
            let with_header = |frame: &Vec<u8>| [&[0; 12], &frame[..]].concat();
            rig::submit_copies(&mut near, frames.iter().map(with_header));
            rig::outcomes(&mut near);
            assert_eq!(read_frames(&mut far, 5), frames, "{mode}, out");
            rig::submit_copies(&mut far, frames.iter().map(with_header));
            rig::outcomes(&mut far);
            assert_eq!(read_frames(&mut near, 5), frames, "{mode}, in");
        }
    });
}
