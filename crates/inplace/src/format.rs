//! The bytes of a root and of the map's nodes (`docs/FORMAT.md`, "Page-grouped tree").
//!
//! A *segment* is a page group of about sixteen pages of the line. A *leaf* of the map names
//! segments, and holds a copy of the index of each. A node above the leaves names leaves, and the
//! groups of records that wait for each of them. Nodes further up name nodes.

use std::sync::Arc;

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, Result, mutant};
use terrapin_pages::group::{
    Deadlines, GroupIndex, GroupRef, NodeIndex, decode_optional_sums, encode_optional_sums,
};
use terrapin_pages::{Handle, PageRef, PageStore};

/// First byte of every root. No other structure's root begins with it.
const MAGIC: u8 = 0xf2;
/// Height of a leaf of the map.
pub(crate) const LEAF: u8 = 1;
/// Height of the nodes whose entries are leaves. The root is at least as high.
pub(crate) const ABOVE_LEAVES: u8 = 2;
/// Largest height of a root. Each node above the leaves has two entries or more, but for the root.
const HEIGHT_MAX: u8 = 40;
/// Bytes in front of a node's entries: height, a reserved zero, number of entries.
pub(crate) const NODE_HEADER_BYTES: usize = 4;
/// Most groups that wait for one leaf. The writer keeps far below.
pub(crate) const WAITING_MAX: usize = 64;
/// Largest sum of records or bytes.
const SUM_MAX: u64 = 1 << 60;

/// What lies below a reference, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Records of the line.
    pub(crate) records: u64,
    /// Their key and value bytes.
    pub(crate) bytes: u64,
    /// Records that wait, deletes included.
    pub(crate) waiting_records: u64,
    /// Their key and value bytes.
    pub(crate) waiting_bytes: u64,
    /// Bytes that they hide, by estimate: their own and those of the line.
    pub(crate) hidden_bytes: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, other: &Sums) {
        self.records = self.records.saturating_add(other.records);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.waiting_records = self.waiting_records.saturating_add(other.waiting_records);
        self.waiting_bytes = self.waiting_bytes.saturating_add(other.waiting_bytes);
        self.hidden_bytes = self.hidden_bytes.saturating_add(other.hidden_bytes);
    }

    /// Key and value bytes that a merge of all this takes in.
    pub(crate) fn merged_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.waiting_bytes)
    }

    /// The sums with these groups as the ones that wait.
    pub(crate) fn with_waiting(self, waiting: &[GroupRef]) -> Sums {
        let mut sums = Sums {
            records: self.records,
            bytes: self.bytes,
            ..Sums::default()
        };
        for group in waiting {
            sums.add(&Sums {
                waiting_records: group.records,
                waiting_bytes: group.logical_bytes,
                hidden_bytes: group.hidden_bytes,
                ..Sums::default()
            });
        }
        sums
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for sum in [
            self.records,
            self.bytes,
            self.waiting_records,
            self.waiting_bytes,
            self.hidden_bytes,
        ] {
            put_varint(out, sum);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Sums> {
        let mut sum = || match reader.varint()? {
            sum @ ..=SUM_MAX => Ok(sum),
            _ => Err(reader.corrupt("an impossible sum")),
        };
        Ok(Sums {
            records: sum()?,
            bytes: sum()?,
            waiting_records: sum()?,
            waiting_bytes: sum()?,
            hidden_bytes: sum()?,
        })
    }
}

/// The root of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// No records.
    Empty,
    /// The map.
    Map(MapRef),
}

