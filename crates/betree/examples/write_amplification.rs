//! Loads records with uniform keys into a tree on a simulated disk. Prints the bytes written per
//! user byte beside the expectation of the fluid model. Then overwrites the records, and prints
//! space too. Build with `--release` for speed.
//!
//! With an argument, only runs whose name has it. With `plot`, draws the bytes written by the share
//! of ascending input, and shows which height of the tree they went to.
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

mod memtable;
mod simulated;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use terrapin_base::{Budget, PageId, Result};
use terrapin_betree::{BeTree, BeTreeParams, Buffers};
use terrapin_pages::PageStore;
use terrapin_structure::MergeOptions;

use memtable::{Memtable, RECORD_BYTES, scramble};
use simulated::Simulated;

const GROUP_BYTES: u64 = 256 << 10;

/// What the memtables of a run hold.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    /// New records with uniform keys.
    Load,
    /// New records: this percentage has ascending keys, and the rest has uniform keys.
    Ascending(u64),
    /// New records whose keys come from this number of ascending streams.
    Streams(u64),
    /// Uniform records over and over again, after a load.
    Overwrite,
}

/// One run: χ, MiB, the bound of space amplification in per cent, and the figures of the fluid
/// model for leaves, levels and space, with leveled and with tiered buffers, if it has any.
struct Run {
    input: Input,
    chi: u64,
    mib: u64,
    space: u32,
    model: [Option<[f64; 3]>; 2],
}

const fn run(input: Input, chi: u64, mib: u64, space: u32) -> Run {
    Run {
        input,
        chi,
        mib,
        space,
        model: [None; 2],
    }
}

const fn modelled(run: Run, leveled: [f64; 3], tiered: [f64; 3]) -> Run {
    Run {
        model: [Some(leveled), Some(tiered)],
        ..run
    }
}

/// The model's figures are those of `load 64 MEMTABLE L=0.25` and `update 16 MEMTABLE L=0.25
/// share=0.25`, with MEMTABLE = χ·L.
const RUNS: [Run; 14] = [
    modelled(
        run(Input::Load, 1, 64, 130),
        [0.91, 3.36, 1.01],
        [0.01, 2.95, 1.00],
    ),
    modelled(
        run(Input::Load, 4, 64, 130),
        [0.72, 2.31, 1.00],
        [0.20, 1.69, 1.02],
    ),
    modelled(
        run(Input::Load, 8, 64, 130),
        [0.92, 1.83, 1.02],
        [0.39, 1.41, 1.05],
    ),
    modelled(
        run(Input::Load, 16, 64, 130),
        [0.89, 1.29, 1.01],
        [0.73, 0.88, 1.01],
    ),
    modelled(
        run(Input::Overwrite, 1, 16, 130),
        [1.71, 2.68, 1.27],
        [2.46, 1.70, 1.21],
    ),
    modelled(
        run(Input::Overwrite, 4, 16, 130),
        [1.68, 1.69, 1.23],
        [2.65, 0.81, 1.21],
    ),
    modelled(
        run(Input::Overwrite, 16, 16, 130),
        [1.26, 0.84, 1.22],
        [1.21, 0.61, 1.24],
    ),
    run(Input::Overwrite, 4, 16, 150),
    run(Input::Ascending(100), 16, 64, 130),
    run(Input::Ascending(99), 16, 64, 130),
    run(Input::Ascending(75), 16, 64, 130),
    run(Input::Ascending(50), 16, 64, 130),
    run(Input::Ascending(25), 16, 64, 130),
    run(Input::Streams(64), 16, 64, 130),
];

/// Draws the bytes written for each byte of loads with a growing share of ascending keys.
fn plot() -> Result<()> {
    println!("ascending  buffers   bytes written for each byte (leaves + segments by height)");
    for percent in [0, 25, 50, 75, 99, 100] {
        let input = match percent {
            0 => Input::Load,
            _ => Input::Ascending(percent),
        };
        for buffers in [Buffers::Leveled, Buffers::Tiered] {
            let measured = measure(&run(input, 16, 64, 130), buffers)?;
            let total = measured.leaf + measured.level;
            println!(
                "{percent:7} %  {:8} {total:5.2} {:50} {}",
                format!("{buffers:?}").to_lowercase(),
                "#".repeat((total * 20.0) as usize),
                by_height(&measured.heights),
            );
        }
    }
    Ok(())
}

fn by_height(heights: &[f64]) -> String {
    let heights: Vec<String> = heights.iter().map(|h| format!("{h:.2}")).collect();
    heights.join(" + ")
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("plot") {
        return plot();
    }
    println!(
        "{:34} {:>36}   {:>20}   {:>9}",
        "", "measured", "model", "ns per"
    );
    let columns = format!("{:>6} {:>6} {:>6} {:>7}", "leaf", "level", "total", "space");
    let further = format!("{:>7} {:>5} {:>5}", "read", "runs", "worst");
    println!(
        "{:34} {columns} {further}   {:>20}   {:>9}",
        "", "", "record"
    );
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for run in RUNS {
        for buffers in [Buffers::Leveled, Buffers::Tiered] {
            if run.name(buffers).contains(&wanted) {
                measure(&run, buffers)?.print(&run, buffers);
            }
        }
    }
    Ok(())
}

/// The figures of a run, for each byte of its user.
struct Measured {
    leaf: f64,
    level: f64,
    /// Bytes of groups that were still there after their merge: leaves, then the segments of nodes
    /// of height 1, 2, and so on.
    heights: Vec<f64>,
    space: f64,
    read: f64,
    runs: f64,
    /// The merge that wrote most, for each byte of its memtable.
    worst: f64,
    nanoseconds: f64,
}

