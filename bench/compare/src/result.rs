//! What a run brings home: one JSON file for each engine, cell and repeat.

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

/// One phase with its settling. Bytes and CPU are those of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The phase's name.
    pub phase: String,
    /// Operations done.
    pub operations: u64,
    /// Wall time of the operations.
    pub seconds: f64,
    /// Wall time of bringing everything into its final place afterwards; 0 where nothing was
    /// written.
    pub settle_seconds: f64,
    /// Of operations, without the settling.
    pub latency_us: Latencies,
    /// Key and value bytes that clients wrote.
    pub user_bytes_written: u64,
    /// The process's bytes to storage.
    pub device_bytes_written: u64,
    /// The process's bytes from storage.
    pub device_bytes_read: u64,
    /// The same, of the whole block device, file system and other processes included.
    pub disk_bytes_written: Option<u64>,
    /// The same, of the whole block device.
    pub disk_bytes_read: Option<u64>,
    /// All threads, user and system.
    pub cpu_seconds: f64,
    /// Allocated bytes of the engine's directory afterwards.
    pub space_bytes: u64,
    /// Key and value bytes of all records afterwards.
    pub data_bytes: u64,
    /// Peak of resident memory, mapped files included.
    pub rss_peak_bytes: u64,
    /// Terrapin's χ.
    pub chi: u32,
}

impl Outcome {
    /// A phase and, if it wrote, its settling.
    pub fn new(name: &str, phase: &PhaseReport, settle: Option<&PhaseReport>) -> Self {
        let sum = |figure: fn(&PhaseReport) -> u64| figure(phase) + settle.map_or(0, figure);
        let last = settle.unwrap_or(phase);
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
            disk_bytes_written: None,
            disk_bytes_read: None,
            cpu_seconds: phase.cpu_seconds + settle.map_or(0.0, |s| s.cpu_seconds),
            space_bytes: last.space_bytes,
            data_bytes: last.data_bytes,
            rss_peak_bytes: phase.rss_peak_bytes.max(last.rss_peak_bytes),
            chi: last.chi,
        }
    }

    /// Operations a second, the settling included.
    pub fn rate(&self) -> f64 {
        ratio(self.operations as f64, self.seconds + self.settle_seconds)
    }

    /// Device bytes written for each byte that clients wrote.
    pub fn write_amplification(&self) -> f64 {
        ratio(
            self.device_bytes_written as f64,
            self.user_bytes_written as f64,
        )
    }

    /// The same with the bytes of the whole block device: the file system's own, and those of
    /// whatever else ran.
    pub fn disk_amplification(&self) -> f64 {
        ratio(
            self.disk_bytes_written.unwrap_or(0) as f64,
            self.user_bytes_written as f64,
        )
    }

    /// Device bytes read for each operation.
    pub fn read_bytes_per_operation(&self) -> f64 {
        ratio(self.device_bytes_read as f64, self.operations as f64)
    }

    /// CPU microseconds for each operation.
    pub fn cpu_us_per_operation(&self) -> f64 {
        ratio(self.cpu_seconds * 1e6, self.operations as f64)
    }

    /// Allocated bytes for each byte of data.
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
    /// What the process says of its surroundings: the limits that it could not have.
    Notes(Vec<String>),
    /// A phase ended.
    Phase(Outcome),
    /// The run failed: a wrong or missing record, or an error of the engine.
    Failure(String),
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
    /// Which repeat, from 1 on; also the seed.
    pub repeat: u32,
    /// What was to be done.
    pub plan: Plan,
    /// When it began, seconds since 1970.
    pub began: u64,
    /// Where.
    pub machine: Machine,
    /// Which allocator `malloc` was.
    pub allocator: String,
    /// What its control group let it have; none without the right to make one.
    pub memory_limit_bytes: Option<u64>,
    /// What was not as planned: missing privileges.
    pub notes: Vec<String>,
    /// Why it ended early.
    pub failure: Option<String>,
    /// What was measured.
    pub outcomes: Vec<Outcome>,
}

impl Run {
    /// Whether what it has measured counts: it did not fail, or only by a load that was not done in
    /// time.
    pub fn counts(&self) -> bool {
        let unfinished = |o: &Outcome| o.phase == "load" && o.operations < self.plan.records;
        let too_slow = !self.outcomes.is_empty() && self.outcomes.iter().all(unfinished);
        self.failure.is_none() || too_slow
    }
}
