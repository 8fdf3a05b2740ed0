//! Builds groups of about L bytes from sorted records. No group is less than half full, unless it
//! is the only one.
//!
//! The builder holds back up to half a target beyond the group that it fills. The group goes out
//! once that much is known to follow, so the next group is never too small. At the end, the rest
//! goes out as one group up to 1.05 L, and as two halves above.
//!
//! Blocks are adjacent, and a device reads whole units. A block that starts behind a unit's
//! boundary is therefore shorter, so that its cover stays within the target. If that leaves too
//! little room, the builder pads the block in front to the boundary.
//!
//! The length of a compressed block shows only once the block is complete. Its records get the
//! whole target, wherever it starts. If its cover would exceed the target, the builder pads the
//! block in front.

use std::cmp::Reverse;

use terrapin_base::checksum::hash64;
use terrapin_base::mutant;
use terrapin_base::{Message, Result};
use terrapin_disk::AlignedBuf;
use terrapin_filter::FilterBuilder;

use super::RECORD_BYTES_MAX;
use super::deadlines::Deadlines;
use super::index::{self, BlockEntry};
use super::model::{BlockSizes, Model};
use super::pending::{Heir, PendingGroup};
use crate::block::{Block, BlockBuilder, Compression, CutBlock, is_unit};
use crate::cache::Standing;

/// Largest target of a group in bytes.
pub const GROUP_TARGET_BYTES_MAX: u64 = 64 << 20;
/// A block starts behind a unit's boundary if that takes at most one part in this many of its
/// target.
const LOST_PART: usize = 4;
/// A block of several messages hides at most this many block targets, or this part of the group's
/// target, whichever is more. The index therefore tells the hidden bytes of a range of keys to
/// within that.
const HIDDEN_BLOCKS: u64 = 4;
const HIDDEN_PART: u64 = 32;
/// The halves of a group may differ from the best ones by one part in this many.
const UNEVEN_PART: u64 = 16;

/// How groups are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// L: the target of a group in bytes of blocks. At most [`GROUP_TARGET_BYTES_MAX`].
    pub target_bytes: u64,
    /// Target of a block's read in bytes: at least the unit.
    pub block_bytes: u32,
    /// The blocks together, the index and the group are multiples of this, in bytes. A power of
    /// two, and a multiple of the device's sector.
    pub unit: u32,
    /// Compression of blocks.
    pub compression: Compression,
    /// Bits of filter for each record; 0 for groups without a filter.
    pub filter_bits: u32,
    /// The moment from which the time to deadlines is counted, in milliseconds since 1970.
    pub now_ms: u64,
}

/// Builds groups from records in ascending order of keys, each key once.
///
/// ```
/// use terrapin_base::{Message, PageId};
/// use terrapin_pages::block::Compression;
/// use terrapin_pages::group::{GroupBuilder, GroupOptions, check_group};
/// let options =
///     GroupOptions {
///         target_bytes: 1 << 16,
///         block_bytes: 4096,
///         unit: 512,
///         compression: Compression::None,
///         filter_bits: 12,
///         now_ms: 0,
///     };
/// let mut builder = GroupBuilder::new(options);
/// let mut pending = Vec::new();
/// for i in 0..10_000u32 {
///     pending.extend(builder.add(&i.to_be_bytes(), Message::Put(b"value"))?);
/// }
/// pending.extend(builder.finish());
/// for (i, group) in (0..).zip(pending) {
///     let (group, image) = group.place(PageId(i), i << 20);
///     assert_eq!(check_group(&image, &group)?.records, group.records);
/// }
/// # Ok::<(), terrapin_base::Error>(())
/// ```
pub struct GroupBuilder {
    options: GroupOptions,
    /// Whether blocks are compressed.
    compresses: bool,
    block: BlockBuilder,
    /// A block on its way into a part.
    cut: Vec<u8>,
    /// The group that the builder fills.
    head: Part,
    /// The records that follow the group.
    tail: Part,
    /// The hash of every waiting record, in order.
    hashes: Vec<u64>,
    filter: FilterBuilder,
    /// Whether groups come with the outlines of their filters.
    outlined: bool,
    /// Whether a model may stand in the place of separators.
    fits_models: bool,
    /// The standing in the cache of the blocks that the next records replace.
    standing: Standing,
    /// Records of the current block up to the last change of standing.
    counted: u32,
    /// Those of them that replace cached records, and their best standing.
    inherited: (u32, Standing),
    /// Bytes that the records of the current block hide.
    hidden: u64,
    /// Bytes of the current block's values that lie outside of its records.
    separated: u64,
    /// The deadlines of the current block.
    deadlines: Deadlines,
}

