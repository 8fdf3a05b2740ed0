//! The paper's ablation of page grouping (TreeLine, §5.4.2) on the page-grouped tree: device reads
//! of gets and ranges with segments of sixteen pages, and of one.
//!
//! `cargo run --release -p terrapin-inplace --example ablations`
//!
//! 64 MiB of records of 1 KiB on a simulated disk, memory for a third of them, zipfian requests.
//! There is no record cache: its ablation is `terrapin bench ycsb --no-record-cache`. That of
//! insert forecasting is the test `forecast`.

#[path = "../../betree/examples/memtable/mod.rs"]
mod memtable;
#[path = "../../betree/examples/simulated/mod.rs"]
mod simulated;

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, Message, Result};
use terrapin_inplace::{InPlace, InPlaceParams};
use terrapin_pages::PageStore;
use terrapin_structure::{
    Direction, Erased, Estimate, Found, MergeInput, MergeOptions, MessageCursor, Version,
};

use memtable::{Memtable, RECORD_BYTES, scramble};
use simulated::Simulated;

const VALUE: [u8; 1016] = [7; 1016];
const RECORDS: u64 = 64 << 10;
const MEMORY_BYTES: u64 = 22 << 20;
const OPERATIONS: u64 = 60_000;
const RANGE_RECORDS_MAX: u64 = 100;

/// A memtable whose values have 1,016 bytes.
struct Large(Arc<Memtable>);

struct LargeCursor(Box<dyn MessageCursor>);

impl MessageCursor for LargeCursor {
    fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&VALUE)
    }

    fn advance(&mut self) -> Result<()> {
        self.0.advance()
    }
}

impl MergeInput for Large {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        Ok(Box::new(LargeCursor(self.0.clone().cursor(lo, hi)?)))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let small = self.0.estimate(lo, hi);
        Estimate {
            bytes: small.bytes / RECORD_BYTES as u64 * (VALUE.len() as u64 + 8),
            ..small
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }

    fn replacing_permille(&self) -> u16 {
        0
    }
}

/// Requests of which number `r` is asked for in proportion to r^−0.99, scattered over the keys.
struct Zipfian {
    /// The sums of the weights up to each number.
    sums: Vec<f64>,
}

impl Zipfian {
    fn new() -> Self {
        let weights = (1..=RECORDS).map(|rank| (rank as f64).powf(-0.99));
        let mut sum = 0.0;
        let add = |weight| {
            sum += weight;
            sum
        };
        let sums = weights.map(add).collect();
        Zipfian { sums }
    }

    /// The key of a request.
    fn key(&self, request: u64) -> [u8; 8] {
        let part = (scramble(request) >> 11) as f64 / (1u64 << 53) as f64;
        let all = self.sums[self.sums.len() - 1];
        let rank = self.sums.partition_point(|sum| *sum < part * all) as u64;
        scramble(scramble(rank) % RECORDS).to_be_bytes()
    }
}

fn main() -> Result<()> {
    let zipfian = Zipfian::new();
    println!("| pages of a segment | segments | reads of a get (C) | of a range (E) |");
    println!("| --- | --- | --- | --- |");
    for pages in [16, 4, 1] {
        let (store, version) = load(pages)?;
        let segments = version.stats()?.figure("segments").unwrap_or_default();
        let each = |from: u64, to: u64, operation: &dyn Fn(u64) -> Result<()>| -> Result<f64> {
            let before = store.metrics().read.reads();
            (from..to).try_for_each(operation)?;
            Ok((store.metrics().read.reads() - before) as f64 / (to - from) as f64)
        };
        let get = |request: u64| {
            let key = zipfian.key(request);
            match version.get(&key, hash64(&key))? {
                Found::Value(_) => Ok(()),
                _ => Err(Error::internal("a record is missing")),
            }
        };
        let range = |request: u64| {
            let (key, count) = (
                zipfian.key(request),
                1 + scramble(request + (1 << 50)) % RANGE_RECORDS_MAX,
            );
            let ordered = version.ordered().ok_or(Error::internal("no order"))?;
            let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
            let mut scan = ordered.scan_expecting(bounds, Direction::Forward, count as usize)?;
            let mut left = count;
            while left > 0 && scan.next()?.is_some() {
                left -= 1;
            }
            Ok(())
        };
        // The first half fills the cache.
        each(0, OPERATIONS, &get)?;
        let gets = each(OPERATIONS, 2 * OPERATIONS, &get)?;
        each(0, OPERATIONS / 4, &range)?;
        let ranges = each(OPERATIONS, OPERATIONS + OPERATIONS / 4, &range)?;
        println!("| {pages} | {segments} | {gets:.3} | {ranges:.2} |");
    }
    Ok(())
}

/// A tree of all records. Each of its segments has `pages` pages.
fn load(pages: u64) -> Result<(Arc<PageStore>, Arc<dyn Version>)> {
    let mut tree = Simulated::new(&Budget::new(MEMORY_BYTES), |store, budget| {
        let params = InPlaceParams {
            segment_pages: pages,
            ..InPlaceParams::new(budget)
        };
        InPlace::new(store, params)
    })?;
    let keys = (0..RECORDS).map(scramble).collect();
    let input = Large(Arc::new(Memtable::of(keys, 0)));
    tree.merge(input, &MergeOptions::new(256 << 10))?;
    Ok((tree.store, tree.version))
}
