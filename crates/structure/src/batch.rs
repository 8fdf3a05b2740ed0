//! A batch of records on the way from a scan to a reader.
//!
//! A record is copied into the batch's own memory, which later batches reuse. Or it stays in its
//! block, which the batch keeps alive meanwhile. The second suits readers that look at one record
//! after the other.

use std::sync::Arc;

use terrapin_base::{Slice, mutant};
use terrapin_pages::block::Block;

use crate::Direction;

/// Most blocks that a batch keeps alive. A chunk of copies takes as much memory, and the cache
/// lends no more slabs than that.
const LENT_BLOCKS_MAX: usize = 16;
/// Bytes that [`Batch::push_behind`] copies of a short first piece.
const WORD_BYTES: usize = 8;

/// How much a batch takes, and what filling it may cost.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// The batch is full with this many records.
    pub records: usize,
    /// The batch is full with this many bytes of copies and of borrowed blocks. One record or block
    /// may exceed it.
    pub bytes: usize,
    /// The reader probably wants this many records, in this batch and the next ones. 0 means
    /// unknown. A scan that must read reads enough for them.
    pub likely: usize,
    /// The reader takes at most this many records, in this batch and the next ones. A scan reads
    /// hardly more ahead.
    pub most: usize,
    /// A batch that holds a record takes only records that need no further read. The reader may not
    /// want more.
    pub sparing: bool,
    /// Records come without their values.
    pub keys_only: bool,
    /// Records may stay in their blocks; [`Batch::lend`] adds these.
    pub lends: bool,
}

/// Records in the order in which a scan returned them.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// For each copy the end of its key and the end of its value in `bytes`. A copy starts at the
    /// end of the one before.
    copy_ends: Vec<(usize, usize)>,
    /// The copies that have a handle in place of their value, ascending.
    handles: Vec<usize>,
    /// Of these, the copies whose handle stays ([`Batch::leave_handles`]), ascending.
    left: Vec<usize>,
    /// The deadlines of records that have one, by the record's number, ascending: milliseconds
    /// since 1970.
    deadlines: Vec<(usize, u64)>,
    /// Records that stayed in blocks, in the batch's order.
    lent_spans: Vec<LentSpan>,
    blocks: Vec<Arc<Block>>,
    lent: usize,
    /// The limits, less what the lent records and their blocks take.
    limits: BatchLimits,
}

/// Consecutive records of one block.
#[derive(Debug)]
struct LentSpan {
    /// Index of the block in the batch's `blocks`.
    block: usize,
    /// The first record's number in the block. The others follow it, or precede it in a backward
    /// scan.
    first: usize,
    count: usize,
    backward: bool,
    /// The first record's number in the batch, and the number of copies before it.
    begin: usize,
    copied: usize,
}

/// Where the batch keeps a record.
pub enum Located<'a> {
    /// It is the copy of this number; [`Batch::copy_span`] gives its bytes.
    Copied(usize),
    /// It is in this block, under this number.
    Lent(&'a Block, usize),
}

impl Default for BatchLimits {
    fn default() -> Self {
        BatchLimits {
            records: usize::MAX,
            likely: 0,
            most: usize::MAX,
            bytes: usize::MAX,
            sparing: false,
            keys_only: false,
            lends: false,
        }
    }
}

impl Batch {
    /// Drops all records, keeps the memory, and sets new limits. Afterwards `records` records and
    /// `bytes` bytes fit without an allocation.
    pub fn restart(&mut self, limits: BatchLimits, records: usize, bytes: usize) {
        // `push_behind` may write a word behind the last record.
        let bytes = bytes + WORD_BYTES;
        self.bytes.clear();
        self.copy_ends.clear();
        self.handles.clear();
        self.left.clear();
        self.deadlines.clear();
        self.lent_spans.clear();
        self.blocks.clear();
        self.lent = 0;
        self.limits = limits;
        // `reserve` would copy the dead content.
        if self.bytes.capacity() < bytes {
            self.bytes = Vec::with_capacity(bytes);
        }
        if self.copy_ends.capacity() < records {
            self.copy_ends = Vec::with_capacity(records);
        }
    }

