//! A guest on an interface that is no tap: a veth through a packet socket, a macvtap, and descriptors that somebody else opened.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::traffic::Verifier;
use tapring_guest::{Guest, GuestConfig};
use tapring_tests::{
    BothWays, Daemon, DaemonOptions, HostEnd, Load, Mode, Need, Net, Process, Rig, TO_GUEST,
    TO_HOST, Wire, ensure_idle, ensure_one_line, ensure_perfect, ensure_refused, exchange,
    scenario, until,
};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("ip")];
const SHAPED: [Need; 3] = [Need::Root, Need::Tool("ip"), Need::Tool("tc")];
const PASSED: [Need; 4] = [Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("perl")];
const DEVICES: [Need; 3] = [Need::RealRoot, Need::Tool("ip"), Need::Macvtap];

const SOON: Duration = Duration::from_secs(5);

const DROPPED: &str = "tapring_dropped_packets_total";

fn on_v0(words: &str) -> DaemonOptions {
    DaemonOptions::on("--packet", "v0").with(words)
}

/// A guest whose wire is the other end of the veth.
fn rig(words: &str) -> Result<Rig> {
    let net = Net::enter()?;
    net.veth("v0", "v1", 1500)?;
    Rig::start_on(net, &on_v0(words), 1, ["v0", "v1"], |_| {})
}

/// Kernel, daemon and guest must have counted the same.
fn ensure_accounts(net: &Net, daemon: &Daemon, frames: u64) -> Result<()> {
    let counters = net.counters("v0")?;
    ensure!(
        (counters.tx_packets, counters.rx_packets) == (frames, frames),
        "{counters:?} of {frames}"
    );
    for direction in ["direction=\"tx\"", "direction=\"rx\""] {
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        daemon.wait_metric("tapring_packets_total", &[direction], frames as f64)?;
    }
    daemon.wait_metric("tapring_tap_dropped_packets_total", &[], 0.0)?;
    daemon.wait_metric(DROPPED, &[], 0.0)?;
    daemon.ensure_no_faults()
}

/// The far end is the kernel's own UDP, which leaves every checksum to others.
fn verify_both_ways(load: Load, mtu: usize, words: &str) -> Result<()> {
    let net = Net::enter()?;
    net.veth("v0", "v1", mtu)?;
    let host = HostEnd::on(&net, "v1", mtu)?;
    tapring_tests::verify_both_ways(&on_v0(words), &host, load, |daemon| {
        ensure_accounts(&net, daemon, load.frames)
    })
}

#[test]
fn a_million_frames_each_way() {
    let load = Load {
        frames: 1_000_000,
        longest: 1514,
        seed: 1,
    };
    let name = "packet socket: 1,000,000 frames each way, 60 to 1514 bytes";
    scenario(name, &NEEDS, || verify_both_ways(load, 1500, ""));
}

#[test]
fn frames_of_all_lengths_in_all_modes() {
    for mode in Mode::ALL {
        let load = Load {
            frames: 100_000,
            longest: 9014,
            seed: 2,
        };
        let name = format!("packet socket: 100,000 frames each way, 60 to 9014 bytes, {mode:?}");
        scenario(&name, &NEEDS, || verify_both_ways(load, 9000, mode.words()));
    }
}

#[test]
fn frames_of_any_kind_go_through() {
    scenario("packet socket: not IP, tagged", &NEEDS, || {
        let mut rig = rig("")?;
        rig.ensure_alive()?;
        BothWays::new(1514, 64).run(&mut rig, 20_000)?;
        // The kernel takes the tag off, and the daemon puts it back.
        let plain = TO_GUEST.build(1 << 41, 200);
        let tagged = [&plain[..12], &[0x81, 0, 0x20, 0x05], &plain[12..]].concat();
        rig.rx.refill();
        rig.wire.send(&tagged)?;
        let mut found = None;
        until(SOON, "the tagged frame", || {
            let taken = rig.rx.receive(1, |frame| found = Some(frame.to_vec()));
            (taken.ok()? > 0).then_some(())
        })?;
        ensure!(found.as_deref() == Some(&tagged[..]), "{found:02x?}");
        rig.daemon.stop()
    });
}

