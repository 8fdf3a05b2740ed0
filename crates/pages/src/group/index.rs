//! The index of a group. It names the only block that may hold a key, and counts the records and
//! bytes before each block.
//!
//! Two blocks are divided by the shortest separator: above every key of the left block, and not
//! above any key of the right one. In memory an array holds the *heads* of the separators. A head
//! is the first four or eight bytes behind the common prefix, padded with zeros, so that a search
//! compares integers.
//!
//! Heads are usually sufficient. A separator that fits its head and does not end with a zero equals
//! its head, and comparing heads decides. If any separator of a group is different, the group also
//! keeps all separators as strings, and compares those if heads are equal.
//!
//! One allocation holds the whole index: about nine bytes a block for short separators.

use std::cmp::Ordering;
use std::ops::Range;

use terrapin_base::checksum::crc32c_append;
use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, PageId, Result, mutant};
use terrapin_disk::LongBox;

use super::deadlines::Deadlines;
use super::format::{decode_optional_sums, encode_optional_sums};
use super::model::Model;
use super::sums::{SLACK_BYTES, Sums};
use super::{GROUP_TARGET_BYTES_MAX, LOGICAL_BYTES_MAX};
use crate::block::{PART_INDEX, common_prefix, part_seed};
use crate::cache::Standing;
use crate::heads::{Head, Prefix, equal_heads, head, heads_before};

/// Bytes in front of the index's variable part: checksum, used bytes, blocks.
pub(super) const HEADER_BYTES: usize = 12;
/// The bit of the number of blocks that says that a model stands in the place of separators.
pub(super) const MODEL_BIT: u32 = 1 << 31;
/// Least bytes of the index for each block.
const ENTRY_BYTES_MIN: usize = 4;
/// Most bytes of all separators of a group. A builder counts them towards its target.
const SEPARATORS_BYTES_MAX: usize = 2 * GROUP_TARGET_BYTES_MAX as usize;
/// Most bytes of an index: the limit of its separators, and a generous bound for the rest.
const INDEX_BYTES_MAX: usize = 2 * SEPARATORS_BYTES_MAX;

/// A block as its builder describes it to the index.
#[derive(Clone, Debug)]
pub(super) struct BlockEntry {
    pub(super) bytes: u32,
    pub(super) records: u32,
    pub(super) tombstones: u32,
    pub(super) logical_bytes: u64,
    pub(super) hidden_bytes: u64,
    pub(super) separated_bytes: u64,
    pub(super) deadlines: Deadlines,
    pub(super) record_bytes_max: u32,
    /// Bytes of the separator in front of the block.
    pub(super) separator_bytes: u32,
    /// The block's standing in the cache.
    pub(super) standing: Standing,
}

/// Encodes an index, padded to whole units, with a checksum of zero. `separators` are concatenated;
/// the first block's separator is ignored, and a model stands in the place of all.
pub(super) fn encode(
    blocks: &[BlockEntry],
    (separators, model): (&[u8], Option<Model>),
    (first_key, last_key): (&[u8], &[u8]),
    deadlines: &Deadlines,
    unit: u32,
) -> Vec<u8> {
    let mut cut = Vec::with_capacity(blocks.len());
    let mut rest = separators;
    for block in blocks {
        let (separator, tail) = rest.split_at(block.separator_bytes as usize);
        cut.push(separator);
        rest = tail;
    }
    let inner = match model {
        Some(_) => &[],
        None => cut.get(1..).unwrap_or_default(),
    };
    // Separators ascend: all share the prefix that the first and the last share.
    let prefix = match (inner.first(), inner.last()) {
        (Some(first), Some(last)) => &first[..common_prefix(first, last)],
        _ => &[],
    };

    let mut out = vec![0; HEADER_BYTES];
    put_prefixed(&mut out, first_key);
    put_prefixed(&mut out, last_key);
    put_prefixed(&mut out, prefix);
    let separated_bytes = blocks.iter().map(|block| block.separated_bytes).sum();
    encode_optional_sums(separated_bytes, deadlines, &mut out);
    for block in blocks {
        put_varint(&mut out, u64::from(block.bytes));
        let too_many = u64::from(mutant::active("index-counts-too-many-records"));
        put_varint(&mut out, u64::from(block.records) + too_many);
        put_varint(&mut out, block.logical_bytes);
        put_varint(&mut out, block.hidden_bytes);
        if separated_bytes > 0 {
            put_varint(&mut out, block.separated_bytes);
        }
    }
    for separator in inner {
        put_prefixed(&mut out, &separator[prefix.len()..]);
    }
    let mut count = blocks.len() as u32;
    if let Some(model) = model {
        model.encode(first_key, &mut out);
        count |= MODEL_BIT;
    }
    let used = out.len() as u32;
    out[4..8].copy_from_slice(&used.to_le_bytes());
    out[8..12].copy_from_slice(&count.to_le_bytes());
    out.resize(out.len().next_multiple_of(unit as usize), 0);
    out
}

