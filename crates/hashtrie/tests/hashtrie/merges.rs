//! What is special about merges of the lazy-trie.

use terrapin_structure::{Figure, MergeStep, StructureId};

use crate::kind::{stored, structure};
use crate::leaves::{compact, compacts_where_it_was_asked, merge_at_random};
use crate::trials::world::{Messages, Random, World};

/// A world of a trie with these bits of a digit, and S as a power of two.
fn shaped(shape: (u8, u8)) -> World {
    World::of(|store, budget| structure(store, budget, shape))
}

/// Leaves by their number of runs, from one on.
fn chains(world: &World) -> Vec<u64> {
    let stats = world.version.stats().unwrap();
    let mut chains = stats
        .named
        .iter()
        .filter(|named| named.0 == "leaves_by_runs");
    match chains.next() {
        Some((_, Figure::List(chains))) => chains.clone(),
        _ => panic!("chains are a list"),
    }
}

#[test]
fn random_merges_match_a_map_and_account_for_every_page() {
    for (seed, shape) in (1..).zip([(1, 11), (2, 12), (4, 13), (5, 12), (8, 11)]) {
        merge_at_random(shaped(shape), seed);
    }
}

#[test]
fn a_structure_says_what_it_does() {
    let world = World::grown(11);
    assert_eq!(world.structure.id(), StructureId::HASHED);
    assert!(world.structure.compacts().is_some() && !world.structure.merges_privately());
    assert!(!world.structure.adopts(StructureId::LEVELED));
}

#[test]
fn compactions_leave_bases_where_they_were_asked() {
    compacts_where_it_was_asked(World::buffered_records, b"\x40", b"\x80");
}

/// Order keys of numbers.
fn numbered(numbers: std::ops::Range<u32>, bytes: usize) -> Messages {
    let record = |number: u32| (stored(number.to_be_bytes().to_vec()), Some(vec![7; bytes]));
    numbers.map(record).collect()
}

/// The shape of the paper: leaves split sluggishly, paths are as long as the logarithm says, and a
/// load appends.
#[test]
fn a_load_splits_leaves_and_makes_chains() {
    let mut world = shaped((4, 14));
    world.options.group_bytes = 16 << 10;
    let mut longest = 0;
    for round in 0..24 {
        world.merge(&numbered(round * 250..(round + 1) * 250, 90));
        let chains = chains(&world);
        let length = chains.iter().rposition(|count| *count > 0).unwrap_or(0) + 1;
        longest = longest.max(length);
        assert!(length <= 16);
    }
    // 600 KB in leaves of at most 16 KiB.
    assert!(world.figure("leaves") >= 40 && world.figure("height") >= 2);
    assert!(world.figure("height") <= 3, "{}", world.figure("height"));
    assert!(longest >= 3, "{longest}");
    assert_eq!(world.figure("overfull_leaves"), 0);
    assert!(world.figure("largest_leaf_bytes") < 40 << 10);
}

#[test]
fn overwriting_keeps_hidden_bytes_and_chains_bounded() {
    let mut world = shaped((4, 14));
    world.options.group_bytes = 8 << 10;
    world.options.space_amplification_percent = Some(130);
    world.merge(&numbered(0..3_000, 90));
    let mut random = Random(5);
    for _ in 0..60 {
        let from = random.below(2_800) as u32;
        world.permille = 1000;
        world.merge(&numbered(from..from + 200, 90));
        let stats = world.version.stats().unwrap();
        let live = world.version.live_bytes().unwrap();
        // One window more may be hidden.
        let (hidden, accepted) = (stats.superseded_bytes, live * 3 / 10);
        assert!(hidden <= accepted + 200 * 120, "{hidden} of {live}");
    }
}

#[test]
fn keys_of_one_hash_make_one_large_leaf() {
    let mut world = shaped((4, 11));
    for round in 0..3_u32 {
        let key = |number: u32| [&b"equal"[..], &number.to_be_bytes()].concat();
        let messages = (0..200).map(|number| (key(number * 3 + round), Some(vec![1; 50])));
        world.merge(&messages.collect());
    }
    assert_eq!(world.figure("overfull_leaves"), 1);
    assert_eq!(world.figure("height"), 10);
    let gone = world.oracle.keys().skip(3).map(|key| (key.clone(), None));
    world.merge(&gone.collect());
    compact(&mut world, b"", None);
    world.merge(&numbered(0..3, 10));
    assert_eq!(world.oracle.len(), 6);
}

