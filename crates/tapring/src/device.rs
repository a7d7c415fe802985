//! What outlives sessions: the tap's workers, and the count of sessions that keeps them apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tapring_metrics::{DeviceMetrics, Gauge, PolicyInfo};
use tapring_queue::Policy;
use thiserror::Error;
use tracing::warn;

use crate::features::Offer;
use crate::policy::for_metrics;
use crate::worker::command::{Command, Epoch, Reply};
use crate::worker::handle::{WorkerError, WorkerHandle};

/// A worker that did not do what it must. The device cannot go on without it.
#[derive(Clone, Debug, Error)]
#[error("device {device}, queue pair {pair}: {command}: {source}")]
pub struct DeviceError {
    device: String,
    pair: usize,
    command: &'static str,
    source: WorkerError,
}

/// One network card: a tap and a worker for each queue pair.
#[derive(Debug)]
pub struct Device {
    name: String,
    workers: Vec<WorkerHandle>,
    offer: Offer,
    sessions: AtomicU64,
    /// What all workers have in force.
    policy: Mutex<Policy>,
    connected: Gauge,
    shown: Arc<PolicyInfo>,
}

impl Device {
    /// A device whose workers are running with this policy, one a queue pair, in the order of the pairs.
    pub fn new(
        name: &str,
        workers: Vec<WorkerHandle>,
        max_ring_size: u16,
        policy: Policy,
        series: &DeviceMetrics,
    ) -> Self {
        series.policy.set(&for_metrics(&policy));
        let pairs = u16::try_from(workers.len()).unwrap_or(u16::MAX);
        Self {
            name: name.to_owned(),
            workers,
            offer: Offer::new(pairs, max_ring_size),
            sessions: AtomicU64::new(0),
            policy: Mutex::new(policy),
            connected: series.connected.clone(),
            shown: Arc::clone(&series.policy),
        }
    }

    /// The name of the tap.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What frontends may negotiate.
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The policy that all workers have in force.
    pub fn policy(&self) -> Policy {
        *self.policy_in_force()
    }

    /// Puts a policy in force, for this session and those to come. All workers have it when this returns; that can take
    /// as long as a command may. A worker that does not answer in time, which is the error then, takes it as soon as it
    /// runs. One change at a time: whoever makes several keeps them in order.
    pub fn set_policy(&self, policy: Policy) -> Result<(), DeviceError> {
        let epoch = self.epoch();
        let mut told = Ok(());
        for pair in 0..self.workers.len() {
            let answer = self.tell(pair, epoch, Command::SetPolicy(policy));
            if told.is_ok() {
                told = answer.map(drop);
            }
        }
        *self.policy_in_force() = policy;
        self.shown.set(&for_metrics(&policy));
        told
    }

    /// A new session owns the device from here on.
    pub(crate) fn begin(&self) -> Result<Epoch, DeviceError> {
        let epoch = Epoch(self.sessions.fetch_add(1, Ordering::Relaxed) + 1);
        self.tell_all(epoch, || Command::Begin)?;
        self.connected.set(1.0);
        Ok(epoch)
    }

    /// The session is over: nothing of it is left when this returns.
    pub(crate) fn reset(&self, epoch: Epoch) -> Result<(), DeviceError> {
        let reset = self.tell_all(epoch, || Command::Reset);
        // Whoever sees this may rely on it that guest memory is not touched any more.
        self.connected.set(0.0);
        reset
    }

    /// Sends a command to one worker and waits for its acknowledgement.
    pub(crate) fn tell(
        &self,
        pair: usize,
        epoch: Epoch,
        command: Command,
    ) -> Result<Reply, DeviceError> {
        let name = command.name();
        let worker = self.workers.get(pair).ok_or(WorkerError::Gone);
        worker
            .and_then(|worker| worker.call(epoch, command))
            .map_err(|source| DeviceError {
                device: self.name.clone(),
                pair,
                command: name,
                source,
            })
    }

    /// Sends the same command to all workers; the first that fails ends it.
    pub(crate) fn tell_all(
        &self,
        epoch: Epoch,
        command: impl Fn() -> Command,
    ) -> Result<(), DeviceError> {
        (0..self.workers.len()).try_for_each(|pair| self.tell(pair, epoch, command()).map(drop))
    }

    /// Ends all workers. Each has drained when this returns, or is past help.
    pub fn exit(&self) {
        let epoch = self.epoch();
        for pair in 0..self.workers.len() {
            if let Err(error) = self.tell(pair, epoch, Command::Exit) {
                warn!("{error}");
            }
        }
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.sessions.load(Ordering::Relaxed))
    }

    fn policy_in_force(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapring_metrics::Metrics;
    use tapring_queue::RxWake;

    #[test]
    fn the_policy_in_force_is_shown() {
        let metrics = Metrics::new("1");
        let device = Device::new("t0", vec![], 256, Policy::DEFAULT, &metrics.device("t0", 1));
        assert!(metrics.render().contains("rx_wake=\"half\""));
        let policy = Policy {
            rx_wake: RxWake::Chains(8),
            ..Policy::DEFAULT
        };
        device.set_policy(policy).expect("no worker says no");
        assert_eq!(device.policy(), policy);
        let text = metrics.render();
        assert!(text.contains("rx_wake=\"8\"") && !text.contains("rx_wake=\"half\""));
    }
}
