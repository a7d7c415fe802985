//! The guest against a backend that sends everything back: set-up, both drivers, and what a VMM does to a running device.

mod double;

use std::thread;
use std::time::{Duration, Instant};

use double::Double;
use tapring_guest::traffic::{Flow, Report, SHORTEST_BYTES, Verifier};
use tapring_guest::{
    Cut, Descriptor, F_EVENT_IDX, F_INDIRECT_DESC, F_MRG_RXBUF, F_PROTOCOL_FEATURES, F_VERSION_1,
    Guest, GuestConfig, GuestError, Layout, Pair, RAW, Random, Resume, RxQueue, SendError, TxQueue,
    Until, Violation, Woken,
};

const ALL: u64 = F_EVENT_IDX | F_INDIRECT_DESC | F_MRG_RXBUF | F_PROTOCOL_FEATURES | F_VERSION_1;
const LIMIT: Duration = Duration::from_secs(20);

fn connect(double: &Double, change: impl FnOnce(&mut GuestConfig)) -> Guest {
    let mut config = GuestConfig::new(&double.socket);
    change(&mut config);
    Guest::connect(&config).unwrap()
}

/// Sends `frames` frames from number `first` on with lengths up to `longest`, each cut by the next of `layouts`.
fn send_all(tx: &mut TxQueue, first: u64, frames: u64, longest: usize, layouts: &[Layout]) {
    let flow = Flow::default();
    let mut random = Random::new(first);
    let mut bytes = vec![0; longest];
    for sequence in first..first + frames {
        let length = random.between(SHORTEST_BYTES, longest);
        flow.write(sequence, &mut bytes[..length]);
        let layout = &layouts[random.between(0, layouts.len() - 1)];
        while tx.send_in(&bytes[..length], layout) == Err(SendError::Full) {
            tx.kick_if_needed();
            tx.wait_for_room(LIMIT).unwrap();
        }
        tx.kick_if_needed();
    }
    tx.wait_for_all(LIMIT).unwrap();
}

/// Receives until `verifier` has seen number `end - 1` or nothing has come for a while.
fn receive_all(rx: &mut RxQueue, verifier: &mut Verifier, end: u64) -> Result<Report, Violation> {
    while verifier.sequence().next() < end {
        let taken = rx.receive(64, |frame| _ = verifier.frame(frame))?;
        rx.refill_as_linux();
        if taken == 0 && rx.wait_for_call(Until::Next, LIMIT)? == Woken::TimedOut {
            break;
        }
    }
    rx.refill();
    Ok(verifier.report(end))
}

/// Both directions in threads of their own; everything sent must come back.
fn run(
    Pair { mut tx, mut rx }: Pair,
    first: u64,
    frames: u64,
    longest: usize,
    layouts: &[Layout],
) -> Pair {
    rx.refill();
    let layouts = layouts.to_vec();
    let sender = thread::spawn(move || {
        send_all(&mut tx, first, frames, longest, &layouts);
        tx
    });
    let mut verifier = Verifier::starting_at(Flow::default(), first);
    let report = receive_all(&mut rx, &mut verifier, first + frames).unwrap();
    assert!(report.is_perfect(), "{report:?} {:?}", rx.counters());
    assert_eq!(report.received, frames);
    Pair {
        tx: sender.join().unwrap(),
        rx,
    }
}

#[test]
fn messages_come_in_cloud_hypervisors_order() {
    let double = Double::start(ALL, 2);
    let _guest = connect(&double, |config| config.queue_pairs = 2);
    let names = double.message_names();
    let setup = [
        "SET_OWNER",
        "GET_FEATURES",
        "GET_PROTOCOL_FEATURES",
        "SET_PROTOCOL_FEATURES",
        "GET_QUEUE_NUM",
    ];
    let ring = [
        "SET_VRING_ADDR",
        "SET_VRING_BASE",
        "SET_VRING_CALL",
        "SET_VRING_KICK",
    ];
    let mut expected = setup.to_vec();
    expected.extend(["SET_FEATURES", "SET_MEM_TABLE"]);
    expected.extend(["SET_VRING_NUM"; 4]);
    (0..4).for_each(|_| expected.extend(ring));
    expected.extend(["SET_VRING_ENABLE"; 4]);
    assert_eq!(names, expected);
}

#[test]
fn every_feature_subset_moves_frames_across_the_index_wrap() {
    for subset in 0..8u64 {
        let offered =
            F_VERSION_1 | F_PROTOCOL_FEATURES | subset << 28 & (F_INDIRECT_DESC | F_EVENT_IDX);
        let offered = offered | if subset & 4 != 0 { F_MRG_RXBUF } else { 0 };
        let double = Double::start(offered, 1);
        let mut guest = connect(&double, |config| config.start_index = 65_400);
        assert_eq!(guest.features(), offered);
        run(
            guest.take_pairs().remove(0),
            0,
            3000,
            1514,
            &[Layout::ONE, Layout::TWO],
        );
    }
}

