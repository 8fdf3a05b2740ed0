//! Merges and point reads, compared with a map.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use terrapin_base::ErrorKind;
use terrapin_pages::block::Compression;
use terrapin_plain::{Plain, PlainParams};
use terrapin_structure::{Found, Merge, MergeStep, Structure, StructureId};

use super::world::{Input, Messages, Random, World, check_content, findings, pages};

#[test]
fn random_merges_match_a_map_and_account_for_every_page() {
    for seed in 1..5 {
        let (mut world, mut random) = (World::new(), Random(seed));
        for round in 0..12 {
            world.options.compression = [Compression::None, Compression::Lz4][random.below(2)];
            world.options.space_is_short = random.below(4) == 0;
            let count = [0, 1, 40, 400][random.below(4)];
            let mut messages = random.messages(count);
            if round == 8 {
                messages = world.oracle.keys().map(|key| (key.clone(), None)).collect();
            }
            world.merge(&messages);
            assert_eq!(world.oracle.is_empty(), pages(&*world.version).is_empty());
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
fn a_second_worker_waits_until_the_first_one_ends_its_step() {
    let mut world = World::new();
    let messages = Random(7).messages(300);
    let second: Arc<OnceLock<Weak<dyn Merge>>> = Arc::default();
    let waiting = Arc::new(Mutex::new(None));
    let (merge_of_second, told) = (second.clone(), waiting.clone());
    let input = Arc::new(Input {
        messages: messages.clone().into_iter().collect(),
        before_move: Box::new(move || {
            let merge = merge_of_second.get().and_then(Weak::upgrade).unwrap();
            let MergeStep::Pending(condition) = merge.step().unwrap() else {
                panic!("a second worker found the first one's work");
            };
            assert!(!condition.holds());
            *told.lock().unwrap() = Some(condition);
        }),
    });
    let begun = world
        .structure
        .begin_merge(&world.version, input, &world.options);
    let merge = begun.unwrap();
    second.set(Arc::downgrade(&merge)).unwrap();
    let mut waits = 0;
    while !matches!(merge.step().unwrap(), MergeStep::Done) {
        let condition = waiting.lock().unwrap().take();
        waits += usize::from(condition.is_some_and(|condition| condition.holds()));
    }
    assert!(waits > 2);
    world.take(&messages, &*merge);
}

#[test]
fn a_structure_says_what_it_does() {
    let world = World::grown(11);
    assert_eq!(world.structure.id(), StructureId::PLAIN);
    assert!(world.structure.compacts().is_none() && world.structure.merges_privately());
    assert!(!world.structure.adopts(StructureId::LEVELED));
    let params = PlainParams {
        is_ordered: false,
        merges_privately: false,
        ..PlainParams::new(world.budget.clone())
    };
    let unordered = Plain::new(world.store.clone(), params);
    assert!(!unordered.merges_privately());
    let version = unordered.open(&world.version.root()).unwrap();
    assert!(version.ordered().is_none());
    for (key, value) in &world.oracle {
        assert_eq!(version.get(key, 0).unwrap(), Found::Value(value[..].into()));
    }
    assert_eq!(findings(&*version), [""; 0]);
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
