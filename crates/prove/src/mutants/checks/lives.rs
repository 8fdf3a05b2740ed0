//! Checks of lives: creations, opens, replays, flushes and closes.

use std::path::Path;
use std::time::Duration;

use terrapin::{CheckpointDistance, Compression, Database, Durability, KeyspaceOptions};
use terrapin_base::{ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::{Append, Log, LogOptions, RECORD_KIND_USER_MIN, Recovery};

use super::{Outcome, answers, closed_store, fill, key, text, tiny, value};
use crate::process::Process;

/// A keyspace whose writes are flushed and not logged.
const FLUSHED: &str = "flushed";

/// After a clean close no open needs the ring, even after a power cut.
pub(in crate::mutants) fn close_without_ring(_scratch: &Path) -> Outcome {
    let options = tiny();
    let (disk, truth) = closed_store(&options)?;
    disk.crash_power(CrashMode::LoseUnsynced);
    let world = Process::new(1, disk);
    let removed = world.disk.handle().remove("ring");
    removed.map_err(text("remove"))?;
    let opened = world.open(&options);
    let database = opened.map_err(text("a closed database does not open without its ring"))?;
    let right = answers(&database, &truth)?;
    world.kill(Some(database));
    match right {
        true => Ok(()),
        false => Err("a closed database without its ring answers with errors".to_owned()),
    }
}

/// A new log with one record, which its drain job may write, and the log's options.
pub(super) fn log_of_one_record(world: &Process) -> Result<(Log, LogOptions), String> {
    let options = LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..LogOptions::new(1)
    };
    let log = Log::create(&world.env, &world.disk.handle(), options).map_err(text("create"))?;
    let drain = world.env.spawn(log.drain_job());
    drain.map_err(text("drain"))?;
    match log.try_append(RECORD_KIND_USER_MIN, &[b"record"]) {
        Ok(Append::Done(appended)) => log.publish(&appended),
        Ok(Append::Full(_)) => return Err("a new log is full".to_owned()),
        Err(error) => return Err(text("append")(error)),
    }
    Ok((log, options))
}

/// A boundary taken after a close is not beyond the end of the log that a recovery finds. A tree
/// ahead of that end would be refused (D3).
pub(in crate::mutants) fn boundary_after_close(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(1));
    let (log, options) = log_of_one_record(&world)?;
    log.close().map_err(text("close"))?;
    let ((), boundary) = log.boundary(|_| ());
    world.kill(None);
    let disk = world.disk.handle();
    let found = Recovery::scan(&world.env, &disk, options, Lsn(4096)).map_err(text("recovery"))?;
    match boundary.lsn <= found.end() {
        true => Ok(()),
        false => Err(format!(
            "the boundary is at {}, and the log ends at {}",
            boundary.lsn,
            found.end()
        )),
    }
}

/// A kill leaves no more log to replay than the recovery target allows, whatever was written, and
/// also if checkpoints run only while writers wait for them.
pub(in crate::mutants) fn replay_target(_scratch: &Path) -> Outcome {
    let options = tiny()
        .log_bytes_max(4 << 20)
        .recovery_target(Duration::from_nanos(1));
    for breathes in [true, false] {
        let world = Process::new(3, SimDisk::new(3));
        world.sim.set_breathing(breathes);
        let database = world.open(&options).map_err(text("open"))?;
        let quiet = database.keyspace("quiet").map_err(text("create"))?;
        quiet.put("a", "1").map_err(text("put"))?;
        let keyspace = database.default_keyspace();
        for number in 0..2000 {
            // Half of them overwrite.
            let key = key(number % 2 * number);
            keyspace.put(key, [7; 100]).map_err(text("put"))?;
            let metrics = database.metrics();
            if metrics.replay_bytes > metrics.replay_bytes_max {
                return Err(format!(
                    "{} bytes would be replayed instead of {}",
                    metrics.replay_bytes, metrics.replay_bytes_max
                ));
            }
        }
        world.kill(Some(database));
    }
    Ok(())
}

