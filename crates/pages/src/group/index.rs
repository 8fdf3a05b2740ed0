//! A group's index names the only block that may hold a key, and tells how much lies before each block.
//!
//! Between two blocks stands the shortest separator: above every key of the left one, not above any of the right. In
//! memory the first eight bytes of each behind what all have in common lie in one array, big-endian, so that a search is
//! over integers and compares strings only where those are equal.

use std::cmp::Ordering;

use terrapin_base::checksum::crc32c_append;
use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, PageId, Result, mutant};

use super::GROUP_TARGET_BYTES_MAX;
use crate::block::{PART_INDEX, common_prefix, part_seed};
use crate::heads::{Prefix, equal_heads, head};

/// Bytes in front of the index's variable part: checksum, used bytes, blocks.
const HEADER_BYTES: usize = 12;
/// Most bytes that a group's separators can have together: a builder counts them towards its target.
const SEPARATORS_BYTES_MAX: usize = 2 * GROUP_TARGET_BYTES_MAX as usize;

/// What a builder knows of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockEntry {
    pub(super) bytes: u32,
    pub(super) records: u32,
    pub(super) tombstones: u32,
    pub(super) logical_bytes: u64,
    /// Bytes of the separator in front of the block.
    pub(super) separator_bytes: u32,
}

/// Lays an index out, padded to whole units, with a checksum of zero. `separators` are one behind the other; the first
/// block's counts for nothing.
pub(super) fn encode(
    blocks: &[BlockEntry],
    separators: &[u8],
    first_key: &[u8],
    last_key: &[u8],
    unit: u32,
) -> Vec<u8> {
    let mut cut = Vec::with_capacity(blocks.len());
    let mut rest = separators;
    for block in blocks {
        let (separator, tail) = rest.split_at(block.separator_bytes as usize);
        cut.push(separator);
        rest = tail;
    }
    let inner = cut.get(1..).unwrap_or_default();
    // Separators ascend, so what the first and the last share is what all share.
    let prefix = match (inner.first(), inner.last()) {
        (Some(first), Some(last)) => &first[..common_prefix(first, last)],
        _ => &[],
    };

    let mut out = vec![0; HEADER_BYTES];
    put_prefixed(&mut out, first_key);
    put_prefixed(&mut out, last_key);
    put_prefixed(&mut out, prefix);
    for block in blocks {
        put_varint(&mut out, u64::from(block.bytes));
        let too_many = u64::from(mutant::active(66));
        put_varint(&mut out, u64::from(block.records) + too_many);
        put_varint(&mut out, block.logical_bytes);
    }
    for separator in inner {
        put_prefixed(&mut out, &separator[prefix.len()..]);
    }
    let used = out.len() as u32;
    out[4..8].copy_from_slice(&used.to_le_bytes());
    out[8..12].copy_from_slice(&(blocks.len() as u32).to_le_bytes());
    out.resize(out.len().next_multiple_of(unit as usize), 0);
    out
}

