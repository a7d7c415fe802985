//! Anonymous memory that the kernel may read or write while we look elsewhere.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A private anonymous mapping. It stays where it is until dropped; [`Mapping::leak`] makes that never.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    leaked: bool,
}

impl Mapping {
    /// Maps `bytes` of zeroed memory and touches all of it, so that the data path takes no page fault.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: without MAP_FIXED and with a null hint the kernel chooses a place where nothing is mapped.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            bytes,
            leaked: false,
        })
    }

    /// The mapping as an iovec, for registration.
    pub(crate) fn as_iovec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.as_ptr().cast(),
            iov_len: self.bytes,
        }
    }

    /// Address of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// When they do not all lie in the mapping. Offsets come from this crate only, never from a guest.
    #[inline]
    pub(crate) fn address(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // SAFETY: `offset` is at most the length of the mapping, which is one allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The bytes at `offset`, to read.
    ///
    /// # Safety
    /// Neither the kernel nor a `&mut` may write to them while the slice lives.
    #[inline]
    pub(crate) unsafe fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        let start = self.address(offset, bytes);
        // SAFETY: in bounds (checked by `address`), initialised (anonymous pages are zero), and by this function's
        // contract not written to for the lifetime of the borrow of `self`.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// The bytes at `offset`, to write.
    ///
    /// # Safety
    /// The kernel may neither read nor write them while the slice lives.
    #[inline]
    pub(crate) unsafe fn slice_mut(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        let start = self.address(offset, bytes);
        // SAFETY: as in `slice`; `&mut self` excludes every other slice of this mapping.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Never unmaps: for when the kernel could not be made to let go.
    pub(crate) const fn leak(&mut self) {
        self.leaked = true;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.leaked {
            return;
        }
        // SAFETY: exactly what `new` mapped; slices of it borrow `self`, and whoever owns a mapping drops it only
        // after the kernel is done with it, or calls `leak`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_see_the_same_bytes() {
        let mut mapping = Mapping::new(8192).unwrap();
        // SAFETY: no kernel operation knows this mapping.
        unsafe { mapping.slice_mut(8190, 2) }.copy_from_slice(b"ok");
        // SAFETY: as above, and the mutable slice is gone.
        assert_eq!(unsafe { mapping.slice(8189, 3) }, b"\0ok");
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_range_past_the_end_is_refused() {
        Mapping::new(4096).unwrap().address(4090, 7);
    }
}
