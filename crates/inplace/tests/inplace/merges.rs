//! Merges and point reads, compared with a map.

use terrapin_base::ErrorKind;
use terrapin_pages::block::Compression;
use terrapin_structure::{Found, Merge, MergeStep, Structure, StructureId};

use super::world::{Messages, Random, World, check_content, pages};

#[test]
fn random_merges_match_a_map_and_account_for_every_page() {
    for seed in 1..5 {
        let (mut world, mut random) = (World::new(), Random(seed));
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
    assert_eq!(world.structure.id(), StructureId::IN_PLACE);
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
fn compactions_leave_nothing_waiting_where_they_were_asked() {
    let mut world = World::grown(15);
    let before = world.figure("waiting_groups");
    assert!(compact(&mut world, b"common", Some(b"common/prefix/3")) > 0);
    let between = world.figure("waiting_groups");
    assert!(between < before && between > 0, "{before} {between}");
    assert!(compact(&mut world, b"", None) > 1);
    assert_eq!(world.figure("waiting_groups"), 0);
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

#[test]
fn keys_that_only_grow_fill_segments_and_go_straight_into_the_line() {
    let mut world = World::new();
    world.options.group_bytes = 64 << 10;
    for round in 0..20u32 {
        let record = |i: u32| ((round * 100 + i).to_be_bytes().to_vec(), Some(vec![7; 100]));
        world.merge(&(0..100).map(record).collect());
    }
    assert_eq!(world.figure("waiting_groups"), 0);
    assert!(world.figure("median_segment_pages") >= 12);
}

#[test]
fn the_reserve_serves_merges_when_space_is_short() {
    let mut world = World::grown(13);
    let messages = Random(17).messages(50);
    world.disk.set_capacity(world.disk.used_bytes());
    let mut refused = None;
    for round in 0..200 {
        // Space that the store holds already is used up first.
        let key = |number| format!("{round}/{number}").into_bytes();
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
