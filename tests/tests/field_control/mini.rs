//! A guest of a few lines for message sets that no sane frontend sends: memory is a file that is read and written by
//! position, rings are a few words in it, and every message is the test's own.
//!
//! ```text
//! 0x0000 nothing | 0x8000 * (ring + 1): table, + 0x4000 avail, + 0x5000 used | 0x8_0000 buffers, 4 KiB each
//! ```

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::raw::{RawFrontend, VERSION, request, ring_state};
use tapring_tests::until;

const MEMORY_BYTES: u64 = 4 << 20;
const USER_BASE: u64 = 0x7a00_0000_0000;
const BUFFERS: u64 = 0x8_0000;
const BUFFER_BYTES: u32 = 4096;
const SOON: Duration = Duration::from_secs(1);

/// VIRTIO_F_VERSION_1.
pub(crate) const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_EVENT_IDX.
pub(crate) const EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_INDIRECT_DESC.
pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
/// VIRTIO_NET_F_MRG_RXBUF.
pub(crate) const MRG_RXBUF: u64 = 1 << 15;
/// VHOST_USER_F_PROTOCOL_FEATURES.
pub(crate) const PROTOCOL: u64 = 1 << 30;

/// The receiveq of pair 0.
pub(crate) const RX: u32 = 0;
/// The transmitq of pair 0.
pub(crate) const TX: u32 = 1;

/// Memory, two rings and their eventfds.
#[derive(Debug)]
pub(crate) struct MiniGuest {
    memory: File,
    size: u16,
    header_bytes: usize,
    kicks: [File; 2],
    calls: [File; 2],
}

