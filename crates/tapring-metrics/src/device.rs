//! The handles of a device: what its workers add to, once per batch.
//!
//! A handle is an `Arc` on an atomic. All of them are made when the device is, so that every series reads 0 before the
//! first frame (a counter that appears with its first error has no rate) and a worker never looks
//! anything up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{Counter, Gauge};

use crate::histogram::Histogram;
use crate::policy::PolicyInfo;
use crate::seconds::Seconds;
use crate::series::{Labels, Series};
use crate::table::{self, Metric, REARM_OUTCOMES};

/// The series of a device.
#[derive(Debug)]
pub struct DeviceMetrics {
    /// 1 while a frontend is connected.
    pub connected: Gauge,
    /// What the kernel says the tap has dropped: set with [`Counter::absolute`] right before a scrape.
    pub tap_dropped: Counter,
    /// One per queue pair, for its worker.
    pub pairs: Vec<Arc<PairMetrics>>,
    /// The policy in force, for those who change it.
    pub policy: Arc<PolicyInfo>,
}

impl DeviceMetrics {
    pub(crate) fn new(series: &mut Series, name: &str, queue_pairs: u16) -> Self {
        let labels: Labels = vec![("device", name.to_owned())];
        let changes = series.counter(&table::POLICY_CHANGES, &labels);
        Self {
            connected: series.gauge(&table::DEVICE_CONNECTED, &labels),
            tap_dropped: series.counter(&table::TAP_DROPPED_PACKETS, &labels),
            pairs: (0..queue_pairs)
                .map(|pair| Arc::new(PairMetrics::new(series, &labels, pair)))
                .collect(),
            policy: series.policy(&table::POLICY_INFO, &labels, changes),
        }
    }
}

/// The series of a queue pair, which is a worker.
#[derive(Debug)]
pub struct PairMetrics {
    /// The virtqueue from host to guest.
    pub rx: QueueMetrics,
    /// The virtqueue from guest to host.
    pub tx: QueueMetrics,
    /// `io_uring_enter` calls.
    pub ring_enters: Counter,
    /// Those that woke the submission queue thread.
    pub sqpoll_wakeups: Counter,
    /// Time spent looking for work after the rings ran dry.
    pub busy_poll: Arc<Seconds>,
}

impl PairMetrics {
    fn new(series: &mut Series, device: &Labels, pair: u16) -> Self {
        let labels = with(device, "queue", &pair.to_string());
        Self {
            rx: QueueMetrics::new(series, &labels, Side::Rx),
            tx: QueueMetrics::new(series, &labels, Side::Tx),
            ring_enters: series.counter(&table::RING_ENTERS, &labels),
            sqpoll_wakeups: series.counter(&table::SQPOLL_WAKEUPS, &labels),
            busy_poll: series.seconds(&table::BUSY_POLL_SECONDS, &labels),
        }
    }
}

/// The series of a virtqueue. A vector is indexed as the array of [`table`] that its field names.
#[derive(Debug)]
pub struct QueueMetrics {
    /// Kicks received.
    pub kicks: Counter,
    /// Kicks that led to nothing.
    pub spurious_kicks: Counter,
    /// Kicks asked for again, ring empty.
    pub rearms_armed: Counter,
    /// Kicks asked for again, but a chain was there.
    pub rearms_raced: Counter,
    /// Calls sent.
    pub calls: Counter,
    /// Calls that the driver did not want.
    pub calls_suppressed: Counter,
    /// Frames moved.
    pub packets: Counter,
    /// Their bytes, without the virtio-net header.
    pub bytes: Counter,
    /// [`RX_DROP_REASONS`](table::RX_DROP_REASONS) or [`TX_DROP_REASONS`](table::TX_DROP_REASONS).
    pub dropped: Vec<Counter>,
    /// [`GUEST_FAULT_KINDS`](table::GUEST_FAULT_KINDS).
    pub guest_faults: Vec<Counter>,
    /// Batches completed.
    pub batches: Counter,
    /// Frames in each of them.
    pub batch_packets: Arc<Histogram>,
    /// Nanoseconds from submission to completion of each of them.
    pub completion_seconds: Arc<Histogram>,
    /// Frames in the kernel's hands.
    pub in_flight: Gauge,
    /// [`REQUEUE_REASONS`](table::REQUEUE_REASONS).
    pub requeues: Vec<Counter>,
    /// [`BLOCKED_REASONS`](table::BLOCKED_REASONS).
    pub blocked: Vec<Counter>,
    /// Polls of the tap armed.
    pub tap_poll_arms: Counter,
    /// Times frames waited for buffers. Goes nowhere on the TX side.
    pub rx_stops: Counter,
    /// Times they went on. Goes nowhere on the TX side.
    pub rx_wakes: Counter,
    /// The state of the ring.
    pub state: RingState,
}

