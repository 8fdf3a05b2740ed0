//! A small full file system: puts get a clear error and are not there, reads and deletes go on,
//! space comes back, writes resume, and a reopen finds every acknowledged write (D10).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Write as _};
use std::path::Path;
use std::time::Duration;

use terrapin::{Database, ErrorKind, Keyspace, Options};
use terrapin_base::Env;
use terrapin_disk::{Disk as _, OpenOptions as DiskOptions, RealDisk};

use crate::Find;
use crate::kernel::child::pause;
use crate::kernel::file_system::{FileSystem, Kind};
use crate::kernel::judge::sound;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// More puts than a small file system can hold.
const PUTS_MAX: u64 = 200_000;
/// How often writes are retried, each tenth of a second.
const TRIES: u32 = 600;

/// Bytes that come back for an open which had no room for a log file.
const ROOM_BYTES: usize = 1 << 20;

/// The most checkpoints that a checkpoint or close may take on a full disk: 64 for each memtable it
/// merges, and some that began before.
const ROUNDS_MAX: u64 = 160;

/// Fills an ext4 by puts, and again by another program's file.
pub fn ext4(scratch: &Path) -> Result<u64, Find> {
    let system = FileSystem::new(Kind::Ext4, scratch, 24 << 20)?;
    gives_back(&system)?;
    filled_by_puts(&system)?;
    closes_within_bounds(&system)?;
    let cases = filled_by_somebody_else(&system)?;
    Ok(9 + cases)
}

/// Fills an XFS by another program's file.
pub fn xfs(scratch: &Path) -> Result<u64, Find> {
    let system = FileSystem::new(Kind::Xfs, scratch, 320 << 20)?;
    gives_back(&system)?;
    let cases = filled_by_somebody_else(&system)?;
    // Puts alone would take long to fill it.
    take_all_but(&system.path().join("ballast"), 24 << 20)?;
    closes_within_bounds(&system)?;
    Ok(3 + cases)
}

/// A file that finds no space to grow keeps its length, and the space it took on the way is free
/// again.
fn gives_back(system: &FileSystem) -> Result<(), Find> {
    const BYTES: u64 = 1 << 20;
    let disk = RealDisk::open(Env::threads(), system.path(), false)?;
    let options = DiskOptions {
        create_new: true,
        write: true,
        ..DiskOptions::default()
    };
    let names = ["grows", "takes"];
    let file = disk.open(names[0], options)?;
    file.allocate(0, BYTES)?;
    let free = disk.free_bytes()?;
    for (offset, bytes) in [(BYTES, 2 * free), (0, BYTES + 2 * free)] {
        match file.allocate(offset, bytes) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            Err(error) => return Err(Find(format!("an allocation on a full disk: {error}"))),
            Ok(()) => return Err(Find("more was allocated than is free".to_owned())),
        }
        let found = (file.bytes()?, file.allocated_bytes()?);
        if found.0 != BYTES || found.1 > BYTES + BYTES / 8 {
            return Err(Find(format!(
                "an allocation that failed left {found:?} bytes in a file of {BYTES}"
            )));
        }
    }
    disk.open(names[1], options)?.allocate(0, free * 3 / 4)?;
    for name in names {
        disk.remove(name)?;
    }
    Ok(())
}

fn options() -> Options {
    Options::new()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .ring_bytes(256 << 10)
        .log_segment_bytes(256 << 10)
}

fn key(number: u64) -> Vec<u8> {
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()
        .to_vec()
}

/// Puts until one is refused, which must be for lack of space.
fn fill(keyspace: &Keyspace, from: u64, state: &mut Map) -> Result<u64, Find> {
    for number in from..PUTS_MAX {
        let (key, value) = (key(number), vec![number as u8; 700]);
        match keyspace.put(&key, &value) {
            Ok(()) => state.insert(key, value),
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(number),
            Err(error) => return Err(Find(format!("a put on a full disk: {error}"))),
        };
    }
    Err(Find("the disk does not fill".to_owned()))
}

