//! Memory for buffers: it comes from the kernel and goes back to it.
//!
//! A general allocator keeps what is freed for what comes next, and serves aligned requests badly:
//! a freed buffer may be too short for the next of the same size, which wants room for its
//! alignment besides. Buffers of many sizes and lives, freed by other threads than took them, then
//! leave gaps that nobody can use, and the process comes to hold several times what it uses. A
//! mapping leaves nothing behind. Since faulting memory in costs about as much as filling it, the
//! last that were freed are kept for who asks next: [`KEPT_OF_LARGEST`] times what the largest of
//! them takes and [`KEPT_BESIDES_BYTES`] in the whole process, within bounds, charged to no budget.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use terrapin_base::MEMORY_ALIGNMENT;

/// What freed memory may come to before it goes back to the kernel, at least and at most.
const KEPT_BYTES: std::ops::RangeInclusive<usize> = 8 << 20..=24 << 20;
/// Within those, so many of the largest pieces are kept: the page groups of two threads that merge,
/// of which each fills one and what follows it. Where they are not kept, merges fault in all that
/// they write.
const KEPT_OF_LARGEST: usize = 4;
/// And besides so much, for buffers of readers: they come and go while a merge works, and would put
/// out its groups.
const KEPT_BESIDES_BYTES: usize = 3 << 20;
/// A larger piece goes back at once.
const KEPT_PIECE_BYTES_MAX: usize = *KEPT_BYTES.end() / KEPT_OF_LARGEST;
/// Of how many pieces.
const KEPT_PIECES_MAX: usize = 32;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The longest buffer, in bytes, that this thread has asked for since it last asked this. No count
/// of the global allocator sees buffers, so this is how a test sees that hostile bytes do not make
/// them long (D8).
pub fn largest_buffer() -> usize {
    LARGEST.take()
}

/// Memory on a multiple of [`MEMORY_ALIGNMENT`], owned.
pub(crate) struct Region(Pages);

// A build for the checker of schedules has words of another kind.
#[cfg_attr(terrapin_shuttle, allow(dead_code))]
impl Region {
    /// Nothing.
    pub(crate) const fn empty() -> Self {
        Region(Pages::NONE)
    }

    /// At least `bytes`, rounded up to whole units of alignment and perhaps a quarter more; all
    /// initialised, to what is not said. Panics when that exceeds an address space, as `Vec` does;
    /// aborts, as any allocation does, without memory.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::take(bytes, false)
    }

    /// As [`Region::new`], and every byte is zero.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self::take(bytes, true)
    }

    /// Zeros, of which no memory is taken before they are written to: a mapping of its own, rounded
    /// up to whole units of alignment.
    pub(crate) fn reserved(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(MEMORY_ALIGNMENT);
        if bytes == 0 {
            return Self::empty();
        }
        Region(Pages::map(bytes, true))
    }

    /// Its start alone, for [`Region::from_start`].
    pub(crate) fn into_start(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start()
    }

    /// The region that was made by [`Region::reserved`] for so many bytes.
    ///
    /// # Safety
    /// [`Region::into_start`] gave this, and nobody else has it.
    pub(crate) unsafe fn from_start(start: NonNull<u8>, bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(MEMORY_ALIGNMENT);
        Region(Pages { start, bytes })
    }

    /// As [`Region::release`], of a part by its address.
    ///
    /// # Safety
    /// It is a part of a region, both ends are multiples of [`MEMORY_ALIGNMENT`], and nothing
    /// refers to it.
    pub(crate) unsafe fn release_at(start: NonNull<u8>, bytes: usize) {
        // SAFETY: by contract.
        unsafe { system::release(start, bytes, system::page_bytes()) };
    }

    /// Zeroes a part and gives its memory back, as far as that is whole pages of the system's; it
    /// is taken again when it is written to. Both ends are multiples of [`MEMORY_ALIGNMENT`];
    /// panics when they lie outside.
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
            // SAFETY: the piece is that long, and nobody else has it.
            unsafe { pages.start.write_bytes(0, pages.bytes) };
        }
        Region(pages)
    }

    /// Where it starts; dangling when it is empty.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// How long it is: a multiple of [`MEMORY_ALIGNMENT`].
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let pages = std::mem::replace(&mut self.0, Pages::NONE);
        // What goes back to the kernel for it does so outside of the lock.
        let _surplus = Kept::lock().put(pages);
    }
}

/// Addresses of which the first are memory. They go back to the kernel at once: nobody else can use
/// what is no memory.
pub(crate) struct Reach(Pages);

#[cfg_attr(terrapin_shuttle, allow(dead_code))]
impl Reach {
    /// `bytes` of zeros, of which no memory is taken before they are written to, and addresses for
    /// `bytes_max` in all, if the system spares so many; both rounded up to whole units of
    /// alignment. Nothing when it refuses even `bytes`, as under a limit of address space.
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

    /// Makes memory of the first `bytes`, a multiple of [`MEMORY_ALIGNMENT`]; what is memory
    /// already stays as it is. `false` when the system refuses. Panics beyond the end.
    pub(crate) fn open(&self, bytes: usize) -> bool {
        assert!(bytes <= self.bytes());
        // SAFETY: they lie within what is ours.
        bytes == 0 || unsafe { system::open(self.start(), bytes) }
    }

