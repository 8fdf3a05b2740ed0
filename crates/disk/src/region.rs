//! Memory for buffers, taken from the kernel and given back to it.
//!
//! A general allocator handles large aligned buffers badly. A freed buffer may be too short for the
//! next one of the same size, which needs room for its alignment. Buffers of many sizes, freed by
//! other threads, leave gaps. The process then holds several times the memory that it uses.
//! Mappings leave no gaps.
//!
//! Faulting memory in costs about as much as filling it. So the process keeps freed buffers for
//! reuse: [`KEPT_OF_LARGEST`] times the largest one and [`KEPT_BESIDES_BYTES`], within
//! [`KEPT_BYTES`]. No budget is charged for them.

mod system;

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use terrapin_base::MEMORY_ALIGNMENT;

/// Lower and upper limit of the freed memory that is kept, in bytes.
const KEPT_BYTES: std::ops::RangeInclusive<usize> = 8 << 20..=24 << 20;
/// Number of buffers of the largest size that are kept. Two merging threads each fill one page
/// group and prepare the next. Without these, merges would fault in everything that they write.
const KEPT_OF_LARGEST: usize = 4;
/// Kept bytes beyond those, for buffers of readers. They come and go during a merge, and would
/// displace its page groups.
const KEPT_BESIDES_BYTES: usize = 3 << 20;
/// A larger freed buffer goes back to the kernel at once.
const KEPT_PIECE_BYTES_MAX: usize = *KEPT_BYTES.end() / KEPT_OF_LARGEST;
/// Most buffers that are kept.
const KEPT_PIECES_MAX: usize = 32;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The longest buffer in bytes that this thread asked for since its last call of this function.
///
/// A test uses it to see that hostile bytes cause no long buffers (D8). Counters of the global
/// allocator do not see buffers.
pub fn largest_buffer() -> usize {
    LARGEST.take()
}

/// Owned memory that is aligned to [`MEMORY_ALIGNMENT`].
pub(crate) struct Region(Pages);

// The model checker's build has other `Words`, so it uses less of this.
#[cfg_attr(terrapin_shuttle, allow(dead_code))]
impl Region {
    /// A region without memory.
    pub(crate) const fn empty() -> Self {
        Region(Pages::NONE)
    }

    /// At least `bytes`, rounded up to the alignment and up to a quarter more. The content is
    /// initialised but unspecified.
    ///
    /// Panics if the size exceeds the address space, like `Vec`. Aborts without memory, as any
    /// allocation does.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::take(bytes, false)
    }

    /// At least `bytes` of zeros, like [`Region::new`].
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self::take(bytes, true)
    }

    /// A mapping of `bytes` zeros, rounded up to the alignment. It takes memory only when it is
    /// written.
    pub(crate) fn reserved(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(MEMORY_ALIGNMENT);
        if bytes == 0 {
            return Self::empty();
        }
        Region(Pages::map(bytes, true))
    }

    /// Gives up the region for its start. [`Region::from_start`] makes the region again.
    pub(crate) fn into_start(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start()
    }

    /// The region that [`Region::reserved`] made for `bytes`.
    ///
    /// # Safety
    /// [`Region::into_start`] returned `start` for such a region, and no other region was made from
    /// it.
    pub(crate) unsafe fn from_start(start: NonNull<u8>, bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(MEMORY_ALIGNMENT);
        Region(Pages { start, bytes })
    }

    /// Zeroes a part of a region by its address and gives its memory back, like
    /// [`Region::release`].
    ///
    /// # Safety
    /// The part is within a region, both ends are multiples of [`MEMORY_ALIGNMENT`], and nothing
    /// refers to it.
    pub(crate) unsafe fn release_at(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the contract of this function is that of the call.
        unsafe { system::release(start, bytes, system::page_bytes()) };
    }

    /// Zeroes a part and gives its whole system pages back. A later write takes memory again. Both
    /// ends must be multiples of [`MEMORY_ALIGNMENT`]. Panics if they are outside the region.
    pub(crate) fn release(&self, range: Range<usize>) {
        self.0.release(range);
    }

    fn take(bytes: usize, zeroed: bool) -> Self {
        let Some(bytes) = bytes
            .checked_next_multiple_of(MEMORY_ALIGNMENT)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
        else {
            panic!("capacity overflow")
        };
        if bytes == 0 {
            return Self::empty();
        }
        LARGEST.set(LARGEST.get().max(bytes));
        let kept = Kept::lock().take(bytes);
        let Some(pages) = kept else {
            return Region(Pages::map(bytes, false));
        };
        if zeroed {
            // SAFETY: the pages are that long, and this function owns them.
            unsafe { pages.start.write_bytes(0, pages.bytes) };
        }
        Region(pages)
    }

    /// Start of the memory; dangling if the region is empty.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Length in bytes, a multiple of [`MEMORY_ALIGNMENT`].
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let pages = std::mem::replace(&mut self.0, Pages::NONE);
        // The surplus goes back to the kernel here, not under the lock.
        let _surplus = Kept::lock().put(pages);
    }
}

