//! Checks of properties that the general runs do not reach: damaged media, interrupted creations,
//! threads. A sound engine passes each check. A failed check names the broken promise.

pub(super) mod backups;
pub(super) mod conditions;
pub(super) mod expiry;
pub(super) mod hashtrie;
pub(super) mod ingests;
pub(super) mod inplace;
pub(super) mod large;
pub(super) mod lives;
pub(super) mod merges;
pub(super) mod range_deletes;
pub(super) mod readers;
pub(super) mod salvages;
pub(super) mod tiered;
pub(super) mod transactions;
pub(super) mod values;
pub(super) mod views;

use std::collections::BTreeMap;
use std::path::Path;

use terrapin::{CheckpointDistance, Database, Durability, Keyspace, Options};
use terrapin_base::checksum::hash64;
use terrapin_base::{ErrorKind, Message, PageId};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_pages::DATA_FILE;
use terrapin_pages::block::{Block, BlockBuilder, Compression, Record, RecordKind};
use terrapin_pages::group::{GroupBuilder, GroupOptions, check_group};

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
        filter_bits: 12,
        now_ms: 0,
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

/// A block with a record that this version does not execute is refused by name (D8).
pub(super) fn unexecuted_records(_scratch: &Path) -> Outcome {
    let deadline = Some(1_800_000_000_000);
    let deadlines_of = |kind| match kind {
        RecordKind::Delete | RecordKind::Merge => [None, None],
        _ => [None, deadline],
    };
    let records = RecordKind::ALL
        .into_iter()
        .flat_map(|kind| deadlines_of(kind).map(|deadline_ms| (kind, deadline_ms)));
    for (kind, deadline_ms) in records {
        let value: &[u8] = match kind {
            RecordKind::Delete => b"",
            _ => b"value",
        };
        let record = Record {
            kind,
            deadline_ms,
            value,
        };
        let mut builder = BlockBuilder::new(512, Compression::None);
        let added = builder.add_record(b"key", record).map_err(text("add"))?;
        let mut bytes = Vec::new();
        builder.finish(PageId(7), 0, &mut bytes);
        let read = Block::decode(&bytes, PageId(7), 0);
        let said = format!("a {} with deadline {deadline_ms:?}", kind.name());
        match (record.check(), read) {
            (Ok(()), Ok(block)) if added && Record::from(block.message(0)) == record => {}
            (Err(_), Err(error)) if error.to_string().contains(kind.name()) => {}
            (_, Ok(block)) => return Err(format!("{said} is read as {:?}", block.message(0))),
            (_, Err(error)) => return Err(format!("{said} is refused without its name: {error}")),
        }
    }
    Ok(())
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
