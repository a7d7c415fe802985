//! One connected frontend: a thread of its own for vhost-user-backend's blocking ways.
//!
//! 1. The device begins a session: commands of earlier ones are void from here on.
//! 2. A new backend and a new daemon object, for the crate's serve one connection in their life; their private connection.
//! 3. The relay runs until either side ends it. The crate works on a second thread of the session.
//! 4. The crate's thread is joined: no hook can run any more.
//! 5. The workers are reset: rings drained and stopped, memory and descriptors forgotten.
//! 6. Only then the connection is closed, so a frontend that sees it closed owns its memory again.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{info, warn};
use vhost_user_backend::{Error as CrateError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::adapter::{Adapter, End, InnerError, Relay, connected_pair};
use crate::backend::Backend;
use crate::device::{Device, DeviceError};
use crate::features::QueueNum;
use crate::link::Link;
use crate::log_limit::LogLimit;
use crate::vring::{self, RingControl};
use crate::worker::command::Epoch;

static ENDED: LogLimit = LogLimit::per_minute(30);
static FAILED: LogLimit = LogLimit::per_minute(30);

/// Resolves when the session is over, with the error if the device cannot go on. The sender is gone without a word if
/// the thread panicked.
pub(crate) type Over = oneshot::Receiver<Result<(), DeviceError>>;

/// A frontend that is being served.
#[derive(Debug)]
pub(crate) struct Session {
    frontend: Arc<UnixStream>,
    cut: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Session {
    /// Serves a connection on a new thread.
    pub(crate) fn start(
        device: Arc<Device>,
        frontend: UnixStream,
        queue_num: QueueNum,
    ) -> io::Result<(Self, Over)> {
        frontend.set_nonblocking(false)?;
        let frontend = Arc::new(frontend);
        let cut = Arc::new(AtomicBool::new(false));
        let (report, over) = oneshot::channel();
        let conversation = Conversation {
            device,
            frontend: Arc::clone(&frontend),
            queue_num,
            cut: Arc::clone(&cut),
        };
        let thread = thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || {
                let result = conversation.run();
                // Nobody listens any more when the daemon ends in a hurry.
                let _ = report.send(result);
            })?;
        let session = Self {
            frontend,
            cut,
            thread,
        };
        Ok((session, over))
    }

    /// Ends the session as if the frontend had gone.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
        // Fails only if the frontend is gone already.
        let _ = self.frontend.shutdown(Shutdown::Both);
    }

    /// Whether the frontend has gone or was cut off: the end of the session is only a matter of draining.
    pub(crate) fn is_ending(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut sockets = [PollFd::new(&self.frontend, PollFlags::RDHUP)];
        let now = Timespec::default();
        let polled = poll(&mut sockets, Some(&now));
        self.thread.is_finished() || polled.is_ok() && sockets[0].revents().intersects(gone)
    }
}

/// What the session's thread works with.
struct Conversation {
    device: Arc<Device>,
    frontend: Arc<UnixStream>,
    queue_num: QueueNum,
    cut: Arc<AtomicBool>,
}

/// How a session ended.
#[derive(Debug, Error)]
enum Closing {
    #[error(transparent)]
    End(#[from] End),
    #[error("the daemon is stopping")]
    Cut,
    #[error("{0}")]
    Link(String),
    #[error(transparent)]
    Inner(#[from] InnerError),
    #[error("vhost-user-backend: {0}")]
    Crate(CrateError),
}

impl Conversation {
    fn run(self) -> Result<(), DeviceError> {
        let began = Instant::now();
        let epoch = self.device.begin()?;
        let link = Link::new(Arc::clone(&self.device), epoch, Arc::clone(&self.frontend));
        let closing = self.converse(&Arc::new(link));
        let reset = self.device.reset(epoch);
        self.report(epoch, began, &closing);
        let _ = self.frontend.shutdown(Shutdown::Both);
        reset
    }

    fn converse(&self, link: &Arc<Link>) -> Closing {
        let (end, crate_error) = match self.relay(link) {
            Ok(ended) => ended,
            Err(closing) => return closing,
        };
        if let Some(failure) = link.failure() {
            return Closing::Link(failure.to_string());
        }
        if self.cut.load(Ordering::Relaxed) {
            return Closing::Cut;
        }
        match (end, crate_error) {
            (End::Backend, Some(error)) => Closing::Crate(error),
            (end, _) => Closing::End(end),
        }
    }

    /// Returns when the session is over and the crate's thread has ended, with its error if it had one.
    fn relay(&self, link: &Arc<Link>) -> Result<(End, Option<CrateError>), Closing> {
        let rings = RingControl::all(link);
        vring::prepare(&rings);
        let backend = Arc::new(Backend::new(Arc::clone(link), rings));
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon = VhostUserDaemon::new("vhost-user".to_owned(), backend, memory)
            .map_err(Closing::Crate)?;
        let (mut listener, ours) = connected_pair()?;
        daemon.start(&mut listener).map_err(Closing::Crate)?;
        drop(listener);
        let adapter = Adapter::new(*self.device.offer(), self.queue_num);
        let end = Relay::new(&self.frontend, ours, link, adapter).run();
        Ok((end, daemon.wait().err()))
    }

    fn report(&self, epoch: Epoch, began: Instant, closing: &Closing) {
        let (device, session) = (self.device.name(), epoch.0);
        let seconds = began.elapsed().as_secs();
        let usual = matches!(closing, Closing::End(End::FrontendClosed) | Closing::Cut);
        match usual {
            true => {
                if let Some(suppressed) = ENDED.pass() {
                    info!(
                        device,
                        session, seconds, "session ended: {closing}{suppressed}"
                    );
                }
            }
            false => {
                if let Some(suppressed) = FAILED.pass() {
                    warn!(
                        device,
                        session, seconds, "session ended: {closing}{suppressed}"
                    );
                }
            }
        }
    }
}
