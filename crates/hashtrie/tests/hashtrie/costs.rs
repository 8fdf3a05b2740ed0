//! What lookups cost beside the records: reads of the device, and memory. All of it is counted.

use terrapin_base::Purpose;
use terrapin_base::checksum::hash64;
use terrapin_structure::Presence;

use crate::kind::{stored, structure};
use crate::trials::world::{Messages, World};

const RECORDS: u32 = 128_000;

/// A key of this many bytes.
fn key(number: u32, bytes: usize) -> Vec<u8> {
    let mut own = number.to_be_bytes().to_vec();
    own.resize(bytes, b'/');
    stored(own)
}

/// A trie of 128-byte records, loaded in eight checkpoints, then overwritten uniformly in eight of
/// a sixteenth each, at the sizes of a database of 128 MiB of memory. Chains have several runs.
fn filled(key_bytes: usize) -> World {
    let mut world = World::of(|store, budget| structure(store, budget, (4, 22)));
    world.options.group_bytes = 1 << 20;
    world.options.block_bytes = 4096;
    world.options.space_amplification_percent = Some(130);
    let value = vec![7; 128 - key_bytes];
    for round in 0..16 {
        let numbers: Vec<u32> = match round {
            0..8 => (round * RECORDS / 8..(round + 1) * RECORDS / 8).collect(),
            _ => (0..RECORDS).filter(|n| n % 16 == round).collect(),
        };
        world.permille = if round < 8 { 0 } else { 1000 };
        let record = |number: u32| (key(number, key_bytes), Some(value.clone()));
        let messages: Messages = numbers.into_iter().map(record).collect();
        world.merge_unchecked(&messages);
    }
    world
}

/// Blocks that lookups of these keys search. Each of them would read the device once if no block
/// were cached.
fn blocks_searched(
    world: &World,
    keys: impl Iterator<Item = Vec<u8>>,
    expected: Presence,
) -> (u64, u64) {
    let searched = || {
        let metrics = world.store.metrics();
        metrics.hits.blocks + metrics.misses.blocks
    };
    let before = searched();
    let mut count = 0;
    for key in keys {
        let found = world.version.contains(&key, hash64(&key)).unwrap();
        assert_eq!(found, expected);
        count += 1;
    }
    (searched() - before, count)
}

#[test]
fn a_cold_get_reads_once_and_an_absent_key_almost_never() {
    let world = filled(8);
    let chains = world.version.stats().unwrap();
    assert!(chains.buffered_records > u64::from(RECORDS) / 20);
    let there = (0..RECORDS).map(|number| key(number, 8));
    let (blocks, gets) = blocks_searched(&world, there, Presence::Present);
    // Required: 1.003.
    assert!(blocks * 1000 <= gets * 1003, "{blocks} for {gets}");
    let absent = (RECORDS..RECORDS * 2).map(|number| key(number, 8));
    let (blocks, gets) = blocks_searched(&world, absent, Presence::Absent);
    // Required: 0.01.
    assert!(blocks * 100 <= gets, "{blocks} for {gets}");
}

#[test]
fn memory_beside_records_does_not_grow_with_keys() {
    for key_bytes in [8, 60] {
        let world = filled(key_bytes);
        world.forget_cache();
        assert!(world.budget.used(Purpose::Metadata) < 64 << 10);
        let there = (0..RECORDS).map(|number| key(number, key_bytes));
        blocks_searched(&world, there, Presence::Present);
        // The charge has an eighth more, for what the allocator loses.
        let bytes = world.budget.used(Purpose::Metadata) * 8 / 9;
        // Required: 3.6 bytes. A sixth of the records is hidden by newer ones here.
        let most = u64::from(RECORDS) * 36 / 10;
        assert!(bytes <= most, "{key_bytes}: {bytes} of {most}");
    }
}
