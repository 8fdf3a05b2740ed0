//! Merges compared with a map, and a check of every rule after each. The trees have so few pivots
//! and so small leaves that every rare path is common.

mod compaction;
mod hidden;
mod large;
mod lone;
mod panics;
mod short;
mod watched;
mod workers;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Budget, ErrorKind, Generation, Incarnation, Message, PageId, Purpose, Result};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError};
use terrapin_pages::block::Compression;
use terrapin_pages::group::RECORD_BYTES_MAX;
use terrapin_pages::{Changes, PageKind, PageRef, PageStore, SpaceClass, StoreOptions};
use terrapin_structure::{
    Direction, Estimate, Merge, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure,
    Version,
};

use super::{Context, Credit, Task, TreeMerge};
use crate::load::{LoadedNode, load_node};
use crate::node::{Child, Node, Root, SUM_MAX, Sums};
use crate::plan::Policy;
use crate::tree::{BeTree, BeTreeParams};
use crate::version::TreeVersion;

type Map = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A memtable: messages in key order, and the bytes before each.
struct Input {
    messages: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    before: Vec<u64>,
}

struct InputCursor {
    input: Arc<Input>,
    at: usize,
    end: usize,
}

impl Input {
    fn new(messages: &Map) -> Arc<Self> {
        let messages: Vec<_> = messages.clone().into_iter().collect();
        let mut before = vec![0];
        for (key, value) in &messages {
            before.push(
                before[before.len() - 1] + (key.len() + value.as_ref().map_or(0, Vec::len)) as u64,
            );
        }
        Arc::new(Input { messages, before })
    }

    fn place(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> (usize, usize) {
        let at = |key: &[u8]| self.messages.partition_point(|m| m.0[..] < *key);
        let from = lo.map_or(0, at);
        (from, hi.map_or(self.messages.len(), at).max(from))
    }
}

impl MessageCursor for InputCursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then(|| &self.input.messages[self.at].0[..])
    }

    fn message(&self) -> Message<'_> {
        self.input.messages[self.at]
            .1
            .as_deref()
            .map_or(Message::Delete, Message::Put)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

