//! The life of the listening socket's file.
//!
//! 1. What lies at the path is looked at: nothing, the socket of a dead daemon (replaced), of a live one, or something that
//!    is no socket (both are errors, and both stay).
//! 2. A live socket is told from a dead one by connecting to it with the *wrong type*: the kernel answers EPROTOTYPE where
//!    somebody holds the socket and ECONNREFUSED where nobody does, and the live daemon notices nothing.
//! 3. The new one is made under another name in the same folder, gets its group and its mode, listens, and only then moves
//!    to its path. So whoever sees the file can connect, and nobody can who should not.
//! 4. It exists, with the same inode, until it is dropped. Then it is removed, if it is still ours.
//!
//! The kernel goes on showing the first name (`ss -xl`); connecting goes by the inode.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, Gid, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use thiserror::Error;

/// Frontends that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Where to listen, and who may connect.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// The file.
    pub path: PathBuf,
    /// Its permissions: write permission is what connecting needs.
    pub mode: u32,
    /// Its group, if it is not the process's.
    pub group: Option<u32>,
}

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("socket {}: a running process listens on it: stop that one or choose another path", .0.display())]
    Alive(PathBuf),
    /// Not ours to remove.
    #[error("socket {}: exists and is no socket: remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// Its folder is missing.
    #[error("socket {}: its folder does not exist: create it", .0.display())]
    NoFolder(PathBuf),
    /// Longer than `sun_path`.
    #[error("socket {}: the path is longer than 107 bytes: choose a shorter one", .0.display())]
    TooLong(PathBuf),
    /// The group cannot be set.
    #[error("socket {}: cannot give it to group {group}: {source}: run as a member of that group", path.display())]
    Group {
        /// The socket.
        path: PathBuf,
        /// The group.
        group: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("socket {}: cannot {what}: {source}: check its folder and permissions", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct ListenSocket {
    path: PathBuf,
    identity: (u64, u64),
    listener: UnixListener,
}

impl ListenSocket {
    /// Makes the socket under a name of its own beside the path, which may have belonged to a daemon that is dead by
    /// now. Everything that can go wrong goes wrong here; nobody can connect yet.
    pub fn prepare(options: &SocketOptions) -> Result<Self, SocketError> {
        let path = &options.path;
        let address = SocketAddrUnix::new(path).map_err(|_| SocketError::TooLong(path.clone()))?;
        make_way(path, &address)?;
        let first = first_name(path);
        let socket = stream_socket().map_err(failed(path, "make it"))?;
        bind_at(&socket, &first).map_err(|error| bind_error(path, error))?;
        // From here on a failure removes the file.
        let bound = Self {
            identity: identity(&first).map_err(failed(path, "look at it"))?,
            path: first,
            listener: UnixListener::from(socket),
        };
        set_access(&bound.path, options)?;
        listen(&bound.listener, BACKLOG).map_err(failed(path, "listen on it"))?;
        Ok(bound)
    }

    /// Moves it to the path, where frontends find it.
    pub fn publish(&mut self, path: &Path) -> Result<(), SocketError> {
        place(&self.path, path).map_err(|error| bind_error(path, error))?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// The socket that accepts. It is non-blocking.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // Nobody can be told, and the next daemon replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a dead daemon, and nothing else.
fn make_way(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(failed(path, "look at it"))?,
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    let probe = probe_socket().map_err(failed(path, "probe it"))?;
    match connect(&probe, address) {
        Ok(()) | Err(Errno::PROTOTYPE) => Err(SocketError::Alive(path.to_owned())),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed(path, "replace it")),
        Err(error) => Err(failed(path, "connect to the one that is there")(error)),
    }
}

/// A name beside the path that no other process uses. A file of that name is of an earlier process of our number.
fn first_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = path.with_file_name(format!(".tapring-{}-{number}", std::process::id()));
    let _ = fs::remove_file(&name);
    name
}

/// Binds even where the first name is too long though the last one is not.
fn bind_at(socket: &OwnedFd, path: &Path) -> Result<(), Errno> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return bind(socket, &address);
    }
    let (folder, name) = (path.parent(), path.file_name());
    let folder = folder.ok_or(Errno::NAMETOOLONG)?;
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
    bind(
        socket,
        &SocketAddrUnix::new(short.join(name.unwrap_or_default()))?,
    )
}

/// Nobody can connect yet, so the order does not matter: a change of owner may take permissions away.
fn set_access(path: &Path, options: &SocketOptions) -> Result<(), SocketError> {
    if let Some(group) = options.group {
        rustix::fs::chown(path, None, Some(Gid::from_raw(group))).map_err(|error| {
            SocketError::Group {
                path: options.path.clone(),
                group,
                source: error.into(),
            }
        })?;
    }
    let permissions = fs::Permissions::from_mode(options.mode);
    fs::set_permissions(path, permissions).map_err(failed(&options.path, "set its mode"))
}

