//! Message sets that are unusual, and what is offered: B38 B43.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tapring_guest::GuestConfig;
use tapring_tests::{Daemon, DaemonOptions, Net, Rig, TO_GUEST, TO_HOST, Wire, scenario, until};

use crate::NEEDS;
use crate::mini::{EVENT_IDX, INDIRECT_DESC, MRG_RXBUF, MiniGuest, PROTOCOL, RX, TX, VERSION_1};
use crate::raw::{Answer, NEED_REPLY, RawFrontend, VERSION, request, ring_state};

const SOON: Duration = Duration::from_secs(2);

/// Bits of GET_FEATURES, as docs and tests of the offer have them: MRG_RXBUF CTRL_VQ INDIRECT_DESC EVENT_IDX
/// PROTOCOL_FEATURES VERSION_1.
const OFFERED: [u32; 6] = [15, 17, 28, 29, 30, 32];

/// Frames each way for a feature set (B43).
const FRAMES: u64 = 100;

/// VHOST_USER_PROTOCOL_F_REPLY_ACK.
const REPLY_ACK: u64 = 1 << 3;

struct Bench {
    daemon: Daemon,
    wire: Wire,
    _net: Net,
}

impl Bench {
    fn start() -> Result<Self> {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        Ok(Self {
            daemon: Daemon::start(&DaemonOptions::on_tap("t0"))?,
            wire: Wire::on("t0")?,
            _net: net,
        })
    }

    fn connect(&self) -> Result<(RawFrontend, MiniGuest)> {
        Ok((
            RawFrontend::connect(self.daemon.socket())?,
            MiniGuest::new(256)?,
        ))
    }

    /// That frame `n` of the transmitq comes out.
    fn expect_sent(&mut self, n: u16) -> Result<()> {
        let frame = TO_HOST.build(n.into(), 100);
        let found = self.wire.receive(SOON)?;
        ensure!(
            found == Some(&frame[..]),
            "frame {n}: {:?}\n{}",
            found.map(<[u8]>::len),
            self.daemon.tail()
        );
        Ok(())
    }
}

fn features(frontend: &RawFrontend, bits: u64) -> Result<()> {
    frontend.send(request::SET_FEATURES, VERSION, &bits.to_ne_bytes(), &[])
}

fn enable_both(frontend: &RawFrontend) -> Result<()> {
    for ring in [RX, TX] {
        frontend.send(
            request::SET_VRING_ENABLE,
            VERSION,
            &ring_state(ring, 1),
            &[],
        )?;
    }
    Ok(())
}

#[test]
fn b38_a_acknowledgements_without_asking_for_features() {
    scenario(
        "B38 unusual-message-sets: (a) REPLY_ACK unasked",
        NEEDS,
        || {
            let mut bench = Bench::start()?;
            let (frontend, guest) = bench.connect()?;
            frontend.send(request::SET_OWNER, VERSION, &[], &[])?;
            frontend.send(
                request::SET_PROTOCOL_FEATURES,
                VERSION,
                &REPLY_ACK.to_ne_bytes(),
                &[],
            )?;
            let bits = (VERSION_1 | PROTOCOL).to_ne_bytes();
            frontend.expect_done(request::SET_FEATURES, &bits, &[])?;
            frontend.expect_done(request::SET_MEM_TABLE, &guest.table(), &[guest.memory()])?;
            for ring in [RX, TX] {
                let index = u64::from(ring).to_ne_bytes();
                frontend.expect_done(request::SET_VRING_NUM, &ring_state(ring, 256), &[])?;
                frontend.expect_done(request::SET_VRING_BASE, &ring_state(ring, 0), &[])?;
                frontend.expect_done(request::SET_VRING_ADDR, &guest.addresses(ring), &[])?;
                frontend.expect_done(request::SET_VRING_KICK, &index, &[guest.kick_fd(ring)])?;
                frontend.expect_done(request::SET_VRING_CALL, &index, &[guest.call_fd(ring)])?;
                frontend.expect_done(request::SET_VRING_ERR, &index, &[guest.call_fd(ring)])?;
                frontend.expect_done(request::SET_VRING_ENABLE, &ring_state(ring, 1), &[])?;
            }
            guest.make_frame(0, &TO_HOST.build(0, 100))?;
            guest.kick(TX)?;
            bench.expect_sent(0)?;
            // A question is answered once, not twice.
            let code = request::GET_FEATURES;
            ensure!(
                frontend
                    .ask(code, VERSION | NEED_REPLY, &[], &[])?
                    .number(code)
                    .is_some()
            );
            let code = request::GET_VRING_BASE;
            let answer = frontend.ask(code, VERSION | NEED_REPLY, &ring_state(TX, 0), &[])?;
            ensure!(
                answer == Answer::Reply(code, ring_state(TX, 1)),
                "{answer:?}"
            );
            let code = request::GET_FEATURES;
            ensure!(
                frontend
                    .ask(code, VERSION, &[], &[])?
                    .number(code)
                    .is_some()
            );
            Ok(())
        },
    );
}

