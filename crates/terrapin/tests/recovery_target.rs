//! `Options::recovery_target`: what a kill leaves to replay is bounded. Bytes of log are counted
//! against the target times the rate of replays; nothing is timed.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{World, tiny};
use terrapin::{CheckpointDistance, Database, Durability, KeyspaceOptions, Options, StructureKind};
use terrapin_base::{Job, Sim, Step};
use terrapin_disk::sim::{Fault, FaultError, Op};

/// Half a GiB of log takes 8 s at the assumed rate: so 1 KiB of log takes 15,259 ns.
const NS_PER_KIB: u64 = 15_259;
const BOUND_KIB: u64 = 96;

fn options() -> Options {
    tiny()
        .memory(4 << 20)
        .log_segment_bytes(64 << 10)
        .log_bytes_max(4 << 20)
}

fn bounded() -> Options {
    options().recovery_target(Duration::from_nanos(BOUND_KIB * NS_PER_KIB))
}

/// Writes to several keyspaces: one of which was written once only, one whose keys are overwritten,
/// one that is loaded, with single writes, batches and deletes. Returns the most that a kill would
/// have left to replay after a write.
fn write(database: &Database, sim: &Sim, count: u64) -> u64 {
    let structures = [
        StructureKind::Leveled,
        StructureKind::Hashed,
        StructureKind::InPlace,
    ];
    let keyspaces: Vec<_> = structures
        .into_iter()
        .enumerate()
        .map(|(number, structure)| {
            let options = KeyspaceOptions::default().structure(structure);
            let name = format!("{number}");
            let created = database.create_keyspace(&name, options);
            created.or_else(|_| database.keyspace(&name)).unwrap()
        })
        .collect();
    let laggard = database.default_keyspace();
    laggard.put("once", "written").unwrap();
    let mut most = 0;
    for number in 0..count {
        let keyspace = &keyspaces[sim.below(3) as usize];
        let value = vec![number as u8; sim.below(300) as usize];
        match sim.below(8) {
            0..4 => keyspace.put(number.to_be_bytes(), value).unwrap(),
            4 | 5 => keyspace.put("hot", value).unwrap(),
            6 => keyspace
                .delete(sim.below(number + 1).to_be_bytes())
                .unwrap(),
            _ => {
                let mut batch = database.batch();
                for keyspace in &keyspaces {
                    batch.put(keyspace, number.to_be_bytes(), &value);
                }
                database.write(&batch).unwrap();
            }
        }
        most = most.max(database.metrics().replay_bytes);
    }
    most
}

#[test]
fn a_kill_leaves_no_more_to_replay_than_the_target_allows() {
    for seed in 0..6 {
        let world = World::new(seed);
        // Without breathing, checkpoints run only while writers wait for them.
        world.sim.set_breathing(seed % 2 == 0);
        let database = world.open(&bounded());
        let bound = database.metrics().replay_bytes_max;
        assert!(bound.abs_diff(BOUND_KIB << 10) < 64, "{bound}");
        for _ in 0..3 {
            let most = write(&database, &world.sim, 1500);
            assert!(most > bound / 4 && most <= bound, "{most} of {bound}");
        }
        let left = database.metrics().replay_bytes;
        world.kill(database);
        let database = world.open(&bounded());
        let replayed = database.metrics().replay_bytes;
        assert!(replayed <= left + 4096 && replayed <= bound, "{replayed}");
        assert!(write(&database, &world.sim, 500) <= bound);
        database.close().unwrap();
    }
}

#[test]
fn without_a_target_a_kill_leaves_what_memtables_hold() {
    let world = World::new(1);
    let database = world.open(&options());
    assert_eq!(database.metrics().replay_bytes_max, 0);
    let most = write(&database, &world.sim, 4500);
    assert!(most > (2 * BOUND_KIB) << 10, "{most}");
    database.close().unwrap();
}

/// A clock that goes on while jobs run.
struct Clock(Sim, Arc<AtomicBool>);

impl Job for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn step(&mut self) -> Step {
        self.0.advance_ns(100_000);
        match self.1.load(Ordering::Relaxed) {
            true => Step::Done,
            false => Step::Again,
        }
    }
}

