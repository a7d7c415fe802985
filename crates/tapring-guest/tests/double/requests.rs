//! The backend's answers to vhost-user messages.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard};

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vm_memory::{Bytes, FileOffset, GuestMemoryMmap, GuestRegionMmap};
use vmm_sys_util::eventfd::EventFd;

use super::{State, Vring, at};

pub(crate) struct Requests {
    pub(crate) state: Arc<Mutex<State>>,
    /// Wakes the device so that it looks at what changed.
    pub(crate) changed: Arc<EventFd>,
}

impl Requests {
    /// Notes the message, and wakes the device once the change is made.
    fn change(&self, message: &str, change: impl FnOnce(&mut State) -> Option<()>) -> Result<()> {
        let mut state = self.note(message);
        change(&mut state).ok_or(Error::InvalidParam)?;
        drop(state);
        self.changed.write(1).map_err(Error::ReqHandlerError)
    }

    fn change_ring(
        &self,
        message: &str,
        index: u32,
        change: impl FnOnce(&mut Vring) -> Option<()>,
    ) -> Result<()> {
        self.change(&format!("{message} {index}"), |state| {
            change(state.vrings.get_mut(index as usize)?)
        })
    }

    fn note(&self, message: &str) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        while state.mute {
            drop(state);
            std::thread::park_timeout(std::time::Duration::from_millis(5));
            state = self.state.lock().unwrap();
        }
        state.messages.push(message.to_owned());
        state
    }
}

fn map(regions: Vec<(VhostUserMemoryRegion, File)>) -> Option<GuestMemoryMmap<()>> {
    let range = |(region, file): (VhostUserMemoryRegion, File)| {
        let offset = FileOffset::new(file, region.mmap_offset);
        (
            at(region.guest_phys_addr),
            usize::try_from(region.memory_size).unwrap(),
            Some(offset),
        )
    };
    GuestMemoryMmap::from_ranges_with_files(regions.into_iter().map(range)).ok()
}

impl VhostUserBackendReqHandlerMut for Requests {
    fn set_owner(&mut self) -> Result<()> {
        self.change("SET_OWNER", |_| Some(()))
    }

    fn reset_owner(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("reset_owner"))
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("reset_device"))
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.note("GET_FEATURES").features)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.change("SET_FEATURES", |state| {
            state.acked = features;
            (features & !state.features == 0).then_some(())
        })
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.change("SET_MEM_TABLE", |state| {
            state.memory = map(table.iter().copied().zip(files).collect())?;
            let place = |region: &VhostUserMemoryRegion| {
                let region = *region;
                (region.user_addr, region.guest_phys_addr, region.memory_size)
            };
            state.regions = table.iter().map(place).collect();
            Some(())
        })?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.change_ring("SET_VRING_NUM", index, |vring| {
            vring.size = u16::try_from(num)
                .ok()
                .filter(|size| size.is_power_of_two())?;
            Some(())
        })
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(&format!("SET_VRING_ADDR {index}"), |state| {
            let [table, avail, used] =
                [descriptor, available, used].map(|user| state.translate(user));
            let (table, avail, used) = (table?, avail?, used?);
            let next_used = state.memory.read_obj(at(used + 2)).ok()?;
            let vring = state.vrings.get_mut(index as usize)?;
            (vring.table, vring.avail, vring.used) = (table, avail, used);
            vring.next_used = next_used;
            Some(())
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.change_ring("SET_VRING_BASE", index, |vring| {
            vring.next_avail = u16::try_from(base).ok()?;
            Some(())
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let mut base = 0;
        self.change_ring("GET_VRING_BASE", index, |vring| {
            base = vring.next_avail;
            (vring.started, vring.called_before) = (false, false);
            (vring.kick, vring.call) = (None, None);
            Some(())
        })?;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.change_ring("SET_VRING_KICK", index.into(), |vring| {
            vring.kick = fd;
            vring.started = true;
            Some(())
        })
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.change_ring("SET_VRING_CALL", index.into(), |vring| {
            vring.call = fd;
            Some(())
        })
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.change_ring("SET_VRING_ERR", index.into(), |_| Some(()))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let slots = self.note("GET_PROTOCOL_FEATURES").slots;
        let mut features = VhostUserProtocolFeatures::MQ;
        features.set(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS, slots);
        Ok(features)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        self.change("SET_PROTOCOL_FEATURES", |_| Some(()))
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.note("GET_QUEUE_NUM").vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change_ring("SET_VRING_ENABLE", index, |vring| {
            vring.enabled = enable;
            Some(())
        })
    }

    fn get_config(
        &mut self,
        _offset: u32,
        _size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("get_config"))
    }

    fn set_config(
        &mut self,
        _offset: u32,
        _buf: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        Err(Error::InvalidOperation("set_config"))
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("set_gpu_socket"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("get_shared_object"))
    }

    fn get_inflight_fd(
        &mut self,
        _inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("get_inflight_fd"))
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("set_inflight_fd"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(8)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.change("ADD_MEM_REG", |state| {
            let file = FileOffset::new(fd, region.mmap_offset);
            let bytes = usize::try_from(region.memory_size).unwrap();
            let added =
                GuestRegionMmap::from_range(at(region.guest_phys_addr), bytes, Some(file)).ok()?;
            let added = Arc::new(added);
            state.memory = state.memory.insert_region(added).ok()?;
            state
                .regions
                .push((region.user_addr, region.guest_phys_addr, region.memory_size));
            Some(())
        })?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.change("REM_MEM_REG", |state| {
            let (physical, bytes) = (region.guest_phys_addr, region.memory_size);
            state.memory = state.memory.remove_region(at(physical), bytes).ok()?.0;
            state.regions.retain(|&(_, start, _)| start != physical);
            Some(())
        })
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("set_device_state_fd"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("check_device_state"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("get_shmem_config"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("set_log_base"))
    }
}
