//! A limit on how long the backend may take for an answer.
//!
//! The `vhost` crate's frontend reads its socket without one. While a message is out a thread waits for either its end or the
//! limit; at the limit it shuts the socket down, and the blocked read ends.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Watches one connection.
#[derive(Debug)]
pub(crate) struct Watchdog {
    steps: Sender<Step>,
    bitten: Arc<AtomicBool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Sent,
    Answered,
}

impl Watchdog {
    pub(crate) fn over(stream: UnixStream, limit: Duration) -> io::Result<Self> {
        let (steps, inbox) = channel();
        let bitten = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&bitten);
        let name = "guest-watchdog".to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(move || watch(&inbox, &stream, limit, &flag))?;
        Ok(Self { steps, bitten })
    }

    /// Runs one exchange under the limit.
    pub(crate) fn during<T>(&self, exchange: impl FnOnce() -> T) -> T {
        // A send fails only when the thread has ended, after it cut the connection: the exchange then ends by itself.
        let _ = self.steps.send(Step::Sent);
        let outcome = exchange();
        let _ = self.steps.send(Step::Answered);
        outcome
    }

    /// Whether the limit passed once.
    pub(crate) fn bitten(&self) -> bool {
        self.bitten.load(SeqCst)
    }
}

fn watch(inbox: &Receiver<Step>, stream: &UnixStream, limit: Duration, bitten: &AtomicBool) {
    while let Ok(step) = inbox.recv() {
        if !matches!(step, Step::Sent) {
            continue;
        }
        if inbox.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            bitten.store(true, SeqCst);
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}
