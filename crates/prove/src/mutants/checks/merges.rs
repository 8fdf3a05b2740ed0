//! Checks of merges: operands count once each, over cached values, in unlogged batches, and over
//! records that an ingest brings below them.

use std::path::Path;

use terrapin::{CheckpointDistance, Durability, ErrorKind, KeyspaceOptions};
use terrapin_disk::SimDisk;

use super::{Outcome, key, text, tiny};
use crate::process::Process;

const COUNT: u64 = 300;

/// Counters that were read before they were merged, and counters that one unlogged batch merges.
pub(in crate::mutants) fn counters(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(52));
    let database = world.open(&tiny().memory(4 << 20)).map_err(text("open"))?;
    let options = KeyspaceOptions::new().merge_operator("add-i64");
    let keyspace = database
        .create_keyspace("counters", options)
        .map_err(text("create"))?;
    let all_are = |wanted: i64, what: &str| -> Outcome {
        for number in 0..COUNT {
            let value = keyspace.get(key(number)).map_err(text("get"))?;
            if value.as_deref() != Some(&wanted.to_le_bytes()[..]) {
                return Err(format!(
                    "{what}: counter {number} has {value:?}, not {wanted}"
                ));
            }
        }
        Ok(())
    };
    for number in 0..COUNT {
        let put = keyspace.put(key(number), 1i64.to_le_bytes());
        put.map_err(text("put"))?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    all_are(1, "a put")?;
    all_are(1, "a put, read again")?;
    for number in 0..COUNT {
        let merged = keyspace.merge(key(number), 2i64.to_le_bytes());
        merged.map_err(text("merge"))?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    all_are(3, "operands over a value that was read")?;
    for number in 0..COUNT {
        let mut batch = database.batch();
        for operand in [4i64, 8, 16] {
            batch.merge(&keyspace, key(number), operand.to_le_bytes());
        }
        let written = database.write_with(&batch, Durability::None);
        written.map_err(text("write"))?;
    }
    all_are(31, "operands of one unlogged batch")?;
    database.checkpoint().map_err(text("checkpoint"))?;
    all_are(31, "operands of one unlogged batch, merged")?;
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}

/// Operands that their operator refuses stay until a delete of the key.
pub(in crate::mutants) fn failing_operator(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(54));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let options = KeyspaceOptions::new().merge_operator("add-i64");
    let keyspace = database.create_keyspace("counters", options);
    let keyspace = keyspace.map_err(text("create"))?;
    let one = 1i64.to_le_bytes();
    keyspace.put("word", "no number").map_err(text("put"))?;
    keyspace.merge("word", one).map_err(text("merge"))?;
    for _ in 0..2 {
        match keyspace.get("word") {
            Err(error) if error.kind() == ErrorKind::Operator => {}
            found => return Err(format!("a number over a word reads as {found:?}")),
        }
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    keyspace.delete("word").map_err(text("delete"))?;
    keyspace.merge("word", one).map_err(text("merge"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let healed = keyspace.get("word").map_err(text("get"))?;
    match healed.as_deref() == Some(&one[..]) {
        true => Ok(()),
        false => Err(format!("after a delete and a merge the key has {healed:?}")),
    }
}

/// A full disk lets no operand count twice, whatever part of its memtable is merged. The room is
/// for some slices of the memtable, and not for all of it.
pub(in crate::mutants) fn on_a_full_disk(_scratch: &Path) -> Outcome {
    const RECORDS: u64 = 6000;
    let world = Process::new(1, SimDisk::new(55));
    let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options).map_err(text("open"))?;
    let options = KeyspaceOptions::new().merge_operator("append");
    let keyspace = database.create_keyspace("words", options);
    let keyspace = keyspace.map_err(text("create"))?;
    for number in 0..RECORDS {
        let put = keyspace.put(key(number), [number as u8; 100]);
        put.map_err(text("put"))?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    world.sim.set_breathing(false);
    for number in (0..RECORDS).step_by(4) {
        let merged = keyspace.merge(key(number), [b'+'; 90]);
        merged.map_err(text("merge"))?;
    }
    world.disk.set_capacity(world.disk.used_bytes());
    // It fails: there is little room.
    let _ = database.checkpoint();
    for room in ["no", "any"] {
        for number in 0..RECORDS {
            let wanted = if number.is_multiple_of(4) { 190 } else { 100 };
            let value = keyspace.get(key(number)).map_err(text("get"))?;
            let bytes = value.map(|value| value.len());
            if bytes != Some(wanted) {
                return Err(format!(
                    "with {room} room, record {number} has {bytes:?} bytes, not {wanted}"
                ));
            }
        }
        world.disk.set_capacity(u64::MAX);
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}

/// Operands that were written and read while an ingest was under way apply to its records.
pub(in crate::mutants) fn ingest(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(53));
    let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(100));
    let database = world.open(&options).map_err(text("open"))?;
    let options = KeyspaceOptions::new().merge_operator("add-i64");
    let keyspace = database
        .create_keyspace("counters", options)
        .map_err(text("create"))?;
    let is = |number: u64, wanted: i64, what: &str| -> Outcome {
        let value = keyspace.get(key(number)).map_err(text("get"))?;
        match value.as_deref() == Some(&wanted.to_le_bytes()[..]) {
            true => Ok(()),
            false => Err(format!("{what}: {number} has {value:?}, not {wanted}")),
        }
    };
    for number in 0..COUNT {
        let put = keyspace.put(key(number), 1i64.to_le_bytes());
        put.map_err(text("put"))?;
    }
    let mut meanwhile = Ok(());
    let records = (0..COUNT).map(|number| {
        if number == COUNT / 2 {
            meanwhile = (0..COUNT).try_for_each(|other| {
                let merged = keyspace.merge(key(other), 10i64.to_le_bytes());
                merged.map_err(text("merge"))?;
                is(other, 11, "an operand beside an ingest")?;
                is(other, 11, "an operand beside an ingest, read again")
            });
        }
        (key(number), 5i64.to_le_bytes())
    });
    keyspace.ingest(records).map_err(text("ingest"))?;
    meanwhile?;
    (0..COUNT).try_for_each(|number| is(number, 15, "an operand over an ingested record"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    (0..COUNT).try_for_each(|number| is(number, 15, "an operand merged into it"))?;
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}