impl Measured {
    fn print(&self, run: &Run, buffers: Buffers) {
        let model = match run.model[usize::from(buffers == Buffers::Tiered)] {
            Some([leaf, level, space]) => format!("{leaf:6.2} {level:6.2} {space:6.2}"),
            None => String::new(),
        };
        let Measured { leaf, level, .. } = self;
        println!(
            "{:34} {leaf:6.2} {level:6.2} {:6.2} {:7.2} {:7.2} {:5.1} {:5.1}   {model:>20}   {:9.0}   {}",
            run.name(buffers),
            leaf + level,
            self.space,
            self.read,
            self.runs,
            self.worst,
            self.nanoseconds,
            by_height(&self.heights),
        );
    }
}

impl Run {
    fn name(&self, buffers: Buffers) -> String {
        let input = match self.input {
            Input::Load => "load".to_owned(),
            Input::Ascending(percent) => format!("{percent}% ascending"),
            Input::Streams(streams) => format!("{streams} streams"),
            Input::Overwrite => format!("overwrite at {}", self.space),
        };
        let buffers = match buffers {
            Buffers::Leveled => "leveled",
            Buffers::Tiered => "tiered",
        };
        format!("{input} {} MiB, chi {}, {buffers}", self.mib, self.chi)
    }

    /// The key of the nth new record.
    fn key(&self, number: u64) -> u64 {
        match self.input {
            Input::Load | Input::Overwrite => scramble(number),
            Input::Ascending(percent) if scramble(!number) % 100 < percent => number << 40,
            Input::Ascending(_) => {
                scramble(number) % (((self.mib << 20) / RECORD_BYTES as u64) << 40)
            }
            Input::Streams(streams) => (number % streams) << 56 | number,
        }
    }
}

fn measure(run: &Run, buffers: Buffers) -> Result<Measured> {
    let budget = Budget::new(256 << 20);
    let mut tree = Simulated::new(&budget, |store, budget| {
        let params = BeTreeParams {
            buffers,
            ..BeTreeParams::new(budget)
        };
        BeTree::new(store, params)
    })?;
    let store = tree.store.clone();
    let options = MergeOptions {
        space_amplification_percent: Some(run.space),
        ..MergeOptions::new(GROUP_BYTES)
    };
    let memtable_records = run.chi * GROUP_BYTES / RECORD_BYTES as u64;
    let load_records = (run.mib << 20) / RECORD_BYTES as u64;
    let mut time = Duration::ZERO;
    let mut worst = 0f64;
    let mut heights: Vec<u64> = Vec::new();
    let mut merge = |mut keys: Vec<u64>, replacing_permille: u16| -> Result<()> {
        let before = groups_written(&store);
        keys.sort_unstable();
        keys.dedup();
        let user = (keys.len() * RECORD_BYTES) as f64;
        let memtable = Memtable::of(keys, replacing_permille);
        let begun = Instant::now();
        let changes = tree.merge(memtable, &options)?;
        time += begun.elapsed();
        let added: HashSet<PageId> = changes.added.iter().map(|page| page.id).collect();
        let mut seen = HashSet::new();
        (tree.structure).groups_by_height(&tree.version, &mut |height, page| {
            if added.contains(&page.id) && seen.insert(page.id) {
                heights.resize(heights.len().max(usize::from(height) + 1), 0);
                heights[usize::from(height)] += page.bytes;
            }
        })?;
        worst = worst.max((groups_written(&store) - before) as f64 / user);
        Ok(())
    };

    let mut number = 0;
    while number < load_records {
        let end = load_records.min(number + memtable_records);
        merge((number..end).map(|number| run.key(number)).collect(), 0)?;
        number = end;
    }
    let mut user = (run.mib << 20) as f64;
    let mut written = store.metrics().written;
    let mut read = store.metrics().read.merge_bytes;
    let mut space = store.live_bytes() as f64 / user;
    if run.input == Input::Overwrite {
        // In the first of three rounds the tree settles. The figures are those of the other two.
        let memtables = load_records / memtable_records;
        let (mut before, mut read_before) = (written, read);
        (space, user) = (0.0, 0.0);
        for memtable in 0..3 * memtables {
            if memtable == memtables {
                (before, read_before) = (store.metrics().written, store.metrics().read.merge_bytes);
                (space, user) = (0.0, 0.0);
            }
            let draw =
                |i| scramble(scramble(memtable * memtable_records + i + (1 << 40)) % load_records);
            merge((0..memtable_records).map(draw).collect(), 1000)?;
            space += store.live_bytes() as f64 / (run.mib << 20) as f64 / (2 * memtables) as f64;
            user += (memtable_records * RECORD_BYTES as u64) as f64;
        }
        written = store.metrics().written;
        written.leaves -= before.leaves;
        written.segments -= before.segments;
        read = store.metrics().read.merge_bytes - read_before;
    }
    let (leaf, level) = (written.leaves as f64 / user, written.segments as f64 / user);
    let per_record = time.as_nanos() as f64 / (groups_written(&store) / RECORD_BYTES as u64) as f64;
    let stats = tree.version.stats()?;
    let runs = stats.figure("buffer_runs_hundredths").unwrap_or(0) as f64 / 100.0;
    Ok(Measured {
        leaf,
        level,
        heights: heights.iter().map(|&bytes| bytes as f64 / user).collect(),
        space,
        read: read as f64 / user,
        runs,
        worst,
        nanoseconds: per_record,
    })
}

fn groups_written(store: &PageStore) -> u64 {
    let written = store.metrics().written;
    written.leaves + written.segments
}
