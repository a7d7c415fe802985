//! The options of `serve`, each once: a field is an option on the command line and a key of the configuration file, with
//! the same words for both. What is not said there has its default in [`Options::settings`].

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use tapring_queue::Policy;

use crate::attachment::{Attachment, Words};
use crate::features::QueueNum;
use crate::policy::PolicyChange;
use crate::settings::{Poll, Settings, SettingsError};
use crate::socket::SocketOptions;
use crate::value::{
    Cpu, CpuList, Descriptors, Group, InterfaceName, MetricsAddress, Mode, QueuePairs, RingSize,
    TapWord, Value, table, word,
};

/// Where `--metrics` without an address listens.
pub(crate) const DEFAULT_METRICS: &str = "127.0.0.1:9650";

/// What was said of a device, by the command line or by a file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Unix socket that the VMM connects to; the socket of a dead daemon is replaced
    #[arg(
        long,
        visible_alias = "socket",
        value_name = "PATH",
        required_unless_present = "config"
    )]
    socket_path: Option<PathBuf>,

    /// Permissions of the socket, octal: a VMM of another user needs write permission [default: 0600]
    #[arg(long, value_name = "MODE", value_parser = Mode::read)]
    #[serde(deserialize_with = "word")]
    socket_mode: Option<Mode>,

    /// Group of the socket, name or number [default: the process's]
    #[arg(long, value_name = "GROUP", value_parser = Group::read)]
    #[serde(deserialize_with = "word")]
    socket_group: Option<Group>,

    /// Name of the tap interface, 1 to 15 bytes, or device of a macvtap, such as /dev/tap5
    #[arg(long, value_name = "NAME|PATH", value_parser = TapWord::read, conflicts_with_all = ["tap_fd", "packet"],
          required_unless_present_any = ["config", "tap_fd", "packet"])]
    #[serde(deserialize_with = "word")]
    tap: Option<TapWord>,

    /// Create the tap if it does not exist; it then goes with the process
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = bool::read)]
    #[serde(deserialize_with = "word")]
    create_tap: Option<bool>,

    /// In place of --tap: descriptors that this process is started with, of queues of one tap or macvtap, such as 5,6; one a
    /// queue pair
    #[arg(long, value_name = "LIST", value_parser = Descriptors::read, conflicts_with = "packet")]
    #[serde(deserialize_with = "word")]
    tap_fd: Option<Descriptors>,

    /// In place of --tap: name of an interface that exists (a veth, a card), used through a packet socket. It is promiscuous
    /// meanwhile, and should have no address of the host's
    #[arg(long, value_name = "NAME", value_parser = InterfaceName::read)]
    #[serde(deserialize_with = "word")]
    packet: Option<InterfaceName>,

    /// With --packet: send past the interface's queueing discipline, unshaped and unfair
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = bool::read)]
    #[serde(deserialize_with = "word")]
    packet_qdisc_bypass: Option<bool>,

    /// Pairs of virtqueues, 1 to 32, each with a worker thread; more than 1 needs a multi_queue tap or a macvtap
    /// [default: 1, or one for each of --tap-fd]
    #[arg(long, value_name = "N", value_parser = QueuePairs::read)]
    #[serde(deserialize_with = "word")]
    queue_pairs: Option<QueuePairs>,

    /// Largest ring a VMM may ask for, in descriptors: a power of two up to 32768 [default: 1024]
    #[arg(long, value_name = "N", value_parser = RingSize::read)]
    #[serde(deserialize_with = "word")]
    queue_size: Option<RingSize>,

    /// Who moves the frames: the worker (inline), or a kernel thread (sqpoll) [default: auto]
    #[arg(long, value_enum, value_name = "MODE")]
    #[serde(deserialize_with = "word")]
    poll: Option<Poll>,

    /// CPU of the kernel thread of sqpoll; one that runs nothing else
    #[arg(long, value_name = "CPU", value_parser = Cpu::read)]
    #[serde(deserialize_with = "word")]
    sqpoll_cpu: Option<Cpu>,

    /// CPUs of the workers, such as 0-3,6: pair n runs on the n-th [default: anywhere]
    #[arg(long, value_name = "LIST", value_parser = CpuList::read)]
    #[serde(deserialize_with = "word")]
    worker_cpus: Option<CpuList>,

    /// Unit of the answer to VHOST_USER_GET_QUEUE_NUM; auto tells QEMU from cloud-hypervisor [default: auto]
    #[arg(long, value_enum, value_name = "UNIT")]
    #[serde(deserialize_with = "word")]
    queue_num: Option<QueueNum>,

    /// Serve Prometheus metrics over HTTP [default: off; without an address: 127.0.0.1:9650]
    #[arg(long, value_name = "ADDR:PORT|off", num_args = 0..=1, default_missing_value = DEFAULT_METRICS,
          value_parser = MetricsAddress::read)]
    #[serde(deserialize_with = "word")]
    metrics: Option<MetricsAddress>,

    /// Unix socket, for its owner alone, on which `tapring policy` asks and changes [default: none]
    #[arg(long, value_name = "PATH")]
    control_socket: Option<PathBuf>,

    /// Move frames by read(2) and write(2), as on Linux before 6.4, even where the ring could
    #[arg(long, hide = true)]
    #[serde(skip)]
    plain_io: bool,

    /// When to ask the guest for kicks, how long to look for work, and whose turn it is: changeable at run time
    #[command(flatten, next_help_heading = "Policy")]
    #[serde(deserialize_with = "table")]
    policy: PolicyChange,
}

