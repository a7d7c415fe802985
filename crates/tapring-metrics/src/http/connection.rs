//! One client: read a head, write a reply, close without losing it.

use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::TcpStream;

use super::reply;
use super::request::{self, Head, MAX_HEAD_BYTES};

/// Makes the text of `/metrics`.
pub(super) type Render = Rc<dyn Fn() -> String>;

/// A socket that is shut down when it is dropped, whatever is still in the kernel for it: reads and writes that nobody
/// waits for any more complete by that and let go of the descriptor.
pub(super) struct Connection(TcpStream);

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(stream)
    }

    /// The whole life of the connection, for as long as it may last.
    pub(super) async fn serve(self, render: Render, limit: Duration) {
        if let Ok(Err(error)) = tokio::time::timeout(limit, self.converse(&render)).await {
            tracing::debug!(%error, "metrics client went away");
        }
    }

    async fn converse(&self, render: &Render) -> io::Result<()> {
        let Some(head) = self.read_head().await? else {
            return Ok(());
        };
        let reply = reply::to(&head, &**render);
        self.0.write_all(reply.into_bytes()).await.0?;
        self.0.shutdown(Shutdown::Write)?;
        self.discard().await
    }

    /// A whole head or a refusal; `None` if the client left before either.
    async fn read_head(&self) -> io::Result<Option<Head>> {
        let mut bytes = Vec::with_capacity(MAX_HEAD_BYTES);
        loop {
            let start = bytes.len();
            let (read, slice) = self.0.read(bytes.slice(start..MAX_HEAD_BYTES)).await;
            bytes = slice.into_inner();
            if read? == 0 {
                return Ok(None);
            }
            if let Some(head) = request::parse(&bytes) {
                return Ok(Some(head));
            }
        }
    }

    /// Reads until the client has closed too. Closing with bytes unread would send a reset, which can overtake the reply
    /// and make the client lose it. Bounded: what sends more than that does not want a reply.
    async fn discard(&self) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(MAX_HEAD_BYTES);
        for _ in 0..MAX_DISCARDS {
            let (read, buffer) = self.0.read(bytes).await;
            bytes = buffer;
            if read? == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Fails only when the client has closed already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Of up to [`MAX_HEAD_BYTES`] each.
const MAX_DISCARDS: usize = 16;
