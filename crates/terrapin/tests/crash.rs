//! Deaths at random points, repeated on one database and in the middle of recovery. After the death
//! of a process, no acknowledged write is lost. After a power cut, all synced writes exist, and the
//! rest is a prefix of the commit order with whole batches.

mod common;

use std::collections::BTreeMap;

use common::{Map, World, all, key, tiny, value};
use terrapin::verify::{Reach, VerifyOptions, reach_on};
use terrapin::{CheckpointDistance, Database, Durability, ErrorKind};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};

/// Keyspaces of the test.
const NAMES: [&str; 3] = ["default", "a", "b"];

/// One write, acknowledged or only begun, as the content of every keyspace after it.
#[derive(Clone)]
struct Moment {
    content: [Map; 3],
    synced: bool,
}

struct History {
    /// The content after each write since the last open. The first is the content that the open
    /// found.
    moments: Vec<Moment>,
}

impl History {
    fn last(&self) -> &Moment {
        self.moments.last().unwrap()
    }
}

fn content(database: &Database) -> [Map; 3] {
    NAMES.map(|name| match database.open_keyspace(name) {
        Ok(keyspace) => all(&keyspace),
        Err(_) => Map::new(),
    })
}

/// Writes until an error; returns the number of acknowledged writes.
fn write(
    world: &World,
    database: &Database,
    history: &mut History,
    count: u64,
    next: &mut u64,
) -> u64 {
    let keyspaces: Result<Vec<_>, _> = NAMES.iter().map(|n| database.keyspace(n)).collect();
    let Ok(keyspaces) = keyspaces else { return 0 };
    for done in 0..count {
        *next += 1;
        let mut moment = history.last().clone();
        moment.synced = world.below(8) == 0;
        let durability = if moment.synced {
            Durability::Sync
        } else {
            Durability::Process
        };
        let place = world.below(3) as usize;
        let number = world.below(120);
        let outcome = match world.below(20) {
            0..=9 => {
                let (k, v) = (key(number), value(*next, 8 + world.below(150) as usize));
                moment.content[place].insert(k.clone(), v.clone());
                keyspaces[place].put_with(k, v, durability)
            }
            10..=13 => {
                moment.content[place].remove(&key(number));
                keyspaces[place].delete_with(key(number), durability)
            }
            14..=18 => {
                let mut batch = database.batch();
                for _ in 0..1 + world.below(6) {
                    let place = world.below(3) as usize;
                    let number = world.below(120);
                    if world.below(3) == 0 {
                        moment.content[place].remove(&key(number));
                        batch.delete(&keyspaces[place], key(number));
                    } else {
                        let v = value(*next, 20);
                        moment.content[place].insert(key(number), v.clone());
                        batch.put(&keyspaces[place], key(number), v);
                    }
                }
                database.write_with(batch, durability)
            }
            _ if world.below(4) == 0 => {
                moment.synced = false;
                moment.content[place].clear();
                keyspaces[place].clear()
            }
            _ => {
                moment.synced = true;
                database.flush()
            }
        };
        history.moments.push(moment);
        // A dead process acknowledges no write, although threads may write to its memory for a
        // while.
        if outcome.is_err() || !world.disk.is_alive() {
            return done;
        }
        if world.below(60) == 0 {
            let _ = database.checkpoint();
        }
    }
    count
}

/// Checks the content after a crash, and makes it the beginning of the next history.
fn check(
    world: &World,
    database: &Database,
    history: &mut History,
    acknowledged: u64,
    power: bool,
    what: &str,
) {
    let found = content(database);
    let acknowledged = acknowledged as usize;
    let least = if power {
        history.moments[..=acknowledged]
            .iter()
            .rposition(|m| m.synced)
            .unwrap_or(0)
    } else {
        acknowledged
    };
    let matches = |m: &Moment| m.content == found;
    assert!(
        history.moments[least..].iter().any(matches),
        "{what}: what was found is none of the moments {least}..{} (it is {:?})",
        history.moments.len(),
        history.moments.iter().position(matches),
    );
    *history = History {
        moments: vec![Moment {
            content: found,
            synced: true,
        }],
    };
    let _ = world;
}