impl QueueMetrics {
    fn new(series: &mut Series, pair: &Labels, side: Side) -> Self {
        let labels = &with(pair, "direction", side.name());
        let rearms =
            |outcome| series.counter(&table::KICK_REARMS, &with(labels, "outcome", outcome));
        let [rearms_armed, rearms_raced] = REARM_OUTCOMES.map(rearms);
        Self {
            kicks: series.counter(&table::KICKS, labels),
            spurious_kicks: series.counter(&table::SPURIOUS_KICKS, labels),
            rearms_armed,
            rearms_raced,
            calls: series.counter(&table::CALLS, labels),
            calls_suppressed: series.counter(&table::CALLS_SUPPRESSED, labels),
            packets: series.counter(&table::PACKETS, labels),
            bytes: series.counter(&table::BYTES, labels),
            dropped: choices(series, &table::DROPPED_PACKETS, labels, side),
            guest_faults: choices(series, &table::GUEST_FAULTS, labels, side),
            batches: series.counter(&table::BATCHES, labels),
            batch_packets: series.histogram(&table::BATCH_PACKETS, labels),
            completion_seconds: series.histogram(&table::COMPLETION_SECONDS, labels),
            in_flight: series.gauge(&table::IN_FLIGHT, labels),
            requeues: choices(series, &table::REQUEUES, labels, side),
            blocked: choices(series, &table::BLOCKED, labels, side),
            tap_poll_arms: series.counter(&table::TAP_POLL_ARMS, labels),
            rx_stops: rx_only(series, &table::RX_STOPS, labels, side),
            rx_wakes: rx_only(series, &table::RX_WAKES, labels, side),
            state: RingState::new(series, labels, side),
        }
    }
}

/// The `ring_state` gauges: exactly one of them is 1 (two or none for the moment of a change).
#[derive(Debug)]
pub struct RingState {
    gauges: Vec<Gauge>,
    now: AtomicUsize,
}

impl RingState {
    /// Shows the state with this position in [`RING_STATES`](table::RING_STATES). Costs next to nothing if it has not
    /// changed. Only the worker that owns the ring calls this.
    pub fn set(&self, state: usize) {
        let before = self.now.swap(state, Ordering::Relaxed);
        if before != state {
            self.show(before, 0.0);
            self.show(state, 1.0);
        }
    }

    fn new(series: &Series, labels: &Labels, side: Side) -> Self {
        let labels = labels_by_choice(&table::RING_STATE, labels, side);
        let gauges = labels
            .map(|labels| series.gauge(&table::RING_STATE, &labels))
            .collect();
        let state = Self {
            gauges,
            now: AtomicUsize::new(0),
        };
        state.show(0, 1.0);
        state
    }

    fn show(&self, state: usize, value: f64) {
        debug_assert!(
            state < self.gauges.len(),
            "a ring state that the table does not have: {state}"
        );
        if let Some(gauge) = self.gauges.get(state) {
            gauge.set(value);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Rx,
    Tx,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }

    fn values(self, metric: &Metric) -> &'static [&'static str] {
        match (self, metric.choice) {
            (_, None) => &[],
            (Self::Rx, Some(choice)) => choice.rx,
            (Self::Tx, Some(choice)) => choice.tx,
        }
    }
}

/// One counter for each value of the metric's own label.
fn choices(series: &Series, metric: &'static Metric, labels: &Labels, side: Side) -> Vec<Counter> {
    labels_by_choice(metric, labels, side)
        .map(|labels| series.counter(metric, &labels))
        .collect()
}

fn labels_by_choice(
    metric: &'static Metric,
    labels: &Labels,
    side: Side,
) -> impl Iterator<Item = Labels> {
    let label = metric.choice.map_or("", |choice| choice.label);
    side.values(metric)
        .iter()
        .map(move |value| with(labels, label, value))
}

fn rx_only(series: &Series, metric: &'static Metric, labels: &Labels, side: Side) -> Counter {
    match side {
        Side::Rx => series.counter(metric, labels),
        Side::Tx => Counter::noop(),
    }
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}
