//! Immutable bytes with a reference count.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

/// Immutable bytes that clones share. Reads return values of this type.
///
/// ```
/// # extern crate terrapin_base as terrapin;
/// use terrapin::Slice;
/// let s = Slice::from("hello");
/// assert_eq!(s.sub(1..3), b"el");
/// let owned: Vec<u8> = s.into();
/// assert_eq!(owned, b"hello");
/// ```
///
/// A slice compares with arrays, slices and vectors of bytes, and with strings. It hashes and sorts
/// like its bytes, and implements `AsRef<[u8]>`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice(Bytes);

impl Slice {
    /// Copies bytes into a new slice. One allocation, or none for no bytes.
    #[must_use]
    pub fn copy(bytes: &[u8]) -> Self {
        Slice(Bytes::copy_from_slice(bytes))
    }

    /// Takes over a vector without a copy.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Slice(Bytes::from(bytes))
    }

    /// Shares the bytes of an owner, such as an `Arc` of a cached block. The owner lives as long as
    /// any slice of it.
    #[must_use]
    pub fn from_owner<T: AsRef<[u8]> + Send + 'static>(owner: T) -> Self {
        Slice(Bytes::from_owner(owner))
    }

    /// A part of this slice with the same owner. Panics if the range is out of bounds.
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

impl From<Vec<u8>> for Slice {
    /// Takes over the vector without a copy.
    fn from(bytes: Vec<u8>) -> Self {
        Slice::from_vec(bytes)
    }
}

impl From<&[u8]> for Slice {
    /// Copies the bytes.
    fn from(bytes: &[u8]) -> Self {
        Slice::copy(bytes)
    }
}

impl From<&str> for Slice {
    /// Copies the bytes of the text.
    fn from(text: &str) -> Self {
        Slice::copy(text.as_bytes())
    }
}

impl From<Slice> for Vec<u8> {
    /// Takes over the bytes of a vector if no other slice shares them, and else copies them.
    fn from(slice: Slice) -> Self {
        let mut bytes = Vec::from(slice.0);
        // A part may keep the capacity of the whole vector.
        bytes.shrink_to_fit();
        bytes
    }
}

/// Comparisons with other types that contain bytes, in both directions.
macro_rules! compares_with {
    ($($other:ty $(, $n:ident)?;)*) => {$(
        impl $(<const $n: usize>)? PartialEq<$other> for Slice {
            fn eq(&self, other: &$other) -> bool {
                let other: &[u8] = other.as_ref();
                self.0[..] == *other
            }
        }

        impl $(<const $n: usize>)? PartialEq<Slice> for $other {
            fn eq(&self, other: &Slice) -> bool {
                other == self
            }
        }
    )*};
}

compares_with! {
    [u8];
    &[u8];
    [u8; N], N;
    &[u8; N], N;
    Vec<u8>;
    str;
    &str;
    String;
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    #[test]
    fn a_slice_compares_with_other_types_of_bytes() {
        let slice = Slice::copy(b"slow");
        let (vector, string) = (b"slow".to_vec(), String::from("slow"));
        assert_eq!(slice, b"slow");
        assert_eq!(slice, *b"slow");
        assert_eq!(slice, b"slow"[..]);
        assert_eq!(slice, &b"slow"[..]);
        assert_eq!(slice, vector);
        assert_eq!(slice, "slow");
        assert_eq!(slice, *"slow");
        assert_eq!(slice, string);
        assert_eq!(b"slow", slice);
        assert_eq!(*b"slow", slice);
        assert_eq!(b"slow"[..], slice);
        assert_eq!(&b"slow"[..], slice);
        assert_eq!(vector, slice);
        assert_eq!("slow", slice);
        assert_eq!(*"slow", slice);
        assert_eq!(string, slice);
        for other in ["", "slo", "slow ", "Slow"] {
            assert_ne!(slice, other);
            assert_ne!(other.as_bytes(), slice);
        }
        assert_eq!([slice], ["slow"]);
        assert_eq!(Slice::default(), b"");
    }

    #[test]
    fn maps_of_slices_are_searched_with_bytes() {
        let keys = [&b"a"[..], b"", b"ab", b"\xff", b"b"];
        let hashed: HashMap<Slice, usize> = keys.iter().map(|k| Slice::copy(k)).zip(0..).collect();
        let sorted: BTreeMap<Slice, usize> = keys.iter().map(|k| Slice::copy(k)).zip(0..).collect();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(
                (hashed.get(*key), sorted.get(*key)),
                (Some(&number), Some(&number))
            );
        }
        let in_order: Vec<&Slice> = sorted.keys().collect();
        assert_eq!(in_order, [&b""[..], b"a", b"ab", b"b", b"\xff"]);
    }

    #[test]
    fn a_vector_from_a_slice_reuses_its_memory_and_wastes_none() {
        let whole = Slice::from_vec(b"a long value".to_vec());
        let place = whole.as_ptr();
        let part = whole.sub(2..6);
        assert_eq!(Vec::from(part.clone()), b"long");
        drop(part);
        let vector = Vec::from(whole);
        assert_eq!(
            (&vector[..], vector.as_ptr()),
            (&b"a long value"[..], place)
        );
        let part = Slice::from_vec(vec![7; 1000]).sub(990..1000);
        let vector = Vec::from(part);
        assert_eq!(vector, [7; 10]);
        assert!(vector.capacity() < 100, "{}", vector.capacity());
        assert_eq!(Vec::from(Slice::from_owner([1, 2, 3])), [1, 2, 3]);
    }
}
