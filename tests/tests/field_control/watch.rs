//! What an operator sees: the log (B53), the metrics (B54, metrics-port).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::Layout;
use tapring_tests::{
    Daemon, DaemonOptions, METRICS, Net, Process, Rig, TO_GUEST, TO_HOST, ensure_refused, scenario,
    until,
};

use crate::NEEDS;
use crate::raw::{RawFrontend, VERSION, request};

const SOON: Duration = Duration::from_secs(2);

/// Frames of each kind for the log (B53).
const FLOOD: u64 = 20_000;

/// Sessions of each kind for the log and the metrics.
const SESSIONS: u64 = 150;

/// Lines a cause may take in a minute, and none of these tests takes one.
const LINES_A_CAUSE: usize = 60;

/// All series and their values.
pub(crate) fn series() -> Result<BTreeMap<String, f64>> {
    let answer = http("GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').context("a series without a value")?;
            Ok((name.to_owned(), value.parse()?))
        })
        .collect()
}

fn http(request: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&METRICS, SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The lines of a daemon from its start to its end.
fn lines_of(daemon: Daemon) -> Result<Vec<String>> {
    daemon.signal(Signal::SIGTERM)?;
    let finished = daemon.finish(SOON)?;
    ensure!(finished.status.code() == Some(0), "{}", finished.status);
    Ok(finished.lines)
}

#[test]
fn b53_floods_of_errors_are_a_few_lines() {
    type Cause = fn(&mut Rig) -> Result<()>;
    let causes: [(&str, Cause, &str); 5] = [
        (
            "tap down",
            |rig| {
                rig.net.ip("link set t0 down")?;
                flood(rig, &[0; 12], 100)
            },
            "tapring_dropped_packets_total",
        ),
        (
            "bad GSO",
            |rig| flood(rig, &[0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 100),
            "tapring_guest_faults_total",
        ),
        (
            "short chains",
            |rig| flood(rig, &[0; 5], 0),
            "tapring_guest_faults_total",
        ),
        (
            "no buffers",
            |rig| {
                for sequence in 0..FLOOD {
                    rig.wire.send(&TO_GUEST.build(sequence, 100))?;
                }
                Ok(())
            },
            "tapring_tap_dropped_packets_total",
        ),
        (
            "tap deleted",
            |rig| {
                rig.net.ip("link del t0")?;
                flood(rig, &[0; 12], 100)
            },
            "tapring_dropped_packets_total",
        ),
    ];
    for (name, cause, counter) in causes {
        scenario(&format!("B53 log-flood: {name}"), NEEDS, || {
            let mut rig = Rig::start("", |_| {})?;
            cause(&mut rig)?;
            let exact = if name == "no buffers" {
                None
            } else {
                Some(FLOOD as f64)
            };
            if let Some(exact) = exact {
                rig.daemon.wait_metric(counter, &[], exact)?;
            } else {
                ensure!(rig.metric(counter, &[])? > 0.0, "nothing was counted");
            }
            let lines = lines_of(rig.daemon)?;
            ensure!(
                lines.len() < 20,
                "{} lines:\n{}",
                lines.len(),
                lines.join("\n")
            );
            Ok(())
        });
    }
}

/// `FLOOD` chains with this header and a frame of `bytes`, all of which come back.
fn flood(rig: &mut Rig, header: &[u8], bytes: usize) -> Result<()> {
    let frame = if bytes == 0 {
        Vec::new()
    } else {
        TO_HOST.build(1, bytes)
    };
    for _ in 0..FLOOD {
        if rig.tx.send_as(header, &frame, &Layout::ONE).is_err() {
            rig.tx.kick_if_needed();
            rig.tx.wait_for_all(SOON)?;
            rig.tx.send_as(header, &frame, &Layout::ONE)?;
        }
    }
    rig.tx.kick_if_needed();
    rig.ensure_tx_whole()
}

#[test]
fn b53_floods_of_sessions_are_a_few_lines() {
    scenario("B53 log-flood: sessions", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        for _ in 0..SESSIONS {
            RawFrontend::connect(daemon.socket())?.ask(request::GET_FEATURES, VERSION, &[], &[])?;
            let bad = RawFrontend::connect(daemon.socket())?;
            bad.ask(request::GET_FEATURES, 0, &[], &[])?;
        }
        let lines = lines_of(daemon)?;
        ensure!(
            lines.len() <= 2 * LINES_A_CAUSE + 10,
            "{} lines",
            lines.len()
        );
        Ok(())
    });
}

/// Whatever can be counted is there, as 0, before there is anything to count.
#[test]
fn b54_all_metrics_are_there_from_the_start() {
    scenario("B54 metrics-contents: from the start", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let _daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        for (name, value) in &series()? {
            let counts = ["_total", "_bucket", "_count", "_sum"];
            let own = ["tapring_ring_enters_total"];
            let zero = *value == 0.0 || own.iter().any(|prefix| name.starts_with(prefix));
            let is_count = name
                .split('{')
                .next()
                .is_some_and(|base| counts.iter().any(|suffix| base.ends_with(suffix)));
            ensure!(
                zero || !is_count,
                "{name} is {value} before anything happened"
            );
            ensure!(!name.contains("0x") && !name.contains("pid"), "{name}");
        }
        Ok(())
    });
}

