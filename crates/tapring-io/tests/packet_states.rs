//! A packet socket that is full, or whose interface is full, down or gone: what the kernel promises, and what follows.

mod rig;

use std::time::Duration;

use rig::{
    FAR_MAC, Far, Host, all_modes, enter_until, ethernet, frame, frame_to, in_namespace, index_of,
    outcomes, packet_port, read_frames, settle, sh,
};
use tapring_io::{Events, Port, RxRead, TapFault, TxOutcome, Wait};

const ALL: [u8; 6] = [0xff; 6];

const NONE: Events = Events {
    kicks: [0; 2],
    command: false,
    tap_readable: false,
    tap_writable: false,
    tap_gone: false,
};
const WRITABLE: Events = Events {
    tap_writable: true,
    ..NONE
};
const READABLE: Events = Events {
    tap_readable: true,
    ..NONE
};

/// Runs `test` in each mode, with a port on `v0`, whose peer is `v1`.
fn on_a_veth(test: impl Fn(&str, &mut Port) + Send + 'static) {
    in_namespace(move || {
        for (mode, options) in all_modes() {
            rig::veth();
            test(mode, &mut packet_port("v0", options));
            let _ = rig::try_sh("ip link del v0");
        }
    });
}

/// Nothing leaves, for as long as a test may take, until [`open_gate`].
fn close_gate(limit: &str) {
    sh(&format!(
        "tc qdisc add dev v0 root handle 1: tbf rate 1kbit burst 2k {limit}"
    ));
}

/// What the gate holds leaves when the next frame comes: see [`rig::release`].
fn open_gate() {
    sh("tc qdisc change dev v0 root handle 1: tbf rate 10gbit burst 10mb limit 10mb");
    let mut another = ethernet(FAR_MAC, 0, 60);
    another[12..14].copy_from_slice(&[0x88, 0xb6]);
    Host::on(index_of("v0")).send(&another);
}

fn submit(port: &mut Port, numbers: std::ops::Range<u32>) -> Vec<TxOutcome> {
    rig::submit_copies(port, numbers.map(|number| frame(number, 1000)));
    outcomes(port)
}

/// Sends until the port takes no more; the number of the first that it did not take.
fn fill(port: &mut Port) -> u32 {
    let mut next = 0;
    for _ in 0..100 {
        let outcomes = submit(port, next..next + 64);
        let sent = outcomes
            .iter()
            .take_while(|it| **it == TxOutcome::Sent)
            .count();
        assert!(
            outcomes[sent..].iter().all(|it| *it == TxOutcome::TapFull),
            "{outcomes:?}"
        );
        next += u32::try_from(sent).unwrap();
        if sent < 64 {
            return next;
        }
    }
    panic!("{next} frames, and it is not full");
}

fn next_events(port: &mut Port) -> Events {
    enter_until(port, |port| {
        Some(port.take_events()).filter(|events| !events.is_empty())
    })
}

fn assert_silent(port: &mut Port, when: &str) {
    settle(port);
    port.enter(Wait::For(Duration::from_millis(20))).unwrap();
    assert_eq!(port.take_events(), NONE, "{when}");
}

/// EAGAIN, and POLLOUT behind it.
#[test]
fn a_full_socket_says_when_it_has_room_and_keeps_the_order() {
    on_a_veth(|mode, port| {
        let far = Host::on(index_of("v1"));
        close_gate("limit 100mb");
        let full = fill(port);
        for _ in 0..3 {
            assert_eq!(
                submit(port, full..full + 3),
                [TxOutcome::TapFull; 3],
                "{mode}"
            );
            port.poll_writable();
            assert_silent(port, "full");
        }
        open_gate();
        assert_eq!(next_events(port), WRITABLE, "{mode}");
        // The rest, as a worker would send it.
        let (mut next, end) = (full, full + 500);
        while next < end {
            let sent = submit(port, next..end.min(next + 64));
            let sent = sent.iter().take_while(|it| **it == TxOutcome::Sent).count();
            if sent == 0 {
                port.poll_writable();
                assert_eq!(next_events(port), WRITABLE);
            }
            next += u32::try_from(sent).unwrap();
        }
        let expected: Vec<u32> = (0..end).collect();
        assert_eq!(far.numbers(expected.len()), expected, "{mode}");
    });
}

/// ENOBUFS: the socket has room and the interface has none. No poll reports that; see `packet/room.rs`.
#[test]
fn a_full_interface_is_waited_for_as_well() {
    on_a_veth(|mode, port| {
        let far = Host::on(index_of("v1"));
        close_gate("limit 30k");
        let full = fill(port);
        assert!(full < 40, "{mode}: {full} frames fit into 30 kB");
        port.poll_writable();
        assert_silent(port, "the interface is full");
        open_gate();
        assert_eq!(next_events(port), WRITABLE, "{mode}");
        assert_eq!(submit(port, full..full + 1), [TxOutcome::Sent]);
        let expected: Vec<u32> = (0..=full).collect();
        assert_eq!(far.numbers(expected.len()), expected, "nothing is lost");
    });
}

