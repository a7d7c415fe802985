//! What comes between: pauses, a daemon that is stopped, frontends that hang up, a tap that had another life.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tapring_guest::traffic::Verifier;
use tapring_guest::{Guest, GuestConfig, Pair, Random, Until};
use tapring_tests::{Mode, Need, Net, Rig, TO_GUEST, TO_HOST, Wire, cases};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

/// A lost wake-up never ends; a busy machine does.
const STANDSTILL: Duration = Duration::from_secs(10);

/// B10: single frames with gaps around the time after which the polling thread sleeps.
fn gaps(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    let mut random = Random::new(5);
    let mut took = Vec::new();
    rig.ensure_alive()?;
    for n in 0..200u64 {
        let gap = match n % 4 {
            0 => 1000,
            1 => 2000,
            2 => 3000,
            _ => random.between(0, 6000) as u64,
        };
        thread::sleep(Duration::from_micros(gap));
        let start = Instant::now();
        rig.ensure_alive()?;
        took.push(start.elapsed());
    }
    took.sort();
    println!("{mode:?}: median {:?}, longest {:?}", took[100], took[199]);
    Ok(())
}

#[test]
fn frames_after_a_pause_do_not_wait() {
    cases("frames after a pause", NEEDS, Mode::ALL, gaps);
}

/// B26: the daemon does not run for a while; then all there is is taken without a further event.
fn stopped(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    rig.rx.refill();
    rig.ensure_alive()?;
    rig.rx.refill();
    let (mut host, mut guest) = (Verifier::new(TO_HOST), Verifier::new(TO_GUEST));
    rig.daemon.signal(Signal::SIGSTOP)?;
    for n in 0..5000 {
        rig.wire.send(&TO_GUEST.build(n, 100))?;
    }
    let mut sent = 0;
    while rig.tx.send(&TO_HOST.build(sent, 100)).is_ok() {
        sent += 1;
        rig.tx.kick_if_needed();
    }
    let dropped = rig.net.counters("t0")?.tx_dropped;
    rig.daemon.signal(Signal::SIGCONT)?;
    let end = Instant::now() + STANDSTILL;
    while guest.report(5000).lost > dropped || host.report(sent).lost > 0 {
        rig.rx
            .wait_for_call(Until::Next, Duration::from_millis(10))?;
        rig.rx.receive(usize::MAX, |frame| _ = guest.frame(frame))?;
        rig.rx.refill();
        while let Some(frame) = rig.wire.try_receive()? {
            host.frame(frame);
        }
        ensure!(
            Instant::now() < end,
            "{:?} {:?}, {dropped} dropped",
            guest.report(5000),
            host.report(sent)
        );
    }
    let wrong =
        [guest.report(5000), host.report(sent)].map(|r| r.reordered + r.corrupt + r.duplicated);
    ensure!(wrong == [0, 0], "{wrong:?}");
    rig.ensure_tx_whole()?;
    rig.ensure_alive()
}

#[test]
fn a_daemon_that_was_stopped_catches_up() {
    cases("SIGSTOP", NEEDS, Mode::ALL, stopped);
}

/// B11: frontends that hang up with frames on their way, and take their memory with them.
fn hang_ups(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    let stop = AtomicBool::new(false);
    let wire = Wire::on("t0")?;
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let _ = wire.send(&TO_GUEST.build(n, 1000));
            }
        });
        let outcome = (0..40).try_for_each(|n| hang_up(&mut rig, n));
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    rig.guest.detach();
    let config = GuestConfig::new(rig.daemon.socket());
    rig.guest = Guest::connect(&config)?;
    let Pair { tx, rx } = rig.guest.take_pairs().remove(0);
    (rig.tx, rig.rx) = (tx, rx);
    while rig.wire.try_receive()?.is_some() {}
    rig.ensure_alive()
}

fn hang_up(rig: &mut Rig, n: u64) -> Result<()> {
    rig.guest.detach();
    let mut config = GuestConfig::new(rig.daemon.socket());
    config.rx_buffer_bytes = if n.is_multiple_of(2) { 300 } else { 1536 };
    config.tx_buffer_bytes = 9216;
    let mut guest = Guest::connect(&config)
        .context("connect again")
        .with_context(|| rig.daemon.tail())?;
    let Pair { mut tx, mut rx } = guest.take_pairs().remove(0);
    rx.refill();
    for m in 0..100 {
        tx.send(&TO_HOST.build(m, if m.is_multiple_of(2) { 8000 } else { 300 }))?;
    }
    tx.kick_if_needed();
    if n.is_multiple_of(3) {
        rx.wait_for_call(Until::Next, Duration::from_secs(5))?;
    }
    rig.guest = guest;
    (rig.tx, rig.rx) = (tx, rx);
    Ok(())
}

#[test]
fn frontends_that_hang_up_leave_a_working_device() {
    cases(
        "hang-ups with frames on their way",
        NEEDS,
        Mode::ALL,
        hang_ups,
    );
}

/// Opens tap t0 with these flags and sets the length of its header, unless that is 0.
const SET_HEADER: &str = r#"
    my ($flags, $bytes) = @ARGV;
    open(my $tun, "+<", "/dev/net/tun") or die "open: $!";
    ioctl($tun, 0x400454ca, my $request = pack("a16 S x22", "t0", $flags)) or die "TUNSETIFF: $!";
    $bytes == 0 or ioctl($tun, 0x400454d8, my $value = pack("i", $bytes)) or die "TUNSETVNETHDRSZ: $!";
"#;

/// B28: whatever header length the tap had before.
#[test]
fn a_tap_with_another_header_length_is_used() {
    const VNET_HDR: u32 = 0x5002;
    let needs = [NEEDS, &[Need::Tool("perl")]].concat();
    let lives = [
        (0x1002, 0),
        (VNET_HDR, 10),
        (VNET_HDR, 12),
        (VNET_HDR, 20),
        (2, 0),
    ];
    cases(
        "a tap with another header length",
        &needs,
        lives,
        |(flags, bytes)| {
            let net = Net::enter()?;
            net.tap("t0", "")?;
            let mut perl = Command::new("perl");
            perl.args(["-e", SET_HEADER, &flags.to_string(), &bytes.to_string()]);
            let done = perl.output()?;
            let said = String::from_utf8_lossy(&done.stderr);
            ensure!(done.status.success(), "{said}");
            let mut rig = Rig::start_in(net, "", |_| ())?;
            (0..10).try_for_each(|_| rig.ensure_alive())
        },
    );
}
