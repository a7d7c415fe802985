//! TX on a real tap: byte-exact, in order, and an outcome for everything that can happen.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use rig::{
    FAR_MAC, Host, all_modes, assert_no_io_wq, enter_until, ethernet, frame, in_namespace,
    outcomes, sh,
};
use tapring_io::{
    BATCH_FRAMES, Events, GatherError, Port, PortError, PortOptions, RxRead, TxOutcome, Wait,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

#[test]
fn copied_frames_arrive_byte_exact_and_in_order() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            for round in 0..3 {
                let frames = (0..64).map(|at| frame(round * 64 + at, 60 + 60 * at as usize));
                assert_eq!(rig::submit_copies(&mut port, frames), BATCH_FRAMES);
                assert_eq!(
                    outcomes(&mut port),
                    [TxOutcome::Sent; BATCH_FRAMES],
                    "{mode}"
                );
                for at in 0..64 {
                    assert_eq!(
                        host.receive(),
                        ethernet([0xff; 6], round * 64 + at, 60 + 60 * at as usize),
                        "{mode}"
                    );
                }
            }
            assert_no_io_wq();
        }
    });
}

#[test]
fn gathered_frames_arrive_byte_exact_between_copied_ones() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            let memory =
                Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap());
            port.set_memory(Some(Arc::clone(&memory))).unwrap();
            let large = ethernet([0xff; 6], 1, 60_000);
            memory.write_slice(&large, GuestAddress(0x123)).unwrap();

            port.tx_copy(112).unwrap().copy_from_slice(&frame(0, 100));
            let parts = [(0, 1), (1, 13), (14, 0), (14, 40_000), (40_014, 19_986)];
            let parts =
                parts.map(|(at, len)| memory.get_slice(GuestAddress(0x123 + at), len).unwrap());
            port.tx_gather(&[0; 12], parts.into_iter()).unwrap();
            port.tx_copy(112).unwrap().copy_from_slice(&frame(2, 100));
            assert!(matches!(port.set_memory(None), Err(PortError::MemoryBusy)));
            port.tx_submit();

            assert_eq!(outcomes(&mut port), [TxOutcome::Sent; 3], "{mode}");
            assert_eq!(host.receive(), ethernet([0xff; 6], 0, 100));
            assert!(host.receive() == large, "{mode}");
            assert_eq!(host.receive(), ethernet([0xff; 6], 2, 100));
            port.set_memory(None).unwrap();
            let part = memory.get_slice(GuestAddress(0), 64).unwrap();
            assert_eq!(
                port.tx_gather(&[0; 12], std::iter::once(part)),
                Err(GatherError::OutsideMemory)
            );
        }
    });
}

#[test]
fn a_frame_of_1023_parts_arrives() {
    in_namespace(|| {
        for (_, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            let memory =
                Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap());
            port.set_memory(Some(Arc::clone(&memory))).unwrap();
            let whole = ethernet([0xff; 6], 7, 1023);
            memory.write_slice(&whole, GuestAddress(0)).unwrap();
            let parts = (0..1023).map(|at| memory.get_slice(GuestAddress(at), 1).unwrap());
            port.tx_gather(&[0; 12], parts).unwrap();
            port.tx_submit();
            assert_eq!(outcomes(&mut port), [TxOutcome::Sent]);
            assert_eq!(host.receive(), whole);
        }
    });
}

#[test]
fn inline_leaves_nothing_in_flight_and_needs_one_system_call() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let mut port = rig::port(&tap, PortOptions::default());
        assert!(port.describe().nowait && port.describe().registered);
        port.stats();
        rig::submit_copies(&mut port, (0..64).map(|at| frame(at, 64)));
        assert_eq!(port.tx_in_flight(), 64);
        port.enter(Wait::No).unwrap();
        assert_eq!(port.tx_in_flight(), 0);
        assert_eq!(port.tx_outcomes(), Some(&[TxOutcome::Sent; 64][..]));
        assert_eq!(port.stats().ring_enters, 1);

        port.enter(Wait::No).unwrap();
        assert_eq!(
            port.stats().ring_enters,
            0,
            "nothing to do is no system call"
        );
    });
}

