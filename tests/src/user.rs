//! Another user, and a `/dev/net/tun` with the mode a scenario wants, for one command.
//!
//! The node's usual mode is 0666, but not everywhere. A mount namespace with a node of its own laid over it makes a test say the same
//! on every machine, and leaves the machine's node alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use nix::unistd::{Gid, Uid, chown};
use tempfile::TempDir;

use crate::files::daemon_binary;

/// The user that scenarios use; it needs no entry in `/etc/passwd`.
pub const USER: u32 = 1001;

/// Mounts and then becomes the command. The file system of `/tmp` may refuse device nodes, a new tmpfs does not.
const SCRIPT: &str = r#"
mode=$1; shift
mount -t tmpfs -o dev,mode=0755 none /mnt
mknod /mnt/tun c 10 200
chmod "$mode" /mnt/tun
mount --bind /mnt/tun /dev/net/tun
umount -l /mnt
exec "$@"
"#;

/// The same command where `/dev/net/tun` has this mode (octal, as `chmod` takes it). Needs real root.
#[must_use]
pub fn with_tun_mode(mode: &str, command: &Command) -> Command {
    let mut wrapped = Command::new("unshare");
    wrapped.args([
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        "-euc",
        SCRIPT,
        "sh",
        mode,
    ]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

/// The same command as [`USER`], without other groups and without any capability. Needs real root.
#[must_use]
pub fn as_user(command: &Command) -> Command {
    let id = USER.to_string();
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

/// A folder that belongs to [`USER`], with a copy of the daemon: the folder it was built in may be closed to others.
#[derive(Debug)]
pub struct Home(TempDir);

impl Home {
    /// Makes it.
    ///
    /// # Errors
    /// When it cannot be made or given away.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        fs::copy(daemon_binary(), folder.path().join("tapring"))?;
        chown(
            folder.path(),
            Some(Uid::from_raw(USER)),
            Some(Gid::from_raw(USER)),
        )?;
        Ok(Self(folder))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The copy of the daemon.
    #[must_use]
    pub fn daemon(&self) -> PathBuf {
        self.path().join("tapring")
    }
}
