//! A worker's thread: made, pinned, run and ended.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::{io, panic};

use crossbeam::channel::{self, Receiver, TryRecvError};
use rustix::thread::{CpuSet, sched_setaffinity};
use tapring_io::{Port, PortError, PortOptions, Watch};
use tapring_metrics::PairMetrics;
use tapring_queue::Policy;
use thiserror::Error;
use tracing::{error, info};

use super::command::{Command, Epoch};
use super::control::{Next, Session};
use super::counters::Counters;
use super::handle::{Envelope, WorkerHandle};
use super::turn::DataPath;

/// What a worker is made of.
#[allow(missing_debug_implementations)] // a closure has none
pub struct WorkerOptions {
    /// The device's name, for logs and the thread's own name.
    pub device: String,
    /// The queue pair's index.
    pub pair: u16,
    /// The tap queue, or the packet socket in its place.
    pub queue: OwnedFd,
    /// How the port is driven.
    pub port: PortOptions,
    /// The CPU to run on.
    pub cpu: Option<u32>,
    /// The policy to begin with.
    pub policy: Policy,
    /// Where its counts go.
    pub metrics: Arc<PairMetrics>,
    /// Called when the thread ends other than by [`Command::Exit`](super::command::Command::Exit).
    pub failed: Box<dyn FnOnce(String) + Send>,
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    /// Sends it commands.
    pub handle: WorkerHandle,
    /// Its io_uring, to which another worker may attach its SQ thread.
    pub ring: OwnedFd,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Tells it to exit and waits for its thread.
    pub fn end(self) {
        // One that has ended by itself needs not be told.
        let _ = self.handle.call(Epoch::default(), Command::Exit);
        self.join();
    }

    /// Waits for the thread, which was told to exit.
    pub fn join(self) {
        // Its failure was reported by the worker itself.
        let _ = self.thread.join();
    }
}

/// Why a worker could not start.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// No eventfd or no thread.
    #[error("cannot start the worker of queue pair {pair}: {source}")]
    Thread {
        /// The queue pair.
        pair: u16,
        /// What the kernel said.
        source: io::Error,
    },
    /// It cannot run where it was told to.
    #[error(
        "cannot run the worker of queue pair {pair} on CPU {cpu}: {source}: choose other --worker-cpus"
    )]
    Cpu {
        /// The queue pair.
        pair: u16,
        /// The CPU asked for.
        cpu: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The io_uring or the tap queue.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Starts a worker. It is ready, or the error is here, when this returns.
pub fn spawn(options: WorkerOptions) -> Result<Worker, SpawnError> {
    let pair = options.pair;
    let failed = |source| SpawnError::Thread { pair, source };
    let (handle, commands, doorbell) = WorkerHandle::new().map_err(failed)?;
    let (ready, started) = channel::bounded(1);
    let thread = Builder::new()
        .name(format!("{}/{pair}", options.device))
        .spawn(move || match prepare(options, doorbell) {
            Ok(prepared) => {
                let _ = ready.send(Ok(prepared.ring));
                run_to_end(prepared.path, &commands, prepared.failed);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        })
        .map_err(failed)?;
    let gone = || failed(io::Error::other("its thread ended"));
    let ring = started.recv().map_err(|_| gone())??;
    Ok(Worker {
        handle,
        ring,
        thread,
    })
}

/// A worker that is about to run.
struct Prepared {
    path: DataPath,
    ring: OwnedFd,
    failed: Box<dyn FnOnce(String) + Send>,
}

/// The port belongs to the thread that makes it (IORING_SETUP_SINGLE_ISSUER), so all of this runs
/// on the worker's own.
fn prepare(options: WorkerOptions, doorbell: OwnedFd) -> Result<Prepared, SpawnError> {
    let pair = options.pair;
    if let Some(cpu) = options.cpu {
        pin(cpu).map_err(|source| SpawnError::Cpu { pair, cpu, source })?;
    }
    let mut port = Port::new(options.queue, options.port)?;
    port.watch(Watch::Command, doorbell)?;
    let ring = port
        .ring_fd()
        .map_err(|source| SpawnError::Thread { pair, source })?;
    info!(
        device = options.device,
        queue = pair,
        "worker: {}",
        port.describe()
    );
    let counters = Counters::new(&options.device, pair, options.metrics);
    let mut path = DataPath::new(port, counters, pair == 0);
    path.set_policy(options.policy);
    path.follow_receiveq();
    Ok(Prepared {
        path,
        ring,
        failed: options.failed,
    })
}

fn pin(cpu: u32) -> io::Result<()> {
    let cpu = usize::try_from(cpu).unwrap_or(usize::MAX);
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(sched_setaffinity(None, &cpus)?)
}

/// Runs the worker. A failure or a panic is told to the control plane, which ends the process: a
/// daemon that is half dead helps nobody.
fn run_to_end(
    mut path: DataPath,
    commands: &Receiver<Envelope>,
    failed: Box<dyn FnOnce(String) + Send>,
) {
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| run(&mut path, commands)));
    let reason = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => String::from("it panicked"),
    };
    error!("worker failed: {reason}");
    failed(reason);
}

fn run(path: &mut DataPath, commands: &Receiver<Envelope>) -> Result<(), PortError> {
    let mut epoch = Epoch::default();
    loop {
        if path.turn()? {
            let mut session = Session {
                path,
                epoch: &mut epoch,
            };
            if take_commands(&mut session, commands)? == Next::Exit {
                return Ok(());
            }
        }
    }
}

/// Carries out all commands there are. The control plane's end is gone only when the process ends
/// without saying so; that is an exit too.
fn take_commands(
    session: &mut Session<'_>,
    commands: &Receiver<Envelope>,
) -> Result<Next, PortError> {
    loop {
        match commands.try_recv() {
            Ok(envelope) => {
                if session.handle(envelope)? == Next::Exit {
                    return Ok(Next::Exit);
                }
            }
            Err(TryRecvError::Empty) => return Ok(Next::Turn),
            Err(TryRecvError::Disconnected) => return Ok(Next::Exit),
        }
    }
}
