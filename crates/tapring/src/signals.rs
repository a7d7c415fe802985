//! SIGTERM and SIGINT, which end the daemon, and SIGHUP, which reloads.
//!
//! From the first lines of the program on they are held back by the thread's mask, until there is somebody to catch them:
//! a daemon that is told to end while it is still starting ends in order too, and one that is told to reload does not end.
//! (Before that the kernel's default applies: the process ends, with nothing begun.)

use std::future;
use std::io;

use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Holds the signals back until [`terminated`] and [`Hangups::catch`] catch them. For the thread that will, before there
/// are others.
pub fn hold() -> io::Result<()> {
    ends().thread_block()?;
    Ok(hangup().thread_block()?)
}

/// Resolves at the first SIGTERM or SIGINT. Later ones change nothing: the end has a limit of its own.
///
/// The signals are caught from the first time this is polled, which must be on the control thread.
pub async fn terminated() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    ends().thread_unblock()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// SIGHUPs, caught for as long as the process lives.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Catches them from now on. For the control thread.
    pub fn catch() -> io::Result<Self> {
        let hangups = signal(SignalKind::hangup())?;
        hangup().thread_unblock()?;
        Ok(Self(hangups))
    }

    /// Resolves when there has been one, or several, since the last time.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            future::pending::<()>().await;
        }
    }
}

fn ends() -> SigSet {
    [Number::SIGTERM, Number::SIGINT].into_iter().collect()
}

fn hangup() -> SigSet {
    [Number::SIGHUP].into_iter().collect()
}
