//! The host's side of the tap: an address, a neighbour, sockets, and the kernel's own counts.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::{Handle, LinkUnspec};
use tapring_guest::traffic::{Endpoint, Flow, Wrapping};

/// Addresses of RFC 2544, set aside for benchmarks.
const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const GUEST_MAC: [u8; 6] = [0x02, 0x74, 0x61, 0x70, 0, 1];

/// UDP payload of a datagram that fills an MTU of 1500.
pub(super) const PAYLOAD_BYTES: usize = 1472;

/// Socket buffers: room for what arrives while the receiver does not run.
const SOCKET_BYTES: usize = 8 << 20;

/// The host's end of the tap.
pub(super) struct Host {
    tap: String,
    mac: [u8; 6],
}

/// Brings loopback up, which a new network namespace has down; the daemon's metrics are there.
pub(super) fn loopback_up() -> Result<()> {
    const LOOPBACK: u32 = 1;
    let up = LinkUnspec::new_with_index(LOOPBACK).up().build();
    netlink(async |handle| Ok(handle.link().set(up).execute().await?))
        .context("cannot bring loopback up")
}

/// Runs requests to the kernel's netlink.
fn netlink<T>(requests: impl AsyncFnOnce(Handle) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let result = requests(handle).await;
        connection.abort();
        result
    })
}

/// What the kernel counts of a tap. Directions are the host's: it receives what the guest sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkCounts {
    pub(super) rx_packets: u64,
    pub(super) tx_dropped: u64,
}

impl Host {
    /// Gives the tap an address and tells it where the guest is.
    pub(super) fn set_up(tap: &str) -> Result<Self> {
        // The guest does not answer neighbour discovery, and frames it did not ask for only
        // disturb the counts. Where IPv6 is not there, there is nothing to switch off.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{tap}/disable_ipv6"), "1");
        let mac = netlink(async |handle| configure(&handle, tap).await);
        Ok(Self {
            tap: tap.to_owned(),
            mac: mac.with_context(|| format!("cannot set up {tap}"))?,
        })
    }

    /// A socket that receives the guest's datagrams, and their flow.
    pub(super) fn receiver(&self) -> Result<(UdpSocket, Flow)> {
        let socket = UdpSocket::bind((HOST, 0))?;
        // As root the limit of net.core.rmem_max does not hold; else the kernel takes what it may.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
        }
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let flow = Flow {
            source: guest(5001),
            destination: self.host(socket.local_addr()?.port()),
            wrapping: Wrapping::Udp,
        };
        Ok((socket, flow))
    }

    /// A socket that sends datagrams to the guest, and their flow.
    pub(super) fn sender(&self) -> Result<(UdpSocket, Flow)> {
        let socket = UdpSocket::bind((HOST, 0))?;
        socket.connect((GUEST, 5002))?;
        let flow = Flow {
            source: self.host(socket.local_addr()?.port()),
            destination: guest(5002),
            wrapping: Wrapping::Udp,
        };
        Ok((socket, flow))
    }

    /// Tells a receiver that no more will come: an empty datagram, which comes after all that the guest sent.
    pub(super) fn end(receiver: &UdpSocket) -> Result<()> {
        let socket = UdpSocket::bind((HOST, 0))?;
        // If the receiver's buffer is full it is dropped, and the receiver finds out by itself.
        socket.send_to(&[], receiver.local_addr()?)?;
        Ok(())
    }

    fn host(&self, port: u16) -> Endpoint {
        Endpoint {
            mac: self.mac,
            ip: HOST,
            port,
        }
    }

    /// The tap's counts, from /proc: /sys shows the network namespace it was mounted in.
    pub(super) fn counts(&self) -> Result<LinkCounts> {
        let table = fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = table
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(&self.tap)?.strip_prefix(':'));
        let line = line.with_context(|| format!("{} is gone", self.tap))?;
        let counts: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        ensure!(
            counts.len() >= 16,
            "/proc/net/dev has another format than expected"
        );
        Ok(LinkCounts {
            rx_packets: counts[1],
            tx_dropped: counts[11],
        })
    }
}

const fn guest(port: u16) -> Endpoint {
    Endpoint {
        mac: GUEST_MAC,
        ip: GUEST,
        port,
    }
}

async fn configure(handle: &Handle, tap: &str) -> Result<[u8; 6]> {
    let mut links = handle.link().get().match_name(tap.to_owned()).execute();
    let link = links.try_next().await?.context("it does not exist")?;
    let index = link.header.index;
    let address = IpAddr::V4(HOST);
    handle.address().add(index, address, 24).execute().await?;
    handle
        .link()
        .set(LinkUnspec::new_with_index(index).up().build())
        .execute()
        .await?;
    handle
        .neighbours()
        .add(index, IpAddr::V4(GUEST))
        .link_local_address(&GUEST_MAC)
        .state(NeighbourState::Permanent)
        .execute()
        .await?;
    let mac = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Address(address) => address.as_slice().try_into().ok(),
            _ => None,
        });
    mac.context("it has no Ethernet address")
}
