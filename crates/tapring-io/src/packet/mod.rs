//! A packet socket: the other way to a wire, through an interface that exists and stays whose it is.
//!
//! # Theory of operation
//!
//! ```text
//!   guest ── daemon ── packet socket ── v0 ═══ v1      a veth, whose other end is a container's or a bridge's
//!                                    └─ eth0 ═══ wire  a card
//! ```
//!
//! The socket (`AF_PACKET`, `SOCK_RAW`) is bound to one interface. What is sent to it leaves there; what arrives there it
//! receives, whoever it is for: the interface is promiscuous for as long as the socket is open (PACKET_MR_PROMISC),
//! because a vhost-user-net backend is not told its guest's address. It does not hear what this host sends on the
//! interface (PACKET_IGNORE_OUTGOING), its own frames included; so guest and host do not meet on a card, as with macvtap.
//!
//! What differs from a tap:
//!
//! - The kernel takes the VLAN tag off each frame it receives, from a veth as from a card, and says beside the frame
//!   (PACKET_AUXDATA) what it was. `arrival.rs` puts it back: a frame without its tag would be in another network.
//! - Frames come unfinished, and super-frames of up to 64 KiB do: see [`offload`](crate::offload).
//! - The send buffer is finite. EAGAIN says that it is full, and POLLOUT comes when it is half empty. ENOBUFS says that
//!   the interface's own queue is full, which no poll reports: `room.rs`.
//! - An interface that goes down or away leaves one ENETDOWN to be met by the next send or receive, and POLLERR until then.
//!   Gone it is when the socket is bound to interface -1.
//! - The host's own stack goes on receiving what comes in on the interface. It should have no address of the host's on it.
//!
//! The socket is made without a protocol, so that it hears nothing before it is bound.

mod arrival;
mod error;
mod message;
mod room;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, socket_recv_buffer_size,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::port::PortError;
use crate::sys;
use crate::tap::is_tap_name;

pub(crate) use arrival::{Arrived, FRAME_AT, HEADER_AT, arrive};
pub use error::PacketError;
pub(crate) use message::Message;
pub(crate) use room::Room;

/// Bytes that the 10-byte header lies behind the beginning of a 12-byte one's place.
pub(crate) const HEADER_SKIP: usize = crate::HEADER_BYTES - crate::offload::ASKED_BYTES;

/// What may wait in the socket, as the kernel counts it: some 1700 frames of 1500 bytes, 5000 small ones, or 50
/// super-frames. (A tap has room for 1000 frames.) Less without CAP_NET_ADMIN: twice net.core.rmem_max.
const RECEIVE_BYTES: usize = 4 << 20;

/// ARPHRD_ETHER: there is an Ethernet header in front of each frame.
const ETHERNET: u16 = 1;

/// Which interface, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// Name of the interface, 1 to 15 bytes.
    pub name: String,
    /// Send past the interface's queueing discipline, straight to its driver: no shaping, and no fairness towards others.
    pub qdisc_bypass: bool,
}

/// A packet socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    name: String,
    index: u32,
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket on an interface of this thread's network namespace.
    pub fn open(options: &PacketOptions) -> Result<Self, PacketError> {
        let name = &options.name;
        if !is_tap_name(name) {
            return Err(PacketError::Name { name: name.clone() });
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|source| PacketError::of_socket(name, source.into()))?;
        let index = name_to_index(&socket, name)
            .map_err(|_| PacketError::Missing { name: name.clone() })?;
        configure(socket.as_fd(), index, options).map_err(|(action, source)| {
            PacketError::System {
                name: name.clone(),
                action,
                source,
            }
        })?;
        let this = Self {
            name: name.clone(),
            index,
            socket,
        };
        this.require_ethernet()?;
        Ok(this)
    }

    fn require_ethernet(&self) -> Result<(), PacketError> {
        let bound = sys::packet::bound(self.socket.as_fd());
        match bound.map_err(|source| self.failed("ask about", source))? {
            bound if bound.link_type == ETHERNET => Ok(()),
            bound => Err(PacketError::NotEthernet {
                name: self.name.clone(),
                link_type: bound.link_type,
            }),
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> PacketError {
        PacketError::System {
            name: self.name.clone(),
            action,
            source,
        }
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the interface.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Whether the interface is administratively up.
    pub fn is_up(&self) -> io::Result<bool> {
        sys::is_up(self.socket.as_fd(), &self.name)
    }

    /// The largest packet the interface carries, in bytes without the Ethernet header.
    pub fn mtu(&self) -> io::Result<u32> {
        sys::mtu(self.socket.as_fd(), &self.name)
    }

    /// What may wait in the socket, in bytes as the kernel counts them, and what was asked for: less without CAP_NET_ADMIN.
    pub fn receive_buffer(&self) -> io::Result<(usize, usize)> {
        let bytes = socket_recv_buffer_size(&self.socket)?;
        Ok((bytes, RECEIVE_BYTES))
    }

    /// Frames that found no room in the socket since this was last asked.
    pub fn take_drops(&self) -> io::Result<u32> {
        sys::packet::drops(self.socket.as_fd())
    }

    /// Another descriptor of the socket, for a worker's port.
    pub fn try_clone_socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

/// All that has to hold before the first frame arrives, and then the binding that lets it.
fn configure(
    socket: BorrowedFd<'_>,
    index: u32,
    options: &PacketOptions,
) -> Result<(), (&'static str, io::Error)> {
    let switch =
        |option, action| sys::packet::switch_on(socket, option).map_err(|error| (action, error));
    switch(libc::PACKET_VNET_HDR, "ask for virtio headers on")?;
    switch(libc::PACKET_AUXDATA, "ask for VLAN tags on")?;
    switch(libc::PACKET_IGNORE_OUTGOING, "leave out what is sent on")?;
    if options.qdisc_bypass {
        switch(
            libc::PACKET_QDISC_BYPASS,
            "bypass the queueing discipline of",
        )?;
    }
    // SO_RCVBUF counts payload and doubles it for what frames take besides.
    set_socket_recv_buffer_size_force(socket, RECEIVE_BYTES / 2)
        .or_else(|_| set_socket_recv_buffer_size(socket, RECEIVE_BYTES / 2))
        .map_err(|error| ("set the receive buffer of a socket on", error.into()))?;
    sys::packet::make_promiscuous(socket, index).map_err(|error| ("make promiscuous", error))?;
    sys::packet::bind(socket, index).map_err(|error| ("bind a packet socket to", error))
}

/// Checks that a packet socket has a header of 10 bytes in front of each frame.
pub(crate) fn require_headers(socket: BorrowedFd<'_>) -> Result<(), PortError> {
    let headers = sys::packet::is_on(socket, libc::PACKET_VNET_HDR);
    match headers {
        Ok(true) => Ok(()),
        Ok(false) => Err(PortError::NoHeaders {
            source: io::ErrorKind::InvalidInput.into(),
        }),
        Err(source) => Err(PortError::NoHeaders { source }),
    }
}

/// Whether the interface of a socket is gone for good.
pub(crate) fn is_gone(socket: BorrowedFd<'_>) -> bool {
    sys::packet::bound(socket).is_ok_and(|bound| bound.index < 0)
}
