//! What real frontends send, in their order.

use vhost::vhost_user::message::FrontendReq as Request;

use crate::frontend::{
    Bytes, MEMORY, NEED_REPLY, PROTOCOL, VERSION_1, addresses, borrowed, event, memory, state,
    table,
};
use crate::harness::Daemon;

const PROTOCOL_FEATURES: u64 = 0x8009;

fn number(bytes: &mut Bytes, request: Request) -> u64 {
    u64::from_ne_bytes(bytes.ask(request, &[]).try_into().expect("an u64"))
}

fn descriptor(bytes: &mut Bytes, request: Request, flags: u32, ring: u64) {
    bytes.send_with(
        request.into(),
        flags,
        &ring.to_ne_bytes(),
        &borrowed(&[event()]),
    );
}

/// As QEMU 7.2.22 was seen to do with two pairs; `newer` ones wait for the answer to each early SET_VRING_ENABLE.
fn qemu(newer: bool) {
    let daemon = Daemon::start();
    let mut qemu = Bytes::new(daemon.connect());
    for pair in 0..2u64 {
        assert_ne!(number(&mut qemu, Request::GET_FEATURES) & PROTOCOL, 0);
        assert_eq!(
            number(&mut qemu, Request::GET_PROTOCOL_FEATURES),
            PROTOCOL_FEATURES
        );
        qemu.send(
            Request::SET_PROTOCOL_FEATURES,
            0,
            &PROTOCOL_FEATURES.to_ne_bytes(),
        );
        if pair == 0 {
            assert_eq!(
                number(&mut qemu, Request::GET_QUEUE_NUM),
                2,
                "QEMU counts pairs"
            );
        }
        assert_eq!(number(&mut qemu, Request::GET_MAX_MEM_SLOTS), 509);
        if pair == 0 {
            qemu.send(Request::SET_OWNER, 0, &[]);
        }
        number(&mut qemu, Request::GET_FEATURES);
        for ring in [2 * pair, 2 * pair + 1] {
            descriptor(&mut qemu, Request::SET_VRING_CALL, 0, ring);
            descriptor(&mut qemu, Request::SET_VRING_ERR, 0, ring);
        }
    }
    for _ in 0..5 {
        for (ring, value) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
            if newer {
                let sent = qemu.acknowledged(Request::SET_VRING_ENABLE, &state(ring, value));
                assert_eq!(sent, Some(0), "answered at once");
            } else {
                qemu.send(Request::SET_VRING_ENABLE, 0, &state(ring, value));
            }
        }
    }
    qemu.send(
        Request::SET_FEATURES,
        0,
        &(VERSION_1 | PROTOCOL).to_ne_bytes(),
    );
    for (start, file) in [(0, memory(MEMORY)), (MEMORY, memory(MEMORY))] {
        let body = [vec![0; 8], table(&[(start, MEMORY)])[8..].to_vec()].concat();
        let added = qemu.acknowledged_with(Request::ADD_MEM_REG, &body, &borrowed(&[file]));
        assert_eq!(
            added,
            Some(0),
            "nothing of the replayed messages answers in its place"
        );
    }
    for ring in [0u32, 1] {
        qemu.send(Request::SET_VRING_NUM, 0, &state(ring, 256));
        qemu.send(Request::SET_VRING_BASE, 0, &state(ring, 0));
        qemu.send(Request::SET_VRING_ADDR, 0, &addresses(ring as usize));
        descriptor(&mut qemu, Request::SET_VRING_KICK, 0, ring.into());
        descriptor(&mut qemu, Request::SET_VRING_CALL, 0, ring.into());
    }
    for ring in [0, 1] {
        let base = qemu.ask(Request::GET_VRING_BASE, &state(ring, 0));
        assert_eq!(base, state(ring, 4711));
    }
    qemu.send(Request::SET_VRING_ENABLE, 0, &state(0, 1));
    number(&mut qemu, Request::GET_FEATURES);
    let lines = daemon.book.lines();
    let index = |wanted: &str| {
        lines
            .iter()
            .position(|line| line.starts_with(wanted))
            .expect(wanted)
    };
    assert!(index("0: set features") < index("0: enable rx"));
    assert!(
        index("0: enable tx") < index("1: disable rx"),
        "in the order of the rings: {lines:#?}"
    );
    let enables = lines.iter().filter(|line| line.starts_with("0: enable rx"));
    assert_eq!(enables.count(), 2, "the early ones once, the late one");
}

#[test]
fn qemu_enables_rings_before_it_sets_features() {
    qemu(false);
}

#[test]
fn newer_qemu_waits_for_the_answer_to_its_early_enable() {
    qemu(true);
}

