//! Checks of separated values.

use std::path::Path;

use terrapin::{CheckpointDistance, Keyspace, KeyspaceOptions, SpaceAmplification};
use terrapin_disk::SimDisk;

use super::{Outcome, key, text, tiny};
use crate::process::Process;

/// Bytes of a value.
const VALUE_BYTES: usize = 1 << 10;
const RECORDS: u64 = 1500;

/// The asked space holds while a writer never pauses.
pub(in crate::mutants) fn space(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(80));
    let options = tiny()
        .memory(16 << 20)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(6));
    let database = world.open(&options).map_err(text("open"))?;
    let bounded = KeyspaceOptions::new()
        .separate_from(512)
        .space_amplification(SpaceAmplification::from(1.3));
    let created = database.create_keyspace("values", bounded);
    let keyspace = created.map_err(text("create"))?;
    let mut random = 7u64;
    let bytes = RECORDS * (key(0).len() + VALUE_BYTES) as u64;
    let mut most = 0;
    for number in 0..12 * RECORDS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let record = match number < RECORDS {
            true => number,
            false => (random >> 33) % RECORDS,
        };
        let mut value = number.to_le_bytes().to_vec();
        value.resize(VALUE_BYTES, b'.');
        keyspace.put(key(record), value).map_err(text("put"))?;
        if number > 6 * RECORDS && number % (RECORDS / 50) == 0 {
            let stat = database.stat().map_err(text("stat"))?;
            let mut keyspaces = stat.keyspaces.iter();
            let found = keyspaces.find(|keyspace| keyspace.name == "values");
            most = most.max(found.map_or(0, |keyspace| keyspace.tree.page_bytes));
        }
    }
    drop(keyspace);
    world.kill(Some(database));
    match most * 100 <= bytes * 135 {
        true => Ok(()),
        false => Err(format!("{most} bytes of pages for {bytes} of records")),
    }
}

/// The map of separated values gives no value that was overwritten.
pub(in crate::mutants) fn located(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(81));
    let options = tiny()
        .memory(16 << 20)
        .group_bytes(16 << 10)
        .record_cache(false);
    let database = world.open(&options).map_err(text("open"))?;
    let created = database.create_keyspace("values", KeyspaceOptions::new().separate_from(512));
    let keyspace = created.map_err(text("create"))?;
    let value = |record: u64, round: u64| [record as u8, round as u8].repeat(300);
    let check = |keyspace: &Keyspace, round: u64| {
        for record in 0..RECORDS {
            let got = keyspace.get(key(record)).map_err(text("get"))?;
            if got.as_deref() != Some(&value(record, round)[..]) {
                return Err(format!("a wrong value of record {record} in round {round}"));
            }
        }
        Ok(())
    };
    for round in 0..3 {
        for record in 0..RECORDS {
            let put = keyspace.put(key(record), value(record, round));
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        for _ in 0..2 {
            check(&keyspace, round)?;
            world.sim.settle();
        }
    }
    if database.metrics().location_hits < RECORDS {
        return Err("the map answered few gets".to_owned());
    }
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}
