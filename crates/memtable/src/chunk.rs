//! Where arena memory comes from: chunks, and a pool of used ones.
//!
//! A chunk of [`CHUNK_BYTES`] is an anonymous mapping, aligned so that it can be one huge page and
//! faulted in at once: first touch page by page costs two to four times as much (DESIGN §4). But at
//! once takes 5 ms, and 30 at worst, where a hypervisor backs the memory on first use, and a writer
//! that takes a chunk has an LSN, for which all others wait. So a job has chunks ready
//! ([`Pool::stock`]), and a writer that finds none pays page by page ([`Chunk::in_small_pages`]);
//! once its memtable is gone the job has a huge page in its place ([`Pool::enlarge_one`]). Smaller
//! chunks, for memtables that stay small, come from the global allocator. A chunk's bytes are
//! arbitrary: whoever takes some writes them first.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Budget, Purpose, Signal};

/// Size and alignment of an ordinary chunk: one huge page.
pub(crate) const CHUNK_BYTES: usize = 2 << 20;
/// Alignment of every chunk: a cache line.
pub(crate) const CHUNK_ALIGNMENT: usize = 64;

/// Every so many chunks taken are told of, whether or not any are left.
const NOTED: u64 = 2;

/// How a chunk's memory comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// As one huge page and at once, if the kernel can.
    AtOnce,
    /// Each small page when it is touched.
    Small,
}

/// A piece of memory, owned.
pub(crate) struct Chunk {
    at: NonNull<u8>,
    bytes: usize,
    /// None where the global allocator gave it.
    mapped: Option<Pages>,
}

// SAFETY: a chunk owns its memory like a box does.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Takes memory from the system; aborts the process, as any allocation does, when there is
    /// none.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::with_pages(bytes, Pages::AtOnce)
    }

    /// Of [`CHUNK_BYTES`], faulted in by and by.
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

    /// No page is smaller.
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

    /// Gives back part of a mapping. A refusal leaks address space, nothing worse.
    ///
    /// # Safety
    /// The range is whole pages of a mapping of ours that nothing uses.
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
            // Older kernels do not align such mappings: take twice as much and trim it.
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
        // A hint: a kernel that refuses it has pages of the size that it likes.
        // SAFETY: the whole chunk is our mapping, and the advice does not change what it holds.
        let _ = unsafe { madvise(at.as_ptr().cast(), CHUNK_BYTES, advice) };
        if pages == Pages::Small {
            return Some(at);
        }
        // By touching it: being asked to populate it, the kernel would keep all others from mapping
        // anything until it had.
        for page in (0..CHUNK_BYTES).step_by(PAGE_BYTES_MIN) {
            // SAFETY: within the chunk, which nobody else knows yet.
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

    /// Huge pages are asked for on Linux only; elsewhere the global allocator gives every chunk.
    pub(super) fn map(_: Pages) -> Option<NonNull<u8>> {
        None
    }

    /// Never called, for nothing was mapped.
    pub(super) unsafe fn unmap(_: NonNull<u8>) {}
}

/// Chunks of dropped memtables, kept for the next ones: recycled memory is faulted in already.
/// Bounded, and what it keeps is charged to its budget as [`Purpose::Memtable`]. One pool serves
/// all memtables of a database.
///
/// The last to let go of a memtable may be a writer or a reader, and to give its memory back takes
/// the system milliseconds. So all of it comes here, beyond the bound too, and a job gives back
/// what is too much ([`Pool::trim`]).
///
/// [`Pool::stock`] has new ones ready before a writer needs them: the system takes a tenth of a
/// millisecond to give one, and 5 ms where a hypervisor has to back it first.
pub struct Pool {
    budget: Arc<Budget>,
    bytes_max: AtomicU64,
    chunks: Mutex<Vec<Chunk>>,
    taken: AtomicU64,
    /// There may be more chunks than the bound allows.
    surplus: AtomicBool,
    change: Arc<Signal>,
    /// What [`Pool::stock`] was asked for last.
    stocked: AtomicUsize,
}

impl Pool {
    /// What it hands out at a time.
    pub const CHUNK_BYTES: u64 = CHUNK_BYTES as u64;

