//! Merges and point reads, compared with a map.

use terrapin_base::ErrorKind;
use terrapin_base::checksum::hash64;
use terrapin_pages::block::Compression;
use terrapin_structure::{Found, Merge, MergeStep, Structure, StructureId};

use super::world::{Messages, Random, World, check_content, pages};

#[test]
fn random_merges_match_a_map_and_account_for_every_page() {
    for (seed, shape) in (1..).zip([(1, 11), (2, 12), (4, 13), (5, 12), (8, 11)]) {
        let (mut world, mut random) = (World::shaped(shape), Random(seed));
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
}

#[test]
fn a_merge_without_input_changes_nothing() {
    let mut world = World::grown(9);
    let (root, live) = (world.version.root(), world.store.live_bytes());
    world.merge(&Messages::new());
    assert_eq!(
        (world.version.root(), world.store.live_bytes()),
        (root, live)
    );
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    let mut world = World::new();
    let good = world.options.clone();
    for (group_bytes, block_bytes) in [(0, 512), (1 << 40, 512), (4096, 511), (4096, 1 << 20)] {
        world.options.group_bytes = group_bytes;
        world.options.block_bytes = block_bytes;
        let begun = world.structure.begin_merge(
            &world.version,
            super::world::input(&Random(1).messages(3)),
            &world.options,
        );
        let error = begun.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    world.options = good;
    world.merge(&Random(1).messages(3));
}

#[test]
fn places_and_keys_of_a_lookup_must_be_as_many() {
    let world = World::grown(3);
    let error = world
        .version
        .multi_get(&[(b"a", 1)], &mut [Found::Nothing, Found::Nothing]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn several_workers_make_the_same_version_as_one() {
    let (mut world, mut random) = (World::new(), Random(5));
    for _ in 0..8 {
        let messages = random.messages(300);
        let merge = world.begin(&messages);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| together(&*merge));
            }
        });
        world.take(&messages, &*merge);
    }
}

fn together(merge: &dyn Merge) {
    loop {
        match merge.step().unwrap() {
            MergeStep::Again => {}
            MergeStep::Pending(condition) => {
                while !condition.holds() {
                    std::thread::yield_now();
                }
            }
            MergeStep::Done => break,
        }
    }
}

#[test]
fn a_structure_says_what_it_does() {
    let world = World::grown(11);
    assert_eq!(world.structure.id(), StructureId::HASHED);
    assert!(world.structure.compacts().is_some() && !world.structure.merges_privately());
    assert!(!world.structure.adopts(StructureId::LEVELED));
}

/// Compacts everything, stretch by stretch, from a key up to another.
fn compact(world: &mut World, from: &[u8], to: Option<&[u8]>) -> usize {
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

#[test]
fn compactions_leave_bases_where_they_were_asked() {
    let mut world = World::grown(15);
    let before = world.buffered_records();
    assert!(compact(&mut world, b"\x40", Some(b"\x80")) > 0);
    let between = world.buffered_records();
    assert!(between < before && between > 0, "{before} {between}");
    assert!(compact(&mut world, b"", None) > 1);
    assert_eq!(world.buffered_records(), 0);
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
    assert!(after * 3 < before, "{before} {after}");
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

/// Order keys of numbers.
fn numbered(numbers: std::ops::Range<u32>, bytes: usize) -> Messages {
    let record = |number: u32| {
        let own = number.to_be_bytes();
        let key = [&hash64(&own).to_be_bytes()[..5], &own].concat();
        (key, Some(vec![7; bytes]))
    };
    numbers.map(record).collect()
}

/// The shape of the paper: leaves split sluggishly, paths are as long as the logarithm says, and a
/// load appends.
#[test]
fn a_load_splits_leaves_and_makes_chains() {
    let mut world = World::shaped((4, 14));
    world.options.group_bytes = 16 << 10;
    let mut longest = 0;
    for round in 0..24 {
        world.merge(&numbered(round * 250..(round + 1) * 250, 90));
        let chains = world.chains();
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
    let mut world = World::shaped((4, 14));
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
    let mut world = World::shaped((4, 11));
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

/// Put, delete and put again over several runs, which are joined while the base stays.
#[test]
fn deletes_stay_in_joined_runs() {
    let mut world = World::shaped((4, 14));
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
    let chains = world.chains();
    let runs = chains.iter().zip(1..).map(|(count, runs)| count * runs);
    runs.sum()
}

/// A group and its list may not be read for a run that is appended.
#[test]
fn an_append_reads_nothing() {
    let mut world = World::shaped((4, 14));
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
    assert!(world.chains()[1] > 3);
}

#[test]
fn deletes_collapse_the_trie() {
    let mut world = World::shaped((4, 13));
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

#[test]
fn the_reserve_serves_merges_when_space_is_short() {
    let mut world = World::grown(13);
    // A slice whose leaves the reserve holds.
    let messages = Random(17).messages(8);
    world.disk.set_capacity(world.disk.used_bytes());
    let mut refused = None;
    for round in 0..200 {
        // Space that the store holds already is used up first.
        let key = |number: u32| {
            let own = format!("{round}/{number}").into_bytes();
            [&hash64(&own).to_be_bytes()[..5], &own].concat()
        };
        let messages = (0..50)
            .map(|number| (key(number), Some(vec![7; 1000])))
            .collect();
        let merge = world.begin(&messages);
        let ended = loop {
            match merge.step() {
                Ok(MergeStep::Done) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        match ended {
            Ok(()) => world.take(&messages, &*merge),
            Err(error) => {
                merge.abandon();
                refused = Some(error.kind());
                break;
            }
        }
    }
    assert_eq!(refused, Some(ErrorKind::NoSpace));
    world.check();
    world.options.space_is_short = true;
    world.merge(&messages);
    check_content(&*world.version, &world.oracle);
}