fn holds(keyspace: &Keyspace, state: &Map, when: &str) -> Result<(), Find> {
    let mut records = 0;
    for record in keyspace.iter() {
        let (key, value) = record.map_err(|e| Find(format!("a read {when}: {e}")))?;
        if state.get(&key[..]).map(Vec::as_slice) != Some(&value[..]) {
            return Err(Find(format!("{when} record {key:02x?} is wrong")));
        }
        records += 1;
    }
    if records != state.len() {
        let wanted = state.len();
        return Err(Find(format!(
            "{when} there are {records} records instead of {wanted}"
        )));
    }
    for (key, value) in state.iter().step_by(97) {
        if keyspace.get(key)?.as_deref() != Some(&value[..]) {
            return Err(Find(format!("{when} a get of {key:02x?} is wrong")));
        }
    }
    Ok(())
}

/// Puts must work again soon.
fn resumes(
    (database, keyspace): (&Database, &Keyspace),
    number: u64,
    when: &str,
    state: &mut Map,
) -> Result<(), Find> {
    let mut refused = String::new();
    for _ in 0..TRIES {
        let (key, value) = (key(number), b"resumed".to_vec());
        match keyspace.put(&key, &value) {
            Ok(()) => {
                state.insert(key, value);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                refused = error.to_string();
                pause(100_000_000);
            }
            Err(error) => return Err(Find(format!("a put {when}: {error}"))),
        }
    }
    let (metrics, failed) = (database.metrics(), database.background_error());
    Err(Find(format!(
        "{when} puts are refused still: {refused}; {failed:?}; {metrics:?}"
    )))
}

fn open(directory: &Path) -> Result<(Database, Keyspace), Find> {
    let database = options().open(directory)?;
    let keyspace = database.default_keyspace();
    Ok((database, keyspace))
}

