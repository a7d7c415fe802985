//! The io_uring of a port: set-up, pushing, and the one system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{Builder, CompletionQueue, IoUring, SubmissionQueue, squeue};

use crate::port::PortError;

/// Two batches, all polls, their cancels and all calls fit several times over, so that a push finds room.
const SQ_ENTRIES: u32 = 256;

/// Kicks can come faster than we look: room for a few hundred behind two whole batches.
const CQ_ENTRIES: u32 = 1024;

/// Memory of a ring: 64 bytes an entry, 16 a completion, 4 for the array between them, and the rings' heads.
const RING_KIB: u32 = (SQ_ENTRIES * (64 + 4) + CQ_ENTRIES * 16) / 1024 + 4;

/// Who carries out the entries.
#[derive(Debug, Default)]
pub enum PollMode {
    /// The worker itself, within its system call.
    #[default]
    Inline,
    /// A kernel thread that watches the submission queue.
    Sqpoll {
        /// The CPU the thread is bound to; without one it inherits the affinity of its creator.
        cpu: Option<u32>,
        /// A ring to share the thread with ([`Port::ring_fd`](crate::Port::ring_fd)).
        attach: Option<OwnedFd>,
        /// How long the thread looks before it sleeps. The kernel counts it in jiffies.
        idle: Duration,
    },
}

/// What the set-up amounted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG.
    Deferred,
    /// No flag: for a kernel that refuses those above.
    Basic,
    Sqpoll,
}

/// How a submission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    Entered,
    TimedOut,
    /// EBUSY or EAGAIN: nothing was taken; reap, then try again.
    Stalled,
}

/// Places in the submission queue, got from [`Ring::room`].
pub(crate) struct Room<'a>(SubmissionQueue<'a>);

impl Room<'_> {
    /// Fills one place. More than were asked for are not taken.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: who called `Ring::room` promised it for every entry that comes here.
        let pushed = unsafe { self.0.push(entry) };
        debug_assert!(pushed.is_ok(), "more entries than were asked for");
    }
}

/// The ring, what it became, and what it cost.
pub(crate) struct Ring {
    ring: IoUring,
    flavour: Flavour,
    pub(crate) enters: u64,
    pub(crate) wakeups: u64,
    pub(crate) overflows: u64,
}

impl Ring {
    pub(crate) fn new(mode: PollMode) -> Result<Self, PortError> {
        let (ring, flavour) = match mode {
            PollMode::Inline => inline()?,
            PollMode::Sqpoll { cpu, attach, idle } => {
                (sqpoll(cpu, attach.as_ref(), idle)?, Flavour::Sqpoll)
            }
        };
        Ok(Self {
            ring,
            flavour,
            enters: 0,
            wakeups: 0,
            overflows: 0,
        })
    }

    pub(crate) const fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub(crate) fn is_sqpoll(&self) -> bool {
        self.flavour == Flavour::Sqpoll
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as `self.ring`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    pub(crate) fn register_file(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_files(&[fd.as_raw_fd()])
    }

    /// Registers buffers; `false` when RLIMIT_MEMLOCK does not allow it.
    ///
    /// # Safety
    /// The buffers must stay mapped until [`unregister`](Self::unregister) or until the ring is dropped.
    pub(crate) unsafe fn register_buffers(&self, buffers: &[libc::iovec]) -> io::Result<bool> {
        // SAFETY: the caller's promise is the one asked for.
        match unsafe { self.ring.submitter().register_buffers(buffers) } {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets go of files and buffers now: a closed ring does so some time later, and until then the tap is busy.
    pub(crate) fn unregister(&self) {
        let submitter = self.ring.submitter();
        let _ = submitter.unregister_buffers();
        let _ = submitter.unregister_files();
    }

    /// Pushes `count` entries under one update of the tail.
    ///
    /// # Safety
    /// What the entries point to must stay valid, and unwritten where the kernel reads, until their completions.
    #[inline]
    pub(crate) unsafe fn push(
        &mut self,
        count: usize,
        entries: impl Iterator<Item = squeue::Entry>,
    ) -> io::Result<()> {
        // SAFETY: the caller's promise is the one asked for.
        let mut room = unsafe { self.room(count) }?;
        entries.take(count).for_each(|entry| room.push(&entry));
        Ok(())
    }

    /// Room for `count` entries, which the kernel gets to see together when it is dropped.
    ///
    /// The data path pushes each entry where it builds it: one that travels through an iterator is put together on the
    /// stack first, and the copy from there waits for the stores (8 ns a frame).
    ///
    /// # Safety
    /// As for [`push`](Self::push), for every entry that is pushed to it.
    #[inline]
    pub(crate) unsafe fn room(&mut self, count: usize) -> io::Result<Room<'_>> {
        if !self.has_room(count) {
            self.make_room(count)?;
        }
        Ok(Room(self.ring.submission()))
    }

    /// Waits until `entries` more fit. Not reached with the present sizes: all that can be pushed at once fits.
    #[cold]
    fn make_room(&mut self, entries: usize) -> io::Result<()> {
        while !self.has_room(entries) {
            let submitter = self.ring.submitter();
            if self.flavour == Flavour::Sqpoll {
                submitter.squeue_wait()
            } else {
                submitter.submit()
            }?;
        }
        Ok(())
    }

    #[inline]
    fn has_room(&mut self, entries: usize) -> bool {
        let queue = self.ring.submission();
        queue.capacity() - queue.len() >= entries
    }

    /// Whether an enter would do anything: entries to take, deferred work to run, completions parked by the kernel.
    #[inline]
    pub(crate) fn needs_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Whether entries have not been taken by the kernel yet.
    #[inline]
    pub(crate) fn has_unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether there is something to reap, or something that an enter would make so.
    ///
    /// Both queues are forgotten, not dropped: a drop stores the tail or the head, and a thread that spins on this would
    /// keep taking the cache line from the SQPOLL thread that reads it.
    #[inline]
    pub(crate) fn has_news(&mut self) -> bool {
        let queue = self.ring.submission();
        let flagged = queue.taskrun() || queue.cq_overflow();
        std::mem::forget(queue);
        let completions = self.ring.completion();
        let waiting = !completions.is_empty();
        std::mem::forget(completions);
        flagged || waiting
    }

    /// Pushes one entry.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    pub(crate) unsafe fn push_one(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.push(1, std::iter::once(entry)) }
    }

    /// Hands over what was pushed and waits for `want` completions, at most for `limit`.
    ///
    /// The system call carries GETEVENTS when it waits or when the ring's flags ask for it, for deferred task work
    /// runs in no other enter. With SQPOLL and nothing to wait for there is no system call unless the thread sleeps.
    #[inline]
    pub(crate) fn submit(&mut self, want: usize, limit: Option<Duration>) -> io::Result<Submitted> {
        self.count(want);
        let result = match limit {
            None => self.ring.submit_and_wait(want),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring
                    .submitter()
                    .submit_with_args(want, &SubmitArgs::new().timespec(&limit))
            }
        };
        let Err(error) = result else {
            return Ok(Submitted::Entered);
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(Submitted::Entered),
            Some(libc::ETIME) => Ok(Submitted::TimedOut),
            Some(libc::EAGAIN | libc::EBUSY) => Ok(Submitted::Stalled),
            _ => Err(error),
        }
    }

