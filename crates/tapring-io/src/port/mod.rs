//! The port of one worker: a ring, a tap queue or packet socket, memory for frames, and what is in flight between them.
//!
//! Fields are dropped in their order, and [`Drop`] first brings everything in flight to an end: the ring is closed
//! before the memory goes that its entries point to. If the kernel does not let go, that memory is leaked, which is
//! safe, rather than unmapped, which is not.

mod attach;
mod drain;
mod enter;
mod error;
mod rx;
mod tx;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vm_memory::GuestMemoryMmap;

use crate::call::{CallFd, Calls, require_eventfd};
use crate::encoding::Encoding;
use crate::guest::Guest;
use crate::packet::Room;
use crate::poll::{Events, Polls, READABLE, WRITABLE, Watch};
use crate::ring::{Flavour, PollMode, Ring};
use crate::slots::Slots;
use crate::token::Token;
use crate::tx::TxBatch;
use crate::{HEADER_BYTES, probe, sys};

pub use enter::Wait;
pub use error::PortError;
pub use rx::{Discarded, RxRead};

/// Room for a jumbo frame of 9216 bytes, its header, and the byte that tells a whole frame from a cut one.
const DEFAULT_SLOT_BYTES: usize = 9216 + HEADER_BYTES + 1;

/// Ethernet header and two VLAN tags in front of a packet, in bytes.
const LINK_BYTES: usize = 14 + 2 * 4;

/// A packet at its longest, as the kernel puts segments together: GSO_MAX_SIZE of old. (Who raises `gso_max_size` has them
/// cut, and counted.)
const SUPER_MTU: u32 = 65_536;

/// What a tap can deliver at most, with header: a larger slot would be a mistake.
const MAX_SLOT_BYTES: usize = 1 << 18;

/// How a port is made.
#[derive(Debug)]
pub struct PortOptions {
    /// Who carries out the ring's entries.
    pub poll: PollMode,
    /// Bytes of an RX slot: the largest frame, its 12-byte header, and one more (a full slot counts as cut).
    pub slot_bytes: usize,
    /// Read and write with system calls, as on Linux before 6.4, even where the ring could.
    pub force_plain: bool,
}

impl PortOptions {
    /// Slots for the frames of a tap with this MTU: never smaller than the default, for an MTU may be raised later.
    #[must_use]
    pub fn with_mtu(self, mtu: u32) -> Self {
        let frame = usize::try_from(mtu).unwrap_or(MAX_SLOT_BYTES) + LINK_BYTES;
        let slot_bytes = (HEADER_BYTES + frame + 1).clamp(DEFAULT_SLOT_BYTES, MAX_SLOT_BYTES);
        Self { slot_bytes, ..self }
    }

    /// Slots for what a packet socket receives, which is super-frames whatever the MTU. There are fewer then.
    #[must_use]
    pub fn with_super_frames(self) -> Self {
        self.with_mtu(SUPER_MTU)
    }
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            poll: PollMode::Inline,
            slot_bytes: DEFAULT_SLOT_BYTES,
            force_plain: false,
        }
    }
}

/// What a port turned out to be, for one line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortDescription {
    /// On a packet socket, not on a tap.
    pub packet_socket: bool,
    /// `inline`, `inline without deferred task work` or `sqpoll`.
    pub mode: &'static str,
    /// Frames go through the ring; otherwise by read(2) and write(2), because the tap knows no RWF_NOWAIT (or, because the
    /// ring does not receive from packet sockets).
    pub nowait: bool,
    /// The frame buffers are registered; otherwise RLIMIT_MEMLOCK was too low, or it is a packet socket, which has no use
    /// for that.
    pub registered: bool,
    /// The tap has a finite send buffer, which costs 15 %. That of a packet socket always is.
    pub finite_send_buffer: bool,
}

impl fmt::Display for PortDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode)?;
        f.write_str(match (self.nowait, self.packet_socket) {
            (true, _) => ", frames through the ring",
            (false, false) => ", frames by read(2) and write(2)",
            (false, true) => ", frames by recvmsg(2) and send(2)",
        })?;
        f.write_str(
            match (self.nowait && !self.packet_socket, self.registered) {
                (false, _) => "",
                (true, true) => ", registered buffers",
                (true, false) => ", buffers not registered (raise RLIMIT_MEMLOCK)",
            },
        )?;
        f.write_str(match (self.packet_socket, self.finite_send_buffer) {
            (false, true) => ", finite tap send buffer",
            _ => "",
        })
    }
}

