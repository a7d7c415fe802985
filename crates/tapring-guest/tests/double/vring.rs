//! The device's side of a virtqueue, in the plainest way.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use vm_memory::{Bytes, GuestMemoryMmap};

use super::at;

const F_MRG_RXBUF: u64 = 1 << 15;
const F_EVENT_IDX: u64 = 1 << 29;

#[derive(Debug, Default)]
pub(crate) struct Vring {
    pub(crate) size: u16,
    pub(crate) table: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
    pub(crate) next_avail: u16,
    pub(crate) next_used: u16,
    pub(crate) enabled: bool,
    pub(crate) started: bool,
    pub(crate) called_before: bool,
    pub(crate) kick: Option<File>,
    pub(crate) call: Option<File>,
}

/// Address, length, flags.
type Piece = (u64, u32, u16);

impl Vring {
    pub(crate) fn runs(&self) -> bool {
        self.enabled && self.started
    }

    /// Chains made available and not taken.
    pub(crate) fn pending(&self, memory: &GuestMemoryMmap<()>) -> u16 {
        if !self.runs() {
            return 0;
        }
        let index: u16 = memory.load(at(self.avail + 2), Acquire).unwrap();
        index.wrapping_sub(self.next_avail)
    }

    /// Sets avail_event and clears NO_NOTIFY: one of the two is looked at.
    pub(crate) fn ask_for_kick(&self, memory: &GuestMemoryMmap<()>) {
        let event = self.used + 4 + u64::from(self.size) * 8;
        memory
            .store(
                self.next_avail.wrapping_add(self.pending(memory)),
                at(event),
                Release,
            )
            .unwrap();
    }

    pub(crate) fn read_kick(&mut self) -> bool {
        let mut count = [0; 8];
        self.kick
            .as_mut()
            .is_some_and(|kick| kick.read(&mut count).is_ok())
    }

    /// The next chain and what is in it, header included.
    pub(crate) fn peek_readable(&self, memory: &GuestMemoryMmap<()>) -> Option<(u32, Vec<u8>)> {
        if self.pending(memory) == 0 {
            return None;
        }
        let (head, pieces) = self.chain(memory, self.next_avail);
        let mut bytes = Vec::new();
        for (address, length, flags) in pieces {
            assert_eq!(flags & 2, 0, "a writable buffer on the transmit ring");
            let start = bytes.len();
            bytes.resize(start + length as usize, 0);
            memory.read_slice(&mut bytes[start..], at(address)).unwrap();
        }
        Some((head, bytes))
    }

    /// Puts header and frame into as many chains as needed; false if there are too few.
    pub(crate) fn deliver(
        &mut self,
        memory: &GuestMemoryMmap<()>,
        sent: &[u8],
        acked: u64,
    ) -> bool {
        let mut chains = Vec::new();
        let mut room = 0;
        for n in 0..self.pending(memory) {
            let chain = self.chain(memory, self.next_avail.wrapping_add(n));
            room += chain.1.iter().map(|piece| piece.1 as usize).sum::<usize>();
            chains.push(chain);
            if room >= sent.len() || acked & F_MRG_RXBUF == 0 {
                break;
            }
        }
        if room < sent.len() {
            return false;
        }
        let mut frame = sent.to_vec();
        frame[..12].fill(0);
        frame[10..12].copy_from_slice(&u16::try_from(chains.len()).unwrap().to_le_bytes());
        let mut rest = &frame[..];
        let fill =
            |(head, pieces): &(u32, Vec<Piece>)| (*head, write_pieces(memory, pieces, &mut rest));
        let used: Vec<_> = chains.iter().map(fill).collect();
        self.next_avail = self
            .next_avail
            .wrapping_add(u16::try_from(used.len()).unwrap());
        self.publish(memory, &used, acked);
        true
    }

    /// Used elements under one index store, and the call if it is asked for. The first publish after a start always calls.
    pub(crate) fn publish(
        &mut self,
        memory: &GuestMemoryMmap<()>,
        elements: &[(u32, u32)],
        acked: u64,
    ) {
        let old = self.next_used;
        for &(id, length) in elements {
            let element = self.used + 4 + u64::from(self.next_used % self.size) * 8;
            memory.store(id, at(element), Relaxed).unwrap();
            memory.store(length, at(element + 4), Relaxed).unwrap();
            self.next_used = self.next_used.wrapping_add(1);
        }
        memory
            .store(self.next_used, at(self.used + 2), Release)
            .unwrap();
        fence(SeqCst);
        let wanted = if acked & F_EVENT_IDX != 0 {
            let event: u16 = memory
                .load(at(self.avail + 4 + u64::from(self.size) * 2), Relaxed)
                .unwrap();
            event.wrapping_sub(old) < self.next_used.wrapping_sub(old)
        } else {
            let flags: u16 = memory.load(at(self.avail), Relaxed).unwrap();
            flags & 1 == 0
        };
        if !std::mem::replace(&mut self.called_before, true) || wanted {
            self.signal();
        }
    }

    fn signal(&mut self) {
        if let Some(call) = &mut self.call {
            let _ = call.write(&1u64.to_ne_bytes());
        }
    }

    fn chain(&self, memory: &GuestMemoryMmap<()>, index: u16) -> (u32, Vec<Piece>) {
        let entry = self.avail + 4 + u64::from(index % self.size) * 2;
        let head: u16 = memory.load(at(entry), Relaxed).unwrap();
        let mut pieces = Vec::new();
        walk(memory, self.table, head, &mut pieces);
        (head.into(), pieces)
    }
}

fn walk(memory: &GuestMemoryMmap<()>, table: u64, mut index: u16, pieces: &mut Vec<Piece>) {
    loop {
        let mut bytes = [0; 16];
        memory
            .read_slice(&mut bytes, at(table + u64::from(index) * 16))
            .unwrap();
        let address = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        let flags = u16::from_le_bytes([bytes[12], bytes[13]]);
        if flags & 4 != 0 {
            return walk(memory, address, 0, pieces);
        }
        pieces.push((address, length, flags));
        if flags & 1 == 0 {
            return;
        }
        index = u16::from_le_bytes([bytes[14], bytes[15]]);
    }
}

/// Writes as much of `rest` as fits and returns how much that was.
fn write_pieces(memory: &GuestMemoryMmap<()>, pieces: &[Piece], rest: &mut &[u8]) -> u32 {
    let mut written = 0;
    for &(address, length, flags) in pieces {
        assert_eq!(flags & 2, 2, "a readable buffer on the receive ring");
        let (now, later) = rest.split_at(rest.len().min(length as usize));
        memory.write_slice(now, at(address)).unwrap();
        written += u32::try_from(now.len()).unwrap();
        *rest = later;
    }
    written
}
