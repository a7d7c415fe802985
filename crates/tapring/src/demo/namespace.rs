//! A network namespace for the demo alone.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

const TUN: &str = "/dev/net/tun";

/// Moves the process into a fresh network namespace in which it may do everything.
pub(super) fn enter() -> Result<()> {
    check_tun()?;
    if unshare(CloneFlags::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    let (uid, gid) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(refused)?;
    let write = |file: &str, text: String| {
        fs::write(file, text).with_context(|| format!("cannot write {file}: run the demo as root"))
    };
    // A process without rights may map its group only where it can no longer drop groups
    // (user_namespaces(7)).
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", format!("0 {gid} 1"))
}

fn refused(error: Errno) -> anyhow::Error {
    match error {
        Errno::ENOSPC | Errno::EPERM | Errno::EACCES => anyhow!(
            "user namespaces are forbidden here ({}): run the demo as root, or allow them with \
             `sysctl -w user.max_user_namespaces=10000` (and, where it exists, \
             `kernel.apparmor_restrict_unprivileged_userns=0`)",
            error.desc()
        ),
        error => anyhow!(
            "cannot make a network namespace: {}: run the demo as root",
            error.desc()
        ),
    }
}

/// The file's mode counts even in a namespace of one's own.
fn check_tun() -> Result<()> {
    match OpenOptions::new().read(true).write(true).open(TUN) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(anyhow!(
            "{TUN} does not exist: load the module with `modprobe tun`"
        )),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(anyhow!(
            "{TUN} is closed to this user: run the demo as root, or open it with `chmod 0666 {TUN}`"
        )),
        Err(error) => Err(anyhow!(
            "cannot open {TUN}: {error}: is the module tun there?"
        )),
    }
}