impl MiniGuest {
    /// Memory of zeros, rings of `size` descriptors.
    pub(crate) fn new(size: u16) -> Result<Self> {
        let memory = File::from(memfd_create("mini-guest", MemfdFlags::CLOEXEC)?);
        ftruncate(&memory, MEMORY_BYTES)?;
        let event = || -> Result<File> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            Ok(File::from(eventfd(0, flags)?))
        };
        Ok(Self {
            memory,
            size,
            header_bytes: 12,
            kicks: [event()?, event()?],
            calls: [event()?, event()?],
        })
    }

    /// With the 10-byte header of a driver that acknowledged neither VERSION_1 nor MRG_RXBUF.
    pub(crate) fn legacy(self) -> Self {
        Self {
            header_bytes: 10,
            ..self
        }
    }

    /// The body of SET_MEM_TABLE; its descriptor is [`Self::memory`].
    pub(crate) fn table(&self) -> Vec<u8> {
        let mut body = 1u64.to_ne_bytes().to_vec();
        body.extend(region(0, MEMORY_BYTES));
        body
    }

    /// The descriptor of the memory.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The kick eventfd of a ring.
    pub(crate) fn kick_fd(&self, ring: u32) -> BorrowedFd<'_> {
        self.kicks[ring as usize].as_fd()
    }

    /// The call eventfd of a ring.
    pub(crate) fn call_fd(&self, ring: u32) -> BorrowedFd<'_> {
        self.calls[ring as usize].as_fd()
    }

    /// The body of SET_VRING_ADDR.
    pub(crate) fn addresses(&self, ring: u32) -> Vec<u8> {
        let base = USER_BASE + place(ring);
        let mut body = [ring, 0].map(u32::to_ne_bytes).concat();
        for address in [base, base + 0x5000, base + 0x4000, 0] {
            body.extend(address.to_ne_bytes());
        }
        body
    }

    /// SET_MEM_TABLE without an acknowledgement.
    pub(crate) fn send_table(&self, frontend: &RawFrontend) -> Result<()> {
        frontend.send(
            request::SET_MEM_TABLE,
            VERSION,
            &self.table(),
            &[self.memory()],
        )
    }

    /// SET_VRING_NUM, ADDR, BASE (if any) and KICK of a ring, in this order.
    pub(crate) fn send_ring(
        &self,
        frontend: &RawFrontend,
        ring: u32,
        base: Option<u32>,
    ) -> Result<()> {
        let size = ring_state(ring, self.size.into());
        frontend.send(request::SET_VRING_NUM, VERSION, &size, &[])?;
        frontend.send(request::SET_VRING_ADDR, VERSION, &self.addresses(ring), &[])?;
        if let Some(base) = base {
            let base = ring_state(ring, base);
            frontend.send(request::SET_VRING_BASE, VERSION, &base, &[])?;
        }
        let index = u64::from(ring).to_ne_bytes();
        frontend.send(
            request::SET_VRING_KICK,
            VERSION,
            &index,
            &[self.kick_fd(ring)],
        )
    }

    /// SET_VRING_CALL of a ring.
    pub(crate) fn send_call(&self, frontend: &RawFrontend, ring: u32) -> Result<()> {
        let index = u64::from(ring).to_ne_bytes();
        frontend.send(
            request::SET_VRING_CALL,
            VERSION,
            &index,
            &[self.call_fd(ring)],
        )
    }

    /// Makes a frame available in buffer `n`, without a kick.
    pub(crate) fn make_frame(&self, n: u16, frame: &[u8]) -> Result<()> {
        let address = buffer(TX, n);
        let bytes = [&vec![0; self.header_bytes], frame].concat();
        self.memory.write_all_at(&bytes, address)?;
        self.make_available(TX, n, address, u32::try_from(bytes.len())?, 0)
    }

    /// Makes an empty buffer available to the receiveq, without a kick.
    pub(crate) fn make_room(&self, n: u16) -> Result<()> {
        self.make_available(RX, n, buffer(RX, n), BUFFER_BYTES, 2)
    }

    /// Descriptor and avail entry number `n` (from 0), then the index.
    fn make_available(
        &self,
        ring: u32,
        n: u16,
        address: u64,
        bytes: u32,
        flags: u16,
    ) -> Result<()> {
        let slot = n % self.size;
        let mut descriptor = address.to_le_bytes().to_vec();
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(flags.to_le_bytes());
        descriptor.extend([0; 2]);
        let base = place(ring);
        self.memory
            .write_all_at(&descriptor, base + u64::from(slot) * 16)?;
        let entry = base + 0x4000 + 4 + u64::from(slot) * 2;
        self.memory.write_all_at(&slot.to_le_bytes(), entry)?;
        let next = n.wrapping_add(1).to_le_bytes();
        self.memory.write_all_at(&next, base + 0x4002)?;
        Ok(())
    }

    /// Kicks, whatever the device asked for.
    pub(crate) fn kick(&self, ring: u32) -> Result<()> {
        rustix::io::write(self.kick_fd(ring), &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// The ring's used index.
    pub(crate) fn used_index(&self, ring: u32) -> Result<u16> {
        self.word(place(ring) + 0x5002)
    }

    /// Where the device wants the next kick (EVENT_IDX).
    pub(crate) fn avail_event(&self, ring: u32) -> Result<u16> {
        self.word(place(ring) + 0x5004 + u64::from(self.size) * 8)
    }

    /// Waits, looking at memory only, until the used index is this.
    pub(crate) fn wait_used(&self, ring: u32, index: u16) -> Result<()> {
        until(SOON, "the used index", || {
            (self.used_index(ring).ok()? == index).then_some(())
        })
        .with_context(|| format!("ring {ring}: {:?}, not {index}", self.used_index(ring)))
    }

    /// Waits for a call and takes it.
    pub(crate) fn wait_call(&self, ring: u32) -> Result<()> {
        let call = self.call_fd(ring);
        let mut fds = [PollFd::from_borrowed_fd(call, PollFlags::IN)];
        let limit = Timespec::try_from(SOON)?;
        ensure!(poll(&mut fds, Some(&limit))? == 1, "ring {ring}: no call");
        rustix::io::read(call, &mut [0; 8])?;
        Ok(())
    }

    /// The frame in receive buffer `n`, without its header.
    pub(crate) fn received(&self, n: u16) -> Result<Vec<u8>> {
        let element = place(RX) + 0x5004 + u64::from(n % self.size) * 8;
        let mut length = [0; 4];
        self.memory.read_exact_at(&mut length, element + 4)?;
        let length = u32::from_le_bytes(length) as usize;
        ensure!(
            length >= self.header_bytes,
            "buffer {n} holds {length} bytes"
        );
        let mut frame = vec![0; length - self.header_bytes];
        self.memory
            .read_exact_at(&mut frame, buffer(RX, n) + self.header_bytes as u64)?;
        Ok(frame)
    }

    fn word(&self, address: u64) -> Result<u16> {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u16::from_le_bytes(bytes))
    }
}

/// A region of SET_MEM_TABLE, ADD_MEM_REG and REM_MEM_REG: guest address, size, user address, offset.
pub(crate) fn region(start: u64, bytes: u64) -> Vec<u8> {
    [start, bytes, USER_BASE + start, 0]
        .map(u64::to_ne_bytes)
        .concat()
}

fn place(ring: u32) -> u64 {
    0x8000 * (u64::from(ring) + 1)
}

fn buffer(ring: u32, n: u16) -> u64 {
    BUFFERS + (u64::from(ring) * 256 + u64::from(n % 256)) * u64::from(BUFFER_BYTES)
}
