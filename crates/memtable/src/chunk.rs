//! Chunks of memory for arenas, and a pool of used chunks.
//!
//! A chunk of [`CHUNK_BYTES`] is an anonymous mapping, aligned so that it can be one huge page.
//! Faulting it in at once is two to four times cheaper than touching it page by page. But it takes
//! 5 ms, and 30 ms at worst, where a hypervisor backs memory on first use. A writer that takes a
//! chunk already has an LSN, and all later writers wait for it.
//!
//! So a job keeps chunks ready ([`Pool::stock`]). A writer that finds none takes a chunk of small
//! pages ([`Chunk::in_small_pages`]). When its memtable is dropped, the job replaces that chunk by
//! a huge page ([`Pool::enlarge_one`]).
//!
//! Smaller chunks, for memtables that stay small, come from the global allocator. The bytes of a
//! chunk are arbitrary: the owner of a piece must write before reading.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Budget, Purpose, Signal};

/// Size and alignment of an ordinary chunk: one huge page.
pub(crate) const CHUNK_BYTES: usize = 2 << 20;
/// Alignment of every chunk: a cache line.
pub(crate) const CHUNK_ALIGNMENT: usize = 64;

/// The pool notifies its listener once for this many chunks taken, even if chunks are left.
const NOTED: u64 = 2;

/// How the system provides the pages of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// As one huge page, faulted in at once, if the kernel can.
    AtOnce,
    /// Small pages, each faulted in when it is touched.
    Small,
}

/// A piece of memory that its owner frees on drop.
pub(crate) struct Chunk {
    at: NonNull<u8>,
    bytes: usize,
    /// `None` if the global allocator provided the chunk.
    mapped: Option<Pages>,
}