/// With nothing of ours on its way there is nothing to wait for: the frame is dropped, as by any other full interface, and
/// nobody spins.
#[test]
fn an_interface_that_is_full_of_others_frames_refuses_one_at_a_time() {
    on_a_veth(|mode, port| {
        close_gate("limit 3k");
        let other = Host::on(index_of("v0"));
        let sent = |bytes: usize| {
            let frame = ethernet(FAR_MAC, 0, bytes);
            rustix::io::write(&other, &frame)
        };
        while sent(1000).is_ok() {}
        while sent(60).is_ok() {}
        for number in 0..3 {
            let refused = TxOutcome::Refused(rustix::io::Errno::NOBUFS.raw_os_error());
            let expected = [refused, TxOutcome::TapFull, TxOutcome::TapFull];
            assert_eq!(submit(port, number..number + 3), expected, "{mode}");
        }
    });
}

/// A narrowed buffer grows again with every EAGAIN, or one moment of ENOBUFS would cost for ever.
#[test]
fn a_socket_that_was_narrowed_takes_more_again() {
    on_a_veth(|mode, port| {
        close_gate("limit 30k");
        let few = fill(port);
        open_gate();
        settle(port);
        sh("tc qdisc del dev v0 root");
        close_gate("limit 100mb");
        let mut most = 0;
        for _ in 0..40 {
            most = most.max(fill(port));
            open_gate();
            sh("tc qdisc del dev v0 root");
            close_gate("limit 100mb");
        }
        assert!(most > 2 * few, "{mode}: {few}, then {most}");
    });
}

#[test]
fn down_frames_are_dropped_and_up_they_go_on() {
    on_a_veth(|mode, port| {
        let far = Host::on(index_of("v1"));
        port.poll_readable();
        assert_silent(port, "nothing comes");
        sh("ip link set v0 down");
        // An error is something to look at.
        assert_eq!(next_events(port), READABLE, "{mode}");
        assert_eq!(port.rx_read(), RxRead::Down, "{mode}");
        assert_eq!(port.rx_read(), RxRead::Empty, "said once");
        port.rx_submit(4);
        assert_eq!(enter_until(port, Port::rx_batch_done).fault, None);
        assert_eq!(submit(port, 0..3), [TxOutcome::Down; 3], "{mode}");
        port.poll_readable();
        assert_silent(port, "down");

        sh("ip link set v0 up");
        rig::wait_running("v0");
        rig::wait_running("v1");
        assert_eq!(submit(port, 0..3), [TxOutcome::Sent; 3], "{mode}");
        assert_eq!(far.numbers(3), [0, 1, 2]);
        far.send(&ethernet(ALL, 9, 100));
        assert_eq!(next_events(port), READABLE, "{mode}: armed all the time");
        assert_eq!(read_frames(port, 1), [ethernet(ALL, 9, 100)]);
    });
}

#[test]
fn an_error_that_waits_does_not_make_the_polls_spin() {
    on_a_veth(|mode, port| {
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE, "it has room");
        sh("ip link set v0 down");
        settle(port);
        port.take_events();
        port.stats();
        port.enter(Wait::For(Duration::from_millis(20))).unwrap();
        let stats = port.stats();
        assert!(stats.ring_enters < 5, "{mode}: {stats:?}");
        assert_eq!(submit(port, 0..1), [TxOutcome::Down], "{mode}");
    });
}

#[test]
fn an_interface_that_goes_away_is_gone_once_and_for_ever() {
    on_a_veth(|mode, port| {
        port.poll_readable();
        settle(port);
        sh("ip link del v0");
        assert_eq!(next_events(port), READABLE, "{mode}: something to look at");
        assert_eq!(port.rx_read(), RxRead::Gone, "{mode}");
        let gone = Events {
            tap_gone: true,
            ..NONE
        };
        assert_eq!(port.take_events(), gone);
        assert_eq!(submit(port, 0..2), [TxOutcome::Gone; 2], "{mode}");
        port.poll_readable();
        assert_silent(port, "gone");
        port.poll_writable();
        assert_eq!(
            next_events(port),
            WRITABLE,
            "who waits finds out by a write"
        );
        // Another one of that name is another one.
        rig::veth();
        assert_eq!(submit(port, 0..1), [TxOutcome::Gone], "{mode}");
    });
}

#[test]
fn a_batch_finds_out_too_and_so_does_a_write() {
    on_a_veth(|mode, port| {
        sh("ip link del v0");
        port.rx_submit(8);
        let done = enter_until(port, Port::rx_batch_done);
        assert_eq!(done.fault, Some(TapFault::Gone), "{mode}");
        assert!(port.take_events().tap_gone);
    });
    on_a_veth(|mode, port| {
        sh("ip link del v0");
        assert_eq!(submit(port, 0..2), [TxOutcome::Gone; 2], "{mode}");
        assert!(port.take_events().tap_gone, "{mode}");
    });
}

/// The next guest must not see them, whatever the interface went through meanwhile.
#[test]
fn frames_from_before_it_was_down_are_discarded_too() {
    on_a_veth(|mode, port| {
        let far = Far::end();
        (0..100).for_each(|number| far.send(&ethernet(ALL, number, 100)));
        sh("ip link set v0 down");
        sh("ip link set v0 up");
        assert_eq!(port.rx_discard().queued, 100, "{mode}");
        assert_eq!(port.rx_read(), RxRead::Empty, "{mode}");
    });
}

#[test]
fn a_small_frame_to_an_address_leaves_like_any_other() {
    on_a_veth(|mode, port| {
        let far = Host::on(index_of("v1"));
        rig::submit_copies(port, std::iter::once(frame_to(FAR_MAC, 5, 60)));
        assert_eq!(outcomes(port), [TxOutcome::Sent], "{mode}");
        assert_eq!(far.receive(), ethernet(FAR_MAC, 5, 60));
    });
}
