//! Chains that no driver should make: each costs that frame, and nothing else.
#![allow(clippy::cast_possible_truncation)] // of lengths and indices that are made up here

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tapring_guest::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DriverRing, GuestConfig, HEADER_BYTES, RAW,
    Ram, Random,
};
use tapring_tests::{Mode, Need, Rig, TO_GUEST, TO_HOST, cases};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

/// How long anything may take that nothing holds up.
const SOON: Duration = Duration::from_secs(5);

/// Far beyond any guest memory.
const HOLE: u64 = 1 << 46;

/// Where on a shelf the buffer lies that no chain may write to.
const READABLE: u64 = 300;

/// Where guest memory is put by hand.
struct Shelf {
    at: u64,
    /// Where tables go.
    table: u64,
    /// How many there are.
    tables: Cell<u64>,
    end: u64,
}

impl Shelf {
    /// A plain frame of 200 bytes behind its header, and room for tables.
    fn of(rig: &Rig) -> Self {
        let free = rig.guest.free_memory();
        let ram = rig.guest.ram();
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend(TO_HOST.build(1, 200));
        ram.write(free.start, &bytes);
        Self {
            at: free.start,
            table: free.start + 0x1_0000,
            tables: Cell::new(0),
            end: free.end,
        }
    }

    const fn piece(&self, offset: u64, bytes: u32, flags: u16) -> Descriptor {
        Descriptor {
            address: self.at + offset,
            bytes,
            flags,
            next: 0,
        }
    }

    /// A descriptor that points to a table with these entries.
    fn table(&self, ram: &Ram, entries: &[Descriptor]) -> Descriptor {
        let start = self.table + self.tables.replace(self.tables.get() + 1) * 4096;
        for (at, entry) in (start..).step_by(16).zip(entries) {
            ram.write(at, &entry.to_bytes());
        }
        Descriptor {
            address: start,
            bytes: entries.len() as u32 * 16,
            flags: DESC_INDIRECT,
            next: 0,
        }
    }
}

/// A malformed chain: the kind it is counted as, and its descriptors.
type Bad = (&'static str, Vec<Descriptor>);

/// Malformed in either direction; `w` is the flag of a descriptor in the right direction.
fn bad_anywhere(shelf: &Shelf, ram: &Ram, w: u16) -> Vec<Bad> {
    let good = shelf.piece(0, 212, w);
    let at = |address, bytes| Descriptor {
        address,
        bytes,
        flags: w,
        next: 0,
    };
    let bad_table = |bytes| Descriptor {
        bytes,
        ..shelf.table(ram, &[good])
    };
    let link = |flags, next| Descriptor {
        flags: w | flags,
        next,
        ..good
    };
    let nested = Descriptor {
        flags: DESC_INDIRECT,
        ..good
    };
    vec![
        ("bad_chain", vec![shelf.table(ram, &[link(DESC_NEXT, 0)])]),
        ("bad_chain", vec![shelf.table(ram, &[link(DESC_NEXT, 1)])]),
        (
            "bad_chain",
            vec![shelf.table(ram, &[link(DESC_NEXT, 1), link(DESC_NEXT, 0xffff)])],
        ),
        ("bad_indirect", vec![shelf.table(ram, &[nested])]),
        (
            "bad_indirect",
            vec![shelf.table(ram, &[link(DESC_NEXT, 1), nested])],
        ),
        ("bad_address", vec![at(HOLE, 212)]),
        ("bad_address", vec![good, at(HOLE, 1)]),
        ("bad_address", vec![at(shelf.end - 10, 100)]),
        ("bad_address", vec![at(u64::MAX - 50, 100)]),
        ("bad_address", vec![at(1 << 63, 212), good]),
        (
            "wrong_direction",
            vec![shelf.piece(0, 212, w ^ DESC_WRITE), good],
        ),
        (
            "wrong_direction",
            vec![good, shelf.piece(READABLE, 20, w ^ DESC_WRITE)],
        ),
        ("bad_indirect", vec![bad_table(0)]),
        ("bad_indirect", vec![bad_table(8)]),
        ("bad_indirect", vec![bad_table(17)]),
        ("bad_indirect", vec![bad_table(16 * 257)]),
        ("bad_indirect", vec![bad_table(0xffff_fff0)]),
        (
            "bad_indirect",
            vec![Descriptor {
                address: HOLE,
                ..bad_table(16)
            }],
        ),
        ("bad_indirect", vec![bad_table(16), good]),
    ]
}

fn bad_transmit(shelf: &Shelf, ram: &Ram) -> Vec<Bad> {
    let mut bad = bad_anywhere(shelf, ram, 0);
    for total in [0, 1, 5, 11, 12, 13, 25] {
        for first in 0..=total {
            let rest = shelf.piece(u64::from(first), total - first, 0);
            bad.push(("too_short", vec![shelf.piece(0, first, 0), rest]));
        }
        bad.push(("too_short", vec![shelf.piece(0, total, 0)]));
    }
    for total in [65_563, 70_012, 131_084, 16 << 20, u32::MAX] {
        bad.push(("too_large", vec![shelf.piece(0, total, 0)]));
    }
    bad
}

/// Makes each bad chain available, in turn, `rounds` times in all.
fn transmit_bad(mode: Mode, total: usize) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.memory_bytes = 96 << 20)?;
    let shelf = Shelf::of(&rig);
    let ram = rig.guest.ram();
    let bad = bad_transmit(&shelf, &ram);
    rig.ensure_alive()?;
    for (kind, chain) in &bad {
        let label = format!("kind=\"{kind}\"");
        let labels = ["direction=\"tx\"", &label];
        let before = rig.metric("tapring_guest_faults_total", &labels)?;
        let mut made = 0;
        while made < total {
            while made < total && rig.tx.ring_mut().add(chain, RAW, 0).is_ok() {
                made += 1;
            }
            rig.tx.kick_if_needed();
            rig.ensure_tx_whole()?;
        }
        #[allow(clippy::cast_precision_loss)]
        rig.daemon
            .wait_metric("tapring_guest_faults_total", &labels, before + made as f64)?;
        if let Some(frame) = rig.wire.try_receive()? {
            anyhow::bail!(
                "{} bytes left of a chain that is {kind}: {chain:x?}",
                frame.len()
            );
        }
    }
    for _ in 0..300 {
        rig.ensure_alive()?;
    }
    rig.ensure_tx_whole()
}

