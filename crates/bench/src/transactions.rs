//! Puts, compare-and-swaps and transactions on the same records, by turns in one run.

use std::path::Path;
use std::time::Instant;

use terrapin::{Durability, Keyspace, Options};
use terrapin_base::{Error, Result};

use crate::figures::Figures;
use crate::generator::Random;
use crate::record::Records;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;
use crate::{Distribution, Workload};

/// The rates of one turn.
#[derive(Clone, Debug)]
pub struct TransactionsReport {
    /// Records in the store.
    pub records: u64,
    /// Threads that work at the same time.
    pub threads: usize,
    /// Puts a second.
    pub puts_per_second: f64,
    /// Compare-and-swaps a second. No two threads swap the same key.
    pub swaps_per_second: f64,
    /// Transactions of four reads and two writes a second.
    pub transactions_per_second: f64,
    /// Conflicts of these transactions.
    pub conflicts: u64,
}

/// Loads the records into an empty directory and reads all. Then measures `operations` puts, swaps
/// and transactions on uniformly chosen records, one kind after the other, in each turn.
///
/// Errors: those of the store; `Corrupt` where a read is wrong.
pub fn measure_transactions(
    config: &Config,
    options: &Options,
    (memory_bytes, operations, turns): (u64, u64, u64),
    directory: &Path,
    progress: &Progress,
    report: &mut dyn FnMut(&TransactionsReport) -> Result<()>,
) -> Result<()> {
    config.check()?;
    let database = options.open(directory)?;
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory_bytes);
    let driver = Driver::new(config, &store, directory, progress)?;
    let phase = |workload, operations| Phase {
        workload,
        distribution: Distribution::Uniform,
        operations,
        time: None,
    };
    driver.phase(phase(Workload::Load, config.records))?;
    driver.settle()?;
    let keyspace = database.default_keyspace();
    for turn in 0..turns {
        let mut owned = (0..config.threads)
            .map(|thread| Owned::read(config, &keyspace, thread))
            .collect::<Result<Vec<_>>>()?;
        let seed = config.seed ^ turn << 32;
        let puts_per_second = timed(config, &keyspace, &mut owned, (seed, operations), false)?;
        let swaps_per_second = timed(config, &keyspace, &mut owned, (seed + 1, operations), true)?;
        let before = database.metrics().transaction_conflicts;
        let done = driver.phase(phase(Workload::Transactions, operations))?;
        report(&TransactionsReport {
            records: config.records,
            threads: config.threads,
            puts_per_second,
            swaps_per_second,
            transactions_per_second: done.operations as f64 / done.seconds.max(1e-9),
            conflicts: database.metrics().transaction_conflicts - before,
        })?;
    }
    drop(driver);
    drop(store);
    database.close().map(drop)
}

/// The records of one thread: every one whose number leaves the thread's number as a remainder.
struct Owned {
    thread: u64,
    /// The tags of the records' values.
    tags: Vec<u64>,
}

impl Owned {
    fn read(config: &Config, keyspace: &Keyspace, thread: usize) -> Result<Self> {
        let (thread, threads) = (thread as u64, config.threads as u64);
        let (mut tags, mut key) = (Vec::new(), Vec::new());
        for record in (thread..config.records).step_by(threads as usize) {
            config.shape.key(record, &mut key);
            let value = keyspace.get(&key)?;
            let value = value.ok_or_else(|| Error::corrupt("a record is missing"))?;
            config.shape.check(&key, &value)?;
            tags.push(Records::tag(&value));
        }
        Ok(Owned { thread, tags })
    }
}

/// Operations a second of all threads.
fn timed(
    config: &Config,
    keyspace: &Keyspace,
    owned: &mut [Owned],
    (seed, operations): (u64, u64),
    swaps: bool,
) -> Result<f64> {
    let (threads, start) = (config.threads as u64, Instant::now());
    let done = std::thread::scope(|scope| {
        let clients: Vec<_> = owned
            .iter_mut()
            .map(|owned| {
                scope.spawn(move || {
                    let mut random = Random::new(seed ^ owned.thread << 48);
                    let (mut key, mut old, mut new) = (Vec::new(), Vec::new(), Vec::new());
                    for _ in 0..operations / threads {
                        let at = random.below(owned.tags.len() as u64);
                        let tag = random.bits();
                        config.shape.key(at * threads + owned.thread, &mut key);
                        let there = &mut owned.tags[at as usize];
                        config.shape.value(&key, *there, &mut old);
                        config.shape.value(&key, tag, &mut new);
                        match swaps {
                            false => keyspace.put(&key, &new)?,
                            true => keyspace
                                .compare_and_swap(&key, Some(&old), Some(&new))?
                                .map_err(|conflict| {
                                    Error::corrupt("a swap met another value than the last one")
                                        .with("conflict", conflict)
                                })?,
                        }
                        *there = tag;
                    }
                    Ok(())
                })
            })
            .collect();
        let mut clients = clients.into_iter();
        clients.try_for_each(|client| {
            let panicked = |_| Err(Error::internal("a client panicked"));
            client.join().unwrap_or_else(panicked)
        })
    });
    done?;
    let done = operations / threads * threads;
    Ok(done as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

impl Figures for TransactionsReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>9}{:>12}{:>12}{:>12}{:>16}{:>11}",
            "records", "threads", "puts/s", "swaps/s", "swaps/puts", "transactions/s", "conflicts"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>12}{:>9}{:>12.0}{:>12.0}{:>12.2}{:>16.0}{:>11}",
            self.records,
            self.threads,
            self.puts_per_second,
            self.swaps_per_second,
            self.swaps_per_second / self.puts_per_second.max(1e-9),
            self.transactions_per_second,
            self.conflicts
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"threads\":{},\"puts_per_second\":{:.1},\"swaps_per_second\":{:.1},\
             \"transactions_per_second\":{:.1},\"conflicts\":{}}}",
            self.records,
            self.threads,
            self.puts_per_second,
            self.swaps_per_second,
            self.transactions_per_second,
            self.conflicts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_swaps_and_transactions_are_measured_by_turns() {
        let config = Config {
            records: 2000,
            loaded: false,
            shape: Records::new(8, 100).unwrap(),
            threads: 2,
            scan_records_max: 100,
            seed: 1,
        };
        let name = format!("terrapin-bench-transactions-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        let (options, progress) = (Options::new().memory(16 << 20), Progress::default());
        let mut turns = 0;
        let work = (16 << 20, 1000, 2);
        measure_transactions(
            &config,
            &options,
            work,
            &directory,
            &progress,
            &mut |report| {
                turns += 1;
                assert!(report.puts_per_second > 0.0 && report.swaps_per_second > 0.0);
                assert!(report.transactions_per_second > 0.0);
                assert!(report.json().contains("\"conflicts\""));
                Ok(())
            },
        )
        .unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(turns, 2);
    }
}
