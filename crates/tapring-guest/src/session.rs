//! One connection to the backend: every message under a time limit, and with its name in the error.
//!
//! The order is cloud-hypervisor's. At connect: SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, from here
//! on NEED_REPLY, then GET_QUEUE_NUM (in rings). At activation, in `guest.rs`: SET_FEATURES, SET_MEM_TABLE, SET_VRING_NUM for all
//! rings; ADDR, BASE, CALL, KICK ring by ring; then SET_VRING_ENABLE for all.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use crate::config::{F_PROTOCOL_FEATURES, F_VERSION_1, GuestConfig};
use crate::error::GuestError;
use crate::memory::{Bank, USER_BASE};
use crate::place::RingPlace;
use crate::watchdog::Watchdog;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// An established connection.
#[derive(Debug)]
pub(crate) struct Session {
    frontend: FrontendBox,
    stream: UnixStream,
    watchdog: Watchdog,
    limit: Duration,
    pub(crate) offered: u64,
    pub(crate) protocol: VhostUserProtocolFeatures,
}

/// `Frontend` has no `Debug`.
struct FrontendBox(Frontend);

impl std::fmt::Debug for FrontendBox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Frontend")
    }
}

impl Session {
    /// Connects and negotiates up to the queue number.
    pub(crate) fn open(config: &GuestConfig) -> Result<Self, GuestError> {
        let stream = connect(config)?;
        let clone = || {
            stream.try_clone().map_err(|source| GuestError::Host {
                what: "connection",
                source,
            })
        };
        let rings = u64::from(config.queue_pairs) * 2;
        let watchdog = Watchdog::over(clone()?, config.reply_limit);
        let mut session = Self {
            frontend: FrontendBox(Frontend::from_stream(clone()?, rings)),
            watchdog: watchdog.map_err(|source| GuestError::Host {
                what: "watchdog thread",
                source,
            })?,
            limit: config.reply_limit,
            offered: 0,
            protocol: VhostUserProtocolFeatures::empty(),
            stream,
        };
        session.negotiate(rings)?;
        Ok(session)
    }

    /// Runs one exchange; `message` and `ring` name it if it fails.
    pub(crate) fn ask<T>(
        &mut self,
        message: &'static str,
        ring: Option<u16>,
        exchange: impl FnOnce(&mut Frontend) -> vhost::Result<T>,
    ) -> Result<T, GuestError> {
        let frontend = &mut self.frontend.0;
        let outcome = self.watchdog.during(|| exchange(frontend));
        outcome.map_err(|source| {
            if self.watchdog.bitten() {
                GuestError::Unanswered {
                    message,
                    ring,
                    limit: self.limit,
                }
            } else {
                GuestError::Message {
                    message,
                    ring,
                    source,
                }
            }
        })
    }

    pub(crate) fn set_features(&mut self, features: u64) -> Result<(), GuestError> {
        self.ask("SET_FEATURES", None, |frontend| {
            frontend.set_features(features)
        })
    }

    pub(crate) fn set_memory(
        &mut self,
        regions: &[VhostUserMemoryRegionInfo],
    ) -> Result<(), GuestError> {
        self.ask("SET_MEM_TABLE", None, |frontend| {
            frontend.set_mem_table(regions).map(drop)
        })
    }

    /// ADD_MEM_REG; the caller knows that it was negotiated.
    pub(crate) fn add_memory(&mut self, bank: &Bank) -> Result<(), GuestError> {
        self.ask("ADD_MEM_REG", None, |frontend| {
            frontend.add_mem_region(&bank.describe()).map(drop)
        })
    }

    /// REM_MEM_REG; the caller knows that it was negotiated.
    pub(crate) fn remove_memory(&mut self, bank: &Bank) -> Result<(), GuestError> {
        self.ask("REM_MEM_REG", None, |frontend| {
            frontend.remove_mem_region(&bank.describe())
        })
    }

    pub(crate) fn set_size(&mut self, ring: u16, size: u16) -> Result<(), GuestError> {
        self.ask("SET_VRING_NUM", Some(ring), |frontend| {
            frontend.set_vring_num(ring.into(), size)
        })
    }

