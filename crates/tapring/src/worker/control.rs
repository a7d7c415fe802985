//! Commands of the control plane, carried out between turns.
//!
//! A command that takes something away from the data path (a ring, an address, memory) first
//! drains: the batches in flight complete and are published. Writes and reads of the tap never
//! wait, so that takes one batch's time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tapring_io::{CallFd, PortError, Wait, require_eventfd};
use tapring_queue::{Direction, Features, Policy, QueuePair, RingPosition, State, TxPoll};
use tracing::warn;
use vm_memory::GuestMemoryMmap;

use crate::log_limit::LogLimit;

use super::command::{Command, Epoch, Reply};
use super::handle::{Envelope, WorkerError};
use super::pace::Pace;
use super::turn::{DataPath, kick_of};

static DESCRIPTOR_LINES: LogLimit = LogLimit::per_minute(6);

/// Whether the worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Turn,
    Exit,
}

/// A data path with a session.
pub(super) struct Session<'p> {
    pub(super) path: &'p mut DataPath,
    pub(super) epoch: &'p mut Epoch,
}

impl Session<'_> {
    /// Carries out a command and answers it. An error is one of the port, and ends the worker.
    pub(super) fn handle(&mut self, envelope: Envelope) -> Result<Next, PortError> {
        let Envelope {
            epoch,
            command,
            reply,
        } = envelope;
        let next = if matches!(command, Command::Exit) {
            Next::Exit
        } else {
            Next::Turn
        };
        let answer = if self.belongs(epoch, &command) {
            let done = self.carry_out(command)?;
            if next == Next::Turn {
                self.path.follow_receiveq();
            }
            Ok(done)
        } else {
            Err(WorkerError::StaleEpoch)
        };
        // Nobody may be waiting any more; what was done still holds.
        let _ = reply.send(answer);
        Ok(next)
    }

    fn belongs(&mut self, epoch: Epoch, command: &Command) -> bool {
        match command {
            Command::SetPolicy(_) | Command::Ping | Command::Exit => true,
            Command::Begin => {
                let newer = epoch > *self.epoch;
                *self.epoch = epoch.max(*self.epoch);
                newer
            }
            _ => epoch == *self.epoch,
        }
    }

    fn carry_out(&mut self, command: Command) -> Result<Reply, PortError> {
        let path = &mut *self.path;
        match command {
            Command::Begin | Command::Reset | Command::Exit => path.reset()?,
            Command::SetFeatures(features) => path.set_features(features)?,
            Command::SetMemory(memory) => path.set_memory(memory)?,
            Command::Start(direction, setup) => {
                path.drain()?;
                path.rings.start(direction, setup, path.memory.as_deref());
            }
            Command::SetAddresses(direction, addresses) => {
                path.drain()?;
                let memory = path.memory.as_deref();
                path.rings.set_addresses(direction, addresses, memory);
            }
            Command::SetKick(direction, fd) => path.set_kick(direction, fd)?,
            Command::SetCall(direction, fd) => path.set_call(direction, fd),
            Command::SetErr(direction, fd) => {
                path.errs[direction.index()] = fd.and_then(eventfd);
            }
            Command::Enable(direction) => path.rings.enable(direction, path.memory.as_deref()),
            Command::Disable(direction) => {
                path.drain()?;
                path.rings.disable(direction, path.memory.as_deref());
            }
            Command::Stop(direction) => return Ok(Reply::Stopped(path.stop(direction)?)),
            Command::SetPolicy(policy) => path.set_policy(policy),
            Command::Ping => {}
        }
        Ok(Reply::Done)
    }
}

impl DataPath {
    /// Waits until nothing is in flight, and publishes what came back.
    pub(super) fn drain(&mut self) -> Result<(), PortError> {
        self.port.finish()?;
        if let Some(memory) = self.memory.clone() {
            self.complete_tx(&memory);
        }
        self.notify();
        self.port.enter(Wait::No)
    }

    fn set_features(&mut self, features: Features) -> Result<(), PortError> {
        self.drain()?;
        if self.rings.set_features(features, self.memory.as_deref()) {
            self.discard();
        }
        Ok(())
    }

    fn set_memory(&mut self, memory: Arc<GuestMemoryMmap>) -> Result<(), PortError> {
        self.drain()?;
        self.port.set_memory(Some(Arc::clone(&memory)))?;
        self.rings.remap(Some(&memory));
        self.memory = Some(memory);
        Ok(())
    }

    /// A batch in flight needs no drain: the engine knows what it was sent under.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.rings.set_policy(policy, self.memory.as_deref());
        self.port
            .always_poll_writable(policy.tx_poll == TxPoll::Always);
    }

    fn set_kick(&mut self, direction: Direction, fd: Option<OwnedFd>) -> Result<(), PortError> {
        let Some(fd) = fd.filter(is_eventfd) else {
            self.port.unwatch(kick_of(direction));
            return Ok(());
        };
        self.port.watch(kick_of(direction), fd)?;
        self.rings.on_new_kick(direction, self.memory.as_deref());
        Ok(())
    }

    /// A driver may have been owed a call while there was no way to make it.
    fn set_call(&mut self, direction: Direction, fd: Option<OwnedFd>) {
        let call = fd.and_then(eventfd);
        if let (Some(call), true) = (&call, self.rings.is_started(direction)) {
            call.signal();
        }
        self.calls[direction.index()] = call;
    }

    fn stop(&mut self, direction: Direction) -> Result<RingPosition, PortError> {
        self.drain()?;
        Ok(self.rings.stop(direction))
    }

    /// As if no frontend had ever been there.
    pub(super) fn reset(&mut self) -> Result<(), PortError> {
        self.drain()?;
        for direction in Direction::ALL {
            self.rings.stop(direction);
            self.port.unwatch(kick_of(direction));
        }
        self.counters.add(&mut self.rings, &mut self.port);
        self.rings = QueuePair::new(self.policy);
        self.calls = [None, None];
        self.errs = [None, None];
        self.memory = None;
        self.port.set_memory(None)?;
        self.discard();
        Ok(())
    }

    /// A tap's queue has a share of the host's flows exactly while the receiveq runs that takes them to the guest.
    pub(super) fn follow_receiveq(&mut self) {
        let state = self.rings.state(Direction::Rx);
        let runs = !matches!(state, State::Stopped | State::Blocked(_));
        let attach = self.first || runs;
        if attach == self.port.is_attached() {
            return;
        }
        let changed = if attach {
            self.port.attach().map(|()| 0)
        } else {
            self.port.detach()
        };
        match changed {
            Ok(lost) => self.counters.abandoned(lost),
            Err(error) => self.counters.not_attached(attach, &error),
        }
    }

    /// Drops what has come from the host up to now: it was for another guest, or for another driver of this one.
    fn discard(&mut self) {
        self.pace = Pace::default();
        let discarded = self.port.rx_discard();
        self.counters.discarded(&discarded);
    }
}

fn eventfd(fd: OwnedFd) -> Option<CallFd> {
    is_eventfd(&fd).then(|| CallFd::new(fd).ok()).flatten()
}

/// The frontend adapter refuses anything but eventfds; should one come all the same, the ring
/// goes without.
fn is_eventfd(fd: &OwnedFd) -> bool {
    let checked = require_eventfd(fd.as_fd());
    if let Err(error) = &checked
        && let Some(more) = DESCRIPTOR_LINES.pass()
    {
        warn!("{error}{more}");
    }
    checked.is_ok()
}
