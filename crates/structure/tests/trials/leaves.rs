//! Trials of structures whose merges change some leaves and leave others alone, and which have
//! compactions.

use terrapin_pages::block::Compression;
use terrapin_structure::MergeStep;

use crate::trials::world::{Messages, Random, World, pages};

/// Merges random messages into an empty world, and deletes all records once.
pub fn merge_at_random(mut world: World, seed: u64) {
    let mut random = Random(seed);
    for round in 0..20 {
        world.options.compression = [Compression::None, Compression::Lz4][random.below(2)];
        world.options.space_is_short = random.below(4) == 0;
        let count = [0, 1, 15, 40, 400][random.below(5)];
        let mut messages = random.messages(count);
        if round == 8 {
            messages = world.oracle.keys().map(|key| (key.clone(), None)).collect();
        }
        world.merge(&messages);
    }
}

/// Compacts everything, stretch by stretch, from a key up to another.
pub fn compact(world: &mut World, from: &[u8], to: Option<&[u8]>) -> usize {
    let (mut from, mut count) = (Some(Box::from(from)), 0);
    while let Some(at) = from.take() {
        let compacts = world.structure.compacts().unwrap();
        let begun = compacts.begin_compaction(&world.version, (&at, to), 5000, &world.options);
        let Some(compaction) = begun.unwrap() else {
            break;
        };
        from = compaction
            .next
            .filter(|next| to.is_none_or(|to| &next[..] < to));
        while !matches!(compaction.merge.step().unwrap(), MergeStep::Done) {}
        world.take(&Messages::new(), &*compaction.merge);
        count += 1;
    }
    count
}

/// Compacts from one key up to another, then all. `waiting` says what waits for a merge.
pub fn compacts_where_it_was_asked(waiting: fn(&World) -> u64, from: &[u8], to: &[u8]) {
    let mut world = World::grown(15);
    let before = waiting(&world);
    assert!(compact(&mut world, from, Some(to)) > 0);
    let between = waiting(&world);
    assert!(between < before && between > 0, "{before} {between}");
    assert!(compact(&mut world, b"", None) > 1);
    assert_eq!(waiting(&world), 0);
    let work = world
        .structure
        .compacts()
        .unwrap()
        .to_compact(&world.version);
    assert_eq!(work.unwrap().merged_bytes, 0);
    assert_eq!(compact(&mut world, b"", None), 0);
}

#[test]
fn a_leaf_emptied_between_two_full_ones_brings_no_old_record_back() {
    for seed in 1..6 {
        let mut world = World::grown(60 + seed);
        let mut random = Random(seed);
        for _ in 0..4 {
            // A stretch of keys is deleted, then single records are written there.
            let keys: Vec<_> = world.oracle.keys().cloned().collect();
            let from = random.below(keys.len() * 2 / 3);
            let gone = &keys[from..from + keys.len() / 4];
            world.merge(&gone.iter().map(|key| (key.clone(), None)).collect());
            world.merge(&random.messages(10));
            world.merge(&random.messages(10));
        }
    }
}

#[test]
fn deleting_nine_tenths_gives_the_space_back() {
    let mut world = World::grown(71);
    compact(&mut world, b"", None);
    let before = world.store.live_bytes();
    let gone = world
        .oracle
        .keys()
        .enumerate()
        .filter(|(at, _)| at % 10 > 0);
    let gone = gone.map(|(_, key)| (key.clone(), None)).collect();
    world.merge(&gone);
    compact(&mut world, b"", None);
    let after = world.store.live_bytes();
    assert!(after * 5 < before * 2, "{before} {after}");
    let gone = world.oracle.keys().map(|key| (key.clone(), None)).collect();
    world.merge(&gone);
    compact(&mut world, b"", None);
    assert!(pages(&*world.version).is_empty());
}

#[test]
fn a_record_grows_to_200_kib_and_shrinks_again() {
    let mut world = World::grown(73);
    let key = world.oracle.keys().nth(100).unwrap().clone();
    for bytes in [100, 200 << 10, 100, 0, 70_000] {
        world.merge(&Messages::from([(key.clone(), Some(vec![5; bytes]))]));
    }
    world.merge(&Messages::from([(vec![b'k'; 65_535], Some(vec![1; 100]))]));
    world.merge(&Messages::from([(
        vec![b'k'; 65_534],
        Some(vec![1; 256 << 10]),
    )]));
    world.merge(&Random(74).messages(300));
}
