//! Memory maps that change under load: B29, and the descriptors of messages sent again and again.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tapring_guest::{DESC_WRITE, Descriptor, RAW, RxQueue, TxQueue, Until, Woken};
use tapring_tests::{Rig, TO_GUEST, TO_HOST, Vitals, Wire, scenario, until};

use crate::NEEDS;
use crate::mini::region;
use crate::raw::{NEED_REPLY, RawFrontend, VERSION, request, ring_state};

const SOON: Duration = Duration::from_secs(2);
const PLUGGED: u64 = 1 << 32;
const PLUGGED_BYTES: usize = 2 << 20;

/// New maps under load (B29).
const REMAPS: usize = 200;
/// Times each message is sent again.
const REPEATS: usize = 1000;

/// What a loaded pair did.
#[derive(Debug, Default)]
struct Load {
    sent: u64,
    received: u64,
    /// Numbers that were passed over on the way to the guest.
    missing: u64,
    longest_gap: Duration,
}

/// Sends as fast as the daemon takes it until told to stop.
fn keep_sending(tx: &mut TxQueue, stop: &AtomicBool) -> Result<u64> {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        tx.transmit(&TO_HOST.build(sent, 200), sent % 16 != 15, SOON)?;
        sent += 1;
    }
    tx.kick_if_needed();
    tx.wait_for_all(SOON)?;
    Ok(sent)
}

/// Receives until told to stop, and then what is still on its way: whole frames with rising numbers.
fn keep_receiving(rx: &mut RxQueue, stop: &AtomicBool) -> Result<Load> {
    let mut load = Load::default();
    let mut last = Instant::now();
    let mut next = 0;
    rx.refill();
    loop {
        let ending = stop.load(Ordering::Relaxed);
        let mut wrong = None;
        let count = rx.receive(64, |frame| match number(frame) {
            Some(sequence) if sequence >= next && frame == TO_GUEST.build(sequence, 200) => {
                load.missing += sequence - next;
                next = sequence + 1;
            }
            _ => wrong = wrong.or(Some(next)),
        })?;
        ensure!(
            wrong.is_none(),
            "after {wrong:?} comes what is no next frame"
        );
        load.received += count as u64;
        rx.refill_as_linux();
        if count > 0 {
            load.longest_gap = load.longest_gap.max(last.elapsed());
            last = Instant::now();
        } else if rx.wait_for_call(Until::Next, Duration::from_millis(100))? == Woken::TimedOut
            && ending
        {
            return Ok(load);
        }
    }
}

fn number(frame: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(frame.get(14..22)?.try_into().ok()?))
}

