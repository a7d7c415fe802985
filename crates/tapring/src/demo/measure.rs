//! What one run counted, on the guest's side, on the daemon's and in the kernel.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tapring_guest::{Counters, Pair};

use super::bench::Rig;
use super::daemon::Usage;
use super::host::LinkCounts;

/// One run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) payload_bytes: usize,
    /// Datagrams the guest sent (TX) or received (RX).
    pub(super) frames: u64,
    pub(super) elapsed: Duration,
    /// Kicks the guest sent, through both virtqueues.
    pub(super) kicks: u64,
    /// Kicks the daemon took. Several that come before it looks are one.
    pub(super) daemon_kicks: u64,
    pub(super) calls: u64,
    /// As the daemon counts them, in the load's direction.
    pub(super) packets: u64,
    pub(super) batches: u64,
    /// CPU time of the daemon, of its worker alone, and of the guest, its waiting for exits included.
    pub(super) cpu: Duration,
    pub(super) worker_cpu: Duration,
    pub(super) guest_cpu: Duration,
    /// Datagrams that arrived at the other end as they were sent.
    pub(super) verified: u64,
    /// Datagrams that arrived at a guest that sends.
    pub(super) answers: u64,
    pub(super) damaged: u64,
    /// Between guest and tap.
    pub(super) lost: u64,
    /// Behind the tap: by the receiver's socket, or by the tap's full queue.
    pub(super) receiver_dropped: u64,
}

/// Everything that counts, at one moment.
pub(super) struct Snapshot {
    pub(super) link: LinkCounts,
    pub(super) usage: Usage,
    pub(super) tx: Counters,
    pub(super) rx: Counters,
}

impl Snapshot {
    pub(super) fn take(rig: &Rig, pair: &mut Pair) -> Result<Self> {
        Ok(Self {
            link: rig.host.counts()?,
            usage: rig.daemon.usage()?,
            tx: pair.tx.counters(),
            rx: pair.rx.counters(),
        })
    }

    /// What both directions share of a run that began at `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Measured {
        let usage = self.usage - earlier.usage;
        Measured {
            kicks: kicks(self) - kicks(earlier),
            daemon_kicks: usage.tx.kicks + usage.rx.kicks,
            calls: calls(self) - calls(earlier),
            cpu: usage.cpu,
            worker_cpu: usage.worker_cpu,
            ..Measured::default()
        }
    }
}

const fn kicks(snapshot: &Snapshot) -> u64 {
    snapshot.tx.kicks_sent + snapshot.rx.kicks_sent
}

const fn calls(snapshot: &Snapshot) -> u64 {
    snapshot.tx.calls + snapshot.rx.calls
}

/// The calling thread's time on a CPU.
pub(super) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // A clock that started at 0 and only goes forward.
    Duration::try_from(time).unwrap_or_default()
}

/// Keeps the calling thread's CPU busy, as the guest's own work would.
pub(super) fn spin_until(began: Instant, cost: Duration) {
    while began.elapsed() < cost {
        std::hint::spin_loop();
    }
}
