//! Runs phases: threads of clients over one store, each with its own generator and histogram.

mod conditional;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use terrapin_base::sync::Mutex;
use terrapin_base::{Error, Result};

use crate::clients::in_threads;
use crate::generator::{Distribution, Random, Zipfian, mix, scatter};
use crate::record::Records;
use crate::report::{Latencies, PhaseReport};
use crate::store::{Client, FileBytes, ReadCounts, Store};
use crate::system::{Usage, allocated_bytes, reset_rss_peak, rss_peak_bytes};
use crate::watch::Watch;
use crate::workload::{Action, Workload};
use conditional::Owned;

/// Records of the longest scan, as YCSB has it.
pub const SCAN_RECORDS_MAX: u64 = 100;

/// A scan that ends early is accepted if at most this many records are expected behind its start.
/// By chance 64 expected records are all missing once in e⁶⁴ times.
const FOLLOW_MAX: u64 = 64;

/// The settings that all phases of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Records to load, or already loaded.
    pub records: u64,
    /// Whether they are already loaded.
    pub loaded: bool,
    /// The shape of the records.
    pub shape: Records,
    /// Client threads.
    pub threads: usize,
    /// Records of the longest scan. Each scan asks for 1 to this many, but in phases of
    /// [`Workload::Ranges`].
    pub scan_records_max: u64,
    /// Seed of all choices.
    pub seed: u64,
}

impl Config {
    /// Checks that there are clients and records. Errors: `InvalidArgument` if not.
    pub fn check(&self) -> Result<()> {
        if self.threads == 0 || self.records == 0 || self.scan_records_max == 0 {
            return Err(Error::invalid(
                "a benchmark has at least one thread and one record, and scans of one record",
            )
            .with("threads", self.threads)
            .with("records", self.records)
            .with("scan length", self.scan_records_max));
        }
        Ok(())
    }
}

/// One phase. It ends when its operations are done or its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What clients do.
    pub workload: Workload,
    /// How A, B, C, E and F pick records; D picks the latest.
    pub distribution: Distribution,
    /// The most operations of all clients together; load has one per record.
    pub operations: u64,
    /// Longest duration.
    pub time: Option<Duration>,
}

impl Phase {
    /// A phase of this many operations on uniformly drawn records.
    #[must_use]
    pub fn uniform(workload: Workload, operations: u64) -> Self {
        Phase {
            workload,
            distribution: Distribution::Uniform,
            operations,
            time: None,
        }
    }
}

/// Checks that a run of these phases is possible. Errors: `InvalidArgument` if not, before any
/// work.
pub fn check(config: &Config, phases: &[Phase]) -> Result<()> {
    config.check()?;
    let loads = |phase: &Phase| phase.workload == Workload::Load;
    if phases.iter().skip(1).any(loads) {
        return Err(Error::invalid("load comes first, and once"));
    }
    Ok(())
}

/// Checks by the first and last record that a store holds the records a run without a load needs.
/// Errors: `InvalidArgument` if not.
pub fn check_loaded<S: Store>(config: &Config, store: &S) -> Result<()> {
    let (mut client, mut key, mut value) = (store.client()?, Vec::new(), Vec::new());
    for record in [0, config.records.saturating_sub(1)] {
        config.shape.key(record, &mut key);
        let there = client.read(&key, &mut value)?;
        if !there || (key.len() + value.len()) as u64 != config.shape.bytes_with(&key) {
            return Err(Error::invalid(
                "the records of this run are not there: load them first, or give their number and the bytes of their keys and \
                 values as when they were loaded",
            )
            .with("record looked for", record)
            .with("records", config.records));
        }
        config.shape.check(&key, &value)?;
    }
    Ok(())
}

/// Progress of the running phase, shared with the display.
#[derive(Default)]
pub struct Progress {
    /// Operations done in this phase.
    pub done: AtomicU64,
    /// Operations of the phase in all.
    pub total: AtomicU64,
}

