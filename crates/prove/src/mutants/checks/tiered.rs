//! Checks of keyspaces with tiered buffers.

use std::path::Path;

use terrapin::verify::{VerifyOptions, verify_on};
use terrapin::{
    CheckpointDistance, Database, Durability, Figure, Keyspace, KeyspaceOptions, Options,
    SpaceAmplification, StructureKind,
};
use terrapin_disk::SimDisk;

use super::{Outcome, Truth, key, text, tiny};
use crate::process::Process;

fn options() -> Options {
    tiny().memory(4 << 20).record_cache(false)
}

fn tiered() -> KeyspaceOptions {
    KeyspaceOptions::new()
        .structure(StructureKind::Tiered)
        .runs(4)
}

pub(super) fn put(keyspace: &Keyspace, truth: &mut Truth, number: u64, round: u64) -> Outcome {
    let value = format!("{number} of round {round} ").repeat(3).into_bytes();
    let put = keyspace.put_with(key(number), &value, Durability::Process);
    put.map_err(text("put"))?;
    truth.insert(key(number), value);
    Ok(())
}

/// Compares all records, in order and one by one.
pub(super) fn compare(keyspace: &Keyspace, truth: &Truth, what: &str) -> Outcome {
    let mut wanted = truth.iter();
    for record in keyspace.iter() {
        let (key, value) = record.map_err(text(what))?;
        let next = wanted.next().map(|(key, value)| (&key[..], &value[..]));
        if next != Some((&key[..], &value[..])) {
            return Err(format!("{what}: a range has {key:?}, not {next:?}"));
        }
    }
    if let Some((key, _)) = wanted.next() {
        return Err(format!("{what}: a range lacks {key:?}"));
    }
    compare_gets(keyspace, truth, what)
}

/// Compares all records one by one.
pub(super) fn compare_gets(keyspace: &Keyspace, truth: &Truth, what: &str) -> Outcome {
    for (key, value) in truth {
        let got = keyspace.get(key).map_err(text(what))?;
        if got.as_deref() != Some(&value[..]) {
            return Err(format!("{what}: a get of {key:?} has {got:?}"));
        }
    }
    Ok(())
}

/// Uniform puts, ascending ones with stragglers, overwriting, and deletes.
pub(in crate::mutants) fn loads(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(77));
    let database = world.open(&options()).map_err(text("open"))?;
    let created = database.create_keyspace("k", tiered());
    let keyspace = created.map_err(text("create"))?;
    let mut truth = Truth::new();
    let mut end = 0;
    for round in 0..60 {
        match round % 5 {
            0 | 1 => {
                for i in 0..120 {
                    put(
                        &keyspace,
                        &mut truth,
                        (i * 7919 + round * 104_729) % 20_000,
                        round,
                    )?;
                }
            }
            // Behind everything, and some before the end.
            2 | 3 => {
                for i in 0..300 {
                    put(&keyspace, &mut truth, 20_000 + end + i, round)?;
                }
                for i in 0..8 {
                    let back = 1 + i * 37 % (end + 200);
                    put(&keyspace, &mut truth, 20_000 + end + 300 - back, round)?;
                }
                end += 280;
            }
            _ => {
                for i in 0..60 {
                    let number = (i * 331 + round * 17) % 20_000;
                    keyspace.delete(key(number)).map_err(text("delete"))?;
                    truth.remove(&key(number));
                }
            }
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        compare(&keyspace, &truth, &format!("round {round}"))?;
    }
    drop(keyspace);
    database.close().map_err(text("close"))?;
    is_sound(&world)
}

/// Ascending puts that begin at the last key which is there, again and again.
pub(in crate::mutants) fn tail(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(81));
    let database = world.open(&options()).map_err(text("open"))?;
    let created = database.create_keyspace("k", tiered());
    let keyspace = created.map_err(text("create"))?;
    let mut truth = Truth::new();
    for round in 0..12 {
        for i in 0..=100 {
            put(&keyspace, &mut truth, round * 100 + i, round)?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        compare(&keyspace, &truth, &format!("round {round}"))?;
    }
    drop(keyspace);
    database.close().map_err(text("close"))?;
    is_sound(&world)
}

