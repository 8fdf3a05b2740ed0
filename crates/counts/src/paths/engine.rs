//! Paths through the whole engine. The environment is simulated and its jobs rest, so one thread
//! does the counted work and nothing else. The disk is real, without what differs between machines.

use std::fs;
use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::path::Path;

use terrapin::{
    CheckpointDistance, Database, Keyspace, KeyspaceOptions, Metrics, Options, StructureKind,
};
use terrapin_base::{Env, Error, Result, Sim};

use super::operations_under_count;
use crate::disk::SteadyDisk;
use crate::records::{KEY_BYTES, key, value};

/// Where the store is, in a path's directory.
pub const STORE: &str = "store";

/// Records in the tree.
const RECORDS: u64 = 60_000;
/// Records in the memtable beside the tree, with other keys.
const MEMTABLE_RECORDS: u64 = 4_096;
/// Where the numbers of other keys begin: keys of the memtable, of puts, and two kinds of absent
/// keys.
const MEMTABLE: u64 = 1 << 32;
const PUTS: u64 = 2 << 32;
const ABSENT: u64 = 3 << 32;
const WARMING: u64 = 4 << 32;
/// Keys that are read again and again.
const HOT: u64 = 1_000;
/// Keys that are swapped once: more than a count takes.
const SWAPPED: u64 = 16_000;
/// The key of a counter, and its operands since the last checkpoint.
const COUNTER: &[u8] = b"counter";
const OPERANDS: u64 = 20_000;
/// Positions of keys that are all in different blocks.
const COLD_KEYS: &str = "cold-keys";
/// Records of a short scan.
const SHORT: usize = 50;

/// Small enough to build a tree of two levels of nodes with buffers quickly, and large enough that
/// nothing is evicted.
fn options() -> Options {
    Options::new()
        .memory(64 << 20)
        .group_bytes(64 << 10)
        .ring_bytes(4 << 20)
        .log_segment_bytes(4 << 20)
        .fanout(16)
        .background_threads(1)
}

/// The most ranges that pay for a compaction of the store.
const PAYING: u64 = 200_000;

/// Builds the store in memtables of χ times 64 KiB. Ranges then have it compacted, or it stays as
/// it is.
pub fn build(path: &Path, chi: u32, compacted: bool) -> Result<()> {
    let (env, sim) = Env::simulated(1);
    let options = options().checkpoint_distance(CheckpointDistance::Fixed(chi));
    let database = options.open_on(env.clone(), SteadyDisk::open(&env, path)?)?;
    let keyspace = database.default_keyspace();
    for number in 0..RECORDS {
        let key = key(number);
        keyspace.put(key, value(&key))?;
    }
    database.checkpoint()?;
    let tree = &database.stat()?.keyspaces[0].tree;
    if tree.figure("height") < Some(2) || tree.buffered_records < RECORDS / 50 {
        let shape = format!("{tree:?}");
        return Err(
            Error::internal("the tree has another shape than was meant").with("tree", shape)
        );
    }
    if compacted {
        compact(&database, &sim)?;
    }
    database.close().map(drop)
}

/// Opens ranges until no buffer holds anything.
fn compact(database: &Database, sim: &Sim) -> Result<()> {
    let keyspace = database.default_keyspace();
    for number in 0..PAYING {
        if keyspace.range(key(number % RECORDS)..).next().is_none() {
            return Err(Error::internal("a range found nothing"));
        }
        if number % 1000 == 0 {
            sim.settle();
            if database.stat()?.keyspaces[0].tree.buffered_records == 0 {
                return Ok(());
            }
        }
    }
    Err(Error::internal("ranges did not bring a compaction about"))
}

/// Finds keys that are not in the block of the key before, by reading the store; writes them beside
/// it.
pub fn choose_cold_keys(directory: &Path) -> Result<()> {
    let (env, _sim) = Env::simulated(2);
    let disk = SteadyDisk::open(&env, &directory.join(STORE))?;
    let database = options().read_only(true).open_on(env, disk)?;
    let keyspace = database.default_keyspace();
    warm_metadata(&keyspace)?;
    let reads = || database.metrics().device_reads.get_reads;
    let (mut cold, mut last) = (Vec::new(), reads());
    for number in 0..RECORDS / 4 {
        keyspace.get(key(number))?;
        let now = reads();
        if now == last + 1 {
            cold.extend_from_slice(&key(number));
        }
        last = now;
    }
    fs::write(directory.join(COLD_KEYS), cold).map_err(|e| Error::io("cold keys", e))
}

/// Brings nodes, indexes and filters into the cache, and hardly a block.
fn warm_metadata(keyspace: &Keyspace) -> Result<()> {
    for number in 0..RECORDS / 15 {
        keyspace.get(key(WARMING + number))?;
    }
    Ok(())
}

