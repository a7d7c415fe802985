//! The guest in software on a real tap: daemon, guest, and the host's packet socket.
//!
//! ```text
//!   TxQueue ──▶ daemon ──▶ t0 ──▶ Wire         TO_HOST
//!   RxQueue ◀── daemon ◀── t0 ◀── Wire         TO_GUEST
//! ```

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tapring_guest::traffic::{ETHERTYPE_RAW, Endpoint, Flow, Verifier, Wrapping};
use tapring_guest::{Counters, F_EVENT_IDX, Guest, GuestConfig, Pair, RxQueue, TxQueue, Until};

use crate::apart::Apart;
use crate::daemon::{Daemon, DaemonOptions};
use crate::net::Net;
use crate::scenario::{Need, scenario};
use crate::wire::Wire;

/// How long a frame may take that nothing holds up.
const SOON: Duration = Duration::from_secs(5);

/// Frames on their way to the guest at once: fewer than the tap's queue holds.
const FLOOD_WINDOW: u64 = 500;

/// How long frames may take that something did hold up.
const LEFT_BEHIND: Duration = Duration::from_secs(20);

const HOST: Endpoint = end(1);
const GUEST: Endpoint = end(2);

/// What the guest sends.
pub const TO_HOST: Flow = Flow {
    source: GUEST,
    destination: HOST,
    wrapping: Wrapping::Raw,
};

/// What the host sends.
pub const TO_GUEST: Flow = Flow {
    source: HOST,
    destination: GUEST,
    wrapping: Wrapping::Raw,
};

const fn end(n: u8) -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0, n],
        ip: std::net::Ipv4Addr::new(10, 0, 0, n),
        port: 7000,
    }
}

/// The ways in which a daemon moves frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The worker's own system calls.
    Inline,
    /// A kernel thread, anywhere.
    Sqpoll,
    /// A kernel thread on CPU 0.
    SqpollPlaced,
    /// read(2) and write(2), as on kernels before 6.4.
    Plain,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Inline, Self::Sqpoll, Self::SqpollPlaced, Self::Plain];

    /// Each of them with each of `others`.
    #[must_use]
    pub fn with<T: Copy>(others: &[T]) -> Vec<(Self, T)> {
        let each = |mode| others.iter().map(move |&other| (mode, other));
        Self::ALL.into_iter().flat_map(each).collect()
    }

    /// The options of `serve` that select it.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Inline => "--poll inline",
            Self::Sqpoll => "--poll sqpoll",
            Self::SqpollPlaced => "--sqpoll-cpu 0",
            Self::Plain => "--plain-io",
        }
    }
}

/// A scenario of the data path that goes through several cases, each with a rig of its own.
///
/// # Panics
/// When a case fails; it is named.
pub fn cases<C: Copy + Debug>(
    name: &str,
    needs: &[Need],
    cases: impl IntoIterator<Item = C> + Send,
    body: impl Fn(C) -> Result<()> + Send,
) {
    scenario(&format!("data path: {name}"), needs, move || {
        cases
            .into_iter()
            .try_for_each(|case| body(case).with_context(|| format!("case {case:?}")))
    });
}

/// A daemon on tap `t0` in a namespace of its own, and its guest.
#[derive(Debug)]
pub struct Rig {
    /// The host's packet socket on the tap.
    pub wire: Wire,
    /// The guest, without its drivers.
    pub guest: Guest,
    /// Its transmitq.
    pub tx: TxQueue,
    /// Its receiveq.
    pub rx: RxQueue,
    /// The drivers of further queue pairs.
    pub others: Vec<Pair>,
    /// The daemon.
    pub daemon: Daemon,
    /// The namespace.
    pub net: Net,
    /// Number of the next frame of [`Self::ensure_alive`].
    next: u64,
}

