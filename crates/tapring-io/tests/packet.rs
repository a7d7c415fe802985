//! A packet socket on a veth: frames both ways, byte-exact and in order, and every way in which one cannot be opened.

mod rig;

use std::sync::Arc;

use rig::{
    Far, Host, all_modes, assert_no_io_wq, enter_until, ethernet, frame, in_namespace, index_of,
    outcomes, packet_port, packet_socket, read_frames, sh,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use tapring_io::{
    BATCH_FRAMES, Discarded, PacketError, PacketOptions, PacketSocket, Port, PortError,
    PortOptions, RxRead, TxOutcome,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const ALL: [u8; 6] = [0xff; 6];

/// Runs `test` in each mode, with a port on `v0` and a host on `v1`.
fn on_a_veth(test: impl Fn(&str, &mut Port, &Far) + Send + 'static) {
    in_namespace(move || {
        rig::veth();
        for (mode, options) in all_modes() {
            let host = Far::end();
            test(mode, &mut packet_port("v0", options), &host);
            assert_no_io_wq();
        }
    });
}

#[test]
fn copied_frames_arrive_byte_exact_and_in_order() {
    on_a_veth(|mode, port, host| {
        for round in 0..3 {
            let frames = (0..64).map(|at| frame(round * 64 + at, 60 + 60 * at as usize));
            assert_eq!(rig::submit_copies(port, frames), BATCH_FRAMES);
            assert_eq!(outcomes(port), [TxOutcome::Sent; BATCH_FRAMES], "{mode}");
            for at in 0..64 {
                assert_eq!(
                    host.receive(),
                    ethernet(ALL, round * 64 + at, 60 + 60 * at as usize),
                    "{mode}"
                );
            }
        }
    });
}

#[test]
fn gathered_frames_arrive_byte_exact_between_copied_ones() {
    on_a_veth(|mode, port, host| {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap());
        port.set_memory(Some(Arc::clone(&memory))).unwrap();
        let large = ethernet(ALL, 1, 9000);
        memory.write_slice(&large, GuestAddress(0x123)).unwrap();
        let part = |at: u64, len| memory.get_slice(GuestAddress(0x123 + at), len).unwrap();

        port.tx_copy(112).unwrap().copy_from_slice(&frame(0, 100));
        let parts = [(0, 1), (1, 13), (14, 0), (14, 4000), (4014, 4986)];
        let parts = parts.map(|(at, len)| part(at, len));
        port.tx_gather(&[0; 12], parts.into_iter()).unwrap();
        port.tx_copy(112).unwrap().copy_from_slice(&frame(2, 100));
        let bytes = (0..1023).map(|at| part(at, 1));
        port.tx_gather(&[0; 12], bytes).unwrap();
        assert!(matches!(port.set_memory(None), Err(PortError::MemoryBusy)));
        port.tx_submit();

        assert_eq!(outcomes(port), [TxOutcome::Sent; 4], "{mode}");
        assert_eq!(host.receive(), ethernet(ALL, 0, 100));
        assert!(host.receive() == large, "{mode}");
        assert_eq!(host.receive(), ethernet(ALL, 2, 100));
        assert!(host.receive() == large[..1023], "{mode}");
    });
}

#[test]
fn batches_bring_frames_byte_exact_and_in_order() {
    on_a_veth(|mode, port, host| {
        let sent = |number| ethernet(ALL, number, 60 + number as usize % 8900);
        (0..400).for_each(|number| host.send(&sent(number)));
        let read = read_frames(port, 400);
        for (number, read) in (0..).zip(read) {
            assert!(read == sent(number), "{mode}: frame {number}");
        }
        port.rx_submit(64);
        let rest = enter_until(port, Port::rx_batch_done);
        assert_eq!((rest.frames, rest.fault), (0, None), "{mode}");
        assert!(rest.empty > 0, "{mode}");
        assert_eq!(port.rx_free(), BATCH_FRAMES, "slots of this size are many");
    });
}

#[test]
fn single_reads_and_batches_keep_one_order() {
    on_a_veth(|mode, port, host| {
        assert_eq!(port.rx_read(), RxRead::Empty, "{mode}");
        (0..20).for_each(|number| host.send(&ethernet(ALL, number, 100)));
        (0..5).for_each(|_| assert_eq!(port.rx_read(), RxRead::Frame));
        port.rx_submit(10);
        assert_eq!(enter_until(port, Port::rx_batch_done).frames, 10, "{mode}");
        (0..5).for_each(|_| assert_eq!(port.rx_read(), RxRead::Frame));
        for number in 0..20 {
            assert_eq!(port.rx_front().unwrap()[12..], ethernet(ALL, number, 100));
            port.rx_pop();
        }
        assert_eq!(port.rx_read(), RxRead::Empty);
    });
}

/// PACKET_IGNORE_OUTGOING, which a guest on a bridge would otherwise learn its own address from, on the wrong side.
#[test]
fn what_is_sent_on_the_interface_is_not_received_back() {
    on_a_veth(|mode, port, host| {
        rig::submit_copies(port, (0..10).map(|number| frame(number, 100)));
        assert_eq!(outcomes(port), [TxOutcome::Sent; 10]);
        Host::on(index_of("v0")).send(&ethernet(ALL, 10, 100));
        (0..11).for_each(|number| assert_eq!(host.receive(), ethernet(ALL, number, 100)));
        assert_eq!(port.rx_read(), RxRead::Empty, "{mode}");
    });
}

/// The interface is promiscuous while the socket is open, and only then.
#[test]
fn frames_for_anybody_are_received() {
    on_a_veth(|mode, port, host| {
        let somebody = [2, 0, 0, 0, 0, 0x77];
        host.send(&ethernet(somebody, 1, 100));
        assert_eq!(read_frames(port, 1), [ethernet(somebody, 1, 100)], "{mode}");
        let shown = std::process::Command::new("ip")
            .args(["-d", "link", "show", "v0"])
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("promiscuity 1"), "{mode}: {shown}");
    });
}

