//! Checksums and hashes: CRC32C protects bytes on disk, xxh3 serves lookups.

/// CRC32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// Continues a CRC32C over more bytes, as if both parts were one.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

/// The 64-bit hash of a key for filters and caches (xxh3). It is part of the format, since filters
/// on disk are built from it.
#[inline]
#[must_use]
pub fn hash64(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// The 64-bit hash of a key under a seed (xxh3). It is part of the format, since hashed keyspaces
/// order their records by it.
#[inline]
#[must_use]
pub fn hash64_seeded(key: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, seed)
}
