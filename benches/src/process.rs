//! What a process has used, as /proc says.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::BenchError;

/// What all threads of a process have used up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU.
    pub cpu: Duration,
    /// Voluntary and involuntary context switches.
    pub switches: u64,
    /// Threads.
    pub threads: usize,
}

/// Adds up all threads of process `id`.
pub fn usage(id: u32) -> Result<Usage, BenchError> {
    let folder = format!("/proc/{id}/task");
    let failed = || BenchError::read(folder.clone());
    let mut usage = Usage::default();
    for entry in fs::read_dir(&folder).map_err(failed())? {
        let thread = entry.map_err(failed())?.path();
        let (times, status) = (thread.join("schedstat"), thread.join("status"));
        // A thread may end between the listing and the reading; it is not counted then.
        let (Some(times), Some(status)) = (read_of_living(&times)?, read_of_living(&status)?)
        else {
            continue;
        };
        usage.threads += 1;
        usage.cpu += cpu_time(&times);
        usage.switches += switches(&status);
    }
    Ok(usage)
}

/// `None` if the thread has ended.
fn read_of_living(path: &Path) -> Result<Option<String>, BenchError> {
    const ESRCH: i32 = 3;
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(ESRCH) => Ok(None),
        Err(error) => Err(BenchError::read(path.display().to_string())(error)),
    }
}

/// Bytes resident in process `id`, without mappings whose name contains `guest_memory`.
pub fn resident_bytes(id: u32, guest_memory: &str) -> Result<u64, BenchError> {
    let path = format!("/proc/{id}/smaps");
    Ok(resident(&read(Path::new(&path))?, guest_memory))
}

fn read(path: &Path) -> Result<String, BenchError> {
    fs::read_to_string(path).map_err(BenchError::read(path.display().to_string()))
}

/// The first field of schedstat: nanoseconds on a CPU.
fn cpu_time(schedstat: &str) -> Duration {
    let nanoseconds = schedstat
        .split(' ')
        .next()
        .and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn switches(status: &str) -> u64 {
    let counts = status
        .lines()
        .filter_map(|line| line.split_once("ctxt_switches:"));
    counts
        .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

/// A mapping's line has its address range first and its name last; the lines behind it are `Key: value`.
fn resident(smaps: &str, guest_memory: &str) -> u64 {
    let (mut kib, mut counts) = (0, true);
    for line in smaps.lines() {
        let key = line.split(' ').next().unwrap_or_default();
        if !key.ends_with(':') {
            counts = !line.contains(guest_memory);
        } else if counts && key == "Rss:" {
            let value = line.split_whitespace().nth(1);
            kib += value
                .and_then(|value| value.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    kib * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_memory_is_left_out() {
        let smaps = "00400000-00500000 r-xp 00000000 fe:00 1  /bin/tapring\nSize: 1024 kB\nRss:  10 kB\n\
                     7f00000000-7f40000000 rw-s 00000000 00:01 2  /memfd:tapring-guest (deleted)\nRss: 99 kB\nPss: 99 kB\n\
                     7fff000000-7fff100000 rw-p 00000000 00:00 0  [stack]\nRss:   5 kB\n";
        assert_eq!(resident(smaps, "memfd:tapring-guest"), 15 * 1024);
        assert_eq!(resident(smaps, "no such"), 114 * 1024);
    }

    #[test]
    fn both_kinds_of_switches_are_added() {
        let status = "Name:\tt0/0\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches(status), 15);
        assert_eq!(cpu_time("4711 12 3\n"), Duration::from_nanos(4711));
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.threads > 0 && usage.switches > 0);
        assert!(resident_bytes(std::process::id(), "no such").unwrap() > 0);
    }
}
