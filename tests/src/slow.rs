//! A tap that will not take more: its frames leave through a bottleneck, and its send buffer is small.
//!
//! ```text
//!   daemon ──▶ t0 ── br0 ── v0 ═(tbf)═▶ v1 ──▶ Wire
//! ```
//! The bridge knows by a static entry that the host's address is behind `v0`: a frame to an unknown one would be flooded, which
//! copies it and frees the send buffer at once.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tapring_guest::GuestConfig;

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
