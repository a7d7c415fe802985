//! The ring itself: eventfds, calls, modes, limits, and closing with things in flight.

mod rig;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rig::{
    Host, all_modes, assert_no_io_wq, count, enter_until, event, frame, in_namespace, kick,
    outcomes, port,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tapring_io::{
    CallFd, Events, PollMode, Port, PortError, PortOptions, Tap, TxOutcome, Wait, Watch,
};

const SHORT: Wait = Wait::For(Duration::from_millis(5));

fn watching(port: &mut Port, what: Watch) -> OwnedFd {
    let fd = event();
    port.watch(what, fd.try_clone().unwrap()).unwrap();
    port.enter(Wait::No).unwrap();
    fd
}

fn sqpoll(attach: Option<OwnedFd>) -> PortOptions {
    let poll = PollMode::Sqpoll {
        cpu: None,
        attach,
        idle: Duration::from_millis(2),
    };
    PortOptions {
        poll,
        ..PortOptions::default()
    }
}

#[test]
fn every_write_of_a_watched_eventfd_is_one_event() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let command = watching(&mut port, Watch::Command);
            let kicks = [
                watching(&mut port, Watch::Kick(0)),
                watching(&mut port, Watch::Kick(1)),
            ];
            let mut seen = 0;
            for round in 1..=5 {
                kick(&kicks[1]);
                port.enter(Wait::Forever).unwrap();
                let events = port.take_events();
                seen += events.kicks[1];
                assert_eq!(
                    (seen, events.kicks[0], events.command),
                    (round, 0, false),
                    "{mode}"
                );
            }
            port.enter(SHORT).unwrap();
            assert!(
                port.take_events().is_empty(),
                "{mode}: never read, and yet it does not spin"
            );
            kick(&command);
            kick(&kicks[0]);
            let mut events = Events::default();
            enter_until(&mut port, |port| {
                let more = port.take_events();
                events.command |= more.command;
                events.kicks[0] += more.kicks[0];
                (events.command && events.kicks[0] == 1).then_some(())
            });
        }
    });
}

#[test]
fn an_eventfd_written_before_it_was_watched_counts() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let fd = event();
            kick(&fd);
            port.watch(Watch::Kick(1), fd).unwrap();
            port.enter(Wait::Forever).unwrap();
            assert_eq!(port.take_events().kicks, [0, 1], "{mode}");
        }
    });
}

#[test]
fn a_replaced_eventfd_is_closed_and_heard_no_more() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            for _ in 0..50 {
                let old = watching(&mut port, Watch::Kick(0));
                // Kicks that are just arriving are the case where POLL_REMOVE fails.
                kick(&old);
                let new = watching(&mut port, Watch::Kick(0));
                enter_until(&mut port, |port| {
                    (port.take_events().kicks[0] < 2).then_some(())
                });
                kick(&old);
                port.enter(Wait::No).unwrap();
                port.take_events();
                kick(&new);
                port.enter(Wait::Forever).unwrap();
                assert_eq!(port.take_events().kicks, [1, 0], "{mode}");
            }
            port.unwatch(Watch::Kick(0));
            port.enter(SHORT).unwrap();
            assert!(port.take_events().is_empty());
        }
    });
}

#[test]
fn only_eventfds_and_only_two_kicks() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let mut port = port(&tap, PortOptions::default());
        let file: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
        assert!(matches!(
            port.watch(Watch::Command, file),
            Err(PortError::NotEventfd(_))
        ));
        assert!(matches!(
            port.watch(Watch::Kick(2), event()),
            Err(PortError::NoSuchWatch { .. })
        ));
    });
}

#[test]
fn a_call_goes_out_with_the_next_enter_and_does_not_end_a_sleep() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let fd = event();
            let call = CallFd::new(fd.try_clone().unwrap()).unwrap();
            for _ in 0..40 {
                port.call(&call);
            }
            let start = Instant::now();
            port.enter(Wait::For(Duration::from_millis(30))).unwrap();
            assert!(
                start.elapsed() >= Duration::from_millis(30),
                "{mode}: slept on"
            );
            let mut called = 0;
            enter_until(&mut port, |_| {
                called += count(&fd);
                (called >= 40).then_some(())
            });
            assert_eq!(called, 40, "{mode}");
            assert_no_io_wq();
        }
    });
}

#[test]
fn a_call_and_a_sleep_are_one_system_call() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let mut port = port(&tap, PortOptions::default());
        let kicked = watching(&mut port, Watch::Kick(1));
        let fd = event();
        let call = CallFd::new(fd.try_clone().unwrap()).unwrap();
        port.stats();
        let driver = std::thread::spawn(move || {
            assert!(rig::wait_readable(&fd, rig::LIMIT));
            kick(&kicked);
        });
        port.call(&call);
        port.poll_readable();
        port.enter(Wait::Forever).unwrap();
        driver.join().unwrap();
        assert_eq!(port.take_events().kicks, [0, 1]);
        assert_eq!(port.stats().ring_enters, 1);
    });
}

