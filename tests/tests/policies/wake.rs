//! When a receiveq whose guest had too few buffers goes on.

use anyhow::{Result, ensure};
use tapring_guest::traffic::Verifier;
use tapring_tests::{Rig, TO_GUEST, cases, scenario};

use crate::{APART, NEEDS, ROUNDS, SLOW, alternate, pause, spin};

const WAKES: [&str; 5] = ["half", "first-free", "empty", "13", "200"];

/// What drivers post at most: iPXE, a guest without mergeable buffers, Linux.
const POSTED: [u16; 3] = [8, 13, 256];

fn all_arrive(wake: &str, posted: u16, event_idx: bool) -> Result<()> {
    let mut rig = Rig::start(&format!("--rx-wake {wake}"), |config| {
        config.rx_buffers = posted;
        config.event_idx = event_idx;
    })?;
    rig.flood_guest(2000)?;
    rig.ensure_frames_counted()?;
    rig.ensure_alive()
}

#[test]
fn no_threshold_stalls_a_driver() {
    let all = WAKES.into_iter().flat_map(|wake| {
        let each = move |posted| [true, false].map(|event_idx| (wake, posted, event_idx));
        POSTED.into_iter().flat_map(each)
    });
    cases(
        "no threshold stalls a driver",
        NEEDS,
        all,
        |(wake, posted, event_idx)| all_arrive(wake, posted, event_idx),
    );
}

/// A driver that posts its buffers one by one, each a while after the last was used, while frames wait. Returns the kicks it
/// took.
fn one_by_one(rig: &mut Rig) -> Result<u64> {
    const FRAMES: u64 = 300;
    for sequence in 0..FRAMES {
        rig.wire.send(&TO_GUEST.build(sequence, 100))?;
    }
    let before = rig.rx.counters().kicks_sent;
    let mut verifier = Verifier::new(TO_GUEST);
    while verifier.sequence().next() < FRAMES {
        pause(SLOW);
        rig.rx.post(1);
        rig.rx.kick_if_needed();
        spin("a frame for the only buffer", || {
            Ok(rig.rx.receive(1, |frame| _ = verifier.frame(frame))? > 0)
        })?;
    }
    let report = verifier.report(FRAMES);
    ensure!(report.is_perfect(), "{report:?}");
    Ok(rig.rx.counters().kicks_sent - before)
}

/// Once all buffers were posted, so that half of what this driver ever posts is half of the ring.
fn use_whole_ring(rig: &mut Rig) -> Result<()> {
    let mut verifier = Verifier::new(TO_GUEST);
    let posted = u64::from(rig.rx.refill());
    for sequence in 0..posted {
        rig.wire.send(&TO_GUEST.build(sequence, 100))?;
    }
    spin("the ring to be used up", || {
        rig.rx
            .receive(usize::MAX, |frame| _ = verifier.frame(frame))?;
        Ok(rig.rx.ring().outstanding() == 0)
    })
}

#[test]
fn a_threshold_saves_kicks() {
    scenario("data path: half kicks less than first-free", APART, || {
        let mut rig = Rig::start_apart("--busy-poll-us 0", |_| ())?;
        use_whole_ring(&mut rig)?;
        let policies = ["--rx-wake first-free", "--rx-wake half"];
        let kicks = alternate(&mut rig, policies, one_by_one)?;
        let [first_free, half] = kicks.each_ref().map(|kicks| kicks.iter().sum::<u64>());
        ensure!(
            first_free > 100 * ROUNDS as u64 && half * 4 < first_free,
            "kicks of {policies:?}: {kicks:?}"
        );
        rig.ensure_alive()
    });
}
