//! Taps that somebody else has set up: descriptors we were started with, and macvtaps.

mod rig;

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use rig::{Host, all_modes, ethernet, frame, in_namespace, index_of, outcomes, read_frames, sh};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tapring_io::{Port, Tap, TapError, TxOutcome};

const ALL: [u8; 6] = [0xff; 6];

/// One frame each way.
fn check(mode: &str, port: &mut Port, host: &Host) {
    rig::submit_copies(port, (0..64).map(|number| frame(number, 100)));
    assert_eq!(outcomes(port), [TxOutcome::Sent; 64], "{mode}");
    assert_eq!(host.numbers(64), (0..64).collect::<Vec<_>>(), "{mode}");
    (0..64).for_each(|number| host.send(&ethernet(ALL, number, 1400)));
    let expected: Vec<_> = (0..64).map(|number| ethernet(ALL, number, 1400)).collect();
    assert!(read_frames(port, 64) == expected, "{mode}");
}

fn refused(descriptors: &[RawFd]) -> String {
    Tap::inherit(descriptors).unwrap_err().to_string()
}

#[test]
fn a_tap_that_was_opened_by_somebody_else_works_like_one_of_ours() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let theirs = rig::tap("t0");
            let queue = theirs.try_clone_queue(0).unwrap();
            let flags = fcntl_getfl(&queue).unwrap();
            fcntl_setfl(&queue, flags - OFlags::NONBLOCK).unwrap();
            // As with the 10 bytes that are the kernel's default.
            rig::set_header_bytes(&queue, 10);

            let tap = Tap::inherit(&[queue.as_raw_fd()]).unwrap();
            assert_eq!(
                (tap.name(), tap.queue_pairs(), tap.created()),
                ("t0", 1, false)
            );
            assert_eq!(tap.index(), theirs.index());
            assert!(fcntl_getfl(&queue).unwrap().contains(OFlags::NONBLOCK));
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            check(mode, &mut port, &host);
            drop((tap, port));
            assert!(!theirs.is_gone(), "their descriptor is theirs");
        }
    });
}

#[test]
fn several_descriptors_are_several_queues_of_one_tap() {
    in_namespace(|| {
        let theirs = rig::taps("t0", 3);
        let queues = [0, 1, 2].map(|pair| theirs.try_clone_queue(pair).unwrap());
        let tap = Tap::inherit(&queues.each_ref().map(AsRawFd::as_raw_fd)).unwrap();
        assert_eq!((tap.name(), tap.queue_pairs()), ("t0", 3));

        let other = rig::tap("t1").try_clone_queue(0).unwrap();
        let error = refused(&[queues[0].as_raw_fd(), other.as_raw_fd()]);
        assert!(error.contains("different taps, `t0` and `t1`"), "{error}");
        assert!(error.contains(&format!("file descriptor {}", other.as_raw_fd())));
    });
}

#[test]
fn what_is_no_tap_is_refused_with_its_number() {
    in_namespace(|| {
        let open = |path: &str| {
            let mut both = File::options();
            both.read(true).write(true).open(path).unwrap()
        };
        let (null, memory) = (open("/dev/null"), rig::event());
        for fd in [null.as_raw_fd(), memory.as_raw_fd()] {
            let error = refused(&[fd]);
            let expected =
                format!("file descriptor {fd} is no queue of a tap or macvtap: pass one");
            assert!(error.starts_with(&expected), "{error}");
        }
        let closed = null.as_raw_fd();
        drop(null);
        let error = refused(&[closed]);
        assert!(error.contains(&format!("{closed} is not open")), "{error}");
        assert!(error.contains(&format!("--tap-fd {closed}")), "{error}");
        assert!(matches!(
            Tap::inherit(&[-1]),
            Err(TapError::NoSuchFd { fd: -1 })
        ));

        let unattached = open("/dev/net/tun");
        let error = refused(&[unattached.as_raw_fd()]);
        assert!(
            error.contains("/dev/net/tun without an interface"),
            "{error}"
        );
        rig::attach(&unattached, "tun0", 0x0001 | 0x1000 | 0x4000);
        let error = refused(&[unattached.as_raw_fd()]);
        assert!(error.contains("it is a tun"), "{error}");
        let bare = open("/dev/net/tun");
        rig::attach(&bare, "bare0", 0x0002 | 0x1000);
        let error = refused(&[bare.as_raw_fd()]);
        assert!(error.contains("no virtio header"), "{error}");
    });
}

