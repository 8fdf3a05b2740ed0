//! The bytes of nodes and of root references. Only this file encodes and decodes them.
//!
//! The content of a node page, little-endian, with `v` for varints (the page itself adds magic, id
//! and checksum):
//!
//! ```text
//! height u16 | replaced permille u16 | pivots u16 | levels u8 | flags u8: 1 if live parts count
//!                        the whole records that puts replace; 2 if there are maplets
//! pivots times: lower bound (v length, bytes) | child
//!     child at height 1: group reference
//!     child above:       page reference (20 bytes) | sums: records v | leaf bytes v
//!                        | buffered bytes v | replaced bytes v | hidden bytes v
//!                        | bytes of the largest record v | optional sums
//! levels times: segments v, then for each
//!     group reference | min (v, bytes) | max (v, bytes) | live parts v, then for each
//!         pivot v (difference to the one before, less one; the first as it is)
//!         | records v | bytes v | hidden bytes v
//!         | separated bytes v, if the group has any
//! if there are maplets: their number v, then for each
//!     pivot v (difference to the one before, less one; the first as it is)
//!     | maplet ([`Maplet::encode`])
//! ```
//!
//! A root reference is a kind u8 (0 empty, 1 leaf, 2 node). Then follows nothing, a group
//! reference, or a height u16 and a page reference.

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, Result, mutant};
use terrapin_disk::LongBox;
use terrapin_pages::PageRef;
use terrapin_pages::group::{
    Deadlines, GroupRef, LOGICAL_BYTES_MAX, RECORD_BYTES_MAX, decode_optional_sums,
    encode_optional_sums,
};

use crate::load::HEIGHT_MAX;
use crate::maplet::Maplet;
use crate::node::{Child, LivePart, Node, Pivot, Root, SUM_MAX, Segment, Sums};

/// Most pivots of a node: live parts number them in 16 bits.
pub(crate) const PIVOTS_MAX: usize = u16::MAX as usize;
/// Least encoded bytes of a pivot, of a segment, and of a live part. They bound the counts that a
/// page may claim.
const PIVOT_BYTES_MIN: usize = 13;
const SEGMENT_BYTES_MIN: usize = 19;
const LIVE_PART_BYTES_MIN: usize = 4;
const MAPLET_BYTES_MIN: usize = 24;

const FLAG_COUNTS_REPLACED: u8 = 1;
const FLAG_MAPLETS: u8 = 2;

const ROOT_EMPTY: u8 = 0;
const ROOT_LEAF: u8 = 1;
const ROOT_NODE: u8 = 2;

impl Root {
    /// Encodes the root reference for the catalog.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Root::Empty => out.push(ROOT_EMPTY),
            Root::Leaf(group, deadlines) => {
                out.push(ROOT_LEAF);
                group.encode(deadlines, &mut out);
            }
            Root::Node(page, height) => {
                out.push(ROOT_NODE);
                out.extend_from_slice(&height.to_le_bytes());
                page.encode(&mut out);
            }
        }
        out
    }

    /// Decodes the bytes of [`Root::encode`].
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are no root reference.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Root> {
        let mut reader = Reader::new("root reference", bytes);
        let root = match reader.u8()? {
            ROOT_EMPTY => Root::Empty,
            ROOT_LEAF => {
                let (group, deadlines) = GroupRef::decode(&mut reader)?;
                Root::Leaf(group, deadlines)
            }
            ROOT_NODE => {
                let height = reader.u16()?;
                if height == 0 || height > HEIGHT_MAX {
                    return Err(reader
                        .corrupt("the root's height is out of bounds")
                        .with("height", height));
                }
                Root::Node(PageRef::decode(&mut reader)?, height)
            }
            kind => {
                return Err(reader
                    .corrupt("unknown kind of root reference")
                    .with("kind", kind));
            }
        };
        if reader.remaining() != 0 {
            return Err(reader.corrupt("bytes behind the end"));
        }
        Ok(root)
    }
}