    /// A pool that keeps at most `bytes_max` bytes, charged to `budget`.
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

    /// Moves the bound, and gives memory beyond it back to the system. A bound of 0 closes the pool
    /// for good: who raised it again, memory being set beside a close, would have it keep what
    /// nobody takes.
    pub fn set_bytes_max(&self, bytes: u64) {
        let moved = |bound: u64| (bound > 0).then_some(bytes);
        let relaxed = Ordering::Relaxed;
        if self.bytes_max.fetch_update(relaxed, relaxed, moved).is_ok() {
            self.keep_only(bytes);
        }
    }

    /// Lowers the bound, if it is higher, and closes nothing. What is beyond it is for
    /// [`Pool::trim`].
    pub fn lower_bytes_max(&self, bytes: u64) {
        self.bytes_max.fetch_min(bytes.max(1), Ordering::Relaxed);
        if self.bytes() > bytes {
            self.surplus.store(true, Ordering::Release);
            self.change.notify();
        }
    }

    /// Gives memory beyond the bound back to the system. For a job: it takes as long as the system
    /// takes.
    pub fn trim(&self) {
        if self.surplus.swap(false, Ordering::AcqRel) {
            self.keep_only(self.bytes_max.load(Ordering::Relaxed));
        }
    }

    /// Whether [`Pool::trim`] has something to do.
    #[must_use]
    pub fn has_surplus(&self) -> bool {
        self.surplus.load(Ordering::Acquire)
    }

    /// Gives what waits here, but for so many bytes, back to the system; the bound stays.
    pub fn keep_only(&self, bytes: u64) {
        let count = usize::try_from(bytes / CHUNK_BYTES as u64).unwrap_or(usize::MAX);
        let surplus = {
            let mut chunks = self.chunks.lock();
            let surplus = chunks.len().saturating_sub(count);
            // Those in small pages lie in front: see `enlarge_one`.
            chunks.drain(..surplus).collect::<Vec<_>>()
        };
        self.budget
            .give(Purpose::Memtable, (surplus.len() * CHUNK_BYTES) as u64);
    }

    /// Bytes kept at the moment.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.chunks.lock().len() * CHUNK_BYTES) as u64
    }

    /// A chunk of [`CHUNK_BYTES`], no longer charged. One that must come from the system comes in
    /// small pages: others wait for who takes it.
    pub(crate) fn take(&self) -> Chunk {
        let (chunk, left) = {
            let mut chunks = self.chunks.lock();
            (chunks.pop(), chunks.len())
        };
        let taken = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let stocked = self.stocked.load(Ordering::Relaxed);
        // Who listens is woken when there is something to do, and now and then to see how fast it
        // goes.
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

    /// How often a chunk was wanted so far, whether there was one or not.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Told when that has changed so often that it matters, and of a surplus.
    #[must_use]
    pub fn change_signal(&self) -> &Arc<Signal> {
        &self.change
    }

    /// Takes a chunk from the system, faulted in, if fewer than `count` are here, and fewer than
    /// half of what may be, so that chunks of dropped memtables find room. Whether it did. For a
    /// job: it takes as long as the system takes.
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

    /// Gives a chunk back that came in small pages, if there is one, and takes one from the system
    /// that is a huge page, if the kernel can; whether there was one. A key's way through a large
    /// memtable meets other pages all along, and where a small one lies takes the processor long to
    /// look up. For a job: it takes as long as the system takes.
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

    /// Keeps what a memtable leaves: those of its chunks that are whole, the few others go.
    pub(crate) fn keep(&self, mut left: Vec<Chunk>) {
        left.retain(|chunk| chunk.bytes == CHUNK_BYTES);
        let (bytes, bytes_max) = {
            let mut chunks = self.chunks.lock();
            // Under the lock: a close that is not seen here has yet to come for what is kept, and
            // takes the lock to do so.
            let bytes_max = self.bytes_max.load(Ordering::Relaxed);
            if bytes_max == 0 {
                return; // closed: no job would ever trim it
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
    fn what_came_in_small_pages_is_given_back_for_huge_ones_one_at_a_time() {
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
