//! The device as vhost-user-backend sees it, for one session.
//!
//! The trait is implemented on the type that goes into an `Arc`, not behind the crate's `Mutex` or `RwLock`: those stay
//! locked through `stop_vring`, where a drain would wait for them. `queues_per_thread` is empty, so the crate has no event
//! threads and never looks at a kick.

use std::io;
use std::sync::Arc;

use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost_user_backend::VhostUserBackend;
use vm_memory::GuestAddressSpace;
use vmm_sys_util::epoll::EventSet;

use crate::link::Link;
use crate::vring::{HookVring, Memory, RingControl};
use crate::worker::command::Command;

/// One session's backend.
#[derive(Debug)]
pub(crate) struct Backend {
    link: Arc<Link>,
    rings: Vec<Arc<RingControl>>,
}

impl Backend {
    pub(crate) const fn new(link: Arc<Link>, rings: Vec<Arc<RingControl>>) -> Self {
        Self { link, rings }
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = HookVring;

    fn num_queues(&self) -> usize {
        self.rings.len()
    }

    fn max_queue_size(&self) -> usize {
        self.link.device().offer().max_ring_size.into()
    }

    fn features(&self) -> u64 {
        self.link.device().offer().virtio
    }

    /// SET_FEATURES: the crate has enabled the rings before this if the frontend has no enable messages.
    fn acked_features(&self, features: u64) {
        self.link.set_features(features);
        self.rings.iter().for_each(|ring| ring.on_features());
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        self.link.device().offer().protocol
    }

    /// Part of the features that [`Self::acked_features`] gets.
    fn set_event_idx(&self, _enabled: bool) {}

    /// Returns when no worker uses the old memory any more. The old mappings go with the last `Arc`.
    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        let map = memory.memory().into_inner();
        if self.link.tell_all(|| Command::SetMemory(Arc::clone(&map))) {
            Ok(())
        } else {
            Err(io::Error::other("a worker still uses the old memory"))
        }
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        Vec::new()
    }

    /// The ring object has stopped the ring by now; this makes sure.
    fn stop_vring(&self, index: u32) -> io::Result<()> {
        if let Some(ring) = self.rings.get(index as usize) {
            ring.stop();
        }
        match self.link.failure() {
            None => Ok(()),
            Some(failure) => Err(io::Error::other(failure.to_string())),
        }
    }

    /// Without event threads nothing calls this.
    fn handle_event(
        &self,
        _event: u16,
        _set: EventSet,
        _rings: &[HookVring],
        _thread: usize,
    ) -> io::Result<()> {
        Ok(())
    }
}
