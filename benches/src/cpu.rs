//! Where the calling thread runs.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::BenchError;

/// The two cores of a contest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Cpus {
    /// Where frames are moved: the raw loop, or the whole daemon.
    pub mover: usize,
    /// Where the guest is, and whoever fills the tap.
    pub guest: usize,
}

impl std::str::FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cpus = text
            .split_once(',')
            .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
        match cpus {
            Some((mover, guest)) if mover != guest => Ok(Self { mover, guest }),
            _ => Err("give two different CPUs, such as 0,1".to_owned()),
        }
    }
}

/// Binds the calling thread, and whatever it starts from now on, to `cpu`.
pub fn pin(cpu: usize) -> Result<(), BenchError> {
    let failed = |source| BenchError::Cpu { cpu, source };
    if cpu >= CpuSet::MAX_CPU {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| failed(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_different_cpus_are_wanted() {
        assert_eq!("0,1".parse(), Ok(Cpus { mover: 0, guest: 1 }));
        for text in ["", "0", "1,1", "a,b", "0,1,2"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_named() {
        let error = pin(1000).unwrap_err().to_string();
        assert!(error.contains("CPU 1000"), "{error}");
    }
}