/// Sends numbered frames into RIG-SLOW until the tap is full; returns how many it took.
fn fill(port: &mut Port, next: &mut u32) -> usize {
    let start = *next;
    for _ in 0..100 {
        let first = *next;
        rig::submit_copies(
            port,
            (first..first + 64).map(|number| rig::frame_to(FAR_MAC, number, 1000)),
        );
        let outcomes = outcomes(port);
        let sent = outcomes
            .iter()
            .take_while(|outcome| **outcome == TxOutcome::Sent)
            .count();
        *next += u32::try_from(sent).unwrap();
        assert!(
            outcomes[sent..]
                .iter()
                .all(|outcome| *outcome == TxOutcome::TapFull),
            "{outcomes:?}"
        );
        if sent < outcomes.len() {
            return (*next - start) as usize;
        }
    }
    panic!("the tap never fills up");
}

#[test]
fn a_full_tap_says_so_keeps_the_order_and_wakes_us() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            rig::set_send_buffer(&tap.try_clone_queue(0).unwrap(), 20_000);
            let host = rig::slow(&tap);
            let mut port = rig::port(&tap, options);
            assert!(port.describe().finite_send_buffer);
            let mut next = 0;
            let taken = fill(&mut port, &mut next);
            assert!(taken < 64, "{mode}: {taken}");

            port.poll_writable();
            port.poll_writable();
            port.enter(Wait::For(Duration::from_millis(1))).unwrap();
            assert_eq!(port.take_events(), Events::default(), "{mode}: no room yet");
            rig::release();
            let events = enter_until(&mut port, |port| {
                Some(port.take_events()).filter(|events| !events.is_empty())
            });
            assert_eq!(
                events,
                Events {
                    tap_writable: true,
                    ..Events::default()
                },
                "{mode}"
            );
            assert_eq!(port.stats().writable_arms, 1);

            // Retries as a worker does: the rest, and again after each wake-up.
            while next < 500 {
                if fill_once(&mut port, &mut next, 500) {
                    continue;
                }
                port.poll_writable();
                enter_until(&mut port, |port| {
                    port.take_events().tap_writable.then_some(())
                });
            }
            assert_eq!(host.numbers(500), (0..500).collect::<Vec<_>>(), "{mode}");
            assert_no_io_wq();
            drop((port, tap));
            sh("ip link del br0");
            sh("ip link del v0");
        }
    });
}

/// One batch up to frame `end`; whether all of it went out.
fn fill_once(port: &mut Port, next: &mut u32, end: u32) -> bool {
    let last = end.min(*next + 64);
    rig::submit_copies(
        port,
        (*next..last).map(|number| rig::frame_to(FAR_MAC, number, 1000)),
    );
    let sent = outcomes(port)
        .iter()
        .take_while(|outcome| **outcome == TxOutcome::Sent)
        .count();
    *next += u32::try_from(sent).unwrap();
    *next == last
}

#[test]
fn a_refused_frame_costs_only_itself_even_in_a_chain() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            rig::set_send_buffer(&tap.try_clone_queue(0).unwrap(), 1 << 20);
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            let frames = (0..64).map(|at| {
                let mut frame = frame(at, 100);
                if [5, 6, 63].contains(&at) {
                    frame[1] = 0x7f; // gso_type: none that exists
                }
                frame
            });
            rig::submit_copies(&mut port, frames);
            for (at, outcome) in outcomes(&mut port).into_iter().enumerate() {
                let expected = if [5, 6, 63].contains(&at) {
                    TxOutcome::Refused(libc::EINVAL)
                } else {
                    TxOutcome::Sent
                };
                assert_eq!(outcome, expected, "{mode}: {at}");
            }
            assert_eq!(
                host.numbers(61),
                (0..63)
                    .filter(|at| ![5, 6].contains(at))
                    .collect::<Vec<_>>()
            );
        }
    });
}

#[test]
fn a_tap_that_is_down_drops_and_comes_back() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = rig::port(&tap, options);
            sh("ip link set t0 down");
            rig::submit_copies(&mut port, (0..8).map(|at| frame(at, 64)));
            assert_eq!(outcomes(&mut port), [TxOutcome::Down; 8], "{mode}");
            assert_eq!(port.take_events(), Events::default());

            sh("ip link set t0 up");
            rig::submit_copies(&mut port, (0..8).map(|at| frame(at, 64)));
            assert_eq!(outcomes(&mut port), [TxOutcome::Sent; 8], "{mode}");
        }
    });
}

