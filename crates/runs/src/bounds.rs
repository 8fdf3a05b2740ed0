//! Arithmetic on the bounds of key ranges.

use std::cmp::Ordering;
use std::ops::Bound;

/// Borrows an owned bound.
pub fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Whether no key can be between the bounds. A range from a key to the same key with a zero byte
/// behind it is not recognised as empty. A read of it just finds nothing.
pub fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, Bound::Excluded(hi)) => hi.is_empty(),
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lo), Bound::Included(hi)) => lo > hi,
        (Bound::Included(lo) | Bound::Excluded(lo), Bound::Included(hi) | Bound::Excluded(hi)) => {
            lo >= hi
        }
    }
}

/// Whether a key is inside a lower bound.
pub fn lets_in_above(lower: Bound<&[u8]>, key: &[u8]) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(lo) => key >= lo,
        Bound::Excluded(lo) => key > lo,
    }
}

/// Whether a key is inside an upper bound.
pub fn lets_in_below(upper: Bound<&[u8]>, key: &[u8]) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(hi) => key <= hi,
        Bound::Excluded(hi) => key < hi,
    }
}

/// The stricter of two lower bounds.
pub fn tighter_lower<'a>(a: Bound<&'a [u8]>, b: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
    if is_tighter_lower(a, b) { a } else { b }
}

/// The stricter of two upper bounds.
pub fn tighter_upper<'a>(a: Bound<&'a [u8]>, b: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
    if is_tighter_upper(a, b) { a } else { b }
}

/// Whether `a` is a bounded lower bound and at least as strict as `b`.
pub fn is_tighter_lower(a: Bound<&[u8]>, b: Bound<&[u8]>) -> bool {
    is_tighter(a, b, Ordering::Greater)
}

/// Whether `a` is a bounded upper bound and at least as strict as `b`.
pub fn is_tighter_upper(a: Bound<&[u8]>, b: Bound<&[u8]>) -> bool {
    is_tighter(a, b, Ordering::Less)
}

/// Whether `a` is bounded and at least as strict as `b`. A bound whose key is on the `inner` side
/// of the other's key is stricter.
#[inline]
fn is_tighter(a: Bound<&[u8]>, b: Bound<&[u8]>, inner: Ordering) -> bool {
    match (a, b) {
        (Bound::Unbounded, _) => false,
        (_, Bound::Unbounded) => true,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            match x.cmp(y) {
                Ordering::Equal => !matches!((a, b), (Bound::Included(_), Bound::Excluded(_))),
                unequal => unequal == inner,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bounds over five keys, checked against the keys inside them.
    #[test]
    fn bounds_agree_with_the_keys_inside_them() {
        let keys: [&[u8]; 5] = [b"", b"a", b"b", b"c", b"d"];
        let mut bounds = vec![Bound::Unbounded];
        for key in keys {
            bounds.extend([Bound::Included(key), Bound::Excluded(key)]);
        }
        let above = |b| keys.map(|k| lets_in_above(b, k));
        let below = |b| keys.map(|k| lets_in_below(b, k));
        for &a in &bounds {
            for &b in &bounds {
                let both = |x: [bool; 5], y: [bool; 5]| {
                    std::array::from_fn::<bool, 5, _>(|i| x[i] && y[i])
                };
                assert_eq!(
                    above(tighter_lower(a, b)),
                    both(above(a), above(b)),
                    "{a:?} {b:?}"
                );
                assert_eq!(
                    below(tighter_upper(a, b)),
                    both(below(a), below(b)),
                    "{a:?} {b:?}"
                );
                if is_empty(a, b) {
                    assert!(!both(above(a), below(b)).contains(&true), "{a:?} {b:?}");
                }
                if let (Bound::Included(lo), Bound::Included(hi)) = (a, b) {
                    assert_eq!(is_empty(a, b), lo > hi);
                }
            }
        }
    }
}
