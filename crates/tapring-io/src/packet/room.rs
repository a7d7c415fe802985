//! How much a packet socket may have outstanding, so that a full interface is something one can wait for.
//!
//! A socket that has sent as much as its send buffer allows says EAGAIN, and POLLOUT when half of it is gone. But the
//! interface's own queue may be shorter: a frame that finds no room there is dropped and answered with ENOBUFS, and the
//! socket, which has room, stays writable. To wait for POLLOUT would be to spin.
//!
//! So the send buffer is made as small as what is outstanding at that moment. From then on the socket is full before the
//! interface is. It grows again by an eighth with each EAGAIN, up to what it was: the queue may have been full of somebody
//! else's frames.
//!
//! ```text
//!   ENOBUFS, more than LEAST outstanding    buffer := outstanding      not writable until half of it has left
//!   ENOBUFS otherwise                       nothing to wait for
//!   EAGAIN                                  buffer := buffer x 9/8, at most what it was
//! ```

use rustix::fd::BorrowedFd;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};

use crate::encoding::Encoding;
use crate::sys;

/// The kernel makes no buffer smaller than 4608 bytes, and a socket with half of its buffer free is writable.
const LEAST: u32 = 4608 / 2 + 1;

/// The send buffer of one packet socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// What it was, in bytes as the kernel counts them.
    whole: u32,
    now: u32,
}

impl Room {
    /// Asks what it is. Zero, if it is no packet socket or the kernel does not say: then it is left alone.
    pub(crate) fn of(socket: BorrowedFd<'_>, encoding: Encoding) -> Self {
        if !encoding.is_packet() {
            return Self::default();
        }
        let whole = socket_send_buffer_size(socket).unwrap_or(0);
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        Self { whole, now: whole }
    }

    /// ENOBUFS. Whether POLLOUT can be waited for now.
    pub(crate) fn narrow(&mut self, socket: BorrowedFd<'_>) -> bool {
        let Ok(outstanding) = sys::packet::outstanding(socket) else {
            return false;
        };
        outstanding >= LEAST && self.set(socket, outstanding.min(self.whole))
    }

    /// EAGAIN.
    pub(crate) fn widen(&mut self, socket: BorrowedFd<'_>) {
        if self.now < self.whole {
            let wider = self.now.saturating_add(self.now / 8).min(self.whole);
            self.set(socket, wider);
        }
    }

    /// The kernel doubles what it is given.
    fn set(&mut self, socket: BorrowedFd<'_>, bytes: u32) -> bool {
        self.now = bytes;
        set_socket_send_buffer_size(socket, bytes as usize / 2).is_ok()
    }
}
