//! The control plane's end of a worker: commands go in, acknowledgements come out.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;

use super::command::{Command, Epoch, Reply};

/// How long a command may take, the wait for its turn included. A batch takes microseconds; a worker that needs longer is stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Commands that may wait at once. Sessions send one at a time; the rest is room for probes.
const PENDING_COMMANDS: usize = 16;

/// A command on its way to a worker, with the place its answer goes.
#[derive(Debug)]
pub struct Envelope {
    /// The session that sent it.
    pub epoch: Epoch,
    /// What is asked.
    pub command: Command,
    /// Where the answer goes; nobody may be waiting any more.
    pub reply: Sender<Result<Reply, WorkerError>>,
}

/// Why a worker did not do what it was asked.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WorkerError {
    /// It is alive or stuck; nobody knows.
    #[error("worker did not answer in {} s", ANSWER_LIMIT.as_secs())]
    TimedOut,
    /// Its thread has ended.
    #[error("worker has ended")]
    Gone,
    /// The command came from a session that is over.
    #[error("the session that sent this is over")]
    StaleEpoch,
}

/// Sends commands to one worker. Clones may be used from any thread.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    commands: Sender<Envelope>,
    doorbell: Arc<OwnedFd>,
}

impl WorkerHandle {
    /// A handle, the worker's end of its channel, and the eventfd the worker watches for commands.
    pub fn new() -> io::Result<(Self, Receiver<Envelope>, OwnedFd)> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = doorbell.try_clone()?;
        let (commands, receiver) = channel::bounded(PENDING_COMMANDS);
        let handle = Self {
            commands,
            doorbell: Arc::new(doorbell),
        };
        Ok((handle, receiver, watched))
    }

    /// Sends a command and waits until the worker acknowledges that it holds.
    pub fn call(&self, epoch: Epoch, command: Command) -> Result<Reply, WorkerError> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        let (reply, answer) = channel::bounded(1);
        let envelope = Envelope {
            epoch,
            command,
            reply,
        };
        self.commands
            .send_deadline(envelope, deadline)
            .map_err(|error| match error {
                channel::SendTimeoutError::Timeout(_) => WorkerError::TimedOut,
                channel::SendTimeoutError::Disconnected(_) => WorkerError::Gone,
            })?;
        self.ring();
        answer
            .recv_deadline(deadline)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => WorkerError::TimedOut,
                RecvTimeoutError::Disconnected => WorkerError::Gone,
            })?
    }

    /// Wakes the worker. A full counter (EAGAIN) means that it was already told.
    fn ring(&self) {
        let _ = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
    }
}
