//! Kicks and calls, decided as Linux decides them.
//!
//! **Kick** (driver to device), `virtqueue_kick_prepare_split`: a full fence, then with EVENT_IDX "did avail.idx just pass
//! avail_event" ([`need_event`]), else "is NO_NOTIFY clear". The fence orders our avail.idx store before the load of what the
//! device asked for. The device stores avail_event, fences and loads avail.idx, so at least one side sees the other's store: a
//! chain is kicked for, or the device's last look finds it.
//!
//! **Call** (device to driver) is the mirror image: used_event is stored, a fence, used.idx looked at once more before sleeping
//! (`virtqueue_enable_cb`, `virtqueue_enable_cb_delayed`).
//!
//! Linux skips writing used_event again when a call has come since (`event_triggered`); that saves a store and changes no call
//! that matters, and is left out.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::counters::Counters;
use crate::error::Violation;
use crate::ring::DriverRing;

const USED_F_NO_NOTIFY: u16 = 1;
const AVAIL_F_NO_INTERRUPT: u16 = 1;

/// Whether an index that moved from `old` to `new` passed `event` (virtio 1.3 §2.7.10; `vring_need_event` in Linux).
#[must_use]
pub const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// How much to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The next used element (`virtqueue_enable_cb`).
    Next,
    /// Three quarters of what is outstanding (`virtqueue_enable_cb_delayed`).
    MostOutstanding,
    /// This many used elements from now; 0 counts as 1.
    Used(u16),
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// There was enough before sleeping.
    AtOnce,
    /// A call came and there is enough.
    Called,
    /// The time passed.
    TimedOut,
}

impl DriverRing {
    /// Kicks if the device asked for it; says whether it did.
    pub fn kick_if_needed(&mut self) -> bool {
        fence(SeqCst);
        let new = self.avail_index;
        let old = new.wrapping_sub(std::mem::take(&mut self.added));
        let needed = if self.event_idx {
            need_event(self.avail_event(), new, old)
        } else {
            self.used_flags() & USED_F_NO_NOTIFY == 0
        };
        if needed {
            self.kick();
        } else {
            self.counters.kicks_suppressed += u64::from(new != old);
        }
        needed
    }

    /// Kicks whatever the device asked for.
    pub fn kick(&mut self) {
        match self.place.kick.write(1) {
            Ok(()) => self.counters.kicks_sent += 1,
            Err(_) => self.counters.kicks_failed += 1,
        }
        if !self.exit_cost.is_zero() {
            let start = Instant::now();
            while start.elapsed() < self.exit_cost {
                std::hint::spin_loop();
            }
        }
    }

    /// From now on the sender's CPU spins this long for each kick ([`GuestConfig::exit_cost`](crate::GuestConfig::exit_cost)).
    pub const fn set_exit_cost(&mut self, exit_cost: Duration) {
        self.exit_cost = exit_cost;
    }

    /// From now on waits begin with looking for a call this long ([`GuestConfig::halt_poll`](crate::GuestConfig::halt_poll)).
    pub const fn set_halt_poll(&mut self, halt_poll: Duration) {
        self.halt_poll = halt_poll;
    }

    /// The avail index at which the device wants a kick.
    #[must_use]
    pub fn avail_event(&self) -> u16 {
        u16::from_le(self.place.avail_event_cell().load(Relaxed))
    }

    /// The used ring's flags.
    #[must_use]
    pub fn used_flags(&self) -> u16 {
        u16::from_le(self.place.used.u16_at(0).load(Relaxed))
    }

    /// Tells the device not to call (a hint; `virtqueue_disable_cb`).
    pub fn disable_calls(&mut self) {
        if !std::mem::replace(&mut self.calls_on, false) {
            return;
        }
        if self.event_idx {
            self.place.used_event_cell().store(0, Relaxed);
        } else {
            self.store_avail_flags(AVAIL_F_NO_INTERRUPT);
        }
    }

    /// Asks for a call once `until` is reached; false if it already is, and then no call is owed.
    ///
    /// # Errors
    /// The device published more than it was given.
    pub fn enable_calls(&mut self, until: Until) -> Result<bool, Violation> {
        let wanted = self.wanted(until);
        if !std::mem::replace(&mut self.calls_on, true) && !self.event_idx {
            self.store_avail_flags(0);
        }
        let event = self.last_used.wrapping_add(wanted - 1);
        self.place.used_event_cell().store(event.to_le(), Release);
        fence(SeqCst);
        Ok(self.pending()? < wanted)
    }