/// The open store with its memtable; it is never closed.
struct Store {
    database: ManuallyDrop<Database>,
    keyspace: ManuallyDrop<Keyspace>,
    before: Metrics,
}

impl Store {
    fn open() -> Result<Self> {
        let (env, sim) = Env::simulated(2);
        let disk = SteadyDisk::open(&env, Path::new(STORE))?;
        let database = ManuallyDrop::new(options().open_on(env, disk)?);
        sim.set_breathing(false);
        let keyspace = ManuallyDrop::new(database.default_keyspace());
        for number in 0..MEMTABLE_RECORDS {
            let key = key(MEMTABLE + number);
            keyspace.put(key, value(&key))?;
        }
        sim.settle();
        let before = database.metrics();
        Ok(Store {
            database,
            keyspace,
            before,
        })
    }

    /// Ends the preparation.
    fn begin(&mut self) {
        self.before = self.database.metrics();
    }

    /// Checks that nearly all of `count` operations took the path.
    fn check(&self, count: u64, what: impl Fn(&Metrics) -> u64) -> Result<()> {
        let did = what(&self.database.metrics()) - what(&self.before);
        if did <= count && did >= count - count / 20 {
            return Ok(());
        }
        let error = Error::internal("the operations were not what they are called");
        Err(error.with("operations", count).with("were", did))
    }

    fn get(&self, key: [u8; KEY_BYTES], there: bool) -> Result<()> {
        if black_box(self.keyspace.get(black_box(key))?).is_some() == there {
            Ok(())
        } else {
            Err(Error::internal(
                "a get found what is not there, or the reverse",
            ))
        }
    }

    /// Brings everything into the cache except records.
    fn warm_blocks(&self) -> Result<()> {
        warm_metadata(&self.keyspace)?;
        for record in self.keyspace.iter() {
            record?;
        }
        Ok(())
    }
}

fn misses(metrics: &Metrics) -> u64 {
    let misses = metrics.cache_misses;
    misses.blocks + misses.indexes + misses.filters + misses.objects
}

pub fn put(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    store.begin();
    operations_under_count(count, |number| {
        let key = key(PUTS + number);
        store.keyspace.put(key, value(&key))
    })?;
    store.check(count, |metrics| metrics.puts)?;
    store.check(0, |metrics| metrics.writes_refused + metrics.checkpoints)
}

pub fn compare_and_swap(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    warm_metadata(&store.keyspace)?;
    (0..SWAPPED).try_for_each(|number| store.get(key(number), true))?;
    // The first conditional write of a database takes memory.
    store.keyspace.take(key(ABSENT))?;
    store.begin();
    operations_under_count(count, |number| {
        let key = key(number);
        let old = value(&key);
        let mut new = old;
        new[0] ^= 1;
        let swapped = store
            .keyspace
            .compare_and_swap(key, Some(&old), Some(&new))?;
        swapped.map_err(|conflict| Error::internal("a swap failed").with("why", conflict))
    })?;
    store.check(count, |metrics| metrics.puts)?;
    store.check(count, |metrics| metrics.record_hits)
}

pub fn get_memtable_hit(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    store.begin();
    operations_under_count(count, |number| {
        store.get(key(MEMTABLE + number % MEMTABLE_RECORDS), true)
    })?;
    store.check(0, |metrics| {
        metrics.cache_hits.indexes + metrics.record_hits + misses(metrics)
    })
}

/// Makes a counter in a keyspace with an operator, with a value in the tree and many operands.
fn counter(store: &Store) -> Result<ManuallyDrop<Keyspace>> {
    let options = KeyspaceOptions::new().merge_operator("add-i64");
    let counters = store.database.create_keyspace("counters", options)?;
    counters.put(COUNTER, 1i64.to_le_bytes())?;
    store.database.checkpoint()?;
    for _ in 0..OPERANDS {
        counters.merge(COUNTER, 1i64.to_le_bytes())?;
    }
    Ok(ManuallyDrop::new(counters))
}

pub fn get_merged(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    let counters = counter(&store)?;
    store.begin();
    operations_under_count(count, |_| {
        match black_box(counters.get(black_box(COUNTER))?) {
            Some(sum) if sum == (OPERANDS + 1).to_le_bytes() => Ok(()),
            _ => Err(Error::internal("the counter has another sum")),
        }
    })?;
    store.check(count, |metrics| metrics.gets)
}

pub fn merge_operand(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    let counters = counter(&store)?;
    store.begin();
    operations_under_count(count, |number| {
        // One counter in four is hot.
        let key = key(PUTS + number);
        let key = if number % 4 == 0 { COUNTER } else { &key };
        counters.merge(key, 1i64.to_le_bytes())
    })?;
    store.check(count, |metrics| metrics.puts)?;
    store.check(0, |metrics| metrics.writes_refused + metrics.checkpoints)
}

