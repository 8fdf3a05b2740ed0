//! Layer `bad-sectors`: in a small closed store, and in the log of a killed one, one byte after the
//! other is flipped. `verify` notices every flip in live data, and no flip changes an answer
//! without an error (D8).
//!
//! The stores are on the simulated disk, so a flip costs a fork and an open. docs/FORMAT.md, not
//! the engine's code, decides which bytes are live. They are both superblocks' first sectors; every
//! byte of reachable pages, except the padding of nodes and catalog pages; and the needed log,
//! except where the ring has a second copy. The ring has one of the log's last bytes, which heals a
//! flip: answers are then still right.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use terrapin::verify::{VerifyOptions, log_end_on, reach_on, verify_on};
use terrapin::{CheckpointDistance, Database, Durability, Error, ErrorKind, Options};
use terrapin_base::Env;
use terrapin_disk::SimDisk;
use terrapin_model::Random;

use crate::Find;
use crate::place::names_a_place;

/// One byte in this many is flipped.
const STRIDE: usize = 97;
/// A unit tries one flip in this many, so the first unit covers everything coarsely.
pub const UNITS: u64 = 50;
const RING_BYTES: u64 = 64 << 10;
const SLOT_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
const BLOCK_BYTES: u64 = 4096;
/// The least number of bytes in which a flip must be noticed; with fewer the store would prove
/// little.
const LIVING_MIN: u64 = 100 << 10;
const RECORDS: u64 = 1500;
/// Records that only the ring has.
const TAIL: u64 = 5;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store to damage.
struct Victim {
    what: &'static str,
    disk: SimDisk,
    /// The allowed content: all of it, or without some last records that no sync covered.
    states: Vec<Map>,
    /// Files whose bytes are flipped, and their lengths.
    files: Vec<(String, usize)>,
    /// Bytes of each file in which a flip must be noticed.
    live: BTreeMap<String, Vec<Range<u64>>>,
}

/// Tries every [`UNITS`]-th flip from that one on.
pub fn unit(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    static VICTIMS: OnceLock<Result<[Victim; 2], Find>> = OnceLock::new();
    let victims = VICTIMS
        .get_or_init(|| Ok([closed()?, killed()?]))
        .as_ref()
        .map_err(Clone::clone)?;
    let mut flips = 0;
    let all = victims.iter().flat_map(|victim| {
        let files = victim.files.iter();
        files.flat_map(move |(name, bytes)| {
            (0..*bytes)
                .step_by(STRIDE)
                .map(move |at| (victim, name, at as u64))
        })
    });
    let chosen = all.skip(unit as usize).step_by(UNITS as usize);
    for (number, (victim, name, offset)) in chosen.enumerate() {
        let mut random = Random::new((unit << 32) | number as u64);
        let mask = if random.one_in(2) {
            0xff
        } else {
            1 << random.below(8)
        };
        victim.flip(name, offset, mask).map_err(|find| {
            let Victim { what, .. } = victim;
            Find(format!(
                "{what}, {name} at {offset}, flipped by {mask:#04x}: {find}"
            ))
        })?;
        flips += 1;
    }
    Ok(flips)
}

fn options() -> Options {
    Options::new()
        .memory(1 << 20)
        .ring_bytes(RING_BYTES)
        .log_segment_bytes(16 << 10)
        .group_bytes(4 << 10)
        .block_bytes(512)
        .fanout(4)
        .background_threads(1)
        .checkpoint_distance(CheckpointDistance::Fixed(8))
}

fn key(number: u64) -> Vec<u8> {
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()
        .to_vec()
}

/// The records of both stores, through many checkpoints.
fn fill(database: &Database, state: &mut Map) -> terrapin::Result<()> {
    let keyspace = database.keyspace("k")?;
    let mut random = Random::new(7);
    for _ in 0..RECORDS * 2 {
        let key = key(random.below(RECORDS));
        if random.one_in(5) {
            keyspace.delete(&key)?;
            state.remove(&key);
        } else {
            let value = vec![random.bits() as u8; 60 + random.below(80) as usize];
            keyspace.put(&key, &value)?;
            state.insert(key, value);
        }
    }
    Ok(())
}

fn closed() -> Result<Victim, Find> {
    let (env, _sim) = Env::simulated(1);
    let disk = SimDisk::new(1);
    let mut state = Map::new();
    let database = options().open_on(env, disk.handle())?;
    fill(&database, &mut state)?;
    database.close()?;
    Victim::new("a closed store", disk, vec![state], |_| true)
}

