//! Log lines: to stderr, one event a line, RUST_LOG decides which.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// The vhost and virtio crates repeat in their own words what our lines say, and know no limit; RUST_LOG can have them.
const DEFAULT: &str =
    "info,vhost=off,vhost_user_backend=off,virtio_queue=off,netlink_packet_route=off";

/// Sends log events to stderr from now on. A second call changes nothing.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let _ = tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}
