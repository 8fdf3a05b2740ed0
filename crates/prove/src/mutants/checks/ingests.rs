//! A check of sorted ingests: what they hide, what hides them, and what stays of a refused one.

use std::path::Path;

use terrapin::{Database, ErrorKind, Keyspace};
use terrapin_disk::SimDisk;

use super::{Outcome, key, text, tiny, value};
use crate::process::Process;

const COUNT: u64 = 600;

fn is(keyspace: &Keyspace, number: u64, wanted: Option<&[u8]>, what: &str) -> Outcome {
    let got = keyspace.get(key(number)).map_err(text("get"))?;
    match got.as_deref() == wanted {
        true => Ok(()),
        false => Err(format!("{what}: key {number} has {got:?}")),
    }
}

/// Takes in all keys with one value, and does something else at the half.
fn ingest(
    keyspace: &Keyspace,
    value: &str,
    mut at_half: impl FnMut() -> terrapin::Result<()>,
) -> terrapin::Result<u64> {
    let mut ingest = keyspace.begin_ingest()?;
    for number in 0..COUNT {
        if number == COUNT / 2 {
            at_half()?;
        }
        ingest.add(key(number), value)?;
    }
    ingest.finish()
}

/// An ingest replaces all that came before it, loses to what comes meanwhile, and is whole.
pub(in crate::mutants) fn ingests(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(50));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let checked = replaces(&database, &keyspace)
        .and_then(|()| loses(&database, &keyspace))
        .and_then(|()| is_whole(&database, &keyspace));
    drop(keyspace);
    world.kill(Some(database));
    checked
}

fn replaces(database: &Database, keyspace: &Keyspace) -> Outcome {
    for round in 0..3 {
        for number in (round % 2..COUNT).step_by(2) {
            let put = keyspace.put(key(number), value(number));
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    for number in 0..COUNT {
        keyspace.get(key(number)).map_err(text("get"))?;
    }
    let updated = keyspace.update(key(5), |old| {
        if old == Some(&value(5)) {
            ingest(keyspace, "first", || Ok(())).ok()?;
        }
        old.map(|old| [old, b"+"].concat())
    });
    if updated.map_err(text("update"))?.as_deref() != Some(b"first+") {
        return Err("an update overwrites an ingest that it has not seen".to_owned());
    }
    for number in (0..COUNT).filter(|number| *number != 5) {
        is(keyspace, number, Some(b"first"), "after an ingest")?;
    }
    keyspace.put(key(7), "in a memtable").map_err(text("put"))?;
    ingest(keyspace, "second", || Ok(())).map_err(text("ingest"))?;
    is(keyspace, 7, Some(b"second"), "a put before an ingest")
}

fn loses(database: &Database, keyspace: &Keyspace) -> Outcome {
    let meanwhile = || {
        keyspace.put(key(1), "meanwhile")?;
        for number in 0..80 {
            keyspace.put(key(COUNT + number), value(number))?;
        }
        keyspace.delete(key(COUNT - 1))
    };
    ingest(keyspace, "third", meanwhile).map_err(text("ingest with writes beside it"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    is(keyspace, 0, Some(b"third"), "an ingest")?;
    is(keyspace, 1, Some(b"meanwhile"), "a put meanwhile")?;
    is(keyspace, COUNT - 1, None, "a delete meanwhile")
}

fn is_whole(database: &Database, keyspace: &Keyspace) -> Outcome {
    let unsorted = [(key(3), "a"), (key(2), "b")];
    if keyspace.ingest(unsorted).map_err(|e| e.kind()) != Err(ErrorKind::InvalidArgument) {
        return Err("an ingest takes keys out of order".to_owned());
    }
    let before = database.metrics().data_live_bytes;
    let fails = || Err(terrapin::Error::invalid("on purpose"));
    for _ in 0..10 {
        if ingest(keyspace, &"fourth".repeat(60), fails).is_ok() {
            return Err("an ingest outlives the error of its source".to_owned());
        }
    }
    is(keyspace, 0, Some(b"third"), "a failed ingest")?;
    let after = database.metrics().data_live_bytes;
    if after > before + (64 << 10) {
        return Err(format!(
            "ten failed ingests leave {after} bytes in use, of {before} before"
        ));
    }
    let cleared = ingest(keyspace, "fifth", || keyspace.clear());
    if cleared.map_err(|error| error.kind()) != Err(ErrorKind::Conflict) {
        return Err("an ingest outlives a clear".to_owned());
    }
    is(keyspace, 0, None, "a clear during an ingest")
}