/// Counters whose operands lie in runs of several nodes above their base.
pub(in crate::mutants) fn operands(_scratch: &Path) -> Outcome {
    const COUNTERS: u64 = 2000;
    let world = Process::new(1, SimDisk::new(82));
    let database = world.open(&options()).map_err(text("open"))?;
    let created = database.create_keyspace("k", tiered().merge_operator("add-i64"));
    let keyspace = created.map_err(text("create"))?;
    let mut truth = vec![1_i64; COUNTERS as usize];
    for number in 0..COUNTERS {
        let put = keyspace.put(key(number), 1_i64.to_le_bytes());
        put.map_err(text("put"))?;
    }
    for round in 1..24_u64 {
        for i in 0..60 {
            let number = (i * 331 + round * 17) % COUNTERS;
            let merged = keyspace.merge(key(number), (round as i64).to_le_bytes());
            merged.map_err(text("merge"))?;
            truth[number as usize] += round as i64;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        for (number, wanted) in (0..).zip(&truth) {
            let value = keyspace.get(key(number)).map_err(text("get"))?;
            if value.as_deref() != Some(&wanted.to_le_bytes()[..]) {
                return Err(format!("counter {number} has {value:?}, not {wanted}"));
            }
        }
    }
    drop(keyspace);
    database.close().map_err(text("close"))?;
    is_sound(&world)
}

/// Large memtables over few leaves, and tiny ones over a wide node. A pivot holds at most 16 page
/// groups, and a node about a hundred levels: more than 32, if all pivots have 64 runs at once.
pub(in crate::mutants) fn heaps(_scratch: &Path) -> Outcome {
    for (group_bytes, fanout, runs, first, puts, rounds) in [
        (4 << 10, 4, 64, 1000, 1000, 60),
        (16 << 10, 64, 16, 40, 40, 400),
        (16 << 10, 64, 64, 12_000, 180, 110),
    ] {
        let world = Process::new(1, SimDisk::new(83));
        let options = options()
            .group_bytes(group_bytes)
            .fanout(fanout)
            .checkpoint_distance(CheckpointDistance::Fixed(64));
        let database = world.open(&options).map_err(text("open"))?;
        let unbounded = SpaceAmplification::Unbounded;
        let stored = tiered().runs(runs).space_amplification(unbounded);
        let keyspace = database.create_keyspace("k", stored);
        let keyspace = keyspace.map_err(text("create"))?;
        let mut truth = Truth::new();
        let (mut most, mut levels) = (0, 0);
        let mut number = 0;
        for round in 0..rounds {
            for _ in 0..if round == 0 { first } else { puts } {
                put(&keyspace, &mut truth, number * 7919 % 1_000_003, round)?;
                number += 1;
            }
            database.checkpoint().map_err(text("checkpoint"))?;
            most = most.max(figure(&database, "buffer_pivot_bytes_max")?);
            levels = levels.max(levels_of(&database)?);
        }
        compare(&keyspace, &truth, "at the end")?;
        drop(keyspace);
        world.kill(Some(database));
        if most > 16 * group_bytes {
            return Err(format!(
                "a pivot has {most} bytes of groups of {group_bytes}"
            ));
        }
        if levels > 100 || runs == 64 && puts < 1000 && levels <= 32 {
            return Err(format!("a node has {levels} levels"));
        }
    }
    Ok(())
}

/// A keyspace of many runs that becomes leveled. Its levels become few, a few at a time.
pub(in crate::mutants) fn way_back(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(84));
    let options = options()
        .group_bytes(4 << 10)
        .fanout(16)
        .checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options).map_err(text("open"))?;
    let stored = tiered()
        .runs(16)
        .space_amplification(SpaceAmplification::Unbounded);
    let created = database.create_keyspace("k", stored);
    let keyspace = created.map_err(text("create"))?;
    let mut truth = Truth::new();
    let (mut levels, mut waiting, mut most) = (0, 0u64, 0);
    for round in 0..200 {
        if round == 140 {
            levels = levels_of(&database)?;
            let stat = database.stat().map_err(text("stat"))?;
            waiting = stat.keyspaces.iter().map(|k| k.tree.buffered_bytes).sum();
            let leveled = stored.structure(StructureKind::Leveled);
            keyspace.set_options(leveled).map_err(text("change"))?;
        }
        for i in 0..200 {
            let number = (round * 200 + i) * 7919 % 1_000_003;
            put(&keyspace, &mut truth, number, round)?;
        }
        let before = groups_written(&database);
        database.checkpoint().map_err(text("checkpoint"))?;
        if round >= 140 {
            most = most.max(groups_written(&database) - before);
        }
    }
    compare(&keyspace, &truth, "at the end")?;
    let left = levels_of(&database)?;
    drop(keyspace);
    world.kill(Some(database));
    match levels > 8 && left <= 4 && most < waiting / 2 {
        true => Ok(()),
        false => Err(format!(
            "{levels} levels became {left}, and a checkpoint wrote {most} bytes of {waiting}"
        )),
    }
}

