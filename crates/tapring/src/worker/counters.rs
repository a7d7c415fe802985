//! From the plain counts of engine and port to the metrics, once a turn.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tapring_io::{Discarded, Port, RxBatch, TapFault, TxOutcome};
use tapring_metrics::table::TX_DROP_REASONS;
use tapring_metrics::{Counter, PairMetrics, QueueMetrics};
use tapring_queue::{Direction, Fault, QueuePair, QueueStats};
use tracing::{error, warn};

use crate::log_limit::LogLimit;

/// A guest can make faults as fast as it likes; the log hears of them now and then, the counters
/// of each.
static FAULT_LINES: LogLimit = LogLimit::per_minute(6);
static ATTACH_LINES: LogLimit = LogLimit::per_minute(6);
static LOSS_LINES: LogLimit = LogLimit::per_minute(6);
static CUT_LINES: LogLimit = LogLimit::per_minute(1);
static UNSUPPORTED_LINES: LogLimit = LogLimit::per_minute(1);

/// Positions in `tapring_metrics::table::RX_DROP_REASONS`.
#[derive(Clone, Copy)]
enum RxDrop {
    TooLarge,
    Cut,
    SessionEnd,
    TapError,
    Offload,
}

/// Positions in `tapring_metrics::table::TX_DROP_REASONS`.
#[derive(Clone, Copy)]
enum TxDrop {
    Down,
    Refused,
    Gone,
}

/// What a batch lost, by [`TxDrop`]. Gathered first: a tap that is down loses every frame, and the log's limit is a lock.
#[derive(Debug, Default)]
pub(super) struct Losses {
    frames: [u64; TX_DROP_REASONS.len()],
    last: Option<TxOutcome>,
}

impl Losses {
    /// A frame is lost.
    pub(super) const fn note(&mut self, outcome: TxOutcome) {
        let reason = match outcome {
            TxOutcome::Down => TxDrop::Down,
            TxOutcome::Gone => TxDrop::Gone,
            TxOutcome::Refused(_) | TxOutcome::Sent | TxOutcome::TapFull => TxDrop::Refused,
        };
        self.frames[reason as usize] += 1;
        self.last = Some(outcome);
    }
}

/// The counters of one worker.
#[derive(Debug)]
pub(super) struct Counters {
    device: String,
    pair: u16,
    metrics: Arc<PairMetrics>,
    /// Frames with the kernel as last shown, by [`Direction::index`].
    in_flight: [usize; 2],
}

impl Counters {
    pub(super) fn new(device: &str, pair: u16, metrics: Arc<PairMetrics>) -> Self {
        Self {
            device: device.to_owned(),
            pair,
            metrics,
            in_flight: [0; 2],
        }
    }

    /// Adds what happened since the last turn.
    pub(super) fn add(&mut self, rings: &mut QueuePair, port: &mut Port) {
        for direction in Direction::ALL {
            let queue = self.queue(direction);
            let stats = rings.take_stats(direction);
            if stats != QueueStats::default() {
                add_queue(queue, &stats);
                self.report_faults(direction, &stats.guest_faults);
            }
            queue.state.set(rings.state(direction).index());
        }
        self.show_in_flight(Direction::Rx, port.rx_in_flight());
        self.show_in_flight(Direction::Tx, port.tx_in_flight());
        let stats = port.stats();
        add(&self.metrics.ring_enters, stats.ring_enters);
        add(&self.metrics.sqpoll_wakeups, stats.sqpoll_wakeups);
        add(&self.metrics.rx.tap_poll_arms, stats.readable_arms);
        add(&self.metrics.tx.tap_poll_arms, stats.writable_arms);
    }

    fn show_in_flight(&mut self, direction: Direction, frames: usize) {
        let shown = std::mem::replace(&mut self.in_flight[direction.index()], frames);
        if shown != frames {
            // A batch has 64.
            let frames = u32::try_from(frames).unwrap_or(u32::MAX);
            self.queue(direction).in_flight.set(f64::from(frames));
        }
    }

    /// A batch of writes or reads is whole.
    pub(super) fn completed(&self, direction: Direction, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.queue(direction)
            .completion_seconds
            .observe(nanoseconds);
    }

    /// The worker watched memory for so long, rather than sleep.
    pub(super) fn busy_polled(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.metrics.busy_poll.add_nanoseconds(nanoseconds);
    }