#[test]
fn malformed_transmit_chains_come_back() {
    cases("malformed TX chains", NEEDS, Mode::ALL, |mode| {
        transmit_bad(mode, 2000)
    });
}

/// Bad and good buffers in turn: each frame is in a good one, each bad one comes back empty.
fn receive_bad(mergeable: bool) -> Result<()> {
    let mut rig = Rig::start("", |config| config.mrg_rxbuf = mergeable)?;
    let shelf = Shelf::of(&rig);
    let ram = rig.guest.ram();
    let mut bad = bad_anywhere(&shelf, &ram, DESC_WRITE);
    let short: &[u32] = if mergeable {
        &[0, 1, 8, 11]
    } else {
        &[0, 1, 8, 11, 12, 13, 25]
    };
    bad.extend(
        short
            .iter()
            .map(|&bytes| ("too_short", vec![shelf.piece(0, bytes, DESC_WRITE)])),
    );
    for (kind, chain) in &bad {
        let label = format!("kind=\"{kind}\"");
        let labels = ["direction=\"rx\"", &label];
        let before = rig.metric("tapring_guest_faults_total", &labels)?;
        let empty = rig.rx.counters().returned_empty;
        let mut made = 0u64;
        for n in 0..50u64 {
            for _ in 0..20 {
                let capacity = chain
                    .iter()
                    .map(|piece| u64::from(piece.bytes))
                    .sum::<u64>();
                let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
                ensure!(
                    rig.rx.ring_mut().add(chain, RAW, capacity).is_ok(),
                    "the ring runs dry"
                );
                made += 1;
            }
            rig.rx.post(1);
            rig.rx.kick_if_needed();
            let frame = TO_GUEST.build(n, 300);
            rig.wire.send(&frame)?;
            let found = rig.receive(SOON)?;
            ensure!(
                found.as_deref() == Some(&frame[..]),
                "frame {n} behind {kind} {chain:x?} did not come"
            );
        }
        let empty = rig.rx.counters().returned_empty - empty;
        ensure!(empty == made, "{empty} of {made} came back empty");
        #[allow(clippy::cast_precision_loss)]
        rig.daemon
            .wait_metric("tapring_guest_faults_total", &labels, before + made as f64)?;
    }
    let mut readable = [0xff; 20];
    ensure!(ram.read(shelf.at + READABLE, &mut readable));
    ensure!(readable == [0; 20], "the device wrote to a readable buffer");
    for _ in 0..300 {
        rig.ensure_alive()?;
    }
    Ok(())
}

