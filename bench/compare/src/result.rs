//! The result of a run: one JSON file for each engine, cell and repeat.

use serde::{Deserialize, Serialize};
use terrapin_bench::PhaseReport;

use crate::host::Machine;
use crate::plan::Plan;

/// Percentiles of single operations, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// 99.99th percentile.
    pub p9999: f64,
    /// The slowest.
    pub max: f64,
}

/// One phase with its settling. Bytes and CPU cover both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The phase's name.
    pub phase: String,
    /// Operations done.
    pub operations: u64,
    /// Wall time of the operations.
    pub seconds: f64,
    /// Wall time of settling afterwards; 0 for a phase without writes.
    pub settle_seconds: f64,
    /// Latency of operations, without the settling.
    pub latency_us: Latencies,
    /// Key and value bytes that clients wrote.
    pub user_bytes_written: u64,
    /// Bytes that the process wrote to storage.
    pub device_bytes_written: u64,
    /// Bytes that the process read from storage.
    pub device_bytes_read: u64,
    /// What of it went to log files; none if the engine does not tell them apart.
    #[serde(default)]
    pub log_bytes_written: Option<u64>,
    /// What of it went to data files.
    #[serde(default)]
    pub data_file_bytes_written: Option<u64>,
    /// Bytes written to the whole block device, file system and other processes included.
    pub disk_bytes_written: Option<u64>,
    /// Bytes read from the whole block device.
    pub disk_bytes_read: Option<u64>,
    /// CPU of all threads, user and system.
    pub cpu_seconds: f64,
    /// Allocated bytes of the engine's directory afterwards.
    pub space_bytes: u64,
    /// Key and value bytes of all records afterwards.
    pub data_bytes: u64,
    /// Peak resident memory, mapped files included.
    pub rss_peak_bytes: u64,
    /// Terrapin's χ.
    pub chi: u32,
}

impl Outcome {
    /// A phase and, if it wrote, its settling.
    pub fn new(name: &str, phase: &PhaseReport, settle: Option<&PhaseReport>) -> Self {
        let sum = |figure: fn(&PhaseReport) -> u64| figure(phase) + settle.map_or(0, figure);
        let last = settle.unwrap_or(phase);
        let written = phase.written.map(|mut written| {
            if let Some(more) = settle.and_then(|s| s.written) {
                written.log_bytes += more.log_bytes;
                written.data_bytes += more.data_bytes;
            }
            written
        });
        let l = &phase.latency_us;
        Outcome {
            phase: name.to_owned(),
            operations: phase.operations,
            seconds: phase.seconds,
            settle_seconds: settle.map_or(0.0, |s| s.seconds),
            latency_us: Latencies {
                p50: l.p50,
                p99: l.p99,
                p999: l.p999,
                p9999: l.p9999,
                max: l.max,
            },
            user_bytes_written: phase.user_bytes_written,
            device_bytes_written: sum(|r| r.device_bytes_written),
            device_bytes_read: sum(|r| r.device_bytes_read),
            log_bytes_written: written.map(|w| w.log_bytes),
            data_file_bytes_written: written.map(|w| w.data_bytes),
            disk_bytes_written: None,
            disk_bytes_read: None,
            cpu_seconds: phase.cpu_seconds + settle.map_or(0.0, |s| s.cpu_seconds),
            space_bytes: last.space_bytes,
            data_bytes: last.data_bytes,
            rss_peak_bytes: phase.rss_peak_bytes.max(last.rss_peak_bytes),
            chi: last.chi,
        }
    }

    /// Operations per second, settling included.
    pub fn rate(&self) -> f64 {
        ratio(self.operations as f64, self.seconds + self.settle_seconds)
    }

    /// Device bytes written per client byte.
    pub fn write_amplification(&self) -> f64 {
        ratio(
            self.device_bytes_written as f64,
            self.user_bytes_written as f64,
        )
    }

    /// Bytes written to log files per client byte.
    pub fn log_amplification(&self) -> f64 {
        ratio(
            self.log_bytes_written.unwrap_or(0) as f64,
            self.user_bytes_written as f64,
        )
    }

    /// Bytes written to data files per client byte.
    pub fn data_amplification(&self) -> f64 {
        ratio(
            self.data_file_bytes_written.unwrap_or(0) as f64,
            self.user_bytes_written as f64,
        )
    }

    /// Bytes of the whole block device written per client byte, which include the file system and
    /// other programs.
    pub fn disk_amplification(&self) -> f64 {
        ratio(
            self.disk_bytes_written.unwrap_or(0) as f64,
            self.user_bytes_written as f64,
        )
    }

    /// Device bytes read per operation.
    pub fn read_bytes_per_operation(&self) -> f64 {
        ratio(self.device_bytes_read as f64, self.operations as f64)
    }

    /// CPU microseconds per operation.
    pub fn cpu_us_per_operation(&self) -> f64 {
        ratio(self.cpu_seconds * 1e6, self.operations as f64)
    }

    /// Allocated bytes per byte of data.
    pub fn space(&self) -> f64 {
        ratio(self.space_bytes as f64, self.data_bytes as f64)
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// A line that an engine's process writes to its standard output.
#[derive(Serialize, Deserialize)]
pub enum Line {
    /// Warnings of the process about its surroundings: limits that it could not set.
    Notes(Vec<String>),
    /// A phase ended.
    Phase(Outcome),
    /// The run failed: a wrong or missing record, or an error of the engine.
    Failure(String),
    /// The engine does not take such records. Nothing was measured.
    Unsupported(String),
    /// All phases are done, and all records were there at the end.
    Done,
}

/// A run of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The engine's name.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// The repeat, from 1; also the seed.
    pub repeat: u32,
    /// The plan.
    pub plan: Plan,
    /// When it began, seconds since 1970.
    pub began: u64,
    /// The machine.
    pub machine: Machine,
    /// The process's allocator.
    pub allocator: String,
    /// The control group's limit; none without the privilege to make a group.
    pub memory_limit_bytes: Option<u64>,
    /// Deviations from the plan: missing privileges.
    pub notes: Vec<String>,
    /// Why the run ended early.
    pub failure: Option<String>,
    /// Why the engine cannot run the cell.
    #[serde(default)]
    pub unsupported: Option<String>,
    /// The measured phases.
    pub outcomes: Vec<Outcome>,
}

impl Run {
    /// Whether the figures count: the run did not fail, or only because the load was too slow.
    pub fn counts(&self) -> bool {
        let unfinished = |o: &Outcome| o.phase == "load" && o.operations < self.plan.records;
        let too_slow = !self.outcomes.is_empty() && self.outcomes.iter().all(unfinished);
        self.unsupported.is_none() && (self.failure.is_none() || too_slow)
    }
}
