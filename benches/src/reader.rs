//! The raw reading loop on a thread of its own.
//!
//! It stays on its core from the first drain to the last and sleeps in between, as the daemon's worker does: a loop that
//! moved there for each drain would begin each with cold caches. The thread that waits for it spins on its own core, as the
//! guest does: a core that is halted answers for the cache lines it holds more slowly.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};

use tapring_io::limit::{LimitError, Moved, RawReader};

use crate::{BenchError, cpu};

/// A raw reader on a core of its own. Dropping it ends the thread.
#[derive(Debug)]
pub struct Reader {
    // `None` only while being dropped.
    drains: Option<Sender<usize>>,
    results: Receiver<Result<Moved, BenchError>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts a reader of frames of at most `frame_bytes` on `core`.
    pub fn start(tap: OwnedFd, frame_bytes: usize, core: usize) -> Result<Self, BenchError> {
        let (drains, orders) = channel();
        let (answers, results) = channel();
        let thread = Builder::new()
            .name("raw".to_owned())
            .spawn(move || {
                // The ring belongs to the thread that makes it.
                let reader = cpu::pin(core).and_then(|()| Ok(RawReader::new(tap, frame_bytes)?));
                serve(reader, &orders, &answers);
            })
            .map_err(BenchError::read("a thread"))?;
        Ok(Self {
            drains: Some(drains),
            results,
            thread: Some(thread),
        })
    }

    /// [`RawReader::drain`] on the reader's core.
    pub fn drain(&self, waiting: usize) -> Result<Moved, BenchError> {
        if let Some(drains) = &self.drains {
            // Fails when the thread has ended, which `recv` finds too.
            let _ = drains.send(waiting);
        }
        loop {
            match self.results.try_recv() {
                Ok(result) => return result,
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return Err(BenchError::ReaderGone),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.drains = None;
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, which was said already.
            let _ = thread.join();
        }
    }
}

/// Answers each order; with no reader, the first one with the reason.
fn serve(
    reader: Result<RawReader, BenchError>,
    orders: &Receiver<usize>,
    answers: &Sender<Result<Moved, BenchError>>,
) {
    match reader {
        Ok(mut reader) => {
            let drains = orders.iter().map(|waiting| reader.drain(waiting));
            let _ = drains
                .map(|moved: Result<Moved, LimitError>| moved.map_err(BenchError::from))
                .try_for_each(|moved| answers.send(moved));
        }
        Err(error) => {
            let _ = answers.send(Err(error));
        }
    }
}
