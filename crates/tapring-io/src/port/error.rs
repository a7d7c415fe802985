//! What can go wrong with a port.

use std::io;

use crate::call::NotEventfd;
use crate::poll::Watch;

/// A port cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Not a tap queue.
    #[error(
        "the descriptor is not a queue of a tap with virtio headers: pass one made by `Tap::open`"
    )]
    NotATap {
        /// What the kernel said.
        source: io::Error,
    },
    /// A packet socket without virtio headers.
    #[error(
        "the packet socket puts no virtio header in front of frames: pass one made by `PacketSocket::open`"
    )]
    NoHeaders {
        /// What the kernel said.
        source: io::Error,
    },
    /// A slot too small for anything, or larger than any frame.
    #[error("an RX slot of {slot_bytes} bytes is of no use: give between 13 and 262144")]
    SlotBytes {
        /// The size given.
        slot_bytes: usize,
    },
    /// No ring.
    #[error(
        "cannot create an io_uring: Linux 6.1 or later is needed, the sysctl kernel.io_uring_disabled must be 0, and \
         a container's seccomp profile must allow io_uring_setup"
    )]
    Setup {
        /// What the kernel said.
        source: io::Error,
    },
    /// No ring with a polling thread.
    #[error(
        "cannot create an io_uring with SQPOLL: check that sqpoll_cpu is one of this process's CPUs (taskset, cpuset) \
         and that io_uring is allowed here, or set poll = inline"
    )]
    Sqpoll {
        /// What the kernel said.
        source: io::Error,
    },
    /// No memory for a ring, which counts against a user's limit (Linux 6.14; before it only without accounting by cgroup).
    #[error(
        "cannot create an io_uring: raise the limit of locked memory, RLIMIT_MEMLOCK (LimitMEMLOCK=), by {kib} KiB \
         for each queue pair and 32 KiB for the daemon"
    )]
    Locked {
        /// What one ring takes.
        kib: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// No descriptor for a ring.
    #[error(
        "cannot create an io_uring: raise the limit of open files, RLIMIT_NOFILE (LimitNOFILE=)"
    )]
    Descriptors {
        /// What the kernel said.
        source: io::Error,
    },
    /// No memory for frames.
    #[error("cannot map memory for frames: free some, or choose a smaller slot size")]
    Memory {
        /// What the kernel said.
        source: io::Error,
    },
    /// The ring does not take the tap or the buffers.
    #[error(
        "the io_uring does not take the tap: check the limit of open files and the kernel's version (6.1 or later)"
    )]
    Register {
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call into the ring failed.
    #[error("the io_uring does not work any more: restart the worker")]
    Enter {
        /// What the kernel said.
        source: io::Error,
    },
    /// A kick of a queue that a pair does not have.
    #[error(
        "a queue pair has no {what:?}: watch Kick(0) for the receiveq and Kick(1) for the transmitq"
    )]
    NoSuchWatch {
        /// What was to be watched.
        what: Watch,
    },
    /// Only eventfds are watched.
    #[error(transparent)]
    NotEventfd(#[from] NotEventfd),
    /// A batch points into the present memory.
    #[error("a batch still points into the guest's memory: take its outcomes or cancel it first")]
    MemoryBusy,
}
