//! Carries messages to and fro until either side ends it.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use thiserror::Error;
use tracing::{debug, warn};
use vhost::vhost_user::message::FrontendReq;

use super::message::Message;
use super::refusal::{Fault, Refusal};
use super::rules::{Actions, Adapter};
use super::wire::{ReceiveError, Receiver, send};
use crate::link::Link;
use crate::log_limit::LogLimit;

static REFUSED: LogLimit = LogLimit::per_minute(10);

/// Why a session is over.
#[derive(Debug, Error)]
pub(crate) enum End {
    /// The usual one.
    #[error("the frontend closed the connection")]
    FrontendClosed,
    /// What the frontend sent is not to be understood or not to be done.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The bytes or descriptors of the frontend did not arrive as they should.
    #[error("{0}")]
    Receive(#[source] ReceiveError),
    /// The crate closed its end over an error; it knows which.
    #[error("vhost-user-backend ended the session")]
    Backend,
    /// A hook failed: the link knows how.
    #[error("a worker failed")]
    Worker,
    /// Neither side is to blame.
    #[error("cannot relay messages: {0}")]
    Socket(#[from] Errno),
}

/// The relay of one session.
pub(crate) struct Relay<'a> {
    frontend: &'a UnixStream,
    backend: UnixStream,
    link: &'a Link,
    adapter: Adapter,
    from_frontend: Receiver,
    from_backend: Receiver,
    awaits_reply: bool,
}

impl<'a> Relay<'a> {
    /// A relay between a frontend and the crate, which has accepted the other end of `backend`.
    pub(crate) fn new(
        frontend: &'a UnixStream,
        backend: UnixStream,
        link: &'a Link,
        adapter: Adapter,
    ) -> Self {
        Self {
            frontend,
            backend,
            link,
            adapter,
            from_frontend: Receiver::default(),
            from_backend: Receiver::default(),
            awaits_reply: false,
        }
    }

    /// Returns when the session is over. The crate's end is closed then, the frontend's is not.
    pub(crate) fn run(mut self) -> End {
        let end = match self.prime().and_then(|()| self.carry()) {
            Err(end) => end,
            Ok(never) => match never {},
        };
        // The crate's thread waits for a message or for this.
        let _ = self.backend.shutdown(Shutdown::Both);
        end
    }

    /// The crate acknowledges requests only once it was asked for its features, whoever asked. Some frontends know them
    /// and do not ask, so it is asked here.
    fn prime(&mut self) -> Result<(), End> {
        let question = Message::request(FrontendReq::GET_FEATURES, Vec::new());
        self.send_to_backend(&question)?;
        while self.receive_from_backend()?.is_none() {
            readable(&self.backend)?;
        }
        Ok(())
    }

    fn carry(&mut self) -> Result<std::convert::Infallible, End> {
        loop {
            if self.awaits_reply {
                readable(&self.backend)?;
            } else {
                either_readable(self.frontend, &self.backend)?;
            }
            if let Some(reply) = self.receive_from_backend()? {
                self.pass_reply(&reply)?;
            } else if !self.awaits_reply {
                self.take_request()?;
            }
        }
    }

    fn take_request(&mut self) -> Result<(), End> {
        let received = self.from_frontend.receive(self.frontend);
        let message = received.map_err(|error| match error {
            ReceiveError::Closed | ReceiveError::Socket(Errno::CONNRESET) => End::FrontendClosed,
            ReceiveError::Header(fault) => Fault::from(fault).into(),
            other => End::Receive(other),
        })?;
        match message {
            Some(message) => {
                debug!("from the frontend: {message}");
                let actions = self.adapter.on_request(message)?;
                self.carry_out(&actions)
            }
            None => Ok(()),
        }
    }

    fn carry_out(&mut self, actions: &Actions) -> Result<(), End> {
        if let Some(refusal) = &actions.refusal {
            report(refusal);
        }
        for message in &actions.forward {
            self.send_to_backend(message)?;
        }
        self.awaits_reply = actions.awaits_reply;
        match &actions.reply {
            Some(reply) => self.send_to_frontend(reply),
            None => Ok(()),
        }
    }

    fn pass_reply(&mut self, reply: &Message) -> Result<(), End> {
        debug!("to the frontend: {reply}");
        self.awaits_reply = false;
        self.send_to_frontend(reply)
    }

    fn receive_from_backend(&mut self) -> Result<Option<Message>, End> {
        self.from_backend
            .receive(&self.backend)
            .map_err(|_| End::Backend)
    }

    fn send_to_backend(&self, message: &Message) -> Result<(), End> {
        send(&self.backend, message).map_err(|_| End::Backend)
    }

    fn send_to_frontend(&self, message: &Message) -> Result<(), End> {
        if self.link.failure().is_some() {
            return Err(End::Worker);
        }
        send(self.frontend, message).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => End::FrontendClosed,
            other => End::Socket(other),
        })
    }
}

fn report(refusal: &Refusal) {
    if let Some(suppressed) = REFUSED.pass() {
        warn!("{refusal}{suppressed}");
    }
}

fn readable(socket: &UnixStream) -> Result<(), Errno> {
    wait(&mut [PollFd::new(socket, PollFlags::IN)])
}

fn either_readable(one: &UnixStream, other: &UnixStream) -> Result<(), Errno> {
    wait(&mut [
        PollFd::new(one, PollFlags::IN),
        PollFd::new(other, PollFlags::IN),
    ])
}

fn wait(sockets: &mut [PollFd<'_>]) -> Result<(), Errno> {
    match poll(sockets, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
