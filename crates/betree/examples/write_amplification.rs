//! Loads records with uniform keys into a tree on a simulated disk. Prints the bytes written per
//! user byte beside the expectation of the fluid model. Then overwrites the records, and prints
//! space too. Build with `--release` for speed.
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrapin_base::{Budget, Generation, Incarnation, Message, Result};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_disk::SimDisk;
use terrapin_pages::block::Compression;
use terrapin_pages::{PageStore, StoreOptions};
use terrapin_structure::{
    Erased, Estimate, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure,
};

const KEY_BYTES: usize = 8;
const RECORD_BYTES: usize = 128;
const GROUP_BYTES: u64 = 256 << 10;

/// One run: whether it overwrites after loading, χ, MiB loaded, and the model's figures for leaves,
/// levels and space.
struct Run {
    overwrites: bool,
    chi: u64,
    load_mib: u64,
    leaf: f64,
    level: f64,
    space: f64,
}

/// The model's figures are those of `load 64 MEMTABLE L=0.25` and `update 16 MEMTABLE L=0.25
/// share=0.25`, with MEMTABLE = χ·L.
const RUNS: [Run; 6] = [
    Run {
        overwrites: false,
        chi: 1,
        load_mib: 64,
        leaf: 1.15,
        level: 3.41,
        space: 1.01,
    },
    Run {
        overwrites: false,
        chi: 4,
        load_mib: 64,
        leaf: 1.05,
        level: 2.31,
        space: 1.01,
    },
    Run {
        overwrites: false,
        chi: 16,
        load_mib: 64,
        leaf: 1.07,
        level: 1.37,
        space: 1.01,
    },
    Run {
        overwrites: true,
        chi: 1,
        load_mib: 16,
        leaf: 1.80,
        level: 2.66,
        space: 1.23,
    },
    Run {
        overwrites: true,
        chi: 4,
        load_mib: 16,
        leaf: 1.67,
        level: 1.68,
        space: 1.22,
    },
    Run {
        overwrites: true,
        chi: 16,
        load_mib: 16,
        leaf: 1.25,
        level: 0.88,
        space: 1.20,
    },
];

struct Memtable {
    keys: Vec<u64>,
}

struct Cursor {
    memtable: Arc<Memtable>,
    at: usize,
    end: usize,
    key: [u8; KEY_BYTES],
    value: [u8; RECORD_BYTES - KEY_BYTES],
}

impl Memtable {
    fn place(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        let Some(key) = key else { return otherwise };
        self.keys.partition_point(|k| k.to_be_bytes()[..] < *key)
    }
}

impl Cursor {
    fn load(&mut self) {
        if self.at < self.end {
            self.key = self.memtable.keys[self.at].to_be_bytes();
            self.value[..KEY_BYTES].copy_from_slice(&self.key);
        }
    }
}

impl MessageCursor for Cursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then_some(&self.key[..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.value)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        self.load();
        Ok(())
    }
}

impl MergeInput for Memtable {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let (at, end) = (self.place(lo, 0), self.place(hi, self.keys.len()));
        let mut cursor = Cursor {
            memtable: self,
            at,
            end,
            key: [0; 8],
            value: [7; RECORD_BYTES - KEY_BYTES],
        };
        cursor.load();
        Ok(Box::new(cursor))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let records = self
            .place(hi, self.keys.len())
            .saturating_sub(self.place(lo, 0)) as u64;
        Estimate {
            records,
            bytes: records * RECORD_BYTES as u64,
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

/// A permutation of 64-bit numbers: keys are uniform and never repeat.
fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn main() -> Result<()> {
    println!(
        "{:34} {:>28}   {:>28}   {:>9}",
        "", "measured", "model", "ns per"
    );
    let columns = format!("{:>6} {:>6} {:>6} {:>7}", "leaf", "level", "total", "space");
    println!("{:34} {columns}   {columns}   {:>9}", "", "record");
    for run in RUNS {
        measure(&run)?;
    }
    Ok(())
}

fn measure(run: &Run) -> Result<()> {
    let budget = Budget::new(256 << 20);
    let options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 1 << 20,
        system_cache: false,
    };
    let store = PageStore::create(&SimDisk::new(1).handle(), options, 1)?;
    store.begin_life(Incarnation(1));
    let tree = BeTree::new(store.clone(), BeTreeParams::new(budget));
    let options = MergeOptions {
        group_bytes: GROUP_BYTES,
        block_bytes: 4096,
        compression: Compression::None,
        space_amplification_percent: Some(130),
        filter_bits: 12,
        space_is_short: false,
        operator: terrapin_base::Operator::default(),
        values: None,
        separate_from: None,
        now_ms: 0,
    };
    let memtable_records = run.chi * GROUP_BYTES / RECORD_BYTES as u64;
    let load_records = (run.load_mib << 20) / RECORD_BYTES as u64;
    let mut version = tree.empty();
    let mut generation = 1;
    let mut time = Duration::ZERO;
    let mut merge = |keys: Vec<u64>| -> Result<()> {
        let begun = Instant::now();
        let merge = tree.begin_merge(&version, Arc::new(Memtable { keys }), &options)?;
        while !matches!(merge.step()?, MergeStep::Done) {}
        let merged = merge.finish()?;
        time += begun.elapsed();
        version = merged.version;
        generation += 1;
        store.commit(Generation(generation), merged.changes);
        while store.reclaim_step()? {}
        Ok(())
    };

    let mut number = 0;
    while number < load_records {
        let end = load_records.min(number + memtable_records);
        let mut keys: Vec<u64> = (number..end).map(scramble).collect();
        keys.sort_unstable();
        merge(keys)?;
        number = end;
    }
    let mut user = (run.load_mib << 20) as f64;
    let mut written = store.metrics().written;
    let mut space = store.live_bytes() as f64 / user;
    if run.overwrites {
        // In the first of three rounds the tree settles. The figures are those of the other two.
        let memtables = load_records / memtable_records;
        let mut before = written;
        (space, user) = (0.0, 0.0);
        for memtable in 0..3 * memtables {
            if memtable == memtables {
                before = store.metrics().written;
                (space, user) = (0.0, 0.0);
            }
            let draw =
                |i| scramble(scramble(memtable * memtable_records + i + (1 << 40)) % load_records);
            let mut keys: Vec<u64> = (0..memtable_records).map(draw).collect();
            keys.sort_unstable();
            keys.dedup();
            merge(keys)?;
            space +=
                store.live_bytes() as f64 / (run.load_mib << 20) as f64 / (2 * memtables) as f64;
            user += (memtable_records * RECORD_BYTES as u64) as f64;
        }
        written = store.metrics().written;
        written.leaves -= before.leaves;
        written.segments -= before.segments;
    }
    let (leaf, level) = (written.leaves as f64 / user, written.segments as f64 / user);
    let total = store.metrics().written;
    let per_record =
        time.as_nanos() as f64 / ((total.leaves + total.segments) / RECORD_BYTES as u64) as f64;
    println!(
        "{:34} {leaf:6.2} {level:6.2} {:6.2} {space:7.2}   {:6.2} {:6.2} {:6.2} {:7.2}   {per_record:9.0}",
        format!(
            "{} {} MiB, chi {}",
            if run.overwrites { "overwrite" } else { "load" },
            run.load_mib,
            run.chi
        ),
        leaf + level,
        run.leaf,
        run.level,
        run.leaf + run.level,
        run.space,
    );
    Ok(())
}
