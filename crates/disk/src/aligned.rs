//! A growable byte buffer with the alignment that direct I/O needs. Its memory comes from the
//! kernel instead of the global allocator; `region.rs` says why.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::region::Region;

/// Bytes that start on a multiple of [`terrapin_base::MEMORY_ALIGNMENT`]. Used like a `Vec<u8>`.
///
/// The capacity is a multiple of [`terrapin_base::MEMORY_ALIGNMENT`] too. So a buffer can be padded
/// to a block without moving.
///
/// ```
/// use terrapin_disk::AlignedBuf;
/// let mut buffer = AlignedBuf::with_capacity(10);
/// buffer.extend_from_slice(b"hello");
/// buffer.resize(512, 0);
/// assert_eq!(buffer.as_ptr() as usize % 4096, 0);
/// assert_eq!((&buffer[..5], buffer.len()), (&b"hello"[..], 512));
/// ```
pub struct AlignedBuf {
    /// Memory of the buffer; its first `len` bytes are the content.
    region: Region,
    len: usize,
}

impl AlignedBuf {
    /// An empty buffer without memory.
    #[must_use]
    pub const fn new() -> Self {
        AlignedBuf {
            region: Region::empty(),
            len: 0,
        }
    }

    /// An empty buffer with room for at least `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Self::new();
        buffer.reserve(bytes);
        buffer
    }

    /// A buffer of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        AlignedBuf {
            region: Region::zeroed(len),
            len,
        }
    }

    /// A buffer of `len` bytes with unspecified content, for callers that overwrite it.
    #[must_use]
    pub fn with_any_content(len: usize) -> Self {
        AlignedBuf {
            region: Region::new(len),
            len,
        }
    }

    /// Start of the memory.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region.start()
    }

    /// Number of bytes that fit without moving.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.region.bytes()
    }

    /// Makes room for `additional` more bytes. Capacity doubles, so that appending takes amortised
    /// O(1) per byte.
    pub fn reserve(&mut self, additional: usize) {
        let Some(needed) = self.len.checked_add(additional) else {
            panic!("capacity overflow")
        };
        if needed <= self.capacity() {
            return;
        }
        let region = Region::new(needed.max(self.capacity().saturating_mul(2)));
        // SAFETY: the first `len` bytes are initialised in the old region, and they fit into the
        // new region, which is separate.
        unsafe {
            region
                .start()
                .copy_from_nonoverlapping(self.region.start(), self.len);
        }
        self.region = region;
    }

    /// Changes the length. New bytes get `value`.
    pub fn resize(&mut self, len: usize, value: u8) {
        if len > self.len {
            let more = len - self.len;
            self.reserve(more);
            // SAFETY: `reserve` made room for `more` bytes after the first `len`.
            unsafe { self.region.start().add(self.len).write_bytes(value, more) };
        }
        self.len = len;
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let source = NonNull::from(bytes).cast::<u8>();
        // SAFETY: `reserve` made room for them. The buffer is borrowed mutably, so it does not
        // overlap `bytes`.
        unsafe {
            self.region
                .start()
                .add(self.len)
                .copy_from_nonoverlapping(source, bytes.len());
        }
        self.len += bytes.len();
    }

    /// Removes all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Shortens the buffer to `len` bytes. Does nothing if it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from(&self[..])
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_capacity(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialised. If `len` is 0 the region may dangle, which
        // is allowed.
        unsafe { std::slice::from_raw_parts(self.region.start().as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes are initialised, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.region.start().as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.capacity())
    }
}

impl std::io::Write for AlignedBuf {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::MEMORY_ALIGNMENT;

    use super::*;

    #[test]
    fn a_buffer_behaves_like_a_vec_and_stays_aligned() {
        let mut random = crate::sim::Random::new(3);
        for _ in 0..50 {
            let (mut real, mut model) = (AlignedBuf::new(), Vec::new());
            for _ in 0..60 {
                let count = random.below(3000) as usize;
                let byte = random.below(256) as u8;
                match random.below(7) {
                    0..=2 => {
                        let more = vec![byte; count];
                        real.extend_from_slice(&more);
                        model.extend_from_slice(&more);
                    }
                    3 => {
                        real.resize(count * 3, byte);
                        model.resize(count * 3, byte);
                    }
                    4 => {
                        real.truncate(count);
                        model.truncate(count);
                    }
                    5 => real = real.clone(),
                    _ => {
                        if let Some(last) = real.last_mut() {
                            *last = byte;
                        }
                        if let Some(last) = model.last_mut() {
                            *last = byte;
                        }
                    }
                }
                assert_eq!(real[..], model[..]);
                assert_eq!(real.capacity() % MEMORY_ALIGNMENT, 0);
                assert!(
                    real.capacity() == 0
                        || (real.as_ptr() as usize).is_multiple_of(MEMORY_ALIGNMENT)
                );
            }
            real.clear();
            assert!(real.is_empty());
        }
    }

    #[test]
    fn zeroed_memory_is_zero_and_rounded_up() {
        for len in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let buffer = AlignedBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.capacity() >= len);
            assert_eq!(buffer.capacity() % MEMORY_ALIGNMENT, 0);
            assert!(buffer.iter().all(|&b| b == 0));
            let buffer = AlignedBuf::with_any_content(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.capacity() >= len);
        }
    }

    #[test]
    #[should_panic(expected = "capacity overflow")]
    fn a_capacity_beyond_the_address_space_panics() {
        let _ = AlignedBuf::with_capacity(usize::MAX - 100);
    }
}