impl MergeInput for Input {
    fn cursor(self: Arc<Self>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Box<dyn MessageCursor> {
        let (at, end) = self.place(lo, hi);
        Box::new(InputCursor {
            input: self,
            at,
            end,
        })
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let (from, to) = self.place(lo, hi);
        Estimate {
            records: (to - from) as u64,
            bytes: self.before[to] - self.before[from],
        }
    }

    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let count = self.messages.len();
        let mut places: Vec<usize> = (1..parts).map(|part| count * part / parts).collect();
        places.retain(|&place| place > 0);
        places.dedup();
        let key = |place: usize| self.messages[place].0[..].into();
        places.into_iter().map(key).collect()
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A tree, its expected content, and the expected number of references to each page.
struct Tree {
    disk: SimDisk,
    store: Arc<PageStore>,
    budget: Arc<Budget>,
    structure: Arc<BeTree>,
    version: Arc<dyn Version>,
    options: MergeOptions,
    fanout: usize,
    oracle: BTreeMap<Vec<u8>, Vec<u8>>,
    references: BTreeMap<PageId, u64>,
    /// Greatest height and largest record so far.
    height_max: u16,
    record_bytes_max: u64,
    generation: u64,
}

impl Tree {
    fn new(group_bytes: u64, fanout: usize, space: Option<u32>) -> Tree {
        let budget = Budget::new(64 << 20);
        let disk = SimDisk::new(1);
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 64 << 10,
            system_cache: false,
        };
        let store = PageStore::create(&disk.handle(), options, 7).unwrap();
        store.begin_life(Incarnation(1));
        let structure = BeTree::new(
            store.clone(),
            BeTreeParams {
                fanout,
                budget: budget.clone(),
            },
        );
        Tree {
            disk,
            store,
            budget,
            version: structure.empty(),
            structure,
            options: MergeOptions {
                group_bytes,
                block_bytes: 512,
                compression: Compression::None,
                space_amplification_percent: space,
                space_is_short: false,
            },
            fanout,
            oracle: BTreeMap::new(),
            references: BTreeMap::new(),
            height_max: 0,
            record_bytes_max: 0,
            generation: 1,
        }
    }

    fn begin(&self, messages: &Map) -> Arc<dyn Merge> {
        self.structure
            .begin_merge(&self.version, Input::new(messages), &self.options)
            .unwrap()
    }

    /// Like [`Tree::begin`], into any root.
    fn tree_merge(&self, messages: &Map, root: Root, space_is_short: bool) -> Arc<TreeMerge> {
        let mut options = self.options.clone();
        options.space_is_short = space_is_short;
        let context = Context {
            store: self.store.clone(),
            input: Input::new(messages),
            policy: Policy {
                group_bytes: options.group_bytes,
                fanout: self.fanout,
                share_permille: None,
                flush_what_comes: space_is_short,
            },
            options,
            budget: self.budget.clone(),
            leaf_filters: Arc::default(),
            stretch: None,
            brings: 0,
            root_node: None,
        };
        TreeMerge::begin(context, root)
    }

    fn root(&self) -> Root {
        let version = self.version.as_any().downcast_ref::<TreeVersion>().unwrap();
        *version.tree_root()
    }

    /// The root, which must be a node, and its height.
    fn root_node(&self) -> (Arc<LoadedNode>, u16) {
        let Root::Node(page, height) = self.root() else {
            panic!("a tree without nodes: {:?}", self.root());
        };
        (load_node(&self.store, &page, height).unwrap(), height)
    }

    /// Writes a node that no merge would write.
    fn write_node(&self, node: &Node) -> PageRef {
        let content = node.encode().unwrap();
        self.store
            .write_page(PageKind::Node, &content, SpaceClass::Normal)
            .unwrap()
    }

    fn merge(&mut self, messages: &Map) {
        let merge = self.begin(messages);
        let mut before = (0, 0);
        loop {
            let step = merge.step().unwrap();
            let now = merge.progress();
            assert!(
                before.0 <= now.0 && before.1 <= now.1 && now.0 <= now.1,
                "{before:?} {now:?}"
            );
            before = now;
            match step {
                MergeStep::Again => {}
                MergeStep::Pending(_) => panic!("one worker never waits"),
                MergeStep::Done => break,
            }
        }
        assert!(messages.is_empty() || before.0 == before.1, "{before:?}");
        self.take(messages, &*merge);
        self.check();
    }

    fn take(&mut self, messages: &Map, merge: &dyn Merge) {
        let merged = merge.finish().unwrap();
        assert!(merge.finish().is_err());
        merge.abandon();
        assert_eq!(self.budget.used(Purpose::Merge), 0);
        self.version = merged.version;
        self.count(&merged.changes);
        self.generation += 1;
        self.store
            .commit(Generation(self.generation), merged.changes);
        for (key, value) in messages {
            let bytes = (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
            self.record_bytes_max = self.record_bytes_max.max(bytes);
            match value {
                Some(value) => self.oracle.insert(key.clone(), value.clone()),
                None => self.oracle.remove(key),
            };
        }
    }

    fn count(&mut self, changes: &Changes) {
        for page in &changes.added {
            assert!(
                self.references.insert(page.id, 1).is_none(),
                "a page was added twice"
            );
        }
        for id in &changes.retained {
            *self
                .references
                .get_mut(id)
                .expect("a retained page is known") += 1;
        }
        for id in &changes.released {
            let count = self
                .references
                .get_mut(id)
                .expect("a released page is known");
            *count -= 1;
            if *count == 0 {
                self.references.remove(id);
            }
        }
    }

    /// Checks content and page accounting.
    fn check_content(&self) {
        let mut walked = BTreeMap::new();
        let mut bytes = BTreeMap::new();
        self.version
            .pages(&mut |page| {
                *walked.entry(page.id).or_insert(0) += 1;
                bytes.insert(page.id, page.extent().unwrap().bytes);
                Ok(())
            })
            .unwrap();
        assert_eq!(
            walked, self.references,
            "pages that the tree refers to, and what merges said of them"
        );
        assert_eq!(self.store.live_bytes(), bytes.values().sum());
        assert_eq!(self.store.retired_bytes(), 0);

        let mut scan = self
            .version
            .scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)
            .unwrap();
        for (key, value) in &self.oracle {
            let found = scan.next().unwrap();
            assert_eq!(found, Some((&key[..], &value[..])));
        }
        assert_eq!(scan.next().unwrap(), None);
    }

    /// Checks content, page accounting and every rule of the tree's shape.
    fn check(&mut self) {
        self.check_content();
        let version = self.version.as_any().downcast_ref::<TreeVersion>().unwrap();
        let root = *version.tree_root();
        assert_eq!(Root::decode(&root.encode()).unwrap(), root);
        match root {
            Root::Empty => assert!(self.oracle.is_empty()),
            Root::Leaf(leaf) => assert_eq!(leaf.records, self.oracle.len() as u64),
            Root::Node(page, height) => {
                self.height_max = self.height_max.max(height);
                let node = load_node(&self.store, &page, height).unwrap();
                assert!(node.pivots.len() > 1 || !node.is_buffer_empty());
                self.check_node(&node, true);
            }
        }
    }

    fn verify(&self) {
        self.version
            .verify(&mut |finding| panic!("{}: {}", finding.place, finding.message))
            .unwrap();
    }

    fn check_node(&self, node: &Node, is_root: bool) {
        assert_eq!(&Node::decode(&node.encode().unwrap()).unwrap(), node);
        let group_bytes = self.options.group_bytes;
        let has_short_keys = node.encode().unwrap().len() < 8 << 10;
        assert!(node.pivots.len() <= self.fanout);
        if has_short_keys {
            assert!(
                is_root || node.pivots.len() >= self.fanout / 2,
                "{} pivots",
                node.pivots.len()
            );
        }
        assert!(node.levels.len() <= self.fanout.next_power_of_two().trailing_zeros() as usize);
        assert!(node.levels.last().is_none_or(|level| !level.is_empty()));
        let mut pending = vec![0; node.pivots.len()];
        for level in &node.levels {
            let mut before: Option<(&[u8], u16)> = None;
            for segment in level {
                assert!(segment.min <= segment.max);
                let first = segment
                    .live
                    .first()
                    .expect("a segment without live parts leaves")
                    .pivot;
                assert!(before.is_none_or(|(max, pivot)| *max < segment.min[..] && pivot <= first));
                assert!(
                    segment
                        .live
                        .windows(2)
                        .all(|two| two[0].pivot < two[1].pivot)
                );
                before = segment
                    .live
                    .last()
                    .map(|last| (&segment.max[..], last.pivot));
                for part in &segment.live {
                    pending[usize::from(part.pivot)] += part.bytes;
                    assert!(part.records > 0);
                }
            }
        }
        // Both parts of a split may keep a buffer that was within the bound of the whole.
        let bound = 2 * group_bytes * self.fanout as u64 + self.record_bytes_max;
        assert!(
            pending.iter().sum::<u64>() <= bound,
            "{pending:?} are over {bound}"
        );
        for (pivot, pending) in node.pivots.iter().zip(pending) {
            assert_eq!(pivot.pending_bytes, pending);
            match &pivot.child {
                Child::Leaf(leaf) => {
                    assert_eq!(leaf.tombstones, 0);
                    let bytes = u64::from(leaf.index_offset) + u64::from(leaf.index_bytes);
                    assert!(bytes >= group_bytes / 2, "a leaf of {bytes} bytes");
                }
                Child::Node { page, sums } => {
                    let child = load_node(&self.store, page, node.height - 1).unwrap();
                    assert_eq!(*sums, child.sums());
                    self.check_node(&child, false);
                }
            }
        }
    }
}

/// The kind of messages that a memtable brings.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Uniform,
    Local,
    Hot,
    Shrinking,
    DeleteRange,
    DeleteSome,
    DeleteAll,
    Huge,
}

