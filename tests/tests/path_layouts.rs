//! Chains of every legal shape: what the guest cut up arrives in one piece.

#![allow(clippy::cast_possible_truncation)] // of lengths that are made up here

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tapring_guest::{Cut, DESC_WRITE, Descriptor, GuestConfig, HEADER_BYTES, Layout, RAW};
use tapring_tests::{Mode, Need, Rig, TO_GUEST, TO_HOST, cases, scenario, until};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

/// How long anything may take that nothing holds up.
const SOON: Duration = Duration::from_secs(5);

/// Every legal way to cut a header and a frame.
fn odd_layouts() -> Vec<Layout> {
    let mut cuts: Vec<Vec<usize>> = (0..=14).map(|cut| vec![cut]).collect();
    cuts.extend((0..=12).flat_map(|first| (first..=12).map(move |second| vec![first, second])));
    cuts.push((1..=12).collect());
    cuts.push((1..=11).collect());
    cuts.push(vec![0, 0, 5, 5, 5, 12, 12, 40, 40]);
    let direct = cuts.into_iter().map(|cut| Layout::direct(Cut::At(cut)));
    direct
        .flat_map(|layout| {
            let tables = [1, 2, 8, 15].map(|odd| layout.clone().in_table(odd));
            std::iter::once(layout).chain(tables)
        })
        .collect()
}

fn layouts(mode: Mode, mergeable: bool) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| config.mrg_rxbuf = mergeable)?;
    for (n, layout) in (0u64..).zip(odd_layouts()) {
        let frame = TO_HOST.build(n, 61 + (n % 100) as usize);
        rig.tx.send_in(&frame, &layout)?;
        rig.tx.kick_if_needed();
        let found = rig.wire.receive(SOON)?;
        ensure!(found == Some(&frame[..]), "TX {layout:?}");
        rig.ensure_tx_whole()?;
        rig.rx.reshape(700, &layout)?;
        rig.rx.post(1);
        rig.rx.kick_if_needed();
        let frame = TO_GUEST.build(n, 61 + (n % 100) as usize);
        rig.wire.send(&frame)?;
        let found = rig.receive(SOON)?;
        ensure!(found.as_deref() == Some(&frame[..]), "RX {layout:?}");
    }
    Ok(())
}

#[test]
fn odd_but_legal_layouts_work() {
    let all = [Mode::Inline, Mode::Plain].map(|mode| [(mode, true), (mode, false)]);
    cases("odd layouts", NEEDS, all.concat(), |(mode, mergeable)| {
        layouts(mode, mergeable)
    });
}

/// A frame of `bytes` in so many pieces, the header one of them, and a whole one behind it.
fn transmit_pieces(rig: &mut Rig, bytes: usize, layout: &Layout, legal: bool) -> Result<()> {
    let (frame, behind) = (TO_HOST.build(1, bytes), TO_HOST.build(2, 60));
    rig.tx.send_in(&frame, layout)?;
    rig.tx.kick_if_needed();
    if legal {
        ensure!(
            rig.wire.receive(SOON)? == Some(&frame[..]),
            "it does not leave"
        );
    }
    rig.ensure_tx_whole()?;
    rig.tx.send(&behind)?;
    rig.tx.kick_if_needed();
    ensure!(
        rig.wire.receive(SOON)? == Some(&behind[..]),
        "the next does not leave"
    );
    rig.ensure_tx_whole()
}

/// A frame that fills a buffer of so many pieces, or the buffer behind it.
fn receive_pieces(rig: &mut Rig, bytes: usize, layout: &Layout, legal: bool) -> Result<()> {
    rig.rx.reshape(HEADER_BYTES + bytes, layout)?;
    rig.rx.post(1);
    if !legal {
        rig.rx.reshape(HEADER_BYTES + bytes, &Layout::ONE)?;
        rig.rx.post(1);
    }
    rig.rx.kick_if_needed();
    let frame = TO_GUEST.build(3, bytes);
    rig.wire.send(&frame)?;
    let found = rig.receive(SOON)?;
    ensure!(found.as_deref() == Some(&frame[..]), "it does not arrive");
    Ok(())
}

