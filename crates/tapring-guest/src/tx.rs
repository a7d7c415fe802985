//! The transmit virtqueue: guest to host.
//!
//! 1. A frame is copied behind its 12-byte header into the next buffer (or lies there already: [`TxQueue::prepare`]).
//! 2. The buffer becomes a chain cut as its [`Layout`] says, and is made available.
//! 3. The kick is decided per packet, as Linux does, or for several at once (`xmit_more`): that is the caller's choice of when to
//!    call [`TxQueue::kick_if_needed`].
//! 4. [`TxQueue::collect`] takes used buffers back and holds each against what was sent.
//!
//! [`TxQueue::transmit`] strings these together in the order of virtio-net's `start_xmit`.

use std::time::{Duration, Instant};

use crate::chains::Chains;
use crate::config::HEADER_BYTES;
use crate::counters::Counters;
use crate::error::{SendError, Violation};
use crate::layout::{Layout, Piece};
use crate::notify::{Until, Woken};
use crate::pool::Pool;
use crate::ring::{Descriptor, DriverRing, Used};

/// The header of a plain frame: no offloads, and num_buffers 0 as the driver must set it (virtio 1.3 §5.1.6.2.1).
pub const PLAIN_HEADER: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// Descriptors that virtio-net wants free before it takes another packet: 2 + MAX_SKB_FRAGS.
pub const LINUX_RESERVE: u16 = 2 + 17;

/// The driver's side of a transmit virtqueue.
#[derive(Debug)]
pub struct TxQueue {
    chains: Chains,
    /// Per slot, bytes of the prepared frame with its header.
    prepared: Vec<u32>,
}

/// Why [`TxQueue::transmit`] did not send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransmitError {
    /// The backend broke the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The frame does not fit.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The ring stayed full: the backend took nothing in time.
    #[error("the ring stayed full for {0:?}: the backend takes nothing")]
    Stuck(Duration),
}

impl TxQueue {
    /// Calls are off until somebody waits, as `start_xmit` leaves them.
    pub(crate) fn new(mut chains: Chains) -> Self {
        chains.ring.disable_calls();
        Self {
            chains,
            prepared: Vec::new(),
        }
    }

