//! What is special about merges of the plain structure.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use terrapin_pages::block::Compression;
use terrapin_plain::{Plain, PlainParams};
use terrapin_structure::{Found, Merge, MergeStep, Structure, StructureId};

use crate::trials::world::{Input, Random, World, findings, pages};

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
        permille: 0,
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
