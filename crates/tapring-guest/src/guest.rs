//! The guest as a whole: memory, rings, and the frontend that tells the backend about them.
//!
//! A guest is *prepared* (memory, rings, eventfds, drivers; no backend needed) and then *attached*. The drivers are taken out
//! with [`Guest::take_pairs`] and may run in other threads; the guest keeps what is needed to announce the rings again, so a
//! backend that died can be replaced under running drivers ([`Guest::detach`], [`Guest::attach`]).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::chains::Chains;
use crate::config::{F_EVENT_IDX, F_MRG_RXBUF, F_PROTOCOL_FEATURES, GuestConfig};
use crate::error::{GuestError, SendError};
use crate::layout::GAP_BYTES;
use crate::memory::{Bank, Carver, Ram};
use crate::place::RingPlace;
use crate::ring::DriverRing;
use crate::rx::{RxQueue, RxRules};
use crate::session::Session;
use crate::tx::TxQueue;

/// Feature bits that let header flags or GSO types appear on RX: GUEST_CSUM, GUEST_TSO4/6, GUEST_ECN, GUEST_UFO, GUEST_USO4/6.
const F_GUEST_OFFLOADS: u64 = 1 << 1 | 0xf << 7 | 1 << 54 | 1 << 55;

/// `EFD_CLOEXEC`, which is `O_CLOEXEC`.
const EFD_CLOEXEC: i32 = 0o200_0000;

/// One queue pair's drivers.
#[derive(Debug)]
pub struct Pair {
    /// Guest to host.
    pub tx: TxQueue,
    /// Host to guest.
    pub rx: RxQueue,
}

/// Where the device is to go on in each ring's avail entries (SET_VRING_BASE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// At the used index: whatever was not returned is done again (QEMU; cloud-hypervisor with IN_ORDER).
    Used,
    /// At the avail index: whatever was not returned is skipped (cloud-hypervisor without IN_ORDER).
    Avail,
    /// At this index in every ring.
    At(u16),
}

/// A guest in software behind one vhost-user connection.
#[derive(Debug)]
pub struct Guest {
    pub(crate) config: GuestConfig,
    pub(crate) ram: Arc<Ram>,
    pub(crate) rings: Vec<Arc<RingPlace>>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) features: u64,
    pub(crate) session: Option<Session>,
    free_from: u64,
}

impl Guest {
    /// Makes a guest, connects it and enables all rings. No RX buffer is posted yet: that is [`RxQueue::refill`].
    ///
    /// # Errors
    /// Nobody listens, a message is refused (it is named), or memory does not suffice.
    pub fn connect(config: &GuestConfig) -> Result<Self, GuestError> {
        let mut session = Session::open(config)?;
        let features = session.offered & config.wanted_features();
        let mut guest = Self::prepare_with(config, features)?;
        activate(&mut session, &guest, Resume::At(config.start_index))?;
        guest.session = Some(session);
        Ok(guest)
    }

    /// Makes a guest that is not connected, assuming that all features it wants will be offered. Its rings can be given any
    /// state before [`Guest::attach`].
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn prepare(config: &GuestConfig) -> Result<Self, GuestError> {
        Self::prepare_with(config, config.wanted_features())
    }

    /// Connects a prepared or detached guest: the whole set-up from SET_OWNER on, for the rings as they stand.
    ///
    /// # Errors
    /// As [`Guest::connect`]; also if the backend does not offer every feature the drivers already use.
    pub fn attach(&mut self, resume: Resume) -> Result<(), GuestError> {
        let mut session = Session::open(&self.config)?;
        if session.offered & self.features != self.features {
            return Err(GuestError::NotOffered(
                "every feature that the running driver uses",
            ));
        }
        activate(&mut session, self, resume)?;
        self.session = Some(session);
        Ok(())
    }

    /// Hangs up without stopping anything, as a killed VMM does. Dropping the guest does the same.
    pub fn detach(&mut self) {
        self.session = None;
    }

    /// The drivers; empty after the first call.
    pub fn take_pairs(&mut self) -> Vec<Pair> {
        std::mem::take(&mut self.pairs)
    }

    /// The virtio features acknowledged.
    #[must_use]
    pub const fn features(&self) -> u64 {
        self.features
    }

    /// The virtio features the backend offered, while connected.
    #[must_use]
    pub fn offered_features(&self) -> Option<u64> {
        Some(self.session.as_ref()?.offered)
    }

    /// Guest memory.
    #[must_use]
    pub fn ram(&self) -> Arc<Ram> {
        Arc::clone(&self.ram)
    }

    /// Guest physical addresses that no ring and no buffer uses, up to the end of the main region.
    #[must_use]
    pub fn free_memory(&self) -> Range<u64> {
        self.free_from..self.ram.end_of_main()
    }

