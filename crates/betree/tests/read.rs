//! Reads of trees that merges made, compared with a map: lookups, scans in both directions,
//! estimates, figures and `verify` after every merge. Leaves, blocks and fan-out are tiny, so a few
//! thousand keys make a tree of several levels.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, Generation, Incarnation, Message, Purpose, Result, Slice};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_disk::{Disk, File, FileThrough, FilesThrough, SimDisk};
use terrapin_pages::{PageStore, StoreOptions};
use terrapin_structure::{
    Direction, Erased, Estimate, Figure, Found, MergeInput, MergeOptions, MergeStep, MessageCursor,
    Presence, Structure, Version,
};

struct Memtable(Vec<(Vec<u8>, Option<Vec<u8>>)>);

struct MemtableCursor {
    memtable: Arc<Memtable>,
    at: usize,
    end: usize,
}

impl Memtable {
    fn range(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> std::ops::Range<usize> {
        let at = |key: &[u8]| self.0.partition_point(|(k, _)| k[..] < *key);
        let from = lo.map_or(0, at);
        from..hi.map_or(self.0.len(), at).max(from)
    }
}

impl MergeInput for Memtable {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let range = self.range(lo, hi);
        Ok(Box::new(MemtableCursor {
            memtable: self,
            at: range.start,
            end: range.end,
        }))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let inside = &self.0[self.range(lo, hi)];
        let bytes = inside
            .iter()
            .map(|(k, v)| k.len() + v.as_ref().map_or(0, Vec::len))
            .sum::<usize>();
        Estimate {
            records: inside.len() as u64,
            bytes: bytes as u64,
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

impl MessageCursor for MemtableCursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then(|| &self.memtable.0[self.at].0[..])
    }

    fn message(&self) -> Message<'_> {
        self.memtable.0[self.at]
            .1
            .as_deref()
            .map_or(Message::Delete, Message::Put)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// A tree, its store, and its expected content.
struct Bed {
    store: Arc<PageStore>,
    budget: Arc<Budget>,
    tree: Arc<BeTree>,
    version: Arc<dyn Version>,
    generation: Generation,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    options: MergeOptions,
}

impl Bed {
    fn new(group_bytes: u64, fanout: usize) -> Self {
        Self::on(&SimDisk::new(3).handle(), group_bytes, fanout)
    }

    fn on(disk: &Arc<dyn Disk>, group_bytes: u64, fanout: usize) -> Self {
        let budget = Budget::new(64 << 20);
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 0,
            system_cache: false,
        };
        let store = PageStore::create(disk, options, 1).unwrap();
        store.begin_life(Incarnation(1));
        let params = BeTreeParams {
            fanout,
            ..BeTreeParams::new(budget.clone())
        };
        let tree = BeTree::new(store.clone(), params);
        let options = MergeOptions {
            block_bytes: 512,
            ..MergeOptions::new(group_bytes)
        };
        let (version, generation) = (tree.empty(), store.superblock().generation);
        Bed {
            store,
            budget,
            tree,
            version,
            generation,
            model: BTreeMap::new(),
            options,
        }
    }

    fn merge(&mut self, memtable: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        for (key, message) in &memtable {
            match message {
                Some(value) => self.model.insert(key.clone(), value.clone()),
                None => self.model.remove(key),
            };
        }
        let memtable = Arc::new(Memtable(memtable.into_iter().collect()));
        let merge = self
            .tree
            .begin_merge(&self.version, memtable, &self.options)
            .unwrap();
        loop {
            match merge.step().unwrap() {
                MergeStep::Done => break,
                MergeStep::Again => {}
                MergeStep::Pending(_) => panic!("one worker never waits"),
            }
        }
        let merged = merge.finish().unwrap();
        self.generation = Generation(self.generation.0 + 1);
        self.store.commit(self.generation, merged.changes);
        self.version = merged.version;
    }

    /// Empties the cache, so that reads go to the device.
    fn forget_cache(&self) {
        let limit = self.budget.limit();
        self.budget.set_limit(0);
        while self.store.shrink() {}
        self.budget.set_limit(limit);
    }

