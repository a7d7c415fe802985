//! The driver's side of one split virtqueue (virtio 1.3 §2.7), as Linux' `virtio_ring.c` works it.
//!
//! ```text
//!  descriptor table        avail ring (driver writes)        used ring (device writes)
//!  0: addr len flags next  flags idx | head head head ...    flags idx | id len  id len ...
//!  1: ...                  used_event behind the entries     avail_event behind the entries
//! ```
//!
//! 1. `reserve` takes descriptors from the free list (kept here, not in guest memory, where the device could spoil it).
//! 2. The descriptors are written, then the head into the avail entry, then avail.idx with Release: whoever sees the index sees
//!    the chain (§2.7.13.3).
//! 3. `kick_if_needed` (in `notify.rs`) decides whether the device must be told.
//! 4. `take_used` reads used.idx with Acquire and takes one element: its head must be outstanding, in avail order, with a
//!    length that can be. Nothing the device writes is used as an index before it is checked.
//!
//! It does not know what the buffers hold (`tx.rs`, `rx.rs`). The methods in `raw.rs` break the rules on purpose: tests of bad
//! guests need them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::GuestConfig;
use crate::counters::Counters;
use crate::error::Violation;
use crate::notify::CallWait;
use crate::place::{DESC_BYTES, RingPlace};

/// More chains follow (`VRING_DESC_F_NEXT`).
pub const DESC_NEXT: u16 = 1;
/// The device writes this buffer (`VRING_DESC_F_WRITE`).
pub const DESC_WRITE: u16 = 2;
/// The buffer is an indirect table (`VRING_DESC_F_INDIRECT`).
pub const DESC_INDIRECT: u16 = 4;

/// One descriptor as it stands in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest physical address.
    pub address: u64,
    /// Bytes.
    pub bytes: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// Next descriptor, if [`DESC_NEXT`].
    pub next: u16,
}

impl Descriptor {
    /// The 16 bytes of it, little-endian.
    #[must_use]
    pub fn to_bytes(self) -> [u8; DESC_BYTES] {
        let mut bytes = [0; DESC_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.second_half().to_le_bytes());
        bytes
    }

    pub(crate) fn second_half(self) -> u64 {
        u64::from(self.bytes) | u64::from(self.flags) << 32 | u64::from(self.next) << 48
    }
}

/// A used element whose head was outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Head of the chain.
    pub head: u16,
    /// What the chain was added with.
    pub token: u32,
    /// Bytes the device says it wrote.
    pub length: u32,
    /// Index of the element.
    pub index: u16,
}

/// No descriptors left for the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// What the driver remembers of an outstanding chain.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    descriptors: u16,
    token: u32,
    capacity: u32,
}

/// The driver's side of one virtqueue.
#[derive(Debug)]
pub struct DriverRing {
    pub(crate) place: Arc<RingPlace>,
    pub(crate) name: String,
    pub(crate) event_idx: bool,
    /// Free list, linked through `next`, as long as `free`.
    next: Vec<u16>,
    free_head: u16,
    free: u16,
    /// Per head, chains the device has.
    posted: Vec<Posted>,
    /// Per avail slot, the head in it: what used order is checked against.
    order: Vec<u16>,
    pub(crate) avail_index: u16,
    pub(crate) last_used: u16,
    /// Chains made available since the last kick decision (Linux: `num_added`).
    pub(crate) added: u16,
    /// Whether the device is asked for calls (Linux: `!(avail_flags_shadow & NO_INTERRUPT)`).
    pub(crate) calls_on: bool,
    /// Whether a head out of avail order is a violation.
    pub in_order: bool,
    pub(crate) call_wait: CallWait,
    /// How long the guest's CPU is away for each kick.
    pub(crate) exit_cost: Duration,
    /// How long a wait looks for a call before it sleeps.
    pub(crate) halt_poll: Duration,
    pub(crate) counters: Counters,
}

impl DriverRing {
    pub(crate) fn new(
        place: Arc<RingPlace>,
        name: String,
        event_idx: bool,
        config: &GuestConfig,
    ) -> io::Result<Self> {
        let size = place.size;
        Ok(Self {
            name,
            event_idx,
            next: (1..=size).collect(),
            free_head: 0,
            free: size,
            posted: vec![Posted::default(); usize::from(size)],
            order: vec![0; usize::from(size)],
            avail_index: place.avail_index(),
            last_used: place.used_index(),
            added: 0,
            calls_on: true,
            in_order: true,
            call_wait: CallWait::new(&place.call)?,
            exit_cost: config.exit_cost,
            halt_poll: config.halt_poll,
            counters: Counters::default(),
            place,
        })
    }

