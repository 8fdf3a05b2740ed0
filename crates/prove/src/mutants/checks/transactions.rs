//! Checks of transactions: what they depend on, and what they show of their own writes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use terrapin::{Database, Isolation, Keyspace, Options, Transaction, TransactionOptions};
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

/// Counters are exact although each commit looks for changes, and other commits come meanwhile.
pub(in crate::mutants) fn commits_beside_looks(scratch: &Path) -> Outcome {
    const ROUNDS: u64 = 150;
    let options = Options::new().memory(64 << 20);
    let database = options.open(scratch.join("looks")).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let counters = database.keyspace("counters").map_err(text("keyspace"))?;
    let filled = (0..3_000).try_for_each(|number| keyspace.put(key(number), "x"));
    filled.map_err(text("put"))?;
    let add = |scans: bool| {
        let options = TransactionOptions::new().attempts_max(100_000);
        database.transact_with(&options, |tx| {
            if scans {
                tx.range(&keyspace, ..)
                    .try_for_each(|record| record.map(drop))?;
            }
            let count = tx.get(&counters, "counter")?;
            let count = count.and_then(|value| value[..].try_into().ok());
            let count = count.map_or(0, u64::from_le_bytes) + 1;
            tx.put(&counters, "counter", count.to_le_bytes())
        })
    };
    let stop = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        // Records of more keys than the log notes make commits look.
        let noise = scope.spawn(|| {
            let mut batch = database.batch();
            let Ok(noise) = database.keyspace("noise") else {
                return;
            };
            (0..80).for_each(|number| batch.put(&noise, key(number), "x"));
            while !stop.load(Ordering::Relaxed) {
                let _ = database.write(&batch);
                thread::yield_now();
            }
        });
        let fast = scope.spawn(|| (0..20 * ROUNDS).try_for_each(|_| add(false)));
        let slow = (0..ROUNDS).try_for_each(|_| add(true));
        let fast = fast.join();
        stop.store(true, Ordering::Relaxed);
        let _ = noise.join();
        slow.and(fast.unwrap_or_else(|_| Err(terrapin::Error::internal("a thread panicked"))))
    });
    done.map_err(text("transactions"))?;
    let count = counters.get("counter").map_err(text("get"))?;
    let count = count
        .and_then(|value| value[..].try_into().ok())
        .map(u64::from_le_bytes);
    drop((keyspace, counters));
    database.close().map_err(text("close"))?;
    match count {
        Some(count) if count == 21 * ROUNDS => Ok(()),
        other => Err(format!("{} transactions counted to {other:?}", 21 * ROUNDS)),
    }
}
