//! Frontends: the `vhost` crate's, and one of bare bytes.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Bytes of guest memory.
pub(crate) const MEMORY: u64 = 0x10_0000;

/// Where the guest's memory is for the frontend.
pub(crate) const USER: u64 = 0x7000_0000_0000;

pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const PROTOCOL: u64 = 1 << 30;
pub(crate) const NEED_REPLY: u32 = 0x8;
pub(crate) const REPLY_ACK: u64 = 0x8;

/// Something to wait longer than for, before a test is given up.
const LIMIT: Duration = Duration::from_secs(10);

/// An eventfd as frontends make them.
pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// A file of guest memory.
pub(crate) fn memory(bytes: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, bytes).expect("enough memory");
    file
}

/// Descriptor table, avail and used ring of a ring, as offsets into guest memory.
pub(crate) const fn areas(ring: usize) -> [u64; 3] {
    let base = 0x1_0000 * (ring as u64 + 1);
    [base, base + 0x4000, base + 0x8000]
}

/// A frontend that speaks like cloud-hypervisor, up to where the rings have kicks.
pub(crate) struct Guest {
    pub(crate) frontend: Frontend,
    pub(crate) memory: OwnedFd,
    pub(crate) kicks: Vec<EventFd>,
    pub(crate) calls: Vec<EventFd>,
}

impl Guest {
    /// Negotiates, with acknowledgements on.
    pub(crate) fn negotiate(stream: UnixStream, rings: u64) -> Self {
        let mut frontend = Frontend::from_stream(stream, rings);
        frontend.set_owner().expect("owned");
        let features = frontend.get_features().expect("features");
        let wanted = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
        let offered = frontend.get_protocol_features().expect("protocol features");
        frontend
            .set_protocol_features(offered & wanted)
            .expect("taken");
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert_eq!(
            frontend.get_queue_num().expect("number"),
            rings,
            "counted in rings"
        );
        frontend
            .set_features(features & (VERSION_1 | PROTOCOL))
            .expect("taken");
        Self {
            frontend,
            memory: memory(MEMORY),
            kicks: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Sends memory and sets all rings up and going.
    pub(crate) fn start(stream: UnixStream, rings: u64) -> Self {
        let mut guest = Self::negotiate(stream, rings);
        guest.set_memory();
        for ring in 0..usize::try_from(rings).expect("few") {
            guest.start_ring(ring, 256, 0);
        }
        for ring in 0..guest.kicks.len() {
            guest
                .frontend
                .set_vring_enable(ring, true)
                .expect("enabled");
        }
        guest
    }

    pub(crate) fn set_memory(&self) {
        self.frontend
            .set_mem_table(&[self.region(0)])
            .expect("mapped");
    }

    pub(crate) fn region(&self, start: u64) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: start,
            memory_size: MEMORY,
            userspace_addr: USER + start,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        }
    }

    pub(crate) fn start_ring(&mut self, ring: usize, size: u16, base: u16) {
        let frontend = &self.frontend;
        frontend.set_vring_num(ring, size).expect("a good size");
        frontend
            .set_vring_addr(ring, &config(ring, size))
            .expect("good addresses");
        frontend.set_vring_base(ring, base).expect("a good index");
        let (call, kick) = (
            EventFd::new(0).expect("eventfd"),
            EventFd::new(0).expect("eventfd"),
        );
        frontend.set_vring_call(ring, &call).expect("taken");
        frontend.set_vring_kick(ring, &kick).expect("taken");
        self.calls.push(call);
        self.kicks.push(kick);
    }
}

pub(crate) fn config(ring: usize, size: u16) -> VringConfigData {
    let [desc, avail, used] = areas(ring).map(|offset| USER + offset);
    VringConfigData {
        queue_max_size: 1024,
        queue_size: size,
        flags: 0,
        desc_table_addr: desc,
        used_ring_addr: used,
        avail_ring_addr: avail,
        log_addr: None,
    }
}

/// A frontend of bare bytes.
pub(crate) struct Bytes(pub(crate) UnixStream);

