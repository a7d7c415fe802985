//! Polling for room: what the kernel promises, and the poll that stays armed.
//!
//! A tap says that room came only to those who wait after somebody looked while there was none (SOCKWQ_ASYNC_NOSPACE,
//! tun_chr_poll): arming any poll is such a look, a write that met EAGAIN is not. It has room below half its send buffer,
//! and without a finite one always.

mod rig;

use std::time::Duration;

use rig::{FAR_MAC, Host, all_modes, enter_until, frame_to, in_namespace, outcomes, settle, sh};
use tapring_io::{Events, Port, Tap, TxOutcome, Wait};

const WRITABLE: Events = Events {
    kicks: [0; 2],
    command: false,
    tap_readable: false,
    tap_writable: true,
    tap_gone: false,
};

/// Runs `test` in each mode, on a tap that takes 20 kB, behind a slow egress.
fn on_a_slow_tap(test: impl Fn(&mut Port) + Send + 'static) {
    in_namespace(move || {
        for (mode, options) in all_modes() {
            println!("mode {mode}");
            let (tap, _far) = slow_tap();
            test(&mut rig::port(&tap, options));
            drop(tap);
            sh("ip link del br0");
            sh("ip link del v0");
        }
    });
}

fn slow_tap() -> (Tap, Host) {
    let tap = rig::tap("t0");
    rig::set_send_buffer(&tap.try_clone_queue(0).unwrap(), 20_000);
    let far = rig::slow(&tap);
    (tap, far)
}

/// Runs `test` in each mode, on a tap that always takes frames.
fn on_a_fast_tap(test: impl Fn(&mut Port) + Send + 'static) {
    in_namespace(move || {
        for (mode, options) in all_modes() {
            println!("mode {mode}");
            let tap = rig::tap("t0");
            test(&mut rig::port(&tap, options));
        }
    });
}

/// Sends frames to the far end; returns how many the tap took.
fn send(port: &mut Port, frames: u32) -> usize {
    rig::submit_copies(port, (0..frames).map(|at| frame_to(FAR_MAC, at, 1000)));
    let sent = outcomes(port);
    let sent = sent.iter().filter(|outcome| **outcome == TxOutcome::Sent);
    sent.count()
}

/// Leaves less than half of the tap's send buffer, and meets no EAGAIN.
fn fill_over_half(port: &mut Port) {
    assert_eq!(send(port, 9), 9, "two leave at once, seven wait");
}

fn next_events(port: &mut Port) -> Events {
    enter_until(port, |port| {
        Some(take_events(port)).filter(|events| !events.is_empty())
    })
}

fn assert_silent(port: &mut Port, when: &str) {
    settle(port);
    port.enter(Wait::For(Duration::from_millis(5))).unwrap();
    assert_eq!(take_events(port), Events::default(), "{when}");
}

/// But for frames: the bridge may have something to say.
fn take_events(port: &mut Port) -> Events {
    Events {
        tap_readable: false,
        ..port.take_events()
    }
}

#[test]
fn a_one_shot_poll_armed_on_a_writable_tap_completes_at_once() {
    on_a_fast_tap(|port| {
        for _ in 0..3 {
            port.poll_writable();
            assert_eq!(next_events(port), WRITABLE);
            assert_silent(port, "one-shot");
        }
        assert_eq!(port.stats().writable_arms, 3);
    });
}

#[test]
fn switched_on_a_writable_tap_says_so_once_whatever_moves() {
    on_a_fast_tap(|port| {
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE);
        port.always_poll_writable(true);
        for _ in 0..4 {
            assert_eq!(send(port, 64), 64);
            assert_silent(port, "it has room all the time");
        }
        assert_eq!(port.stats().writable_arms, 1);
    });
}

#[test]
fn room_is_said_without_any_eagain_once_another_poll_found_none() {
    on_a_slow_tap(|port| {
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE, "empty as yet");
        fill_over_half(port);
        port.poll_readable();
        assert_silent(port, "no room");
        rig::release();
        assert_eq!(next_events(port), WRITABLE);
        assert_silent(port, "once");
        assert_eq!(port.stats().writable_arms, 1);
    });
}

#[test]
fn armed_on_a_tap_without_room_it_says_when_room_comes() {
    on_a_slow_tap(|port| {
        fill_over_half(port);
        port.always_poll_writable(true);
        assert_silent(port, "no room");
        rig::release();
        assert_eq!(next_events(port), WRITABLE);
    });
}

/// Why the one-shot poll is needed beside it: without this line the worker would wait for ever.
#[test]
fn a_full_tap_wakes_the_one_shot_poll_beside_it_too() {
    on_a_slow_tap(|port| {
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE, "empty as yet");
        assert!(send(port, 64) < 64);
        assert_silent(port, "full");
        port.poll_writable();
        assert_silent(port, "full");
        rig::release();
        assert_eq!(next_events(port), WRITABLE);
        port.poll_writable();
        assert_eq!(next_events(port), WRITABLE, "the one-shot was done");
        assert_eq!(port.stats().writable_arms, 3);
    });
}

#[test]
fn it_can_be_switched_off_and_on_at_any_time() {
    on_a_fast_tap(|port| {
        for _ in 0..20 {
            port.always_poll_writable(true);
            assert_eq!(next_events(port), WRITABLE);
            port.always_poll_writable(false);
            port.always_poll_writable(true);
            assert_silent(port, "it was never off");
            port.always_poll_writable(false);
            port.enter(Wait::No).unwrap();
            port.always_poll_writable(true);
            assert_eq!(next_events(port), WRITABLE, "armed anew");
            port.always_poll_writable(false);
            assert_silent(port, "off");
        }
        port.poll_writable();
        assert_eq!(next_events(port), WRITABLE, "the one-shot is not off");
        assert_silent(port, "off");
        assert_eq!(port.stats().writable_arms, 41);
    });
}

#[test]
fn off_it_says_nothing_when_room_comes_and_on_again_it_does() {
    on_a_slow_tap(|port| {
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE, "empty as yet");
        fill_over_half(port);
        port.always_poll_writable(false);
        settle(port);
        port.poll_readable();
        settle(port);
        rig::release();
        // The one-shot hears of the room, and nobody else.
        port.poll_writable();
        assert_eq!(next_events(port), WRITABLE);
        assert_silent(port, "off");
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE);
    });
}

#[test]
fn a_tap_that_comes_up_has_room() {
    on_a_fast_tap(|port| {
        sh("ip link set t0 down");
        port.always_poll_writable(true);
        assert_silent(port, "down");
        sh("ip link set t0 up");
        assert_eq!(next_events(port), WRITABLE);
    });
}

#[test]
fn a_deleted_tap_is_said_to_be_gone_once_and_does_not_make_it_spin() {
    on_a_fast_tap(|port| {
        port.always_poll_writable(true);
        assert_eq!(next_events(port), WRITABLE);
        sh("ip link del t0");
        // Armed before, it does not hear of that: only those who wait for frames are woken.
        port.always_poll_writable(false);
        settle(port);
        port.always_poll_writable(true);
        let gone = Events {
            tap_gone: true,
            ..Events::default()
        };
        assert_eq!(next_events(port), gone);
        port.stats();
        for _ in 0..10 {
            port.always_poll_writable(false);
            port.always_poll_writable(true);
            port.enter(Wait::For(Duration::from_millis(1))).unwrap();
        }
        assert_silent(port, "gone");
        let stats = port.stats();
        assert!(stats.ring_enters < 100, "{stats:?}");
        assert_eq!(stats.writable_arms, 0);
    });
}