pub fn get_record_hit(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    warm_metadata(&store.keyspace)?;
    (0..HOT).try_for_each(|number| store.get(key(number), true))?;
    store.begin();
    operations_under_count(count, |number| store.get(key(number % HOT), true))?;
    store.check(count, |metrics| metrics.record_hits)
}

pub fn get_block_hit(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    store.warm_blocks()?;
    store.begin();
    operations_under_count(count, |number| store.get(key(number), true))?;
    store.check(count, |metrics| {
        // A filter may accept a key of a block that holds nothing live, which no iterator has read.
        metrics.gets - metrics.record_hits - misses(metrics)
    })
}

pub fn get_miss(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    warm_metadata(&store.keyspace)?;
    store.begin();
    operations_under_count(count, |number| store.get(key(ABSENT + number), false))?;
    store.check(count, |metrics| {
        // A filter sometimes accepts an absent key.
        metrics.gets - metrics.device_reads.get_reads
    })
}

pub fn get_cold_block(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    warm_metadata(&store.keyspace)?;
    let cold = fs::read(Path::new("..").join(COLD_KEYS)).map_err(|e| Error::io("cold keys", e))?;
    let cold: &[[u8; KEY_BYTES]] = cold.as_chunks().0;
    if cold.len() < count as usize {
        let error = Error::internal("fewer cold blocks than operations");
        return Err(error.with("cold", cold.len()));
    }
    store.begin();
    operations_under_count(count, |number| store.get(cold[number as usize], true))?;
    store.check(count, |metrics| metrics.device_reads.get_reads)
}

pub fn scan_step(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    store.warm_blocks()?;
    store.begin();
    let mut range = ManuallyDrop::new(store.keyspace.iter());
    operations_under_count(count, |_| match black_box(range.next()) {
        Some(record) => record.map(drop),
        None => Err(Error::internal("fewer records than operations")),
    })?;
    store.check(0, misses)
}

pub fn scan_of_50(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    store.warm_blocks()?;
    store.begin();
    operations_under_count(count, |number| {
        for record in store.keyspace.range(key(number)..).take(SHORT) {
            black_box(record?);
        }
        Ok(())
    })?;
    store.check(0, misses)
}

pub fn scan_of_50_borrowed(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    store.warm_blocks()?;
    store.begin();
    operations_under_count(count, |number| {
        let mut range = store.keyspace.range(key(number)..);
        for _ in 0..SHORT {
            black_box(range.next_ref()?);
        }
        Ok(())
    })?;
    store.check(0, misses)
}

/// Records of the hashed keyspace, and keys of one call for many.
const HASHED_RECORDS: u64 = 20_000;
const MANY: usize = 64;

/// A hashed keyspace beside the store's other one, with everything in the tree.
fn hashed(store: &Store) -> Result<ManuallyDrop<Keyspace>> {
    let options = KeyspaceOptions::new().structure(StructureKind::Hashed);
    let hashed = store.database.create_keyspace("hashed", options)?;
    for number in 0..HASHED_RECORDS {
        let key = key(number);
        hashed.put(key, value(&key))?;
    }
    store.database.checkpoint()?;
    for number in 0..HASHED_RECORDS {
        hashed.get(key(number))?;
    }
    Ok(ManuallyDrop::new(hashed))
}

pub fn get_hashed_record_hit(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    let hashed = hashed(&store)?;
    (0..HOT).try_for_each(|number| hashed.get(key(number)).map(drop))?;
    store.begin();
    operations_under_count(count, |number| {
        match black_box(hashed.get(black_box(key(number % HOT)))?) {
            Some(_) => Ok(()),
            None => Err(Error::internal("a record is missing")),
        }
    })?;
    store.check(count, |metrics| metrics.record_hits)
}

pub fn get_hashed_miss(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    let hashed = hashed(&store)?;
    store.begin();
    operations_under_count(count, |number| {
        match black_box(hashed.get(black_box(key(ABSENT + number)))?) {
            Some(_) => Err(Error::internal("a get found what is not there")),
            None => Ok(()),
        }
    })?;
    store.check(count, |metrics| {
        // A table sometimes names a run for an absent key.
        metrics.gets - metrics.device_reads.get_reads
    })
}

pub fn multi_get_hashed(count: u64) -> Result<()> {
    let mut store = Store::open()?;
    let hashed = hashed(&store)?;
    (0..HOT).try_for_each(|number| hashed.get(key(number)).map(drop))?;
    store.begin();
    let calls = count / MANY as u64;
    operations_under_count(calls, |call| {
        let first = call * MANY as u64;
        let keys: [_; MANY] = std::array::from_fn(|at| key((first + at as u64) % HOT));
        let found = black_box(hashed.multi_get(black_box(&keys))?);
        match found.iter().all(Option::is_some) {
            true => Ok(()),
            false => Err(Error::internal("a record is missing")),
        }
    })?;
    store.check(calls * MANY as u64, |metrics| metrics.record_hits)
}
