//! [`Sought`]: a key that is looked up, as memtables and trees know it, and as the record cache
//! does.
//!
//! The record cache finds records by a hash of the key. A hashed keyspace has that hash already, so
//! its records are cached under the keys that users gave. A get of a cached record hashes once, and
//! makes an order key only if a memtable has records.

use terrapin_base::checksum::hash64;

use crate::types::key_form::{KeyForm, KeyHash, OrderKey, PREFIX_BYTES};

/// A key that is looked up. Memtables and trees know it by its stored form. The record cache knows
/// it as the user gave it, and by a hash of that.
pub(crate) trait Sought {
    /// Whether the stored form is at hand. If not, it is made when it is needed.
    const IS_STORED: bool;
    /// The stored form. `buffer` takes an order key.
    fn stored<'s>(&'s self, buffer: &'s mut Option<OrderKey>) -> &'s [u8];
    /// The key in the record cache.
    fn in_caches(&self) -> &[u8];
    /// The hash of the key in the record cache.
    fn cache_hash(&self) -> u64;
    /// The hash of the stored form, from that in the record cache.
    fn hash_of(&self, stored: &[u8], cache_hash: u64) -> u64;
}

/// A key that is looked up and whose stored form is at hand.
pub(crate) trait SoughtStored: Sought {
    /// The stored form.
    fn bytes(&self) -> &[u8];
}

/// A key that is stored as it is given.
#[derive(Clone, Copy)]
pub(crate) struct AsGiven<'k>(pub &'k [u8]);

/// Keys that are stored as they are given.
pub(crate) fn all_as_given<K: AsRef<[u8]>>(keys: &[K]) -> Vec<AsGiven<'_>> {
    keys.iter().map(|key| AsGiven(key.as_ref())).collect()
}

impl Sought for AsGiven<'_> {
    const IS_STORED: bool = true;

    #[inline(always)]
    fn stored<'s>(&'s self, _buffer: &'s mut Option<OrderKey>) -> &'s [u8] {
        self.0
    }

    #[inline(always)]
    fn in_caches(&self) -> &[u8] {
        self.0
    }

    #[inline(always)]
    fn cache_hash(&self) -> u64 {
        hash64(self.0)
    }

    #[inline(always)]
    fn hash_of(&self, _stored: &[u8], cache_hash: u64) -> u64 {
        cache_hash
    }
}

impl SoughtStored for AsGiven<'_> {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// A key of a hashed keyspace, whose order key is made when it is needed.
#[derive(Clone, Copy)]
pub(crate) struct HashedKey<'k> {
    key: &'k [u8],
    hash: u64,
    in_caches: u64,
}

impl KeyHash {
    /// A key with its hash.
    #[inline]
    pub(crate) fn sought(self, key: &[u8]) -> HashedKey<'_> {
        let hash = self.hash(key);
        HashedKey {
            key,
            hash,
            in_caches: self.in_caches(key, hash),
        }
    }
}

impl Sought for HashedKey<'_> {
    const IS_STORED: bool = false;

    #[inline(always)]
    fn stored<'s>(&'s self, buffer: &'s mut Option<OrderKey>) -> &'s [u8] {
        let make = || OrderKey::of(self.key, self.hash, self.in_caches);
        buffer.get_or_insert_with(make).bytes()
    }

    #[inline(always)]
    fn in_caches(&self) -> &[u8] {
        self.key
    }

    #[inline(always)]
    fn cache_hash(&self) -> u64 {
        self.in_caches
    }

    #[inline(always)]
    fn hash_of(&self, stored: &[u8], _cache_hash: u64) -> u64 {
        hash64(stored)
    }
}

impl Sought for OrderKey {
    const IS_STORED: bool = true;

    #[inline]
    fn stored<'s>(&'s self, _buffer: &'s mut Option<OrderKey>) -> &'s [u8] {
        self.bytes()
    }

    #[inline]
    fn in_caches(&self) -> &[u8] {
        self.bytes().get(PREFIX_BYTES..).unwrap_or_default()
    }

    #[inline]
    fn cache_hash(&self) -> u64 {
        self.in_caches
    }

    #[inline]
    fn hash_of(&self, stored: &[u8], _cache_hash: u64) -> u64 {
        hash64(stored)
    }
}

impl SoughtStored for OrderKey {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }
}

/// A stored key of a keyspace of some form.
#[derive(Clone, Copy)]
pub(crate) struct StoredKey<'k> {
    pub form: KeyForm,
    pub key: &'k [u8],
}

impl Sought for StoredKey<'_> {
    const IS_STORED: bool = true;

    #[inline]
    fn stored<'s>(&'s self, _buffer: &'s mut Option<OrderKey>) -> &'s [u8] {
        self.key
    }

    #[inline]
    fn in_caches(&self) -> &[u8] {
        self.form.given(self.key)
    }

    #[inline]
    fn cache_hash(&self) -> u64 {
        let key = self.in_caches();
        match self.form {
            KeyForm::AsGiven => hash64(key),
            KeyForm::Hashed(hash) => hash.in_caches(key, hash.hash(key)),
        }
    }

    #[inline]
    fn hash_of(&self, stored: &[u8], cache_hash: u64) -> u64 {
        match self.form {
            KeyForm::AsGiven => cache_hash,
            KeyForm::Hashed(_) => hash64(stored),
        }
    }
}

impl SoughtStored for StoredKey<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gets, sweeps of memtables and the warm-up must name one record alike.
    #[test]
    fn all_ways_to_a_cached_record_agree() {
        let hashes = [KeyHash::seeded(7), KeyHash::identity_for_tests()];
        let forms = hashes.map(KeyForm::Hashed);
        for key in [&b""[..], b"k", b"a key that is longer", &[9; 1000]] {
            let given = AsGiven(key);
            let cached = (given.in_caches(), given.cache_hash());
            assert_eq!(KeyForm::AsGiven.in_caches(key), Some(cached));
            for (hash, form) in hashes.into_iter().zip(forms) {
                let (sought, order_key) = (hash.sought(key), hash.order_key(key));
                let stored = order_key.bytes();
                let cached = (key, sought.cache_hash());
                assert_eq!(sought.stored(&mut None), stored);
                assert_eq!((order_key.in_caches(), order_key.cache_hash()), cached);
                assert_eq!(form.in_caches(stored), Some(cached));
                let of_stored = StoredKey { form, key: stored };
                assert_eq!((of_stored.in_caches(), of_stored.cache_hash()), cached);
                for hashed in [
                    sought.hash_of(stored, cached.1),
                    order_key.hash_of(stored, cached.1),
                    of_stored.hash_of(stored, cached.1),
                ] {
                    assert_eq!(hashed, hash64(stored));
                }
                // A hash of another key, and none at all: nobody asks for these.
                let mut other = stored.to_vec();
                other[0] ^= 1;
                assert_eq!(form.in_caches(&other), None);
                assert_eq!(form.in_caches(&stored[..4]), None);
            }
        }
    }
}
