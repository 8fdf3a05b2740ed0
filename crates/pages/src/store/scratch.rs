//! The buffers that reads of the data file use.
//!
//! Each thread keeps one short buffer for its next read. Longer buffers come from
//! `AlignedBuf`, which keeps some freed memory for the process. Their lengths are powers of two,
//! within bounds, so that a freed buffer fits the next caller.

use std::cell::Cell;

use terrapin_base::sync::thread_local;
use terrapin_base::{EXTENT_ALIGNMENT, Purpose, Result};
use terrapin_disk::AlignedBuf;

use super::PageStore;

/// Most bytes of a read buffer that the budget is not charged for. That is the longest run of
/// blocks that a walk asks for, and the bytes that cover the ends of its reads.
pub(super) const SCRATCH_BYTES_MAX: usize = (512 << 10) + 64 * EXTENT_ALIGNMENT as usize;
/// Most bytes of the read buffer that a thread keeps. The budget does not count these buffers, and
/// hundreds of threads may each read once and live on.
pub(super) const SCRATCH_KEPT_BYTES_MAX: usize = 64 << 10;
thread_local! {
    /// The thread's read buffer. A read takes it out, so a nested read allocates one of its own.
    static SCRATCH: Cell<AlignedBuf> = const { Cell::new(AlignedBuf::new()) };
}

impl PageStore {
    /// Calls `use_buffer` with an aligned buffer of `bytes` bytes of any content. A buffer longer
    /// than [`SCRATCH_BYTES_MAX`] is charged to the budget while the call runs.
    pub(super) fn with_scratch<T>(
        &self,
        bytes: usize,
        use_buffer: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        if bytes > SCRATCH_BYTES_MAX {
            let _charge = self.cache.budget().charge(Purpose::Merge, bytes as u64);
            return use_buffer(&mut AlignedBuf::with_any_content(bytes));
        }
        let mut buffer = self.take_scratch(bytes);
        let done = use_buffer(&mut buffer[..bytes]);
        put_scratch(buffer);
        done
    }

    /// A read buffer of at least `bytes` bytes of any content. A short buffer is the thread's own,
    /// unless another read of the thread uses it.
    pub(super) fn take_scratch(&self, bytes: usize) -> AlignedBuf {
        if bytes > SCRATCH_KEPT_BYTES_MAX {
            return AlignedBuf::with_any_content(self.scratch_bytes(bytes));
        }
        let mut buffer = SCRATCH.try_with(Cell::take).unwrap_or_default();
        if buffer.len() < bytes {
            buffer = AlignedBuf::with_any_content(bytes.next_power_of_two());
        }
        buffer
    }

    /// The length of a long buffer for a read of `bytes` bytes. Few different lengths let a freed
    /// buffer fit the next caller. The rounding never makes a buffer longer than the file: hostile
    /// bytes may claim a long read (D8).
    fn scratch_bytes(&self, bytes: usize) -> usize {
        let file_bytes = usize::try_from(self.space.file_bytes()).unwrap_or(usize::MAX);
        let even = bytes.next_power_of_two().min(SCRATCH_BYTES_MAX);
        even.min(file_bytes).max(bytes)
    }
}

/// Keeps a short buffer for the thread's next read, and drops a longer one. If the thread is
/// ending, the short buffer is dropped too.
pub(super) fn put_scratch(buffer: AlignedBuf) {
    if buffer.len() <= SCRATCH_KEPT_BYTES_MAX {
        let _ = SCRATCH.try_with(|kept| kept.set(buffer));
    }
}
