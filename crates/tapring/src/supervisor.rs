//! Serves a device to one frontend after the other.
//!
//! # Theory of operation
//!
//! ```text
//!            accept                    the session is over
//!  Idle ─────────────────► Serving ─────────────────────────► Idle
//!                            │  ▲ accept while its frontend lives: closed, one line
//!                            │  └ accept while it is ending: waits for the drain, then is served
//!   stop, SIGTERM, SIGINT    ▼
//!  ─────────────────► cut, drain, end
//! ```
//!
//! A frontend that was killed and started again may be here before its old connection has been noticed dead; it must not
//! be turned away for that. So a connection that comes while the old frontend is gone waits, and while one waits nothing
//! more is accepted: the kernel's queue holds the rest.
//!
//! Nothing here wakes up without cause: there is no timer but the back-off after a failed accept.

use std::future;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{error, warn};

use crate::device::{Device, DeviceError};
use crate::features::QueueNum;
use crate::log_limit::LogLimit;
use crate::session::{Over, Session};

static TURNED_AWAY: LogLimit = LogLimit::per_minute(10);
static NOT_ACCEPTED: LogLimit = LogLimit::per_minute(10);
static NOT_STARTED: LogLimit = LogLimit::per_minute(10);

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why a device can be served no longer.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A worker does not answer, so nobody knows what it still does.
    #[error("{0}: restart the daemon")]
    Device(#[from] DeviceError),
    /// A worker has ended by itself.
    #[error("{0}: restart the daemon")]
    Worker(String),
    /// A bug.
    #[error("the session thread panicked: restart the daemon and report this")]
    Panic,
}

/// One device and its listener.
#[derive(Debug)]
pub(crate) struct Supervisor {
    device: Arc<Device>,
    listener: UnixListener,
    queue_num: QueueNum,
    /// What workers say when they end by themselves.
    ends: UnboundedReceiver<String>,
    serving: Option<(Session, Over)>,
    waiting: Option<UnixStream>,
    /// Before the next accept: none, unless the last one failed.
    pause: Duration,
}

/// What the supervisor waits for.
enum Event {
    Accepted(io::Result<UnixStream>),
    Over(Result<(), ServeError>),
    WorkerEnded(String),
}

impl Supervisor {
    pub(crate) const fn new(
        device: Arc<Device>,
        listener: UnixListener,
        queue_num: QueueNum,
        ends: UnboundedReceiver<String>,
    ) -> Self {
        Self {
            device,
            listener,
            queue_num,
            ends,
            serving: None,
            waiting: None,
            pause: Duration::ZERO,
        }
    }

    /// Serves until `stop` resolves, whose output is returned.
    pub(crate) async fn run<T>(&mut self, stop: impl Future<Output = T>) -> Result<T, ServeError> {
        tokio::pin!(stop);
        loop {
            let event = tokio::select! {
                biased;
                stopped = &mut stop => return Ok(stopped),
                event = self.next_event() => event,
            };
            self.handle(event)?;
        }
    }

    /// Cuts the session, if there is one, and waits until it has drained.
    pub(crate) async fn end_session(mut self) -> Result<(), ServeError> {
        match &self.serving {
            Some((session, _)) => {
                session.cut();
                session_over(&mut self.serving).await
            }
            None => Ok(()),
        }
    }

    async fn next_event(&mut self) -> Event {
        let may_accept = self.waiting.is_none();
        tokio::select! {
            over = session_over(&mut self.serving) => Event::Over(over),
            accepted = accept(&self.listener, self.pause), if may_accept => Event::Accepted(accepted),
            Some(end) = self.ends.recv() => Event::WorkerEnded(end),
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), ServeError> {
        match event {
            Event::Over(over) => {
                self.serving = None;
                over?;
                if let Some(frontend) = self.waiting.take() {
                    self.serve(frontend);
                }
            }
            Event::WorkerEnded(end) => return Err(ServeError::Worker(end)),
            Event::Accepted(Ok(frontend)) => {
                self.pause = Duration::ZERO;
                self.on_frontend(frontend);
            }
            Event::Accepted(Err(error)) => self.pause_after(&error),
        }
        Ok(())
    }

    fn on_frontend(&mut self, frontend: UnixStream) {
        match &self.serving {
            None => self.serve(frontend),
            Some((session, _)) if session.is_ending() => self.waiting = Some(frontend),
            Some(_) => {
                if let Some(suppressed) = TURNED_AWAY.pass() {
                    let device = self.device.name();
                    warn!(
                        device,
                        "a second frontend was turned away: a device serves one at a time{suppressed}"
                    );
                }
            }
        }
    }

    fn serve(&mut self, frontend: UnixStream) {
        match Session::start(Arc::clone(&self.device), frontend, self.queue_num) {
            Ok(started) => self.serving = Some(started),
            Err(error) => {
                if let Some(suppressed) = NOT_STARTED.pass() {
                    error!(
                        "cannot start a session: {error}: the frontend may try again{suppressed}"
                    );
                }
            }
        }
    }

    /// Out of descriptors or memory, accept fails at once every time, with the frontend still in the queue.
    fn pause_after(&mut self, error: &io::Error) {
        if let Some(suppressed) = NOT_ACCEPTED.pass() {
            error!(
                "cannot accept a frontend: {error}: raise LimitNOFILE or free memory{suppressed}"
            );
        }
        self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    }
}

async fn accept(listener: &UnixListener, pause: Duration) -> io::Result<UnixStream> {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let (frontend, _) = listener.accept().await?;
    frontend.into_std()
}

/// Never, while there is no session.
async fn session_over(serving: &mut Option<(Session, Over)>) -> Result<(), ServeError> {
    match serving {
        Some((_, over)) => Ok(over.await.map_err(|_| ServeError::Panic)??),
        None => future::pending().await,
    }
}