/// Direct chains of up to as many descriptors as the ring has; and one more than that in a table, which is refused.
fn many_pieces(mode: Mode, indirect: bool) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config: &mut GuestConfig| {
        config.queue_size = 1024;
        config.indirect_entries = 1100;
        config.tx_buffer_bytes = 32 << 10;
        config.rx_buffer_bytes = 32 << 10;
        config.memory_bytes = 256 << 20;
        config.mrg_rxbuf = false;
    })?;
    rig.net.ip("link set t0 mtu 9000")?;
    let most = if indirect { 1025 } else { 1024 };
    for pieces in [2, 16, 20, 21, 64, 255, 1023, 1024, most] {
        for bytes in [1100, 9000] {
            let mut layout = Layout::pieces(pieces - 1);
            if indirect {
                layout = layout.in_table(0);
            }
            let name = || format!("{bytes} bytes in {pieces} pieces");
            transmit_pieces(&mut rig, bytes, &layout, pieces <= 1024).with_context(name)?;
            receive_pieces(&mut rig, bytes, &layout, pieces <= 1024).with_context(name)?;
        }
    }
    rig.rx.reshape(2000, &Layout::ONE)?;
    rig.ensure_alive()
}

#[test]
fn chains_of_many_pieces_work() {
    cases(
        "many pieces",
        NEEDS,
        Mode::with(&[false, true]),
        |(mode, indirect)| many_pieces(mode, indirect),
    );
}

/// Frames far beyond any MTU: the guest may send up to 64 KiB, and no more.
fn oversize(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |config| {
        config.tx_buffer_bytes = 68 << 10;
        config.memory_bytes = 128 << 20;
    })?;
    for pieces in [2, 19, 20, 21, 100, 250] {
        let frame = TO_HOST.build(u64::from(pieces), 65_000);
        rig.tx.send_in(&frame, &Layout::pieces(pieces))?;
        rig.tx.kick_if_needed();
        let found = rig.wire.receive(SOON)?;
        ensure!(found == Some(&frame[..]), "65,000 bytes in {pieces} pieces");
        rig.ensure_tx_whole()?;
    }
    for (n, bytes) in [
        65_549,
        60_000,
        40_000,
        9014,
        4097 - 12,
        4096 - 12,
        4095,
        65_549,
    ]
    .into_iter()
    .enumerate()
    {
        for m in 0..10 {
            rig.tx.send(&TO_HOST.build((n * 10 + m) as u64, bytes))?;
        }
        rig.tx.kick_if_needed();
        for m in 0..10 {
            let found = rig.wire.receive(SOON)?;
            ensure!(
                found == Some(&TO_HOST.build((n * 10 + m) as u64, bytes)[..]),
                "{bytes} bytes"
            );
        }
        rig.ensure_tx_whole()?;
    }
    rig.ensure_alive()
}

#[test]
fn frames_of_64_kib_leave() {
    cases("frames of 64 KiB", NEEDS, Mode::ALL, oversize);
}

/// Bytes of a buffer that lie before the border of two regions.
const BEFORE: [u64; 7] = [1, 5, 11, 12, 13, 26, 150];

/// Makes one descriptor available that begins `before` bytes in front of the border.
fn expose(rig: &mut Rig, border: u64, before: u64, bytes: usize, flags: u16) -> Result<()> {
    let chain = [Descriptor {
        address: border - before,
        bytes: bytes as u32,
        flags,
        next: 0,
    }];
    let capacity = if flags == DESC_WRITE { bytes as u32 } else { 0 };
    let ring = if flags == DESC_WRITE {
        rig.rx.ring_mut()
    } else {
        rig.tx.ring_mut()
    };
    ensure!(ring.add(&chain, RAW, capacity).is_ok(), "the ring is full");
    ring.kick_if_needed();
    Ok(())
}

