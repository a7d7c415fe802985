//! The policy of a running device, and the one way to change it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use tapring_queue::Policy;
use thiserror::Error;
use tokio::sync::{Mutex, oneshot};
use tracing::info;

use crate::device::{Device, DeviceError};
use crate::policy::Difference;
use crate::settings::{SettingsError, check_policy};

/// Why the policy is as it was.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    /// It cannot be meant for this device.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No thread to wait in.
    #[error("cannot start a thread: {0}: raise the limit of tasks (TasksMax=)")]
    Thread(#[source] io::Error),
    /// A worker does not answer: it has too little of a CPU, or is stuck.
    #[error("{0}: it takes the policy as soon as it runs")]
    Device(#[from] DeviceError),
    /// Nobody will know.
    #[error("the daemon is stopping")]
    Stopping,
}

/// The policy of a running device.
#[derive(Debug)]
pub(crate) struct LivePolicy {
    device: Arc<Device>,
    /// Who waits for a worker has it; the next change starts from what that one left.
    turn: Mutex<()>,
}

impl LivePolicy {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            turn: Mutex::new(()),
        }
    }

    /// The name of the device.
    pub(crate) fn device(&self) -> &str {
        self.device.name()
    }

    /// The policy that is in force.
    pub(crate) fn policy(&self) -> Policy {
        self.device.policy()
    }

    /// Puts what `change` makes of the policy in force, and returns it when every worker has it. A change that has begun
    /// is carried out even if whoever asked for it has gone.
    pub(crate) async fn change(
        self: &Rc<Self>,
        change: impl FnOnce(Policy) -> Policy + 'static,
    ) -> Result<Policy, Refusal> {
        let live = Rc::clone(self);
        let changed = tokio_uring::spawn(async move { live.carry_out(change).await });
        // It is aborted only with the runtime.
        changed.await.unwrap_or(Err(Refusal::Stopping))
    }

    async fn carry_out(&self, change: impl FnOnce(Policy) -> Policy) -> Result<Policy, Refusal> {
        let _turn = self.turn.lock().await;
        let from = self.device.policy();
        let to = change(from);
        check_policy(&to, self.device.offer().max_ring_size)?;
        if from == to {
            return Ok(to);
        }
        let device = Arc::clone(&self.device);
        let set = elsewhere(move || device.set_policy(to));
        set.await??;
        info!(
            device = self.device.name(),
            "policy: {}",
            Difference { from, to }
        );
        Ok(to)
    }
}

/// Waits in a thread of its own for what would stop the control thread.
pub(super) async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let (done, ended) = oneshot::channel();
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            // Nobody waits any more when the daemon is ending.
            let _ = done.send(work());
        })
        .map_err(Refusal::Thread)?;
    ended.await.map_err(|_| Refusal::Stopping)
}
