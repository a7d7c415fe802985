//! What the control plane may ask of a worker. No vhost-user-backend type appears here, so that
//! the control plane can be replaced without touching the data path.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tapring_queue::{Direction, Features, Policy, RingAddresses, RingPosition, RingSetup};
use vm_memory::GuestMemoryMmap;

/// Counts the sessions of a device. A command of a session that has ended is refused, so that a
/// late message of the previous frontend cannot touch the rings of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// One request to a worker. It is acknowledged when it holds: after the reply to a stop, a
/// disable or a change of memory the worker touches no guest memory it should not.
pub enum Command {
    /// A new session owns the device from now on.
    Begin,
    /// SET_FEATURES. A change drains both rings; the same bits again change nothing.
    SetFeatures(Features),
    /// SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG: the whole new map.
    SetMemory(Arc<GuestMemoryMmap>),
    /// The ring starts: it has addresses, an index and a kick.
    Start(Direction, RingSetup),
    /// SET_VRING_ADDR on a ring that has started.
    SetAddresses(Direction, RingAddresses),
    /// SET_VRING_KICK; before or after the start.
    SetKick(Direction, Option<OwnedFd>),
    /// SET_VRING_CALL; before or after the start. Installing one on a started ring signals it once.
    SetCall(Direction, Option<OwnedFd>),
    /// SET_VRING_ERR: signalled when the ring is found broken.
    SetErr(Direction, Option<OwnedFd>),
    /// SET_VRING_ENABLE 1.
    Enable(Direction),
    /// SET_VRING_ENABLE 0.
    Disable(Direction),
    /// GET_VRING_BASE: drained, then answered with [`Reply::Stopped`].
    Stop(Direction),
    /// The session is over: both rings stop, fds, features and memory are forgotten, and held
    /// frames and the tap's queue are dropped and counted, so that they do not reach the next guest.
    Reset,
    /// In force from now on, over all sessions to come. Of no session, so its epoch does not matter.
    SetPolicy(Policy),
    /// Answered by a worker that is alive.
    Ping,
    /// The worker drains and its thread ends.
    Exit,
}

impl Command {
    /// The name used in logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::SetFeatures(_) => "set features",
            Self::SetMemory(_) => "set memory",
            Self::Start(..) => "start",
            Self::SetAddresses(..) => "set addresses",
            Self::SetKick(..) => "set kick",
            Self::SetCall(..) => "set call",
            Self::SetErr(..) => "set err",
            Self::Enable(_) => "enable",
            Self::Disable(_) => "disable",
            Self::Stop(_) => "stop",
            Self::Reset => "reset",
            Self::SetPolicy(_) => "set policy",
            Self::Ping => "ping",
            Self::Exit => "exit",
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A worker's acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It holds now.
    Done,
    /// The answer to [`Command::Stop`].
    Stopped(RingPosition),
}
