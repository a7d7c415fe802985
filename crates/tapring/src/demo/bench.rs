//! What all runs share: a live daemon, a guest behind it, the host's end of the tap.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tapring_guest::{Guest, GuestConfig, Pair};
use tapring_queue::Policy;

use super::LIMIT;
use super::daemon::{self, Daemon};
use super::host::Host;
use super::measure::Snapshot;
use super::options::DemoArgs;
use super::placement::Placement;
use super::report::KickCheck;

/// Receive buffers: a guest of QEMU's has no more (`rx_queue_size`), even where its transmitq has 1024 (`tx_queue_size`, for
/// vhost-user alone).
const RX_BUFFERS: u16 = 256;

/// What runs look at while the guest's drivers are at work.
pub(super) struct Rig {
    pub(super) daemon: Daemon,
    pub(super) host: Host,
    pub(super) placement: Placement,
}

/// A daemon with a guest.
pub(super) struct Bench {
    pub(super) rig: Rig,
    pub(super) pair: Pair,
    guest: Guest,
}

impl Bench {
    pub(super) fn start(folder: &Path, placement: Placement, args: &DemoArgs) -> Result<Self> {
        let daemon = Daemon::start(folder, placement.worker_cpu)?;
        let host = Host::set_up(daemon::TAP)?;
        let config = GuestConfig {
            connect_limit: LIMIT,
            queue_size: args.queue_size,
            rx_buffers: RX_BUFFERS,
            exit_cost: args.exit_cost(),
            halt_poll: placement.halt_poll(),
            ..GuestConfig::new(daemon.socket())
        };
        let mut guest = Guest::connect(&config)?;
        let pair = guest.take_pairs().pop();
        let mut pair = pair.context("the guest has no queue pair")?;
        pair.rx.refill();
        let rig = Rig {
            daemon,
            host,
            placement,
        };
        Ok(Self { rig, pair, guest })
    }

    /// Puts a policy in force on the live device; it is when this returns.
    pub(super) fn set_policy(&self, policy: Policy) -> Result<()> {
        self.rig.daemon.set_policy(policy)
    }

    /// Moves the threads elsewhere.
    pub(super) fn place(&mut self, placement: Placement) -> Result<()> {
        self.rig.daemon.move_worker(placement.worker_cpu)?;
        self.rig.placement = placement;
        self.pair.tx.ring_mut().set_halt_poll(placement.halt_poll());
        self.pair.rx.ring_mut().set_halt_poll(placement.halt_poll());
        Ok(())
    }

    /// From now on each kick costs the guest this much.
    pub(super) const fn set_exit_cost(&mut self, exit_cost: Duration) {
        self.pair.tx.ring_mut().set_exit_cost(exit_cost);
        self.pair.rx.ring_mut().set_exit_cost(exit_cost);
    }

    /// All kicks so far, at both ends.
    pub(super) fn kicks(&mut self) -> Result<KickCheck> {
        let snapshot = Snapshot::take(&self.rig, &mut self.pair)?;
        Ok(KickCheck {
            guest: snapshot.tx.kicks_sent + snapshot.rx.kicks_sent,
            daemon: snapshot.usage.tx.kicks + snapshot.usage.rx.kicks,
        })
    }

    pub(super) fn stop(self) -> Result<()> {
        drop(self.guest);
        self.rig.daemon.stop()
    }
}
