//! Checks of conditional writes: what another writer does between the read and the write.

use std::path::Path;

use terrapin::{Database, Keyspace};
use terrapin_disk::SimDisk;

use super::lives::log_of_one_record;
use super::{Outcome, key, text, tiny};
use crate::process::Process;

/// What another writer does to the key of an update while its function runs.
type Between = fn(&Database, &Keyspace) -> terrapin::Result<()>;

/// More records than the log keeps touches of.
const MANY: u64 = 17_000;
const KEY: &str = "counter";
const CLEAR: &str = "a clear";
const RANGE_DELETE: &str = "a range delete";

const BETWEEN: &[(&str, Between)] = &[
    ("a put", |_, keyspace| keyspace.put(KEY, [100])),
    ("a batch of 65 keys", |database, keyspace| {
        let mut batch = database.batch();
        (0..64).for_each(|number| batch.put(keyspace, key(number), "x"));
        batch.put(keyspace, KEY, [100]);
        database.write(&batch)
    }),
    ("a put, and many records", |_, keyspace| {
        keyspace.put(KEY, [100])?;
        (0..MANY).try_for_each(|number| keyspace.put(key(number % 300), "x"))
    }),
    ("a conditional write", |_, keyspace| {
        let count = keyspace.get(KEY)?;
        let swapped = keyspace.compare_and_swap(KEY, count.as_deref(), Some(&[100]))?;
        swapped.map_err(|conflict| {
            terrapin::Error::internal("a swap of the value that was read")
                .with("conflict", conflict)
        })
    }),
    (CLEAR, |_, keyspace| keyspace.clear()),
    (RANGE_DELETE, |_, keyspace| keyspace.delete_range("a".."d")),
];

/// An update counts from what the last other writer left, whatever that writer did and when.
pub(in crate::mutants) fn writes_between(_scratch: &Path) -> Outcome {
    for (name, between) in BETWEEN {
        let world = Process::new(1, SimDisk::new(50));
        let database = world.open(&tiny()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        keyspace.put(KEY, [7]).map_err(text("put"))?;
        let (mut runs, mut failed) = (0, None);
        let new = keyspace.update(KEY, |value| {
            runs += 1;
            if runs == 1 {
                failed = between(&database, &keyspace).err();
            }
            let count = value.and_then(|value| value.first()).copied().unwrap_or(0);
            Some(vec![count + 1])
        });
        let new = new.map_err(text("update"))?;
        if let Some(error) = failed {
            return Err(format!("{name}: {error}"));
        }
        let is_gone = [CLEAR, RANGE_DELETE].contains(name);
        let wanted = if is_gone { 1 } else { 101 };
        drop(keyspace);
        world.kill(Some(database));
        if new != Some(vec![wanted]) {
            return Err(format!(
                "{name} between read and write of an update: {new:?}, not {wanted}"
            ));
        }
    }
    Ok(())
}

/// A watch of an idle log begins where reads see everything.
pub(in crate::mutants) fn watch_after_a_sync(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(1));
    let (log, _) = log_of_one_record(&world)?;
    log.sync(log.tail()).map_err(text("sync"))?;
    let (since, visible) = (log.watch().since(), log.visible());
    world.kill(None);
    match since <= visible {
        true => Ok(()),
        false => Err(format!(
            "a watch begins at {since}, and reads see {visible}"
        )),
    }
}

/// A version is void once its key changed, also when the change left memory.
pub(in crate::mutants) fn old_versions(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(50));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let (_, version) = keyspace.get_versioned(KEY).map_err(text("get"))?;
    keyspace.put(KEY, [1]).map_err(text("put"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let swapped = keyspace.compare_version_and_swap(KEY, &version, Some(&[2]));
    let swapped = swapped.map_err(text("swap"))?;
    drop(keyspace);
    world.kill(Some(database));
    match swapped {
        Ok(()) => Err("a version from before a put and its merge admits a swap".to_owned()),
        Err(_) => Ok(()),
    }
}