#[test]
fn the_replay_of_an_open_measures_the_rate() {
    let world = World::new(3);
    let large = || {
        options()
            .memory(32 << 20)
            .group_bytes(64 << 10)
            .log_bytes_max(16 << 20)
            .checkpoint_distance(CheckpointDistance::Fixed(60))
    };
    let target = Duration::from_millis(100);
    let database = world.open(&large());
    let keyspace = database.default_keyspace();
    for number in 0..2500_u32 {
        keyspace.put(number.to_be_bytes(), [7; 700]).unwrap();
    }
    let left = database.metrics().replay_bytes;
    assert!(left > 1 << 20, "{left}");
    world.kill(database);
    let end = Arc::new(AtomicBool::default());
    let clock = Clock(world.sim.clone(), end.clone());
    world.env.spawn(Box::new(clock)).unwrap();
    let before_ns = world.env.now_ns();
    let database = world.open(&large().recovery_target(target));
    let took_ns = world.env.now_ns() - before_ns;
    end.store(true, Ordering::Relaxed);
    let bound = database.metrics().replay_bytes_max;
    // The rate is at least that of the whole open, and far from what is assumed.
    let least = u128::from(left) * target.as_nanos() / u128::from(took_ns);
    let least = u64::try_from(least).unwrap();
    assert!(bound >= least && bound < least * 2, "{bound}, {least}");
    assert!(bound < 6 << 20, "{bound}");
    let keyspace = database.default_keyspace();
    for number in 0..20_000_u32 {
        keyspace.put(number.to_be_bytes(), [8; 400]).unwrap();
        let kept = database.metrics().replay_bytes;
        assert!(kept <= bound.max(left + (16 << 10)), "{kept} of {bound}");
    }
    database.close().unwrap();
}

#[test]
fn writes_go_on_where_no_checkpoint_can_shorten_the_log() {
    let world = World::new(5);
    let database = world.open(&bounded().checkpoint_distance(CheckpointDistance::Fixed(64)));
    let keyspace = database.default_keyspace();
    keyspace.put("a", "b").unwrap();
    database.checkpoint().unwrap();
    let fault = Fault::nth(1, FaultError::Io).on(Op::Write);
    world.disk.inject(fault.of("data").lasting());
    let bound = database.metrics().replay_bytes_max;
    let before_ns = world.env.now_ns();
    // Short records take more of the log than of a memtable, whose limit would refuse them.
    let mut number = 0_u32;
    while database.metrics().replay_bytes <= bound * 5 / 4 {
        keyspace.put(number.to_be_bytes(), "").unwrap();
        number += 1;
    }
    // Nobody waited for the stall limit of a minute.
    assert!(world.env.now_ns() - before_ns < 30_000_000_000);
    world.disk.clear_faults();
    database.checkpoint().unwrap();
    assert!(write(&database, &world.sim, 500) <= bound);
    database.close().unwrap();
}

/// Such a write waited for the stall limit: no checkpoint could help, and none began.
#[test]
fn a_write_that_is_larger_than_the_bound_waits_for_nothing() {
    let world = World::new(9);
    let least = || {
        options()
            .group_bytes(1 << 10)
            .recovery_target(Duration::from_nanos(1))
    };
    let database = world.open(&least());
    let keyspace = database.default_keyspace();
    let bound = database.metrics().replay_bytes_max;
    let before_ns = world.env.now_ns();
    for number in 0..20_u32 {
        keyspace.put(number.to_be_bytes(), [1; 12_000]).unwrap();
        assert!(database.metrics().replay_bytes <= bound / 2 + 16_384);
    }
    assert!(world.env.now_ns() - before_ns < 1_000_000_000);
    database.close().unwrap();
}

#[test]
fn writes_that_the_log_does_not_hold_count_little() {
    let world = World::new(7);
    let database = world.open(&bounded());
    let keyspace = database.default_keyspace();
    for number in 0..2000_u32 {
        let value = [1; 300];
        keyspace
            .put_with(number.to_be_bytes(), value, Durability::None)
            .unwrap();
        let metrics = database.metrics();
        assert!(metrics.replay_bytes <= metrics.replay_bytes_max);
    }
    database.close().unwrap();
}
