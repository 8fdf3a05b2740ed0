//! The χ figure (TurtleKV, Fig. 11): the cost of a load at each checkpoint distance, and the cost
//! of reads at χ = 1 afterwards.
//!
//! Each step of the sweep is a new store with the same memory. The step loads at χ, then sets χ to
//! 1, which merges everything into the tree and is timed. Workloads C and E follow, each warmed
//! first. The store's own counters split write amplification into the tree's and the log's. Reads
//! and CPU are the operating system's figures.

use std::path::Path;
use std::time::Instant;

use terrapin::{CheckpointDistance, Database, Durability, Metrics, Options};
use terrapin_base::Result;

use crate::figures::Figures;
use crate::generator::Distribution;
use crate::report::PhaseReport;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;
use crate::workload::Workload;

/// The settings that all steps share.
#[derive(Clone, Debug)]
pub struct ChiSweep {
    /// The records, the threads, and the seed.
    pub config: Config,
    /// Measured reads of workload C; a fifth as many ranges of E. As many of each warm the caches
    /// first.
    pub operations: u64,
    /// The memory budget, which must hold the largest χ.
    pub memory_bytes: u64,
    /// L.
    pub batch_unit_bytes: u64,
}

/// Figures of reads at χ = 1.
#[derive(Clone, Copy, Debug)]
pub struct ReadFigures {
    /// Operations per second.
    pub ops_per_second: f64,
    /// Device reads per operation.
    pub device_reads: f64,
    /// Device bytes read per operation.
    pub device_bytes: f64,
    /// CPU of all threads per operation, in microseconds.
    pub cpu_us: f64,
}

/// One step of the sweep.
#[derive(Clone, Copy, Debug)]
pub struct ChiStep {
    /// χ of the load.
    pub chi: u32,
    /// Records per second, including the time until everything is in the tree.
    pub load_per_second: f64,
    /// Bytes that the tree wrote per user byte.
    pub tree_amplification: f64,
    /// Bytes that the log wrote per user byte.
    pub log_amplification: f64,
    /// Peak resident memory during the load.
    pub rss_peak_bytes: u64,
    /// Time from setting χ to 1 until the memtable is in the tree.
    pub retune_seconds: f64,
    /// Workload C, uniform.
    pub gets: ReadFigures,
    /// Workload E, uniform.
    pub scans: ReadFigures,
}

impl ChiSweep {
    /// Runs one step in an empty directory.
    pub fn step(&self, chi: u32, directory: &Path, progress: &Progress) -> Result<ChiStep> {
        let database = Options::new()
            .memory(self.memory_bytes)
            .group_bytes(self.batch_unit_bytes)
            .checkpoint_distance(CheckpointDistance::Fixed(chi))
            .open(directory)?;
        let step = self.measure(chi, directory, &database, progress);
        let closed = database.close();
        step.and_then(|step| closed.map(|_| step))
    }

    fn measure(
        &self,
        chi: u32,
        directory: &Path,
        database: &Database,
        progress: &Progress,
    ) -> Result<ChiStep> {
        let store = TerrapinStore::new(database.clone(), Durability::Process, self.memory_bytes);
        let driver = Driver::new(&self.config, &store, directory, progress)?;
        let phase = |workload, operations| Phase {
            workload,
            distribution: Distribution::Uniform,
            operations,
            time: None,
        };

        let load = driver.phase(phase(Workload::Load, self.config.records))?;
        let retuning = Instant::now();
        database.set_checkpoint_distance(CheckpointDistance::Fixed(1))?;
        database.checkpoint()?;
        let retune_seconds = retuning.elapsed().as_secs_f64();
        let written = database.metrics();
        let user_bytes = load.user_bytes_written.max(1) as f64;

        let reads = |workload, operations| -> Result<ReadFigures> {
            driver.phase(phase(workload, operations))?;
            let before = database.metrics();
            let report = driver.phase(phase(workload, operations))?;
            Ok(ReadFigures::of(&report, &before, &database.metrics()))
        };
        let gets = reads(Workload::C, self.operations)?;
        let scans = reads(Workload::E, self.operations.div_ceil(5))?;
        Ok(ChiStep {
            chi,
            load_per_second: load.operations as f64 / (load.seconds + retune_seconds),
            tree_amplification: written.device_written.total() as f64 / user_bytes,
            log_amplification: written.log_bytes_written as f64 / user_bytes,
            rss_peak_bytes: load.rss_peak_bytes,
            retune_seconds,
            gets,
            scans,
        })
    }
}

impl ReadFigures {
    fn of(report: &PhaseReport, before: &Metrics, after: &Metrics) -> Self {
        let operations = report.operations.max(1) as f64;
        let count = |m: &Metrics| {
            let reads = m.device_reads;
            reads.get_reads + reads.scan_reads + reads.meta_reads
        };
        ReadFigures {
            ops_per_second: report.ops_per_second(),
            device_reads: (count(after) - count(before)) as f64 / operations,
            device_bytes: report.device_bytes_read as f64 / operations,
            cpu_us: report.cpu_seconds * 1e6 / operations,
        }
    }

    fn json(&self) -> String {
        format!(
            "{{\"ops_per_second\":{:.1},\"device_reads\":{:.4},\"device_bytes\":{:.1},\"cpu_us\":{:.3}}}",
            self.ops_per_second, self.device_reads, self.device_bytes, self.cpu_us
        )
    }
}

impl ChiStep {}

impl Figures for ChiStep {
    fn table_head() -> String {
        format!(
            "{:>4}{:>11}{:>12}{:>11}{:>9}{:>11}{:>9}{:>13}{:>9}{:>9}{:>13}{:>9}",
            "χ",
            "load/s",
            "W amp tree",
            "W amp log",
            "RSS MiB",
            "retune ms",
            "C ops/s",
            "C reads/op",
            "C µs/op",
            "E ops/s",
            "E KiB/scan",
            "E µs/op",
        )
    }

    fn table_line(&self) -> String {
        format!(
            "{:>4}{:>11.0}{:>12.2}{:>11.2}{:>9.0}{:>11.1}{:>9.0}{:>13.3}{:>9.2}{:>9.0}{:>13.1}{:>9.1}",
            self.chi,
            self.load_per_second,
            self.tree_amplification,
            self.log_amplification,
            self.rss_peak_bytes as f64 / f64::from(1 << 20),
            self.retune_seconds * 1000.0,
            self.gets.ops_per_second,
            self.gets.device_reads,
            self.gets.cpu_us,
            self.scans.ops_per_second,
            self.scans.device_bytes / 1024.0,
            self.scans.cpu_us,
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"chi\":{},\"load_per_second\":{:.1},\"tree_amplification\":{:.4},\"log_amplification\":{:.4},\
             \"rss_peak_bytes\":{},\"retune_seconds\":{:.4},\"gets\":{},\"scans\":{}}}",
            self.chi,
            self.load_per_second,
            self.tree_amplification,
            self.log_amplification,
            self.rss_peak_bytes,
            self.retune_seconds,
            self.gets.json(),
            self.scans.json(),
        )
    }
}