/// As the paper confirmed of its trie: inserts and deletes by halves, of twenty times the data,
/// leave as many nodes and bytes a record as after the first time.
#[test]
fn churn_leaves_nodes_and_bytes_a_record_as_they_were() {
    let mut world = shaped((4, 16));
    world.options.group_bytes = 16 << 10;
    world.options.space_amplification_percent = Some(130);
    // 16 leaves of 24 KiB on average; the lowest limit is 32 KiB, far from what chance brings.
    let (records, each) = (3_600, 180);
    let figures = |world: &World| {
        let stats = world.version.stats().unwrap();
        [
            world.figure("nodes"),
            world.figure("leaves"),
            stats.page_bytes,
        ]
    };
    churn(&mut world, 0, records, 0);
    assert_eq!(figures(&world)[..2], [1, 16]);
    // Sums over each turn of the data.
    let mut turns = vec![[0; 3]; 20];
    for (turn, sums) in (0..).zip(&mut turns) {
        for number in 0..10 {
            churn(&mut world, (turn * 10 + number) * each, records, each);
            for (sum, now) in sums.iter_mut().zip(figures(&world)) {
                *sum += now;
            }
        }
    }
    // The first one brings what may be hidden.
    for (turn, sums) in turns.iter().enumerate().skip(2) {
        for (now, first) in sums.iter().zip(&turns[1]) {
            assert!(now.abs_diff(*first) * 20 <= *first, "{turn}: {turns:?}");
        }
    }
}

/// Deletes some numbers from `first` on, and puts as many behind `records`; or loads.
fn churn(world: &mut World, first: u32, records: u32, each: u32) {
    let gone = numbered(first..first + each, 0).into_keys();
    let mut messages: Messages = gone.map(|key| (key, None)).collect();
    let from = if each == 0 { 0 } else { first + records };
    let count = if each == 0 { records } else { each };
    messages.extend(numbered(from..from + count, 95));
    world.merge_unchecked(&messages);
}

/// Put, delete and put again over several runs, which are joined while the base stays.
#[test]
fn deletes_stay_in_joined_runs() {
    let mut world = shaped((4, 14));
    world.options.group_bytes = 16 << 10;
    // Nothing is rewritten for what is hidden.
    world.options.space_amplification_percent = Some(10_000);
    world.merge(&numbered(0..100, 90));
    let keys: Vec<_> = world.oracle.keys().cloned().collect();
    let mut joined = 0;
    for round in 0..60 {
        let before = runs_of(&world);
        let turn = round % 3;
        let some = keys.iter().skip(round % 7).step_by(7);
        let value = |key: &Vec<u8>| (turn != 1).then(|| vec![round as u8; 40 + key.len()]);
        world.merge(&some.map(|key| (key.clone(), value(key))).collect());
        assert!(world.buffered_records() > 0);
        joined += usize::from(runs_of(&world) < before);
    }
    assert!(joined > 2, "{joined}");
}

fn runs_of(world: &World) -> u64 {
    let chains = chains(world);
    let runs = chains.iter().zip(1..).map(|(count, runs)| count * runs);
    runs.sum()
}

/// A group and its list may not be read for a run that is appended.
#[test]
fn an_append_reads_nothing() {
    let mut world = shaped((4, 14));
    world.options.group_bytes = 16 << 10;
    world.merge(&numbered(0..4_000, 90));
    world.forget_cache();
    world.version.stats().unwrap();
    let before = world.store.metrics().read;
    let messages = numbered(4_000..4_200, 90);
    let merge = world.begin(&messages);
    while !matches!(merge.step().unwrap(), MergeStep::Done) {}
    let after = world.store.metrics().read;
    assert_eq!(format!("{after:?}"), format!("{before:?}"));
    world.take(&messages, &*merge);
    assert!(chains(&world)[1] > 3);
}

/// A flush after each write: one record each, for leaves of 160 records.
#[test]
fn a_flush_after_each_write_keeps_chains_and_what_it_writes_small() {
    let mut world = shaped((4, 16));
    world.options.group_bytes = 16 << 10;
    world.merge(&numbered(0..2_500, 90));
    let shape = |world: &World| [world.figure("nodes"), world.figure("leaves")];
    let (before, first) = (world.store.metrics().written, shape(&world));
    let mut longest = 0;
    for number in 0..400 {
        world.merge_unchecked(&numbered(number * 6..number * 6 + 1, 91));
        let chains = chains(&world);
        longest = longest.max(chains.iter().rposition(|count| *count > 0).unwrap_or(0) + 1);
        assert_eq!(shape(&world), first);
    }
    let written = world.store.metrics().written;
    let groups = written.leaves + written.segments - before.leaves - before.segments;
    // Small runs are joined: no chain becomes full, and no leaf is rewritten for a record.
    assert!(longest <= 8, "{longest} runs");
    assert!(groups / 400 <= 3 << 10, "{groups} bytes");
}

#[test]
fn deletes_collapse_the_trie() {
    let mut world = shaped((4, 13));
    world.merge(&numbered(0..3_000, 40));
    assert!(world.figure("leaves") > 16);
    let gone: Messages = numbered(0..2_950, 40)
        .into_keys()
        .map(|key| (key, None))
        .collect();
    world.merge(&gone);
    compact(&mut world, b"", None);
    world.merge(&numbered(2_950..2_951, 41));
    for round in 0..4 {
        world.merge(&numbered(2_951 + round..2_960 + round, 41));
    }
    assert!(world.figure("leaves") <= 17, "{}", world.figure("leaves"));
}
