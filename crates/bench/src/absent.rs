//! Gets of keys that are not there, beside gets of keys that are, one by one and many at once: how
//! many a second, and how often each kind reads the device.

use std::path::Path;
use std::time::Instant;

use terrapin::{Database, Keyspace, KeyspaceOptions, Options, Slice};
use terrapin_base::{Error, Result};

use crate::Workload;
use crate::figures::Figures;
use crate::generator::Random;
use crate::report::ratio;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::{TerrapinStore, keyspace_of};

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
    /// Keys a second of calls of `multi_get` for 64 keys that are there.
    pub many_per_second: f64,
    /// The first gets after an open, of keys that are not there.
    pub first_gets: u64,
    /// Device reads of each of those, on average.
    pub first_absent_reads: f64,
}

/// Keys of one call of `multi_get`.
pub const KEYS_AT_ONCE: usize = 64;
/// Gets of [`AbsentReport::first_gets`], at most.
const FIRST_GETS: u64 = 10_000;

/// Loads the records into an empty directory, into a keyspace with these options. Opens the
/// database anew, and gets keys that are not there. Opens it once more, and gets `gets` keys that
/// are there, one by one and many at once, and as many that are not. All are chosen uniformly, and
/// one thread does everything.
///
/// Errors: those of the store; `Corrupt` where a get is wrong.
pub fn measure_absent(
    config: &Config,
    (options, keyspace): (&Options, &KeyspaceOptions),
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
    let store = store.stored(*keyspace)?;
    let driver = Driver::new(config, &store, directory, progress)?;
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    driver.settle()?;
    drop(driver);
    drop(store);
    database.close()?;
    let structure = keyspace.structure;
    let first_gets = gets.min(FIRST_GETS);
    let database = options.open(directory)?;
    let keyspace = keyspace_of(&database, structure)?;
    let first = measure_gets(config, (&database, &keyspace), first_gets, 3, false)?;
    drop(keyspace);
    database.close()?;
    let database = options.open(directory)?;
    let keyspace = keyspace_of(&database, structure)?;
    let place = (&database, &keyspace);
    // What all find cached is warm for all.
    measure_gets(config, place, gets, 0, true)?;
    let present = measure_gets(config, place, gets, 1, true)?;
    let absent = measure_gets(config, place, gets, 2, false)?;
    let many_per_second = measure_many(config, &keyspace, gets, 4)?;
    drop(keyspace);
    database.close()?;
    Ok(AbsentReport {
        records: config.records,
        gets,
        present_per_second: present.0,
        present_reads: present.1,
        absent_per_second: absent.0,
        absent_reads: absent.1,
        many_per_second,
        first_gets,
        first_absent_reads: first.1,
    })
}

/// Gets a second, and device reads of a get.
fn measure_gets(
    config: &Config,
    (database, keyspace): (&Database, &Keyspace),
    gets: u64,
    turn: u64,
    is_there: bool,
) -> Result<(f64, f64)> {
    let before = database.metrics().device_reads.reads();
    let rate = measure(config, gets, turn, is_there, |keys, values| {
        for (key, value) in keys.iter().zip(values) {
            *value = keyspace.get(key)?;
        }
        Ok(())
    })?;
    let reads = database.metrics().device_reads.reads() - before;
    Ok((rate, ratio(reads, gets)))
}

/// Keys a second of calls for many keys that are there.
fn measure_many(config: &Config, keyspace: &Keyspace, gets: u64, turn: u64) -> Result<f64> {
    measure(config, gets, turn, true, |keys, values| {
        *values = keyspace.multi_get(keys)?;
        Ok(())
    })
}

/// Keys a second that `find` looks up, [`KEYS_AT_ONCE`] at a time. Making the keys and checking the
/// values is not measured.
fn measure(
    config: &Config,
    gets: u64,
    turn: u64,
    is_there: bool,
    mut find: impl FnMut(&[Vec<u8>], &mut Vec<Option<Slice>>) -> Result<()>,
) -> Result<f64> {
    let mut random = Random::new(config.seed ^ turn << 32);
    // Numbers that were not loaded have keys among those of the others.
    let first = if is_there { 0 } else { config.records };
    let mut keys = vec![Vec::new(); KEYS_AT_ONCE.min(gets as usize)];
    let mut values = vec![None; keys.len()];
    let (mut seconds, mut done) = (0.0, 0);
    while done < gets {
        for key in &mut keys {
            config.shape.key(first + random.below(config.records), key);
        }
        let start = Instant::now();
        find(&keys, &mut values)?;
        seconds += start.elapsed().as_secs_f64();
        for (key, value) in keys.iter().zip(&values) {
            match (value, is_there) {
                (Some(value), true) => config.shape.check(key, value)?,
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
        done += keys.len() as u64;
    }
    Ok(done as f64 / seconds.max(1e-9))
}

impl Figures for AbsentReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>12}{:>16}{:>15}{:>15}{:>14}{:>13}{:>14}",
            "records",
            "gets",
            "present gets/s",
            "present reads",
            "absent gets/s",
            "absent reads",
            "64 at once/s",
            "first absent"
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>12}{:>12}{:>16.0}{:>15.3}{:>15.0}{:>14.3}{:>13.0}{:>14.4}",
            self.records,
            self.gets,
            self.present_per_second,
            self.present_reads,
            self.absent_per_second,
            self.absent_reads,
            self.many_per_second,
            self.first_absent_reads,
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"gets\":{},\"present_per_second\":{:.1},\"present_reads\":{:.4},\
             \"absent_per_second\":{:.1},\"absent_reads\":{:.4},\"many_per_second\":{:.1},\
             \"first_gets\":{},\"first_absent_reads\":{:.4}}}",
            self.records,
            self.gets,
            self.present_per_second,
            self.present_reads,
            self.absent_per_second,
            self.absent_reads,
            self.many_per_second,
            self.first_gets,
            self.first_absent_reads
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Records;
    use terrapin::StructureKind;

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
        for structure in [StructureKind::Leveled, StructureKind::Hashed] {
            let keyspace = KeyspaceOptions::new().structure(structure);
            let stored = (&options, &keyspace);
            let report =
                measure_absent(&config, stored, 16 << 20, 2000, &directory, &progress).unwrap();
            std::fs::remove_dir_all(&directory).unwrap();
            assert!(report.present_per_second > 0.0 && report.absent_per_second > 0.0);
            assert!(report.many_per_second > 0.0 && report.first_gets == 2000);
            assert!(report.absent_reads < 0.5, "{report:?}");
            assert!(report.json().contains("\"first_absent_reads\""));
        }
    }
}
