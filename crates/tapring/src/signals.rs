//! SIGTERM and SIGINT.
//!
//! From the first lines of the program on they are held back by the thread's mask, until there is somebody to catch them:
//! a daemon that is told to end while it is still starting ends in order too. (Before that the kernel's default applies:
//! the process ends, with nothing begun.)

use std::io;

use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{SignalKind, signal};

/// Holds the signals back until [`terminated`] catches them. For the thread that will, before there are others.
pub fn hold() -> io::Result<()> {
    Ok(both().thread_block()?)
}

/// Resolves at the first SIGTERM or SIGINT. Later ones change nothing: the end has a limit of its own.
///
/// The signals are caught from the first time this is polled, which must be on the control thread.
pub async fn terminated() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    both().thread_unblock()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn both() -> SigSet {
    [Number::SIGTERM, Number::SIGINT].into_iter().collect()
}
