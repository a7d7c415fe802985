//! What a port is attached to, and so how its entries are written.
//!
//! ```text
//!                 tap queue                        packet socket
//!   TX, copied    WRITE_FIXED, RWF_NOWAIT          SEND, MSG_DONTWAIT
//!   TX, gathered  WRITEV, RWF_NOWAIT               SENDMSG, MSG_DONTWAIT
//!   RX            READ_FIXED, RWF_NOWAIT           RECVMSG, MSG_DONTWAIT | MSG_TRUNC
//!   header        12 bytes                         10 bytes: all but num_buffers
//!   full          EAGAIN                           EAGAIN, ENOBUFS
//!   down, gone    EIO, EBADFD                      ENETDOWN, ENXIO
//! ```
//! Whoever uses a port sees the left column only: frames have a 12-byte header both ways, and outcomes have names.

use rustix::fd::BorrowedFd;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use crate::port::PortError;
use crate::{packet, tap};

/// One of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// A queue of a tap: a character device, read and written.
    #[default]
    Tap,
    /// A packet socket, received from and sent to.
    Packet,
}

impl Encoding {
    /// The one for this descriptor; an error when it is neither, or its frames have no virtio headers.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<Self, PortError> {
        match socket_domain(fd) {
            Ok(AddressFamily::PACKET) => packet::require_headers(fd).map(|()| Self::Packet),
            _ => tap::require_tap(fd).map(|()| Self::Tap),
        }
    }

    pub(crate) fn is_packet(self) -> bool {
        self == Self::Packet
    }
}
