//! Compactions compared with the same map: their result, and what they leave alone.

use terrapin_structure::{Batch, Compacts, Filled, ToCompact};

use super::*;

impl Tree {
    /// Compacts one stretch and returns where the next begins. Returns `None` if nothing was left
    /// to compact.
    pub(super) fn compact(&mut self, from: &[u8], bytes_max: u64) -> Option<Option<Box<[u8]>>> {
        self.compact_span((from, None), bytes_max)
    }

    fn compact_span(
        &mut self,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
    ) -> Option<Option<Box<[u8]>>> {
        let begun = self
            .structure
            .begin_compaction(&self.version, keys, bytes_max, &self.options);
        let compaction = begun.unwrap()?;
        while !matches!(compaction.merge.step().unwrap(), MergeStep::Done) {}
        self.take(&Map::new(), &*compaction.merge);
        self.check();
        Some(compaction.next)
    }

    /// Compacts everything from a key on, stretch by stretch, and returns the number of stretches.
    fn compact_all(&mut self, bytes_max: u64) -> usize {
        let (mut from, mut stretches) = (Box::default(), 0);
        while let Some(next) = self.compact(&from, bytes_max) {
            stretches += 1;
            let Some(next) = next else { break };
            assert!(next > from, "a stretch ends behind its beginning");
            from = next;
        }
        stretches
    }

    fn runs_at(&self, key: &[u8]) -> usize {
        let bounds = (Bound::Included(key), Bound::Unbounded);
        let scan = self.ordered().scan(bounds, Direction::Forward).unwrap();
        scan.runs()
    }
}

#[test]
fn a_compaction_moves_all_messages_to_leaves_whole_or_stretch_by_stretch() {
    for (seed, bytes_max) in [(21, u64::MAX), (22, 1), (23, 10_000), (24, 40_000)] {
        let mut random = Random(seed);
        let mut tree = grown(&mut random, [None, Some(130)][seed as usize % 2]);
        assert!(tree.height_max >= 2, "{}", tree.height_max);
        let keys: Vec<Vec<u8>> = (0..50).map(|_| key_of(random.below(20_000))).collect();
        let runs = |tree: &Tree| keys.iter().map(|key| tree.runs_at(key)).sum::<usize>();
        assert!(runs(&tree) > keys.len(), "{}", runs(&tree));
        let to_do = tree.structure.to_compact(&tree.version).unwrap();
        let stats = tree.version.stats().unwrap();
        let leaf_bytes = to_do.merged_bytes - to_do.buffered_bytes;
        assert_eq!(to_do.buffered_bytes, stats.buffered_bytes);
        assert!(
            leaf_bytes > 0 && leaf_bytes <= stats.leaf_bytes,
            "{to_do:?}, {stats:?}"
        );
        let stretches = tree.compact_all(bytes_max);
        assert_eq!(stretches == 1, bytes_max == u64::MAX, "{stretches}");
        let stats = tree.version.stats().unwrap();
        assert_eq!(
            (stats.buffered_records, stats.leaf_records),
            (0, tree.oracle.len() as u64)
        );
        assert_eq!(runs(&tree), 0);
        assert_eq!(
            tree.structure.to_compact(&tree.version).unwrap(),
            ToCompact::default()
        );
        assert!(tree.compact(&[], 1).is_none(), "nothing is left to do");
        tree.verify();
        let messages = memtable(&mut random, Kind::Uniform, 20_000, &tree);
        tree.merge(&messages);
    }
}

#[test]
fn a_stretch_leaves_the_rest_alone() {
    let mut random = Random(25);
    let mut tree = grown(&mut random, None);
    let middle = key_of(10_000);
    let writes = |tree: &Tree| tree.disk.stats_total().written_bytes;
    let before = writes(&tree);
    let next = tree.compact(&middle, 3000).unwrap().unwrap();
    let one = writes(&tree) - before;
    assert!(next > middle.into());
    let stats = tree.version.stats().unwrap();
    assert!(stats.buffered_records > 0, "elsewhere");
    tree.compact_all(u64::MAX);
    let rest = writes(&tree) - before - one;
    assert!(3 * one < rest, "{one} bytes written, and {rest} for all");
}