/// As cloud-hypervisor v54 does: claims first, NEED_REPLY from the negotiation on.
#[test]
fn cloud_hypervisor_counts_rings_and_wants_every_answer() {
    let daemon = Daemon::start();
    let mut vmm = Bytes::new(daemon.connect());
    vmm.send(Request::SET_OWNER, 0, &[]);
    let features = number(&mut vmm, Request::GET_FEATURES);
    assert_ne!(
        features & 1 << 17,
        0,
        "CTRL_VQ, or the guest has no control queue"
    );
    assert_eq!(
        number(&mut vmm, Request::GET_PROTOCOL_FEATURES),
        PROTOCOL_FEATURES
    );
    vmm.send(
        Request::SET_PROTOCOL_FEATURES,
        0,
        &PROTOCOL_FEATURES.to_ne_bytes(),
    );
    vmm.send(Request::GET_QUEUE_NUM, NEED_REPLY, &[]);
    assert_eq!(
        vmm.reply(Request::GET_QUEUE_NUM.into()),
        Some(4u64.to_ne_bytes().to_vec())
    );
    assert_eq!(
        vmm.acknowledged(Request::SET_FEATURES, &features.to_ne_bytes()),
        Some(0)
    );
    let file = memory(MEMORY);
    let mapped = vmm.acknowledged_with(
        Request::SET_MEM_TABLE,
        &table(&[(0, MEMORY)]),
        &borrowed(&[file]),
    );
    assert_eq!(mapped, Some(0));
    for ring in 0..4u32 {
        assert_eq!(
            vmm.acknowledged(Request::SET_VRING_NUM, &state(ring, 256)),
            Some(0)
        );
    }
    for ring in 0..4u32 {
        assert_eq!(
            vmm.acknowledged(Request::SET_VRING_ADDR, &addresses(ring as usize)),
            Some(0)
        );
        assert_eq!(
            vmm.acknowledged(Request::SET_VRING_BASE, &state(ring, 0)),
            Some(0)
        );
        for request in [Request::SET_VRING_CALL, Request::SET_VRING_KICK] {
            let body = u64::from(ring).to_ne_bytes();
            assert_eq!(
                vmm.acknowledged_with(request, &body, &borrowed(&[event()])),
                Some(0)
            );
        }
    }
    for ring in 0..4u32 {
        assert_eq!(
            vmm.acknowledged(Request::SET_VRING_ENABLE, &state(ring, 1)),
            Some(0)
        );
    }
    // Pause, resume, reset.
    for (ring, value) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0)] {
        assert_eq!(
            vmm.acknowledged(Request::SET_VRING_ENABLE, &state(ring, value)),
            Some(0)
        );
    }
    vmm.send(Request::GET_VRING_BASE, NEED_REPLY, &state(0, 0));
    assert_eq!(
        vmm.reply(Request::GET_VRING_BASE.into()),
        Some(state(0, 4711))
    );
    let lines = daemon.book.lines();
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains(": start "))
            .count(),
        4
    );
}

/// As DPDK 22.11's virtio-user was seen to do; older ones claim twice.
#[test]
fn virtio_user_calls_first_and_claims_twice() {
    let daemon = Daemon::with_pairs(1);
    let mut dpdk = Bytes::new(daemon.connect());
    dpdk.send(Request::SET_OWNER, 0, &[]);
    number(&mut dpdk, Request::GET_FEATURES);
    number(&mut dpdk, Request::GET_PROTOCOL_FEATURES);
    dpdk.send(Request::SET_PROTOCOL_FEATURES, 0, &9u64.to_ne_bytes());
    dpdk.send(Request::SET_OWNER, 0, &[]);
    for ring in 0..2 {
        descriptor(&mut dpdk, Request::SET_VRING_CALL, 0, ring);
    }
    dpdk.send(
        Request::SET_FEATURES,
        0,
        &(VERSION_1 | PROTOCOL).to_ne_bytes(),
    );
    let file = memory(MEMORY);
    let mapped = dpdk.acknowledged_with(
        Request::SET_MEM_TABLE,
        &table(&[(0, MEMORY)]),
        &borrowed(&[file]),
    );
    assert_eq!(mapped, Some(0));
    for ring in 0..2u32 {
        dpdk.send(Request::SET_VRING_NUM, 0, &state(ring, 256));
        dpdk.send(Request::SET_VRING_BASE, 0, &state(ring, 0));
        dpdk.send(Request::SET_VRING_ADDR, 0, &addresses(ring as usize));
        descriptor(&mut dpdk, Request::SET_VRING_KICK, 0, ring.into());
    }
    for ring in 0..2 {
        dpdk.send(Request::SET_VRING_ENABLE, 0, &state(ring, 1));
    }
    dpdk.send(Request::RESET_OWNER, 0, &[]);
    dpdk.send(Request::SET_OWNER, 0, &[]);
    number(&mut dpdk, Request::GET_FEATURES);
    let lines = daemon.book.lines();
    let tail: Vec<_> = lines.iter().rev().take(2).rev().collect();
    assert_eq!(
        tail,
        ["0: disable rx", "0: disable tx"],
        "RESET_OWNER: {lines:#?}"
    );
}