    /// Compares all reads with the model.
    fn check(&self, random: &mut Random) {
        let mut findings = Vec::new();
        self.version
            .verify(&mut |finding| findings.push(finding))
            .unwrap();
        assert!(findings.is_empty(), "{findings:?}");

        self.forget_cache();
        let version = self.tree.open(&self.version.root()).unwrap();
        let all = self.scan(
            &*version,
            (Bound::Unbounded, Bound::Unbounded),
            Direction::Forward,
        );
        assert!(
            all.iter().map(|(k, v)| (k, v)).eq(self.model.iter()),
            "{} of {}",
            all.len(),
            self.model.len()
        );
        for _ in 0..20 {
            let (a, b) = (key(random, KEYS), key(random, KEYS));
            let (lo, hi) = if a <= b { (a, b) } else { (b, a) };
            let bounds = match random.below(3) {
                0 => (Bound::Included(lo), Bound::Excluded(hi)),
                1 if lo != hi => (Bound::Excluded(lo), Bound::Excluded(hi)),
                _ => (Bound::Excluded(lo), Bound::Unbounded),
            };
            let mut wanted: Vec<_> = self
                .model
                .range(bounds.clone())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let bounds = (
                bounds.0.as_ref().map(|k| &k[..]),
                bounds.1.as_ref().map(|k| &k[..]),
            );
            assert_eq!(self.scan(&*version, bounds, Direction::Forward), wanted);
            wanted.reverse();
            assert_eq!(self.scan(&*version, bounds, Direction::Backward), wanted);
        }

        let keys: Vec<Vec<u8>> = (0..200).map(|_| key(random, KEYS)).collect();
        let asked: Vec<(&[u8], u64)> = keys.iter().map(|k| (&k[..], hash64(k))).collect();
        let mut out = vec![Found::Nothing; asked.len()];
        version.multi_get(&asked, &mut out).unwrap();
        for ((key, hash), together) in asked.iter().zip(&out) {
            let wanted = self.model.get(*key).map(|v| &v[..]);
            assert_eq!(*together, found_of(wanted));
            assert_eq!(version.get(key, *hash).unwrap(), found_of(wanted));
            let presence = match wanted {
                Some(_) => Presence::Present,
                None => Presence::Absent,
            };
            assert_eq!(version.contains(key, *hash).unwrap(), presence);
        }
        self.check_figures(&*version);
    }

