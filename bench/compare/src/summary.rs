//! Medians and spread over the repeats of a cell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engines;
use crate::plan::{Cell, Size, all_phases};
use crate::result::{Outcome, Run};

/// A figure over the repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median; the mean of the middle two for an even number.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

impl Figure {
    /// The spread of some values; zeros for none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(&low), Some(&high)) = (values.first(), values.last()) else {
            return Figure::default();
        };
        let (middle, other) = (values.len() / 2, (values.len() - 1) / 2);
        Figure {
            median: (values[middle] + values[other]) / 2.0,
            low,
            high,
        }
    }

    /// Half the distance from the smallest to the largest, as a share of the median.
    pub fn spread(&self) -> f64 {
        if self.median > 0.0 {
            (self.high - self.low) / 2.0 / self.median
        } else {
            0.0
        }
    }
}

/// All figures of one engine in one phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// How many runs are in the medians.
    pub runs: usize,
    /// Operations per second, settling included.
    pub rate: Figure,
    /// Median latency in microseconds.
    pub p50_us: Figure,
    /// 99th percentile.
    pub p99_us: Figure,
    /// 99.9th percentile.
    pub p999_us: Figure,
    /// 99.99th percentile.
    pub p9999_us: Figure,
    /// The slowest operation.
    pub max_us: Figure,
    /// Device bytes written per client byte; 0 for phases without writes.
    pub write_amplification: Figure,
    /// Log bytes written per client byte; 0 for engines that do not tell log and data apart.
    #[serde(default)]
    pub log_amplification: Figure,
    /// Data file bytes written per client byte.
    #[serde(default)]
    pub data_amplification: Figure,
    /// Bytes written to the whole block device per client byte.
    pub disk_amplification: Figure,
    /// Device bytes read per operation.
    pub read_bytes: Figure,
    /// CPU microseconds per operation.
    pub cpu_us: Figure,
    /// Allocated bytes per byte of data.
    pub space: Figure,
    /// Peak resident memory in bytes.
    pub rss_bytes: Figure,
    /// Seconds of the settling.
    pub settle_seconds: Figure,
}

impl Row {
    fn of(outcomes: &[&Outcome]) -> Self {
        let figure = |value: fn(&Outcome) -> f64| {
            Figure::of(outcomes.iter().map(|outcome| value(outcome)).collect())
        };
        Row {
            runs: outcomes.len(),
            rate: figure(Outcome::rate),
            p50_us: figure(|o| o.latency_us.p50),
            p99_us: figure(|o| o.latency_us.p99),
            p999_us: figure(|o| o.latency_us.p999),
            p9999_us: figure(|o| o.latency_us.p9999),
            max_us: figure(|o| o.latency_us.max),
            write_amplification: figure(Outcome::write_amplification),
            log_amplification: figure(Outcome::log_amplification),
            data_amplification: figure(Outcome::data_amplification),
            disk_amplification: figure(Outcome::disk_amplification),
            read_bytes: figure(Outcome::read_bytes_per_operation),
            cpu_us: figure(Outcome::cpu_us_per_operation),
            space: figure(Outcome::space),
            rss_bytes: figure(|o| o.rss_peak_bytes as f64),
            settle_seconds: figure(|o| o.settle_seconds),
        }
    }
}

/// One engine in a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contender {
    /// Its name.
    pub engine: String,
    /// The versions that ran: one, unless results of different days are mixed.
    pub versions: Vec<String>,
    /// Whether it runs with a log.
    pub logged: bool,
    /// The number of its runs that count; some phases may have fewer.
    pub repeats: usize,
    /// Why its runs failed, each reason once.
    pub failures: Vec<String>,
    /// Why it cannot run the cell.
    #[serde(default)]
    pub unsupported: Option<String>,
    /// The limit of its process in bytes, page cache included, in the last run.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// By phase.
    pub rows: BTreeMap<String, Row>,
}

/// One cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The size.
    pub size: Size,
    /// The cell, as on the command line.
    pub cell: String,
    /// The cell in words.
    pub title: String,
    /// Records loaded.
    pub records: u64,
    /// Their keys and values.
    pub data_bytes: u64,
    /// The memory that engines were told to use.
    pub memory_bytes: u64,
    /// Deviations from the plan, each once.
    pub notes: Vec<String>,
    /// When the first run began, seconds since 1970.
    pub began: u64,
    /// When the last run began.
    pub ended: u64,
    /// In the order of the engines.
    pub contenders: Vec<Contender>,
    /// Names of the phases that any engine ran, in their order.
    pub phases: Vec<String>,
}

