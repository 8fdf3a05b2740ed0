//! Runs phases: threads of clients, each with its own generator and histogram, over one store.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use terrapin_base::{Error, Result};

use crate::generator::{Distribution, Random, Zipfian, scatter};
use crate::record::Records;
use crate::report::{Latencies, PhaseReport};
use crate::store::Store;
use crate::system::{Usage, allocated_bytes, reset_rss_peak, rss_peak_bytes};
use crate::workload::{Action, Workload};

/// Longest scan of workload E.
const SCAN_RECORDS_MAX: u64 = 100;

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The phases in order; a phase that writes is followed by a `settle` phase.
    pub workloads: Vec<Workload>,
    /// Records to load, or that are there already.
    pub records: u64,
    /// Operations of each phase but load.
    pub operations: u64,
    /// The records' shape.
    pub shape: Records,
    /// Client threads.
    pub threads: usize,
    /// How A, B, C, E and F pick records; D always picks the latest.
    pub distribution: Distribution,
    /// Seed of all choices.
    pub seed: u64,
}

impl Config {
    /// Whether it makes sense: `InvalidArgument` if not, before anything is done.
    pub fn check(&self) -> Result<()> {
        if self.threads == 0 || self.records == 0 {
            return Err(Error::invalid(
                "a benchmark has at least one thread and one record",
            ));
        }
        if self.workloads.iter().skip(1).any(|&w| w == Workload::Load) {
            return Err(Error::invalid("load comes first, and once"));
        }
        Ok(())
    }
}

/// How far the running phase is; shared with whoever shows it.
#[derive(Default)]
pub struct Progress {
    /// Operations done in this phase.
    pub done: AtomicU64,
    /// Operations that it has.
    pub total: AtomicU64,
}

/// What the clients of a phase share.
struct Shared<'a> {
    config: &'a Config,
    store: &'a dyn Store,
    workload: Workload,
    progress: &'a Progress,
    /// The next record's number to insert.
    next: &'a AtomicU64,
    /// What each client is inserting right now, or `u64::MAX`: records from the smallest on may not be there yet.
    inserting: Vec<AtomicU64>,
    failed: AtomicBool,
    zipfian: &'a Zipfian,
}

/// What one client brings back.
struct Outcome {
    latency_ns: Histogram<u64>,
    user_bytes_written: u64,
}

/// Runs the phases in order and reports each as it ends. Stops at the first error, a wrong or missing record included.
pub fn run(
    config: &Config,
    store: &dyn Store,
    directory: &Path,
    progress: &Progress,
    report: &mut dyn FnMut(&PhaseReport),
) -> Result<()> {
    config.check()?;
    let loads = config.workloads.contains(&Workload::Load);
    let next = AtomicU64::new(if loads { 0 } else { config.records });
    let zipfian = if config.workloads.iter().any(|&w| w != Workload::Load) {
        Zipfian::new(config.records)
    } else {
        Zipfian::new(1)
    };
    for &workload in &config.workloads {
        report(&phase(
            config, store, directory, progress, workload, &next, &zipfian,
        )?);
        if workload.writes() {
            report(&settle(config, store, directory, &next)?);
        }
    }
    Ok(())
}

