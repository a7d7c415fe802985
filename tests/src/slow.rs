//! A tap that will not take more, and one that takes its time.
//!
//! The first: its frames leave through a bottleneck, and its send buffer is small.
//!
//! ```text
//!   daemon ──▶ t0 ── br0 ── v0 ═(tbf)═▶ v1 ──▶ Wire
//! ```
//! The bridge knows by a static entry that the host's address is behind `v0`: a frame to an unknown one would be flooded, which
//! copies it and frees the send buffer at once.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tapring_guest::GuestConfig;
use tempfile::NamedTempFile;

use crate::net::Net;
use crate::rig::Rig;
use crate::wire::Wire;

/// Attaches to the tap for a moment and sets the send buffer of all its queues. `perl-base` is part of every Debian.
const SET_SNDBUF: &str = r#"
    my ($name, $bytes) = @ARGV;
    open(my $tun, "+<", "/dev/net/tun") or die "open: $!";
    ioctl($tun, 0x400454ca, my $request = pack("a16 S x22", $name, 0x5102)) or die "TUNSETIFF: $!";
    ioctl($tun, 0x400454d4, my $value = pack("i", $bytes)) or die "TUNSETSNDBUF: $!";
"#;

/// The bottleneck of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck;

impl Bottleneck {
    /// Where its frames come out.
    pub const EXIT: &'static str = "v1";

    /// Makes tap `t0` (multi_queue, so that others can attach) and the way out, which is wide open.
    ///
    /// # Errors
    /// When `ip` or `bridge` fails.
    pub fn make(net: &Net) -> Result<Self> {
        net.tap("t0", "multi_queue")?;
        net.ip("link add br0 type bridge mcast_snooping 0")?;
        net.ip("link add v0 type veth peer name v1")?;
        for port in ["t0", "v0"] {
            net.ip(&format!("link set {port} master br0"))?;
        }
        for link in ["br0", "v0", "v1"] {
            net.ip(&format!("link set {link} up"))?;
        }
        run("bridge", "fdb add 02:00:00:00:00:01 dev v0 master static")?;
        Ok(Self)
    }

    /// A rig whose wire is the far end of a bottleneck.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn rig(words: &str, configure: impl FnOnce(&mut GuestConfig)) -> Result<(Rig, Self)> {
        let net = Net::enter()?;
        let bottleneck = Self::make(&net)?;
        let mut rig = Rig::start_in(net, words, configure)?;
        rig.wire = Wire::on(Self::EXIT)?;
        Ok((rig, bottleneck))
    }

    /// Nearly closes it: 64 kbit/s, and a tap that takes about ten frames more.
    ///
    /// # Errors
    /// When `tc` or `perl` fails.
    pub fn close(self) -> Result<()> {
        self.limit("64kbit")?;
        self.send_buffer(20_000)
    }

    /// Opens it. The queue stays where it is: to delete it would drop the frames in it.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn open(self) -> Result<()> {
        run(
            "tc",
            "qdisc replace dev v0 root handle 1: tbf rate 10gbit burst 1m limit 10mb",
        )
    }

    /// Sets its width.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn limit(self, rate: &str) -> Result<()> {
        run(
            "tc",
            &format!("qdisc replace dev v0 root handle 1: tbf rate {rate} burst 3k limit 10mb"),
        )
    }

    /// Sets the tap's send buffer.
    ///
    /// # Errors
    /// When `perl` fails.
    pub fn send_buffer(self, bytes: i32) -> Result<()> {
        let mut perl = Command::new("perl");
        perl.args(["-e", SET_SNDBUF, "t0", &bytes.to_string()]);
        finish("perl", &mut perl)
    }
}

/// A host that looks at each frame of a tap for long: rules that all say nothing about it, as a firewall has them. The time is
/// the worker's, inside of its write to the tap.
#[derive(Clone, Debug)]
pub struct SlowIngress {
    interface: String,
    rules: u32,
}

impl SlowIngress {
    /// Gives the interface so many rules; a thousand cost some ten microseconds a frame.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn on(interface: &str, rules: u32) -> Result<Self> {
        run("tc", &format!("qdisc add dev {interface} clsact"))?;
        let mut slow = Self {
            interface: interface.to_owned(),
            rules: 0,
        };
        slow.add(rules)?;
        Ok(slow)
    }

    /// Gives it more rules.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn add(&mut self, rules: u32) -> Result<()> {
        let mut batch = NamedTempFile::new()?;
        for rule in self.rules..self.rules + rules {
            // No frame of ours begins so: in front of IPv4 is 45, in front of a raw frame's low numbers 0.
            writeln!(
                batch,
                "filter add dev {} ingress pref 1 protocol all u32 match u32 {:#x} 0xffffffff at 0 flowid 1:1",
                self.interface,
                0xffff_0000 | rule
            )?;
        }
        self.rules += rules;
        finish("tc", Command::new("tc").arg("-batch").arg(batch.path()))
    }

    /// The rules it has.
    #[must_use]
    pub const fn rules(&self) -> u32 {
        self.rules
    }
}

fn run(program: &str, words: &str) -> Result<()> {
    finish(
        program,
        Command::new(program).args(words.split_whitespace()),
    )
}

fn finish(name: &str, command: &mut Command) -> Result<()> {
    let done = command.output().with_context(|| format!("run {name}"))?;
    ensure!(
        done.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}