/// Where the map's root node is, and what it holds in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapRef {
    pub(crate) page: PageRef,
    /// At least [`ABOVE_LEAVES`].
    pub(crate) height: u8,
    pub(crate) sums: Sums,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MAGIC];
        match self {
            Root::Empty => out.push(0),
            Root::Map(map) => {
                out.push(map.height);
                map.page.encode(&mut out);
                map.sums.encode(&mut out);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Root> {
        let mut reader = Reader::new("root of a page-grouped tree", bytes);
        if reader.u8()? != MAGIC {
            return Err(reader.corrupt("the root of another structure"));
        }
        let root = match reader.u8()? {
            0 => Root::Empty,
            height @ ABOVE_LEAVES..=HEIGHT_MAX => Root::Map(MapRef {
                height,
                page: PageRef::decode(&mut reader)?,
                sums: Sums::decode(&mut reader)?,
            }),
            _ => return Err(reader.corrupt("impossible height")),
        };
        match reader.remaining() {
            0 => Ok(root),
            _ => Err(reader.corrupt("bytes behind the root")),
        }
    }
}

/// An entry of a node above the leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Lower bound of the keys below. A node's first entry has all keys from the lower bound of the
    /// node on, which the node above has: its own bound is empty on disk.
    pub(crate) bound: Box<[u8]>,
    /// A leaf or a node.
    pub(crate) page: PageRef,
    pub(crate) sums: Sums,
    /// When the records of the line expire.
    pub(crate) deadlines: Deadlines,
    /// Groups that wait for a leaf, newest first. Their keys are the leaf's.
    pub(crate) waiting: Vec<GroupRef>,
}

impl Entry {
    pub(crate) fn encoded_bytes(&self) -> u64 {
        // References to groups take 20 to 60 bytes.
        (self.bound.len() + PageRef::BYTES + 16 + 48 * self.waiting.len()) as u64
    }
}

/// A node above the leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    pub(crate) height: u8,
    pub(crate) entries: Vec<Entry>,
}

fn header(height: u8, entries: usize) -> Result<Vec<u8>> {
    let entries = u16::try_from(entries)
        .map_err(|_| Error::internal("a node of the map has too many entries"))?;
    let mut out = vec![height, 0];
    out.extend_from_slice(&entries.to_le_bytes());
    Ok(out)
}

/// Reads a node's header: its height and number of entries. Each entry takes more than one byte,
/// which bounds what the caller allocates.
fn read_header(reader: &mut Reader<'_>, height: u8) -> Result<usize> {
    if reader.u8()? != height {
        return Err(reader.corrupt("a node of another height"));
    }
    if reader.u8()? != 0 {
        return Err(reader.corrupt("reserved byte"));
    }
    let entries = usize::from(reader.u16()?);
    match entries == 0 || entries > reader.remaining() {
        true => Err(reader.corrupt("impossible number of entries")),
        false => Ok(entries),
    }
}

impl Inner {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = header(self.height, self.entries.len())?;
        for (number, entry) in self.entries.iter().enumerate() {
            put_prefixed(&mut out, if number == 0 { &[] } else { &entry.bound });
            entry.page.encode(&mut out);
            entry.sums.encode(&mut out);
            encode_optional_sums(0, &entry.deadlines, &mut out);
            if self.height == ABOVE_LEAVES {
                put_varint(&mut out, entry.waiting.len() as u64);
                for group in &entry.waiting {
                    group.encode(&Deadlines::default(), &mut out);
                }
            }
        }
        Ok(out)
    }

    pub(crate) fn decode(bytes: &[u8], height: u8) -> Result<Inner> {
        let mut reader = Reader::new("node of a page map", bytes);
        let count = read_header(&mut reader, height)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(count);
        for _ in 0..count {
            let bound = reader.prefixed()?;
            if bound.len() > KEY_BYTES_MAX {
                return Err(reader.corrupt("a bound of impossible length"));
            }
            let ascends = match entries.last() {
                None => bound.is_empty(),
                Some(before) => &before.bound[..] < bound,
            };
            if !ascends {
                return Err(reader.corrupt("bounds do not ascend"));
            }
            let (page, sums) = (PageRef::decode(&mut reader)?, Sums::decode(&mut reader)?);
            let (separated_bytes, deadlines) = decode_optional_sums(&mut reader)?;
            if separated_bytes > 0 || deadlines.records() > sums.records {
                return Err(reader.corrupt("impossible optional sums of an entry"));
            }
            let mut waiting = Vec::new();
            if height == ABOVE_LEAVES {
                let groups = reader.varint()?;
                if groups > WAITING_MAX as u64 {
                    return Err(reader.corrupt("too many waiting groups"));
                }
                for _ in 0..groups {
                    waiting.push(GroupRef::decode(&mut reader)?.0);
                }
                if sums.with_waiting(&waiting) != sums {
                    return Err(reader.corrupt("sums and waiting groups contradict each other"));
                }
            }
            entries.push(Entry {
                bound: bound.into(),
                page,
                sums,
                deadlines,
                waiting,
            });
        }
        match reader.remaining() {
            0 => Ok(Inner { height, entries }),
            _ => Err(reader.corrupt("bytes behind the entries")),
        }
    }

    /// The number of the entry that has a key.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        let has_key = |entry: &Entry| match mutant::active("map-bound-belongs-left") {
            true => &entry.bound[..] < key,
            false => &entry.bound[..] <= key,
        };
        self.entries.partition_point(has_key).saturating_sub(1)
    }

    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.entries.iter().for_each(|entry| sums.add(&entry.sums));
        sums
    }

    /// When the records of the line expire.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let mut sum = Deadlines::default();
        let entries = self.entries.iter();
        entries.for_each(|entry| sum.add(&entry.deadlines));
        sum
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let entry = |entry: &Entry| {
            let waiting = entry.waiting.len() * size_of::<GroupRef>();
            size_of::<Entry>() + entry.bound.len() + waiting + entry.deadlines.memory_bytes()
        };
        self.entries.iter().map(entry).sum()
    }
}

