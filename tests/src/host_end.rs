//! The host's end of a tap, for frames that tapring-guest sends and verifies.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use tapring_guest::traffic::{Endpoint, Flow, Verdict, Verifier, fill_payload};

use crate::net::Net;

/// Ethernet, IPv4 and UDP in front of the payload.
const HEADER_BYTES: usize = 42;

/// Room for some hundred frames of 9000 bytes, each of which the kernel counts as 16 KiB and more.
const SOCKET_BYTES: usize = 16 << 20;

/// A UDP socket behind a tap. The kernel puts on and takes off the headers, and checks them.
#[derive(Debug)]
pub struct HostEnd {
    socket: UdpSocket,
    payload: Vec<u8>,
}

impl HostEnd {
    /// The flow from the host to the guest.
    #[must_use]
    pub fn to_guest() -> Flow {
        Flow::default()
    }

    /// The flow from the guest to the host.
    #[must_use]
    pub fn to_host() -> Flow {
        let flow = Flow::default();
        Flow {
            source: flow.destination,
            destination: flow.source,
            ..flow
        }
    }

    /// Gives the tap its address, tells it the guest's, and sees to it that it carries nothing but the two flows.
    ///
    /// # Errors
    /// When `ip` fails or the port is taken.
    pub fn on(net: &Net, tap: &str, mtu: usize) -> Result<Self> {
        let Flow {
            source: host,
            destination: guest,
            ..
        } = Self::to_guest();
        net.ip(&format!(
            "link set {tap} arp off mtu {mtu} address {}",
            mac(host)
        ))?;
        net.ip(&format!("addr add {}/24 dev {tap}", host.ip))?;
        net.ip(&format!(
            "neigh replace {} lladdr {} dev {tap} nud permanent",
            guest.ip,
            mac(guest)
        ))?;
        let socket = UdpSocket::bind((host.ip, host.port))?;
        socket.connect((guest.ip, guest.port))?;
        setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BYTES)
            .context("set the receive buffer")?;
        Ok(Self {
            socket,
            payload: vec![0; mtu],
        })
    }

    /// The same end for another thread.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
            payload: self.payload.clone(),
        })
    }

    /// Sends frame number `sequence`, `bytes` long. The tap may drop it, and then counts it.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn send(&mut self, sequence: u64, bytes: usize) -> Result<()> {
        let payload = &mut self.payload[..bytes - HEADER_BYTES];
        fill_payload(sequence, payload);
        self.socket
            .send(payload)
            .with_context(|| format!("send frame {sequence} of {bytes} bytes"))?;
        Ok(())
    }

    /// Takes one frame to the verifier; `None` if none came within `limit`.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn receive(&mut self, verifier: &mut Verifier, limit: Duration) -> Result<Option<Verdict>> {
        self.socket.set_read_timeout(Some(limit))?;
        match self.socket.recv(&mut self.payload) {
            Ok(bytes) => Ok(Some(verifier.payload(&self.payload[..bytes]))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => bail!("receive on the host: {error}"),
        }
    }
}

fn mac(end: Endpoint) -> String {
    end.mac.map(|byte| format!("{byte:02x}")).join(":")
}
