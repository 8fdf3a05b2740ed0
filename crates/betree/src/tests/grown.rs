//! A random tree and a map of its content.

use std::collections::BTreeMap;
use std::sync::Arc;
use terrapin_base::{Message, Slice};

use terrapin_pages::block::Compression;
use terrapin_pages::group::{Deadlines, GroupBuilder, GroupOptions, GroupRef};
use terrapin_pages::{PageKind, PageStore, SpaceClass};
use terrapin_structure::{Found, Version};

use super::store::TestStore;
use crate::node::{Child, LivePart, Node, Pivot, Root, Segment};
use crate::version::TreeVersion;

/// A small xorshift generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `below`.
    pub(super) fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }

    pub(super) fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;
/// `None` is a delete.
type Messages = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A random tree.
pub(super) struct Grown {
    pub(super) store: TestStore,
    pub(super) root: Root,
    /// The records that a reader should see.
    pub(super) records: Records,
    /// All keys that the tree could have, sorted.
    pub(super) universe: Vec<Vec<u8>>,
    pub(super) nodes: u64,
    pub(super) leaves: u64,
    pub(super) leaf_records: u64,
    pub(super) buffered_records: u64,
}

impl Grown {
    /// A tree of a given height; 0 makes a single leaf.
    pub(super) fn new(seed: u64, height: u16, keys: usize) -> Self {
        let mut random = Random::new(seed);
        let mut universe = std::collections::BTreeSet::new();
        while universe.len() < keys {
            universe.insert(random_key(&mut random));
        }
        let mut grown = Grown {
            store: TestStore::new(),
            root: Root::Empty,
            records: Records::new(),
            universe: universe.into_iter().collect(),
            nodes: 0,
            leaves: 0,
            leaf_records: 0,
            buffered_records: 0,
        };
        let (child, records) = grown.grow(&mut random, height, 0, keys);
        grown.records = records;
        grown.root = match child {
            Child::Leaf(group) => Root::Leaf(group, Deadlines::default()),
            Child::Node { page, .. } => Root::Node(page, height),
        };
        grown
    }

    pub(super) fn pages(&self) -> &Arc<PageStore> {
        self.store.pages()
    }

    /// What a lookup of a key finds.
    pub(super) fn expected(&self, key: &[u8]) -> Found {
        let value = self.records.get(key);
        value.map_or(Found::Nothing, |value| Found::Value(Slice::copy(value)))
    }

    pub(super) fn version(&self) -> Arc<TreeVersion> {
        let encoded = self.root.encode();
        let version = TreeVersion::open(self.pages(), Root::decode(&encoded).unwrap()).unwrap();
        assert_eq!(version.root(), encoded);
        version
    }

    /// A subtree over a range of the universe, and its content.
    fn grow(
        &mut self,
        random: &mut Random,
        height: u16,
        from: usize,
        to: usize,
    ) -> (Child, Records) {
        if height == 0 {
            let mut messages = Messages::new();
            let share = 1 + random.below(3);
            for key in &self.universe[from..to] {
                if random.below(3) < share || messages.is_empty() {
                    messages.insert(key.clone(), Some(random_value(random)));
                }
            }
            self.leaves += 1;
            self.leaf_records += messages.len() as u64;
            let group = write(self.pages(), &messages);
            return (
                Child::Leaf(group),
                messages
                    .into_iter()
                    .filter_map(|(k, v)| Some((k, v?)))
                    .collect(),
            );
        }
        // Pivots begin at a key, or at the shortest string above the key before.
        let mut cuts = vec![from];
        for _ in 0..1 + random.below(6) {
            let cut = from + random.below(to - from);
            // Every child needs keys for children of its own.
            if cuts.iter().all(|&c| cut.abs_diff(c) > 8) && to - cut > 8 {
                cuts.push(cut);
            }
        }
        cuts.sort_unstable();
        let mut node = Node {
            height,
            replaced_permille: random.below(1001) as u16,
            counts_replaced: false,
            pivots: Vec::new(),
            levels: Vec::new(),
        };
        let mut records = Records::new();
        for (number, &cut) in cuts.iter().enumerate() {
            let end = cuts.get(number + 1).copied().unwrap_or(to);
            let (child, below) = self.grow(random, height - 1, cut, end);
            records.extend(below);
            let lower = match number {
                0 => Vec::new(),
                _ if random.one_in(2) => self.universe[cut].clone(),
                _ => separator(&self.universe[cut - 1], &self.universe[cut]),
            };
            node.pivots.push(Pivot {
                lower: lower.into(),
                child,
                deadlines: Deadlines::default(),
                pending_bytes: 0,
                maplet: None,
            });
        }
        for _ in 0..random.below(5) {
            let level = self.grow_level(random, &cuts, from, to);
            node.levels
                .push(level.iter().map(|(segment, _)| segment.clone()).collect());
            // Levels are made oldest first.
            for (key, message) in level.into_iter().flat_map(|(_, live)| live) {
                match message {
                    Some(value) => records.insert(key, value),
                    None => records.remove(&key),
                };
            }
        }
        node.levels.reverse();
        node.tidy();
        self.nodes += 1;
        let content = node.encode().unwrap();
        let page = self
            .pages()
            .write_page(PageKind::Node, &content, SpaceClass::Normal)
            .unwrap();
        let child = Child::Node {
            page,
            sums: node.sums(),
        };
        (child, records)
    }