/// Writes the checksum of an index once its group has an id.
pub(super) fn seal(index: &mut [u8], id: PageId) {
    let crc = checksum(index, id);
    index[..4].copy_from_slice(&crc.to_le_bytes());
}

pub(super) fn checksum(index: &[u8], id: PageId) -> u32 {
    crc32c_append(part_seed(id, PART_INDEX), &index[4..])
}

/// Sums over some blocks. Each field is also a number for each block in the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSums {
    /// Records, deletes included.
    pub records: u64,
    /// Key and value bytes of the records.
    pub bytes: u64,
    /// Bytes that the records hide, as
    /// [`GroupBuilder::add_hiding`](super::GroupBuilder::add_hiding) defines them.
    pub hidden_bytes: u64,
    /// Bytes of values outside of the records.
    pub separated_bytes: u64,
}

impl GroupSums {
    fn minus(self, other: Self) -> Self {
        GroupSums {
            records: self.records.saturating_sub(other.records),
            bytes: self.bytes.saturating_sub(other.bytes),
            hidden_bytes: self.hidden_bytes.saturating_sub(other.hidden_bytes),
            separated_bytes: self.separated_bytes.saturating_sub(other.separated_bytes),
        }
    }
}

/// A group's index, decoded.
#[derive(Debug)]
pub struct GroupIndex {
    blocks: u32,
    /// Heads, packed sums, suffixes, first and last key, and padding for reads beyond the last sum.
    memory: LongBox,
    form: Form,
    /// The start of each block in the group, and the end of the last.
    starts: Sums,
    /// Records before each block, and in all.
    records: Sums,
    /// Key and value bytes before each block, and in all.
    logical_bytes: Sums,
    /// Bytes that messages before each block hide, and in all.
    hidden_bytes: Sums,
    /// Sums that most groups do not have.
    optional: Option<Box<Optional>>,
    /// The common prefix of all separators.
    prefix: Prefix,
    /// Positions in `memory`: start of the first key, start of the last key, and its end.
    keys: [u32; 3],
}

/// Sums that most groups do not have.
#[derive(Debug)]
struct Optional {
    /// Bytes of values outside of the records before each block, and in all.
    separated_bytes: Sums,
    deadlines: Deadlines,
}

/// The suffixes of the separators of blocks 1, 2, …: their bytes behind the common prefix.
#[derive(Debug)]
enum Form {
    /// Heads of four bytes, which equal the suffixes.
    Narrow,
    /// Heads of eight bytes, which equal the suffixes.
    Wide,
    /// Heads of eight bytes, and strings.
    Long(Box<Long>),
}

/// Suffixes as strings.
#[derive(Debug)]
struct Long {
    /// Start of the strings in `memory`.
    at: usize,
    /// Bytes before each string.
    before: Sums,
}

