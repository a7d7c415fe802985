//! Changes of policy under load, and what outlives a session.

use std::thread;

use anyhow::{Context, Result, ensure};
use tapring_guest::{Guest, GuestConfig, Pair};
use tapring_tests::{BothWays, Control, METRICS, Mode, Rig, Scrape, Settings, cases, until};

use crate::{NEEDS, OWED, RX, TX};

/// Every value of every setting, each both alone and among others, and back again.
const CHANGES: [&str; 20] = [
    "--kick-rearm before-submit",
    "--tx-poll always",
    "--busy-poll-us 50",
    "--busy-poll-interrupt rearm",
    "--rx-wake first-free",
    "--tx-budget 1",
    "--rx-budget 1",
    "--busy-poll-us auto",
    "--rx-wake empty",
    "--kick-rearm after-completion",
    "--busy-poll-interrupt requeue",
    "--rx-wake 13 --rx-budget 64",
    "--tx-budget 64 --tx-poll on-eagain",
    "--busy-poll-us 10000",
    "--rx-wake 200 --kick-rearm before-submit",
    "--busy-poll-us 0 --tx-poll always",
    "--busy-poll-us 20 --busy-poll-interrupt rearm --rx-wake first-free --tx-budget 3 --rx-budget 5",
    "--rx-wake half --tx-budget 17",
    "--kick-rearm after-completion --busy-poll-us 0 --tx-poll on-eagain",
    "--busy-poll-interrupt requeue --tx-budget 64 --rx-budget 64",
];

/// Frames that go each way between two changes.
const BETWEEN: f64 = 200.0;

/// Makes all changes, each when frames have gone both ways since the last one, and holds each to what the daemon says then.
fn change_all(control: &Control) -> Result<()> {
    let mut expected = control.policy("")?;
    for options in CHANGES {
        let words: Vec<_> = options.split_whitespace().collect();
        for pair in words.chunks(2) {
            let name = pair[0].trim_start_matches('-').replace('-', "_");
            expected.insert(name, pair[1].to_owned());
        }
        ensure_in_force(control, options, &expected).with_context(|| options.to_owned())?;
        wait_frames().with_context(|| format!("after {options}"))?;
    }
    Ok(())
}

fn ensure_in_force(control: &Control, options: &str, expected: &Settings) -> Result<()> {
    let acknowledged = control.policy(options)?;
    let shown = control.policy("")?;
    ensure!(
        acknowledged == *expected && shown == *expected,
        "acknowledged {acknowledged:?}, shown {shown:?}"
    );
    let labels: Vec<_> = expected
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\""))
        .collect();
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    let series = Scrape::of(METRICS)?.sum("tapring_policy_info", &labels)?;
    ensure!(series == 1.0, "policy_info is {series}");
    Ok(())
}

fn frames() -> Result<[f64; 2]> {
    let scrape = Scrape::of(METRICS)?;
    let of = |direction| scrape.sum("tapring_packets_total", &[direction]);
    Ok([of(TX)?, of(RX)?])
}

fn wait_frames() -> Result<()> {
    let before = frames()?;
    until(OWED * 6, "frames both ways", || {
        let now = frames().ok()?;
        let enough = |i: usize| now[i] >= before[i] + BETWEEN;
        (enough(0) && enough(1)).then_some(())
    })
}

/// The guest has few buffers, so that it also runs out of them. Each takes a whole frame: one that lacked some for 100 ms, as
/// may be on a busy machine, would be dropped.
fn changed_under_load(mode: Mode, event_idx: bool) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| {
        config.event_idx = event_idx;
        config.rx_buffers = 40;
    })?;
    let control = rig.daemon.control().clone();
    thread::scope(|scope| {
        let changes = scope.spawn(|| change_all(&control));
        let mut load = BothWays::new(1514, 130);
        let mut total = 0;
        while !changes.is_finished() {
            total += 1000;
            load.run(&mut rig, total)?;
        }
        changes.join().expect("no panic")
    })
    .with_context(|| rig.daemon.tail())?;
    rig.daemon
        .wait_metric("tapring_policy_changes_total", &[], CHANGES.len() as f64)?;
    rig.ensure_frames_counted()?;
    ensure_kicks(&mut rig, event_idx)?;
    rig.daemon.ensure_no_faults()?;
    rig.ensure_alive()
}

/// Every kick was one that a driver sent. Some coalesce: an old policy asks while the worker is awake, and may ask again before
/// it has taken the last; and without EVENT_IDX a driver kicks until it sees the flag.
fn ensure_kicks(rig: &mut Rig, event_idx: bool) -> Result<()> {
    let least = if event_idx { 0.8 } else { 0.0 };
    for (label, counted) in rig.counters() {
        let sent = counted.kicks_sent as f64;
        let kicks = rig.metric("tapring_kicks_total", &[label])?;
        ensure!(
            (least * sent..=sent).contains(&kicks),
            "{label}: {kicks} kicks of {sent} were counted"
        );
    }
    Ok(())
}

#[test]
fn policies_change_under_load() {
    let all = Mode::with(&[true, false]);
    cases(
        "policies change under load",
        NEEDS,
        all,
        |(mode, event_idx)| changed_under_load(mode, event_idx),
    );
}

/// Another driver on the same daemon.
fn reconnect(rig: &mut Rig, event_idx: bool) -> Result<()> {
    rig.guest.detach();
    rig.daemon
        .wait_metric("tapring_device_connected", &[], 0.0)?;
    let mut config = GuestConfig::new(rig.daemon.socket());
    config.event_idx = event_idx;
    rig.guest = Guest::connect(&config)?;
    let Pair { tx, rx } = rig.guest.take_pairs().remove(0);
    (rig.tx, rig.rx) = (tx, rx);
    Ok(())
}

/// That the worker polls after a frame, which it does by no default.
fn ensure_polls(rig: &mut Rig) -> Result<()> {
    let polled = |rig: &Rig| rig.metric("tapring_busy_poll_seconds_total", &[]);
    let before = polled(rig)?;
    rig.ensure_alive()?;
    until(OWED, "a busy poll", || {
        polled(rig).is_ok_and(|now| now > before).then_some(())
    })
}

fn outlives_sessions(event_idx: bool) -> Result<()> {
    let mut rig = Rig::start("", |config| config.event_idx = event_idx)?;
    let options = "--busy-poll-us 5000 --kick-rearm before-submit --rx-wake 13 --tx-budget 9";
    let set = rig.daemon.control().policy(options)?;
    for _ in 0..3 {
        ensure_polls(&mut rig)?;
        reconnect(&mut rig, event_idx)?;
        let shown = rig.daemon.control().policy("")?;
        ensure!(shown == set, "{shown:?} after a reconnect, not {set:?}");
    }
    ensure_polls(&mut rig)
}

#[test]
fn a_policy_outlives_the_session() {
    cases(
        "a policy outlives the session",
        NEEDS,
        [true, false],
        outlives_sessions,
    );
}