fn killed() -> Result<Victim, Find> {
    let (env, sim) = Env::simulated(2);
    let disk = SimDisk::new(2);
    let mut state = Map::new();
    // The memtable is so large that the log's last checkpoint is well before the ring's content.
    let options = options()
        .memory(8 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(500));
    let database = options.open_on(env, disk.handle())?;
    fill(&database, &mut state)?;
    database.flush()?;
    let mut states = vec![state.clone()];
    let keyspace = database.keyspace("k")?;
    for number in 0..TAIL {
        let (key, value) = (key(RECORDS + number), b"late".to_vec());
        keyspace.put_with(&key, &value, Durability::Process)?;
        state.insert(key, value);
        states.push(state.clone());
    }
    sim.kill();
    disk.crash_process();
    drop((keyspace, database));
    sim.kill();
    Victim::new("a killed store", disk, states, |name| name != "data")
}

impl Victim {
    fn new(
        what: &'static str,
        disk: SimDisk,
        states: Vec<Map>,
        chosen: impl Fn(&str) -> bool,
    ) -> Result<Victim, Find> {
        let mut files = Vec::new();
        for name in disk.handle().list()? {
            let bytes = disk.content(&name).map_or(0, |content| content.len());
            files.push((name, bytes));
        }
        files.retain(|(name, _)| chosen(name));
        let victim = Victim {
            live: live(&disk)?,
            what,
            disk,
            states,
            files,
        };
        let total: usize = victim.files.iter().map(|(_, bytes)| bytes).sum();
        if total > 2 << 20 {
            return Err(Find(format!(
                "{what} has {total} bytes, which is no small store"
            )));
        }
        let lengths =
            |ranges: &Vec<Range<u64>>| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        let living = victim
            .files
            .iter()
            .filter_map(|(name, _)| victim.live.get(name));
        let living: u64 = living.map(lengths).sum();
        if living < LIVING_MIN {
            return Err(Find(format!(
                "{what} has only {living} bytes in which a flip must be noticed"
            )));
        }
        // Undamaged files are sound.
        victim.flip("data", 0, 0)?;
        Ok(victim)
    }

    fn flip(&self, name: &str, offset: u64, mask: u8) -> Result<(), Find> {
        let disk = self.disk.fork();
        if !disk.corrupt(name, offset, mask) {
            return Err(Find("there is no such byte".to_owned()));
        }
        let (env, sim) = Env::simulated(offset);
        let lives = mask != 0 && self.lives(name, offset);
        let sound = match verify_on(env.clone(), disk.handle(), &VerifyOptions::default()) {
            Ok(report) => report.is_sound(),
            Err(error) => typed(&error).map(|()| false)?,
        };
        if lives && sound {
            return Err(Find("verify does not notice it".to_owned()));
        }
        let opened = options().open_on(env, disk.handle());
        let outcome = match &opened {
            Ok(database) => self.answers(database),
            Err(error) if mask == 0 => Err(Find(error.to_string())),
            Err(error) => typed(error),
        };
        disk.crash_process();
        sim.kill();
        drop(opened);
        sim.kill();
        outcome
    }

    fn lives(&self, name: &str, offset: u64) -> bool {
        let ranges = self.live.get(name).map_or(&[][..], Vec::as_slice);
        ranges.iter().any(|range| range.contains(&offset))
    }

