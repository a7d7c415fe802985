//! A busy poll: news are seen in memory, without any system call of the thread that looks.

mod rig;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rig::{Host, LIMIT, all_modes, enter_until, event, in_namespace, kick, settle};
use tapring_io::{Events, Port, Wait, Watch};

/// `prctl` has the kernel send SIGSYS for every system call of this thread while the selector says so (Linux 5.11).
const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;

static SELECTOR: AtomicBool = AtomicBool::new(false);

/// Switches the trap for this thread; `false` where there is none. Tests run one after the other.
fn set_trap(on: bool) -> bool {
    let selector = if on {
        SELECTOR.as_ptr()
    } else {
        std::ptr::null_mut()
    };
    // SAFETY: the kernel reads the selector, a static, and nothing else of our memory.
    unsafe {
        libc::prctl(
            PR_SET_SYSCALL_USER_DISPATCH,
            libc::c_ulong::from(on),
            0_usize,
            0_usize,
            selector,
        ) == 0
    }
}

/// Looks until there are news or `over`, with any system call deadly meanwhile.
fn spin(port: &mut Port, over: &AtomicBool) {
    SELECTOR.store(true, Ordering::Relaxed);
    while !port.has_news() && !over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    SELECTOR.store(false, Ordering::Relaxed);
}

/// Enters until there is nothing left to be seen.
fn calm(port: &mut Port) {
    settle(port);
    enter_until(port, |port| {
        port.take_events();
        (!port.has_news()).then_some(())
    });
}

/// What a thread that only spins and enters without waiting sees of what another one does.
fn sees(port: &mut Port, act: impl FnOnce() + Send) -> Events {
    let (spinning, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !spinning.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            act();
            let start = Instant::now();
            while spinning.load(Ordering::Relaxed) && start.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
        });
        port.stats();
        spinning.store(true, Ordering::Relaxed);
        let mut events = Events::default();
        while events.is_empty() && !over.load(Ordering::Relaxed) {
            spin(port, &over);
            port.enter(Wait::No).unwrap();
            events = port.take_events();
        }
        spinning.store(false, Ordering::Relaxed);
        events
    })
}

fn watching(port: &mut Port) -> OwnedFd {
    let fd = event();
    port.watch(Watch::Kick(1), fd.try_clone().unwrap()).unwrap();
    fd
}

#[test]
fn a_kick_is_seen_in_memory() {
    in_namespace(|| {
        if !set_trap(true) {
            rig::skip(
                "system calls cannot be trapped here: that a busy poll makes none is not tested",
            );
        }
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = rig::port(&tap, options);
            let fd = watching(&mut port);
            for _ in 0..20 {
                calm(&mut port);
                let events = sees(&mut port, || kick(&fd));
                assert_eq!(events.kicks, [0, 1], "{mode}");
            }
        }
        set_trap(false);
    });
}

#[test]
fn a_frame_is_seen_in_memory() {
    in_namespace(|| {
        set_trap(true);
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let host = Host::on(tap.index());
            let mut port = rig::port(&tap, options);
            let _kicks = watching(&mut port);
            for number in 0..20 {
                port.rx_discard();
                port.poll_readable();
                calm(&mut port);
                let frame = rig::ethernet([0xff; 6], number, 60);
                let events = sees(&mut port, || host.send(&frame));
                assert!(events.tap_readable, "{mode}: {events:?}");
            }
        }
        set_trap(false);
    });
}

#[test]
fn what_was_reaped_or_is_still_to_be_armed_is_news() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = rig::port(&tap, options);
            let fd = watching(&mut port);
            calm(&mut port);
            kick(&fd);
            port.enter(Wait::Forever).unwrap();
            assert!(port.has_news(), "{mode}: the kick was not taken");
            assert_eq!(port.take_events().kicks, [0, 1], "{mode}");
            calm(&mut port);
            port.poll_readable();
            assert!(port.has_news(), "{mode}: nobody would hear of a frame");
            port.enter(Wait::No).unwrap();
            calm(&mut port);
        }
    });
}