/// A leaf of the map: its bytes, and where its entries lie in them. A get searches the bytes as
/// they are, so a leaf takes little more memory than on disk.
#[derive(Debug)]
pub(crate) struct Leaf {
    bytes: Box<[u8]>,
    places: Box<[Place]>,
    /// The decoded index of each segment, as long as it is cached.
    indexes: Box<[Handle<GroupIndex>]>,
}

/// Where a segment's entry lies in the bytes of its leaf.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u32,
    index: u32,
    end: u32,
}

/// A segment, as its leaf names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentRef<'a> {
    pub(crate) group: GroupRef,
    pub(crate) index: NodeIndex<'a>,
    /// The bytes of the entry.
    pub(crate) entry: &'a [u8],
    handle: &'a Handle<GroupIndex>,
}

impl SegmentRef<'_> {
    /// The decoded index, through the cache. It takes twice the memory of the copy, and a search
    /// in it takes half the time.
    pub(crate) fn cached_index(&self, store: &PageStore) -> Result<Arc<GroupIndex>> {
        store.index_of_copy(&self.group, self.handle, self.index)
    }
}

/// Appends a segment's entry to a leaf's bytes. `index` is the used part of its group's index.
pub(crate) fn encode_segment(
    group: &GroupRef,
    deadlines: &Deadlines,
    index: &[u8],
    out: &mut Vec<u8>,
) {
    group.encode(deadlines, out);
    put_prefixed(out, index);
}

/// The bytes of a leaf with these entries.
pub(crate) fn encode_leaf<'a>(entries: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Vec<u8>> {
    let mut out = header(LEAF, entries.len())?;
    entries.for_each(|entry| out.extend_from_slice(entry));
    Ok(out)
}