    /// Frames of a batch that the tap did not take and never will.
    pub(super) fn lost(&self, losses: &Losses) {
        let Some(outcome) = losses.last else { return };
        add_all(&self.metrics.tx.dropped, &losses.frames);
        if let Some(more) = LOSS_LINES.pass() {
            let (device, queue) = (&self.device, self.pair);
            let frames: u64 = losses.frames.iter().sum();
            let remedy = remedy(outcome);
            warn!(
                device,
                queue,
                frames,
                ?outcome,
                "frames of the guest were dropped: {remedy}{more}"
            );
        }
    }

    /// The tap was deleted. The port says so once, and frames of the guest are dropped and counted from now on.
    pub(super) fn tap_gone(&self) {
        let (device, queue) = (&self.device, self.pair);
        error!(
            device,
            queue, "the interface was deleted: make it again and restart the daemon"
        );
    }

    /// A batch of reads is in.
    pub(super) fn read(&self, batch: &RxBatch) {
        self.cut(batch.cut as u64);
        self.unsupported(batch.unsupported as u64);
        if matches!(batch.fault, Some(TapFault::Errno(_))) {
            self.read_failed();
        }
    }

    /// Frames filled their slot whole, so they may be incomplete.
    pub(super) fn cut(&self, frames: u64) {
        self.drop_rx(RxDrop::Cut, frames);
        if frames > 0
            && let Some(more) = CUT_LINES.pass()
        {
            let (device, queue) = (&self.device, self.pair);
            warn!(
                device,
                queue,
                frames,
                "frames for the guest were dropped that are longer than what an interface with this MTU should bring: if its \
                 MTU was raised, restart the daemon; lower gso_max_size at the far end of a veth{more}"
            );
        }
    }

    /// The senders of these frames left work to others that cannot be made up for.
    pub(super) fn unsupported(&self, frames: u64) {
        self.drop_rx(RxDrop::Offload, frames);
        if frames > 0
            && let Some(more) = UNSUPPORTED_LINES.pass()
        {
            let (device, queue) = (&self.device, self.pair);
            warn!(
                device,
                queue,
                frames,
                "frames for the guest were dropped that were to be segmented in a way that is not known here (a tunnel's, or, \
                 before Linux 6.2, those of UDP): have their sender do it, `ethtool -K NAME tso off tx-udp-segmentation off` \
                 at the far end of a veth, or `ethtool -K {device} gro off` of a card{more}"
            );
        }
    }

    /// The tap could not be read.
    pub(super) fn read_failed(&self) {
        self.drop_rx(RxDrop::TapError, 1);
    }

    /// Frames were in the queue of a pair that the guest does not use any more.
    pub(super) fn abandoned(&self, frames: usize) {
        self.drop_rx(RxDrop::SessionEnd, frames as u64);
    }

    /// The tap did not take the queue in or out. One that was deleted does neither, and is reported on its own.
    pub(super) fn not_attached(&self, attach: bool, error: &io::Error) {
        if let Some(more) = ATTACH_LINES.pass() {
            let (device, queue) = (&self.device, self.pair);
            warn!(
                device,
                queue, attach, "the tap does not change which queues it uses: {error}{more}"
            );
        }
    }

    /// Frames of one session that the next must not see.
    pub(super) fn discarded(&self, discarded: &Discarded) {
        let frames = discarded.held + discarded.queued;
        self.drop_rx(RxDrop::SessionEnd, frames as u64);
    }

    fn drop_rx(&self, reason: RxDrop, frames: u64) {
        add(&self.metrics.rx.dropped[reason as usize], frames);
    }

    fn queue(&self, direction: Direction) -> &QueueMetrics {
        match direction {
            Direction::Rx => &self.metrics.rx,
            Direction::Tx => &self.metrics.tx,
        }
    }
}

impl Counters {
    fn report_faults(&self, direction: Direction, faults: &[u64]) {
        for (fault, count) in Fault::ALL.iter().zip(faults) {
            if *count > 0
                && let Some(more) = FAULT_LINES.pass()
            {
                let (device, queue) = (&self.device, self.pair);
                warn!(device, queue, %direction, %fault, count, "guest fault{more}");
            }
        }
    }
}

