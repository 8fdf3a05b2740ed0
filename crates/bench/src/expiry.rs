//! The space of expired records: half of the records have a time to live. The database is idle
//! after the load, and its space is followed from their deadline on.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use terrapin::{Database, KeyspaceOptions, Options};
use terrapin_base::{Error, Result};

use crate::clients::in_threads;
use crate::figures::Figures;
use crate::report::ratio;
use crate::run::{Config, Progress};
use crate::system::allocated_bytes;

/// Time between two looks at the space.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The keyspace of the records.
const KEYSPACE: &str = "records";
/// The space for which [`ExpiryReport::bound_seconds`] waits, in multiples of live bytes.
const BOUND: f64 = 1.15;

/// Space before and after the deadline.
#[derive(Clone, Debug)]
pub struct ExpiryReport {
    /// Records, half of which expire.
    pub records: u64,
    /// Key and value bytes of the others.
    pub live_bytes: u64,
    /// Bytes of the data file on disk at the deadline, without the reserve.
    pub expired_bytes: u64,
    /// The same when the wait was over.
    pub data_bytes: u64,
    /// Bytes on disk of the whole directory then, with log and reserve.
    pub directory_bytes: u64,
    /// Seconds from the deadline until the data file had at most 1.15 times the live bytes; none
    /// if it never had.
    pub bound_seconds: Option<f64>,
    /// Seconds from the deadline to the end of the wait.
    pub seconds: f64,
}

/// Puts the records into a new keyspace in an empty directory, every other one with a time to live.
/// Makes a checkpoint, and waits until `wait` after the last deadline. Checks that exactly the
/// others are left.
///
/// Errors: those of the store; `Corrupt` for a wrong record or number of records.
pub fn measure_expiry(
    config: &Config,
    (options, keyspace): (&Options, &KeyspaceOptions),
    (ttl, wait): (Duration, Duration),
    directory: &Path,
    progress: &Progress,
) -> Result<ExpiryReport> {
    config.check()?;
    let database = options.open(directory)?;
    let keyspace = database.create_keyspace(KEYSPACE, *keyspace)?;
    in_threads(config.threads, |client| {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for number in (client as u64..config.records).step_by(config.threads) {
            config.shape.key(number, &mut key);
            config.shape.value(&key, number, &mut value);
            match stays(number) {
                true => keyspace.put(&key, &value)?,
                false => keyspace.put_with_ttl(&key, &value, ttl)?,
            }
            progress.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let deadline = Instant::now() + ttl;
    database.checkpoint()?;
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));

    let live_bytes = config.records.div_ceil(2) * config.shape.bytes();
    let expired_bytes = data_bytes(&database);
    let mut bound_seconds = None;
    while deadline.elapsed() < wait {
        std::thread::sleep(LOOK_INTERVAL);
        if bound_seconds.is_none() && ratio(data_bytes(&database), live_bytes) <= BOUND {
            bound_seconds = Some(deadline.elapsed().as_secs_f64());
        }
    }
    let report = ExpiryReport {
        records: config.records,
        live_bytes,
        expired_bytes,
        data_bytes: data_bytes(&database),
        directory_bytes: allocated_bytes(directory)?,
        bound_seconds,
        seconds: deadline.elapsed().as_secs_f64(),
    };
    let mut left = 0;
    let mut range = keyspace.unordered();
    while let Some((key, value)) = range.next_ref()? {
        config.shape.check(key, value)?;
        if !stays(crate::Records::tag(value)) {
            return Err(
                Error::corrupt("an expired record is there").with("key", format!("{key:02x?}"))
            );
        }
        left += 1;
    }
    drop(range);
    if left != config.records.div_ceil(2) {
        return Err(Error::corrupt("expiry left another number of records")
            .with("found", left)
            .with("expected", config.records.div_ceil(2)));
    }
    database.close()?;
    Ok(report)
}

/// Whether a record has no deadline.
fn stays(number: u64) -> bool {
    number.is_multiple_of(2)
}

fn data_bytes(database: &Database) -> u64 {
    let metrics = database.metrics();
    let reserve = metrics.data_reserve_bytes;
    metrics.data_allocated_bytes.saturating_sub(reserve)
}

impl ExpiryReport {
    fn of_live(&self, bytes: u64) -> f64 {
        ratio(bytes, self.live_bytes)
    }
}

impl Figures for ExpiryReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>10}{:>18}{:>16}{:>9}{:>12}{:>12}",
            "records",
            "live MiB",
            "at the deadline",
            "until 1.15, s",
            "waited s",
            "data file",
            "directory"
        )
    }

    fn table_line(&self) -> String {
        let bound = self.bound_seconds;
        let bound = bound.map_or("never".to_owned(), |seconds| format!("{seconds:.1}"));
        format!(
            "{:>12}{:>10}{:>18.3}{bound:>16}{:>9.1}{:>12.3}{:>12.3}",
            self.records,
            self.live_bytes >> 20,
            self.of_live(self.expired_bytes),
            self.seconds,
            self.of_live(self.data_bytes),
            self.of_live(self.directory_bytes)
        )
    }

    fn json(&self) -> String {
        let bound = self.bound_seconds;
        let bound = bound.map_or("null".to_owned(), |seconds| format!("{seconds:.2}"));
        format!(
            "{{\"records\":{},\"live_bytes\":{},\"expired_bytes\":{},\"data_bytes\":{},\
             \"directory_bytes\":{},\"bound_seconds\":{bound},\"seconds\":{:.2}}}",
            self.records,
            self.live_bytes,
            self.expired_bytes,
            self.data_bytes,
            self.directory_bytes,
            self.seconds
        )
    }
}
