//! Fills a tap from the host's side: a packet socket and sendmmsg(2).

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind};
use rustix::net::{
    AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmmsg,
    socket_with,
};

use crate::BenchError;

/// Frames in one system call.
const BATCH: usize = 64;

/// Sends one frame to a tap, again and again.
#[derive(Debug)]
pub struct Filler {
    socket: OwnedFd,
    interface: String,
    frame: Vec<u8>,
}

impl Filler {
    /// A sender of `frame` to `interface`.
    pub fn new(interface: &str, frame: &[u8]) -> Result<Self, BenchError> {
        let socket = open(interface).map_err(|source| BenchError::Send {
            interface: interface.to_owned(),
            source,
        })?;
        Ok(Self {
            socket,
            interface: interface.to_owned(),
            frame: frame.to_owned(),
        })
    }

    /// Sends `frames` frames. They wait in the tap's queue, as far as it has room.
    pub fn fill(&self, frames: usize) -> Result<(), BenchError> {
        let mut sent = 0;
        while sent < frames {
            sent += self
                .send(BATCH.min(frames - sent))
                .map_err(|source| BenchError::Send {
                    interface: self.interface.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    fn send(&self, frames: usize) -> io::Result<usize> {
        let parts = [IoSlice::new(&self.frame)];
        let mut control: [SendAncillaryBuffer<'_, '_, '_>; BATCH] =
            std::array::from_fn(|_| SendAncillaryBuffer::default());
        let mut messages: Vec<_> = control
            .iter_mut()
            .take(frames)
            .map(|control| MMsgHdr::new(&parts, control))
            .collect();
        Ok(sendmmsg(&self.socket, &mut messages, SendFlags::empty())?)
    }
}

/// A packet socket for sending only: with protocol 0 it receives nothing, its own frames included.
fn open(interface: &str) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(socket.as_raw_fd(), &link_address(interface)?)?;
    Ok(socket)
}

fn link_address(interface: &str) -> io::Result<LinkAddr> {
    let mut addresses = getifaddrs()?.filter(|found| found.interface_name == interface);
    let address = addresses.find_map(|found| found.address?.as_link_addr().copied());
    address.ok_or_else(|| io::ErrorKind::NotFound.into())
}
