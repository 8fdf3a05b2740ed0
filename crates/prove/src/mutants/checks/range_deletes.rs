//! Checks of range deletes in trees that are taller than those of the random runs.

use std::path::Path;

use terrapin_disk::SimDisk;

use super::{Outcome, fill, key, text, tiny};
use crate::process::Process;

/// Records of a tree with several levels of nodes.
const RECORDS: u64 = 2_000;

/// A view between two range deletes sees what the older one deleted, and no more.
pub(in crate::mutants) fn between_two(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(56));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    for key in ["a", "c", "y"] {
        keyspace.put(key, "1").map_err(text("put"))?;
    }
    keyspace.delete_range("b".."m").map_err(text("delete"))?;
    let snapshot = database.snapshot().map_err(text("snapshot"))?;
    keyspace.delete_range("a".."z").map_err(text("delete"))?;
    for (key, is_there) in [("a", true), ("c", false), ("y", true)] {
        let found = snapshot.get(&keyspace, key).map_err(text("get"))?;
        if found.is_some() != is_there {
            return Err(format!("between two range deletes, {key} is {found:?}"));
        }
    }
    Ok(())
}

/// A merge that gives up whole subtrees frees all their pages and keeps nothing cached of them.
pub(in crate::mutants) fn subtrees(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(51));
    let options = tiny().memory(4 << 20);
    let database = world.open(&options).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let empty = database.metrics().data_live_bytes;
    let truth = fill(&keyspace, RECORDS, terrapin::Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let full = database.metrics().data_live_bytes - empty;
    let read = |number: u64| keyspace.get(key(number)).map_err(text("get"));
    for number in 0..RECORDS {
        if read(number)?.as_deref() != truth.get(&key(number)).map(|value| &value[..]) {
            return Err(format!("record {number} is wrong before the range delete"));
        }
    }
    let range = key(10)..key(RECORDS - 10);
    keyspace.delete_range(range).map_err(text("delete"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let left = (0..RECORDS).filter_map(|number| match read(number) {
        Ok(None) => None,
        Ok(Some(_)) => Some(Ok(number)),
        Err(error) => Some(Err(error)),
    });
    let left: Vec<u64> = left.collect::<Result<_, _>>()?;
    let wanted: Vec<u64> = (0..10).chain(RECORDS - 10..RECORDS).collect();
    let live = database.metrics().data_live_bytes - empty;
    world.kill(Some(database));
    if left != wanted {
        return Err(format!(
            "{} records are left of a range delete, not {}",
            left.len(),
            wanted.len()
        ));
    }
    if live > full / 10 {
        return Err(format!(
            "{live} of {full} bytes are in use after a range delete of all but {} of {RECORDS} records",
            wanted.len()
        ));
    }
    Ok(())
}
