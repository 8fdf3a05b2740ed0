//! A check of deadlines: values end, stay ended, and hide what is below them.

use std::path::Path;
use std::time::Duration;

use terrapin::{Database, Keyspace, KeyspaceOptions, StructureKind};
use terrapin_base::{Env, Sim};
use terrapin_disk::SimDisk;

use super::{Outcome, key, text, tiny};

const TTL: Duration = Duration::from_secs(10);
const PAST_NS: u64 = 11_000_000_000;
/// The wall clock at the beginning, in milliseconds since 1970.
const START_MS: u64 = 1_800_000_000_000;

fn is(found: bool, expected: bool, what: &str) -> Outcome {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: the value is there: {found}")),
    }
}

fn open(env: &Env, disk: &SimDisk) -> Result<Database, String> {
    let opened = tiny().open_on(env.clone(), disk.handle());
    opened.map_err(text("open"))
}

fn contains(keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool, String> {
    let got = keyspace.get(&key).map_err(text("get"))?.is_some();
    let ranged = keyspace.prefix(&key).next().is_some();
    match got == ranged {
        true => Ok(got),
        false => Err(format!("a get finds {got}, a range {ranged}")),
    }
}

/// Values with a deadline in memory, in trees and over restarts with the clock set back.
pub(in crate::mutants) fn deadlines(_scratch: &Path) -> Outcome {
    for (seed, restart) in (1..).zip(["none", "close", "kill", "checkpoint and kill"]) {
        let (env, sim) = Env::simulated(seed);
        let disk = SimDisk::new(seed);
        sim.set_wall_ms(START_MS);
        let database = open(&env, &disk)?;
        let keyspace = database.default_keyspace();
        // So many that what expires is too little to be compacted: a checkpoint would note now.
        for number in 0..1000 {
            let put = keyspace.put(key(number), [7; 40]);
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        // Few enough to stay in a buffer.
        for number in (0..400).step_by(20) {
            let put = keyspace.put_with_ttl(key(number), "short", TTL);
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        for _ in 0..3 {
            is(contains(&keyspace, key(20))?, true, "before its deadline")?;
        }
        sim.advance_ns(PAST_NS);
        is(contains(&keyspace, key(20))?, false, "after its deadline")?;
        for _ in 0..4 {
            keyspace.put(key(1), [8; 40]).map_err(text("put"))?;
            database.checkpoint().map_err(text("checkpoint"))?;
        }
        is(contains(&keyspace, key(20))?, false, "after merges")?;
        stays(&env, &sim, &disk, (database, keyspace), restart)?;
    }
    depends()?;
    lasts_as_the_keyspace_says()?;
    let structures = [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ];
    // One of two records expires, and one of eight.
    structures
        .into_iter()
        .try_for_each(|structure| frees(structure, 2).and_then(|()| frees(structure, 8)))
}

/// A value lasts as long as the keyspace says if nobody else does.
fn lasts_as_the_keyspace_says() -> Outcome {
    let (env, sim) = Env::simulated(7);
    let disk = SimDisk::new(7);
    let database = open(&env, &disk)?;
    let options = KeyspaceOptions::new().ttl(TTL);
    let keyspace = database.create_keyspace("k", options);
    let keyspace = keyspace.map_err(text("create"))?;
    keyspace.put("a", "short").map_err(text("put"))?;
    is(
        contains(&keyspace, "a")?,
        true,
        "before the end of its time",
    )?;
    sim.advance_ns(PAST_NS);
    is(contains(&keyspace, "a")?, false, "after the time to live")
}

/// The records that expire, one of `every`, are shown with their deadline, and their space comes
/// back.
fn frees(structure: StructureKind, every: u64) -> Outcome {
    let (env, sim) = Env::simulated(8);
    let disk = SimDisk::new(8);
    let database = open(&env, &disk)?;
    let options = KeyspaceOptions::new().structure(structure);
    let keyspace = database.create_keyspace("k", options);
    let keyspace = keyspace.map_err(text("create"))?;
    for number in 0..1000 {
        let put = match number % every {
            0 => keyspace.put_with_ttl(key(number), [7; 40], TTL),
            _ => keyspace.put(key(number), [7; 40]),
        };
        put.map_err(text("put"))?;
    }
    for merged in [false, true] {
        if merged {
            database.checkpoint().map_err(text("checkpoint"))?;
        }
        let mut records = keyspace.unordered();
        let mut expiring = 0;
        while let Some(record) = records.next_with_deadline().map_err(text("range"))? {
            expiring += u64::from(record.2.is_some());
        }
        if expiring != 1000 / every {
            return Err(format!("{expiring} of 1000 records show a deadline"));
        }
    }
    for _ in 0..70 {
        sim.advance_ns(1_000_000_000);
        sim.settle();
    }
    let count = keyspace.approximate_count().map_err(text("count"))?;
    match count < 1000 - 1000 / every + 60 {
        true => Ok(()),
        false => Err(format!(
            "{count} of 1000 records stay, of which one of {every} has expired"
        )),
    }
}

/// What was seen expired stays so after a restart with the clock set back.
fn stays(
    env: &Env,
    sim: &Sim,
    disk: &SimDisk,
    (mut database, mut keyspace): (Database, Keyspace),
    restart: &str,
) -> Outcome {
    let put = keyspace.put_with_ttl("last", "short", TTL);
    put.map_err(text("put"))?;
    sim.advance_ns(PAST_NS);
    is(contains(&keyspace, "last")?, false, "after its deadline")?;
    if restart == "checkpoint and kill" {
        database.checkpoint().map_err(text("checkpoint"))?;
    } else {
        // The log notes now.
        sim.advance_ns(2_000_000_000);
        sim.settle();
    }
    match restart {
        "none" => {}
        "close" => {
            drop(keyspace);
            database.close().map_err(text("close"))?;
            drop(database);
            sim.set_wall_ms(START_MS);
            database = open(env, disk)?;
            keyspace = database.default_keyspace();
        }
        _ => {
            drop(keyspace);
            sim.kill();
            disk.crash_process();
            drop(database);
            sim.kill();
            sim.set_wall_ms(START_MS);
            database = open(env, disk)?;
            keyspace = database.default_keyspace();
        }
    }
    sim.set_wall_ms(START_MS);
    is(contains(&keyspace, "last")?, false, restart)?;
    is(contains(&keyspace, key(20))?, false, restart)?;
    drop(keyspace);
    database.close().map_err(text("close")).map(drop)
}

/// A conditional write does not use a value that another view saw expired.
fn depends() -> Outcome {
    let (env, sim) = Env::simulated(9);
    let disk = SimDisk::new(9);
    let database = open(&env, &disk)?;
    let keyspace = database.default_keyspace();
    let put = keyspace.put_with_ttl("a", "short", TTL);
    put.map_err(text("put"))?;
    let updated = keyspace.update("a", |value| {
        if value.is_none() {
            return Some(b"of nothing".to_vec());
        }
        sim.advance_ns(PAST_NS);
        let _ = keyspace.get("a");
        Some(b"of an expired value".to_vec())
    });
    let updated = updated.map_err(text("update"))?;
    match updated.as_deref() {
        Some(b"of nothing") => Ok(()),
        _ => Err("an update used a value that another read saw expired".to_owned()),
    }
}

/// No view sees a value expired before the write that depends on it. Only code inside of the engine
/// can time such a view.
#[cfg(terrapin_mutants)]
pub(in crate::mutants) fn between(_scratch: &Path) -> Outcome {
    terrapin::testing::between::check()
}

#[cfg(not(terrapin_mutants))]
pub(in crate::mutants) fn between(_scratch: &Path) -> Outcome {
    Err("this check needs a build with --cfg terrapin_mutants".to_owned())
}