    /// As [`Region::release`], of what is memory.
    pub(crate) fn release(&self, range: Range<usize>) {
        self.0.release(range);
    }

    /// Where it starts: a multiple of [`MEMORY_ALIGNMENT`], also when it is empty.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// How many addresses there are.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }
}

/// Freed memory that waits for its next use, that freed last at the back.
struct Kept {
    pieces: VecDeque<Pages>,
    bytes: usize,
    /// What the largest piece took that ever was among them.
    largest: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    pieces: VecDeque::new(),
    bytes: 0,
    largest: 0,
});

impl Kept {
    fn lock() -> MutexGuard<'static, Kept> {
        // No code that may panic runs under it.
        KEPT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shortest piece that is long enough, unless it is more than a quarter too long; of
    /// several of that length the one freed last, most of which the processor still has at hand.
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

    /// Keeps a piece if it is worth it; what must go back to the kernel, be it this piece or those
    /// that were not used for the longest time.
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

/// Memory of our own from the kernel, given back when dropped.
struct Pages {
    /// A multiple of [`MEMORY_ALIGNMENT`]; dangling when `bytes` is 0.
    start: NonNull<u8>,
    /// A multiple of [`MEMORY_ALIGNMENT`].
    bytes: usize,
}

// SAFETY: pages own their memory alone, as a box does.
unsafe impl Send for Pages {}
// SAFETY: through a shared reference there is only the address to be had.
unsafe impl Sync for Pages {}

impl Pages {
    const NONE: Pages = Pages {
        // An empty slice of anything may begin there.
        start: NonNull::without_provenance(NonZero::new(MEMORY_ALIGNMENT).unwrap()),
        bytes: 0,
    };

    /// Zeroed memory; untouched, it costs address space only. `sparse` says that most of it may
    /// never be touched.
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
        // SAFETY: the range lies in memory of ours; what others may read there meanwhile are
        // atomics (`Words`), for which this is a store of zeros, or nobody looks there (`Slabs`).
        unsafe {
            let start = self.start.add(range.start);
            system::release(start, range.len(), system::page_bytes());
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `system::map` gave it with that length, and its owner goes.
            unsafe { system::unmap(self.start, self.bytes) };
        }
    }
}

/// Anonymous mappings. Miri knows none, and checks the more of what comes from the allocator.
mod system {
    use std::alloc::Layout;
    use std::ops::Range;
    use std::ptr::NonNull;
    // In every build: what is released is memory of the system's, not of a checker of schedules.
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::mm::{
        Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    };
    use terrapin_base::MEMORY_ALIGNMENT;

    /// What is asked for, for messages.
    pub(super) fn layout(bytes: usize) -> Layout {
        match Layout::from_size_align(bytes, MEMORY_ALIGNMENT) {
            Ok(layout) => layout,
            Err(_) => panic!("capacity overflow"),
        }
    }