/// Counts since the port was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// System calls into the ring.
    pub ring_enters: u64,
    /// Of these, to wake the SQPOLL thread.
    pub sqpoll_wakeups: u64,
    /// One-shot polls for frames armed on the tap.
    pub readable_arms: u64,
    /// Polls for room armed on the tap, one-shot or multishot.
    pub writable_arms: u64,
    /// Enters that found completions parked because the completion queue was full.
    pub cq_overflows: u64,
}

/// One worker's way to the tap, or to the interface of a packet socket, and to its eventfds. Made, used and dropped on
/// one thread.
pub struct Port {
    // The order matters: see the head of this file.
    ring: Ring,
    tx: TxBatch,
    rx: Slots,
    guest: Guest,
    polls: Polls,
    calls: Calls,
    /// A tap's queue, or the packet socket in its place.
    tap: OwnedFd,
    encoding: Encoding,
    /// Of a packet socket.
    room: Room,
    attached: bool,
    nowait: bool,
    registered: bool,
    finite: bool,
    seen: PortStats,
    stalls: u32,
}

impl Port {
    /// Makes a port of a tap queue or of a packet socket. What the kernel can do is found out here: see
    /// [`describe`](Self::describe).
    pub fn new(tap: OwnedFd, options: PortOptions) -> Result<Self, PortError> {
        let slot_bytes = options.slot_bytes;
        if slot_bytes <= HEADER_BYTES || slot_bytes > MAX_SLOT_BYTES {
            return Err(PortError::SlotBytes { slot_bytes });
        }
        let encoding = Encoding::of(tap.as_fd())?;
        set_nonblocking(&tap).map_err(|source| PortError::NotATap { source })?;
        let finite = encoding.is_packet()
            || sys::send_buffer(tap.as_fd()).is_ok_and(|bytes| bytes.is_some());
        let memory = |source| PortError::Memory { source };
        let bytes = u32::try_from(slot_bytes).map_err(|_| PortError::SlotBytes { slot_bytes })?;
        let mut port = Self {
            ring: Ring::new(options.poll)?,
            tx: TxBatch::new(encoding, finite).map_err(memory)?,
            rx: Slots::new(encoding, bytes).map_err(memory)?,
            guest: Guest::default(),
            polls: Polls::new(encoding),
            calls: Calls::default(),
            room: Room::of(tap.as_fd(), encoding),
            tap,
            encoding,
            attached: true,
            nowait: false,
            registered: false,
            finite,
            seen: PortStats::default(),
            stalls: 0,
        };
        port.register(options.force_plain)?;
        Ok(port)
    }

    fn register(&mut self, force_plain: bool) -> Result<(), PortError> {
        let failed = |source| PortError::Register { source };
        self.ring.register_file(self.tap.as_fd()).map_err(failed)?;
        self.nowait = !force_plain && self.takes_nowait().map_err(failed)?;
        if !self.nowait || self.encoding.is_packet() {
            return Ok(());
        }
        let buffers = [
            self.tx.arena().mapping().as_iovec(),
            self.rx.mapping().as_iovec(),
        ];
        // SAFETY: both mappings live in `self` behind the ring and are dropped after it.
        self.registered = unsafe { self.ring.register_buffers(&buffers) }.map_err(failed)?;
        self.tx.set_registered(self.registered);
        Ok(())
    }

    fn takes_nowait(&mut self) -> io::Result<bool> {
        let scratch = self.rx.mapping().address(0, probe::SCRATCH_BYTES);
        // SAFETY: no read is in flight and no frame held, so that nobody else looks at the slots; they live in `self`
        // behind the ring.
        unsafe { probe::takes_nowait(&mut self.ring, self.encoding, scratch) }
    }

    /// Another descriptor of the ring, for a further port to share the SQPOLL thread.
    pub fn ring_fd(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }

    /// What was found out about kernel, limits and tap.
    pub fn describe(&self) -> PortDescription {
        PortDescription {
            packet_socket: self.encoding.is_packet(),
            mode: match self.ring.flavour() {
                Flavour::Deferred => "inline",
                Flavour::Basic => "inline without deferred task work",
                Flavour::Sqpoll => "sqpoll",
            },
            nowait: self.nowait,
            registered: self.registered,
            finite_send_buffer: self.finite,
        }
    }