impl Node {
    /// Encodes the content of the node's page.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Internal`] if the node has more pivots or levels than the format
    /// allows.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4096);
        let pivots = u16::try_from(self.pivots.len()).map_err(|_| {
            Error::internal("a node has more pivots than a page can hold")
                .with("pivots", self.pivots.len())
        })?;
        let most = match mutant::active("node-refuses-33rd-level") {
            true => 32,
            false => usize::from(u8::MAX),
        };
        let levels = Some(self.levels.len()).filter(|&levels| levels <= most);
        let levels = levels.and_then(|levels| u8::try_from(levels).ok());
        let levels = levels.ok_or_else(|| {
            Error::internal("a node has more buffer levels than a page can hold")
                .with("levels", self.levels.len())
        })?;
        out.extend_from_slice(&self.height.to_le_bytes());
        out.extend_from_slice(&self.replaced_permille.to_le_bytes());
        out.extend_from_slice(&pivots.to_le_bytes());
        let maplets = self.pivots.iter().filter(|p| p.maplet.is_some()).count();
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.counts_replaced, FLAG_COUNTS_REPLACED);
        out.extend_from_slice(&[levels, flags | flag(maplets > 0, FLAG_MAPLETS)]);
        for pivot in &self.pivots {
            put_prefixed(&mut out, &pivot.lower);
            match &pivot.child {
                Child::Leaf(group) => group.encode(&pivot.deadlines, &mut out),
                Child::Node { page, sums } => {
                    page.encode(&mut out);
                    sums.encode(&pivot.deadlines, &mut out);
                }
            }
        }
        for level in &self.levels {
            put_varint(&mut out, level.len() as u64);
            for segment in level {
                segment.encode(&mut out);
            }
        }
        if maplets > 0 {
            put_varint(&mut out, maplets as u64);
            let mut next = 0;
            for (number, pivot) in self.pivots.iter().enumerate() {
                if let Some(maplet) = &pivot.maplet {
                    put_varint(&mut out, (number - next) as u64);
                    maplet.encode(&mut out);
                    next = number + 1;
                }
            }
        }
        Ok(out)
    }

    /// Decodes the content of a page. Memory is bounded by a constant factor of the bytes' length,
    /// whatever they contain (D8).
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes break the rules of [`crate::node`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Node> {
        let mut reader = Reader::new("node", bytes);
        let height = reader.u16()?;
        let replaced_permille = reader.u16()?;
        let pivots = usize::from(reader.u16()?);
        let levels = usize::from(reader.u8()?);
        let flags = reader.u8()?;
        let possible = (1..=HEIGHT_MAX).contains(&height)
            && replaced_permille <= 1000
            && (1..=reader.remaining() / PIVOT_BYTES_MIN).contains(&pivots)
            && flags <= FLAG_COUNTS_REPLACED | FLAG_MAPLETS;
        if !possible {
            return Err(reader.corrupt("the node's header is out of bounds"));
        }
        let mut node = Node {
            height,
            replaced_permille,
            counts_replaced: flags & FLAG_COUNTS_REPLACED != 0,
            pivots: Vec::with_capacity(pivots),
            levels: Vec::with_capacity(levels),
        };
        for number in 0..pivots {
            let lower = key(&mut reader)?;
            let ascends = match node.pivots.last() {
                None => lower.is_empty(),
                Some(before) => before.lower < lower,
            };
            if !ascends {
                return Err(reader.corrupt("pivots do not ascend").with("pivot", number));
            }
            let (child, deadlines) = if height == 1 {
                let (group, deadlines) = GroupRef::decode(&mut reader)?;
                (Child::Leaf(group), deadlines)
            } else {
                let page = PageRef::decode(&mut reader)?;
                let (sums, deadlines) = Sums::decode(&mut reader)?;
                (Child::Node { page, sums }, deadlines)
            };
            node.pivots.push(Pivot {
                lower,
                child,
                deadlines,
                pending_bytes: 0,
                maplet: None,
            });
        }
        for number in 0..levels {
            let count = count(&mut reader, SEGMENT_BYTES_MIN)?;
            let mut level: Vec<Segment> = Vec::with_capacity(count);
            for _ in 0..count {
                let segment = Segment::decode(&mut reader, pivots)?;
                if level
                    .last()
                    .is_some_and(|before| !before.ends_before(&segment))
                {
                    return Err(reader.corrupt("segments overlap").with("level", number));
                }
                level.push(segment);
            }
            node.levels.push(level);
        }
        if flags & FLAG_MAPLETS != 0 {
            let count = count(&mut reader, MAPLET_BYTES_MIN)?;
            let mut rest = node.pivots.iter_mut();
            for _ in 0..count {
                let skipped = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
                let maplet = Maplet::decode(&mut reader)?;
                let Some(pivot) = rest.nth(skipped) else {
                    return Err(reader.corrupt("a maplet of a pivot that the node does not have"));
                };
                pivot.maplet = Some(Box::new(maplet));
            }
            if count == 0 {
                return Err(reader.corrupt("a node without maplets says that it has some"));
            }
        }
        if reader.remaining() != 0 {
            return Err(reader.corrupt("bytes behind the end"));
        }
        node.tidy();
        Ok(node)
    }
}

