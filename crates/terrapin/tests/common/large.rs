//! What tests of large values share.

use std::io::Read;

use terrapin::{CheckpointDistance, Keyspace, Options};

pub const MIB: usize = 1 << 20;

pub fn options(memory: u64) -> Options {
    Options::new()
        .memory(memory)
        .ring_bytes(2 << 20)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .background_threads(1)
}

/// A value whose every MiB differs.
pub fn value(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in out.chunks_mut(8) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(seed | 1);
        let word = state.to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    out
}

/// The value of a key, whatever its length.
pub fn has(keyspace: &Keyspace, key: &str, expected: &[u8]) {
    let mut found = Vec::new();
    let mut reader = keyspace.reader(key).unwrap().unwrap();
    reader.read_to_end(&mut found).unwrap();
    assert!(found == expected, "{key}: {} bytes", found.len());
}
