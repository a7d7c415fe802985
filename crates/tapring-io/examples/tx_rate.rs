//! What a frame costs: batches of 64 x 64 bytes to a tap, through a port and by a raw WRITE_FIXED loop.
//!
//! ```text
//! cargo build --release -p tapring-io --example tx_rate
//! unshare -n target/release/examples/tx_rate
//! ```
//! The frames are for another host and of no known protocol, so that the host drops them right behind the tap. Runs
//! are interleaved; medians are printed.

use std::error::Error;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use tapring_io::{BATCH_FRAMES, Port, PortOptions, Tap, TapOptions, TxOutcome, Wait};

const FRAME_BYTES: usize = 12 + 64;
/// The same as the ring counts it.
const LEN: u16 = 12 + 64;
const BATCHES: usize = 1000;
const RUNS: usize = 101;

fn main() -> Result<(), Box<dyn Error>> {
    let tap = Tap::open(&TapOptions {
        name: "bench0".into(),
        queue_pairs: 1,
        create: true,
    })?;
    let mut port = Port::new(tap.try_clone_queue(0)?, PortOptions::default())?;
    let mut raw = Raw::new(&tap)?;
    let mut results = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        results[0].push(time(|| port_batch(&mut port, true))?);
        results[1].push(time(|| port_batch(&mut port, false))?);
        results[2].push(time(|| raw.batch())?);
    }
    for (name, mut results) in ["port, with the copy", "port, without", "raw loop, without"]
        .iter()
        .zip(results)
    {
        results.sort_by(f64::total_cmp);
        println!(
            "{name:20} {:6.1} ns per frame (best {:.1})",
            results[RUNS / 2],
            results[0]
        );
    }
    Ok(())
}

fn time(mut batch: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..BATCHES {
        batch()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / (BATCHES * BATCH_FRAMES) as f64)
}

fn port_batch(port: &mut Port, copy: bool) -> Result<(), Box<dyn Error>> {
    for _ in 0..BATCH_FRAMES {
        let space = port.tx_copy(FRAME_BYTES).ok_or("the arena is full")?;
        if copy {
            space.copy_from_slice(&FRAME);
        }
    }
    port.tx_submit();
    port.enter(Wait::No)?;
    let outcomes = port.tx_outcomes().ok_or("the batch is not done")?;
    if outcomes.iter().any(|outcome| *outcome != TxOutcome::Sent) {
        return Err(format!("{outcomes:?}").into());
    }
    Ok(())
}

static FRAME: [u8; FRAME_BYTES] = frame();

const fn frame() -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[12] = 2;
    frame[17] = 0x99;
    frame[18] = 2;
    frame[24] = 0x88;
    frame[25] = 0xb5;
    frame
}

/// The least that can be done: the same entries, built and pushed with nothing around them.
struct Raw {
    ring: IoUring,
    arena: Vec<u8>,
}

impl Raw {
    fn new(tap: &Tap) -> Result<Self, Box<dyn Error>> {
        let mut builder = IoUring::builder();
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
        let ring = builder.build(64)?;
        let fd = tap.try_clone_queue(0)?;
        ring.submitter().register_files(&[fd.as_raw_fd()])?;
        let mut arena = vec![0; BATCH_FRAMES * 128];
        for space in arena.chunks_mut(128) {
            space[..FRAME_BYTES].copy_from_slice(&FRAME);
        }
        let buffer = libc::iovec {
            iov_base: arena.as_mut_ptr().cast(),
            iov_len: arena.len(),
        };
        // SAFETY: the buffer lives in the result behind the ring and is never resized.
        unsafe { ring.submitter().register_buffers(&[buffer]) }?;
        Ok(Self { ring, arena })
    }

    fn batch(&mut self) -> Result<(), Box<dyn Error>> {
        let mut queue = self.ring.submission();
        for at in 0..BATCH_FRAMES {
            let address = self.arena[at * 128..].as_ptr();
            let write = opcode::WriteFixed::new(types::Fixed(0), address, LEN.into(), 0);
            let entry = write
                .rw_flags(libc::RWF_NOWAIT)
                .build()
                .user_data(at as u64);
            // SAFETY: the arena is not written to, and every batch is reaped before this returns.
            unsafe { queue.push(&entry) }?;
        }
        drop(queue);
        self.ring.submit()?;
        let sent = self
            .ring
            .completion()
            .filter(|cqe| cqe.result() == i32::from(LEN))
            .count();
        if sent == BATCH_FRAMES {
            Ok(())
        } else {
            Err(format!("{sent} sent").into())
        }
    }
}
