//! How a record lies in a segment: two words of header (sizes and keyspace; hash of the key), the key, the value, each padded to a
//! word. Read by loads that may see another writer's words: nothing read here is believed before the segment's stamp was checked again.

use terrapin_base::sync::{AtomicU64, Ordering};
use terrapin_base::{KeyspaceId, Slice};

/// Words before the key.
pub(crate) const HEADER_WORDS: usize = 2;
const VALUE_BITS: u32 = 20;
const KEYSPACE_BITS: u32 = 28;

/// What a record is found by.
#[derive(Clone, Copy)]
pub(crate) struct Key<'k> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) bytes: &'k [u8],
    /// Of the bytes and the keyspace.
    pub(crate) hash: u64,
}

impl<'k> Key<'k> {
    /// None for what the header has no room for.
    pub(crate) fn new(keyspace: KeyspaceId, bytes: &'k [u8], hash: u64) -> Option<Self> {
        if keyspace.0 >> KEYSPACE_BITS != 0 || bytes.len() > usize::from(u16::MAX) {
            return None;
        }
        let spread = u64::from(keyspace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(Key {
            keyspace,
            bytes,
            hash: (hash ^ spread).wrapping_mul(0xff51_afd7_ed55_8ccd),
        })
    }
}

/// Words that a record takes; none when its value is too large for the header.
pub(crate) fn words(key: usize, value: usize) -> Option<usize> {
    (value < 1 << VALUE_BITS).then(|| HEADER_WORDS + key.div_ceil(8) + value.div_ceil(8))
}

/// The first word of a header, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) key: usize,
    pub(crate) value: usize,
    keyspace: u32,
}

impl Sizes {
    fn word(key: &Key<'_>, value: usize) -> u64 {
        key.bytes.len() as u64
            | (value as u64) << 16
            | u64::from(key.keyspace.0) << (16 + VALUE_BITS)
    }

    pub(crate) fn of(word: u64) -> Self {
        Sizes {
            key: usize::from(word as u16),
            value: (word >> 16) as usize & ((1 << VALUE_BITS) - 1),
            keyspace: (word >> (16 + VALUE_BITS)) as u32,
        }
    }

    pub(crate) fn words(self) -> usize {
        HEADER_WORDS + self.key.div_ceil(8) + self.value.div_ceil(8)
    }
}

/// Writes a record. Panics when there are fewer words than [`words`] says.
pub(crate) fn write(to: &[AtomicU64], key: &Key<'_>, value: &[u8]) {
    to[0].store(Sizes::word(key, value.len()), Ordering::Relaxed);
    to[1].store(key.hash, Ordering::Relaxed);
    let (keys, values) = to[HEADER_WORDS..].split_at(key.bytes.len().div_ceil(8));
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

/// The sizes of the record that lies there, if it is that of the key. `from` begins at the record and ends with its segment.
#[inline]
pub(crate) fn sizes_if(from: &[AtomicU64], key: &Key<'_>) -> Option<Sizes> {
    let [first, second, keys @ ..] = from else {
        return None;
    };
    let sizes = Sizes::of(first.load(Ordering::Relaxed));
    let same = sizes.key == key.bytes.len()
        && sizes.keyspace == key.keyspace.0
        && second.load(Ordering::Relaxed) == key.hash
        && sizes.words() <= from.len();
    if !same {
        return None;
    }
    let (whole, rest) = key.bytes.as_chunks::<8>();
    let equal = keys
        .iter()
        .zip(whole)
        .all(|(word, bytes)| word.load(Ordering::Relaxed) == u64::from_le_bytes(*bytes));
    let equal =
        equal && (rest.is_empty() || keys[whole.len()].load(Ordering::Relaxed) == last_word(rest));
    equal.then_some(sizes)
}

/// Copies the value of a record that lies there and has these sizes.
#[inline]
pub(crate) fn value(from: &[AtomicU64], sizes: Sizes) -> Slice {
    let start = HEADER_WORDS + sizes.key.div_ceil(8);
    let words = &from[start..start + sizes.value.div_ceil(8)];
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes();
    // Both ways as long as the value is: a slice of a vector with room to spare is another allocation.
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
    fn a_record_is_read_as_it_was_written_whatever_its_sizes() {
        let bytes: Vec<u8> = (1..=255).cycle().take(600).collect();
        for key_bytes in [0, 1, 7, 8, 9, 64, 65] {
            for value_bytes in [0, 1, 7, 8, 9, 120, 500] {
                let (key_text, text) = (&bytes[..key_bytes], &bytes[..value_bytes]);
                let key = Key::new(KeyspaceId(3), key_text, 77).unwrap();
                let count = words(key_bytes, value_bytes).unwrap();
                let memory: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(u64::MAX)).collect();
                write(&memory, &key, text);
                let sizes = sizes_if(&memory, &key).unwrap();
                assert_eq!(sizes.words(), count);
                assert_eq!(value(&memory, sizes), *text);
                let other = Key::new(KeyspaceId(4), key_text, 77).unwrap();
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
    fn what_the_header_has_no_room_for_is_no_record() {
        assert!(words(8, 1 << 20).is_none());
        assert!(Key::new(KeyspaceId(1 << 28), b"k", 1).is_none());
    }
}
