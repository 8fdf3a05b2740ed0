//! The bytes of trie nodes and of the root.
//!
//! ```text
//! root  magic: u8 = 0xe3, kind: u8 (0 empty, 1 a trie, 2 a trie of one leaf); with a trie: r: u8,
//!       log2 of S: u8, the root node's page reference: 20 bytes, sums
//! sums  records, key and value bytes, hidden bytes: varints; of all runs
//! node  r: u8 (0: the root of one leaf), bits in front: u8, first prefix: 5 bytes, big-endian
//!       taken slots, slots of leaves: a mask of 2^r bits each, at least one byte
//!       per taken slot, a node: page reference: 20 bytes, sums, optional sums (deadlines)
//!       per taken slot, a leaf: number of runs: varint, runs
//! run   slot: u8, flags: u8 (1 base), tier: u8, page reference of its list of hashes: 20 bytes,
//!       groups: varint; per group: group reference with its deadlines, first and last prefix:
//!       varints
//! ```

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{Error, Result};
use terrapin_pages::PageRef;
use terrapin_pages::group::{
    Deadlines, GroupRef, LOGICAL_BYTES_MAX, decode_optional_sums, encode_optional_sums,
};

use crate::digits::{Fanout, PREFIX_BYTES, Stretch};
use crate::table::SLOTS;

/// First byte of every root of a trie. Roots of other structures begin with another byte.
const MAGIC: u8 = 0xe3;
const BASE: u8 = 1;
/// The least and the largest sluggishness, as powers of two.
pub(crate) const LEAF_BYTES_LOG2: std::ops::RangeInclusive<u8> = 10..=40;

/// The root of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// No records.
    Empty,
    /// A trie.
    Trie(TrieRef),
}

/// Where the root node is, and what holds for all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrieRef {
    /// The fan-out of all nodes but the root of one leaf.
    pub(crate) fanout: Fanout,
    /// S, the sluggishness in bytes, as a power of two.
    pub(crate) leaf_bytes_log2: u8,
    /// Whether the root node has one leaf of all prefixes.
    pub(crate) is_one_leaf: bool,
    pub(crate) node: PageRef,
    pub(crate) sums: Sums,
}

/// What the runs of some leaves hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Records, deletes included.
    pub(crate) records: u64,
    /// Key and value bytes.
    pub(crate) bytes: u64,
    /// Bytes of these, and of deletes, that a rewrite would free.
    pub(crate) hidden: u64,
}

impl Sums {
    fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.records, self.bytes, self.hidden] {
            put_varint(out, value);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Sums> {
        let mut sums = [0; 3];
        for sum in &mut sums {
            *sum = reader.varint()?;
            if *sum > LOGICAL_BYTES_MAX {
                return Err(reader.corrupt("impossible sum"));
            }
        }
        let [records, bytes, hidden] = sums;
        Ok(Sums {
            records,
            bytes,
            hidden,
        })
    }

    pub(crate) fn add(&mut self, other: Sums) {
        self.records = self.records.saturating_add(other.records);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.hidden = self.hidden.saturating_add(other.hidden);
    }

    /// Bytes that a rewrite would leave.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.hidden)
    }
}

impl TrieRef {
    /// The fan-out of the root node.
    pub(crate) fn root_fanout(&self) -> Fanout {
        match self.is_one_leaf {
            true => Fanout::ONE,
            false => self.fanout,
        }
    }
}

impl Root {
    /// The root's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Root::Empty => vec![MAGIC, 0],
            Root::Trie(trie) => {
                let kind = if trie.is_one_leaf { 2 } else { 1 };
                let mut out = vec![MAGIC, kind, trie.fanout.bits(), trie.leaf_bytes_log2];
                trie.node.encode(&mut out);
                trie.sums.encode(&mut out);
                out
            }
        }
    }

    /// Decodes a root. Errors: `Corrupt`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Root> {
        let mut reader = Reader::new("trie root", bytes);
        if reader.u8()? != MAGIC {
            return Err(reader.corrupt("the root of another structure"));
        }
        let root = match reader.u8()? {
            0 => Root::Empty,
            kind @ (1 | 2) => {
                let fanout = Fanout::new(reader.u8()?);
                let fanout = fanout.ok_or_else(|| reader.corrupt("impossible fan-out"))?;
                let leaf_bytes_log2 = reader.u8()?;
                if !LEAF_BYTES_LOG2.contains(&leaf_bytes_log2) {
                    return Err(reader.corrupt("impossible sluggishness"));
                }
                Root::Trie(TrieRef {
                    fanout,
                    leaf_bytes_log2,
                    is_one_leaf: kind == 2,
                    node: PageRef::decode(&mut reader)?,
                    sums: Sums::decode(&mut reader)?,
                })
            }
            _ => return Err(reader.corrupt("unknown kind of root")),
        };
        match reader.remaining() {
            0 => Ok(root),
            _ => Err(reader.corrupt("bytes behind the root")),
        }
    }
}

