//! Where the engine's frames meet the port: neither knows the other.

use tapring_io::{BATCH_FRAMES, GatherError, HEADER_BYTES, Intent, Port, prefetch};
use tapring_queue::{BATCH, RxSource, TxFrame, TxSink};
use vm_memory::VolatileSlice;

const _: () = assert!(BATCH == BATCH_FRAMES && tapring_queue::HEADER_BYTES == HEADER_BYTES);

/// Frames up to this size are copied into the arena, larger ones gathered from guest memory: with
/// buffers at random over 64 MiB, as real guests have them, copying wins by far below a page and
/// nothing at 9000 bytes (docs/measurements.md).
const COPY_BYTES: usize = 4096;

/// Cache lines fetched ahead of a frame: header and frame of the smallest take two, and what is
/// behind the first few the CPU fetches by itself once it sees them read in order.
const PREFETCH_LINES: usize = 2;

/// The batch being built in a port.
pub(super) struct Batch<'p>(pub(super) &'p mut Port);

impl TxSink for Batch<'_> {
    #[inline]
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        let total = HEADER_BYTES + frame.bytes();
        match frame.parts() {
            Some(parts) if total > COPY_BYTES => {
                match self.0.tx_gather(frame.header(), parts.iter().copied()) {
                    Ok(()) => true,
                    Err(GatherError::BatchFull) => false,
                    // Neither can be: engine and port have the same map, and the parts are few.
                    // A frame that stays on the ring for ever would be the worse mistake.
                    Err(GatherError::TooManyParts | GatherError::OutsideMemory) => {
                        self.copy(frame, total)
                    }
                }
            }
            _ => self.copy(frame, total),
        }
    }

    #[inline]
    fn expect(&self, memory: &VolatileSlice<'_>) {
        prefetch(memory, PREFETCH_LINES, Intent::Read);
    }
}

impl Batch<'_> {
    #[inline]
    fn copy(&mut self, frame: &TxFrame<'_>, total: usize) -> bool {
        let Some(slot) = self.0.tx_copy(total) else {
            return false;
        };
        let (header, body) = slot.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(frame.header());
        frame.copy_to(body);
        true
    }
}

/// The frames a port has read and nobody has taken.
pub(super) struct Held<'p>(pub(super) &'p mut Port);

impl RxSource for Held<'_> {
    #[inline]
    fn front(&self) -> Option<&[u8]> {
        self.0.rx_front().map(|frame| &frame[HEADER_BYTES..])
    }

    #[inline]
    fn pop(&mut self) {
        self.0.rx_pop();
    }

    #[inline]
    fn held(&self) -> usize {
        self.0.rx_held()
    }

    #[inline]
    fn expect(&self, memory: &VolatileSlice<'_>) {
        prefetch(memory, PREFETCH_LINES, Intent::Write);
    }
}
