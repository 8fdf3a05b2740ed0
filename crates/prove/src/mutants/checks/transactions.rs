//! Checks of transactions: what they depend on, and what they show of their own writes.

use std::path::Path;

use terrapin::{Database, Isolation, Keyspace, Transaction, TransactionOptions};
use terrapin_disk::SimDisk;

use super::{Outcome, key, text, tiny};
use crate::process::Process;

/// More records than the log keeps touches of.
const MANY: u64 = 17_000;

type Does = fn(&Keyspace, &mut Transaction) -> terrapin::Result<()>;
type Between = fn(&Database, &Keyspace) -> terrapin::Result<()>;

/// A transaction over keys 0 to 19, and what another writer does before it commits. Each must
/// conflict.
struct Case {
    name: &'static str,
    isolation: Isolation,
    does: Does,
    between: Between,
}

fn reads(keyspace: &Keyspace, tx: &mut Transaction) -> terrapin::Result<()> {
    tx.get(keyspace, key(5))?;
    tx.put(keyspace, "mine", "x")
}

fn scans(keyspace: &Keyspace, tx: &mut Transaction) -> terrapin::Result<()> {
    tx.range(keyspace, key(0)..key(90))
        .try_for_each(|record| record.map(drop))?;
    tx.put(keyspace, "mine", "x")
}

fn puts(_: &Database, keyspace: &Keyspace) -> terrapin::Result<()> {
    keyspace.put(key(5), "other")
}

const CASES: &[Case] = &[
    Case {
        name: "a put of a read key",
        isolation: Isolation::Serializable,
        does: reads,
        between: puts,
    },
    Case {
        name: "a put of a key read for update",
        isolation: Isolation::Snapshot,
        does: |keyspace, tx| {
            tx.get_for_update(keyspace, key(5))?;
            tx.put(keyspace, "mine", "x")
        },
        between: puts,
    },
    Case {
        name: "a put of a written key",
        isolation: Isolation::Snapshot,
        does: |keyspace, tx| tx.delete(keyspace, key(5)),
        between: puts,
    },
    Case {
        name: "a put into a deleted range",
        isolation: Isolation::Snapshot,
        does: |keyspace, tx| tx.delete_range(keyspace, key(3)..key(8)),
        between: puts,
    },
    Case {
        name: "a phantom among the records of a range",
        isolation: Isolation::Serializable,
        does: scans,
        between: |_, keyspace| keyspace.put([&key(5)[..], b"5"].concat(), "x"),
    },
    Case {
        name: "a phantom behind the records of a range",
        isolation: Isolation::Serializable,
        does: scans,
        between: |_, keyspace| keyspace.put(key(80), "x"),
    },
    Case {
        name: "a put and many others",
        isolation: Isolation::Serializable,
        does: reads,
        between: |database, keyspace| {
            puts(database, keyspace)?;
            (0..MANY).try_for_each(|number| keyspace.put(key(100 + number % 300), "x"))
        },
    },
    Case {
        name: "a put of a read key that is merged",
        isolation: Isolation::Serializable,
        does: reads,
        between: |database, keyspace| {
            puts(database, keyspace)?;
            database.checkpoint()
        },
    },
    Case {
        name: "a phantom that is merged",
        isolation: Isolation::Serializable,
        does: scans,
        between: |database, keyspace| {
            keyspace.put(key(80), "x")?;
            database.checkpoint()
        },
    },
    Case {
        name: "a clear, and the same record again, merged",
        isolation: Isolation::Serializable,
        does: reads,
        between: |database, keyspace| {
            keyspace.clear()?;
            (0..20).try_for_each(|number| keyspace.put(key(number), "old"))?;
            database.checkpoint()
        },
    },
    Case {
        name: "a drop of the keyspace",
        isolation: Isolation::Serializable,
        does: |keyspace, tx| tx.get(keyspace, key(5)).map(drop),
        between: |database, keyspace| database.drop_keyspace(keyspace.name()),
    },
];

fn begin(database: &Database, isolation: Isolation) -> Result<Transaction, String> {
    let options = TransactionOptions::new().isolation(isolation);
    database.transaction_with(&options).map_err(text("begin"))
}

/// A transaction commits only if nothing has changed that it depends on, whatever another writer
/// did and however it is found.
pub(in crate::mutants) fn conflicts(_scratch: &Path) -> Outcome {
    for case in CASES {
        let world = Process::new(1, SimDisk::new(50));
        let database = world.open(&tiny()).map_err(text("open"))?;
        let keyspace = database.keyspace("records").map_err(text("keyspace"))?;
        let own = database.default_keyspace();
        let filled = (0..20).try_for_each(|number| keyspace.put(key(number), "old"));
        filled.map_err(text("put"))?;
        let mut tx = begin(&database, case.isolation)?;
        (case.does)(&keyspace, &mut tx).map_err(text(case.name))?;
        tx.put(&own, "own", "x").map_err(text(case.name))?;
        (case.between)(&database, &keyspace).map_err(text(case.name))?;
        let outcome = tx.commit();
        drop((keyspace, own));
        world.kill(Some(database));
        match outcome {
            Ok(Err(_)) => {}
            Ok(Ok(_)) => return Err(format!("{}: the transaction committed", case.name)),
            // A transaction that writes into a dropped keyspace fails.
            Err(_) if case.name.contains("drop") => {}
            Err(error) => return Err(format!("{}: {error}", case.name)),
        }
    }
    Ok(())
}

/// A phantom is found in a sealed memtable, too. Some number of records behind it seals the
/// memtable, and no job has merged it yet.
pub(in crate::mutants) fn sealed_phantoms(_scratch: &Path) -> Outcome {
    for count in 0..60 {
        let world = Process::new(1, SimDisk::new(50));
        let database = world.open(&tiny()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        let mut tx = begin(&database, Isolation::Serializable)?;
        scans(&keyspace, &mut tx).map_err(text("scan"))?;
        keyspace.put(key(80), "x").map_err(text("put"))?;
        let filled = (0..count).try_for_each(|number| keyspace.put(key(100 + number), [0; 100]));
        filled.map_err(text("put"))?;
        let outcome = tx.commit().map_err(text("commit"))?;
        drop(keyspace);
        world.kill(Some(database));
        if outcome.is_ok() {
            return Err(format!(
                "a phantom and {count} more records: the transaction committed"
            ));
        }
    }
    Ok(())
}

/// A transaction shows its own writes, and not those that it took back.
pub(in crate::mutants) fn own_writes(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(50));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let filled = (0..20).try_for_each(|number| keyspace.put(key(number), "old"));
    filled.map_err(text("put"))?;
    let run = || -> terrapin::Result<(usize, Option<terrapin::Slice>)> {
        let mut tx = database.transaction()?;
        tx.delete_range(&keyspace, key(5)..key(15))?;
        tx.put(&keyspace, key(7), "first")?;
        let savepoint = tx.savepoint();
        tx.put(&keyspace, key(7), "second")?;
        tx.put(&keyspace, key(8), "second")?;
        tx.rollback_to(&savepoint)?;
        Ok((tx.range(&keyspace, ..).count(), tx.get(&keyspace, key(7))?))
    };
    let (count, value) = run().map_err(text("transaction"))?;
    drop(keyspace);
    world.kill(Some(database));
    match (count, value.as_deref()) {
        (11, Some(b"first")) => Ok(()),
        other => Err(format!("a transaction sees {other:?} of its own writes")),
    }
}