/// Frames to the guest at a rate that no queue overflows.
fn keep_feeding(wire: &Wire, stop: &AtomicBool) -> Result<u64> {
    let mut fed = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..20 {
            wire.send(&TO_GUEST.build(fed, 200))?;
            fed += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(fed)
}

/// Runs both directions at full speed while `act` works on the guest.
fn under_load(
    rig: &mut Rig,
    act: impl FnOnce(&mut tapring_guest::Guest) -> Result<()>,
) -> Result<Load> {
    let stop = AtomicBool::new(false);
    let Rig {
        wire,
        guest,
        tx,
        rx,
        daemon,
        net,
        ..
    } = rig;
    let feeder = Wire::on("t0")?;
    let (load, sent, fed) = thread::scope(|scope| -> Result<_> {
        let sending = scope.spawn(|| keep_sending(tx, &stop));
        let receiving = scope.spawn(|| keep_receiving(rx, &stop));
        let feeding = scope.spawn(|| keep_feeding(&feeder, &stop));
        let acted = act(guest).with_context(|| daemon.tail());
        thread::sleep(Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
        let sent = sending.join().expect("the sender")?;
        let fed = feeding.join().expect("the feeder")?;
        let load = receiving.join().expect("the receiver")?;
        acted?;
        Ok((load, sent, fed))
    })?;
    let taken = net.counters("t0")?.rx_packets;
    ensure!(
        taken == sent,
        "{sent} frames were sent, the tap took {taken}"
    );
    // A machine with other things to do may let the tap's queue run over; nothing else may be lost.
    let lost = net.counters("t0")?.tx_dropped;
    ensure!(
        load.received + lost == fed && load.missing <= lost,
        "of {fed} frames the tap dropped {lost}: {load:?}"
    );
    let mut next = 0;
    while let Some(frame) = wire.try_receive()? {
        ensure!(frame == TO_HOST.build(next, 200), "frame {next} is another");
        next += 1;
    }
    Ok(Load { sent, ..load })
}

#[test]
fn b29_new_maps_under_load_cost_nothing() {
    for mode in ["--poll inline", "--poll sqpoll"] {
        scenario(
            &format!("B29 mem-hotplug: remapped under load, {mode}"),
            NEEDS,
            || {
                let mut rig = Rig::start(mode, |_| {})?;
                let maps = Vitals::of(rig.daemon.id())?.maps;
                let load = under_load(&mut rig, |guest| {
                    for _ in 0..REMAPS {
                        guest.resend_memory()?;
                    }
                    for _ in 0..REMAPS / 10 {
                        guest.plug_memory(PLUGGED, PLUGGED_BYTES)?;
                        guest.unplug_memory(PLUGGED)?;
                    }
                    Ok(())
                })?;
                ensure!(load.sent > 1000 && load.received > 100, "{load:?}");
                ensure!(load.longest_gap < Duration::from_millis(500), "{load:?}");
                let now = Vitals::of(rig.daemon.id())?;
                ensure!(now.maps <= maps + 4, "{maps} mappings became {}", now.maps);
                rig.daemon.ensure_no_faults()
            },
        );
    }
}

/// Sends a frame whose buffer lies at `address`, and says whether it came.
fn send_from(rig: &mut Rig, address: u64, sequence: u64) -> Result<bool> {
    let frame = TO_HOST.build(sequence, 300);
    let bytes = [&[0; 12], &frame[..]].concat();
    // False if the memory is not plugged; the descriptor is made all the same.
    rig.guest.ram().write(address, &bytes);
    let chain = [Descriptor {
        address,
        bytes: u32::try_from(bytes.len())?,
        ..Descriptor::default()
    }];
    rig.tx
        .ring_mut()
        .add(&chain, RAW, 0)
        .ok()
        .context("room in the ring")?;
    rig.tx.kick_if_needed();
    rig.tx.wait_for_all(SOON)?;
    let limit = Duration::from_millis(100);
    Ok(rig.wire.receive(limit)? == Some(&frame[..]))
}

#[test]
fn b29_buffers_in_memory_that_comes_and_goes() {
    scenario("B29 mem-hotplug: buffers in the new region", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        for round in 0..10 {
            rig.guest.plug_memory(PLUGGED, PLUGGED_BYTES)?;
            ensure!(
                send_from(&mut rig, PLUGGED + 5000, round)?,
                "from the new region"
            );
            let chain = [Descriptor {
                address: PLUGGED + 9000,
                bytes: 2000,
                flags: DESC_WRITE,
                next: 0,
            }];
            rig.rx
                .ring_mut()
                .add(&chain, RAW, 2000)
                .ok()
                .context("room")?;
            rig.rx.kick_if_needed();
            let frame = TO_GUEST.build(round, 400);
            rig.wire.send(&frame)?;
            until(SOON, "a frame in the new region", || {
                let mut found = vec![0; 412];
                rig.guest.ram().read(PLUGGED + 9000, &mut found);
                (found[12..] == frame).then_some(())
            })?;
            let _ = rig.rx.receive(1, |_| ())?;
            rig.guest.unplug_memory(PLUGGED)?;
            ensure!(
                !send_from(&mut rig, PLUGGED + 5000, round)?,
                "from memory that is gone"
            );
        }
        let faults = ["direction=\"tx\"", "kind=\"bad_address\""];
        ensure!(
            rig.metric("tapring_guest_faults_total", &faults)? == 10.0,
            "faults"
        );
        rig.ensure_alive()
    });
}

/// Memory that holds the rings is taken away and given back.
#[test]
fn b29_rings_whose_memory_is_gone_wait_for_it() {
    scenario("B29 mem-hotplug: the rings' own memory", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        rig.ensure_alive()?;
        for round in 0..5 {
            rig.rx.refill();
            let stream = rig.guest.stream().context("connected")?.try_clone()?;
            let raw = RawFrontend::over(stream)?;
            let stand_in = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&stand_in, 4 << 20)?;
            let mut table = 1u64.to_ne_bytes().to_vec();
            table.extend(region(1 << 40, 4 << 20));
            raw.expect_done(request::SET_MEM_TABLE, &table, &[stand_in.as_fd()])?;
            rig.tx.send(&TO_HOST.build(round, 100))?;
            rig.tx.ring_mut().kick();
            rig.wire.send(&TO_GUEST.build(round, 100))?;
            ensure!(
                rig.wire.receive(Duration::from_millis(50))?.is_none(),
                "sent from memory that is gone"
            );
            rig.guest.resend_memory()?;
            let found = rig.wire.receive(SOON)?;
            ensure!(
                found == Some(&TO_HOST.build(round, 100)[..]),
                "round {round}: the frame that waited\n{}",
                rig.daemon.tail()
            );
            ensure!(rig.receive(SOON)?.is_some(), "the frame from the host");
            rig.ensure_alive()?;
        }
        Ok(())
    });
}