/// MSG_TRUNC: the kernel says how long a frame was, and cuts it.
#[test]
fn a_frame_that_does_not_fit_its_slot_is_cut_and_dropped() {
    in_namespace(|| {
        rig::veth();
        for (mode, mut options) in all_modes() {
            options.slot_bytes = 500;
            let host = Far::end();
            let mut port = packet_port("v0", options);
            let fits = 500 - 6 - 10 - 1;
            for bytes in [fits, fits + 1, 9000, 60] {
                host.send(&ethernet(ALL, 9, bytes));
            }
            port.rx_submit(4);
            let done = enter_until(&mut port, Port::rx_batch_done);
            assert_eq!((done.frames, done.cut), (2, 2), "{mode}");
            assert_eq!(port.rx_front().unwrap()[12..], ethernet(ALL, 9, fits));
            port.rx_pop();
            assert_eq!(port.rx_front().unwrap()[12..], ethernet(ALL, 9, 60));
            host.send(&ethernet(ALL, 9, 501));
            assert_eq!(port.rx_read(), RxRead::Cut, "{mode}");
        }
    });
}

#[test]
fn a_frame_larger_than_the_mtu_costs_only_itself() {
    on_a_veth(|mode, port, host| {
        let sizes = [100, 3000, 100];
        sh("ip link set v0 mtu 1500");
        rig::submit_copies(port, sizes.iter().map(|bytes| frame(7, *bytes)));
        let too_long = TxOutcome::Refused(libc_emsgsize());
        assert_eq!(
            outcomes(port),
            [TxOutcome::Sent, too_long, TxOutcome::Sent],
            "{mode}"
        );
        (0..2).for_each(|_| assert_eq!(host.receive(), ethernet(ALL, 7, 100)));
        sh("ip link set v0 mtu 9000");
    });
}

fn libc_emsgsize() -> i32 {
    rustix::io::Errno::MSGSIZE.raw_os_error()
}

#[test]
fn making_a_port_takes_no_frame() {
    in_namespace(|| {
        rig::veth();
        let socket = packet_socket("v0");
        let host = Far::end();
        (0..3).for_each(|number| host.send(&ethernet(ALL, number, 100)));
        let fd = socket.try_clone_socket().unwrap();
        let mut port = Port::new(fd, PortOptions::default()).unwrap();
        assert!(port.describe().nowait && port.describe().packet_socket);
        let expected: Vec<_> = (0..3).map(|number| ethernet(ALL, number, 100)).collect();
        assert_eq!(read_frames(&mut port, 3), expected);
    });
}

#[test]
fn discarding_empties_the_slots_and_the_socket() {
    on_a_veth(|mode, port, host| {
        (0..300).for_each(|number| host.send(&ethernet(ALL, number, 100)));
        port.rx_submit(40);
        assert_eq!(enter_until(port, Port::rx_batch_done).frames, 40);
        port.rx_submit(16);
        let discarded = port.rx_discard();
        let all = Discarded {
            held: 56,
            queued: 244,
        };
        assert_eq!(discarded, all, "{mode}");
        assert_eq!(port.rx_read(), RxRead::Empty);
        host.send(&ethernet(ALL, 7, 100));
        assert_eq!(read_frames(port, 1), [ethernet(ALL, 7, 100)]);
    });
}

