//! How far a receiver has got, so that its sender does not run away and overflow a queue on the way.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};

/// A count that one thread advances and another waits for.
#[derive(Debug, Default)]
pub struct Window {
    received: Mutex<u64>,
    advanced: Condvar,
}

impl Window {
    /// So many more were received.
    pub fn advance(&self, count: u64) {
        *self.received.lock().unwrap_or_else(PoisonError::into_inner) += count;
        self.advanced.notify_one();
    }

    /// Waits until no more than `room` of `sent` are on their way.
    ///
    /// # Errors
    /// When nothing moved far enough in ten seconds.
    pub fn wait(&self, sent: u64, room: u64) -> Result<()> {
        let limit = Duration::from_secs(10);
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |received: &mut u64| sent - *received > room;
        let (received, waited) = self
            .advanced
            .wait_timeout_while(received, limit, full)
            .unwrap_or_else(PoisonError::into_inner);
        ensure!(
            !waited.timed_out(),
            "of {sent} frames sent only {received} were received, and no more came for {limit:?}"
        );
        Ok(())
    }
}