#[test]
fn an_interface_that_will_not_do_is_refused() {
    scenario(
        "packet socket: missing, loopback, two pairs",
        &NEEDS,
        || {
            let net = Net::enter()?;
            let missing = ["`v0` does not exist", "ip link"];
            ensure_refused(&on_v0(""), &missing)?;
            let loopback = DaemonOptions::on("--packet", "lo");
            ensure_refused(&loopback, &["`lo` carries no Ethernet frames", "veth"])?;
            net.veth("v0", "v1", 1500)?;
            let folder = tempfile::tempdir()?;
            let two = on_v0("").pairs(2).command(&folder.path().join("s"));
            let finished = Process::run("tapring", &two, SOON)?;
            ensure_one_line(
                &finished,
                2,
                &["--packet", "1 queue pair", "multi_queue tap"],
            )?;
            Daemon::start(&on_v0(""))?.stop()
        },
    );
}

#[test]
fn an_interface_that_is_down_drops_and_one_that_comes_up_carries() {
    for mode in Mode::ALL {
        scenario(
            &format!("packet socket: down and up, {mode:?}"),
            &NEEDS,
            || {
                let mut rig = rig(mode.words())?;
                rig.ensure_alive()?;
                rig.net.ip("link set v0 down")?;
                rig.ensure_down_drops(1000, SOON)?;
                ensure_idle(&rig.daemon, "down")?;
                rig.net.ip("link set v0 up")?;
                rig.net.wait_running("v0")?;
                rig.net.wait_running("v1")?;
                rig.wire = Wire::on("v1")?;
                rig.ensure_alive()?;
                rig.daemon.signal(Signal::SIGTERM)?;
                let lines = rig.daemon.finish(SOON)?.lines;
                ensure!(lines.len() < 20, "{} lines", lines.len());
                Ok(())
            },
        );
    }
}

#[test]
fn an_interface_that_is_down_at_the_start_is_warned_of() {
    scenario("packet socket: down at the start", &NEEDS, || {
        let net = Net::enter()?;
        net.veth("v0", "v1", 1500)?;
        net.ip("link set v0 down")?;
        let daemon = Daemon::start(&on_v0(""))?;
        ensure!(
            daemon.tail().contains("`ip link set v0 up`"),
            "{}",
            daemon.tail()
        );
        daemon.stop()
    });
}

#[test]
fn an_interface_that_goes_away_under_load_is_said_once() {
    for mode in Mode::ALL {
        scenario(
            &format!("packet socket: deleted under load, {mode:?}"),
            &NEEDS,
            || {
                let mut rig = rig(mode.words())?;
                rig.ensure_alive()?;
                BothWays::new(1514, 64).run(&mut rig, 2000)?;
                rig.net.ip("link del v0")?;
                for sequence in 0..1000 {
                    let frame = TO_HOST.build(sequence, 100);
                    rig.tx.transmit(&frame, false, SOON)?;
                }
                rig.ensure_tx_whole()?;
                let dropped = || {
                    let gone = rig.metric(DROPPED, &["reason=\"tap_gone\""]).ok()?;
                    let down = rig.metric(DROPPED, &["reason=\"tap_down\""]).ok()?;
                    (gone + down == 1000.0 && gone > 900.0).then_some(())
                };
                until(SOON, "all of them to be counted", dropped)?;
                ensure_idle(&rig.daemon, "gone")?;
                rig.daemon.signal(Signal::SIGTERM)?;
                let lines = rig.daemon.finish(SOON)?.lines;
                let said = lines
                    .iter()
                    .filter(|line| line.contains("was deleted"))
                    .count();
                ensure!(said == 1 && lines.len() < 20, "{lines:#?}");
                Ok(())
            },
        );
    }
}

fn tc(words: &str) -> Result<()> {
    let done = Command::new("tc").args(words.split_whitespace()).output()?;
    ensure!(done.status.success(), "tc {words}: {done:?}");
    Ok(())
}