/// After an interrupted creation, whatever the call, the next open creates the database.
pub(in crate::mutants) fn interrupted_creation(_scratch: &Path) -> Outcome {
    let options = tiny();
    for seed in 1..24 {
        for mode in CrashMode::ALL {
            for call in 1.. {
                let world = Process::new(1, SimDisk::new(seed));
                world.disk.die_at_call(call);
                let created = world.open(&options);
                let over = world.disk.is_alive();
                world.kill(created.ok());
                world.disk.crash_power(mode);
                let world = Process::new(1, world.disk);
                world.disk.die_at_call(u64::MAX);
                let opened = world.open(&options).map_err(|error| {
                    format!("the power failed ({mode:?}) at call {call} of a creation: {error}")
                })?;
                world.kill(Some(opened));
                if over {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// A record flushed after a clear exists, wherever the process dies (D7). A power cut takes back no
/// record that a recovery has found (D6).
pub(in crate::mutants) fn flushed_after_clear(_scratch: &Path) -> Outcome {
    // The seed decides the order of steps, and so what is merged when the process dies.
    (1..4).try_for_each(flushed_after_clear_on)
}

fn flushed_after_clear_on(seed: u64) -> Outcome {
    let options = tiny();
    for call in 1.. {
        let world = Process::new(seed, SimDisk::new(5));
        let database = world.open(&options).map_err(text("open"))?;
        world.disk.die_at_call(call);
        let mut allowed = vec![None];
        // An error means that the process is dead. The allowed contents are those of that moment.
        let _ = clear_and_flush(&world, &database, &mut allowed);
        let over = world.disk.is_alive();
        world.kill(Some(database));
        let world = Process::new(1, world.disk);
        world.disk.die_at_call(u64::MAX);
        let database = world.open(&options).map_err(text("recovery"))?;
        let found = flushed(&database)?;
        if !allowed
            .iter()
            .any(|value| value.as_deref() == found.as_deref())
        {
            return Err(format!(
                "seed {seed}: the process died at call {call}: the store holds {found:?}, and not one of {allowed:?}"
            ));
        }
        world.kill(Some(database));
        world.disk.crash_power(CrashMode::LoseUnsynced);
        let world = Process::new(1, world.disk);
        let database = world.open(&options).map_err(text("second recovery"))?;
        let again = flushed(&database)?;
        if again != found {
            return Err(format!(
                "the process died at call {call}: the store holds {found:?}, and after a power cut {again:?}"
            ));
        }
        world.kill(Some(database));
        if over {
            return Ok(());
        }
    }
    Ok(())
}

fn flushed(database: &Database) -> Result<Option<Vec<u8>>, String> {
    let Ok(keyspace) = database.open_keyspace(FLUSHED) else {
        return Ok(None);
    };
    let value = keyspace.get("x").map_err(text("get"))?;
    Ok(value.map(|value| value.to_vec()))
}

/// Writes beside a keyspace that is cleared repeatedly, and notes the contents that it may have.
fn clear_and_flush(
    world: &Process,
    database: &Database,
    allowed: &mut Vec<Option<Vec<u8>>>,
) -> terrapin::Result<()> {
    let busy = database.keyspace("busy")?;
    let cleared = database.keyspace(FLUSHED)?;
    for round in 0..8 {
        for number in 0..5 {
            busy.put(key(number), vec![7; 600])?;
        }
        let alive = || world.disk.is_alive();
        allowed.push(None);
        cleared.clear()?;
        if alive() {
            *allowed = vec![None];
        }
        let wanted = value(round);
        allowed.push(Some(wanted.clone()));
        cleared.put_with("x", &wanted, Durability::None)?;
        busy.put(key(9), "more")?;
        database.flush()?;
        if alive() {
            *allowed = vec![Some(wanted)];
        }
        // Calls of the disk at which the process may die, while only the flushed record is allowed.
        busy.put_with(key(9), "and more", Durability::Sync)?;
    }
    Ok(())
}

/// A record flushed to one keyspace stays, although checkpoints run while the log is replayed for
/// another and the process dies then (D3).
pub(in crate::mutants) fn checkpoint_in_replay(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(6));
    let large = tiny().checkpoint_distance(CheckpointDistance::Fixed(100));
    let database = world.open(&large).map_err(text("open"))?;
    fill(&database.default_keyspace(), 300, Durability::Process)?;
    log_and_flush(&database).map_err(text("flush"))?;
    world.kill(Some(database));
    // Memtables are smaller from here on. Some are merged before the replay reaches the put.
    let database = world.open(&tiny()).map_err(text("recovery"))?;
    world.kill(Some(database));
    let database = world.open(&tiny()).map_err(text("second recovery"))?;
    let found = flushed(&database)?;
    world.kill(Some(database));
    match found.as_deref() {
        Some(b"flushed") => Ok(()),
        found => Err(format!(
            "the store holds {found:?}, and not the flushed record"
        )),
    }
}

fn log_and_flush(database: &Database) -> terrapin::Result<()> {
    let keyspace = database.keyspace(FLUSHED)?;
    keyspace.put_with("x", "logged", Durability::Process)?;
    keyspace.put_with("x", "flushed", Durability::None)?;
    database.flush()
}

/// A keyspace without filters has none on disk, and a compressed one takes less space.
pub(in crate::mutants) fn own_options(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(1));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let own = KeyspaceOptions::new()
        .filter_bits(0)
        .compression(Compression::Lz4);
    for (name, options) in [("plain", KeyspaceOptions::new()), ("own", own)] {
        let keyspace = database.create_keyspace(name, options);
        fill(&keyspace.map_err(text("create"))?, 500, Durability::Process)?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    let stat = database.stat().map_err(text("stat"))?;
    let parts = |name| {
        let found = stat.keyspaces.iter().find(|k| k.name == name);
        found.map(|k| k.tree.parts)
    };
    let (Some(plain), Some(own)) = (parts("plain"), parts("own")) else {
        return Err("a keyspace is missing".to_owned());
    };
    if plain.filters == 0 || own.filters != 0 || own.leaf_blocks >= plain.leaf_blocks {
        return Err(format!("plain: {plain:?}, with its own options: {own:?}"));
    }
    database.close().map(drop).map_err(text("close"))
}

/// A write that is late for a clear or a drop goes with it or stays, also after a power cut (D2,
/// D7). Only code inside of the engine can time such a write.
#[cfg(terrapin_mutants)]
pub(in crate::mutants) fn late_writes(_scratch: &Path) -> Outcome {
    terrapin::testing::late::check().and_then(|()| terrapin::testing::late::check_cut())
}

#[cfg(not(terrapin_mutants))]
pub(in crate::mutants) fn late_writes(_scratch: &Path) -> Outcome {
    Err("this check needs a build with --cfg terrapin_mutants".to_owned())
}

/// A second open of a directory is refused during the first one (D9).
pub(in crate::mutants) fn second_open(scratch: &Path) -> Outcome {
    let first = Database::open(scratch).map_err(text("open"))?;
    let second = Database::open(scratch);
    let outcome = match &second {
        Err(error) if error.kind() == ErrorKind::Locked => Ok(()),
        Err(error) => Err(format!("a second open returns {error}")),
        Ok(_) => Err("a second open succeeds".to_owned()),
    };
    drop((first, second));
    outcome
}
