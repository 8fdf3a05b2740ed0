//! A tree with its expected content, memtables to merge into it, and a check of every rule.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Budget, Generation, Incarnation, Message, PageId, Purpose, Result};
use terrapin_disk::SimDisk;
use terrapin_pages::{Changes, PageKind, PageRef, PageStore, SpaceClass, StoreOptions};
use terrapin_structure::{
    Direction, Erased, Estimate, Merge, MergeInput, MergeOptions, MergeStep, Merged, MessageCursor,
    Ordered, Structure, Version,
};

use crate::load::{LoadedNode, load_node};
use crate::merge::{Context, ErasedRanges, TreeMerge};
use crate::node::{Child, Node, Root, Segment};
use crate::plan::Policy;
use crate::tree::{BeTree, BeTreeParams, Buffers};
use crate::version::TreeVersion;

pub(super) type Map = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A memtable: messages in key order, the bytes before each, and what it erases.
pub(super) struct Input {
    pub(super) erased: Vec<Erased>,
    pub(super) messages: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) before: Vec<u64>,
    /// This many of a thousand messages are known to replace a record.
    pub(super) replacing: u16,
}

pub(super) struct InputCursor {
    pub(super) input: Arc<Input>,
    pub(super) at: usize,
    pub(super) end: usize,
}

impl Input {
    pub(super) fn new(messages: &Map) -> Arc<Self> {
        Self::erasing(messages, &[])
    }

    pub(super) fn erasing(messages: &Map, erased: &[Erased]) -> Arc<Self> {
        let messages: Vec<_> = messages.clone().into_iter().collect();
        let mut before = vec![0];
        for (key, value) in &messages {
            before.push(
                before[before.len() - 1] + (key.len() + value.as_ref().map_or(0, Vec::len)) as u64,
            );
        }
        let erased = erased.to_vec();
        Arc::new(Input {
            erased,
            messages,
            before,
            replacing: 0,
        })
    }

