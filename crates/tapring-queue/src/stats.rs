//! Plain counters of one virtqueue. The worker takes them once a turn and adds them to the
//! metrics; the engine knows no metrics.

use crate::fault::Fault;
use crate::kick::{Block, Requeue};

/// What happened since the last [`QueueStats::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Kicks taken.
    pub kicks: u64,
    /// Kicks taken while asleep whose look found nothing.
    pub spurious_kicks: u64,
    /// Times kicks were turned on and the last look found nothing.
    pub rearms_armed: u64,
    /// Times kicks were turned on and the last look found a chain.
    pub rearms_raced: u64,
    /// Calls asked for.
    pub calls: u64,
    /// Publications of used elements the driver wanted no call for.
    pub calls_suppressed: u64,
    /// Frames that reached the other side.
    pub packets: u64,
    /// Their bytes, without the virtio-net header.
    pub bytes: u64,
    /// Publications, that is, batches.
    pub batches: u64,
    /// Guest faults by [`Fault`].
    pub guest_faults: [u64; Fault::ALL.len()],
    /// Requeues by [`Requeue`].
    pub requeues: [u64; Requeue::NAMES.len()],
    /// Blocks by [`Block`].
    pub blocked: [u64; Block::NAMES.len()],
    /// Frames dropped for being larger than the guest's buffers can ever hold.
    pub too_large: u64,
    /// Times reading from the tap stopped for want of guest buffers.
    pub rx_stops: u64,
    /// Times it went on.
    pub rx_wakes: u64,
}

impl QueueStats {
    /// The counts so far; they start from zero again.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    pub(crate) const fn fault(&mut self, fault: Fault) {
        self.guest_faults[fault as usize] += 1;
    }
}
