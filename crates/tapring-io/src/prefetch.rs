//! Fetching guest memory before it is needed.

use vm_memory::VolatileSlice;

/// What will be done with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It will be read.
    Read,
    /// It will be written.
    Write,
}

const LINE: usize = 64;

/// Asks the CPU for the first `lines` cache lines of `memory` and does not wait for them.
///
/// A hint: nothing is read as far as the program can tell, and a CPU for which we know no such instruction does nothing.
#[inline]
pub fn prefetch(memory: &VolatileSlice<'_>, lines: usize, intent: Intent) {
    let start = memory.ptr_guard().as_ptr();
    for offset in (0..memory.len().min(lines * LINE)).step_by(LINE) {
        fetch(start.wrapping_add(offset), intent);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch(line: *const u8, intent: Intent) {
    use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
    let line = line.cast();
    match intent {
        // SAFETY: PREFETCHT0 accesses no memory architecturally and takes any address.
        Intent::Read => unsafe { _mm_prefetch::<_MM_HINT_T0>(line) },
        // SAFETY: as above; where there is no PREFETCHW the compiler chooses PREFETCHT0.
        Intent::Write => unsafe { _mm_prefetch::<_MM_HINT_ET0>(line) },
    }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn fetch(line: *const u8, intent: Intent) {
    use std::arch::asm;
    match intent {
        // SAFETY: PRFM accesses no memory architecturally and takes any address.
        Intent::Read => unsafe {
            asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly))
        },
        // SAFETY: as above.
        Intent::Write => unsafe {
            asm!("prfm pstl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly))
        },
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn fetch(_line: *const u8, _intent: Intent) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_will_do_and_nothing_changes() {
        let mut bytes = [7; 200];
        for len in [0, 1, 64, 200] {
            let slice = VolatileSlice::from(&mut bytes[..len]);
            prefetch(&slice, 100, Intent::Read);
            prefetch(&slice, 2, Intent::Write);
        }
        assert_eq!(bytes, [7; 200]);
    }
}
