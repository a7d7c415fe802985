//! The metric table: every metric there is, defined once.
//!
//! Names are a contract with dashboards and alerts. A series is made, described and rendered from its entry here, so a
//! metric that is not in the table cannot exist, and one that is in it cannot lack a help text.
//!
//! Label values are positional: the engine's enums index these arrays with their discriminants, so an entry is only
//! ever added at the end. No value comes from a guest, which keeps the number of series a matter of configuration.

use metrics::Unit;

use Kind::{Counter, Gauge, Histogram};
use Scope::{Build, Device, Pair, Policy, Queue, RxQueue};

/// What a metric is, in Prometheus' terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A [`Histogram`](crate::Histogram) with these buckets.
    Histogram(&'static Buckets),
}

impl Kind {
    /// The word of a `# TYPE` line.
    pub const fn word(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge => "gauge",
            Histogram(_) => "histogram",
        }
    }
}

/// The buckets of a histogram.
#[derive(Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Upper bounds, inclusive and ascending, in the unit that is recorded; a last bucket without a bound follows.
    pub bounds: &'static [u64],
    /// How many of the recorded unit make one of the unit that is shown: 1, or 10^9 for nanoseconds shown as seconds.
    pub per_unit: u64,
}

/// What a metric has one series of: the labels that every metric of its kind carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The build: `version`.
    Build,
    /// A device: `device`.
    Device,
    /// The policy of a device: `device`, and a label for each setting ([`POLICY_LABELS`]).
    Policy,
    /// A queue pair, which is a worker: `device`, `queue`.
    Pair,
    /// A virtqueue: `device`, `queue`, `direction` (`rx`, `tx`).
    Queue,
    /// The same, but only the virtqueues with `direction="rx"`.
    RxQueue,
}

impl Scope {
    /// The labels of every series of this scope, in order.
    pub fn labels(self) -> impl Iterator<Item = &'static str> {
        let own: &[_] = match self {
            Build => &["version"],
            Device | Policy => &["device"],
            Pair => &["device", "queue"],
            Queue | RxQueue => &["device", "queue", "direction"],
        };
        let settings: &[_] = match self {
            Policy => &POLICY_LABELS,
            _ => &[],
        };
        own.iter().chain(settings).copied()
    }
}

/// One more label, and the values it can have on each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The label's name.
    pub label: &'static str,
    /// Its values on the virtqueue from host to guest.
    pub rx: &'static [&'static str],
    /// Its values on the virtqueue from guest to host.
    pub tx: &'static [&'static str],
}

/// One entry of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// The whole name, as Prometheus shows it.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The base unit of its values.
    pub unit: Unit,
    /// Which labels every series has.
    pub scope: Scope,
    /// The label besides those of the scope, if any.
    pub choice: Option<Choice>,
    /// One sentence for the person who looks at it.
    pub help: &'static str,
}

impl Metric {
    const fn new(name: &'static str, kind: Kind, scope: Scope, help: &'static str) -> Self {
        let (unit, choice) = (Unit::Count, None);
        Self {
            name,
            kind,
            unit,
            scope,
            choice,
            help,
        }
    }

    const fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    const fn by(self, label: &'static str, values: &'static [&'static str]) -> Self {
        self.by_side(label, values, values)
    }

    const fn by_side(
        mut self,
        label: &'static str,
        rx: &'static [&'static str],
        tx: &'static [&'static str],
    ) -> Self {
        self.choice = Some(Choice { label, rx, tx });
        self
    }

    /// All labels of a series, in order.
    pub fn labels(&self) -> impl Iterator<Item = &'static str> {
        let choice = self.choice.map(|choice| choice.label);
        self.scope.labels().chain(choice)
    }
}

