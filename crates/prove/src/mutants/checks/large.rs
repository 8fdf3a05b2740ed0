//! Checks of large values.

use std::path::Path;
use std::time::Duration;

use terrapin::salvage::salvage_on;
use terrapin::{
    CheckpointDistance, Database, Durability, ErrorKind, Keyspace, KeyspaceOptions, Options,
    StructureKind,
};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};

use super::{Outcome, text};
use crate::process::Process;

const MIB: usize = 1 << 20;

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .ring_bytes(2 << 20)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .background_threads(1)
}

/// A value of which every part differs.
fn value(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes as u64 / 8).map(|at| at.wrapping_mul(2 * seed + 1) ^ seed << 40);
    words.flat_map(u64::to_le_bytes).collect()
}

fn has(keyspace: &Keyspace, key: &str, expected: &[u8]) -> Outcome {
    match keyspace.get(key).map_err(text("get"))? {
        Some(found) if found == *expected => Ok(()),
        Some(_) => Err(format!("another value of {key}")),
        None => Err(format!("no value of {key}")),
    }
}

/// Values that a synced write put survive a power cut, also one behind a recovery.
pub(in crate::mutants) fn power_cuts(_scratch: &Path) -> Outcome {
    let modes = [
        CrashMode::LoseUnsynced,
        CrashMode::RandomSubset,
        CrashMode::SizeBeforeData,
    ];
    for (seed, mode) in (100..).zip(modes) {
        let disk = SimDisk::new(seed);
        let world = Process::new(1, disk.clone());
        let database = world.open(&options()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        let (synced, killed) = (value(seed, MIB), value(seed + 50, 2 * MIB));
        let put = keyspace.put_with("synced", &synced, Durability::Sync);
        put.map_err(text("put"))?;
        drop(keyspace);
        world.kill(Some(database));
        disk.crash_power(mode);
        let world = Process::new(2, disk.clone());
        let database = world.open(&options()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        has(&keyspace, "synced", &synced)?;
        // A kill, an open that says that its log is synced, and a power cut.
        keyspace.put("killed", &killed).map_err(text("put"))?;
        drop(keyspace);
        world.kill(Some(database));
        disk.crash_process();
        let world = Process::new(3, disk.clone());
        let database = world.open(&options()).map_err(text("open"))?;
        has(&database.default_keyspace(), "killed", &killed)?;
        let put = database
            .default_keyspace()
            .put_with("last", "1", Durability::Sync);
        put.map_err(text("put"))?;
        world.kill(Some(database));
        disk.crash_power(mode);
        let world = Process::new(4, disk.clone());
        let database = world.open(&options()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        has(&keyspace, "synced", &synced)?;
        has(&keyspace, "killed", &killed)?;
        has(&keyspace, "last", b"1")?;
        drop(keyspace);
        world.kill(Some(database));
    }
    Ok(())
}

/// A sync of the data file fails: its bytes are read as written, and no later sync stores them. The
/// process dies, and an open takes the records of the large values. Wherever that open dies, a
/// power cut after it loses none of what it called synced.
pub(in crate::mutants) fn claimed(_scratch: &Path) -> Outcome {
    let modes = [
        CrashMode::LoseUnsynced,
        CrashMode::RandomSubset,
        CrashMode::SizeBeforeData,
    ];
    for (seed, mode) in (120..).zip(modes) {
        let disk = SimDisk::new(seed);
        let world = Process::new(1, disk.clone());
        let database = world.open(&options()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        let put = keyspace.put_with("synced", value(seed, MIB), Durability::Sync);
        put.map_err(text("put"))?;
        let long = value(seed + 50, MIB);
        keyspace.put("claimed", &long).map_err(text("put"))?;
        disk.inject(Fault::nth(1, FaultError::Io).on(Op::Sync).of("data"));
        if database.flush().is_ok() {
            return Err("a sync failed, and flush says nothing".to_owned());
        }
        drop(keyspace);
        world.kill(Some(database));
        disk.clear_faults();
        for call in 1.. {
            let disk = disk.fork();
            let has_opened = claim((&disk, mode), call, (&value(seed, MIB), &long));
            if has_opened.map_err(|error| format!("{mode:?}, call {call}: {error}"))? {
                break;
            }
        }
    }
    Ok(())
}

/// Opens, dies at a call, or else after a synced put, loses power, and opens again. Whether the
/// first open came to its end.
fn claim(
    (disk, mode): (&SimDisk, CrashMode),
    call: u64,
    (synced, long): (&[u8], &[u8]),
) -> Result<bool, String> {
    let world = Process::new(2, disk.clone());
    disk.die_at_call(call);
    let opened = world.open(&options());
    disk.die_at_call(u64::MAX);
    let has_opened = opened.is_ok();
    if let Ok(database) = &opened {
        let keyspace = database.default_keyspace();
        has(&keyspace, "claimed", long)?;
        let put = keyspace.put_with("last", "1", Durability::Sync);
        put.map_err(text("put"))?;
    }
    world.kill(opened.ok());
    disk.crash_power(mode);
    let world = Process::new(3, disk.clone());
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    has(&keyspace, "synced", synced)?;
    let is_there = keyspace.contains("claimed").map_err(text("contains"))?;
    if has_opened || is_there {
        has(&keyspace, "claimed", long)?;
    }
    if has_opened {
        has(&keyspace, "last", b"1")?;
    }
    drop(keyspace);
    world.kill(Some(database));
    Ok(has_opened)
}

/// A checkpoint that fails after it adopted large pages leaves them to their memtable.
pub(in crate::mutants) fn failed_checkpoint(_scratch: &Path) -> Outcome {
    for nth in 1..12 {
        let disk = SimDisk::new(110);
        let world = Process::new(1, disk.clone());
        let database = world.open(&options()).map_err(text("open"))?;
        let keyspace = database.default_keyspace();
        for (key, seed) in [("a", 1), ("a", 2), ("b", 3)] {
            keyspace.put(key, value(seed, MIB)).map_err(text("put"))?;
        }
        disk.inject(Fault::nth(nth, FaultError::Io).on(Op::Write).of("data"));
        let _failed = database.checkpoint();
        disk.clear_faults();
        for round in 0..3 {
            let _ = keyspace.put("c", value(10 + round, MIB));
            has(&keyspace, "a", &value(2, MIB))?;
            has(&keyspace, "b", &value(3, MIB))?;
        }
        drop(keyspace);
        world.kill(Some(database));
        let world = Process::new(2, disk);
        let database = world.open(&options()).map_err(text("open"))?;
        has(&database.default_keyspace(), "a", &value(2, MIB))?;
        has(&database.default_keyspace(), "b", &value(3, MIB))?;
        world.kill(Some(database));
    }
    Ok(())
}

/// Large values that nobody put, and those that ended, take no space.
pub(in crate::mutants) fn space(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(111));
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let long = value(1, MIB);
    for round in 0..4 {
        let mut writer = keyspace.writer("w", 2 << 20).map_err(text("writer"))?;
        writer.append(&long).map_err(text("append"))?;
        drop(writer);
        let mut batch = database.batch();
        batch.put(&keyspace, "b", &long);
        drop(batch);
        let mut tx = database.transaction().map_err(text("begin"))?;
        tx.put(&keyspace, "t", &long).map_err(text("put"))?;
        drop(tx);
        for number in 0..3 {
            let put = keyspace.put("kept", value(round * 3 + number, MIB));
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    world.sim.settle();
    let live = database.metrics().data_live_bytes;
    drop(keyspace);
    world.kill(Some(database));
    match live < 3 << 20 {
        true => Ok(()),
        false => Err(format!("{live} live bytes for one value of 1 MiB")),
    }
}

/// A commit whose transaction read large values notices that they changed. Parts of values are
/// those that were asked for.
pub(in crate::mutants) fn compared(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(112));
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let old = value(1, 2 * MIB);
    for changes in [false, true] {
        keyspace.put("a", &old).map_err(text("put"))?;
        let mut tx = database.transaction().map_err(text("begin"))?;
        tx.get(&keyspace, "a").map_err(text("get"))?;
        tx.put(&keyspace, "b", "1").map_err(text("put"))?;
        if changes {
            keyspace.put("a", value(2, MIB)).map_err(text("put"))?;
        }
        // The memtables no longer tell what has changed.
        fill(&database, &keyspace)?;
        let committed = tx.commit().map_err(text("commit"))?.is_ok();
        if committed == changes {
            return Err(format!("committed: {committed}, changed: {changes}"));
        }
    }
    keyspace.put("a", &old).map_err(text("put"))?;
    for start in [0, 4095, 4096, 5000, MIB - 1, MIB + 3, 2 * MIB - 5] {
        let range = start as u64..start as u64 + 10;
        let part = keyspace.get_range("a", range).map_err(text("get_range"))?;
        let expected = &old[start..(start + 10).min(old.len())];
        if part.as_deref() != Some(expected) {
            return Err(format!("another part from {start} on"));
        }
    }
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}

/// Views have the large values that they saw in memtables, and so has the newest state, whatever
/// runs take the memtables' place.
pub(in crate::mutants) fn folded(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(114));
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let old = |key: u64| value(10 + key, MIB);
    for round in 0..3 {
        for key in 0..3 {
            let put = keyspace.put(format!("key {key}"), old(round + key));
            put.map_err(text("put"))?;
        }
        let view = database.snapshot().map_err(text("snapshot"))?;
        keyspace
            .put("key 0", old(20 + round))
            .map_err(text("put"))?;
        world.sim.advance_ns(3_000_000_000);
        match round {
            0 => keyspace.clear().map_err(text("clear"))?,
            _ => database.checkpoint().map_err(text("checkpoint"))?,
        }
        world.sim.settle();
        // Space that was given back is used again.
        for number in 0..6 {
            let put = keyspace.put(format!("other {number}"), value(90 + number, MIB));
            put.map_err(text("put"))?;
        }
        for key in 0..3 {
            let found = view.get(&keyspace, format!("key {key}"));
            let found = found.map_err(text("get of a view"))?;
            if found.as_deref() != Some(&old(round + key)[..]) {
                return Err(format!("a view has another value of key {key}"));
            }
        }
        if round > 0 {
            has(&keyspace, "key 0", &old(20 + round))?;
            has(&keyspace, "key 1", &old(round + 1))?;
        }
        drop(view);
    }
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}

/// A copy of a damaged value never looks sound, and an error of the system loses no value.
pub(in crate::mutants) fn copied(_scratch: &Path) -> Outcome {
    let disk = SimDisk::new(115);
    let world = Process::new(1, disk.clone());
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let long = value(1, 2 * MIB);
    let minute = Duration::from_secs(60);
    let put = keyspace.put_with_ttl("long", &long, minute);
    put.map_err(text("put"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    drop(keyspace);
    world.kill(Some(database));
    let salvaged = |disk: &SimDisk| {
        let new = Process::new(3, SimDisk::new(116));
        let copy = new.open(&options()).map_err(text("open"))?;
        let report = salvage_on(&new.env, &disk.handle(), &options(), &copy);
        new.kill(Some(copy));
        Ok::<_, String>(report)
    };
    for nth in 1..30 {
        let disk = disk.fork();
        let fault = Fault::nth(nth, FaultError::TooManyFiles);
        disk.inject(fault.on(Op::Read).of("data"));
        if let Ok(report) = salvaged(&disk)?
            && !report.is_whole()
        {
            return Err(format!(
                "read {nth} failed, and the salvage says {report:?}"
            ));
        }
    }
    let data = disk.content("data").unwrap_or_default();
    let mark = &long[MIB + 800..MIB + 900];
    let at = data.windows(100).position(|bytes| bytes == mark);
    let at = at.ok_or("the value is not on the disk")?;
    disk.corrupt("data", at as u64, 0x10);
    match salvaged(&disk)? {
        Ok(report) if report.is_whole() => {
            return Err("a salvage copied a damaged value".to_owned());
        }
        salvaged => drop(salvaged.map_err(text("salvage"))?),
    }
    let world = Process::new(2, disk);
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let touched = keyspace.touch("long", 2 * minute);
    drop(keyspace);
    world.kill(Some(database));
    match touched {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
        touched => Err(format!("a touch of a damaged value: {touched:?}")),
    }
}

/// The large values of an ingest have their pages, over a kill, and give them back at their end.
pub(in crate::mutants) fn ingested(_scratch: &Path) -> Outcome {
    let disk = SimDisk::new(117);
    let world = Process::new(1, disk.clone());
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let records = (0..4u64).map(|number| (format!("key {number}"), value(number, MIB)));
    keyspace.ingest(records).map_err(text("ingest"))?;
    drop(keyspace);
    world.kill(Some(database));
    disk.crash_process();
    let world = Process::new(2, disk);
    let database = world.open(&options()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    for number in 0..6 {
        let put = keyspace.put(format!("other {number}"), value(90 + number, MIB));
        put.map_err(text("put"))?;
    }
    for number in 0..4 {
        has(&keyspace, &format!("key {number}"), &value(number, MIB))?;
    }
    keyspace.clear().map_err(text("clear"))?;
    database.checkpoint().map_err(text("checkpoint"))?;
    world.sim.settle();
    let live = database.metrics().data_live_bytes;
    drop(keyspace);
    world.kill(Some(database));
    match live < MIB as u64 {
        true => Ok(()),
        false => Err(format!("{live} live bytes of an empty keyspace")),
    }
}

/// Records of [`fill`].
const FILLED: u32 = 3000;

/// Several memtables.
fn fill(database: &Database, keyspace: &Keyspace) -> Outcome {
    for number in 0..FILLED {
        let put = keyspace.put(format!("other {number}"), [7; 600]);
        put.map_err(text("put"))?;
    }
    for _ in 0..2 {
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    Ok(())
}

/// Large values end at their deadlines in every read, over kills and merges, and give their space
/// back.
pub(in crate::mutants) fn deadlines(_scratch: &Path) -> Outcome {
    let structures = [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ];
    for structure in structures {
        for merged in [false, true] {
            end(structure, merged).map_err(|error| format!("{structure:?} {merged}: {error}"))?;
        }
    }
    Ok(())
}

fn end(structure: StructureKind, merged: bool) -> Outcome {
    let second = Duration::from_secs(1);
    let disk = SimDisk::new(113);
    let world = Process::new(1, disk.clone());
    // Short ones are large, too, so that the record cache may take them.
    let options = options().large_above_for_tests(Some(100));
    let database = world.open(&options).map_err(text("open"))?;
    let made = KeyspaceOptions::new().structure(structure);
    let keyspace = database
        .create_keyspace("k", made)
        .map_err(text("create"))?;
    let merging = made.merge_operator("append");
    let merging = database.create_keyspace("merging", merging);
    let merging = merging.map_err(text("create"))?;
    let (long, less) = (value(1, MIB), value(2, 300_000));
    for key in ["ends", "touched", "persists"] {
        keyspace.put(key, "older").map_err(text("put"))?;
        let put = keyspace.put_with_ttl(key, &long, 100 * second);
        put.map_err(text("put"))?;
    }
    let put = merging.put_with_ttl("m", &less, 100 * second);
    put.map_err(text("put"))?;
    if merged {
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    merging.merge("m", "x").map_err(text("merge"))?;
    let put = keyspace.put_with_ttl("short", [7; 300], 300 * second);
    put.map_err(text("put"))?;
    let touched = keyspace.touch("touched", 300 * second);
    let persists = keyspace.persist("persists");
    if !touched.map_err(text("touch"))? || !persists.map_err(text("persist"))? {
        return Err("a touch finds no value".to_owned());
    }
    let touched = keyspace.touch("persists", 200 * second);
    touched.map_err(text("touch"))?;
    if merged {
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    for _ in 0..3 {
        has(&keyspace, "ends", &long)?;
    }
    drop((keyspace, merging));
    world.kill(Some(database));
    disk.crash_process();
    let world = Process::new(2, disk);
    world.sim.advance_ns(110_000_000_000);
    let database = world.open(&options).map_err(text("open"))?;
    let open = |name| database.open_keyspace(name).map_err(text("open keyspace"));
    let (keyspace, merging) = (open("k")?, open("merging")?);
    let is_there = |key: &str| keyspace.get(key).map(|value| value.is_some());
    for (key, expected) in [("ends", false), ("touched", true), ("persists", true)] {
        if is_there(key).map_err(text("get"))? != expected {
            return Err(format!("{key} is there: {}", !expected));
        }
    }
    has(&merging, "m", b"x")?;
    // Merges reach the leaves.
    for round in 0..3 {
        fill(&database, &merging)?;
        merging.merge("m", "y").map_err(text("merge"))?;
        fill(&database, &keyspace)?;
        has(&merging, "m", &[&b"x"[..], &b"yyy"[..=round]].concat())?;
    }
    for _ in 0..3 {
        has(&keyspace, "short", &[7; 300])?;
    }
    world.sim.advance_ns(200_000_000_000);
    for key in ["ends", "touched", "persists", "short"] {
        if is_there(key).map_err(text("get"))? {
            return Err(format!("{key} is there after its deadline"));
        }
    }
    // What stays are the operands of one key.
    for keyspace in [&keyspace, &merging] {
        for number in 0..FILLED {
            let deleted = keyspace.delete(format!("other {number}"));
            deleted.map_err(text("delete"))?;
        }
    }
    for _ in 0..60 {
        world.sim.advance_ns(2_000_000_000);
        world.sim.settle();
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    has(&merging, "m", b"xyyy")?;
    let live = database.metrics().data_live_bytes;
    drop((keyspace, merging));
    database.close().map_err(text("close"))?;
    match live < 280_000 {
        true => Ok(()),
        false => Err(format!("{live} live bytes after all large values ended")),
    }
}
