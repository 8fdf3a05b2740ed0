//! Checks of properties that the general runs do not reach: damaged media, interrupted creations,
//! threads. A sound engine passes each check. A failed check names the broken promise.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use terrapin::{CheckpointDistance, Database, Durability, Keyspace, Options, Snapshot};
use terrapin_base::checksum::hash64;
use terrapin_base::{Env, ErrorKind, Lsn, Message, PageId};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_pages::DATA_FILE;
use terrapin_pages::block::Compression;
use terrapin_pages::group::{GroupBuilder, GroupOptions, check_group};
use terrapin_wal::{Append, Log, LogOptions, RECORD_KIND_USER_MIN, Recovery};

use crate::process::Process;

/// The outcome of a check: an error says what is wrong.
type Outcome = Result<(), String>;
/// The records that a store must hold.
type Truth = BTreeMap<Vec<u8>, Vec<u8>>;

/// The errors that an open or a read of a damaged file may return.
const DAMAGE: [ErrorKind; 3] = [
    ErrorKind::Corrupt,
    ErrorKind::NewerFormat,
    ErrorKind::NotADatabase,
];
/// A keyspace whose writes are flushed and not logged.
const FLUSHED: &str = "flushed";
/// The first file of a log.
const FIRST_SEGMENT: &str = "log-0000000000000001";

/// Small options: nodes of four children, so that a few hundred records make a tree.
fn tiny() -> Options {
    Options::new()
        .memory(1 << 20)
        .ring_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .log_bytes_max(512 << 10)
        .group_bytes(1 << 10)
        .block_bytes(512)
        .fanout(4)
        .checkpoint_distance(CheckpointDistance::Fixed(2))
        .background_threads(1)
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    format!("value {number} ").repeat(4).into_bytes()
}

fn text(context: &str) -> impl Fn(terrapin::Error) -> String {
    move |error| format!("{context}: {error}")
}

/// Puts records, and returns what the store must hold then.
fn fill(keyspace: &Keyspace, count: u64, durability: Durability) -> Result<Truth, String> {
    let mut truth = Truth::new();
    for number in 0..count {
        // The order is not that of the keys, so that leaves are written more than once.
        let number = number * 37 % count;
        let put = keyspace.put_with(key(number), value(number), durability);
        put.map_err(text("put"))?;
        truth.insert(key(number), value(number));
    }
    Ok(truth)
}

/// Whether all answers are right. Returns `Ok(false)` if one was an error.
fn answers(database: &Database, truth: &Truth) -> Result<bool, String> {
    let keyspace = database.default_keyspace();
    for (key, value) in truth {
        match keyspace.get(key) {
            Ok(got) if got.as_deref() == Some(&value[..]) => {}
            Ok(got) => {
                return Err(format!(
                    "get of {:?} returns {got:?}",
                    String::from_utf8_lossy(key)
                ));
            }
            Err(_) => return Ok(false),
        }
    }
    let scanned: terrapin::Result<Vec<_>> = keyspace.iter().collect();
    let Ok(scanned) = scanned else {
        return Ok(false);
    };
    let right = scanned.len() == truth.len()
        && scanned
            .iter()
            .zip(truth)
            .all(|((k, v), (key, value))| k[..] == key[..] && v[..] == value[..]);
    match right {
        true => Ok(true),
        false => Err(format!(
            "a scan returns {} records, other than the {} expected ones",
            scanned.len(),
            truth.len()
        )),
    }
}

/// Opens a copy of a disk with one byte changed. The open must fail or answer right. With
/// `must_open` it must not fail.
fn flipped(
    disk: &SimDisk,
    options: &Options,
    truth: &Truth,
    place: (&str, u64),
    must_open: bool,
) -> Outcome {
    let (file, offset) = place;
    let world = Process::new(1, disk.fork());
    world.disk.corrupt(file, offset, 0x11);
    let said = |what: String| format!("{file} was changed at {offset}: {what}");
    match world.open(options) {
        Ok(database) => {
            let right = answers(&database, truth);
            world.kill(Some(database));
            match right {
                Ok(right) if right || !must_open => Ok(()),
                Ok(_) => Err(said("an answer is an error".to_owned())),
                Err(wrong) => Err(said(wrong)),
            }
        }
        Err(error) if must_open => Err(said(format!("the database does not open: {error}"))),
        Err(error) if DAMAGE.contains(&error.kind()) => Ok(()),
        Err(error) => Err(said(format!("the error names no damage: {error}"))),
    }
}

