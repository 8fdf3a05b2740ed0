//! Ingests among merges: content, page accounting and every rule of the tree's shape.

use terrapin_disk::sim::{Fault, FaultError};
use terrapin_structure::{Ingest, Ingests};

use super::*;

/// Records of a map, which has puts only, taken in as an ingest.
fn ingest(tree: &Tree, records: &Map) -> Result<Box<dyn Ingest>> {
    let mut ingest = tree
        .structure
        .begin_ingest(&tree.version, &tree.options)?
        .unwrap();
    for (key, value) in records {
        ingest.add(key, Message::Put(value.as_ref().unwrap()))?;
    }
    Ok(ingest)
}

impl Tree {
    fn ingest(&mut self, records: &Map) {
        let merged = ingest(self, records).unwrap().finish().unwrap();
        self.take_merged(records, merged);
        self.check();
    }
}

fn puts(random: &mut Random, start: u64, step: u64, count: u64) -> Map {
    let record = |number: u64| {
        let length = random.below(60) as usize;
        (
            key_of(start + number * step),
            Some(vec![number as u8; length]),
        )
    };
    (0..count).map(record).collect()
}

#[test]
fn ingests_among_merges_keep_every_rule() {
    use Kind::*;
    let (mut heights, mut buffered) = (0, 0);
    for seed in 0..12 {
        let mut random = Random((seed + 1) * 0x1234_5678_9abc_def1);
        let fanout = [4, 8][seed as usize % 2];
        let mut tree = Tree::new(2048, fanout, [None, Some(130)][seed as usize % 2]);
        for round in 0..25 {
            let kinds = [
                Uniform,
                Uniform,
                Local,
                Hot,
                Shrinking,
                DeleteRange,
                DeleteSome,
                Huge,
            ];
            let kind = kinds[random.below(8) as usize];
            let messages = memtable(&mut random, kind, 8192, &tree);
            tree.merge(&messages);
            buffered += u64::from(matches!(tree.root(), Root::Node(..)));
            // Dense or scattered, from one record to more than a part of the ingest.
            let step = [1, 7, 300][random.below(3) as usize];
            let count = [1, 5, 60, 400, 4000][random.below(5) as usize] / step;
            let start = random.below(20_000);
            let records = puts(&mut random, start, step, 1 + count);
            tree.ingest(&records);
            if round % 8 == 0 {
                tree.verify();
            }
        }
        tree.verify();
        heights = heights.max(tree.height_max);
    }
    assert!(heights >= 4 && buffered > 100, "{heights} {buffered}");
}

#[test]
fn an_ingest_of_many_parts_writes_little_more_than_its_records() {
    let mut tree = Tree::new(16 << 10, 4, None);
    tree.options.block_bytes = 4096;
    let mut random = Random(7);
    let before = tree.store.metrics().written.total();
    let records = puts(&mut random, 0, 1, 60_000);
    tree.ingest(&records);
    let wrote = tree.store.metrics().written.total() - before;
    let bytes: usize = records
        .iter()
        .map(|(k, v)| k.len() + v.as_ref().unwrap().len())
        .sum();
    // Leaves of 16 KiB are many for their bytes: filters, indexes, and the last leaf of each part.
    assert!(wrote < bytes as u64 * 13 / 10, "{wrote} for {bytes}");
    let (_, height) = tree.root_node();
    assert!(height >= 3, "{height}");
    tree.verify();
}

/// Whatever fails, and wherever an ingest is dropped: no page of it stays.
#[test]
fn a_dropped_ingest_leaves_nothing() {
    let mut tree = churn(3, 4, 2048, None, 30);
    let mut random = Random(5);
    let records = puts(&mut random, 0, 3, 4000);
    let used = |tree: &Tree| tree.store.file_bytes() - tree.store.free_bytes();
    let before = used(&tree);
    for count in [1, 20, 500, 3999] {
        let some: Map = records.clone().into_iter().take(count).collect();
        drop(ingest(&tree, &some).unwrap());
        assert_eq!((used(&tree), tree.budget.used(Purpose::Merge)), (before, 0));
        tree.check();
    }
    for write in [1, 2, 5, 40] {
        let fault = Fault::nth(write, FaultError::Io).on(terrapin_disk::sim::Op::Write);
        tree.disk.inject(fault);
        let ended = ingest(&tree, &records).and_then(Ingest::finish);
        tree.disk.clear_faults();
        assert!(ended.is_err());
        drop(ended);
        assert_eq!(tree.budget.used(Purpose::Merge), 0);
        tree.check();
    }
    tree.ingest(&records);
}

#[test]
fn an_ingest_between_leaves_reads_and_writes_one_of_them() {
    let mut tree = Tree::new(2048, 8, None);
    let mut random = Random(9);
    let old: Map = puts(&mut random, 0, 1000, 5000);
    tree.ingest(&old);
    let pages = tree.references.len();
    let records = puts(&mut random, 1_000_001, 1, 900);
    let merged = ingest(&tree, &records).unwrap().finish().unwrap();
    // The leaf and the nodes above it.
    assert!(
        merged.changes.released.len() <= 6,
        "{}",
        merged.changes.released.len()
    );
    tree.take_merged(&records, merged);
    tree.check();
    assert!(tree.references.len() > pages);
}
