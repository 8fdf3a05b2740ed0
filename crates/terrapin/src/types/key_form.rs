//! [`KeyForm`]: the bytes that stand for a user's key in the log, in memtables, in caches and on
//! disk.
//!
//! Most keyspaces store keys as they are given. A hashed keyspace stores *order keys*: the upper 40
//! bits of the key's hash, then the key. Their order is the order of hashes. Everything below the
//! public API sees stored keys only. `api` makes them from the user's keys, and takes the hash off
//! again from what it hands out.
//!
//! The record cache is the exception: it has keys as they were given (`sought`).

use terrapin_base::checksum::{hash64, hash64_seeded};
use terrapin_base::{Error, ErrorKind, KEY_BYTES_MAX, Result};

/// Bytes of hash in front of a key.
pub(crate) const PREFIX_BYTES: usize = 5;
/// The longest key of a hashed keyspace, in bytes.
pub(crate) const HASHED_KEY_BYTES_MAX: usize = KEY_BYTES_MAX - PREFIX_BYTES;
/// Order keys up to this length are made without an allocation.
const SHORT_BYTES: usize = 128;

/// How a hashed keyspace hashes its keys. It is drawn when the keyspace is created, and stored with
/// the options of the keyspace.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    function: HashFunction,
    seed: u64,
}

/// A hash function, by its number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashFunction {
    /// The key's first eight bytes. For tests, which need chosen hashes.
    Identity = 0,
    /// xxh3 with a seed.
    Xxh3 = 1,
}

impl KeyHash {
    /// xxh3 with a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        KeyHash {
            function: HashFunction::Xxh3,
            seed,
        }
    }

    /// The hash of the default keyspace of a database, of which no record tells the creation.
    pub(crate) fn of_default(database_id: u64) -> Self {
        Self::seeded(hash64(&database_id.to_le_bytes()))
    }

    /// The key's first eight bytes, so that a test chooses hashes. Users could choose them, too.
    #[must_use]
    pub fn identity_for_tests() -> Self {
        KeyHash {
            function: HashFunction::Identity,
            seed: 0,
        }
    }

    /// The hash of these numbers on disk; none if this version lacks the function.
    pub(crate) fn from_numbers(function: u64, seed: u64) -> Option<Self> {
        match function {
            0 => Some(Self::identity_for_tests()).filter(|_| seed == 0),
            1 => Some(Self::seeded(seed)),
            _ => None,
        }
    }

    /// The numbers of the function and the seed on disk.
    pub(crate) fn numbers(self) -> (u64, u64) {
        (self.function as u64, self.seed)
    }

    #[inline]
    pub(super) fn hash(self, key: &[u8]) -> u64 {
        match self.function {
            HashFunction::Identity => {
                let mut bytes = [0; 8];
                let count = key.len().min(8);
                bytes[..count].copy_from_slice(&key[..count]);
                u64::from_be_bytes(bytes)
            }
            HashFunction::Xxh3 => hash64_seeded(key, self.seed),
        }
    }

    /// The hash by which caches find a key, from the key's hash. Chosen hashes would all meet in
    /// one place.
    #[inline]
    pub(super) fn in_caches(self, key: &[u8], hash: u64) -> u64 {
        match self.function {
            HashFunction::Identity => hash64(key),
            HashFunction::Xxh3 => hash,
        }
    }

    /// The order key of a key.
    #[inline(never)]
    pub(crate) fn order_key(self, key: &[u8]) -> OrderKey {
        let hash = self.hash(key);
        OrderKey::of(key, hash, self.in_caches(key, hash))
    }
}

fn prefix_of(hash: u64) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [a, b, c, d, e]
}

/// One order key, and the hash by which caches find its key.
#[derive(Clone)]
pub(crate) struct OrderKey {
    pub(super) in_caches: u64,
    memory: OrderKeyMemory,
}

#[derive(Clone)]
enum OrderKeyMemory {
    /// The first bytes are the order key.
    Short([u8; SHORT_BYTES], u8),
    Long(Vec<u8>),
}