#[test]
fn malformed_receive_chains_come_back() {
    cases("malformed RX chains", NEEDS, [true, false], receive_bad);
}

/// B48: descriptors change while they are read.
fn flipped(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    let shelf = Shelf::of(&rig);
    let ram = rig.guest.ram();
    let stop = AtomicBool::new(false);
    let (tx, rx) = (rig.tx.ring().addresses(), rig.rx.ring().addresses());
    thread::scope(|scope| -> Result<()> {
        let (ram, stop) = (&ram, &stop);
        scope.spawn(move || flip(ram, &shelf, [tx, rx], stop));
        let outcome = drive_raw(&mut rig);
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    let config = GuestConfig::new("");
    let pair = rig.guest.reboot(&config)?.remove(0);
    (rig.tx, rig.rx) = (pair.tx, pair.rx);
    while rig.wire.try_receive()?.is_some() {}
    rig.rx.refill();
    drain_flood(&mut rig)?;
    for _ in 0..100 {
        rig.ensure_alive()?;
    }
    Ok(())
}

/// Receives what is left of the flood, up to a last frame, for which there may be no room in the tap at first.
fn drain_flood(rig: &mut Rig) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    for number in 1 << 50.. {
        let last = TO_GUEST.build(number, 60);
        rig.wire.send(&last)?;
        while let Some(frame) = rig.receive(Duration::from_millis(100))? {
            rig.rx.refill();
            if frame == last {
                return Ok(());
            }
        }
        ensure!(
            Instant::now() < end,
            "the last frame of the flood did not come"
        );
    }
    Ok(())
}

fn flip(ram: &Ram, shelf: &Shelf, rings: [[u64; 3]; 2], stop: &AtomicBool) {
    let mut random = Random::new(3);
    let addresses = [shelf.at, shelf.at, HOLE, shelf.end - 10, shelf.table];
    let lengths = [212, 1514, 0, 5, u32::MAX, 70_000];
    let flags = [
        0,
        DESC_NEXT,
        DESC_WRITE,
        DESC_WRITE,
        DESC_INDIRECT,
        DESC_NEXT | DESC_WRITE,
    ];
    while !stop.load(Ordering::Relaxed) {
        let [table, avail, _] = rings[random.between(0, 1)];
        let index = random.between(0, 255) as u64;
        let wild = Descriptor {
            address: addresses[random.between(0, addresses.len() - 1)],
            bytes: lengths[random.between(0, lengths.len() - 1)],
            flags: flags[random.between(0, flags.len() - 1)],
            next: random.between(0, 300) as u16,
        };
        ram.write(table + index * 16, &wild.to_bytes());
        ram.write(
            avail + 4 + index * 2,
            &(random.between(0, 255) as u16).to_le_bytes(),
        );
        ram.write(shelf.table + index * 16, &wild.to_bytes());
        ram.write(
            shelf.at + random.between(0, 11) as u64,
            &[random.bits() as u8 & 3],
        );
    }
}

/// Makes entries available without looking at what is in them.
fn drive_raw(rig: &mut Rig) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(1);
    let mut n = 0;
    let mut indices = [rig.tx.ring().avail_index(), rig.rx.ring().avail_index()];
    while Instant::now() < end {
        for (ring, index) in [rig.tx.ring_mut(), rig.rx.ring_mut()]
            .into_iter()
            .zip(&mut indices)
        {
            let used = ring.used_index();
            if index.wrapping_sub(used) < 128 {
                *index = index.wrapping_add(32);
                ring.store_avail_index(*index);
                ring.kick();
            }
        }
        n += 1;
        rig.wire.send(&TO_GUEST.build(n, 60 + n as usize % 1400))?;
        while let Some(frame) = rig.wire.try_receive()? {
            ensure!(frame.len() <= 65_550, "a frame of {} bytes", frame.len());
        }
    }
    Ok(())
}

#[test]
fn descriptors_that_change_under_the_device_do_no_harm() {
    cases("descriptors that change", NEEDS, Mode::ALL, flipped);
}

