//! RX on a real tap: batches and single reads, byte-exact and in order.

mod rig;

use std::time::Duration;

use rig::{Host, all_modes, assert_no_io_wq, enter_until, ethernet, in_namespace};
use tapring_io::{BATCH_FRAMES, Discarded, Events, Port, PortOptions, RxBatch, RxRead, Wait};

const ALL: [u8; 6] = [0xff; 6];

fn send(host: &Host, numbers: std::ops::Range<u32>) {
    for number in numbers {
        host.send(&ethernet(ALL, number, 60 + number as usize % 1400));
    }
}

fn batch(port: &mut Port, frames: usize) -> RxBatch {
    port.rx_submit(frames);
    enter_until(port, Port::rx_batch_done)
}

fn check_front(port: &mut Port, number: u32) {
    let front = port.rx_front().expect("a frame is held");
    assert_eq!(front[..10], [0; 10], "no offload was asked for");
    assert_eq!(
        front[12..],
        ethernet(ALL, number, 60 + number as usize % 1400)
    );
    port.rx_pop();
}

#[test]
fn batches_bring_frames_byte_exact_and_in_order() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            send(&host, 0..400);
            let mut next = 0;
            while next < 400 {
                let done = batch(&mut port, 64);
                assert_eq!((done.cut, done.fault), (0, None), "{mode}");
                assert_eq!(port.rx_held(), done.frames, "{mode}");
                for _ in 0..done.frames {
                    check_front(&mut port, next);
                    next += 1;
                }
            }
            let rest = batch(&mut port, 64);
            assert_eq!(rest.frames, 0);
            assert!(rest.empty > 0, "{mode}");
            assert_eq!(port.rx_free(), BATCH_FRAMES);
            assert_no_io_wq();
        }
    });
}

#[test]
fn single_reads_and_batches_keep_one_order() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            assert_eq!(port.rx_read(), RxRead::Empty, "{mode}");
            send(&host, 0..20);
            for _ in 0..5 {
                assert_eq!(port.rx_read(), RxRead::Frame);
            }
            assert_eq!(batch(&mut port, 10).frames, 10, "{mode}");
            for _ in 0..5 {
                assert_eq!(port.rx_read(), RxRead::Frame);
            }
            (0..20).for_each(|number| check_front(&mut port, number));
            assert_eq!(port.rx_read(), RxRead::Empty);
        }
    });
}

#[test]
fn held_frames_limit_what_is_read() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            send(&host, 0..100);
            assert_eq!(batch(&mut port, 64).frames, 64, "{mode}");
            assert_eq!((port.rx_submit(64), port.rx_read()), (0, RxRead::NoSlot));
            (0..10).for_each(|number| check_front(&mut port, number));
            assert_eq!(port.rx_submit(64), 10, "{mode}");
            assert_eq!(enter_until(&mut port, Port::rx_batch_done).frames, 10);
            (10..74).for_each(|number| check_front(&mut port, number));
        }
    });
}

#[test]
fn a_frame_that_fills_the_slot_is_cut_and_dropped() {
    in_namespace(|| {
        for (mode, mut options) in all_modes() {
            options.slot_bytes = 12 + 500 + 1;
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            for bytes in [500, 501, 1000, 60] {
                host.send(&ethernet(ALL, 9, bytes));
            }
            let done = batch(&mut port, 4);
            assert_eq!((done.frames, done.cut), (2, 2), "{mode}");
            assert_eq!(port.rx_front().unwrap()[12..], ethernet(ALL, 9, 500));
            port.rx_pop();
            assert_eq!(port.rx_front().unwrap()[12..], ethernet(ALL, 9, 60));
            host.send(&ethernet(ALL, 9, 501));
            assert_eq!(port.rx_read(), RxRead::Cut, "{mode}");
        }
    });
}

#[test]
fn the_one_shot_poll_wakes_once_per_request() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            port.poll_readable();
            port.enter(Wait::For(Duration::from_millis(1))).unwrap();
            assert!(port.take_events().is_empty());
            send(&host, 0..1);
            port.enter(Wait::Forever).unwrap();
            assert_eq!(
                port.take_events(),
                Events {
                    tap_readable: true,
                    ..Events::default()
                },
                "{mode}"
            );
            send(&host, 1..3);
            port.enter(Wait::For(Duration::from_millis(5))).unwrap();
            assert!(port.take_events().is_empty(), "{mode}: one-shot");
            port.poll_readable();
            port.enter(Wait::Forever).unwrap();
            assert!(
                port.take_events().tap_readable,
                "{mode}: frames were there already"
            );
        }
    });
}

#[test]
fn discarding_empties_the_slots_and_the_tap() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            send(&host, 0..300);
            assert_eq!(batch(&mut port, 40).frames, 40);
            port.rx_submit(16);
            let discarded = port.rx_discard();
            assert_eq!(
                discarded,
                Discarded {
                    held: 56,
                    queued: 244
                },
                "{mode}"
            );
            assert_eq!(
                (port.rx_read(), port.rx_free()),
                (RxRead::Empty, BATCH_FRAMES)
            );
            send(&host, 7..8);
            assert_eq!(batch(&mut port, 1).frames, 1);
            check_front(&mut port, 7);
        }
    });
}

#[test]
fn a_tap_that_is_down_is_empty_and_a_deleted_one_is_gone() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = rig::port(&tap, options);
            rig::sh("ip link set t0 down");
            assert_eq!(port.rx_read(), RxRead::Empty, "{mode}");
            assert_eq!(batch(&mut port, 2).fault, None);
            rig::sh("ip link del t0");
            assert_eq!(port.rx_read(), RxRead::Gone, "{mode}");
            assert_eq!(batch(&mut port, 2).fault, Some(tapring_io::TapFault::Gone));
            assert_eq!(
                port.take_events(),
                Events {
                    tap_gone: true,
                    ..Events::default()
                },
                "{mode}"
            );
        }
    });
}

#[test]
fn making_a_port_takes_no_frame_off_the_tap() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let host = Host::on(tap.index());
        send(&host, 0..3);
        let mut port = rig::port(&tap, PortOptions::default());
        assert_eq!(batch(&mut port, 8).frames, 3);
        (0..3).for_each(|number| check_front(&mut port, number));
    });
}
