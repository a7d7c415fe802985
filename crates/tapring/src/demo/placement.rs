//! Which CPU each of the three threads has.
//!
//! ```text
//!   three or more     guest │ worker │ receiver
//!   two               guest │ worker and receiver        a flood: guest and worker │ sender
//!   one               guest, worker and receiver
//! ```
//!
//! All three are bound, so that every run of a comparison has the same: left to the scheduler, three threads on two CPUs are
//! shuffled, and how often differs from run to run by more than the policies do.
//!
//! The guest gets a CPU for itself as soon as there are two, because that is what a virtual CPU has: work of the host's that took
//! it would stop the guest in the middle of a burst, the worker would find the ring empty, and the next datagram would kick
//! under any policy. Worker and receiver are both the host's, and there they share what is left. The receiver's time is then
//! taken from the worker: a host that is busy all the time alternates between them by the scheduler's slices, which are longer
//! than a ring lasts, and datagrams per second are its limit rather than the guest's. The output marks such a run.
//!
//! A flood *to* the guest, as fast as it goes, is none unless the sender has a CPU, so there it is the other two that share.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::cpus;

/// The CPUs of the three threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Placement {
    pub(super) guest_cpu: u32,
    pub(super) worker_cpu: u32,
    /// The host's: the receiver, or in the other direction the sender.
    pub(super) receiver_cpu: u32,
    /// Whether no two of them share one.
    pub(super) three_cpus: bool,
}

impl Placement {
    /// As wished, or the best there is here.
    pub(super) fn find(wished: Option<[u32; 3]>) -> Result<Self> {
        let allowed = allowed()?;
        match wished {
            Some(cpus) => Self::checked(cpus, &allowed),
            None => Self::best(&apart(&allowed, siblings)).context("no CPU may be used"),
        }
    }

    /// How long the guest's halted CPU looks for a call before it sleeps: KVM's default (`halt_poll_ns`), and as KVM has it, not
    /// while anyone else wants that CPU.
    pub(super) const fn halt_poll(&self) -> Duration {
        let alone = self.guest_cpu != self.worker_cpu && self.guest_cpu != self.receiver_cpu;
        Duration::from_micros(if alone { 200 } else { 0 })
    }

    /// Whether the receiver takes its time from the worker.
    pub(super) const fn host_shares(&self) -> bool {
        self.worker_cpu == self.receiver_cpu
    }

    /// Where the sender needs a CPU more than the guest does.
    pub(super) const fn for_flood(&self) -> Self {
        if !self.host_shares() {
            return *self;
        }
        Self::of([self.worker_cpu, self.worker_cpu, self.guest_cpu])
    }

    fn checked(cpus: [u32; 3], allowed: &[u32]) -> Result<Self> {
        for cpu in cpus {
            ensure!(
                allowed.contains(&cpu),
                "--cpus: CPU {cpu} may not be used: give three out of {allowed:?}"
            );
        }
        Ok(Self::of(cpus))
    }

    fn best(cpus: &[u32]) -> Option<Self> {
        match *cpus {
            [] => None,
            [one] => Some(Self::of([one; 3])),
            [guest, host] => Some(Self::of([guest, host, host])),
            [guest, worker, receiver, ..] => Some(Self::of([guest, worker, receiver])),
        }
    }

    const fn of([guest_cpu, worker_cpu, receiver_cpu]: [u32; 3]) -> Self {
        Self {
            guest_cpu,
            worker_cpu,
            receiver_cpu,
            three_cpus: guest_cpu != worker_cpu
                && worker_cpu != receiver_cpu
                && receiver_cpu != guest_cpu,
        }
    }
}

/// Binds the calling thread.
pub(super) fn pin(cpu: u32) -> Result<()> {
    bind(None, cpu)
}

/// Binds a thread; none is the calling one.
pub(super) fn bind(thread: Option<Pid>, cpu: u32) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(thread, &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// The CPUs this process may run on.
fn allowed() -> Result<Vec<u32>> {
    let set = sched_getaffinity(None).context("cannot read which CPUs may be used")?;
    let last = u32::try_from(CpuSet::MAX_CPU).unwrap_or(u32::MAX);
    Ok((0..last).filter(|cpu| set.is_set(*cpu as usize)).collect())
}

/// One CPU of each core, and the others behind them: two threads of one core slow each other down.
fn apart(allowed: &[u32], siblings: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let (mut first, mut further) = (Vec::new(), Vec::new());
    for cpu in allowed {
        let shared = siblings(*cpu).iter().any(|other| first.contains(other));
        if shared { &mut further } else { &mut first }.push(*cpu);
    }
    first.append(&mut further);
    first
}

/// The CPUs of a core; none where the kernel does not tell.
fn siblings(cpu: u32) -> Vec<u32> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = fs::read_to_string(file).unwrap_or_default();
    cpus::parse(&list).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(cpus: &[u32]) -> Option<([u32; 3], bool)> {
        let found = Placement::best(cpus)?;
        let cpus = [found.guest_cpu, found.worker_cpu, found.receiver_cpu];
        Some((cpus, found.three_cpus))
    }

    #[test]
    fn the_guest_is_alone_as_soon_as_it_can_be() {
        assert_eq!(best(&[]), None);
        assert_eq!(best(&[4]), Some(([4, 4, 4], false)));
        assert_eq!(best(&[4, 6]), Some(([4, 6, 6], false)));
        assert_eq!(best(&[4, 6, 7, 9]), Some(([4, 6, 7], true)));
    }

    #[test]
    fn a_flood_has_a_cpu_to_itself_as_soon_as_it_can() {
        let flood = |cpus: &[u32]| {
            let flood = Placement::best(cpus)?.for_flood();
            Some([flood.guest_cpu, flood.worker_cpu, flood.receiver_cpu])
        };
        assert_eq!(flood(&[4]), Some([4, 4, 4]));
        assert_eq!(flood(&[4, 6]), Some([6, 6, 4]));
        assert_eq!(flood(&[4, 6, 7]), Some([4, 6, 7]));
    }

    #[test]
    fn threads_of_one_core_come_last() {
        let pairs = |cpu| vec![cpu / 2 * 2, cpu / 2 * 2 + 1];
        assert_eq!(apart(&[0, 1, 2, 3, 5], pairs), [0, 2, 5, 1, 3]);
    }

    #[test]
    fn a_cpu_that_may_not_be_used_is_named() {
        let error = Placement::checked([0, 7, 0], &[0, 1]).expect_err("7 is not there");
        assert!(error.to_string().contains("CPU 7"), "{error}");
        assert!(Placement::find(None).is_ok());
    }
}
