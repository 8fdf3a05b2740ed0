//! A merge that ends early, at each step: killed, abandoned, failed, or by a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrapin_base::{Budget, ErrorKind, Generation, Incarnation, Purpose};
use terrapin_disk::sim::{CrashMode, Fault, FaultError};
use terrapin_pages::{PageStore, Superblock};
use terrapin_structure::{Merge, MergeStep};

use super::world::{
    CACHE_BYTES, Input, Random, World, check_content, findings, pages, store_options,
};
use crate::kind::KIND;

/// Steps of a merge, up to `steps`. Returns whether it is done.
fn step_up_to(merge: &dyn Merge, steps: usize) -> bool {
    (0..steps).any(|_| matches!(merge.step().unwrap(), MergeStep::Done))
}

/// Makes the world's version durable as a checkpoint would.
fn make_durable(world: &World) {
    world.store.sync().unwrap();
    let superblock = Superblock {
        generation: Generation(world.generation),
        incarnation: Incarnation(1),
        ..world.store.superblock()
    };
    for slot in [0, 1] {
        world.store.write_superblock(slot, &superblock).unwrap();
        world.store.sync().unwrap();
    }
}

#[test]
fn a_kill_at_each_step_leaves_the_old_version_whole() {
    let mut world = World::grown(41);
    let second = Random(43).messages(200);
    world.merge(&second);
    make_durable(&world);
    let (root, oracle) = (world.version.root(), world.oracle.clone());
    let mut steps = 0;
    loop {
        let disk = world.disk.fork();
        let budget = Budget::new(CACHE_BYTES);
        let open = |incarnation| {
            let (store, superblock) =
                PageStore::open(&disk.handle(), store_options(&budget), false).unwrap();
            let structure = (KIND.structure)(&store, &budget);
            let version = structure.open(&root).unwrap();
            let mut uses = pages(&*version).into_iter().map(Ok);
            store.rebuild(&mut uses, superblock.generation).unwrap();
            store.begin_life(Incarnation(incarnation));
            (store, structure, version)
        };
        let (store, structure, version) = open(2);
        let input = super::world::input(&Random(44).messages(300));
        let merge = structure
            .begin_merge(&version, input, &world.options)
            .unwrap();
        let is_done = step_up_to(&*merge, steps);
        match steps % 3 {
            0 => disk.crash_process(),
            1 => disk.crash_power(CrashMode::KeepAll),
            _ => disk.crash_power(CrashMode::LoseUnsynced),
        }
        drop((merge, version, structure, store));
        let (_store, _structure, version) = open(3);
        check_content(&*version, &oracle);
        assert_eq!(findings(&*version), [""; 0]);
        if is_done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 5, "{steps}");
}

#[test]
fn an_abandoned_merge_gives_its_pages_back_at_each_step() {
    let mut world = World::grown(45);
    let messages = Random(46).messages(300);
    let live = world.store.live_bytes();
    let (mut steps, mut written) = (0, 0);
    loop {
        let merge = world.begin(&messages);
        let is_done = step_up_to(&*merge, steps);
        written = written.max(world.store.live_bytes() - live);
        merge.abandon();
        merge.abandon();
        assert!(merge.finish().is_err());
        assert!(merge.step().is_err());
        assert_eq!(world.budget.used(Purpose::Merge), 0);
        world.check();
        if is_done {
            break;
        }
        steps += 1;
    }
    assert!(written > 0);
    world.merge(&messages);
}

#[test]
fn a_device_error_at_each_call_is_an_error_of_the_merge() {
    let mut world = World::grown(47);
    let messages = Random(48).messages(300);
    let (mut failed, mut retried) = (0, 0);
    for call in 1.. {
        world.forget_cache();
        world.disk.inject(Fault::nth(call, FaultError::Io));
        let begun = world.structure.begin_merge(
            &world.version,
            super::world::input(&messages),
            &world.options,
        );
        let ended = begun.and_then(|merge| {
            let ended = loop {
                match merge.step() {
                    Ok(MergeStep::Done) => break Ok(()),
                    Ok(_) => {}
                    Err(error) => break Err(error),
                }
            };
            assert_eq!(merge.step().is_err(), ended.is_err(), "an error stays");
            merge.abandon();
            assert_eq!(world.budget.used(Purpose::Merge), 0);
            ended
        });
        world.disk.clear_faults();
        world.check();
        match ended {
            // A failed read of several blocks is tried again block by block.
            Ok(()) if retried < 30 && !KIND.merges_whole => retried += 1,
            Ok(()) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                (failed, retried) = (failed + 1, 0);
            }
        }
    }
    assert!(failed > 8, "{failed}");
    world.merge(&messages);
}

#[test]
fn a_panic_in_a_step_gives_the_pages_back() {
    let mut world = World::grown(49);
    let messages = Random(50).messages(300);
    for moves in (1..200).step_by(13) {
        let left = AtomicU64::new(moves);
        let input = Arc::new(Input {
            messages: messages.clone().into_iter().collect(),
            before_move: Box::new(move || {
                assert_ne!(left.fetch_sub(1, Ordering::Relaxed), 1, "on purpose")
            }),
            permille: 0,
        });
        let begun = world
            .structure
            .begin_merge(&world.version, input, &world.options);
        let merge = begun.unwrap();
        let stepped = catch_unwind(AssertUnwindSafe(|| step_up_to(&*merge, usize::MAX)));
        assert!(stepped.is_err());
        assert_eq!(merge.step().err().unwrap().kind(), ErrorKind::Internal);
        merge.abandon();
        assert_eq!(world.budget.used(Purpose::Merge), 0);
        world.check();
    }
    world.merge(&messages);
}
