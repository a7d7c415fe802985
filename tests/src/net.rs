//! A network namespace for one scenario.

use std::fs;
use std::marker::PhantomData;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};

use crate::process::until;

/// What the kernel counted on an interface. As the host sees it: `rx` of a tap is what the daemon wrote to it (the guest's
/// transmit direction), `tx` what the daemon read from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes from the daemon.
    pub rx_bytes: u64,
    /// Frames from the daemon.
    pub rx_packets: u64,
    /// Frames from the daemon that the tap or the stack refused.
    pub rx_dropped: u64,
    /// Bytes to the daemon.
    pub tx_bytes: u64,
    /// Frames that the daemon read.
    pub tx_packets: u64,
    /// Frames that found the tap's own queue full.
    pub tx_dropped: u64,
}

/// The namespace that the current thread is in; threads and processes started from it are in it too. It goes away with the
/// last of them.
#[derive(Debug)]
pub struct Net {
    // The namespace is this thread's.
    _of_this_thread: PhantomData<*const ()>,
}

impl Net {
    /// Moves the current thread into a new namespace: loopback up, IPv6 off so that the kernel sends nothing unasked.
    ///
    /// # Errors
    /// When the thread may not.
    pub fn enter() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET).context("unshare the network namespace")?;
        let net = Self {
            _of_this_thread: PhantomData,
        };
        for scope in ["all", "default"] {
            // Absent on a kernel without IPv6, and then not needed.
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
        }
        net.ip("link set lo up")?;
        Ok(net)
    }

    /// Runs `ip` with the words of `arguments`.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        let done = Command::new("ip")
            .args(arguments.split_whitespace())
            .output()
            .context("run ip")?;
        ensure!(
            done.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        );
        Ok(())
    }

    /// Makes a tap, persistent as `ip` makes them and up. `kind` is empty or `multi_queue`, `user 1001` and the like.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn tap(&self, name: &str, kind: &str) -> Result<()> {
        self.ip(&format!("tuntap add dev {name} mode tap {kind}"))?;
        self.ip(&format!("link set {name} up"))
    }

    /// Makes a veth, whose ends are up and carry frames.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn veth(&self, name: &str, peer: &str, mtu: usize) -> Result<()> {
        self.ip(&format!("link add {name} type veth peer name {peer}"))?;
        for end in [name, peer] {
            self.ip(&format!("link set {end} mtu {mtu} up"))?;
        }
        self.wait_running(name)?;
        self.wait_running(peer)
    }

    /// Waits until the interface carries frames: it may have a carrier before, but what is sent to it is dropped until the
    /// kernel's link watch has taken note.
    ///
    /// # Errors
    /// When it does not within five seconds.
    pub fn wait_running(&self, name: &str) -> Result<()> {
        until(Duration::from_secs(5), "the interface to run", || {
            let mut ip = Command::new("ip");
            let shown = ip.args(["-o", "link", "show", name]).output().ok()?;
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            (shown.contains("LOWER_UP") && !shown.contains("qdisc noop")).then_some(())
        })
    }

    /// Whether there is such an interface.
    #[must_use]
    pub fn exists(&self, name: &str) -> bool {
        self.counters(name).is_ok()
    }

    /// The names of all interfaces but loopback.
    ///
    /// # Errors
    /// When the kernel's table cannot be read.
    pub fn interfaces(&self) -> Result<Vec<String>> {
        let table = device_table()?;
        let names = table
            .lines()
            .skip(2)
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name.trim().to_owned());
        Ok(names.filter(|name| name != "lo").collect())
    }

    /// What the kernel counted on the interface since it was made.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn counters(&self, name: &str) -> Result<Counters> {
        let table = device_table()?;
        let row = table
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(found, _)| found.trim() == name);
        let (_, row) = row.with_context(|| format!("no interface {name}"))?;
        let fields = row
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()?;
        let [
            rx_bytes,
            rx_packets,
            _,
            rx_dropped,
            _,
            _,
            _,
            _,
            tx_bytes,
            tx_packets,
            _,
            tx_dropped,
            ..,
        ] = fields[..]
        else {
            anyhow::bail!("unknown layout of /proc/net/dev: {row}");
        };
        Ok(Counters {
            rx_bytes,
            rx_packets,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_dropped,
        })
    }
}

/// `/proc/net` would be the namespace of the process's first thread.
fn device_table() -> Result<String> {
    fs::read_to_string("/proc/thread-self/net/dev").context("read /proc/thread-self/net/dev")
}
