//! The layout of a record in a strip: a header, the key, and the value, each padded to words.
//!
//! The header has the sizes, the collection, and the first bits of the key's hash, which the table
//! needs for the removal. Small sizes fit into one word. Otherwise a second word has the hash.
//!
//! Loads may see words of another record. So no result of this file counts before the strip's stamp
//! was checked again.

use terrapin_base::Slice;
use terrapin_base::sync::{AtomicU64, Ordering};

use crate::table::TAG_SHIFT;

/// The bit in the first word that announces a second word.
const WIDE: u64 = 1 << 63;
/// Fields of a header of two words, from the lowest bit: key length, value length, collection.
const WIDE_VALUE_SHIFT: u32 = 16;
const WIDE_COLLECTION_SHIFT: u32 = 36;
const WIDE_END_SHIFT: u32 = 63;
/// Fields of a header of one word: key length, value length, collection, and the hash's first bits,
/// as many as a table entry has.
const VALUE_SHIFT: u32 = 8;
const COLLECTION_SHIFT: u32 = 20;
const HASH_SHIFT: u32 = 39;
const VALUE_MASK: u64 = (1 << (COLLECTION_SHIFT - VALUE_SHIFT)) - 1;

/// The header that ends a strip's records. No record has a collection of that number.
pub(crate) const END: u64 = u64::MAX;

/// The bits of a word from `from` on and below `to`.
fn field(word: u64, from: u32, to: u32) -> u64 {
    word >> from & ((1 << (to - from)) - 1)
}

/// The number of a keyspace's records. A clear of the keyspace gives it a new, unused number.
///
/// Numbers up to half a million take the least memory. Records of numbers beyond 2^27 are not
/// cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection(pub u32);

/// What identifies a record.
#[derive(Clone, Copy)]
pub(crate) struct Key<'k> {
    pub(crate) collection: Collection,
    pub(crate) bytes: &'k [u8],
    /// Hash of the key's bytes and the collection.
    pub(crate) hash: u64,
}

impl<'k> Key<'k> {
    /// `None` if the header has no room for the key or the collection.
    pub(crate) fn new(collection: Collection, bytes: &'k [u8], hash: u64) -> Option<Self> {
        // `END` uses the last collection.
        let collections = (1 << (WIDE_END_SHIFT - WIDE_COLLECTION_SHIFT)) - 1;
        if collection.0 >= collections || bytes.len() > usize::from(u16::MAX) {
            return None;
        }
        Some(Key {
            collection,
            bytes,
            hash: hash_in(collection, hash),
        })
    }
}

/// The hash of a key's bytes and the collection, from the hash of the bytes.
#[inline]
pub(crate) fn hash_in(collection: Collection, hash: u64) -> u64 {
    let spread = u64::from(collection.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ spread).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Number of words of a record; `None` if the header has no room for its value's length.
pub(crate) fn words(key: &Key<'_>, value: usize) -> Option<usize> {
    (value < 1 << (WIDE_COLLECTION_SHIFT - WIDE_VALUE_SHIFT))
        .then(|| Sizes::of(first_word(key, value)).words())
}

/// The first word of a header.
fn first_word(key: &Key<'_>, value: usize) -> u64 {
    let fits = value < 1 << (COLLECTION_SHIFT - VALUE_SHIFT);
    match narrow_word(key) {
        Some(word) if fits => word | (value as u64) << VALUE_SHIFT,
        _ => {
            let (bytes, collection) = (key.bytes.len() as u64, u64::from(key.collection.0));
            bytes | (value as u64) << WIDE_VALUE_SHIFT | collection << WIDE_COLLECTION_SHIFT | WIDE
        }
    }
}

/// A header of one word without the value's length, if the key fits into one.
#[inline]
fn narrow_word(key: &Key<'_>) -> Option<u64> {
    let (bytes, collection) = (key.bytes.len() as u64, u64::from(key.collection.0));
    let fits = bytes < 1 << VALUE_SHIFT && collection < 1 << (HASH_SHIFT - COLLECTION_SHIFT);
    let hash = key.hash >> TAG_SHIFT << HASH_SHIFT;
    fits.then_some(bytes | collection << COLLECTION_SHIFT | hash)
}

/// The sizes in the first word of a header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    header: usize,
    pub(crate) key: usize,
    pub(crate) value: usize,
}

