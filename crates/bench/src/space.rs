//! The space figure: the cost of uniform overwriting in writes and space, at a bound of space
//! amplification.
//!
//! A new database is loaded, settled, and overwritten with as many bytes as it holds, so its trees
//! learn that records are replaced. Then it is overwritten twice more, measured, and settled. Space
//! is sampled all the time. After each checkpoint the least sample counts: by then the checkpoint
//! has freed what it replaced, and the next one has hardly begun. Reserve and log have figures of
//! their own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrapin::{Database, Durability, KeyspaceOptions, Metrics, Options};
use terrapin_base::{Error, Result};

use crate::figures::Figures;
use crate::report::ratio;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;
use crate::system::{Usage, allocated_bytes};
use crate::workload::Workload;

/// The interval between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// How often the data is overwritten before the measurement, and in it.
const OVERWRITES_BEFORE: u64 = 1;
const OVERWRITES_MEASURED: u64 = 2;

/// Bytes written, and the clients' bytes behind them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Key and value bytes that clients wrote.
    pub user_bytes: u64,
    /// Bytes written to the data file.
    pub page_bytes: u64,
    /// Bytes written to log files.
    pub log_bytes: u64,
    /// All bytes that the process wrote, by the operating system.
    pub device_bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

impl Written {
    /// Bytes written to the data file per client byte.
    #[must_use]
    pub fn pages_amplification(&self) -> f64 {
        ratio(self.page_bytes, self.user_bytes)
    }

    /// Bytes written to data file and log per client byte.
    #[must_use]
    pub fn amplification(&self) -> f64 {
        ratio(self.page_bytes + self.log_bytes, self.user_bytes)
    }

    fn json(&self) -> String {
        format!(
            "{{\"user_bytes\":{},\"page_bytes\":{},\"log_bytes\":{},\"device_bytes\":{},\"seconds\":{:.3},\
             \"pages_amplification\":{:.4},\"amplification\":{:.4}}}",
            self.user_bytes,
            self.page_bytes,
            self.log_bytes,
            self.device_bytes,
            self.seconds,
            self.pages_amplification(),
            self.amplification(),
        )
    }
}

/// Space during a measurement. Bytes of the data file are those on disk, without the reserve.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceSeen {
    /// Checkpoints seen.
    pub checkpoints: u64,
    /// The data file after a checkpoint's freeing: the mean.
    pub mean_bytes: u64,
    /// The same, at most.
    pub max_bytes: u64,
    /// The data file, at most.
    pub peak_bytes: u64,
    /// The log's segments and spares, at most.
    pub log_peak_bytes: u64,
}

/// The figures of one bound.
#[derive(Clone, Debug)]
pub struct SpaceReport {
    /// The bound; none means the paper's rule only.
    pub bound: Option<f64>,
    /// Key and value bytes of all records.
    pub data_bytes: u64,
    /// The load, settling included.
    pub load: Written,
    /// Allocated bytes of the directory after the load, settled.
    pub loaded_bytes: u64,
    /// The overwriting, settling included.
    pub overwrite: Written,
    /// Space during the overwriting.
    pub seen: SpaceSeen,
    /// The reserve.
    pub reserve_bytes: u64,
    /// The log's files at rest, the ring included.
    pub log_rest_bytes: u64,
    /// Allocated bytes of the directory at the end, settled: log and reserve included.
    pub rest_bytes: u64,
}

