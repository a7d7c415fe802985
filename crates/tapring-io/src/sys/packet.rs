//! Packet sockets (packet(7)): options, addresses, and messages with what the kernel says beside a frame.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{io, mem};

use rustix::io::{Errno, retry_on_intr};

use super::checked;

/// Every kind of frame, in network order where the kernel wants it so.
const ETH_P_ALL: u16 = 0x0003_u16.to_be();

const ADDRESS_BYTES: libc::socklen_t = socklen::<libc::sockaddr_ll>();

/// Address of a socket on interface `index`; 0 is none.
#[allow(clippy::cast_possible_truncation)] // AF_PACKET is 17
fn address(index: c_int) -> libc::sockaddr_ll {
    // SAFETY: `sockaddr_ll` is plain old data for which all zeroes is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETH_P_ALL;
    address.sll_ifindex = index;
    address
}

/// Has the socket receive all frames of interface `index`, and send on it.
pub(crate) fn bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let index = c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = address(index);
    // SAFETY: pointer and length are those of `address`, which bind(2) reads.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            ADDRESS_BYTES,
        )
    };
    checked(bound)
}

/// What a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The interface; -1 once it is gone.
    pub(crate) index: c_int,
    /// ARPHRD_* of the interface.
    pub(crate) link_type: u16,
}

/// Asks what the socket is bound to.
pub(crate) fn bound(socket: BorrowedFd<'_>) -> io::Result<Bound> {
    let mut address = address(0);
    let mut bytes = ADDRESS_BYTES;
    // SAFETY: pointer and length are those of `address`, which getsockname(2) writes.
    let named = unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            (&raw mut address).cast(),
            &raw mut bytes,
        )
    };
    checked(named)?;
    Ok(Bound {
        index: address.sll_ifindex,
        link_type: address.sll_hatype,
    })
}

/// Sets an option that is a truth.
pub(crate) fn switch_on(socket: BorrowedFd<'_>, option: c_int) -> io::Result<()> {
    set_option(socket, option, &1_i32)
}

/// Whether an option that is a truth is on.
pub(crate) fn is_on(socket: BorrowedFd<'_>, option: c_int) -> io::Result<bool> {
    Ok(option_of::<c_int>(socket, option)? != 0)
}

/// Has interface `index` take frames for anybody for as long as the socket is open (packet(7), PACKET_MR_PROMISC).
#[allow(clippy::cast_possible_truncation)] // PACKET_MR_PROMISC is 1
pub(crate) fn make_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// Frames that found no room in the socket since this was last asked.
pub(crate) fn drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // Packets, which count the drops in, and drops (`struct tpacket_stats`).
    let [_, drops] = option_of::<[u32; 2]>(socket, libc::PACKET_STATISTICS)?;
    Ok(drops)
}

/// Bytes that the socket has sent and the kernel not yet let go of.
pub(crate) fn outstanding(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ) writes one `int`, which `bytes` is.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ as _, &raw mut bytes) };
    checked(asked)?;
    u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// recvmsg(2), never blocking; the length of the whole frame, however much of it there was room for.
///
/// # Safety
/// Everything that `message` points to must be valid for the kernel to write to.
pub(crate) unsafe fn receive(
    socket: BorrowedFd<'_>,
    message: *mut libc::msghdr,
) -> rustix::io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    retry_on_intr(|| {
        // SAFETY: the caller's promise is the one asked for.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), message, flags) };
        counted(received)
    })
}

/// sendmsg(2), never blocking.
///
/// # Safety
/// Everything that `message` points to must stay mapped during the call.
pub(crate) unsafe fn send(
    socket: BorrowedFd<'_>,
    message: *const libc::msghdr,
) -> rustix::io::Result<usize> {
    retry_on_intr(|| {
        // SAFETY: the caller's promise is the one asked for.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_DONTWAIT) };
        counted(sent)
    })
}

fn counted(bytes: isize) -> rustix::io::Result<usize> {
    usize::try_from(bytes).map_err(|_| {
        let error = io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// Sets an option of the packet layer.
fn set_option<T: Copy>(socket: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length are those of `value`, which setsockopt(2) reads.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const *value).cast(),
            socklen::<T>(),
        )
    };
    checked(set)
}

/// Asks for an option of the packet layer: plain numbers only, for which every bit pattern is a value.
fn option_of<T: Copy + Default>(socket: BorrowedFd<'_>, option: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut bytes = socklen::<T>();
    // SAFETY: pointer and length are those of `value`, and the `T`s of this file are made of integers.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    checked(asked)?;
    Ok(value)
}

#[allow(clippy::cast_possible_truncation)] // of a few bytes
const fn socklen<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}