impl Sizes {
    pub(crate) fn of(word: u64) -> Self {
        let sizes = |value_from, value_to| {
            (
                field(word, 0, value_from),
                field(word, value_from, value_to),
            )
        };
        let (header, (key, value)) = if word & WIDE == 0 {
            (1, sizes(VALUE_SHIFT, COLLECTION_SHIFT))
        } else {
            (2, sizes(WIDE_VALUE_SHIFT, WIDE_COLLECTION_SHIFT))
        };
        Sizes {
            header,
            key: key as usize,
            value: value as usize,
        }
    }

    /// Words of the whole record.
    pub(crate) fn words(self) -> usize {
        self.header + self.key.div_ceil(8) + self.value.div_ceil(8)
    }
}

/// The hash bits of the record at the start of `from`, as far as the table needs them. 0 beyond the
/// end of the memory.
pub(crate) fn hash(from: &[AtomicU64]) -> u64 {
    let word = |at: usize| from.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
    let first = word(0);
    if first & WIDE == 0 {
        field(first, HASH_SHIFT, WIDE_END_SHIFT) << TAG_SHIFT
    } else {
        word(1)
    }
}

/// The collection of the record at the start of `from`, which is not empty.
pub(crate) fn collection(from: &[AtomicU64]) -> Collection {
    let first = from.first().map_or(0, |word| word.load(Ordering::Relaxed));
    let (shift, end) = match first & WIDE {
        0 => (COLLECTION_SHIFT, HASH_SHIFT),
        _ => (WIDE_COLLECTION_SHIFT, WIDE_END_SHIFT),
    };
    Collection(field(first, shift, end) as u32)
}

/// Copies the key of the record at the start of `from` to `out`. Only for writers.
pub(crate) fn copy_key(from: &[AtomicU64], out: &mut Vec<u8>) {
    out.clear();
    let Some(first) = from.first() else { return };
    let sizes = Sizes::of(first.load(Ordering::Relaxed));
    for word in from.iter().skip(sizes.header).take(sizes.key.div_ceil(8)) {
        out.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    out.truncate(sizes.key);
}

/// Writes a record. Panics if `to` is shorter than [`words`] returns.
pub(crate) fn write(to: &[AtomicU64], key: &Key<'_>, value: &[u8]) {
    let first = first_word(key, value.len());
    let sizes = Sizes::of(first);
    to[0].store(first, Ordering::Relaxed);
    if sizes.header == 2 {
        to[1].store(key.hash, Ordering::Relaxed);
    }
    let (keys, values) = to[sizes.header..].split_at(key.bytes.len().div_ceil(8));
    write_bytes(keys, key.bytes);
    write_bytes(values, value);
}

fn write_bytes(to: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in to.iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        to[whole.len()].store(last_word(rest), Ordering::Relaxed);
    }
}

fn last_word(rest: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(bytes)
}

/// The sizes of the record at the start of `from`, if it has this key. `from` must end with the
/// strip.
#[inline]
pub(crate) fn sizes_if(from: &[AtomicU64], key: &Key<'_>) -> Option<Sizes> {
    let first = from.first()?.load(Ordering::Relaxed);
    let sizes = if first & WIDE == 0 {
        // The key determines all of the header except the value's length.
        let value = first >> VALUE_SHIFT & VALUE_MASK;
        if narrow_word(key)? != first & !(VALUE_MASK << VALUE_SHIFT) {
            return None;
        }
        Sizes {
            header: 1,
            key: key.bytes.len(),
            value: value as usize,
        }
    } else {
        let sizes = Sizes::of(first);
        if first != first_word(key, sizes.value) || from.get(1)?.load(Ordering::Relaxed) != key.hash
        {
            return None;
        }
        sizes
    };
    if sizes.words() > from.len() {
        return None;
    }
    let keys = &from[sizes.header..];
    let (whole, rest) = key.bytes.as_chunks::<8>();
    let equal = keys
        .iter()
        .zip(whole)
        .all(|(word, bytes)| word.load(Ordering::Relaxed) == u64::from_le_bytes(*bytes));
    let equal =
        equal && (rest.is_empty() || keys[whole.len()].load(Ordering::Relaxed) == last_word(rest));
    equal.then_some(sizes)
}

