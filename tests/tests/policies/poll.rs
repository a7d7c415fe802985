//! What a busy poll saves, and what it costs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tapring_guest::traffic::Verifier;
use tapring_tests::{Rig, TO_GUEST, TO_HOST, cases, ensure_idle};

use crate::{APART, ROUNDS, alternate, pause, spin};

const FRAMES: u64 = 1000;

/// Sends a frame and waits until it is back.
fn send_one(rig: &mut Rig, sequence: u64) -> Result<()> {
    rig.tx.send(&TO_HOST.build(sequence, 100))?;
    rig.tx.kick_if_needed();
    spin("the frame to come back", || {
        rig.tx.collect()?;
        Ok(rig.tx.ring().outstanding() == 0)
    })
}

/// What the transmitq's driver kicks while `each` sends a frame, each time with its number.
fn kicks_of(rig: &mut Rig, mut each: impl FnMut(&mut Rig, u64) -> Result<()>) -> Result<u64> {
    let before = rig.tx.counters().kicks_sent;
    let mut verifier = Verifier::new(TO_HOST);
    for sequence in 0..FRAMES {
        each(rig, sequence).with_context(|| rig.daemon.tail())?;
    }
    rig.ensure_all_leave(&mut verifier, FRAMES)?;
    Ok(rig.tx.counters().kicks_sent - before)
}

/// Frames with gaps that are shorter than the poll, and longer than the worker takes to go to sleep.
fn paced(rig: &mut Rig, gap: Duration) -> Result<u64> {
    kicks_of(rig, |rig, sequence| {
        send_one(rig, sequence)?;
        pause(gap);
        Ok(())
    })
}

/// That the second policy took a fraction of the first one's kicks, which were many.
fn ensure_fewer(kicks: &[Vec<u64>; 2], factor: u64) -> Result<()> {
    let [old, new] = kicks.each_ref().map(|kicks| kicks.iter().sum::<u64>());
    let frames = FRAMES * ROUNDS as u64;
    ensure!(
        old * 5 > frames && new * factor < old,
        "kicks for {FRAMES} frames a round: {kicks:?}"
    );
    Ok(())
}

fn polled((poll, gap): (&str, u64), event_idx: bool) -> Result<()> {
    let mut rig = Rig::start_apart("", |config| config.event_idx = event_idx)?;
    let gap = Duration::from_micros(gap);
    let kicks = alternate(
        &mut rig,
        ["--busy-poll-us 0", &format!("--busy-poll-us {poll}")],
        |rig| paced(rig, gap),
    )?;
    ensure_fewer(&kicks, 4)?;
    ensure_idle(&rig.daemon, "no traffic any more")?;
    rig.ensure_alive()
}

#[test]
fn a_busy_poll_saves_kicks_and_ends() {
    let all = [("50", 20), ("auto", 4)];
    let all = all
        .into_iter()
        .flat_map(|poll| [true, false].map(|event_idx| (poll, event_idx)));
    cases("a busy poll", APART, all, |(poll, event_idx)| {
        polled(poll, event_idx)
    });
}

/// A frame each way in turn: each that comes for the guest ends the poll of its transmitq.
fn interrupted(rig: &mut Rig) -> Result<u64> {
    let mut verifier = Verifier::new(TO_GUEST);
    rig.rx.refill();
    let kicks = kicks_of(rig, |rig, sequence| {
        send_one(rig, sequence)?;
        rig.wire.send(&TO_GUEST.build(sequence, 100))?;
        spin("the frame for the guest", || {
            Ok(rig.rx.receive(1, |frame| _ = verifier.frame(frame))? > 0)
        })?;
        rig.rx.refill();
        Ok(())
    })?;
    ensure!(verifier.report(FRAMES).is_perfect());
    Ok(kicks)
}

#[test]
fn an_interrupted_poll_goes_on() {
    cases(
        "an interrupted busy poll",
        APART,
        [true, false],
        |event_idx| {
            let mut rig =
                Rig::start_apart("--busy-poll-us 500", |config| config.event_idx = event_idx)?;
            let policies = [
                "--busy-poll-interrupt rearm",
                "--busy-poll-interrupt requeue",
            ];
            let kicks = alternate(&mut rig, policies, interrupted)?;
            ensure_fewer(&kicks, 4)?;
            ensure_idle(&rig.daemon, "no traffic any more")
        },
    );
}
