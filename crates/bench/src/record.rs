//! The bytes of records: a key from a number, and a value that can be checked against its key.

use std::io::Write;
use std::ops::{Range, RangeInclusive};

use terrapin_base::{Error, Result};

use crate::generator::mix;

/// What keys look like. Each kind puts keys into the order of the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Eight bytes that look random.
    Random,
    /// `user` and twenty decimal digits.
    Decimal,
    /// Addresses of pages on a thousand hosts.
    Url,
}

/// Hosts of [`KeyKind::Url`].
const HOSTS: u64 = 1000;

impl KeyKind {
    /// Bytes of its shortest keys.
    #[must_use]
    pub fn bytes_min(self) -> usize {
        match self {
            KeyKind::Random => 8,
            KeyKind::Decimal => 24,
            KeyKind::Url => 44,
        }
    }

    fn put(self, position: u64, out: &mut Vec<u8>) {
        // Writing to memory cannot fail.
        let _ = match self {
            KeyKind::Random => out.write_all(&position.to_be_bytes()),
            KeyKind::Decimal => write!(out, "user{position:020}"),
            KeyKind::Url => {
                let host = (u128::from(position) * u128::from(HOSTS)) >> 64;
                write!(out, "https://www.site{host:03}.example/{position:016x}")
            }
        };
    }

    /// The position that a key was made of; 0 for what is no such key.
    fn position(self, key: &[u8]) -> u64 {
        let text = |range: Range<usize>| key.get(range).and_then(|t| std::str::from_utf8(t).ok());
        match self {
            KeyKind::Random => key.first_chunk().map(|first| u64::from_be_bytes(*first)),
            KeyKind::Decimal => text(4..24).and_then(|digits| digits.parse().ok()),
            KeyKind::Url => text(28..44).and_then(|digits| u64::from_str_radix(digits, 16).ok()),
        }
        .unwrap_or(0)
    }
}

impl std::str::FromStr for KeyKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "random" => Ok(KeyKind::Random),
            "decimal" => Ok(KeyKind::Decimal),
            "url" => Ok(KeyKind::Url),
            _ => Err(Error::invalid("a kind of keys is random, decimal or url")
                .with("given", text.to_owned())),
        }
    }
}

/// The shape of all records of a run.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    kind: KeyKind,
    key_bytes_min: usize,
    key_bytes_max: usize,
    /// The lengths of values. Each key has one of them.
    values: [usize; VALUE_LENGTHS_MAX],
    value_lengths: usize,
    /// How many records of a hundred have keys in the order of their numbers.
    sequential_percent: u64,
}

/// Makes the bits that choose a length others than those of the value.
const LENGTH_BITS: u64 = 0x5bd1_e995;
/// Different lengths of values, at most.
const VALUE_LENGTHS_MAX: usize = 4;

/// Sequential keys lie in the upper half of all positions, others below.
const SEQUENTIAL: u64 = 1 << 63;

impl Records {
    /// Random keys of at least 8 bytes; values of any size.
    pub fn new(key_bytes: usize, value_bytes: usize) -> Result<Self> {
        Self::of_kind(KeyKind::Random, key_bytes..=key_bytes, value_bytes)
    }