impl Form {
    /// Stores suffixes in the smallest form that holds them.
    fn lay_out(suffixes: &[&[u8]], out: &mut Vec<u8>) -> Self {
        let longest = suffixes
            .iter()
            .map(|suffix| suffix.len())
            .max()
            .unwrap_or(0);
        let heads_say_all = longest <= 8 && suffixes.iter().all(|suffix| suffix.last() != Some(&0));
        let is_narrow = heads_say_all && longest <= 4;
        for suffix in suffixes {
            let head = head(suffix).to_be_bytes();
            out.extend_from_slice(if is_narrow { &head[..4] } else { &head });
        }
        if heads_say_all {
            return if is_narrow { Form::Narrow } else { Form::Wide };
        }
        let mut sum = 0;
        let mut before: Vec<u64> = Vec::with_capacity(suffixes.len() + 1);
        for suffix in suffixes {
            before.push(sum);
            sum += suffix.len() as u64;
        }
        before.push(sum);
        let before = Sums::pack(&before, out);
        let at = out.len();
        suffixes
            .iter()
            .for_each(|suffix| out.extend_from_slice(suffix));
        Form::Long(Box::new(Long { at, before }))
    }
}

/// The parsed fields of an index. Its separators, without the common prefix, are still in the bytes
/// read from disk.
struct Parts<'a> {
    starts: Vec<u64>,
    records: Vec<u64>,
    logical_bytes: Vec<u64>,
    hidden_bytes: Vec<u64>,
    /// Empty if nothing lies outside of the group.
    separated_bytes: Vec<u64>,
    deadlines: Deadlines,
    suffixes: Vec<&'a [u8]>,
}

impl<'a> Parts<'a> {
    fn read_sums(reader: &mut Reader<'_>, blocks: usize) -> Result<Self> {
        let (separated_all, deadlines) = decode_optional_sums(reader)?;
        let has_separated = separated_all > 0;
        let sums = || Vec::with_capacity(blocks + 1);
        let (mut starts, mut records) = (sums(), sums());
        let (mut logical_bytes, mut hidden_bytes) = (sums(), sums());
        let mut separated_bytes = Vec::new();
        let (mut bytes_sum, mut records_sum) = (0u32, 0u32);
        let (mut logical_sum, mut hidden_sum, mut separated_sum) = (0u64, 0u64, 0u64);
        for _ in 0..blocks {
            starts.push(u64::from(bytes_sum));
            records.push(u64::from(records_sum));
            logical_bytes.push(logical_sum);
            hidden_bytes.push(hidden_sum);
            let (block, count, logical) = (reader.varint()?, reader.varint()?, reader.varint()?);
            if block == 0 || count == 0 {
                return Err(reader.corrupt("empty block"));
            }
            bytes_sum = add_u32(reader, bytes_sum, block)?;
            records_sum = add_u32(reader, records_sum, count)?;
            logical_sum = add_bytes(reader, logical_sum, logical)?;
            let hidden = reader.varint()?;
            hidden_sum = add_bytes(reader, hidden_sum, hidden)?;
            if has_separated {
                separated_bytes.push(separated_sum);
                let separated = reader.varint()?;
                separated_sum = separated_sum.saturating_add(separated);
            }
        }
        starts.push(u64::from(bytes_sum));
        records.push(u64::from(records_sum));
        logical_bytes.push(logical_sum);
        hidden_bytes.push(hidden_sum);
        if has_separated {
            separated_bytes.push(separated_sum);
        }
        if separated_sum != separated_all {
            return Err(reader.corrupt("separated bytes of blocks and group differ"));
        }
        Ok(Parts {
            starts,
            records,
            logical_bytes,
            hidden_bytes,
            separated_bytes,
            deadlines,
            suffixes: Vec::new(),
        })
    }

