//! A shared mapping of a whole file, unmapped on drop. What is stored in it belongs to the kernel
//! at once and so outlives the process.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use terrapin_base::{Error, Result};

use super::file::RealFile;
use crate::{File, Process};

/// Memory mapped from a file that this process has locked.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// A child that was forked since does not have the memory.
    process: Process,
    /// Keeps the lock: as long as the mapping lives, no other handle can write the file or cut it
    /// short.
    _file: Arc<RealFile>,
}

// SAFETY: a mapping may be used and unmapped from any thread; every access goes through the
// `unsafe` copies below, whose callers keep conflicting ones apart.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file, which must be allocated (under a hole, a full disk would
    /// be SIGBUS), and faults them in.
    pub(super) fn new(file: Arc<RealFile>, bytes: usize) -> Result<Self> {
        let fail = |message, e: rustix::io::Errno| {
            Error::io(message, e.into())
                .with("file", file.describe())
                .with("bytes", bytes)
        };
        // SAFETY: the kernel chooses a place that nothing else uses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &file.descriptor,
                0,
            )
        }
        .map_err(|e| fail("cannot map the log ring", e))?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(Error::internal("a mapping at address 0"));
        };
        let mapping = Mapping {
            start,
            bytes,
            process: Process::this(),
            _file: file.clone(),
        };
        // A store by a child would be a store into its parent's log: a child dies of it instead. It
        // is refused long before. SAFETY: the range is the mapping's own.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork) };
        // Populating a shared mapping faults pages in for reading only; this takes the first
        // store's fault too, and where the file system cannot back a page it is an error here
        // instead of a signal later. Kernels before 5.14 do not know it. SAFETY: the range is the
        // mapping's own.
        match unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(mapping),
            Err(e) => Err(fail("cannot back the log ring with memory", e)),
        }
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies out of the mapping.
    ///
    /// # Safety
    /// `offset + out.len() <= bytes()`, and nobody writes the range meanwhile.
    pub(crate) unsafe fn copy_out(&self, offset: usize, out: &mut [u8]) {
        debug_assert!(offset + out.len() <= self.bytes);
        // SAFETY: in bounds by the caller's word; `out` is a Rust slice and so never lies in the
        // mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset),
                out.as_mut_ptr(),
                out.len(),
            );
        }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// `range.start <= range.end <= bytes()`, and nobody writes the range while the slice lives.
    pub(crate) unsafe fn bytes_of(&self, range: Range<usize>) -> &[u8] {
        debug_assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: in bounds by the caller's word, and mapped for as long as `self` is borrowed;
        // every byte was faulted in.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Copies into the mapping.
    ///
    /// # Safety
    /// `offset + bytes.len() <= bytes()`, and nobody reads or writes the range meanwhile.
    pub(crate) unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: in bounds by the caller's word; `bytes` is a Rust slice and so never lies in the
        // mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.start.as_ptr().add(offset),
                bytes.len(),
            );
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Something else of the child's may lie there.
            return;
        }
        // SAFETY: the mapping is this value's own, and no copy runs, since they borrow it. The call
        // cannot fail for such a range.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