    fn check_figures(&self, version: &dyn Version) {
        let stats = version.stats().unwrap();
        let all = version
            .ordered()
            .unwrap()
            .estimate((Bound::Unbounded, Bound::Unbounded))
            .unwrap();
        let held = stats.leaf_records + stats.buffered_records;
        assert!(held >= self.model.len() as u64);
        assert!(
            all.records.abs_diff(held) <= held / 10,
            "{} of {held}",
            all.records
        );
        let (mut pages, mut bytes) = (std::collections::HashSet::new(), 0);
        version
            .pages(&mut |page| {
                if pages.insert(page.id) {
                    bytes += page
                        .extent()
                        .ok_or_else(|| Error::internal("page without place"))?
                        .bytes;
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(
            pages.len() as u64,
            stats.figure("nodes").unwrap() + stats.figure("groups").unwrap()
        );
        assert_eq!(
            bytes,
            self.store.live_bytes(),
            "the walk finds what the store counts as live"
        );
    }

    fn scan(
        &self,
        version: &dyn Version,
        bounds: terrapin_structure::KeyBounds<'_>,
        direction: Direction,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut scan = version.ordered().unwrap().scan(bounds, direction).unwrap();
        let mut out = Vec::new();
        while let Some((key, value)) = scan.next().unwrap() {
            out.push((key.to_vec(), value.to_vec()));
        }
        out
    }
}

/// What a lookup finds of a value.
fn found_of(value: Option<&[u8]>) -> Found {
    value.map_or(Found::Nothing, |value| Found::Value(Slice::copy(value)))
}

const KEYS: u64 = 6000;

fn key(random: &mut Random, below: u64) -> Vec<u8> {
    format!("key/{:06}", random.below(below)).into_bytes()
}

#[test]
fn trees_that_grow_and_shrink_match_the_model() {
    for (seed, fanout, group_bytes) in [(1, 4, 2048), (2, 8, 4096), (3, 5, 8192)] {
        let mut random = Random(seed);
        let mut bed = Bed::new(group_bytes, fanout);
        let mut height = 0;
        for round in 0..30 {
            // Grow, overwrite, then shrink.
            let deletes_percent = if round < 22 { 10 } else { 80 };
            let mut memtable = BTreeMap::new();
            for _ in 0..100 + random.below(500) {
                let value = (random.below(100) >= deletes_percent)
                    .then(|| vec![round as u8; random.below(120) as usize]);
                memtable.insert(key(&mut random, KEYS), value);
            }
            bed.merge(memtable);
            height = height.max(bed.version.stats().unwrap().figure("height").unwrap());
            if round % 3 == 2 {
                bed.check(&mut random);
            }
        }
        let everything = bed.model.keys().map(|k| (k.clone(), None)).collect();
        bed.merge(everything);
        bed.check(&mut random);
        assert!(bed.model.is_empty());
        assert!(height >= 2, "height {height}");
    }
}

#[test]
fn cold_lookups_of_a_buffered_tree_read_one_block_each() {
    let mut random = Random(11);
    let mut bed = Bed::new(64 << 10, 16);
    for round in 0..20u8 {
        let memtable = (0..2000)
            .map(|_| (key(&mut random, 40_000), Some(vec![round; 100])))
            .collect();
        bed.merge(memtable);
    }
    let stats = bed.version.stats().unwrap();
    let levels = stats.named.iter().find_map(|(name, figure)| match figure {
        Figure::List(levels) if *name == "buffer_level_bytes" => Some(levels),
        _ => None,
    });
    let used = levels.unwrap().iter().filter(|&&bytes| bytes > 0).count();
    assert!(stats.buffered_records > 1000 && used >= 2, "{stats:?}");
    let (mut reads, mut lookups) = (0, 0);
    for key in bed.model.keys().step_by(7) {
        bed.forget_cache();
        let before = bed.store.metrics().read.get_reads;
        assert_ne!(bed.version.get(key, hash64(key)).unwrap(), Found::Nothing);
        reads += bed.store.metrics().read.get_reads - before;
        lookups += 1;
    }
    assert!(lookups > 2000);
    assert!(
        reads * 100 <= lookups * 105,
        "{reads} block reads for {lookups} lookups"
    );
}

/// How often a reader waited.
#[derive(Default)]
struct Waits {
    /// Whether the reader has started a read since it last waited.
    asked: AtomicBool,
    count: AtomicU64,
}

struct CountingFile {
    file: Arc<dyn File>,
    waits: Arc<Waits>,
}

impl FileThrough for CountingFile {
    const FLIES: bool = false;

    fn behind(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.waits.asked.swap(false, Ordering::Relaxed) {
            self.waits.count.fetch_add(1, Ordering::Relaxed);
        }
        self.file.read_at(buffer, offset)
    }

    /// The store calls this when it computes what a read covers. It does so for all reads of a
    /// batch before the first read is complete.
    fn alignment(&self) -> u32 {
        self.waits.asked.store(true, Ordering::Relaxed);
        self.file.alignment()
    }
}

#[test]
fn many_large_values_are_waited_for_together() {
    let waits = Arc::new(Waits::default());
    let counted = waits.clone();
    let wrap = move |file| -> Arc<dyn File> {
        let waits = counted.clone();
        Arc::new(CountingFile { file, waits })
    };
    let disk: Arc<dyn Disk> = Arc::new(FilesThrough::new(SimDisk::new(3).handle(), wrap));
    let mut bed = Bed::on(&disk, 2 << 20, 16);
    let key = |i: usize| format!("key/{i:06}").into_bytes();
    let value = |i: usize| vec![i as u8; 32 << 10];
    bed.merge((0..24).map(|i| (key(i), Some(value(i)))).collect());
    // No two of these keys are neighbours.
    let keys: Vec<_> = (0..24).step_by(3).map(key).collect();
    let asked: Vec<(&[u8], u64)> = keys.iter().map(|k| (&k[..], hash64(k))).collect();
    let mut out = vec![Found::Nothing; asked.len()];
    let reads = bed.store.metrics().read.get_reads;
    let before = waits.count.load(Ordering::Relaxed);
    bed.version.multi_get(&asked, &mut out).unwrap();
    let waited = waits.count.load(Ordering::Relaxed) - before;
    assert_eq!(bed.store.metrics().read.get_reads - reads, 8);
    // One wait may be for the filter.
    assert!((1..=2).contains(&waited), "{waited} waits");
    for (number, found) in out.iter().enumerate() {
        assert_eq!(*found, found_of(Some(&value(3 * number))));
    }
    assert_eq!(bed.budget.used(Purpose::Merge), 0);
}

#[test]
fn blocks_that_replace_cached_ones_are_cached_too() {
    let mut bed = Bed::new(32 << 10, 16);
    // All messages go to the leaves.
    bed.options.space_is_short = true;
    let key = |i: u64| format!("key/{i:06}").into_bytes();
    let put = |i: u64, byte: u8| (key(i), Some(vec![byte; 100]));
    bed.merge((0..4000).map(|i| put(i * 10, 1)).collect());
    assert_eq!(bed.version.stats().unwrap().buffered_records, 0);
    bed.forget_cache();
    let reads = |bed: &Bed, numbers: &mut dyn Iterator<Item = u64>| {
        let before = bed.store.metrics().read.get_reads;
        for i in numbers {
            let found = bed.version.get(&key(i), hash64(&key(i))).unwrap();
            let wanted = bed.model.get(&key(i)).map(|v| &v[..]);
            assert_eq!(found, found_of(wanted));
        }
        bed.store.metrics().read.get_reads - before
    };
    let blocks = reads(&bed, &mut (0..2000).map(|i| i * 10));
    assert!(blocks > 400, "{blocks}");

    // Overwrites one value in ten, inserts keys between them, and deletes some. Three rounds, so
    // that successors have successors.
    for round in 2..5u8 {
        let first = u64::from(round);
        let overwritten = (first..4000).step_by(10).map(|i| put(i * 10, round));
        let new = (first..4000)
            .step_by(30)
            .map(|i| put(i * 10 + first, round));
        let gone = (first..4000).step_by(50).map(|i| (key(i * 10 + 10), None));
        bed.merge(overwritten.chain(new).chain(gone).collect());
        while bed.store.reclaim_step().unwrap() {}
        let again = reads(&bed, &mut (0..19_500));
        // Blocks with new keys only, at the edges of leaves, may be read.
        assert!(again <= 2, "{again} in round {round}");
    }
    // Nothing behind them was cached before, so nothing is now.
    let behind = reads(&bed, &mut (2100..4000).map(|i| i * 10));
    assert!(behind > 350, "{behind}");
}

#[test]
fn a_cached_buffered_tree_stays_cached_through_merges() {
    let mut random = Random(12);
    let mut bed = Bed::new(64 << 10, 16);
    let all = (Bound::Unbounded, Bound::Unbounded);
    let (mut read, mut written) = (0, 0);
    for round in 0..40u8 {
        let before = bed.store.metrics();
        let memtable = (0..1000)
            .map(|_| (key(&mut random, 40_000), Some(vec![round; 100])))
            .collect();
        bed.merge(memtable);
        while bed.store.reclaim_step().unwrap() {}
        let found = bed.scan(&*bed.version, all, Direction::Forward);
        assert!(found.iter().map(|(k, v)| (k, v)).eq(bed.model.iter()));
        if round >= 20 {
            let after = bed.store.metrics();
            read += after.read.scan_bytes - before.read.scan_bytes;
            let bytes = |metrics: &terrapin_pages::StoreMetrics| {
                metrics.written.leaves + metrics.written.segments
            };
            written += bytes(&after) - bytes(&before);
        }
    }
    println!("{read} bytes read of {written} written");
    assert!(bed.version.stats().unwrap().buffered_records > 1000);
    // Only messages that were alone in an empty level are read.
    assert!(read * 4 < written, "{read} of {written}");
}

#[test]
fn merges_into_a_full_cache_keep_to_the_budget() {
    let mut bed = Bed::new(32 << 10, 16);
    bed.options.space_is_short = true;
    let key = |i: u64| format!("key/{i:06}").into_bytes();
    bed.merge((0..8000).map(|i| (key(i), Some(vec![1; 100]))).collect());
    for limit in [700 << 10, 300 << 10, 20 << 10, 0] {
        bed.budget.set_limit(limit);
        bed.store.shrink_fully();
        for _ in 0..3 {
            for i in 0..8000 {
                assert_ne!(
                    bed.version.get(&key(i), hash64(&key(i))).unwrap(),
                    Found::Nothing
                );
            }
            bed.merge(
                (0..8000)
                    .step_by(9)
                    .map(|i| (key(i), Some(vec![2; 100])))
                    .collect(),
            );
            assert_eq!(bed.budget.used(Purpose::Merge), 0);
            assert!(
                bed.budget.used_total() <= limit,
                "{} of {limit}",
                bed.budget.used_total()
            );
        }
    }
}