/// Measures one bound in an empty directory, with a keyspace that stores the options `stored`.
/// `options` has everything else.
pub fn measure_space(
    config: &Config,
    options: &Options,
    stored: &KeyspaceOptions,
    bound: Option<f64>,
    directory: &Path,
    progress: &Progress,
) -> Result<SpaceReport> {
    let database = options.clone().space_amplification(bound).open(directory)?;
    // The driver needs no memory figure here.
    let store = TerrapinStore::new(database.clone(), Durability::Process, 0).stored(*stored)?;
    let driver = Driver::new(config, &store, directory, progress)?;
    let phase = |workload, times: u64| Phase::uniform(workload, times * config.records);
    let span = Span::begin(&database);
    driver.phase(phase(Workload::Load, 1))?;
    driver.settle()?;
    let load = span.end(&database);
    let loaded_bytes = allocated_bytes(directory)?;
    driver.phase(phase(Workload::Overwrite, OVERWRITES_BEFORE))?;
    driver.settle()?;
    let span = Span::begin(&database);
    let watched = watch(&database, || {
        driver.phase(phase(Workload::Overwrite, OVERWRITES_MEASURED))?;
        Ok(())
    });
    let ((), seen) = watched?;
    driver.settle()?;
    let overwrite = span.end(&database);
    let space = database.stat()?.space;
    let rest_bytes = allocated_bytes(directory)?;
    driver.read_all()?;
    database.close()?;
    Ok(SpaceReport {
        bound,
        data_bytes: config.records * config.shape.bytes(),
        load,
        loaded_bytes,
        overwrite,
        seen,
        reserve_bytes: space.reserve,
        log_rest_bytes: space.log.total(),
        rest_bytes,
    })
}

/// Bytes written between two moments.
struct Span {
    metrics: Metrics,
    usage: Usage,
    start: Instant,
}

impl Span {
    fn begin(database: &Database) -> Self {
        Span {
            metrics: database.metrics(),
            usage: Usage::now(),
            start: Instant::now(),
        }
    }

    fn end(self, database: &Database) -> Written {
        let (metrics, usage) = (database.metrics(), Usage::now());
        let before = &self.metrics;
        Written {
            user_bytes: metrics.user_bytes_written - before.user_bytes_written,
            page_bytes: metrics.device_written.total() - before.device_written.total(),
            log_bytes: metrics.log_bytes_written - before.log_bytes_written,
            device_bytes: usage
                .device_bytes_written
                .saturating_sub(self.usage.device_bytes_written),
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }
}

/// Runs some work and samples the space meanwhile.
fn watch<R>(database: &Database, run: impl FnOnce() -> Result<R>) -> Result<(R, SpaceSeen)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut samples = Samples::new(&database.metrics());
            while !over.load(Ordering::Relaxed) {
                samples.add(&database.metrics());
                std::thread::sleep(SAMPLE_EVERY);
            }
            samples.seen()
        });
        let outcome = run();
        over.store(true, Ordering::Relaxed);
        let seen = watcher
            .join()
            .map_err(|_| Error::internal("the watcher of space panicked"));
        Ok((outcome?, seen?))
    })
}

/// Space, sample by sample.
struct Samples {
    seen: SpaceSeen,
    sum: u128,
    /// Checkpoints at the last sample, and the least space since the newest of them.
    checkpoints: u64,
    least: Option<u64>,
}

impl Samples {
    fn new(metrics: &Metrics) -> Self {
        Samples {
            seen: SpaceSeen::default(),
            sum: 0,
            checkpoints: metrics.checkpoints,
            least: None,
        }
    }

    fn add(&mut self, metrics: &Metrics) {
        let data = metrics
            .data_allocated_bytes
            .saturating_sub(metrics.data_reserve_bytes);
        let seen = &mut self.seen;
        if metrics.checkpoints != self.checkpoints {
            self.checkpoints = metrics.checkpoints;
            // Samples before the first checkpoint's end belong to no checkpoint.
            if let Some(least) = self.least.replace(data) {
                seen.checkpoints += 1;
                seen.max_bytes = seen.max_bytes.max(least);
                self.sum += u128::from(least);
            }
        } else if let Some(least) = &mut self.least {
            *least = data.min(*least);
        }
        seen.peak_bytes = seen.peak_bytes.max(data);
        seen.log_peak_bytes = seen.log_peak_bytes.max(metrics.log_disk_bytes);
    }