/// Address space of which the first part is memory. A drop gives it back to the kernel at once,
/// since addresses without memory are of no use as a buffer.
pub(crate) struct Reach(Pages);

#[cfg_attr(terrapin_shuttle, allow(dead_code))]
impl Reach {
    /// `bytes` of zeros that take memory only when written, and address space for `bytes_max`. Both
    /// are rounded up to the alignment.
    ///
    /// The address space may be smaller if the system refuses. If the system refuses even `bytes`,
    /// as under a limit of address space, the result is empty.
    pub(crate) fn new(bytes: usize, bytes_max: usize) -> Self {
        let whole = |bytes: usize| match bytes.checked_next_multiple_of(MEMORY_ALIGNMENT) {
            Some(whole) => whole,
            None => panic!("capacity overflow"),
        };
        let (bytes, bytes_max) = (whole(bytes), whole(bytes_max));
        if bytes_max > bytes
            && let Some(start) = system::addresses(bytes_max)
        {
            let reach = Reach(Pages {
                start,
                bytes: bytes_max,
            });
            if reach.open(bytes) {
                return reach;
            }
        }
        let start = (bytes > 0).then(|| system::map(bytes, true)).flatten();
        Reach(start.map_or(Pages::NONE, |start| Pages { start, bytes }))
    }

    /// Makes memory of the first `bytes`, a multiple of [`MEMORY_ALIGNMENT`]. Existing memory keeps
    /// its content. Returns `false` if the system refuses. Panics beyond the address space.
    pub(crate) fn open(&self, bytes: usize) -> bool {
        assert!(bytes <= self.bytes());
        // SAFETY: the range is within this value's addresses.
        bytes == 0 || unsafe { system::open(self.start(), bytes) }
    }

    /// Zeroes a part of the memory and gives its whole system pages back, like [`Region::release`].
    pub(crate) fn release(&self, range: Range<usize>) {
        self.0.release(range);
    }

    /// Start of the addresses: a multiple of [`MEMORY_ALIGNMENT`], even if there are none.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Length of the address space in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }
}

/// Freed memory that waits for reuse. The buffer that was freed last is at the back.
struct Kept {
    pieces: VecDeque<Pages>,
    bytes: usize,
    /// Length in bytes of the largest buffer that was ever kept.
    largest: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    pieces: VecDeque::new(),
    bytes: 0,
    largest: 0,
});

impl Kept {
    fn lock() -> MutexGuard<'static, Kept> {
        // No code that may panic runs under this lock.
        KEPT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shortest buffer of at least `bytes` and at most a quarter more. Among equal lengths, the
    /// one freed last, since the processor's caches have most of it.
    fn take(&mut self, bytes: usize) -> Option<Pages> {
        let fitting = bytes..=bytes.saturating_add(bytes / 4);
        let (at, _) = self
            .pieces
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, pages)| fitting.contains(&pages.bytes))
            .min_by_key(|(_, pages)| pages.bytes)?;
        let pages = self.pieces.remove(at)?;
        self.bytes -= pages.bytes;
        Some(pages)
    }

    /// Keeps freed memory, if it is not too large. Returns what must go back to the kernel: this
    /// memory, or buffers that were unused for the longest time.
    fn put(&mut self, pages: Pages) -> Vec<Pages> {
        if pages.bytes == 0 {
            return Vec::new();
        }
        if pages.bytes > KEPT_PIECE_BYTES_MAX {
            return vec![pages];
        }
        self.largest = self.largest.max(pages.bytes);
        let wanted = KEPT_OF_LARGEST * self.largest + KEPT_BESIDES_BYTES;
        let bytes_max = wanted.clamp(*KEPT_BYTES.start(), *KEPT_BYTES.end());
        let mut surplus = Vec::new();
        while self.pieces.len() >= KEPT_PIECES_MAX || self.bytes + pages.bytes > bytes_max {
            let Some(oldest) = self.pieces.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes;
            surplus.push(oldest);
        }
        self.bytes += pages.bytes;
        self.pieces.push_back(pages);
        surplus
    }
}