    /// Whether the batch takes no more records.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.copy_ends.len() >= self.limits.records || self.bytes.len() >= self.limits.bytes
    }

    /// How many more records the batch takes, if its limits of bytes and blocks allow.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limits.records.saturating_sub(self.copy_ends.len())
    }

    /// How many more records the reader probably wants, at least one, by [`BatchLimits::likely`].
    /// If that is unknown, as many as the batch takes.
    #[inline]
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.limits.likely {
            0 => self.room(),
            likely => likely.saturating_sub(self.len()).max(1),
        }
    }

    /// At most this many more records are taken, by [`BatchLimits::most`]. `usize::MAX` if there is
    /// no limit.
    #[inline]
    #[must_use]
    pub fn most(&self) -> usize {
        match self.limits.most {
            usize::MAX => usize::MAX,
            most => most.saturating_sub(self.len()),
        }
    }

    /// Whether a scan should stop rather than read: [`BatchLimits::sparing`] is set and the batch
    /// holds a record.
    #[inline]
    #[must_use]
    pub fn spares_reads(&self) -> bool {
        self.limits.sparing && !self.is_empty()
    }

    /// Whether a scan appends records without their values ([`BatchLimits::keys_only`]).
    #[inline]
    #[must_use]
    pub fn keys_only(&self) -> bool {
        self.limits.keys_only
    }

    /// Whether records may stay in their blocks ([`BatchLimits::lends`]).
    #[inline]
    #[must_use]
    pub fn lends(&self) -> bool {
        self.limits.lends
    }

    /// Appends `count` records of a block, from number `first` on in the given direction. The
    /// records stay in the block.
    ///
    /// `count` is at least one and at most [`Batch::room`]; none of the records is a delete. This
    /// pays for large records: copying a small one costs no more than decoding it twice.
    pub fn lend(&mut self, block: &Arc<Block>, first: usize, count: usize, direction: Direction) {
        let (begin, copied) = (self.len(), self.copy_ends.len());
        self.lent += count;
        self.limits.records = self.limits.records.saturating_sub(count);
        let known = self.blocks.iter().rposition(|b| Arc::ptr_eq(b, block));
        let number = known.unwrap_or_else(|| {
            // The whole block counts, even if the batch shows few of its records.
            self.limits.bytes = self.limits.bytes.saturating_sub(block.bytes().len());
            self.blocks.push(block.clone());
            self.blocks.len() - 1
        });
        if self.blocks.len() >= LENT_BLOCKS_MAX {
            // The batch is full.
            self.limits.records = 0;
        }
        self.lent_spans.push(LentSpan {
            block: number,
            first,
            count,
            backward: direction == Direction::Backward,
            begin,
            copied,
        });
    }

    /// Finds a record, whose number is below [`Batch::len`]. `span` caches where the last call
    /// found its record; it starts at 0.
    #[inline]
    #[must_use]
    pub fn locate(&self, record: usize, span: &mut usize) -> Located<'_> {
        if !self.has_lent() {
            return Located::Copied(record);
        }
        let is_of = |span: &LentSpan| (span.begin..span.begin + span.count).contains(&record);
        let found = match self.lent_spans.get(*span) {
            Some(last) if is_of(last) => last,
            _ => {
                let behind = self.lent_spans.partition_point(|span| span.begin <= record);
                let Some(last) = behind.checked_sub(1) else {
                    return Located::Copied(record);
                };
                *span = last;
                let last = &self.lent_spans[last];
                if !is_of(last) {
                    return Located::Copied(record - last.begin - last.count + last.copied);
                }
                last
            }
        };
        let behind = record - found.begin;
        let number = match found.backward {
            false => found.first + behind,
            true => found.first - behind,
        };
        Located::Lent(&self.blocks[found.block], number)
    }

    /// Appends a copy of a record. Key and value follow each other in two pieces: the key ends
    /// `key_bytes` after the start of `second`.
    #[inline]
    pub fn push(&mut self, first: &[u8], second: &[u8], key_bytes: usize) {
        self.bytes.reserve(first.len() + second.len());
        self.bytes.extend_from_slice(first);
        let second_start = self.bytes.len();
        self.bytes.extend_from_slice(second);
        self.copy_ends
            .push((second_start + key_bytes, self.bytes.len()));
    }

    /// Appends a record with the handle of its value, which [`Batch::fill_in`] replaces by the
    /// value. The value's `value_bytes` bytes count as copied.
    pub fn push_handle(&mut self, key: &[u8], handle: &[u8], value_bytes: usize) {
        self.handles.push(self.copy_ends.len());
        self.push(key, handle, 0);
        self.limits.bytes = self.limits.bytes.saturating_sub(value_bytes);
    }

    /// Notes the deadline of the last record, in milliseconds since 1970. O(1).
    pub fn note_deadline(&mut self, deadline_ms: u64) {
        let last = self.len().checked_sub(1);
        if let Some(last) = last.filter(|_| !mutant::active("range-forgets-deadlines")) {
            self.deadlines.push((last, deadline_ms));
        }
    }

    /// The deadline of a record, in milliseconds since 1970, if it has one. O(log n) of the records
    /// that have one.
    #[must_use]
    pub fn deadline_ms(&self, record: usize) -> Option<u64> {
        let number = |&(number, _): &(usize, u64)| number;
        let found = self.deadlines.binary_search_by_key(&record, number).ok()?;
        self.deadlines
            .get(found)
            .map(|&(_, deadline_ms)| deadline_ms)
    }

    /// Whether any record has a handle in place of its value.
    #[inline]
    #[must_use]
    pub fn has_handles(&self) -> bool {
        !self.handles.is_empty()
    }

    /// Keys and handles of the records that have a handle in place of their value, in order.
    pub fn handles(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.handles.iter().filter_map(|&copy| {
            let (start, key_end, end) = self.copy_span(copy)?;
            Some((
                self.bytes.get(start..key_end)?,
                self.bytes.get(key_end..end)?,
            ))
        })
    }

    /// Notes that handles stay in place of their values: those of these numbers among
    /// [`Batch::handles`], ascending. Call it before [`Batch::fill_in`], which then gets the
    /// handles as their values.
    pub fn leave_handles(&mut self, numbers: &[usize]) {
        let copies = numbers
            .iter()
            .filter_map(|&number| self.handles.get(number));
        self.left = copies.copied().collect();
    }

    /// Whether a copy has a handle that stays.
    #[inline]
    #[must_use]
    pub fn is_left(&self, copy: usize) -> bool {
        self.left.binary_search(&copy).is_ok()
    }

    /// Replaces the first handles by their values, in order. If there are fewer values than
    /// handles, the record of the first handle without a value goes, and so do all records behind
    /// it. Linear in the bytes of the batch and of the values.
    pub fn fill_in(&mut self, values: &[Slice]) {
        let mut handles = std::mem::take(&mut self.handles);
        if let Some(&copy) = handles.get(values.len()) {
            handles.truncate(values.len());
            let before = |span: &&LentSpan| span.copied <= copy;
            let lent: usize = self
                .lent_spans
                .iter()
                .take_while(before)
                .map(|s| s.count)
                .sum();
            self.truncate(copy + lent);
        }
        let more: usize = values.iter().map(|value| value.len()).sum();
        let mut bytes = Vec::with_capacity(self.bytes.len() + more + WORD_BYTES);
        let mut filled = handles.iter().zip(values).peekable();
        let mut start = 0;
        for (copy, (key_end, end)) in self.copy_ends.iter_mut().enumerate() {
            let (old_start, old_key_end, old_end) = (start, *key_end, *end);
            start = old_end;
            bytes.extend_from_slice(&self.bytes[old_start..old_key_end]);
            *key_end = bytes.len();
            match filled.next_if(|(handle, _)| **handle == copy) {
                Some((_, value)) => bytes.extend_from_slice(value),
                None => bytes.extend_from_slice(&self.bytes[old_key_end..old_end]),
            }
            *end = bytes.len();
        }
        self.bytes = bytes;
    }

    /// Keeps the first `records` records, of which the last one is a copy or lent.
    fn truncate(&mut self, records: usize) {
        while let Some(span) = self.lent_spans.last_mut()
            && span.begin + span.count > records
        {
            let kept = records.saturating_sub(span.begin);
            self.lent -= span.count - kept;
            span.count = kept;
            if kept > 0 {
                break;
            }
            self.lent_spans.pop();
        }
        self.copy_ends.truncate(records - self.lent);
        self.bytes
            .truncate(self.copy_ends.last().map_or(0, |&(_, end)| end));
    }

    /// Appends a copy of a record like [`Batch::push`]. `word` holds the start of `first`, padded
    /// to a word. Copying a whole word is cheaper than copying a short piece of unknown length.
    // Always inlined: a call costs 6 % of a scan's step, and only two loops copy records.
    #[inline(always)]
    pub fn push_behind(
        &mut self,
        first: &[u8],
        word: [u8; WORD_BYTES],
        second: &[u8],
        key_bytes: usize,
    ) {
        if first.len() > WORD_BYTES {
            return self.push(first, second, key_bytes);
        }
        let second_start = self.bytes.len() + first.len();
        self.bytes.extend_from_slice(&word);
        self.bytes.truncate(second_start);
        self.bytes.extend_from_slice(second);
        self.copy_ends
            .push((second_start + key_bytes, self.bytes.len()));
    }

    /// Number of records.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.copy_ends.len() + self.lent
    }

    /// Whether the batch holds no records.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any record stayed in its block.
    #[inline]
    #[must_use]
    pub fn has_lent(&self) -> bool {
        self.lent > 0
    }

    /// Where a copy's key starts, where its value starts, and where it ends in [`Batch::bytes`].
    /// `None` if there is no such copy.
    #[inline]
    #[must_use]
    pub fn copy_span(&self, copy: usize) -> Option<(usize, usize, usize)> {
        let &(key_end, end) = self.copy_ends.get(copy)?;
        let start = match copy.checked_sub(1) {
            Some(before) => self.copy_ends[before].1,
            None => 0,
        };
        Some((start, key_end, end))
    }

    /// Keys and values of the copies, in order.
    pub fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.copy_ends.len()).filter_map(|record| {
            let (start, key_end, end) = self.copy_span(record)?;
            Some((
                self.bytes.get(start..key_end)?,
                self.bytes.get(key_end..end)?,
            ))
        })
    }

    /// The key of the last record, copied or lent, in two pieces.
    #[must_use]
    pub fn last_key(&self) -> Option<(&[u8], &[u8])> {
        let last = self.len().checked_sub(1)?;
        match self.locate(last, &mut self.lent_spans.len()) {
            Located::Lent(block, number) => Some((block.prefix(), block.key_suffix(number))),
            Located::Copied(copy) => {
                let (start, key_end, _) = self.copy_span(copy)?;
                Some((self.bytes.get(start..key_end)?, &[]))
            }
        }
    }

    /// Keys and values of all copies, one behind the other.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory that the batch has allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.copy_ends.capacity() * size_of::<(usize, usize)>()
            + (self.handles.capacity() + self.left.capacity()) * size_of::<usize>()
            + self.deadlines.capacity() * size_of::<(usize, u64)>()
            + self.lent_spans.capacity() * size_of::<LentSpan>()
            + self.blocks.capacity() * size_of::<Arc<Block>>()
    }

    /// Takes the bytes of the copies out. [`Batch::copy_span`] still gives their offsets.
    #[must_use]
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Why a scan stopped filling a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The batch takes no more records. The scan goes on after the batch's last record.
    Full,
    /// The next record is outside the bound. The scan's position is before it.
    Reached,
    /// The range has no more records.
    End,
    /// The next record is inside the bound, and the scan does not know its value: the record has
    /// operands of merges, or the handle of a value that is stored elsewhere. The caller takes its
    /// key and handle from [`crate::Scan::unresolved`], and steps over it with
    /// [`crate::Scan::skip`].
    Unresolved,
}

