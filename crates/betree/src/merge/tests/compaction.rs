//! Compactions against the same map: what they leave, and what they leave alone.

use terrapin_structure::ToCompact;

use super::*;

impl Tree {
    /// Compacts one stretch; where the next begins, or none when nothing was left to do from there on.
    pub(super) fn compact(&mut self, from: &[u8], bytes_max: u64) -> Option<Option<Box<[u8]>>> {
        let begun = self
            .structure
            .begin_compaction(&self.version, from, bytes_max, &self.options);
        let compaction = begun.unwrap()?;
        while !matches!(compaction.merge.step().unwrap(), MergeStep::Done) {}
        self.take(&Map::new(), &*compaction.merge);
        self.check();
        Some(compaction.next)
    }

    /// Compacts everything from a key on, stretch by stretch; how many those were.
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
        let scan = self.version.scan(bounds, Direction::Forward).unwrap();
        scan.runs()
    }
}

#[test]
fn what_was_compacted_lies_in_leaves_whole_or_stretch_by_stretch() {
    for (seed, bytes_max) in [(21, u64::MAX), (22, 1), (23, 10_000), (24, 40_000)] {
        let mut random = Random(seed);
        let mut tree = grown(&mut random, [None, Some(130)][seed as usize % 2]);
        assert!(tree.height_max >= 2, "{}", tree.height_max);
        let keys: Vec<Vec<u8>> = (0..50).map(|_| key_of(random.below(20_000))).collect();
        let runs = |tree: &Tree| keys.iter().map(|key| tree.runs_at(key)).sum::<usize>();
        assert!(runs(&tree) > keys.len(), "{}", runs(&tree));
        let to_do = tree.version.to_compact().unwrap();
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
        assert_eq!(tree.version.to_compact().unwrap(), ToCompact::default());
        assert!(tree.compact(&[], 1).is_none(), "nothing is left to do");
        tree.verify();
        let messages = window(&mut random, Kind::Uniform, 20_000, &tree);
        tree.merge(&messages);
    }
}

#[test]
fn a_stretch_leaves_what_lies_outside_it() {
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
fn trees_without_buffers_have_nothing_to_compact() {
    let mut tree = Tree::new(2048, 4, None);
    assert!(tree.compact(&[], u64::MAX).is_none());
    tree.merge(&Map::from([(key_of(1), Some(vec![7]))]));
    assert!(tree.compact(&[], u64::MAX).is_none(), "a leaf alone");
    assert_eq!(tree.version.to_compact().unwrap(), ToCompact::default());
}

#[test]
fn a_compaction_that_is_given_up_gives_back_its_pages() {
    let mut random = Random(26);
    let mut tree = grown(&mut random, None);
    let live = tree.store.live_bytes();
    for steps in 0..20 {
        let begun = tree
            .structure
            .begin_compaction(&tree.version, &[], u64::MAX, &tree.options);
        let merge = begun.unwrap().unwrap().merge;
        for _ in 0..steps {
            merge.step().unwrap();
        }
        merge.abandon();
        assert_eq!(tree.store.live_bytes(), live);
        tree.check();
    }
}
