//! Layer `costs`: the cost of work follows from what it changes, not from what else exists. A unit
//! draws one of three kinds from its seed, on a simulated disk: many held snapshots, many evenly
//! written keyspaces, polls of an emptied range. It counts bytes and records, not time.

use std::path::Path;

use terrapin::{Database, Options, Snapshot};
use terrapin_base::{Env, Sim};
use terrapin_disk::SimDisk;
use terrapin_model::Random;

use crate::{Find, Layer, Units};

pub(super) fn layer() -> Layer {
    Layer {
        name: "costs",
        counts: "operations",
        ci: 1_000_000,
        full: 20_000_000,
        units: Units::Seeds,
        alone: false,
        unit,
    }
}

fn unit(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    let mut random = Random::new(unit);
    match random.below(3) {
        0 => held_snapshots(unit, &mut random),
        1 => many_keyspaces(unit, &mut random),
        _ => polls(unit, &mut random),
    }
}

fn options(random: &mut Random) -> Options {
    Options::new()
        .memory(*random.pick(&[2 << 20, 4 << 20]))
        .ring_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .log_bytes_max(1 << 20)
        .group_bytes(*random.pick(&[8 << 10, 16 << 10]))
        .block_bytes(1024)
        .background_threads(1 + random.index(2))
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn opened(seed: u64, options: &Options) -> Result<(Database, Sim), Find> {
    let (env, sim) = Env::simulated(seed);
    let database = options.open_on(env, SimDisk::new(seed).handle())?;
    Ok((database, sim))
}

/// With held snapshots, at most this many times the bytes are written as without them, and
/// [`SNAPSHOTS_BYTES`] more.
const SNAPSHOTS_TIMES: u64 = 4;
const SNAPSHOTS_BYTES: u64 = 128 << 10;

/// Overwrites beside held snapshots write little more than without them: what views need of a
/// memtable is written once for all views.
fn held_snapshots(seed: u64, random: &mut Random) -> Result<u64, Find> {
    const RECORDS: u64 = 2000;
    let options = options(random);
    let (puts, each) = (random.between(2000..5000), random.between(5..60));
    let value = vec![7; random.between(20..200) as usize];
    let written = |holds: bool| -> Result<(u64, usize), Find> {
        let (database, sim) = opened(seed, &options)?;
        let keyspace = database.default_keyspace();
        for number in 0..RECORDS {
            keyspace.put(key(number), &value)?;
        }
        database.checkpoint()?;
        let before = database.metrics().device_written.total();
        let mut held: Vec<Snapshot> = Vec::new();
        for number in 0..puts {
            keyspace.put(key(number * 7 % RECORDS), &value)?;
            if number % each == 0 {
                if holds {
                    held.push(database.snapshot()?);
                }
                // Views grow old.
                sim.advance_ns(200_000_000);
                sim.settle();
            }
        }
        database.checkpoint()?;
        sim.advance_ns(2_000_000_000);
        sim.settle();
        let bytes = database.metrics().device_written.total() - before;
        if let Some(first) = held.first()
            && first.get(&keyspace, key(0))?.is_none()
        {
            return Err(Find("a snapshot lost a record".to_owned()));
        }
        let snapshots = held.len();
        drop(held);
        database.close()?;
        Ok((bytes, snapshots))
    };
    let (without, _) = written(false)?;
    let (with, snapshots) = written(true)?;
    if with > without * SNAPSHOTS_TIMES + SNAPSHOTS_BYTES {
        return Err(Find(format!(
            "{with} bytes are written with {snapshots} snapshots held, and {without} without"
        )));
    }
    Ok(2 * puts)
}

/// The most bytes written to the data file per byte of records in many keyspaces.
const KEYSPACES_TIMES: u64 = 7;

/// Evenly written keyspaces share checkpoints, and small trees are not rewritten for a few records.
fn many_keyspaces(seed: u64, random: &mut Random) -> Result<u64, Find> {
    let options = options(random);
    let keyspaces = random.between(50..300);
    let puts = keyspaces * random.between(40..160);
    let (database, _sim) = opened(seed, &options)?;
    let handles = (0..keyspaces)
        .map(|number| database.keyspace(&format!("k{number}")))
        .collect::<terrapin::Result<Vec<_>>>()?;
    let value = [7; 100];
    for number in 0..puts {
        let keyspace = &handles[(number % keyspaces) as usize];
        keyspace.put(key(number), value)?;
    }
    database.checkpoint()?;
    let metrics = database.metrics();
    let (written, bytes) = (metrics.device_written.total(), metrics.user_bytes_written);
    if written > bytes * KEYSPACES_TIMES {
        return Err(Find(format!(
            "{written} bytes are written for {bytes} in {keyspaces} keyspaces"
        )));
    }
    database.close()?;
    Ok(puts)
}

/// After enough polls of an emptied range, a poll passes at most this many tombstones.
const POLL_DELETES_MAX: u64 = 1000;

/// Polls of an emptied range soon cost nothing, also without further writes.
fn polls(seed: u64, random: &mut Random) -> Result<u64, Find> {
    let options = options(random);
    let records = random.between(2000..8000);
    let (database, sim) = opened(seed, &options)?;
    let queue = database.keyspace("queue")?;
    for number in 0..records {
        queue.put(number.to_be_bytes(), [7; 20])?;
    }
    if random.one_in(2) {
        database.checkpoint()?;
    }
    for number in 0..records {
        queue.delete(number.to_be_bytes())?;
    }
    let backward = random.one_in(2);
    let poll = || -> Result<u64, Find> {
        let before = database.metrics().scanned_deletes;
        let found = if backward {
            queue.last()?
        } else {
            queue.first()?
        };
        if found.is_some() {
            return Err(Find("a deleted record is there".to_owned()));
        }
        Ok(database.metrics().scanned_deletes - before)
    };
    // A million passed tombstones pay in the memtable, and as many in the tree.
    let most = 4 * (1 << 20) / records;
    let mut last = 0;
    for number in 0..most {
        last = poll()?;
        if last <= POLL_DELETES_MAX {
            break;
        }
        if number % 20 == 0 {
            sim.advance_ns(100_000_000);
            sim.settle();
        }
    }
    if last > POLL_DELETES_MAX {
        return Err(Find(format!(
            "{last} deletes a poll after {most} polls of {records} deletes"
        )));
    }
    database.close()?;
    Ok(2 * records)
}