#[cfg(test)]
mod tests {
    use terrapin_base::Message;
    use terrapin_base::PageId;
    use terrapin_pages::block::{BlockBuilder, Compression};

    use super::*;

    /// A block with `records` records of 1 KiB.
    fn block(number: u32, records: u8) -> Arc<Block> {
        let mut builder = BlockBuilder::new(64 << 10, Compression::None);
        for record in 0..records {
            let value = [record; 1024];
            assert!(builder.add(&[record], Message::Put(&value)).unwrap());
        }
        let (id, mut bytes) = (PageId(1), Vec::new());
        builder.finish(id, number, &mut bytes).unwrap();
        Arc::new(Block::decode(&bytes, id, number).unwrap())
    }

    /// An empty batch that lends and takes `bytes` bytes, including blocks.
    fn lending(bytes: usize) -> Batch {
        let limits = BatchLimits {
            bytes,
            lends: true,
            ..BatchLimits::default()
        };
        let mut batch = Batch::default();
        batch.restart(limits, 0, 0);
        assert!(!batch.is_full());
        batch
    }

    #[test]
    fn deadlines_are_those_of_their_records_among_copies_and_lent_ones() {
        let mut batch = lending(64 << 10);
        batch.push(b"a", b"", 1);
        batch.note_deadline(7);
        batch.lend(&block(0, 10), 0, 3, Direction::Forward);
        batch.push(b"b", b"", 1);
        batch.push(b"c", b"", 1);
        batch.note_deadline(9);
        let deadlines = (0..7).map(|record| batch.deadline_ms(record));
        let expected = [Some(7), None, None, None, None, Some(9), None];
        assert_eq!(deadlines.collect::<Vec<_>>(), expected);
        batch.restart(BatchLimits::default(), 0, 0);
        assert_eq!(batch.deadline_ms(0), None);
    }

