//! Makes the device: the interface first, then a worker for each queue pair.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tapring_io::{PollMode, PortOptions};
use tapring_metrics::{Counter, DeviceMetrics, Metrics, PairMetrics};
use thiserror::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::warn;

use crate::device::Device;
use crate::interface::{Interface, InterfaceError};
use crate::settings::Settings;
use crate::worker::{SpawnError, Worker, WorkerOptions, spawn};

/// How long the kernel's polling thread looks before it sleeps. Asleep it costs nothing; the kernel counts in jiffies.
const SQPOLL_IDLE: Duration = Duration::from_millis(2);

/// Why there is no device.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The tap, or the interface behind a packet socket.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A worker.
    #[error(transparent)]
    Worker(#[from] SpawnError),
    /// A queue of the interface.
    #[error("cannot copy a queue of `{interface}`: {source}: raise LimitNOFILE")]
    Queue {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A device that can be served.
#[derive(Debug)]
pub struct Opened {
    /// The device, ready for sessions.
    pub device: Device,
    /// What a worker says when it ends by itself, which none should.
    pub ends: UnboundedReceiver<String>,
    /// Frames that the kernel dropped because nobody read them, brought up to date right before a scrape.
    pub drops: Drops,
    /// Whatever must stay for as long as the device does.
    pub keep: Keep,
}

/// The interface and the workers' threads.
#[derive(Debug, Default)]
pub struct Keep {
    interface: Option<Arc<Interface>>,
    workers: Vec<Worker>,
}

impl Keep {
    /// The interface, for as long as it is kept.
    pub(crate) fn interface(&self) -> Weak<Interface> {
        self.interface
            .as_ref()
            .map(Arc::downgrade)
            .unwrap_or_default()
    }

    /// Waits for workers that were told to exit, then closes the interface.
    pub fn join(self) {
        self.workers.into_iter().for_each(Worker::join);
        drop(self.interface);
    }
}

/// Counts what the kernel dropped; of no interface, nothing.
#[derive(Clone, Debug, Default)]
pub struct Drops {
    source: Weak<Interface>,
    counter: Option<Counter>,
}

impl Drops {
    /// Brings the count up to date.
    pub fn sample(&self) {
        if let (Some(interface), Some(counter)) = (self.source.upgrade(), &self.counter) {
            interface.count_drops(counter);
        }
    }
}

/// Opens the interface and starts the workers.
pub fn open(settings: &Settings, metrics: &Metrics) -> Result<Opened, OpenError> {
    let interface = Interface::open(&settings.attachment, settings.queue_pairs)?;
    let series = metrics.device(interface.name(), settings.queue_pairs);
    let (failed, ends) = mpsc::unbounded_channel();
    let workers = start_workers(settings, &interface, &series, &failed)?;
    interface.describe();
    warn_of_shared_cpu(settings);
    let handles = workers.iter().map(|worker| worker.handle.clone()).collect();
    let (max, policy) = (settings.max_ring_size, settings.policy);
    let interface = Arc::new(interface);
    Ok(Opened {
        device: Device::new(interface.name(), handles, max, policy, &series),
        ends,
        drops: Drops {
            source: Arc::downgrade(&interface),
            counter: Some(series.tap_dropped),
        },
        keep: Keep {
            interface: Some(interface),
            workers,
        },
    })
}

/// It works, but every batch waits for a switch of threads: half the frames a second, or less.
fn warn_of_shared_cpu(settings: &Settings) {
    let shared = match settings.sqpoll_cpu {
        Some(cpu) => settings.worker_cpus.contains(&cpu),
        None => !settings.worker_cpus.is_empty(),
    };
    if settings.polls_in_kernel() && shared {
        warn!(
            "the polling thread shares a CPU with a worker: give it its own with --sqpoll-cpu, or use --poll inline"
        );
    }
}

fn start_workers(
    settings: &Settings,
    interface: &Interface,
    series: &DeviceMetrics,
    failed: &UnboundedSender<String>,
) -> Result<Vec<Worker>, OpenError> {
    let mut workers: Vec<Worker> = Vec::new();
    for (pair, metrics) in (0..settings.queue_pairs).zip(&series.pairs) {
        let started = worker_options(settings, interface, pair, workers.first(), metrics, failed)
            .and_then(|options| Ok(spawn(options)?));
        match started {
            Ok(worker) => workers.push(worker),
            Err(error) => {
                workers.into_iter().for_each(Worker::end);
                return Err(error);
            }
        }
    }
    Ok(workers)
}

fn worker_options(
    settings: &Settings,
    interface: &Interface,
    pair: u16,
    first: Option<&Worker>,
    metrics: &Arc<PairMetrics>,
    failed: &UnboundedSender<String>,
) -> Result<WorkerOptions, OpenError> {
    let failure = |source| queue_error(interface, source);
    let attach = first.map(|worker| worker.ring.try_clone()).transpose();
    let device = interface.name().to_owned();
    let failed = failed.clone();
    Ok(WorkerOptions {
        device: device.clone(),
        pair,
        queue: interface.try_clone_queue(pair).map_err(failure)?,
        port: interface.with_slots(PortOptions {
            poll: poll_mode(settings, attach.map_err(failure)?),
            force_plain: settings.plain_io,
            ..PortOptions::default()
        }),
        cpu: settings.worker_cpu(pair),
        policy: settings.policy,
        metrics: Arc::clone(metrics),
        failed: Box::new(move |reason| {
            // Nobody listens any more when the daemon is ending.
            let _ = failed.send(format!("worker of {device}, queue pair {pair}: {reason}"));
        }),
    })
}

/// All workers share the polling thread of the first one.
fn poll_mode(settings: &Settings, attach: Option<OwnedFd>) -> PollMode {
    if !settings.polls_in_kernel() {
        return PollMode::Inline;
    }
    PollMode::Sqpoll {
        cpu: settings.sqpoll_cpu,
        attach,
        idle: SQPOLL_IDLE,
    }
}

fn queue_error(interface: &Interface, source: io::Error) -> OpenError {
    OpenError::Queue {
        interface: interface.name().to_owned(),
        source,
    }
}
