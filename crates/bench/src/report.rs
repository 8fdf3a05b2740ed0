//! Figures of a phase: a line of a table for people, or a JSON object for programs.

use crate::figures::Figures;
use crate::store::{FileBytes, ReadCounts};

/// Percentiles of a phase's operations, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latencies {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// 99.99th percentile.
    pub p9999: f64,
    /// The slowest operation.
    pub max: f64,
}

/// The figures of a phase.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// `load`, `a`–`f`, or `settle`.
    pub phase: &'static str,
    /// Client threads.
    pub threads: usize,
    /// Records in the store afterwards.
    pub records: u64,
    /// Operations done.
    pub operations: u64,
    /// Wall time.
    pub seconds: f64,
    /// Latencies of single operations.
    pub latency_us: Latencies,
    /// Key and value bytes that the clients wrote.
    pub user_bytes_written: u64,
    /// Bytes written, by the operating system's count for the process.
    pub device_bytes_written: u64,
    /// Bytes read, by the operating system's count for the process.
    pub device_bytes_read: u64,
    /// What gets and ranges read, as the store counts.
    pub reads: Option<ReadCounts>,
    /// What of it went to the log and to the data file, as the store counts.
    pub written: Option<FileBytes>,
    /// Allocated bytes of the directory afterwards.
    pub space_bytes: u64,
    /// Key and value bytes of all records.
    pub data_bytes: u64,
    /// Peak resident memory during the phase.
    pub rss_peak_bytes: u64,
    /// CPU seconds of all threads, user and system.
    pub cpu_seconds: f64,
    /// χ in force at the end.
    pub chi: u32,
    /// The memory budget.
    pub memory_bytes: u64,
}

pub(crate) fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

impl PhaseReport {
    /// Operations per second.
    #[must_use]
    pub fn ops_per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.operations as f64 / self.seconds
        } else {
            0.0
        }
    }

    /// Device bytes written per byte that the clients wrote in this phase; 0 if they wrote none.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        ratio(self.device_bytes_written, self.user_bytes_written)
    }

    /// Space per byte of data.
    #[must_use]
    pub fn space_amplification(&self) -> f64 {
        ratio(self.space_bytes, self.data_bytes)
    }
}

impl Figures for PhaseReport {
    fn table_head() -> String {
        format!(
            "{:<9}{:>12}{:>9}{:>12}{:>9}{:>9}{:>10}{:>11}{:>9}{:>10}{:>10}{:>9}{:>10}{:>9}{:>8}{:>8}{:>6}",
            "phase",
            "operations",
            "seconds",
            "ops/s",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "max µs",
            "W amp",
            "log MiB",
            "data MiB",
            "space",
            "read MiB",
            "reads/op",
            "RSS MiB",
            "CPU s",
            "χ"
        )
    }

    fn table_line(&self) -> String {
        let l = &self.latency_us;
        let amplification = if self.user_bytes_written > 0 {
            format!("{:.2}", self.write_amplification())
        } else {
            "-".into()
        };
        let mib = |of: fn(&FileBytes) -> u64| match &self.written {
            Some(written) => format!("{:.0}", of(written) as f64 / f64::from(1 << 20)),
            None => "-".into(),
        };
        format!(
            "{:<9}{:>12}{:>9.2}{:>12.0}{:>9.1}{:>9.1}{:>10.1}{:>11.1}{:>9}{:>10}{:>10}{:>9.2}{:>10.0}{:>9}{:>8.0}{:>8.1}{:>6}",
            self.phase,
            self.operations,
            self.seconds,
            self.ops_per_second(),
            l.p50,
            l.p99,
            l.p999,
            l.max,
            amplification,
            mib(|written| written.log_bytes),
            mib(|written| written.data_bytes),
            self.space_amplification(),
            self.device_bytes_read as f64 / f64::from(1 << 20),
            match self.reads {
                Some(reads) => format!("{:.3}", ratio(reads.device_reads, self.operations)),
                None => "-".into(),
            },
            self.rss_peak_bytes as f64 / f64::from(1 << 20),
            self.cpu_seconds,
            self.chi,
        )
    }

    fn json(&self) -> String {
        let l = &self.latency_us;
        let bytes = |of: fn(&FileBytes) -> u64| match &self.written {
            Some(written) => of(written).to_string(),
            None => "null".into(),
        };
        let read = |of: fn(&ReadCounts) -> u64| match &self.reads {
            Some(reads) => of(reads).to_string(),
            None => "null".into(),
        };
        format!(
            "{{\"phase\":\"{}\",\"threads\":{},\"records\":{},\"operations\":{},\"seconds\":{:.3},\"ops_per_second\":{:.1},\
             \"latency_us\":{{\"p50\":{:.3},\"p99\":{:.3},\"p999\":{:.3},\"p9999\":{:.3},\"max\":{:.3}}},\"user_bytes_written\":{},\
             \"device_bytes_written\":{},\"device_bytes_read\":{},\"device_reads\":{},\"location_hits\":{},\"location_bytes\":{},\"log_bytes_written\":{},\
             \"data_file_bytes_written\":{},\"write_amplification\":{:.4},\"space_bytes\":{},\
             \"space_amplification\":{:.4},\"rss_peak_bytes\":{},\"cpu_seconds\":{:.2},\"chi\":{},\"memory_bytes\":{}}}",
            self.phase,
            self.threads,
            self.records,
            self.operations,
            self.seconds,
            self.ops_per_second(),
            l.p50,
            l.p99,
            l.p999,
            l.p9999,
            l.max,
            self.user_bytes_written,
            self.device_bytes_written,
            self.device_bytes_read,
            read(|reads| reads.device_reads),
            read(|reads| reads.location_hits),
            read(|reads| reads.location_bytes),
            bytes(|written| written.log_bytes),
            bytes(|written| written.data_bytes),
            self.write_amplification(),
            self.space_bytes,
            self.space_amplification(),
            self.rss_peak_bytes,
            self.cpu_seconds,
            self.chi,
            self.memory_bytes,
        )
    }
}
