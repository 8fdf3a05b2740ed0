//! Checks of views, and of the space that deletes and compactions take.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use terrapin::{CheckpointDistance, Database, Durability, Keyspace, Options, Snapshot};
use terrapin_base::Env;
use terrapin_disk::SimDisk;

use super::{Outcome, fill, key, text, tiny, value};
use crate::process::Process;

/// Deletes of long records among short ones free their space, and the metrics count the space in
/// use (decision 0035).
pub(in crate::mutants) fn space_after_deletes(_scratch: &Path) -> Outcome {
    let options = Options::new()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(256 << 10)
        .background_threads(1);
    let value_bytes = |number: u64| match number % 100 {
        7 => 200 << 10,
        _ => 20,
    };
    for deleted in [100, 200] {
        let world = Process::new(1, SimDisk::new(46));
        let database = world.open(&options).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        let mut bytes = 0;
        for number in 0..6000 {
            let put = keyspace.put(key(number), vec![number as u8; value_bytes(number)]);
            put.map_err(text("put"))?;
            bytes += (key(number).len() + value_bytes(number)) as u64;
        }
        for number in (7..6000).step_by(deleted) {
            let delete = keyspace.delete(key(number));
            delete.map_err(text("delete"))?;
            bytes -= (key(number).len() + value_bytes(number)) as u64;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        let metrics = database.metrics();
        let used = metrics.data_live_bytes as f64 / bytes as f64;
        let said = metrics.space_amplification;
        drop(keyspace);
        world.kill(Some(database));
        // Short records alone take more space for each of their bytes.
        let most = if deleted == 100 { 2.5 } else { 1.5 };
        if used > most || (said / used - 1.0).abs() > 0.1 {
            return Err(format!(
                "{bytes} bytes of records take {used} times as much, and the metrics say {said}"
            ));
        }
    }
    Ok(())
}

/// A snapshot that shows two records of one batch shows both from the same batch (D7).
pub(in crate::mutants) fn whole_batches(_scratch: &Path) -> Outcome {
    const KEYS: u64 = 200;
    let disk = SimDisk::new(1);
    let options = tiny().memory(16 << 20).group_bytes(64 << 10);
    let database = options.open_on(Env::threads(), disk.handle());
    let database = database.map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let over = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..3000 {
                let mut batch = database.batch();
                for number in 0..KEYS {
                    batch.put(&keyspace, key(number), value(round));
                }
                if database.write(batch).is_err() || over.load(Ordering::Acquire) {
                    break;
                }
            }
            over.store(true, Ordering::Release);
        });
        let mut outcome = Ok(());
        while outcome.is_ok() && !over.load(Ordering::Acquire) {
            outcome = whole_batch(&database, &keyspace, &[key(0), key(KEYS - 1)]);
        }
        over.store(true, Ordering::Release);
        outcome
    });
    outcome.and(database.close().map(drop).map_err(text("close")))
}

fn whole_batch(database: &Database, keyspace: &Keyspace, keys: &[Vec<u8>; 2]) -> Outcome {
    let snapshot = database.snapshot().map_err(text("snapshot"))?;
    let values = snapshot.multi_get(keyspace, keys).map_err(text("get"))?;
    match values[0] == values[1] {
        true => Ok(()),
        false => Err(format!(
            "a snapshot has half a batch: {:?} and {:?}",
            values[0], values[1]
        )),
    }
}

/// A tree of many memtables, some of whose records are in buffers, and a snapshot of it.
fn buffered(world: &Process, count: u64) -> Result<(Database, Snapshot), String> {
    let options = tiny().group_bytes(4 << 10);
    let database = world.open(&options).map_err(text("open"))?;
    fill(&database.default_keyspace(), count, Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let snapshot = database.snapshot().map_err(text("snapshot"))?;
    Ok((database, snapshot))
}

/// On a nearly full disk, no tree is compacted into the room that puts need, although a snapshot
/// keeps old pages (D10).
pub(in crate::mutants) fn room_for_puts(_scratch: &Path) -> Outcome {
    const RECORDS: u64 = 16_000;
    let world = Process::new(1, SimDisk::new(6));
    let (database, snapshot) = buffered(&world, RECORDS)?;
    let keyspace = database.default_keyspace();
    world.disk.set_capacity(world.disk.used_bytes() + (1 << 20));
    for number in 0..2 * RECORDS {
        drop(keyspace.range(key(number % RECORDS)..).next());
    }
    world.sim.settle();
    // More records than a memtable holds.
    for number in 0..150 {
        let put = keyspace.put(key(number), value(number));
        put.map_err(text("a put after ranges"))?;
    }
    drop(snapshot);
    world.kill(Some(database));
    Ok(())
}

/// Ranges over a snapshot that is older than its tree start no compaction, because it would not
/// help them.
pub(in crate::mutants) fn old_views(_scratch: &Path) -> Outcome {
    const RECORDS: u64 = 4000;
    let world = Process::new(1, SimDisk::new(6));
    let (database, snapshot) = buffered(&world, RECORDS)?;
    let keyspace = database.default_keyspace();
    fill(&keyspace, 100, Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    for number in 0..5 * RECORDS {
        drop(snapshot.range(&keyspace, key(number % RECORDS)..).next());
    }
    world.sim.settle();
    let compactions = database.metrics().compactions;
    drop(snapshot);
    world.kill(Some(database));
    match compactions {
        0 => Ok(()),
        some => Err(format!(
            "ranges paid for {some} compactions that cannot help them"
        )),
    }
}

/// A snapshot that is taken between a checkpoint's list of views and the checkpoint's end sees all
/// of the merged memtable.
pub(in crate::mutants) fn late_views(_scratch: &Path) -> Outcome {
    let mut merged = 0;
    for steps in 0..120 {
        let world = Process::new(1, SimDisk::new(7));
        let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(64));
        let database = world.open(&options).map_err(text("open"))?;
        world.sim.set_breathing(false);
        let keyspace = database.default_keyspace();
        fill(&keyspace, 60, Durability::Process)?;
        keyspace.put("a", "1").map_err(text("put"))?;
        let early = database.snapshot().map_err(text("snapshot"))?;
        keyspace.put("a", "2").map_err(text("put"))?;
        world.sim.advance_ns(2_000_000_000);
        // The memtable is full and sealed at once.
        let smaller = keyspace.set_checkpoint_distance(CheckpointDistance::Fixed(1));
        smaller.map_err(text("a smaller memtable"))?;
        for _ in 0..steps {
            world.sim.step();
        }
        let late = database.snapshot().map_err(text("snapshot"))?;
        merged += database.metrics().checkpoints;
        world.sim.settle();
        if database.metrics().folds == 0 {
            return Err("no run was written".to_owned());
        }
        for (snapshot, expected) in [(&early, "1"), (&late, "2")] {
            let value = snapshot.get(&keyspace, "a").map_err(text("get"))?;
            if value.as_deref() != Some(expected.as_bytes()) {
                return Err(format!("{value:?} after {steps} steps, not {expected}"));
            }
        }
        drop((early, late));
        world.kill(Some(database));
    }
    match merged {
        1..120 => Ok(()),
        _ => Err(format!(
            "{merged} checkpoints ended before the last snapshot"
        )),
    }
}