#[test]
fn a_blocking_call_eventfd_makes_no_io_wq_thread_and_keeps_its_flags() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let fd = eventfd(0, EventfdFlags::empty()).unwrap();
            let call = CallFd::new(fd.try_clone().unwrap()).unwrap();
            port.call(&call);
            port.enter(Wait::No).unwrap();
            assert_no_io_wq();
            assert!(
                !rustix::fs::fcntl_getfl(&fd)
                    .unwrap()
                    .contains(rustix::fs::OFlags::NONBLOCK)
            );
            assert_eq!(count(&fd), 1, "{mode}");
        }
    });
}

#[test]
fn a_call_eventfd_that_turns_blocking_in_between_is_still_signalled() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let fd = event();
            let call = CallFd::new(fd.try_clone().unwrap()).unwrap();
            rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::empty()).unwrap();
            port.call(&call);
            enter_until(&mut port, |_| {
                rig::wait_readable(&fd, Duration::ZERO).then_some(())
            });
            assert_no_io_wq();
            assert_eq!(count(&fd), 1, "{mode}");
        }
    });
}

#[test]
fn waiting_ends_with_the_time_and_that_is_no_error() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let start = Instant::now();
            port.enter(Wait::For(Duration::from_millis(20))).unwrap();
            let slept = start.elapsed();
            assert!(
                slept >= Duration::from_millis(20) && slept < rig::LIMIT,
                "{mode}: {slept:?}"
            );
            port.enter(Wait::For(Duration::ZERO)).unwrap();
        }
    });
}

#[test]
fn a_sleep_does_not_begin_on_results_that_were_not_taken() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            rig::submit_copies(&mut port, std::iter::once(frame(0, 64)));
            enter_until(&mut port, |port| (port.tx_in_flight() == 0).then_some(()));
            port.enter(Wait::Forever).unwrap();
            assert_eq!(port.tx_outcomes(), Some(&[TxOutcome::Sent][..]), "{mode}");
            let kicked = watching(&mut port, Watch::Kick(0));
            kick(&kicked);
            let start = Instant::now();
            while !port.has_news() {
                assert!(start.elapsed() < rig::LIMIT, "{mode}: no news of the kick");
            }
            port.enter(Wait::No).unwrap();
            port.enter(Wait::Forever).unwrap();
            assert_eq!(port.take_events().kicks, [1, 0], "{mode}");
        }
    });
}

#[test]
fn what_is_in_flight_is_waited_for_though_events_are_there_to_be_taken() {
    in_namespace(|| {
        for (mode, options) in all_modes() {
            let tap = rig::tap("t0");
            let mut port = port(&tap, options);
            let kicks = watching(&mut port, Watch::Kick(1));
            kick(&kicks);
            let start = Instant::now();
            while !port.has_news() {
                assert!(start.elapsed() < rig::LIMIT, "{mode}: no news of the kick");
            }
            port.enter(Wait::No).unwrap();
            rig::submit_copies(&mut port, (0..64).map(|number| frame(number, 60)));

            port.finish().unwrap();

            assert_eq!(port.tx_in_flight(), 0, "{mode}");
            assert_eq!(port.take_events().kicks, [0, 1], "{mode}");
            assert_eq!(port.tx_outcomes().map(<[_]>::len), Some(64), "{mode}");
        }
    });
}

#[test]
fn signals_do_not_disturb_a_sleep() {
    in_namespace(|| {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler = nothing as extern "C" fn(libc::c_int);
        // SAFETY: plain old data for which all zeroes is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize; // without SA_RESTART: the system call ends with EINTR
        // SAFETY: the handler does nothing, which is async-signal-safe.
        let set =
            unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0);

        let tap = rig::tap("t0");
        let mut port = port(&tap, PortOptions::default());
        let kicked = watching(&mut port, Watch::Kick(0));
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let disturber = std::thread::spawn(move || {
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(1));
                // SAFETY: sends a signal that is handled to a thread of ours.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
            }
            kick(&kicked);
        });
        port.enter(Wait::Forever).unwrap();
        assert_eq!(port.take_events().kicks, [1, 0]);
        disturber.join().unwrap();
    });
}

#[test]
fn an_sqpoll_thread_that_fell_asleep_is_woken() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let host = Host::on(tap.index());
        let mut port = port(&tap, sqpoll(None));
        assert_eq!(port.describe().mode, "sqpoll");
        for number in 0..300 {
            rig::submit_copies(&mut port, std::iter::once(frame(number, 64)));
            port.enter(Wait::No).unwrap();
            port.enter(Wait::Forever).unwrap();
            assert_eq!(port.tx_outcomes(), Some(&[TxOutcome::Sent][..]));
            // Around the idle time of 2 ms, where the thread goes to sleep.
            std::thread::sleep(Duration::from_micros(u64::from(number % 30) * 200));
        }
        assert_eq!(host.numbers(300), (0..300).collect::<Vec<_>>());
        assert!(port.stats().sqpoll_wakeups > 0);
        assert_no_io_wq();
    });
}

