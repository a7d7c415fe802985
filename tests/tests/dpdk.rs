//! DPDK's virtio-user as the frontend: it polls its rings, fills them as fast as a core can, and asks for no calls.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tapring_tests::{Daemon, DaemonOptions, Need, Net, TestPmd, ThreadWatch, scenario, until};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const FLOOD: Duration = Duration::from_secs(5);
const TX: [&str; 1] = ["direction=\"tx\""];
const RX: [&str; 1] = ["direction=\"rx\""];
const RING: u64 = 256;

/// Frames from the host in the receive run. Enough that they cannot all fit into the ring and the tap's queue.
const DATAGRAMS: u64 = 50_000;

fn needs() -> [Need; 4] {
    [
        Need::Root,
        Need::Tun,
        Need::Tool("ip"),
        Need::Tool("dpdk-testpmd"),
    ]
}

/// A tap whose only traffic is ours: no ARP, no IPv6.
fn quiet_tap(net: &Net) -> Result<()> {
    net.tap("t0", "")?;
    net.ip("link set t0 arp off")?;
    net.ip(&format!("addr add {HOST}/24 dev t0"))?;
    net.ip(&format!(
        "neigh add {GUEST} lladdr 52:54:00:12:34:56 dev t0 nud permanent"
    ))
}

/// Sends from the host until `DATAGRAMS` have gone into the tap's queue or been dropped by it.
fn send_datagrams() -> Result<()> {
    let socket = UdpSocket::bind((HOST, 0))?;
    for number in 0..DATAGRAMS {
        socket.send_to(&number.to_be_bytes(), (GUEST, 9))?;
    }
    Ok(())
}

/// One flood of five seconds. What testpmd put into the ring, less what was still in the ring when it stopped, is what the
/// daemon counted; and that is exactly what the tap took.
fn flood(net: &Net, daemon: &Daemon) -> Result<()> {
    let (tap_before, daemon_before) = (
        net.counters("t0")?,
        daemon.metrics()?.sum("tapring_packets_total", &TX)?,
    );
    let testpmd = TestPmd::start(daemon.socket(), "txonly")?;
    thread::sleep(FLOOD);
    let sent = testpmd.stop()?.sent;
    daemon.wait_metric("tapring_device_connected", &[], 0.0)?;
    let (tap, counted) = (
        net.counters("t0")?,
        daemon.metrics()?.sum("tapring_packets_total", &TX)? - daemon_before,
    );
    let taken = tap.rx_packets - tap_before.rx_packets;
    ensure!(taken > 10_000, "only {taken} frames in {FLOOD:?}");
    ensure!(
        counted == taken as f64,
        "the daemon counted {counted}, the tap {taken}"
    );
    ensure!(
        taken <= sent && sent - taken <= RING,
        "testpmd put {sent} into a ring of {RING}, the tap took {taken}"
    );
    ensure!(
        tap.rx_dropped == tap_before.rx_dropped,
        "the tap refused frames: {tap:?}"
    );
    daemon.ensure_no_faults()
}

/// The host sends without a pause. Each frame was delivered, or the kernel says that the tap's queue was full.
fn receive(net: &Net, daemon: &Daemon) -> Result<()> {
    let (tap_before, daemon_before) = (
        net.counters("t0")?,
        daemon.metrics()?.sum("tapring_packets_total", &RX)?,
    );
    let testpmd = TestPmd::start(daemon.socket(), "rxonly")?;
    send_datagrams()?;
    let tap = until(Duration::from_secs(10), "the tap to run empty", || {
        let tap = net.counters("t0").ok()?;
        (tap.tx_packets - tap_before.tx_packets + tap.tx_dropped - tap_before.tx_dropped
            == DATAGRAMS)
            .then_some(tap)
    })?;
    let read = tap.tx_packets - tap_before.tx_packets;
    daemon.wait_metric("tapring_packets_total", &RX, daemon_before + read as f64)?;
    let received = testpmd.stop()?.received;
    ensure!(
        received == read,
        "testpmd received {received} of {read} frames that left the tap ({tap:?})"
    );
    ensure!(
        received > DATAGRAMS / 20,
        "the tap dropped nearly all: {tap:?}"
    );
    Ok(())
}

#[test]
fn testpmd_floods_then_receives_then_floods_again() {
    scenario(
        "dpdk: testpmd floods 5 s, receives, floods again",
        &needs(),
        || {
            let net = Net::enter()?;
            quiet_tap(&net)?;
            let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
            let watch = ThreadWatch::start(daemon.id());
            flood(&net, &daemon)?;
            receive(&net, &daemon)?;
            flood(&net, &daemon)?;
            ensure!(
                watch.finish().most("iou-wrk") == 0,
                "an io-wq worker came up"
            );
            daemon.stop()
        },
    );
}