    fn read_separators(
        &mut self,
        reader: &mut Reader<'a>,
        blocks: usize,
        prefix: &[u8],
        (first_key, last_key): (&[u8], &[u8]),
    ) -> Result<()> {
        let mut suffixes: Vec<&[u8]> = Vec::with_capacity(blocks - 1);
        let mut separators_bytes = 0;
        for i in 1..blocks {
            let suffix = reader.prefixed()?;
            let bytes = prefix.len() + suffix.len();
            separators_bytes += bytes;
            if bytes > KEY_BYTES_MAX || separators_bytes > SEPARATORS_BYTES_MAX {
                return Err(reader.corrupt("separators too long"));
            }
            let ascends = match suffixes.last() {
                None => compare((prefix, suffix), first_key) == Ordering::Greater,
                Some(before) => *before < suffix,
            };
            if !ascends {
                return Err(reader.corrupt("separators do not ascend").with("block", i));
            }
            suffixes.push(suffix);
        }
        let beyond = suffixes
            .last()
            .is_some_and(|suffix| compare((prefix, suffix), last_key) == Ordering::Greater);
        if beyond || first_key > last_key || reader.remaining() != 0 {
            return Err(reader.corrupt("keys and separators contradict each other"));
        }
        self.suffixes = suffixes;
        Ok(())
    }
}

impl GroupIndex {
    /// Decodes the `index_bytes` bytes of a group's index. Linear in the number of blocks. Memory
    /// is bounded by the bytes' length and a constant, also for hostile bytes.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`], with the page, if the index is damaged or belongs to
    /// another group.
    pub fn decode(bytes: &[u8], id: PageId) -> Result<GroupIndex> {
        Self::decode_checked(bytes, id).map_err(|e| e.with("page", id))
    }

    fn decode_checked(bytes: &[u8], id: PageId) -> Result<GroupIndex> {
        if bytes.len() < HEADER_BYTES {
            return Err(Error::corrupt("group index too short").with("bytes", bytes.len()));
        }
        if bytes[..4] != checksum(bytes, id).to_le_bytes()
            && !mutant::active("index-checksum-ignored")
        {
            return Err(Error::corrupt("group index checksum"));
        }
        let mut reader = Reader::new("group index", bytes);
        reader.u32()?;
        let used = reader.u32()? as usize;
        let count = reader.u32()?;
        let has_model = count & MODEL_BIT != 0;
        let blocks = (count & !MODEL_BIT) as usize;
        // This bounds the allocations below.
        let blocks_max = bytes.len() / ENTRY_BYTES_MIN;
        if used < HEADER_BYTES || used > bytes.len() || !(1..=blocks_max).contains(&blocks) {
            return Err(reader.corrupt("impossible header"));
        }
        // The memory computed below is then less than 4 GiB.
        if bytes.len() > INDEX_BYTES_MAX {
            return Err(reader.corrupt("too long"));
        }
        let mut reader = Reader::new("group index", &bytes[HEADER_BYTES..used]);
        let first_key = key(&mut reader)?;
        let last_key = key(&mut reader)?;
        let mut prefix = key(&mut reader)?;
        if has_model && !prefix.is_empty() {
            return Err(reader.corrupt("a model with a prefix"));
        }
        let mut expanded = Vec::new();
        let mut parts = Parts::read_sums(&mut reader, blocks)?;
        let mut separators = match has_model {
            false => reader,
            true => {
                let model = Model::decode(&mut reader, first_key)?;
                let shared = model.expand(first_key, blocks, &mut expanded);
                let shared = shared.filter(|_| reader.remaining() == 0);
                let Some(shared) = shared else {
                    return Err(reader.corrupt("an impossible model"));
                };
                prefix = &first_key[..shared];
                Reader::new("model of a group index", &expanded)
            }
        };
        parts.read_separators(&mut separators, blocks, prefix, (first_key, last_key))?;

        let mut memory = Vec::new();
        let form = Form::lay_out(&parts.suffixes, &mut memory);
        let starts = Sums::pack(&parts.starts, &mut memory);
        let records = Sums::pack(&parts.records, &mut memory);
        let logical_bytes = Sums::pack(&parts.logical_bytes, &mut memory);
        let hidden_bytes = Sums::pack(&parts.hidden_bytes, &mut memory);
        let has_optional = !parts.separated_bytes.is_empty() || !parts.deadlines.is_empty();
        let optional = has_optional.then(|| {
            Box::new(Optional {
                separated_bytes: match &parts.separated_bytes[..] {
                    [] => Sums::pack(&vec![0; blocks + 1], &mut memory),
                    sums => Sums::pack(sums, &mut memory),
                },
                deadlines: parts.deadlines,
            })
        });
        let keys_at = memory.len() as u32;
        let last_key_at = keys_at + first_key.len() as u32;
        memory.extend_from_slice(first_key);
        memory.extend_from_slice(last_key);
        memory.resize(memory.len() + SLACK_BYTES, 0);
        Ok(GroupIndex {
            blocks: blocks as u32,
            memory: memory.into(),
            form,
            starts,
            records,
            logical_bytes,
            hidden_bytes,
            optional,
            prefix: Prefix::new(prefix),
            keys: [keys_at, last_key_at, last_key_at + last_key.len() as u32],
        })
    }

