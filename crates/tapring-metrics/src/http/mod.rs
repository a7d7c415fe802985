//! The HTTP endpoint: `/metrics` and `/healthz`, on the control thread.
//!
//! # Theory of operation
//!
//! One task accepts; each connection is a task of its own that reads one request head, writes one reply and closes.
//!
//! Nobody can hurt the others:
//! - a head may have [`MAX_HEAD_BYTES`](request::MAX_HEAD_BYTES), a connection may take [`Limits::time`];
//! - at most [`Limits::connections`] are open, and when one more comes **the oldest goes**. Waiting for a free place
//!   instead would let a few dozen silent clients keep a scrape out for as long as they like; this way a request that is
//!   sent at once is answered at once.
//!
//! However a connection ends, its socket is shut down (see [`Connection`]): a dropped tokio-uring read is not cancelled
//! but stays with the kernel, and with it the descriptor, until the socket gives it something.
//!
//! Idle, there is a poll of the listener in the kernel and no timer.

mod connection;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use connection::Connection;

/// The address is taken, not ours, or not allowed.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for metrics: {}: choose another --metrics address",
    reason(source)
)]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// An address that listens and is not served yet, so that a start-up can fail before anything else has begun.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

impl Endpoint {
    /// Listens. Clients may connect from now on and wait for [`serve`](Self::serve).
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address with the port that was really taken, which matters for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves for as long as the tokio-uring runtime that it must run on. `render` is called for each scrape, on this
    /// thread: sample what must be fresh in it.
    pub async fn serve(self, render: impl Fn() -> String + 'static) {
        self.serve_within(Limits::default(), render).await;
    }

    async fn serve_within(self, limits: Limits, render: impl Fn() -> String + 'static) {
        let listener = match ready(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::error!(%error, "cannot serve metrics: restart the daemon");
            }
        };
        let render: connection::Render = Rc::new(render);
        let mut open = VecDeque::new();
        let mut failing = false;
        loop {
            match accept(&listener).await {
                Ok(stream) => {
                    failing = false;
                    make_room(&mut open, limits.connections);
                    let served = Connection::new(stream).serve(Rc::clone(&render), limits.time);
                    open.push_back(tokio_uring::spawn(served));
                }
                Err(error) => {
                    report_once(&mut failing, &error);
                    tokio::time::sleep(AFTER_FAILED_ACCEPT).await;
                }
            }
        }
    }
}

/// A listener that is waited for and not handed to io_uring: the kernel takes down the ring of a killed process some time
/// after the process, and until then an accept in it would keep the address in use.
fn ready(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

async fn accept(listener: &tokio::net::TcpListener) -> io::Result<tokio_uring::net::TcpStream> {
    let (stream, _) = listener.accept().await?;
    let stream = stream.into_std()?;
    // io_uring answers EAGAIN at once on a non-blocking one.
    stream.set_nonblocking(false)?;
    Ok(tokio_uring::net::TcpStream::from_std(stream))
}

/// What one client, and all of them together, may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connections: usize,
    time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 32,
            time: Duration::from_secs(5),
        }
    }
}

/// Forgets the connections that have ended and, if that is not enough, ends the oldest.
fn make_room(open: &mut VecDeque<JoinHandle<()>>, limit: usize) {
    open.retain(|connection| !connection.is_finished());
    if open.len() >= limit
        && let Some(oldest) = open.pop_front()
    {
        oldest.abort();
    }
}

/// The usual cause is that the process has no descriptor left, which lasts: say it once, not once a try.
fn report_once(failing: &mut bool, error: &io::Error) {
    if !std::mem::replace(failing, true) {
        tracing::warn!(%error, "cannot accept metrics connections: raise the limit of open files (ulimit -n)");
    }
}

fn reason(error: &io::Error) -> String {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    match error.kind() {
        kind @ (AddrInUse | AddrNotAvailable | PermissionDenied) => kind.to_string(),
        _ => error.to_string(),
    }
}

/// Long enough not to spin, short enough for a scrape to get through on its second try.
const AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(200);
