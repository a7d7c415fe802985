//! Makes the device: the tap first, then a worker for each queue pair.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tapring_io::{PollMode, PortOptions, Tap, TapError, TapOptions};
use tapring_metrics::{Counter, DeviceMetrics, Metrics, PairMetrics};
use thiserror::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::{info, warn};

use crate::device::Device;
use crate::settings::Settings;
use crate::worker::{SpawnError, Worker, WorkerOptions, spawn};

/// How long the kernel's polling thread looks before it sleeps. Asleep it costs nothing; the kernel counts in jiffies.
const SQPOLL_IDLE: Duration = Duration::from_millis(2);

/// Why there is no device.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The tap.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A worker.
    #[error(transparent)]
    Worker(#[from] SpawnError),
    /// A queue of the tap.
    #[error("cannot copy a queue of tap `{tap}`: {source}: raise LimitNOFILE")]
    Queue {
        /// The tap.
        tap: String,
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
    /// What to set to the tap's own drops right before a scrape.
    pub tap_dropped: Counter,
    /// Whatever must stay for as long as the device does.
    pub keep: Keep,
}

/// The tap and the workers' threads.
#[derive(Debug, Default)]
pub struct Keep {
    tap: Option<Tap>,
    workers: Vec<Worker>,
}

impl Keep {
    /// Waits for workers that were told to exit, then closes the tap.
    pub fn join(self) {
        self.workers.into_iter().for_each(Worker::join);
        drop(self.tap);
    }
}

/// Opens the tap and starts the workers.
pub fn open(settings: &Settings, metrics: &Metrics) -> Result<Opened, OpenError> {
    let tap = Tap::open(&TapOptions {
        name: settings.tap.clone(),
        queue_pairs: settings.queue_pairs,
        create: settings.create_tap,
    })?;
    let series = metrics.device(tap.name(), settings.queue_pairs);
    let (failed, ends) = mpsc::unbounded_channel();
    let workers = start_workers(settings, &tap, &series, &failed)?;
    describe(&tap);
    warn_of_shared_cpu(settings);
    let handles = workers.iter().map(|worker| worker.handle.clone()).collect();
    let (max, policy) = (settings.max_ring_size, settings.policy);
    Ok(Opened {
        device: Device::new(tap.name(), handles, max, policy, &series),
        ends,
        tap_dropped: series.tap_dropped,
        keep: Keep {
            tap: Some(tap),
            workers,
        },
    })
}

fn describe(tap: &Tap) {
    let (device, index, queues) = (tap.name(), tap.index(), tap.queue_pairs());
    let origin = if tap.created() { "created" } else { "opened" };
    info!(device, index, queues, "tap {origin}");
    if let Ok(Some(bytes)) = tap.send_buffer() {
        warn!(
            device,
            "the tap has a send buffer of {bytes} bytes, which costs 15 %: leave TUNSETSNDBUF alone"
        );
    }
    if matches!(tap.is_up(), Ok(false)) {
        warn!(
            device,
            "the tap is down, frames are dropped: bring it up with `ip link set {device} up`"
        );
    }
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
    tap: &Tap,
    series: &DeviceMetrics,
    failed: &UnboundedSender<String>,
) -> Result<Vec<Worker>, OpenError> {
    let mut workers: Vec<Worker> = Vec::new();
    for (pair, metrics) in (0..settings.queue_pairs).zip(&series.pairs) {
        let started = worker_options(settings, tap, pair, workers.first(), metrics, failed)
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
    tap: &Tap,
    pair: u16,
    first: Option<&Worker>,
    metrics: &Arc<PairMetrics>,
    failed: &UnboundedSender<String>,
) -> Result<WorkerOptions, OpenError> {
    let failure = |source| queue_error(tap, source);
    let attach = first.map(|worker| worker.ring.try_clone()).transpose();
    let device = tap.name().to_owned();
    let failed = failed.clone();
    Ok(WorkerOptions {
        device: device.clone(),
        pair,
        tap: tap.try_clone_queue(pair).map_err(failure)?,
        port: PortOptions {
            poll: poll_mode(settings, attach.map_err(failure)?),
            force_plain: settings.plain_io,
            ..PortOptions::default()
        }
        .with_mtu(tap.mtu().unwrap_or_default()),
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

fn queue_error(tap: &Tap, source: io::Error) -> OpenError {
    OpenError::Queue {
        tap: tap.name().to_owned(),
        source,
    }
}
