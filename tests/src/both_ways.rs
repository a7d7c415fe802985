//! Both directions at once, by one thread, each frame verified.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tapring_guest::traffic::Verifier;
use tapring_guest::{Layout, Random, Until};

use crate::rig::{Rig, TO_GUEST, TO_HOST};

/// A lost wake-up never ends; a busy machine does.
const STANDSTILL: Duration = Duration::from_secs(10);

/// Frames of one direction that may be on their way at once: fewer than the tap's queue holds.
const WINDOW: u64 = 500;

/// A flow each way.
#[derive(Debug)]
pub struct BothWays {
    sent: [u64; 2],
    host: Verifier,
    guest: Verifier,
    random: Random,
    longest: usize,
    burst: usize,
}

impl BothWays {
    /// Frames of up to `longest` bytes, up to `burst` at a time.
    #[must_use]
    pub fn new(longest: usize, burst: usize) -> Self {
        Self {
            sent: [0; 2],
            host: Verifier::new(TO_HOST),
            guest: Verifier::new(TO_GUEST),
            random: Random::new(11),
            longest,
            burst,
        }
    }

    /// Sends frames each way until it has been `total` since the start, and receives them.
    ///
    /// # Errors
    /// When one is lost, changed, doubled or late, or nothing moves any more.
    pub fn run(&mut self, rig: &mut Rig, total: u64) -> Result<()> {
        let mut last = Instant::now();
        let mut done = 0;
        rig.rx.refill();
        while self.received() < 2 * total {
            self.send_to_host(rig, total)?;
            self.send_to_guest(rig, total)?;
            self.receive(rig)?;
            if self.received() > done {
                (done, last) = (self.received(), Instant::now());
            } else {
                rig.rx
                    .wait_for_call(Until::Next, Duration::from_millis(1))?;
            }
            ensure!(
                last.elapsed() < STANDSTILL,
                "stands at {:?} {:?} of {:?}",
                self.host.report(self.sent[0]),
                self.guest.report(self.sent[1]),
                self.sent
            );
        }
        let reports = [self.host.report(total), self.guest.report(total)];
        ensure!(
            reports.iter().all(|report| report.is_perfect()),
            "{reports:?}"
        );
        rig.ensure_tx_whole()
    }

    fn received(&self) -> u64 {
        self.host.sequence().next() + self.guest.sequence().next()
    }

    fn send_to_host(&mut self, rig: &mut Rig, total: u64) -> Result<()> {
        rig.tx.collect()?;
        let [sent, _] = &mut self.sent;
        for _ in 0..self.random.between(1, self.burst) {
            if *sent == total || *sent - self.host.sequence().next() >= 4 * WINDOW {
                break;
            }
            let bytes = self.random.between(60, self.longest);
            let layout = match sent.is_multiple_of(3) {
                true => Layout::TWO,
                false => Layout::ONE,
            };
            if rig
                .tx
                .send_in(&TO_HOST.build(*sent, bytes), &layout)
                .is_err()
            {
                break;
            }
            *sent += 1;
        }
        rig.tx.kick_if_needed();
        Ok(())
    }

    fn send_to_guest(&mut self, rig: &Rig, total: u64) -> Result<()> {
        let [_, sent] = &mut self.sent;
        for _ in 0..self.random.between(1, self.burst) {
            if *sent == total || *sent - self.guest.sequence().next() >= WINDOW {
                break;
            }
            let bytes = self.random.between(60, self.longest);
            rig.wire.send(&TO_GUEST.build(*sent, bytes))?;
            *sent += 1;
        }
        Ok(())
    }

    fn receive(&mut self, rig: &mut Rig) -> Result<()> {
        rig.wire.drain(&mut self.host)?;
        let guest = &mut self.guest;
        rig.rx.receive(usize::MAX, |frame| _ = guest.frame(frame))?;
        rig.rx.refill_as_linux();
        Ok(())
    }
}
