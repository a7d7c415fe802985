//! What a VMM does to a running device, for tests: enable, stop, restart, new memory, features again, reboot.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vhost::vhost_user::Frontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::config::{F_PROTOCOL_FEATURES, GuestConfig};
use crate::error::GuestError;
use crate::guest::{Guest, Pair, Resume, activate, start_ring};
use crate::memory::Bank;
use crate::session::Session;

/// Ring `2n` is RX and `2n + 1` TX of pair `n`.
impl Guest {
    /// SET_VRING_ENABLE.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn set_enable(&mut self, ring: u16, on: bool) -> Result<(), GuestError> {
        self.session()?.set_enable(ring, on)
    }

    /// GET_VRING_BASE: stops the ring and returns the next avail index, as the backend says it (it should fit 16 bits).
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn stop(&mut self, ring: u16) -> Result<u32, GuestError> {
        self.session()?.take_base(ring)
    }

    /// Stops all rings; returns their bases.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn stop_all(&mut self) -> Result<Vec<u32>, GuestError> {
        (0u16..)
            .take(self.rings.len())
            .map(|ring| self.stop(ring))
            .collect()
    }

    /// SET_VRING_NUM, ADDR, BASE, CALL, KICK and ENABLE of a stopped ring.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn start(&mut self, ring: u16, resume: Resume) -> Result<(), GuestError> {
        let place = Arc::clone(&self.rings[usize::from(ring)]);
        let protocol = self.features & F_PROTOCOL_FEATURES != 0;
        let session = self.session()?;
        session.set_size(ring, place.size)?;
        start_ring(session, ring, &place, resume)?;
        if protocol {
            session.set_enable(ring, true)
        } else {
            Ok(())
        }
    }

    /// Stops a ring and starts it where the backend says it stood, which is returned.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn restart(&mut self, ring: u16) -> Result<u32, GuestError> {
        let base = self.stop(ring)?;
        let index = u16::try_from(base).unwrap_or(u16::MAX);
        self.start(ring, Resume::At(index))?;
        Ok(base)
    }

    /// SET_FEATURES with the bits of before, as at the start of a migration.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn resend_features(&mut self) -> Result<(), GuestError> {
        let features = self.features;
        self.session()?.set_features(features)
    }

    /// SET_FEATURES with any bits. The drivers go on with theirs.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn send_features(&mut self, features: u64) -> Result<(), GuestError> {
        self.session()?.set_features(features)
    }

    /// SET_VRING_ADDR with the addresses of before on a running ring, as at the start of a migration.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn resend_addresses(&mut self, ring: u16) -> Result<(), GuestError> {
        let place = Arc::clone(&self.rings[usize::from(ring)]);
        self.session()?.set_addresses(ring, &place)
    }

    /// SET_VRING_CALL and SET_VRING_KICK on a running ring, with new descriptors of the same eventfds.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn resend_eventfds(&mut self, ring: u16) -> Result<(), GuestError> {
        let place = Arc::clone(&self.rings[usize::from(ring)]);
        let session = self.session()?;
        session.set_call(ring, &place)?;
        session.set_kick(ring, &place)
    }

    /// SET_MEM_TABLE with the regions there are: the backend maps all of them anew.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn resend_memory(&mut self) -> Result<(), GuestError> {
        let banks = self.ram.banks();
        let regions: Vec<_> = banks.iter().map(|bank| Bank::describe(bank)).collect();
        self.session()?.set_memory(&regions)
    }

    /// Plugs a region of memory in at `address`, by ADD_MEM_REG if that was negotiated, else by a new SET_MEM_TABLE.
    ///
    /// # Errors
    /// Not connected, or refused; the region is then not part of the guest.
    pub fn plug_memory(&mut self, address: u64, bytes: usize) -> Result<(), GuestError> {
        let bank = Arc::new(Bank::new(address, bytes)?);
        self.ram.plug(Arc::clone(&bank));
        let told = if self.has_slots()? {
            self.session()?.add_memory(&bank)
        } else {
            self.resend_memory()
        };
        told.inspect_err(|_| drop(self.ram.unplug(address)))
    }

    /// Takes a plugged region out again, by REM_MEM_REG if that was negotiated, else by a new SET_MEM_TABLE.
    ///
    /// # Errors
    /// Not connected, or refused.
    pub fn unplug_memory(&mut self, address: u64) -> Result<(), GuestError> {
        let slots = self.has_slots()?;
        match self.ram.unplug(address) {
            Some(bank) if slots => self.session()?.remove_memory(&bank),
            _ => self.resend_memory(),
        }
    }

    /// A reboot on the same connection: stops all rings, clears them, lays them out as `config` says (size, features, buffers,
    /// start index; memory, socket and pair count stay) and starts from SET_FEATURES on. The old drivers must not be used any
    /// more; the new ones are returned.
    ///
    /// # Errors
    /// Not connected, a message is refused, or memory does not suffice.
    pub fn reboot(&mut self, config: &GuestConfig) -> Result<Vec<Pair>, GuestError> {
        self.stop_all()?;
        self.config = GuestConfig {
            socket: self.config.socket.clone(),
            queue_pairs: self.config.queue_pairs,
            memory_bytes: self.config.memory_bytes,
            ..config.clone()
        };
        self.features = self.session()?.offered & self.config.wanted_features();
        self.lay_out()?;
        let start = Resume::At(self.config.start_index);
        let mut session = self.session.take().ok_or(GuestError::NotConnected)?;
        let outcome = activate(&mut session, self, start);
        self.session = Some(session);
        outcome.map(|()| self.take_pairs())
    }

    /// Any message of the `vhost` crate's frontend; `message` names it if it fails.
    ///
    /// # Errors
    /// Not connected, or the exchange failed.
    pub fn ask<T>(
        &mut self,
        message: &'static str,
        exchange: impl FnOnce(&mut Frontend) -> vhost::Result<T>,
    ) -> Result<T, GuestError> {
        self.session()?.ask(message, None, exchange)
    }

    /// The socket, to send what is no proper message or to close half of it; none if not connected.
    #[must_use]
    pub fn stream(&self) -> Option<&UnixStream> {
        Some(self.session.as_ref()?.stream())
    }

    fn has_slots(&mut self) -> Result<bool, GuestError> {
        Ok(self
            .session()?
            .protocol
            .contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS))
    }

    fn session(&mut self) -> Result<&mut Session, GuestError> {
        self.session.as_mut().ok_or(GuestError::NotConnected)
    }
}