    pub(super) fn place(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> (usize, usize) {
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
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let (at, end) = self.place(lo, hi);
        Ok(Box::new(InputCursor {
            input: self,
            at,
            end,
        }))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let (from, to) = self.place(lo, hi);
        Estimate {
            records: (to - from) as u64,
            bytes: self.before[to] - self.before[from],
        }
    }

    fn erased(&self) -> &[Erased] {
        &self.erased
    }

    fn replacing_permille(&self) -> u16 {
        self.replacing
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

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A tree, its expected content, and the expected number of references to each page.
pub(super) struct Tree {
    pub(super) disk: SimDisk,
    pub(super) store: Arc<PageStore>,
    pub(super) budget: Arc<Budget>,
    pub(super) structure: Arc<BeTree>,
    /// The same with the other kind of buffers.
    other: Arc<BeTree>,
    /// The buffers were tiered at some time.
    was_tiered: bool,
    pub(super) version: Arc<dyn Version>,
    pub(super) options: MergeOptions,
    pub(super) fanout: usize,
    pub(super) oracle: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) references: BTreeMap<PageId, u64>,
    /// Greatest height and largest record so far.
    pub(super) height_max: u16,
    pub(super) record_bytes_max: u64,
    pub(super) generation: u64,
}

impl Tree {
    pub(super) fn new(group_bytes: u64, fanout: usize, space: Option<u32>) -> Tree {
        let budget = Budget::new(64 << 20);
        let disk = SimDisk::new(1);
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 64 << 10,
            system_cache: false,
        };
        let store = PageStore::create(&disk.handle(), options, 7).unwrap();
        store.begin_life(Incarnation(1));
        let make = |buffers| {
            let params = BeTreeParams {
                fanout,
                budget: budget.clone(),
                buffers,
            };
            BeTree::new(store.clone(), params)
        };
        let (structure, other) = (make(Buffers::Leveled), make(Buffers::Tiered));
        Tree {
            disk,
            store,
            budget,
            version: structure.empty(),
            structure,
            other,
            was_tiered: false,
            options: MergeOptions {
                block_bytes: 512,
                space_amplification_percent: space,
                ..MergeOptions::new(group_bytes)
            },
            fanout,
            oracle: BTreeMap::new(),
            references: BTreeMap::new(),
            height_max: 0,
            record_bytes_max: 0,
            generation: 1,
        }
    }

    /// Goes on with the other kind of buffers, as a keyspace does whose structure changes.
    pub(super) fn change_buffers(&mut self) {
        std::mem::swap(&mut self.structure, &mut self.other);
        self.was_tiered = true;
        let root = self.version.root();
        self.version = self.structure.open(&root).unwrap();
        assert_eq!(self.version.root(), root, "nothing is rewritten");
    }

    /// A tree with tiered buffers.
    pub(super) fn tiered(group_bytes: u64, fanout: usize, space: Option<u32>) -> Tree {
        let mut tree = Tree::new(group_bytes, fanout, space);
        tree.change_buffers();
        tree
    }

    pub(super) fn ordered(&self) -> &dyn Ordered {
        self.version.ordered().unwrap()
    }

    pub(super) fn begin(&self, messages: &Map) -> Arc<dyn Merge> {
        self.structure
            .begin_merge(&self.version, Input::new(messages), &self.options)
            .unwrap()
    }

    /// Like [`Tree::begin`], into any root.
    pub(super) fn tree_merge(
        &self,
        messages: &Map,
        root: Root,
        space_is_short: bool,
    ) -> Arc<TreeMerge> {
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
                runs_wanted: None,
            },
            options,
            budget: self.budget.clone(),
            leaf_filters: Arc::default(),
            stretch: None,
            erased: ErasedRanges::default(),
            brings: 0,
            root_node: None,
        };
        TreeMerge::begin(context, root).unwrap()
    }

    pub(super) fn root(&self) -> Root {
        let version = self.version.as_any().downcast_ref::<TreeVersion>().unwrap();
        version.tree_root().clone()
    }

    /// The root, which must be a node, and its height.
    pub(super) fn root_node(&self) -> (Arc<LoadedNode>, u16) {
        let Root::Node(page, height) = self.root() else {
            panic!("a tree without nodes: {:?}", self.root());
        };
        (load_node(&self.store, &page, height).unwrap(), height)
    }

    /// Writes a node that no merge would write.
    pub(super) fn write_node(&self, node: &Node) -> PageRef {
        let content = node.encode().unwrap();
        self.store
            .write_page(PageKind::Node, &content, SpaceClass::Normal)
            .unwrap()
    }

    pub(super) fn merge(&mut self, messages: &Map) {
        self.merge_erasing(messages, &[]);
    }

    /// Merges messages and erased ranges, which are older than the messages.
    pub(super) fn merge_erasing(&mut self, messages: &Map, erased: &[Erased]) {
        let mut input = Input::erasing(messages, erased);
        // The engine looks some keys up.
        if let Some(input) = Arc::get_mut(&mut input).filter(|_| self.was_tiered) {
            let replaced = messages.keys().filter(|key| self.oracle.contains_key(*key));
            let share = replaced.count() * 1000 / messages.len().max(1);
            input.replacing = share as u16;
        }
        let merge = self
            .structure
            .begin_merge(&self.version, input, &self.options)
            .unwrap();
        for Erased { lo, hi } in erased {
            self.oracle
                .retain(|key, _| key[..] < **lo || hi.as_ref().is_some_and(|hi| key[..] >= **hi));
        }
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

    pub(super) fn take(&mut self, messages: &Map, merge: &dyn Merge) {
        let merged = merge.finish().unwrap();
        assert!(merge.finish().is_err());
        merge.abandon();
        self.take_merged(messages, merged);
    }

    pub(super) fn take_merged(&mut self, messages: &Map, merged: Merged) {
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

    pub(super) fn count(&mut self, changes: &Changes) {
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
    pub(super) fn check_content(&self) {
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
            .ordered()
            .unwrap()
            .scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)
            .unwrap();
        for (key, value) in &self.oracle {
            let found = scan.next().unwrap();
            assert_eq!(found, Some((&key[..], &value[..])));
        }
        assert_eq!(scan.next().unwrap(), None);
    }

    /// Checks content, page accounting and every rule of the tree's shape.
    pub(super) fn check(&mut self) {
        self.check_content();
        let version = self.version.as_any().downcast_ref::<TreeVersion>().unwrap();
        let root = version.tree_root().clone();
        assert_eq!(Root::decode(&root.encode()).unwrap(), root);
        match root {
            Root::Empty => assert!(self.oracle.is_empty()),
            Root::Leaf(leaf, _) => assert_eq!(leaf.records, self.oracle.len() as u64),
            Root::Node(page, height) => {
                self.height_max = self.height_max.max(height);
                let node = load_node(&self.store, &page, height).unwrap();
                assert!(node.pivots.len() > 1 || !node.is_buffer_empty());
                self.check_node(&node, true);
            }
        }
    }

    pub(super) fn verify(&self) {
        self.version
            .verify(&mut |finding| panic!("{}: {}", finding.place, finding.message))
            .unwrap();
    }

    pub(super) fn check_node(&self, node: &Node, is_root: bool) {
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
        let levels_max = match self.was_tiered {
            true => 100,
            false => self.fanout.next_power_of_two().trailing_zeros() as usize,
        };
        assert!(node.levels.len() <= levels_max, "{}", node.levels.len());
        assert!(node.levels.last().is_none_or(|level| !level.is_empty()));
        let mut pending = vec![0; node.pivots.len()];
        for level in &node.levels {
            let mut before: Option<&Segment> = None;
            for segment in level {
                assert!(segment.min <= segment.max);
                let first = segment
                    .live
                    .first()
                    .expect("a segment without live parts leaves")
                    .pivot;
                let before_pivot = before.and_then(|s| s.live.last()).map_or(0, |p| p.pivot);
                assert!(before.is_none_or(|before| before.ends_before(segment)));
                assert!(before_pivot <= first);
                assert!(
                    segment
                        .live
                        .windows(2)
                        .all(|two| two[0].pivot < two[1].pivot)
                );
                before = Some(segment);
                for part in &segment.live {
                    pending[usize::from(part.pivot)] += part.bytes;
                    assert!(part.records > 0);
                }
            }
        }
        // Both parts of a split may keep a buffer that was within the bound of the whole.
        let bound = 2 * group_bytes * self.fanout as u64 + self.record_bytes_max;
        assert!(
            self.was_tiered || pending.iter().sum::<u64>() <= bound,
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