/// Copies the value of the record with these sizes.
#[inline]
pub(crate) fn value(from: &[AtomicU64], sizes: Sizes) -> Slice {
    let start = sizes.header + sizes.key.div_ceil(8);
    let words = &from[start..start + sizes.value.div_ceil(8)];
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes();
    // Both branches make a vector without spare capacity. Spare capacity would cost another
    // allocation in the slice.
    let (whole, rest) = (sizes.value / 8, sizes.value % 8);
    if rest == 0 {
        let bytes: Vec<[u8; 8]> = words.iter().map(word).collect();
        return Slice::from_vec(bytes.into_flattened());
    }
    let mut bytes = Vec::with_capacity(sizes.value);
    words[..whole]
        .iter()
        .for_each(|w| bytes.extend_from_slice(&word(w)));
    bytes.extend_from_slice(&word(&words[whole])[..rest]);
    Slice::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_any_size_is_read_as_it_was_written() {
        let bytes: Vec<u8> = (1..=255).cycle().take(4096).collect();
        for (key_bytes, collection) in [0, 1, 7, 8, 9, 64, 65, 255, 256, 300]
            .iter()
            .flat_map(|&key_bytes| [(key_bytes, 3), (key_bytes, (1 << 27) - 2)])
        {
            for value_bytes in [0, 1, 7, 8, 9, 120, 500, 4095, 4096] {
                let (key_text, text) = (&bytes[..key_bytes], &bytes[..value_bytes]);
                let key = Key::new(Collection(collection), key_text, 77).unwrap();
                let count = words(&key, value_bytes).unwrap();
                let narrow = key_bytes < 256 && value_bytes < 4096 && collection == 3;
                let header = if narrow { 1 } else { 2 };
                assert_eq!(
                    count,
                    header + key_bytes.div_ceil(8) + value_bytes.div_ceil(8)
                );
                let memory: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(u64::MAX)).collect();
                write(&memory, &key, text);
                let sizes = sizes_if(&memory, &key).unwrap();
                assert_eq!(sizes.words(), count);
                assert_eq!(value(&memory, sizes), *text);
                let mut copied = vec![1; 9];
                copy_key(&memory, &mut copied);
                assert_eq!(copied, *key_text);
                assert_eq!(super::collection(&memory), Collection(collection));
                assert_ne!(memory[0].load(Ordering::Relaxed), END);
                assert_eq!(hash(&memory) >> TAG_SHIFT, key.hash >> TAG_SHIFT);
                let other = Key::new(Collection(4), key_text, 77).unwrap();
                assert!(sizes_if(&memory, &other).is_none());
                if key_bytes > 0 {
                    let mut wrong = key_text.to_vec();
                    wrong[key_bytes - 1] ^= 1;
                    let mut other = key;
                    other.bytes = &wrong;
                    assert!(sizes_if(&memory, &other).is_none());
                    assert!(sizes_if(&memory[..count - 1], &key).is_none());
                }
            }
        }
    }

    #[test]
    fn a_record_too_large_for_the_header_is_refused() {
        let key = Key::new(Collection(1), b"k", 1).unwrap();
        assert!(words(&key, 1 << 20).is_none());
        assert!(Key::new(Collection((1 << 27) - 1), b"k", 1).is_none());
    }
}
