//! Opening a tap by its name: the interface, all its queues, and an error for each way it can go wrong.
//!
//! TUNSETIFF creates an interface when there is none of that name and answers a bare EINVAL when there is one of
//! another kind. Neither is what a user wants to meet, so we look first, try both kinds of queue, and compare the
//! interface index before and after.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::netdevice::name_to_index;

use super::{Tap, TapError, is_tap_name};
use crate::sys::{self, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_VNET_HDR};

const TUN_DEVICE: &str = "/dev/net/tun";

/// MAX_TAP_QUEUES of the kernel.
const MAX_QUEUES: u16 = 256;

/// How long a tap may be held before that is an error. Ours are free within 100 ms of the end of their process.
const BUSY_LIMIT: Duration = Duration::from_millis(700);

const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Which tap, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Name of the interface, 1 to 15 bytes.
    pub name: String,
    /// Queue pairs, 1 to 256; more than one needs a `multi_queue` tap.
    pub queue_pairs: u16,
    /// Create the tap when there is none of that name; it then goes with the process.
    pub create: bool,
}

impl TapError {
    /// Whether the tap is perhaps only being let go of. One that goes while we look is then made again.
    const fn may_pass(&self, options: &TapOptions) -> bool {
        matches!(self, Self::Busy { .. }) || matches!(self, Self::Missing { .. }) && options.create
    }
}

impl Tap {
    /// Opens the tap in the network namespace of this thread, with a 12-byte header in front of each frame, no
    /// offloads, and non-blocking.
    ///
    /// The io_uring of a process that was killed lets go of its tap a moment after the process is gone, so a tap that is
    /// held is tried again for 0.7 s.
    pub fn open(options: &TapOptions) -> Result<Self, TapError> {
        check(options)?;
        let began = Instant::now();
        loop {
            match Self::try_open(options) {
                Err(error) if error.may_pass(options) && began.elapsed() < BUSY_LIMIT => {
                    thread::sleep(BUSY_PAUSE);
                }
                result => return result,
            }
        }
    }

    fn try_open(options: &TapOptions) -> Result<Self, TapError> {
        let socket =
            sys::interface_socket().map_err(|source| options.failed("ask about", source))?;
        let existing = name_to_index(&socket, &options.name).ok();
        if existing.is_none() && !options.create {
            return Err(options.missing());
        }
        let queues = if existing.is_some() {
            options.attach_all()?
        } else {
            options.create_all()?
        };
        let index = name_to_index(&socket, &options.name)
            .map_err(|error| options.failed("find", error.into()))?;
        if existing.is_some_and(|existing| existing != index) {
            // Deleted between the look and the attach: what TUNSETIFF made instead goes with `queues`.
            return Err(options.missing());
        }
        let tap = Self {
            name: options.name.clone(),
            index,
            created: existing.is_none(),
            given: false,
            queues,
        };
        tap.configure(&socket)
            .map_err(|(action, source)| options.failed(action, source))?;
        Ok(tap)
    }
}

impl TapOptions {
    /// The queues of an existing tap.
    fn attach_all(&self) -> Result<Vec<OwnedFd>, TapError> {
        let (first, flags) = self.attach_first()?;
        let mut queues = vec![first];
        for _ in 1..self.queue_pairs {
            queues.push(self.attach(flags).map_err(|error| self.explain(error))?);
        }
        Ok(queues)
    }

    /// The first queue, and the flags that fit the tap: multi_queue must be given exactly when the tap has it.
    fn attach_first(&self) -> Result<(OwnedFd, i16), TapError> {
        let (wanted, other) = if self.queue_pairs > 1 {
            (IFF_MULTI_QUEUE, 0)
        } else {
            (0, IFF_MULTI_QUEUE)
        };
        let first = match self.attach(wanted) {
            Err(Failure::Attach(error)) if error.raw_os_error() == Some(libc::EINVAL) => None,
            other => Some(other.map_err(|failure| self.explain(failure))?),
        };
        if let Some(first) = first {
            return Ok((first, wanted));
        }
        let second = self
            .attach(other)
            .map_err(|failure| self.explain(failure))?;
        if self.queue_pairs > 1 {
            return Err(TapError::SingleQueue {
                name: self.name.clone(),
                queue_pairs: self.queue_pairs,
            });
        }
        Ok((second, other))
    }

    /// A new tap with all its queues.
    fn create_all(&self) -> Result<Vec<OwnedFd>, TapError> {
        let flags = if self.queue_pairs > 1 {
            IFF_MULTI_QUEUE
        } else {
            0
        };
        (0..self.queue_pairs)
            .map(|_| self.attach(flags).map_err(|failure| self.explain(failure)))
            .collect()
    }

    /// One queue. Never IFF_NAPI: it costs 1017 against 601 ns a frame.
    fn attach(&self, flags: i16) -> Result<OwnedFd, Failure> {
        let queue = open(
            TUN_DEVICE,
            OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK,
            Mode::empty(),
        );
        let queue = queue.map_err(|error| Failure::Open(error.into()))?;
        sys::attach(
            queue.as_fd(),
            &self.name,
            IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | flags,
        )
        .map_err(Failure::Attach)?;
        Ok(queue)
    }

    fn explain(&self, failure: Failure) -> TapError {
        let name = self.name.clone();
        match failure {
            Failure::Open(source) => match source.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => TapError::DriverDenied { source },
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoDriver { source },
                _ => self.failed("open a queue of", source),
            },
            Failure::Attach(source) => match source.raw_os_error() {
                Some(libc::EINVAL) => TapError::NotATap { name },
                Some(libc::EBUSY) => TapError::Busy { name },
                Some(libc::EPERM) => TapError::Denied {
                    name,
                    kind: self.kind(),
                },
                _ => self.failed("attach to", source),
            },
        }
    }

    fn missing(&self) -> TapError {
        TapError::Missing {
            name: self.name.clone(),
            kind: self.kind(),
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> TapError {
        TapError::System {
            name: self.name.clone(),
            action,
            source,
        }
    }

    const fn kind(&self) -> &'static str {
        if self.queue_pairs > 1 {
            " multi_queue"
        } else {
            ""
        }
    }
}

/// Which step of attaching failed.
enum Failure {
    Open(io::Error),
    Attach(io::Error),
}

fn check(options: &TapOptions) -> Result<(), TapError> {
    if !is_tap_name(&options.name) {
        return Err(TapError::Name {
            name: options.name.clone(),
        });
    }
    if !(1..=MAX_QUEUES).contains(&options.queue_pairs) {
        return Err(TapError::QueuePairs {
            name: options.name.clone(),
            queue_pairs: options.queue_pairs,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_driver_is_called_missing() {
        let options = TapOptions {
            name: "t0".into(),
            queue_pairs: 1,
            create: true,
        };
        let explained = |errno| options.explain(Failure::Open(io::Error::from_raw_os_error(errno)));
        assert!(matches!(explained(libc::ENOENT), TapError::NoDriver { .. }));
        assert!(matches!(
            explained(libc::EACCES),
            TapError::DriverDenied { .. }
        ));
        assert!(matches!(explained(libc::EMFILE), TapError::System { .. }));
    }

    #[test]
    fn no_pairs_and_too_many_are_refused_before_anything_is_opened() {
        for queue_pairs in [0, 257] {
            let error = Tap::open(&TapOptions {
                name: "t0".into(),
                queue_pairs,
                create: true,
            })
            .unwrap_err();
            assert!(error.to_string().contains("give 1 to 256"), "{error}");
        }
    }
}
