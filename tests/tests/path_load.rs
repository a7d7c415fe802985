//! Both directions under load, and under conditions that a scheduler or an operator can make.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use tapring_guest::traffic::{Flow, Verifier};
use tapring_guest::{Guest, GuestConfig, Random};
use tapring_tests::{BothWays, Mode, Need, Net, Rig, TO_HOST, ThreadWatch, cases, scenario};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

/// A lost wake-up never ends; a busy machine does.
const STANDSTILL: Duration = Duration::from_secs(10);

/// Both directions, in order and whole, in every mode, and no thread of io-wq.
fn exchange(mode: Mode, mergeable: bool, longest: usize) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| {
        config.mrg_rxbuf = mergeable;
        config.tx_buffer_bytes = 9216;
        config.rx_buffer_bytes = if mergeable { 1536 } else { 9216 };
        config.start_index = 65_000;
    })?;
    rig.net.ip("link set t0 mtu 9000")?;
    let watch = ThreadWatch::start(rig.daemon.id());
    BothWays::new(longest, 130).run(&mut rig, 20_000)?;
    let workers = watch.finish().most("iou-wrk");
    ensure!(workers == 0, "{workers} threads of io-wq");
    rig.daemon.ensure_no_faults()?;
    rig.ensure_alive()
}

#[test]
fn frames_of_all_sizes_arrive_both_ways_in_order() {
    cases(
        "both ways in order",
        NEEDS,
        Mode::with(&[(true, 1514), (true, 9014), (false, 9014)]),
        |(mode, (mergeable, longest))| exchange(mode, mergeable, longest),
    );
}

/// A flow of its own for each pair.
fn flow_of(pair: u8) -> Flow {
    let mut flow = TO_HOST;
    flow.source.mac[4] = pair;
    flow
}

/// Several queue pairs at once: what one sends is not another's.
fn pairs(words: &str) -> Result<()> {
    const FRAMES: u64 = 3000;
    let net = Net::enter()?;
    net.tap("t0", "multi_queue")?;
    let mut rig = Rig::start_pairs(net, 3, words, |_| ())?;
    let watch = ThreadWatch::start(rig.daemon.id());
    let mut others = std::mem::take(&mut rig.others);
    let mut queues: Vec<_> = others.iter_mut().map(|pair| &mut pair.tx).collect();
    queues.insert(0, &mut rig.tx);
    let mut found = [0, 1, 2].map(|pair| Verifier::new(flow_of(pair)));
    let mut sent = [0; 3];
    let end = Instant::now() + STANDSTILL;
    while found
        .iter()
        .any(|verifier| verifier.sequence().next() < FRAMES)
    {
        for ((pair, tx), sent) in (0..).zip(&mut queues).zip(&mut sent) {
            tx.collect()?;
            while *sent < FRAMES && tx.send(&flow_of(pair).build(*sent, 100)).is_ok() {
                *sent += 1;
            }
            tx.kick_if_needed();
        }
        while let Some(frame) = rig.wire.try_receive()? {
            found[usize::from(frame[10])].frame(frame);
        }
        ensure!(Instant::now() < end, "stands at {sent:?}");
    }
    for (pair, (verifier, tx)) in found.iter().zip(queues).enumerate() {
        let report = verifier.report(FRAMES);
        ensure!(report.is_perfect(), "pair {pair}: {report:?}");
        tx.wait_for_all(STANDSTILL)?;
        let labels = ["direction=\"tx\"", &format!("queue=\"{pair}\"")];
        rig.daemon
            .wait_metric("tapring_packets_total", &labels, 3000.0)?;
    }
    let seen = watch.finish();
    ensure!(
        seen.most("iou-wrk") == 0 && seen.most("iou-sqp") <= 1,
        "{seen:?}"
    );
    Ok(())
}

#[test]
fn queue_pairs_do_not_mix() {
    cases("three queue pairs", NEEDS, Mode::ALL, |mode| {
        pairs(mode.words())
    });
}

