//! One client of the control socket: a request, an answer, and again.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tracing::debug;

use crate::policy::PolicyChange;

use super::protocol::{Answer, Request};
use super::{LONGEST_REQUEST, LivePolicy};

/// The whole life of a connection.
pub(super) async fn serve(stream: UnixStream, live: Rc<LivePolicy>) {
    let mut client = Client {
        stream,
        unread: Vec::with_capacity(LONGEST_REQUEST),
    };
    if let Err(error) = client.converse(&live).await {
        debug!(%error, "a client of the control socket went away");
    }
}

struct Client {
    stream: UnixStream,
    /// What came after the last line; never longer than [`LONGEST_REQUEST`].
    unread: Vec<u8>,
}

/// What a client has sent.
enum Line {
    Whole(Vec<u8>),
    TooLong,
}

impl Client {
    async fn converse(&mut self, live: &Rc<LivePolicy>) -> io::Result<()> {
        while let Some(line) = self.next_line().await? {
            match line {
                Line::Whole(line) => self.tell(&answer(&line, live).await).await?,
                Line::TooLong => {
                    let error = format!("a request has at most {LONGEST_REQUEST} bytes");
                    return self.tell(&Answer::Error(error)).await;
                }
            }
        }
        Ok(())
    }

    /// `None` when the client has gone. The last line need not have an end.
    async fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line = self.unread[..end].to_vec();
                self.unread.drain(..=end);
                return Ok(Some(Line::Whole(line)));
            }
            let mut bytes = [0; LONGEST_REQUEST];
            let room = LONGEST_REQUEST - self.unread.len();
            if room == 0 {
                return Ok(Some(Line::TooLong));
            }
            let read = self.stream.read(&mut bytes[..room]).await?;
            if read == 0 {
                let last = std::mem::take(&mut self.unread);
                return Ok((!last.is_empty()).then_some(Line::Whole(last)));
            }
            self.unread.extend_from_slice(&bytes[..read]);
        }
    }

    /// A client that takes no answers gets no more of them.
    async fn tell(&mut self, answer: &Answer) -> io::Result<()> {
        let line = answer.line();
        tokio::time::timeout(ANSWER_LIMIT, self.stream.write_all(&line)).await?
    }
}

async fn answer(line: &[u8], live: &Rc<LivePolicy>) -> Answer {
    let policy = match Request::read(line) {
        Ok(Request::Policy) => live.policy(),
        Ok(Request::SetPolicy(change)) => {
            match live.change(move |policy| change.applied_to(policy)).await {
                Ok(policy) => policy,
                Err(refusal) => return Answer::Error(refusal.to_string()),
            }
        }
        Err(error) => return Answer::Error(error),
    };
    Answer::Policy(PolicyChange::from(policy))
}

/// How long an answer may wait for room in a client's socket.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