fn key_of(number: u64) -> Vec<u8> {
    format!("k{:07}", number % 10_000_000).into_bytes()
}

fn memtable(random: &mut Random, kind: Kind, bytes: u64, tree: &Tree) -> Map {
    let mut map = Map::new();
    let mut sum = 0;
    let space = 20_000;
    let start = random.below(space);
    let some_key = |random: &mut Random| {
        let probe = key_of(random.below(space));
        tree.oracle
            .range(probe..)
            .next()
            .map_or_else(|| key_of(random.below(space)), |(key, _)| key.clone())
    };
    while sum < bytes {
        let length = random.below(60);
        let (key, length) = match kind {
            Kind::Uniform => (key_of(random.below(space)), Some(length)),
            Kind::Local => (key_of(start + random.below(space / 20)), Some(length)),
            Kind::Hot => (key_of(start + random.below(5)), Some(length)),
            Kind::Shrinking => (some_key(random), Some(length / 30)),
            Kind::DeleteRange => (key_of(start + random.below(space / 5)), None),
            Kind::DeleteSome => (some_key(random), None),
            Kind::DeleteAll => {
                map.extend(tree.oracle.keys().map(|key| (key.clone(), None)));
                break;
            }
            Kind::Huge => (key_of(random.below(space)), Some(random.below(20_000))),
        };
        sum += key.len() as u64 + length.unwrap_or(0);
        let seed = random.next() as u8;
        map.insert(
            key,
            length.map(|length| (0..length).map(|i| seed.wrapping_add(i as u8)).collect()),
        );
        if matches!(kind, Kind::DeleteSome | Kind::Shrinking) && map.len() > tree.oracle.len() / 2 {
            break;
        }
        sum += 8;
    }
    map
}

