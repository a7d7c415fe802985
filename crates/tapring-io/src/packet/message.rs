//! A message of recvmsg(2): where a frame goes, and where the kernel writes what it says beside it.

use rustix::fd::BorrowedFd;

use crate::sys;

/// A VLAN tag as it stands on the wire: type and control information.
pub(crate) type Tag = [u8; 4];

/// ETH_P_8021Q, for kernels that do not say.
const VLAN: u16 = 0x8100;

/// A control message with auxiliary data, as CMSG_DATA lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    head: libc::cmsghdr,
    said: libc::tpacket_auxdata,
}

/// Without the padding behind the last field (CMSG_LEN).
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<libc::tpacket_auxdata>();

/// One message. The kernel reads and writes all of it while its read is in flight.
pub(crate) struct Message {
    head: libc::msghdr,
    space: libc::iovec,
    control: Control,
}

impl Message {
    /// One that receives nothing.
    pub(crate) const fn new() -> Self {
        // SAFETY: numbers and raw pointers only, for which all zeroes is a value.
        unsafe { std::mem::zeroed() }
    }

    /// Points it to `bytes` bytes at `address`. Valid until it is moved.
    pub(crate) fn prepare(&mut self, address: *mut u8, bytes: usize) -> *mut libc::msghdr {
        self.space = libc::iovec {
            iov_base: address.cast(),
            iov_len: bytes,
        };
        self.control.head.cmsg_len = 0;
        self.head.msg_iov = &raw mut self.space;
        self.head.msg_iovlen = 1;
        self.head.msg_control = (&raw mut self.control).cast();
        self.head.msg_controllen = size_of::<Control>() as _;
        &raw mut self.head
    }

    /// Receives one frame now. Its length, were it longer than `space` too.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        space: &mut [u8],
    ) -> rustix::io::Result<usize> {
        let message = self.prepare(space.as_mut_ptr(), space.len());
        // SAFETY: the message points to `space` and to its own control data, both of which outlive the call.
        unsafe { sys::packet::receive(socket, message) }
    }

    /// The tag that was taken off the received frame.
    pub(crate) fn tag(&self) -> Option<Tag> {
        let Control { head, said } = &self.control;
        #[allow(clippy::unnecessary_cast)] // it has 32 bits in musl
        let bytes = self.head.msg_controllen as usize;
        let is_said = bytes >= CONTROL_BYTES
            && (head.cmsg_level, head.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
        if !is_said || said.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let kind = match said.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
            0 => VLAN,
            _ => said.tp_vlan_tpid,
        };
        let [kind, information] = [kind, said.tp_vlan_tci].map(u16::to_be_bytes);
        Some([kind[0], kind[1], information[0], information[1]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u32) -> Message {
        let mut message = Message::new();
        message.prepare(std::ptr::dangling_mut(), 0);
        message.control.head.cmsg_level = libc::SOL_PACKET;
        message.control.head.cmsg_type = libc::PACKET_AUXDATA;
        message.control.said.tp_status = status;
        message.control.said.tp_vlan_tci = 0x6009;
        message.control.said.tp_vlan_tpid = 0x88a8;
        message
    }

    #[test]
    fn the_layout_is_that_of_control_messages() {
        // SAFETY: a computation.
        let space = unsafe { libc::CMSG_SPACE(20) };
        assert_eq!(size_of::<Control>(), space as usize);
        // SAFETY: a computation.
        let len = unsafe { libc::CMSG_LEN(20) };
        assert_eq!(CONTROL_BYTES, len as usize);
    }

    #[test]
    fn a_tag_is_one_only_when_it_is_said_to_be() {
        let (valid, typed) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        assert_eq!(said(valid | typed | 1).tag(), Some([0x88, 0xa8, 0x60, 9]));
        assert_eq!(said(valid).tag(), Some([0x81, 0, 0x60, 9]));
        assert_eq!(said(1).tag(), None);
        let mut other = said(valid);
        other.control.head.cmsg_level = libc::SOL_SOCKET;
        assert_eq!(other.tag(), None);
        let mut none = said(valid);
        none.head.msg_controllen = 0;
        assert_eq!(none.tag(), None);
    }
}
