//! Measures point lookups and scans over a tree of 128-byte records on a simulated disk, per
//! operation. To count instructions, run `valgrind --tool=callgrind --toggle-collect='*measured*'
//! read_paths gets 20000`.
//!
//! Arguments: `gets` or `scans`; operations; MiB of memory (default 256, which caches all); records
//! (default 300 000).
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, Generation, Incarnation, Message, Result};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_disk::SimDisk;
use terrapin_pages::block::Compression;
use terrapin_pages::{PageStore, StoreOptions};
use terrapin_structure::{
    Direction, Erased, Estimate, Found, MergeInput, MergeOptions, MergeStep, MessageCursor,
    Structure, Version,
};

const VALUE_BYTES: usize = 120;
const GROUP_BYTES: u64 = 256 << 10;
const MEMTABLE_RECORDS: u64 = 16 * 2048;
const SCAN_RECORDS: usize = 50;

struct Memtable {
    keys: Vec<u64>,
}

struct Cursor {
    memtable: Arc<Memtable>,
    at: usize,
    end: usize,
    key: [u8; 8],
}

impl Memtable {
    fn place(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        let Some(key) = key else { return otherwise };
        self.keys.partition_point(|k| k.to_be_bytes()[..] < *key)
    }
}

impl Cursor {
    fn load(&mut self) {
        if self.at < self.end {
            self.key = self.memtable.keys[self.at].to_be_bytes();
        }
    }
}

impl MessageCursor for Cursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then_some(&self.key[..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&[7; VALUE_BYTES])
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        self.load();
        Ok(())
    }
}

impl MergeInput for Memtable {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let (at, end) = (self.place(lo, 0), self.place(hi, self.keys.len()));
        let mut cursor = Cursor {
            memtable: self,
            at,
            end,
            key: [0; 8],
        };
        cursor.load();
        Ok(Box::new(cursor))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let from = self.place(lo, 0);
        let records = self.place(hi, self.keys.len()).saturating_sub(from) as u64;
        Estimate {
            records,
            bytes: records * (VALUE_BYTES as u64 + 8),
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

/// A permutation of 64-bit numbers: keys are uniform and never repeat.
fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Looks up this many keys that are there.
#[inline(never)]
fn measured_gets(version: &dyn Version, keys: &[[u8; 8]]) -> Result<u64> {
    let mut found = 0;
    for key in keys {
        found += u64::from(version.get(key, hash64(key))? != Found::Nothing);
    }
    Ok(found)
}

/// Scans a few records from each of many keys.
#[inline(never)]
fn measured_scans(version: &dyn Version, keys: &[[u8; 8]]) -> Result<u64> {
    let Some(ordered) = version.ordered() else {
        return Ok(0);
    };
    let mut found = 0;
    for key in keys {
        let mut scan =
            ordered.scan((Bound::Included(key), Bound::Unbounded), Direction::Forward)?;
        for _ in 0..SCAN_RECORDS {
            found += u64::from(scan.next()?.is_some());
        }
    }
    Ok(found)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| -> Result<u64> {
        args.get(at).map_or(Ok(otherwise), |arg| {
            arg.parse().map_err(|_| Error::invalid("not a number"))
        })
    };
    let (operations, memory, records) = (number(1, 20_000)?, number(2, 256)?, number(3, 300_000)?);
    let budget = Budget::new(memory << 20);
    let options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 1 << 20,
        system_cache: false,
    };
    let store = PageStore::create(&SimDisk::new(1).handle(), options, 1)?;
    store.begin_life(Incarnation(1));
    let tree = BeTree::new(store.clone(), BeTreeParams::new(budget));
    let options = MergeOptions {
        group_bytes: GROUP_BYTES,
        block_bytes: 4096,
        compression: Compression::None,
        space_amplification_percent: Some(130),
        filter_bits: 12,
        space_is_short: false,
        operator: terrapin_base::Operator::default(),
        values: None,
        separate_from: None,
        runs: None,
        maplets: false,
        around: terrapin_structure::Around::default(),
        now_ms: 0,
    };
    let mut version = tree.empty();
    for (generation, from) in (0..records).step_by(MEMTABLE_RECORDS as usize).enumerate() {
        let end = records.min(from + MEMTABLE_RECORDS);
        let mut keys: Vec<u64> = (from..end).map(scramble).collect();
        keys.sort_unstable();
        let merge = tree.begin_merge(&version, Arc::new(Memtable { keys }), &options)?;
        while !matches!(merge.step()?, MergeStep::Done) {}
        let merged = merge.finish()?;
        version = merged.version;
        store.commit(Generation(generation as u64 + 2), merged.changes);
        while store.reclaim_step()? {}
    }

    let draw = |i: u64| scramble(scramble(i + (1 << 40)) % records).to_be_bytes();
    let keys: Vec<[u8; 8]> = (0..operations).map(draw).collect();
    let scans = args.first().is_some_and(|mode| mode == "scans");
    // The first pass fills the cache.
    for i in 0..records {
        version.contains(
            &scramble(i).to_be_bytes(),
            hash64(&scramble(i).to_be_bytes()),
        )?;
    }
    let before = store.metrics();
    let begun = Instant::now();
    let found = if scans {
        measured_scans(&*version, &keys)?
    } else {
        measured_gets(&*version, &keys)?
    };
    let nanoseconds = begun.elapsed().as_nanos() as f64;
    let after = store.metrics();
    println!(
        "{operations} operations, {found} records, {:.0} ns per operation; hits {:?}, misses {:?}",
        nanoseconds / operations as f64,
        after.hits,
        before.misses
    );
    println!("misses then {:?}", after.misses);
    Ok(())
}