fn filled_by_puts(system: &FileSystem) -> Result<(), Find> {
    let directory = system.path().join("filled");
    let mut state = Map::new();
    let (database, keyspace) = open(&directory)?;
    let refused = fill(&keyspace, 0, &mut state)?;
    holds(&keyspace, &state, "on a full disk")?;
    let most: Vec<_> = (0..refused)
        .filter(|number| number % 10 != 0)
        .map(key)
        .collect();
    for key in most {
        keyspace
            .delete(&key)
            .map_err(|error| Find(format!("a delete on a full disk: {error}")))?;
        state.remove(&key);
    }
    resumes(
        (&database, &keyspace),
        PUTS_MAX,
        "after deletes of most",
        &mut state,
    )?;
    holds(&keyspace, &state, "after writes resumed")?;
    database.close()?;
    sound(&directory, "after a full disk", false)?;
    let (database, keyspace) = open(&directory)?;
    holds(&keyspace, &state, "reopened")?;
    database.close()?;
    fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Half of the records are deleted while a snapshot keeps their pages. A checkpoint and a close
/// then take a bounded number of checkpoints (decision 0038), and the next open replays the rest.
/// A close that merged everything leaves a log file for the next open. Another close may leave
/// none: that open fails for lack of space, and succeeds once there is some.
fn closes_within_bounds(system: &FileSystem) -> Result<(), Find> {
    let directory = system.path().join("bounded");
    let options = options().stall_limit(Duration::from_secs(2));
    let room = system.path().join("room");
    fs::write(&room, vec![7; ROOM_BYTES])?;
    File::open(&room)?.sync_all()?;
    let mut state = Map::new();
    let database = options.open(&directory)?;
    let keyspace = database.default_keyspace();
    let stored = fill(&keyspace, 0, &mut state)?;
    let snapshot = database.snapshot()?;
    for key in (0..stored).step_by(2).map(key) {
        match keyspace.delete(&key) {
            Ok(()) => state.remove(&key),
            // Pages that the snapshot keeps are not free.
            Err(error) if error.kind() == ErrorKind::Stalled => break,
            Err(error) => return Err(Find(format!("a delete beside a snapshot: {error}"))),
        };
    }
    let rounds = || database.metrics().checkpoints + database.metrics().checkpoints_failed;
    let bounded = |what: &str, before: u64| match rounds() - before {
        ..=ROUNDS_MAX => Ok(()),
        taken => Err(Find(format!(
            "on a full disk {what} took {taken} checkpoints"
        ))),
    };
    let before = rounds();
    match database.checkpoint() {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NoSpace => {}
        Err(error) => return Err(Find(format!("a checkpoint on a full disk: {error}"))),
    }
    bounded("a checkpoint", before)?;
    drop(snapshot);
    let before = rounds();
    let closed = database.close()?;
    bounded("a close", before)?;
    if (closed.replay_bytes > 0) != closed.cause.is_some() {
        return Err(Find(format!("a close that says {closed:?}")));
    }
    sound(&directory, "after a close on a full disk", false)?;
    let database = match options.open(&directory) {
        Err(error) if error.kind() == ErrorKind::NoSpace && closed.cause.is_some() => {
            fs::remove_file(&room)?;
            options.open(&directory)
        }
        opened => opened,
    };
    let database = database.map_err(|error| Find(format!("an open after {closed:?}: {error}")))?;
    holds(
        &database.default_keyspace(),
        &state,
        "reopened on a full disk",
    )?;
    let replayed = database.metrics().replayed_records;
    if closed.replay_bytes == 0 && replayed > 0 {
        return Err(Find(format!(
            "{replayed} records were replayed after {closed:?}"
        )));
    }
    database.close()?;
    fs::remove_dir_all(&directory)?;
    fs::remove_file(&room).or_else(|error| match error.kind() {
        IoKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    Ok(())
}

/// Another program takes all space but this many bytes.
fn take_all_but(path: &Path, bytes: u64) -> Result<(), Find> {
    let directory = path.parent().unwrap_or(path);
    let free = RealDisk::open(Env::threads(), directory, false)?.free_bytes()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let options = DiskOptions {
        create_new: true,
        write: true,
        ..DiskOptions::default()
    };
    let file = RealDisk::open(Env::threads(), directory, false)?.open(&name, options)?;
    file.allocate(0, free.saturating_sub(bytes))?;
    Ok(())
}

/// Another program takes all space.
fn take_all(path: &Path) -> Result<(), Find> {
    let mut file = File::create(path)?;
    let mut piece = vec![7; 1 << 20];
    while !piece.is_empty() {
        match file.write_all(&piece).and_then(|()| file.sync_data()) {
            Ok(()) => {}
            Err(error) if error.kind() == IoKind::StorageFull => piece.truncate(piece.len() / 2),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn filled_by_somebody_else(system: &FileSystem) -> Result<u64, Find> {
    let directory = system.path().join("crowded");
    let taken = system.path().join("taken");
    let mut state = Map::new();
    let (database, keyspace) = open(&directory)?;
    for number in 0..3000 {
        let (key, value) = (key(number), vec![number as u8; 700]);
        keyspace.put(&key, &value)?;
        state.insert(key, value);
    }
    take_all(&taken)?;
    let refused = fill(&keyspace, 3000, &mut state)?;
    holds(&keyspace, &state, "on a crowded disk")?;
    for number in 0..100 {
        keyspace
            .delete(key(number))
            .map_err(|error| Find(format!("a delete on a crowded disk: {error}")))?;
        state.remove(&key(number));
    }
    fs::remove_file(&taken)?;
    resumes(
        (&database, &keyspace),
        refused,
        "once others made room",
        &mut state,
    )?;
    take_all(&taken)?;
    fill(&keyspace, refused + 1, &mut state)?;
    drop((database, keyspace));
    // On a full disk it may open or not; if not, for lack of space.
    match options().open(&directory) {
        Ok(database) => {
            let keyspace = database.default_keyspace();
            holds(&keyspace, &state, "opened on a crowded disk")?;
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => {}
        Err(error) => return Err(Find(format!("an open on a crowded disk: {error}"))),
    }
    fs::remove_file(&taken)?;
    let (database, keyspace) = open(&directory)?;
    holds(&keyspace, &state, "opened when there is space again")?;
    resumes(
        (&database, &keyspace),
        PUTS_MAX,
        "opened with room",
        &mut state,
    )?;
    database.close()?;
    sound(&directory, "after a crowded disk", false)?;
    Ok(6)
}