fn transmit_across(rig: &mut Rig, border: u64, before: u64, bytes: usize) -> Result<()> {
    let mut memory = vec![0; HEADER_BYTES];
    memory.extend(TO_HOST.build(before, bytes));
    let (first, second) = memory.split_at(before as usize);
    let ram = rig.guest.ram();
    ensure!(ram.write(border - before, first) && ram.write(border, second));
    expose(rig, border, before, memory.len(), 0)?;
    let found = rig.wire.receive(SOON)?;
    ensure!(
        found == Some(&memory[HEADER_BYTES..]),
        "TX of {bytes} bytes, {before} before the border"
    );
    rig.ensure_tx_whole()
}

fn receive_across(rig: &mut Rig, border: u64, before: u64) -> Result<()> {
    let frame = TO_GUEST.build(before, 700);
    expose(rig, border, before, 1536, DESC_WRITE)?;
    rig.wire.send(&frame)?;
    until(SOON, "the buffer", || {
        (rig.rx.ring().used_index() != rig.rx.ring().next_used()).then_some(())
    })?;
    let used = rig.rx.ring_mut().take_used()?.map(|used| used.length);
    ensure!(used == Some(712), "{used:?} bytes used");
    let mut memory = vec![0; 712];
    let (first, second) = memory.split_at_mut(before as usize);
    let ram = rig.guest.ram();
    ensure!(ram.read(border - before, first) && ram.read(border, second));
    ensure!(
        memory[HEADER_BYTES..] == frame,
        "RX {before} before the border"
    );
    Ok(())
}

/// A buffer that lies across two regions of guest memory which follow one another (memory that was plugged in later).
fn across_regions(mode: Mode) -> Result<()> {
    let mut rig = Rig::start(mode.words(), |_| ())?;
    let border = rig.guest.ram().end_of_main();
    rig.guest.plug_memory(border, 2 << 20)?;
    for before in BEFORE {
        for bytes in [200, 1514, 9000, 65_549] {
            transmit_across(&mut rig, border, before, bytes)?;
        }
        receive_across(&mut rig, border, before)?;
    }
    rig.ensure_alive()?;
    rig.guest.unplug_memory(border)?;
    rig.ensure_alive()
}

#[test]
fn buffers_across_regions_work() {
    cases("buffers across regions", NEEDS, Mode::ALL, across_regions);
}

/// Without offloads only two fields of the header mean anything; the others may be whatever an old driver left there. The
/// shortest frame the kernel takes is an Ethernet header.
#[test]
fn odd_headers_and_short_frames_leave() {
    scenario("data path: odd headers", NEEDS, || {
        let mut rig = Rig::start("", |_| ())?;
        let frame = TO_HOST.build(1, 300);
        for at in 2..HEADER_BYTES {
            let mut header = [0; HEADER_BYTES];
            header[at] = 0xff;
            rig.tx.send_as(&header, &frame, &Layout::ONE)?;
            rig.tx.kick_if_needed();
            ensure!(
                rig.wire.receive(SOON)? == Some(&frame[..]),
                "header byte {at}"
            );
            rig.ensure_tx_whole()?;
        }
        for bytes in 14..60 {
            let frame = [&frame[..14], &vec![7; bytes - 14]].concat();
            rig.tx.send(&frame)?;
            rig.tx.kick_if_needed();
            ensure!(
                rig.wire.receive(SOON)? == Some(&frame[..]),
                "a frame of {bytes} bytes"
            );
            rig.ensure_tx_whole()?;
        }
        for (at, value) in [(0, 1), (1, 1), (1, 4), (1, 5), (1, 0x80)] {
            let mut header = [0; HEADER_BYTES];
            header[at] = value;
            rig.tx.send_as(&header, &frame, &Layout::ONE)?;
            rig.tx.kick_if_needed();
            rig.ensure_tx_whole()?;
        }
        let labels = ["direction=\"tx\"", "kind=\"bad_header\""];
        rig.daemon
            .wait_metric("tapring_guest_faults_total", &labels, 5.0)?;
        rig.ensure_alive()
    });
}
