//! The raw loops on a real tap, and the whole program with a real daemon. Both need a network namespace.

use std::process::Command;
use std::time::Duration;

use nix::unistd::geteuid;
use tapring_benches::filler::Filler;
use tapring_benches::place;
use tapring_benches::rig::frame;
use tapring_io::limit::{LimitError, RawReader, RawWriter};
use tapring_io::{Tap, TapOptions};

/// Runs `test` on a thread of its own in a namespace of its own.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        return eprintln!("SKIP: a network namespace for a single thread needs root");
    }
    let thread = std::thread::spawn(|| {
        place::enter().unwrap();
        test();
    });
    thread.join().unwrap();
}

fn tap() -> Tap {
    let options = TapOptions {
        name: "t0".to_owned(),
        queue_pairs: 1,
        create: true,
    };
    Tap::open(&options).unwrap()
}

#[test]
fn the_kernel_counts_what_the_writer_says() {
    in_namespace(|| {
        let tap = tap();
        let mut writer = RawWriter::new(tap.try_clone_queue(0).unwrap(), &frame(64)).unwrap();

        let moved = writer.write_for(Duration::from_millis(5)).unwrap();

        assert!(moved.took >= Duration::from_millis(5) && moved.frames >= 64);
        assert_eq!(place::counted("t0").unwrap().received, moved.frames as u64);
    });
}

#[test]
fn the_reader_drains_what_waits_and_says_when_there_is_less() {
    in_namespace(|| {
        let tap = tap();
        let filler = Filler::new("t0", &frame(64)).unwrap();
        let mut reader = RawReader::new(tap.try_clone_queue(0).unwrap(), 64).unwrap();

        filler.fill(200).unwrap();
        assert_eq!(reader.drain(200).unwrap().frames, 200 - 64);

        filler.fill(100).unwrap();
        let error = reader.drain(130).unwrap_err();
        assert!(
            matches!(error, LimitError::RanEmpty { missing: 30 }),
            "{error}"
        );
    });
}

#[test]
fn a_tap_that_is_down_is_an_error_with_a_remedy() {
    in_namespace(|| {
        let tap = tap();
        let mut writer = RawWriter::new(tap.try_clone_queue(0).unwrap(), &frame(64)).unwrap();
        place::ip("link set t0 down").unwrap();
        let error = writer.write_for(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("is it up"), "{error}");
    });
}

#[test]
fn both_directions_print_one_json_object() {
    let program = env!("CARGO_BIN_EXE_datapath");
    if !std::path::Path::new(program)
        .with_file_name("tapring")
        .is_file()
    {
        return eprintln!("SKIP: no daemon next to {program}: build it with `cargo build`");
    }
    for direction in ["tx", "rx"] {
        let words = [direction, "--json", "--rounds", "1", "--seconds", "0.05"];
        let done = Command::new(program).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if said.contains("cannot make a network namespace") || said.contains("/dev/net/tun") {
            return eprintln!("SKIP: {said}");
        }
        assert!(done.status.success(), "{said}");
        let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        for bytes in ["64", "1472"] {
            let ratio = json["sizes"][bytes]["ratio_to_raw"].as_f64().unwrap();
            assert!(ratio > 0.0, "{direction} {bytes}: {json}");
        }
    }
}

#[test]
fn without_a_daemon_it_says_how_to_get_one() {
    let program = env!("CARGO_BIN_EXE_datapath");
    let words = ["tx", "--daemon", "/nowhere/tapring"];
    let done = Command::new(program).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        said.contains("cargo build --release") && said.lines().count() == 1,
        "{said}"
    );
}
