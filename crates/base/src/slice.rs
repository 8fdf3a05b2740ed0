//! A cheap, ref-counted piece of immutable bytes.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

/// Immutable bytes that many may share: a clone is a reference count. What a read returns.
///
/// ```
/// use terrapin_base::Slice;
/// let s = Slice::copy(b"hello");
/// assert_eq!(&s.sub(1..3)[..], b"el");
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice(Bytes);

impl Slice {
    /// Copies bytes into a slice of its own (one allocation; none when empty).
    #[must_use]
    pub fn copy(bytes: &[u8]) -> Self {
        Slice(Bytes::copy_from_slice(bytes))
    }

    /// Takes a vector over without copying it.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Slice(Bytes::from(bytes))
    }

    /// Shares what an owner holds (an `Arc` of a cached block, for instance); the owner lives as long as any slice of it.
    #[must_use]
    pub fn from_owner<T: AsRef<[u8]> + Send + 'static>(owner: T) -> Self {
        Slice(Bytes::from_owner(owner))
    }

    /// A part that shares the same owner. Panics when the range is out of bounds.
    #[must_use]
    pub fn sub(&self, range: std::ops::Range<usize>) -> Self {
        Slice(self.0.slice(range))
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Slice {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq<[u8]> for Slice {
    fn eq(&self, other: &[u8]) -> bool {
        self.0[..] == *other
    }
}

impl PartialEq<&[u8]> for Slice {
    fn eq(&self, other: &&[u8]) -> bool {
        self.0[..] == **other
    }
}
