//! What a process holds and what it costs.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::daemon::Daemon;

/// How long idleness is watched.
const IDLE: Duration = Duration::from_millis(600);

/// Resources of a process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Open descriptors.
    pub fds: usize,
    /// Threads, io_uring's included.
    pub threads: usize,
    /// Mappings.
    pub maps: usize,
    /// Resident memory, without what is shared with a guest.
    pub rss_kib: usize,
}

impl Vitals {
    /// Of the process with this id.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(id: u32) -> Result<Self> {
        let root = PathBuf::from(format!("/proc/{id}"));
        let count =
            |folder: &str| -> Result<usize> { Ok(fs::read_dir(root.join(folder))?.count()) };
        let status = fs::read_to_string(root.join("status")).context("the process has ended")?;
        Ok(Self {
            fds: count("fd")?,
            threads: count("task")?,
            maps: fs::read_to_string(root.join("maps"))?.lines().count(),
            rss_kib: number(&status, "RssAnon:").context("no RssAnon")?,
        })
    }
}

/// What the threads of a process have used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Time on a CPU.
    pub cpu: Duration,
    /// Times a thread went to sleep.
    pub sleeps: usize,
}

impl Effort {
    /// Of all threads that there are now.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn of(id: u32) -> Result<Self> {
        let mut sum = Self::default();
        for task in fs::read_dir(format!("/proc/{id}/task"))? {
            let task = task?.path();
            // A thread may end while it is being looked at.
            let (Ok(times), Ok(status)) = (
                fs::read_to_string(task.join("schedstat")),
                fs::read_to_string(task.join("status")),
            ) else {
                continue;
            };
            let nanoseconds = times.split(' ').next().context("an empty schedstat")?;
            sum.cpu += Duration::from_nanos(nanoseconds.trim().parse()?);
            sum.sleeps += number(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        }
        Ok(sum)
    }

    /// From an earlier moment to this one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
        }
    }
}

/// That the daemon takes next to nothing of a CPU while nothing happens.
///
/// # Errors
/// When it takes more.
pub fn ensure_idle(daemon: &Daemon, what: &str) -> Result<()> {
    ensure_share(daemon, what, 2)
}

/// That the daemon takes less than so much of a CPU.
///
/// # Errors
/// When it takes more.
pub fn ensure_share(daemon: &Daemon, what: &str, percent: u32) -> Result<()> {
    // Until a polling thread has gone to sleep.
    thread::sleep(Duration::from_millis(100));
    let before = Effort::of(daemon.id())?;
    thread::sleep(IDLE);
    let cost = Effort::of(daemon.id())?.since(before);
    ensure!(
        cost.cpu < IDLE * percent / 100,
        "{what}: {cost:?} in {IDLE:?}\n{}",
        daemon.tail()
    );
    Ok(())
}

fn number(status: &str, name: &str) -> Option<usize> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}
