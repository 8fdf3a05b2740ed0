//! Gets of keys that are not there, beside gets of keys that are: how many a second, and how often
//! each kind reads the device.

use std::path::Path;
use std::time::Instant;

use terrapin::{Database, Options};
use terrapin_base::{Error, Result};

use crate::Workload;
use crate::figures::Figures;
use crate::generator::Random;
use crate::report::ratio;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;

/// What gets cost in one turn.
#[derive(Clone, Debug)]
pub struct AbsentReport {
    /// Records in the store.
    pub records: u64,
    /// Gets of each kind.
    pub gets: u64,
    /// Gets a second of keys that are there.
    pub present_per_second: f64,
    /// Device reads of each of them, on average.
    pub present_reads: f64,
    /// Gets a second of keys that are not there.
    pub absent_per_second: f64,
    /// Device reads of each of them, on average.
    pub absent_reads: f64,
}

/// Loads the records into an empty directory, opens the database anew, and gets `gets` keys that
/// are there and as many that are not, chosen uniformly, by one thread.
///
/// Errors: those of the store; `Corrupt` where a get is wrong.
pub fn measure_absent(
    config: &Config,
    options: &Options,
    memory_bytes: u64,
    gets: u64,
    directory: &Path,
    progress: &Progress,
) -> Result<AbsentReport> {
    config.check()?;
    let database = options.open(directory)?;
    let store = TerrapinStore::new(
        database.clone(),
        terrapin::Durability::Process,
        memory_bytes,
    );
    let driver = Driver::new(config, &store, directory, progress)?;
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    driver.settle()?;
    drop(driver);
    drop(store);
    database.close()?;
    let database = options.open(directory)?;
    // What both find cached is warm for both.
    measure_gets(config, &database, gets, 0, true)?;
    let present = measure_gets(config, &database, gets, 1, true)?;
    let absent = measure_gets(config, &database, gets, 2, false)?;
    database.close()?;
    Ok(AbsentReport {
        records: config.records,
        gets,
        present_per_second: present.0,
        present_reads: present.1,
        absent_per_second: absent.0,
        absent_reads: absent.1,
    })
}

/// Gets a second, and device reads of a get.
fn measure_gets(
    config: &Config,
    database: &Database,
    gets: u64,
    turn: u64,
    is_there: bool,
) -> Result<(f64, f64)> {
    let keyspace = database.default_keyspace();
    let mut random = Random::new(config.seed ^ turn << 32);
    let (mut key, before) = (Vec::new(), database.metrics().device_reads.reads());
    let start = Instant::now();
    for _ in 0..gets {
        let number = random.below(config.records);
        // Numbers that were not loaded have keys among those of the others.
        config
            .shape
            .key(number + if is_there { 0 } else { config.records }, &mut key);
        let found = keyspace.get(&key)?;
        match (&found, is_there) {
            (Some(value), true) => config.shape.check(&key, value)?,
            (None, false) => {}
            _ => {
                return Err(
                    Error::corrupt("a get is wrong about whether its key is there")
                        .with("key", format!("{key:02x?}"))
                        .with("expected", is_there),
                );
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let reads = database.metrics().device_reads.reads() - before;
    Ok((gets as f64 / seconds.max(1e-9), ratio(reads, gets)))
}

impl Figures for AbsentReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>12}{:>16}{:>15}{:>15}{:>14}",
            "records", "gets", "present gets/s", "present reads", "absent gets/s", "absent reads"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>12}{:>12}{:>16.0}{:>15.3}{:>15.0}{:>14.3}",
            self.records,
            self.gets,
            self.present_per_second,
            self.present_reads,
            self.absent_per_second,
            self.absent_reads
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"gets\":{},\"present_per_second\":{:.1},\"present_reads\":{:.4},\
             \"absent_per_second\":{:.1},\"absent_reads\":{:.4}}}",
            self.records,
            self.gets,
            self.present_per_second,
            self.present_reads,
            self.absent_per_second,
            self.absent_reads
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Records;

    #[test]
    fn both_kinds_of_gets_are_measured_and_checked() {
        let config = Config {
            records: 3000,
            loaded: false,
            shape: Records::new(8, 100).unwrap(),
            threads: 1,
            scan_records_max: 100,
            seed: 1,
        };
        let directory =
            std::env::temp_dir().join(format!("terrapin-bench-absent-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let (options, progress) = (Options::new().memory(16 << 20), Progress::default());
        let report =
            measure_absent(&config, &options, 16 << 20, 2000, &directory, &progress).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(report.present_per_second > 0.0 && report.absent_per_second > 0.0);
        assert!(report.absent_reads < 0.5, "{report:?}");
        assert!(report.json().contains("\"absent_reads\""));
    }
}
