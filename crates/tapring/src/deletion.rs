//! An interface that goes away without a word.
//!
//! Of a tap, and of the interface behind a packet socket, the worker hears by itself: an error, a POLLERR. The queue of a
//! deleted macvtap goes on taking frames, finds none, and polls as if nothing were; only a question tells
//! ([`Tap::is_gone`](tapring_io::Tap::is_gone)). So whenever the kernel says that links have changed (rtnetlink(7)), it is
//! asked. An idle host's links do not change, so that an idle daemon stays asleep.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Weak;

use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use rustix::io::Errno;
use tokio_uring::fs::File;
use tracing::{error, warn};

use crate::interface::Interface;

/// RTMGRP_LINK of <linux/rtnetlink.h>.
const LINKS: u32 = 1;

/// Says so in the log when the interface is deleted, if it is one that does not say so itself.
pub(crate) async fn report(interface: Weak<Interface>) {
    if !interface.upgrade().is_some_and(|it| it.goes_silently()) {
        return;
    }
    if let Err(reason) = watch(&interface).await {
        warn!(
            "cannot watch the network's links: {reason}: that a macvtap is deleted will not be said"
        );
    }
}

/// Returns when it is deleted, or closed.
async fn watch(interface: &Weak<Interface>) -> io::Result<()> {
    let changes = File::from_std(std::fs::File::from(subscribe()?));
    let mut scratch = vec![0; 64];
    while let Some(interface) = interface.upgrade() {
        if interface.is_gone() {
            let device = interface.name();
            error!(
                device,
                "the interface was deleted: make it again and restart the daemon"
            );
            return Ok(());
        }
        drop(interface);
        let (read, buffer) = changes.read_at(scratch, 0).await;
        scratch = buffer;
        match read.map_err(|error| (Errno::from_io_error(&error), error)) {
            // What has changed does not matter, nor does it that some of it was lost.
            Ok(_) | Err((Some(Errno::NOBUFS), _)) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}

/// A socket that has something to read whenever a link changes.
fn subscribe() -> io::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, LINKS))?;
    Ok(socket)
}
