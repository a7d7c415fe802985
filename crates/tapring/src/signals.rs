//! SIGTERM and SIGINT.

use std::io;
use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a shell says of a process that was interrupted.
const EXIT_INTERRUPTED: i32 = 130;

/// Resolves at the first SIGTERM or SIGINT. At the second the process exits, whatever it is waiting for.
///
/// The signals are caught from the first time this is polled, which must be on the control thread.
pub async fn terminated() -> io::Result<()> {
    let mut signals = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    either(&mut signals).await;
    tokio_uring::spawn(async move {
        either(&mut signals).await;
        process::exit(EXIT_INTERRUPTED);
    });
    Ok(())
}

async fn either((one, other): &mut (Signal, Signal)) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