/// Nothing is lost and nothing overtakes behind an egress that is slower than the guest, whether the socket's buffer (EAGAIN) or
/// the interface's queue (ENOBUFS) is full first.
fn slow_egress(mode: Mode, limit: &str) -> Result<()> {
    let mut rig = rig(mode.words())?;
    rig.ensure_alive()?;
    tc(&format!(
        "qdisc add dev v0 root handle 1: tbf rate 80mbit burst 20k limit {limit}"
    ))?;
    let mut verifier = Verifier::new(TO_HOST);
    let mut next = 0;
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        let more = next + 300;
        rig.fill(&mut next, more, 1000)?;
        rig.wire.drain(&mut verifier)?;
    }
    rig.ensure_all_leave(&mut verifier, next)?;
    let blocked = rig.metric("tapring_blocked_total", &["reason=\"tap_full\""])?;
    ensure!(blocked > 0.0, "{next} frames, and it was never full");
    rig.daemon.wait_metric(DROPPED, &[], 0.0)?;
    let enters = rig.metric("tapring_ring_enters_total", &[])?;
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let frames = next as f64;
    ensure!(enters < 2.0 * frames, "{enters} enters for {frames} frames");
    rig.daemon.stop()
}

#[test]
fn nothing_is_lost_behind_a_slow_egress() {
    for mode in Mode::ALL {
        for limit in ["10mb", "60k"] {
            let name =
                format!("packet socket: an egress of 80 Mbit/s that holds {limit}, {mode:?}");
            scenario(&name, &SHAPED, || slow_egress(mode, limit));
        }
    }
}

/// Attaches queues of a tap, of which libvirt and the like do the same, and becomes the daemon.
const PASS: &str = r#"
    $^F = 100;
    my ($name, $queues, @command) = @ARGV;
    my @held;
    for (1 .. $queues) {
        open(my $tun, "+<", "/dev/net/tun") or die "open: $!";
        ioctl($tun, 0x400454ca, my $request = pack("a16 S x22", $name, $queues > 1 ? 0x5102 : 0x5002)) or die "TUNSETIFF: $!";
        push @held, $tun;
    }
    my $list = join(",", map { fileno($_) } @held);
    exec(map { $_ eq "FDS" ? $list : $_ } @command) or die "exec: $!";
"#;

/// The daemon with descriptors of a tap, of which the command line says FDS.
fn passed(queues: u16, socket: &Path) -> Command {
    let options = DaemonOptions::on("--tap-fd", "FDS").pairs(queues);
    let daemon = options.command(socket);
    let mut perl = Command::new("perl");
    perl.args(["-e", PASS, "t0", &queues.to_string()]);
    perl.arg(daemon.get_program()).args(daemon.get_args());
    perl
}

#[test]
fn descriptors_of_a_tap_can_be_passed() {
    for (queues, kind) in [(1, ""), (2, "multi_queue")] {
        scenario(
            &format!("--tap-fd: {queues} queues of a tap"),
            &PASSED,
            || {
                let net = Net::enter()?;
                net.tap("t0", kind)?;
                let folder = tempfile::tempdir()?;
                let socket = folder.path().join("s");
                let daemon = Process::start("tapring", &passed(queues, &socket))?;
                daemon.wait_line("listens on", SOON)?;
                net.wait_running("t0")?;
                let host = HostEnd::on(&net, "t0", 1500)?;
                let mut config = GuestConfig::new(&socket);
                config.queue_pairs = queues;
                let mut guest = Guest::connect(&config)?;
                let load = Load {
                    frames: 20_000,
                    longest: 1514,
                    seed: 3,
                };
                let mut pair = guest.take_pairs().remove(0);
                // With two pairs the kernel spreads what comes from the host; a single flow is on one of them.
                if queues == 1 {
                    let (at_host, at_guest) = exchange(&mut pair, &host, load)?;
                    ensure_perfect("guest to host", at_host, load.frames)?;
                    ensure_perfect("host to guest", at_guest, load.frames)?;
                }
                drop(guest);
                daemon.signal(Signal::SIGTERM)?;
                let finished = daemon.finish(SOON)?;
                ensure!(finished.status.success(), "{finished:?}");
                Ok(())
            },
        );
    }
}