#[test]
fn b29_a_refused_map_leaves_the_old_one() {
    scenario("B29 mem-hotplug: refused", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, 1 << 20)?;
        let before = Vitals::of(rig.daemon.id())?;
        let table = |regions: &[(u64, u64)]| {
            let mut body = (regions.len() as u64).to_ne_bytes().to_vec();
            for (start, bytes) in regions {
                body.extend(region(*start, *bytes));
            }
            body
        };
        let many: Vec<_> = (0..33).map(|n| (n << 20, 1 << 20)).collect();
        for regions in [
            &[(0, 1 << 20), (1 << 19, 1 << 20)][..],
            &many,
            &[(0, 0)],
            &[(u64::MAX - 4096, 1 << 20)],
        ] {
            let fds = vec![memory.as_fd(); regions.len().min(33)];
            let body = table(regions);
            let answer = raw.ask(request::SET_MEM_TABLE, VERSION | NEED_REPLY, &body, &fds)?;
            // 33 descriptors are more than fit a message.
            ensure!(
                answer
                    .number(request::SET_MEM_TABLE)
                    .is_some_and(|number| number != 0)
                    || regions.len() == 33,
                "{regions:x?}: {answer:?}"
            );
            if answer == crate::raw::Answer::Closed {
                rig = again(rig)?;
                return rig.ensure_alive();
            }
            rig.ensure_alive()?;
        }
        for (code, body) in [
            (
                request::ADD_MEM_REG,
                [vec![0; 8], region(4096, 1 << 20)].concat(),
            ),
            (
                request::REM_MEM_REG,
                [vec![0; 8], region(PLUGGED, 1 << 20)].concat(),
            ),
        ] {
            let fds: &[_] = if code == request::ADD_MEM_REG {
                &[memory.as_fd()]
            } else {
                &[]
            };
            let answer = raw.ask(code, VERSION | NEED_REPLY, &body, fds)?;
            ensure!(
                answer.number(code).is_some_and(|number| number != 0),
                "{answer:?}"
            );
            rig.ensure_alive()?;
        }
        let after = Vitals::of(rig.daemon.id())?;
        ensure!(after.fds == before.fds, "{before:?} became {after:?}");
        Ok(())
    });
}

/// The same rig after its session was ended.
fn again(mut rig: Rig) -> Result<Rig> {
    rig.guest.detach();
    rig.guest.attach(tapring_guest::Resume::Used)?;
    Ok(rig)
}

/// A region that goes past the end of its file would be a fault of the whole process when it is touched.
#[test]
fn b29_a_region_longer_than_its_file_is_refused() {
    scenario("B29 mem-hotplug: longer than its file", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, 4096)?;
        let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
        let body = [vec![0; 8], region(PLUGGED, 1 << 20)].concat();
        let flags = VERSION | NEED_REPLY;
        let answer = raw.ask(request::ADD_MEM_REG, flags, &body, &[memory.as_fd()])?;
        ensure!(answer.number(request::ADD_MEM_REG) != Some(0), "{answer:?}");
        if !rig.guest.is_connected() {
            rig = again(rig)?;
        }
        rig.ensure_alive()
    });
}

#[test]
fn replace_fd_leak_messages_sent_again_and_again() {
    scenario("replace-fd-leak", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        rig.ensure_alive()?;
        let overlapping = [vec![0; 8], region(4096, 1 << 20)].concat();
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, 1 << 20)?;
        let error = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
        let mut first = None;
        for round in 0..=REPEATS {
            for ring in 0..2 {
                rig.guest.resend_eventfds(ring)?;
                rig.guest.resend_addresses(ring)?;
                let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
                let index = u64::from(ring).to_ne_bytes();
                raw.expect_done(request::SET_VRING_ERR, &index, &[error.as_fd()])?;
                raw.expect_done(request::SET_VRING_NUM, &ring_state(ring.into(), 256), &[])?;
            }
            rig.guest.resend_memory()?;
            let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
            let flags = VERSION | NEED_REPLY;
            let answer = raw.ask(request::ADD_MEM_REG, flags, &overlapping, &[memory.as_fd()])?;
            ensure!(
                answer.number(request::ADD_MEM_REG).is_some_and(|n| n != 0),
                "{answer:?}"
            );
            if round % 5 == 0 {
                rig.guest.plug_memory(PLUGGED, PLUGGED_BYTES)?;
                rig.guest.unplug_memory(PLUGGED)?;
            }
            if round == 100 {
                first = Some(Vitals::of(rig.daemon.id())?);
            }
        }
        let (first, last) = (
            first.context("a hundred rounds")?,
            Vitals::of(rig.daemon.id())?,
        );
        ensure!(
            last.fds == first.fds
                && last.threads == first.threads
                && last.maps <= first.maps + 2
                && last.rss_kib <= first.rss_kib + 512,
            "{first:?} became {last:?}"
        );
        rig.ensure_alive()
    });
}