#[test]
fn what_finds_no_room_in_the_socket_is_counted() {
    in_namespace(|| {
        rig::veth();
        let socket = packet_socket("v0");
        let host = Far::end();
        let (room, asked) = socket.receive_buffer().unwrap();
        assert_eq!(room, asked, "this test has all rights");
        let frames = 10_000;
        (0..frames).for_each(|number| host.send(&ethernet(ALL, number, 60)));
        let dropped = socket.take_drops().unwrap();
        let fd = socket.try_clone_socket().unwrap();
        let mut port = Port::new(fd, PortOptions::default()).unwrap();
        let queued = u32::try_from(port.rx_discard().queued).unwrap();
        assert_eq!(queued + dropped, frames);
        assert!(queued > 1000 && dropped > 0, "{queued} + {dropped}");
        assert_eq!(socket.take_drops().unwrap(), 0);
    });
}

fn open(name: &str) -> Result<PacketSocket, PacketError> {
    PacketSocket::open(&PacketOptions {
        name: name.into(),
        qdisc_bypass: false,
    })
}

#[test]
fn an_interface_that_will_not_do_is_refused_with_its_name() {
    in_namespace(|| {
        let missing = open("v0").unwrap_err();
        assert!(
            matches!(missing, PacketError::Missing { .. }),
            "{missing:?}"
        );
        assert!(missing.to_string().contains("`v0` does not exist"));
        let lo = open("lo").unwrap_err();
        assert!(
            matches!(lo, PacketError::NotEthernet { link_type: 772, .. }),
            "{lo:?}"
        );
        sh("ip tuntap add tun0 mode tun");
        assert!(matches!(open("tun0"), Err(PacketError::NotEthernet { .. })));
        assert!(matches!(open("a/b"), Err(PacketError::Name { .. })));

        let socket = rustix::net::socket(
            rustix::net::AddressFamily::PACKET,
            rustix::net::SocketType::RAW,
            None,
        );
        let bare = Port::new(socket.unwrap(), PortOptions::default());
        assert!(matches!(bare, Err(PortError::NoHeaders { .. })));
    });
}

#[test]
fn an_interface_that_is_down_can_be_opened_and_comes_up() {
    in_namespace(|| {
        sh("ip link add v0 type veth peer name v1");
        let socket = packet_socket("v0");
        assert!(!socket.is_up().unwrap());
        assert_eq!(socket.mtu().unwrap(), 1500);
        let fd = socket.try_clone_socket().unwrap();
        let mut port = Port::new(fd, PortOptions::default()).unwrap();
        rig::submit_copies(&mut port, (0..2).map(|number| frame(number, 100)));
        assert_eq!(outcomes(&mut port), [TxOutcome::Down; 2]);
        sh("ip link set v0 up");
        sh("ip link set v1 up");
        rig::wait_running("v0");
        let host = Far::end();
        rig::submit_copies(&mut port, (2..4).map(|number| frame(number, 100)));
        assert_eq!(outcomes(&mut port), [TxOutcome::Sent; 2]);
        assert_eq!(host.numbers(2), [2, 3]);
    });
}

#[test]
fn without_capabilities_there_is_no_packet_socket() {
    in_namespace(|| {
        sh("ip link add v0 type veth peer name v1");
        // Capabilities belong to a thread, and this one is the test's own.
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).unwrap();
        let error = open("v0").unwrap_err();
        assert!(matches!(error, PacketError::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    });
}

#[test]
fn past_the_queueing_discipline_frames_arrive_all_the_same() {
    in_namespace(|| {
        rig::veth();
        // Nothing passes this one.
        sh("tc qdisc add dev v0 root tbf rate 8bit burst 10 limit 10000");
        let host = Far::end();
        let options = PacketOptions {
            name: "v0".into(),
            qdisc_bypass: true,
        };
        let socket = PacketSocket::open(&options).unwrap();
        let fd = socket.try_clone_socket().unwrap();
        let mut port = Port::new(fd, PortOptions::default()).unwrap();
        rig::submit_copies(&mut port, (0..64).map(|number| frame(number, 100)));
        assert_eq!(outcomes(&mut port), [TxOutcome::Sent; 64]);
        assert_eq!(host.numbers(64), (0..64).collect::<Vec<_>>());
    });
}
