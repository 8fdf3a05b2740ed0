//! Merges beside puts, and gets of a key with many merges beside gets of other keys.

use std::path::Path;
use std::time::Instant;

use terrapin::{Database, Keyspace, KeyspaceOptions, Options};
use terrapin_base::{Error, Result};

use crate::clients::in_threads;
use crate::figures::Figures;
use crate::generator::Random;
use crate::run::Config;

/// The operator, which adds numbers of eight bytes.
const OPERATOR: &str = "add-i64";
/// Gets of each kind in one round, and rounds. Kinds alternate.
const GETS: u32 = 20_000;
const ROUNDS: u32 = 5;

/// The rates of one turn.
#[derive(Clone, Debug)]
pub struct MergesReport {
    /// Counters in the keyspace.
    pub records: u64,
    /// Threads that work at the same time.
    pub threads: usize,
    /// Puts of eight bytes a second.
    pub puts_per_second: f64,
    /// Merges that add to a counter, a second.
    pub merges_per_second: f64,
    /// Merges of the counter that was then read.
    pub chain: u64,
    /// Nanoseconds of a get of that counter.
    pub merged_get_ns: f64,
    /// Nanoseconds of a get of a record that was put into the memtable.
    pub put_get_ns: f64,
    /// Nanoseconds of a get of a record of the tree, which is in the record cache.
    pub cached_get_ns: f64,
}

/// Puts a counter for each record into an empty directory. In each turn: `operations` puts on
/// uniformly drawn counters, as many merges, then `chain` merges of one counter, and gets of it.
///
/// The sum of all counters must be exact after the merges and after a checkpoint, and so must the
/// one counter. Errors: those of the store; `Corrupt` where a sum is wrong; `InvalidArgument` if
/// there is too little memory for all merges of one counter in one memtable.
pub fn measure_merges(
    config: &Config,
    options: &Options,
    (operations, chain, turns): (u64, u64, u64),
    directory: &Path,
    report: &mut dyn FnMut(&MergesReport) -> Result<()>,
) -> Result<()> {
    config.check()?;
    let database = options.open(directory)?;
    let counters = KeyspaceOptions::new().merge_operator(OPERATOR);
    let keyspace = database.create_keyspace("counters", counters)?;
    let mut key = Vec::new();
    for number in 0..config.records {
        config.shape.key(number, &mut key);
        keyspace.put(&key, 0_i64.to_le_bytes())?;
    }
    for turn in 0..turns {
        let rate = |seed, write: &Write<'_>| timed(config, operations, seed, write);
        database.checkpoint()?;
        let (puts_per_second, _) = rate(2 * turn, &|key, number| keyspace.put(key, number))?;
        database.checkpoint()?;
        let before = total(&keyspace)?;
        let (merges_per_second, added) =
            rate(2 * turn + 1, &|key, number| keyspace.merge(key, number))?;
        let expected = before.wrapping_add(added);
        is_exact(total(&keyspace)?, expected)?;
        database.checkpoint()?;
        is_exact(total(&keyspace)?, expected)?;
        let [merged_get_ns, put_get_ns, cached_get_ns] = gets(config, &database, &keyspace, chain)?;
        report(&MergesReport {
            records: config.records,
            threads: config.threads,
            puts_per_second,
            merges_per_second,
            chain,
            merged_get_ns,
            put_get_ns,
            cached_get_ns,
        })?;
    }
    database.close().map(drop)
}

type Write<'a> = dyn Fn(&[u8], [u8; 8]) -> Result<()> + Sync + 'a;

/// Writes random numbers to random keys. Returns the writes a second, and the numbers' sum.
fn timed(config: &Config, operations: u64, seed: u64, write: &Write<'_>) -> Result<(f64, i64)> {
    let (share, start) = (operations / config.threads as u64, Instant::now());
    let sums = in_threads(config.threads, |client| {
        let mut random = Random::new(config.seed ^ seed << 32 ^ (client as u64) << 48);
        let (mut key, mut sum) = (Vec::new(), 0_i64);
        for _ in 0..share {
            config.shape.key(random.below(config.records), &mut key);
            let number = random.bits() as i64;
            sum = sum.wrapping_add(number);
            write(&key, number.to_le_bytes())?;
        }
        Ok(sum)
    })?;
    let done = share * config.threads as u64;
    let rate = done as f64 / start.elapsed().as_secs_f64().max(1e-9);
    Ok((rate, sums.into_iter().fold(0, i64::wrapping_add)))
}