    #[test]
    fn a_batch_takes_no_more_blocks_than_its_limit() {
        let blocks: Vec<_> = (0..8).map(|number| block(number, 10)).collect();
        // A block counts with all its bytes, but once.
        let (mut batch, mut lent) = (lending(25 << 10), 0);
        while !batch.is_full() {
            batch.lend(&blocks[lent / 2], lent % 2, 1, Direction::Forward);
            lent += 1;
        }
        assert_eq!((batch.len(), lent), (5, 5), "of three blocks");
        // Lent blocks and copies count together.
        let mut batch = lending(25 << 10);
        batch.push(b"key", &[0; 12 << 10], 3);
        batch.lend(&blocks[0], 9, 10, Direction::Backward);
        assert!(!batch.is_full());
        batch.lend(&blocks[1], 9, 1, Direction::Backward);
        assert!(batch.is_full());
        // The first block fits, even if the limit is smaller.
        let mut batch = lending(1);
        batch.lend(&blocks[0], 0, 10, Direction::Forward);
        assert!(batch.is_full() && batch.len() == 10);
    }

    #[test]
    fn values_replace_handles_and_a_missing_value_ends_the_batch() {
        let slice = |bytes: &[u8]| Slice::copy(bytes);
        let filled = |values: &[Slice]| {
            let lent = block(0, 10);
            let mut batch = lending(25 << 10);
            batch.push(b"a", b"short", 0);
            batch.push_handle(b"b", b"h1", 12 << 10);
            batch.lend(&lent, 0, 2, Direction::Forward);
            batch.push_handle(b"c", b"h2", 0);
            batch.lend(&lent, 3, 3, Direction::Forward);
            assert!(!batch.is_full(), "12 KiB and a block of 10 KiB");
            batch.push_handle(b"d", b"h3", 4 << 10);
            assert!(batch.is_full() && batch.has_handles());
            batch.push(b"e", b"end", 0);
            let handles: Vec<_> = batch.handles().collect();
            let expected = [(&b"b"[..], &b"h1"[..]), (b"c", b"h2"), (b"d", b"h3")];
            assert_eq!(handles, expected);
            batch.fill_in(values);
            assert!(!batch.has_handles());
            let copies: Vec<_> = batch.records().map(|r| r.1.to_vec()).collect();
            let last = batch.last_key().map(|(first, rest)| [first, rest].concat());
            (batch.len(), copies, last)
        };
        let values = [slice(b"one"), slice(b""), slice(b"three")];
        let copies = [&b"short"[..], b"one", b"", b"three", b"end"].map(<[u8]>::to_vec);
        let some = |key: &[u8]| Some(key.to_vec());
        assert_eq!(filled(&values), (10, copies.to_vec(), some(b"e")));
        assert_eq!(filled(&values[..2]), (8, copies[..3].to_vec(), some(&[5])));
        assert_eq!(filled(&values[..1]), (4, copies[..2].to_vec(), some(&[1])));
        assert_eq!(filled(&[]), (1, copies[..1].to_vec(), some(b"a")));
    }