    /// Watches an eventfd from the next enter on, in place of the one watched before. An eventfd that was already
    /// written counts as one event.
    ///
    /// The old one is closed when its poll has completed for the last time. Frames in flight are waited for no more
    /// than that takes.
    pub fn watch(&mut self, what: Watch, fd: OwnedFd) -> Result<(), PortError> {
        let place = what.place().ok_or(PortError::NoSuchWatch { what })?;
        require_eventfd(fd.as_fd())?;
        self.disarm(place)?;
        self.polls.install(place, fd);
        Ok(())
    }

    /// Stops watching and closes the eventfd.
    pub fn unwatch(&mut self, what: Watch) {
        if let Some(place) = what.place() {
            // An enter that fails now fails in the next `enter` too, where it can be said.
            let _ = self.disarm(place);
        }
    }

    /// Calls the driver: with the next enter, or at once when the eventfd does not allow that ([`CallFd`]).
    pub fn call(&mut self, call: &CallFd) {
        let Some(entry) = self.calls.entry(call) else {
            return call.signal();
        };
        let token = Token::from_raw(entry.get_user_data());
        // SAFETY: the entry reads a static, and `calls` keeps its descriptor open until the completion.
        if unsafe { self.ring.push_one(entry) }.is_err() {
            self.calls.complete(token.index(), -libc::EBUSY);
        }
    }

    /// Asks for one event when the tap takes frames, at once if it does now; nothing when that is already asked for.
    pub fn poll_writable(&mut self) {
        self.polls.request_tap(WRITABLE);
    }

    /// Asks for an event whenever the tap begins to take frames again, from the next enter on and until switched off.
    ///
    /// It says so once when it is armed on a tap with room, which is below half of its send buffer; then each time that
    /// room comes after a poll of either kind was armed while there was none. A tap without a finite send buffer has
    /// room always. A write that meets a full tap is no poll, so whoever waits needs
    /// [`poll_writable`](Self::poll_writable) all the same. Nothing comes of it once the tap is deleted.
    pub fn always_poll_writable(&mut self, on: bool) {
        self.polls.set_always(on);
    }

    /// Asks for one event when the tap has a frame; nothing when that is already asked for.
    pub fn poll_readable(&mut self) {
        self.polls.request_tap(READABLE);
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Events {
        self.polls.take_events()
    }

    /// Whether an [`enter`](Self::enter) without waiting would bring something, or has: completions, deferred work, events
    /// or results not taken yet, and polls that have to be armed for there to be any.
    ///
    /// A few loads, no store and no system call, for a busy poll: whoever has entered once may spin on this, in every
    /// mode, and misses nothing that a sleep would have seen.
    #[inline]
    pub fn has_news(&mut self) -> bool {
        self.ring.has_news() || self.has_results() || self.polls.is_wanted()
    }

    /// The guest memory that [`tx_gather`](Self::tx_gather) may point into. Refused while a batch points into the old.
    pub fn set_memory(&mut self, memory: Option<Arc<GuestMemoryMmap>>) -> Result<(), PortError> {
        if self.tx.points_into_guest() {
            return Err(PortError::MemoryBusy);
        }
        self.guest = Guest::new(memory);
        Ok(())
    }

    /// Counts since the last call.
    pub fn stats(&mut self) -> PortStats {
        let now = PortStats {
            ring_enters: self.ring.enters,
            sqpoll_wakeups: self.ring.wakeups,
            readable_arms: self.polls.readable_arms,
            writable_arms: self.polls.writable_arms,
            cq_overflows: self.ring.overflows,
        };
        let before = std::mem::replace(&mut self.seen, now);
        PortStats {
            ring_enters: now.ring_enters - before.ring_enters,
            sqpoll_wakeups: now.sqpoll_wakeups - before.sqpoll_wakeups,
            readable_arms: now.readable_arms - before.readable_arms,
            writable_arms: now.writable_arms - before.writable_arms,
            cq_overflows: now.cq_overflows - before.cq_overflows,
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("tap", &self.tap)
            .field("description", &self.describe())
            .field("tx_in_flight", &self.tx.in_flight())
            .field("rx_in_flight", &self.rx.in_flight())
            .finish_non_exhaustive()
    }
}

/// A blocking tap would block a plain write, and on Linux before 6.4 send ring writes to io-wq, out of order.
fn set_nonblocking(tap: &OwnedFd) -> io::Result<()> {
    let flags = fcntl_getfl(tap)?;
    Ok(fcntl_setfl(tap, flags | OFlags::NONBLOCK)?)
}
