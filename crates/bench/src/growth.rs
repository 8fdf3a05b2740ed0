//! The cost of a loaded record as the data grows, beside the theory.
//!
//! With a memtable of χ·L bytes, a record of N bytes of data is merged about log₂(N / χL) times:
//! each level of the tree doubles what a buffer holds (TurtleKV §4). CPU and bytes per record may
//! grow by that much and no more.

use std::path::Path;

use terrapin::{Durability, Options};
use terrapin_base::Result;

use crate::figures::Figures;
use crate::report::PhaseReport;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;
use crate::workload::Workload;

/// The cost of a load, settling included.
#[derive(Clone, Copy, Debug)]
pub struct GrowthReport {
    /// Records loaded.
    pub records: u64,
    /// Their key and value bytes: N.
    pub data_bytes: u64,
    /// χ·L at the end of the load.
    pub memtable_bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// CPU of all threads.
    pub cpu_seconds: f64,
    /// All bytes that the process wrote, log included, by the operating system.
    pub device_bytes_written: u64,
    /// All bytes that it read.
    pub device_bytes_read: u64,
    /// Peak resident memory.
    pub rss_peak_bytes: u64,
}

/// Loads records in random order into an empty directory, settles, and checks everything by one
/// full read.
pub fn measure_growth(
    config: &Config,
    options: &Options,
    directory: &Path,
    progress: &Progress,
) -> Result<GrowthReport> {
    let database = options.open(directory)?;
    // The driver needs no memory figure here.
    let store = TerrapinStore::new(database.clone(), Durability::Process, 0);
    let driver = Driver::new(config, &store, directory, progress)?;
    let load = driver.phase(Phase::uniform(Workload::Load, config.records))?;
    let memtable_bytes = u64::from(load.chi) * database.stat()?.group_bytes;
    let settle = driver.settle()?;
    driver.read_all()?;
    database.close()?;
    Ok(GrowthReport::of(&load, &settle, memtable_bytes))
}

impl GrowthReport {
    /// A load and its settling, added up.
    fn of(load: &PhaseReport, settle: &PhaseReport, memtable_bytes: u64) -> Self {
        GrowthReport {
            records: load.operations,
            data_bytes: load.data_bytes,
            memtable_bytes,
            seconds: load.seconds + settle.seconds,
            cpu_seconds: load.cpu_seconds + settle.cpu_seconds,
            device_bytes_written: load.device_bytes_written + settle.device_bytes_written,
            device_bytes_read: load.device_bytes_read + settle.device_bytes_read,
            // Each phase resets the peak.
            rss_peak_bytes: load.rss_peak_bytes.max(settle.rss_peak_bytes),
        }
    }

    /// log₂(N / χL): how often a record may be merged. 0 while the memtable holds all data.
    #[must_use]
    pub fn merges(&self) -> f64 {
        (self.data_bytes as f64 / self.memtable_bytes.max(1) as f64)
            .log2()
            .max(0.0)
    }

    /// CPU per record in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.records.max(1) as f64
    }

    fn amplification(&self) -> f64 {
        self.device_bytes_written as f64 / self.data_bytes.max(1) as f64
    }

    fn per_second(&self) -> f64 {
        self.records as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl Figures for GrowthReport {
    fn table_head() -> String {
        format!(
            "{:>11}{:>9}{:>9}{:>11}{:>10}{:>9}{:>8}{:>9}{:>9}",
            "records",
            "MiB",
            "χL MiB",
            "log2 N/χL",
            "load/s",
            "CPU µs",
            "W amp",
            "read/N",
            "RSS MiB"
        )
    }

    fn table_line(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "{:>11}{:>9.0}{:>9.1}{:>11.2}{:>10.0}{:>9.2}{:>8.2}{:>9.2}{:>9.0}",
            self.records,
            mib(self.data_bytes),
            mib(self.memtable_bytes),
            self.merges(),
            self.per_second(),
            self.cpu_us(),
            self.amplification(),
            self.device_bytes_read as f64 / self.data_bytes.max(1) as f64,
            mib(self.rss_peak_bytes),
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"records\":{},\"data_bytes\":{},\"memtable_bytes\":{},\"merges\":{:.3},\"seconds\":{:.3},\"ops_per_second\":{:.1},\
             \"cpu_us\":{:.4},\"device_bytes_written\":{},\"device_bytes_read\":{},\"write_amplification\":{:.4},\"rss_peak_bytes\":{}}}",
            self.records,
            self.data_bytes,
            self.memtable_bytes,
            self.merges(),
            self.seconds,
            self.per_second(),
            self.cpu_us(),
            self.device_bytes_written,
            self.device_bytes_read,
            self.amplification(),
            self.rss_peak_bytes,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Latencies;

    #[test]
    fn a_record_is_merged_once_more_for_every_doubling_of_the_data() {
        let of = |data_bytes, memtable_bytes| GrowthReport {
            records: 1000,
            data_bytes,
            memtable_bytes,
            seconds: 2.0,
            cpu_seconds: 0.003,
            device_bytes_written: 3 * data_bytes,
            device_bytes_read: 0,
            rss_peak_bytes: 0,
        };
        assert_eq!(of(1 << 30, 1 << 25).merges(), 5.0);
        assert_eq!(of(1 << 31, 1 << 25).merges(), 6.0);
        assert_eq!(
            of(1 << 20, 1 << 25).merges(),
            0.0,
            "a memtable that holds everything"
        );
        let json = of(1 << 30, 1 << 25).json();
        assert!(json.contains("\"merges\":5.000") && json.contains("\"cpu_us\":3.0000"));
        assert!(json.contains("\"ops_per_second\":500.0"));
    }

    #[test]
    fn a_load_reports_its_own_peak_of_memory() {
        let phase = |operations, rss_peak_bytes| PhaseReport {
            phase: "load",
            threads: 2,
            written: None,
            records: 1000,
            operations,
            seconds: 2.0,
            latency_us: Latencies::default(),
            user_bytes_written: operations * 128,
            device_bytes_written: 50,
            device_bytes_read: 7,
            reads: None,
            space_bytes: 0,
            data_bytes: 1000 * 128,
            rss_peak_bytes,
            cpu_seconds: 0.5,
            chi: 2,
            memory_bytes: 0,
        };
        let report = GrowthReport::of(&phase(1000, 900), &phase(1, 600), 1 << 18);
        assert_eq!(report.rss_peak_bytes, 900);
        let report = GrowthReport::of(&phase(1000, 600), &phase(1, 900), 1 << 18);
        assert_eq!(report.rss_peak_bytes, 900);
        assert_eq!((report.records, report.data_bytes), (1000, 128_000));
        assert_eq!((report.seconds, report.cpu_seconds), (4.0, 1.0));
        assert_eq!(
            (report.device_bytes_written, report.device_bytes_read),
            (100, 14)
        );
    }
}