fn run(seed: u64) {
    let world = World::new(seed);
    let mut history = History {
        moments: vec![Moment {
            content: Default::default(),
            synced: true,
        }],
    };
    let mut next = 0;
    let mut opened = 0;
    for life in 0..6 {
        let options = tiny().durability(Durability::Process);
        // Often the open itself is killed.
        if world.below(2) == 0 && life > 0 {
            world.disk.die_at_call(1 + world.below(60));
            let half = world.try_open(&options);
            world.sim.kill();
            world.disk.crash_process();
            drop(half);
            world.sim.kill();
            world.disarm();
        }
        let database = world
            .try_open(&options)
            .unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
        opened += 1;
        check(
            &world,
            &database,
            &mut history,
            0,
            false,
            &format!("seed {seed}, life {life}, reopened"),
        );
        let how = world.below(4);
        if how == 0 {
            world.disk.die_at_call(1 + world.below(400));
        }
        let count = 1 + world.below(300);
        let acknowledged = write(&world, &database, &mut history, count, &mut next);
        let power = how == 1 || (how == 0 && world.below(2) == 0);
        let mode = CrashMode::ALL[world.below(4) as usize];
        world.disarm();
        match (how, power) {
            (3, _) => {
                database.close().unwrap();
                drop(database);
            }
            (_, true) => world.cut_power(database, mode),
            _ => world.kill(database),
        }
        world.verify();
        let database = world
            .try_open(&options)
            .unwrap_or_else(|e| panic!("seed {seed}, life {life}, {mode:?}: {e}"));
        check(
            &world,
            &database,
            &mut history,
            acknowledged,
            power,
            &format!("seed {seed}, life {life}, {how} {mode:?}"),
        );
        drop(database);
    }
    assert_eq!(opened, 6);
}

#[test]
fn nothing_acknowledged_is_lost_and_what_remains_is_a_prefix() {
    for seed in 0..80 {
        run(seed);
    }
}

#[test]
fn recovery_killed_at_every_call_loses_nothing() {
    let world = World::new(77);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut expected = BTreeMap::new();
    for i in 0..400 {
        keyspace.put(key(i % 150), value(i, 120)).unwrap();
        expected.insert(key(i % 150), value(i, 120));
    }
    drop(keyspace);
    world.kill(database);
    for dies_at in 1..200 {
        let disk = world.disk.fork();
        let (env, sim) = terrapin_base::Env::simulated(dies_at);
        let again = World { env, sim, disk };
        for _ in 0..2 {
            again.disk.die_at_call(dies_at);
            let half = again.try_open(&tiny());
            again.sim.settle();
            again.sim.kill();
            again.disk.crash_process();
            drop(half);
            again.sim.kill();
            again.disarm();
        }
        let database = again
            .try_open(&tiny())
            .unwrap_or_else(|e| panic!("killed at call {dies_at}: {e}"));
        assert_eq!(
            all(&database.default_keyspace()),
            expected,
            "killed at call {dies_at}"
        );
        database.close().unwrap();
    }
}

fn reach(world: &World) -> Reach {
    reach_on(world.disk.handle(), &VerifyOptions::default())
        .unwrap()
        .unwrap()
}

/// Guards against keyspaces that a checkpoint took back. It committed during a replay and set the
/// applied LSN of keyspaces without a memtable to the replay's position. They had been flushed
/// beyond that. The next open replayed old records over their trees and undid writes without the
/// log.
#[test]
fn a_checkpoint_during_a_replay_undoes_no_keyspace() {
    let world = World::new(31);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(100)));
    let [default, a, b] = NAMES.map(|name| database.keyspace(name).unwrap());
    for i in 0..400 {
        a.put(key(i), value(i, 100)).unwrap();
        // The first records of this keyspace come when some of the others are merged.
        if i == 230 || i == 320 {
            default.put(key(i), value(i, 20)).unwrap();
        }
    }
    b.put("changed", "1").unwrap();
    b.delete("made").unwrap();
    b.put("gone", "1").unwrap();
    b.put_with("changed", "2", Durability::None).unwrap();
    b.put_with("made", "2", Durability::None).unwrap();
    b.delete_with("gone", Durability::None).unwrap();
    database.flush().unwrap();
    for keyspace in [&default, &a, &b] {
        keyspace.put("later", "3").unwrap();
    }
    let expected = content(&database);
    assert_eq!(expected.each_ref().map(Map::len), [3, 401, 3]);
    drop((default, a, b));
    world.kill(database);
    let first = reach(&world);
    assert!(first.log_from < first.log_through, "a keyspace lags");

    let mut undisturbed = 0;
    for dies_at in (1..200).step_by(3) {
        let disk = world.disk.fork();
        let (env, sim) = terrapin_base::Env::simulated(dies_at);
        let again = World { env, sim, disk };
        let mut last = first.clone();
        for call in [dies_at, u64::MAX, u64::MAX] {
            again.disk.die_at_call(call);
            let opened = again.try_open(&tiny());
            if again.disk.is_alive() {
                again.disarm();
                let found = content(opened.as_ref().unwrap());
                assert_eq!(found, expected, "killed at call {dies_at}");
                undisturbed += 1;
            }
            again.sim.kill();
            again.disk.crash_process();
            drop(opened);
            again.sim.kill();
            let now = reach(&again);
            assert!(
                now.log_from >= last.log_from && now.log_through >= last.log_through,
                "killed at call {dies_at}: {now:?} after {last:?}"
            );
            last = now;
        }
        again.verify();
    }
    assert!(undisturbed >= 134, "{undisturbed}");
}

