//! What the daemon was told, checked as a whole.

use std::net::SocketAddr;
use std::path::PathBuf;

use tapring_queue::{Policy, RxWake};
use thiserror::Error;

use crate::attachment::Attachment;
use crate::cpus;
use crate::features::QueueNum;
use crate::socket::SocketOptions;

/// Queue pairs a device may have: the rings of one must fit the 64 the crates count.
pub const MAX_QUEUE_PAIRS: u16 = 32;

/// Who moves the frames between the ring and the tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Poll {
    /// sqpoll if --sqpoll-cpu is given, else inline.
    #[default]
    Auto,
    /// The worker itself, in its system call.
    Inline,
    /// A kernel thread that watches the submission queue.
    Sqpoll,
}

/// Everything `serve` needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where frontends connect.
    pub socket: SocketOptions,
    /// What the guest is connected to.
    pub attachment: Attachment,
    /// Queue pairs, each with a worker.
    pub queue_pairs: u16,
    /// The largest ring a frontend may ask for, in descriptors.
    pub max_ring_size: u16,
    /// Who moves the frames.
    pub poll: Poll,
    /// Where the kernel's polling thread runs.
    pub sqpoll_cpu: Option<u32>,
    /// Leave the ring to kicks and polls, as on Linux before 6.4.
    pub plain_io: bool,
    /// Where workers run: pair n on the n-th of them, starting over at the end. Empty: anywhere.
    pub worker_cpus: Vec<u32>,
    /// The unit of GET_QUEUE_NUM.
    pub queue_num: QueueNum,
    /// Where /metrics is served.
    pub metrics: Option<SocketAddr>,
    /// Where the policy is asked for and changed.
    pub control_socket: Option<PathBuf>,
    /// How the guest is treated, to begin with.
    pub policy: Policy,
}

/// Settings that cannot be meant together, or not on this machine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    /// A CPU that is not there.
    #[error("{option}: CPU {cpu} is not online: this machine has {online}")]
    NoSuchCpu {
        /// The option it was given with.
        option: &'static str,
        /// The CPU.
        cpu: u32,
        /// The CPUs there are.
        online: String,
    },
    /// A polling thread was placed and forbidden at once.
    #[error("--sqpoll-cpu: --poll inline has no polling thread: leave out one of them")]
    NoPollingThread,
    /// Two sockets at one path.
    #[error("--control-socket: it is the --socket-path as well: choose another")]
    OneSocket,
    /// More than one thing to connect the guest to.
    #[error("tap, tap_fd and packet: more than one of them is given: give one")]
    SeveralInterfaces,
    /// Only taps are made.
    #[error(
        "create_tap: only a tap can be made, by its name: leave it out, or give a name with --tap"
    )]
    NothingToCreate,
    /// Only a packet socket sends past a queueing discipline.
    #[error(
        "packet_qdisc_bypass: a tap has no queueing discipline to bypass: leave it out, or give --packet"
    )]
    NothingToBypass,
    /// A descriptor is one queue.
    #[error(
        "--tap-fd: {descriptors} descriptors are not {queue_pairs} queue pairs: give one for each pair, or leave --queue-pairs out"
    )]
    Descriptors {
        /// How many were given.
        descriptors: usize,
        /// How many were wanted.
        queue_pairs: u16,
    },
    /// A packet socket is one queue.
    #[error(
        "--packet: it serves 1 queue pair, and {queue_pairs} are wanted: use 1, or a multi_queue tap in a bridge with the interface"
    )]
    PacketPairs {
        /// How many were wanted.
        queue_pairs: u16,
    },
    /// A threshold that no ring could reach.
    #[error(
        "rx_wake: {chains} buffers are more than the queue size, {size}: give half, first-free, empty, or a number from 1 to {size}"
    )]
    RxWake {
        /// The threshold.
        chains: u16,
        /// The largest ring a frontend may ask for.
        size: u16,
    },
}

/// Checks that a policy can be meant for rings of up to this size.
pub fn check_policy(policy: &Policy, max_ring_size: u16) -> Result<(), SettingsError> {
    match policy.rx_wake {
        RxWake::Chains(chains) if !policy.rx_wake.fits(max_ring_size) => {
            Err(SettingsError::RxWake {
                chains,
                size: max_ring_size,
            })
        }
        _ => Ok(()),
    }
}

/// Checks that there is a queue for each pair, as far as that can be known.
fn check_pairs(attachment: &Attachment, queue_pairs: u16) -> Result<(), SettingsError> {
    match attachment {
        Attachment::Descriptors(fds) if fds.len() != usize::from(queue_pairs) => {
            Err(SettingsError::Descriptors {
                descriptors: fds.len(),
                queue_pairs,
            })
        }
        Attachment::Packet { .. } if queue_pairs > 1 => {
            Err(SettingsError::PacketPairs { queue_pairs })
        }
        _ => Ok(()),
    }
}

