//! A sorted ingest beside a load of as many records: how many a second, and what both write.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use terrapin::{Database, Durability, Options};
use terrapin_base::Result;

use crate::Workload;
use crate::figures::Figures;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;

/// The cost of an ingest and of a load.
#[derive(Clone, Debug)]
pub struct IngestReport {
    /// Records of each.
    pub records: u64,
    /// Records a second of a load in the order of its numbers, without what follows it.
    pub loaded_per_second: f64,
    /// Bytes that the load wrote to log and data file for each byte of records, with the last
    /// checkpoint.
    pub load_amplification: f64,
    /// Records a second of an ingest into an empty keyspace, durable at its end.
    pub ingested_per_second: f64,
    /// Bytes that the ingest wrote for each byte of records.
    pub ingest_amplification: f64,
    /// The same for as many records among these: new and old leaves are written.
    pub among_amplification: f64,
}

/// Loads the records into one empty directory and ingests as many, in key order, into another.
/// Then ingests as many again, whose keys lie among the first ones.
///
/// Errors: those of the store.
pub fn measure_ingest(
    config: &Config,
    options: &Options,
    memory_bytes: u64,
    directory: &Path,
    progress: &Progress,
) -> Result<IngestReport> {
    config.check()?;
    let place = directory.join("load");
    let database = options.open(&place)?;
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory_bytes);
    let driver = Driver::new(config, &store, &place, progress)?;
    let start = Instant::now();
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    let loaded_per_second = rate(config.records, start);
    database.checkpoint()?;
    let load_amplification = amplification(&database, (0, 0));
    drop(driver);
    drop(store);
    database.close()?;

    let database = options.open(directory.join("ingest"))?;
    let ascending = Config {
        shape: config.shape.sequential(100)?,
        ..*config
    };
    let start = Instant::now();
    ingest(&ascending, &database, false, progress)?;
    let ingested_per_second = rate(config.records, start);
    let ingest_amplification = amplification(&database, (0, 0));
    let before = totals(&database);
    ingest(&ascending, &database, true, progress)?;
    let among_amplification = amplification(&database, before);
    database.close()?;
    Ok(IngestReport {
        records: config.records,
        loaded_per_second,
        load_amplification,
        ingested_per_second,
        ingest_amplification,
        among_amplification,
    })
}

/// Ingests the records. `among`: with keys that follow those of the records, each its own.
fn ingest(config: &Config, database: &Database, among: bool, progress: &Progress) -> Result<()> {
    let keyspace = database.default_keyspace();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut ingest = keyspace.begin_ingest()?;
    for number in 0..config.records {
        config.shape.key(number, &mut key);
        if among {
            key.push(0);
        }
        config.shape.value(&key, number, &mut value);
        ingest.add(&key, &value)?;
        if number.is_multiple_of(1024) {
            progress.done.fetch_add(1024, Ordering::Relaxed);
        }
    }
    ingest.finish()?;
    Ok(())
}

fn rate(records: u64, start: Instant) -> f64 {
    records as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

/// Bytes that the database has written, and key and value bytes of its users.
fn totals(database: &Database) -> (u64, u64) {
    let metrics = database.metrics();
    let written = metrics.device_written.total() + metrics.log_bytes_written;
    (written, metrics.user_bytes_written)
}

fn amplification(database: &Database, before: (u64, u64)) -> f64 {
    let now = totals(database);
    (now.0 - before.0) as f64 / (now.1 - before.1).max(1) as f64
}

impl Figures for IngestReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>12}{:>13}{:>8}{:>10}{:>13}{:>12}",
            "records", "loaded/s", "ingested/s", "ratio", "load WA", "ingest WA", "among WA"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>12}{:>12.0}{:>13.0}{:>8.2}{:>10.3}{:>13.3}{:>12.3}",
            self.records,
            self.loaded_per_second,
            self.ingested_per_second,
            self.ingested_per_second / self.loaded_per_second.max(1e-9),
            self.load_amplification,
            self.ingest_amplification,
            self.among_amplification
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"loaded_per_second\":{:.1},\"ingested_per_second\":{:.1},\
             \"load_amplification\":{:.4},\"ingest_amplification\":{:.4},\
             \"among_amplification\":{:.4}}}",
            self.records,
            self.loaded_per_second,
            self.ingested_per_second,
            self.load_amplification,
            self.ingest_amplification,
            self.among_amplification
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Records;

    #[test]
    fn an_ingest_writes_less_than_a_load() {
        let config = Config {
            records: 20_000,
            loaded: false,
            shape: Records::new(8, 120).unwrap(),
            threads: 1,
            scan_records_max: 100,
            seed: 1,
        };
        let directory =
            std::env::temp_dir().join(format!("terrapin-bench-ingest-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (options, progress) = (Options::new().memory(16 << 20), Progress::default());
        let report = measure_ingest(&config, &options, 16 << 20, &directory, &progress).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(report.ingest_amplification < 1.05, "{report:?}");
        assert!(report.ingest_amplification < report.load_amplification);
        assert!(
            (1.8..2.2).contains(&report.among_amplification),
            "{report:?}"
        );
        assert!(report.json().contains("\"among_amplification\""));
    }
}