    /// Number of blocks: at least one.
    #[inline]
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks as usize
    }

    /// The group's smallest key.
    #[inline]
    #[must_use]
    pub fn first_key(&self) -> &[u8] {
        &self.memory[self.keys[0] as usize..self.keys[1] as usize]
    }

    /// The group's largest key.
    #[inline]
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        &self.memory[self.keys[1] as usize..self.keys[2] as usize]
    }

    /// The heads of all separators, each of `N` bytes.
    #[inline]
    fn heads<const BYTES: usize>(&self) -> &[[u8; BYTES]] {
        self.memory[..(self.blocks() - 1) * BYTES].as_chunks().0
    }

    /// The only block that may hold the key. Logarithmic. A key below the first or above the last
    /// key leads to the first or last block.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &[u8]) -> usize {
        if self.blocks == 1 {
            return 0;
        }
        let suffix = match self.prefix.strip(key) {
            Ok(suffix) => suffix,
            Err(Ordering::Less) => return 0,
            Err(_) => return self.blocks() - 1,
        };
        let wanted = head(suffix);
        match &self.form {
            Form::Narrow => heads_up_to(self.heads::<4>(), wanted),
            Form::Wide => heads_up_to(self.heads::<8>(), wanted),
            Form::Long(..) => {
                let equal = equal_heads(self.heads::<8>(), wanted);
                let (mut from, mut to) = (equal.start, equal.end);
                while from < to {
                    let middle = from.midpoint(to);
                    let order = self.suffix(middle).cmp(suffix);
                    if order == Ordering::Less
                        || (order == Ordering::Equal
                            && !mutant::active("index-search-before-equal-separator"))
                    {
                        from = middle + 1;
                    } else {
                        to = middle;
                    }
                }
                from
            }
        }
    }

    /// A block's offset in the group and its length, in bytes. Panics if there is no such block.
    #[inline]
    #[must_use]
    pub fn block_place(&self, index: usize) -> (u32, u32) {
        assert!(index < self.blocks(), "block {index} of {}", self.blocks);
        let start = self.starts.get(&self.memory, index) as u32;
        let end = self.starts.get(&self.memory, index + 1) as u32;
        (start, end - start)
    }

    /// Bytes of all blocks: where the index starts in the group.
    #[must_use]
    pub fn blocks_bytes(&self) -> u32 {
        self.starts.get(&self.memory, self.blocks()) as u32
    }

    /// Records in the blocks before this one; of all when `index` is [`GroupIndex::blocks`]. Panics
    /// beyond.
    #[inline]
    #[must_use]
    pub fn records_before(&self, index: usize) -> u64 {
        assert!(index <= self.blocks(), "block {index} of {}", self.blocks);
        self.records.get(&self.memory, index)
    }

    /// Key and value bytes in the blocks before this one; of all when `index` is
    /// [`GroupIndex::blocks`]. Panics beyond.
    #[inline]
    #[must_use]
    pub fn bytes_before(&self, index: usize) -> u64 {
        assert!(index <= self.blocks(), "block {index} of {}", self.blocks);
        self.logical_bytes.get(&self.memory, index)
    }

    /// Bytes that the messages of the blocks before this one hide; those of all when `index` is
    /// [`GroupIndex::blocks`]. Panics beyond.
    #[inline]
    #[must_use]
    pub fn hidden_before(&self, index: usize) -> u64 {
        assert!(index <= self.blocks(), "block {index} of {}", self.blocks);
        self.hidden_bytes.get(&self.memory, index)
    }

    /// Bytes of values outside of the records of the blocks before this one; those of all when
    /// `index` is [`GroupIndex::blocks`]. Panics beyond.
    #[inline]
    #[must_use]
    pub fn separated_before(&self, index: usize) -> u64 {
        assert!(index <= self.blocks(), "block {index} of {}", self.blocks);
        match &self.optional {
            Some(optional) => optional.separated_bytes.get(&self.memory, index),
            None => 0,
        }
    }

    /// Counters of the group's deadlines.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.optional
            .as_ref()
            .map_or_else(Deadlines::default, |optional| optional.deadlines.clone())
    }

    /// The sums of one block. Panics if there is no such block.
    #[must_use]
    pub fn block_sums(&self, index: usize) -> GroupSums {
        let (before, end) = (self.sums_before(index), self.sums_before(index + 1));
        end.minus(before)
    }

    fn sums_before(&self, index: usize) -> GroupSums {
        GroupSums {
            records: self.records_before(index),
            bytes: self.bytes_before(index),
            hidden_bytes: self.hidden_before(index),
            separated_bytes: self.separated_before(index),
        }
    }

    /// Bytes of some blocks, stored or decoded, whichever is more. The decoded size is an estimate:
    /// key and value bytes, with the common prefix of the keys once a block. Panics if there are no
    /// such blocks.
    #[must_use]
    pub fn held_bytes(&self, blocks: Range<usize>) -> u64 {
        assert!(
            blocks.start <= blocks.end && blocks.end <= self.blocks(),
            "blocks {blocks:?} of {}",
            self.blocks
        );
        let start = self.starts.get(&self.memory, blocks.start);
        let stored = self.starts.get(&self.memory, blocks.end) - start;
        let bytes = self.bytes_before(blocks.end) - self.bytes_before(blocks.start);
        if bytes <= stored {
            return stored;
        }
        // The blocks are compressed or share a long prefix. Keys between two separators share the
        // separators' common prefix.
        let (front, rest) = self.separator(blocks.start);
        let (end_front, end_rest) = if blocks.end < self.blocks() {
            self.separator(blocks.end)
        } else {
            (self.last_key(), &[][..])
        };
        let common = front
            .iter()
            .chain(rest)
            .zip(end_front.iter().chain(end_rest))
            .take_while(|(a, b)| a == b)
            .count();
        let records = self.records_before(blocks.end) - self.records_before(blocks.start);
        let others = records.saturating_sub(blocks.len() as u64);
        stored.max(bytes.saturating_sub(others * common as u64))
    }

    /// The separator in front of a block, and for block 0 the group's first key. The two pieces
    /// together are the key. Panics if there is no such block.
    #[inline]
    #[must_use]
    pub fn separator(&self, index: usize) -> (&[u8], &[u8]) {
        assert!(index < self.blocks(), "block {index} of {}", self.blocks);
        match index.checked_sub(1) {
            Some(i) => (self.prefix.bytes(), self.suffix(i)),
            None => (self.first_key(), &[]),
        }
    }

    /// Compares the separator in front of a block with a key. Panics if there is no such block.
    #[inline]
    #[must_use]
    pub fn compare_separator(&self, index: usize, key: &[u8]) -> Ordering {
        compare(self.separator(index), key)
    }

    /// The separator of block i + 1 without the common prefix.
    #[inline]
    fn suffix(&self, i: usize) -> &[u8] {
        match &self.form {
            Form::Narrow => without_zeros(&self.heads::<4>()[i]),
            Form::Wide => without_zeros(&self.heads::<8>()[i]),
            Form::Long(long) => {
                let start = long.at + long.before.get(&self.memory, i) as usize;
                let end = long.at + long.before.get(&self.memory, i + 1) as usize;
                &self.memory[start..end]
            }
        }
    }

    /// The sums from `lo` (inclusive) to `hi` (exclusive; `None`: unbounded). Whole blocks count
    /// exactly. A block that contains a bound counts half. Logarithmic.
    #[must_use]
    pub fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> GroupSums {
        let low = lo.map_or(GroupSums::default(), |key| self.estimate_before(key));
        let high = match hi {
            Some(key) => self.estimate_before(key),
            None => self.sums_before(self.blocks()),
        };
        high.minus(low)
    }

    /// The sums below a key.
    fn estimate_before(&self, key: &[u8]) -> GroupSums {
        if key > self.last_key() {
            return self.sums_before(self.blocks());
        }
        let block = self.find(key);
        let before = self.sums_before(block);
        if self.compare_separator(block, key) != Ordering::Less {
            return before;
        }
        let end = self.sums_before(block + 1);
        GroupSums {
            records: before.records.midpoint(end.records),
            bytes: before.bytes.midpoint(end.bytes),
            hidden_bytes: before.hidden_bytes.midpoint(end.hidden_bytes),
            separated_bytes: before.separated_bytes.midpoint(end.separated_bytes),
        }
    }

    /// Bytes of memory of the index.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let optional = self.optional.as_deref().map_or(0, |optional| {
            size_of_val(optional) + optional.deadlines.memory_bytes()
        });
        size_of::<Self>() + self.memory.len() + self.prefix.bytes().len() + optional
    }
}