    /// Every answer is right by one and the same state, or is an error that names the damage.
    fn answers(&self, database: &Database) -> Result<(), Find> {
        let keyspace = match database.open_keyspace("k") {
            Ok(keyspace) => keyspace,
            Err(error) if error.kind() == ErrorKind::Corrupt => return typed(&error),
            Err(error) => return Err(Find(format!("the keyspace: {error}"))),
        };
        let mut possible: Vec<&Map> = self.states.iter().collect();
        for number in 0..RECORDS + TAIL + 50 {
            let key = key(number);
            match keyspace.get(&key) {
                Ok(got) => {
                    possible.retain(|s| s.get(&key).map(Vec::as_slice) == got.as_deref());
                }
                Err(error) => typed(&error)?,
            }
            if possible.is_empty() {
                return Err(Find(format!("a get of record {number} is wrong")));
            }
        }
        for backwards in [false, true] {
            let mut records = Vec::new();
            let mut failed = None;
            let mut take =
                |record: terrapin::Result<(terrapin::Slice, terrapin::Slice)>| match record {
                    Ok((key, value)) => records.push((key.to_vec(), value.to_vec())),
                    Err(error) => failed = Some(error),
                };
            if backwards {
                keyspace.iter().rev().for_each(&mut take);
            } else {
                keyspace.iter().for_each(&mut take);
            }
            let whole = failed.is_none();
            if let Some(error) = failed {
                typed(&error)?;
            }
            possible.retain(|state| {
                let found = records.iter().map(|(key, value)| (key, value));
                let begins = records.len() <= state.len()
                    && match backwards {
                        false => found
                            .zip(state.iter())
                            .all(|(found, wanted)| found == wanted),
                        true => found
                            .zip(state.iter().rev())
                            .all(|(found, wanted)| found == wanted),
                    };
                begins && (!whole || records.len() == state.len())
            });
            if possible.is_empty() {
                let way = if backwards { "backwards" } else { "forwards" };
                return Err(Find(format!("a scan {way} is wrong")));
            }
        }
        Ok(())
    }
}

/// Checks that an error reports damage.
fn typed(error: &Error) -> Result<(), Find> {
    match error.kind() {
        ErrorKind::Corrupt if !names_a_place(&error.to_string()) => Err(Find(format!(
            "an error of damage that names no place: {error}"
        ))),
        ErrorKind::Corrupt
        | ErrorKind::NotFound
        | ErrorKind::DatabaseNotFound
        | ErrorKind::NotADatabase
        | ErrorKind::NewerFormat => Ok(()),
        _ => Err(Find(format!(
            "an error that does not speak of damage: {error}"
        ))),
    }
}

/// The live bytes of each file.
fn live(disk: &SimDisk) -> Result<BTreeMap<String, Vec<Range<u64>>>, Find> {
    let reach = reach_on(disk.handle(), &VerifyOptions::default())?
        .ok_or_else(|| Find("an undamaged store without a superblock".to_owned()))?;
    let data = disk.content("data").unwrap_or_default();
    let mut ranges: Vec<_> = [0, SLOT_BYTES].map(|slot| slot..slot + SECTOR_BYTES).into();
    for extent in &reach.extents {
        ranges.push(used(&data, extent)?);
    }
    let mut live = BTreeMap::from([("data".to_owned(), ranges)]);
    let (env, _sim) = Env::simulated(3);
    let end = log_end_on(&env, &disk.handle(), &reach, reach.log_from)?;
    let alone = reach.log_from.0..end.0.saturating_sub(RING_BYTES);
    for name in disk.handle().list()? {
        let content = disk.content(&name).unwrap_or_default();
        let number = |at: usize| {
            let bytes = content.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        // Start and capacity, by docs/FORMAT.md.
        let (true, Some(start), Some(capacity)) =
            (name.starts_with("log-"), number(32), number(64))
        else {
            continue;
        };
        let from = alone.start.max(start);
        let to = alone.end.min(start + capacity);
        if from < to {
            let place = |lsn: u64| BLOCK_BYTES + lsn - start;
            live.insert(name, vec![0..88, place(from)..place(to)]);
        }
    }
    Ok(live)
}

/// The bytes of a page that count, by its own header.
fn used(data: &[u8], extent: &Range<u64>) -> Result<Range<u64>, Find> {
    let nothing = || Find(format!("no page at {extent:?}"));
    let bytes = data
        .get(extent.start as usize..extent.end as usize)
        .ok_or_else(nothing)?;
    if let [
        b'T',
        b'p',
        b'P',
        b'g',
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        a,
        b,
        c,
        d,
        ..,
    ] = *bytes
    {
        let content = u64::from(u32::from_le_bytes([a, b, c, d]));
        return Ok(extent.start..extent.start + 24 + content);
    }
    // A group ends in its footer, whose last 128 bytes end a unit. An earlier one's bytes may
    // follow, up to the extent's end.
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    (1..=bytes.len() / 512)
        .map(|units| units * 512)
        .filter(|&end| bytes[end - 128..].starts_with(b"TPGROUP3"))
        .filter(|&end| {
            number(end - 112) == Some(extent.start) && number(end - 104) == Some(end as u64)
        })
        .max_by_key(|&end| number(end - 120))
        .map(|end| extent.start..extent.start + end as u64)
        .ok_or_else(nothing)
}
