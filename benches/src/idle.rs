//! What a daemon costs that has nothing to do.
//!
//! A guest is connected, its receive buffers are posted and one frame has gone each way it can without a peer; then nobody
//! does anything. A context switch of any thread of the daemon is a wake-up, and its CPU time must stand still. What is
//! resident without the guest's memory is the daemon's own.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::BenchError;
use crate::machine::Machine;
use crate::process::Usage;
use crate::rig::{Rig, frame};
use crate::settings::Settings;

/// How long the daemon may take to come to rest, and how long it must have been at rest.
const REST_LIMIT: Duration = Duration::from_secs(10);
const REST: Duration = Duration::from_millis(500);

const LIMIT: Duration = Duration::from_secs(5);

/// An idle daemon.
#[derive(Debug, Serialize)]
pub struct Idle {
    /// What it was measured on.
    pub machine: Machine,
    /// How.
    pub settings: Settings,
    /// For how long nobody did anything.
    pub seconds: f64,
    /// Context switches of all threads of the daemon meanwhile.
    pub wake_ups: u64,
    /// CPU time of all threads meanwhile.
    pub cpu_ns: u64,
    /// Threads.
    pub threads: usize,
    /// Bytes in memory, without the guest's.
    pub resident_bytes: u64,
}

impl Idle {
    /// One JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() // has no map with keys that are not text
    }

    /// The same for people.
    pub fn table(&self) -> String {
        format!(
            "idle for {} s with one guest: {} wake-ups and {} ns of CPU over {} threads, {:.1} MiB without the guest's memory\n",
            self.seconds,
            self.wake_ups,
            self.cpu_ns,
            self.threads,
            self.resident_bytes as f64 / f64::from(1 << 20)
        )
    }
}

/// Watches an idle daemon for `time`.
pub fn run(settings: &Settings, time: Duration) -> Result<Idle, BenchError> {
    let mut rig = Rig::new(settings)?;
    rig.pair.rx.refill();
    rig.pair.tx.send(&frame(64))?;
    rig.pair.tx.kick_if_needed();
    rig.pair.tx.wait_for_all(LIMIT)?;
    let before = at_rest(&rig)?;
    sleep(time);
    let after = rig.daemon.usage()?;
    Ok(Idle {
        machine: Machine::this(),
        settings: settings.clone(),
        seconds: time.as_secs_f64(),
        wake_ups: after.switches - before.switches,
        cpu_ns: u64::try_from((after.cpu - before.cpu).as_nanos()).unwrap_or(u64::MAX),
        threads: after.threads,
        resident_bytes: rig.daemon.resident_bytes()?,
    })
}

/// Waits until the daemon has used nothing for a while; if it never rests, the figures shall show it.
fn at_rest(rig: &Rig) -> Result<Usage, BenchError> {
    let deadline = Instant::now() + REST_LIMIT;
    let mut before = rig.daemon.usage()?;
    loop {
        sleep(REST);
        let now = rig.daemon.usage()?;
        if now == before || Instant::now() >= deadline {
            return Ok(now);
        }
        before = now;
    }
}
