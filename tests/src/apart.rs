//! A CPU for the worker and another for the guest: where two share one, it is the scheduler who decides who kicks whom.

use anyhow::{Context, Result};
use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two CPUs. Needs [`Need::TwoCpus`](crate::Need::TwoCpus).
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    worker: usize,
    guest: usize,
}

impl Apart {
    /// The first two that the process may use. The calling thread may use all of them again.
    ///
    /// # Errors
    /// When there is only one.
    pub fn find() -> Result<Self> {
        // The first thread's are the process's: no scenario runs on it.
        let allowed = sched_getaffinity(Some(getpid()))?;
        sched_setaffinity(None, &allowed)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let mut next = || cpus.next().context("two CPUs");
        Ok(Self {
            worker: next()?,
            guest: next()?,
        })
    }

    /// The option of `serve` for the worker's.
    #[must_use]
    pub fn worker_words(self) -> String {
        format!("--worker-cpus {}", self.worker)
    }

    /// Moves the calling thread, and all that it starts, to the guest's.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn leave_worker_alone(self) -> Result<()> {
        let mut cpus = CpuSet::new();
        cpus.set(self.guest);
        Ok(sched_setaffinity(None, &cpus)?)
    }
}