    /// Descriptors in the table.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.place.size
    }

    /// Descriptors free for new chains.
    #[must_use]
    pub const fn free(&self) -> u16 {
        self.free
    }

    /// Chains made available and not yet taken back.
    #[must_use]
    pub const fn outstanding(&self) -> u16 {
        self.avail_index.wrapping_sub(self.last_used)
    }

    /// Index of the next used element this driver will take.
    #[must_use]
    pub const fn next_used(&self) -> u16 {
        self.last_used
    }

    /// Makes a chain of direct descriptors available; NEXT and `next` are filled in. `capacity` bounds the used length.
    ///
    /// # Errors
    /// [`NoRoom`] if fewer descriptors are free.
    pub fn add(&mut self, chain: &[Descriptor], token: u32, capacity: u32) -> Result<u16, NoRoom> {
        let head = self.reserve(chain.len(), token, capacity)?;
        let mut index = head;
        for (n, descriptor) in chain.iter().enumerate() {
            let last = n + 1 == chain.len();
            let next = if last {
                0
            } else {
                self.next[usize::from(index)]
            };
            let flags = descriptor.flags | if last { 0 } else { DESC_NEXT };
            self.write_descriptor(
                index,
                Descriptor {
                    flags,
                    next,
                    ..*descriptor
                },
            );
            index = next;
        }
        self.expose(head);
        Ok(head)
    }

    /// Takes descriptors off the free list without writing or exposing them.
    ///
    /// # Errors
    /// [`NoRoom`] if fewer are free, or for an empty chain.
    pub fn reserve(
        &mut self,
        descriptors: usize,
        token: u32,
        capacity: u32,
    ) -> Result<u16, NoRoom> {
        let count = u16::try_from(descriptors).map_err(|_| NoRoom)?;
        if count == 0 || count > self.free {
            return Err(NoRoom);
        }
        let head = self.free_head;
        self.posted[usize::from(head)] = Posted {
            descriptors: count,
            token,
            capacity,
        };
        self.free_head = self.after(head, count);
        self.free -= count;
        Ok(head)
    }

    /// The descriptors of a reserved or outstanding chain, in order.
    pub fn chain(&self, head: u16) -> impl Iterator<Item = u16> + '_ {
        let count = self.posted[usize::from(head)].descriptors;
        (0..count).map(move |n| self.after(head, n))
    }

    /// Makes a reserved chain available.
    pub fn expose(&mut self, head: u16) {
        let slot = self.slot(self.avail_index);
        self.order[slot] = head;
        self.write_avail_entry(self.avail_index, head);
        self.avail_index = self.avail_index.wrapping_add(1);
        self.store_avail_index(self.avail_index);
        self.added += 1;
        if self.added == u16::MAX {
            // The distance a kick decision looks back over is 16 bits (Linux: virtqueue_add_split).
            self.kick_if_needed();
        }
    }

    /// Used elements the device has published and this driver has not taken.
    ///
    /// # Errors
    /// More than chains are outstanding.
    pub fn pending(&self) -> Result<u16, Violation> {
        let used = self.place.used_index();
        let pending = used.wrapping_sub(self.last_used);
        if pending <= self.outstanding() {
            return Ok(pending);
        }
        Err(Violation::UsedIndex {
            queue: self.name.clone(),
            last: self.last_used,
            used,
            outstanding: self.outstanding(),
        })
    }

    /// Takes the next used element and frees its chain.
    ///
    /// # Errors
    /// The element breaks a rule; it is then left where it is.
    pub fn take_used(&mut self) -> Result<Option<Used>, Violation> {
        if self.pending()? == 0 {
            return Ok(None);
        }
        let used = self.check(self.used_element(self.last_used))?;
        self.release(used.head);
        self.last_used = self.last_used.wrapping_add(1);
        self.calls_follow();
        Ok(Some(used))
    }

    /// Holds a used element against what was posted.
    fn check(&self, (head, length): (u32, u32)) -> Result<Used, Violation> {
        let (queue, index) = (|| self.name.clone(), self.last_used);
        if head >= u32::from(self.size()) {
            return Err(Violation::HeadOutOfRange {
                queue: queue(),
                index,
                head,
            });
        }
        let posted = self.posted[head as usize];
        if posted.descriptors == 0 {
            return Err(Violation::HeadNotOutstanding {
                queue: queue(),
                index,
                head,
            });
        }
        let expected = self.order[self.slot(index)];
        if self.in_order && head != u32::from(expected) {
            return Err(Violation::OutOfOrder {
                queue: queue(),
                index,
                head,
                expected,
            });
        }
        if length > posted.capacity {
            let capacity = posted.capacity;
            return Err(Violation::UsedLength {
                queue: queue(),
                index,
                length,
                capacity,
            });
        }
        let head = u16::try_from(head).unwrap_or(expected);
        Ok(Used {
            head,
            token: posted.token,
            length,
            index,
        })
    }

    /// Puts a chain back at the front of the free list, as Linux does.
    fn release(&mut self, head: u16) {
        let count = std::mem::take(&mut self.posted[usize::from(head)]).descriptors;
        let last = self.after(head, count - 1);
        self.next[usize::from(last)] = self.free_head;
        self.free_head = head;
        self.free += count;
    }

    fn after(&self, head: u16, steps: u16) -> u16 {
        (0..steps).fold(head, |index, _| self.next[usize::from(index)])
    }

    /// The slot of a ring index. Any size works, so that a backend can be offered one it must refuse.
    pub(crate) fn slot(&self, index: u16) -> usize {
        usize::from(index % self.size().max(1))
    }
}
