//! A daemon without frames: the real control plane on a real socket, pretended workers behind it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tapring::attachment::Attachment;
use tapring::device::Device;
use tapring::features::QueueNum;
use tapring::open::{Drops, Keep, Opened};
use tapring::serve::{Error, serve_device};
use tapring::settings::{Poll, Settings};
use tapring::socket::SocketOptions;
use tapring_queue::Policy;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

use crate::worker::Book;

const LIMIT: Duration = Duration::from_secs(10);

/// The name of the device.
const NAME: &str = "pretended";

/// The largest ring that is taken.
pub(crate) const MAX_RING: u16 = 1024;

/// A running control plane. Dropping it stops it.
pub(crate) struct Daemon {
    pub(crate) book: Book,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    worker_ends: mpsc::UnboundedSender<String>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Daemon {
    /// A device of two pairs, listening.
    pub(crate) fn start() -> Self {
        Self::with_pairs(2)
    }

    pub(crate) fn with_pairs(pairs: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = settings(folder.path(), pairs);
        let (stop, stopped) = oneshot::channel();
        let (worker_ends, ends) = mpsc::unbounded_channel();
        let book = Book::default();
        let thread = thread::spawn({
            let book = book.clone();
            move || {
                let open = |settings: &Settings, metrics: &tapring_metrics::Metrics| {
                    let series = metrics.device(NAME, pairs);
                    let workers = (0..usize::from(pairs)).map(|pair| book.worker(pair));
                    let workers = workers.collect::<Result<_, _>>().expect("workers");
                    Ok(Opened {
                        device: Device::new(NAME, workers, MAX_RING, settings.policy, &series),
                        ends,
                        drops: Drops::default(),
                        keep: Keep::default(),
                    })
                };
                let stop = async {
                    let _ = stopped.await;
                    Ok(())
                };
                serve_device(&settings, open, stop)
            }
        });
        let daemon = Self {
            book,
            folder,
            stop: Some(stop),
            worker_ends,
            thread: Some(thread),
        };
        until("the daemon listens", || daemon.path().exists());
        daemon
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("t.sock")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).expect("the daemon listens")
    }

    /// Pretends that a worker has ended by itself.
    pub(crate) fn end_worker(&self, reason: &str) {
        self.worker_ends
            .send(reason.to_owned())
            .expect("the daemon runs");
    }

    /// Stops the daemon as SIGTERM does.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.stop.take().map(|stop| stop.send(()));
        self.join()
    }

    /// Waits until the daemon ends by itself.
    pub(crate) fn join(&mut self) -> Result<(), Error> {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("no panic")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            // Whatever the test wants to know of it, it has asked.
            let _ = thread.join();
        }
    }
}

/// Waits for something that happens soon.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn settings(folder: &Path, queue_pairs: u16) -> Settings {
    Settings {
        socket: SocketOptions {
            path: folder.join("t.sock"),
            mode: 0o600,
            group: None,
        },
        attachment: Attachment::Tap {
            name: NAME.to_owned(),
            create: false,
        },
        queue_pairs,
        max_ring_size: MAX_RING,
        poll: Poll::Auto,
        sqpoll_cpu: None,
        plain_io: false,
        worker_cpus: vec![],
        queue_num: QueueNum::Auto,
        metrics: None,
        control_socket: Some(folder.join("control.sock")),
        policy: Policy::DEFAULT,
    }
}
