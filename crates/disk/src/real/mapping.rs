//! A shared mapping of a whole file, unmapped on drop. Stored bytes belong to the kernel at once,
//! so they survive the process, and other processes see them.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use terrapin_base::{Error, Result};

use super::file::RealFile;
use crate::{File, Process};

/// Memory mapped from a file.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The process that mapped the memory. A child forked later does not have the memory.
    process: Process,
    /// Keeps the lock of a ring: as long as the mapping lives, no other handle can write or
    /// truncate the file. A table of readers has none, and nobody shortens it.
    _file: Option<Arc<RealFile>>,
}

// SAFETY: any thread may use or unmap a mapping. All accesses go through the `unsafe` functions
// below, and their callers exclude conflicting ones.
unsafe impl Send for Mapping {}
// SAFETY: any thread may use a mapping; callers of its `unsafe` functions exclude conflicts.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file and faults them in. They must be allocated: a store into a
    /// hole on a full disk would raise SIGBUS.
    pub(super) fn new(file: Arc<RealFile>, bytes: usize) -> Result<Self> {
        let name = file.describe();
        let mut mapping = Self::of(file.descriptor.as_fd(), bytes, &name)?;
        mapping._file = Some(file);
        Ok(mapping)
    }

    /// Like [`Mapping::new`], of a file that other processes write, too. `name` is for errors.
    pub(super) fn of(descriptor: BorrowedFd<'_>, bytes: usize, name: &str) -> Result<Self> {
        let fail = |message, e: rustix::io::Errno| {
            Error::io(message, e.into())
                .with("file", name)
                .with("bytes", bytes)
        };
        // SAFETY: the kernel chooses addresses that are not in use.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                descriptor,
                0,
            )
        }
        .map_err(|e| fail("cannot map the file", e))?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(Error::internal("a mapping at address 0"));
        };
        let mapping = Mapping {
            start,
            bytes,
            process: Process::this(),
            _file: None,
        };
        // A child that stored here would write into its parent's log. Other checks refuse that
        // earlier; without the mapping, the child dies of it. SAFETY: the range is the mapping's
        // own.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork) };
        // `POPULATE` faults shared pages in for reading only. This call also takes the fault of the
        // first store, and reports a page without space as an error instead of a later signal.
        // Kernels before 5.14 do not know it. SAFETY: the range is the mapping's own.
        match unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(mapping),
            Err(e) => Err(fail("cannot back the mapped file with memory", e)),
        }
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A word of the mapping that other processes change, too. Panics outside of the mapping, and
    /// in a forked child, which lacks the memory.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bytes / 8, "a word outside of the mapping");
        assert!(self.process.is_this(), "a mapping of the parent process");
        // SAFETY: the word is in the mapping, which stays while `self` is borrowed. A mapping
        // begins at a page, so each word is aligned. All accesses to these words, here and in other
        // processes, are atomic: a mapping of words is used through this function only.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast::<u64>().add(index)) }
    }

    /// Copies out of the mapping.
    ///
    /// # Safety
    /// `offset + out.len() <= bytes()`, and no thread writes the range meanwhile.
    pub(crate) unsafe fn copy_out(&self, offset: usize, out: &mut [u8]) {
        debug_assert!(offset + out.len() <= self.bytes);
        // SAFETY: the caller keeps the range in bounds. `out` is a Rust slice, so it does not
        // overlap the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset),
                out.as_mut_ptr(),
                out.len(),
            );
        }
    }

    /// Borrows the bytes of a range.
    ///
    /// # Safety
    /// `range.start <= range.end <= bytes()`, and no thread writes the range while the slice lives.
    pub(crate) unsafe fn bytes_of(&self, range: Range<usize>) -> &[u8] {
        debug_assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: the caller keeps the range in bounds. It stays mapped while `self` is borrowed,
        // and every byte was faulted in.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Copies into the mapping.
    ///
    /// # Safety
    /// `offset + bytes.len() <= bytes()`, and no thread reads or writes the range meanwhile.
    pub(crate) unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: the caller keeps the range in bounds. `bytes` is a Rust slice, so it does not
        // overlap the mapping.
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
            // The child may have other memory at these addresses.
            return;
        }
        // SAFETY: the mapping belongs to this value. No copy runs, since copies borrow the value.
        // The call cannot fail for this range.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