#[test]
fn odd_but_legal_layouts_arrive_whole_both_ways() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| {
        config.rx_layout = Layout::direct(Cut::At(vec![3, 3, 12, 40])).in_table(1);
        config.tx_buffer_bytes = 4096;
    });
    let layouts = [
        Layout::ONE,
        Layout::TWO,
        Layout::INDIRECT,
        Layout::pieces(9),
        Layout::pieces(30).in_table(2),
        Layout::direct(Cut::At((0..=12).collect())).in_table(15),
        Layout::direct(Cut::At(vec![5, 5, 13])),
    ];
    let mut pair = run(guest.take_pairs().remove(0), 0, 4000, 1514, &layouts);
    pair.rx.reshape(1536, &Layout::pieces(2)).unwrap();
    run(pair, 4000, 2000, 1514, &layouts);
}

#[test]
fn large_frames_are_merged_from_small_buffers() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| config.tx_buffer_bytes = 9216);
    let mut pair = run(guest.take_pairs().remove(0), 0, 3000, 9014, &[Layout::ONE]);
    assert!(pair.rx.counters().merged_frames > 1000);
}

#[test]
fn eight_buffers_and_a_ring_of_sixteen_suffice() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| {
        (config.queue_size, config.rx_buffers) = (16, 8);
    });
    let mut pair = run(guest.take_pairs().remove(0), 0, 2000, 1514, &[Layout::ONE]);
    assert!(pair.rx.ring().outstanding() <= 8);
    assert!(pair.tx.counters().kicks_sent <= 2000);
}

#[test]
fn two_pairs_run_at_once_with_blocking_eventfds() {
    let double = Double::start(ALL, 2);
    let mut guest = connect(&double, |config| {
        (config.queue_pairs, config.blocking_eventfds) = (2, true);
    });
    let pairs = guest.take_pairs();
    assert_eq!((pairs.len(), guest.take_pairs().len()), (2, 0));
    let threads: Vec<_> = pairs
        .into_iter()
        .map(|pair| thread::spawn(|| run(pair, 0, 3000, 1514, &[Layout::ONE])))
        .collect();
    threads
        .into_iter()
        .for_each(|thread| drop(thread.join().unwrap()));
}

#[test]
fn prepared_frames_go_out_without_a_copy() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| config.tx_span_bytes = 4 << 20);
    let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
    rx.refill();
    let flow = Flow::default();
    let count = tx
        .prepare(|n, bytes| bytes.extend(flow.build(n as u64, 300)))
        .unwrap();
    assert_eq!(count, (4 << 20) / 2048);
    let mut verifier = Verifier::new(flow);
    for _ in 0..count / 64 {
        (0..64).for_each(|_| tx.send_prepared().unwrap());
        tx.kick_if_needed();
        let end = verifier.sequence().next() + 64;
        assert!(
            receive_all(&mut rx, &mut verifier, end)
                .unwrap()
                .is_perfect()
        );
        tx.wait_for_all(LIMIT).unwrap();
    }
    assert_eq!(tx.counters().bytes, 300 * count as u64);
    tx.send_prepared().unwrap();
    tx.kick_if_needed();
    tx.wait_for_all(LIMIT).unwrap();
    assert_eq!(rx.discard(1), Ok(1));
}

#[test]
fn transmit_stops_and_starts_as_virtio_net_does() {
    transmit_and_drain(Duration::ZERO);
}

#[test]
fn a_halted_cpu_that_looks_before_it_sleeps_misses_no_call() {
    // Shorter than most waits, longer than all.
    for halt_poll in [Duration::from_micros(20), LIMIT] {
        transmit_and_drain(halt_poll);
    }
}

fn transmit_and_drain(halt_poll: Duration) {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| config.halt_poll = halt_poll);
    let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
    rx.refill();
    let drain = thread::spawn(move || {
        let mut verifier = Verifier::new(Flow::default());
        receive_all(&mut rx, &mut verifier, 5000).unwrap()
    });
    for sequence in 0..5000 {
        let more = sequence % 8 != 7;
        tx.transmit(&Flow::default().build(sequence, 60), more, LIMIT)
            .unwrap();
    }
    assert!(drain.join().unwrap().is_perfect());
}

#[test]
fn a_ring_restarts_where_it_stopped() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| config.start_index = 65_000);
    let mut pair = guest.take_pairs().remove(0);
    for round in 0..5u16 {
        pair = run(pair, u64::from(round) * 500, 500, 1514, &[Layout::ONE]);
        let base = guest.restart(1).unwrap();
        assert_eq!(base, u32::from(65_000_u16.wrapping_add((round + 1) * 500)));
        guest.set_enable(0, false).unwrap();
        guest.set_enable(0, true).unwrap();
        guest.resend_features().unwrap();
        guest.resend_addresses(1).unwrap();
        guest.resend_eventfds(0).unwrap();
        guest.resend_memory().unwrap();
    }
}

