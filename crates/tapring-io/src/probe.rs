//! Whether this kernel does what the ring is asked for, without blocking.
//!
//! Before Linux 6.4 a tap answers EOPNOTSUPP to RWF_NOWAIT. Early in 6.1 and before, the ring received with MSG_NOSIGNAL,
//! to which a packet socket answers EINVAL. In both cases the port then reads and writes with system calls.
//!
//! The probe takes no frame: it reads no bytes from a tap (the flag is checked before anything else), and looks at a packet
//! socket with MSG_PEEK.

use std::io;

use io_uring::{opcode, squeue};

use crate::encoding::Encoding;
use crate::poll::TAP_FILE;
use crate::ring::{Ring, Submitted};
use crate::token::{Kind, Token};

/// A header at least, or a packet socket refuses a peek too.
pub(crate) const SCRATCH_BYTES: usize = 12;

/// Probes the registered tap. The ring must have nothing else in it.
///
/// # Safety
/// `scratch` must be [`SCRATCH_BYTES`] that nobody looks at meanwhile, and that live as long as the ring does.
pub(crate) unsafe fn takes_nowait(
    ring: &mut Ring,
    encoding: Encoding,
    scratch: *mut u8,
) -> io::Result<bool> {
    let token = Token::new(Kind::Probe, 0, 0).raw();
    let entry = entry(encoding, scratch).user_data(token);
    // SAFETY: the caller's promise is the one asked for.
    unsafe { ring.push_one(entry) }?;
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

fn entry(encoding: Encoding, scratch: *mut u8) -> squeue::Entry {
    match encoding {
        Encoding::Tap => opcode::Read::new(TAP_FILE, scratch, 0)
            .rw_flags(libc::RWF_NOWAIT)
            .build(),
        Encoding::Packet => {
            #[allow(clippy::cast_possible_truncation)] // 12
            let bytes = SCRATCH_BYTES as u32;
            opcode::Recv::new(TAP_FILE, scratch, bytes)
                .flags(libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_TRUNC)
                .build()
        }
    }
}