// SAFETY: a chunk owns its memory like a box does.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Takes memory from the system. Like any allocation, it aborts the process if there is none.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::with_pages(bytes, Pages::AtOnce)
    }

    /// A chunk of [`CHUNK_BYTES`] whose pages are faulted in one by one.
    pub(crate) fn in_small_pages() -> Self {
        Self::with_pages(CHUNK_BYTES, Pages::Small)
    }

    fn with_pages(bytes: usize, pages: Pages) -> Self {
        if bytes == CHUNK_BYTES
            && let Some(at) = system::map(pages)
        {
            return Chunk {
                at,
                bytes,
                mapped: Some(pages),
            };
        }
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let Some(at) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        Chunk {
            at,
            bytes,
            mapped: None,
        }
    }

    fn layout(bytes: usize) -> Layout {
        match Layout::from_size_align(bytes.max(1), CHUNK_ALIGNMENT) {
            Ok(layout) => layout,
            Err(_) => panic!("a chunk of {bytes} bytes exceeds the address space"),
        }
    }

    pub(crate) fn at(&self) -> NonNull<u8> {
        self.at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.mapped.is_some() {
            // SAFETY: mapped by `system::map`, and owned, so that nothing refers to it any more.
            unsafe { system::unmap(self.at) };
        } else {
            // SAFETY: allocated with the same layout, and owned.
            unsafe { dealloc(self.at.as_ptr(), Self::layout(self.bytes)) };
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::{CHUNK_BYTES, Pages};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ffi::c_void;
    use std::ptr::{NonNull, null_mut};

    /// The smallest page of any system.
    const PAGE_BYTES_MIN: usize = 4096;

    fn reserve(bytes: usize) -> Option<*mut c_void> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .ok()
    }

    /// Gives back part of a mapping. If the kernel refuses, only address space leaks.
    ///
    /// # Safety
    /// The range is whole pages of a mapping of this module that nothing uses.
    unsafe fn release(at: *mut c_void, bytes: usize) {
        if bytes > 0 {
            // SAFETY: by contract.
            let _ = unsafe { munmap(at, bytes) };
        }
    }

    /// Maps an aligned chunk.
    pub(super) fn map(pages: Pages) -> Option<NonNull<u8>> {
        let mut at = reserve(CHUNK_BYTES)?;
        if at.addr() % CHUNK_BYTES != 0 {
            // Older kernels do not align such mappings: map twice as much, and unmap the rest.
            // SAFETY: mapped just now.
            unsafe { release(at, CHUNK_BYTES) };
            let wide = reserve(2 * CHUNK_BYTES)?;
            let head = wide.addr().next_multiple_of(CHUNK_BYTES) - wide.addr();
            at = wide.wrapping_byte_add(head);
            // SAFETY: the pieces before and behind the aligned chunk, mapped just now.
            unsafe {
                release(wide, head);
                release(at.wrapping_byte_add(CHUNK_BYTES), CHUNK_BYTES - head);
            }
        }
        let at = NonNull::new(at.cast::<u8>())?;
        let advice = match pages {
            Pages::AtOnce => Advice::LinuxHugepage,
            Pages::Small => Advice::LinuxNoHugepage,
        };
        // A kernel that refuses this hint uses pages of its own choice.
        // SAFETY: the whole chunk is our mapping, and the advice does not change its content.
        let _ = unsafe { madvise(at.as_ptr().cast(), CHUNK_BYTES, advice) };
        if pages == Pages::Small {
            return Some(at);
        }
        // Touch each page. If the kernel populated the mapping itself, no other thread could map
        // memory meanwhile.
        for page in (0..CHUNK_BYTES).step_by(PAGE_BYTES_MIN) {
            // SAFETY: within the chunk, which no other thread knows yet.
            unsafe { at.add(page).write_volatile(0) };
        }
        Some(at)
    }

    /// Unmaps a chunk.
    ///
    /// # Safety
    /// `at` came from [`map`], and nothing refers to the chunk any more.
    pub(super) unsafe fn unmap(at: NonNull<u8>) {
        // SAFETY: by contract.
        unsafe { release(at.as_ptr().cast(), CHUNK_BYTES) };
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Pages;
    use std::ptr::NonNull;

    /// Only Linux provides huge pages here. Elsewhere the global allocator provides every chunk.
    pub(super) fn map(_: Pages) -> Option<NonNull<u8>> {
        None
    }

    /// Never called: `map` maps nothing.
    pub(super) unsafe fn unmap(_: NonNull<u8>) {}
}

/// Chunks of dropped memtables, kept for later memtables: recycled memory is already faulted in.
/// One pool serves all memtables of a database. The pool is bounded, and its chunks are charged to
/// its budget as [`Purpose::Memtable`].
///
/// A reader or a writer may be the last owner of a memtable, and the system takes milliseconds to
/// take memory back. So the pool accepts all chunks, even beyond its bound, and a job releases the
/// surplus ([`Pool::trim`]).
///
/// [`Pool::stock`] prepares new chunks before a writer needs them. The system takes a tenth of a
/// millisecond for one, and 5 ms where a hypervisor has to back it first.
pub struct Pool {
    budget: Arc<Budget>,
    bytes_max: AtomicU64,
    chunks: Mutex<Vec<Chunk>>,
    taken: AtomicU64,
    /// The pool may have more chunks than its bound allows.
    surplus: AtomicBool,
    change: Arc<Signal>,
    /// The count of the last call of [`Pool::stock`].
    stocked: AtomicUsize,
}

impl Pool {
    /// Bytes of one chunk.
    pub const CHUNK_BYTES: u64 = CHUNK_BYTES as u64;

    /// Makes a pool that keeps at most `bytes_max` bytes, charged to `budget`.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, bytes_max: u64) -> Arc<Self> {
        Arc::new(Pool {
            budget: budget.clone(),
            bytes_max: AtomicU64::new(bytes_max),
            chunks: Mutex::default(),
            taken: AtomicU64::new(0),
            surplus: AtomicBool::new(false),
            change: Signal::new(),
            stocked: AtomicUsize::new(0),
        })
    }

    /// Sets the bound, and gives memory beyond it back to the system. A bound of 0 closes the pool:
    /// later calls do not raise it. Otherwise a change of memory during a close would make the pool
    /// keep chunks that no memtable takes.
    pub fn set_bytes_max(&self, bytes: u64) {
        let moved = |bound: u64| (bound > 0).then_some(bytes);
        let relaxed = Ordering::Relaxed;
        if self.bytes_max.fetch_update(relaxed, relaxed, moved).is_ok() {
            self.keep_only(bytes);
        }
    }

    /// Lowers the bound to `bytes` if it is higher; never closes the pool. [`Pool::trim`] releases
    /// the surplus later.
    pub fn lower_bytes_max(&self, bytes: u64) {
        self.bytes_max.fetch_min(bytes.max(1), Ordering::Relaxed);
        if self.bytes() > bytes {
            self.surplus.store(true, Ordering::Release);
            self.change.notify();
        }
    }

    /// Gives memory beyond the bound back to the system. Only jobs call this, because the system
    /// may take long.
    pub fn trim(&self) {
        if self.surplus.swap(false, Ordering::AcqRel) {
            self.keep_only(self.bytes_max.load(Ordering::Relaxed));
        }
    }

    /// Whether [`Pool::trim`] has anything to release.
    #[must_use]
    pub fn has_surplus(&self) -> bool {
        self.surplus.load(Ordering::Acquire)
    }

    /// Gives all but `bytes` bytes of the pool's chunks back to the system. The bound stays.
    pub fn keep_only(&self, bytes: u64) {
        let count = usize::try_from(bytes / CHUNK_BYTES as u64).unwrap_or(usize::MAX);
        let surplus = {
            let mut chunks = self.chunks.lock();
            let surplus = chunks.len().saturating_sub(count);
            // Chunks of small pages are in front: see `enlarge_one`.
            chunks.drain(..surplus).collect::<Vec<_>>()
        };
        self.budget
            .give(Purpose::Memtable, (surplus.len() * CHUNK_BYTES) as u64);
    }

    /// Bytes in the pool now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.chunks.lock().len() * CHUNK_BYTES) as u64
    }

    /// Takes a chunk of [`CHUNK_BYTES`] out of the pool, and out of the pool's charge. If the pool
    /// is empty, the chunk comes from the system in small pages, because other writers wait
    /// meanwhile.
    pub(crate) fn take(&self) -> Chunk {
        let (chunk, left) = {
            let mut chunks = self.chunks.lock();
            (chunks.pop(), chunks.len())
        };
        let taken = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let stocked = self.stocked.load(Ordering::Relaxed);
        // The listener wakes up if it has something to do, and regularly to measure the rate.
        if left < stocked || taken.is_multiple_of(NOTED) {
            self.change.notify();
        }
        match chunk {
            Some(chunk) => {
                self.budget.give(Purpose::Memtable, chunk.bytes as u64);
                chunk
            }
            None => Chunk::in_small_pages(),
        }
    }

    /// Number of chunks that memtables wanted so far, whether or not the pool had one.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Notified after every few chunks taken, and when there is a surplus.
    #[must_use]
    pub fn change_signal(&self) -> &Arc<Signal> {
        &self.change
    }

    /// Takes a faulted-in chunk from the system if the pool has fewer than `count`, and fewer than
    /// half of its bound. The other half is for chunks of dropped memtables. Returns whether it
    /// took one. Only jobs call this, because the system may take long.
    pub fn stock(&self, count: usize) -> bool {
        let half = self.bytes_max.load(Ordering::Relaxed) / CHUNK_BYTES as u64 / 2;
        let count = usize::try_from(half).unwrap_or(count).min(count);
        self.stocked.store(count, Ordering::Relaxed);
        let wanted = self.chunks.lock().len() < count;
        if wanted {
            self.keep(vec![Chunk::new(CHUNK_BYTES)]);
        }
        wanted
    }

    /// Replaces one chunk of small pages by a huge page, if the kernel can. Returns whether there
    /// was a chunk of small pages.
    ///
    /// A lookup in a large memtable touches many different pages, and address translation of small
    /// pages is slow. Only jobs call this, because the system may take long.
    pub fn enlarge_one(&self) -> bool {
        let small = {
            let mut chunks = self.chunks.lock();
            let small = |chunk: &Chunk| chunk.mapped == Some(Pages::Small);
            let at = chunks.iter().position(small);
            at.map(|at| chunks.swap_remove(at))
        };
        let Some(small) = small else { return false };
        self.budget.give(Purpose::Memtable, small.bytes as u64);
        drop(small);
        self.keep(vec![Chunk::new(CHUNK_BYTES)]);
        true
    }

    /// Takes over the ordinary chunks of a dropped memtable, and frees the others.
    pub(crate) fn keep(&self, mut left: Vec<Chunk>) {
        left.retain(|chunk| chunk.bytes == CHUNK_BYTES);
        let (bytes, bytes_max) = {
            let mut chunks = self.chunks.lock();
            // Read under the lock: a close that happens after this read takes the lock, and then
            // releases these chunks.
            let bytes_max = self.bytes_max.load(Ordering::Relaxed);
            if bytes_max == 0 {
                return; // The pool is closed: no job would trim it.
            }
            self.budget
                .take(Purpose::Memtable, (left.len() * CHUNK_BYTES) as u64);
            chunks.append(&mut left);
            ((chunks.len() * CHUNK_BYTES) as u64, bytes_max)
        };
        if bytes > bytes_max {
            self.surplus.store(true, Ordering::Release);
            self.change.notify();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.set_bytes_max(0);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_aligned_and_writable_to_the_last_byte() {
        for bytes in [1, 64 << 10, CHUNK_BYTES, CHUNK_BYTES + 4096] {
            let chunk = Chunk::new(bytes);
            let wanted = if chunk.mapped.is_some() {
                CHUNK_BYTES
            } else {
                CHUNK_ALIGNMENT
            };
            assert_eq!(chunk.at().addr().get() % wanted, 0);
            // SAFETY: the chunk is ours and that long.
            unsafe { chunk.at().write_bytes(0xa5, bytes) };
        }
    }

    #[test]
    fn a_pool_is_stocked_up_to_half_its_bound() {
        let budget = Budget::new(1 << 30);
        let chunk = CHUNK_BYTES as u64;
        let pool = Pool::new(&budget, 5 * chunk);
        assert!(!pool.stock(0));
        for (count, stocked, bytes) in [(1, true, 1), (1, false, 1), (9, true, 2), (9, false, 2)] {
            assert_eq!(pool.stock(count), stocked);
            assert_eq!(
                (pool.bytes(), budget.used(Purpose::Memtable)),
                (bytes * chunk, bytes * chunk)
            );
        }
        for (left, charged) in [(1, 1), (0, 0), (0, 0)] {
            let taken = pool.take();
            assert_eq!(taken.bytes(), CHUNK_BYTES);
            // SAFETY: the chunk is ours and that long.
            unsafe { taken.at().write_bytes(0xa5, CHUNK_BYTES) };
            assert_eq!(pool.bytes(), left * chunk);
            assert_eq!(budget.used(Purpose::Memtable), charged * chunk);
        }
        assert_eq!(pool.taken(), 3);
        assert!(!Pool::new(&budget, chunk).stock(1), "no room");
    }

    #[test]
    fn chunks_of_small_pages_are_replaced_by_huge_pages_one_by_one() {
        let budget = Budget::new(1 << 30);
        let chunk = CHUNK_BYTES as u64;
        let pool = Pool::new(&budget, 4 * chunk);
        let small = || Chunk::with_pages(CHUNK_BYTES, Pages::Small);
        let is_mapped = small().mapped.is_some();
        pool.keep(vec![small(), Chunk::new(CHUNK_BYTES), small()]);
        for _ in 0..2 {
            assert_eq!(pool.enlarge_one(), is_mapped);
            assert_eq!(pool.bytes(), 3 * chunk);
            assert_eq!(budget.used(Purpose::Memtable), 3 * chunk);
        }
        assert!(!pool.enlarge_one(), "all are");
        let taken = pool.take();
        // SAFETY: the chunk is ours and that long.
        unsafe { taken.at().write_bytes(0xa5, CHUNK_BYTES) };
        pool.keep(vec![small()]);
        pool.set_bytes_max(0);
        assert!(!pool.enlarge_one(), "closed");
        assert_eq!(budget.used(Purpose::Memtable), 0);
    }

    #[test]
    fn the_pool_is_bounded_and_charged() {
        let budget = Budget::new(1 << 30);
        let chunk = CHUNK_BYTES as u64;
        let pool = Pool::new(&budget, 2 * chunk + 1);
        let keep = || pool.keep(vec![Chunk::new(CHUNK_BYTES), Chunk::new(64 << 10)]);
        let kept = |chunks: u64| {
            let bytes = (chunks * chunk, chunks * chunk);
            assert_eq!((pool.bytes(), budget.used(Purpose::Memtable)), bytes);
        };
        keep();
        keep();
        kept(2);
        assert!(!pool.has_surplus());
        keep();
        kept(3);
        assert!(pool.has_surplus());
        pool.trim();
        kept(2);
        assert!(!pool.has_surplus());
        drop(pool.take());
        assert_eq!(budget.used(Purpose::Memtable), chunk);
        keep();
        pool.keep_only(0);
        kept(0);
        keep();
        pool.trim();
        kept(1);
        pool.lower_bytes_max(0);
        pool.trim();
        kept(0);
        pool.set_bytes_max(2 * chunk);
        keep();
        kept(1);
        for bytes_max in [0, 2 * chunk] {
            pool.set_bytes_max(bytes_max);
            kept(0);
            keep();
            kept(0);
        }
    }
}
