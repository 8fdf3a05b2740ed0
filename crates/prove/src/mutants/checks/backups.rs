//! Checks of backups: beside merges, of several keyspaces, killed, on full disks.

use std::path::Path;
use std::sync::Arc;

use terrapin::backup::{BackupOptions, restore_on};
use terrapin::{CheckpointDistance, Database, ErrorKind, Options};
use terrapin_disk::sim::CrashMode;
use terrapin_disk::{Disk, DiskThrough, File, OpenOptions, SimDisk};

use super::{Outcome, Truth, key, text, tiny, value};
use crate::process::Process;

/// A disk that does something as files are created whose name has a part.
struct Creations<F> {
    disk: Arc<dyn Disk>,
    part: &'static str,
    act: F,
}

impl<F: Fn() + Send + Sync> DiskThrough for Creations<F> {
    fn behind(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, name: &str, options: OpenOptions) -> terrapin::Result<Arc<dyn File>> {
        if options.create_new && name.contains(self.part) {
            (self.act)();
        }
        self.disk.open(name, options)
    }
}

fn records(database: &Database, keyspace: &str) -> Result<Truth, String> {
    let keyspace = database.open_keyspace(keyspace).map_err(text("keyspace"))?;
    let records = keyspace.iter();
    let owned = records.map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())));
    owned.collect::<terrapin::Result<_>>().map_err(text("read"))
}

fn put(database: &Database, numbers: std::ops::Range<u64>, mark: u64) -> Outcome {
    let keyspace = database.default_keyspace();
    for number in numbers {
        let put = keyspace.put(key(number), value(number * 1000 + mark));
        put.map_err(text("put"))?;
    }
    Ok(())
}

fn back_up(database: &Database, disk: Arc<dyn Disk>) -> Outcome {
    let done = database.backup_on(disk, &BackupOptions::new());
    done.map(drop).map_err(text("backup"))
}

/// The process of a restored copy, and the copy.
fn restored(target: &SimDisk, options: &Options) -> Result<(Process, Database), String> {
    let world = Process::new(9, SimDisk::new(9));
    let done = restore_on(&target.handle(), &world.disk.handle());
    done.map_err(text("restore"))?;
    let opened = world.open(options);
    let database = opened.map_err(text("the restored copy does not open"))?;
    Ok((world, database))
}

fn restored_records(target: &SimDisk, options: &Options) -> Result<Truth, String> {
    let (world, database) = restored(target, options)?;
    let found = records(&database, "default");
    world.kill(Some(database));
    found
}

fn expect(found: &Truth, expected: &Truth, what: &str) -> Outcome {
    match found == expected {
        true => Ok(()),
        false => {
            let (found, expected) = (found.len(), expected.len());
            Err(format!("{what}: {found} records differ from {expected}"))
        }
    }
}

/// Checkpoints during a backup free pages and trim the log. The backup shows its moment.
pub(in crate::mutants) fn beside_merges(_scratch: &Path) -> Outcome {
    let long_log = tiny()
        .memory(32 << 20)
        .group_bytes(64 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(64))
        .log_bytes_max(16 << 20);
    for (options, part, count) in [(tiny(), "-data", 1500), (long_log, "-log-", 20_000)] {
        let (world, target) = (Process::new(1, SimDisk::new(1)), SimDisk::new(2));
        let database = world.open(&options).map_err(text("open"))?;
        if part == "-data" {
            put(&database, 0..count, 0)?;
            database.checkpoint().map_err(text("checkpoint"))?;
        }
        put(&database, 0..count, 1)?;
        let expected = records(&database, "default")?;
        let other = database.clone();
        let act = move || {
            for round in 2..5 {
                // A failure shows in what the backup has.
                let _ = put(&other, 0..1500, round);
                let _ = other.checkpoint();
            }
        };
        let disk = target.handle();
        back_up(&database, Arc::new(Creations { disk, part, act }))?;
        world.kill(Some(database));
        expect(&restored_records(&target, &options)?, &expected, part)?;
    }
    Ok(())
}

