//! What workers are told for what a frontend does.

use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::FrontendReq;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

use crate::frontend::{
    Bytes, Guest, MEMORY, PROTOCOL, REPLY_ACK, VERSION_1, addresses, areas, borrowed, config,
    event, memory, state, table,
};
use crate::harness::Daemon;
use crate::worker::POSITION;

fn of_pair(daemon: &Daemon, pair: usize) -> Vec<String> {
    let prefix = format!("{pair}: ");
    let lines = daemon.book.lines();
    lines
        .iter()
        .filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
        .collect()
}

#[test]
fn every_transition_reaches_the_ring_s_worker_in_order() {
    let daemon = Daemon::start();
    let guest = Guest::start(daemon.connect(), 4);
    let start = |direction: &str, ring| {
        let [desc, avail, used] = areas(ring);
        format!("start {direction} size 256 desc {desc:#x} avail {avail:#x} used {used:#x} next 0")
    };
    let expected = |rx, tx| {
        vec![
            "begin".to_owned(),
            "set features 0x140000000".to_owned(),
            format!("set memory {MEMORY:#x}"),
            "set call rx true".to_owned(),
            "set kick rx true".to_owned(),
            start("rx", rx),
            "set call tx true".to_owned(),
            "set kick tx true".to_owned(),
            start("tx", tx),
            "enable rx".to_owned(),
            "enable tx".to_owned(),
        ]
    };
    assert_eq!(of_pair(&daemon, 0), expected(0, 1));
    assert_eq!(of_pair(&daemon, 1), expected(2, 3));
    drop(guest);
    daemon.book.wait("1: reset", 1);
    assert_eq!(
        of_pair(&daemon, 0).last().map(String::as_str),
        Some("reset")
    );
}

#[test]
fn a_stopped_ring_is_where_its_worker_says() {
    let daemon = Daemon::start();
    let mut guest = Guest::start(daemon.connect(), 4);
    let base = guest.frontend.get_vring_base(1).expect("stopped");
    assert_eq!(base, u32::from(POSITION.next_avail));
    let lines = of_pair(&daemon, 0);
    assert_eq!(
        lines[lines.len() - 3..],
        ["stop tx", "set kick tx false", "set call tx false"]
    );

    // It goes on from there, with new descriptors, without a new index.
    let (call, kick) = (&guest.calls[1], &guest.kicks[1]);
    guest.frontend.set_vring_call(1, call).expect("taken");
    guest.frontend.set_vring_kick(1, kick).expect("taken");
    let lines = of_pair(&daemon, 0);
    assert!(
        lines.last().is_some_and(|line| line.ends_with("next 4711")),
        "{lines:#?}"
    );

    // And starts over when the driver does: another size, index 0.
    guest.frontend.get_vring_base(0).expect("stopped");
    guest.start_ring(0, 16, 0);
    let lines = of_pair(&daemon, 0);
    let last = lines.last().expect("a line");
    assert!(
        last.starts_with("start rx size 16 ") && last.ends_with("next 0"),
        "{last}"
    );
}

#[test]
fn a_ring_that_never_started_stops_without_its_worker() {
    let daemon = Daemon::start();
    let guest = Guest::negotiate(daemon.connect(), 4);
    guest.frontend.set_vring_base(0, 77).expect("taken");
    assert_eq!(guest.frontend.get_vring_base(0).expect("answered"), 77);
    assert!(!daemon.book.lines().iter().any(|line| line.contains("stop")));
}

#[test]
fn a_live_ring_may_move_and_keeps_its_indices() {
    let daemon = Daemon::start();
    let guest = Guest::start(daemon.connect(), 4);
    guest
        .frontend
        .set_vring_addr(0, &config(5, 256))
        .expect("moved");
    let lines = of_pair(&daemon, 0);
    let moved = format!("set addresses rx desc {:#x}", areas(5)[0]);
    assert_eq!(lines.last(), Some(&moved));
}

#[test]
fn a_disabled_ring_that_moves_starts_anew() {
    let daemon = Daemon::start();
    let mut guest = Guest::start(daemon.connect(), 4);
    guest.frontend.set_vring_enable(0, false).expect("disabled");
    guest
        .frontend
        .set_vring_addr(0, &config(5, 256))
        .expect("moved");
    let lines = of_pair(&daemon, 0);
    assert_eq!(lines[lines.len() - 2], "stop rx");
    let last = lines.last().expect("a line");
    let started = format!("start rx size 256 desc {:#x} ", areas(5)[0]);
    assert!(last.starts_with(&started), "{last}");
    assert!(last.ends_with("next 4711"), "{last}");
}

