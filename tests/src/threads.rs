//! Watches which threads a process has, while a test goes on.
//!
//! io_uring's own threads are threads of the process that uses it: `iou-sqp-PID` is a submission-queue poller, `iou-wrk-PID`
//! a worker for what could not be done without blocking. The latter lives for five idle seconds, so looking twenty times a
//! second misses none.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// For each thread name the most there were at one time.
#[derive(Clone, Debug, Default)]
pub struct ThreadsSeen(BTreeMap<String, usize>);

impl ThreadsSeen {
    /// The most threads at one time whose name begins with `prefix`.
    #[must_use]
    pub fn most(&self, prefix: &str) -> usize {
        self.0
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, count)| count)
            .sum()
    }

    fn note(&mut self, now: BTreeMap<String, usize>) {
        for (name, count) in now {
            let most = self.0.entry(name).or_default();
            *most = count.max(*most);
        }
    }
}

/// A watch in progress.
#[derive(Debug)]
pub struct ThreadWatch {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<ThreadsSeen>,
}

impl ThreadWatch {
    /// Begins to watch the process.
    #[must_use]
    pub fn start(process: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self {
            stop,
            watcher: thread::spawn(move || watch(process, &stopped)),
        }
    }

    /// Ends the watch.
    ///
    /// # Panics
    /// When the watching thread did.
    #[must_use]
    pub fn finish(self) -> ThreadsSeen {
        self.stop.store(true, Ordering::Relaxed);
        self.watcher.join().expect("the watch goes on to its end")
    }
}

fn watch(process: u32, stopped: &AtomicBool) -> ThreadsSeen {
    let mut seen = ThreadsSeen::default();
    loop {
        let last = stopped.load(Ordering::Relaxed);
        seen.note(threads_of(process));
        if last {
            return seen;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The names of a process's threads, each with how many bear it. A thread that ends meanwhile is left out.
fn threads_of(process: u32) -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    let tasks = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    for name in tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()) {
        *names.entry(name.trim_end().to_owned()).or_default() += 1;
    }
    names
}
