//! Deletes half of the records by one range: how long until the call returns and until the space is
//! free within the file, and what is written for it (decision 0042).

use std::path::Path;
use std::time::{Duration, Instant};

use terrapin::{Database, Durability, Options};
use terrapin_base::{Error, Result};

use crate::Workload;
use crate::figures::Figures;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;

/// Keys that are drawn to find the middle one.
const SAMPLE: u64 = 1001;
/// The part of the deleted records' space that counts as all of it: pages at the range's end stay.
const FREED_SHARE: f64 = 0.95;
/// A longer wait for the space is an error.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two checks of the space.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The cost of one range delete.
#[derive(Clone, Debug)]
pub struct RangeDeleteReport {
    /// Records before.
    pub records: u64,
    /// Records that the range hid.
    pub deleted: u64,
    /// Key and value bytes of all records.
    pub data_bytes: u64,
    /// Milliseconds until the call returned.
    pub acknowledged_ms: f64,
    /// Milliseconds from the call until 95 % of the deleted records' space was free within the
    /// file.
    pub free_ms: f64,
    /// Bytes written to log and data file from the call to the end of a checkpoint after it.
    pub written_bytes: u64,
}

/// Loads the records into an empty directory, deletes the upper half of the keys, and checks that
/// exactly the others are left.
///
/// Errors: those of the store; `Corrupt` for a wrong record or number of records; `Internal` if the
/// space is not free after two minutes.
pub fn measure_range_delete(
    config: &Config,
    options: &Options,
    memory_bytes: u64,
    directory: &Path,
    progress: &Progress,
) -> Result<RangeDeleteReport> {
    config.check()?;
    let database = options.open(directory)?;
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory_bytes);
    let driver = Driver::new(config, &store, directory, progress)?;
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    driver.settle()?;
    let (keyspace, middle) = (database.default_keyspace(), middle(config));
    let deleted = from(config, &middle);

    let (used, written) = (used(&database)?, written(&database));
    let share = FREED_SHARE * deleted as f64 / config.records as f64;
    let left = used - (used as f64 * share) as u64;
    let start = Instant::now();
    keyspace.delete_range(&middle[..]..)?;
    let acknowledged_ms = start.elapsed().as_secs_f64() * 1e3;
    while self::used(&database)? > left {
        if start.elapsed() > PATIENCE {
            return Err(Error::internal("the space is not free after two minutes")
                .with("bytes in use", self::used(&database)?)
                .with("bytes expected", left));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    let free_ms = start.elapsed().as_secs_f64() * 1e3;
    database.checkpoint()?;
    let written_bytes = self::written(&database) - written;

    let mut left = 0;
    let mut range = keyspace.iter();
    while let Some((key, value)) = range.next_ref()? {
        config.shape.check(key, value)?;
        if key >= &middle[..] {
            return Err(
                Error::corrupt("a deleted record is there").with("key", format!("{key:02x?}"))
            );
        }
        left += 1;
    }
    drop(range);
    if left + deleted != config.records {
        return Err(
            Error::corrupt("a range delete left another number of records")
                .with("found", left)
                .with("expected", config.records - deleted),
        );
    }
    drop(driver);
    drop(store);
    database.close()?;
    Ok(RangeDeleteReport {
        records: config.records,
        deleted,
        data_bytes: config.records * config.shape.bytes(),
        acknowledged_ms,
        free_ms,
        written_bytes,
    })
}

/// A key with about half of the keys below it.
fn middle(config: &Config) -> Vec<u8> {
    let key = |number| {
        let mut key = Vec::new();
        config.shape.key(number % config.records, &mut key);
        key
    };
    let mut keys: Vec<Vec<u8>> = (0..SAMPLE).map(key).collect();
    keys.sort_unstable();
    keys.swap_remove(SAMPLE as usize / 2)
}

/// The number of keys from a key on.
fn from(config: &Config, bound: &[u8]) -> u64 {
    let mut key = Vec::new();
    let is_behind = |&number: &u64| {
        config.shape.key(number, &mut key);
        key[..] >= *bound
    };
    (0..config.records).filter(is_behind).count() as u64
}

/// Bytes of the data file that no new page can have.
fn used(database: &Database) -> Result<u64> {
    let space = database.stat()?.space;
    Ok(space.pages.total() + space.other + space.retired)
}

/// Bytes that the database wrote, its log included.
fn written(database: &Database) -> u64 {
    let metrics = database.metrics();
    metrics.device_written.total() + metrics.log_bytes_written
}

impl RangeDeleteReport {
    /// Bytes written, in per cent of all records' bytes.
    #[must_use]
    pub fn written_percent(&self) -> f64 {
        100.0 * crate::report::ratio(self.written_bytes, self.data_bytes)
    }
}

impl Figures for RangeDeleteReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>12}{:>17}{:>10}{:>13}{:>11}",
            "records", "deleted", "acknowledged ms", "free ms", "written KiB", "written %"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>12}{:>12}{:>17.2}{:>10.0}{:>13}{:>11.3}",
            self.records,
            self.deleted,
            self.acknowledged_ms,
            self.free_ms,
            self.written_bytes >> 10,
            self.written_percent()
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"deleted\":{},\"data_bytes\":{},\"acknowledged_ms\":{:.3},\
             \"free_ms\":{:.1},\"written_bytes\":{}}}",
            self.records,
            self.deleted,
            self.data_bytes,
            self.acknowledged_ms,
            self.free_ms,
            self.written_bytes
        )
    }
}