/// The number of heads that are not above one head. No two heads are equal.
#[inline]
fn heads_up_to<H: Head>(heads: &[H], wanted: u64) -> usize {
    let before = heads_before(heads, wanted);
    let is_there = heads
        .get(before)
        .is_some_and(|head| head.number() == wanted);
    before + usize::from(is_there && !mutant::active("index-search-before-equal-separator"))
}

/// A head without its padding zeros.
#[inline]
fn without_zeros(head: &[u8]) -> &[u8] {
    let zeros = head.iter().rev().take_while(|&&byte| byte == 0).count();
    &head[..head.len() - zeros]
}

/// Compares a string in two pieces with a string.
#[inline]
fn compare((front, rest): (&[u8], &[u8]), key: &[u8]) -> Ordering {
    let shared = front.len().min(key.len());
    front
        .cmp(&key[..shared])
        .then_with(|| rest.cmp(&key[shared..]))
}

fn key<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    let key = reader.prefixed()?;
    if key.len() > KEY_BYTES_MAX {
        Err(reader.corrupt("key too long"))
    } else {
        Ok(key)
    }
}

/// Adds key and value bytes, or hidden bytes.
fn add_bytes(reader: &Reader<'_>, sum: u64, more: u64) -> Result<u64> {
    sum.checked_add(more)
        .filter(|&sum| sum <= LOGICAL_BYTES_MAX)
        .ok_or_else(|| reader.corrupt("sum too large"))
}

fn add_u32(reader: &Reader<'_>, sum: u32, more: u64) -> Result<u32> {
    u32::try_from(more)
        .ok()
        .and_then(|more| sum.checked_add(more))
        .ok_or_else(|| reader.corrupt("sum too large"))
}
