//! Real guests: Linux under QEMU, iPXE from a ROM, and the daemon itself inside a Linux older than 6.4.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tapring_tests::{
    Daemon, DaemonOptions, DhcpServer, Digest, Exchange, Firmware, Initramfs, Kernel, LinuxGuest,
    Need, Net, Sink, Source, ThreadWatch, daemon_binary, random_bytes, scenario,
};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SINK_PORT: u16 = 7001;
const SOURCE_PORT: u16 = 7002;
const TRANSFER_BYTES: usize = 16 << 20;

const NEEDS: [Need; 7] = [
    Need::Root,
    Need::Tun,
    Need::Tool("ip"),
    Need::Tool("qemu-system-x86_64"),
    Need::Tool("cpio"),
    Need::Tool("busybox"),
    Need::Kernel,
];

/// What the Linux guest does: an address by DHCP, a ping from each CPU (each has a transmitq of its own where there are two
/// pairs), 16 MiB to the host, 16 MiB from it.
const SCRIPT: &str = r#"
ip link set lo up; ip link set eth0 up
check address udhcpc -i eth0 -f -n -q -t 20 -T 1 -s /lease
cpu=0; while [ -d /sys/devices/system/cpu/cpu$cpu ]; do
    taskset $((1 << cpu)) ping -c 5 -i 0.2 -q 10.77.0.1 >/tmp/ping 2>&1
    check ping-cpu$cpu grep -q ' 0% packet loss' /tmp/ping
    cpu=$((cpu + 1))
done
dd if=/dev/urandom of=/tmp/out bs=1M count=16 2>/dev/null
echo "SENT $(sha256sum </tmp/out)"
check send sh -c 'nc -w 30 10.77.0.1 7001 </tmp/out'
check receive sh -c 'nc -w 30 10.77.0.1 7002 </dev/null >/tmp/in'
echo "RECEIVED $(sha256sum </tmp/in)"
"#;

const LEASE: &str = r#"#!/bin/sh
[ "$1" = bound ] && ip addr add $ip/24 dev $interface
exit 0
"#;

/// A tap in a namespace of its own, with everything on the host's side that the guest talks to.
struct HostSide {
    sink: Sink,
    offered: Digest,
    _dhcp: DhcpServer,
}

impl HostSide {
    fn new(net: &Net, tap_kind: &str) -> Result<Self> {
        net.tap("t0", tap_kind)?;
        net.ip(&format!("addr add {HOST}/24 dev t0"))?;
        let bytes = random_bytes(TRANSFER_BYTES)?;
        let offered = Digest::of(&bytes)?;
        Source::listen(SocketAddr::from((HOST, SOURCE_PORT)), bytes)?;
        let sink = Sink::listen(SocketAddr::from((HOST, SINK_PORT)))?;
        Ok(Self {
            sink,
            offered,
            _dhcp: DhcpServer::start("t0", HOST, GUEST, "")?,
        })
    }

    /// Boots the guest twice on one daemon.
    fn serve_two_boots(&self, guest: &LinuxGuest, checks: &[&str], daemon: &Daemon) -> Result<()> {
        for boot in ["first boot", "second boot, same daemon"] {
            self.serve_a_boot(guest, checks)
                .context(boot)
                .with_context(|| daemon.tail())?;
        }
        Ok(())
    }

    /// Boots the guest once and compares what both sides saw.
    fn serve_a_boot(&self, guest: &LinuxGuest, checks: &[&str]) -> Result<()> {
        let report = guest.boot()?;
        report.ensure_checks(checks)?;
        let taken = self.sink.take()?;
        ensure!(
            taken.len() == TRANSFER_BYTES,
            "{} bytes came from the guest",
            taken.len()
        );
        ensure!(
            Digest::of(&taken)? == Digest::parse(report.value("SENT")?)?,
            "what the guest sent arrived changed"
        );
        ensure!(
            self.offered == Digest::parse(report.value("RECEIVED")?)?,
            "what the host sent arrived changed"
        );
        Ok(())
    }
}

fn linux_guest() -> Result<LinuxGuest> {
    let kernel = Kernel::find()?;
    let image = Initramfs::new(&kernel)?
        .module("virtio_pci")?
        .module("virtio_net")?
        .file("lease", LEASE)?;
    LinuxGuest::new(&kernel, image, SCRIPT)
}

fn ensure_frames(daemon: &Daemon, direction: &str, queue: &str) -> Result<()> {
    let (direction, queue) = (
        format!("direction=\"{direction}\""),
        format!("queue=\"{queue}\""),
    );
    let frames = daemon
        .metrics()?
        .sum("tapring_packets_total", &[&direction, &queue])?;
    ensure!(frames > 0.0, "no frame in {direction} {queue}");
    Ok(())
}

#[test]
fn linux_boots_twice_with_one_pair_polled_inline() {
    scenario(
        "qemu: Linux guest, 1 pair, inline, booted twice",
        &NEEDS,
        || {
            let net = Net::enter()?;
            let host = HostSide::new(&net, "")?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0").with("--poll inline"))?;
            let watch = ThreadWatch::start(daemon.id());
            let guest = linux_guest()?.network(daemon.socket(), 1);
            let checks = ["address", "ping-cpu0", "send", "receive"];
            host.serve_two_boots(&guest, &checks, &daemon)?;
            let seen = watch.finish();
            ensure!(
                seen.most("iou-wrk") == 0,
                "an io-wq worker came up: {seen:?}"
            );
            ensure!(
                seen.most("iou-sqp") == 0,
                "an SQ thread without sqpoll: {seen:?}"
            );
            daemon.ensure_no_faults()?;
            daemon.stop()
        },
    );
}

