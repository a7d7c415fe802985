//! A test with a name, needs, and a recorded outcome.
//!
//! libtest knows no "skipped at run time" and captures what a passing test prints. So the outcome is written past the
//! capture to stderr, and one line a scenario is appended to the file that `TAPRING_TEST_RECORD` names, from which `ci.sh`
//! makes its summary: `outcome TAB name TAB seconds or reason`.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::files;

/// Something a scenario cannot do without, and which a machine may lack through no fault of the code under test.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Root, or root in a user namespace: enough to make network namespaces and taps in them.
    Root,
    /// Root of the machine itself: to become another user, or to make device nodes.
    RealRoot,
    /// A `/dev/net/tun` that opens.
    Tun,
    /// A CPU for the guest and another for the daemon.
    TwoCpus,
    /// A kernel with macvtaps.
    Macvtap,
    /// A program in `PATH`.
    Tool(&'static str),
    /// A Debian kernel with its modules in `ci.sh`'s cache.
    Kernel,
    /// iPXE's ROM for virtio-net.
    Ipxe,
}

impl Need {
    /// Why the need is not met, and what would meet it.
    fn missing(self) -> Option<String> {
        let (met, remedy) = match self {
            Self::Root => (
                nix::unistd::geteuid().is_root(),
                "not root: run as root or under `unshare -Urn`".to_owned(),
            ),
            Self::RealRoot => (
                is_real_root(),
                "not root of this machine: run as root".to_owned(),
            ),
            Self::Tun => (
                files::opens("/dev/net/tun"),
                "/dev/net/tun does not open: `modprobe tun`, `chmod 0666 /dev/net/tun`".to_owned(),
            ),
            Self::TwoCpus => (
                thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2),
                "one CPU: guest and daemon take turns, and no policy matters".to_owned(),
            ),
            Self::Tool(name) => (
                files::in_path(name).is_some(),
                format!("no `{name}` in PATH: `./ci.sh packages`"),
            ),
            Self::Kernel => (
                files::Kernel::find().is_ok(),
                "no Debian kernel in the cache: `./ci.sh packages`".to_owned(),
            ),
            Self::Macvtap => (
                can_make_macvtaps(),
                "no macvtap can be made here: `modprobe macvtap`".to_owned(),
            ),
            Self::Ipxe => (
                files::has_ipxe(),
                "no iPXE virtio-net ROM: `./ci.sh packages`".to_owned(),
            ),
        };
        (!met).then_some(remedy)
    }
}

/// Tried in a namespace that goes at once.
fn can_make_macvtaps() -> bool {
    let script =
        "ip link add v0 type veth peer name v1 && ip link add link v0 name m0 type macvtap";
    let mut unshare = Command::new("unshare");
    unshare.args(["-n", "sh", "-c", script]);
    unshare.output().is_ok_and(|made| made.status.success())
}

/// In a user namespace the map of ids covers a part of them only.
fn is_real_root() -> bool {
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    nix::unistd::geteuid().is_root()
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(whole)
}

/// Runs `body` on a thread of its own, or skips it with a reason where a need is not met.
///
/// # Panics
/// When the body fails or panics: that is how a test fails.
pub fn scenario(name: &str, needs: &[Need], body: impl FnOnce() -> Result<()> + Send) {
    if let Some(reason) = needs.iter().find_map(|need| need.missing()) {
        return record("SKIP", name, &reason);
    }
    let begun = Instant::now();
    let outcome = thread::scope(|scope| scope.spawn(body).join());
    let seconds = format!("{:.1}", begun.elapsed().as_secs_f64());
    match outcome {
        Ok(Ok(())) => record("ok", name, &seconds),
        Ok(Err(error)) => {
            record("FAILED", name, &seconds);
            // The chain without the backtrace, which would only lead through this harness.
            let reasons = error.chain().map(ToString::to_string).collect::<Vec<_>>();
            panic!("{name}: {}", reasons.join("\n  because: "));
        }
        Err(panic) => {
            record("FAILED", name, &seconds);
            resume_unwind(panic);
        }
    }
}

fn record(outcome: &str, name: &str, detail: &str) {
    // A handle to stderr, unlike eprintln!, is not captured by libtest, which has begun a line of its own.
    let _ = writeln!(std::io::stderr(), "\n{outcome} {name}: {detail}");
    if let Some(path) = std::env::var_os("TAPRING_TEST_RECORD") {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .expect("open TAPRING_TEST_RECORD");
        file.write_all(format!("{outcome}\t{name}\t{detail}\n").as_bytes())
            .expect("write TAPRING_TEST_RECORD");
    }
}
