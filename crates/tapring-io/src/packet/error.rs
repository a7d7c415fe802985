//! What can go wrong with a packet socket.

use std::io;

/// An interface cannot be used through a packet socket.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// Not a name an interface can have.
    #[error(
        "`{name}` cannot be the name of an interface: give 1 to 15 bytes without blanks, `/`, `:` and `%`"
    )]
    Name {
        /// The name given.
        name: String,
    },
    /// There is no such interface.
    #[error(
        "interface `{name}` does not exist: `ip link` shows those that do, and `ip link add {name} type veth` makes one"
    )]
    Missing {
        /// The interface.
        name: String,
    },
    /// Something without Ethernet headers.
    #[error(
        "interface `{name}` carries no Ethernet frames (its link type is {link_type}): name a veth, a network card or a VLAN \
         of one"
    )]
    NotEthernet {
        /// The interface.
        name: String,
        /// ARPHRD_* of <linux/if_arp.h>.
        link_type: u16,
    },
    /// Not allowed to make packet sockets.
    #[error(
        "no permission for a packet socket on `{name}`: run as root, or give CAP_NET_RAW (AmbientCapabilities=CAP_NET_RAW)"
    )]
    Denied {
        /// The interface.
        name: String,
    },
    /// No packet sockets.
    #[error("the kernel has no packet sockets: load them with `modprobe af_packet`")]
    NoPacketSockets {
        /// What socket(2) said.
        source: io::Error,
    },
    /// Anything else.
    #[error(
        "cannot {action} `{name}`: {source}: it takes Linux 4.20 or later, and an interface that stays"
    )]
    System {
        /// The interface.
        name: String,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PacketError {
    /// From what socket(2) said.
    pub(super) fn of_socket(name: &str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Denied { name },
            Some(libc::EAFNOSUPPORT) => Self::NoPacketSockets { source },
            _ => Self::System {
                name,
                action: "open a packet socket for",
                source,
            },
        }
    }
}
