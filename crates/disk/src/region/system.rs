//! Anonymous mappings. Under Miri the allocator replaces them, since Miri knows no mappings and
//! checks more there.

use std::alloc::Layout;
use std::ops::Range;
use std::ptr::NonNull;
// Also in the model checker's build, since the memory belongs to the system.
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};
use terrapin_base::MEMORY_ALIGNMENT;

/// The layout of a mapping, for messages.
pub(super) fn layout(bytes: usize) -> Layout {
    match Layout::from_size_align(bytes, MEMORY_ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("capacity overflow"),
    }
}

/// `bytes` zeros, more than 0, aligned to [`MEMORY_ALIGNMENT`]. No system page is shorter than
/// that.
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

/// Address space of `bytes`, more than 0. A system that limits committed memory counts it only
/// after [`open`].
pub(super) fn addresses(bytes: usize) -> Option<NonNull<u8>> {
    // Under Miri, addresses are memory.
    if cfg!(miri) {
        return None;
    }
    mapping(bytes, ProtFlags::empty(), MapFlags::NORESERVE)
}

fn mapping(bytes: usize, access: ProtFlags, flags: MapFlags) -> Option<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | flags;
    // SAFETY: a new mapping at addresses of the kernel's choice affects no existing memory.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
    let start: NonNull<u8> = NonNull::new(start.ok()?.cast())?;
    if flags.contains(MapFlags::NORESERVE) {
        // Reserved memory comes into use and goes back in pieces far smaller than a huge page.
        // With huge pages, one piece would take a whole huge page, and released memory would
        // come back. No budget would count that memory (decision 0012). A kernel without huge
        // pages refuses this hint. SAFETY: the caller gets this mapping, and the hint keeps its
        // content.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxNoHugepage) };
    }
    Some(start)
}

/// Makes the first bytes of [`addresses`] usable. Returns whether the kernel agreed.
///
/// # Safety
/// [`addresses`] returned `start` for at least `bytes`, which is more than 0 and a multiple of
/// [`MEMORY_ALIGNMENT`].
pub(super) unsafe fn open(start: NonNull<u8>, bytes: usize) -> bool {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the contract says that the caller owns the range. Usable parts stay usable.
    unsafe { mprotect(start.as_ptr().cast(), bytes, access) }.is_ok()
}

/// Length of a system page: [`MEMORY_ALIGNMENT`] or a multiple of it.
#[cfg_attr(terrapin_shuttle, allow(dead_code))]
pub(super) fn page_bytes() -> usize {
    if cfg!(miri) {
        return MEMORY_ALIGNMENT;
    }
    rustix::param::page_size()
}

/// The whole pages within a part, as offsets from the part's start.
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

/// Zeroes a part, and gives back the memory of its whole system pages.
///
/// The kernel rounds such requests up: it would also zero what follows the part on its last
/// page. So only whole pages go to the kernel.
///
/// # Safety
/// The part is within memory of [`map`], is aligned like it, and only atomics refer to it.
/// `page` is a multiple of [`page_bytes`].
#[cfg_attr(terrapin_shuttle, allow(dead_code))]
pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize, page: usize) {
    let mut whole = whole_pages(start.addr().get(), bytes, page);
    // Under Miri this only zeroes.
    let released = !cfg!(miri)
        && !whole.is_empty()
        // SAFETY: by this function's contract; the range has only whole pages of the part.
        && unsafe {
            let start = start.as_ptr().add(whole.start).cast();
            madvise(start, whole.len(), Advice::LinuxDontNeed)
        }
        .is_ok();
    if !released {
        whole = 0..0;
    }
    // SAFETY: both ranges are within the part, and all bounds are multiples of the alignment.
    unsafe {
        zero(start, whole.start);
        zero(start.add(whole.end), bytes - whole.end);
    }
}

/// Zeroes a part word by word, while other threads may read it.
///
/// # Safety
/// The part is owned, initialised memory of whole words, and only atomics refer to it.
#[cfg_attr(terrapin_shuttle, allow(dead_code))]
unsafe fn zero(start: NonNull<u8>, bytes: usize) {
    // SAFETY: by this function's contract; any bytes are valid atomics.
    let words = unsafe {
        std::slice::from_raw_parts(start.as_ptr().cast::<AtomicU64>(), bytes / size_of::<u64>())
    };
    for word in words {
        word.store(0, Ordering::Relaxed);
    }
}

/// Gives memory back to the system.
///
/// # Safety
/// [`map`] returned `start` for `bytes`, and nothing refers to the memory.
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if cfg!(miri) {
        // SAFETY: the contract says that the allocation had this layout.
        unsafe { std::alloc::dealloc(start.as_ptr(), layout(bytes)) };
        return;
    }
    // SAFETY: by this function's contract. A refusal only leaks the memory.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
}