/// What a VMM may do to a device that is at work. Frames neither get lost nor change their order.
fn interfere(guest: &mut Guest, random: &mut Random) -> Result<()> {
    let ring = u16::from(random.bits() & 1 == 1);
    match random.between(0, 6) {
        0 => guest
            .set_enable(ring, false)
            .and_then(|()| guest.set_enable(ring, true))?,
        1 | 2 => _ = guest.restart(ring)?,
        3 => guest.resend_memory()?,
        4 => guest.resend_eventfds(ring)?,
        5 => guest.resend_addresses(ring)?,
        _ => guest.resend_features()?,
    }
    thread::sleep(Duration::from_micros(random.between(0, 3000) as u64));
    Ok(())
}

fn exchange_under_interference(mode: Mode, event_idx: bool, seed: u64) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| {
        config.event_idx = event_idx;
        config.tx_buffer_bytes = 9216;
        config.rx_buffer_bytes = if seed.is_multiple_of(2) { 400 } else { 1536 };
        config.start_index = 65_000;
    })?;
    rig.net.ip("link set t0 mtu 9000")?;
    let mut guest = std::mem::replace(&mut rig.guest, Guest::prepare(&GuestConfig::default())?);
    let stop = AtomicBool::new(false);
    let operations = thread::scope(|scope| -> Result<u64> {
        let control = scope.spawn(|| -> Result<u64> {
            let (mut random, mut count) = (Random::new(seed), 0);
            while !stop.load(Ordering::Relaxed) {
                interfere(&mut guest, &mut random)?;
                count += 1;
            }
            Ok(count)
        });
        let outcome = BothWays::new(if seed.is_multiple_of(2) { 1514 } else { 9014 }, 130)
            .run(&mut rig, 30_000);
        stop.store(true, Ordering::Relaxed);
        let operations = control.join().expect("no panic");
        outcome.and(operations)
    })
    .with_context(|| rig.daemon.tail())?;
    ensure!(operations > 5, "only {operations} operations");
    rig.ensure_alive()
}

#[test]
fn what_a_vmm_does_meanwhile_loses_nothing() {
    let seed = std::env::var("TAPRING_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(1);
    let all = Mode::with(&[(true, seed), (false, seed + 1)]);
    cases(
        "what a VMM does meanwhile",
        NEEDS,
        all,
        |(mode, (event_idx, seed))| exchange_under_interference(mode, event_idx, seed),
    );
}

/// B09: worker and polling thread on one CPU, with somebody else who never lets go of it.
fn crowded(words: &str) -> Result<()> {
    let mut rig = Rig::start(words, |config| config.queue_size = 1024)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut cpus = CpuSet::new();
            cpus.set(0);
            let _ = sched_setaffinity(None, &cpus);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let outcome = BothWays::new(1514, 1024).run(&mut rig, 5_000);
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    rig.ensure_alive()
}

#[test]
fn a_crowded_cpu_loses_nothing() {
    let all = [
        "--worker-cpus 0",
        "--worker-cpus 0 --sqpoll-cpu 0",
        "--worker-cpus 0 --poll sqpoll",
        "--worker-cpus 0 --plain-io",
    ];
    cases("a crowded CPU", NEEDS, all, crowded);
}

/// Resident memory of a process in KiB.
fn resident(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line
        .context("no VmRSS")?
        .trim()
        .trim_end_matches(" kB")
        .parse()?)
}

/// B37: nobody scrapes, and nothing grows.
#[test]
fn nothing_grows_without_a_scrape() {
    scenario("data path: no growth without a scrape", NEEDS, || {
        let mut rig = Rig::start("", |_| ())?;
        BothWays::new(1514, 130).run(&mut rig, 20_000)?;
        let before = resident(rig.daemon.id())?;
        BothWays::new(1514, 130).run(&mut rig, 100_000)?;
        let after = resident(rig.daemon.id())?;
        ensure!(after < before + 2048, "from {before} to {after} KiB");
        let start = Instant::now();
        rig.daemon.metrics()?;
        ensure!(
            start.elapsed() < Duration::from_secs(1),
            "the first scrape took {:?}",
            start.elapsed()
        );
        Ok(())
    });
}
