//! Merges against a map, with trees so small-limbed that every rare path is common, and a check of every rule after each.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Budget, Generation, Incarnation, PageId, Purpose, Result};
use terrapin_disk::SimDisk;
use terrapin_pages::block::Compression;
use terrapin_pages::message::Message;
use terrapin_pages::{Changes, PageStore, StoreOptions};
use terrapin_structure::{
    Direction, Estimate, Merge, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure, Version,
};

use crate::load::load_node;
use crate::node::{Child, Node, Root};
use crate::tree::{BeTree, BeTreeParams};
use crate::version::TreeVersion;

type Map = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A window: messages in key order, and the bytes before each.
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
            before.push(before[before.len() - 1] + (key.len() + value.as_ref().map_or(0, Vec::len)) as u64);
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
        self.input.messages[self.at].1.as_deref().map_or(Message::Delete, Message::Put)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

impl MergeInput for Input {
    fn cursor(self: Arc<Self>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Box<dyn MessageCursor> {
        let (at, end) = self.place(lo, hi);
        Box::new(InputCursor { input: self, at, end })
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let (from, to) = self.place(lo, hi);
        Estimate { records: (to - from) as u64, bytes: self.before[to] - self.before[from] }
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

/// A tree, what it should hold, and how often each page should be referred to.
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
    /// Greatest height so far, and merges of each result for coverage.
    height_max: u16,
    generation: u64,
}

impl Tree {
    fn new(group_bytes: u64, fanout: usize, space: Option<u32>) -> Tree {
        let budget = Budget::new(64 << 20);
        let disk = SimDisk::new(1);
        let options = StoreOptions { budget: budget.clone(), reserve_bytes: 64 << 10 };
        let store = PageStore::create(&disk.handle(), options, 7).unwrap();
        store.begin_life(Incarnation(1));
        let structure = BeTree::new(store.clone(), BeTreeParams { fanout, budget: budget.clone() });
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
            generation: 1,
        }
    }

    fn begin(&self, messages: &Map) -> Arc<dyn Merge> {
        self.structure.begin_merge(&self.version, Input::new(messages), &self.options).unwrap()
    }

    fn merge(&mut self, messages: &Map) {
        let merge = self.begin(messages);
        let mut before = (0, 0);
        loop {
            let step = merge.step().unwrap();
            let now = merge.progress();
            assert!(before.0 <= now.0 && before.1 <= now.1 && now.0 <= now.1, "{before:?} {now:?}");
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
        self.store.commit(Generation(self.generation), merged.changes);
        for (key, value) in messages {
            match value {
                Some(value) => self.oracle.insert(key.clone(), value.clone()),
                None => self.oracle.remove(key),
            };
        }
    }

    fn count(&mut self, changes: &Changes) {
        for page in &changes.added {
            assert!(self.references.insert(page.id, 1).is_none(), "a page was added twice");
        }
        for id in &changes.retained {
            *self.references.get_mut(id).expect("a retained page is known") += 1;
        }
        for id in &changes.released {
            let count = self.references.get_mut(id).expect("a released page is known");
            *count -= 1;
            if *count == 0 {
                self.references.remove(id);
            }
        }
    }

    /// Checks content, page accounting and every rule of the tree's shape.
    fn check(&mut self) {
        let mut walked = BTreeMap::new();
        let mut bytes = BTreeMap::new();
        self.version
            .pages(&mut |page| {
                *walked.entry(page.id).or_insert(0) += 1;
                bytes.insert(page.id, page.extent().unwrap().bytes);
                Ok(())
            })
            .unwrap();
        assert_eq!(walked, self.references, "pages that the tree refers to, and what merges said of them");
        assert_eq!(self.store.live_bytes(), bytes.values().sum());
        assert_eq!(self.store.retired_bytes(), 0);

        let mut scan = self.version.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward).unwrap();
        for (key, value) in &self.oracle {
            let found = scan.next().unwrap();
            assert_eq!(found, Some((&key[..], &value[..])));
        }
        assert_eq!(scan.next().unwrap(), None);
        drop(scan);

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

    fn check_node(&self, node: &Node, is_root: bool) {
        assert_eq!(&Node::decode(&node.encode().unwrap()).unwrap(), node);
        let group_bytes = self.options.group_bytes;
        let has_short_keys = node.encode().unwrap().len() < 8 << 10;
        assert!(node.pivots.len() <= self.fanout);
        if has_short_keys {
            assert!(is_root || node.pivots.len() >= self.fanout / 2, "{} pivots", node.pivots.len());
        }
        assert!(node.levels.len() <= self.fanout.next_power_of_two().trailing_zeros() as usize);
        assert!(node.levels.last().is_none_or(|level| !level.is_empty()));
        let mut pending = vec![0; node.pivots.len()];
        for level in &node.levels {
            let mut before: Option<(&[u8], u16)> = None;
            for segment in level {
                assert!(segment.min <= segment.max);
                let first = segment.live.first().expect("a segment without live parts leaves").pivot;
                assert!(before.is_none_or(|(max, pivot)| *max < segment.min[..] && pivot <= first));
                assert!(segment.live.windows(2).all(|two| two[0].pivot < two[1].pivot));
                before = segment.live.last().map(|last| (&segment.max[..], last.pivot));
                for part in &segment.live {
                    pending[usize::from(part.pivot)] += part.bytes;
                    assert!(part.records > 0);
                }
            }
        }
        for (pivot, pending) in node.pivots.iter().zip(pending) {
            assert_eq!(pivot.pending_bytes, pending);
            match &pivot.child {
                Child::Leaf(leaf) => {
                    assert_eq!(leaf.tombstones, 0);
                    let bytes = u64::from(leaf.index_offset) + u64::from(leaf.index_bytes);
                    assert!(bytes >= group_bytes / 2, "a leaf of {bytes} bytes");
                }
                Child::Node { page, records, leaf_bytes } => {
                    let child = load_node(&self.store, page, node.height - 1).unwrap();
                    assert_eq!((*records, *leaf_bytes), (child.records(), child.leaf_bytes()));
                    self.check_node(&child, false);
                }
            }
        }
    }
}

/// What a window brings.
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

fn window(random: &mut Random, kind: Kind, bytes: u64, tree: &Tree) -> Map {
    let mut map = Map::new();
    let mut sum = 0;
    let space = 20_000;
    let start = random.below(space);
    let some_key = |random: &mut Random| {
        let probe = key_of(random.below(space));
        tree.oracle.range(probe..).next().map_or_else(|| key_of(random.below(space)), |(key, _)| key.clone())
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
        map.insert(key, length.map(|length| (0..length).map(|i| seed.wrapping_add(i as u8)).collect()));
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
    for round in 0..rounds {
        if round > rounds / 4 && random.below(4) == 0 {
            let kinds = [
                Uniform, Uniform, Uniform, Local, Local, Hot, Shrinking, DeleteRange, DeleteRange, DeleteSome, DeleteSome,
                Huge, DeleteAll,
            ];
            kind = kinds[random.below(kinds.len() as u64) as usize];
        }
        let chi = [1, 1, 2, 4, 16][random.below(5) as usize];
        let bytes = group_bytes * chi / (1 + random.below(2));
        let messages = window(&mut random, kind, bytes, &tree);
        tree.merge(&messages);
    }
    tree
}

#[test]
fn random_merges_give_what_a_map_gives_and_keep_every_rule() {
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
