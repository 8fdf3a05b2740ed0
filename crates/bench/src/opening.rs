//! What an open costs: after a close, and after a process that died with its writes in the log
//! only; and what the first gets after it read.

use std::path::Path;
use std::time::Instant;

use terrapin::{Options, StructureKind};
use terrapin_base::{Error, Result};

use crate::figures::Figures;
use crate::generator::Random;
use crate::report::ratio;
use crate::run::Config;
use crate::store::keyspace_of;
use crate::system::{Usage, reset_rss_peak, rss_peak_bytes};

/// One open.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// Records in the store.
    pub records: u64,
    /// Records of the log that the open replayed.
    pub replayed_records: u64,
    /// Bytes of log that it replayed.
    pub replayed_bytes: u64,
    /// How long the open took.
    pub seconds: f64,
    /// CPU of the open, all threads.
    pub cpu_seconds: f64,
    /// Bytes that the open read from the device.
    pub device_bytes_read: u64,
    /// Peak of resident memory until the open returned.
    pub rss_peak_bytes: u64,
    /// Gets afterwards, of keys chosen uniformly.
    pub first_gets: u64,
    /// How long they took.
    pub first_gets_seconds: f64,
    /// Device reads of each of them, on average.
    pub first_gets_reads: f64,
    /// Those of them that led to records: nodes, indexes, filters.
    pub first_gets_meta_reads: f64,
}

/// Opens a database that holds the records of `config` in a keyspace of this structure, and gets
/// `gets` of them. It checks gets of records that nobody has overwritten since their load; give
/// none where that happened.
///
/// Errors: those of the store; `Corrupt` where a record is missing or wrong.
pub fn measure_open(
    config: &Config,
    (options, structure): (&Options, StructureKind),
    gets: u64,
    directory: &Path,
) -> Result<OpenReport> {
    config.check()?;
    reset_rss_peak();
    let (before, start) = (Usage::now(), Instant::now());
    let database = options.open(directory)?;
    let seconds = start.elapsed().as_secs_f64();
    let (after, rss_peak_bytes) = (Usage::now(), rss_peak_bytes());
    let metrics = database.metrics();
    let keyspace = keyspace_of(&database, structure)?;
    let mut random = Random::new(config.seed);
    let (mut key, start) = (Vec::new(), Instant::now());
    for _ in 0..gets {
        config.shape.key(random.below(config.records), &mut key);
        let value = keyspace.get(&key)?.ok_or_else(|| {
            Error::corrupt("a record is missing").with("key", format!("{key:02x?}"))
        })?;
        config.shape.check(&key, &value)?;
    }
    let first_gets_seconds = start.elapsed().as_secs_f64();
    let reads = database.metrics().device_reads;
    let meta_reads = reads.meta_reads - metrics.device_reads.meta_reads;
    let reads = reads.get_reads - metrics.device_reads.get_reads + meta_reads;
    database.close()?;
    Ok(OpenReport {
        records: config.records,
        replayed_records: metrics.replayed_records,
        replayed_bytes: metrics.replay_bytes,
        seconds,
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        device_bytes_read: after
            .device_bytes_read
            .saturating_sub(before.device_bytes_read),
        rss_peak_bytes,
        first_gets: gets,
        first_gets_seconds,
        first_gets_reads: ratio(reads, gets),
        first_gets_meta_reads: ratio(meta_reads, gets),
    })
}

impl Figures for OpenReport {
    fn table_head() -> String {
        format!(
            "{:>12}{:>12}{:>9}{:>10}{:>9}{:>10}{:>9}{:>12}{:>14}{:>10}{:>10}",
            "records",
            "replayed",
            "log MiB",
            "open ms",
            "CPU ms",
            "read MiB",
            "RSS MiB",
            "first gets",
            "first gets ms",
            "reads/get",
            "of nodes"
        )
    }

    fn table_line(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "{:>12}{:>12}{:>9.1}{:>10.1}{:>9.0}{:>10.1}{:>9.0}{:>12}{:>14.1}{:>10.3}{:>10.3}",
            self.records,
            self.replayed_records,
            mib(self.replayed_bytes),
            self.seconds * 1000.0,
            self.cpu_seconds * 1000.0,
            mib(self.device_bytes_read),
            mib(self.rss_peak_bytes),
            self.first_gets,
            self.first_gets_seconds * 1000.0,
            self.first_gets_reads,
            self.first_gets_meta_reads,
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"replayed_records\":{},\"replayed_bytes\":{},\"seconds\":{:.6},\"cpu_seconds\":{:.2},\"device_bytes_read\":{},\
             \"rss_peak_bytes\":{},\"first_gets\":{},\"first_gets_seconds\":{:.6},\"first_gets_reads\":{:.4},\
             \"first_gets_meta_reads\":{:.4}}}",
            self.records,
            self.replayed_records,
            self.replayed_bytes,
            self.seconds,
            self.cpu_seconds,
            self.device_bytes_read,
            self.rss_peak_bytes,
            self.first_gets,
            self.first_gets_seconds,
            self.first_gets_reads,
            self.first_gets_meta_reads,
        )
    }
}