    #[test]
    fn a_batch_returns_what_was_pushed_and_is_full_at_either_limit() {
        let mut batch = Batch::default();
        for limits in [(3, 1000), (1000, 20)] {
            let limits = BatchLimits {
                records: limits.0,
                bytes: limits.1,
                sparing: true,
                ..BatchLimits::default()
            };
            batch.restart(limits, 1, 1);
            assert!(batch.is_empty() && !batch.spares_reads() && batch.last_key().is_none());
            let mut pushed = 0;
            while !batch.is_full() {
                let record = [b'y', pushed, pushed, pushed, pushed];
                match pushed % 2 {
                    0 => batch.push(b"ke", &record, 1),
                    _ => batch.push_behind(b"ke", *b"ke\0\0\0\0\0\0", &record, 1),
                }
                pushed += 1;
            }
            assert_eq!((batch.len(), pushed), (3, 3));
            assert!(batch.spares_reads());
            for (record, found) in batch.records().enumerate() {
                assert_eq!(found, (&b"key"[..], &[record as u8; 4][..]));
            }
            assert_eq!(batch.records().count(), 3);
            assert!(batch.copy_span(3).is_none());
            assert_eq!(batch.last_key(), Some((&b"key"[..], &b""[..])));
        }
        assert_eq!(batch.take_bytes().len(), 21);
    }
}