#[test]
fn a_deleted_tap_is_reported_once_and_not_polled_any_more() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = rig::port(&tap, options);
            port.poll_readable();
            port.enter(Wait::No).unwrap();
            sh("ip link del t0");
            let mut events = enter_until(&mut port, |port| {
                Some(port.take_events()).filter(|events| !events.is_empty())
            });
            if events.tap_readable {
                // The deletion wakes readers as a frame does; the read then says what it was.
                assert_eq!(port.rx_read(), RxRead::Gone, "{mode}");
                events = port.take_events();
            }
            assert_eq!(
                events,
                Events {
                    tap_gone: true,
                    ..Events::default()
                },
                "{mode}"
            );

            rig::submit_copies(&mut port, (0..4).map(|at| frame(at, 64)));
            assert_eq!(outcomes(&mut port), [TxOutcome::Gone; 4], "{mode}");
            port.poll_readable();
            port.enter(Wait::For(Duration::from_millis(5))).unwrap();
            assert_eq!(port.take_events(), Events::default(), "{mode}");
            port.poll_writable();
            port.enter(Wait::Forever).unwrap();
            assert!(port.take_events().tap_writable, "{mode}: a write says more");
            let stats = port.stats();
            let arms = (stats.readable_arms, stats.writable_arms);
            assert_eq!(arms, (1, 0), "{mode}");
        }
    });
}

#[test]
fn a_deleted_tap_is_found_by_a_write_too() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = rig::port(&tap, options);
            sh("ip link del t0");
            rig::submit_copies(&mut port, std::iter::once(frame(0, 64)));
            assert_eq!(outcomes(&mut port), [TxOutcome::Gone], "{mode}");
            assert!(port.take_events().tap_gone, "{mode}");
        }
    });
}

#[test]
fn a_cancelled_batch_sends_nothing() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let host = Host::on(tap.index());
        let mut port = rig::port(&tap, PortOptions::default());
        port.tx_copy(112).unwrap().copy_from_slice(&frame(1, 100));
        port.tx_cancel();
        assert_eq!(port.tx_room(), BATCH_FRAMES);
        rig::submit_copies(&mut port, std::iter::once(frame(2, 100)));
        assert_eq!(outcomes(&mut port), [TxOutcome::Sent]);
        assert_eq!(host.numbers(1), [2]);
    });
}

#[test]
fn memory_handed_to_the_polling_thread_is_left_alone() {
    in_namespace(|| {
        let (_, options) = all_modes()
            .into_iter()
            .find(|(mode, _)| *mode == "sqpoll")
            .unwrap();
        let tap = rig::tap("t0");
        let host = Host::on(tap.index());
        let mut port = rig::port(&tap, options);
        let ranges = [(GuestAddress(0), 1 << 20)];
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
        port.set_memory(Some(Arc::clone(&memory))).unwrap();
        for round in 0..300_u32 {
            // Lists of another shape in each round: one that was overwritten too early would show.
            let mut expected = Vec::new();
            for at in 0..8 {
                let whole = ethernet(
                    [0xff; 6],
                    round * 8 + at,
                    200 + (round as usize * 37) % 3000,
                );
                let start = u64::from(at) << 16;
                memory.write_slice(&whole, GuestAddress(start)).unwrap();
                let cut = 14 + (round as usize * 13 + at as usize) % 180;
                let parts = [(0, cut), (cut, whole.len() - cut)].map(|(from, len)| {
                    memory
                        .get_slice(GuestAddress(start + from as u64), len)
                        .unwrap()
                });
                port.tx_gather(&[0; 12], parts.into_iter()).unwrap();
                expected.push(whole);
            }
            port.tx_submit();
            assert!(port.tx_copy(100).is_none());
            assert_eq!(
                port.tx_gather(&[0; 12], std::iter::empty()),
                Err(GatherError::BatchFull)
            );
            port.tx_cancel();
            assert_eq!(outcomes(&mut port), [TxOutcome::Sent; 8]);
            for whole in expected {
                assert!(host.receive() == whole, "round {round}");
            }
        }
    });
}