#[test]
fn b38_b_guests_that_poll_give_no_call_descriptor() {
    scenario(
        "B38 unusual-message-sets: (b) no call descriptor",
        NEEDS,
        || {
            let mut bench = Bench::start()?;
            for when in ["before", "after", "never"] {
                let (frontend, guest) = bench.connect()?;
                features(&frontend, VERSION_1 | PROTOCOL)?;
                guest.send_table(&frontend)?;
                for ring in [RX, TX] {
                    let none = (u64::from(ring) | 0x100).to_ne_bytes();
                    if when == "before" {
                        frontend.send(request::SET_VRING_CALL, VERSION, &none, &[])?;
                    }
                    guest.send_ring(&frontend, ring, Some(0))?;
                    if when == "after" {
                        frontend.send(request::SET_VRING_CALL, VERSION, &none, &[])?;
                    }
                }
                enable_both(&frontend)?;
                guest.make_frame(0, &TO_HOST.build(0, 100))?;
                guest.kick(TX)?;
                guest
                    .wait_used(TX, 1)
                    .with_context(|| bench.daemon.tail())?;
                bench.expect_sent(0)?;
                guest.make_room(0)?;
                guest.kick(RX)?;
                let frame = TO_GUEST.build(0, 100);
                bench.wire.send(&frame)?;
                guest.wait_used(RX, 1)?;
                ensure!(guest.received(0)? == frame, "another frame");
            }
            Ok(())
        },
    );
}

#[test]
fn b38_c_a_call_descriptor_that_comes_late_is_called() {
    scenario(
        "B38 unusual-message-sets: (c) a late call descriptor",
        NEEDS,
        || {
            let mut bench = Bench::start()?;
            let (frontend, guest) = bench.connect()?;
            features(&frontend, VERSION_1 | PROTOCOL | EVENT_IDX)?;
            guest.send_table(&frontend)?;
            for n in 0..4 {
                guest.make_frame(n, &TO_HOST.build(n.into(), 100))?;
            }
            for ring in [RX, TX] {
                guest.send_ring(&frontend, ring, Some(0))?;
            }
            enable_both(&frontend)?;
            for n in 0..4 {
                bench.expect_sent(n)?;
            }
            guest.wait_used(TX, 4)?;
            guest.send_call(&frontend, TX)?;
            guest.wait_call(TX)
        },
    );
}

#[test]
fn b38_d_without_a_base_rings_start_at_0() {
    scenario(
        "B38 unusual-message-sets: (d) no SET_VRING_BASE",
        NEEDS,
        || {
            let mut bench = Bench::start()?;
            let (frontend, guest) = bench.connect()?;
            features(&frontend, VERSION_1 | PROTOCOL | EVENT_IDX)?;
            guest.send_table(&frontend)?;
            for ring in [RX, TX] {
                guest.send_ring(&frontend, ring, None)?;
            }
            enable_both(&frontend)?;
            for n in 0..3 {
                guest.make_frame(n, &TO_HOST.build(n.into(), 100))?;
                guest.kick(TX)?;
                bench.expect_sent(n)?;
                until(SOON, "avail_event to follow", || {
                    (guest.avail_event(TX).ok()? == n + 1).then_some(())
                })?;
            }
            Ok(())
        },
    );
}

