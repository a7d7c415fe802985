//! The daemon from start to end.
//!
//! Start: what can fail without leaving a trace comes first.
//!
//! 1. The settings as a whole, io_uring for the control thread, the signals, the metrics address.
//! 2. The sockets, not yet at their paths: with a live daemon there, not even its tap is touched.
//! 3. The tap and its workers.
//! 4. The sockets move to their paths, that of the frontends last. So where its file is, the tap is too, and frontends
//!    are accepted.
//!
//! End, at SIGTERM: the sockets' files go, the session is cut and drains, the workers drain and end, the tap is closed.

use std::future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tapring_metrics::{BindError, Endpoint, Metrics};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tracing::info;

use crate::config::{ConfigError, Source};
use crate::control::{self, LivePolicy};
use crate::deletion;
use crate::device::Device;
use crate::open::{Keep, OpenError, Opened, open};
use crate::settings::Settings;
use crate::signals::Hangups;
use crate::socket::{ListenSocket, SocketError, SocketOptions};
use crate::supervisor::{ServeError, Supervisor};

/// Draining takes microseconds. What takes longer than this is stuck, and the process ends without it.
const DRAIN_LIMIT: Duration = Duration::from_millis(1500);

/// Entries of the control thread's io_uring: a handful of accepts, reads and writes of the metrics' clients. It is locked
/// memory, of which a user may have little.
const CONTROL_ENTRIES: u32 = 64;

/// Descriptors of an idle daemon, of its control clients and of a session, with some to spare for its messages.
const DESCRIPTORS: usize = 60;

/// Of a queue pair: tap, ring, doorbell, kicks, calls.
const DESCRIPTORS_A_PAIR: usize = 12;

