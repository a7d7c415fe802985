//! The guest in software on a real tap: every byte, every head, every frame accounted for, in both directions at once.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::traffic::Verifier;
use tapring_guest::{Guest, GuestConfig, Pair, Random, Resume, Until};
use tapring_tests::{Counters, Daemon, DaemonOptions, HostEnd, Load, Need, Net, scenario, until};

const NEEDS: [Need; 3] = [Need::Root, Need::Tun, Need::Tool("ip")];

/// How long anything may stand still.
const LIMIT: Duration = Duration::from_secs(10);

/// How long the guest sleeps before it looks whether the sender is done.
const NAP: Duration = Duration::from_millis(50);

fn config(daemon: &Daemon) -> GuestConfig {
    GuestConfig {
        tx_buffer_bytes: 9216,
        ..GuestConfig::new(daemon.socket())
    }
}

/// Kernel, daemon and guest must have counted the same.
fn ensure_accounts(net: &Net, daemon: &Daemon, frames: u64) -> Result<()> {
    let Counters {
        rx_packets,
        rx_dropped,
        tx_packets,
        tx_dropped,
        ..
    } = net.counters("t0")?;
    ensure!(
        (rx_packets, rx_dropped) == (frames, 0),
        "the tap took {rx_packets} and refused {rx_dropped} of {frames}"
    );
    ensure!(
        (tx_packets, tx_dropped) == (frames, 0),
        "the tap gave {tx_packets} and dropped {tx_dropped} of {frames}"
    );
    for direction in ["direction=\"tx\"", "direction=\"rx\""] {
        daemon.wait_metric("tapring_packets_total", &[direction], frames as f64)?;
    }
    daemon.wait_metric("tapring_in_flight", &[], 0.0)?;
    daemon.ensure_no_faults()
}

fn verify_both_ways(load: Load, mtu: usize, options: &str) -> Result<()> {
    let net = Net::enter()?;
    net.tap("t0", "")?;
    let host = HostEnd::on(&net, "t0", mtu)?;
    let options = DaemonOptions::on_tap("t0").with(options);
    tapring_tests::verify_both_ways(&options, &host, load, |daemon| {
        ensure_accounts(&net, daemon, load.frames)
    })
}

#[test]
fn a_million_frames_each_way() {
    scenario(
        "software guest: 1,000,000 frames each way, 60 to 1514 bytes",
        &NEEDS,
        || {
            verify_both_ways(
                Load {
                    frames: 1_000_000,
                    longest: 1514,
                    seed: 1,
                },
                1500,
                "--poll inline",
            )
        },
    );
}

#[test]
fn a_million_long_frames_each_way() {
    scenario(
        "software guest: 1,000,000 frames each way, 60 to 9014 bytes",
        &NEEDS,
        || {
            verify_both_ways(
                Load {
                    frames: 1_000_000,
                    longest: 9014,
                    seed: 2,
                },
                9000,
                "--poll inline",
            )
        },
    );
}

#[test]
fn frames_through_an_sq_thread() {
    scenario(
        "software guest: 200,000 frames each way, sqpoll",
        &NEEDS,
        || {
            verify_both_ways(
                Load {
                    frames: 200_000,
                    longest: 1514,
                    seed: 3,
                },
                1500,
                "--poll sqpoll --sqpoll-cpu 1",
            )
        },
    );
}

/// Without a window the host overruns the tap's queue. Then what is lost is exactly what the kernel says it dropped, and what
/// arrives is whole and in order.
#[test]
fn a_flood_loses_only_what_the_kernel_counted() {
    scenario(
        "software guest: flood from the host, drops accounted",
        &NEEDS,
        || {
            let load = Load {
                frames: 300_000,
                longest: 1514,
                seed: 4,
            };
            let net = Net::enter()?;
            net.tap("t0", "")?;
            let mut host = HostEnd::on(&net, "t0", 1500)?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let mut guest = Guest::connect(&config(&daemon))?;
            let Pair { mut rx, .. } = guest.take_pairs().remove(0);
            rx.refill();
            let mut verifier = Verifier::new(HostEnd::to_guest());
            let mut last = Instant::now();
            thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    let mut size = load.sizes();
                    (0..load.frames).try_for_each(|sequence| host.send(sequence, size()))
                });
                loop {
                    let ended = sender.is_finished();
                    let taken = rx.receive(64, |frame| {
                        verifier.frame(frame);
                    })?;
                    rx.refill_as_linux();
                    let Counters {
                        tx_packets,
                        tx_dropped,
                        ..
                    } = net.counters("t0")?;
                    let (received, read) = (verifier.report(0).received, tx_packets + tx_dropped);
                    if ended && read == load.frames && received == tx_packets {
                        return sender.join().expect("the sender");
                    }
                    if taken > 0 {
                        last = Instant::now();
                        continue;
                    }
                    ensure!(
                        last.elapsed() < LIMIT,
                        "stuck: the tap gave {tx_packets} and dropped {tx_dropped}, the guest received {received}"
                    );
                    // The last frames of the flood may be dropped: then no call says that it is over.
                    rx.wait_for_call(Until::Next, NAP)?;
                }
            })?;
            let (report, tap) = (verifier.report(load.frames), net.counters("t0")?);
            ensure!(
                report.lost == tap.tx_dropped,
                "lost {} but the kernel dropped {}",
                report.lost,
                tap.tx_dropped
            );
            ensure!(
                report.corrupt + report.duplicated + report.reordered + report.foreign == 0,
                "{report:?}"
            );
            drop(guest);
            daemon.stop()
        },
    );
}

