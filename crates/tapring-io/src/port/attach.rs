//! A queue's share of the host's flows.
//!
//! The kernel spreads flows over all attached queues of a tap, whether anybody reads them or not. So the queue of a pair whose
//! receiveq does not run is taken out, or a guest that uses fewer pairs than the daemon has would lose most of them. (QEMU
//! does the same to the taps of disabled pairs.) Frames can be written to a queue that is out all the same.

use std::io;

use rustix::fd::AsFd;
use rustix::io::{read, retry_on_intr};

use super::rx::DISCARD_READS;
use super::{Port, RxRead};
use crate::sys;

impl Port {
    /// Whether the tap gives this queue a share of the host's flows, as it does from the start.
    pub const fn is_attached(&self) -> bool {
        self.attached
    }

    /// Has the tap give this queue a share again.
    pub fn attach(&mut self) -> io::Result<()> {
        self.set_attached(true)
    }

    /// Has the tap give this queue no more frames; only a multi_queue tap can, and one queue of it has to stay.
    ///
    /// What the queue holds is read into free slots, for the kernel throws it away. Returns how many frames found none,
    /// or were cut. No read may be in flight.
    pub fn detach(&mut self) -> io::Result<usize> {
        let mut lost = 0;
        loop {
            match self.rx_read() {
                RxRead::Frame => {}
                RxRead::Cut | RxRead::Unsupported => lost += 1,
                _ => break,
            }
        }
        let mut scratch = [0; 64]; // the tap cuts what does not fit
        while lost < DISCARD_READS && retry_on_intr(|| read(&self.tap, &mut scratch)).is_ok() {
            lost += 1;
        }
        self.set_attached(false)?;
        Ok(lost)
    }

    fn set_attached(&mut self, attached: bool) -> io::Result<()> {
        if attached != self.attached {
            sys::set_queue(self.tap.as_fd(), attached)?;
            self.attached = attached;
        }
        Ok(())
    }
}
