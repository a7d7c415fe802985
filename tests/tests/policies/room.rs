//! When the tap is polled for room.

use anyhow::{Result, ensure};
use tapring_guest::traffic::Verifier;
use tapring_tests::{Bottleneck, Mode, Need, Rig, TO_HOST, cases, until};

use crate::{OWED, TX};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tun,
    Need::Tool("tc"),
    Need::Tool("bridge"),
    Need::Tool("perl"),
];

const ARMS: &str = "tapring_tap_poll_arms_total";

fn blocked(rig: &Rig) -> Result<f64> {
    rig.metric("tapring_blocked_total", &["reason=\"tap_full\""])
}

/// Frames that the tap takes at once. Number of the next one.
fn send_freely(rig: &mut Rig, verifier: &mut Verifier) -> Result<u64> {
    let mut next = 0;
    for _ in 0..200 {
        let end = next + 1 + next % 7;
        rig.fill(&mut next, end, 100)?;
        rig.tx.wait_for_all(OWED)?;
        rig.wire.drain(verifier)?;
    }
    rig.ensure_all_leave(verifier, next)?;
    Ok(next)
}

fn room(mode: Mode, policy: &str) -> Result<()> {
    let words = format!("{} --tx-poll {policy}", mode.words());
    let (mut rig, bottleneck) = Bottleneck::rig(&words, |_| ())?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = send_freely(&mut rig, &mut verifier)?;
    let arms = rig.metric(ARMS, &[TX])?;
    ensure!(blocked(&rig)? == 0.0, "the tap was full");
    // The old way watches a tap that has room.
    ensure!(
        (arms > 0.0) == (policy == "always"),
        "{arms} polls without need"
    );
    for _ in 0..3 {
        bottleneck.close()?;
        let before = blocked(&rig)?;
        until(OWED, "the tap to be full", || {
            let end = next + 256;
            rig.fill(&mut next, end, 1000).ok()?;
            (blocked(&rig).ok()? > before).then_some(())
        })?;
        bottleneck.open()?;
        rig.ensure_all_leave(&mut verifier, next)?;
    }
    let (polls, full) = (rig.metric(ARMS, &[TX])? - arms, blocked(&rig)?);
    ensure!(
        polls >= 1.0 && (policy == "always" || polls <= full),
        "{polls} polls for a tap that was full {full} times"
    );
    rig.ensure_frames_counted()
}

#[test]
fn a_full_tap_is_waited_for_in_either_way() {
    let all = Mode::with(&["on-eagain", "always"]);
    cases(
        "a full tap, polled in either way",
        NEEDS,
        all,
        |(mode, policy)| room(mode, policy),
    );
}