impl Leaf {
    /// Decodes a leaf, and checks all of it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Leaf> {
        let mut reader = Reader::new("leaf of a page map", bytes);
        let count = read_header(&mut reader, LEAF)?;
        let at = |reader: &Reader<'_>| (bytes.len() - reader.remaining()) as u32;
        let mut places = Vec::with_capacity(count);
        let mut scratch = Vec::new();
        let mut last_key: Option<Vec<u8>> = None;
        for _ in 0..count {
            let start = at(&reader);
            let (group, deadlines) = GroupRef::decode(&mut reader)?;
            let copy = reader.prefixed()?;
            let end = at(&reader);
            let index = NodeIndex::new(copy).decode(&group, &mut scratch)?;
            if last_key.is_some_and(|last| &last[..] >= index.first_key()) {
                return Err(reader.corrupt("keys of segments do not ascend"));
            }
            let blocks = index.blocks();
            let sums = (index.records_before(blocks), index.bytes_before(blocks));
            if sums != (group.records, group.logical_bytes) || index.deadlines() != deadlines {
                return Err(reader.corrupt("index and reference contradict each other"));
            }
            if group.tombstones > 0 || group.hidden_bytes > 0 || group.filter_bytes > 0 {
                return Err(reader.corrupt("a segment with deletes or a filter"));
            }
            last_key = Some(index.last_key().to_vec());
            places.push(Place {
                start,
                index: end - copy.len() as u32,
                end,
            });
        }
        match reader.remaining() {
            0 => Ok(Leaf {
                bytes: bytes.into(),
                indexes: places.iter().map(|_| Handle::default()).collect(),
                places: places.into(),
            }),
            _ => Err(reader.corrupt("bytes behind the entries")),
        }
    }

    /// Number of segments: at least one.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    fn index(&self, number: usize) -> NodeIndex<'_> {
        let place = self.places[number];
        NodeIndex::new(&self.bytes[place.index as usize..place.end as usize])
    }

    /// The segment of this number; panics if there is none.
    pub(crate) fn segment(&self, number: usize) -> Result<SegmentRef<'_>> {
        let place = self.places[number];
        let entry = &self.bytes[place.start as usize..place.end as usize];
        let (group, _) = GroupRef::decode(&mut Reader::new("segment", entry))?;
        Ok(SegmentRef {
            group,
            index: self.index(number),
            entry,
            handle: &self.indexes[number],
        })
    }

    /// When the records of the segment of this number expire.
    pub(crate) fn deadlines(&self, number: usize) -> Result<Deadlines> {
        let place = self.places[number];
        let entry = &self.bytes[place.start as usize..place.end as usize];
        Ok(GroupRef::decode(&mut Reader::new("segment", entry))?.1)
    }

    /// The smallest key of a segment.
    #[inline]
    pub(crate) fn first_key(&self, number: usize) -> &[u8] {
        self.index(number).first_key()
    }

    /// The number of segments that begin at or below a key. The one before that number is the only
    /// one that may hold the key.
    #[inline]
    pub(crate) fn up_to(&self, key: &[u8]) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.first_key(middle) <= key {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let each = size_of::<Place>() + size_of::<Handle<GroupIndex>>();
        self.bytes.len() + self.places.len() * each
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{ErrorKind, Incarnation, Message, PageId};
    use terrapin_pages::block::Compression;
    use terrapin_pages::group::{GroupBuilder, GroupOptions};

    use super::*;

    fn page(number: u64) -> PageRef {
        PageRef {
            id: PageId::new(Incarnation(1), number),
            offset: 4096 * number,
            bytes: 512,
        }
    }

    /// A group of some keys, and the used bytes of its index.
    fn group(number: u64, keys: std::ops::Range<u32>) -> (GroupRef, Vec<u8>) {
        let mut builder = GroupBuilder::new(GroupOptions {
            target_bytes: 1 << 16,
            block_bytes: 512,
            unit: 512,
            compression: Compression::None,
            filter_bits: 0,
            now_ms: 0,
        });
        for key in keys {
            let key = format!("{key:05}");
            let added = builder.add(key.as_bytes(), Message::Put(&[7; 200]));
            assert!(added.unwrap().is_none());
        }
        let id = PageId::new(Incarnation(1), number);
        let (group, image) = builder.finish().remove(0).place(id, 4096 * number);
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        (group, NodeIndex::of_group(index).to_vec())
    }

    fn leaf(ranges: &[std::ops::Range<u32>]) -> Vec<u8> {
        let entry = |(number, keys): (u64, &std::ops::Range<u32>)| {
            let (group, index) = group(number, keys.clone());
            let mut entry = Vec::new();
            encode_segment(&group, &Deadlines::default(), &index, &mut entry);
            entry
        };
        let entries: Vec<_> = (10..).zip(ranges).map(entry).collect();
        encode_leaf(entries.iter().map(|entry| &entry[..])).unwrap()
    }

    fn inner() -> Inner {
        let (waits, _) = group(7, 3..6);
        let line = Sums {
            records: 40,
            bytes: 8200,
            ..Sums::default()
        };
        let entry = |bound: &[u8], number, waiting: Vec<GroupRef>| Entry {
            bound: bound.into(),
            page: page(number),
            sums: line.with_waiting(&waiting),
            deadlines: Deadlines::default(),
            waiting,
        };
        Inner {
            height: 2,
            entries: vec![entry(b"", 4, vec![waits]), entry(b"00040", 5, Vec::new())],
        }
    }

    fn root() -> Root {
        Root::Map(MapRef {
            page: page(6),
            height: 2,
            sums: inner().sums(),
        })
    }

    #[test]
    fn roots_nodes_and_leaves_come_back() {
        for root in [Root::Empty, root()] {
            assert_eq!(Root::decode(&root.encode()).unwrap(), root);
        }
        let inner = inner();
        assert_eq!(Inner::decode(&inner.encode().unwrap(), 2).unwrap(), inner);
        assert_eq!(
            [&b""[..], b"00039", b"00040", b"1"].map(|key| inner.find(key)),
            [0, 0, 1, 1]
        );
        let leaf = Leaf::decode(&leaf(&[0..20, 30..31, 40..90])).unwrap();
        assert_eq!(leaf.len(), 3);
        let keys = [&b""[..], b"00000", b"00029", b"00030", b"00039", b"9"];
        assert_eq!(keys.map(|key| leaf.up_to(key)), [0, 1, 1, 2, 2, 3]);
        let segment = leaf.segment(2).unwrap();
        assert_eq!(
            (segment.group.records, segment.index.last_key()),
            (50, &b"00089"[..])
        );
    }

    #[test]
    fn any_other_bytes_are_corrupt_or_decode_and_never_panic() {
        let corrupt = |error: &Error| assert_eq!(error.kind(), ErrorKind::Corrupt);
        let (inner, leaf, root) = (
            inner().encode().unwrap(),
            leaf(&[0..20, 30..31]),
            root().encode(),
        );
        for at in 0..inner.len() {
            corrupt(&Inner::decode(&inner[..at], 2).unwrap_err());
        }
        for at in 0..leaf.len() {
            corrupt(&Leaf::decode(&leaf[..at]).unwrap_err());
        }
        for at in 0..root.len() {
            corrupt(&Root::decode(&root[..at]).unwrap_err());
        }
        for bit in 0..8 * leaf.len() {
            let mut hostile = leaf.clone();
            hostile[bit / 8] ^= 1 << (bit % 8);
            // A place or a name has no second copy in the leaf: `verify` finds these.
            let _ = Leaf::decode(&hostile).map_err(|error| corrupt(&error));
        }
        for bit in 0..8 * inner.len() {
            let mut hostile = inner.clone();
            hostile[bit / 8] ^= 1 << (bit % 8);
            let _ = Inner::decode(&hostile, 2).map_err(|error| corrupt(&error));
        }
        corrupt(&Inner::decode(&inner, 3).map(drop).unwrap_err());
        corrupt(&Inner::decode(&leaf, 1).map(drop).unwrap_err());
        let behind = [&inner[..], &[0]].concat();
        corrupt(&Inner::decode(&behind, 2).map(drop).unwrap_err());
    }

    #[test]
    fn segments_out_of_order_or_overlapping_are_refused() {
        for ranges in [[30..40, 0..10], [0..20, 19..30], [0..20, 5..6]] {
            let error = Leaf::decode(&leaf(&ranges)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    /// The annotated dump belongs to the format's description: bytes, then their meaning.
    #[test]
    fn a_small_map_is_what_its_golden_dump_shows() {
        let bytes = [
            root().encode(),
            inner().encode().unwrap(),
            leaf(std::slice::from_ref(&(0..3))),
        ]
        .concat();
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let dump = include_str!("../tests/golden/map.txt");
        let documented = dump.lines().flat_map(|line| {
            let bytes = line.split('|').next().unwrap_or_default();
            bytes.split_whitespace()
        });
        assert_eq!(hex.join(" "), documented.collect::<Vec<_>>().join(" "));
    }
}