#[test]
fn a_span_is_compacted_to_the_leaf_of_its_last_key_and_no_further() {
    for bytes_max in [3000, u64::MAX] {
        let mut tree = grown(&mut Random(27), None);
        let (first, last) = (key_of(9000), key_of(11_000));
        let runs = |tree: &Tree, numbers: std::ops::Range<u64>| -> usize {
            let keys = numbers.step_by(50).map(key_of);
            keys.map(|key| tree.runs_at(&key)).sum()
        };
        let before = [0..5000, 9000..11_001, 15_000..20_000].map(|keys| runs(&tree, keys));
        assert!(before.iter().all(|&runs| runs > 0), "{before:?}");
        let (mut from, mut stretches) = (Some(Box::from(&first[..])), 0);
        while let Some(next) = from {
            let Some(then) = tree.compact_span((&next, Some(&last)), bytes_max) else {
                break;
            };
            assert!(then.as_deref().is_none_or(|then| *then <= last[..]));
            (from, stretches) = (then, stretches + 1);
        }
        assert_eq!(stretches == 1, bytes_max == u64::MAX, "{stretches}");
        assert_eq!(runs(&tree, 9000..11_001), 0);
        assert!(
            tree.compact_span((&first, Some(&last)), bytes_max)
                .is_none()
        );
        let stats = tree.version.stats().unwrap();
        assert!(stats.buffered_records > 0, "elsewhere");
        tree.verify();
    }
}

/// A range that finally reaches a record reports how many deletes it passed.
#[test]
fn passed_deletes_are_counted_and_a_compaction_removes_them() {
    for direction in [Direction::Forward, Direction::Backward] {
        let mut tree = grown(&mut Random(28), None);
        let (low, high): (Vec<_>, Vec<_>) = tree
            .oracle
            .keys()
            .cloned()
            .partition(|key| *key < key_of(10_000));
        let gone = match direction {
            Direction::Forward => &low[..low.len() / 100],
            Direction::Backward => &high[high.len() - high.len() / 100..],
        };
        tree.merge(&gone.iter().map(|key| (key.clone(), None)).collect());
        let passed = |tree: &Tree| {
            let bounds = (Bound::Unbounded, Bound::Unbounded);
            let mut scan = tree.ordered().scan(bounds, direction).unwrap();
            scan.next().unwrap();
            let passed = scan.take_passed();
            assert_eq!(scan.take_passed(), 0, "told once");
            passed
        };
        assert!(passed(&tree) > gone.len() as u64 / 2, "{}", passed(&tree));
        // A reader with a nearer bound does not pass them.
        let front = match direction {
            Direction::Forward => gone.first(),
            Direction::Backward => gone.last(),
        };
        let bounds = (Bound::Unbounded, Bound::Unbounded);
        let mut scan = tree.ordered().scan(bounds, direction).unwrap();
        let mut batch = Batch::default();
        let filled = scan.fill(Bound::Excluded(front.unwrap()), &mut batch);
        assert_eq!(filled.unwrap(), Filled::Reached);
        assert_eq!((batch.len(), scan.take_passed()), (0, 0));
        let span = (&gone[0][..], gone.last().map(|key| &key[..]));
        while let Some(Some(_)) = tree.compact_span(span, u64::MAX) {}
        assert_eq!(passed(&tree), 0);
    }
}

#[test]
fn trees_without_buffers_have_nothing_to_compact() {
    let mut tree = Tree::new(2048, 4, None);
    assert!(tree.compact(&[], u64::MAX).is_none());
    tree.merge(&Map::from([(key_of(1), Some(vec![7]))]));
    assert!(tree.compact(&[], u64::MAX).is_none(), "a leaf alone");
    assert_eq!(
        tree.structure.to_compact(&tree.version).unwrap(),
        ToCompact::default()
    );
}

#[test]
fn an_abandoned_compaction_gives_back_its_pages() {
    let mut random = Random(26);
    let mut tree = grown(&mut random, None);
    let live = tree.store.live_bytes();
    for steps in 0..20 {
        let begun =
            tree.structure
                .begin_compaction(&tree.version, (&[], None), u64::MAX, &tree.options);
        let merge = begun.unwrap().unwrap().merge;
        for _ in 0..steps {
            merge.step().unwrap();
        }
        merge.abandon();
        assert_eq!(tree.store.live_bytes(), live);
        tree.check();
    }
}