/// The sum of all counters.
fn total(keyspace: &Keyspace) -> Result<i64> {
    let (mut range, mut sum) = (keyspace.iter(), 0_i64);
    while let Some((_, value)) = range.next_ref()? {
        sum = sum.wrapping_add(number(value)?);
    }
    Ok(sum)
}

fn number(value: &[u8]) -> Result<i64> {
    let bytes = value.try_into();
    let bytes = bytes.map_err(|_| Error::corrupt("a counter has not eight bytes"))?;
    Ok(i64::from_le_bytes(bytes))
}

fn is_exact(found: i64, expected: i64) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(
            Error::corrupt("counters have another sum than their merges")
                .with("found", found)
                .with("expected", expected),
        ),
    }
}

/// Merges into one counter, after a checkpoint. Returns the nanoseconds of a get of it, of a get of
/// a record that was put since, and of a get of a cached record.
fn gets(config: &Config, database: &Database, keyspace: &Keyspace, chain: u64) -> Result<[f64; 3]> {
    let checkpoints = database.metrics().checkpoints;
    let keys = [0, 1, 2].map(|number| {
        let mut key = Vec::new();
        config.shape.key(number % config.records, &mut key);
        key
    });
    let [merged, put, cached] = &keys;
    let before = keyspace
        .get(merged)?
        .map_or(Ok(0), |value| number(&value))?;
    keyspace.put(put, 7_i64.to_le_bytes())?;
    let (share, rest) = (chain / config.threads as u64, chain % config.threads as u64);
    in_threads(config.threads, |client| {
        let own = share + u64::from((client as u64) < rest);
        (0..own).try_for_each(|_| keyspace.merge(merged, 1_i64.to_le_bytes()))
    })?;
    let there = keyspace.get(cached)?;
    let expected = [before.wrapping_add(chain as i64), 7];
    let mut ns = [0.0; 3];
    for _ in 0..ROUNDS {
        for (key, ns) in keys.iter().zip(&mut ns) {
            let start = Instant::now();
            for _ in 0..GETS {
                std::hint::black_box(keyspace.get(std::hint::black_box(key))?);
            }
            *ns += start.elapsed().as_nanos() as f64 / f64::from(GETS * ROUNDS);
        }
    }
    for (key, expected) in [merged, put].into_iter().zip(expected) {
        let found = keyspace.get(key)?.map_or(Ok(0), |value| number(&value))?;
        is_exact(found, expected)?;
    }
    if keyspace.get(cached)? != there {
        return Err(Error::corrupt("a counter changed that nobody wrote"));
    }
    if database.metrics().checkpoints != checkpoints {
        return Err(Error::invalid(
            "a checkpoint came before the gets: give more memory, or fewer merges of one counter",
        ));
    }
    Ok(ns)
}

impl MergesReport {
    fn merges_to_puts(&self) -> f64 {
        self.merges_per_second / self.puts_per_second.max(1e-9)
    }
}

impl Figures for MergesReport {
    fn table_head() -> String {
        format!(
            "{:>10}{:>9}{:>11}{:>11}{:>8}{:>10}{:>12}{:>9}{:>11}{:>10}{:>13}",
            "records",
            "threads",
            "puts/s",
            "merges/s",
            "÷ puts",
            "merged",
            "its get ns",
            "put ns",
            "cached ns",
            "÷ put",
            "÷ cached"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>10}{:>9}{:>11.0}{:>11.0}{:>8.2}{:>10}{:>12.0}{:>9.0}{:>11.0}{:>10.2}{:>13.2}",
            self.records,
            self.threads,
            self.puts_per_second,
            self.merges_per_second,
            self.merges_to_puts(),
            self.chain,
            self.merged_get_ns,
            self.put_get_ns,
            self.cached_get_ns,
            self.merged_get_ns / self.put_get_ns.max(1e-9),
            self.merged_get_ns / self.cached_get_ns.max(1e-9)
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"threads\":{},\"puts_per_second\":{:.1},\
             \"merges_per_second\":{:.1},\"chain\":{},\"merged_get_ns\":{:.1},\
             \"put_get_ns\":{:.1},\"cached_get_ns\":{:.1}}}",
            self.records,
            self.threads,
            self.puts_per_second,
            self.merges_per_second,
            self.chain,
            self.merged_get_ns,
            self.put_get_ns,
            self.cached_get_ns
        )
    }
}