#[test]
fn rings_outlive_the_connection() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |_| ());
    let mut pair = run(guest.take_pairs().remove(0), 0, 300, 1514, &[Layout::ONE]);
    for resume in [Resume::Used, Resume::Avail] {
        guest.detach();
        assert!(!guest.is_connected());
        assert!(matches!(
            guest.resend_memory(),
            Err(GuestError::NotConnected)
        ));
        guest.attach(resume).unwrap();
        assert!(guest.is_connected());
        let end = pair.tx.counters().frames;
        if resume == Resume::Used {
            pair = run(pair, end, 300, 1514, &[Layout::ONE]);
        }
    }
}

#[test]
fn a_reboot_changes_size_and_features_on_one_connection() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |_| ());
    let mut pair = guest.take_pairs().remove(0);
    let plain = GuestConfig {
        queue_size: 16,
        event_idx: false,
        mrg_rxbuf: false,
        ..GuestConfig::default()
    };
    for round in 0..6 {
        run(pair, 0, 500, 1514, &[Layout::ONE]);
        let config = if round % 2 == 0 {
            &plain
        } else {
            &GuestConfig::default()
        };
        pair = guest.reboot(config).unwrap().remove(0);
    }
    let owners = double
        .message_names()
        .iter()
        .filter(|name| *name == "SET_OWNER")
        .count();
    assert_eq!(owners, 1);
}

#[test]
fn a_frame_in_plugged_memory_is_sent() {
    for slots in [true, false] {
        let double = Double::start(ALL, 1);
        double.state().slots = slots;
        let mut guest = connect(&double, |_| ());
        let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
        rx.refill();
        let address = 1 << 32;
        guest.plug_memory(address, 1 << 20).unwrap();
        assert!(
            guest
                .ram()
                .write(address + 12, &Flow::default().build(0, 700))
        );
        let piece = Descriptor {
            address,
            bytes: 712,
            ..Descriptor::default()
        };
        tx.ring_mut().add(&[piece], RAW, 0).unwrap();
        tx.kick_if_needed();
        let mut verifier = Verifier::new(Flow::default());
        assert!(receive_all(&mut rx, &mut verifier, 1).unwrap().is_perfect());
        tx.wait_for_all(LIMIT).unwrap();
        guest.unplug_memory(address).unwrap();
        assert!(!guest.ram().write(address, &[0]));
        run(Pair { tx, rx }, 1, 300, 1514, &[Layout::ONE]);
    }
}

#[test]
fn errors_name_the_message_that_failed() {
    let double = Double::start(ALL, 1);
    let refused = Guest::connect(&GuestConfig {
        queue_size: 100,
        ..GuestConfig::new(&double.socket)
    });
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("SET_VRING_NUM for ring 0"), "{text}");

    let many = Guest::connect(&GuestConfig {
        queue_pairs: 2,
        ..GuestConfig::new(&double.socket)
    });
    assert!(matches!(
        many,
        Err(GuestError::TooFewRings {
            offered: 2,
            wanted: 4
        })
    ));

    let small = Guest::connect(&GuestConfig {
        memory_bytes: 1 << 20,
        ..GuestConfig::new(&double.socket)
    });
    assert!(matches!(small, Err(GuestError::MemoryTooSmall { .. })));

    let old = Double::start(ALL & !F_VERSION_1, 1);
    let old = Guest::connect(&GuestConfig::new(&old.socket));
    assert!(old.unwrap_err().to_string().contains("VERSION_1"));
}

#[test]
fn nobody_listening_is_reported_after_the_limit() {
    let limit = Duration::from_millis(100);
    let start = Instant::now();
    let config = GuestConfig {
        connect_limit: limit,
        ..GuestConfig::new("/nonexistent/socket")
    };
    assert!(matches!(
        Guest::connect(&config),
        Err(GuestError::Connect { .. })
    ));
    assert!(start.elapsed() >= limit);
}

#[test]
fn a_backend_that_does_not_answer_is_cut_off() {
    let double = Double::start(ALL, 1);
    let mut guest = connect(&double, |config| {
        config.reply_limit = Duration::from_millis(100);
    });
    double.state().mute = true;
    let outcome = guest.set_enable(0, false);
    assert!(
        matches!(
            outcome,
            Err(GuestError::Unanswered {
                message: "SET_VRING_ENABLE",
                ..
            })
        ),
        "{outcome:?}"
    );
    double.state().mute = false;
}

#[test]
fn a_hang_up_is_noticed_by_both() {
    let double = Double::start(ALL, 1);
    let guest = connect(&double, |_| ());
    let mut other = connect(&Double::start(ALL, 1), |_| ());
    assert!(guest.is_connected() && other.is_connected());
    // An unknown request ends the session on the backend's side.
    let mut stream = other.stream().unwrap();
    std::io::Write::write_all(&mut stream, &[0xff; 12]).unwrap();
    assert!(matches!(
        other.set_enable(0, false),
        Err(GuestError::Message { .. })
    ));
    assert!(!other.is_connected());
    drop(guest);
    // The next session is served once the first is over.
    connect(&double, |_| ());
}
