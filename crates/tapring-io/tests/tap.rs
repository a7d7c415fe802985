//! Opening taps: every combination that users meet, each with its own answer.

mod rig;

use rig::{in_namespace, sh};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use tapring_io::{Tap, TapError, TapOptions};

fn open(name: &str, queue_pairs: u16) -> Result<Tap, TapError> {
    Tap::open(&TapOptions {
        name: name.into(),
        queue_pairs,
        create: false,
    })
}

fn links() -> usize {
    let output = std::process::Command::new("ip")
        .args(["-o", "link"])
        .output()
        .unwrap();
    output.stdout.iter().filter(|&&byte| byte == b'\n').count()
}

#[test]
fn a_missing_tap_is_not_created_by_surprise() {
    in_namespace(|| {
        let before = links();
        let error = open("t0", 1).unwrap_err();
        assert!(matches!(error, TapError::Missing { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "tap `t0` does not exist: create it with `ip tuntap add t0 mode tap` or pass --create-tap"
        );
        let error = open("t0", 4).unwrap_err().to_string();
        assert!(
            error.contains("`ip tuntap add t0 mode tap multi_queue`"),
            "{error}"
        );
        assert_eq!(links(), before);
    });
}

#[test]
fn a_single_queue_tap_serves_one_pair_only() {
    in_namespace(|| {
        sh("ip tuntap add t0 mode tap");
        let error = open("t0", 4).unwrap_err();
        assert!(
            matches!(error, TapError::SingleQueue { queue_pairs: 4, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("multi_queue"), "{error}");

        let tap = open("t0", 1).unwrap();
        assert_eq!(
            (tap.name(), tap.queue_pairs(), tap.created()),
            ("t0", 1, false)
        );
        assert_eq!(tap.send_buffer().unwrap(), None);
        assert!(!tap.is_up().unwrap(), "an existing tap is left as it is");
    });
}

#[test]
fn a_multi_queue_tap_serves_one_pair_and_several() {
    in_namespace(|| {
        sh("ip tuntap add t0 mode tap multi_queue");
        assert_eq!(open("t0", 1).unwrap().queue_pairs(), 1);
        let tap = open("t0", 4).unwrap();
        assert_eq!(tap.queue_pairs(), 4);
        assert!(tap.try_clone_queue(3).is_ok());
        assert!(tap.try_clone_queue(4).is_err());
    });
}

#[test]
fn a_held_tap_is_busy() {
    in_namespace(|| {
        sh("ip tuntap add t0 mode tap");
        let _held = open("t0", 1).unwrap();
        let error = open("t0", 1).unwrap_err();
        assert!(matches!(error, TapError::Busy { .. }), "{error:?}");
        assert!(
            error.to_string().contains("held by another process"),
            "{error}"
        );
    });
}

#[test]
fn other_interfaces_are_no_taps() {
    in_namespace(|| {
        sh("ip tuntap add tun0 mode tun");
        sh("ip link add br0 type bridge");
        for (name, queue_pairs) in [("tun0", 1), ("tun0", 2), ("br0", 1), ("lo", 1)] {
            let error = open(name, queue_pairs).unwrap_err();
            assert!(
                matches!(error, TapError::NotATap { .. }),
                "{name}: {error:?}"
            );
        }
    });
}

#[test]
fn creating_brings_up_a_tap_that_goes_with_us() {
    in_namespace(|| {
        let before = links();
        let tap = rig::taps("t0", 2);
        assert!(tap.created() && tap.is_up().unwrap());
        assert_eq!(links(), before + 1);
        drop(tap);
        assert_eq!(links(), before);
    });
}

#[test]
fn creating_uses_the_tap_that_is_there() {
    in_namespace(|| {
        sh("ip tuntap add t0 mode tap");
        let before = links();
        let tap = rig::tap("t0");
        assert!(!tap.created());
        drop(tap);
        assert_eq!(links(), before);
    });
}

#[test]
fn without_capabilities_only_ones_own_tap_can_be_opened() {
    in_namespace(|| {
        let user = rustix::process::geteuid().as_raw();
        sh(&format!("ip tuntap add own mode tap user {user}"));
        // A user namespace may know one user only; then there is nobody else to own a tap.
        let other = "ip tuntap add other mode tap user 4711";
        let has_other = rig::try_sh(other).is_ok();
        // Capabilities belong to a thread, and this one is the test's own.
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).unwrap();

        if has_other {
            let error = open("other", 1).unwrap_err();
            assert!(matches!(error, TapError::Denied { .. }), "{error:?}");
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        } else {
            rig::skip("another user's tap: this user namespace knows one user only");
        }
        let create = TapOptions {
            name: "new0".into(),
            queue_pairs: 1,
            create: true,
        };
        assert!(matches!(Tap::open(&create), Err(TapError::Denied { .. })));
        assert_eq!(open("own", 1).unwrap().name(), "own");
    });
}

#[test]
fn a_finite_send_buffer_is_found() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        rig::set_send_buffer(&tap.try_clone_queue(0).unwrap(), 20_000);
        assert_eq!(tap.send_buffer().unwrap(), Some(20_000));
    });
}

#[test]
fn offloads_can_be_set_and_impossible_ones_are_refused() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let (checksum, tso4) = (1, 2);
        tap.set_offload(checksum | tso4).unwrap();
        assert_eq!(
            tap.set_offload(tso4).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
    });
}
