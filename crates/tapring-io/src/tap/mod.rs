//! A tap: its queues, and what is asked of its interface.

mod by_name;
mod error;
mod given;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::{self, IFF_TAP, IFF_VNET_HDR};
use crate::{HEADER_BYTES, port::PortError};

pub use by_name::TapOptions;
pub use error::TapError;

/// An open tap: all its queues, and whether it is ours.
#[derive(Debug)]
pub struct Tap {
    name: String,
    index: u32,
    created: bool,
    given: bool,
    queues: Vec<OwnedFd>,
}

impl Tap {
    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the interface; 0 when it is in another network namespace.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Whether we created it. It is not persistent then.
    pub const fn created(&self) -> bool {
        self.created
    }

    /// Whether somebody else set it up: it came as descriptors, or is a macvtap.
    pub const fn given(&self) -> bool {
        self.given
    }

    /// Number of queues.
    pub fn queue_pairs(&self) -> usize {
        self.queues.len()
    }

    /// The send buffer in bytes when it is finite, which costs 15 %: worth a warning. `None` is the default.
    pub fn send_buffer(&self) -> io::Result<Option<u32>> {
        sys::send_buffer(self.first())
    }

    /// Whether the interface is administratively up.
    pub fn is_up(&self) -> io::Result<bool> {
        sys::is_up(sys::interface_socket()?.as_fd(), &self.name)
    }

    /// The largest packet the interface carries, in bytes without the Ethernet header.
    pub fn mtu(&self) -> io::Result<u32> {
        sys::mtu(sys::interface_socket()?.as_fd(), &self.name)
    }

    /// Sets what the host may leave to the guest: `TUN_F_*` bits of <linux/if_tun.h>, for all queues.
    ///
    /// The kernel refuses (EINVAL) bits it does not know, TSO without CSUM, and USO4 without USO6.
    pub fn set_offload(&self, bits: u32) -> io::Result<()> {
        sys::set_offload(self.first(), bits)
    }

    /// Another descriptor of queue `pair`, for a worker's port.
    pub fn try_clone_queue(&self, pair: u16) -> io::Result<OwnedFd> {
        let queue = self
            .queues
            .get(usize::from(pair))
            .ok_or(io::ErrorKind::NotFound)?;
        queue.try_clone()
    }

    fn first(&self) -> BorrowedFd<'_> {
        self.queues[0].as_fd()
    }

    /// These settings belong to the interface, of a macvtap to each queue, and need no privilege.
    fn configure(&self, socket: &OwnedFd) -> Result<(), (&'static str, io::Error)> {
        let header_bytes = i32::try_from(HEADER_BYTES).unwrap_or(i32::MAX);
        for queue in &self.queues {
            sys::set_header_bytes(queue.as_fd(), header_bytes)
                .map_err(|error| ("set the header of", error))?;
            if cfg!(target_endian = "big") {
                sys::set_header_little_endian(queue.as_fd())
                    .map_err(|error| ("set the byte order of", error))?;
            }
        }
        self.set_offload(0)
            .map_err(|error| ("set the offloads of", error))?;
        if self.created {
            sys::bring_up(socket.as_fd(), &self.name).map_err(|error| ("bring up", error))?;
        }
        Ok(())
    }
}

/// Whether a tap can have this name: what `dev_valid_name` of the kernel takes, without `%`, from which TUNSETIFF would
/// make up a name.
pub fn is_tap_name(name: &str) -> bool {
    let forbidden =
        |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control() || b"/:%".contains(&byte);
    (1..=sys::NAME_BYTES).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.bytes().any(forbidden)
}

/// Checks that `queue` is an attached tap queue with the header we expect.
pub(crate) fn require_tap(queue: BorrowedFd<'_>) -> Result<(), PortError> {
    let (_, flags) = sys::attached_to(queue).map_err(|source| PortError::NotATap { source })?;
    if flags & (IFF_TAP | IFF_VNET_HDR) != IFF_TAP | IFF_VNET_HDR {
        return Err(PortError::NotATap {
            source: io::ErrorKind::InvalidInput.into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernel_would_refuse_or_expand_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "a:0",
            "tap%d",
            "a\tb",
            "sixteen-bytes-xx",
        ] {
            assert!(!is_tap_name(name), "{name:?}");
        }
        for name in ["t0", "fifteen-bytes-x", "tap.1", "tåp"] {
            assert!(is_tap_name(name), "{name:?}");
        }
    }
}