/// Drives one store through phases, and remembers between them which records exist.
pub struct Driver<'a, S> {
    config: &'a Config,
    store: &'a S,
    directory: &'a Path,
    progress: &'a Progress,
    /// The next record's number to insert.
    next: AtomicU64,
    /// Built when a phase first needs it, since that takes a while.
    zipfian: OnceLock<Zipfian>,
    /// Phases begun: a repeated workload asks for other records.
    begun: AtomicU64,
    /// The last writes to some of the records.
    watch: Watch,
}

/// Each inserting client has a cache line of its own, which changes with each insert.
#[repr(align(128))]
struct Inserting(AtomicU64);

/// Data that the clients of a phase share.
struct Shared<'a, S> {
    driver: &'a Driver<'a, S>,
    phase: Phase,
    zipfian: &'a Zipfian,
    seed: u64,
    deadline: Option<Instant>,
    /// The number that each client is inserting now, or `u64::MAX`. Records from the smallest on
    /// may be missing.
    inserting: Vec<Inserting>,
    /// In a phase of swaps, the records of each client.
    owned: Vec<Mutex<Owned>>,
    failed: AtomicBool,
}

/// The results of one client.
struct Outcome {
    latency_ns: Histogram<u64>,
    operations: u64,
    user_bytes_written: u64,
}

/// Runs the phases in order, each writing phase followed by `settle`, and reports each at its end.
/// Stops at the first error, including a wrong or missing record. At the end it checks that some of
/// the records have their last write.
pub fn run<S: Store>(
    config: &Config,
    phases: &[Phase],
    store: &S,
    directory: &Path,
    progress: &Progress,
    report: &mut dyn FnMut(&PhaseReport),
) -> Result<()> {
    check(config, phases)?;
    let driver = Driver::new(config, store, directory, progress)?;
    for phase in phases {
        report(&driver.phase(*phase)?);
        if phase.workload.writes() {
            report(&driver.settle()?);
        }
    }
    driver.check_latest()
}

impl<'a, S: Store> Driver<'a, S> {
    /// Measures `store`, whose files are in `directory`. Errors: those of [`Config::check`].
    pub fn new(
        config: &'a Config,
        store: &'a S,
        directory: &'a Path,
        progress: &'a Progress,
    ) -> Result<Self> {
        config.check()?;
        Ok(Driver {
            config,
            store,
            directory,
            progress,
            next: AtomicU64::new(if config.loaded { config.records } else { 0 }),
            zipfian: OnceLock::new(),
            begun: AtomicU64::new(0),
            watch: Watch::new(
                match config.shape.has_tags() {
                    true => config.records,
                    false => 0,
                },
                config.threads,
            ),
        })
    }

