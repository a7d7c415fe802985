//! What can go wrong with a tap.

use std::io;

/// A tap cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// Not a name an interface can have.
    #[error(
        "`{name}` cannot be the name of a tap: give 1 to 15 bytes without blanks, `/`, `:` and `%`"
    )]
    Name {
        /// The name given.
        name: String,
    },
    /// No queue pair, or too many.
    #[error("tap `{name}` cannot have {queue_pairs} queue pairs: give 1 to 256")]
    QueuePairs {
        /// The tap.
        name: String,
        /// The number given.
        queue_pairs: u16,
    },
    /// There is no such interface, and none was to be created.
    #[error(
        "tap `{name}` does not exist: create it with `ip tuntap add {name} mode tap{kind}` or pass --create-tap"
    )]
    Missing {
        /// The tap.
        name: String,
        /// ` multi_queue` when that is needed.
        kind: &'static str,
    },
    /// The interface is something else.
    #[error(
        "`{name}` is not a tap (a tun, a bridge or a network card): name another interface, or remove this one"
    )]
    NotATap {
        /// The interface.
        name: String,
    },
    /// One queue, but several are wanted.
    #[error(
        "tap `{name}` has a single queue and {queue_pairs} queue pairs are wanted: create it again with \
         `ip tuntap add {name} mode tap multi_queue`, or use one pair"
    )]
    SingleQueue {
        /// The tap.
        name: String,
        /// The number of pairs wanted.
        queue_pairs: u16,
    },
    /// Someone has it.
    #[error(
        "tap `{name}` is held by another process: stop that process, or use a tap of its own for each"
    )]
    Busy {
        /// The tap.
        name: String,
    },
    /// Not allowed to use or create it.
    #[error(
        "no permission for tap `{name}`: run as root, give CAP_NET_ADMIN, or create it with \
         `ip tuntap add {name} mode tap{kind} user $USER`"
    )]
    Denied {
        /// The tap.
        name: String,
        /// ` multi_queue` when that is needed.
        kind: &'static str,
    },
    /// No tun driver.
    #[error(
        "/dev/net/tun is missing: load the driver with `modprobe tun`, or give the container that device"
    )]
    NoDriver {
        /// What open(2) said.
        source: io::Error,
    },
    /// Not allowed to open the tun driver.
    #[error(
        "/dev/net/tun cannot be opened: give this user read and write access to it, and the container that device"
    )]
    DriverDenied {
        /// What open(2) said.
        source: io::Error,
    },
    /// A descriptor or a file that is something else.
    #[error("{what} is no queue of a tap or macvtap: {remedy}")]
    NotAQueue {
        /// Which descriptor or file.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Nothing under that number.
    #[error(
        "file descriptor {fd} is not open: start tapring with it, as in `tapring serve --tap-fd {fd} ... {fd}<>/dev/tap5`"
    )]
    NoSuchFd {
        /// The number given.
        fd: i32,
    },
    /// No queues of one tap.
    #[error(
        "{first} and {second} are queues of different taps, `{first_tap}` and `{second_tap}`: give those of one"
    )]
    TwoTaps {
        /// A descriptor.
        first: String,
        /// Its tap.
        first_tap: String,
        /// Another.
        second: String,
        /// Its tap.
        second_tap: String,
    },
    /// A macvtap's device that cannot be opened.
    #[error(
        "{path} cannot be opened: {source}: make it with `ip link add link eth0 name macvtap0 type macvtap`, and give this \
         user read and write access"
    )]
    Device {
        /// The device.
        path: String,
        /// What open(2) said.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot {action} tap `{name}`: look at the error behind this and at `dmesg`")]
    System {
        /// The tap.
        name: String,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