/// The features of the session show that it was the short header's.
#[test]
fn linux_boots_on_a_legacy_card() {
    scenario(
        "qemu: Linux guest on a legacy card, 10-byte header",
        &NEEDS,
        || {
            let net = Net::enter()?;
            let host = HostSide::new(&net, "")?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let guest = linux_guest()?.legacy_network(daemon.socket());
            host.serve_a_boot(&guest, &["address", "ping-cpu0", "send", "receive"])
                .with_context(|| daemon.tail())?;
            let log = daemon.tail();
            let started = log.lines().find(|line| line.contains("session started"));
            let started = started.context("no session in the log")?;
            ensure!(
                !started.contains("VERSION_1") && !started.contains("MRG_RXBUF"),
                "not the legacy header: {started}"
            );
            daemon.ensure_no_faults()?;
            daemon.stop()
        },
    );
}

#[test]
fn linux_boots_twice_with_two_pairs_on_one_sq_thread() {
    scenario(
        "qemu: Linux guest, 2 pairs, sqpoll, booted twice",
        &NEEDS,
        || {
            let net = Net::enter()?;
            let host = HostSide::new(&net, "multi_queue")?;
            let daemon = Daemon::start(
                &DaemonOptions::on_tap("t0")
                    .pairs(2)
                    .with("--poll sqpoll --sqpoll-cpu 1 --worker-cpus 0"),
            )?;
            let watch = ThreadWatch::start(daemon.id());
            let guest = linux_guest()?.size(2, 256).network(daemon.socket(), 2);
            let checks = ["address", "ping-cpu0", "ping-cpu1", "send", "receive"];
            host.serve_two_boots(&guest, &checks, &daemon)?;
            for (direction, queue) in [("tx", "0"), ("tx", "1"), ("rx", "0"), ("rx", "1")] {
                ensure_frames(&daemon, direction, queue)?;
            }
            let seen = watch.finish();
            ensure!(
                seen.most("iou-wrk") == 0,
                "an io-wq worker came up: {seen:?}"
            );
            ensure!(
                seen.most("iou-sqp") == 1,
                "not one shared SQ thread: {seen:?}"
            );
            daemon.ensure_no_faults()?;
            daemon.stop()
        },
    );
}

/// iPXE posts eight receive buffers and waits for more than that many frames: a daemon that wants half of a ring of 256 to be
/// free before it delivers never serves it.
#[test]
fn ipxe_boots_from_the_network() {
    let needs = [
        Need::Root,
        Need::Tun,
        Need::Tool("ip"),
        Need::Tool("qemu-system-x86_64"),
        Need::Ipxe,
    ];
    scenario(
        "qemu: iPXE gets its lease and asks for its boot file",
        &needs,
        || {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            net.ip(&format!("addr add {HOST}/24 dev t0"))?;
            let dhcp = DhcpServer::start("t0", HOST, GUEST, "tapring.0")?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let firmware = Firmware::boot(daemon.socket())?;
            let limit = Duration::from_secs(90);
            for step in [
                Exchange::Offered,
                Exchange::Acknowledged,
                Exchange::FileAsked("tapring.0".to_owned()),
            ] {
                dhcp.wait_for(&step, limit)
                    .with_context(|| firmware.tail())
                    .with_context(|| daemon.tail())?;
            }
            drop(firmware);
            daemon.ensure_no_faults()?;
            daemon.stop()
        },
    );
}

/// The daemon, the tap, the software guest and the `io-wq` watch, all inside a guest whose kernel has no RWF_NOWAIT on a tap.
const DEMO_SCRIPT: &str = r#"
ip link set lo up
echo "KERNEL $(uname -r)"
/tapring demo --seconds 6 --json >/tmp/json 2>/tmp/log & demo=$!
while kill -0 $demo 2>/dev/null; do
    cat /proc/$demo/task/*/comm 2>/dev/null >>/tmp/threads
    usleep 100000
done
wait $demo; echo "EXIT $?"
echo "<JSON>"; cat /tmp/json; echo; echo "</JSON>"
sort /tmp/threads | uniq -c; tail -n 20 /tmp/log
check demo-threads grep -q tapring /tmp/threads
check no-io-wq-worker sh -c '! grep iou-wrk /tmp/threads'
"#;

#[test]
fn the_daemon_runs_inside_an_older_kernel() {
    scenario(
        "qemu: daemon and software guest inside Debian's kernel",
        &NEEDS,
        || {
            let kernel = Kernel::find()?;
            let image = Initramfs::new(&kernel)?
                .module("tun")?
                .program(daemon_binary(), "tapring")?;
            let report = LinuxGuest::new(&kernel, image, DEMO_SCRIPT)?
                .size(2, 1024)
                .boot()?;
            report.ensure_checks(&["demo-threads", "no-io-wq-worker"])?;
            ensure!(report.value("EXIT")? == "0", "the demo failed: {report:?}");
            let json: serde_json::Value = serde_json::from_str(&report.passage("JSON")?)?;
            ensure!(json["tx"]["frames_lost"] == 0, "frames lost: {json}");
            for direction in ["tx", "rx"] {
                ensure!(
                    json[direction]["frames_verified"].as_u64() > Some(0),
                    "nothing verified in {direction}: {json}"
                );
            }
            Ok(())
        },
    );
}