    /// Writes the first record of the load, which the load then writes again. A store that refuses
    /// records of this size does so here. Errors: those of the store.
    pub fn write_first(&self) -> Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.config.shape.key(0, &mut key);
        self.config.shape.value(&key, self.config.seed, &mut value);
        self.store.client()?.write(&key, &value)
    }

    /// Runs one phase. Its records must exist: load comes first.
    pub fn phase(&self, phase: Phase) -> Result<PhaseReport> {
        let (operations, threads) = (phase.operations, self.config.threads as u64);
        self.progress.done.store(0, Ordering::Relaxed);
        self.progress.total.store(operations, Ordering::Relaxed);
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        let unused = Zipfian::new(1);
        let zipfian = if phase.workload == Workload::Load {
            &unused
        } else {
            self.zipfian
                .get_or_init(|| Zipfian::new(self.config.records))
        };
        let owned = match phase.workload {
            Workload::Swaps => in_threads(self.config.threads, |client| self.own(client))?,
            _ => Vec::new(),
        };
        let measure = Measure::start(self.store);
        let shared = &Shared {
            driver: self,
            phase,
            zipfian,
            seed: mix(self.config.seed ^ (begun << 32)),
            deadline: phase.time.map(|time| measure.start + time),
            inserting: (0..threads)
                .map(|_| Inserting(AtomicU64::new(u64::MAX)))
                .collect(),
            owned: owned.into_iter().map(Mutex::new).collect(),
            failed: AtomicBool::new(false),
        };
        let outcomes = in_threads(self.config.threads, |client| {
            let share = operations / threads + u64::from((client as u64) < operations % threads);
            let outcome = self::client(shared, client, share);
            if outcome.is_err() {
                shared.failed.store(true, Ordering::Relaxed);
            }
            outcome
        })?;
        let mut sum = Outcome::new()?;
        for outcome in outcomes {
            sum.latency_ns
                .add(&outcome.latency_ns)
                .map_err(|_| Error::internal("histograms of one shape do not add up"))?;
            sum.operations += outcome.operations;
            sum.user_bytes_written += outcome.user_bytes_written;
        }
        measure.report(self, phase.workload.name(), &sum)
    }

    /// Lets the store move everything into its final place, as a phase of one operation.
    pub fn settle(&self) -> Result<PhaseReport> {
        let measure = Measure::start(self.store);
        self.store.settle()?;
        let mut outcome = Outcome::new()?;
        outcome
            .latency_ns
            .saturating_record(nanoseconds(measure.start, Instant::now()));
        outcome.operations = 1;
        measure.report(self, "settle", &outcome)
    }

    /// Reads the watched records and checks that each has its last write. No client writes
    /// meanwhile.
    pub fn check_latest(&self) -> Result<()> {
        let (mut client, mut key, mut found) = (self.store.client()?, Vec::new(), Vec::new());
        for record in self.watch.records() {
            let Some(look) = self.watch.look(record) else {
                return Err(Error::internal(
                    "a write is in progress after the last phase",
                ));
            };
            self.config.shape.key(record, &mut key);
            if !client.read(&key, &mut found)? {
                return Err(missing(&key));
            }
            self.config.shape.check(&key, &found)?;
            if !self.watch.may_be(look, Records::tag(&found)) {
                return Err(outdated(&key));
            }
        }
        Ok(())
    }

    /// Reads everything once, in order if there is one, and checks that all records exist.
    pub fn read_all(&self) -> Result<()> {
        let expected = self.next.load(Ordering::Relaxed);
        let (mut seen, mut last) = (0, Vec::new());
        let mut client = self.store.client()?;
        let is_ordered = client.is_ordered();
        client.all(|key, value| {
            if is_ordered && seen > 0 && key <= last.as_slice() {
                return Err(Error::corrupt("a scan is out of order")
                    .with("key", format!("{key:02x?}"))
                    .with("after", format!("{last:02x?}")));
            }
            last.clear();
            last.extend_from_slice(key);
            seen += 1;
            self.config.shape.check(key, value)
        })?;
        if seen != expected {
            return Err(
                Error::corrupt("a full scan found another number of records")
                    .with("found", seen)
                    .with("expected", expected),
            );
        }
        Ok(())
    }
}

impl Outcome {
    fn new() -> Result<Self> {
        Ok(Outcome {
            latency_ns: histogram()?,
            operations: 0,
            user_bytes_written: 0,
        })
    }
}

struct Measure {
    before: Usage,
    written: Option<FileBytes>,
    reads: Option<ReadCounts>,
    start: Instant,
}

impl Measure {
    fn start<S: Store>(store: &S) -> Self {
        reset_rss_peak();
        Measure {
            before: Usage::now(),
            written: store.written(),
            reads: store.reads(),
            start: Instant::now(),
        }
    }