    /// Makes `frame` available with a plain header in one descriptor. No kick: see [`Self::kick_if_needed`].
    ///
    /// # Errors
    /// [`SendError::Full`], or the frame does not fit a buffer.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.send_as(&PLAIN_HEADER, frame, &Layout::ONE).map(drop)
    }

    /// Makes `frame` available with a plain header, cut as `layout` says; returns the head.
    ///
    /// # Errors
    /// [`SendError::Full`], or the frame does not fit a buffer or an indirect table.
    pub fn send_in(&mut self, frame: &[u8], layout: &Layout) -> Result<u16, SendError> {
        self.send_as(&PLAIN_HEADER, frame, layout)
    }

    /// Makes any header and any bytes available: `header` may be shorter or longer than it should be.
    ///
    /// # Errors
    /// [`SendError::Full`], or the bytes do not fit a buffer or an indirect table.
    pub fn send_as(
        &mut self,
        header: &[u8],
        frame: &[u8],
        layout: &Layout,
    ) -> Result<u16, SendError> {
        self.chains
            .cut(layout, header.len() + frame.len(), header.len())?;
        let slot = self.chains.pool.take().ok_or(SendError::Full)?;
        if self.chains.ring.free() == 0 {
            self.chains.pool.untake(slot);
            return Err(SendError::Full);
        }
        scatter(&self.chains.pool, slot, &self.chains.pieces, header, frame);
        self.expose(slot, layout, frame.len())
    }

    /// Writes frames into all free buffers, in the order in which they will be sent: `frame(n, bytes)` fills the n-th. They
    /// are then sent with [`Self::send_prepared`], again and again, without touching them.
    ///
    /// # Errors
    /// A frame does not fit a buffer.
    pub fn prepare(
        &mut self,
        mut frame: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<usize, SendError> {
        let Chains {
            pool, slot_bytes, ..
        } = &self.chains;
        let mut bytes = Vec::new();
        for (n, slot) in pool.upcoming().enumerate() {
            bytes.clear();
            bytes.extend_from_slice(&PLAIN_HEADER);
            frame(n, &mut bytes);
            if bytes.len() > *slot_bytes {
                return Err(SendError::TooLong {
                    bytes: bytes.len(),
                    room: *slot_bytes,
                });
            }
            pool.write(slot, 0, &bytes);
            let slot = slot as usize;
            self.prepared.resize(self.prepared.len().max(slot + 1), 0);
            self.prepared[slot] = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        }
        Ok(pool.free())
    }

    /// Makes the next prepared frame available in one descriptor, without copying.
    ///
    /// # Errors
    /// [`SendError::Full`], also when nothing was prepared.
    pub fn send_prepared(&mut self) -> Result<(), SendError> {
        let Chains { pool, ring, .. } = &mut self.chains;
        let slot = pool.take().ok_or(SendError::Full)?;
        let bytes = self.prepared.get(slot as usize).copied().unwrap_or(0);
        let address = pool.address(slot, 0);
        let chain = [Descriptor {
            address,
            bytes,
            ..Descriptor::default()
        }];
        if bytes == 0 || ring.add(&chain, slot, 0).is_err() {
            pool.untake(slot);
            return Err(SendError::Full);
        }
        ring.counters.frames += 1;
        ring.counters.bytes += u64::from(bytes) - HEADER_BYTES as u64;
        Ok(())
    }

    /// One packet through virtio-net's `start_xmit`: free what is done, queue, kick unless `more` follow, and when fewer than
    /// [`LINUX_RESERVE`] descriptors are left sleep until calls have brought room back.
    ///
    /// # Errors
    /// A violation, a frame that does not fit, or no room within `limit`.
    pub fn transmit(
        &mut self,
        frame: &[u8],
        more: bool,
        limit: Duration,
    ) -> Result<(), TransmitError> {
        self.chains.ring.disable_calls();
        self.collect()?;
        self.send(frame)?;
        let stop = self.chains.ring.free() < self.reserve();
        if !more || stop {
            self.kick_if_needed();
        }
        if stop {
            self.wait_for_room(limit)?;
        }
        Ok(())
    }

    /// Sleeps on calls, delayed as Linux delays them, until [`LINUX_RESERVE`] descriptors are free (or all, in a small ring).
    ///
    /// # Errors
    /// A violation, or no room within `limit`.
    pub fn wait_for_room(&mut self, limit: Duration) -> Result<(), TransmitError> {
        let deadline = Instant::now() + limit;
        loop {
            self.collect()?;
            if self.chains.ring.free() >= self.reserve() {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.wait_for_call(Until::MostOutstanding, left)? == Woken::TimedOut {
                return Err(TransmitError::Stuck(limit));
            }
        }
    }

    /// Sleeps on calls until everything sent has been returned.
    ///
    /// # Errors
    /// A violation, or not all came back within `limit`.
    pub fn wait_for_all(&mut self, limit: Duration) -> Result<(), TransmitError> {
        let deadline = Instant::now() + limit;
        loop {
            self.collect()?;
            let outstanding = self.chains.ring.outstanding();
            if outstanding == 0 {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.wait_for_call(Until::Used(outstanding), left)? == Woken::TimedOut {
                return Err(TransmitError::Stuck(limit));
            }
        }
    }

    /// Takes back every used buffer there is.
    ///
    /// # Errors
    /// A used element breaks a rule: unknown, twice, out of order, or with a length that is not 0.
    pub fn collect(&mut self) -> Result<usize, Violation> {
        self.collect_each(|_| ())
    }

    /// [`Self::collect`], showing each used element.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub fn collect_each(&mut self, mut each: impl FnMut(Used)) -> Result<usize, Violation> {
        let mut taken = 0;
        while let Some(used) = self.chains.ring.take_used()? {
            self.chains.recycle(used.token);
            each(used);
            taken += 1;
        }
        self.chains.ring.counters.chains += taken as u64;
        Ok(taken)
    }

    /// Kicks if the device asked for it; says whether it did.
    pub fn kick_if_needed(&mut self) -> bool {
        self.chains.ring.kick_if_needed()
    }

    /// Sleeps until `until` is reached or `limit` passes, woken by calls only.
    ///
    /// # Errors
    /// The device published more than it was given, or the wait failed.
    pub fn wait_for_call(&mut self, until: Until, limit: Duration) -> Result<Woken, Violation> {
        self.chains.ring.wait_for_call(until, limit)
    }

    /// What was counted; `frames` and `bytes` when they were queued.
    pub fn counters(&mut self) -> Counters {
        self.chains.ring.counters()
    }

    /// The ring below.
    #[must_use]
    pub const fn ring(&self) -> &DriverRing {
        &self.chains.ring
    }

    /// The ring below, to add chains of one's own (with token [`RAW`](crate::RAW)) or to spoil it.
    pub const fn ring_mut(&mut self) -> &mut DriverRing {
        &mut self.chains.ring
    }

    fn reserve(&self) -> u16 {
        LINUX_RESERVE.min(self.chains.ring.size())
    }

    fn expose(&mut self, slot: u32, layout: &Layout, frame_bytes: usize) -> Result<u16, SendError> {
        let head = self.chains.expose(slot, 0, layout.indirect, 0);
        if head.is_err() {
            self.chains.pool.untake(slot);
            return head;
        }
        let counters = &mut self.chains.ring.counters;
        counters.frames += 1;
        counters.bytes += frame_bytes as u64;
        head
    }
}

/// Copies header and frame into the pieces of a slot.
fn scatter(pool: &Pool, slot: u32, pieces: &[Piece], header: &[u8], frame: &[u8]) {
    let mut start = 0;
    for piece in pieces {
        let end = start + piece.bytes;
        let head = header.len().clamp(start, end);
        pool.write(
            slot,
            piece.place,
            &header[start.min(header.len())..head.min(header.len())],
        );
        if end > head {
            let frame = &frame[head - header.len()..end - header.len()];
            pool.write(slot, piece.place + head - start, frame);
        }
        start = end;
    }
}