/// Batches across keyspaces that are applied to different LSNs are whole in a backup.
pub(in crate::mutants) fn whole_batches(_scratch: &Path) -> Outcome {
    let options = tiny();
    let (world, target) = (Process::new(1, SimDisk::new(1)), SimDisk::new(2));
    let database = world.open(&options).map_err(text("open"))?;
    let [busy, quiet] = ["busy", "quiet"].map(|name| database.keyspace(name));
    let (busy, quiet) = (
        busy.map_err(text("create"))?,
        quiet.map_err(text("create"))?,
    );
    for number in 0..400 {
        let mut batch = database.batch();
        batch.put(&busy, key(number), value(number).repeat(4));
        batch.put(&quiet, key(number), "");
        database.write(&batch).map_err(text("write"))?;
        if number % 100 != 99 {
            continue;
        }
        back_up(&database, target.handle())?;
        let (copy, found) = restored(&target, &options)?;
        let counts = ["busy", "quiet"].map(|name| records(&found, name).map(|r| r.len()));
        copy.kill(Some(found));
        let [busy, quiet] = counts;
        let (busy, quiet) = (busy?, quiet?);
        if [busy, quiet] != [number as usize + 1; 2] {
            return Err(format!(
                "{} batches, of which {busy} and {quiet}",
                number + 1
            ));
        }
    }
    drop((busy, quiet));
    world.kill(Some(database));
    Ok(())
}

/// Two copies of a database do the same with other values. So they give equal ids and places to
/// different pages: ids begin with the low 40 bits of a life's branch, and those are equal here.
/// Both are backed up to one target in turn.
pub(in crate::mutants) fn branches(_scratch: &Path) -> Outcome {
    // One merge by one thread, so that both copies allocate alike.
    let options = tiny()
        .memory(4 << 20)
        .background_threads(1)
        .checkpoint_distance(CheckpointDistance::Fixed(64));
    let (world, target) = (Process::new(1, SimDisk::new(1)), SimDisk::new(2));
    let database = world.open(&options).map_err(text("open"))?;
    put(&database, 0..600, 0)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    back_up(&database, target.handle())?;
    database.close().map_err(text("close"))?;
    drop(database);
    let mut copies = Vec::new();
    for seed in [3, 4] {
        let copy = Process::new(seed, SimDisk::new(9));
        let done = restore_on(&target.handle(), &copy.disk.handle());
        done.map_err(text("restore"))?;
        copies.push(copy);
    }
    for round in 0..3_u64 {
        for (mark, copy) in (1_u64..).zip(&copies) {
            copy.sim.fix_random(Some(7 + round * 1000 + (mark << 40)));
            let database = copy.open(&options).map_err(text("open"))?;
            copy.sim.set_breathing(false);
            let keyspace = database.default_keyspace();
            for number in 0..200 {
                let value = [(10 * mark + round) as u8; 60];
                keyspace.put(key(3 * number), value).map_err(text("put"))?;
            }
            drop(keyspace);
            database.checkpoint().map_err(text("checkpoint"))?;
            back_up(&database, target.handle())?;
            let expected = records(&database, "default")?;
            let found = restored_records(&target, &options)?;
            database.close().map_err(text("close"))?;
            expect(&found, &expected, "a copy of one branch")?;
        }
    }
    Ok(())
}