    /// Sleeps until `until` is reached or `limit` passes, woken by calls only.
    ///
    /// # Errors
    /// The device published more than it was given, or the wait failed.
    pub fn wait_for_call(&mut self, until: Until, limit: Duration) -> Result<Woken, Violation> {
        let wanted = self.wanted(until);
        if !self.enable_calls(until)? {
            self.disable_calls();
            return Ok(Woken::AtOnce);
        }
        let deadline = Instant::now() + limit;
        while self.sleep(deadline)? {
            if self.pending()? >= wanted {
                self.disable_calls();
                return Ok(Woken::Called);
            }
            self.counters.spurious_calls += 1;
        }
        Ok(Woken::TimedOut)
    }

    /// What was counted, calls up to now included.
    pub fn counters(&mut self) -> Counters {
        if let Ok(true) = self.call_wait.wait(Duration::ZERO) {
            self.read_calls();
        }
        self.counters
    }

    /// After an element was taken: while calls are on, the next one is to be called for (`virtqueue_get_buf_ctx_split`).
    pub(crate) fn calls_follow(&self) {
        if self.calls_on && self.event_idx {
            self.place
                .used_event_cell()
                .store(self.last_used.to_le(), Release);
            fence(SeqCst);
        }
    }

    /// Waits for the call eventfd and empties it; false at the deadline.
    fn sleep(&mut self, deadline: Instant) -> Result<bool, Violation> {
        let called = self.called_by(deadline).map_err(|error| Violation::Wait {
            queue: self.name.clone(),
            reason: error.to_string(),
        })?;
        if called {
            self.read_calls();
        }
        Ok(called)
    }

    /// Looks without sleeping first, as KVM does for a halted virtual CPU.
    fn called_by(&self, deadline: Instant) -> io::Result<bool> {
        let began = Instant::now();
        while began.elapsed() < self.halt_poll && Instant::now() < deadline {
            if self.call_wait.wait(Duration::ZERO)? {
                return Ok(true);
            }
        }
        self.call_wait
            .wait(deadline.saturating_duration_since(Instant::now()))
    }

    fn read_calls(&mut self) {
        self.counters.calls += self.place.call.read().unwrap_or(0);
    }

    fn wanted(&self, until: Until) -> u16 {
        match until {
            Until::Next => 1,
            // Linux lets `bufs` pass and looks for more than that.
            Until::MostOutstanding => self.outstanding() - self.outstanding().div_ceil(4) + 1,
            Until::Used(count) => count.max(1),
        }
    }

    fn store_avail_flags(&self, flags: u16) {
        self.place.avail.u16_at(0).store(flags.to_le(), Release);
    }
}

/// Waits for one eventfd to become readable.
#[derive(Debug)]
pub(crate) struct CallWait(Epoll);

impl CallWait {
    pub(crate) fn new(call: &EventFd) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, call.as_raw_fd(), event)?;
        Ok(Self(epoll))
    }

    /// False when `limit` passed; it is kept to the millisecond, rounded up.
    fn wait(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left_ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
            match self.0.wait(left_ms, &mut [EpollEvent::default()]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                ready => return Ok(ready? > 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::need_event;

    /// The definition, one index at a time: was `event` among the indices that `old` passed on its way to `new`?
    fn passed(event: u16, new: u16, old: u16) -> bool {
        let mut index = old;
        while index != new {
            if index == event {
                return true;
            }
            index = index.wrapping_add(1);
        }
        false
    }

    #[test]
    fn an_event_is_needed_exactly_when_it_was_passed() {
        for old in [0, 1, 255, 32_766, 32_768, 65_530, 65_535_u16] {
            for (step, near) in (0..9u16).flat_map(|step| (0..24u16).map(move |near| (step, near)))
            {
                let new = old.wrapping_add(step);
                for event in [
                    old.wrapping_add(near).wrapping_sub(12),
                    near.wrapping_mul(2731),
                ] {
                    assert_eq!(
                        need_event(event, new, old),
                        passed(event, new, old),
                        "{event} {new} {old}"
                    );
                }
            }
        }
    }
}
