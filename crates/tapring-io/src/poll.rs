//! What the ring watches: the command and kick eventfds, and the tap's readiness.
//!
//! Theory of operation. Eventfds are watched by a multishot POLL and never read, which makes it edge-like: each write
//! is a completion (one-shot on an eventfd that nobody reads would complete again at once). The kernel may end a
//! multishot poll at any time; a completion without `F_MORE` says so, and the poll is armed again with the next enter.
//!
//! The tap is watched by one-shot polls, armed on request only: a multishot poll for frames would fire for every one.
//! Beside them a multishot poll for room can be switched on, for those who want to measure what it costs. Nobody can rely
//! on it: a tap wakes those who wait for room only after somebody polled it while it had none (SOCKWQ_ASYNC_NOSPACE,
//! tun_chr_poll), and a write that met EAGAIN is no poll. The one-shot is armed after an EAGAIN all the same: its arming is
//! such a poll, and completes at once when room came meanwhile.
//!
//! ```text
//!              install / request           pushed
//!     Idle  ----------------------> Wanted ------> Armed(generation)
//!      ^                              ^                 |
//!      |  one-shot done, or cancelled |  F_MORE missing |
//!      +------------------------------+-----------------+
//! ```
//! A descriptor is closed only when its poll is Idle: with SQPOLL the kernel looks its number up later than we push it.
//!
//! What the kernel ends again and again must not make us spin. On a writable tap a poll for room completes as soon as it is
//! armed, so the multishot one stays Idle when its very first completion was its last, until somebody meets an EAGAIN.

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};

use crate::encoding::Encoding;
use crate::token::{Kind, Token};

/// Index of the tap among the registered files.
pub(crate) const TAP_FILE: types::Fixed = types::Fixed(0);

/// Command, two kicks, tap readable, tap writable, tap writable for ever.
const POLLS: usize = 6;

/// Place of the tap's POLLIN.
pub(crate) const READABLE: usize = 3;
/// Place of the tap's POLLOUT.
pub(crate) const WRITABLE: usize = 4;
/// Place of the tap's multishot POLLOUT.
const ALWAYS: usize = 5;

/// An eventfd that wakes the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The control plane has a command.
    Command,
    /// The driver kicked: 0 is the receiveq, 1 the transmitq.
    Kick(u8),
}

impl Watch {
    /// Its place in the table; `None` for a kick that is neither 0 nor 1.
    pub(crate) const fn place(self) -> Option<usize> {
        match self {
            Self::Command => Some(0),
            Self::Kick(0) => Some(1),
            Self::Kick(1) => Some(2),
            Self::Kick(_) => None,
        }
    }
}

/// What happened since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Kicks seen, per queue: 0 is the receiveq, 1 the transmitq.
    pub kicks: [u32; 2],
    /// The command eventfd was written.
    pub command: bool,
    /// The tap has a frame, or had one when it was looked at.
    pub tap_readable: bool,
    /// The tap takes frames again.
    pub tap_writable: bool,
    /// The tap was deleted. Said once; from then on the tap is not polled any more.
    pub tap_gone: bool,
}

impl Events {
    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Wanted,
    Armed,
}

#[derive(Debug, Default)]
struct Poll {
    state: State,
    generation: u32,
    /// Being removed: not armed again when it ends.
    closing: bool,
    /// A cancel for it is on its way.
    cancelling: bool,
    /// Nothing came from it since it was armed.
    fresh: bool,
    /// The eventfd; the tap's is a registered file.
    fd: Option<OwnedFd>,
}

/// All polls of a port.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    table: [Poll; POLLS],
    /// Some poll is Wanted.
    wanted: bool,
    gone: bool,
    /// The multishot POLLOUT is switched on.
    always: bool,
    /// POLLERR is something to be met by the next read or write, and not the end.
    errors_pass: bool,
    events: Events,
    /// Times the tap was armed for frames, ever.
    pub(crate) readable_arms: u64,
    /// Times it was armed for room, ever.
    pub(crate) writable_arms: u64,
}

impl Polls {
    pub(crate) fn new(encoding: Encoding) -> Self {
        Self {
            errors_pass: encoding.is_packet(),
            ..Self::default()
        }
    }

    /// Watches `fd` from the next enter on. The place must be idle.
    pub(crate) fn install(&mut self, place: usize, fd: OwnedFd) {
        debug_assert_eq!(self.table[place].state, State::Idle);
        self.table[place].fd = Some(fd);
        self.want(place);
    }

    /// Asks for a one-shot poll on the tap; nothing while one is armed. A tap that is gone is not polled: who waits for
    /// room hears of it at once and finds out by a write.
    pub(crate) fn request_tap(&mut self, place: usize) {
        if self.gone {
            self.events.tap_writable |= place == WRITABLE;
            return;
        }
        self.want_if_idle(place);
        if place == WRITABLE && self.always {
            self.want_if_idle(ALWAYS);
        }
    }

    /// Switches the multishot poll for room on or off, with the next enter.
    pub(crate) fn set_always(&mut self, on: bool) {
        if on == std::mem::replace(&mut self.always, on) {
            return;
        }
        self.table[ALWAYS].closing = !on;
        if on && !self.gone {
            self.want_if_idle(ALWAYS);
        }
        if !on && self.table[ALWAYS].state == State::Wanted {
            self.table[ALWAYS].state = State::Idle;
        }
        self.wanted |= self.has_to_cancel();
    }

    /// Whether the multishot poll for room was switched off while armed. One cancel at a time: a poll that was armed
    /// again meanwhile has another name than the one on its way.
    fn has_to_cancel(&self) -> bool {
        let poll = &self.table[ALWAYS];
        poll.closing && poll.state == State::Armed && !poll.cancelling
    }

