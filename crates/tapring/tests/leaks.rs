//! Descriptors, threads and mappings of the whole process over many sessions; so this is the only test in it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use vhost::VhostBackend;
use vhost::vhost_user::message::FrontendReq;

use frontend::{Bytes, Guest, MEMORY, borrowed, event, memory, table};
use harness::Daemon;

// The harness of the other tests; this one does not need all of it.
#[allow(dead_code)]
#[path = "control_plane/frontend.rs"]
mod frontend;
#[allow(dead_code)]
#[path = "control_plane/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "control_plane/worker.rs"]
mod worker;

#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

impl Held {
    fn now() -> Self {
        let entries = |folder| fs::read_dir(folder).expect("/proc is mounted").count();
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: maps.matches("memfd:guest").count(),
        }
    }

    /// Something may just have been ending when `before` was taken, so less is as good.
    const fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.mappings <= before.mappings
    }
}

/// Waits until all has ended that is ending.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        let waited = began.elapsed() < Duration::from_secs(10);
        assert!(waited, "never {what}, but {:?}", Held::now());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sessions_and_repeated_messages_leave_nothing_behind() {
    let daemon = Daemon::start();
    let sessions = |first: usize, count: usize| {
        for round in first..first + count {
            let guest = Guest::start(daemon.connect(), 4);
            if round % 2 == 0 {
                for ring in 0..4 {
                    guest.frontend.get_vring_base(ring).expect("stopped");
                }
            }
            drop(guest);
            daemon.book.wait("1: reset", round + 1);
        }
    };
    let threads = Held::now().threads;
    sessions(0, 10);
    // A session is over when its thread has ended, which is after the reset.
    until("idle", || Held::now().threads == threads);
    let idle = Held::now();
    assert_eq!(idle.mappings, 0, "no guest memory without a guest");
    sessions(10, 200);
    until(&format!("within {idle:?}"), || Held::now().is_within(&idle));

    let mut bytes = Bytes::negotiated(daemon.connect());
    let files = [memory(MEMORY)];
    let mut repeat = |times: usize| {
        for _ in 0..times {
            let body = table(&[(0, MEMORY)]);
            let request = FrontendReq::SET_MEM_TABLE;
            assert_eq!(
                bytes.acknowledged_with(request, &body, &borrowed(&files)),
                Some(0)
            );
            for request in [
                FrontendReq::SET_VRING_CALL,
                FrontendReq::SET_VRING_KICK,
                FrontendReq::SET_VRING_ERR,
            ] {
                let taken = bytes.acknowledged_with(request, &[0; 8], &borrowed(&[event()]));
                assert_eq!(taken, Some(0));
            }
        }
    };
    repeat(1);
    let busy = Held::now();
    repeat(1000);
    until(&format!("within {busy:?}"), || Held::now().is_within(&busy));
}
