//! A network namespace in which nobody else sends.

use std::fs;
use std::io::ErrorKind;
use std::process::{Command, id};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, getgid, getuid};

use crate::BenchError;

/// Moves the calling thread into a network namespace of its own; as another user than root into a user namespace too, so
/// that the process must have one thread only. Loopback is up, IPv6 off.
pub fn enter() -> Result<(), BenchError> {
    let (user, group) = (getuid(), getgid());
    let root = geteuid().is_root();
    let flags = if root {
        CloneFlags::CLONE_NEWNET
    } else {
        CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUSER
    };
    let refused = |source| BenchError::Namespace { source };
    unshare(flags).map_err(|errno| refused(errno.into()))?;
    if !root {
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {user} 1")),
            ("gid_map", format!("0 {group} 1")),
        ];
        for (file, text) in maps {
            fs::write(format!("/proc/{}/{file}", id()), text).map_err(refused)?;
        }
    }
    for scope in ["all", "default"] {
        let switch = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        match fs::write(&switch, "1") {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(refused(error)),
            _ => {} // without IPv6 in the kernel there is nothing to switch off
        }
    }
    ip("link set lo up")
}

/// Runs `ip` with these words.
pub fn ip(arguments: &str) -> Result<(), BenchError> {
    let failed = |said: String| BenchError::Ip {
        arguments: arguments.to_owned(),
        said,
    };
    let words = arguments.split_whitespace();
    let done = Command::new("ip")
        .args(words)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    Err(failed(
        String::from_utf8_lossy(&done.stderr).trim().to_owned(),
    ))
}

/// Frames that the kernel counted on a tap. As the host sees it: `received` are those written to the tap's descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// From the descriptor to the host.
    pub received: u64,
    /// From the host that found the tap's queue full.
    pub overflowed: u64,
}

/// What the kernel counted on `interface`.
pub fn counted(interface: &str) -> Result<Counted, BenchError> {
    let path = "/proc/thread-self/net/dev";
    let table = fs::read_to_string(path).map_err(BenchError::read(path))?;
    parse(&table, interface).ok_or_else(|| BenchError::Read {
        what: format!("{interface} in {path}"),
        source: ErrorKind::NotFound.into(),
    })
}

fn parse(table: &str, interface: &str) -> Option<Counted> {
    let mut rows = table.lines().filter_map(|line| line.split_once(':'));
    let (_, row) = rows.find(|(name, _)| name.trim() == interface)?;
    let mut fields = row.split_whitespace().map(str::parse);
    Some(Counted {
        received: fields.nth(1)?.ok()?,
        overflowed: fields.nth(9)?.ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_the_kernel() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n\
                     raw0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  t0: 0 7 0 0 0 0 0 0 0 0 0 9 0 0 0 0\n";
        assert_eq!(
            parse(table, "raw0"),
            Some(Counted {
                received: 2,
                overflowed: 12
            })
        );
        assert_eq!(
            parse(table, "t0"),
            Some(Counted {
                received: 7,
                overflowed: 9
            })
        );
        assert_eq!(parse(table, "t1"), None);
    }
}
