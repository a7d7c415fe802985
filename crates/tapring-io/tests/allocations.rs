//! The data path allocates nothing: everything is there when the port is made.

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tapring_io::{BATCH_FRAMES, CallFd, Port, RxRead, TxOutcome, Wait, Watch};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_data_path_does_not_allocate() {
    rig::in_namespace(|| {
        for (mode, options) in rig::all_modes() {
            let tap = rig::tap("t0");
            let host = rig::Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            check(mode, &mut port, &host);
        }
    });
}

#[test]
fn nor_does_that_of_a_packet_socket() {
    rig::in_namespace(|| {
        rig::veth();
        for (mode, options) in rig::all_modes() {
            let host = rig::Host::on(rig::index_of("v1"));
            let mut port = rig::packet_port("v0", options.with_super_frames());
            check(mode, &mut port, &host);
        }
    });
}

/// Twenty turns, with frames of all kinds both ways.
fn check(mode: &str, port: &mut Port, host: &rig::Host) {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 16)]).unwrap();
    let memory = Arc::new(memory);
    let large = rig::ethernet([0xff; 6], 1, 5000);
    memory.write_slice(&large, GuestAddress(0)).unwrap();
    port.set_memory(Some(Arc::clone(&memory))).unwrap();
    let kicked = rig::event();
    port.watch(Watch::Kick(1), kicked.try_clone().unwrap())
        .unwrap();
    port.always_poll_writable(true);
    let call = CallFd::new(rig::event()).unwrap();
    let small = rig::frame(0, 100);
    let part = memory.get_slice(GuestAddress(0), large.len()).unwrap();
    (0..200).for_each(|_| host.send(&small[12..]));

    let before = COUNT.get();
    for _ in 0..20 {
        rig::kick(&kicked);
        turn(port, &small, part, &call);
    }
    assert_eq!(COUNT.get() - before, 0, "{mode}");
}

/// A turn of a worker with both directions busy.
fn turn(port: &mut Port, small: &[u8], part: VolatileSlice<'_>, call: &CallFd) {
    for _ in 0..BATCH_FRAMES / 2 {
        port.tx_copy(small.len()).unwrap().copy_from_slice(small);
        port.tx_gather(&[0; 12], std::iter::once(part)).unwrap();
    }
    port.tx_submit();
    let single = port.rx_read();
    assert!(matches!(single, RxRead::Frame | RxRead::Empty));
    port.rx_submit(8);
    port.call(call);
    port.poll_readable();
    port.poll_writable();
    while port.tx_in_flight() + port.rx_in_flight() > 0 {
        port.enter(Wait::For(Duration::from_secs(1))).unwrap();
    }
    let outcomes = port.tx_outcomes().unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == TxOutcome::Sent));
    assert!(port.rx_batch_done().is_some());
    while port.rx_front().is_some() {
        port.rx_pop();
    }
    port.take_events();
    port.stats();
}
