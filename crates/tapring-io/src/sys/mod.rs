//! The few system calls that no safe crate offers: the tun ioctls, interface flags, packet sockets, writev of foreign memory.

pub(crate) mod packet;

use std::ffi::{c_int, c_short, c_ulong};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `_IOW('T', n, int)` and `_IOR('T', n, unsigned int)` of <linux/if_tun.h>.
const TUNSETIFF: c_ulong = 0x4004_54ca;
const TUNGETFEATURES: c_ulong = 0x8004_54cf;
const TUNSETOFFLOAD: c_ulong = 0x4004_54d0;
const TUNGETIFF: c_ulong = 0x8004_54d2;
const TUNGETSNDBUF: c_ulong = 0x8004_54d3;
const TUNSETVNETHDRSZ: c_ulong = 0x4004_54d8;
const TUNSETQUEUE: c_ulong = 0x4004_54d9;
const TUNSETVNETLE: c_ulong = 0x4004_54dc;

pub(crate) const IFF_TAP: c_short = 0x0002;
pub(crate) const IFF_MULTI_QUEUE: c_short = 0x0100;
const IFF_ATTACH_QUEUE: c_short = 0x0200;
const IFF_DETACH_QUEUE: c_short = 0x0400;
pub(crate) const IFF_NO_PI: c_short = 0x1000;
pub(crate) const IFF_VNET_HDR: c_short = 0x4000;
const IFF_UP: c_short = 0x0001;

/// Longest interface name without its terminating zero (IFNAMSIZ - 1).
pub(crate) const NAME_BYTES: usize = libc::IFNAMSIZ - 1;

/// `ifreq` with a name in it. The name must have been checked; a longer one is cut.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is plain old data for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name[..NAME_BYTES].iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

fn flags_of(request: &libc::ifreq) -> c_short {
    // SAFETY: every bit pattern of the union is a valid `c_short`, and `request` zeroed it.
    unsafe { request.ifr_ifru.ifru_flags }
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn ifreq_ioctl(
    fd: BorrowedFd<'_>,
    operation: c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: the operations of this file that come here read or write one `ifreq`, which `request` is.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), operation as _, &raw mut *request) })
}

fn int_ioctl(fd: BorrowedFd<'_>, operation: c_ulong, value: &mut c_int) -> io::Result<()> {
    // SAFETY: the operations of this file that come here read or write one `int`, which `value` is.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), operation as _, &raw mut *value) })
}

/// Attaches `tun` as a queue of interface `name`, which the kernel creates when there is none.
pub(crate) fn attach(tun: BorrowedFd<'_>, name: &str, flags: c_short) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = flags;
    ifreq_ioctl(tun, TUNSETIFF, &mut request)
}

/// The interface that a tun queue is attached to, and the flags it was attached with.
pub(crate) fn attached_to(tun: BorrowedFd<'_>) -> io::Result<(String, c_short)> {
    let mut request = request("");
    ifreq_ioctl(tun, TUNGETIFF, &mut request)?;
    let name = request.ifr_name.map(|byte| byte.to_ne_bytes()[0]);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok((
        String::from_utf8_lossy(name).into_owned(),
        flags_of(&request),
    ))
}

/// The flags that a tun queue could be attached with, whether it is or not.
pub(crate) fn features(tun: BorrowedFd<'_>) -> io::Result<c_short> {
    let mut bits = 0;
    int_ioctl(tun, TUNGETFEATURES, &mut bits)?;
    #[allow(clippy::cast_possible_truncation)] // the flags of an `ifreq` are 16 bits
    Ok(bits as c_short)
}

/// Another descriptor of what is open under this number. It may be nothing, or anything.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) takes any number; of one that is not open it says so.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    checked(copy)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Gives an attached queue of a multi_queue tap its share of the host's flows, or none. The kernel throws away what the queue
/// holds when it is taken out.
pub(crate) fn set_queue(tun: BorrowedFd<'_>, attached: bool) -> io::Result<()> {
    let mut request = request("");
    request.ifr_ifru.ifru_flags = if attached {
        IFF_ATTACH_QUEUE
    } else {
        IFF_DETACH_QUEUE
    };
    ifreq_ioctl(tun, TUNSETQUEUE, &mut request)
}

/// Sets the length of the header in front of every frame.
pub(crate) fn set_header_bytes(tun: BorrowedFd<'_>, bytes: c_int) -> io::Result<()> {
    int_ioctl(tun, TUNSETVNETHDRSZ, &mut { bytes })
}

/// Says that the header is little-endian whatever the host is (virtio 1.3 §5.1.6).
pub(crate) fn set_header_little_endian(tun: BorrowedFd<'_>) -> io::Result<()> {
    int_ioctl(tun, TUNSETVNETLE, &mut { 1 })
}

/// Sets what the host may leave to the guest: `TUN_F_*` bits.
pub(crate) fn set_offload(tun: BorrowedFd<'_>, bits: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value and touches no memory of ours.
    checked(unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETOFFLOAD as _, c_ulong::from(bits)) })
}

/// The send buffer in bytes; `None` when it has no limit, which is the default.
pub(crate) fn send_buffer(tun: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut bytes = 0;
    int_ioctl(tun, TUNGETSNDBUF, &mut bytes)?;
    Ok(u32::try_from(bytes).ok().filter(|_| bytes < c_int::MAX))
}

/// A socket to ask about interfaces of this thread's network namespace.
pub(crate) fn interface_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Whether interface `name` is up.
pub(crate) fn is_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut request = request(name);
    ifreq_ioctl(socket, libc::SIOCGIFFLAGS as _, &mut request)?;
    Ok(flags_of(&request) & IFF_UP != 0)
}

/// The largest packet of interface `name`, without its Ethernet header.
pub(crate) fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = request(name);
    ifreq_ioctl(socket, libc::SIOCGIFMTU as _, &mut request)?;
    // SAFETY: SIOCGIFMTU has written the union's `c_int`, for which every bit pattern is valid.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Brings interface `name` up.
pub(crate) fn bring_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request(name);
    ifreq_ioctl(socket, libc::SIOCGIFFLAGS as _, &mut request)?;
    request.ifr_ifru.ifru_flags = flags_of(&request) | IFF_UP;
    ifreq_ioctl(socket, libc::SIOCSIFFLAGS as _, &mut request)
}

/// writev(2) to a non-blocking descriptor; bytes written, or the negative error number as a ring would say it.
///
/// # Safety
/// Every iovec must describe memory that stays mapped during the call. (Others may write to it: it is only read, and
/// by the kernel.)
pub(crate) unsafe fn writev(fd: impl AsFd, iovecs: &[libc::iovec]) -> i32 {
    let count = c_int::try_from(iovecs.len()).unwrap_or(c_int::MAX);
    loop {
        // SAFETY: pointer and count are those of a slice, and what it describes is the caller's promise.
        let written = unsafe { libc::writev(fd.as_fd().as_raw_fd(), iovecs.as_ptr(), count) };
        if written >= 0 {
            return i32::try_from(written).unwrap_or(i32::MAX);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            errno => return -errno.unwrap_or(libc::EIO),
        }
    }
}
