//! Measures point lookups and scans over a tree of 128-byte records on a simulated disk, per
//! operation. To count instructions, run `valgrind --tool=callgrind --toggle-collect='*measured*'
//! read_paths gets 20000`.
//!
//! Arguments: `gets` or `scans`; operations; MiB of memory (default 256, which caches all); records
//! (default 300 000).
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

mod memtable;
mod simulated;

use std::ops::Bound;
use std::time::Instant;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, Result};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_structure::{Direction, Found, MergeOptions, Version};

use memtable::{Memtable, scramble};
use simulated::Simulated;

const GROUP_BYTES: u64 = 256 << 10;
const MEMTABLE_RECORDS: u64 = 16 * 2048;
const SCAN_RECORDS: usize = 50;

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
    let mut tree = Simulated::new(&budget, |store, budget| {
        BeTree::new(store, BeTreeParams::new(budget))
    })?;
    for from in (0..records).step_by(MEMTABLE_RECORDS as usize) {
        let end = records.min(from + MEMTABLE_RECORDS);
        let memtable = Memtable::of((from..end).map(scramble).collect(), 0);
        tree.merge(memtable, &MergeOptions::new(GROUP_BYTES))?;
    }
    let (store, version) = (tree.store, tree.version);

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