/// Moves the socket to its path, unless something has appeared there meanwhile. Not every file system can promise that.
fn place(from: &Path, to: &Path) -> Result<(), Errno> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        placed => placed,
    }
}

fn bind_error(path: &Path, error: Errno) -> SocketError {
    match error {
        Errno::NOENT => SocketError::NoFolder(path.to_owned()),
        Errno::ADDRINUSE | Errno::EXIST => SocketError::Alive(path.to_owned()),
        error => failed(path, "make it")(error),
    }
}

fn failed<E: Into<io::Error>>(path: &Path, what: &'static str) -> impl FnOnce(E) -> SocketError {
    let path = path.to_owned();
    move |source| SocketError::Io {
        path,
        what,
        source: source.into(),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn probe_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn options(folder: &tempfile::TempDir) -> SocketOptions {
        SocketOptions {
            path: folder.path().join("t.sock"),
            mode: 0o600,
            group: None,
        }
    }

    fn bind(options: &SocketOptions) -> Result<ListenSocket, SocketError> {
        let mut socket = ListenSocket::prepare(options)?;
        socket.publish(&options.path)?;
        Ok(socket)
    }

    fn files(folder: &tempfile::TempDir) -> usize {
        fs::read_dir(folder).expect("there").count()
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    #[test]
    fn it_has_its_mode_and_goes_with_its_owner() {
        let folder = folder();
        let options = SocketOptions {
            mode: 0o660,
            ..options(&folder)
        };
        let socket = bind(&options).expect("bound");
        let mode = fs::metadata(&options.path).expect("there").mode();
        assert_eq!(mode & 0o7777, 0o660);
        UnixStream::connect(&options.path).expect("it listens");
        drop(socket);
        assert_eq!(files(&folder), 0);
    }

    #[test]
    fn the_longest_path_works() {
        let folder = folder();
        let room = 107 - folder.path().as_os_str().len() - 1;
        let options = SocketOptions {
            path: folder.path().join("x".repeat(room)),
            ..options(&folder)
        };
        let _socket = bind(&options).expect("bound");
        UnixStream::connect(&options.path).expect("it listens");
        assert_eq!(files(&folder), 1);
    }

    #[test]
    fn it_has_its_group() {
        let folder = folder();
        let options = SocketOptions {
            mode: 0o660,
            group: Some(rustix::process::getgid().as_raw()),
            ..options(&folder)
        };
        let _socket = bind(&options).expect("bound");
        let metadata = fs::metadata(&options.path).expect("there");
        assert_eq!(metadata.mode() & 0o7777, 0o660);
        assert_eq!(metadata.gid(), rustix::process::getgid().as_raw());
    }

    #[test]
    fn a_dead_daemons_socket_is_replaced() {
        let folder = folder();
        let options = options(&folder);
        drop(UnixListener::bind(&options.path).expect("a listener that dies and leaves its file"));
        assert!(options.path.exists());
        bind(&options).expect("replaced");
    }

    #[test]
    fn a_live_daemons_socket_is_not_touched_and_hears_nothing() {
        let folder = folder();
        let options = options(&folder);
        let live = UnixListener::bind(&options.path).expect("a listener");
        live.set_nonblocking(true).expect("non-blocking");
        let refused = bind(&options);
        assert!(matches!(refused, Err(SocketError::Alive(_))));
        let heard = live.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(heard, Err(io::ErrorKind::WouldBlock));
        UnixStream::connect(&options.path).expect("it still listens");
    }

    #[test]
    fn a_file_is_never_removed() {
        let folder = folder();
        let options = options(&folder);
        fs::write(&options.path, "precious").expect("written");
        let refused = bind(&options);
        assert!(matches!(refused, Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read(&options.path).expect("there"), b"precious");
    }

    #[test]
    fn a_missing_folder_and_a_long_path_are_named() {
        let folder = folder();
        let missing = SocketOptions {
            path: folder.path().join("no/t.sock"),
            ..options(&folder)
        };
        let error = bind(&missing).expect_err("no folder");
        assert!(
            error
                .to_string()
                .ends_with("its folder does not exist: create it")
        );
        let long = SocketOptions {
            path: folder.path().join("x".repeat(108)),
            ..options(&folder)
        };
        let error = bind(&long).expect_err("too long");
        assert_eq!(files(&folder), 0);
        assert!(matches!(error, SocketError::TooLong(_)));
    }

    #[test]
    fn somebody_elses_socket_is_left_behind() {
        let folder = folder();
        let options = options(&folder);
        let socket = bind(&options).expect("bound");
        fs::remove_file(&options.path).expect("removed under our feet");
        let _other = UnixListener::bind(&options.path).expect("another daemon");
        drop(socket);
        assert!(options.path.exists());
    }
}