fn churn(seed: u64, fanout: usize, group_bytes: u64, space: Option<u32>, rounds: usize) -> Tree {
    use Kind::*;
    let mut random = Random((seed + 1).wrapping_mul(0x1234_5678_9abc_def1));
    let mut tree = Tree::new(group_bytes, fanout, space);
    let mut kind = Uniform;
    let mut was_empty = 0;
    for round in 0..rounds {
        if round > rounds / 4 && random.below(4) == 0 {
            let kinds = [
                Uniform,
                Uniform,
                Uniform,
                Local,
                Local,
                Hot,
                Shrinking,
                DeleteRange,
                DeleteRange,
                DeleteSome,
                DeleteSome,
                Huge,
                DeleteAll,
            ];
            kind = kinds[random.below(kinds.len() as u64) as usize];
        }
        let chi = [1, 1, 2, 4, 16][random.below(5) as usize];
        let bytes = group_bytes * chi / (1 + random.below(2));
        let messages = memtable(&mut random, kind, bytes, &tree);
        tree.options.space_is_short = random.below(10) == 0;
        tree.merge(&messages);
        tree.options.space_is_short = false;
        if random.below(6) == 0 {
            let from = key_of(random.below(20_000));
            let _ = tree.compact(&from, group_bytes * (1 + random.below(40)));
        }
        was_empty += usize::from(tree.oracle.is_empty());
        if round % 16 == 0 {
            tree.verify();
        }
    }
    let everything = memtable(&mut random, DeleteAll, 1, &tree);
    tree.merge(&everything);
    assert!(tree.oracle.is_empty() && was_empty < rounds);
    tree.options.space_is_short = true;
    // Deletes keys that were deleted long ago too. So every pivot gets messages, and is flushed.
    tree.merge(&(0..30_000).map(|number| (key_of(number), None)).collect());
    assert_eq!(
        tree.store.live_bytes(),
        0,
        "deletes that were flushed to the leaves leave nothing behind"
    );
    tree
}

#[test]
fn random_merges_match_a_map_and_keep_every_rule() {
    let mut height = 0;
    for seed in 0..12 {
        let fanout = [4, 5, 8][seed as usize % 3];
        let group_bytes = [2048, 3000, 8192][seed as usize / 3 % 3];
        let space = [None, Some(130), Some(110)][seed as usize / 2 % 3];
        let tree = churn(seed, fanout, group_bytes, space, 120);
        height = height.max(tree.height_max);
    }
    assert!(height >= 3, "{height}");
}

#[test]
fn equal_merges_make_equal_trees() {
    let roots = [(); 2]
        .map(|()| churn(77, 4, 2048, Some(130), 40))
        .map(|tree| (tree.disk.trace_hash(), tree.references));
    assert!(roots[0] == roots[1]);
}

/// A tree of some height with full buffers.
fn grown(random: &mut Random, space: Option<u32>) -> Tree {
    let mut tree = Tree::new(2048, 4, space);
    for _ in 0..40 {
        let messages = memtable(random, Kind::Uniform, 4096, &tree);
        tree.merge(&messages);
    }
    tree
}

#[test]
fn overwriting_a_few_keys_many_times_leaves_a_small_tree() {
    let mut random = Random(5);
    let mut tree = grown(&mut random, Some(130));
    let before = tree.store.live_bytes();
    let keys: Vec<_> = tree.oracle.keys().take(20).cloned().collect();
    for round in 0..100u64 {
        let value = |i: u64| Some(vec![round as u8; (i % 50) as usize]);
        tree.merge(&keys.iter().cloned().zip((0..).map(value)).collect());
    }
    assert!(
        tree.store.live_bytes() < before + before / 4,
        "{before} {}",
        tree.store.live_bytes()
    );
}

