//! The host's end of a tap for frames of any kind: a packet socket.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, SockaddrLike};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send,
    socket_with, sockopt,
};
use tapring_guest::traffic::{ETHERTYPE_RAW, Verifier};

/// Room for what arrives while the receiver does not run.
const BUFFER_BYTES: usize = 256 << 20;

/// Longest frame there can be on an interface here.
const FRAME_BYTES: usize = 1 << 17;

/// A packet socket bound to one interface. It receives what the interface receives with ethertype 0x88b5, not what it sends.
#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Wire {
    /// Binds to the interface, which has to be up.
    ///
    /// # Errors
    /// When there is no such interface, or the socket may not be made.
    pub fn on(interface: &str) -> Result<Self> {
        let protocol = NonZeroU32::new(u32::from(ETHERTYPE_RAW.to_be())).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol)
            .context("make a packet socket")?;
        nix::sys::socket::bind(socket.as_raw_fd(), &link_address(interface)?)
            .with_context(|| format!("bind a packet socket to {interface}"))?;
        sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)
            .context("raise SO_RCVBUF")?;
        Ok(Self {
            socket,
            buffer: vec![0; FRAME_BYTES],
        })
    }

    /// Sends a frame out of the interface: to a tap's guest. That the interface drops it is no error.
    ///
    /// # Errors
    /// When the interface refuses it.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let sent = loop {
            match send(&self.socket, frame, SendFlags::empty()) {
                // The queue of the interface is full. It drops or drains; both end.
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, Duration::from_secs(1))?,
                Err(Errno::NOBUFS) => break frame.len(),
                sent => break sent.context("send a frame to the tap")?,
            };
        };
        ensure!(
            sent == frame.len(),
            "the interface took {sent} bytes of {}",
            frame.len()
        );
        Ok(())
    }

    /// The next frame the interface received (from a tap's guest), if there is one.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn try_receive(&mut self) -> Result<Option<&[u8]>> {
        match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((bytes, _)) => Ok(Some(&self.buffer[..bytes])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error).context("receive from the tap"),
        }
    }

    /// Takes all frames there are to the verifier.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self, verifier: &mut Verifier) -> Result<()> {
        while let Some(frame) = self.try_receive()? {
            verifier.frame(frame);
        }
        Ok(())
    }

    /// The next frame, waited for up to `limit`.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<&[u8]>> {
        self.wait(PollFlags::IN, limit)?;
        self.try_receive()
    }

    fn wait(&self, what: PollFlags, limit: Duration) -> Result<bool> {
        let mut fds = [PollFd::new(&self.socket, what)];
        let limit = Timespec::try_from(limit)?;
        match poll(&mut fds, Some(&limit)) {
            Err(Errno::INTR) => Ok(false),
            ready => Ok(ready.map_err(io::Error::from)? > 0),
        }
    }
}

/// The address to bind to, as the kernel lists it.
fn link_address(interface: &str) -> Result<LinkAddr> {
    let found = getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .filter_map(|entry| entry.address)
        .find_map(|address| address.as_link_addr().copied());
    let found = found.with_context(|| format!("no link address of {interface}"))?;
    ensure!(found.len() > 0, "an empty link address");
    Ok(found)
}
