//! Bringing things in flight to an end.

use std::time::{Duration, Instant};

use super::{Port, PortError};
use crate::poll::Polls;

/// How long a closing port waits for the kernel. Everything in flight is non-blocking or cancelled, so that only a
/// starved SQPOLL thread can take long.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A closing port looks at the clock this often.
const CLOSE_STEP: Duration = Duration::from_millis(50);

impl Port {
    /// Waits until no write and no read is in flight, whatever else there is to be taken meanwhile: an
    /// [`enter`](Self::enter) would return at once for that, and a loop around it spin.
    pub fn finish(&mut self) -> Result<(), PortError> {
        while self.frames_in_flight() > 0 {
            self.step(self.prompt(), None)?;
        }
        Ok(())
    }

    /// Removes a poll, waits for its last completion and closes its descriptor. What else completes is taken in.
    pub(super) fn disarm(&mut self, place: usize) -> Result<(), PortError> {
        loop {
            self.cancel(place)?;
            if !self.polls.is_armed(place) {
                self.polls.close(place);
                return Ok(());
            }
            self.step(1, None)?;
        }
    }

    fn cancel(&mut self, place: usize) -> Result<(), PortError> {
        let Some(entry) = self.polls.cancel(place) else {
            return Ok(());
        };
        // SAFETY: a cancel points to no memory.
        unsafe { self.ring.push_one(entry) }.map_err(|source| PortError::Enter { source })
    }

    /// Waits until no read is in flight.
    pub(super) fn finish_reads(&mut self) -> Result<(), PortError> {
        while self.rx.in_flight() > 0 {
            self.step(1, None)?;
        }
        self.rx.take_batch();
        Ok(())
    }

    /// Ends everything in flight; `false` when the kernel did not let go in time.
    fn quiesce(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < CLOSE_LIMIT {
            for place in Polls::places() {
                if self.cancel(place).is_err() {
                    return false;
                }
            }
            if self.prompt() == 0 && !Polls::places().any(|place| self.polls.is_armed(place)) {
                return true;
            }
            if self.step(1, Some(CLOSE_STEP)).is_err() {
                return false;
            }
        }
        false
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.quiesce() {
            self.tx.leak();
            self.rx.leak();
            self.guest.leak();
            return;
        }
        self.ring.unregister();
    }
}