/// Encoded blocks.
#[derive(Default)]
struct Part {
    image: AlignedBuf,
    blocks: Vec<BlockEntry>,
    separators: Vec<u8>,
}

impl Part {
    /// Bytes that count towards the target. Separators count, so that an index of very long ones
    /// stays bounded.
    fn weight(&self) -> u64 {
        (self.image.len() + self.separators.len()) as u64
    }

    fn push(
        &mut self,
        cut: CutBlock,
        block: &[u8],
        separator: &[u8],
        (hidden_bytes, separated_bytes, deadlines): (u64, u64, Deadlines),
        standing: Standing,
    ) {
        self.image.extend_from_slice(block);
        self.separators.extend_from_slice(separator);
        self.blocks.push(BlockEntry {
            bytes: cut.bytes,
            records: cut.records,
            tombstones: cut.tombstones,
            logical_bytes: cut.logical_bytes,
            hidden_bytes,
            separated_bytes,
            deadlines,
            record_bytes_max: cut.record_bytes_max,
            separator_bytes: separator.len() as u32,
            standing,
        });
    }

    /// Bytes behind the last unit's boundary.
    fn behind(&self, unit: usize) -> usize {
        self.image.len() % unit
    }

    /// Bytes to the next unit's boundary, if a block of this length must start there. It must if
    /// its cover would otherwise exceed the target, and would be longer than necessary.
    fn gap_before(&self, bytes: usize, options: &GroupOptions) -> usize {
        let unit = options.unit as usize;
        let behind = self.behind(unit);
        let end = behind + bytes;
        let is_longer = end.div_ceil(unit) > bytes.div_ceil(unit);
        if is_longer && end > options.block_bytes as usize {
            unit - behind
        } else {
            0
        }
    }

    /// Lengthens the last block up to a unit's boundary.
    fn pad(&mut self, unit: usize) {
        let padding = self.image.len().next_multiple_of(unit) - self.image.len();
        if let Some(last) = self.blocks.last_mut() {
            last.bytes += padding as u32;
            self.image.resize(self.image.len() + padding, 0);
        }
    }

    /// Bytes of image and of separators of some of the blocks.
    fn bytes_of(blocks: &[BlockEntry]) -> (usize, usize) {
        let add = |(bytes, separators), block: &BlockEntry| {
            (
                bytes + block.bytes as usize,
                separators + block.separator_bytes as usize,
            )
        };
        blocks.iter().fold((0, 0), add)
    }

    /// Takes over the first blocks of the part that follows.
    fn take_front(&mut self, next: &mut Part, blocks: usize) {
        let (bytes, separators) = Self::bytes_of(&next.blocks[..blocks]);
        self.image.extend_from_slice(&next.image[..bytes]);
        next.image.copy_within(bytes.., 0);
        next.image.truncate(next.image.len() - bytes);
        self.separators.extend(next.separators.drain(..separators));
        self.blocks.extend(next.blocks.drain(..blocks));
    }

    /// Moves the blocks from one on to the part that follows. That part moves within its memory and
    /// takes no other.
    fn give_back(&mut self, next: &mut Part, block: usize) {
        let given = self.blocks.split_off(block);
        let (bytes, separators) = Self::bytes_of(&given);
        let at = self.image.len() - bytes;
        let moved = next.image.len();
        next.image.resize(moved + bytes, 0);
        next.image.copy_within(..moved, bytes);
        next.image[..bytes].copy_from_slice(&self.image[at..]);
        self.image.truncate(at);
        let at = self.separators.len() - separators;
        next.separators.splice(..0, self.separators.drain(at..));
        next.blocks.splice(..0, given);
    }

    /// The best division of this part and the next: the number of blocks in front of it. The
    /// smaller side must weigh as much as possible, and at least `least`. `None` if that is
    /// impossible.
    ///
    /// The second side moves to a unit's boundary, and its blocks were made for their present
    /// start. Among the divisions that are nearly the best, this one moves them least.
    fn middle(&self, next: &Part, least: u64, unit: usize) -> Option<usize> {
        let weight = self.weight() + next.weight();
        let sides = || {
            let (mut before, mut end) = (0, 0);
            self.blocks.iter().chain(&next.blocks).map(move |block| {
                before += u64::from(block.bytes) + u64::from(block.separator_bytes);
                end += block.bytes as usize;
                (before.min(weight - before), end % unit)
            })
        };
        let best = sides().map(|(smaller, _)| smaller).max()?;
        let enough = (best - best / UNEVEN_PART).max(least).max(1);
        (1..)
            .zip(sides())
            .filter(|(_, (smaller, _))| *smaller >= enough)
            .min_by_key(|&(_, (smaller, moved))| (moved, Reverse(smaller)))
            .map(|(blocks, _)| blocks)
    }