#[test]
fn descriptors_of_something_else_are_refused() {
    scenario("--tap-fd: not open, no tap, too few", &NEEDS, || {
        let closed = DaemonOptions::on("--tap-fd", "77");
        ensure_refused(&closed, &["file descriptor 77 is not open", "--tap-fd 77"])?;
        let folder = tempfile::tempdir()?;
        let run = |options: &DaemonOptions, redirect: &str| {
            let command = options.command(&folder.path().join("s"));
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$@\" {redirect}"), "sh"]);
            shell.arg(command.get_program()).args(command.get_args());
            Process::run("tapring", &shell, SOON)
        };
        let five = DaemonOptions::on("--tap-fd", "5");
        let null = run(&five, "5<>/dev/null")?;
        ensure_one_line(
            &null,
            1,
            &["file descriptor 5 is no queue of a tap or macvtap"],
        )?;
        let file = run(&five, "5</etc/passwd")?;
        ensure_one_line(
            &file,
            1,
            &["file descriptor 5 is no queue of a tap or macvtap"],
        )?;
        let two = DaemonOptions::on("--tap-fd", "5,6");
        let few = run(&two, "5<>/dev/null 6<>/dev/null")?;
        ensure_one_line(&few, 2, &["2 descriptors are not 1 queue pairs"])?;
        Ok(())
    });
}

/// A macvtap `m0` on `v0`, and where its device file was made. (The /sys we see may be another namespace's.)
fn macvtap(net: &Net, folder: &Path) -> Result<PathBuf> {
    net.veth("v0", "v1", 1500)?;
    // It takes frames for its own address only, so that the guest must have the same.
    net.ip("link add link v0 name m0 address 02:00:00:00:00:02 type macvtap mode bridge")?;
    net.ip("link set m0 up")?;
    net.wait_running("m0")?;
    let path = folder.join("tap");
    let script = "mount -t sysfs none /sys
        numbers=$(cat /sys/class/net/m0/tap*/dev)
        mknod \"$1\" c \"${numbers%:*}\" \"${numbers#*:}\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-ec", script, "sh"]).arg(&path);
    let made = unshare.output()?;
    ensure!(made.status.success(), "{made:?}");
    Ok(path)
}

#[test]
fn a_macvtap_carries_frames_and_its_end_is_said() {
    for mode in Mode::ALL {
        scenario(
            &format!("macvtap: both ways, deleted, {mode:?}"),
            &DEVICES,
            || {
                let net = Net::enter()?;
                let folder = tempfile::tempdir()?;
                let device = macvtap(&net, folder.path())?;
                let device = device.to_str().context("a path in UTF-8")?;
                let options = DaemonOptions::on("--tap", device).with(mode.words());
                let mut rig = Rig::start_on(net, &options, 1, ["m0", "v1"], |_| {})?;
                rig.ensure_alive()?;
                BothWays::new(1514, 64).run(&mut rig, 20_000)?;
                ensure_idle(&rig.daemon, "a macvtap")?;
                rig.net.ip("link del m0")?;
                until(SOON, "its end to be said", || {
                    rig.daemon.tail().contains("was deleted").then_some(())
                })?;
                ensure_idle(&rig.daemon, "a macvtap that is gone")?;
                rig.daemon.stop()
            },
        );
    }
}

#[test]
fn a_device_of_something_else_is_refused() {
    scenario("--tap PATH: missing, no macvtap", &NEEDS, || {
        let missing = DaemonOptions::on("--tap", "/dev/tap-of-nobody");
        ensure_refused(&missing, &["/dev/tap-of-nobody", "type macvtap"])?;
        let null = DaemonOptions::on("--tap", "/dev/null");
        ensure_refused(&null, &["/dev/null is no queue of a tap or macvtap"])?;
        if fs::exists("/dev/net/tun")? {
            let tun = DaemonOptions::on("--tap", "/dev/net/tun");
            ensure_refused(&tun, &["/dev/net/tun", "--tap NAME"])?;
        }
        Ok(())
    });
}

#[test]
fn it_sleeps_while_nothing_comes() {
    scenario("packet socket: idle", &NEEDS, || {
        let mut rig = rig("")?;
        rig.ensure_alive()?;
        ensure_idle(&rig.daemon, "with a guest")?;
        rig.ensure_alive()?;
        rig.daemon.stop()
    });
}