/// Why the daemon did not start, or did not go on.
#[derive(Debug, Error)]
pub enum Error {
    /// What was asked for means nothing, or contradicts itself or the machine.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// io_uring is missing or forbidden.
    #[error("cannot make an io_uring: {source}: {}", uring_remedy(source))]
    NoUring {
        /// What the kernel said.
        source: io::Error,
    },
    /// There would be none left for a frontend.
    #[error(
        "cannot open enough files: {0}: raise the limit of open files, RLIMIT_NOFILE (LimitNOFILE=)"
    )]
    TooFewFiles(#[source] io::Error),
    /// The metrics address.
    #[error(transparent)]
    Metrics(#[from] BindError),
    /// The socket of the frontends.
    #[error("--socket-path: {0}")]
    Socket(#[source] SocketError),
    /// The control socket.
    #[error("--control-socket: {0}")]
    Control(#[source] SocketError),
    /// The socket could not be watched.
    #[error("cannot accept frontends: {0}: raise LimitNOFILE")]
    Accept(#[source] io::Error),
    /// The tap or a worker.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The signals.
    #[error("cannot catch signals: {0}: this is a limit of the system")]
    Signals(#[source] io::Error),
    /// The device.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The end took too long.
    #[error("did not drain within {} ms: something is stuck; the process ends all the same", DRAIN_LIMIT.as_millis())]
    NotDrained,
}

/// Serves until `stop` resolves; its error is one of catching signals. SIGHUP reads the settings again.
pub fn serve(source: Source, stop: impl Future<Output = io::Result<()>>) -> Result<(), Error> {
    let settings = source.read()?;
    start(&settings, Some(source), open, stop)
}

/// The same with a device made in another way, and without SIGHUP.
pub fn serve_device(
    settings: &Settings,
    open: impl FnOnce(&Settings, &Metrics) -> Result<Opened, OpenError>,
    stop: impl Future<Output = io::Result<()>>,
) -> Result<(), Error> {
    settings.check().map_err(ConfigError::from)?;
    start(settings, None, open, stop)
}

fn start(
    settings: &Settings,
    source: Option<Source>,
    open: impl FnOnce(&Settings, &Metrics) -> Result<Opened, OpenError>,
    stop: impl Future<Output = io::Result<()>>,
) -> Result<(), Error> {
    ensure_descriptors(settings.queue_pairs).map_err(Error::TooFewFiles)?;
    let mut builder = tokio_uring::builder();
    let runtime = tokio_uring::Runtime::new(builder.entries(CONTROL_ENTRIES));
    let runtime = runtime.map_err(|source| Error::NoUring { source })?;
    runtime.block_on(run(settings, source, open, stop))
}

/// Too few descriptors are a line here, and a panic where the runtime wants one.
fn ensure_descriptors(queue_pairs: u16) -> io::Result<()> {
    let needed = DESCRIPTORS + DESCRIPTORS_A_PAIR * usize::from(queue_pairs);
    let probe = |_| eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from);
    (0..needed)
        .map(probe)
        .collect::<io::Result<Vec<_>>>()
        .map(drop)
}

fn uring_remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOMEM) => {
            "raise the limit of locked memory, RLIMIT_MEMLOCK (LimitMEMLOCK=), to 8 MiB"
        }
        _ => "use Linux 6.1 or later and allow it (sysctl kernel.io_uring_disabled, seccomp)",
    }
}

async fn run(
    settings: &Settings,
    source: Option<Source>,
    open: impl FnOnce(&Settings, &Metrics) -> Result<Opened, OpenError>,
    stop: impl Future<Output = io::Result<()>>,
) -> Result<(), Error> {
    let mut stop = Box::pin(stop);
    if already(&mut stop).await.map_err(Error::Signals)? {
        return Ok(());
    }
    let reload = source.map(|source| Ok((source, Hangups::catch()?)));
    let reload = reload.transpose().map_err(Error::Signals)?;
    let endpoint = settings.metrics.map(Endpoint::bind).transpose()?;
    let mut sockets = Sockets::prepare(settings)?;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let Opened {
        device,
        ends,
        drops,
        keep,
    } = open(settings, &metrics)?;
    let device = Arc::new(device);
    if let Some(endpoint) = endpoint {
        info!("metrics at http://{}/metrics", endpoint.address());
        tokio_uring::spawn(endpoint.serve(move || {
            drops.sample();
            metrics.render()
        }));
    }
    tokio_uring::spawn(deletion::report(keep.interface()));
    let live = Rc::new(LivePolicy::new(Arc::clone(&device)));
    if let Some((source, hangups)) = reload {
        let live = Rc::clone(&live);
        let started = settings.clone();
        tokio_uring::spawn(control::reload_at_hangups(hangups, source, started, live));
    }
    sockets.publish(settings, &live)?;
    let listener = listener(&sockets.frontends).map_err(Error::Accept)?;
    announce(settings, &device);
    let mut supervisor = Supervisor::new(Arc::clone(&device), listener, settings.queue_num, ends);
    let served = supervisor.run(stop).await;
    drop(sockets);
    served?.map_err(Error::Signals)?;
    let drained = tokio::time::timeout(DRAIN_LIMIT, drain(supervisor, device, keep)).await;
    drained.map_err(|_| Error::NotDrained)??;
    info!("stopped");
    Ok(())
}

/// The files that others find the daemon by. They go with this.
struct Sockets {
    frontends: ListenSocket,
    control: Option<ListenSocket>,
}

impl Sockets {
    fn prepare(settings: &Settings) -> Result<Self, Error> {
        let control = settings.control_socket.as_deref().map(private);
        Ok(Self {
            frontends: ListenSocket::prepare(&settings.socket).map_err(Error::Socket)?,
            control: control
                .map(|options| ListenSocket::prepare(&options).map_err(Error::Control))
                .transpose()?,
        })
    }

    fn publish(&mut self, settings: &Settings, live: &Rc<LivePolicy>) -> Result<(), Error> {
        if let (Some(socket), Some(path)) = (&mut self.control, &settings.control_socket) {
            socket.publish(path).map_err(Error::Control)?;
            let listener = listener(socket).map_err(Error::Accept)?;
            tokio_uring::spawn(control::serve(listener, Rc::clone(live)));
        }
        let path = &settings.socket.path;
        self.frontends.publish(path).map_err(Error::Socket)
    }
}

/// Whoever may change the policy may stop the guest's traffic too.
fn private(path: &Path) -> SocketOptions {
    SocketOptions {
        path: path.to_owned(),
        mode: 0o600,
        group: None,
    }
}

/// Polls `stop` once, which catches signals from now on.
async fn already(stop: &mut Pin<Box<impl Future<Output = io::Result<()>>>>) -> io::Result<bool> {
    tokio::select! {
        biased;
        stopped = stop => stopped.map(|()| true),
        () = future::ready(()) => Ok(false),
    }
}

fn listener(socket: &ListenSocket) -> io::Result<UnixListener> {
    UnixListener::from_std(socket.listener()?)
}

fn announce(settings: &Settings, device: &Device) {
    info!(
        device = device.name(),
        queue_pairs = settings.queue_pairs,
        "version {} listens on {}",
        env!("CARGO_PKG_VERSION"),
        settings.socket.path.display()
    );
}

async fn drain(supervisor: Supervisor, device: Arc<Device>, keep: Keep) -> Result<(), Error> {
    supervisor.end_session().await?;
    // Waiting for threads here would keep this one from seeing the limit pass.
    let (done, ended) = oneshot::channel();
    thread::spawn(move || {
        device.exit();
        keep.join();
        // Nobody listens any more if this took too long.
        let _ = done.send(());
    });
    // The sender goes without a word only in a panic, and then there is nothing left to wait for.
    let _ = ended.await;
    Ok(())
}