#[test]
fn the_same_features_again_go_to_the_workers_and_nowhere_else() {
    let daemon = Daemon::start();
    let guest = Guest::start(daemon.connect(), 4);
    let before = of_pair(&daemon, 0).len();
    guest
        .frontend
        .set_features(VERSION_1 | PROTOCOL)
        .expect("taken");
    assert_eq!(of_pair(&daemon, 0)[before..], ["set features 0x140000000"]);
}

#[test]
fn a_disable_is_a_barrier_and_an_enable_needs_no_kick() {
    let daemon = Daemon::start();
    let mut guest = Guest::start(daemon.connect(), 4);
    guest.frontend.set_vring_enable(2, false).expect("disabled");
    assert_eq!(
        of_pair(&daemon, 1).last().map(String::as_str),
        Some("disable rx")
    );
    guest.frontend.set_vring_enable(2, true).expect("enabled");
    assert_eq!(
        of_pair(&daemon, 1).last().map(String::as_str),
        Some("enable rx")
    );
}

#[test]
fn memory_comes_and_goes_and_a_bad_map_changes_nothing() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    let mut bytes = Bytes::new(stream);
    bytes.ask(FrontendReq::GET_FEATURES, &[]);
    bytes.send(
        FrontendReq::SET_PROTOCOL_FEATURES,
        0,
        &0x8009u64.to_ne_bytes(),
    );
    bytes.send(
        FrontendReq::SET_FEATURES,
        0,
        &(VERSION_1 | PROTOCOL).to_ne_bytes(),
    );
    let files: Vec<_> = (0..33).map(|_| memory(MEMORY)).collect();
    let mut set = |regions: &[(u64, u64)]| {
        let files = borrowed(&files[..regions.len().min(32)]);
        bytes.acknowledged_with(FrontendReq::SET_MEM_TABLE, &table(regions), &files)
    };
    assert_eq!(set(&[(0, MEMORY)]), Some(0));
    assert_eq!(
        set(&[(0, MEMORY), (MEMORY / 2, MEMORY)]),
        Some(1),
        "overlap"
    );
    let many: Vec<_> = (0..33).map(|region| (region * MEMORY, MEMORY)).collect();
    assert_eq!(set(&many), Some(1), "33 regions");
    assert_eq!(set(&many[..32]), Some(0));
    assert_eq!(set(&[(0, MEMORY)]), Some(0));

    let single = |start: u64| [vec![0; 8], table(&[(start, MEMORY)])[8..].to_vec()].concat();
    let file = borrowed(&files[..1]);
    let mut one = |request, start| bytes.acknowledged_with(request, &single(start), &file);
    assert_eq!(one(FrontendReq::ADD_MEM_REG, MEMORY), Some(0));
    assert_eq!(
        one(FrontendReq::ADD_MEM_REG, MEMORY / 2),
        Some(1),
        "overlap"
    );
    assert_eq!(
        one(FrontendReq::REM_MEM_REG, 8 * MEMORY),
        Some(1),
        "not there"
    );
    assert_eq!(one(FrontendReq::REM_MEM_REG, MEMORY), Some(0));
    let maps: Vec<_> = of_pair(&daemon, 0)
        .into_iter()
        .filter(|line| line.starts_with("set memory"))
        .collect();
    let regions: Vec<_> = maps
        .iter()
        .map(|line| line.split_whitespace().count() - 2)
        .collect();
    assert_eq!(regions, [1, 32, 1, 2, 1]);
}

