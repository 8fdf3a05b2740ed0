//! Hints to the processor about memory that will be read soon.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches all cache lines of a value. Memory behind pointers of the value is not included.
#[inline]
pub fn prefetch_all<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    let bytes = size_of_val(value).max(1);
    for at in (0..bytes - 1).step_by(LINE_BYTES) {
        prefetch(start.wrapping_add(at));
    }
    prefetch(start.wrapping_add(bytes - 1));
}

/// Prefetches one cache line. Any address is allowed, since nothing is read.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and never faults; SSE is part of the architecture.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch is a hint and never faults; it touches neither memory nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_asked_for() {
        prefetch(std::ptr::null());
        prefetch(std::ptr::without_provenance(usize::MAX));
        prefetch_all::<[u8]>(&[]);
        prefetch_all(&[0_u8; 1000]);
    }
}