    /// The segments of a level, each with its live messages.
    fn grow_level(
        &mut self,
        random: &mut Random,
        cuts: &[usize],
        from: usize,
        to: usize,
    ) -> Vec<(Segment, Messages)> {
        let mut level = Vec::new();
        let mut at = from + random.below((to - from) / 2);
        while at < to && !random.one_in(8) {
            let end = (at + 1 + random.below((to - from) / 2 + 1)).min(to);
            let density = 1 + random.below(4);
            // Keys on both sides of the segment's keys, inside or outside of the node's range.
            let (before, behind) = (random.below(4), random.below(4));
            let mut in_group = Messages::new();
            let mut own = Vec::new();
            let shown = at.saturating_sub(before)..(end + behind).min(self.universe.len());
            for i in shown {
                if random.below(4) < density {
                    let message = (!random.one_in(4)).then(|| random_value(random));
                    in_group.insert(self.universe[i].clone(), message);
                    if (at..end).contains(&i) {
                        own.push(i);
                    }
                }
            }
            let mut live = Vec::new();
            let mut messages = Messages::new();
            for pivot in 0..cuts.len() {
                let range = cuts[pivot]..cuts.get(pivot + 1).copied().unwrap_or(to);
                let part: Vec<&Vec<u8>> = own
                    .iter()
                    .filter(|i| range.contains(i))
                    .map(|&i| &self.universe[i])
                    .collect();
                if part.is_empty() || random.one_in(3) {
                    continue;
                }
                let bytes = part
                    .iter()
                    .map(|&k| k.len() + in_group[k].as_ref().map_or(0, Vec::len))
                    .sum::<usize>();
                live.push(LivePart {
                    pivot: pivot as u16,
                    records: part.len() as u32,
                    bytes: bytes as u64,
                    hidden_bytes: 0,
                    separated_bytes: 0,
                });
                messages.extend(
                    part.into_iter()
                        .map(|key| (key.clone(), in_group[key].clone())),
                );
            }
            if let (Some(&first), Some(&last), false) = (own.first(), own.last(), live.is_empty()) {
                self.buffered_records += messages.len() as u64;
                let (min, max) = (
                    self.universe[first].clone().into(),
                    self.universe[last].clone().into(),
                );
                level.push((
                    Segment {
                        deadlines: Deadlines::default(),
                        group: write(self.pages(), &in_group),
                        min,
                        max,
                        live,
                    },
                    messages,
                ));
            }
            at = end
                + if random.one_in(2) {
                    0
                } else {
                    random.below(20)
                };
        }
        level
    }
}

/// Writes messages as one group of blocks of 512 bytes.
pub(super) fn write(store: &PageStore, messages: &Messages) -> GroupRef {
    let options = GroupOptions {
        target_bytes: 1 << 22,
        block_bytes: 512,
        unit: 512,
        compression: Compression::None,
        filter_bits: 12,
        now_ms: 0,
    };
    let mut builder = GroupBuilder::new(options);
    for (key, message) in messages {
        assert!(
            builder
                .add(
                    key,
                    message.as_deref().map_or(Message::Delete, Message::Put)
                )
                .unwrap()
                .is_none()
        );
    }
    let mut groups = builder.finish();
    assert_eq!(groups.len(), 1);
    store
        .write_group(groups.remove(0), SpaceClass::Normal)
        .unwrap()
}

/// Keys of many lengths that share prefixes. Some are prefixes of others, and one is empty.
fn random_key(random: &mut Random) -> Vec<u8> {
    let mut key = [
        &b""[..],
        b"a",
        b"common/prefix/",
        b"common/prefix/of/some/",
        b"\xff\xff",
    ][random.below(5)]
    .to_vec();
    for _ in 0..random.below(5) {
        key.push([0, 1, b'a', b'b', 0xff][random.below(5)]);
    }
    if random.one_in(2) {
        key.extend_from_slice(format!("{:05}", random.below(100_000)).as_bytes());
    }
    key
}

fn random_value(random: &mut Random) -> Vec<u8> {
    let bytes = if random.one_in(30) {
        700 + random.below(900)
    } else {
        random.below(60)
    };
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

/// The shortest string above `low` and at most `high`.
fn separator(low: &[u8], high: &[u8]) -> Vec<u8> {
    let shared = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    high[..(shared + 1).min(high.len())].to_vec()
}