    /// Keys of a kind. Each key has a length of its own within the bounds, which its number
    /// decides.
    ///
    /// Errors: `InvalidArgument` where the shortest keys are too short for the kind, or a key would
    /// be longer than Terrapin takes. Values may be larger than a store takes: the store refuses
    /// the first write.
    pub fn of_kind(
        kind: KeyKind,
        key_bytes: RangeInclusive<usize>,
        value_bytes: usize,
    ) -> Result<Self> {
        let (min, max) = key_bytes.into_inner();
        if min < kind.bytes_min() || max < min || max > terrapin_base::KEY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "keys of this kind have {} to 65,535 bytes",
                kind.bytes_min()
            ))
            .with("kind", format!("{kind:?}").to_lowercase())
            .with("given", format!("{min}..{max}")));
        }
        Ok(Records {
            kind,
            key_bytes_min: min,
            key_bytes_max: max,
            values: [value_bytes; VALUE_LENGTHS_MAX],
            value_lengths: 1,
            sequential_percent: 0,
        })
    }

    /// The same records with values of these lengths, each of as many records as the others. A key
    /// decides the length of its values.
    ///
    /// Errors: `InvalidArgument` without a length, and for more than four.
    pub fn values(mut self, lengths: &[usize]) -> Result<Self> {
        if !(1..=VALUE_LENGTHS_MAX).contains(&lengths.len()) {
            return Err(Error::invalid("values have one to four lengths")
                .with("given", format!("{lengths:?}")));
        }
        self.values[..lengths.len()].copy_from_slice(lengths);
        self.value_lengths = lengths.len();
        Ok(self)
    }

    /// The length of a key's values.
    fn value_bytes(&self, key: &[u8]) -> usize {
        match self.value_lengths {
            1 => self.values[0],
            lengths => {
                let bits = mix(self.kind.position(key) ^ LENGTH_BITS);
                self.values[(bits % lengths as u64) as usize]
            }
        }
    }

    /// The same records, this many of a hundred with keys in the order of their numbers. A load
    /// then writes that share in order (SplinterDB, USENIX ATC '20, §6.4).
    ///
    /// Errors: `InvalidArgument` above 100.
    pub fn sequential(self, percent: u64) -> Result<Self> {
        if percent > 100 {
            return Err(
                Error::invalid("the share of sequential keys is at most 100 %")
                    .with("given", percent),
            );
        }
        Ok(Records {
            sequential_percent: percent,
            ..self
        })
    }

    /// Key and value bytes of one record, on average.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lengths = &self.values[..self.value_lengths];
        let value_bytes = lengths.iter().sum::<usize>() / self.value_lengths;
        ((self.key_bytes_min + self.key_bytes_max) / 2 + value_bytes) as u64
    }

    /// Key and value bytes of the record of a key.
    pub(crate) fn bytes_with(&self, key: &[u8]) -> u64 {
        (key.len() + self.value_bytes(key)) as u64
    }

    /// Whether values have a tag: those of at least eight bytes.
    pub(crate) fn has_tags(&self) -> bool {
        self.values[..self.value_lengths]
            .iter()
            .all(|&bytes| bytes >= 8)
    }

    /// The tag of a value; 0 where it has none.
    pub(crate) fn tag(value: &[u8]) -> u64 {
        value
            .first_chunk()
            .map_or(0, |tag| u64::from_le_bytes(*tag))
    }

    /// The key of record `number`. Consecutive numbers give scattered keys, except sequential ones.
    pub(crate) fn key(&self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        let bits = mix(number.wrapping_add(1));
        let position = if self.sequential_percent == 0 {
            bits
        } else if mix(bits) % 100 < self.sequential_percent {
            SEQUENTIAL | number
        } else {
            bits >> 1
        };
        self.kind.put(position, out);
        let lengths = (self.key_bytes_max - self.key_bytes_min + 1) as u64;
        let length = match lengths {
            1 => self.key_bytes_min,
            _ => self.key_bytes_min + (mix(bits ^ 1) % lengths) as usize,
        };
        out.resize(length, b'k');
    }

    /// The expected number of records with a key above this one. Random keys are spread evenly over
    /// all positions.
    pub(crate) fn follow(&self, key: &[u8], records: u64) -> u64 {
        let position = self.kind.position(key);
        let share = |all: u64, part: u64| ((u128::from(all) * u128::from(part)) >> 64) as u64;
        if self.sequential_percent == 0 {
            return share(u64::MAX - position, records);
        }
        let sequential = |records: u64| records / 100 * self.sequential_percent;
        match position.checked_sub(SEQUENTIAL) {
            Some(number) => sequential(records.saturating_sub(number)),
            None => {
                let random = records - sequential(records);
                share((SEQUENTIAL - 1 - position) << 1, random) + sequential(records)
            }
        }
    }

    /// A value for a key: eight bytes of `tag`, then bits derived from key and tag.
    pub(crate) fn value(&self, key: &[u8], tag: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&tag.to_le_bytes());
        let (mut state, value_bytes) = (self.seed(key, tag), self.value_bytes(key));
        while out.len() < value_bytes {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            out.extend_from_slice(&mix(state).to_le_bytes());
        }
        out.truncate(value_bytes);
    }

    /// Whether [`Records::value`] made this value for this key.
    pub(crate) fn check(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let wrong = || {
            Error::corrupt("a read returned a value that was never written")
                .with("key", format!("{key:02x?}"))
        };
        if value.len() != self.value_bytes(key) {
            return Err(wrong()
                .with("value bytes", value.len())
                .with("expected", self.value_bytes(key)));
        }
        let Some((tag, rest)) = value.split_first_chunk::<8>() else {
            return Ok(());
        };
        let mut state = self.seed(key, u64::from_le_bytes(*tag));
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

    fn seed(&self, key: &[u8], tag: u64) -> u64 {
        mix(self.kind.position(key) ^ tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_as_many_records_follow_a_key_as_there_are() {
        for kind in [KeyKind::Random, KeyKind::Decimal, KeyKind::Url] {
            for percent in [0, 30, 100] {
                let lengths = kind.bytes_min()..=200;
                let records = Records::of_kind(kind, lengths, 100).unwrap();
                let records = records.sequential(percent).unwrap();
                let keys: Vec<Vec<u8>> = (0..10_000).map(|i| key_of(&records, i)).collect();
                let mut sorted = keys.clone();
                sorted.sort();
                sorted.dedup();
                assert_eq!(sorted.len(), keys.len());
                for key in keys.iter().step_by(97) {
                    let behind = sorted.len() - 1 - sorted.binary_search(key).unwrap();
                    let told = records.follow(key, 10_000);
                    assert!(
                        told.abs_diff(behind as u64) < 300,
                        "{told}, {behind} {kind:?}"
                    );
                }
                let mean = keys.iter().map(Vec::len).sum::<usize>() as u64 / 10_000;
                assert!(mean.abs_diff(records.bytes() - 100) <= 2);
            }
        }
    }

    fn key_of(records: &Records, number: u64) -> Vec<u8> {
        let mut key = Vec::new();
        records.key(number, &mut key);
        key
    }

    #[test]
    fn lengths_of_values_are_even_and_belong_to_keys() {
        let records = Records::new(8, 0).unwrap();
        let records = records.values(&[120, 248, 1016]).unwrap();
        let (mut counts, mut value) = ([0; 1017], Vec::new());
        for number in 0..3000 {
            let key = key_of(&records, number);
            records.value(&key, number, &mut value);
            records.check(&key, &value).unwrap();
            assert_eq!(records.bytes_with(&key), 8 + value.len() as u64);
            counts[value.len()] += 1;
        }
        for bytes in [120, 248, 1016] {
            assert!((900..1100).contains(&counts[bytes]), "{bytes}");
        }
        assert_eq!(records.bytes(), 8 + (120 + 248 + 1016) / 3);
        assert!(records.has_tags() && !records.values(&[120, 7]).unwrap().has_tags());
        assert!(records.values(&[]).is_err() && records.values(&[1; 5]).is_err());
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        assert!(Records::of_kind(KeyKind::Decimal, 23..=30, 1).is_err());
        let (shortest, longest) = (44, 43);
        assert!(Records::of_kind(KeyKind::Url, shortest..=longest, 1).is_err());
        assert!(Records::of_kind(KeyKind::Random, 8..=65_536, 1).is_err());
        assert!(Records::new(8, 1).unwrap().sequential(101).is_err());
        assert!("uuid".parse::<KeyKind>().is_err());
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