impl Rig {
    /// Starts a daemon with more words on its command line and a guest that `configure` changed. The receiveq has no buffers yet.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn start(words: &str, configure: impl FnOnce(&mut GuestConfig)) -> Result<Self> {
        let net = Net::enter()?;
        net.tap("t0", "")?;
        Self::start_in(net, words, configure)
    }

    /// [`Self::start`] in a namespace where there is a tap `t0` already.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn start_in(
        net: Net,
        words: &str,
        configure: impl FnOnce(&mut GuestConfig),
    ) -> Result<Self> {
        Self::start_pairs(net, 1, words, configure)
    }

    /// [`Self::start_in`] with this many queue pairs.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn start_pairs(
        net: Net,
        pairs: u16,
        words: &str,
        configure: impl FnOnce(&mut GuestConfig),
    ) -> Result<Self> {
        let options = DaemonOptions::on_tap("t0").pairs(pairs).with(words);
        Self::start_on(net, &options.controlled(), pairs, ["t0", "t0"], configure)
    }

    /// A rig on another interface than a tap: the one that the daemon is on, and the one where its wire is.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn start_on(
        net: Net,
        options: &DaemonOptions,
        pairs: u16,
        [interface, wire]: [&'static str; 2],
        configure: impl FnOnce(&mut GuestConfig),
    ) -> Result<Self> {
        let daemon = Daemon::start(options)?;
        net.wait_running(interface)?;
        let mut config = GuestConfig::new(daemon.socket());
        config.queue_pairs = pairs;
        configure(&mut config);
        let mut guest = Guest::connect(&config).with_context(|| daemon.tail())?;
        let mut others = guest.take_pairs();
        let Pair { tx, rx } = others.remove(0);
        Ok(Self {
            wire: Wire::on(wire)?,
            guest,
            tx,
            rx,
            others,
            daemon,
            net,
            next: 1 << 40,
        })
    }

    /// [`Self::start`] with the worker on one CPU and the calling thread, which drives the guest, on another.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn start_apart(words: &str, configure: impl FnOnce(&mut GuestConfig)) -> Result<Self> {
        let apart = Apart::find()?;
        let rig = Self::start(&format!("{words} {}", apart.worker_words()), configure)?;
        apart.leave_worker_alone()?;
        Ok(rig)
    }

    /// That one frame each way arrives whole and soon. Nothing else may be on its way.
    ///
    /// # Errors
    /// When one does not.
    pub fn ensure_alive(&mut self) -> Result<()> {
        self.next += 1;
        let frame = TO_HOST.build(self.next, 200);
        self.tx.send(&frame)?;
        self.tx.kick_if_needed();
        let found = self.wire.receive(SOON)?;
        ensure!(
            found == Some(&frame[..]),
            "{} bytes came of the frame sent to the host\n{}",
            found.map_or(0, <[u8]>::len),
            self.daemon.tail()
        );
        self.tx.wait_for_all(SOON)?;
        self.rx.refill();
        let frame = TO_GUEST.build(self.next, 200);
        self.wire.send(&frame)?;
        let found = self.receive(SOON)?;
        ensure!(
            found.as_deref() == Some(&frame[..]),
            "{} bytes came of the frame sent to the guest\n{}",
            found.map_or(0, |found| found.len()),
            self.daemon.tail()
        );
        Ok(())
    }

    /// The next frame of the receiveq with ethertype 0x88b5, waited for by calls only. (The host's stack may have something of
    /// its own to say, such as an IGMP report.)
    ///
    /// # Errors
    /// When the backend broke a rule.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + limit;
        let mut frame = None;
        loop {
            if self.rx.receive(1, |found| frame = Some(found.to_vec()))? > 0 {
                if frame.as_deref().is_some_and(is_ours) {
                    return Ok(frame);
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.rx.wait_for_call(Until::Next, left)?;
        }
    }

    /// Takes back all transmitted chains, and says that every descriptor of the ring is free again.
    ///
    /// # Errors
    /// When some do not come back.
    pub fn ensure_tx_whole(&mut self) -> Result<()> {
        if let Err(error) = self.tx.wait_for_all(SOON) {
            bail!("{error}\n{}", self.daemon.tail());
        }
        let (free, size) = (self.tx.ring().free(), self.tx.ring().size());
        ensure!(free == size, "{free} of {size} descriptors are free");
        Ok(())
    }

    /// Sends frames to a host's end that is down: each chain comes back, and each frame is counted.
    ///
    /// # Errors
    /// When not, or one waits for longer than `limit`.
    pub fn ensure_down_drops(&mut self, frames: u32, limit: Duration) -> Result<()> {
        for sequence in 0..u64::from(frames) {
            self.tx
                .transmit(&TO_HOST.build(sequence, 100), false, limit)
                .with_context(|| self.daemon.tail())?;
        }
        self.ensure_tx_whole()?;
        let reason = ["direction=\"tx\"", "reason=\"tap_down\""];
        self.daemon
            .wait_metric("tapring_dropped_packets_total", &reason, f64::from(frames))
    }

    /// Fills the ring with frames from number `next` up to `end`, and kicks if that is asked for.
    ///
    /// # Errors
    /// When the backend broke a rule.
    pub fn fill(&mut self, next: &mut u64, end: u64, bytes: usize) -> Result<()> {
        self.tx.collect()?;
        while *next < end && self.tx.send(&TO_HOST.build(*next, bytes)).is_ok() {
            *next += 1;
        }
        self.tx.kick_if_needed();
        Ok(())
    }

    /// Waits until `frames` have come out and all chains are back, without any kick.
    ///
    /// # Errors
    /// When they have not within twenty seconds.
    pub fn ensure_all_leave(&mut self, verifier: &mut Verifier, frames: u64) -> Result<()> {
        let deadline = Instant::now() + LEFT_BEHIND;
        while verifier.report(frames).lost > 0 && Instant::now() < deadline {
            if let Some(frame) = self.wire.receive(Duration::from_millis(50))? {
                verifier.frame(frame);
            }
        }
        let report = verifier.report(frames);
        ensure!(report.is_perfect(), "{report:?}\n{}", self.daemon.tail());
        self.ensure_tx_whole()
    }

    /// Sends `total` frames of all sizes to the guest, at most 500 ahead of what it has received: all come, in order.
    ///
    /// # Errors
    /// When nothing comes for five seconds, or not all comes in order.
    pub fn flood_guest(&mut self, total: u64) -> Result<()> {
        let mut verifier = Verifier::new(TO_GUEST);
        self.rx.refill();
        let mut sent = 0;
        let mut last = Instant::now();
        while verifier.sequence().next() < total {
            let before = verifier.sequence().next();
            let end = total.min(sent + 64).min(before + FLOOD_WINDOW);
            while sent < end {
                let bytes = usize::try_from(60 + sent * 31 % 1455)?;
                self.wire.send(&TO_GUEST.build(sent, bytes))?;
                sent += 1;
            }
            self.rx
                .wait_for_call(Until::Next, Duration::from_millis(20))?;
            self.rx.receive(64, |frame| _ = verifier.frame(frame))?;
            self.rx.refill();
            if verifier.sequence().next() > before {
                last = Instant::now();
            }
            ensure!(
                last.elapsed() < SOON,
                "RX stands at {before} of {sent}: {}",
                self.daemon.tail()
            );
        }
        let report = verifier.report(total);
        let dropped = self.net.counters("t0")?.tx_dropped;
        ensure!(
            report.is_perfect() && dropped == 0,
            "{report:?}, {dropped} dropped by the tap, first missing {:?}",
            verifier.sequence().first_missing()
        );
        Ok(())
    }

    /// That the daemon counted what the guest counted.
    ///
    /// # Errors
    /// When a count differs.
    pub fn ensure_counted(&mut self) -> Result<()> {
        self.ensure_frames_counted()?;
        for (label, counted) in self.counters() {
            if self.guest.features() & F_EVENT_IDX != 0 {
                // Without it a driver may kick again before the flag is off, and such kicks coalesce.
                let kicks = counted.kicks_sent as f64;
                self.daemon
                    .wait_metric("tapring_kicks_total", &[label], kicks)?;
            }
            let calls = self.metric("tapring_calls_total", &[label])?;
            // The one for a new call descriptor, with which a ring starts, is not of the ring.
            ensure!(
                (calls..=calls + 1.0).contains(&(counted.calls as f64)),
                "{} calls, {calls} counted",
                counted.calls
            );
        }
        Ok(())
    }

    /// That the daemon counted the frames that the guest counted.
    ///
    /// # Errors
    /// When a count differs.
    pub fn ensure_frames_counted(&mut self) -> Result<()> {
        for (label, counted) in self.counters() {
            let ensure =
                |name: &str, value: u64| self.daemon.wait_metric(name, &[label], value as f64);
            ensure("tapring_packets_total", counted.frames)?;
            ensure("tapring_bytes_total", counted.bytes)?;
        }
        Ok(())
    }

    /// What the drivers counted, each with the label of its direction.
    pub fn counters(&mut self) -> [(&'static str, Counters); 2] {
        [
            ("direction=\"tx\"", self.tx.counters()),
            ("direction=\"rx\"", self.rx.counters()),
        ]
    }

    /// A counter of the transmitq (`tx`) or receiveq (`rx`), with further labels.
    ///
    /// # Errors
    /// When there is no such counter.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        self.daemon.metrics()?.sum(name, labels)
    }
}

fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHERTYPE_RAW.to_be_bytes())
}