/// Writes the checksum of an index once its group has an id.
pub(super) fn seal(index: &mut [u8], id: PageId) {
    let crc = checksum(index, id);
    index[..4].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(index: &[u8], id: PageId) -> u32 {
    crc32c_append(part_seed(id, PART_INDEX), &index[4..])
}

/// A group's index, decoded.
#[derive(Debug)]
pub struct GroupIndex {
    /// Where each block starts in the group, and where the last ends.
    starts: Box<[u32]>,
    /// Records before each block, and in all.
    records: Box<[u32]>,
    /// Key and value bytes before each block, and in all.
    logical_bytes: Box<[u64]>,
    /// The first bytes behind the prefix of each separator (of blocks 1, 2, …), as big-endian numbers.
    heads: Box<[u64]>,
    /// Where each separator ends in `separators`.
    ends: Box<[u32]>,
    separators: Box<[u8]>,
    /// What all separators have in common at their start.
    prefix: Prefix,
    first_key: Box<[u8]>,
    last_key: Box<[u8]>,
}

impl GroupIndex {
    /// Decodes the `index_bytes` bytes of a group's index. Linear in the number of blocks. Memory is bounded by the bytes'
    /// length and a constant, whatever they say.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`], with the page, when this is not that group's index or is damaged.
    pub fn decode(bytes: &[u8], id: PageId) -> Result<GroupIndex> {
        Self::decode_checked(bytes, id).map_err(|e| e.with("page", id))
    }

    fn decode_checked(bytes: &[u8], id: PageId) -> Result<GroupIndex> {
        if bytes.len() < HEADER_BYTES {
            return Err(Error::corrupt("group index too short").with("bytes", bytes.len()));
        }
        if bytes[..4] != checksum(bytes, id).to_le_bytes() && !mutant::active(62) {
            return Err(Error::corrupt("group index checksum"));
        }
        let mut reader = Reader::new("group index", bytes);
        reader.u32()?;
        let used = reader.u32()? as usize;
        let blocks = reader.u32()? as usize;
        // Every block takes three bytes at least; this bounds what is allocated below.
        if used < HEADER_BYTES || used > bytes.len() || blocks == 0 || blocks > bytes.len() / 3 {
            return Err(reader.corrupt("impossible header"));
        }
        let mut reader = Reader::new("group index", &bytes[HEADER_BYTES..used]);
        let first_key = key(&mut reader)?;
        let last_key = key(&mut reader)?;
        let prefix = key(&mut reader)?;

        let mut starts = Vec::with_capacity(blocks + 1);
        let mut records = Vec::with_capacity(blocks + 1);
        let mut logical_bytes = Vec::with_capacity(blocks + 1);
        let (mut bytes_sum, mut records_sum, mut logical_sum) = (0u32, 0u32, 0u64);
        for _ in 0..blocks {
            starts.push(bytes_sum);
            records.push(records_sum);
            logical_bytes.push(logical_sum);
            let (block, count, logical) = (reader.varint()?, reader.varint()?, reader.varint()?);
            if block == 0 || count == 0 {
                return Err(reader.corrupt("empty block"));
            }
            bytes_sum = add_u32(&reader, bytes_sum, block)?;
            records_sum = add_u32(&reader, records_sum, count)?;
            logical_sum = logical_sum
                .checked_add(logical)
                .ok_or_else(|| reader.corrupt("sum too large"))?;
        }
        starts.push(bytes_sum);
        records.push(records_sum);
        logical_bytes.push(logical_sum);

        let mut heads = Vec::with_capacity(blocks - 1);
        let mut ends = Vec::with_capacity(blocks - 1);
        let mut separators = Vec::new();
        let mut before = 0..0;
        for i in 1..blocks {
            let suffix = reader.prefixed()?;
            let start = separators.len();
            if prefix.len() + suffix.len() > KEY_BYTES_MAX
                || start + prefix.len() + suffix.len() > SEPARATORS_BYTES_MAX
            {
                return Err(reader.corrupt("separators too long"));
            }
            separators.extend_from_slice(prefix);
            separators.extend_from_slice(suffix);
            let here = start..separators.len();
            let ascends = if i == 1 {
                *first_key < separators[here.clone()]
            } else {
                separators[before.clone()] < separators[here.clone()]
            };
            if !ascends {
                return Err(reader.corrupt("separators do not ascend").with("block", i));
            }
            ends.push(separators.len() as u32);
            heads.push(head(suffix));
            before = here;
        }
        if separators[before] > *last_key || first_key > last_key || reader.remaining() != 0 {
            return Err(reader.corrupt("keys and separators contradict each other"));
        }
        Ok(GroupIndex {
            starts: starts.into(),
            records: records.into(),
            logical_bytes: logical_bytes.into(),
            heads: heads.into(),
            ends: ends.into(),
            separators: separators.into(),
            prefix: Prefix::new(prefix),
            first_key: first_key.into(),
            last_key: last_key.into(),
        })
    }

    /// Number of blocks: at least one.
    #[inline]
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.starts.len() - 1
    }

    /// The group's smallest key.
    #[inline]
    #[must_use]
    pub fn first_key(&self) -> &[u8] {
        &self.first_key
    }

    /// The group's largest key.
    #[inline]
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// The only block that may hold the key; logarithmic. A key below the first or above the last one leads to the first
    /// or last block.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &[u8]) -> usize {
        if self.heads.is_empty() {
            return 0;
        }
        let wanted = match self.prefix.strip(key) {
            Ok(suffix) => head(suffix),
            Err(Ordering::Less) => return 0,
            Err(_) => return self.blocks() - 1,
        };
        let equal = equal_heads(&self.heads, wanted);
        // Separators of equal head: usually none or one.
        let (mut from, mut to) = (equal.start, equal.end);
        while from < to {
            let middle = from.midpoint(to);
            let separator = self.separator(middle + 1);
            if separator < key || (separator == key && !mutant::active(23)) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// Where a block lies: its offset in the group and its length, in bytes. Panics when there is no such block.
    #[inline]
    #[must_use]
    pub fn block_place(&self, index: usize) -> (u32, u32) {
        let (start, end) = (self.starts[index], self.starts[index + 1]);
        (start, end - start)
    }

    /// Bytes of all blocks: where the index starts in the group.
    #[must_use]
    pub fn blocks_bytes(&self) -> u32 {
        self.starts[self.blocks()]
    }

    /// Records in the blocks before this one; of all when `index` is [`GroupIndex::blocks`]. Panics beyond.
    #[inline]
    #[must_use]
    pub fn records_before(&self, index: usize) -> u64 {
        u64::from(self.records[index])
    }

    /// Key and value bytes in the blocks before this one; of all when `index` is [`GroupIndex::blocks`]. Panics beyond.
    #[inline]
    #[must_use]
    pub fn bytes_before(&self, index: usize) -> u64 {
        self.logical_bytes[index]
    }

    /// A key that is above all keys of the blocks before this one and not above those of this one: the shortest, and for
    /// block 0 the group's first key. Panics when there is no such block.
    #[inline]
    #[must_use]
    pub fn separator(&self, index: usize) -> &[u8] {
        assert!(index < self.blocks(), "block {index} of {}", self.blocks());
        let Some(i) = index.checked_sub(1) else {
            return &self.first_key;
        };
        let start = i
            .checked_sub(1)
            .map_or(0, |before| self.ends[before] as usize);
        &self.separators[start..self.ends[i] as usize]
    }

    /// Records, and key and value bytes, from `lo` (inclusive) to `hi` (exclusive; none: unbounded): exact for whole blocks,
    /// and half of a block that a bound falls into. Logarithmic.
    #[must_use]
    pub fn estimate_bytes(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> (u64, u64) {
        let all = (
            self.records_before(self.blocks()),
            self.bytes_before(self.blocks()),
        );
        let low = lo.map_or((0, 0), |key| self.estimate_before(key));
        let high = hi.map_or(all, |key| self.estimate_before(key));
        (high.0.saturating_sub(low.0), high.1.saturating_sub(low.1))
    }

    /// How much lies below a key.
    fn estimate_before(&self, key: &[u8]) -> (u64, u64) {
        if key > &*self.last_key {
            return (
                self.records_before(self.blocks()),
                self.bytes_before(self.blocks()),
            );
        }
        let block = self.find(key);
        let before = (self.records_before(block), self.bytes_before(block));
        if key <= self.separator(block) {
            return before;
        }
        let end = (self.records_before(block + 1), self.bytes_before(block + 1));
        (before.0.midpoint(end.0), before.1.midpoint(end.1))
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + (self.starts.len() + self.records.len() + self.ends.len()) * 4
            + (self.logical_bytes.len() + self.heads.len()) * 8
            + self.separators.len()
            + self.first_key.len()
            + self.last_key.len()
            + self.prefix.bytes().len()
    }
}

fn key<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    let key = reader.prefixed()?;
    if key.len() > KEY_BYTES_MAX {
        Err(reader.corrupt("key too long"))
    } else {
        Ok(key)
    }
}

fn add_u32(reader: &Reader<'_>, sum: u32, more: u64) -> Result<u32> {
    u32::try_from(more)
        .ok()
        .and_then(|more| sum.checked_add(more))
        .ok_or_else(|| reader.corrupt("sum too large"))
}