    pub(crate) fn set_addresses(&mut self, ring: u16, place: &RingPlace) -> Result<(), GuestError> {
        let addresses = VringConfigData {
            queue_max_size: place.size,
            queue_size: place.size,
            flags: 0,
            desc_table_addr: USER_BASE + place.table.address(),
            used_ring_addr: USER_BASE + place.used.address(),
            avail_ring_addr: USER_BASE + place.avail.address(),
            log_addr: None,
        };
        self.ask("SET_VRING_ADDR", Some(ring), |frontend| {
            frontend.set_vring_addr(ring.into(), &addresses)
        })
    }

    pub(crate) fn set_base(&mut self, ring: u16, base: u16) -> Result<(), GuestError> {
        self.ask("SET_VRING_BASE", Some(ring), |frontend| {
            frontend.set_vring_base(ring.into(), base)
        })
    }

    /// GET_VRING_BASE, which stops the ring.
    pub(crate) fn take_base(&mut self, ring: u16) -> Result<u32, GuestError> {
        self.ask("GET_VRING_BASE", Some(ring), |frontend| {
            frontend.get_vring_base(ring.into())
        })
    }

    pub(crate) fn set_call(&mut self, ring: u16, place: &RingPlace) -> Result<(), GuestError> {
        self.ask("SET_VRING_CALL", Some(ring), |frontend| {
            frontend.set_vring_call(ring.into(), &place.call)
        })
    }

    pub(crate) fn set_kick(&mut self, ring: u16, place: &RingPlace) -> Result<(), GuestError> {
        self.ask("SET_VRING_KICK", Some(ring), |frontend| {
            frontend.set_vring_kick(ring.into(), &place.kick)
        })
    }

    pub(crate) fn set_enable(&mut self, ring: u16, on: bool) -> Result<(), GuestError> {
        self.ask("SET_VRING_ENABLE", Some(ring), |frontend| {
            frontend.set_vring_enable(ring.into(), on)
        })
    }

    /// Whether the backend has hung up.
    pub(crate) fn is_over(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// The socket, for bytes that are no proper message.
    pub(crate) const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    fn negotiate(&mut self, rings: u64) -> Result<(), GuestError> {
        self.ask("SET_OWNER", None, |frontend| frontend.set_owner())?;
        self.offered = self.ask("GET_FEATURES", None, |frontend| frontend.get_features())?;
        if self.offered & F_VERSION_1 == 0 {
            return Err(GuestError::NotOffered("VIRTIO_F_VERSION_1"));
        }
        if self.offered & F_PROTOCOL_FEATURES != 0 {
            self.negotiate_protocol(rings)?;
        }
        Ok(())
    }

    fn negotiate_protocol(&mut self, rings: u64) -> Result<(), GuestError> {
        use VhostUserProtocolFeatures as Protocol;
        let offered = self.ask(
            "GET_PROTOCOL_FEATURES",
            None,
            Frontend::get_protocol_features,
        )?;
        let wanted = Protocol::MQ | Protocol::CONFIGURE_MEM_SLOTS | Protocol::REPLY_ACK;
        let acked = offered & wanted;
        self.protocol = acked;
        self.ask("SET_PROTOCOL_FEATURES", None, |frontend| {
            frontend.set_protocol_features(acked)
        })?;
        if acked.contains(Protocol::REPLY_ACK) {
            self.frontend
                .0
                .set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        if acked.contains(Protocol::MQ) {
            let offered = self.ask("GET_QUEUE_NUM", None, Frontend::get_queue_num)?;
            if offered < rings {
                return Err(GuestError::TooFewRings {
                    offered,
                    wanted: rings,
                });
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    /// Hangs up now, and not when the watchdog's thread has let go of its descriptor too.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Connects, again and again while nobody listens.
fn connect(config: &GuestConfig) -> Result<UnixStream, GuestError> {
    let deadline = Instant::now() + config.connect_limit;
    loop {
        match UnixStream::connect(&config.socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if !worth_another(&error) || Instant::now() >= deadline => {
                return Err(GuestError::Connect {
                    socket: config.socket.clone(),
                    limit: config.connect_limit,
                    source: error,
                });
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Whether the backend may only not have got that far yet.
fn worth_another(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, WouldBlock};
    matches!(
        error.kind(),
        ConnectionRefused | Interrupted | NotFound | WouldBlock
    )
}
