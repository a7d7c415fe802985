//! Messages that are wrong: an error reply or the end of that session, and nothing else.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vhost::VhostBackend;
use vhost::vhost_user::message::FrontendReq as Request;

use crate::frontend::{
    Bytes, Guest, MEMORY, borrowed, event, memory, packed, send_bytes, state, table,
};
use crate::harness::{Daemon, MAX_RING};

/// What it is, request, flags, body, descriptors.
type Case = (&'static str, u32, u32, Vec<u8>, Vec<OwnedFd>);

/// A new session works from end to end.
fn works(daemon: &Daemon) {
    let guest = Guest::start(daemon.connect(), 4);
    guest.frontend.get_vring_base(0).expect("a whole session");
}

#[test]
fn ring_sizes_are_refused_and_the_session_goes_on() {
    let daemon = Daemon::start();
    let mut bytes = Bytes::negotiated(daemon.connect());
    let mut size = |size| bytes.acknowledged(Request::SET_VRING_NUM, &state(0, size));
    for bad in [0, 3, 100, 2 * u32::from(MAX_RING), 4096, 32768, 65536] {
        assert_eq!(size(bad), Some(1), "{bad}");
    }
    for good in [1, 2, 256, MAX_RING.into()] {
        assert_eq!(size(good), Some(0), "{good}");
    }
}

#[test]
fn a_bad_ring_size_without_an_answer_ends_the_session() {
    let daemon = Daemon::start();
    let mut bytes = Bytes::negotiated(daemon.connect());
    bytes.send(Request::SET_VRING_NUM, 0, &state(0, 100));
    bytes.closed();
    works(&daemon);
}

#[test]
fn ring_indices_are_refused_with_all_their_bits() {
    let daemon = Daemon::start();
    let mut bytes = Bytes::negotiated(daemon.connect());
    for ring in [4u32, 255, 0x10000, 0x10001, u32::MAX] {
        for request in [
            Request::SET_VRING_NUM,
            Request::SET_VRING_BASE,
            Request::SET_VRING_ENABLE,
        ] {
            assert_eq!(
                bytes.acknowledged(request, &state(ring, 1)),
                Some(1),
                "{request:?} {ring}"
            );
        }
        let addr = [ring.to_ne_bytes().to_vec(), vec![0; 36]].concat();
        assert_eq!(bytes.acknowledged(Request::SET_VRING_ADDR, &addr), Some(1));
    }
    for ring in [4u64, 255, 0x10000, 0x10001, 0xffff_fe00] {
        for request in [
            Request::SET_VRING_KICK,
            Request::SET_VRING_CALL,
            Request::SET_VRING_ERR,
        ] {
            let answer =
                bytes.acknowledged_with(request, &ring.to_ne_bytes(), &borrowed(&[event()]));
            assert_eq!(answer, Some(1), "{request:?} {ring}");
        }
    }
    assert_eq!(
        bytes.acknowledged(Request::SET_VRING_ENABLE, &state(0, 2)),
        Some(1)
    );
    let started = daemon.book.lines();
    assert!(
        started
            .iter()
            .all(|line| line.contains("begin") || line.contains("features")),
        "{started:#?}"
    );
}

#[test]
fn features_that_were_not_offered_are_refused_one_by_one() {
    let daemon = Daemon::start();
    let mut bytes = Bytes::negotiated(daemon.connect());
    let offered = u64::from_ne_bytes(
        bytes
            .ask(Request::GET_FEATURES, &[])
            .try_into()
            .expect("an u64"),
    );
    for bit in (0..64).map(|shift| 1u64 << shift) {
        let answer = bytes.acknowledged(
            Request::SET_FEATURES,
            &(1 << 32 | 1 << 30 | bit).to_ne_bytes(),
        );
        let expected = u64::from(offered & bit == 0);
        assert_eq!(answer, Some(expected), "{bit:#x}");
    }
}

#[test]
fn what_cannot_be_answered_ends_that_session_only() {
    let daemon = Daemon::start();
    let socket = || UnixStream::pair().expect("socket pair").0.into();
    let cases: [Case; 14] = [
        ("request 0", 0, 1, vec![], vec![]),
        ("request 45", 45, 1, vec![], vec![]),
        ("request 200", 200, 0x9, vec![], vec![]),
        ("request 0xffffffff", u32::MAX, 1, vec![], vec![]),
        ("version 0", 1, 0, vec![], vec![]),
        ("version 3", 1, 3, vec![], vec![]),
        ("a reply", 1, 5, vec![], vec![]),
        ("reserved flags", 1, 0x101, vec![], vec![]),
        (
            "a body too short",
            Request::SET_VRING_NUM.into(),
            0x9,
            vec![0; 4],
            vec![],
        ),
        (
            "a body too long",
            Request::SET_VRING_NUM.into(),
            0x9,
            vec![0; 4096],
            vec![],
        ),
        (
            "a kick that is a socket",
            Request::SET_VRING_KICK.into(),
            0x9,
            vec![0; 8],
            vec![socket()],
        ),
        (
            "no kick",
            Request::SET_VRING_KICK.into(),
            0x9,
            vec![0; 8],
            vec![],
        ),
        ("descriptors with a question", 1, 1, vec![], vec![event()]),
        (
            "a base of ring 4",
            Request::GET_VRING_BASE.into(),
            0x9,
            state(4, 0),
            vec![],
        ),
    ];
    for (what, request, flags, body, descriptors) in cases {
        let mut bytes = Bytes::negotiated(daemon.connect());
        send_bytes(
            &bytes.0,
            &packed(request, flags, &body),
            &borrowed(&descriptors),
        );
        bytes.closed();
        let lines = daemon.book.lines();
        assert!(
            lines.last().is_some_and(|line| line.ends_with("reset")),
            "{what}: {lines:#?}"
        );
    }
    works(&daemon);
}

#[test]
fn sizes_that_are_announced_are_not_believed() {
    let daemon = Daemon::start();
    for size in [4097, u32::MAX] {
        let mut bytes = Bytes::negotiated(daemon.connect());
        let head = [Request::SET_VRING_NUM.into(), 1, size]
            .map(u32::to_ne_bytes)
            .concat();
        send_bytes(&bytes.0, &head, &[]);
        bytes.closed();
    }
    works(&daemon);
}

#[test]
fn an_end_in_mid_message_is_an_end() {
    let daemon = Daemon::start();
    let whole = packed(Request::SET_MEM_TABLE.into(), 1, &table(&[(0, MEMORY)]));
    for bytes in [1, 11, 12, 20, whole.len() - 1] {
        let stream = daemon.connect();
        send_bytes(&stream, &whole[..bytes], &borrowed(&[memory(MEMORY)]));
        drop(stream);
    }
    daemon.book.wait("1: reset", 5);
    works(&daemon);
}

#[test]
fn slow_senders_are_understood() {
    let daemon = Daemon::start();
    let mut bytes = Bytes::negotiated(daemon.connect());
    let pause = Duration::from_millis(5);
    bytes.dribble(Request::SET_VRING_NUM, 0x8, &state(0, 256), pause);
    assert_eq!(bytes.reply(Request::SET_VRING_NUM.into()), Some(vec![0; 8]));

    // A body long after its header and its descriptor.
    let message = packed(Request::SET_MEM_TABLE.into(), 0x9, &table(&[(0, MEMORY)]));
    send_bytes(&bytes.0, &message[..12], &borrowed(&[memory(MEMORY)]));
    std::thread::sleep(Duration::from_millis(300));
    send_bytes(&bytes.0, &message[12..], &[]);
    assert_eq!(bytes.reply(Request::SET_MEM_TABLE.into()), Some(vec![0; 8]));
}

#[test]
fn optional_requests_do_not_cost_the_guest_its_card() {
    let daemon = Daemon::start();
    let mut bytes = Bytes::negotiated(daemon.connect());
    for request in [
        Request::SEND_RARP,
        Request::NET_SET_MTU,
        Request::SET_STATUS,
    ] {
        bytes.send(request, 0, &[0; 8]);
        assert_eq!(bytes.acknowledged(request, &[0; 8]), Some(1));
    }
    assert_eq!(
        bytes.acknowledged(Request::SET_VRING_NUM, &state(0, 256)),
        Some(0)
    );
}
