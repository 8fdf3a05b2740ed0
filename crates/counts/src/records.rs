//! The records of all paths: 128 bytes each, with evenly spread keys.

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 120;
/// Key and value bytes of a record.
pub const RECORD_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

/// A permutation of 64-bit numbers: SplitMix64's.
pub fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of a record.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    scramble(number).to_be_bytes()
}

/// The value of a key.
pub fn value(key: &[u8; KEY_BYTES]) -> [u8; VALUE_BYTES] {
    let mut value = [0x5a; VALUE_BYTES];
    let (head, rest) = value.split_at_mut(KEY_BYTES);
    head.copy_from_slice(key);
    rest[..KEY_BYTES].copy_from_slice(key);
    value
}