/// Guards against an open that waited for ever. The checkpoint that found the failed log was over
/// before the replay began to wait for one.
#[test]
fn a_sync_that_fails_during_a_replay_ends_the_open() {
    let distance = |units| tiny().checkpoint_distance(CheckpointDistance::Fixed(units));
    let world = World::new(41);
    let database = world.open(&distance(100));
    let keyspace = database.default_keyspace();
    for i in 0..400 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    drop(keyspace);
    world.kill(database);
    let mut failed = 0;
    for seed in 0..40 {
        for nth in 1..8 {
            let disk = world.disk.fork();
            let (env, sim) = terrapin_base::Env::simulated(seed);
            let again = World { env, sim, disk };
            let fault = Fault::nth(nth, FaultError::Io).on(Op::Sync).of("data");
            again.disk.inject(fault.lasting());
            let opened = again.try_open(&distance(1));
            if let Err(error) = &opened {
                assert!(
                    matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::Io),
                    "sync {nth}, seed {seed}: {error}"
                );
                failed += usize::from(error.kind() == ErrorKind::Poisoned);
            }
            again.sim.kill();
        }
    }
    assert!(failed > 0, "none had the log fail first");
}

#[test]
fn one_seed_is_one_run() {
    let hash = |seed| {
        let world = World::new(seed);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        for i in 0..600 {
            keyspace.put(key(i % 200), value(i, 60)).unwrap();
        }
        database.close().unwrap();
        (world.disk.trace_hash(), world.sim.steps())
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

/// Guards against a torn batch. It was merged in slices, and the first slice was durable when the
/// process died. The log had nothing of the rest.
#[test]
fn a_batch_that_no_log_has_is_not_torn_by_a_death_on_a_full_disk() {
    let mut outcomes = [0; 2];
    for call in (1..).step_by(2) {
        let world = World::new(40);
        let database = world.open(&tiny().group_bytes(16 << 10));
        let keyspace = database.default_keyspace();
        for i in 0..1000 {
            keyspace.put(key(i), value(i, 100)).unwrap();
        }
        database.checkpoint().unwrap();
        let keys: Vec<_> = (5000..5200).map(key).collect();
        let mut batch = database.batch();
        for key in &keys {
            batch.put(&keyspace, key, [7; 69]);
        }
        database.write_with(batch, Durability::None).unwrap();
        // Other programs fill the disk, and free it again.
        world.disk.set_capacity(world.disk.used_bytes());
        world.disk.die_at_call(call);
        if database.checkpoint().is_err() {
            assert!(keys.iter().all(|k| keyspace.contains(k).unwrap()));
            world.disk.set_capacity(u64::MAX);
            let _ = database.checkpoint();
        }
        let died = !world.disk.is_alive();
        drop(keyspace);
        world.kill(database);
        world.disarm();
        world.disk.set_capacity(u64::MAX);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        let found = keys.iter().filter(|k| keyspace.contains(k).unwrap());
        let found = found.count();
        assert!(
            found == 0 || found == keys.len(),
            "{found} of {} after a death at call {call}",
            keys.len()
        );
        outcomes[usize::from(found > 0)] += 1;
        database.close().unwrap();
        world.verify();
        if !died {
            break;
        }
    }
    assert!(outcomes[0] > 5 && outcomes[1] > 2, "{outcomes:?}");
}