/// Each series has exactly the number that is known, no counter ever falls, and sessions make no new series.
#[test]
fn b54_metrics_are_exact_and_monotonic() {
    scenario("B54 metrics-contents: a known mix", NEEDS, || {
        let mut rig = Rig::start("", |config| {
            config.mrg_rxbuf = false;
            config.tx_buffer_bytes = 4096;
        })?;
        rig.guest.detach();
        rig.daemon
            .wait_metric("tapring_device_connected", &[], 0.0)?;
        let start = series()?;
        rig.guest.attach(tapring_guest::Resume::Used)?;
        known_mix(&mut rig)?;
        let mixed = expect_mix(&rig)?;
        rig.guest.detach();
        for _ in 0..SESSIONS {
            rig.guest.attach(tapring_guest::Resume::Used)?;
            rig.tx.send_as(&[0; 5], &[], &Layout::ONE)?;
            rig.tx.kick_if_needed();
            rig.tx.wait_for_all(SOON)?;
            rig.guest.detach();
        }
        rig.daemon
            .wait_metric("tapring_device_connected", &[], 0.0)?;
        let end = series()?;
        ensure!(
            end.len() == start.len(),
            "{} series became {}",
            start.len(),
            end.len()
        );
        for (name, value) in &mixed {
            let now = end.get(name).with_context(|| format!("{name} is gone"))?;
            let counter = name.contains("_total") || name.contains("_bucket");
            ensure!(
                !counter || now >= value,
                "{name} fell from {value} to {now}"
            );
        }
        let short = "tapring_guest_faults_total{device=\"t0\",queue=\"0\",direction=\"tx\",kind=\"too_short\"}";
        ensure!(
            end.get(short) == Some(&(7.0 + SESSIONS as f64)),
            "{short}: {:?}",
            end.get(short)
        );
        Ok(())
    });
}

const GOOD: u64 = 1000;

