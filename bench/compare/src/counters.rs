//! `compare counters`: threads that add to few counters, by Terrapin's merges and by RocksDB's. The
//! time runs until all merges have returned. Then each counter is read, and must be exact.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use terrapin_base::{Error, Result};
use terrapin_bench::{Random, in_threads};

use crate::turns::{Turns, say};

/// Arguments of `counters`.
#[derive(Args)]
pub struct Counters {
    /// Counters
    #[arg(long, value_name = "N", default_value_t = 100)]
    counters: u64,
    /// Merges of all threads in a turn
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    merges: u64,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 8)]
    threads: usize,
    /// Memory of each engine, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory_mib: u64,
    #[command(flatten)]
    turns: Turns,
}

/// What a turn took.
struct Figures {
    merges_per_second: f64,
    /// Seconds to read all counters afterwards.
    read_seconds: f64,
}

/// An engine's turn in an empty directory.
type Engine = fn(&Counters, &Path) -> Result<Figures>;

const ENGINES: &[(&str, Engine)] = &[
    ("terrapin", terrapin),
    #[cfg(feature = "rocksdb")]
    ("rocksdb", rocks::count),
];

impl Counters {
    /// Runs all turns, and prints a line for each engine in each turn.
    pub fn run(&self) -> Result<()> {
        if self.counters == 0 || self.threads == 0 {
            return Err(Error::invalid(
                "there is at least one counter and one thread",
            ));
        }
        say(&format!(
            "{:>10}{:>10}{:>9}{:>12}{:>12}{:>14}",
            "engine", "counters", "threads", "merges", "merges/s", "reading ms"
        ))?;
        self.turns.each(ENGINES, |name, count, place| {
            let figures = count(self, place)?;
            say(&format!(
                "{name:>10}{:>10}{:>9}{:>12}{:>12.0}{:>14.2}",
                self.counters,
                self.threads,
                self.merges,
                figures.merges_per_second,
                figures.read_seconds * 1e3
            ))
        })
    }

    /// Adds random numbers to random counters, then reads and checks all.
    fn drive(
        &self,
        add: impl Fn(&[u8; 8], i64) -> Result<()> + Sync,
        read: impl Fn(&[u8; 8]) -> Result<Option<i64>>,
    ) -> Result<Figures> {
        let share = self.merges / self.threads as u64;
        let start = Instant::now();
        let sums = in_threads(self.threads, |thread| {
            let mut random = Random::new(thread as u64);
            let mut sums = vec![0_i64; self.counters as usize];
            for _ in 0..share {
                let counter = random.below(self.counters);
                let number = random.bits() as i64;
                add(&counter.to_be_bytes(), number)?;
                let sum = &mut sums[counter as usize];
                *sum = sum.wrapping_add(number);
            }
            Ok(sums)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for counter in 0..self.counters {
            let parts = sums.iter().map(|sums| sums[counter as usize]);
            let expected = parts.fold(0, i64::wrapping_add);
            let found = read(&counter.to_be_bytes())?.unwrap_or(0);
            if found != expected {
                return Err(Error::corrupt("a counter is not exact")
                    .with("counter", counter)
                    .with("found", found)
                    .with("expected", expected));
            }
        }
        Ok(Figures {
            merges_per_second: (share * self.threads as u64) as f64 / seconds,
            read_seconds: start.elapsed().as_secs_f64(),
        })
    }
}

fn number(value: &[u8]) -> Result<i64> {
    let bytes = value.try_into();
    let bytes = bytes.map_err(|_| Error::corrupt("a counter has not eight bytes"))?;
    Ok(i64::from_le_bytes(bytes))
}

fn terrapin(counters: &Counters, place: &Path) -> Result<Figures> {
    let memory = counters.memory_mib << 20;
    let database = terrapin::Options::new().memory(memory).open(place)?;
    let options = terrapin::KeyspaceOptions::new().merge_operator("add-i64");
    let keyspace = database.create_keyspace("counters", options)?;
    let figures = counters.drive(
        |key, number| keyspace.merge(key, number.to_le_bytes()),
        |key| (keyspace.get(key)?).map(|value| number(&value)).transpose(),
    )?;
    database.close()?;
    Ok(figures)
}

#[cfg(feature = "rocksdb")]
mod rocks {
    use std::path::Path;

    use rocksdb::{DB, MergeOperands};
    use terrapin_base::Result;

    use super::{Counters, Figures, number};
    use crate::engines::{foreign, rocksdb::options};
    use crate::plan::Memory;

    pub(super) fn count(counters: &Counters, place: &Path) -> Result<Figures> {
        let (mut options, _) = options((counters.memory_mib << 20) as usize, Memory::All);
        options.set_merge_operator_associative("add-i64", add);
        let db = DB::open(&options, place).map_err(foreign)?;
        counters.drive(
            |key, number| db.merge(key, number.to_le_bytes()).map_err(foreign),
            |key| {
                let value = db.get_pinned(key).map_err(foreign)?;
                value.map(|value| number(&value)).transpose()
            },
        )
    }

    fn add(_key: &[u8], there: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
        let mut sum = there.map_or(Some(0), |value| number(value).ok())?;
        for operand in operands {
            sum = sum.wrapping_add(number(operand).ok()?);
        }
        Some(sum.to_le_bytes().to_vec())
    }
}