    fn memory_bytes(&self) -> usize {
        self.image.len()
            + self.blocks.capacity() * size_of::<BlockEntry>()
            + self.separators.capacity()
    }
}

impl GroupBuilder {
    /// A builder without records. Panics if the target is 0 or above [`GROUP_TARGET_BYTES_MAX`].
    /// Panics unless the unit is a power of two from
    /// [`UNIT_BYTES_MIN`](crate::block::UNIT_BYTES_MIN) to
    /// [`UNIT_BYTES_MAX`](crate::block::UNIT_BYTES_MAX) and at most `block_bytes`. Panics where
    /// [`BlockBuilder::new`] does.
    #[must_use]
    pub fn new(options: GroupOptions) -> Self {
        assert!(
            (1..=GROUP_TARGET_BYTES_MAX).contains(&options.target_bytes),
            "group target"
        );
        let unit = options.unit as usize;
        assert!(
            is_unit(options.unit) && options.unit <= options.block_bytes,
            "unit of {unit} bytes"
        );
        let compression = options.compression;
        GroupBuilder {
            block: BlockBuilder::new(options.block_bytes as usize, compression),
            options,
            compresses: compression != Compression::None && compression.check().is_ok(),
            cut: Vec::new(),
            head: Part::default(),
            tail: Part::default(),
            hashes: Vec::new(),
            filter: FilterBuilder::new(),
            outlined: false,
            fits_models: false,
            standing: Standing::NONE,
            counted: 0,
            inherited: (0, Standing::NONE),
            hidden: 0,
            separated: 0,
            deadlines: Deadlines::default(),
        }
    }

    /// Has groups come with the outlines of their filters: those that are to be buffer segments
    /// (decision 0016).
    pub fn outline_filters(&mut self) {
        self.outlined = true;
    }

    /// Has a model stand in the place of separators, in the index of each group whose keys are so
    /// regular that it is smaller. Costs a look at the blocks of such groups.
    pub fn fit_models(&mut self) {
        self.fits_models = true;
    }

    /// Sets the standing in the cache of the block that the next records replace. A block enters
    /// the cache when its group is written, if at least half of its records replace cached ones.
    #[inline]
    pub fn takes_place_of(&mut self, standing: Standing) {
        if standing != self.standing {
            self.tell_standing(self.block.len() as u32);
            self.standing = standing;
        }
    }

    /// Counts `records` records of the block with the standing so far.
    fn tell_standing(&mut self, records: u32) {
        if self.standing.is_cached() {
            self.inherited.0 += records - self.counted;
            self.inherited.1 = self.inherited.1.max(self.standing);
        }
        self.counted = records;
    }

    /// The standing of a complete block of `records` records.
    fn take_standing(&mut self, records: u32) -> Standing {
        self.tell_standing(records);
        self.counted = 0;
        match std::mem::take(&mut self.inherited) {
            (inherited, standing) if inherited * 2 >= records => standing,
            _ => Standing::NONE,
        }
    }

    /// Adds a record, and returns a group if that finished one. The key must be above the last one,
    /// also after a group was returned. Fails and panics where [`BlockBuilder::add`] does.
    pub fn add(&mut self, key: &[u8], message: Message<'_>) -> Result<Option<PendingGroup>> {
        self.add_hiding(key, message, 0)
    }

