//! What is special about merges of the page-grouped tree.

use terrapin_structure::{MergeStep, StructureId};

use crate::leaves::{compact, compacts_where_it_was_asked, merge_at_random};
use crate::trials::world::{Messages, World};

#[test]
fn random_merges_match_a_map_and_account_for_every_page() {
    for seed in 1..5 {
        merge_at_random(World::new(), seed);
    }
}

#[test]
fn a_structure_says_what_it_does() {
    let world = World::grown(11);
    assert_eq!(world.structure.id(), StructureId::IN_PLACE);
    assert!(world.structure.compacts().is_some() && !world.structure.merges_privately());
    assert!(!world.structure.adopts(StructureId::LEVELED));
}

#[test]
fn compactions_leave_nothing_waiting_where_they_were_asked() {
    let waiting = |world: &World| world.figure("waiting_groups");
    compacts_where_it_was_asked(waiting, b"common", b"common/prefix/3");
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
fn regular_keys_have_models_in_the_place_of_page_bounds() {
    let mut world = World::new();
    world.options.group_bytes = 64 << 10;
    world.options.block_bytes = 2048;
    let key = |number: u64| {
        [
            &b"sensor/"[..],
            &(1_700_000_000 + 60 * number).to_be_bytes(),
        ]
        .concat()
    };
    let record = |number: u64, value: u8| (key(number), Some(vec![value; 100]));
    world.merge(&(0..4000).map(|number| record(number, 1)).collect());
    let models = |world: &World| world.figure("segments_with_a_model");
    assert!(
        models(&world) * 10 >= world.figure("segments") * 8,
        "{}",
        models(&world)
    );
    // Updates keep the keys. Deletes and longer values make pages irregular.
    world.merge(
        &(0..4000)
            .step_by(3)
            .map(|number| record(number, 2))
            .collect(),
    );
    assert!(
        models(&world) * 10 >= world.figure("segments") * 8,
        "{}",
        models(&world)
    );
    let scattered = (0..4000).filter(|number| number * number % 7 < 2);
    world.merge(&scattered.map(|number| (key(number), None)).collect());
    let long = (0..4000).filter(|number| number * number % 11 == 5);
    world.merge(
        &long
            .map(|number| (key(number), Some(vec![3; 900])))
            .collect(),
    );
    world.options.space_is_short = true;
    world.merge(
        &(0..4000)
            .step_by(2)
            .map(|number| record(number, 4))
            .collect(),
    );
    assert!(models(&world) < world.figure("segments"));
    let mut world = World::grown(5);
    assert_eq!(models(&world), 0, "strings have none");
    world.merge(&(0..4000).map(|number| record(number, 1)).collect());
}

fn numbered(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn puts(numbers: impl Iterator<Item = u32>, value: u8) -> Messages {
    numbers
        .map(|number| (numbered(number), Some(vec![value; 100])))
        .collect()
}

/// Records that wait in an empty tree would have no leaf.
#[test]
fn an_empty_tree_is_built_straight_into_the_line() {
    let mut world = World::new();
    world.merge(&puts(0..2000, 1));
    assert_eq!(world.figure("waiting_groups"), 0);
    assert!(world.figure("map_leaves") > 1);
    let all = (0..2000).map(|number| (numbered(number), None)).collect();
    world.merge(&all);
    compact(&mut world, b"", None);
    assert_eq!(world.figure("segments"), 0);
    world.merge(&puts(5..900, 2));
    assert_eq!(world.figure("waiting_groups"), 0);
}

#[test]
fn a_segment_is_emptied_and_records_come_before_its_first_key() {
    for space_is_short in [false, true] {
        let mut world = World::new();
        world.options.space_is_short = space_is_short;
        world.merge(&puts((1000..4000).step_by(2), 1));
        for from in [1000u32, 1600, 2800, 3900] {
            let gone = (from..from + 300).map(|number| (numbered(number), None));
            let mut messages: Messages = gone.collect();
            // Between the records that go, in front of the first one, and in front of all.
            messages.extend(puts([from - 1, from + 151, from / 10].into_iter(), 2));
            world.merge(&messages);
            world.merge(&puts([from + 1, from + 299].into_iter(), 3));
        }
        compact(&mut world, b"", None);
        assert_eq!(world.figure("waiting_groups"), 0);
    }
}

/// The first key of a leaf is its bound. It is put, deleted and put again while the leaf is
/// merged, split and left alone.
#[test]
fn keys_that_are_bounds_stay_in_their_leaf() {
    let mut world = World::new();
    world.merge(&puts((0..3000).step_by(3), 1));
    for round in 0..12u32 {
        let one = |number: u32| (number % 3 == round % 3).then(|| vec![round as u8; 90]);
        let some = (0..3000).filter(|number| number * 7 % 40 == round * 3 % 40);
        world.merge(&some.map(|number| (numbered(number), one(number))).collect());
        world.options.space_is_short = round % 5 == 4;
    }
}

/// Small leaves are joined with their neighbours, so the map shrinks with its records.
#[test]
fn leaves_that_lose_their_records_are_joined() {
    let mut world = World::new();
    world.merge(&puts(0..6000, 1));
    let before = world.figure("map_leaves");
    for part in 0..6 {
        let gone = (part * 1000..(part + 1) * 1000).filter(|number| number % 12 > 0);
        world.merge(&gone.map(|number| (numbered(number), None)).collect());
    }
    compact(&mut world, b"", None);
    let after = world.figure("map_leaves");
    assert!(after * 4 < before, "{before} leaves became {after}");
}

/// However much waits, a checkpoint rewrites the bytes of six memtables of the line at most, and
/// one leaf. The rest waits for later ones.
#[test]
fn a_checkpoint_rewrites_a_bounded_part_of_the_line() {
    let mut world = World::new();
    world.options.group_bytes = 16 << 10;
    world.merge_unchecked(&puts(0..40_000, 1));
    let line = world.store.live_bytes();
    // Nothing is merged while any space is accepted.
    world.options.space_amplification_percent = Some(100_000);
    for round in 0..3u32 {
        world.merge_unchecked(&puts((0..40_000).filter(|n| n % 9 == round), 2));
    }
    assert!(world.figure("waiting_groups") > 20);
    world.options.space_amplification_percent = Some(101);
    let messages = puts((0..40_000).filter(|n| n % 80 == 7), 3);
    let own = messages.len() as u64 * 104;
    let merge = world.begin(&messages);
    while !matches!(merge.step().unwrap(), MergeStep::Done) {}
    let merged = merge.finish().unwrap();
    let added: u64 = merged.changes.added.iter().map(|page| page.bytes).sum();
    assert!(
        added > 4 * own && added < line / 2,
        "{added} of {line}, {own} came"
    );
    world.store.abandon(merged.changes);
    let before = world.buffered_records();
    for _ in 0..40 {
        world.merge_unchecked(&messages);
    }
    let after = world.buffered_records();
    assert!(after * 4 < before, "{after} of {before} records wait still");
}
