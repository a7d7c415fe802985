//! A session's hold on the workers.
//!
//! The crate's setters cannot fail, so it acknowledges whatever happened behind them. When a worker does not do what it
//! was told, the frontend must not get that acknowledgement: it might then reuse memory that is still being written. So
//! the link remembers the failure before the hook returns, cuts the frontend's connection, and the adapter, which sees
//! every acknowledgement on its way out, keeps it back (see [`Link::failure`]).

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tapring_queue::Features;
use thiserror::Error;
use tracing::info;

use crate::device::{Device, DeviceError};
use crate::features::Named;
use crate::log_limit::LogLimit;
use crate::worker::command::{Command, Epoch, Reply};

/// Why a session cannot go on, on our side.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A worker is stuck or gone.
    #[error(transparent)]
    Worker(#[from] DeviceError),
    /// A kick descriptor could not be copied for the worker.
    #[error("cannot copy a kick descriptor: {0}: raise LimitNOFILE")]
    Descriptor(#[source] io::Error),
}

static STARTED: LogLimit = LogLimit::per_minute(30);

/// Commands of one session.
#[derive(Debug)]
pub(crate) struct Link {
    device: Arc<Device>,
    epoch: Epoch,
    frontend: Arc<UnixStream>,
    failure: OnceLock<Failure>,
    features: AtomicU64,
    features_known: AtomicBool,
    announced: AtomicBool,
}

impl Link {
    pub(crate) fn new(device: Arc<Device>, epoch: Epoch, frontend: Arc<UnixStream>) -> Self {
        Self {
            device,
            epoch,
            frontend,
            failure: OnceLock::new(),
            features: AtomicU64::new(0),
            features_known: AtomicBool::new(false),
            announced: AtomicBool::new(false),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The worker's acknowledgement; `None` once anything has failed, for then the session is cut.
    pub(crate) fn tell(&self, pair: usize, command: Command) -> Option<Reply> {
        if self.failure.get().is_some() {
            return None;
        }
        let result = self.device.tell(pair, self.epoch, command);
        result.map_err(|error| self.fail(error.into())).ok()
    }

    /// Whether all workers have acknowledged.
    pub(crate) fn tell_all(&self, command: impl Fn() -> Command) -> bool {
        if self.failure.get().is_some() {
            return false;
        }
        let result = self.device.tell_all(self.epoch, command);
        result.map_err(|error| self.fail(error.into())).is_ok()
    }

    /// What went wrong, if anything did. No acknowledgement may reach the frontend then.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// SET_FEATURES, to all workers.
    pub(crate) fn set_features(&self, features: u64) {
        self.tell_all(|| Command::SetFeatures(Features(features)));
        self.features.store(features, Ordering::Relaxed);
        self.features_known.store(true, Ordering::Relaxed);
    }

    /// Whether SET_FEATURES has come. All hooks run on one thread, so the order of the stores does not matter.
    pub(crate) fn knows_features(&self) -> bool {
        self.features_known.load(Ordering::Relaxed)
    }

    /// A ring has started: once a session, the log says what was negotiated.
    pub(crate) fn announce(&self) {
        if self.announced.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(suppressed) = STARTED.pass() {
            info!(
                device = self.device.name(),
                session = self.epoch.0,
                rings = self.device.offer().rings,
                "session started with {}{suppressed}",
                Named(self.features.load(Ordering::Relaxed))
            );
        }
    }

    /// Cuts the connection: the frontend hears nothing more.
    pub(crate) fn fail(&self, failure: Failure) {
        // The first failure is the one that tells something.
        let _ = self.failure.set(failure);
        // Fails only if the frontend is gone already.
        let _ = self.frontend.shutdown(Shutdown::Both);
    }
}