/// Owned memory from the kernel, given back on drop.
struct Pages {
    /// A multiple of [`MEMORY_ALIGNMENT`]; dangling when `bytes` is 0.
    start: NonNull<u8>,
    /// A multiple of [`MEMORY_ALIGNMENT`].
    bytes: usize,
}

// SAFETY: pages are the only owner of their memory, like a box.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives access to the address only.
unsafe impl Sync for Pages {}

impl Pages {
    const NONE: Pages = Pages {
        // A valid start of an empty slice of any type.
        start: NonNull::without_provenance(NonZero::new(MEMORY_ALIGNMENT).unwrap()),
        bytes: 0,
    };

    /// Zeroed memory, which costs only address space until it is touched. `sparse` says that most
    /// of it may never be touched.
    fn map(bytes: usize, sparse: bool) -> Self {
        match system::map(bytes, sparse) {
            Some(start) => Pages { start, bytes },
            None => std::alloc::handle_alloc_error(system::layout(bytes)),
        }
    }

    fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes);
        if range.is_empty() {
            return;
        }
        // SAFETY: this value owns the range. Other threads may read it only as atomics (`Words`),
        // for which this is a store of zeros. In a slab, no other thread reads the range.
        unsafe {
            let start = self.start.add(range.start);
            system::release(start, range.len(), system::page_bytes());
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `system::map` returned this memory with this length, and its owner is
            // dropped.
            unsafe { system::unmap(self.start, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_list() -> Kept {
        Kept {
            pieces: VecDeque::new(),
            bytes: 0,
            largest: 0,
        }
    }

    #[test]
    fn kept_memory_is_bounded_and_the_oldest_goes_first() {
        let mut kept = empty_list();
        for i in 1..=KEPT_PIECES_MAX {
            assert!(kept.put(Pages::map(i * MEMORY_ALIGNMENT, false)).is_empty());
        }
        let gone = kept.put(Pages::map(MEMORY_ALIGNMENT, false));
        assert_eq!(
            gone.iter().map(|p| p.bytes).collect::<Vec<_>>(),
            [MEMORY_ALIGNMENT]
        );
        let large = KEPT_PIECE_BYTES_MAX;
        for _ in 0..KEPT_OF_LARGEST {
            kept.put(Pages::map(large, false));
        }
        let all = (KEPT_OF_LARGEST, KEPT_OF_LARGEST * large);
        assert_eq!((kept.pieces.len(), kept.bytes), all);
        let gone = kept.put(Pages::map(large + MEMORY_ALIGNMENT, false));
        assert_eq!(gone[0].bytes, large + MEMORY_ALIGNMENT, "not worth it");
        assert_eq!((kept.pieces.len(), kept.bytes), all);
    }

    #[test]
    fn the_largest_page_groups_of_two_merging_threads_are_kept() {
        let mut kept = empty_list();
        let group = (4 << 20) + (4 << 20) / 4;
        for _ in 0..4 {
            assert!(kept.put(Pages::map(group, false)).is_empty());
        }
        for _ in 0..4 {
            let gone = kept.put(Pages::map(3 << 18, false));
            assert!(gone.is_empty(), "readers' buffers put out groups");
        }
        assert!((0..4).all(|_| kept.take(group).is_some()));
    }

    #[test]
    fn few_small_buffers_are_kept() {
        let mut kept = empty_list();
        for _ in 0..8 {
            assert!(kept.put(Pages::map(1 << 20, false)).is_empty());
        }
        assert_eq!(kept.put(Pages::map(1 << 20, false)).len(), 1);
    }

    #[test]
    fn the_shortest_fitting_buffer_is_reused_unless_it_is_too_long() {
        let unit = MEMORY_ALIGNMENT;
        let mut kept = empty_list();
        for units in [100, 40, 41, 39] {
            assert!(kept.put(Pages::map(units * unit, false)).is_empty());
        }
        let mut taken = |units: usize| kept.take(units * unit).map(|p| p.bytes / unit);
        assert_eq!(taken(40), Some(40));
        assert_eq!(taken(40), Some(41));
        assert_eq!(taken(40), None);
        assert_eq!(taken(79), None);
        assert_eq!(taken(80), Some(100));
        assert_eq!(taken(39), Some(39));
        assert_eq!(kept.bytes, 0);
    }

    #[test]
    fn among_equal_buffers_the_last_freed_is_reused_first() {
        let mut kept = empty_list();
        let pieces = [(); 3].map(|()| Pages::map(MEMORY_ALIGNMENT, false));
        let starts = pieces.each_ref().map(|pages| pages.start);
        for pages in pieces {
            assert!(kept.put(pages).is_empty());
        }
        for start in starts.into_iter().rev() {
            let taken = kept.take(MEMORY_ALIGNMENT).map(|pages| pages.start);
            assert_eq!(taken, Some(start));
        }
    }

    #[test]
    fn reused_memory_is_zeroed_on_request() {
        for _ in 0..20 {
            let region = Region::zeroed(5 * MEMORY_ALIGNMENT + 1);
            // SAFETY: the region owns these initialised bytes.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(region.start().as_ptr(), region.bytes()) };
            assert!(bytes.len() > 5 * MEMORY_ALIGNMENT && bytes.iter().all(|&b| b == 0));
            bytes.fill(1);
        }
    }

    #[test]
    fn only_whole_pages_of_a_part_are_given_back() {
        const KIB: usize = 1 << 10;
        let at = 1 << 30;
        for (page, from, bytes, whole) in [
            (4, 4, 4, 0..4),
            (4, 12, 20, 0..20),
            (16, 0, 4, 0..0),
            (16, 4, 24, 0..0),
            (16, 0, 24, 0..16),
            (16, 4, 28, 12..28),
            (16, 16, 32, 0..32),
            (64, 0, 32, 0..0),
            (64, 32, 96, 32..96),
            (64, 4, 252, 60..252),
            (64, 60, 128, 4..68),
            (64, 60, 8, 0..0),
        ] {
            let found = system::whole_pages(at + from * KIB, bytes * KIB, page * KIB);
            let whole = whole.start * KIB..whole.end * KIB;
            assert_eq!(found, whole, "{bytes} KiB at {from}, pages of {page}");
        }
    }

    #[test]
    fn a_released_part_is_zeros_and_its_neighbours_stay_for_any_page_size() {
        let unit = MEMORY_ALIGNMENT;
        let region = Region::reserved(64 * unit);
        let all = |value: u8, range: Range<usize>| {
            // SAFETY: initialised, within the region, and no thread writes to it meanwhile.
            let bytes = unsafe {
                let start = region.start().as_ptr().add(range.start * unit);
                std::slice::from_raw_parts(start, range.len() * unit)
            };
            bytes.iter().all(|&byte| byte == value)
        };
        for page in [unit, 4 * unit, 16 * unit] {
            // The system cannot give back shorter pages than its own.
            let page = page.max(system::page_bytes());
            for part in [5..6, 5..8, 4..8, 3..21, 0..64, 30..64] {
                // SAFETY: the region owns this memory, and no reference to it is left.
                unsafe {
                    region.start().write_bytes(1, region.bytes());
                    system::release(
                        region.start().add(part.start * unit),
                        part.len() * unit,
                        page,
                    );
                }
                assert!(all(0, part.clone()), "{part:?}, pages of {page}");
                assert!(all(1, 0..part.start) && all(1, part.end..64));
            }
        }
    }

    /// With huge pages, released memory came back, and caches held more than was charged.
    #[test]
    #[cfg_attr(miri, ignore = "no mappings")]
    fn reserved_memory_is_advised_against_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let region = Region::reserved(8 << 20);
        let reach = Reach::new(1 << 20, 8 << 20);
        let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for start in [region.start(), reach.start()] {
            let address = start.addr().get();
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            let holds = |line: &str| {
                let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
                let ends = ends.and_then(|(low, high)| Some(hex(low)?..hex(high)?));
                ends.is_some_and(|ends| ends.contains(&address))
            };
            let mut lines = mappings.lines().skip_while(|line| !holds(line));
            let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
        }
    }
}
