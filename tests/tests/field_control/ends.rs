//! SIGTERM and SIGINT in every state: B45.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_tests::{
    Bottleneck, Daemon, DaemonOptions, Need, Net, Process, Rig, TO_GUEST, TO_HOST, scenario, until,
};

use crate::NEEDS;
use crate::raw::{VERSION, request};

const SLOW_NEEDS: &[Need] = &[
    Need::Root,
    Need::Tun,
    Need::Tool("ip"),
    Need::Tool("bridge"),
    Need::Tool("tc"),
    Need::Tool("perl"),
];

const SOON: Duration = Duration::from_secs(2);

type Prepare = fn(&mut Rig) -> Result<()>;

/// SIGTERM and SIGINT in states of all kinds; `stop` holds that it takes two seconds at most, exit code 0 and the file's end.
#[test]
fn b45_signals_end_it_in_every_state() {
    let states: [(&str, Prepare); 8] = [
        ("idle session", |rig| rig.ensure_alive()),
        ("no session any more", |rig| {
            rig.guest.detach();
            Ok(())
        }),
        ("stopped rings", |rig| {
            rig.guest.stop_all().map(drop).map_err(Into::into)
        }),
        ("disabled rings", |rig| {
            rig.guest.set_enable(0, false)?;
            Ok(rig.guest.set_enable(1, false)?)
        }),
        ("the tap deleted", |rig| {
            rig.rx.refill();
            rig.net.ip("link del t0")?;
            rig.tx.send(&TO_HOST.build(1, 100))?;
            rig.tx.kick_if_needed();
            rig.tx
                .wait_for_all(SOON)
                .context("the heads of a tap that is gone")
        }),
        ("the tap down", |rig| rig.net.ip("link set t0 down")),
        ("a message half sent", |rig| {
            use std::io::Write;
            let mut stream = rig.guest.stream().context("connected")?;
            Ok(stream.write_all(&[8, 0, 0, 0, 1])?)
        }),
        ("frames waiting for buffers", |rig| {
            for sequence in 0..100 {
                rig.wire.send(&TO_GUEST.build(sequence, 100))?;
            }
            Ok(())
        }),
    ];
    for (name, prepare) in states {
        for mode in ["--poll inline", "--poll sqpoll"] {
            scenario(&format!("B45 sigterm: {name}, {mode}"), NEEDS, || {
                let mut rig = Rig::start(mode, |_| {})?;
                prepare(&mut rig)?;
                rig.daemon.stop()?;
                ensure_tap_free(&rig.net)
            });
        }
    }
}

/// Deleted or free to be taken again.
fn ensure_tap_free(net: &Net) -> Result<()> {
    if !net.exists("t0") {
        return Ok(());
    }
    Daemon::start(&DaemonOptions::on_tap("t0"))
        .context("the tap is not free")?
        .stop()
}

#[test]
fn b45_a_second_signal_changes_nothing() {
    scenario("B45 sigterm: twice, and SIGINT", NEEDS, || {
        for signals in [
            &[Signal::SIGTERM; 3][..],
            &[Signal::SIGINT, Signal::SIGTERM],
            &[Signal::SIGINT],
        ] {
            let rig = Rig::start("", |_| {})?;
            for signal in signals {
                let _ = rig.daemon.signal(*signal);
            }
            let finished = rig.daemon.finish(SOON)?;
            ensure!(
                finished.status.code() == Some(0),
                "{signals:?}: {}\n{}",
                finished.status,
                finished.lines.join("\n")
            );
        }
        Ok(())
    });
}

/// The daemon may be told to end at any moment of its start. Before its first lines the kernel ends it.
#[test]
fn b45_a_signal_during_the_start_leaves_nothing() {
    scenario("B45 sigterm: during the start", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vm0.sock");
        let options = DaemonOptions::on_tap("t0");
        let mut in_order = 0;
        for delay in (0..40).map(|step| Duration::from_micros(step * 700)) {
            let process = Process::start("tapring", &options.command(&socket))?;
            thread::sleep(delay);
            process.signal(Signal::SIGTERM)?;
            let finished = process.finish(SOON)?;
            // Until the wrapper has become the daemon it is the kernel that ends it.
            let by_kernel = std::os::unix::process::ExitStatusExt::signal(&finished.status);
            ensure!(
                finished.status.code() == Some(0)
                    || (by_kernel == Some(15) && finished.lines.is_empty()),
                "after {delay:?}: {}\n{}",
                finished.status,
                finished.lines.join("\n")
            );
            in_order += u32::from(finished.status.code() == Some(0));
            ensure!(!socket.exists(), "after {delay:?} the socket is left");
        }
        ensure!(in_order > 0, "no start was far enough");
        Ok(())
    });
}

#[test]
fn b45_sigterm_while_a_frontend_reads_nothing() {
    scenario("B45 sigterm: a frontend that never reads", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        let daemon = Daemon::start(&DaemonOptions::on_tap("t0"))?;
        let stream = UnixStream::connect(daemon.socket())?;
        stream.set_write_timeout(Some(Duration::from_millis(300)))?;
        let question = crate::raw::message(request::GET_FEATURES, VERSION, 0, &[]);
        let mut filled = &stream;
        while std::io::Write::write_all(&mut filled, &question).is_ok() {}
        daemon.stop()
    });
}

/// The tap takes no more and the ring is full: what was taken is returned or dropped, and nothing waits for the tap.
#[test]
fn b45_sigterm_while_the_tap_is_full() {
    scenario("B45 sigterm: the tap full", SLOW_NEEDS, || {
        for act in [
            |_: &mut Rig| Ok(()),
            |rig: &mut Rig| stop_and_count(rig),
            |rig: &mut Rig| Ok(rig.guest.set_enable(1, false)?),
        ] {
            let net = Net::enter()?;
            let slow = Bottleneck::make(&net)?;
            let mut rig = Rig::start_in(net, "", |_| {})?;
            slow.close()?;
            let mut sequence = 0;
            while rig.tx.send(&TO_HOST.build(sequence, 1000)).is_ok() {
                sequence += 1;
            }
            rig.tx.kick_if_needed();
            let blocked = ["direction=\"tx\"", "reason=\"tap_full\""];
            until(SOON, "the tap to be full", || {
                (rig.metric("tapring_blocked_total", &blocked).ok()? >= 1.0).then_some(())
            })?;
            act(&mut rig)?;
            rig.daemon.stop()?;
        }
        Ok(())
    });
}

/// What the tap did not take is still the driver's: the base says so.
fn stop_and_count(rig: &mut Rig) -> Result<()> {
    let base = rig.guest.stop(1)?;
    let used = rig.tx.ring().used_index();
    ensure!(base == u32::from(used), "base {base}, used index {used}");
    let left = rig.tx.ring().avail_index().wrapping_sub(used);
    ensure!(left > 0, "the tap took all");
    Ok(())
}