    #[inline]
    fn count(&mut self, want: usize) {
        let sqpoll = self.is_sqpoll();
        let queue = self.ring.submission();
        let overflow = queue.cq_overflow();
        let asleep = sqpoll && queue.need_wakeup();
        let enters = !sqpoll || asleep || want > 0 || overflow || queue.taskrun();
        drop(queue);
        self.overflows += u64::from(overflow);
        self.wakeups += u64::from(asleep);
        self.enters += u64::from(enters);
    }

    #[inline]
    pub(crate) fn completions(&mut self) -> CompletionQueue<'_> {
        self.ring.completion()
    }
}

fn builder() -> Builder {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(CQ_ENTRIES).dontfork();
    builder
}

/// The fastest flavour this kernel takes.
fn inline() -> Result<(IoUring, Flavour), PortError> {
    let mut deferred = builder();
    deferred
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all();
    match deferred.build(SQ_ENTRIES) {
        Ok(ring) => Ok((ring, Flavour::Deferred)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let ring = builder()
                .build(SQ_ENTRIES)
                .map_err(|source| refused(source, |source| PortError::Setup { source }))?;
            Ok((ring, Flavour::Basic))
        }
        Err(source) => Err(refused(source, |source| PortError::Setup { source })),
    }
}

/// A limit of this process, or else what `other` makes of it.
fn refused(source: io::Error, other: impl FnOnce(io::Error) -> PortError) -> PortError {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => PortError::Locked {
            kib: RING_KIB,
            source,
        },
        Some(libc::EMFILE | libc::ENFILE) => PortError::Descriptors { source },
        _ => other(source),
    }
}

/// Never falls back: who asked for SQPOLL is told why there is none.
fn sqpoll(
    cpu: Option<u32>,
    attach: Option<&OwnedFd>,
    idle: Duration,
) -> Result<IoUring, PortError> {
    let mut builder = builder();
    let idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
    builder
        .setup_single_issuer()
        .setup_submit_all()
        .setup_sqpoll(idle.max(1));
    if let Some(cpu) = cpu {
        builder.setup_sqpoll_cpu(cpu);
    }
    if let Some(attach) = attach {
        builder.setup_attach_wq(attach.as_fd().as_raw_fd());
    }
    builder
        .build(SQ_ENTRIES)
        .map_err(|source| refused(source, |source| PortError::Sqpoll { source }))
}

#[cfg(test)]
mod tests {
    use io_uring::opcode;

    use super::*;

    #[test]
    fn completions_beyond_the_queue_are_parked_and_all_delivered() {
        let mut ring = Ring::new(PollMode::Inline).unwrap();
        let total = 2 * CQ_ENTRIES as usize;
        let mut seen = 0;
        for _ in 0..total {
            // SAFETY: a NOP points to nothing. (The queue holds fewer than these: `push` makes room by submitting.)
            unsafe { ring.push_one(opcode::Nop::new().build()) }.unwrap();
        }
        while seen < total {
            assert!(
                ring.needs_enter() || ring.has_news(),
                "{seen} seen and nothing to enter for"
            );
            ring.submit(0, None).unwrap();
            seen += ring.completions().count();
        }
        assert_eq!(seen, total);
        assert!(ring.overflows > 0);
        assert!(!ring.needs_enter());
    }

    #[test]
    fn a_wait_ends_with_its_time() {
        let mut ring = Ring::new(PollMode::Inline).unwrap();
        let ended = ring.submit(1, Some(Duration::from_millis(2))).unwrap();
        assert_eq!(ended, Submitted::TimedOut);
    }
}
