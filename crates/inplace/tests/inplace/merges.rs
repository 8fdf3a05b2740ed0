//! What is special about merges of the page-grouped tree.

use terrapin_structure::StructureId;

use crate::leaves::{compacts_where_it_was_asked, merge_at_random};
use crate::trials::world::World;

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
