//! Policies of a running daemon, on a real tap: each does what it says, none loses a frame, and a change takes at any moment.
//!
//! ```text
//! live   changes under load, and what outlives a session     room   tx_poll behind a slow egress
//! wake   rx_wake, with drivers that post few buffers         share  budgets
//! poll   busy polls: the kicks they save, and no more        ping   what one frame takes
//! ```
//!
//! Where two policies are compared, both have their turn on one daemon, in alternating rounds.
#![forbid(unsafe_code)]

mod live;
mod ping;
mod poll;
mod room;
mod share;
mod wake;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tapring_tests::{Need, Rig};

/// What nearly every scenario here needs.
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip")];

/// For [`Rig::start_apart`].
const APART: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::TwoCpus];

/// A lost wake-up never comes; a busy machine takes its time.
const OWED: Duration = Duration::from_secs(5);

const TX: &str = "direction=\"tx\"";
const RX: &str = "direction=\"rx\"";

/// Looks until something is there, on the CPU all the time: to sleep would take longer than what is measured.
fn spin(what: &str, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + OWED;
    while !look()? {
        ensure!(Instant::now() < deadline, "waited in vain for {what}");
        std::hint::spin_loop();
    }
    Ok(())
}

/// Lets so much time pass, on the CPU.
fn pause(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Longer than a worker takes to go to sleep.
const SLOW: Duration = Duration::from_micros(40);

/// Rounds of a comparison.
const ROUNDS: usize = 5;

/// Puts each of two policies in force in turn and measures it; returns what came out, in the order of the rounds.
fn alternate<T>(
    rig: &mut Rig,
    policies: [&str; 2],
    mut measure: impl FnMut(&mut Rig) -> Result<T>,
) -> Result<[Vec<T>; 2]> {
    let mut measured = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (policy, measured) in policies.iter().zip(&mut measured) {
            rig.daemon.control().policy(policy)?;
            measured.push(measure(rig)?);
        }
    }
    Ok(measured)
}

/// The one in the middle.
fn median<T: Copy + Ord>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
