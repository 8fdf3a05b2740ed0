//! Merges and point reads, compared with a map.

use terrapin_base::ErrorKind;
use terrapin_structure::{Found, Merge, MergeStep};

use super::world::{Messages, Random, World, check_content};
use crate::kind::KIND;

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
fn the_reserve_serves_merges_when_space_is_short() {
    let mut world = World::grown(13);
    let messages = Random(17).messages(KIND.reserve_messages);
    world.disk.set_capacity(world.disk.used_bytes());
    let mut refused = None;
    for round in 0..200 {
        // Space that the store holds already is used up first.
        let key = |number: u32| (KIND.stored)(format!("{round}/{number}").into_bytes());
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
