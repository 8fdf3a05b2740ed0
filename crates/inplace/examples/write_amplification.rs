//! Overwrites records uniformly in a page-grouped tree on a simulated disk, and prints the bytes
//! written for each byte, the space and the largest checkpoint, beside a model of the same rules.
//!
//! `cargo run --release -p terrapin-inplace --example write_amplification`
//!
//! The model knows leaves and bytes only: records go to leaves evenly, wait beside them, and the
//! leaves with most waiting bytes are merged until no more waits than the bound of space accepts.
//! It adds 3 % to a group for its index and filter, and takes a line of full segments.

#[path = "../../betree/examples/memtable/mod.rs"]
mod memtable;
#[path = "../../betree/examples/simulated/mod.rs"]
mod simulated;

use terrapin_base::{Budget, Result};
use terrapin_inplace::{InPlace, InPlaceParams};
use terrapin_structure::MergeOptions;

use memtable::{Memtable, RECORD_BYTES, scramble};
use simulated::Simulated;

const GROUP_BYTES: u64 = 256 << 10;
const DATA_BYTES: u64 = 64 << 20;
const RECORDS: u64 = DATA_BYTES / RECORD_BYTES as u64;
/// Data in memtables, and the bound of space amplification in per cent.
const RUNS: [(u64, u32); 6] = [
    (16, 130),
    (32, 130),
    (64, 130),
    (16, 150),
    (32, 150),
    (64, 150),
];

/// Figures of overwriting, once the tree is in its steady state.
#[derive(Default)]
struct Figures {
    /// Bytes written for each byte.
    written: f64,
    /// Bytes of pages for each byte of records.
    space: f64,
    /// Bytes of the checkpoint that wrote most, in memtables.
    largest: f64,
}

fn main() -> Result<()> {
    println!(
        "| data ÷ memtable | bound | written | model | real ÷ model | space | largest checkpoint |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (memtables, percent) in RUNS {
        let (real, model) = (measure(memtables, percent)?, model(memtables, percent));
        println!(
            "| {memtables} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} |",
            f64::from(percent) / 100.0,
            real.written,
            model,
            real.written / model,
            real.space,
            real.largest,
        );
    }
    Ok(())
}

fn measure(memtables: u64, percent: u32) -> Result<Figures> {
    let budget = Budget::new(256 << 20);
    let mut tree = Simulated::new(&budget, |store, budget| {
        InPlace::new(store, InPlaceParams::new(budget))
    })?;
    let store = tree.store.clone();
    let options = MergeOptions {
        space_amplification_percent: Some(percent),
        ..MergeOptions::new(GROUP_BYTES)
    };
    // Returns the bytes that the merge wrote.
    let mut merge = |keys: Vec<u64>, replacing_permille: u16| -> Result<u64> {
        let changes = tree.merge(Memtable::of(keys, replacing_permille), &options)?;
        Ok(changes.added.iter().map(|page| page.bytes).sum())
    };
    merge((0..RECORDS).map(scramble).collect(), 0)?;
    let each = RECORDS / memtables;
    let rounds = 4 * memtables;
    let mut figures = Figures::default();
    let counted = (rounds - memtables) as f64;
    for round in 0..rounds {
        let draw = |i| scramble(scramble(round * each + i + (1 << 40)) % RECORDS);
        let written = merge((0..each).map(draw).collect(), 1000)? as f64;
        if round >= memtables {
            let relative = written / (each * RECORD_BYTES as u64) as f64;
            figures.written += relative / counted;
            figures.largest = figures.largest.max(relative);
            figures.space += store.live_bytes() as f64 / DATA_BYTES as f64 / counted;
        }
    }
    Ok(figures)
}

/// Bytes written for each byte, by the rules of `inplace/src/plan.rs`.
fn model(memtables: u64, percent: u32) -> f64 {
    /// A leaf has extents of four page groups, cut evenly.
    const LEAF_BYTES: f64 = 0.75 * (4 * GROUP_BYTES) as f64;
    const GROUP_OVERHEAD: f64 = 1.03;
    const LINE_OVERHEAD: f64 = 1.03;
    let data = DATA_BYTES as f64;
    let leaves = (data / LEAF_BYTES) as usize;
    let (line, arriving) = (
        data / leaves as f64,
        data / memtables as f64 / leaves as f64,
    );
    let accepted = data * f64::from(percent - 100) / 200.0;
    // The groups of each leaf, newest last.
    let mut waiting: Vec<Vec<f64>> = vec![Vec::new(); leaves];
    let rounds = 4 * memtables;
    let mut written = 0.0;
    for round in 0..rounds {
        let mut own = 0.0;
        let mut order: Vec<usize> = (0..leaves).collect();
        let waits = |groups: &Vec<f64>| groups.iter().sum::<f64>() + arriving;
        order.sort_by(|&a, &b| waits(&waiting[b]).total_cmp(&waits(&waiting[a])));
        let mut all: f64 = waiting.iter().map(waits).sum();
        let mut rewritten = 0.0;
        for leaf in order {
            let bytes = waits(&waiting[leaf]);
            if all > accepted && rewritten < 6.0 * data / memtables as f64 {
                (all, rewritten) = (all - bytes, rewritten + line + bytes);
                own += line * LINE_OVERHEAD;
                waiting[leaf].clear();
                continue;
            }
            let groups = &mut waiting[leaf];
            let mut bytes = arriving;
            if groups.len() == 8 {
                let mut joined = 0;
                while let Some(&group) = groups.last() {
                    if group > bytes && joined >= 3 {
                        break;
                    }
                    (bytes, joined) = (bytes + group, joined + 1);
                    groups.pop();
                }
            }
            groups.push(bytes);
            own += bytes * GROUP_OVERHEAD;
        }
        if round >= memtables {
            written += own;
        }
    }
    written / (data / memtables as f64 * (rounds - memtables) as f64)
}
