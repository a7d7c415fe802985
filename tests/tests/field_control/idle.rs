//! A CPU that is idle when nothing happens: B51.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tapring_guest::{Guest, GuestConfig};
use tapring_tests::{
    Daemon, DaemonOptions, Effort, Net, Rig, TO_GUEST, TO_HOST, Wire, ensure_idle, ensure_share,
    scenario,
};

use crate::NEEDS;

const SOON: Duration = Duration::from_secs(2);

fn flood_guest(wire: &Wire, frames: u64) -> Result<()> {
    (0..frames).try_for_each(|sequence| wire.send(&TO_GUEST.build(sequence, 100)))
}

#[test]
fn b51_idle_is_idle() {
    for mode in ["--poll inline", "--poll sqpoll", "--plain-io"] {
        scenario(&format!("B51 idle-cpu: {mode}"), NEEDS, || {
            let mut rig = Rig::start(mode, |_| {})?;
            flood_guest(&rig.wire, 1500)?;
            ensure_idle(&rig.daemon, "RX without buffers and frames waiting")?;
            rig.tx.ring_mut().kick();
            rig.rx.ring_mut().kick();
            ensure_idle(&rig.daemon, "one kick a ring")?;
            rig.guest.set_enable(0, false)?;
            rig.guest.set_enable(1, false)?;
            rig.tx.send(&TO_HOST.build(1, 100))?;
            rig.tx.ring_mut().kick();
            ensure_idle(&rig.daemon, "disabled rings with work")?;
            rig.guest.stop_all()?;
            ensure_idle(&rig.daemon, "stopped rings")?;
            rig.guest.detach();
            rig.daemon
                .wait_metric("tapring_device_connected", &[], 0.0)?;
            flood_guest(&rig.wire, 1500)?;
            ensure_idle(&rig.daemon, "no session and the tap flooded")?;
            let mut guest = Guest::connect(&GuestConfig::new(rig.daemon.socket()))?;
            let mut pair = guest.take_pairs().remove(0);
            pair.rx.refill();
            pair.tx.transmit(&TO_HOST.build(2, 100), false, SOON)?;
            pair.tx.wait_for_all(SOON)?;
            ensure_idle(&rig.daemon, "a session that is silent")
        });
    }
}

/// Frames that wait for more chains than there are, the worst case of starving: timers, but no spinning.
#[test]
fn b51_starving_is_cheap() {
    scenario("B51 idle-cpu: starving", NEEDS, || {
        let mut rig = Rig::start("", |config| {
            config.rx_buffer_bytes = 200;
            config.rx_buffers = 3;
        })?;
        rig.rx.refill();
        for sequence in 0..200 {
            rig.wire.send(&TO_GUEST.build(sequence, 1000))?;
        }
        // Ten looks a second, each of which keeps a polling thread awake for a while.
        ensure_share(&rig.daemon, "frames of five chains for three", 10)?;
        rig.rx.post_at_most(u16::MAX);
        rig.rx.refill();
        ensure!(rig.receive(SOON)?.is_some(), "the frames that were left");
        Ok(())
    });
}

/// One polling thread, whatever the number of pairs, and a trickle does not keep it awake.
#[test]
fn b51_one_polling_thread_for_all_pairs() {
    scenario("B51 idle-cpu: 4 pairs, sqpoll", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "multi_queue")?;
        let options = DaemonOptions::on_tap("t0").pairs(4).with("--poll sqpoll");
        let daemon = Daemon::start(&options)?;
        let tasks = format!("/proc/{}/task", daemon.id());
        let polling = std::fs::read_dir(tasks)?
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.starts_with("iou-sqp"))
            .count();
        ensure!(polling == 1, "{polling} polling threads");
        let mut guest = Guest::connect(&GuestConfig {
            queue_pairs: 4,
            memory_bytes: 64 << 20,
            ..GuestConfig::new(daemon.socket())
        })?;
        let mut pairs = guest.take_pairs();
        ensure_idle(&daemon, "4 pairs")?;
        let before = Effort::of(daemon.id())?;
        let begun = Instant::now();
        for n in 0..30u64 {
            let pair = &mut pairs[(n % 4) as usize];
            pair.tx.transmit(&TO_HOST.build(n, 100), false, SOON)?;
            thread::sleep(Duration::from_millis(20));
        }
        let cost = Effort::of(daemon.id())?.since(before);
        ensure!(cost.cpu * 2 < begun.elapsed(), "a trickle costs {cost:?}");
        daemon.stop()
    });
}