/// A node: a part of the space of hashes, and what its next digit leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) fanout: Fanout,
    /// The hashes that the node is responsible for.
    pub(crate) stretch: Stretch,
    /// The children by their digit. As many as the stretch has.
    pub(crate) children: Vec<Option<Child>>,
}

/// A child of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    Node(NodeRef),
    Leaf(Leaf),
}

/// A node on a page, and the sums of its leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    pub(crate) page: PageRef,
    pub(crate) sums: Sums,
    /// When the records of its leaves expire.
    pub(crate) deadlines: Deadlines,
}

/// A chain of runs, newest first: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) runs: Vec<RunRef>,
}

/// A run of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunRef {
    /// Its number in the leaf's table, below 16 and unique in the chain.
    pub(crate) slot: u8,
    /// Whether it is the base: last, and without deletes.
    pub(crate) is_base: bool,
    /// How many joins its records went through.
    pub(crate) tier: u8,
    /// The page of its list of hashes.
    pub(crate) list: PageRef,
    /// Its groups in hash order: at least one.
    pub(crate) groups: Vec<Part>,
}

/// A group of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) group: GroupRef,
    /// When its records expire.
    pub(crate) deadlines: Deadlines,
    /// The prefixes of its first and its last record.
    pub(crate) prefixes: (u64, u64),
}

impl Child {
    pub(crate) fn sums(&self) -> Sums {
        match self {
            Child::Node(node) => node.sums,
            Child::Leaf(leaf) => leaf.sums(),
        }
    }

    fn add_deadlines(&self, sum: &mut Deadlines) {
        match self {
            Child::Node(node) => sum.add(&node.deadlines),
            Child::Leaf(leaf) => leaf.add_deadlines(sum),
        }
    }
}

impl RunRef {
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for part in &self.groups {
            sums.add(Sums {
                records: part.group.records,
                bytes: part.group.logical_bytes,
                hidden: part.group.hidden_bytes,
            });
        }
        sums
    }
}

impl Leaf {
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.runs.iter().for_each(|run| sums.add(run.sums()));
        sums
    }

    /// When the records of all runs expire, those included that newer ones hide.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let mut sum = Deadlines::default();
        self.add_deadlines(&mut sum);
        sum
    }

    fn add_deadlines(&self, sum: &mut Deadlines) {
        let parts = self.runs.iter().flat_map(|run| &run.groups);
        parts.for_each(|part| sum.add(&part.deadlines));
    }
}

