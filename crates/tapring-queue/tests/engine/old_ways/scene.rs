//! A guest, a worker and a host in simulated time.
//!
//! ```text
//!  guest TX   a chain every `tx_gap`, and the cost of an exit where it kicks
//!  guest RX   a used buffer taken and posted again every `refill`
//!  host       a frame into the tap every `host_gap`; what its queue does not hold is lost
//!  worker     the daemon's turn; a turn costs what its frames cost, during which the others act;
//!             from a sleep it comes back late, from a poll at once
//! ```
//!
//! Each actor has a moment at which it acts next, and the earliest acts.

use tapring_queue::Policy;

use super::stage::Stage;

/// What the others do, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// Between two chains of the guest.
    pub(crate) tx_gap: Option<u64>,
    /// Between two frames of the host.
    pub(crate) host_gap: Option<u64>,
    /// What the guest needs for a frame it received, until its buffer is posted again.
    pub(crate) refill: u64,
    /// What a turn of the worker costs, beside its frames; and a wake-up out of a sleep.
    pub(crate) turn: u64,
    pub(crate) wake_up: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) tx_kicks: u64,
    /// Of these, with a batch in flight.
    pub(crate) tx_kicks_in_flight: u64,
    pub(crate) rx_kicks: u64,
    /// Frames the host got, and the guest.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Nanoseconds in which the guest, since the first frame, had none to work on with more in the tap.
    pub(crate) guest_idle: u64,
    pub(crate) polls: u64,
}

/// How long a scene is played.
const LENGTH: u64 = 10_000_000;

impl Scene {
    /// Nobody does anything.
    pub(crate) const IDLE: Self = Self {
        tx_gap: None,
        host_gap: None,
        refill: 1_000,
        turn: 1_500,
        wake_up: 5_000,
    };

    pub(crate) fn play(self, policy: Policy, event_idx: bool) -> Figures {
        let mut stage = Stage::new(self, policy, event_idx);
        while stage.now < LENGTH {
            stage.act();
        }
        stage.figures
    }
}