#[test]
fn large_segments_end_with_a_pivot_so_that_little_of_them_is_dead() {
    const LEAST: u64 = 128 << 10;
    let mut random = Random(6);
    let mut tree = Tree::new(4 * LEAST, 64, None);
    // The dead bytes vary from round to round.
    let (mut dead, mut all) = (0, 0);
    for round in 0..120 {
        let value = Some(vec![7; 4000]);
        let messages = (0..64).map(|_| (key_of(random.next()), value.clone()));
        tree.merge(&messages.collect());
        if round >= 60 {
            let parts = tree.version.stats().unwrap().parts;
            dead += parts.flushed_blocks;
            all += parts.buffer_blocks + parts.flushed_blocks;
        }
    }
    let (node, _) = tree.root_node();
    let mut segments = 0;
    for level in &node.levels {
        for segment in &level[..level.len().saturating_sub(1)] {
            let bytes: Vec<u64> = segment.live.iter().map(|part| part.bytes).collect();
            let before_last: u64 = bytes[..bytes.len() - 1].iter().sum();
            assert!(before_last < LEAST, "{bytes:?} in one segment");
            segments += 1;
        }
    }
    assert!(segments > 2, "a buffer that holds something");
    assert!(dead < all / 8, "{dead} of {all}");
}

#[test]
fn while_space_is_short_everything_goes_to_the_leaves() {
    let mut random = Random(6);
    let mut tree = grown(&mut random, None);
    assert!(tree.height_max >= 2);
    assert!(tree.version.stats().unwrap().buffered_records > 0);
    tree.options.space_is_short = true;
    // A message for every leaf, so that every node is visited.
    let messages = tree
        .oracle
        .keys()
        .step_by(9)
        .map(|key| (key.clone(), Some(vec![1])))
        .collect();
    tree.merge(&messages);
    let stats = tree.version.stats().unwrap();
    assert_eq!(
        (stats.buffered_records, stats.leaf_records),
        (0, tree.oracle.len() as u64)
    );
}

#[test]
fn an_empty_memtable_changes_nothing() {
    let mut random = Random(7);
    let mut tree = grown(&mut random, None);
    let (root, writes) = (tree.version.root(), tree.disk.stats_total().writes);
    tree.merge(&Map::new());
    assert_eq!(
        (tree.version.root(), tree.disk.stats_total().writes),
        (root, writes)
    );
}