impl Options {
    /// These, and those of `base` where nothing was said.
    pub(crate) fn over(self, base: Self) -> Self {
        let words = self.words().over(base.words());
        Self {
            socket_path: self.socket_path.or(base.socket_path),
            socket_mode: self.socket_mode.or(base.socket_mode),
            socket_group: self.socket_group.or(base.socket_group),
            tap: words.tap,
            create_tap: words.create_tap,
            tap_fd: words.tap_fd,
            packet: words.packet,
            packet_qdisc_bypass: words.qdisc_bypass,
            queue_pairs: self.queue_pairs.or(base.queue_pairs),
            queue_size: self.queue_size.or(base.queue_size),
            poll: self.poll.or(base.poll),
            sqpoll_cpu: self.sqpoll_cpu.or(base.sqpoll_cpu),
            worker_cpus: self.worker_cpus.or(base.worker_cpus),
            queue_num: self.queue_num.or(base.queue_num),
            metrics: self.metrics.or(base.metrics),
            control_socket: self.control_socket.or(base.control_socket),
            plain_io: self.plain_io || base.plain_io,
            policy: self.policy.over(&base.policy),
        }
    }

    fn words(&self) -> Words {
        Words {
            tap: self.tap.clone(),
            create_tap: self.create_tap,
            tap_fd: self.tap_fd.clone(),
            packet: self.packet.clone(),
            qdisc_bypass: self.packet_qdisc_bypass,
        }
    }

    /// All of it, with defaults where nothing was said.
    pub(crate) fn settings(self) -> Result<Settings, Incomplete> {
        let attachment = self.words().attachment()?;
        let attachment = attachment.ok_or(Incomplete::Missing("tap"))?;
        let pairs = match &attachment {
            Attachment::Descriptors(fds) => u16::try_from(fds.len()).unwrap_or(u16::MAX),
            _ => 1,
        };
        Ok(Settings {
            socket: SocketOptions {
                path: self.socket_path.ok_or(Incomplete::Missing("socket_path"))?,
                mode: self.socket_mode.map_or(0o600, |mode| mode.0),
                group: self.socket_group.map(|group| group.0),
            },
            attachment,
            queue_pairs: self.queue_pairs.map_or(pairs, |pairs| pairs.0),
            max_ring_size: self.queue_size.map_or(1024, |size| size.0),
            poll: self.poll.unwrap_or_default(),
            sqpoll_cpu: self.sqpoll_cpu.map(|cpu| cpu.0),
            plain_io: self.plain_io,
            worker_cpus: self.worker_cpus.map_or_else(Vec::new, |list| list.0),
            queue_num: self.queue_num.unwrap_or_default(),
            metrics: self.metrics.and_then(|metrics| metrics.0),
            control_socket: self.control_socket,
            policy: self.policy.applied_to(Policy::DEFAULT),
        })
    }
}

/// Options that do not amount to settings.
#[derive(Debug)]
pub(crate) enum Incomplete {
    /// One that has no default was not given.
    Missing(&'static str),
    /// Some do not go together.
    Contradiction(SettingsError),
}

impl From<SettingsError> for Incomplete {
    fn from(error: SettingsError) -> Self {
        Self::Contradiction(error)
    }
}