/// One frame each way, whatever came before.
fn ensure_alive(pair: &mut Pair, host: &mut HostEnd, sequence: u64) -> Result<()> {
    let limit = Duration::from_secs(1);
    pair.tx
        .transmit(&HostEnd::to_host().build(sequence, 100), false, limit)
        .context("send a frame")?;
    let mut at_host = Verifier::starting_at(HostEnd::to_host(), sequence);
    until(limit, "the frame at the host", || {
        let verdict = host.receive(&mut at_host, limit).ok()?;
        verdict.filter(|_| at_host.report(0).received == 1)
    })?;
    let mut at_guest = Verifier::starting_at(HostEnd::to_guest(), sequence);
    host.send(sequence, 100)?;
    until(limit, "the frame at the guest", || {
        pair.rx
            .receive(64, |frame| {
                at_guest.frame(frame);
            })
            .ok()?;
        pair.rx.refill_as_linux();
        (at_guest.report(0).received == 1).then_some(())
    })?;
    ensure!(
        at_guest.report(0).foreign == 0,
        "the guest received something else too: {:?}",
        at_guest.report(0)
    );
    Ok(())
}

#[test]
fn a_guest_that_vanishes_makes_room_for_the_next() {
    scenario(
        "software guest: 50 guests vanish under load",
        &NEEDS,
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            let mut host = HostEnd::on(&net, "t0", 1500)?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let mut random = Random::new(5);
            for round in 1..=50 {
                let mut guest =
                    Guest::connect(&config(&daemon)).with_context(|| format!("round {round}"))?;
                let mut pair = guest.take_pairs().remove(0);
                pair.rx.refill();
                ensure_alive(&mut pair, &mut host, round << 32)
                    .with_context(|| format!("round {round}\n{}", daemon.tail()))?;
                // Leave a random amount in both directions behind, and go without a word.
                for sequence in 0..random.between(0, 200) as u64 {
                    host.send(sequence, 200)?;
                    if pair
                        .tx
                        .send(&HostEnd::to_host().build(sequence, 300))
                        .is_err()
                    {
                        break;
                    }
                }
                pair.tx.kick_if_needed();
                drop(guest);
                // What the vanished guest sent is not the next one's.
                daemon.wait_metric("tapring_device_connected", &[], 0.0)?;
                while host
                    .receive(
                        &mut Verifier::new(HostEnd::to_host()),
                        Duration::from_millis(1),
                    )?
                    .is_some()
                {}
            }
            daemon.stop()
        },
    );
}

/// The driver is not told, and need not be: it kicks when it is asked to, and a receiveq that is full of buffers never is.
#[test]
fn a_killed_daemon_is_replaced_under_a_running_driver() {
    scenario(
        "software guest: daemon killed and restarted, same rings",
        &NEEDS,
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            let mut host = HostEnd::on(&net, "t0", 1500)?;
            let folder = tempfile::tempdir()?;
            let options = DaemonOptions::on_tap("t0").socket(&folder.path().join("vm0.sock"));
            let first = Daemon::start(&options)?;
            let mut guest = Guest::connect(&config(&first))?;
            let mut pair = guest.take_pairs().remove(0);
            pair.rx.refill();
            (0..50)
                .try_for_each(|sequence| ensure_alive(&mut pair, &mut host, sequence))
                .context("before")?;
            first.signal(Signal::SIGKILL)?;
            first.finish(LIMIT)?;
            let second = Daemon::start(&options)?;
            guest.detach();
            guest.attach(Resume::Used)?;
            (50..100)
                .try_for_each(|sequence| ensure_alive(&mut pair, &mut host, sequence))
                .with_context(|| second.tail())?;
            drop(guest);
            second.stop()
        },
    );
}

#[test]
fn sigterm_under_load_ends_it_in_order() {
    scenario("software guest: SIGTERM under load", &NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let mut host = HostEnd::on(&net, "t0", 1500)?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let mut guest = Guest::connect(&config(&daemon))?;
        let mut pair = guest.take_pairs().remove(0);
        pair.rx.refill();
        ensure_alive(&mut pair, &mut host, 0)?;
        // The rings stay full to the end; that the daemon goes shows as a ring that is stuck.
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let frame = HostEnd::to_host().build(1, 1000);
                while pair
                    .tx
                    .transmit(&frame, false, Duration::from_millis(200))
                    .is_ok()
                {}
            });
            let before = net.counters("t0")?.rx_packets;
            until(LIMIT, "the load", || {
                (net.counters("t0").ok()?.rx_packets > before + 10_000).then_some(())
            })?;
            let stopped = daemon.stop();
            sender.join().expect("the sender");
            stopped
        })?;
        Daemon::start(&DaemonOptions::on_tap("t0"))
            .context("the tap is free at once")?
            .stop()
    });
}