impl OrderKey {
    #[inline]
    pub(super) fn of(key: &[u8], hash: u64, in_caches: u64) -> OrderKey {
        let bytes = PREFIX_BYTES + key.len();
        let prefix = prefix_of(hash);
        let memory = if bytes > SHORT_BYTES {
            OrderKeyMemory::Long([&prefix[..], key].concat())
        } else {
            let mut short = [0; SHORT_BYTES];
            short[..PREFIX_BYTES].copy_from_slice(&prefix);
            short[PREFIX_BYTES..bytes].copy_from_slice(key);
            OrderKeyMemory::Short(short, bytes as u8)
        };
        OrderKey { in_caches, memory }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            OrderKeyMemory::Short(bytes, length) => &bytes[..usize::from(*length)],
            OrderKeyMemory::Long(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for OrderKey {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// The form in which a keyspace stores keys. It never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// As they are given.
    #[default]
    AsGiven,
    /// As order keys.
    Hashed(KeyHash),
}

impl KeyForm {
    /// Whether keys have no order for users.
    pub fn is_hashed(self) -> bool {
        matches!(self, KeyForm::Hashed(_))
    }

    /// The stored form of a key to be looked up. `buffer` takes an order key.
    #[inline(always)]
    pub fn stored<'a>(&self, key: &'a [u8], buffer: &'a mut Option<OrderKey>) -> &'a [u8] {
        match self {
            KeyForm::AsGiven => key,
            KeyForm::Hashed(hash) => buffer.insert(hash.order_key(key)).bytes(),
        }
    }

    /// The stored form of a key to be written. Errors: `TooLarge` for a key of more than 65,530
    /// bytes in a hashed keyspace.
    #[inline(always)]
    pub fn written<'a>(&self, key: &'a [u8], buffer: &'a mut Option<OrderKey>) -> Result<&'a [u8]> {
        match self {
            KeyForm::AsGiven => Ok(key),
            KeyForm::Hashed(_) if key.len() > HASHED_KEY_BYTES_MAX => Err(too_long(key.len())),
            KeyForm::Hashed(hash) => Ok(buffer.insert(hash.order_key(key)).bytes()),
        }
    }

    /// The stored forms of keys to be looked up; none if they are stored as they are given.
    pub fn all_stored<K: AsRef<[u8]>>(&self, keys: &[K]) -> Option<Vec<OrderKey>> {
        match self {
            KeyForm::AsGiven => None,
            KeyForm::Hashed(hash) => {
                let order_keys = keys.iter().map(|key| hash.order_key(key.as_ref()));
                Some(order_keys.collect())
            }
        }
    }

    /// The number of bytes in front of the user's key in a stored key.
    #[inline(always)]
    pub fn prefix_bytes(&self) -> usize {
        match self {
            KeyForm::AsGiven => 0,
            KeyForm::Hashed(_) => PREFIX_BYTES,
        }
    }

    /// The user's key of a stored key. A stored key that is too short is shown as it is.
    pub fn given<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        stored.get(self.prefix_bytes()..).unwrap_or(stored)
    }

    /// Whether a stored key is the stored form of the key that it holds.
    pub fn is_sound(&self, stored: &[u8]) -> bool {
        match (self, stored.split_at_checked(PREFIX_BYTES)) {
            (KeyForm::AsGiven, _) => true,
            (KeyForm::Hashed(hash), Some((prefix, key))) => prefix_of(hash.hash(key)) == *prefix,
            (KeyForm::Hashed(_), None) => false,
        }
    }

    /// The key of a stored key in the record cache, and its hash there. `None` for what is no
    /// stored key of this form: no user can ask for it.
    #[inline]
    pub fn in_caches<'a>(&self, stored: &'a [u8]) -> Option<(&'a [u8], u64)> {
        let KeyForm::Hashed(hash) = self else {
            return Some((stored, hash64(stored)));
        };
        let (prefix, key) = stored.split_at_checked(PREFIX_BYTES)?;
        let number = hash.hash(key);
        (prefix_of(number) == *prefix).then(|| (key, hash.in_caches(key, number)))
    }
}

#[cold]
fn too_long(bytes: usize) -> Error {
    let message = "the key is longer than a hashed keyspace allows: use a hash as the key, and \
                   store the whole key in the value";
    Error::new(ErrorKind::TooLarge, message)
        .with("bytes", bytes)
        .with("limit", HASHED_KEY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    pub(crate) fn order_keys_are_the_upper_bits_of_the_hash_and_the_key() {
        let form = KeyForm::Hashed(KeyHash::seeded(7));
        for bytes in [0, 1, 8, 122, 123, 124, 200, HASHED_KEY_BYTES_MAX] {
            let key = vec![b'k'; bytes];
            let mut buffer = None;
            let stored = form.written(&key, &mut buffer).unwrap();
            assert_eq!(stored[..5], hash64_seeded(&key, 7).to_be_bytes()[..5]);
            assert_eq!(form.given(stored), key);
            assert!(form.is_sound(stored));
            let mut other = stored.to_vec();
            other[4] ^= 1;
            assert!(!form.is_sound(&other) && !form.is_sound(&stored[..4]));
        }
        let error = form
            .written(&[0; HASHED_KEY_BYTES_MAX + 1], &mut None)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.to_string().contains("65530"), "{error}");
    }

    #[test]
    fn seeds_give_other_orders_and_numbers_come_back() {
        let of = |hash: KeyHash, key: &[u8]| prefix_of(hash.hash(key));
        let prefix = |seed| of(KeyHash::seeded(seed), b"apple");
        assert_ne!(prefix(1), prefix(2));
        let identity = KeyHash::identity_for_tests();
        assert_eq!(of(identity, b"apples"), *b"apple");
        assert_eq!(of(identity, b"ap"), *b"ap\0\0\0");
        for hash in [identity, KeyHash::seeded(u64::MAX)] {
            let (function, seed) = hash.numbers();
            assert_eq!(KeyHash::from_numbers(function, seed), Some(hash));
        }
        assert!(KeyHash::from_numbers(2, 1).is_none() && KeyHash::from_numbers(0, 1).is_none());
    }
}
