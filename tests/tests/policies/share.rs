//! Budgets: what each direction gets of a worker that has too much to do both ways.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use tapring_guest::{RxQueue, TxQueue};
use tapring_tests::{
    Daemon, Need, Net, Rig, SlowIngress, TO_GUEST, TO_HOST, Wire, scenario, until,
};

use crate::{OWED, RX, TX};

const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("tc")];

/// Frames that are looked at.
const FRAMES: f64 = 20_000.0;

/// Keeps the transmitq full, the receiveq full of buffers and the tap's queue full of frames. One thread does it all, so that
/// both directions stand still together when it does not run.
fn feed(tx: &mut TxQueue, rx: &mut RxQueue, wire: &Wire, stop: &AtomicBool) -> Result<()> {
    let to_guest = TO_GUEST.build(0, 200);
    tx.prepare(|_, bytes| bytes.extend(of_no_interest(200)))?;
    while !stop.load(Ordering::Relaxed) {
        tx.collect()?;
        while tx.send_prepared().is_ok() {}
        tx.kick_if_needed();
        rx.discard(usize::MAX)?;
        rx.refill();
        (0..100).try_for_each(|_| wire.send(&to_guest))?;
    }
    Ok(())
}

/// A frame of a kind that nobody on the host takes.
fn of_no_interest(bytes: usize) -> Vec<u8> {
    let mut frame = TO_HOST.build(0, bytes);
    frame[12..14].copy_from_slice(&0x88b6_u16.to_be_bytes());
    frame
}

/// The transmitq's part of the frames moved under these budgets.
fn share_of_tx(daemon: &Daemon, net: &Net, budgets: &str) -> Result<f64> {
    daemon.control().policy(budgets)?;
    let counts = || -> Result<[f64; 2]> {
        let scrape = daemon.metrics()?;
        let of = |direction| scrape.sum("tapring_packets_total", &[direction]);
        Ok([of(TX)?, of(RX)?])
    };
    let (before, dropped) = (counts()?, net.counters("t0")?.tx_dropped);
    let moved = until(OWED * 4, "frames both ways", || {
        let now = counts().ok()?;
        let moved = [now[0] - before[0], now[1] - before[1]];
        (moved[0] + moved[1] >= FRAMES).then_some(moved)
    })?;
    let dropped = net.counters("t0")?.tx_dropped - dropped;
    ensure!(dropped > 0, "the tap's queue was not full");
    Ok(moved[0] / (moved[0] + moved[1]))
}

/// Equal budgets are equal shares; the smaller of two gives less.
fn shares(daemon: &Daemon, net: &Net) -> Result<()> {
    let of = |budgets| share_of_tx(daemon, net, budgets);
    let whole = of("--tx-budget 64 --rx-budget 64")?;
    let eights = of("--tx-budget 8 --rx-budget 8")?;
    let (less, more) = (
        of("--tx-budget 16 --rx-budget 64")?,
        of("--tx-budget 64 --rx-budget 16")?,
    );
    ensure!(
        [whole, eights]
            .iter()
            .all(|share| (0.36..0.64).contains(share)),
        "TX has {whole:.2} with budgets of 64, {eights:.2} with budgets of 8"
    );
    ensure!(
        less + 0.1 < whole && whole + 0.1 < more,
        "TX has {less:.2} with a quarter of RX's budget, {whole:.2} with the same, {more:.2} with four times as much"
    );
    Ok(())
}

#[test]
fn neither_direction_starves_the_other() {
    scenario("data path: budgets under load both ways", NEEDS, || {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        SlowIngress::on("t0", 1500)?;
        let mut rig = Rig::start_in(net, "", |config| config.queue_size = 1024)?;
        rig.daemon.stand_back()?;
        let stop = AtomicBool::new(false);
        let Rig {
            tx,
            rx,
            daemon,
            net,
            ..
        } = &mut rig;
        let wire = Wire::on("t0")?;
        thread::scope(|scope| {
            let load = scope.spawn(|| feed(tx, rx, &wire, &stop));
            let outcome = shares(daemon, net);
            stop.store(true, Ordering::Relaxed);
            load.join().expect("no panic")?;
            outcome
        })
        .with_context(|| rig.daemon.tail())
    });
}
