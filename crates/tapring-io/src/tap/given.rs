//! Taps that somebody else has set up: descriptors this process was started with, and macvtaps, which are device files.
//!
//! A macvtap's file gives a new queue of it each time it is opened; whoever has it open holds a queue, and the kernel
//! tells none of them about the others. It answers the same ioctls as a queue of a tap, with some differences:
//!
//! - The length of the header belongs to the queue, so it is set on each.
//! - There is no TUNGETSNDBUF, and no send buffer to be full.
//! - When the interface is deleted nothing says so: writes succeed, reads find nothing, polls are silent. TUNGETIFF alone
//!   tells ([`Tap::is_gone`]).
//!
//! Descriptors are tried before they are used. Anything may be behind a number somebody mistyped, so nothing but a character
//! device is asked what it is, and what is no queue, or one without headers, is refused with its number.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::net::netdevice::name_to_index;

use super::{Tap, TapError};
use crate::sys::{self, IFF_TAP, IFF_VNET_HDR};

/// What to do about a descriptor of something else.
const OTHER: &str = "pass one that `open(\"/dev/net/tun\")` and TUNSETIFF have made, or one of a macvtap's /dev/tapN";

/// One about /dev/net/tun itself, opened and no more.
const UNATTACHED: &str =
    "it is /dev/net/tun without an interface: attach it (TUNSETIFF), or name a tap with --tap NAME";

const IS_A_TUN: &str = "it is a tun, which carries no Ethernet frames: make a tap (IFF_TAP)";

const NO_HEADERS: &str = "its frames have no virtio header, or another in front: attach it with IFF_VNET_HDR and IFF_NO_PI";

const DELETED: &str = "its interface was deleted: make it again";

/// A queue and what to call it.
struct Given {
    what: String,
    queue: OwnedFd,
}

impl Tap {
    /// Takes the queues behind descriptors that this process was started with, one a pair, all of one tap or macvtap.
    ///
    /// They are duplicated, so that nobody's descriptor is closed. The interface may be in another network namespace; then
    /// what is asked by its name has no answer.
    pub fn inherit(descriptors: &[RawFd]) -> Result<Self, TapError> {
        let given = descriptors.iter().map(|&fd| {
            let what = format!("file descriptor {fd}");
            match sys::duplicate(fd) {
                Ok(queue) => Ok(Given { what, queue }),
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                    Err(TapError::NoSuchFd { fd })
                }
                Err(source) => Err(TapError::System {
                    name: what,
                    action: "duplicate the queue of",
                    source,
                }),
            }
        });
        Self::of_given(given.collect::<Result<_, _>>()?)
    }

    /// Opens `queue_pairs` queues of a macvtap by its device, such as `/dev/tap5`.
    pub fn open_device(path: &Path, queue_pairs: u16) -> Result<Self, TapError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let given = (0..queue_pairs).map(|_| {
            let what = path.display().to_string();
            let opened = open(path, flags, Mode::empty());
            let queue = opened.map_err(|error| TapError::Device {
                path: what.clone(),
                source: error.into(),
            })?;
            Ok(Given { what, queue })
        });
        Self::of_given(given.collect::<Result<_, _>>()?)
    }

    /// Whether the interface was deleted, which a macvtap says nowhere else.
    pub fn is_gone(&self) -> bool {
        let asked = sys::attached_to(self.first());
        asked.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENOLINK | libc::EBADFD)))
    }

    fn of_given(given: Vec<Given>) -> Result<Self, TapError> {
        let names = given.iter().map(Given::interface);
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let (Some(first), Some(name)) = (given.first(), names.first()) else {
            return Err(TapError::QueuePairs {
                name: String::new(),
                queue_pairs: 0,
            });
        };
        if let Some(other) = names.iter().position(|other| other != name) {
            return Err(TapError::TwoTaps {
                first: first.what.clone(),
                first_tap: name.clone(),
                second: given[other].what.clone(),
                second_tap: names[other].clone(),
            });
        }
        Self::configured(name.clone(), given)
    }

    fn configured(name: String, given: Vec<Given>) -> Result<Self, TapError> {
        let failed = |name: &str, action, source| TapError::System {
            name: name.to_owned(),
            action,
            source,
        };
        let socket = sys::interface_socket().map_err(|error| failed(&name, "ask about", error))?;
        let queues: Vec<_> = given.into_iter().map(|given| given.queue).collect();
        for queue in &queues {
            set_nonblocking(queue).map_err(|error| failed(&name, "set up a queue of", error))?;
        }
        let tap = Self {
            index: name_to_index(&socket, &name).unwrap_or(0),
            name,
            created: false,
            given: true,
            queues,
        };
        tap.configure(&socket)
            .map_err(|(action, source)| failed(tap.name(), action, source))?;
        Ok(tap)
    }
}

impl Given {
    /// The name of its interface, if it is a queue of the right kind.
    fn interface(&self) -> Result<String, TapError> {
        let refused = |remedy| TapError::NotAQueue {
            what: self.what.clone(),
            remedy,
        };
        if !is_character_device(&self.queue) {
            return Err(refused(OTHER));
        }
        let queue = self.queue.as_fd();
        let attached = sys::attached_to(queue);
        let (name, flags) = attached.map_err(|error| refused(explain(queue, &error)))?;
        if flags & IFF_TAP == 0 {
            return Err(refused(IS_A_TUN));
        }
        // Whether there is IFF_NO_PI too cannot be asked: here its bit says that there is no filter (IFF_NOFILTER).
        if flags & IFF_VNET_HDR == 0 {
            return Err(refused(NO_HEADERS));
        }
        Ok(name)
    }
}

/// Why TUNGETIFF has no answer: TUNGETFEATURES has one where there is a driver and no interface.
fn explain(queue: BorrowedFd<'_>, error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOLINK) => DELETED,
        _ if sys::features(queue).is_ok_and(|features| features & IFF_TAP != 0) => UNATTACHED,
        _ => OTHER,
    }
}

fn is_character_device(queue: &OwnedFd) -> bool {
    let metadata = queue
        .try_clone()
        .and_then(|copy| File::from(copy).metadata());
    metadata.is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// A blocking queue would block the worker, and all who have the same one see the change.
fn set_nonblocking(queue: &OwnedFd) -> io::Result<()> {
    let flags = fcntl_getfl(queue)?;
    Ok(fcntl_setfl(queue, flags | OFlags::NONBLOCK)?)
}