impl Node {
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        let children = self.children.iter().flatten();
        children.for_each(|child| sums.add(child.sums()));
        sums
    }

    /// When the records of all leaves expire.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let mut sum = Deadlines::default();
        let children = self.children.iter().flatten();
        children.for_each(|child| child.add_deadlines(&mut sum));
        sum
    }

    /// The node's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.fanout.bits(), self.stretch.bits()];
        out.extend_from_slice(&self.stretch.lo().to_be_bytes()[8 - PREFIX_BYTES..]);
        let mask = |is_in: &dyn Fn(&Child) -> bool| {
            let mut mask = vec![0u8; mask_bytes(self.fanout)];
            for (number, child) in self.children.iter().enumerate() {
                if child.as_ref().is_some_and(is_in) {
                    mask[number / 8] |= 1 << (number % 8);
                }
            }
            mask
        };
        out.extend(mask(&|_| true));
        out.extend(mask(&|child| matches!(child, Child::Leaf(_))));
        for child in self.children.iter().flatten() {
            match child {
                Child::Node(node) => {
                    node.page.encode(&mut out);
                    node.sums.encode(&mut out);
                    encode_optional_sums(0, &node.deadlines, &mut out);
                }
                Child::Leaf(leaf) => leaf.encode(&mut out),
            }
        }
        out
    }

    /// Decodes a node that must be responsible for `stretch`. What it allocates is bounded by the
    /// bytes' length. Errors: `Corrupt`.
    pub(crate) fn decode(bytes: &[u8], fanout: Fanout, stretch: Stretch) -> Result<Node> {
        let mut reader = Reader::new("trie node", bytes);
        let (bits, depth) = (reader.u8()?, reader.u8()?);
        let mut lo = [0; 8];
        lo[8 - PREFIX_BYTES..].copy_from_slice(reader.bytes(PREFIX_BYTES)?);
        let found = Stretch::new(u64::from_be_bytes(lo), depth);
        if bits != fanout.bits() || found != Some(stretch) || stretch.is_single() {
            return Err(reader.corrupt("a node of another place"));
        }
        let taken = reader.bytes(mask_bytes(fanout))?;
        let leaves = reader.bytes(mask_bytes(fanout))?;
        let is_in = |mask: &[u8], number: usize| mask[number / 8] >> (number % 8) & 1 == 1;
        let slots = 0..mask_bytes(fanout) * 8;
        let count = stretch.children(fanout);
        for number in slots {
            let (is_taken, is_leaf) = (is_in(taken, number), is_in(leaves, number));
            if is_leaf && !is_taken || is_taken && number >= count {
                return Err(reader.corrupt("masks of a node contradict each other"));
            }
        }
        let mut children = Vec::with_capacity(count);
        for number in 0..count {
            let own = stretch.child(fanout, number);
            children.push(match (is_in(taken, number), is_in(leaves, number)) {
                (false, _) => None,
                (true, true) => Some(Child::Leaf(Leaf::decode(&mut reader, own)?)),
                (true, false) if own.is_single() || fanout == Fanout::ONE => {
                    return Err(reader.corrupt("a node where none can be"));
                }
                (true, false) => Some(Child::Node(NodeRef::decode(&mut reader)?)),
            });
        }
        if reader.remaining() > 0 {
            return Err(reader.corrupt("bytes behind a node"));
        }
        if children.iter().all(Option::is_none) {
            return Err(reader.corrupt("a node without children"));
        }
        Ok(Node {
            fanout,
            stretch,
            children,
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let part = |part: &Part| size_of::<Part>() + part.deadlines.memory_bytes();
        let leaf = |leaf: &Leaf| {
            let parts = leaf.runs.iter().flat_map(|run| &run.groups);
            leaf.runs.len() * size_of::<RunRef>() + parts.map(part).sum::<usize>()
        };
        let leaves = self.children.iter().flatten().map(|child| match child {
            Child::Leaf(own) => leaf(own),
            Child::Node(node) => node.deadlines.memory_bytes(),
        });
        self.children.len() * size_of::<Option<Child>>() + leaves.sum::<usize>()
    }
}

fn mask_bytes(fanout: Fanout) -> usize {
    fanout.children().div_ceil(8)
}

impl NodeRef {
    fn decode(reader: &mut Reader<'_>) -> Result<NodeRef> {
        let (page, sums) = (PageRef::decode(reader)?, Sums::decode(reader)?);
        let (separated_bytes, deadlines) = decode_optional_sums(reader)?;
        if separated_bytes > 0 || deadlines.records() > sums.records {
            return Err(reader.corrupt("impossible optional sums of a node"));
        }
        Ok(NodeRef {
            page,
            sums,
            deadlines,
        })
    }
}

impl Leaf {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.runs.len() as u64);
        for run in &self.runs {
            out.extend_from_slice(&[run.slot, if run.is_base { BASE } else { 0 }, run.tier]);
            run.list.encode(out);
            put_varint(out, run.groups.len() as u64);
            for part in &run.groups {
                part.group.encode(&part.deadlines, out);
                put_varint(out, part.prefixes.0);
                put_varint(out, part.prefixes.1);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>, own: Stretch) -> Result<Leaf> {
        let count = reader.varint()?;
        if !(1..=SLOTS as u64).contains(&count) {
            return Err(reader.corrupt("impossible number of runs"));
        }
        let mut runs: Vec<RunRef> = Vec::new();
        let mut slots = 0u16;
        for number in 0..count {
            let run = RunRef::decode(reader, own)?;
            if slots & 1 << run.slot != 0 {
                return Err(reader.corrupt("two runs have one slot"));
            }
            slots |= 1 << run.slot;
            let has_deletes = run.groups.iter().any(|part| part.group.tombstones > 0);
            if run.is_base && (number + 1 < count || has_deletes) {
                return Err(reader.corrupt("a base that is not last, or has deletes"));
            }
            runs.push(run);
        }
        Ok(Leaf { runs })
    }
}

impl RunRef {
    fn decode(reader: &mut Reader<'_>, own: Stretch) -> Result<RunRef> {
        let (slot, flags, tier) = (reader.u8()?, reader.u8()?, reader.u8()?);
        if usize::from(slot) >= SLOTS || flags & !BASE != 0 {
            return Err(reader.corrupt("impossible slot or flags of a run"));
        }
        let list = PageRef::decode(reader)?;
        let count = reader.varint()?;
        let mut groups: Vec<Part> = Vec::new();
        for _ in 0..count {
            let (group, deadlines) = GroupRef::decode(reader)?;
            let prefixes = (reader.varint()?, reader.varint()?);
            let is_inside = own.contains(prefixes.0) && own.contains(prefixes.1);
            // Records of one prefix may be in two groups.
            let follows = |before: &Part| before.prefixes.1 <= prefixes.0;
            if !is_inside || prefixes.0 > prefixes.1 || !groups.last().is_none_or(follows) {
                return Err(reader.corrupt("groups of a run do not ascend within the leaf"));
            }
            groups.push(Part {
                group,
                deadlines,
                prefixes,
            });
        }
        if groups.is_empty() {
            return Err(Error::corrupt("a run without groups"));
        }
        Ok(RunRef {
            slot,
            is_base: flags & BASE != 0,
            tier,
            list,
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{ErrorKind, Incarnation, PageId};

    use super::*;

    fn group(number: u64) -> GroupRef {
        GroupRef {
            id: PageId::new(Incarnation(1), number),
            offset: 8192 * number,
            bytes: 4096,
            index_offset: 1024,
            index_bytes: 512,
            filter_offset: 1536,
            filter_bytes: 0,
            records: 10,
            tombstones: 0,
            logical_bytes: 100,
            hidden_bytes: 0,
            record_bytes_max: 10,
            separated_bytes: 0,
        }
    }

    fn page(number: u64) -> PageRef {
        PageRef {
            id: PageId::new(Incarnation(1), number),
            offset: 1 << 20,
            bytes: 512,
        }
    }

    fn node(bits: u8, stretch: Stretch) -> Node {
        let fanout = Fanout::new(bits).unwrap();
        let mut children = vec![None; stretch.children(fanout)];
        let own = stretch.child(fanout, 0);
        let run = |slot, is_base, number| RunRef {
            slot,
            is_base,
            tier: 1,
            list: page(number + 100),
            groups: vec![
                Part {
                    group: group(number),
                    deadlines: Deadlines::default(),
                    prefixes: (own.lo(), own.lo() + 1),
                },
                Part {
                    group: group(number + 1),
                    deadlines: Deadlines::default(),
                    prefixes: (own.lo() + 1, own.hi() - 1),
                },
            ],
        };
        children[0] = Some(Child::Leaf(Leaf {
            runs: vec![run(3, false, 5), run(0, true, 9)],
        }));
        let last = children.len() - 1;
        children[last] = Some(Child::Node(NodeRef {
            page: page(4),
            sums: Sums {
                records: 1,
                bytes: 2,
                hidden: 3,
            },
            deadlines: Deadlines::default(),
        }));
        Node {
            fanout,
            stretch,
            children,
        }
    }

    /// Gives each child a record with a deadline.
    fn expire(node: &mut Node) {
        let mut deadlines = Deadlines::default();
        deadlines.count(5_000, 9_000);
        for child in node.children.iter_mut().flatten() {
            match child {
                Child::Node(node) => node.deadlines = deadlines.clone(),
                Child::Leaf(leaf) => leaf.runs[0].groups[1].deadlines = deadlines.clone(),
            }
        }
        assert_eq!(node.deadlines().records(), 2);
    }

    #[test]
    fn nodes_and_roots_come_back_for_every_fan_out() {
        for bits in 1..=8 {
            let fanout = Fanout::new(bits).unwrap();
            for stretch in [Stretch::ALL, Stretch::ALL.child(fanout, 1)] {
                let mut node = node(bits, stretch);
                if bits % 2 == 0 {
                    expire(&mut node);
                }
                let decoded = Node::decode(&node.encode(), fanout, stretch).unwrap();
                assert_eq!(decoded, node);
            }
            let root = Root::Trie(TrieRef {
                fanout,
                leaf_bytes_log2: 25,
                is_one_leaf: bits % 2 == 0,
                node: page(1),
                sums: Sums::default(),
            });
            for root in [Root::Empty, root] {
                assert_eq!(Root::decode(&root.encode()).unwrap(), root);
            }
        }
    }

    #[test]
    fn hostile_bytes_are_refused_and_never_panic() {
        let fanout = Fanout::new(4).unwrap();
        let bytes = node(4, Stretch::ALL).encode();
        let decode = |bytes: &[u8]| Node::decode(bytes, fanout, Stretch::ALL);
        for at in 0..bytes.len() {
            let error = decode(&bytes[..at]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            for bit in 0..8 {
                let mut hostile = bytes.clone();
                hostile[at] ^= 1 << bit;
                // Numbers without a second copy are found by `verify`.
                if let Err(error) = decode(&hostile) {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                }
            }
        }
        let other = Stretch::ALL.child(fanout, 1);
        assert!(Node::decode(&bytes, fanout, other).is_err());
        assert!(Node::decode(&bytes, Fanout::new(3).unwrap(), Stretch::ALL).is_err());
        let refuse = |change: &dyn Fn(&mut Node)| {
            let mut node = node(4, Stretch::ALL);
            change(&mut node);
            assert!(decode(&node.encode()).is_err());
        };
        fn leaf(node: &mut Node) -> &mut Leaf {
            match &mut node.children[0] {
                Some(Child::Leaf(leaf)) => leaf,
                _ => panic!("the first child is a leaf"),
            }
        }
        refuse(&|node| leaf(node).runs[0].is_base = true);
        refuse(&|node| leaf(node).runs[1].groups[0].group.tombstones = 1);
        refuse(&|node| leaf(node).runs[1].slot = 3);
        refuse(&|node| leaf(node).runs[0].slot = 16);
        refuse(&|node| leaf(node).runs.clear());
        refuse(&|node| leaf(node).runs[0].groups.clear());
        refuse(&|node| leaf(node).runs[0].groups.swap(0, 1));
        refuse(&|node| leaf(node).runs[0].groups[1].prefixes.1 = 1 << 39);
        refuse(&|node| node.children.fill(None));
        refuse(&|node| {
            expire(node);
            if let Some(Some(Child::Node(own))) = node.children.last_mut() {
                own.sums.records = 0;
            }
        });
        let mut twice = bytes.clone();
        // The mask of leaves names a slot that is not taken.
        twice[9] |= 2;
        assert!(decode(&twice).is_err());
        for foreign in [
            &[0u8][..],
            &[0xf1, 0],
            &[MAGIC, 2],
            &[MAGIC],
            &[MAGIC, 1, 9, 25],
        ] {
            assert!(Root::decode(foreign).is_err());
        }
    }

    /// The annotated dump belongs to the format's description: bytes, then their meaning.
    #[test]
    fn a_small_trie_is_what_its_golden_dump_shows() {
        let root = Root::Trie(TrieRef {
            fanout: Fanout::SIXTEEN,
            leaf_bytes_log2: 23,
            is_one_leaf: false,
            node: page(1),
            sums: Sums {
                records: 41,
                bytes: 402,
                hidden: 3,
            },
        });
        let list = crate::list::encode(&[5, 6, 6, 900]).unwrap();
        let bytes = [root.encode(), node(4, Stretch::ALL).encode(), list].concat();
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let dump = include_str!("../tests/golden/trie.txt");
        let documented = dump.lines().flat_map(|line| {
            let bytes = line.split('|').next().unwrap_or_default();
            bytes.split_whitespace()
        });
        assert_eq!(hex.join(" "), documented.collect::<Vec<_>>().join(" "));
    }
}
