//! Point lookups in a tree of many sorted runs, with maplets and without: instructions (counted by
//! valgrind, if it is installed) and device reads for each lookup, of keys that are there and of
//! absent ones. Memory holds everything, or 2, 1 and ½ % of the data.
//!
//! Arguments: MiB of records of 128 bytes (default 32); lookups (default 20 000).
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

mod memtable;
mod simulated;

use std::mem::ManuallyDrop;
use std::process::Command;
use std::time::{Duration, Instant};

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, Result};
use terrapin_betree::{BeTree, BeTreeParams, Buffers};
use terrapin_structure::{Found, MergeOptions, Version};

use memtable::{Memtable, RECORD_BYTES, scramble};
use simulated::Simulated;

const GROUP_BYTES: u64 = 64 << 10;
/// Merges of runs begin at half of this.
const RUNS: u32 = 32;
const MEMTABLE_RECORDS: u64 = GROUP_BYTES / RECORD_BYTES as u64;
/// Shares of the data that memory holds, in thousandths. With the first it holds all metadata, too.
const MEMORIES: [u64; 4] = [4000, 20, 10, 5];

/// The lookups that count.
#[inline(never)]
fn measured_gets(version: &dyn Version, keys: &[[u8; 8]]) -> Result<u64> {
    let mut found = 0;
    for key in keys {
        found += u64::from(version.get(key, hash64(key))? != Found::Nothing);
    }
    Ok(found)
}

/// A kind of measurement.
#[derive(Clone, Copy)]
struct Case {
    maplets: bool,
    memory_permille: u64,
    absent: bool,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| -> Result<u64> {
        args.get(at).map_or(Ok(otherwise), |arg| {
            arg.parse().map_err(|_| Error::invalid("not a number"))
        })
    };
    let (mib, lookups) = (number(0, 32)?, number(1, 20_000)?);
    if args.len() > 2 {
        // Under valgrind: one case.
        let case = Case {
            maplets: number(2, 0)? == 1,
            memory_permille: number(3, 0)?,
            absent: number(4, 0)? == 1,
        };
        return measure(mib, lookups, case, None);
    }
    let columns = "maplets  memory  keys     instructions     ns  blocks  metadata  runs  loaded: written   read   ms";
    println!("{columns}");
    for memory_permille in MEMORIES {
        for absent in [false, true] {
            for maplets in [false, true] {
                let case = Case {
                    maplets,
                    memory_permille,
                    absent,
                };
                measure(mib, lookups, case, instructions(mib, lookups, case))?;
            }
        }
    }
    Ok(())
}

/// Instructions of all lookups; `None` if valgrind cannot be had. Valgrind does not run code that
/// gives memory back to the kernel, so only lookups in ample memory are counted.
fn instructions(mib: u64, lookups: u64, case: Case) -> Option<u64> {
    if case.memory_permille < 1000 {
        return None;
    }
    let numbers = [
        mib,
        lookups,
        u64::from(case.maplets),
        case.memory_permille,
        u64::from(case.absent),
    ];
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*measured_gets*")
        .arg(std::env::current_exe().ok()?)
        .args(numbers.map(|number| number.to_string()))
        .output();
    let text = String::from_utf8(output.ok()?.stderr).ok()?;
    let (_, counted) = text.split_once("Collected : ")?;
    counted.split_whitespace().next()?.parse().ok()
}

fn measure(mib: u64, lookups: u64, case: Case, instructions: Option<u64>) -> Result<()> {
    let budget = Budget::new(1 << 30);
    // Dropped by nobody: see `instructions`.
    let mut tree = ManuallyDrop::new(Simulated::new(&budget, |store, budget| {
        let params = BeTreeParams {
            buffers: Buffers::Tiered,
            ..BeTreeParams::new(budget)
        };
        BeTree::new(store, params)
    })?);
    let options = MergeOptions {
        runs: Some(RUNS),
        maplets: case.maplets,
        ..MergeOptions::new(GROUP_BYTES)
    };
    let records = (mib << 20) / RECORD_BYTES as u64;
    let mut time = Duration::ZERO;
    for from in (0..records).step_by(MEMTABLE_RECORDS as usize) {
        let end = records.min(from + MEMTABLE_RECORDS);
        let memtable = Memtable::of((from..end).map(scramble).collect(), 0);
        let begun = Instant::now();
        tree.merge(memtable, &options)?;
        time += begun.elapsed();
    }
    let (store, version) = (&tree.store, &tree.version);
    let load = store.metrics();

    if case.memory_permille < 1000 {
        budget.set_limit((mib << 20) * case.memory_permille / 1000);
        store.shrink_fully();
    }
    let draw = |i: u64| match case.absent {
        true => scramble(i + (1 << 40)).to_be_bytes(),
        false => scramble(scramble(i + (1 << 40)) % records).to_be_bytes(),
    };
    let keys: Vec<[u8; 8]> = (0..2 * lookups).map(draw).collect();
    let (first, keys) = keys.split_at(lookups as usize);
    // The first half fills the cache, and in ample memory all others, too.
    for key in first {
        version.get(key, hash64(key))?;
    }
    if case.memory_permille > 1000 {
        for key in (0..records)
            .map(|i| scramble(i).to_be_bytes())
            .chain(keys.iter().copied())
        {
            version.get(&key, hash64(&key))?;
        }
    }
    let before = store.metrics().read;
    let begun = Instant::now();
    let found = measured_gets(&**version, keys)?;
    let nanoseconds = begun.elapsed().as_nanos() as u64;
    assert_eq!(found, if case.absent { 0 } else { lookups });
    let after = store.metrics().read;
    let each = |count: u64| count as f64 / lookups as f64;
    let runs = version.stats()?.figure("buffer_runs_hundredths");
    println!(
        "{:7} {:5.1} %  {:7}  {:>12} {:6.0}  {:6.3}  {:8.3}  {:4.1}  {:15.2} {:6.2} {:4}",
        if case.maplets { "on" } else { "off" },
        case.memory_permille as f64 / 10.0,
        if case.absent { "absent" } else { "present" },
        instructions.map_or("-".to_owned(), |count| format!("{:.0}", each(count))),
        each(nanoseconds),
        each(after.get_reads - before.get_reads),
        each(after.meta_reads - before.meta_reads),
        runs.unwrap_or(0) as f64 / 100.0,
        load.written.total() as f64 / (mib << 20) as f64,
        load.read.merge_bytes as f64 / (mib << 20) as f64,
        time.as_millis(),
    );
    Ok(())
}
