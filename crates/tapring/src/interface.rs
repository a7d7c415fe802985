//! What frames go to and come from, opened: a tap, or an interface behind a packet socket.

use std::io;
use std::os::fd::OwnedFd;

use tapring_io::{
    PacketError, PacketOptions, PacketSocket, PortOptions, Tap, TapError, TapOptions,
};
use tapring_metrics::Counter;
use thiserror::Error;
use tracing::{info, warn};

use crate::attachment::Attachment;
use crate::tap_drops;

/// Why there is none.
#[derive(Debug, Error)]
pub enum InterfaceError {
    /// A tap or macvtap.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A packet socket.
    #[error(transparent)]
    Packet(#[from] PacketError),
}

/// One of the two. All workers have descriptors of their own; this one keeps the settings that go with the last.
#[derive(Debug)]
pub(crate) enum Interface {
    Tap(Tap),
    Packet(PacketSocket),
}

impl Interface {
    /// Opens what was asked for, with a queue for each pair.
    pub(crate) fn open(attachment: &Attachment, queue_pairs: u16) -> Result<Self, InterfaceError> {
        Ok(match attachment {
            Attachment::Tap { name, create } => Self::Tap(Tap::open(&TapOptions {
                name: name.clone(),
                queue_pairs,
                create: *create,
            })?),
            Attachment::Device(path) => Self::Tap(Tap::open_device(path, queue_pairs)?),
            Attachment::Descriptors(descriptors) => Self::Tap(Tap::inherit(descriptors)?),
            Attachment::Packet { name, qdisc_bypass } => {
                Self::Packet(PacketSocket::open(&PacketOptions {
                    name: name.clone(),
                    qdisc_bypass: *qdisc_bypass,
                })?)
            }
        })
    }

    /// Its name, which is the device's.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Tap(tap) => tap.name(),
            Self::Packet(socket) => socket.name(),
        }
    }

    /// Another descriptor of the queue of a pair.
    pub(crate) fn try_clone_queue(&self, pair: u16) -> io::Result<OwnedFd> {
        match self {
            Self::Tap(tap) => tap.try_clone_queue(pair),
            Self::Packet(socket) => socket.try_clone_socket(),
        }
    }

    /// Room for the frames that come from it.
    pub(crate) fn with_slots(&self, options: PortOptions) -> PortOptions {
        match self {
            Self::Tap(tap) => options.with_mtu(tap.mtu().unwrap_or_default()),
            Self::Packet(_) => options.with_super_frames(),
        }
    }

    /// Adds to `dropped` what the kernel dropped since it was last asked because nobody read it.
    pub(crate) fn count_drops(&self, dropped: &Counter) {
        match self {
            Self::Tap(tap) => {
                if let Some(drops) = tap_drops::read(tap.name()) {
                    dropped.absolute(drops);
                }
            }
            Self::Packet(socket) => {
                if let Ok(drops) = socket.take_drops() {
                    dropped.increment(drops.into());
                }
            }
        }
    }

    /// Whether nothing but [`is_gone`](Self::is_gone) may tell that it was deleted.
    pub(crate) const fn goes_silently(&self) -> bool {
        matches!(self, Self::Tap(tap) if tap.given())
    }

    /// Whether it was deleted, if it is of the kind that goes silently.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Tap(tap) if tap.is_gone())
    }

    /// Says in the log what it is, and what is wrong with it.
    pub(crate) fn describe(&self) {
        match self {
            Self::Tap(tap) => describe_tap(tap),
            Self::Packet(socket) => describe_socket(socket),
        }
        let device = self.name();
        let is_up = match self {
            Self::Tap(tap) => tap.is_up(),
            Self::Packet(socket) => socket.is_up(),
        };
        if matches!(is_up, Ok(false)) {
            warn!(
                device,
                "the interface is down, frames are dropped: bring it up with `ip link set {device} up`"
            );
        }
    }
}

fn describe_tap(tap: &Tap) {
    let (device, index, queues) = (tap.name(), tap.index(), tap.queue_pairs());
    let origin = match (tap.created(), tap.given()) {
        (true, _) => "created",
        (_, true) => "taken over",
        _ => "opened",
    };
    info!(device, index, queues, "tap {origin}");
    if let Ok(Some(bytes)) = tap.send_buffer() {
        warn!(
            device,
            "the tap has a send buffer of {bytes} bytes, which costs 15 %: leave TUNSETSNDBUF alone"
        );
    }
}

fn describe_socket(socket: &PacketSocket) {
    let (device, index) = (socket.name(), socket.index());
    info!(
        device,
        index, "packet socket opened; the interface is promiscuous while it is"
    );
    if let Ok((bytes, wanted)) = socket.receive_buffer()
        && bytes < wanted
    {
        warn!(
            device,
            "only {bytes} of {wanted} bytes may wait in the socket, bursts will be dropped: give CAP_NET_ADMIN, or raise \
             the sysctl net.core.rmem_max to {}",
            wanted / 2
        );
    }
}