    fn report<S: Store>(
        self,
        driver: &Driver<'_, S>,
        phase: &'static str,
        outcome: &Outcome,
    ) -> Result<PhaseReport> {
        let seconds = self.start.elapsed().as_secs_f64();
        let after = Usage::now();
        let us = |percentile: f64| outcome.latency_ns.value_at_quantile(percentile) as f64 / 1000.0;
        let records = driver.next.load(Ordering::Relaxed);
        Ok(PhaseReport {
            phase,
            threads: driver.config.threads,
            records,
            operations: outcome.operations,
            seconds,
            latency_us: Latencies {
                p50: us(0.5),
                p99: us(0.99),
                p999: us(0.999),
                p9999: us(0.9999),
                max: outcome.latency_ns.max() as f64 / 1000.0,
            },
            user_bytes_written: outcome.user_bytes_written,
            device_bytes_written: after
                .device_bytes_written
                .saturating_sub(self.before.device_bytes_written),
            device_bytes_read: after
                .device_bytes_read
                .saturating_sub(self.before.device_bytes_read),
            space_bytes: allocated_bytes(driver.directory)?,
            written: (self.written.zip(driver.store.written()))
                .map(|(before, after)| after.since(before)),
            reads: (self.reads.zip(driver.store.reads()))
                .map(|(before, after)| after.since(before)),
            data_bytes: records * driver.config.shape.bytes(),
            rss_peak_bytes: rss_peak_bytes(),
            cpu_seconds: after.cpu_seconds - self.before.cpu_seconds,
            chi: driver.store.chi(),
            memory_bytes: driver.store.memory_bytes(),
        })
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3)
        .map_err(|_| Error::internal("the histogram's bounds are wrong"))
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from((to - from).as_nanos()).unwrap_or(u64::MAX)
}