impl Settings {
    /// Checks what no single option can be checked for.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.poll == Poll::Inline && self.sqpoll_cpu.is_some() {
            return Err(SettingsError::NoPollingThread);
        }
        if self.control_socket.as_ref() == Some(&self.socket.path) {
            return Err(SettingsError::OneSocket);
        }
        check_pairs(&self.attachment, self.queue_pairs)?;
        check_policy(&self.policy, self.max_ring_size)?;
        let Some(online) = cpus::online() else {
            return Ok(());
        };
        let sqpoll = self.sqpoll_cpu.iter().map(|cpu| ("--sqpoll-cpu", *cpu));
        let workers = self.worker_cpus.iter().map(|cpu| ("--worker-cpus", *cpu));
        match sqpoll.chain(workers).find(|(_, cpu)| !online.contains(cpu)) {
            Some((option, cpu)) => Err(SettingsError::NoSuchCpu {
                option,
                cpu,
                online: shown(&online),
            }),
            None => Ok(()),
        }
    }

    /// The keys of what another has otherwise and what only a restart changes: all but the policy.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let same = [
            ("socket_path", self.socket.path == other.socket.path),
            ("socket_mode", self.socket.mode == other.socket.mode),
            ("socket_group", self.socket.group == other.socket.group),
            ("queue_pairs", self.queue_pairs == other.queue_pairs),
            ("queue_size", self.max_ring_size == other.max_ring_size),
            ("poll", self.poll == other.poll),
            ("sqpoll_cpu", self.sqpoll_cpu == other.sqpoll_cpu),
            ("worker_cpus", self.worker_cpus == other.worker_cpus),
            ("queue_num", self.queue_num == other.queue_num),
            ("metrics", self.metrics == other.metrics),
            (
                "control_socket",
                self.control_socket == other.control_socket,
            ),
        ];
        let attachments = self
            .attachment
            .keys()
            .into_iter()
            .zip(other.attachment.keys());
        let attached = attachments.map(|((key, mine), (_, theirs))| (key, mine == theirs));
        let different = same.into_iter().chain(attached).filter(|(_, same)| !same);
        different.map(|(key, _)| key).collect()
    }

    /// Whether a kernel thread polls.
    pub const fn polls_in_kernel(&self) -> bool {
        match self.poll {
            Poll::Auto => self.sqpoll_cpu.is_some(),
            Poll::Inline => false,
            Poll::Sqpoll => true,
        }
    }

    /// The CPU of a pair's worker.
    pub fn worker_cpu(&self, pair: u16) -> Option<u32> {
        let count = self.worker_cpus.len();
        let position = usize::from(pair).checked_rem(count)?;
        self.worker_cpus.get(position).copied()
    }
}

fn shown(cpus: &[u32]) -> String {
    let words: Vec<_> = cpus.iter().map(u32::to_string).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            socket: SocketOptions {
                path: "/tmp/t.sock".into(),
                mode: 0o600,
                group: None,
            },
            attachment: Attachment::Tap {
                name: "t0".into(),
                create: false,
            },
            queue_pairs: 1,
            max_ring_size: 1024,
            poll: Poll::Auto,
            sqpoll_cpu: None,
            plain_io: false,
            worker_cpus: vec![],
            queue_num: QueueNum::Auto,
            metrics: None,
            control_socket: None,
            policy: Policy::DEFAULT,
        }
    }

    #[test]
    fn auto_means_sqpoll_exactly_when_it_has_a_cpu() {
        assert!(!settings().polls_in_kernel());
        let placed = Settings {
            sqpoll_cpu: Some(0),
            ..settings()
        };
        assert_eq!(placed.check(), Ok(()));
        assert!(placed.polls_in_kernel());
    }

    #[test]
    fn contradictions_are_refused() {
        let inline = Settings {
            poll: Poll::Inline,
            sqpoll_cpu: Some(0),
            ..settings()
        };
        assert_eq!(inline.check(), Err(SettingsError::NoPollingThread));
    }

    #[test]
    fn each_pair_needs_a_queue() {
        let pairs = |attachment: &Attachment, queue_pairs| {
            let settings = Settings {
                attachment: attachment.clone(),
                queue_pairs,
                ..settings()
            };
            settings.check()
        };
        let fds = Attachment::Descriptors(vec![5, 6]);
        assert_eq!(pairs(&fds, 2), Ok(()));
        let error = pairs(&fds, 1).expect_err("one too many").to_string();
        assert!(
            error.contains("2 descriptors are not 1 queue pairs"),
            "{error}"
        );
        let packet = Attachment::Packet {
            name: "v0".into(),
            qdisc_bypass: false,
        };
        assert_eq!(pairs(&packet, 1), Ok(()));
        let error = pairs(&packet, 4).expect_err("a socket is one queue");
        assert_eq!(error, SettingsError::PacketPairs { queue_pairs: 4 });
    }

    #[test]
    fn what_differs_is_named() {
        let other = Settings {
            attachment: Attachment::Packet {
                name: "v0".into(),
                qdisc_bypass: true,
            },
            ..settings()
        };
        let keys = settings().differences(&other);
        assert_eq!(keys, ["tap", "packet", "packet_qdisc_bypass"]);
        assert!(other.differences(&other).is_empty());
    }

    #[test]
    fn a_cpu_must_be_there() {
        let far = Settings {
            worker_cpus: vec![0, 8000],
            ..settings()
        };
        let error = far.check().expect_err("no machine of ours has that many");
        assert!(
            error
                .to_string()
                .starts_with("--worker-cpus: CPU 8000 is not online")
        );
    }

    #[test]
    fn workers_take_turns_on_the_cpus_given() {
        assert_eq!(settings().worker_cpu(3), None);
        let two = Settings {
            worker_cpus: vec![4, 6],
            ..settings()
        };
        let cpus: Vec<_> = (0..3).map(|pair| two.worker_cpu(pair)).collect();
        assert_eq!(cpus, [Some(4), Some(6), Some(4)]);
    }
}
