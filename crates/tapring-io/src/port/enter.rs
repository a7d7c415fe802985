//! The one system call: submit what was pushed, run deferred work, reap.
//!
//! Inline, everything but a poll completes within the enter that submits it, so that `enter(No)` leaves no frame in
//! flight. Two things make that take another round: a submit that was cut short, and linked entries, which the kernel
//! runs as deferred task work, that is, only in an enter that waits (GETEVENTS).
//!
//! A sleep ends when something happened that the worker can act on: an event, or a batch that is whole. The writes of
//! calls are no such thing; their completions are counted into what the kernel is asked to wait for, so that a turn
//! which ends with a call and a sleep is one system call and not two.

use std::time::{Duration, Instant};

use io_uring::cqueue;

use super::{Port, PortError};
use crate::ring::Submitted;
use crate::token::{Kind, Token};

/// Submissions in a row that the kernel may refuse for want of memory before it is an error.
const MAX_STALLS: u32 = 10_000;

/// A longer sleep than this is not asked of the kernel: 34 years.
const LONGEST_WAIT: Duration = Duration::from_secs(1 << 30);

/// How long an enter may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until something happens.
    Forever,
    /// Until something happens, but no longer than this. That the time is over is no error.
    For(Duration),
}

impl Port {
    /// Submits all that was pushed, runs the ring's deferred work and takes in all completions.
    ///
    /// Without waiting this is no system call when there is nothing to do. A wait ends with an event, or when a batch
    /// in flight is whole; it does not begin while events, outcomes or a batch of reads are there to be taken.
    pub fn enter(&mut self, wait: Wait) -> Result<(), PortError> {
        match wait {
            _ if self.has_results() => self.flush(),
            Wait::No => self.flush(),
            Wait::Forever => self.sleep(None),
            Wait::For(limit) => self.sleep(Some(limit.min(LONGEST_WAIT))),
        }
    }

    /// Whether there is something for the worker to take.
    #[inline]
    pub(super) fn has_results(&self) -> bool {
        self.polls.has_events() || self.tx.is_done() || self.rx.is_done()
    }

    /// Submits and reaps without waiting for anything that depends on others.
    fn flush(&mut self) -> Result<(), PortError> {
        self.arm()?;
        if !self.ring.needs_enter() {
            self.reap();
            return Ok(());
        }
        self.step(self.prompt_if_linked(), None)?;
        while !self.ring.is_sqpoll() && (self.frames_in_flight() > 0 || self.ring.has_unsubmitted())
        {
            self.step(self.prompt(), None)?;
        }
        Ok(())
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), PortError> {
        let deadline = limit.map(|limit| (Instant::now(), limit));
        loop {
            self.arm()?;
            let want = self.prompt() + usize::from(self.frames_in_flight() == 0);
            let left = deadline.map(|(start, limit)| limit.saturating_sub(start.elapsed()));
            let submitted = self.step(want, left)?;
            if self.has_results()
                || submitted == Submitted::TimedOut
                || left == Some(Duration::ZERO)
            {
                return Ok(());
            }
        }
    }

    /// One submit and what came of it.
    pub(super) fn step(
        &mut self,
        want: usize,
        limit: Option<Duration>,
    ) -> Result<Submitted, PortError> {
        let submitted = self
            .ring
            .submit(want, limit)
            .map_err(|source| PortError::Enter { source })?;
        self.reap();
        if submitted == Submitted::Stalled {
            self.stalled()?;
        } else {
            self.stalls = 0;
        }
        Ok(submitted)
    }

    /// The kernel had no memory for requests, or completions are parked. Reaping helps the second, waiting the first.
    #[cold]
    fn stalled(&mut self) -> Result<(), PortError> {
        self.stalls += 1;
        if self.stalls > MAX_STALLS {
            let source = std::io::ErrorKind::OutOfMemory.into();
            return Err(PortError::Enter { source });
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Takes in all completions there are.
    pub(super) fn reap(&mut self) {
        let Self {
            ring,
            tx,
            rx,
            polls,
            calls,
            ..
        } = self;
        for cqe in ring.completions() {
            let token = Token::from_raw(cqe.user_data());
            match token.kind() {
                Some(Kind::Tx) => tx.complete(token, cqe.result()),
                Some(Kind::Rx) => rx.complete(token, cqe.result()),
                Some(Kind::Poll) => {
                    polls.handle_completion(token, cqe.result(), cqueue::more(cqe.flags()));
                }
                Some(Kind::Call) => calls.complete(token.index(), cqe.result()),
                Some(Kind::Cancel) => polls.handle_cancelled(token.index()),
                Some(Kind::Probe) | None => {}
            }
        }
        self.note_tx_done();
        if self.tx.take_resubmission() {
            self.push_writes();
        }
    }

    /// Pushes the polls that are to be armed.
    #[inline]
    fn arm(&mut self) -> Result<(), PortError> {
        if !self.polls.is_wanted() {
            return Ok(());
        }
        while let Some(entry) = self.polls.next_entry() {
            // SAFETY: a poll points to no memory, and its descriptor stays open until its last completion.
            unsafe { self.ring.push_one(entry) }.map_err(|source| PortError::Enter { source })?;
        }
        Ok(())
    }

    pub(super) fn frames_in_flight(&self) -> usize {
        self.tx.in_flight() + self.rx.in_flight()
    }

    /// Completions that come without anybody else's doing.
    pub(super) fn prompt(&self) -> usize {
        self.frames_in_flight() + self.calls.in_flight()
    }

    /// What a flush waits for at once: linked entries run in no enter that does not wait.
    fn prompt_if_linked(&self) -> usize {
        let linked = self.tx.is_linked() && self.tx.in_flight() > 0 && !self.ring.is_sqpoll();
        if linked { self.prompt() } else { 0 }
    }
}
