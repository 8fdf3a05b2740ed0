//! Keys made of integers: [`IntegerKey`].

use terrapin_base::{Error, Result};

/// Integers as keys that sort as the integers do.
///
/// Keys are ordered as unsigned bytes. `to_le_bytes` and decimal text do not keep the order of
/// integers; this encoding does. It is big-endian, and signed integers have their sign bit flipped,
/// so that negative ones come first. Keys of one type have one length; do not mix types in a
/// keyspace.
///
/// ```
/// use terrapin::IntegerKey;
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-integer-key-{}", std::process::id()));
/// # let database = terrapin::Database::open(&directory)?;
/// let events = database.keyspace("events")?;
/// for time in [-5_i64, 1_000, 7] {
///     events.put(time.to_key(), "an event")?;
/// }
/// let times: Vec<i64> = events
///     .range(0_i64.to_key()..)
///     .keys()
///     .map(|key| i64::from_key(&key?))
///     .collect::<terrapin::Result<_>>()?;
/// assert_eq!(times, [7, 1_000]);
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
pub trait IntegerKey: Sized {
    /// The bytes of a key: an array as long as the integer.
    type Key: AsRef<[u8]> + Copy;

    /// The key of this integer. Allocates nothing.
    fn to_key(self) -> Self::Key;

    /// The integer of a key. Errors: `InvalidArgument` if the key has another length than keys of
    /// this type have.
    fn from_key(key: &[u8]) -> Result<Self>;
}

fn wrong_length(key: &[u8], bytes: usize) -> Error {
    Error::invalid("the key is not an integer of this type: it has another length")
        .with("key bytes", key.len())
        .with("integer bytes", bytes)
}

macro_rules! integer_keys {
    ($($integer:ty, $flipped:expr;)*) => {$(
        impl IntegerKey for $integer {
            type Key = [u8; size_of::<$integer>()];

            #[inline]
            fn to_key(self) -> Self::Key {
                (self ^ $flipped).to_be_bytes()
            }

            fn from_key(key: &[u8]) -> Result<Self> {
                let bytes = key.try_into().map_err(|_| wrong_length(key, size_of::<Self>()))?;
                Ok(<$integer>::from_be_bytes(bytes) ^ $flipped)
            }
        }
    )*};
}

integer_keys! {
    u8, 0; u16, 0; u32, 0; u64, 0; u128, 0;
    i8, i8::MIN; i16, i16::MIN; i32, i32::MIN; i64, i64::MIN; i128, i128::MIN;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrapin_base::ErrorKind;

    use super::*;

    fn holds<T: IntegerKey + Ord + Copy + std::fmt::Debug>(a: T, b: T) {
        let (key_a, key_b) = (a.to_key(), b.to_key());
        assert_eq!(key_a.as_ref().cmp(key_b.as_ref()), a.cmp(&b), "{a:?} {b:?}");
        assert_eq!(T::from_key(key_a.as_ref()).unwrap(), a);
        assert_eq!(key_a.as_ref().len(), size_of::<T>());
    }

    proptest! {
        #[test]
        fn keys_sort_as_their_integers_do(a: i128, b: i128, near in -3_i8..3) {
            holds(a, b);
            holds(a as u128, b as u128);
            holds(a as i64, b as i64);
            holds(a as u64, b as u64);
            holds(a as i32, (a as i32).wrapping_add(near.into()));
            holds(a as u32, (a as u32).wrapping_add_signed(near.into()));
            holds(a as i16, b as i16);
            holds(a as u16, b as u16);
            holds(a as i8, b as i8);
            holds(a as u8, b as u8);
        }
    }

    #[test]
    fn the_ends_of_a_type_sort_at_the_ends() {
        holds(i64::MIN, i64::MAX);
        holds(-1_i64, 0);
        holds(0_u64, u64::MAX);
    }

    #[test]
    fn a_key_of_another_length_is_refused_and_named() {
        let error = u64::from_key(b"four").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("key bytes 4"), "{error}");
    }
}
