//! Types that callers may use as a range of keys, and bounds of keys.

use std::ops::{self, Bound, RangeBounds};

use terrapin_structure::KeyBounds;

/// A range of keys, as `keyspace.range(…)` and similar calls take it.
///
/// A key is any `AsRef<[u8]>`: an array, slice or vector of bytes, a string, a
/// [`Slice`](crate::Slice). All range types of Rust work, also by reference. Both ends of a range
/// have the same type. If they are arrays of different lengths, make the first one a slice. A range
/// whose end is before its start is empty.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-key-range-{}", std::process::id()));
/// use std::ops::Bound;
/// # let database = terrapin::Database::open(&directory)?;
/// let letters = database.keyspace("letters")?;
/// for letter in ["a", "b", "bb", "c"] {
///     letters.put(letter, "")?;
/// }
/// let count = |range: terrapin::Range| range.keys().collect::<terrapin::Result<Vec<_>>>().map(|keys| keys.len());
/// assert_eq!(count(letters.range(..))?, 4);
/// assert_eq!(count(letters.range(b"a"..b"c"))?, 3);
/// assert_eq!(count(letters.range("b"..="bb"))?, 2);
/// assert_eq!(count(letters.range(&b"b"[..]..=b"bb"))?, 2);
/// assert_eq!(count(letters.range("bb"..))?, 2);
/// assert_eq!(count(letters.range(.."b"))?, 1);
/// assert_eq!(count(letters.range(..=vec![b'b']))?, 2);
///
/// // All keys after a key, as for the next page after the last key of a page.
/// let last = letters.first()?.unwrap().0;
/// let after = (Bound::Excluded(last), Bound::Unbounded);
/// assert_eq!(count(letters.range(&after))?, 3);
/// assert_eq!(count(letters.range((Bound::Unbounded, Bound::Included(b"b"))))?, 2);
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
///
/// A type of your own can be a range of keys as well:
///
/// ```
/// use std::ops::Bound;
///
/// /// The keys of one day. A key begins with the number of its day.
/// struct Day([u8; 4], [u8; 4]);
///
/// impl Day {
///     fn new(number: u32) -> Self {
///         Day(number.to_be_bytes(), (number + 1).to_be_bytes())
///     }
/// }
///
/// impl terrapin::KeyRange for Day {
///     fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
///         (Bound::Included(&self.0), Bound::Excluded(&self.1))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of keys",
    label = "not a range of keys",
    note = "keys are bytes: `AsRef<[u8]>`, as `b\"a\"`, `\"a\"` and `number.to_be_bytes()` are; a range of them is `from..to`",
    note = "the keys that begin in a certain way are a `prefix`"
)]
pub trait KeyRange {
    /// The start and the end of the range.
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

fn bounds_of<'a, K: AsRef<[u8]> + 'a>(range: &'a impl RangeBounds<K>) -> KeyBounds<'a> {
    fn bytes<K: AsRef<[u8]>>(bound: Bound<&K>) -> Bound<&[u8]> {
        bound.map(AsRef::as_ref)
    }
    (bytes(range.start_bound()), bytes(range.end_bound()))
}

macro_rules! key_ranges {
    ($($range:ty),*) => {$(
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
                bounds_of::<K>(self)
            }
        }
    )*};
}

key_ranges!(
    ops::Range<K>,
    ops::RangeInclusive<K>,
    ops::RangeFrom<K>,
    ops::RangeTo<K>,
    ops::RangeToInclusive<K>,
    (Bound<K>, Bound<K>)
);

impl KeyRange for ops::RangeFull {
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        R::bounds(self)
    }
}

/// Owned bounds of a range.
pub(crate) type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A copy of a range's bounds.
pub(crate) fn owned(range: &impl KeyRange) -> OwnedBounds {
    let (lower, upper) = range.bounds();
    (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec))
}

/// Borrows a bound.
pub(crate) fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// The range of all keys that begin with `prefix`, for calls that take a [`KeyRange`]:
/// `keyspace.approximate(prefix_range("user/"))`. [`Keyspace::prefix`](crate::Keyspace::prefix)
/// reads these keys.
///
/// The end of the range is the prefix up to its last byte below 255, with that byte raised by one:
///
/// ```
/// use std::ops::Bound;
/// let (from, to) = terrapin::prefix_range("ab");
/// assert_eq!((from, to), (Bound::Included(b"ab".to_vec()), Bound::Excluded(b"ac".to_vec())));
/// ```
#[must_use]
pub fn prefix_range(prefix: impl AsRef<[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let prefix = prefix.as_ref();
    if prefix.is_empty() {
        return (Bound::Unbounded, Bound::Unbounded);
    }
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX);
    let upper = kept.map_or(Bound::Unbounded, |last| {
        let mut end = prefix[..=last].to_vec();
        end[last] += 1;
        Bound::Excluded(end)
    });
    (Bound::Included(prefix.to_vec()), upper)
}

/// The same range as its first key and the first key above it. None is the end of all keys.
pub(crate) fn half_open((lower, upper): KeyBounds<'_>) -> (Vec<u8>, Option<Vec<u8>>) {
    let behind = |key: &[u8]| [key, &[0]].concat();
    let lo = match lower {
        Bound::Unbounded => Vec::new(),
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => behind(key),
    };
    let hi = match upper {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(behind(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
    };
    (lo, hi)
}

/// Whether no key can be between the bounds.
pub(crate) fn is_empty((lower, upper): KeyBounds<'_>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slice;

    #[test]
    fn every_way_to_write_a_range_says_its_bounds() {
        const A: Bound<&[u8]> = Bound::Included(b"a");
        const B: Bound<&[u8]> = Bound::Excluded(b"b");
        const NONE: Bound<&[u8]> = Bound::Unbounded;
        assert_eq!((..).bounds(), (NONE, NONE));
        assert_eq!((b"a"..b"b").bounds(), (A, B));
        assert_eq!(("a".."b").bounds(), (A, B));
        assert_eq!((String::from("a")..String::from("b")).bounds(), (A, B));
        assert_eq!((Slice::copy(b"a")..Slice::copy(b"b")).bounds(), (A, B));
        assert_eq!((&b"a".to_vec()..&b"b".to_vec()).bounds(), (A, B));
        assert_eq!((&b"a"[..]..b"b").bounds(), (A, B));
        assert_eq!(([b'a']..).bounds(), (A, NONE));
        assert_eq!((.."b").bounds(), (NONE, B));
        assert_eq!((..="a").bounds(), (NONE, A));
        assert_eq!(("a"..="a").bounds(), (A, A));
        assert_eq!((A, B).bounds(), (A, B));
        assert_eq!((Bound::Unbounded, Bound::Excluded("b")).bounds(), (NONE, B));
        let any: &dyn KeyRange = &("a".."b");
        assert_eq!(any.bounds(), (A, B));
    }

    #[test]
    fn a_prefix_ends_before_the_first_key_that_does_not_begin_with_it() {
        assert_eq!(prefix_range(b""), (Bound::Unbounded, Bound::Unbounded));
        assert_eq!(
            prefix_range(b"ab"),
            (
                Bound::Included(b"ab".to_vec()),
                Bound::Excluded(b"ac".to_vec())
            )
        );
        assert_eq!(
            prefix_range(b"a\xff\xff"),
            (
                Bound::Included(b"a\xff\xff".to_vec()),
                Bound::Excluded(b"b".to_vec())
            )
        );
        assert_eq!(
            prefix_range(b"\xff"),
            (Bound::Included(b"\xff".to_vec()), Bound::Unbounded)
        );
    }
}