/// Bytes of page groups written so far.
fn groups_written(database: &Database) -> u64 {
    let written = database.metrics().device_written;
    written.leaves + written.segments
}

/// Maplets over many runs, looked up by every read of records that lie below them.
pub(in crate::mutants) fn maplets(_scratch: &Path) -> Outcome {
    maplets_over(8, 4, 24, tiered().runs(64))
}

/// Maplets over more runs than 32 bits can name.
pub(in crate::mutants) fn wide_maplets(_scratch: &Path) -> Outcome {
    let unbounded = SpaceAmplification::Unbounded;
    maplets_over(40, 32, 12, tiered().runs(64).space_amplification(unbounded))
}

fn maplets_over(least: u64, fanout: usize, puts: u64, stored: KeyspaceOptions) -> Outcome {
    let world = Process::new(1, SimDisk::new(80));
    let options = options()
        .group_bytes(8 << 10)
        .fanout(fanout)
        .always_maplets_for_tests(true);
    let database = world.open(&options).map_err(text("open"))?;
    let created = database.create_keyspace("k", stored);
    let keyspace = created.map_err(text("create"))?;
    let mut truth = Truth::new();
    for number in 0..800 {
        put(&keyspace, &mut truth, number, 0)?;
    }
    let mut runs = 0;
    for round in 1..80 {
        for i in 0..puts {
            let number = (i * 331 + round * 104_729) % 1600;
            put(&keyspace, &mut truth, number, round)?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        runs = runs.max(figure(&database, "buffer_runs_max")?);
        if round % 8 == 0 {
            compare(&keyspace, &truth, &format!("round {round}"))?;
        }
    }
    let maplets = figure(&database, "maplets")?;
    drop(keyspace);
    database.close().map_err(text("close"))?;
    match runs > least && maplets > 1 {
        true => is_sound(&world),
        false => Err(format!("{maplets} maplets over up to {runs} runs only")),
    }
}

fn is_sound(world: &Process) -> Outcome {
    let report = verify_on(
        world.env.clone(),
        world.disk.handle(),
        &VerifyOptions::new(),
    );
    let report = report.map_err(text("verify"))?;
    match report.findings.first() {
        None => Ok(()),
        Some(finding) => Err(format!("verify finds: {finding}")),
    }
}

fn stored(
    world: &Process,
    truth: &mut Truth,
    options_of_keyspace: KeyspaceOptions,
) -> Result<Database, String> {
    let database = world.open(&options()).map_err(text("open"))?;
    let created = database.create_keyspace("k", options_of_keyspace);
    let keyspace = created.map_err(text("create"))?;
    for round in 0..12 {
        for i in 0..300 {
            put(
                &keyspace,
                truth,
                (i * 7919 + round * 104_729) % 20_000,
                round,
            )?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    Ok(database)
}

/// Damage in several groups, before checkpoints that would merge them.
pub(in crate::mutants) fn damage(_scratch: &Path) -> Outcome {
    goes_on_beside_damage(tiered(), "buffer_runs_max")
}

/// The same in a page-grouped tree.
pub(in crate::mutants) fn damage_in_place(_scratch: &Path) -> Outcome {
    let options = KeyspaceOptions::new().structure(StructureKind::InPlace);
    goes_on_beside_damage(options, "most_waiting_groups_of_a_leaf")
}

/// No checkpoint fails, and the figure of `runs` stays small.
fn goes_on_beside_damage(options_of_keyspace: KeyspaceOptions, runs: &str) -> Outcome {
    let world = Process::new(1, SimDisk::new(78));
    let mut truth = Truth::new();
    let database = stored(&world, &mut truth, options_of_keyspace)?;
    database.close().map_err(text("close"))?;
    let bytes = world
        .disk
        .content("data")
        .map_or(0, |content| content.len() as u64);
    let mut damaged = 0;
    for offset in (16_384..bytes).step_by(11 << 10) {
        let disk = world.disk.fork();
        disk.corrupt("data", offset, 0x41);
        let report = verify_on(world.env.clone(), disk.handle(), &VerifyOptions::new());
        let report = report.map_err(text("verify"))?;
        let mut findings = report.findings.iter().peekable();
        if findings.peek().is_some() && findings.all(|f| f.place.contains("group")) {
            world.disk.corrupt("data", offset, 0x41);
            damaged += 1;
        }
    }
    if damaged < 8 {
        return Err(format!("{damaged} groups were damaged only"));
    }
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.open_keyspace("k").map_err(text("keyspace"))?;
    let mut now = Truth::new();
    for round in 0..40 {
        for i in 0..300 {
            put(
                &keyspace,
                &mut now,
                (i * 7919 + round * 104_729) % 20_000,
                100 + round,
            )?;
        }
        let done = database.checkpoint();
        done.map_err(text("a checkpoint beside damage"))?;
    }
    let failed = database.metrics().checkpoints_failed;
    let most = figure(&database, runs)?;
    drop(keyspace);
    world.kill(Some(database));
    match failed == 0 && most <= 20 {
        true => Ok(()),
        false => Err(format!("{failed} checkpoints failed, and {runs} is {most}")),
    }
}

/// A figure of the keyspace's tree.
pub(super) fn figure(database: &Database, name: &str) -> Result<u64, String> {
    let stat = database.stat().map_err(text("stat"))?;
    let keyspace = stat.keyspaces.iter().find(|keyspace| keyspace.name == "k");
    let runs = keyspace.and_then(|keyspace| keyspace.tree.figure(name));
    runs.ok_or_else(|| format!("stat has no {name}"))
}

/// Levels of the node that has most of them.
fn levels_of(database: &Database) -> Result<usize, String> {
    let stat = database.stat().map_err(text("stat"))?;
    let keyspace = stat.keyspaces.iter().find(|keyspace| keyspace.name == "k");
    let named = keyspace.map(|keyspace| &keyspace.tree.named);
    let levels = named
        .into_iter()
        .flatten()
        .find_map(|(name, figure)| match figure {
            Figure::List(levels) if *name == "buffer_level_bytes" => Some(levels.len()),
            _ => None,
        });
    levels.ok_or_else(|| "stat has no levels".to_owned())
}

/// A keyspace that becomes tiered, is overwritten, and rests.
pub(in crate::mutants) fn idle(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(79));
    let options = options()
        .group_bytes(4 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(8));
    let database = world.open(&options).map_err(text("open"))?;
    let keyspace = database.keyspace("k").map_err(text("create"))?;
    let changed = keyspace.set_options(
        tiered()
            .runs(32)
            .space_amplification(SpaceAmplification::from(1.5)),
    );
    changed.map_err(text("change"))?;
    let mut truth = Truth::new();
    for round in 0..10 {
        for number in 0..3000 {
            put(&keyspace, &mut truth, number * 37 % 3000, round)?;
        }
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    let runs = figure(&database, "buffer_runs_max")?;
    let before = database.metrics().data_live_bytes;
    let bytes: u64 = truth.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
    if runs < 3 {
        return Err(format!("the buffers have {runs} runs"));
    }
    if before > bytes * 6 {
        return Err(format!("{before} bytes on disk for {bytes}"));
    }
    for _ in 0..30 {
        world.sim.advance_ns(3_000_000_000);
        world.sim.settle();
    }
    let after = database.metrics().data_live_bytes;
    compare(&keyspace, &truth, "at rest")?;
    drop(keyspace);
    world.kill(Some(database));
    match after * 10 < before * 9 {
        true => Ok(()),
        false => Err(format!("{before} bytes became {after} at rest")),
    }
}