    fn want_if_idle(&mut self, place: usize) {
        if self.table[place].state == State::Idle {
            self.want(place);
        }
    }

    fn want(&mut self, place: usize) {
        self.readable_arms += u64::from(place == READABLE);
        self.writable_arms += u64::from(place == WRITABLE || place == ALWAYS);
        self.table[place].closing = false;
        self.table[place].state = State::Wanted;
        self.wanted = true;
    }

    /// Whether [`next_entry`](Self::next_entry) has something.
    #[inline]
    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// The entry of the next poll to arm, or to switch off. Whoever gets one must push it.
    pub(crate) fn next_entry(&mut self) -> Option<squeue::Entry> {
        let place = self
            .table
            .iter()
            .position(|poll| poll.state == State::Wanted);
        let Some(place) = place else {
            self.wanted = false;
            return self.has_to_cancel().then(|| self.cancel(ALWAYS)).flatten();
        };
        self.table[place].state = State::Armed;
        self.table[place].fresh = true;
        self.table[place].generation = self.table[place].generation.wrapping_add(1);
        Some(self.entry(place).user_data(self.token(place).raw()))
    }

    fn entry(&self, place: usize) -> squeue::Entry {
        let (readable, writable) = (poll_mask(libc::POLLIN), poll_mask(libc::POLLOUT));
        match (&self.table[place].fd, place) {
            (Some(fd), _) => opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), readable).multi(true),
            (None, READABLE) => opcode::PollAdd::new(TAP_FILE, readable),
            (None, _) => opcode::PollAdd::new(TAP_FILE, writable).multi(place == ALWAYS),
        }
        .build()
    }

    #[allow(clippy::cast_possible_truncation)] // POLLS is small
    fn token(&self, place: usize) -> Token {
        Token::new(Kind::Poll, place as u8, self.table[place].generation)
    }

    /// Begins to remove a poll: `Some` is the cancel to push, and [`is_armed`](Self::is_armed) tells when it is done.
    ///
    /// ASYNC_CANCEL, because POLL_REMOVE answers EALREADY, and removes nothing, for a poll that is just firing.
    pub(crate) fn cancel(&mut self, place: usize) -> Option<squeue::Entry> {
        let token = self.token(place);
        let poll = &mut self.table[place];
        poll.closing = true;
        if poll.state == State::Wanted {
            poll.state = State::Idle;
        }
        if poll.state == State::Idle || std::mem::replace(&mut poll.cancelling, true) {
            return None;
        }
        let cancel = Token::new(
            Kind::Cancel,
            token.raw().to_le_bytes()[1],
            token.generation(),
        );
        Some(
            opcode::AsyncCancel::new(token.raw())
                .build()
                .user_data(cancel.raw()),
        )
    }

    /// Whether the kernel may still complete this poll, or the cancel of it.
    pub(crate) const fn is_armed(&self, place: usize) -> bool {
        matches!(self.table[place].state, State::Armed) || self.table[place].cancelling
    }

    /// Closes the descriptor of a poll that is not armed.
    pub(crate) fn close(&mut self, place: usize) {
        debug_assert!(!self.is_armed(place));
        self.table[place].fd = None;
    }

    /// A cancel is answered. Found or not, [`cancel`](Self::cancel) may be asked again while the poll is armed.
    pub(crate) fn handle_cancelled(&mut self, place: usize) {
        if let Some(poll) = self.table.get_mut(place) {
            poll.cancelling = false;
            self.wanted |= self.has_to_cancel();
        }
    }

    /// A poll completed with `result`; `more` when it will do so again.
    pub(crate) fn handle_completion(&mut self, token: Token, result: i32, more: bool) {
        let place = token.index();
        let Some(poll) = self.table.get_mut(place) else {
            return;
        };
        if poll.generation != token.generation() {
            return;
        }
        let fresh = std::mem::replace(&mut poll.fresh, false);
        let closing = poll.closing;
        if !more {
            poll.state = State::Idle;
        }
        let cancelled = result == -libc::ECANCELED;
        let switched_off = closing && place == ALWAYS;
        if !cancelled && !switched_off {
            self.note(place, result);
        }
        if !more && !closing && self.is_armed_again(place, cancelled || !fresh) {
            self.want(place);
        }
    }

    /// Whether a poll that the kernel ended is armed again; `lasted` when it was good for more than one completion.
    const fn is_armed_again(&self, place: usize, lasted: bool) -> bool {
        match place {
            READABLE | WRITABLE => false,
            ALWAYS => lasted && !self.gone,
            _ => true,
        }
    }

    /// An unexpected error counts as an event: looking once too often loses nothing.
    fn note(&mut self, place: usize, result: i32) {
        let error = result > 0 && result & i32::from(libc::POLLERR) != 0 && !self.errors_pass;
        match place {
            0 => self.events.command = true,
            1 | 2 => self.events.kicks[place - 1] += 1,
            // A packet socket's POLLERR is an interface that went down or away, which read and write tell apart.
            // A deleted tap answers POLLERR at once and for ever (tun_chr_poll). The deletion itself may look like a
            // frame (tun_detach_all wakes with EPOLLIN); then the read finds out.
            _ if error => self.note_gone(),
            READABLE => self.events.tap_readable = true,
            _ => self.events.tap_writable = true,
        }
    }

    /// The tap is gone, found out by a poll, a read or a write. Said once.
    pub(crate) const fn note_gone(&mut self) {
        self.events.tap_gone |= !self.gone;
        self.gone = true;
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// All places, for closing down.
    pub(crate) fn places() -> std::ops::Range<usize> {
        0..POLLS
    }
}

fn poll_mask(events: libc::c_short) -> u32 {
    events.unsigned_abs().into()
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod tests;
