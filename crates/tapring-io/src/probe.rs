//! Whether this kernel's tap takes RWF_NOWAIT.
//!
//! Before Linux 6.4 a tap answers EOPNOTSUPP to it, and the port then reads and writes with system calls. The probe is
//! one read of no bytes: the flag is checked before anything else, and a read of no bytes takes no frame off the
//! tap's queue.

use std::io;

use io_uring::opcode;

use crate::poll::TAP_FILE;
use crate::ring::{Ring, Submitted};
use crate::token::{Kind, Token};

/// Probes the registered tap. The ring must have nothing else in it.
pub(crate) fn takes_nowait(ring: &mut Ring) -> io::Result<bool> {
    let token = Token::new(Kind::Probe, 0, 0).raw();
    let read = opcode::Read::new(TAP_FILE, std::ptr::dangling_mut(), 0).rw_flags(libc::RWF_NOWAIT);
    // SAFETY: the entry transfers no bytes, so that its address is never followed.
    unsafe { ring.push_one(read.build().user_data(token)) }?;
    loop {
        if ring.submit(1, None)? == Submitted::Stalled {
            std::thread::yield_now();
        }
        if let Some(result) = ring
            .completions()
            .find(|cqe| cqe.user_data() == token)
            .map(|cqe| cqe.result())
        {
            return Ok(!matches!(-result, libc::EOPNOTSUPP | libc::EINVAL));
        }
    }
}