impl Summary {
    /// The summary of all runs of a cell; none if there are none. A failed run has no figures,
    /// except that a load which was too slow keeps its rate.
    pub fn new(size: Size, cell: Cell, runs: &[Run]) -> Option<Self> {
        let first = runs.iter().min_by_key(|run| run.began)?;
        let mut contenders = Vec::new();
        for engine in engines::all() {
            let mut mine: Vec<_> = runs.iter().filter(|r| r.engine == engine.name).collect();
            mine.sort_by_key(|run| run.repeat);
            if !mine.is_empty() {
                contenders.push(contender(engine.name, engine.logged, &mine));
            }
        }
        let mut notes = distinct(runs.iter().flat_map(|run| run.notes.iter().cloned()));
        for Contender {
            engine, versions, ..
        } in &contenders
        {
            if versions.len() > 1 {
                notes.push(format!("{engine} ran in {}", versions.join(", ")));
            }
            let mine = runs.iter().filter(|run| run.engine == *engine);
            let limits = distinct(mine.map(|run| match run.memory_limit_bytes {
                Some(bytes) => format!("{} MiB", bytes >> 20),
                None => "no limit".into(),
            }));
            if limits.len() > 1 {
                notes.push(format!("{engine} ran with {} of memory", limits.join(", ")));
            }
        }
        let ran = |name: &str| contenders.iter().any(|c| c.rows.contains_key(name));
        let phases: Vec<_> = all_phases().map(|(name, ..)| *name).collect();
        Some(Summary {
            size,
            cell: cell.to_string(),
            title: cell.title(),
            records: first.plan.records,
            data_bytes: first.plan.data_bytes(),
            memory_bytes: first.plan.memory_bytes,
            notes,
            began: first.began,
            ended: runs
                .iter()
                .map(|run| run.began)
                .max()
                .unwrap_or(first.began),
            phases: phases
                .into_iter()
                .filter(|name| ran(name))
                .map(str::to_owned)
                .collect(),
            contenders,
        })
    }
}

fn contender(engine: &str, logged: bool, runs: &[&Run]) -> Contender {
    let mut rows = BTreeMap::new();
    for &(name, ..) in all_phases() {
        let outcomes: Vec<_> = runs
            .iter()
            .filter(|run| run.counts())
            .flat_map(|run| run.outcomes.iter().filter(|o| o.phase == name))
            .collect();
        if !outcomes.is_empty() {
            rows.insert(name.to_owned(), Row::of(&outcomes));
        }
    }
    Contender {
        engine: engine.to_owned(),
        versions: distinct(runs.iter().map(|run| run.version.clone())),
        logged,
        repeats: runs.iter().filter(|run| run.counts()).count(),
        unsupported: runs.iter().find_map(|run| run.unsupported.clone()),
        memory_limit_bytes: runs.last().and_then(|run| run.memory_limit_bytes),
        failures: distinct(runs.iter().filter_map(|run| run.failure.clone())),
        rows,
    }
}

/// Each text once, in order of first appearance.
pub fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Machine;
    use crate::plan::Plan;
    use std::path::Path;

    #[test]
    fn the_median_is_the_middle_and_the_spread_half_the_distance() {
        let figure = Figure::of(vec![12.0, 8.0, 10.0]);
        assert_eq!((figure.median, figure.low, figure.high), (10.0, 8.0, 12.0));
        assert_eq!(figure.spread(), 0.2);
        assert_eq!(Figure::of(vec![1.0, 2.0]).median, 1.5);
        assert_eq!(Figure::of(Vec::new()), Figure::default());
    }

    #[test]
    fn a_run_that_failed_has_no_figures_unless_its_load_was_too_slow() {
        let cell: Cell = "128-third-2".parse().unwrap();
        let plan = Plan::new(Size::Tiny, cell, &[]).unwrap();
        let loaded = plan.records;
        let mut run = Run {
            engine: "terrapin".into(),
            version: "0".into(),
            repeat: 1,
            plan,
            began: 0,
            machine: Machine::here(Path::new(".")),
            allocator: String::new(),
            memory_limit_bytes: None,
            notes: Vec::new(),
            failure: None,
            unsupported: None,
            outcomes: Vec::new(),
        };
        let mut phases = |failure: Option<&str>, operations| {
            run.failure = failure.map(str::to_owned);
            run.outcomes = vec![Outcome {
                phase: "load".into(),
                operations,
                ..Outcome::default()
            }];
            let summary = Summary::new(Size::Tiny, cell, std::slice::from_ref(&run)).unwrap();
            assert_eq!(
                summary.contenders[0].failures.len(),
                usize::from(failure.is_some())
            );
            summary.phases
        };
        assert_eq!(phases(None, loaded), ["load"]);
        assert!(phases(Some("a wrong record"), loaded).is_empty());
        assert_eq!(phases(Some("too slow"), loaded - 1), ["load"]);
    }
}
