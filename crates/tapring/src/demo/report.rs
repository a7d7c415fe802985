//! The figures, as a table and as JSON.

use std::fmt;
use std::fs;
use std::time::Duration;

use serde::Serialize;

use super::daemon::Usage;
use super::host::PAYLOAD_BYTES;

/// What one direction's run counted.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) frames: u64,
    pub(super) elapsed: Duration,
    pub(super) kicks: u64,
    pub(super) calls: u64,
    pub(super) usage: Usage,
    pub(super) verified: u64,
    pub(super) damaged: u64,
    pub(super) lost: u64,
    pub(super) receiver_dropped: u64,
}

/// One direction's figures.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    frames: u64,
    seconds: f64,
    frames_per_second: f64,
    gbit_per_second: f64,
    kicks: u64,
    kicks_per_second: f64,
    kicks_per_million_frames: f64,
    calls_per_second: f64,
    mean_batch: f64,
    cpu_ns_per_frame: f64,
    frames_verified: u64,
    frames_damaged: u64,
    frames_lost: u64,
    receiver_dropped: u64,
}

/// The whole document.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    payload_bytes: usize,
    tx: Figures,
    rx: Figures,
}

#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
}

impl Figures {
    pub(super) fn new(measured: &Measured) -> Self {
        let frames = measured.frames;
        let rate = |count| per_second(count, measured.elapsed);
        let bits = frames * PAYLOAD_BYTES as u64 * 8;
        Self {
            frames,
            seconds: measured.elapsed.as_secs_f64(),
            frames_per_second: rate(frames),
            gbit_per_second: rate(bits) / 1e9,
            kicks: measured.kicks,
            kicks_per_second: rate(measured.kicks),
            kicks_per_million_frames: ratio(measured.kicks, frames) * 1e6,
            calls_per_second: rate(measured.calls),
            mean_batch: ratio(measured.usage.packets, measured.usage.batches),
            cpu_ns_per_frame: measured.usage.cpu.as_secs_f64() * 1e9 / to_f64(frames).max(1.0),
            frames_verified: measured.verified,
            frames_damaged: measured.damaged,
            frames_lost: measured.lost,
            receiver_dropped: measured.receiver_dropped,
        }
    }

    const fn is_clean(&self) -> bool {
        self.frames_lost == 0 && self.frames_damaged == 0 && self.frames_verified > 0
    }
}

impl Report {
    pub(super) fn new(tx: Figures, rx: Figures) -> Self {
        Self {
            machine: Machine::here(),
            payload_bytes: PAYLOAD_BYTES,
            tx,
            rx,
        }
    }

    pub(super) const fn is_clean(&self) -> bool {
        self.tx.is_clean() && self.rx.is_clean()
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cpus, kernel } = &self.machine;
        writeln!(
            f,
            "tapring demo: UDP, {PAYLOAD_BYTES} bytes a datagram, one sender, over a tap"
        )?;
        writeln!(f, "{cpu}, {cpus} CPUs, Linux {kernel}\n")?;
        writeln!(f, "{:28}{:>16}{:>16}", "", "guest to host", "host to guest")?;
        for (name, decimals, figure) in ROWS {
            let (tx, rx) = (figure(&self.tx), figure(&self.rx));
            writeln!(f, "{name:28}{tx:>16.decimals$}{rx:>16.decimals$}")?;
        }
        let verdict = if self.is_clean() {
            "Every datagram that arrived was verified byte by byte; none was lost between guest and tap."
        } else {
            "FAILED: frames were lost or damaged between guest and tap."
        };
        writeln!(f, "\n{verdict}")?;
        write!(
            f,
            "The guest is a driver in this process: its kick is an eventfd write, not a VM exit.\n\
             Dropped behind the tap: by the receiver's socket, or by the tap's full queue."
        )
    }
}

type Row = (&'static str, usize, fn(&Figures) -> f64);

const ROWS: [Row; 11] = [
    ("datagrams/s", 0, |figures| figures.frames_per_second),
    ("Gbit/s of payload", 2, |figures| figures.gbit_per_second),
    ("kicks/s", 1, |figures| figures.kicks_per_second),
    ("kicks per million frames", 1, |figures| {
        figures.kicks_per_million_frames
    }),
    ("calls/s", 0, |figures| figures.calls_per_second),
    ("mean batch, frames", 1, |figures| figures.mean_batch),
    ("daemon CPU per frame, ns", 0, |figures| {
        figures.cpu_ns_per_frame
    }),
    ("datagrams verified", 0, |figures| {
        to_f64(figures.frames_verified)
    }),
    ("datagrams damaged", 0, |figures| {
        to_f64(figures.frames_damaged)
    }),
    ("lost, guest to tap and back", 0, |figures| {
        to_f64(figures.frames_lost)
    }),
    ("dropped behind the tap", 0, |figures| {
        to_f64(figures.receiver_dropped)
    }),
];

impl Machine {
    fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        });
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: model.unwrap_or_else(|| "unknown CPU".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// A rate; 0 where no time passed.
pub(super) fn per_second(count: u64, elapsed: Duration) -> f64 {
    to_f64(count) / elapsed.as_secs_f64().max(1e-9)
}

fn ratio(part: u64, whole: u64) -> f64 {
    to_f64(part) / to_f64(whole).max(1.0)
}

/// Counts stay far below 2^53.
#[allow(clippy::cast_precision_loss)]
const fn to_f64(count: u64) -> f64 {
    count as f64
}