impl Bytes {
    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        Self(stream)
    }

    /// The negotiation of every frontend that wants acknowledgements.
    pub(crate) fn negotiated(stream: UnixStream) -> Self {
        let mut bytes = Self::new(stream);
        bytes.send(FrontendReq::SET_OWNER, 0, &[]);
        bytes.ask(FrontendReq::GET_FEATURES, &[]);
        bytes.send(
            FrontendReq::SET_PROTOCOL_FEATURES,
            0,
            &REPLY_ACK.to_ne_bytes(),
        );
        let features = (VERSION_1 | PROTOCOL).to_ne_bytes();
        assert_eq!(
            bytes.acknowledged(FrontendReq::SET_FEATURES, &features),
            Some(0)
        );
        bytes
    }

    pub(crate) fn send(&mut self, request: FrontendReq, flags: u32, body: &[u8]) {
        self.send_with(request.into(), flags, body, &[]);
    }

    pub(crate) fn send_with(
        &mut self,
        request: u32,
        flags: u32,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) {
        send_bytes(&self.0, &packed(request, 1 | flags, body), descriptors);
    }

    /// Sends a request that has an answer, and returns its body.
    pub(crate) fn ask(&mut self, request: FrontendReq, body: &[u8]) -> Vec<u8> {
        self.send(request, 0, body);
        self.reply(request.into()).expect("an answer")
    }

    /// Sends with NEED_REPLY; the acknowledgement, or `None` if the session ended instead.
    pub(crate) fn acknowledged(&mut self, request: FrontendReq, body: &[u8]) -> Option<u64> {
        self.acknowledged_with(request, body, &[])
    }

    pub(crate) fn acknowledged_with(
        &mut self,
        request: FrontendReq,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Option<u64> {
        self.send_with(request.into(), NEED_REPLY, body, descriptors);
        let body = self.reply(request.into())?;
        Some(u64::from_ne_bytes(body.try_into().expect("an u64")))
    }

    /// The next reply's body; `None` at the end of the session.
    pub(crate) fn reply(&mut self, request: u32) -> Option<Vec<u8>> {
        let mut head = [0; 12];
        match self.0.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("neither answer nor end")
            }
            Err(_) => return None,
        }
        let [code, flags, size] = [0, 4, 8]
            .map(|at| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes")));
        assert_eq!(
            (code, flags),
            (request, 0x5),
            "a reply, of version 1, to this request"
        );
        let mut body = vec![0; size as usize];
        self.0.read_exact(&mut body).expect("a whole reply");
        Some(body)
    }

    /// Waits until the daemon closes the connection, without a further word.
    pub(crate) fn closed(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "said {rest:?} first"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    /// Sends a message one byte at a time.
    pub(crate) fn dribble(
        &mut self,
        request: FrontendReq,
        flags: u32,
        body: &[u8],
        pause: Duration,
    ) {
        for byte in packed(request.into(), 1 | flags, body) {
            self.0.write_all(&[byte]).expect("the daemon reads");
            std::thread::sleep(pause);
        }
    }
}

/// Header and body.
pub(crate) fn packed(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).expect("small");
    let head = [request, flags, size].map(u32::to_ne_bytes).concat();
    [head.as_slice(), body].concat()
}

/// Bytes and descriptors in one piece.
pub(crate) fn send_bytes(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    // The daemon may have closed already: that is for the test to see on its other calls.
    let _ = sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
}

/// The body of the messages that carry a ring and a number.
pub(crate) fn state(ring: u32, value: u32) -> Vec<u8> {
    [ring, value].map(u32::to_ne_bytes).concat()
}

/// The body of SET_VRING_ADDR.
pub(crate) fn addresses(ring: usize) -> Vec<u8> {
    let [desc, avail, used] = areas(ring).map(|offset| USER + offset);
    let head = state(u32::try_from(ring).expect("few"), 0);
    let rest = [desc, used, avail, 0].map(u64::to_ne_bytes).concat();
    [head, rest].concat()
}

/// The body of SET_MEM_TABLE.
pub(crate) fn table(regions: &[(u64, u64)]) -> Vec<u8> {
    let mut body = (regions.len() as u64).to_ne_bytes().to_vec();
    for (start, size) in regions {
        body.extend(
            [*start, *size, USER + start, 0]
                .map(u64::to_ne_bytes)
                .concat(),
        );
    }
    body
}

/// Borrows, to pass along.
pub(crate) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