/// The settings of a policy.
pub const POLICY_LABELS: [&str; 7] = [
    "kick_rearm",
    "busy_poll_us",
    "busy_poll_interrupt",
    "tx_poll",
    "rx_wake",
    "tx_budget",
    "rx_budget",
];
/// Why a frame for the guest was dropped.
pub const RX_DROP_REASONS: [&str; 5] = ["too_large", "cut", "session_end", "tap_error", "offload"];
/// Why a frame of the guest was dropped.
pub const TX_DROP_REASONS: [&str; 3] = ["tap_down", "tap_refused", "tap_gone"];
/// What a guest did wrong.
pub const GUEST_FAULT_KINDS: [&str; 10] = [
    "bad_head",
    "bad_chain",
    "bad_indirect",
    "bad_address",
    "wrong_direction",
    "too_short",
    "too_large",
    "bad_header",
    "bad_index",
    "bad_ring",
];
/// What the last look at a ring found when its kicks were asked for again.
pub const REARM_OUTCOMES: [&str; 2] = ["armed", "raced"];
/// Why a ring is looked at again without a kick.
pub const REQUEUE_REASONS: [&str; 7] = [
    "started",
    "enabled",
    "new_memory",
    "found",
    "budget",
    "interrupted",
    "new_policy",
];
/// Why a ring cannot go on by trying again.
pub const BLOCKED_REASONS: [&str; 4] = ["tap_full", "disabled", "memory_fault", "broken"];
/// The states of a ring's kick suppression.
pub const RING_STATES: [&str; 10] = [
    "stopped",
    "armed",
    "draining",
    "in_flight",
    "requeued",
    "waiting",
    "starved",
    "blocked",
    "busy_poll",
    "armed_in_flight",
];

/// Powers of two up to twice the largest batch.
pub static BATCH_BUCKETS: Buckets = Buckets {
    bounds: &[1, 2, 4, 8, 16, 32, 64, 128],
    per_unit: 1,
};

/// 1 µs to 1 s in steps of 1, 2, 5; recorded in nanoseconds.
pub static COMPLETION_BUCKETS: Buckets = Buckets {
    bounds: &[
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        2_000_000,
        5_000_000,
        10_000_000,
        20_000_000,
        50_000_000,
        100_000_000,
        200_000_000,
        500_000_000,
        1_000_000_000,
    ],
    per_unit: 1_000_000_000,
};

/// Every metric, in the order in which they are shown.
pub static METRICS: [&Metric; 27] = [
    &BUILD_INFO,
    &DEVICE_CONNECTED,
    &TAP_DROPPED_PACKETS,
    &POLICY_INFO,
    &POLICY_CHANGES,
    &RING_ENTERS,
    &SQPOLL_WAKEUPS,
    &BUSY_POLL_SECONDS,
    &PACKETS,
    &BYTES,
    &DROPPED_PACKETS,
    &GUEST_FAULTS,
    &KICKS,
    &SPURIOUS_KICKS,
    &KICK_REARMS,
    &CALLS,
    &CALLS_SUPPRESSED,
    &BATCHES,
    &BATCH_PACKETS,
    &COMPLETION_SECONDS,
    &IN_FLIGHT,
    &RING_STATE,
    &REQUEUES,
    &BLOCKED,
    &TAP_POLL_ARMS,
    &RX_STOPS,
    &RX_WAKES,
];