/// What to do about frames that were not sent.
fn remedy(outcome: TxOutcome) -> String {
    match outcome {
        TxOutcome::Refused(errno) => match Errno::from_raw_os_error(errno) {
            Errno::MSGSIZE => {
                "they are longer than the interface's MTU: raise it there, or lower the guest's"
                    .to_owned()
            }
            Errno::NOBUFS => "the interface's own queue was full".to_owned(),
            error => format!("the interface refused them: {error}"),
        },
        _ => "is the interface up?".to_owned(),
    }
}

fn add_queue(queue: &QueueMetrics, stats: &QueueStats) {
    add(&queue.kicks, stats.kicks);
    add(&queue.spurious_kicks, stats.spurious_kicks);
    add(&queue.rearms_armed, stats.rearms_armed);
    add(&queue.rearms_raced, stats.rearms_raced);
    add(&queue.calls, stats.calls);
    add(&queue.calls_suppressed, stats.calls_suppressed);
    add(&queue.packets, stats.packets);
    add(&queue.bytes, stats.bytes);
    add(&queue.batches, stats.batches);
    add(&queue.rx_stops, stats.rx_stops);
    add(&queue.rx_wakes, stats.rx_wakes);
    add_all(&queue.guest_faults, &stats.guest_faults);
    add_all(&queue.requeues, &stats.requeues);
    add_all(&queue.blocked, &stats.blocked);
    if stats.too_large > 0 {
        queue.dropped[RxDrop::TooLarge as usize].increment(stats.too_large);
    }
    // A turn publishes once, or twice where it went on reading: then their mean.
    if let Some(frames) = stats.packets.checked_div(stats.batches) {
        queue.batch_packets.observe_n(frames, stats.batches);
    }
}

fn add_all(counters: &[Counter], counts: &[u64]) {
    for (counter, count) in counters.iter().zip(counts) {
        add(counter, *count);
    }
}

/// Most counts are 0 most of the time, and an addition of 0 still takes the cache line.
#[inline]
fn add(counter: &Counter, count: u64) {
    if count > 0 {
        counter.increment(count);
    }
}

#[cfg(test)]
mod tests {
    use tapring_metrics::table;
    use tapring_queue::{Block, Requeue, State};

    use super::*;

    #[test]
    fn what_the_kernel_has_is_shown() {
        let metrics = tapring_metrics::Metrics::new("0");
        let device = metrics.device("t0", 1);
        let mut counters = Counters::new("t0", 0, Arc::clone(&device.pairs[0]));
        let shown = |frames| {
            let line = format!(
                "tapring_in_flight{{device=\"t0\",queue=\"0\",direction=\"tx\"}} {frames}\n"
            );
            metrics.render().contains(&line)
        };
        for frames in [64, 64, 0] {
            counters.show_in_flight(Direction::Tx, frames);
            assert!(shown(frames), "{}", metrics.render());
        }
    }

    #[test]
    fn losses_are_told_apart() {
        let mut losses = Losses::default();
        for outcome in [TxOutcome::Down, TxOutcome::Gone, TxOutcome::Gone] {
            losses.note(outcome);
        }
        losses.note(TxOutcome::Refused(22));
        assert_eq!(losses.frames, [1, 1, 2]);
        assert_eq!(losses.last, Some(TxOutcome::Refused(22)));
    }

    #[test]
    fn labels_are_in_the_order_of_what_they_count() {
        assert_eq!(Fault::ALL.map(Fault::as_str), table::GUEST_FAULT_KINDS);
        assert_eq!(Requeue::NAMES, table::REQUEUE_REASONS);
        assert_eq!(Block::NAMES, table::BLOCKED_REASONS);
        assert_eq!(State::NAMES, table::RING_STATES);
        assert_eq!(
            table::RX_DROP_REASONS[RxDrop::TooLarge as usize],
            "too_large"
        );
        assert_eq!(table::RX_DROP_REASONS[RxDrop::Cut as usize], "cut");
        assert_eq!(
            table::RX_DROP_REASONS[RxDrop::SessionEnd as usize],
            "session_end"
        );
        assert_eq!(
            table::RX_DROP_REASONS[RxDrop::TapError as usize],
            "tap_error"
        );
        assert_eq!(table::RX_DROP_REASONS[RxDrop::Offload as usize], "offload");
        assert_eq!(table::TX_DROP_REASONS[TxDrop::Down as usize], "tap_down");
        assert_eq!(
            table::TX_DROP_REASONS[TxDrop::Refused as usize],
            "tap_refused"
        );
        assert_eq!(table::TX_DROP_REASONS[TxDrop::Gone as usize], "tap_gone");
    }
}