#[test]
fn two_ports_share_one_sqpoll_thread() {
    in_namespace(|| {
        let taps = [rig::tap("t0"), rig::tap("t1")];
        let threads = || {
            rig::thread_names()
                .iter()
                .filter(|name| name.starts_with("iou-sqp"))
                .count()
        };
        let mut first = port(&taps[0], sqpoll(None));
        let before = threads();
        let mut second = port(&taps[1], sqpoll(Some(first.ring_fd().unwrap())));
        assert_eq!(threads(), before, "no thread for the second");
        for (port, tap) in [(&mut first, &taps[0]), (&mut second, &taps[1])] {
            let host = Host::on(tap.index());
            rig::submit_copies(port, (0..64).map(|at| frame(at, 64)));
            assert_eq!(outcomes(port), [TxOutcome::Sent; 64]);
            assert_eq!(host.numbers(64), (0..64).collect::<Vec<_>>());
        }
        drop(first);
        rig::submit_copies(&mut second, std::iter::once(frame(9, 64)));
        assert_eq!(outcomes(&mut second), [TxOutcome::Sent]);
    });
}

#[test]
fn sqpoll_on_a_cpu_that_does_not_exist_is_refused_with_a_remedy() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let poll = PollMode::Sqpoll {
            cpu: Some(100_000),
            attach: None,
            idle: Duration::from_millis(2),
        };
        let options = PortOptions {
            poll,
            ..PortOptions::default()
        };
        let error = Port::new(tap.try_clone_queue(0).unwrap(), options).unwrap_err();
        assert!(matches!(error, PortError::Sqpoll { .. }), "{error:?}");
        assert!(error.to_string().contains("sqpoll_cpu"), "{error}");
    });
}

#[test]
fn without_lockable_memory_the_buffers_are_not_registered_and_frames_flow() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let host = Host::on(tap.index());
        // The limit is the process's, but counts only for threads without CAP_IPC_LOCK: this one.
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        let before = getrlimit(Resource::Memlock);
        setrlimit(
            Resource::Memlock,
            Rlimit {
                current: Some(65536),
                ..before
            },
        )
        .unwrap();
        let port = Port::new(tap.try_clone_queue(0).unwrap(), PortOptions::default());
        setrlimit(Resource::Memlock, before).unwrap();

        let mut port = port.unwrap();
        assert!(port.describe().nowait && !port.describe().registered);
        assert!(port.describe().to_string().contains("RLIMIT_MEMLOCK"));
        rig::submit_copies(&mut port, (0..64).map(|at| frame(at, 64)));
        assert_eq!(outcomes(&mut port), [TxOutcome::Sent; 64]);
        assert_eq!(host.numbers(64), (0..64).collect::<Vec<_>>());
        host.send(&rig::ethernet([0xff; 6], 5, 64));
        port.rx_submit(4);
        assert_eq!(enter_until(&mut port, Port::rx_batch_done).frames, 1);
    });
}

#[test]
fn closing_with_everything_in_flight_frees_the_tap() {
    in_namespace(|| {
        rig::sh("ip tuntap add t0 mode tap");
        rig::sh("ip link set t0 up");
        for (mode, _) in all_modes() {
            for _ in 0..25 {
                let tap = rig::tap("t0");
                let options = all_modes()
                    .into_iter()
                    .find(|(name, _)| *name == mode)
                    .unwrap()
                    .1;
                let mut port = port(&tap, options);
                for what in [Watch::Command, Watch::Kick(0), Watch::Kick(1)] {
                    port.watch(what, event()).unwrap();
                }
                port.poll_readable();
                port.poll_writable();
                port.always_poll_writable(true);
                rig::submit_copies(&mut port, (0..64).map(|at| frame(at, 64)));
                port.rx_submit(64);
                port.call(&CallFd::new(event()).unwrap());
                let ring = port.ring_fd().unwrap();
                drop(port);
                drop(tap);
                // The ring is still open by another descriptor, and yet nobody holds the tap any more: a port that had
                // given up waiting for the kernel would.
                drop(rig::tap("t0"));
                drop(ring);
            }
        }
    });
}

#[test]
fn something_that_is_no_tap_is_refused() {
    in_namespace(|| {
        let error = Port::new(event(), PortOptions::default()).unwrap_err();
        assert!(matches!(error, PortError::NotATap { .. }), "{error:?}");
        let tap: Tap = rig::tap("t0");
        let options = PortOptions {
            slot_bytes: 12,
            ..PortOptions::default()
        };
        let error = Port::new(tap.try_clone_queue(0).unwrap(), options).unwrap_err();
        assert!(
            matches!(error, PortError::SlotBytes { slot_bytes: 12 }),
            "{error:?}"
        );
    });
}

#[test]
fn a_passed_tap_is_made_non_blocking() {
    in_namespace(|| {
        let tap = rig::tap("t0");
        let queue = tap.try_clone_queue(0).unwrap();
        rustix::fs::fcntl_setfl(&queue, rustix::fs::OFlags::empty()).unwrap();
        let _port = Port::new(
            queue.as_fd().try_clone_to_owned().unwrap(),
            PortOptions::default(),
        )
        .unwrap();
        assert!(
            rustix::fs::fcntl_getfl(&queue)
                .unwrap()
                .contains(rustix::fs::OFlags::NONBLOCK)
        );
    });
}