#[test]
fn b38_e_old_frontends_have_no_enable_messages() {
    scenario(
        "B38 unusual-message-sets: (e) no PROTOCOL_FEATURES",
        NEEDS,
        || {
            let mut bench = Bench::start()?;
            for features_first in [true, false] {
                let (frontend, guest) = bench.connect()?;
                let bits = VERSION_1 | MRG_RXBUF | INDIRECT_DESC;
                if features_first {
                    features(&frontend, bits)?;
                }
                guest.send_table(&frontend)?;
                for ring in [RX, TX] {
                    guest.send_ring(&frontend, ring, Some(0))?;
                    guest.send_call(&frontend, ring)?;
                }
                if !features_first {
                    features(&frontend, bits)?;
                }
                guest.make_room(0)?;
                guest.make_frame(0, &TO_HOST.build(0, 100))?;
                guest.kick(RX)?;
                guest.kick(TX)?;
                bench
                    .expect_sent(0)
                    .with_context(|| format!("features first: {features_first}"))?;
                guest.wait_call(TX)?;
                let frame = TO_GUEST.build(0, 100);
                bench.wire.send(&frame)?;
                guest.wait_call(RX)?;
                guest.wait_used(RX, 1)?;
                ensure!(guest.received(0)? == frame, "another frame");
            }
            Ok(())
        },
    );
}

#[test]
fn b43_the_offer_is_what_is_written_down_and_nothing_else_is_taken() {
    scenario("B43 features-honest: the offer", NEEDS, || {
        let bench = Bench::start()?;
        let (frontend, _) = bench.connect()?;
        let code = request::GET_FEATURES;
        let offered = frontend
            .ask(code, VERSION, &[], &[])?
            .number(code)
            .context("features")?;
        let written: u64 = OFFERED.iter().map(|bit| 1u64 << bit).sum();
        ensure!(
            offered == written,
            "{offered:#x} is offered, {written:#x} written down"
        );
        frontend.send(
            request::SET_PROTOCOL_FEATURES,
            VERSION,
            &REPLY_ACK.to_ne_bytes(),
            &[],
        )?;
        for bit in (0..64).filter(|bit| offered & 1 << bit == 0) {
            let code = request::SET_FEATURES;
            let bits = (VERSION_1 | PROTOCOL | 1 << bit).to_ne_bytes();
            let answer = frontend.ask(code, VERSION | NEED_REPLY, &bits, &[])?;
            ensure!(
                answer.number(code).is_some_and(|number| number != 0),
                "bit {bit}: {answer:?}"
            );
        }
        Ok(())
    });
}

/// All sixteen subsets; the four without VERSION_1 and MRG_RXBUF mean the 10-byte header.
#[test]
fn b43_every_subset_moves_frames() {
    scenario("B43 features-honest: all subsets", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        for set in 0..8 {
            let config = GuestConfig {
                event_idx: set & 1 != 0,
                indirect: set & 2 != 0,
                mrg_rxbuf: set & 4 != 0,
                ..GuestConfig::new(rig.daemon.socket())
            };
            let pair = rig.guest.reboot(&config)?.remove(0);
            (rig.tx, rig.rx) = (pair.tx, pair.rx);
            for _ in 0..FRAMES {
                rig.ensure_alive().with_context(|| format!("{config:?}"))?;
            }
        }
        Ok(())
    });
    scenario("B43 features-honest: legacy subsets", NEEDS, || {
        let mut bench = Bench::start()?;
        for set in 0..8u64 {
            let when = |bit: u64, feature| if set & bit != 0 { feature } else { 0 };
            let bits = PROTOCOL | when(1, EVENT_IDX) | when(2, INDIRECT_DESC) | when(4, MRG_RXBUF);
            let (frontend, mut guest) = bench.connect()?;
            if bits & MRG_RXBUF == 0 {
                guest = guest.legacy();
            }
            features(&frontend, bits)?;
            guest.send_table(&frontend)?;
            for ring in [RX, TX] {
                guest.send_ring(&frontend, ring, Some(0))?;
            }
            enable_both(&frontend)?;
            for n in 0..20 {
                guest.make_frame(n, &TO_HOST.build(n.into(), 100))?;
                guest.kick(TX)?;
                bench.expect_sent(n)?;
                guest.make_room(n)?;
                guest.kick(RX)?;
                let frame = TO_GUEST.build(n.into(), 100);
                bench.wire.send(&frame)?;
                guest.wait_used(RX, n + 1)?;
                ensure!(guest.received(n)? == frame, "another frame with {bits:#x}");
            }
        }
        Ok(())
    });
}