impl Sums {
    fn encode(&self, deadlines: &Deadlines, out: &mut Vec<u8>) {
        for sum in [
            self.records,
            self.leaf_bytes,
            self.buffered_bytes,
            self.replaced_bytes,
            self.hidden_bytes,
            self.record_bytes_max,
        ] {
            put_varint(out, sum);
        }
        encode_optional_sums(self.separated_bytes, deadlines, out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<(Sums, Deadlines)> {
        let mut sums = Sums {
            records: bounded(reader, SUM_MAX)?,
            leaf_bytes: bounded(reader, SUM_MAX)?,
            buffered_bytes: bounded(reader, SUM_MAX)?,
            replaced_bytes: bounded(reader, SUM_MAX)?,
            hidden_bytes: bounded(reader, SUM_MAX)?,
            record_bytes_max: bounded(reader, RECORD_BYTES_MAX)?,
            separated_bytes: 0,
        };
        let (separated_bytes, deadlines) = decode_optional_sums(reader)?;
        sums.separated_bytes = separated_bytes;
        Ok((sums, deadlines))
    }
}

impl Segment {
    fn encode(&self, out: &mut Vec<u8>) {
        self.group.encode(&self.deadlines, out);
        put_prefixed(out, &self.min);
        put_prefixed(out, &self.max);
        put_varint(out, self.live.len() as u64);
        let mut next = 0;
        for part in &self.live {
            put_varint(out, u64::from(part.pivot) - next);
            next = u64::from(part.pivot) + 1;
            put_varint(out, u64::from(part.records));
            put_varint(out, part.bytes);
            put_varint(out, part.hidden_bytes);
            if self.group.separated_bytes > 0 {
                put_varint(out, part.separated_bytes);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>, pivots: usize) -> Result<Segment> {
        let (group, deadlines) = GroupRef::decode(reader)?;
        let min = key(reader)?;
        let max = key(reader)?;
        let count = count(reader, LIVE_PART_BYTES_MIN)?;
        if min > max || count == 0 {
            return Err(reader
                .corrupt("the segment has no keys or no live parts")
                .with("page", group.id));
        }
        let mut live = Vec::with_capacity(count);
        let mut next = 0u64;
        for _ in 0..count {
            let pivot = reader
                .varint()?
                .checked_add(next)
                .filter(|&pivot| pivot < pivots as u64);
            let pivot = pivot.and_then(|pivot| u16::try_from(pivot).ok());
            let pivot = pivot.ok_or_else(|| {
                reader.corrupt("a live part names a pivot that the node does not have")
            })?;
            next = u64::from(pivot) + 1;
            let records = u32::try_from(reader.varint()?)
                .ok()
                .filter(|&records| records > 0);
            let records = records.ok_or_else(|| {
                reader.corrupt("the number of records of a live part is out of bounds")
            })?;
            live.push(LivePart {
                pivot,
                records,
                bytes: bounded(reader, LOGICAL_BYTES_MAX)?,
                hidden_bytes: bounded(reader, LOGICAL_BYTES_MAX)?,
                separated_bytes: match group.separated_bytes {
                    0 => 0,
                    most => bounded(reader, most)?,
                },
            });
        }
        Ok(Segment {
            group,
            deadlines,
            min,
            max,
            live,
        })
    }
}

fn key(reader: &mut Reader<'_>) -> Result<LongBox> {
    let key = reader.prefixed()?;
    if key.len() > KEY_BYTES_MAX {
        return Err(reader.corrupt("key too long").with("bytes", key.len()));
    }
    Ok(key.into())
}

/// Reads a number that must not exceed `most`.
fn bounded(reader: &mut Reader<'_>, most: u64) -> Result<u64> {
    match reader.varint()? {
        number if number <= most => Ok(number),
        number => Err(reader
            .corrupt("a sum is larger than any tree can have")
            .with("sum", number)),
    }
}

/// Reads a count of items that take at least `bytes_min` bytes each.
fn count(reader: &mut Reader<'_>, bytes_min: usize) -> Result<usize> {
    let count = reader.varint()?;
    usize::try_from(count)
        .ok()
        .filter(|&count| count <= reader.remaining() / bytes_min)
        .ok_or_else(|| reader.corrupt("count too large").with("count", count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrapin_base::{ErrorKind, PageId};
    use terrapin_filter::MapletShape;
    use terrapin_pages::group::SEPARATED_BYTES_MAX;

    use super::*;

    fn group(number: u64) -> GroupRef {
        GroupRef {
            id: PageId(number),
            offset: number << 20,
            bytes: 2048,
            index_offset: 1024,
            index_bytes: 512,
            filter_offset: 1536,
            filter_bytes: 0,
            records: 3 + number,
            tombstones: number % 3,
            logical_bytes: 1000 + number,
            hidden_bytes: number % 3 * 100,
            record_bytes_max: 300,
            separated_bytes: number / 3 * 1_000_000,
        }
    }

    /// Deadline counters of N records.
    fn deadlines(records: u64) -> Deadlines {
        let mut counts = [0; 16];
        counts[records as usize] = records;
        Deadlines::new(
            1_800_000_000_000,
            counts,
            (1_800_000_000_500, 2_900_000_000_000),
        )
    }

    fn maplet(number: u64) -> Maplet {
        let partitions = number as u32 % 3 + 1;
        Maplet {
            page: PageRef {
                id: PageId(1000 + number),
                offset: 4096 * number,
                bytes: 4096 * partitions,
            },
            shape: MapletShape::new(13 + number as u32 % 20, 3, partitions).unwrap(),
            groups: [number, number + 1, 1 << 50].map(PageId).into(),
        }
    }

    fn key(number: usize) -> LongBox {
        format!("{number:05}").into_bytes().into()
    }

    /// Live parts: number of pivots skipped before each, records, bytes.
    type Parts = Vec<(u16, u32, u64)>;

    /// A node of any shape that the rules allow. `shape` lists the levels, their segments and the
    /// segments' live parts.
    fn node(height: u16, pivots: usize, shape: &[Vec<Parts>]) -> Node {
        let child = |i: usize| match height {
            1 => Child::Leaf(group(i as u64)),
            _ => Child::Node {
                page: PageRef {
                    id: PageId(i as u64),
                    offset: 4096 * i as u64,
                    bytes: 512,
                },
                sums: Sums {
                    records: i as u64 * 1000,
                    leaf_bytes: 1 << i,
                    buffered_bytes: 1 << (i / 2),
                    replaced_bytes: i as u64,
                    hidden_bytes: 3 << i,
                    record_bytes_max: 4000 + i as u64,
                    separated_bytes: i as u64 / 2 * 5000,
                },
            },
        };
        let lower = |i: usize| {
            if i == 0 {
                LongBox::default()
            } else {
                key(i * 7)
            }
        };
        let pivots: Vec<Pivot> = (0..pivots)
            .map(|i| Pivot {
                lower: lower(i),
                child: child(i),
                deadlines: deadlines(i as u64 / 5 % 4),
                pending_bytes: 0,
                maplet: (i % 3 == 2).then(|| Box::new(maplet(i as u64))),
            })
            .collect();
        let segment = |(i, parts): (usize, &Parts)| {
            let group = group(i as u64);
            let mut live: Vec<LivePart> = Vec::new();
            for &(skip, records, bytes) in parts {
                let pivot = live.last().map_or(skip, |part| part.pivot + 1 + skip) % 64;
                if usize::from(pivot) < pivots.len()
                    && live.last().is_none_or(|part| part.pivot < pivot)
                {
                    live.push(LivePart {
                        pivot,
                        records: records.max(1),
                        bytes,
                        hidden_bytes: 7 * (bytes % 5),
                        separated_bytes: bytes % (group.separated_bytes + 1),
                    });
                }
            }
            (!live.is_empty()).then(|| Segment {
                group,
                deadlines: deadlines(i as u64 % 4),
                min: key(2 * i),
                max: key(2 * i + 1),
                live,
            })
        };
        let levels = shape
            .iter()
            .map(|level| level.iter().enumerate().filter_map(segment).collect())
            .collect();
        let mut node = Node {
            height,
            replaced_permille: pivots.len() as u16,
            counts_replaced: pivots.len() > 20,
            pivots,
            levels,
        };
        node.tidy();
        node
    }

    #[test]
    fn a_level_of_more_segments_than_a_route_can_name_is_refused() {
        let load = |segments: usize| {
            let mut node = node(1, 1, &[]);
            let level = (0..segments).map(|i| Segment {
                group: group(0),
                deadlines: Deadlines::default(),
                min: key(2 * i),
                max: key(2 * i + 1),
                live: vec![LivePart {
                    pivot: 0,
                    records: 1,
                    bytes: 1,
                    hidden_bytes: 0,
                    separated_bytes: 0,
                }],
            });
            node.levels.push(level.collect());
            crate::load::LoadedNode::new(node)
        };
        assert!(load(usize::from(u16::MAX)).is_ok());
        let refusal = load(usize::from(u16::MAX) + 1).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Corrupt);
    }

    fn any_node() -> impl Strategy<Value = Node> {
        let parts = proptest::collection::vec((0..9u16, any::<u32>(), 0..1u64 << 40), 0..6);
        let levels = proptest::collection::vec(proptest::collection::vec(parts, 0..5), 0..20);
        (1..=HEIGHT_MAX, 1..40usize, levels)
            .prop_map(|(height, pivots, shape)| node(height, pivots, &shape))
    }

    proptest! {
        #[test]
        fn nodes_round_trip_and_every_cut_is_refused(node in any_node()) {
            let bytes = node.encode().unwrap();
            prop_assert_eq!(Node::decode(&bytes).unwrap(), node);
            for end in 0..bytes.len() {
                prop_assert_eq!(Node::decode(&bytes[..end]).unwrap_err().kind(), ErrorKind::Corrupt);
            }
        }

        #[test]
        fn changed_bytes_give_an_error_or_a_node_that_keeps_the_rules(
            node in any_node(), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
        ) {
            let mut bytes = node.encode().unwrap();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok(node) = Node::decode(&bytes) {
                prop_assert_eq!(&Node::decode(&node.encode().unwrap()).unwrap(), &node);
                prop_assert!(node.pivots.windows(2).all(|two| two[0].lower < two[1].lower));
                for segment in node.levels.iter().flatten() {
                    prop_assert!(segment.live.iter().all(|part| usize::from(part.pivot) < node.pivots.len()));
                }
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Node::decode(&bytes), Root::decode(&bytes));
        }
    }

    #[test]
    fn counts_on_a_page_allocate_no_more_than_the_page_is_worth() {
        let mut bytes = node(1, 2, &[]).encode().unwrap();
        bytes[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(Node::decode(&bytes).is_err());
        let mut bytes = node(1, 2, &[vec![vec![(0, 1, 1)]]]).encode().unwrap();
        let at = node(1, 2, &[]).encode().unwrap().len();
        bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(Node::decode(&bytes).is_err());
    }

    /// Regression: such sums made the sums of a walk overflow.
    #[test]
    fn sums_that_no_tree_can_have_are_refused() {
        let segments = node(1, 2, &[vec![vec![(0, 1, u64::MAX - 7)]]]);
        let mut below = node(2, 2, &[]);
        let Child::Node { sums, .. } = &mut below.pivots[1].child else {
            panic!("height 2")
        };
        sums.hidden_bytes = u64::MAX - 7;
        let mut leaves = node(1, 2, &[]);
        let Child::Leaf(group) = &mut leaves.pivots[0].child else {
            panic!("height 1")
        };
        group.logical_bytes = u64::MAX - 7;
        let mut hiding = node(1, 2, &[vec![vec![(0, 1, 1)]]]);
        hiding.levels[0][0].live[0].hidden_bytes = u64::MAX - 7;
        let mut outside = node(2, 2, &[]);
        let Child::Node { sums, .. } = &mut outside.pivots[1].child else {
            panic!("height 2")
        };
        sums.separated_bytes = SEPARATED_BYTES_MAX + 1;
        let mut more = node(1, 2, &[vec![vec![(0, 1, 1)]]]);
        more.levels[0][0].group.separated_bytes = 5;
        more.levels[0][0].live[0].separated_bytes = 6;
        for node in [segments, below, leaves, hiding, outside, more] {
            let error = Node::decode(&node.encode().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn roots_round_trip() {
        let page = PageRef {
            id: PageId(9),
            offset: 4096,
            bytes: 512,
        };
        for root in [
            Root::Empty,
            Root::Leaf(group(4), Deadlines::default()),
            Root::Leaf(group(4), deadlines(3)),
            Root::Node(page, 1),
            Root::Node(page, HEIGHT_MAX),
        ] {
            let bytes = root.encode();
            assert_eq!(Root::decode(&bytes).unwrap(), root);
            for end in 0..bytes.len() {
                assert!(Root::decode(&bytes[..end]).is_err());
            }
            assert!(Root::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        assert!(Root::decode(&Root::Node(page, 0).encode()).is_err());
        assert!(Root::decode(&Root::Node(page, HEIGHT_MAX + 1).encode()).is_err());
    }

    /// The annotated dump belongs to the format's description: bytes, then their meaning.
    #[test]
    fn a_small_node_is_what_its_golden_dump_shows() {
        let node = node(1, 2, &[vec![vec![(0, 2, 42), (0, 3, 60)]]]);
        let hex: Vec<String> = node
            .encode()
            .unwrap()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let dump = include_str!("../tests/golden/node.txt");
        let documented = dump.lines().flat_map(|line| {
            line.split('|')
                .next()
                .unwrap_or_default()
                .split_whitespace()
        });
        assert_eq!(hex.join(" "), documented.collect::<Vec<_>>().join(" "));
    }
}
