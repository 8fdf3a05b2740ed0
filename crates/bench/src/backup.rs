//! What a backup costs a load beside it, and what an incremental backup reads of the database.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrapin::backup::BackupOptions;
use terrapin::{Database, Durability, Options};
use terrapin_base::{Error, Result};

use crate::clients::in_threads;
use crate::figures::Figures;
use crate::generator::Random;
use crate::report::ratio;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;
use crate::{Records, Workload};

/// One record in this many changes before the incremental backup, all in one place.
const CHANGED_SHARE: u64 = 100;

/// The figures of one turn.
#[derive(Clone, Debug)]
pub struct BackupBenchReport {
    /// Key and value bytes of all records.
    pub data_bytes: u64,
    /// Overwrites a second without a backup.
    pub alone_per_second: f64,
    /// Overwrites a second while a backup runs into an empty directory.
    pub beside_per_second: f64,
    /// Seconds of that backup.
    pub backup_seconds: f64,
    /// Bytes of pages in the backup before the change.
    pub page_bytes: u64,
    /// Bytes that the next backup read, after 1 % of the records in one place had changed.
    pub copied_bytes: u64,
}

/// Loads the records into an empty directory. In each turn it overwrites records, uniformly drawn,
/// first for `alone`, then for as long as a backup takes. After that it changes 1 % of the records,
/// neighbours in the order of keys, and backs up again into the same directory, with
/// [`BackupOptions::verify`].
///
/// Errors: those of the store and of backups; `Corrupt` where a read at the end is wrong.
pub fn measure_backup(
    config: &Config,
    options: &Options,
    (alone, turns): (Duration, u64),
    directory: &Path,
    progress: &Progress,
    report: &mut dyn FnMut(&BackupBenchReport) -> Result<()>,
) -> Result<()> {
    config.check()?;
    let place = directory.join("database");
    let database = options.open(&place)?;
    // The driver needs no memory figure here.
    let store = TerrapinStore::new(database.clone(), Durability::Process, 0);
    let driver = Driver::new(config, &store, &place, progress)?;
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    driver.settle()?;
    let target = directory.join("backup");
    for turn in 0..turns {
        let ended = |start: Instant| move || start.elapsed() >= alone;
        let alone_per_second = overwrite(config, &database, turn, &ended(Instant::now()))?;
        let (beside_per_second, backup_seconds) =
            overwrite_beside_backup(config, &database, turn, &target)?;
        driver.settle()?;
        let full = database.backup(&target)?;
        change_neighbours(config, &database, turn)?;
        driver.settle()?;
        let verified = BackupOptions::new().verify(true);
        let next = database.backup_with(&target, &verified)?;
        std::fs::remove_dir_all(&target).map_err(|e| {
            Error::io("cannot remove the backup", e).with("directory", target.display())
        })?;
        report(&BackupBenchReport {
            data_bytes: config.records * config.shape.bytes(),
            alone_per_second,
            beside_per_second,
            backup_seconds,
            page_bytes: full.copied_bytes + full.kept_bytes,
            copied_bytes: next.copied_bytes,
        })?;
    }
    driver.read_all()?;
    drop(driver);
    drop(store);
    database.close().map(drop)
}

/// Overwrites records until `is_over`. Returns how many a second.
fn overwrite(
    config: &Config,
    database: &Database,
    turn: u64,
    is_over: &(impl Fn() -> bool + Sync),
) -> Result<f64> {
    let (keyspace, start) = (database.default_keyspace(), Instant::now());
    let done = in_threads(config.threads, |client| {
        let mut random = Random::new(config.seed ^ turn << 32 ^ (client as u64) << 48);
        let (mut key, mut value, mut done) = (Vec::new(), Vec::new(), 0_u64);
        while !is_over() {
            config.shape.key(random.below(config.records), &mut key);
            config.shape.value(&key, random.bits(), &mut value);
            keyspace.put(&key, &value)?;
            done += 1;
        }
        Ok(done)
    })?;
    Ok(done.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// Overwrites records while a backup runs. Returns how many a second, and the backup's seconds.
fn overwrite_beside_backup(
    config: &Config,
    database: &Database,
    turn: u64,
    target: &Path,
) -> Result<(f64, f64)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| {
            let start = Instant::now();
            let done = database.backup(target);
            is_over.store(true, Ordering::Relaxed);
            done.map(|_| start.elapsed().as_secs_f64())
        });
        let rate = overwrite(config, database, turn, &|| is_over.load(Ordering::Relaxed));
        let seconds = backup.join();
        let panicked = |_| Err(Error::internal("the backup panicked"));
        Ok((rate?, seconds.unwrap_or_else(panicked)?))
    })
}

/// Gives new values to 1 % of the records, which follow each other in the order of keys.
fn change_neighbours(config: &Config, database: &Database, turn: u64) -> Result<()> {
    let (keyspace, mut first) = (database.default_keyspace(), Vec::new());
    config.shape.key(turn, &mut first);
    let count = (config.records / CHANGED_SHARE).max(1) as usize;
    let mut keys = Vec::with_capacity(count);
    // From the start, if too few follow the first.
    for from in [&first[..], &[]] {
        for found in keyspace.range(from..).limit(count - keys.len()) {
            keys.push(found?.0);
        }
    }
    let mut value = Vec::new();
    for key in keys {
        let tag = keyspace.get(&key)?.map_or(0, |old| Records::tag(&old));
        config.shape.value(&key, tag.wrapping_add(1), &mut value);
        keyspace.put(&key, &value)?;
    }
    Ok(())
}

impl Figures for BackupBenchReport {
    fn table_head() -> String {
        format!(
            "{:>10}{:>12}{:>12}{:>8}{:>10}{:>12}{:>16}{:>8}",
            "data MiB",
            "alone/s",
            "beside/s",
            "ratio",
            "backup s",
            "pages MiB",
            "copied later",
            "%"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>10}{:>12.0}{:>12.0}{:>8.2}{:>10.1}{:>12}{:>16}{:>8.2}",
            self.data_bytes >> 20,
            self.alone_per_second,
            self.beside_per_second,
            self.beside_per_second / self.alone_per_second.max(1e-9),
            self.backup_seconds,
            self.page_bytes >> 20,
            self.copied_bytes >> 20,
            100.0 * ratio(self.copied_bytes, self.data_bytes)
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"data_bytes\":{},\"alone_per_second\":{:.1},\"beside_per_second\":{:.1},\
             \"backup_seconds\":{:.2},\"page_bytes\":{},\"copied_bytes\":{}}}",
            self.data_bytes,
            self.alone_per_second,
            self.beside_per_second,
            self.backup_seconds,
            self.page_bytes,
            self.copied_bytes
        )
    }
}