#[test]
fn a_macvtap_works_like_a_tap() {
    in_namespace(|| {
        rig::veth();
        let Some(device) = rig::macvtap() else { return };
        for (mode, options) in all_modes() {
            let tap = Tap::open_device(device.path(), 1).unwrap();
            assert_eq!((tap.name(), tap.index()), ("m0", index_of("m0")));
            assert_eq!(tap.queue_pairs(), 1);
            let host = Host::on(index_of("v1"));
            let mut port = rig::port(&tap, options);
            check(mode, &mut port, &host);
            rig::assert_no_io_wq();
        }
    });
}

#[test]
fn a_macvtap_has_as_many_queues_as_are_opened_and_can_be_passed_too() {
    in_namespace(|| {
        rig::veth();
        let Some(device) = rig::macvtap() else { return };
        let tap = Tap::open_device(device.path(), 3).unwrap();
        assert_eq!(tap.queue_pairs(), 3);
        let queues = [0, 1, 2].map(|pair| tap.try_clone_queue(pair).unwrap());
        let passed = Tap::inherit(&queues.each_ref().map(AsRawFd::as_raw_fd)).unwrap();
        assert_eq!((passed.name(), passed.queue_pairs()), ("m0", 3));

        // Those of pairs that do not run are taken out, and the others get all there is.
        let host = Host::on(index_of("v1"));
        let mut ports = queues.map(|queue| Port::new(queue, Default::default()).unwrap());
        for port in &mut ports[1..] {
            assert_eq!(port.detach().unwrap(), 0);
        }
        check("inline", &mut ports[0], &host);
        ports[2].attach().unwrap();
    });
}

/// Why there is `Tap::is_gone`: nothing else notices.
#[test]
fn of_a_deleted_macvtap_only_one_question_tells() {
    in_namespace(|| {
        rig::veth();
        let Some(device) = rig::macvtap() else { return };
        let tap = Tap::open_device(device.path(), 1).unwrap();
        let mut port = rig::port(&tap, Default::default());
        assert!(!tap.is_gone());
        port.poll_readable();
        rig::settle(&mut port);
        sh("ip link del m0");
        rig::submit_copies(&mut port, std::iter::once(frame(0, 100)));
        assert_eq!(outcomes(&mut port), [TxOutcome::Sent], "so the kernel says");
        rig::settle(&mut port);
        assert!(port.take_events().is_empty());
        assert!(tap.is_gone());
        let queue = tap.try_clone_queue(0).unwrap();
        assert!(refused(&[queue.as_raw_fd()]).contains("was deleted"));
    });
}

#[test]
fn a_device_that_is_missing_or_another_is_refused_with_its_path() {
    in_namespace(|| {
        let open = |path: &str| {
            Tap::open_device(Path::new(path), 1)
                .unwrap_err()
                .to_string()
        };
        let missing = open("/dev/tap-of-nobody");
        assert!(
            missing.starts_with("/dev/tap-of-nobody cannot be opened"),
            "{missing}"
        );
        assert!(missing.contains("type macvtap"), "{missing}");
        let null = open("/dev/null");
        assert!(null.starts_with("/dev/null is no queue of a tap"), "{null}");
        let tun = open("/dev/net/tun");
        assert!(tun.contains("--tap NAME"), "{tun}");
    });
}