pub(crate) static BUILD_INFO: Metric = Metric::new(
    "tapring_build_info",
    Gauge,
    Build,
    "Always 1; the label says which version of tapring runs.",
);
pub(crate) static DEVICE_CONNECTED: Metric = Metric::new(
    "tapring_device_connected",
    Gauge,
    Device,
    "1 while a frontend (the virtual machine monitor) is connected, 0 otherwise.",
);
pub(crate) static TAP_DROPPED_PACKETS: Metric = Metric::new(
    "tapring_tap_dropped_packets_total",
    Counter,
    Device,
    "Frames for the guest that the kernel dropped because the queue of the tap, or of the packet socket, was full.",
);
pub(crate) static POLICY_INFO: Metric = Metric::new(
    "tapring_policy_info",
    Gauge,
    Policy,
    "Always 1; the labels say which policy is in force.",
);
pub(crate) static POLICY_CHANGES: Metric = Metric::new(
    "tapring_policy_changes_total",
    Counter,
    Device,
    "Times another policy was put in force while the device ran.",
);
pub(crate) static RING_ENTERS: Metric = Metric::new(
    "tapring_ring_enters_total",
    Counter,
    Pair,
    "System calls io_uring_enter made by the queue pair's worker.",
);
pub(crate) static SQPOLL_WAKEUPS: Metric = Metric::new(
    "tapring_sqpoll_wakeups_total",
    Counter,
    Pair,
    "Times the worker had to wake the kernel's submission queue thread.",
);
pub(crate) static BUSY_POLL_SECONDS: Metric = Metric::new(
    "tapring_busy_poll_seconds_total",
    Counter,
    Pair,
    "Time the queue pair's worker has spent looking for work after its rings ran dry.",
)
.unit(Unit::Seconds);
pub(crate) static PACKETS: Metric = Metric::new(
    "tapring_packets_total",
    Counter,
    Queue,
    "Frames moved: taken by the tap (tx), given to the guest (rx).",
);
pub(crate) static BYTES: Metric = Metric::new(
    "tapring_bytes_total",
    Counter,
    Queue,
    "Bytes of the frames moved, without the virtio-net header.",
)
.unit(Unit::Bytes);
pub(crate) static DROPPED_PACKETS: Metric = Metric::new(
    "tapring_dropped_packets_total",
    Counter,
    Queue,
    "Frames dropped by tapring, by reason.",
)
.by_side("reason", &RX_DROP_REASONS, &TX_DROP_REASONS);
pub(crate) static GUEST_FAULTS: Metric = Metric::new(
    "tapring_guest_faults_total",
    Counter,
    Queue,
    "Mistakes of the guest's driver, each of which cost it a frame or the ring, by kind.",
)
.by("kind", &GUEST_FAULT_KINDS);
pub(crate) static KICKS: Metric = Metric::new(
    "tapring_kicks_total",
    Counter,
    Queue,
    "Kicks (notifications from driver to device) received.",
);
pub(crate) static SPURIOUS_KICKS: Metric = Metric::new(
    "tapring_spurious_kicks_total",
    Counter,
    Queue,
    "Kicks after which the ring held nothing new.",
);
pub(crate) static KICK_REARMS: Metric = Metric::new(
    "tapring_kick_rearms_total",
    Counter,
    Queue,
    "Times kicks were asked for again: the last look found the ring empty (armed) or a new chain (raced).",
)
.by("outcome", &REARM_OUTCOMES);
pub(crate) static CALLS: Metric = Metric::new(
    "tapring_calls_total",
    Counter,
    Queue,
    "Calls (notifications from device to driver) sent.",
);
pub(crate) static CALLS_SUPPRESSED: Metric = Metric::new(
    "tapring_calls_suppressed_total",
    Counter,
    Queue,
    "Publications of used elements that needed no call because the driver wanted none.",
);
pub(crate) static BATCHES: Metric = Metric::new(
    "tapring_batches_total",
    Counter,
    Queue,
    "Batches of frames completed.",
);
pub(crate) static BATCH_PACKETS: Metric = Metric::new(
    "tapring_batch_packets",
    Histogram(&BATCH_BUCKETS),
    Queue,
    "Frames in a batch.",
);
pub(crate) static COMPLETION_SECONDS: Metric = Metric::new(
    "tapring_completion_seconds",
    Histogram(&COMPLETION_BUCKETS),
    Queue,
    "Time from the submission of a batch to the completion of all of it.",
)
.unit(Unit::Seconds);
pub(crate) static IN_FLIGHT: Metric = Metric::new(
    "tapring_in_flight",
    Gauge,
    Queue,
    "Frames submitted to the kernel and not yet completed.",
);
pub(crate) static RING_STATE: Metric = Metric::new(
    "tapring_ring_state",
    Gauge,
    Queue,
    "1 for the state of the ring's kick suppression, 0 for every other state.",
)
.by("state", &RING_STATES);
pub(crate) static REQUEUES: Metric = Metric::new(
    "tapring_requeues_total",
    Counter,
    Queue,
    "Times a ring was looked at again without a kick, by reason.",
)
.by("reason", &REQUEUE_REASONS);
pub(crate) static BLOCKED: Metric = Metric::new(
    "tapring_blocked_total",
    Counter,
    Queue,
    "Times a ring had to wait for something else than a kick, by reason.",
)
.by("reason", &BLOCKED_REASONS);
pub(crate) static TAP_POLL_ARMS: Metric = Metric::new(
    "tapring_tap_poll_arms_total",
    Counter,
    Queue,
    "Times the tap was polled: for frames (rx), for room (tx).",
);
pub(crate) static RX_STOPS: Metric = Metric::new(
    "tapring_rx_stops_total",
    Counter,
    RxQueue,
    "Times frames had to wait because the guest had posted too few buffers.",
);
pub(crate) static RX_WAKES: Metric = Metric::new(
    "tapring_rx_wakes_total",
    Counter,
    RxQueue,
    "Times the guest had posted enough buffers for waiting frames to go on.",
);