/// On a disk that fills during a backup, deletes make room for puts.
pub(in crate::mutants) fn on_full_disk(_scratch: &Path) -> Outcome {
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .block_bytes(2048)
        .fanout(16)
        .stall_limit(std::time::Duration::from_secs(5));
    let (world, target) = (Process::new(1, SimDisk::new(1)), SimDisk::new(2));
    let database = world.open(&options).map_err(text("open"))?;
    put(&database, 0..8000, 0)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let outcome = Arc::new(std::sync::Mutex::new(Ok(())));
    let (other, disk, seen) = (database.clone(), world.disk.clone(), outcome.clone());
    let act = move || {
        if let Ok(mut seen) = seen.lock() {
            *seen = fill_and_delete(&other, &disk);
        }
    };
    let hooked = Creations {
        disk: target.handle(),
        part: "-data",
        act,
    };
    let done = database.backup_on(Arc::new(hooked), &BackupOptions::new());
    world.kill(Some(database));
    outcome.lock().map_err(|error| error.to_string())?.clone()?;
    match done {
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
        Err(error) => Err(text("backup")(error)),
        Ok(_) => Err("a backup went on although the disk was full".to_owned()),
    }
}

fn fill_and_delete(database: &Database, disk: &SimDisk) -> Outcome {
    disk.set_capacity(disk.used_bytes() + (4 << 20));
    let keyspace = database.default_keyspace();
    let mut stored = 8000;
    loop {
        match keyspace.put(key(stored), value(stored)) {
            Ok(()) => stored += 1,
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => return Err(text("put")(error)),
        }
    }
    for number in 0..stored * 3 / 4 {
        keyspace.delete(key(number)).map_err(text("delete"))?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    keyspace.put("again", "1").map_err(text("put again"))
}

/// A backup killed at any call, with or without power, leaves the old backup or the new one.
pub(in crate::mutants) fn killed_backups(_scratch: &Path) -> Outcome {
    let options = tiny();
    let (world, target) = (Process::new(1, SimDisk::new(1)), SimDisk::new(2));
    let database = world.open(&options).map_err(text("open"))?;
    put(&database, 0..300, 0)?;
    back_up(&database, target.handle())?;
    let old = records(&database, "default")?;
    put(&database, 200..400, 1)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let new = records(&database, "default")?;
    for call in 1.. {
        let mut over = false;
        for mode in CrashMode::ALL {
            let disk = target.fork();
            let handle = disk.handle();
            disk.die_at_call(call);
            let done = database.backup_on(handle, &BackupOptions::new());
            disk.die_at_call(u64::MAX);
            over |= disk.is_alive();
            disk.crash_power(mode);
            let found = restored_records(&disk, &options)
                .map_err(|error| format!("the power failed ({mode:?}) at call {call}: {error}"))?;
            if found != new {
                expect(&found, &old, "neither the old backup nor the new one")?;
                if done.is_ok() {
                    return Err(format!("call {call}, {mode:?}: the new backup is gone"));
                }
            }
        }
        if over {
            break;
        }
    }
    world.kill(Some(database));
    Ok(())
}

/// A restore killed at any call can be repeated, or its database is whole.
pub(in crate::mutants) fn killed_restores(_scratch: &Path) -> Outcome {
    let options = tiny();
    let (world, target) = (Process::new(1, SimDisk::new(1)), SimDisk::new(2));
    let database = world.open(&options).map_err(text("open"))?;
    put(&database, 0..300, 0)?;
    back_up(&database, target.handle())?;
    let expected = records(&database, "default")?;
    world.kill(Some(database));
    for call in 1.. {
        let mut over = false;
        for (seed, mode) in (3..7).flat_map(|seed| CrashMode::ALL.map(|mode| (seed, mode))) {
            let copy = Process::new(1, SimDisk::new(seed));
            let handle = copy.disk.handle();
            copy.disk.die_at_call(call);
            let _ = restore_on(&target.handle(), &handle);
            copy.disk.die_at_call(u64::MAX);
            over |= copy.disk.is_alive();
            copy.disk.crash_power(mode);
            match restore_on(&target.handle(), &copy.disk.handle()) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(text("a repeated restore")(error));
                }
                _ => {}
            }
            let database = copy.open(&options).map_err(text("the restored copy"))?;
            let found = records(&database, "default");
            copy.kill(Some(database));
            expect(&found?, &expected, "a restored copy")?;
        }
        if over {
            break;
        }
    }
    Ok(())
}