/// An available index that moved by more than the ring holds ends that ring, and a start begins it anew.
fn impossible_index(direction: &str, ring: u16) -> Result<()> {
    let mut rig = Rig::start("", |_| ())?;
    rig.ensure_alive()?;
    let driver = if ring == 0 {
        rig.rx.ring_mut()
    } else {
        rig.tx.ring_mut()
    };
    driver.store_avail_index(driver.avail_index().wrapping_add(2000));
    driver.kick();
    if ring == 0 {
        rig.wire.send(&TO_GUEST.build(1, 60))?;
    }
    let labels = [
        &format!("direction=\"{direction}\"")[..],
        "kind=\"bad_index\"",
    ];
    rig.daemon
        .wait_metric("tapring_guest_faults_total", &labels, 1.0)?;
    let pair = rig.guest.reboot(&GuestConfig::default())?.remove(0);
    (rig.tx, rig.rx) = (pair.tx, pair.rx);
    rig.rx.refill();
    while rig.receive(Duration::from_millis(100))?.is_some() {}
    rig.ensure_alive()
}

#[test]
fn an_impossible_index_ends_the_ring_until_it_is_started_again() {
    cases(
        "an impossible index",
        NEEDS,
        [("rx", 0), ("tx", 1)],
        |(direction, ring)| impossible_index(direction, ring),
    );
}

/// The ring of a direction.
const fn ring_of(rig: &mut Rig, receive: bool) -> &mut DriverRing {
    if receive {
        rig.rx.ring_mut()
    } else {
        rig.tx.ring_mut()
    }
}

/// Descriptor 9 and the head that names it, or no descriptor at all. All others lead to one another, without an end.
fn bad_entries(shelf: &Shelf, ram: &Ram, ring: &DriverRing, w: u16) -> Vec<(Bad, u16)> {
    let good = shelf.piece(0, 212, w);
    let link = |next| Descriptor {
        flags: w | DESC_NEXT,
        next,
        ..good
    };
    for index in 0..ring.size() {
        ring.write_descriptor(index, link(1 - index % 2));
    }
    let chain = |kind, descriptor| ((kind, vec![descriptor]), 9);
    let not_negotiated = shelf.table(ram, &[good]);
    vec![
        chain("bad_chain", link(0)),
        chain("bad_chain", link(9)),
        chain("bad_chain", link(256)),
        chain("bad_chain", link(0xffff)),
        chain("bad_indirect", not_negotiated),
        (("bad_head", vec![good]), 256),
        (("bad_head", vec![good]), 0xffff),
    ]
}

/// Chains of the ring's own table that end nowhere, and heads that are none.
fn bad_links(direction: &str, receive: bool) -> Result<()> {
    let mut rig = Rig::start("", |config| config.indirect = false)?;
    let (shelf, ram) = (Shelf::of(&rig), rig.guest.ram());
    let w = if receive { DESC_WRITE } else { 0 };
    let bad = bad_entries(&shelf, &ram, ring_of(&mut rig, receive), w);
    let first = ring_of(&mut rig, receive).avail_index();
    for (n, ((kind, chain), head)) in (0..).zip(&bad) {
        let ring = ring_of(&mut rig, receive);
        ring.write_descriptor(9, chain[0]);
        ring.write_avail_entry(first + n, *head);
        ring.store_avail_index(first + n + 1);
        ring.kick();
        if receive {
            rig.wire.send(&TO_GUEST.build(n.into(), 60))?;
        }
        let labels = [
            &format!("direction=\"{direction}\"")[..],
            &format!("kind=\"{kind}\""),
        ];
        let up_to_here = &bad[..=usize::from(n)];
        let count = up_to_here.iter().filter(|bad| bad.0.0 == *kind).count();
        #[allow(clippy::cast_precision_loss)] // below 10
        rig.daemon
            .wait_metric("tapring_guest_faults_total", &labels, count as f64)?;
    }
    let returned = ring_of(&mut rig, receive).used_index() - first;
    ensure!(
        returned == 5,
        "{returned} came back; a head that is none cannot"
    );
    let pair = rig.guest.reboot(&GuestConfig::default())?.remove(0);
    (rig.tx, rig.rx) = (pair.tx, pair.rx);
    rig.rx.refill();
    drain_flood(&mut rig)?;
    rig.ensure_alive()
}

#[test]
fn chains_without_an_end_come_back() {
    cases(
        "chains without an end",
        NEEDS,
        [("rx", true), ("tx", false)],
        |(direction, receive)| bad_links(direction, receive),
    );
}
