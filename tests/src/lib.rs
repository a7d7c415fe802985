//! What the end-to-end tests in `tests/` are made of.
//!
//! A test here is a *scenario*: it says by name what it needs of the machine, gets a network namespace of its own, and in it
//! meets the daemon as users do, through its command line, its socket, its tap, and `/metrics`:
//!
//! ```text
//!   scenario thread (own network namespace)
//!     ├─ tap t0 ───── ip, UDP and TCP peers, a DHCP server: the host's side
//!     ├─ Daemon ───── target/release/tapring serve --tap t0 --socket-path S
//!     └─ a frontend ─ QEMU with a Linux guest or iPXE, DPDK's testpmd, or the guest in software
//! ```
//!
//! 1. [`scenario`] checks the needs; what this machine cannot do is a loud, recorded `SKIP`, never a silent pass.
//! 2. [`Net::enter`] moves the scenario's thread, and all it starts, into a namespace that ends with it.
//! 3. [`Daemon`] and the frontends are [`Process`]es: their output is kept, waiting for them is bounded, and they are
//!    killed when dropped and when the test dies.
//!
//! Nothing here waits for a fixed time and hopes: every wait is for an event and has a generous limit.
//! The crate knows the daemon by its interfaces only and shares no code with it.
#![forbid(unsafe_code)]

mod apart;
mod both_ways;
mod control;
mod daemon;
mod dhcp;
mod exchange;
mod files;
mod guest;
mod host_end;
mod initramfs;
mod metrics;
mod net;
mod process;
mod rig;
mod scenario;
mod slow;
mod testpmd;
mod threads;
mod transfer;
mod user;
mod vitals;
mod window;
mod wire;

pub use apart::Apart;
pub use both_ways::BothWays;
pub use control::{Control, Settings};
pub use daemon::{Daemon, DaemonOptions, METRICS, ensure_one_line, ensure_refused};
pub use dhcp::{DhcpServer, Exchange};
pub use exchange::{Load, ensure_perfect, exchange, verify_both_ways};
pub use files::{Kernel, daemon_binary, workspace};
pub use guest::{Firmware, LinuxGuest, Report, RunningGuest};
pub use host_end::HostEnd;
pub use initramfs::Initramfs;
pub use metrics::Scrape;
pub use net::{Counters, Net};
pub use process::{Finished, Process, until};
pub use rig::{Mode, Rig, TO_GUEST, TO_HOST, cases};
pub use scenario::{Need, scenario};
pub use slow::{Bottleneck, SlowIngress};
pub use testpmd::{PortCounts, TestPmd};
pub use threads::{ThreadWatch, ThreadsSeen};
pub use transfer::{Digest, Sink, Source, random_bytes};
pub use user::{Home, USER, as_user, with_tun_mode};
pub use vitals::{Effort, Vitals, ensure_idle, ensure_share};
pub use window::Window;
pub use wire::Wire;