    fn seen(self) -> SpaceSeen {
        let mean = self.sum / u128::from(self.seen.checkpoints.max(1));
        SpaceSeen {
            mean_bytes: u64::try_from(mean).unwrap_or(u64::MAX),
            ..self.seen
        }
    }
}

impl SpaceReport {
    fn of_data(&self, bytes: u64) -> f64 {
        ratio(bytes, self.data_bytes)
    }
}

impl Figures for SpaceReport {
    fn table_head() -> String {
        format!(
            "{:<6}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}{:>9}{:>9}",
            "bound",
            "load W",
            "loaded",
            "W pages",
            "W",
            "mean",
            "max",
            "peak",
            "rest",
            "reserve",
            "log peak",
            "log rest",
            "seconds"
        )
    }

    fn table_line(&self) -> String {
        let bound = self
            .bound
            .map_or("none".to_owned(), |bound| format!("{bound:.2}"));
        let seen = &self.seen;
        format!(
            "{bound:<6}{:>8.2}{:>8.2}{:>8.2}{:>8.2}{:>8.3}{:>8.3}{:>8.3}{:>8.3}{:>9.3}{:>9.3}{:>9.3}{:>9.1}",
            self.load.amplification(),
            self.of_data(self.loaded_bytes),
            self.overwrite.pages_amplification(),
            self.overwrite.amplification(),
            self.of_data(seen.mean_bytes),
            self.of_data(seen.max_bytes),
            self.of_data(seen.peak_bytes),
            self.of_data(self.rest_bytes),
            self.of_data(self.reserve_bytes),
            self.of_data(seen.log_peak_bytes),
            self.of_data(self.log_rest_bytes),
            self.load.seconds + self.overwrite.seconds,
        )
    }

    fn json(&self) -> String {
        let bound = self
            .bound
            .map_or("null".to_owned(), |bound| bound.to_string());
        let seen = &self.seen;
        format!(
            "{{\"bound\":{bound},\"data_bytes\":{},\"load\":{},\"loaded_bytes\":{},\"overwrite\":{},\"checkpoints\":{},\
             \"mean_bytes\":{},\"max_bytes\":{},\"peak_bytes\":{},\"rest_bytes\":{},\"reserve_bytes\":{},\
             \"log_peak_bytes\":{},\"log_rest_bytes\":{},\"mean\":{:.4},\"max\":{:.4},\"peak\":{:.4},\"rest\":{:.4}}}",
            self.data_bytes,
            self.load.json(),
            self.loaded_bytes,
            self.overwrite.json(),
            seen.checkpoints,
            seen.mean_bytes,
            seen.max_bytes,
            seen.peak_bytes,
            self.rest_bytes,
            self.reserve_bytes,
            seen.log_peak_bytes,
            self.log_rest_bytes,
            self.of_data(seen.mean_bytes),
            self.of_data(seen.max_bytes),
            self.of_data(seen.peak_bytes),
            self.of_data(self.rest_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_counts_at_its_least_after_each_checkpoint() {
        let sample = |checkpoints, data: u64| {
            let mut metrics = Metrics::default();
            metrics.checkpoints = checkpoints;
            metrics.data_allocated_bytes = data + 5;
            metrics.data_reserve_bytes = 5;
            metrics
        };
        let mut samples = Samples::new(&sample(3, 100));
        for (checkpoints, data) in [
            (3, 10),
            (4, 100),
            (4, 60),
            (4, 90),
            (5, 80),
            (5, 120),
            (6, 20),
        ] {
            samples.add(&sample(checkpoints, data));
        }
        let seen = samples.seen();
        assert_eq!(
            (seen.checkpoints, seen.mean_bytes, seen.max_bytes),
            (2, 70, 80),
            "the first and the last sample belong to no checkpoint"
        );
        assert_eq!(seen.peak_bytes, 120);
    }
}
