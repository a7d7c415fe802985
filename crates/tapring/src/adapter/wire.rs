//! Messages over a unix stream socket, with their descriptors.
//!
//! 1. The 12 bytes of the header are read first and nothing beyond them, for a read that crosses into the next message
//!    would lose that one's descriptors. They come with the first byte of the header and nowhere else.
//! 2. Then the body, as long as the header says.
//!
//! Reading never waits: a sender that dribbles its bytes is picked up where it left off ([`Receiver::receive`]), so that
//! the other direction is not held up. Everything received is close-on-exec.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;

use super::message::{HEADER_BYTES, Header, HeaderFault, MAX_DESCRIPTORS, Message};

/// Room for the descriptors of one message.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Why nothing more can be read from a peer.
#[derive(Debug, Error)]
pub(crate) enum ReceiveError {
    #[error("connection closed")]
    Closed,
    #[error("connection closed in the middle of a message")]
    ClosedMidway,
    #[error(transparent)]
    Header(#[from] HeaderFault),
    #[error(
        "descriptors were lost on the way: at most {MAX_DESCRIPTORS} fit a message, or this process has too many open \
         files (raise LimitNOFILE)"
    )]
    Truncated,
    #[error("descriptors in the middle of a message: they belong to its first byte")]
    Misplaced,
    #[error("cannot read from the socket: {0}")]
    Socket(#[from] Errno),
}

/// Puts messages together from what a socket has to give.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    head: [u8; HEADER_BYTES],
    body: Vec<u8>,
    /// Bytes so far, header included.
    received: usize,
    header: Option<Header>,
    descriptors: Vec<OwnedFd>,
}

impl Receiver {
    /// Reads what is there; a message once it is whole, `None` if the rest has not come yet.
    pub(crate) fn receive(&mut self, socket: &UnixStream) -> Result<Option<Message>, ReceiveError> {
        loop {
            if let Some(header) = self.header
                && self.received == HEADER_BYTES + self.body.len()
            {
                return Ok(Some(self.take(header)));
            }
            if !self.read_on(socket)? {
                return Ok(None);
            }
            if self.header.is_none() && self.received == HEADER_BYTES {
                let header = Header::parse(self.head)?;
                self.body = vec![0; header.size as usize];
                self.header = Some(header);
            }
        }
    }

    /// One read; whether there was anything.
    fn read_on(&mut self, socket: &UnixStream) -> Result<bool, ReceiveError> {
        let target = match self.received.checked_sub(HEADER_BYTES) {
            Some(into_body) if self.header.is_some() => &mut self.body[into_body..],
            _ => &mut self.head[self.received..],
        };
        let (bytes, descriptors) = match read(socket, target) {
            Err(ReceiveError::Socket(Errno::AGAIN)) => return Ok(false),
            other => other?,
        };
        match (bytes, self.received) {
            (0, 0) => return Err(ReceiveError::Closed),
            (0, _) => return Err(ReceiveError::ClosedMidway),
            (_, 0) => self.descriptors = descriptors,
            _ if !descriptors.is_empty() => return Err(ReceiveError::Misplaced),
            _ => {}
        }
        self.received += bytes;
        Ok(true)
    }

    fn take(&mut self, header: Header) -> Message {
        self.header = None;
        self.received = 0;
        Message {
            header,
            body: std::mem::take(&mut self.body),
            descriptors: std::mem::take(&mut self.descriptors),
        }
    }
}

/// Sends a whole message, its descriptors with the first byte. Waits while the socket is full.
pub(crate) fn send(socket: &UnixStream, message: &Message) -> Result<(), Errno> {
    let mut bytes = message.header.to_bytes().to_vec();
    bytes.extend_from_slice(&message.body);
    let mut sent = 0;
    while sent < bytes.len() {
        let descriptors = if sent == 0 {
            message.descriptors.as_slice()
        } else {
            &[]
        };
        match write(socket, &bytes[sent..], descriptors) {
            Err(Errno::INTR) => {}
            written => sent += written?,
        }
    }
    Ok(())
}

fn read(socket: &UnixStream, target: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), ReceiveError> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(target)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<_> = descriptors.flatten().collect();
    // The buffer has some slack for alignment, so that a few too many may fit.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        return Err(ReceiveError::Truncated);
    }
    Ok((received.bytes, descriptors))
}

fn write(socket: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use vhost::vhost_user::message::FrontendReq;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd")
    }

    fn kick() -> Message {
        Message::request(FrontendReq::SET_VRING_KICK, vec![0; 8]).with_descriptor(event())
    }

    fn bytes(message: &Message) -> Vec<u8> {
        [message.header.to_bytes().as_slice(), &message.body].concat()
    }

    #[test]
    fn a_message_and_its_descriptors_arrive_together() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        send(&theirs, &kick()).expect("sent");
        send(
            &theirs,
            &Message::request(FrontendReq::GET_FEATURES, vec![]),
        )
        .expect("sent");
        let mut receiver = Receiver::default();
        let first = receiver.receive(&ours).expect("sound").expect("whole");
        assert_eq!((first.descriptors.len(), first.body.len()), (1, 8));
        let second = receiver.receive(&ours).expect("sound").expect("whole");
        assert_eq!((second.descriptors.len(), second.body.len()), (0, 0));
        assert!(receiver.receive(&ours).expect("sound").is_none());
    }

    #[test]
    fn a_message_may_come_byte_by_byte() {
        let (ours, mut theirs) = UnixStream::pair().expect("socket pair");
        let mut receiver = Receiver::default();
        let all = bytes(&kick());
        for byte in &all[..all.len() - 1] {
            theirs.write_all(&[*byte]).expect("written");
            assert!(receiver.receive(&ours).expect("sound").is_none());
        }
        theirs.write_all(&all[all.len() - 1..]).expect("written");
        assert!(receiver.receive(&ours).expect("sound").is_some());
    }

    #[test]
    fn descriptors_in_the_middle_are_refused() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let mut receiver = Receiver::default();
        write(&theirs, &bytes(&kick())[..12], &[]).expect("written");
        assert!(receiver.receive(&ours).expect("sound").is_none());
        write(&theirs, &[0; 8], &[event()]).expect("written");
        assert!(matches!(
            receiver.receive(&ours),
            Err(ReceiveError::Misplaced)
        ));
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let many: Vec<_> = (0..33).map(|_| event()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(33))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let borrowed: Vec<_> = many.iter().map(AsFd::as_fd).collect();
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let head = kick().header.to_bytes();
        sendmsg(
            &theirs,
            &[IoSlice::new(&head)],
            &mut control,
            SendFlags::empty(),
        )
        .expect("sent");
        let result = Receiver::default().receive(&ours);
        assert!(matches!(result, Err(ReceiveError::Truncated)));
    }

    #[test]
    fn the_end_is_told_from_an_end_midway() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        drop(theirs);
        assert!(matches!(
            Receiver::default().receive(&ours),
            Err(ReceiveError::Closed)
        ));
        let (ours, mut theirs) = UnixStream::pair().expect("socket pair");
        theirs.write_all(&[1, 0, 0, 0]).expect("written");
        drop(theirs);
        let mut receiver = Receiver::default();
        assert!(matches!(
            receiver.receive(&ours),
            Err(ReceiveError::ClosedMidway)
        ));
    }
}