#[test]
fn without_enable_messages_rings_run_once_kicked() {
    for kick_first in [false, true] {
        let daemon = Daemon::with_pairs(1);
        let mut bytes = Bytes::new(daemon.connect());
        let features = |bytes: &mut Bytes| {
            bytes.send(FrontendReq::SET_FEATURES, 0, &VERSION_1.to_ne_bytes());
        };
        bytes.send(FrontendReq::SET_OWNER, 0, &[]);
        if !kick_first {
            features(&mut bytes);
        }
        let file = memory(MEMORY);
        let body = table(&[(0, MEMORY)]);
        bytes.send_with(
            FrontendReq::SET_MEM_TABLE.into(),
            0,
            &body,
            &borrowed(&[file]),
        );
        bytes.send(FrontendReq::SET_VRING_NUM, 0, &state(0, 256));
        bytes.send(FrontendReq::SET_VRING_ADDR, 0, &addresses(0));
        bytes.send_with(
            FrontendReq::SET_VRING_KICK.into(),
            0,
            &[0; 8],
            &borrowed(&[event()]),
        );
        if kick_first {
            features(&mut bytes);
        }
        bytes.ask(FrontendReq::GET_FEATURES, &[]);
        let lines = of_pair(&daemon, 0);
        let at = |wanted: &str| {
            lines
                .iter()
                .position(|line| line.starts_with(wanted))
                .expect(wanted)
        };
        assert!(
            at("set features 0x100000000") < at("enable rx"),
            "never enabled with the wrong header: {lines:#?}"
        );
        assert!(at("start rx") > 0);
    }
}

#[test]
fn kick_addresses_and_index_may_come_in_any_order() {
    let daemon = Daemon::with_pairs(1);
    let mut bytes = Bytes::negotiated(daemon.connect());
    let file = memory(MEMORY);
    let body = table(&[(0, MEMORY)]);
    assert_eq!(
        bytes.acknowledged_with(FrontendReq::SET_MEM_TABLE, &body, &borrowed(&[file])),
        Some(0)
    );
    assert_eq!(
        bytes.acknowledged_with(FrontendReq::SET_VRING_KICK, &[0; 8], &borrowed(&[event()])),
        Some(0)
    );
    assert_eq!(
        bytes.acknowledged(FrontendReq::SET_VRING_ADDR, &addresses(0)),
        Some(0)
    );
    assert_eq!(
        bytes.acknowledged(FrontendReq::SET_VRING_BASE, &state(0, 7)),
        Some(0)
    );
    let lines = of_pair(&daemon, 0);
    let tail: Vec<_> = lines.iter().rev().take(3).rev().collect();
    assert!(
        tail[0].starts_with("start rx") && tail[0].ends_with("next 0"),
        "{lines:#?}"
    );
    assert_eq!(tail[1], "stop rx");
    assert!(
        tail[2].starts_with("start rx") && tail[2].ends_with("next 7"),
        "{lines:#?}"
    );
}

#[test]
fn acknowledgements_work_without_asking_for_features_first() {
    let daemon = Daemon::with_pairs(1);
    let mut bytes = Bytes::new(daemon.connect());
    bytes.send(
        FrontendReq::SET_PROTOCOL_FEATURES,
        0,
        &REPLY_ACK.to_ne_bytes(),
    );
    assert_eq!(bytes.acknowledged(FrontendReq::SET_OWNER, &[]), Some(0));
    let features = (VERSION_1 | PROTOCOL).to_ne_bytes();
    assert_eq!(
        bytes.acknowledged(FrontendReq::SET_FEATURES, &features),
        Some(0)
    );
    let call = [0x100u64.to_ne_bytes(), 0x101u64.to_ne_bytes()];
    for body in call {
        assert_eq!(
            bytes.acknowledged(FrontendReq::SET_VRING_CALL, &body),
            Some(0),
            "polled"
        );
    }
}

#[test]
fn guest_regions_are_where_the_frontend_says() {
    let daemon = Daemon::start();
    let guest = Guest::negotiate(daemon.connect(), 4);
    let high = VhostUserMemoryRegionInfo {
        guest_phys_addr: 4 * MEMORY,
        ..guest.region(0)
    };
    guest.frontend.set_mem_table(&[high]).expect("mapped");
    guest
        .frontend
        .set_vring_addr(0, &config(0, 256))
        .expect("inside");
    guest
        .frontend
        .set_vring_kick(0, &vmm_sys_util::eventfd::EventFd::new(0).expect("eventfd"))
        .expect("taken");
    let lines = of_pair(&daemon, 0);
    let desc = format!("desc {:#x} ", 4 * MEMORY + areas(0)[0]);
    assert!(
        lines.last().is_some_and(|line| line.contains(&desc)),
        "{lines:#?}"
    );
}
