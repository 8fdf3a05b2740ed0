//! The bytes of records: a key from a number, and a value that can be checked against its key.

use terrapin_base::{Error, ErrorKind, Result};

use crate::generator::mix;

/// The shape of all records of a run.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    key_bytes: usize,
    value_bytes: usize,
}

impl Records {
    /// Keys of at least 8 bytes; values of any size.
    pub fn new(key_bytes: usize, value_bytes: usize) -> Result<Self> {
        if !(8..=terrapin_base::KEY_BYTES_MAX).contains(&key_bytes) {
            return Err(
                Error::invalid("keys of the benchmark have 8 to 65,535 bytes")
                    .with("given", key_bytes),
            );
        }
        if value_bytes > terrapin_base::VALUE_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge, "the values are too large")
                .with("given", value_bytes)
                .with("limit", terrapin_base::VALUE_BYTES_MAX));
        }
        Ok(Records {
            key_bytes,
            value_bytes,
        })
    }

    /// Key and value bytes of one record.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }

    /// Whether values have a tag: those of at least eight bytes.
    pub(crate) fn has_tags(&self) -> bool {
        self.value_bytes >= 8
    }

    /// The tag of a value; 0 where it has none.
    pub(crate) fn tag(value: &[u8]) -> u64 {
        value
            .first_chunk()
            .map_or(0, |tag| u64::from_le_bytes(*tag))
    }

    /// The key of record `number`. Consecutive numbers give scattered keys.
    pub(crate) fn key(&self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&mix(number.wrapping_add(1)).to_be_bytes());
        out.resize(self.key_bytes, b'k');
    }

    /// The expected number of records with a key above this one. Keys are spread evenly over all
    /// numbers of eight bytes.
    pub(crate) fn follow(key: &[u8], records: u64) -> u64 {
        let before = key
            .first_chunk()
            .map_or(0, |first| u64::from_be_bytes(*first));
        ((u128::from(u64::MAX - before) * u128::from(records)) >> 64) as u64
    }

    /// A value for a key: eight bytes of `tag`, then bits derived from key and tag.
    pub(crate) fn value(&self, key: &[u8], tag: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&tag.to_le_bytes());
        let mut state = seed(key, tag);
        while out.len() < self.value_bytes {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            out.extend_from_slice(&mix(state).to_le_bytes());
        }
        out.truncate(self.value_bytes);
    }

    /// Whether [`Records::value`] made this value for this key.
    pub(crate) fn check(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let wrong = || {
            Error::corrupt("a read returned a value that was never written")
                .with("key", format!("{key:02x?}"))
        };
        if value.len() != self.value_bytes {
            return Err(wrong()
                .with("value bytes", value.len())
                .with("expected", self.value_bytes));
        }
        let Some((tag, rest)) = value.split_first_chunk::<8>() else {
            return Ok(());
        };
        let mut state = seed(key, u64::from_le_bytes(*tag));
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        let (words, tail) = rest.as_chunks::<8>();
        let same = words.iter().all(|word| next() == u64::from_le_bytes(*word));
        match same && next().to_le_bytes()[..tail.len()] == *tail {
            true => Ok(()),
            false => Err(wrong()),
        }
    }
}

fn seed(key: &[u8], tag: u64) -> u64 {
    let mut head = [0; 8];
    let count = key.len().min(8);
    head[..count].copy_from_slice(&key[..count]);
    mix(u64::from_le_bytes(head) ^ tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_number_of_later_keys_is_right() {
        assert_eq!(Records::follow(&[0; 8], 1000), 999);
        assert_eq!(
            Records::follow(&[0x80, 0, 0, 0, 0, 0, 0, 0, b'k'], 1000),
            499
        );
        assert_eq!(Records::follow(&[0xff; 8], u64::MAX), 0);
    }

    #[test]
    fn a_value_belongs_to_its_key_and_no_other() {
        for value_bytes in [0, 3, 8, 9, 120, 1016] {
            let records = Records::new(8, value_bytes).unwrap();
            let (mut a, mut b, mut value) = (Vec::new(), Vec::new(), Vec::new());
            records.key(1, &mut a);
            records.key(2, &mut b);
            assert_ne!(a, b);
            records.value(&a, 77, &mut value);
            assert_eq!(value.len(), value_bytes);
            records.check(&a, &value).unwrap();
            if value_bytes > 8 {
                assert!(records.check(&b, &value).is_err());
                *value.last_mut().unwrap() ^= 1;
                assert!(records.check(&a, &value).is_err());
            }
            value.push(0);
            assert!(records.check(&a, &value).is_err());
        }
        assert!(Records::new(7, 100).is_err());
    }
}
