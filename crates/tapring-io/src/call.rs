//! Calls: telling the driver that there are used elements, by an eventfd.
//!
//! A call is a WRITE entry of the next enter, behind the index store that it announces, so that it costs no system
//! call of its own. That is only for eventfds that are `O_NONBLOCK`: `eventfd_write` has no non-blocking variant, so
//! for others the kernel hands the write to an io-wq thread (`loop_rw_iter`). Those are written with poll(2) and
//! write(2) at once. `O_NONBLOCK` belongs to the file, which the frontend shares, so we never change it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::token::{Kind, Token};

/// What is written: one event. A static, so that it outlives every write of it.
static ONE: u64 = 1;

/// Calls on their way at once; a further one is written directly.
const SLOTS: usize = 16;

/// A descriptor that was to be an eventfd is something else.
#[derive(Debug, thiserror::Error)]
#[error("the descriptor is `{}`, not an eventfd: the frontend must send one made by eventfd(2)", found.display())]
pub struct NotEventfd {
    found: PathBuf,
}

/// Checks that `fd` is an eventfd, as far as /proc can tell; without /proc every descriptor passes.
///
/// Other files are refused because they would make a multishot poll spin or a write block.
pub fn require_eventfd(fd: BorrowedFd<'_>) -> Result<(), NotEventfd> {
    match fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
        Ok(found) if found.as_os_str() != "anon_inode:[eventfd]" => Err(NotEventfd { found }),
        _ => Ok(()),
    }
}

/// A virtqueue's call eventfd.
#[derive(Clone, Debug)]
pub struct CallFd {
    /// Shared with the writes in flight: the number must not be reused before they are done.
    fd: Arc<OwnedFd>,
    nonblocking: bool,
}

impl CallFd {
    /// Takes the eventfd a frontend sent with SET_VRING_CALL.
    pub fn new(fd: OwnedFd) -> Result<Self, NotEventfd> {
        require_eventfd(fd.as_fd())?;
        let nonblocking = fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        Ok(Self {
            fd: Arc::new(fd),
            nonblocking,
        })
    }

    /// Signals now, without the ring and without blocking.
    ///
    /// When the counter is full the event is already there to be seen, so that nothing is lost by not writing. (A
    /// frontend that fills a blocking eventfd between the two calls stops its own worker, and nobody else's.)
    pub fn signal(&self) {
        signal(&self.fd);
    }
}

fn signal(fd: &OwnedFd) {
    let mut ready = [PollFd::new(fd, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut ready, Some(&now)).is_ok_and(|count| count == 1) {
        let _ = rustix::io::write(fd, &ONE.to_ne_bytes());
    }
}

/// The calls in flight.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    slots: [Option<Arc<OwnedFd>>; SLOTS],
    in_flight: usize,
}

impl Calls {
    /// The entry that signals `call`; `None` when it cannot go through the ring and must be written directly.
    ///
    /// Whoever gets an entry must push it: its slot is taken until [`complete`](Self::complete).
    pub(crate) fn entry(&mut self, call: &CallFd) -> Option<squeue::Entry> {
        if !call.nonblocking {
            return None;
        }
        let index = self.slots.iter().position(Option::is_none)?;
        let token = Token::new(Kind::Call, u8::try_from(index).ok()?, 0);
        self.slots[index] = Some(Arc::clone(&call.fd));
        self.in_flight += 1;
        // RWF_NOWAIT: a full counter, or a frontend that cleared O_NONBLOCK meanwhile, is then an EAGAIN here and
        // neither a pending request nor an io-wq thread.
        let entry = opcode::Write::new(types::Fd(call.fd.as_raw_fd()), (&raw const ONE).cast(), 8);
        Some(
            entry
                .rw_flags(libc::RWF_NOWAIT)
                .build()
                .user_data(token.raw()),
        )
    }

    /// The write in `index` is done; one that failed is made up for by a direct one.
    pub(crate) fn complete(&mut self, index: usize, result: i32) {
        let Some(fd) = self.slots.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.in_flight -= 1;
        if result < 0 {
            signal(&fd);
        }
    }

    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn a_blocking_eventfd_is_signalled_directly() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        let call = CallFd::new(fd.try_clone().unwrap()).unwrap();

        assert!(Calls::default().entry(&call).is_none());
        call.signal();

        assert_eq!(count(&fd), 1);
    }

    #[test]
    fn a_full_blocking_eventfd_does_not_block_us() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();

        CallFd::new(fd.try_clone().unwrap()).unwrap().signal();

        assert_eq!(count(&fd), u64::MAX - 1);
    }

    #[test]
    fn slots_come_back_and_a_failed_write_is_made_up_for() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let call = CallFd::new(fd.try_clone().unwrap()).unwrap();
        let mut calls = Calls::default();
        for _ in 0..SLOTS {
            assert!(calls.entry(&call).is_some());
        }
        assert!(calls.entry(&call).is_none());

        calls.complete(3, -libc::EAGAIN);
        calls.complete(3, -libc::EAGAIN);

        assert_eq!(calls.in_flight(), SLOTS - 1);
        assert_eq!(count(&fd), 1);
        assert!(calls.entry(&call).is_some());
    }

    #[test]
    fn something_else_is_refused_by_name() {
        let file = fs::File::open("/dev/null").unwrap();
        let error = CallFd::new(file.into()).unwrap_err();
        assert!(error.to_string().contains("/dev/null"), "{error}");
    }
}
