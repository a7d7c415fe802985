//! The two contestants side by side: the raw loop's tap, and a daemon with a guest.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use tapring_guest::{Guest, GuestConfig, Pair};
use tapring_io::{Tap, TapOptions};

use crate::daemon::Daemon;
use crate::machine::Machine;
use crate::process::Usage;
use crate::report::{Report, Sample, Size};
use crate::rounds::take_turns;
use crate::scrape::Scrape;
use crate::settings::Settings;
use crate::{BenchError, cpu, place};

/// The raw loop's tap.
pub const RAW_TAP: &str = "raw0";

/// Buffers lie at random over this much memory, which no cache holds.
const SPAN_BYTES: usize = 64 << 20;

/// Descriptors of each ring: what QEMU and cloud-hypervisor give a guest.
const QUEUE_SIZE: u16 = 256;

/// An address nobody has: a frame to it is another machine's.
const STRANGER: [u8; 6] = [0x02, 0xff, 0xff, 0xff, 0xff, 0xfe];
const SENDER: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// IEEE 802 local experimental ethertype 1: the host has no handler for it.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// What a contest needs.
#[derive(Debug)]
pub struct Rig {
    /// What to measure.
    pub settings: Settings,
    /// The raw loop's tap.
    pub raw: Tap,
    /// The daemon, on core A.
    pub daemon: Daemon,
    /// The guest's drivers, to be used from core B.
    pub pair: Pair,
    // Hangs up when dropped.
    _guest: Guest,
}

/// Who measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// The raw loop.
    Raw,
    /// The daemon.
    Daemon,
}

/// A moment in a measurement of the daemon.
#[derive(Debug)]
struct Mark {
    at: Instant,
    usage: Usage,
    frames: u64,
    kicks: u64,
    calls: u64,
    batches: f64,
}

impl Rig {
    /// Makes a namespace with everything in it. The process must have one thread only.
    pub fn new(settings: &Settings) -> Result<Self, BenchError> {
        settings.daemon_path()?;
        place::enter()?;
        let daemon = Daemon::start(settings)?;
        cpu::pin(settings.cpus.guest)?;
        let mut guest = Guest::connect(&guest_config(&daemon))?;
        let pair = guest.take_pairs().remove(0);
        let options = TapOptions {
            name: RAW_TAP.to_owned(),
            queue_pairs: 1,
            create: true,
        };
        Ok(Self {
            settings: settings.clone(),
            raw: Tap::open(&options)?,
            daemon,
            pair,
            _guest: guest,
        })
    }

    /// The raw tap's queue, for a loop of its own.
    pub fn raw_queue(&self) -> Result<OwnedFd, BenchError> {
        self.raw
            .try_clone_queue(0)
            .map_err(BenchError::read(RAW_TAP))
    }

    /// Lets both contestants take turns at one frame size.
    pub fn contest(
        &mut self,
        mut measure: impl FnMut(&mut Self, Contestant) -> Result<Sample, BenchError>,
    ) -> Result<Size, BenchError> {
        let rounds = self.settings.rounds;
        let turns = take_turns(
            &mut [Contestant::Raw, Contestant::Daemon],
            rounds,
            |contestant| measure(self, *contestant).map_err(|error| self.daemon.explain(error)),
        );
        let turns = turns?;
        let raw: Vec<f64> = turns[0]
            .iter()
            .map(|sample| sample.frames_per_second)
            .collect();
        Ok(Size::of(&raw, &turns[1]))
    }

    /// Measures the daemon while `run` keeps it busy and says how fast it was.
    pub fn observe(
        &mut self,
        direction: &str,
        run: impl FnOnce(&mut Self) -> Result<f64, BenchError>,
    ) -> Result<Sample, BenchError> {
        cpu::pin(self.settings.cpus.guest)?;
        let before = self.mark(published(direction)?)?;
        let frames_per_second = run(self)?;
        let mut after = self.mark(0.0)?;
        after.batches = published(direction)?;
        Ok(after.since(&before, frames_per_second))
    }

    fn mark(&mut self, batches: f64) -> Result<Mark, BenchError> {
        let counters = [self.pair.tx.counters(), self.pair.rx.counters()];
        let sum = |field: fn(&tapring_guest::Counters) -> u64| counters.iter().map(field).sum();
        Ok(Mark {
            at: Instant::now(),
            usage: self.daemon.usage()?,
            frames: sum(|counters| counters.chains),
            kicks: sum(|counters| counters.kicks_sent),
            calls: sum(|counters| counters.calls),
            batches,
        })
    }

    /// What was found out.
    pub fn report(&self, direction: &'static str, sizes: BTreeMap<u16, Size>) -> Report {
        Report {
            direction,
            machine: Machine::this(),
            settings: self.settings.clone(),
            sizes,
        }
    }
}

impl Mark {
    #[allow(clippy::cast_precision_loss)] // counts far below 2^53
    fn since(&self, before: &Self, frames_per_second: f64) -> Sample {
        let frames = (self.frames - before.frames).max(1) as f64;
        let seconds = (self.at - before.at).as_secs_f64();
        let kicks = (self.kicks - before.kicks) as f64;
        Sample {
            frames_per_second,
            cpu_ns_per_frame: (self.usage.cpu.saturating_sub(before.usage.cpu)).as_secs_f64() * 1e9
                / frames,
            kicks_per_second: kicks / seconds,
            kicks_per_million_frames: kicks / frames * 1e6,
            calls_per_second: (self.calls - before.calls) as f64 / seconds,
            mean_batch: frames / (self.batches - before.batches).max(1.0),
        }
    }
}

/// A frame that both taps' hosts drop at the same place: to a stranger, of a type that nobody listens to.
pub fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = [STRANGER.as_slice(), &SENDER, &ETHERTYPE].concat();
    frame.resize(bytes, 0x5a);
    frame
}

/// Used-ring publications of the daemon.
fn published(direction: &str) -> Result<f64, BenchError> {
    let label = format!("direction=\"{direction}\"");
    Ok(Scrape::take()?.sum("tapring_batches_total", &label))
}

/// The defaults are those of a small Linux guest; buffers all over its memory, and nothing posted before it is asked for.
fn guest_config(daemon: &Daemon) -> GuestConfig {
    GuestConfig {
        queue_size: QUEUE_SIZE,
        memory_bytes: 3 * SPAN_BYTES,
        rx_span_bytes: SPAN_BYTES,
        tx_span_bytes: SPAN_BYTES,
        ..GuestConfig::new(daemon.socket())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_size_asked_for_and_no_listener() {
        for bytes in [14, 64, 1472] {
            let frame = frame(bytes);
            assert_eq!((frame.len(), &frame[12..14]), (bytes, ETHERTYPE.as_slice()));
            assert_eq!(frame[0] & 3, 2, "unicast, locally administered");
        }
    }
}
