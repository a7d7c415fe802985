//! The whole document: as JSON here, for people in `table.rs`.

use std::fs;

use serde::Serialize;

use super::figures::Figures;
use super::host::PAYLOAD_BYTES;
use super::measure::Measured;
use super::options::DemoArgs;
use super::placement::Placement;
use super::sections::{BusyPollSection, DeferredRearm, RxWakeSection};
use super::sweep::Sweep;

/// What stands for something else.
pub(super) const SIMULATED: [&str; 4] = [
    "the guest: a virtio-net driver in this process, not a kernel in a virtual machine",
    "its kick: an eventfd write and a busy wait (--exit-cost-us), not a VM exit",
    "its work for each datagram: a busy wait (--guest-cost-ns, --rx-guest-cost-ns)",
    "its virtual CPU: a thread bound to a CPU",
];

/// What is what it would be in service.
pub(super) const REAL: [&str; 4] = [
    "the daemon: `tapring serve`, its policies changed while it runs",
    "rings in shared memory, kicks, calls and sleeping on both sides",
    "the tap and the host's network stack",
    "the host's receiver: a UDP socket and a thread that sleeps in recv",
];

/// What was run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    simulated: [&'static str; 4],
    real: [&'static str; 4],
    payload_bytes: usize,
    pub(super) kicks: KickCheck,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rx: Option<Figures>,
    pub(super) sections: Sections,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sweep: Option<Sweep>,
    #[serde(skip)]
    clean: bool,
}

/// The comparisons that were run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Sections {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deferred_rearm: Option<DeferredRearm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) busy_poll: Option<BusyPollSection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rx_wake: Option<RxWakeSection>,
}

/// Where it was run.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) kernel: String,
}

/// How it was run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) placement: Placement,
    /// Of the run from host to guest as fast as it goes.
    pub(super) flood_placement: Placement,
    pub(super) rounds: u64,
    pub(super) run_seconds: f64,
    pub(super) exit_cost_us: u128,
    pub(super) queue_size: u16,
    pub(super) guest_cost_ns: u128,
    pub(super) rx_guest_cost_ns: u128,
}

/// All kicks of the demo, counted at both ends.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct KickCheck {
    pub(super) guest: u64,
    /// Several that come before the daemon looks are one to it.
    pub(super) daemon: u64,
}

impl Report {
    pub(super) fn new(args: &DemoArgs, placement: Placement) -> Self {
        Self {
            machine: Machine::here(),
            settings: Settings::of(args, placement),
            simulated: SIMULATED,
            real: REAL,
            payload_bytes: PAYLOAD_BYTES,
            kicks: KickCheck {
                guest: 0,
                daemon: 0,
            },
            tx: None,
            rx: None,
            sections: Sections::default(),
            sweep: None,
            clean: true,
        }
    }

    /// The figures of runs in one direction, as fast as it goes.
    pub(super) fn direction(&mut self, runs: &[Measured]) -> Figures {
        self.clean &= runs.iter().all(Measured::is_clean);
        Figures::of(runs)
    }

    pub(super) fn is_clean(&self) -> bool {
        let Sections {
            deferred_rearm,
            busy_poll,
            rx_wake,
        } = &self.sections;
        self.clean
            && deferred_rearm.as_ref().is_none_or(DeferredRearm::is_clean)
            && busy_poll.as_ref().is_none_or(BusyPollSection::is_clean)
            && rx_wake.as_ref().is_none_or(RxWakeSection::is_clean)
            && self.sweep.as_ref().is_none_or(Sweep::is_clean)
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

impl KickCheck {
    /// The daemon took no kick that nobody sent, and some if some were sent.
    pub(super) const fn agrees(self) -> bool {
        self.daemon <= self.guest && (self.guest == 0 || self.daemon > 0)
    }
}

impl Settings {
    fn of(args: &DemoArgs, placement: Placement) -> Self {
        Self {
            placement,
            flood_placement: match args.cpus {
                Some(_) => placement,
                None => placement.for_flood(),
            },
            rounds: args.rounds,
            run_seconds: args.run_time().as_secs_f64(),
            exit_cost_us: args.exit_cost().as_micros(),
            queue_size: args.queue_size,
            guest_cost_ns: args.guest_cost(&placement).as_nanos(),
            rx_guest_cost_ns: args.rx_guest_cost().as_nanos(),
        }
    }
}

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
