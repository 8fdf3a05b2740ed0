//! Puts, compare-and-swaps and transactions on the same records, by turns in one run.

use std::path::Path;

use terrapin::{Durability, Options};
use terrapin_base::{Error, Result};

use crate::Workload;
use crate::figures::Figures;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;

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

/// Loads the records into an empty directory. Then measures `operations` puts, swaps and
/// transactions on uniformly chosen records, one kind after the other, in each turn. A checkpoint
/// before each kind ends what the last one left to merges.
///
/// Errors: those of the store; `Corrupt` where a read is wrong, or a swap meets a wrong value.
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
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    let conflicts = || database.metrics().transaction_conflicts;
    for _ in 0..turns {
        let rate = |workload| {
            driver.settle()?;
            let done = driver.phase(Phase::uniform(workload, operations))?;
            Ok::<_, Error>(done.ops_per_second())
        };
        let (puts_per_second, swaps_per_second) =
            (rate(Workload::Overwrite)?, rate(Workload::Swaps)?);
        let before = conflicts();
        report(&TransactionsReport {
            records: config.records,
            threads: config.threads,
            puts_per_second,
            swaps_per_second,
            transactions_per_second: rate(Workload::Transactions)?,
            conflicts: conflicts() - before,
        })?;
    }
    driver.read_all()?;
    driver.check_latest()?;
    drop(driver);
    drop(store);
    database.close().map(drop)
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
    use crate::Records;

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
