//! What one frame there and back takes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tapring_tests::{Rig, TO_GUEST, TO_HOST, scenario};

use crate::{APART, alternate, median, spin};

/// A frame to the host, which answers it. The one after is sent when the answer is there.
fn there_and_back(rig: &mut Rig) -> Result<Duration> {
    const FRAMES: u64 = 100;
    rig.rx.refill();
    let mut took = Vec::new();
    for sequence in 0..FRAMES {
        let (frame, answer) = (TO_HOST.build(sequence, 100), TO_GUEST.build(sequence, 100));
        let sent = Instant::now();
        rig.tx.send(&frame)?;
        rig.tx.kick_if_needed();
        spin("the frame at the host", || {
            Ok(rig.wire.try_receive()? == Some(&frame[..]))
        })?;
        rig.wire.send(&answer)?;
        spin("the answer", || Ok(rig.rx.receive(1, |_| ())? > 0))?;
        took.push(sent.elapsed());
        rig.tx.collect()?;
        rig.rx.refill();
    }
    Ok(median(&took))
}

#[test]
fn a_single_frame_is_no_slower_than_it_was() {
    scenario("data path: one frame there and back", APART, || {
        let mut rig = Rig::start_apart("", |_| ())?;
        let policies = [
            "--kick-rearm before-submit --busy-poll-us 0",
            "--kick-rearm after-completion --busy-poll-us auto",
        ];
        let took = alternate(&mut rig, policies, there_and_back)?;
        let [old, new] = took.each_ref().map(|took| median(took));
        ensure!(new * 2 < old * 3, "{policies:?} took {took:?}");
        Ok(())
    });
}
