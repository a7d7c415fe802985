//! The private way to vhost-user-backend, which takes a frontend only from a listener of its own.
//!
//! 1. A folder that only we can enter, and a socket in it whose queue holds exactly one connection.
//! 2. We connect. If anybody had been faster, the queue would be full and we would notice.
//! 3. Folder and socket are gone again before the crate accepts: nobody can come later.
//! 4. The kernel is asked who is at the other end: it must be this process.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use thiserror::Error;
use vhost::vhost_user::Listener;

/// Why the crate cannot be reached. None of it is the frontend's doing.
#[derive(Debug, Error)]
pub(crate) enum InnerError {
    #[error(
        "cannot make a private folder for temporary files: {0}: give the daemon a writable TMPDIR"
    )]
    Folder(#[source] io::Error),
    #[error("cannot make a private socket: {0}")]
    Socket(#[from] Errno),
    #[error("somebody else came to the private socket: another process of this user is meddling")]
    Stranger,
}

/// A listener for the crate with one connection waiting, and our end of that connection.
pub(crate) fn connected_pair() -> Result<(Listener, UnixStream), InnerError> {
    let folder = tempfile::Builder::new()
        .prefix("tapring-")
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir()
        .map_err(InnerError::Folder)?;
    let path = folder.path().join("s");
    let listener = listen_for_one(&path)?;
    let ours = connect_now(&path)?;
    drop(folder);
    let peer = socket_peercred(&ours)?;
    if peer.pid != rustix::process::getpid() {
        return Err(InnerError::Stranger);
    }
    Ok((Listener::from(listener), ours))
}

fn listen_for_one(path: &Path) -> Result<UnixListener, Errno> {
    let socket = stream_socket(SocketFlags::CLOEXEC)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The kernel lets one more wait than the number says.
    listen(&socket, 0)?;
    Ok(UnixListener::from(socket))
}

fn connect_now(path: &Path) -> Result<UnixStream, InnerError> {
    let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => return Err(InnerError::Stranger),
        connected => connected?,
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

fn stream_socket(flags: SocketFlags) -> Result<std::os::fd::OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_waits_is_ours_and_the_only_one() {
        let (listener, ours) = connected_pair().expect("a private pair");
        listener.set_nonblocking(true).expect("non-blocking");
        let theirs = listener.accept().expect("accept").expect("waiting");
        assert!(listener.accept().expect("accept").is_none());
        let path = theirs.local_addr().expect("an address");
        let path = path.as_pathname().expect("a path");
        assert!(!path.exists() && path.parent().is_some_and(|folder| !folder.exists()));
        drop(ours);
    }

    #[test]
    fn a_stranger_who_is_faster_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let _listener = listen_for_one(&path).expect("a listener");
        let _stranger = UnixStream::connect(&path).expect("connected");
        assert!(matches!(connect_now(&path), Err(InnerError::Stranger)));
    }
}