fn phase(
    config: &Config,
    store: &dyn Store,
    directory: &Path,
    progress: &Progress,
    workload: Workload,
    next: &AtomicU64,
    zipfian: &Zipfian,
) -> Result<PhaseReport> {
    let operations = if workload == Workload::Load {
        config.records
    } else {
        config.operations
    };
    progress.done.store(0, Ordering::Relaxed);
    progress.total.store(operations, Ordering::Relaxed);
    let shared = Shared {
        config,
        store,
        workload,
        progress,
        next,
        inserting: (0..config.threads)
            .map(|_| AtomicU64::new(u64::MAX))
            .collect(),
        failed: AtomicBool::new(false),
        zipfian,
    };
    let measure = Measure::start();
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..config.threads)
            .map(|client| {
                let shared = &shared;
                let share = operations / config.threads as u64
                    + u64::from((client as u64) < operations % config.threads as u64);
                scope.spawn(move || {
                    let outcome = self::client(shared, client, share);
                    if outcome.is_err() {
                        shared.failed.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        let panicked = |_| Err(Error::internal("a client panicked"));
        clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(panicked))
            .collect()
    });
    let mut latency = histogram()?;
    let mut user_bytes_written = 0;
    for outcome in outcomes {
        let outcome = outcome?;
        latency
            .add(&outcome.latency_ns)
            .map_err(|_| Error::internal("histograms of one shape do not add up"))?;
        user_bytes_written += outcome.user_bytes_written;
    }
    measure.report(
        config,
        store,
        directory,
        workload.name(),
        next,
        operations,
        &latency,
        user_bytes_written,
    )
}

fn settle(
    config: &Config,
    store: &dyn Store,
    directory: &Path,
    next: &AtomicU64,
) -> Result<PhaseReport> {
    let measure = Measure::start();
    store.settle()?;
    let mut latency = histogram()?;
    latency.saturating_record(nanoseconds(measure.start));
    measure.report(config, store, directory, "settle", next, 1, &latency, 0)
}

struct Measure {
    before: Usage,
    start: Instant,
}

impl Measure {
    fn start() -> Self {
        reset_rss_peak();
        Measure {
            before: Usage::now(),
            start: Instant::now(),
        }
    }

    #[allow(clippy::too_many_arguments)] // private, two callers, each argument is a field of the report
    fn report(
        self,
        config: &Config,
        store: &dyn Store,
        directory: &Path,
        phase: &'static str,
        next: &AtomicU64,
        operations: u64,
        latency_ns: &Histogram<u64>,
        user_bytes_written: u64,
    ) -> Result<PhaseReport> {
        let seconds = self.start.elapsed().as_secs_f64();
        let after = Usage::now();
        let us = |percentile: f64| latency_ns.value_at_quantile(percentile) as f64 / 1000.0;
        let records = next.load(Ordering::Relaxed);
        Ok(PhaseReport {
            phase,
            threads: config.threads,
            records,
            operations,
            seconds,
            latency_us: Latencies {
                p50: us(0.5),
                p99: us(0.99),
                p999: us(0.999),
                max: latency_ns.max() as f64 / 1000.0,
            },
            user_bytes_written,
            device_bytes_written: after
                .device_bytes_written
                .saturating_sub(self.before.device_bytes_written),
            device_bytes_read: after
                .device_bytes_read
                .saturating_sub(self.before.device_bytes_read),
            space_bytes: allocated_bytes(directory)?,
            data_bytes: records * config.shape.bytes(),
            rss_peak_bytes: rss_peak_bytes(),
            cpu_seconds: after.cpu_seconds - self.before.cpu_seconds,
            chi: store.chi(),
            memory_bytes: store.memory_bytes(),
        })
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3)
        .map_err(|_| Error::internal("the histogram's bounds are wrong"))
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One client: `operations` of the workload, one after the other.
fn client(shared: &Shared<'_>, client: usize, operations: u64) -> Result<Outcome> {
    let Shared {
        config,
        store,
        workload,
        ..
    } = *shared;
    let shape = config.shape;
    let mut random = Random::new(config.seed ^ ((workload as u64) << 32) ^ client as u64);
    let mut outcome = Outcome {
        latency_ns: histogram()?,
        user_bytes_written: 0,
    };
    let (mut key, mut value, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let mut latest = (workload == Workload::D).then(|| shared.zipfian.clone());
    let mut told = 0;
    for done in 0..operations {
        if done - told == 256 {
            shared.progress.done.fetch_add(256, Ordering::Relaxed);
            told = done;
            if shared.failed.load(Ordering::Relaxed) {
                break;
            }
        }
        let action = workload.action(&mut random);
        let tag = random.bits();
        if action == Action::Insert {
            let number = claim(shared, client);
            shape.key(number, &mut key);
            shape.value(&key, tag, &mut value);
            let start = Instant::now();
            store.write(&key, &value)?;
            outcome.latency_ns.saturating_record(nanoseconds(start));
            outcome.user_bytes_written += shape.bytes();
            shared.inserting[client].store(u64::MAX, Ordering::Release);
            continue;
        }
        shape.key(pick(shared, latest.as_mut(), &mut random), &mut key);
        let start = Instant::now();
        match action {
            Action::Read | Action::ReadModifyWrite => {
                let there = store.read(&key, &mut found)?;
                if action == Action::ReadModifyWrite {
                    shape.value(&key, tag, &mut value);
                    store.write(&key, &value)?;
                    outcome.user_bytes_written += shape.bytes();
                }
                outcome.latency_ns.saturating_record(nanoseconds(start));
                if !there {
                    return Err(
                        Error::corrupt("a record is missing").with("key", format!("{key:02x?}"))
                    );
                }
                shape.check(&key, &found)?;
            }
            Action::Update => {
                shape.value(&key, tag, &mut value);
                let start = Instant::now();
                store.write(&key, &value)?;
                outcome.latency_ns.saturating_record(nanoseconds(start));
                outcome.user_bytes_written += shape.bytes();
            }
            Action::Scan => {
                let count = 1 + random.below(SCAN_RECORDS_MAX);
                scan(shape, store, &key, count as usize, &mut found)?;
                outcome.latency_ns.saturating_record(nanoseconds(start));
            }
            Action::Insert => {}
        }
    }
    shared
        .progress
        .done
        .fetch_add(operations - told, Ordering::Relaxed);
    Ok(outcome)
}

/// Takes the next record's number, so that no moment passes in which it is neither free nor known to be under way.
fn claim(shared: &Shared<'_>, client: usize) -> u64 {
    let mine = &shared.inserting[client];
    mine.store(shared.next.load(Ordering::SeqCst), Ordering::SeqCst);
    let number = shared.next.fetch_add(1, Ordering::SeqCst);
    mine.store(number, Ordering::SeqCst);
    number
}

/// The number of a record that is surely there.
fn pick(shared: &Shared<'_>, latest: Option<&mut Zipfian>, random: &mut Random) -> u64 {
    let records = shared.config.records;
    if let Some(zipfian) = latest {
        let inserted = shared.next.load(Ordering::SeqCst);
        let under_way = shared
            .inserting
            .iter()
            .map(|n| n.load(Ordering::SeqCst))
            .min()
            .unwrap_or(u64::MAX);
        let there = inserted.min(under_way).max(1);
        zipfian.grow(there);
        return (there - 1).saturating_sub(zipfian.rank(random));
    }
    match shared.config.distribution {
        Distribution::Uniform => random.below(records),
        Distribution::Zipfian => scatter(shared.zipfian.rank(random)) % records,
    }
}

/// A scan whose records are in order, from the asked key on, and belong to their keys.
fn scan(
    shape: Records,
    store: &dyn Store,
    start: &[u8],
    count: usize,
    last: &mut Vec<u8>,
) -> Result<()> {
    let mut seen = 0;
    last.clear();
    store.scan(start, count, &mut |key, value| {
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
        shape.check(key, value)?;
        last.clear();
        last.extend_from_slice(key);
        seen += 1;
        Ok(())
    })?;
    if seen == 0 {
        return Err(Error::corrupt("a scan found nothing where a record is")
            .with("from", format!("{start:02x?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Show;
    use std::collections::BTreeMap;
    use std::ops::Bound;
    use terrapin_base::sync::Mutex;

    /// A store in memory; `lossy` forgets one record in a hundred.
    #[derive(Default)]
    struct Memory {
        records: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
        lossy: bool,
    }

    impl Store for Memory {
        fn read(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
            let records = self.records.lock();
            out.clear();
            let Some(value) = records.get(key) else {
                return Ok(false);
            };
            out.extend_from_slice(value);
            Ok(true)
        }
        fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
            if !self.lossy || key[0] > 2 {
                self.records.lock().insert(key.to_vec(), value.to_vec());
            }
            Ok(())
        }
        fn scan(&self, start: &[u8], count: usize, show: Show<'_>) -> Result<()> {
            let records = self.records.lock();
            let bounds = (Bound::Included(start), Bound::Unbounded);
            records
                .range::<[u8], _>(bounds)
                .take(count)
                .try_for_each(|(k, v)| show(k, v))
        }
        fn settle(&self) -> Result<()> {
            Ok(())
        }
        fn chi(&self) -> u32 {
            0
        }
        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    fn config(distribution: Distribution) -> Config {
        use Workload::{A, B, C, D, E, F, Load};
        Config {
            workloads: vec![Load, A, B, C, D, E, F],
            records: 5000,
            operations: 4000,
            shape: Records::new(8, 64).unwrap(),
            threads: 2,
            distribution,
            seed: 1,
        }
    }

    #[test]
    fn every_workload_runs_and_checks_what_it_reads() {
        for distribution in [Distribution::Zipfian, Distribution::Uniform] {
            let (store, mut phases) = (Memory::default(), Vec::new());
            let directory = std::env::temp_dir();
            run(
                &config(distribution),
                &store,
                &directory,
                &Progress::default(),
                &mut |r| phases.push(r.clone()),
            )
            .unwrap();
            let names: Vec<_> = phases.iter().map(|p| p.phase).collect();
            let expected = [
                "load", "settle", "a", "settle", "b", "settle", "c", "d", "settle", "e", "settle",
                "f", "settle",
            ];
            assert_eq!(names, expected);
            assert_eq!(phases[0].operations, 5000);
            let inserted = phases.last().unwrap().records - 5000;
            assert!(
                (200..800).contains(&inserted),
                "D and E insert a twentieth of 8000 operations: {inserted}"
            );
            assert!(
                phases
                    .iter()
                    .all(|p| p.latency_us.max > 0.0 && p.latency_us.p50 <= p.latency_us.max)
            );
            assert_eq!(phases[6].user_bytes_written, 0, "C writes nothing");
        }
    }

    #[test]
    fn a_lost_record_fails_the_run() {
        let store = Memory {
            lossy: true,
            ..Memory::default()
        };
        let directory = std::env::temp_dir();
        let error = run(
            &config(Distribution::Uniform),
            &store,
            &directory,
            &Progress::default(),
            &mut |_| {},
        );
        assert!(error.unwrap_err().to_string().contains("missing"));
    }
}
