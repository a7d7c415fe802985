//! A vhost-user message in memory: a 12-byte header, a body, and the descriptors that came with the header.
//!
//! ```text
//! 0        4        8        12
//! | request | flags  | size   | body ... size bytes, at most 4096
//! ```
//! All three are native-endian u32 (vhost-user, "Message Specification").

use std::fmt;
use std::os::fd::OwnedFd;

use thiserror::Error;
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 12;

/// Descriptors a message may carry: one a memory region, as the crate behind us takes them.
pub(crate) const MAX_DESCRIPTORS: usize = vhost::vhost_user::message::MAX_ATTACHED_FD_ENTRIES;

const VERSION: u32 = 0x1;
const VERSION_MASK: u32 = 0x3;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;
const KNOWN_FLAGS: u32 = VERSION_MASK | REPLY | NEED_REPLY;

/// Why bytes are no message. Nothing behind them can be trusted, so the session ends.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    #[error("message version {0}: this backend speaks version 1")]
    Version(u32),
    #[error("unknown flags {0:#x} in a message header: the frontend must leave reserved bits 0")]
    Flags(u32),
    #[error("message of {0} bytes: at most {MAX_MSG_SIZE} are taken")]
    Size(u32),
}

/// The fixed part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// A [`FrontendReq`], if the frontend knows what it does.
    pub(crate) request: u32,
    /// Version, REPLY, NEED_REPLY.
    pub(crate) flags: u32,
    /// Bytes of the body.
    pub(crate) size: u32,
}

impl Header {
    /// Checks all that can be told from the header alone.
    pub(crate) fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, HeaderFault> {
        let header = Self {
            request: u32_at(&bytes, 0),
            flags: u32_at(&bytes, 4),
            size: u32_at(&bytes, 8),
        };
        match header {
            Self { flags, .. } if flags & VERSION_MASK != VERSION => {
                Err(HeaderFault::Version(flags & VERSION_MASK))
            }
            Self { flags, .. } if flags & !KNOWN_FLAGS != 0 => Err(HeaderFault::Flags(flags)),
            Self { size, .. } if size as usize > MAX_MSG_SIZE => Err(HeaderFault::Size(size)),
            _ => Ok(header),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.request.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }

    /// The sender waits for an answer even to a request that has none of its own.
    pub(crate) const fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// The message answers one, rather than asking.
    pub(crate) const fn is_reply(self) -> bool {
        self.flags & REPLY != 0
    }
}

/// One message, whole.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Message {
    /// A request that asks for no acknowledgement.
    pub(crate) fn request(request: FrontendReq, body: Vec<u8>) -> Self {
        Self::new(request.into(), VERSION, body)
    }

    /// The answer to a request: one u64, which is also what an acknowledgement looks like (0 success, else failure).
    pub(crate) fn reply_u64(request: Header, value: u64) -> Self {
        Self::new(
            request.request,
            VERSION | REPLY,
            value.to_ne_bytes().to_vec(),
        )
    }

    /// The same request with NEED_REPLY set.
    #[cfg(test)]
    pub(crate) fn needing_reply(mut self) -> Self {
        self.header.flags |= NEED_REPLY;
        self
    }

    /// The same request with a descriptor.
    #[cfg(test)]
    pub(crate) fn with_descriptor(mut self, descriptor: OwnedFd) -> Self {
        self.descriptors.push(descriptor);
        self
    }

    /// The body, if it has exactly this size.
    pub(crate) fn body<const BYTES: usize>(&self) -> Option<&[u8; BYTES]> {
        self.body.as_slice().try_into().ok()
    }

    fn new(request: u32, flags: u32, body: Vec<u8>) -> Self {
        // A body is at most 4096 bytes; ours are 8 or 16.
        let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
        Self {
            header: Header {
                request,
                flags,
                size,
            },
            body,
            descriptors: Vec::new(),
        }
    }
}

/// For debugging: the request, whether it wants an answer, the first bytes, how many descriptors.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match FrontendReq::try_from(self.header.request) {
            Ok(request) => write!(f, "{request:?}")?,
            Err(()) => write!(f, "request {}", self.header.request)?,
        }
        if self.header.needs_reply() {
            f.write_str(" NEED_REPLY")?;
        }
        for word in self.body.chunks(4).take(4) {
            f.write_str(" ")?;
            word.iter()
                .rev()
                .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        write!(
            f,
            " ({} bytes, {} descriptors)",
            self.body.len(),
            self.descriptors.len()
        )
    }
}

/// The u32 at this offset; the caller has checked the length.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_ne_bytes(value)
}

/// The u64 at this offset; the caller has checked the length.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_ne_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u32, size: u32) -> [u8; HEADER_BYTES] {
        let request = 1;
        Header {
            request,
            flags,
            size,
        }
        .to_bytes()
    }

    #[test]
    fn a_header_survives_the_way_there_and_back() {
        let parsed = Header::parse(header(0x9, 4096)).expect("version 1, NEED_REPLY, largest body");
        assert!(parsed.needs_reply() && !parsed.is_reply());
        assert_eq!(parsed.to_bytes(), header(0x9, 4096));
    }

    #[test]
    fn versions_other_than_1_are_refused() {
        for version in [0, 2, 3] {
            assert_eq!(
                Header::parse(header(version, 0)),
                Err(HeaderFault::Version(version))
            );
        }
    }

    #[test]
    fn reserved_flags_and_huge_bodies_are_refused() {
        assert_eq!(
            Header::parse(header(0x11, 0)),
            Err(HeaderFault::Flags(0x11))
        );
        assert_eq!(
            Header::parse(header(0x1, 4097)),
            Err(HeaderFault::Size(4097))
        );
        assert_eq!(
            Header::parse(header(0x1, u32::MAX)),
            Err(HeaderFault::Size(u32::MAX))
        );
    }
}