    /// Whether there is a connection and the backend has not hung up.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| !session.is_over())
    }

    fn prepare_with(config: &GuestConfig, features: u64) -> Result<Self, GuestError> {
        let ram = Arc::new(Ram::new(config.memory_bytes)?);
        let mut guest = Self {
            config: config.clone(),
            ram,
            rings: Vec::new(),
            pairs: Vec::new(),
            features,
            session: None,
            free_from: 0,
        };
        guest.lay_out()?;
        Ok(guest)
    }

    /// Puts rings and buffers of all pairs into memory and makes their drivers.
    pub(crate) fn lay_out(&mut self) -> Result<(), GuestError> {
        let mut carver = Carver::new(self.ram.main());
        let rings = (0..self.config.queue_pairs * 2).map(|_| carve_ring(&mut carver, &self.config));
        self.rings = rings.collect::<Result<_, _>>()?;
        let pairs = (0..self.config.queue_pairs).map(|pair| self.make_pair(&mut carver, pair));
        self.pairs = pairs.collect::<Result<_, _>>()?;
        self.free_from = carver.carve(0, 4096)?.address();
        Ok(())
    }

    fn make_pair(&self, carver: &mut Carver, pair: u16) -> Result<Pair, GuestError> {
        let config = &self.config;
        let rx = self.driver(pair * 2, format!("rx {pair}"))?;
        let tx = self.driver(pair * 2 + 1, format!("tx {pair}"))?;
        let entries = config.indirect_entries;
        let mut pieces = Vec::new();
        let slot = config
            .rx_layout
            .place(config.rx_buffer_bytes, crate::HEADER_BYTES, &mut pieces);
        let slot = slot.max(config.rx_buffer_bytes + 16 * GAP_BYTES);
        let chains = Chains::carve(carver, rx, slot, config.rx_span_bytes, entries)?;
        let rx = RxQueue::new(
            chains,
            self.rx_rules(),
            config.rx_buffer_bytes,
            &config.rx_layout,
        );
        let rx = rx.map_err(bad_rx_layout)?;
        let slot = config.tx_buffer_bytes;
        let tx = TxQueue::new(Chains::carve(
            carver,
            tx,
            slot,
            config.tx_span_bytes,
            entries,
        )?);
        Ok(Pair { tx, rx })
    }

    fn driver(&self, ring: u16, name: String) -> Result<DriverRing, GuestError> {
        let place = Arc::clone(&self.rings[usize::from(ring)]);
        let event_idx = self.features & F_EVENT_IDX != 0;
        DriverRing::new(place, name, event_idx, &self.config).map_err(|source| GuestError::Host {
            what: "epoll",
            source,
        })
    }

    const fn rx_rules(&self) -> RxRules {
        RxRules {
            mergeable: self.features & F_MRG_RXBUF != 0,
            offloads: self.features & F_GUEST_OFFLOADS != 0,
            most: self.config.rx_buffers,
        }
    }
}

/// From SET_FEATURES to the last SET_VRING_ENABLE.
pub(crate) fn activate(
    session: &mut Session,
    guest: &Guest,
    resume: Resume,
) -> Result<(), GuestError> {
    session.set_features(guest.features)?;
    let banks = guest.ram.banks();
    let regions: Vec<_> = banks.iter().map(|bank| Bank::describe(bank)).collect();
    session.set_memory(&regions)?;
    start_rings(session, guest, resume)
}

/// SET_VRING_NUM for all rings, then each ring's messages, then SET_VRING_ENABLE for all.
pub(crate) fn start_rings(
    session: &mut Session,
    guest: &Guest,
    resume: Resume,
) -> Result<(), GuestError> {
    let rings = || (0u16..).zip(&guest.rings);
    rings().try_for_each(|(ring, place)| session.set_size(ring, place.size))?;
    rings().try_for_each(|(ring, place)| start_ring(session, ring, place, resume))?;
    if guest.features & F_PROTOCOL_FEATURES != 0 {
        rings().try_for_each(|(ring, _)| session.set_enable(ring, true))?;
    }
    Ok(())
}

/// ADDR, BASE, CALL and KICK of one ring.
pub(crate) fn start_ring(
    session: &mut Session,
    ring: u16,
    place: &RingPlace,
    resume: Resume,
) -> Result<(), GuestError> {
    let base = match resume {
        Resume::Used => place.used_index(),
        Resume::Avail => place.avail_index(),
        Resume::At(index) => index,
    };
    session.set_addresses(ring, place)?;
    session.set_base(ring, base)?;
    session.set_call(ring, place)?;
    session.set_kick(ring, place)
}

/// Descriptor table, avail ring and used ring, each on pages of its own.
fn carve_ring(carver: &mut Carver, config: &GuestConfig) -> Result<Arc<RingPlace>, GuestError> {
    let size = config.queue_size;
    let eventfd = || {
        eventfd(config).map_err(|source| GuestError::Host {
            what: "eventfd",
            source,
        })
    };
    let place = RingPlace {
        size,
        table: carver.carve(RingPlace::table_bytes(size), 4096)?,
        avail: carver.carve(RingPlace::avail_bytes(size), 4096)?,
        used: carver.carve(RingPlace::used_bytes(size), 4096)?,
        kick: eventfd()?,
        call: eventfd()?,
    };
    place.clear(config.start_index);
    Ok(Arc::new(place))
}

fn eventfd(config: &GuestConfig) -> io::Result<EventFd> {
    EventFd::new(
        EFD_CLOEXEC
            | if config.blocking_eventfds {
                0
            } else {
                EFD_NONBLOCK
            },
    )
}

fn bad_rx_layout(error: SendError) -> GuestError {
    GuestError::Host {
        what: "rx buffers",
        source: io::Error::other(error),
    }
}