    /// Like [`GroupBuilder::add`], for a message in a buffer that hides `hidden` bytes. A delete
    /// hides its own bytes and those of the next older record of its key. A put hides the bytes
    /// that this record has beyond the put's own length. [`GroupIndex`](super::GroupIndex) says how
    /// much each block hides.
    pub fn add_hiding(
        &mut self,
        key: &[u8],
        message: Message<'_>,
        hidden: u64,
    ) -> Result<Option<PendingGroup>> {
        let hidden_max = (self.options.target_bytes / HIDDEN_PART)
            .max(u64::from(self.options.block_bytes) * HIDDEN_BLOCKS);
        if hidden > 0 && self.hidden.saturating_add(hidden) > hidden_max && !self.block.is_empty() {
            let cut = self.block.cut(&mut self.cut);
            self.store(cut);
            self.begin_block(key, message);
        }
        while !self.block.add(key, message)? {
            let cut = self.block.cut(&mut self.cut);
            self.store(cut);
            self.begin_block(key, message);
        }
        // As much as a group may say: no block has so many records.
        self.hidden += hidden.min(2 * RECORD_BYTES_MAX);
        self.separated += message.separated_bytes();
        if let Some(deadline_ms) = message.deadline_ms() {
            self.deadlines.count(self.options.now_ms, deadline_ms);
        }
        if self.options.filter_bits > 0 {
            let skipped = mutant::active("filter-lacks-key") && self.hashes.len() == 3;
            self.hashes.push(if skipped { 0 } else { hash64(key) });
        }
        let half = self.options.target_bytes / 2;
        let tail = self.tail.weight();
        if tail < half || self.head.weight() + tail < self.options.target_bytes + half {
            return Ok(None);
        }
        let head = std::mem::replace(&mut self.head, std::mem::take(&mut self.tail));
        Ok(Some(self.pend(head)))
    }

