//! Keeps a hot loop of somebody else's making out of the log.
//!
//! A cause is a `static` [`LogLimit`]: it lets a number of lines through in each minute and counts the rest, and the
//! first line of a later minute says how many were left out. QEMU reconnected 12,000 times in 5 s to a backend it did not
//! like; other backends have had a line for each packet.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);

/// Lets a bounded number of lines a minute through.
#[derive(Debug)]
pub struct LogLimit {
    lines: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    began: Option<Instant>,
    shown: u32,
    suppressed: u64,
}

/// How many lines were left out since the last one; shows itself as the end of a sentence, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed(pub u64);

impl LogLimit {
    /// At most this many lines a minute.
    pub const fn per_minute(lines: u32) -> Self {
        let state = State {
            began: None,
            shown: 0,
            suppressed: 0,
        };
        Self {
            lines,
            state: Mutex::new(state),
        }
    }

    /// Whether to write the line, and what to append to it.
    pub fn pass(&self) -> Option<Suppressed> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<Suppressed> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = state
            .began
            .is_none_or(|began| now.duration_since(began) >= WINDOW);
        if fresh {
            state.began = Some(now);
            state.shown = 0;
        }
        if state.shown == self.lines {
            state.suppressed += 1;
            return None;
        }
        state.shown += 1;
        Some(Suppressed(std::mem::take(&mut state.suppressed)))
    }
}

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} lines like this were left out)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_it_holds_back_and_says_so_later() {
        let limit = LogLimit::per_minute(2);
        let start = Instant::now();
        assert_eq!(limit.pass_at(start), Some(Suppressed(0)));
        assert_eq!(limit.pass_at(start), Some(Suppressed(0)));
        for _ in 0..1000 {
            assert_eq!(limit.pass_at(start + Duration::from_secs(59)), None);
        }
        assert_eq!(limit.pass_at(start + WINDOW), Some(Suppressed(1000)));
        assert_eq!(limit.pass_at(start + WINDOW), Some(Suppressed(0)));
        assert_eq!(limit.pass_at(start + WINDOW), None);
    }

    #[test]
    fn nothing_left_out_is_not_worth_a_word() {
        assert_eq!(Suppressed(0).to_string(), "");
        assert_eq!(
            Suppressed(7).to_string(),
            " (7 lines like this were left out)"
        );
    }
}