    /// `bytes` zeros, which are more than 0, on a multiple of [`MEMORY_ALIGNMENT`], which no page
    /// is shorter than.
    pub(super) fn map(bytes: usize, sparse: bool) -> Option<NonNull<u8>> {
        if cfg!(miri) {
            // SAFETY: the layout's size is not zero.
            return NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)) });
        }
        let reserve = if sparse {
            MapFlags::NORESERVE
        } else {
            MapFlags::empty()
        };
        mapping(bytes, ProtFlags::READ | ProtFlags::WRITE, reserve)
    }

    /// `bytes` of address space, more than 0, that a system which counts what it has promised does
    /// not count before [`open`].
    pub(super) fn addresses(bytes: usize) -> Option<NonNull<u8>> {
        // Under Miri addresses are memory.
        if cfg!(miri) {
            return None;
        }
        mapping(bytes, ProtFlags::empty(), MapFlags::NORESERVE)
    }

    fn mapping(bytes: usize, access: ProtFlags, flags: MapFlags) -> Option<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | flags;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        let start: NonNull<u8> = NonNull::new(start.ok()?.cast())?;
        if flags.contains(MapFlags::NORESERVE) {
            // What is reserved comes into use, and goes back, by pieces far smaller than a huge
            // page. Where the kernel gives those unasked, a piece would take one, and what was
            // given back would be there again: memory beyond all that is charged (decision 0012). A
            // hint: a kernel without huge pages refuses it. SAFETY: the mapping is ours, and the
            // advice does not change what it holds.
            let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxNoHugepage) };
        }
        Some(start)
    }

    /// Lets the first bytes of what [`addresses`] gave be used; whether the kernel does.
    ///
    /// # Safety
    /// It gave at least so many, which are more than 0 and a multiple of [`MEMORY_ALIGNMENT`].
    pub(super) unsafe fn open(start: NonNull<u8>, bytes: usize) -> bool {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: by contract, ours alone; what is open already stays so.
        unsafe { mprotect(start.as_ptr().cast(), bytes, access) }.is_ok()
    }

    /// A page of the system's: [`MEMORY_ALIGNMENT`] or a multiple of it. Miri has none, and is not
    /// asked.
    #[cfg_attr(terrapin_shuttle, allow(dead_code))]
    pub(super) fn page_bytes() -> usize {
        if cfg!(miri) {
            return MEMORY_ALIGNMENT;
        }
        rustix::param::page_size()
    }

    /// Of a part that starts at an address, what is whole pages, counted from where it starts.
    #[cfg_attr(terrapin_shuttle, allow(dead_code))]
    pub(super) fn whole_pages(start: usize, bytes: usize, page: usize) -> Range<usize> {
        let end = start + bytes;
        let (first, last) = (start.next_multiple_of(page), end - end % page);
        if first < last {
            first - start..last - start
        } else {
            0..0
        }
    }

    /// Leaves zeros, and gives back the memory of the pages that the part has whole. The kernel
    /// would round up what it is asked to give back: what follows the part on its last page would
    /// be zeros, too.
    ///
    /// # Safety
    /// The part lies within what [`map`] gave, is aligned as that is, and nothing but atomics
    /// refers to it. `page` is a multiple of [`page_bytes`].
    #[cfg_attr(terrapin_shuttle, allow(dead_code))]
    pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize, page: usize) {
        let mut whole = whole_pages(start.addr().get(), bytes, page);
        // Under Miri it is a zeroing alone.
        let released = !cfg!(miri)
            && !whole.is_empty()
            // SAFETY: by contract; only what is whole pages of the part.
            && unsafe {
                let start = start.as_ptr().add(whole.start).cast();
                madvise(start, whole.len(), Advice::LinuxDontNeed)
            }
            .is_ok();
        if !released {
            whole = 0..0;
        }
        // SAFETY: by contract, both within the part, and whole units of alignment as all its bounds
        // are.
        unsafe {
            zero(start, whole.start);
            zero(start.add(whole.end), bytes - whole.end);
        }
    }

    /// Zeroes a part word by word, beside those who look at it.
    ///
    /// # Safety
    /// It is initialised memory of ours, whole words, and nothing but atomics refers to it.
    #[cfg_attr(terrapin_shuttle, allow(dead_code))]
    unsafe fn zero(start: NonNull<u8>, bytes: usize) {
        // SAFETY: by contract; any bytes are atomics.
        let words = unsafe {
            std::slice::from_raw_parts(start.as_ptr().cast::<AtomicU64>(), bytes / size_of::<u64>())
        };
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// [`map`] gave it, with that length, and nothing refers to it any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        if cfg!(miri) {
            // SAFETY: by contract, it came from an allocation with this very layout.
            unsafe { std::alloc::dealloc(start.as_ptr(), layout(bytes)) };
            return;
        }
        // SAFETY: by contract. A refusal leaks the memory, nothing worse.
        let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
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
    fn what_is_kept_is_bounded_and_the_least_used_goes_first() {
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
    fn what_two_threads_build_groups_of_the_largest_usual_size_in_is_kept() {
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
    fn with_small_pieces_alone_little_is_kept() {
        let mut kept = empty_list();
        for _ in 0..8 {
            assert!(kept.put(Pages::map(1 << 20, false)).is_empty());
        }
        assert_eq!(kept.put(Pages::map(1 << 20, false)).len(), 1);
    }

    #[test]
    fn the_shortest_piece_that_fits_is_used_again_but_none_that_is_much_too_long() {
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
    fn of_pieces_of_one_length_that_freed_last_is_used_again_first() {
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
    fn zeros_are_zeros_though_the_memory_was_used_before() {
        for _ in 0..20 {
            let region = Region::zeroed(5 * MEMORY_ALIGNMENT + 1);
            // SAFETY: initialised, that long, and ours.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(region.start().as_ptr(), region.bytes()) };
            assert!(bytes.len() > 5 * MEMORY_ALIGNMENT && bytes.iter().all(|&b| b == 0));
            bytes.fill(1);
        }
    }

    #[test]
    fn only_pages_that_a_part_has_whole_are_given_back() {
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
    fn a_part_that_is_released_is_zeros_and_its_neighbours_stay_whatever_a_page_is() {
        let unit = MEMORY_ALIGNMENT;
        let region = Region::reserved(64 * unit);
        let all = |value: u8, range: Range<usize>| {
            // SAFETY: initialised, within the region, and nobody writes to it meanwhile.
            let bytes = unsafe {
                let start = region.start().as_ptr().add(range.start * unit);
                std::slice::from_raw_parts(start, range.len() * unit)
            };
            bytes.iter().all(|&byte| byte == value)
        };
        for page in [unit, 4 * unit, 16 * unit] {
            // Shorter ones than the system has cannot be given back.
            let page = page.max(system::page_bytes());
            for part in [5..6, 5..8, 4..8, 3..21, 0..64, 30..64] {
                // SAFETY: all of the region is memory of ours, and no reference to it is left.
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

    /// Pieces that were given back came again wherever the kernel gives huge pages unasked, and
    /// caches held more than was charged.
    #[test]
    #[cfg_attr(miri, ignore = "no mappings")]
    fn what_is_reserved_is_advised_to_have_no_huge_pages() {
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