/// One client: up to `operations` operations of the workload, one after the other.
fn client<S: Store>(shared: &Shared<'_, S>, number: usize, operations: u64) -> Result<Outcome> {
    let Shared { driver, phase, .. } = *shared;
    let (workload, shape) = (phase.workload, driver.config.shape);
    let mut store = driver.store.client()?;
    let mut random = Random::new(shared.seed ^ number as u64);
    let mut outcome = Outcome::new()?;
    let (mut key, mut value, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let mut latest = (workload == Workload::D).then(|| shared.zipfian.clone());
    let mut told = 0;
    while outcome.operations < operations {
        if outcome.operations - told == 256 {
            driver.progress.done.fetch_add(256, Ordering::Relaxed);
            told = outcome.operations;
            if shared.failed.load(Ordering::Relaxed) {
                break;
            }
        }
        let action = workload.action(&mut random);
        let end = match action {
            Action::Transaction => Some(conditional::transaction(
                shared,
                number,
                &mut store,
                &mut random,
                &mut outcome,
            )?),
            Action::Swap => Some(conditional::swap(
                shared,
                number,
                &mut store,
                &mut random,
                &mut outcome,
            )?),
            _ => None,
        };
        if let Some(end) = end {
            if shared.deadline.is_some_and(|deadline| end >= deadline) {
                break;
            }
            continue;
        }
        let tag = random.bits();
        let inserts = action == Action::Insert;
        let record = match inserts {
            true => claim(shared, number),
            false => pick(shared, latest.as_mut(), &mut random),
        };
        shape.key(record, &mut key);
        let writes = !matches!(action, Action::Read | Action::Scan);
        if writes {
            shape.value(&key, tag, &mut value);
            outcome.user_bytes_written += shape.bytes_with(&key);
        }
        let looking = (action == Action::Read).then(|| driver.watch.look(record));
        let writing = writes.then(|| driver.watch.begin(record)).flatten();
        let start = Instant::now();
        let there = match action {
            Action::Read => store.read(&key, &mut found)?,
            Action::ReadModifyWrite => store.read_modify_write(&key, &mut found, &value)?,
            Action::Update | Action::Insert => {
                store.write(&key, &value)?;
                true
            }
            Action::Replace => {
                store.delete(&key)?;
                store.write(&key, &value)?;
                true
            }
            // Handled above.
            Action::Transaction | Action::Swap => true,
            Action::Scan => {
                let count = match workload {
                    Workload::Ranges(records) => records,
                    _ => 1 + random.below(driver.config.scan_records_max),
                };
                scan(driver.config, &mut store, &key, count as usize, &mut found)?;
                true
            }
        };
        let end = Instant::now();
        outcome
            .latency_ns
            .saturating_record(nanoseconds(start, end));
        outcome.operations += 1;
        if let Some(ticket) = writing {
            driver.watch.end(ticket, number, tag);
        }
        if inserts {
            shared.inserting[number]
                .0
                .store(u64::MAX, Ordering::Release);
        }
        if !there {
            return Err(missing(&key));
        }
        if matches!(action, Action::Read | Action::ReadModifyWrite) {
            shape.check(&key, &found)?;
        }
        if let Some(look) = looking.flatten()
            && !driver.watch.may_be(look, Records::tag(&found))
        {
            return Err(outdated(&key));
        }
        if shared.deadline.is_some_and(|deadline| end >= deadline) {
            break;
        }
    }
    driver
        .progress
        .done
        .fetch_add(outcome.operations - told, Ordering::Relaxed);
    Ok(outcome)
}

#[cold]
fn missing(key: &[u8]) -> Error {
    Error::corrupt("a record is missing").with("key", format!("{key:02x?}"))
}

#[cold]
fn outdated(key: &[u8]) -> Error {
    Error::corrupt("a read returned an overwritten value").with("key", format!("{key:02x?}"))
}

/// Takes the next record's number. At every moment the number is free or known to be in progress.
fn claim<S>(shared: &Shared<'_, S>, client: usize) -> u64 {
    let (mine, next) = (&shared.inserting[client].0, &shared.driver.next);
    mine.store(next.load(Ordering::SeqCst), Ordering::SeqCst);
    let number = next.fetch_add(1, Ordering::SeqCst);
    mine.store(number, Ordering::SeqCst);
    number
}

/// The number of a record that certainly exists.
fn pick<S>(shared: &Shared<'_, S>, latest: Option<&mut Zipfian>, random: &mut Random) -> u64 {
    let driver = shared.driver;
    let records = driver.config.records;
    if let Some(zipfian) = latest {
        let inserted = driver.next.load(Ordering::SeqCst);
        let under_way = shared
            .inserting
            .iter()
            .map(|n| n.0.load(Ordering::SeqCst))
            .min()
            .unwrap_or(u64::MAX);
        let there = inserted.min(under_way).max(1);
        zipfian.grow(there);
        return (there - 1).saturating_sub(zipfian.rank(random));
    }
    match shared.phase.distribution {
        Distribution::Uniform => random.below(records),
        Distribution::Zipfian => scatter(shared.zipfian.rank(random), records),
    }
}

/// Checks a scan: records are in order, start at the requested key, belong to their keys, and are
/// as many as requested or as exist.
fn scan(
    config: &Config,
    store: &mut impl Client,
    start: &[u8],
    count: usize,
    last: &mut Vec<u8>,
) -> Result<()> {
    let mut seen = 0;
    last.clear();
    store.scan(start, count, |key, value| {
        let in_order = if seen == 0 {
            key == start
        } else {
            key > last.as_slice()
        };
        if !in_order {
            return Err(
                Error::corrupt("a scan is out of order, or misses its first record")
                    .with("key", format!("{key:02x?}"))
                    .with(
                        "after",
                        format!("{:02x?}", if seen == 0 { start } else { last.as_slice() }),
                    ),
            );
        }
        config.shape.check(key, value)?;
        last.clear();
        last.extend_from_slice(key);
        seen += 1;
        Ok(())
    })?;
    if seen == 0 {
        return Err(Error::corrupt("a scan found nothing where a record is")
            .with("from", format!("{start:02x?}")));
    }
    if seen < count && config.shape.follow(last, config.records) > FOLLOW_MAX {
        return Err(Error::corrupt("a scan ends before the records do")
            .with("after", format!("{last:02x?}")));
    }
    Ok(())
}