#[test]
fn a_failed_merge_gives_back_its_pages_and_another_succeeds() {
    let mut random = Random(8);
    let mut tree = grown(&mut random, Some(130));
    let mut failures = 0;
    for n in 1..60 {
        let messages = memtable(&mut random, Kind::Uniform, 6000, &tree);
        let (live, root) = (tree.store.live_bytes(), tree.version.root());
        let error = if n % 3 == 0 {
            FaultError::NoSpace
        } else {
            FaultError::Io
        };
        tree.disk.inject(Fault::nth(n, error));
        let merge = tree.begin(&messages);
        let result = loop {
            match merge.step() {
                Ok(MergeStep::Done) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        tree.disk.clear_faults();
        if let Err(error) = result {
            failures += 1;
            assert!(
                [ErrorKind::Io, ErrorKind::NoSpace].contains(&error.kind()),
                "{error}"
            );
            assert_eq!(
                merge.step().err().map(|e| e.kind()),
                Some(error.kind()),
                "it stays failed"
            );
            assert!(merge.finish().is_err());
        }
        merge.abandon();
        merge.abandon();
        assert!(merge.finish().is_err());
        drop(merge);
        assert_eq!(tree.budget.used(Purpose::Merge), 0);
        assert_eq!(tree.store.live_bytes(), live, "after fault {n}");
        assert_eq!(tree.version.root(), root);
        tree.check();
        tree.merge(&messages);
    }
    assert!(failures > 15, "{failures}");
}

/// The root with the largest possible counts, of which each claims the largest records.
fn boasting(tree: &Tree) -> Root {
    let (root, height) = tree.root_node();
    let mut node = Node::clone(&root);
    for pivot in &mut node.pivots {
        match &mut pivot.child {
            Child::Leaf(leaf) => (leaf.records, leaf.logical_bytes) = (1, 1 << 44),
            Child::Node { sums, .. } => {
                *sums = Sums {
                    records: 1,
                    leaf_bytes: SUM_MAX,
                    buffered_bytes: SUM_MAX,
                    replaced_bytes: SUM_MAX,
                    hidden_bytes: SUM_MAX,
                    record_bytes_max: RECORD_BYTES_MAX,
                }
            }
        }
    }
    for part in node.levels.iter_mut().flatten().flat_map(|s| &mut s.live) {
        (part.records, part.bytes) = (u32::MAX, 1 << 44);
        part.hidden_bytes = 1 << 44;
    }
    Root::Node(tree.write_node(&node), height)
}

#[test]
fn a_node_with_impossible_counts_never_makes_a_merge_panic() {
    let mut random = Random(10);
    for (height, space) in [(1, None), (1, Some(130)), (2, None), (2, Some(130))] {
        let mut tree = Tree::new(4096, 8, space);
        loop {
            let messages = memtable(&mut random, Kind::Uniform, 3000, &tree);
            tree.merge(&messages);
            if let Root::Node(page, now) = tree.root()
                && now == height
                && !load_node(&tree.store, &page, now)
                    .unwrap()
                    .is_buffer_empty()
            {
                break;
            }
        }
        tree.version = TreeVersion::open(&tree.store, boasting(&tree)).unwrap();
        let one = tree.oracle.keys().next().unwrap().clone();
        let every = tree.oracle.keys().map(|key| (key.clone(), None)).collect();
        for (messages, space_is_short) in [
            (Map::from([(one, Some(vec![1]))]), false),
            (every, false),
            (memtable(&mut random, Kind::Uniform, 3000, &tree), true),
        ] {
            tree.options.space_is_short = space_is_short;
            let merge = tree.begin(&messages);
            loop {
                match merge.step() {
                    Ok(MergeStep::Done) => break,
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                        break;
                    }
                }
            }
            merge.abandon();
        }
    }
}

#[test]
fn a_merge_in_progress_leaves_the_old_version_readable() {
    let mut random = Random(9);
    let tree = grown(&mut random, None);
    let messages = memtable(&mut random, Kind::DeleteSome, 6000, &tree);
    let merge = tree.begin(&messages);
    loop {
        let mut scan = tree
            .version
            .scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)
            .unwrap();
        for (key, value) in &tree.oracle {
            assert_eq!(scan.next().unwrap(), Some((&key[..], &value[..])));
        }
        if matches!(merge.step().unwrap(), MergeStep::Done) {
            break;
        }
    }
    merge.abandon();
}

#[test]
fn options_out_of_bounds_are_refused() {
    let tree = Tree::new(2048, 4, None);
    let begin = |change: fn(&mut MergeOptions)| {
        let mut options = tree.options.clone();
        change(&mut options);
        tree.structure
            .begin_merge(&tree.version, Input::new(&Map::new()), &options)
            .map(|_| ())
            .map_err(|e| e.kind())
    };
    assert_eq!(begin(|_| {}), Ok(()));
    for change in [
        |o: &mut MergeOptions| o.group_bytes = 0,
        |o: &mut MergeOptions| o.group_bytes = 1 << 40,
        |o: &mut MergeOptions| o.block_bytes = 0,
        |o: &mut MergeOptions| o.block_bytes = 1 << 30,
    ] {
        assert_eq!(begin(change), Err(ErrorKind::InvalidArgument));
    }
}

#[test]
fn group_bytes_may_change_between_merges() {
    let mut random = Random(11);
    let mut tree = Tree::new(2048, 4, Some(130));
    // Leaves of another L keep their size until they are next written, so only the content is
    // checked.
    for round in 0..30 {
        tree.options.group_bytes = [2048, 16384, 4096][round % 3];
        let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
        let merge = tree.begin(&messages);
        while !matches!(merge.step().unwrap(), MergeStep::Done) {}
        tree.take(&messages, &*merge);
        tree.check_content();
        tree.verify();
    }
}

#[test]
fn compressed_trees_have_the_same_content() {
    let mut random = Random(12);
    let mut tree = Tree::new(4096, 4, Some(130));
    tree.options.compression = Compression::Lz4;
    for _ in 0..30 {
        let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
        tree.merge(&messages);
    }
    tree.verify();
}