    /// Whether no record was added since the start or the last [`GroupBuilder::finish`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty() && self.head.blocks.is_empty()
    }

    /// Returns the rest: no group, one or two. The builder can be used again, for keys above the
    /// last one.
    #[must_use]
    pub fn finish(&mut self) -> Vec<PendingGroup> {
        let cut = self.block.cut_last(&mut self.cut);
        self.store(cut);
        let unit = self.options.unit as usize;
        let mut head = std::mem::take(&mut self.head);
        let mut tail = std::mem::take(&mut self.tail);
        if head.blocks.is_empty() {
            return Vec::new();
        }
        if !tail.blocks.is_empty() {
            // The blocks were made for a start on a boundary.
            head.pad(unit);
        }
        let target = self.options.target_bytes;
        if head.weight() + tail.weight() > target + target / 20
            && let Some(blocks) = head.middle(&tail, target / 2, unit)
        {
            match blocks.checked_sub(head.blocks.len()) {
                Some(more) => head.take_front(&mut tail, more),
                None => head.give_back(&mut tail, blocks),
            }
            return vec![self.pend(head), self.pend(tail)];
        }
        let blocks = tail.blocks.len();
        head.take_front(&mut tail, blocks);
        vec![self.pend(head)]
    }

    /// Bytes of complete blocks that have not gone out, with their separators.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.head.weight() + self.tail.weight()
    }

    /// Bytes of memory that the builder has touched.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.block.memory_bytes()
            + self.cut.capacity()
            + self.head.memory_bytes()
            + self.tail.memory_bytes()
            + self.hashes.capacity() * 8
            + self.filter.memory_bytes()
    }

    /// Moves a complete block to its position.
    fn store(&mut self, cut: Option<CutBlock>) {
        let Some(cut) = cut else { return };
        let standing = self.take_standing(cut.records);
        let separator = self.block.cut_separator();
        let target = self.options.target_bytes;
        let filled = if self.tail.blocks.is_empty() {
            &self.head
        } else {
            &self.tail
        };
        let gap = if self.compresses {
            filled.gap_before(cut.bytes as usize, &self.options)
        } else {
            0
        };
        let before = self.head.weight();
        let after = before + gap as u64 + u64::from(cut.bytes) + separator.len() as u64;
        let into_head = self.tail.blocks.is_empty() && (before < target / 2 || after <= target);
        let part = if into_head {
            &mut self.head
        } else {
            &mut self.tail
        };
        if part.image.capacity() == 0 {
            // Untouched memory costs nothing. Moving a growing group would.
            part.image.reserve(target as usize + target as usize / 4);
        }
        if gap > 0 {
            // If the block begins a tail, it starts on a boundary.
            part.pad(self.options.unit as usize);
        }
        let hidden = std::mem::take(&mut self.hidden);
        let separated = std::mem::take(&mut self.separated);
        let deadlines = std::mem::take(&mut self.deadlines);
        let beside = (hidden, separated, deadlines);
        part.push(cut, &self.cut, separator, beside, standing);
        self.cut.clear();
    }

    /// Sets the start of the block that a record opens. The block starts right behind the last one.
    /// It starts on the next boundary if the room up to the target is too small in general or for
    /// this record. The start of a compressed block is chosen when it is complete.
    fn begin_block(&mut self, key: &[u8], message: Message<'_>) {
        if self.compresses {
            return;
        }
        // The first block of a tail starts on a boundary. That is known only when the block is
        // complete, and it may then be shorter than allowed.
        let part = if self.tail.blocks.is_empty() {
            &mut self.head
        } else {
            &mut self.tail
        };
        let unit = self.options.unit as usize;
        if part.behind(unit) > self.options.block_bytes as usize / LOST_PART {
            part.pad(unit);
        }
        self.block.start_behind(part.behind(unit));
        if self.block.is_cramped(key, message) {
            part.pad(unit);
            self.block.start_behind(0);
        }
    }

    /// Appends index, filter and room for the footer.
    fn pend(&mut self, mut part: Part) -> PendingGroup {
        part.pad(self.options.unit as usize);
        let Part {
            mut image,
            blocks,
            separators,
        } = part;
        let unit = self.options.unit;
        let index_offset = image.len();
        let first_key = edge(&image[..blocks[0].bytes as usize]).key(0);
        let last = edge(&image[index_offset - blocks[blocks.len() - 1].bytes as usize..]);
        let last_key = last.key(last.len() - 1);

        let keys = (&first_key[..], &last_key[..]);
        let mut deadlines = Deadlines::default();
        blocks
            .iter()
            .for_each(|block| deadlines.add(&block.deadlines));
        let model = match self.fits_models {
            true => {
                let sizes = |block: &BlockEntry| BlockSizes {
                    bytes: block.bytes,
                    records: block.records,
                    separator_bytes: block.separator_bytes,
                };
                let sizes: Vec<_> = blocks.iter().map(sizes).collect();
                Model::of(&image, &sizes, &separators, keys)
            }
            false => None,
        };
        let index = index::encode(&blocks, (&separators, model), keys, &deadlines, unit);
        image.extend_from_slice(&index);

        let records: u64 = blocks.iter().map(|b| u64::from(b.records)).sum();
        let filter_offset = image.len();
        let mut outlines = Vec::new();
        if self.options.filter_bits > 0 {
            self.filter.add_all(&self.hashes[..records as usize]);
            self.hashes.drain(..records as usize);
            self.cut.clear();
            let (bits, unit, out) = (self.options.filter_bits, unit as usize, &mut self.cut);
            if self.outlined {
                outlines = self.filter.finish_outlined(bits, unit, out);
            } else {
                self.filter.finish_into(bits, unit, out);
            }
            image.extend_from_slice(&self.cut);
            self.cut.clear();
        }
        let filter_bytes = image.len() - filter_offset;
        image.resize(image.len() + unit as usize, 0);
        PendingGroup {
            bytes_needed: image.len() as u64,
            first_key,
            last_key,
            records,
            tombstones: blocks.iter().map(|b| u64::from(b.tombstones)).sum(),
            logical_bytes: blocks.iter().map(|b| b.logical_bytes).sum(),
            hidden_bytes: blocks.iter().map(|b| b.hidden_bytes).sum(),
            record_bytes_max: blocks.iter().map(|b| b.record_bytes_max).max().unwrap_or(0),
            separated_bytes: blocks.iter().map(|b| b.separated_bytes).sum(),
            deadlines,
            blocks: blocks.len() as u32,
            unit,
            index_offset: index_offset as u32,
            index_bytes: index.len() as u32,
            filter_bytes: filter_bytes as u32,
            block_bytes: blocks.iter().map(|b| b.bytes).collect(),
            heirs: heirs(&blocks),
            caches_filter: true,
            caches_index: true,
            image,
            outlines,
        }
    }
}

/// The blocks to cache.
fn heirs(blocks: &[BlockEntry]) -> Vec<Heir> {
    let mut heirs = Vec::new();
    let mut at = 0;
    for (number, block) in (0..).zip(blocks) {
        let place = at..at + block.bytes;
        at = place.end;
        if block.standing.is_cached() {
            heirs.push(Heir {
                number,
                place,
                standing: block.standing,
            });
        }
    }
    heirs
}

/// The first or last block of a group, for its keys. Panics if the block cannot be decoded, because
/// this builder has just encoded it.
fn edge(block: &[u8]) -> Block {
    Block::parse(block)
        .unwrap_or_else(|error| panic!("a block that was just built does not decode: {error}"))
}