/// 1000 good, 7 short, 11 with a bad GSO type and 13 for a tap that is down; 1000 good and 17 too large to the guest.
fn known_mix(rig: &mut Rig) -> Result<()> {
    for sequence in 0..GOOD {
        rig.tx
            .transmit(&TO_HOST.build(sequence, 100), false, SOON)?;
        rig.rx.refill();
        rig.wire.send(&TO_GUEST.build(sequence, 200))?;
        ensure!(rig.receive(SOON)?.is_some(), "frame {sequence}");
    }
    for _ in 0..7 {
        rig.tx.send_as(&[0; 5], &[], &Layout::ONE)?;
    }
    for _ in 0..11 {
        let header = [0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        rig.tx
            .send_as(&header, &TO_HOST.build(1, 100), &Layout::ONE)?;
    }
    rig.tx.kick_if_needed();
    rig.tx.wait_for_all(SOON)?;
    rig.net.ip("link set t0 mtu 4000")?;
    for sequence in 0..17 {
        rig.wire.send(&TO_GUEST.build(sequence, 3000))?;
    }
    let reason = ["direction=\"rx\"", "reason=\"too_large\""];
    rig.daemon
        .wait_metric("tapring_dropped_packets_total", &reason, 17.0)?;
    rig.net.ip("link set t0 down")?;
    for sequence in 0..13 {
        rig.tx
            .transmit(&TO_HOST.build(sequence, 100), false, SOON)?;
    }
    rig.tx.wait_for_all(SOON)?;
    rig.net.ip("link set t0 up")?;
    Ok(())
}

fn expect_mix(rig: &Rig) -> Result<BTreeMap<String, f64>> {
    let expected = [
        ("tapring_packets_total", "tx", "", 1000.0),
        ("tapring_bytes_total", "tx", "", 100_000.0),
        ("tapring_packets_total", "rx", "", 1000.0),
        ("tapring_bytes_total", "rx", "", 200_000.0),
        (
            "tapring_guest_faults_total",
            "tx",
            ",kind=\"too_short\"",
            7.0,
        ),
        (
            "tapring_guest_faults_total",
            "tx",
            ",kind=\"bad_header\"",
            11.0,
        ),
        (
            "tapring_dropped_packets_total",
            "tx",
            ",reason=\"tap_down\"",
            13.0,
        ),
        (
            "tapring_dropped_packets_total",
            "rx",
            ",reason=\"too_large\"",
            17.0,
        ),
    ];
    until(SOON, "the last count", || {
        let now = series().ok()?;
        let state = "tapring_dropped_packets_total{device=\"t0\",queue=\"0\",direction=\"tx\",reason=\"tap_down\"}";
        (now.get(state) == Some(&13.0)).then_some(())
    })?;
    let now = series()?;
    for (name, direction, more, value) in expected {
        let key = format!("{name}{{device=\"t0\",queue=\"0\",direction=\"{direction}\"{more}}}");
        ensure!(
            now.get(&key) == Some(&value),
            "{key}: {:?}, not {value}",
            now.get(&key)
        );
    }
    let faults: f64 = now
        .iter()
        .filter(|(name, _)| name.starts_with("tapring_guest_faults_total"))
        .map(|(_, value)| value)
        .sum();
    ensure!(faults == 18.0, "{faults} faults\n{}", rig.daemon.tail());
    let kicks = "tapring_kicks_total{device=\"t0\",queue=\"0\",direction=\"tx\"}";
    ensure!(now.get(kicks).is_some_and(|count| *count > 0.0), "no kicks");
    Ok(now)
}

#[test]
fn metrics_port_taken_or_not_ours() {
    scenario("metrics-port: refused", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let options = DaemonOptions::on_tap("t0");
        let _taken = TcpListener::bind(METRICS)?;
        ensure_refused(&options, &["127.0.0.1:9650", "--metrics"])?;
        let foreign = "192.0.2.1:9650".parse()?;
        ensure_refused(
            &options.clone().metrics(foreign),
            &["192.0.2.1:9650", "--metrics"],
        )?;
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let address: SocketAddr = address.parse()?;
            let folder = tempfile::tempdir()?;
            let socket = folder.path().join("s");
            let command = options.clone().metrics(address).command(&socket);
            let process = Process::start("tapring", &command)?;
            let outcome = process.wait_line("metrics at http://", SOON);
            if address.is_ipv4() {
                let line = outcome?;
                ensure!(!line.contains(":0/"), "the port is not told: {line}");
            }
            if outcome_is_listening(&process) {
                process.signal(Signal::SIGTERM)?;
                ensure!(process.finish(SOON)?.status.code() == Some(0), "its end");
            }
        }
        Ok(())
    });
}

fn outcome_is_listening(process: &Process) -> bool {
    process.wait_line("listens on", SOON).is_ok()
}

/// Clients that say nothing, nonsense, or something else: scrapes go on, and so do frames.
#[test]
fn metrics_port_slow_and_silly_clients() {
    scenario("metrics-port: slow and silly clients", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        let silent: Vec<_> = (0..100)
            .map(|_| TcpStream::connect(METRICS))
            .collect::<Result<_, _>>()?;
        for _ in 0..20 {
            let begun = Instant::now();
            series()?;
            ensure!(
                begun.elapsed() < Duration::from_millis(500),
                "a slow scrape"
            );
            rig.ensure_alive()?;
        }
        for request in [
            "garbage\r\n\r\n",
            "POST /metrics HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc",
            "GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n",
            "\0\0\0\0\r\n\r\n",
        ] {
            let answer = http(request)?;
            ensure!(answer.starts_with("HTTP/1.1 4"), "{request:?}: {answer:?}");
        }
        let head = http("HEAD /metrics HTTP/1.1\r\nHost: t\r\n\r\n")?;
        ensure!(
            head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
        let _ = http(&long);
        drop(silent);
        series()?;
        rig.ensure_alive()
    });
}