/// A closed store of a tree with nodes, and its records.
fn closed_store(options: &Options) -> Result<(SimDisk, Truth), String> {
    let world = Process::new(1, SimDisk::new(3));
    let database = world.open(options).map_err(text("open"))?;
    let truth = fill(&database.default_keyspace(), 300, Durability::Process)?;
    database.close().map_err(text("close"))?;
    Ok((world.disk, truth))
}

/// A changed byte in the pages of a closed store is an error, or changes no answer (D8).
pub(super) fn damaged_pages(_scratch: &Path) -> Outcome {
    let options = tiny();
    let (disk, truth) = closed_store(&options)?;
    let content = disk.content(DATA_FILE).unwrap_or_default();
    let used = content.iter().enumerate().skip(8192);
    let used = used.filter(|(_, byte)| **byte != 0).step_by(2);
    for (offset, _) in used {
        let place = (DATA_FILE, offset as u64);
        flipped(&disk, &options, &truth, place, false)?;
    }
    Ok(())
}

/// Either superblock slot may be damaged without harm, also after a power cut (D2).
pub(super) fn damaged_slot(_scratch: &Path) -> Outcome {
    let options = tiny();
    let world = Process::new(1, SimDisk::new(3));
    let database = world.open(&options).map_err(text("open"))?;
    let mut truth = Truth::new();
    for _ in 0..4 {
        truth = fill(&database.default_keyspace(), 300, Durability::Process)?;
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    let disk = world.disk.fork();
    disk.crash_power(CrashMode::LoseUnsynced);
    for slot in [0, 4096] {
        for byte in (0..64).chain([508]) {
            flipped(&disk, &options, &truth, (DATA_FILE, slot + byte), true)?;
        }
    }
    world.kill(Some(database));
    Ok(())
}

/// Damage of a synced record in the log of a killed process is refused or harmless. It never costs
/// a record.
pub(super) fn damaged_log(_scratch: &Path) -> Outcome {
    // One segment, several times as large as the ring, so that the ring does not hold the damaged
    // record. One memtable takes all records.
    let options = tiny()
        .log_segment_bytes(1 << 20)
        .log_bytes_max(4 << 20)
        .group_bytes(64 << 10);
    let world = Process::new(1, SimDisk::new(7));
    let database = world.open(&options).map_err(text("open"))?;
    let truth = fill(&database.default_keyspace(), 60, Durability::Sync)?;
    world.kill(Some(database));
    let bytes = world.disk.content(FIRST_SEGMENT).unwrap_or_default().len() as u64;
    for offset in (0..88).chain((4096..bytes).step_by(997)) {
        flipped(
            &world.disk,
            &options,
            &truth,
            (FIRST_SEGMENT, offset),
            false,
        )?;
    }
    Ok(())
}

/// The full check of `verify` notices a change of any byte of a page group.
pub(super) fn damaged_group(_scratch: &Path) -> Outcome {
    let mut builder = GroupBuilder::new(GroupOptions {
        target_bytes: 4096,
        block_bytes: 512,
        unit: 512,
        compression: Compression::None,
        filter: true,
    });
    let mut groups = Vec::new();
    for number in 0..40 {
        let group = builder.add(&key(number), Message::Put(&value(number)));
        groups.extend(group.map_err(text("build"))?);
    }
    groups.extend(builder.finish());
    let pending = groups.into_iter().next().ok_or("no group was built")?;
    let (group, image) = pending.place(PageId(hash64(b"group")), 1 << 20);
    for at in 0..image.len() {
        let mut damaged = image.to_vec();
        damaged[at] ^= 0x11;
        if check_group(&damaged, &group).is_ok() {
            let all = image.len();
            return Err(format!(
                "a change of byte {at} of {all} of a page group goes unnoticed"
            ));
        }
    }
    Ok(())
}

/// After a clean close no open needs the ring, even after a power cut.
pub(super) fn close_without_ring(_scratch: &Path) -> Outcome {
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

/// A boundary taken after a close is not beyond the end of the log that a recovery finds. A tree
/// ahead of that end would be refused (D3).
pub(super) fn boundary_after_close(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(1));
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

/// A bad block in the middle of the log is refused. After a kill, the ring's marks prove the
/// damage. After an idle time and a power cut, the marks of the log file do.
pub(super) fn bad_block_in_log(_scratch: &Path) -> Outcome {
    let options = tiny()
        .memory(8 << 20)
        // No checkpoint holds the records that the log lacks.
        .group_bytes(1 << 20)
        .block_bytes(4096)
        .log_segment_bytes(1 << 20)
        .log_bytes_max(4 << 20);
    for idles in [false, true] {
        let world = Process::new(1, SimDisk::new(1));
        let database = world.open(&options).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        for number in 0..300u32 {
            let put = keyspace.put(number.to_be_bytes(), [7; 1000]);
            put.map_err(text("put"))?;
        }
        database.flush().map_err(text("flush"))?;
        drop(keyspace);
        for _ in 0..if idles { 30 } else { 0 } {
            world.sim.advance_ns(100_000_000);
            world.sim.settle();
        }
        world.kill(Some(database));
        if idles {
            world.disk.crash_power(CrashMode::LoseUnsynced);
            let ring = world.disk.content("ring").map_or(0, |ring| ring.len());
            world.disk.plant("ring", &vec![0; ring]);
        }
        // The block is in the last synced burst. Only the mark of its own sync proves that it was
        // synced.
        let segment = world.disk.content(FIRST_SEGMENT).unwrap_or_default();
        let end = segment.iter().rposition(|&byte| byte == 7).unwrap_or(0);
        let place = if idles { end - 6000 } else { 64 << 10 };
        world.disk.corrupt(FIRST_SEGMENT, place as u64, 0x20);
        let next = Process::new(1, world.disk.clone());
        match next.open(&options) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(text("the next open")(error)),
            Ok(database) => {
                let count = database.default_keyspace().iter().count();
                next.kill(Some(database));
                return Err(format!(
                    "idle {idles}: {count} of 300 records, and no error"
                ));
            }
        }
    }
    Ok(())
}

/// Deletes of long records among short ones free their space, and the metrics count the space in
/// use (decision 0035).
pub(super) fn space_after_deletes(_scratch: &Path) -> Outcome {
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

/// After an interrupted creation, whatever the call, the next open creates the database.
pub(super) fn interrupted_creation(_scratch: &Path) -> Outcome {
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

/// A snapshot that shows two records of one batch shows both from the same batch (D7).
pub(super) fn whole_batches(_scratch: &Path) -> Outcome {
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

/// A record flushed after a clear exists, wherever the process dies (D7). A power cut takes back no
/// record that a recovery has found (D6).
pub(super) fn flushed_after_clear(_scratch: &Path) -> Outcome {
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
pub(super) fn checkpoint_in_replay(_scratch: &Path) -> Outcome {
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

/// A write that is late for a clear or a drop goes with it or stays, also after a power cut (D2,
/// D7). Only code inside of the engine can time such a write.
#[cfg(terrapin_mutants)]
pub(super) fn late_writes(_scratch: &Path) -> Outcome {
    terrapin::testing::late::check()
}

#[cfg(not(terrapin_mutants))]
pub(super) fn late_writes(_scratch: &Path) -> Outcome {
    Err("this check needs a build with --cfg terrapin_mutants".to_owned())
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
pub(super) fn room_for_puts(_scratch: &Path) -> Outcome {
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
pub(super) fn old_views(_scratch: &Path) -> Outcome {
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
pub(super) fn late_views(_scratch: &Path) -> Outcome {
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

/// A second open of a directory is refused during the first one (D9).
pub(super) fn second_open(scratch: &Path) -> Outcome {
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
