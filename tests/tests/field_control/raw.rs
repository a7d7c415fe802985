//! A frontend that says what it is told to, right or wrong: vhost-user messages byte by byte.
//!
//! ```text
//! | request u32 | flags u32 | size u32 | body |      descriptors ride on the first byte
//! ```

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Request numbers of the vhost-user specification.
#[allow(missing_docs)]
pub(crate) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SEND_RARP: u32 = 19;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// Version 1.
pub(crate) const VERSION: u32 = 1;
/// An acknowledgement is asked for.
pub(crate) const NEED_REPLY: u32 = 8;

/// Most descriptors of one message here.
const MAX_DESCRIPTORS: usize = 40;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(3);

/// What the backend said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A reply to this request, with this body.
    Reply(u32, Vec<u8>),
    /// It closed the connection.
    Closed,
}

impl Answer {
    /// The u64 in the body of a reply to `request`.
    pub(crate) fn number(&self, request: u32) -> Option<u64> {
        match self {
            Self::Reply(found, body) if *found == request => {
                Some(u64::from_ne_bytes(body.as_slice().try_into().ok()?))
            }
            _ => None,
        }
    }
}

/// A connection to the backend, without any state.
#[derive(Debug)]
pub(crate) struct RawFrontend {
    stream: UnixStream,
}

impl RawFrontend {
    /// Connects.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        Self::over(UnixStream::connect(socket).context("connect to the daemon")?)
    }

    /// Speaks on a connection that somebody else has set up.
    pub(crate) fn over(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER))?;
        Ok(Self { stream })
    }

    /// Sends one message.
    pub(crate) fn send(
        &self,
        code: u32,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let size = u32::try_from(body.len())?;
        self.send_bytes(&message(code, flags, size, body), fds)
    }

    /// Sends bytes that need not be a message.
    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(
            fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)),
            "too many descriptors"
        );
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags)?;
        (&self.stream).write_all(&bytes[sent..])?;
        Ok(())
    }

    /// The next answer.
    pub(crate) fn answer(&self) -> Result<Answer> {
        let mut header = [0; 12];
        match (&self.stream).read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if is_end(error.kind()) => return Ok(Answer::Closed),
            Err(error) => return Err(error).context("no answer"),
        }
        let word =
            |at: usize| -> Result<u32> { Ok(u32::from_ne_bytes(header[at..at + 4].try_into()?)) };
        ensure!(word(4)? & 7 == 5, "flags {:#x} in a reply", word(4)?);
        let mut body = vec![0; word(8)? as usize];
        (&self.stream).read_exact(&mut body)?;
        Ok(Answer::Reply(word(0)?, body))
    }

    /// Sends one message and waits for its answer.
    pub(crate) fn ask(
        &self,
        code: u32,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer> {
        if self.send(code, flags, body, fds).is_err() {
            return Ok(Answer::Closed);
        }
        self.answer()
    }

    /// Sends one message with NEED_REPLY, which must succeed.
    pub(crate) fn expect_done(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let answer = self.ask(code, VERSION | NEED_REPLY, body, fds)?;
        ensure!(
            answer.number(code) == Some(0),
            "request {code}: {answer:?} instead of success"
        );
        Ok(())
    }

    /// Says that nothing more will be sent, and goes on listening.
    pub(crate) fn half_close(&self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }
}

/// A message as it goes over the wire, with a size field that need not be right.
pub(crate) fn message(code: u32, flags: u32, size: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [code, flags, size].map(u32::to_ne_bytes).concat();
    bytes.extend_from_slice(body);
    bytes
}

/// The body of SET_VRING_NUM, BASE and ENABLE, and of GET_VRING_BASE.
pub(crate) fn ring_state(ring: u32, value: u32) -> Vec<u8> {
    [ring, value].map(u32::to_ne_bytes).concat()
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}
