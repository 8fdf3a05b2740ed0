//! Records on their way from a scan to a reader: copied once, back to back, into memory that is
//! used again; or, for who looks at each in turn, left in their blocks, which the batch holds
//! meanwhile.

use std::sync::Arc;

use terrapin_pages::block::Block;

use crate::Direction;

/// A batch holds so many blocks at most: what a chunk of copies would take, and no more slabs of
/// the cache than that.
const LENT_BLOCKS_MAX: usize = 16;
/// What [`Batch::push_behind`] copies of a short first piece.
const WORD_BYTES: usize = 8;

/// How much a batch takes, and what it may cost.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// It is full with so many records,
    pub records: usize,
    /// or so many bytes of copies and of blocks that records stayed in; one record or block may go
    /// beyond.
    pub bytes: usize,
    /// So many records are likely to be wanted, in this batch or behind it; 0 when nobody knows.
    /// Where a scan must read, it reads for these.
    pub likely: usize,
    /// Once it holds a record, it takes only what needs no further read: the reader may not want
    /// more.
    pub sparing: bool,
    /// Records come without their values.
    pub keys_only: bool,
    /// Records may stay in their blocks: see [`Batch::lend`].
    pub lends: bool,
}

/// Records in the order in which a scan showed them.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Where each record's key and value end; it starts where the one before ends.
    places: Vec<(usize, usize)>,
    /// What stayed in blocks, in the order of the batch, and these.
    runs: Vec<Run>,
    blocks: Vec<Arc<Block>>,
    lent: usize,
    /// Of records and of bytes, what records that stayed in blocks leave.
    limits: BatchLimits,
}

/// Records that follow one another in a block.
#[derive(Debug)]
struct Run {
    /// Which of the batch's blocks.
    block: usize,
    /// The first of them in the block, and how many there are behind it, or before it in a backward
    /// scan.
    first: usize,
    count: usize,
    backward: bool,
    /// The first of them in the batch, and how many of those before it are copies.
    begin: usize,
    copied: usize,
}

/// Where a record of a batch is.
pub enum Located<'a> {
    /// It is this one of the copies: see [`Batch::place`].
    Copied(usize),
    /// In a block, and which of its records.
    Lent(&'a Block, usize),
}

impl Default for BatchLimits {
    fn default() -> Self {
        BatchLimits {
            records: usize::MAX,
            likely: 0,
            bytes: usize::MAX,
            sparing: false,
            keys_only: false,
            lends: false,
        }
    }
}

impl Batch {
    /// Drops all records, keeps the memory, sets new limits, and makes sure that so many records
    /// and bytes find room.
    pub fn restart(&mut self, limits: BatchLimits, records: usize, bytes: usize) {
        // The last record's word may reach beyond it.
        let bytes = bytes + WORD_BYTES;
        self.bytes.clear();
        self.places.clear();
        self.runs.clear();
        self.blocks.clear();
        self.lent = 0;
        self.limits = limits;
        // Not `reserve`, which may copy what is dead.
        if self.bytes.capacity() < bytes {
            self.bytes = Vec::with_capacity(bytes);
        }
        if self.places.capacity() < records {
            self.places = Vec::with_capacity(records);
        }
    }

    /// Whether it takes no more.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.places.len() >= self.limits.records || self.bytes.len() >= self.limits.bytes
    }

    /// How many records more it takes, if its bytes and blocks allow.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limits.records.saturating_sub(self.places.len())
    }

    /// How many records more are likely to be wanted: see [`BatchLimits::likely`]. At least one; as
    /// many as it takes where nobody knows.
    #[inline]
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.limits.likely {
            0 => self.room(),
            likely => likely.saturating_sub(self.len()).max(1),
        }
    }

    /// Whether a scan should rather stop than read: see [`BatchLimits::sparing`].
    #[inline]
    #[must_use]
    pub fn spares_reads(&self) -> bool {
        self.limits.sparing && !self.is_empty()
    }

    /// Whether records are to be appended without their values: see [`BatchLimits::keys_only`].
    #[inline]
    #[must_use]
    pub fn keys_only(&self) -> bool {
        self.limits.keys_only
    }

    /// Whether records may stay in their blocks: see [`BatchLimits::lends`].
    #[inline]
    #[must_use]
    pub fn lends(&self) -> bool {
        self.limits.lends
    }

    /// Appends records of a block, which stay in it: from `first` on so many in a direction, at
    /// least one and no more than there is room for. None of them is a delete. For large records: a
    /// copy of a small one costs no more than to decode it twice.
    pub fn lend(&mut self, block: &Arc<Block>, first: usize, count: usize, direction: Direction) {
        let (begin, copied) = (self.len(), self.places.len());
        self.lent += count;
        self.limits.records = self.limits.records.saturating_sub(count);
        let known = self.blocks.iter().rposition(|b| Arc::ptr_eq(b, block));
        let number = known.unwrap_or_else(|| {
            // All of it is kept, however few of its records are shown.
            self.limits.bytes = self.limits.bytes.saturating_sub(block.bytes().len());
            self.blocks.push(block.clone());
            self.blocks.len() - 1
        });
        if self.blocks.len() >= LENT_BLOCKS_MAX {
            // It is full.
            self.limits.records = 0;
        }
        self.runs.push(Run {
            block: number,
            first,
            count,
            backward: direction == Direction::Backward,
            begin,
            copied,
        });
    }

    /// Where a record is that is below [`Batch::len`]. `run` is where the last one was found, which
    /// is looked at first: at the beginning 0.
    #[inline]
    #[must_use]
    pub fn locate(&self, record: usize, run: &mut usize) -> Located<'_> {
        if !self.has_lent() {
            return Located::Copied(record);
        }
        let is_of = |run: &Run| (run.begin..run.begin + run.count).contains(&record);
        let found = match self.runs.get(*run) {
            Some(last) if is_of(last) => last,
            _ => {
                let behind = self.runs.partition_point(|run| run.begin <= record);
                let Some(last) = behind.checked_sub(1) else {
                    return Located::Copied(record);
                };
                *run = last;
                let last = &self.runs[last];
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

    /// Appends a record, key and value back to back in two pieces: the key ends `key_bytes` behind
    /// the start of the second.
    #[inline]
    pub fn push(&mut self, first: &[u8], second: &[u8], key_bytes: usize) {
        self.bytes.reserve(first.len() + second.len());
        self.bytes.extend_from_slice(first);
        let second_start = self.bytes.len();
        self.bytes.extend_from_slice(second);
        self.places
            .push((second_start + key_bytes, self.bytes.len()));
    }

    /// As [`Batch::push`]; `word` is what the first piece begins with, filled up, which costs less
    /// to copy than a short piece of unknown length.
    // Always: a call is 6 % of a scan's step, and two loops copy records.
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
        self.places
            .push((second_start + key_bytes, self.bytes.len()));
    }

    /// Records in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() + self.lent
    }

    /// Whether it holds none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any of its records stayed in a block.
    #[inline]
    #[must_use]
    pub fn has_lent(&self) -> bool {
        self.lent > 0
    }

    /// Where a copy's key starts, where its value does, and where it ends in [`Batch::bytes`]; none
    /// behind the last.
    #[inline]
    #[must_use]
    pub fn place(&self, copy: usize) -> Option<(usize, usize, usize)> {
        let &(key_end, end) = self.places.get(copy)?;
        let start = match copy.checked_sub(1) {
            Some(before) => self.places[before].1,
            None => 0,
        };
        Some((start, key_end, end))
    }

    /// Keys and values of the copies, in order.
    pub fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.places.len()).filter_map(|record| {
            let (start, key_end, end) = self.place(record)?;
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
        match self.locate(last, &mut self.runs.len()) {
            Located::Lent(block, number) => Some((block.prefix(), block.key_suffix(number))),
            Located::Copied(copy) => {
                let (start, key_end, _) = self.place(copy)?;
                Some((self.bytes.get(start..key_end)?, &[]))
            }
        }
    }

    /// All keys and values of the copies.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory that it has.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.places.capacity() * size_of::<(usize, usize)>()
            + self.runs.capacity() * size_of::<Run>()
            + self.blocks.capacity() * size_of::<Arc<Block>>()
    }

    /// Takes the bytes out; places stay as they are.
    #[must_use]
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Why a scan stopped to fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The batch takes no more now; the scan goes on behind its last record.
    Full,
    /// The next record is not let in: the scan stands before it.
    Reached,
    /// There is no other record.
    End,
}

#[cfg(test)]
mod tests {
    use terrapin_base::Message;
    use terrapin_base::PageId;
    use terrapin_pages::block::{BlockBuilder, Compression};

    use super::*;

    /// A block of so many records of 1 KiB.
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

    /// An empty one that takes so many bytes, also of blocks.
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
    fn a_batch_takes_no_more_blocks_than_its_limit() {
        let blocks: Vec<_> = (0..8).map(|number| block(number, 10)).collect();
        // A block counts whole, and once.
        let (mut batch, mut lent) = (lending(25 << 10), 0);
        while !batch.is_full() {
            batch.lend(&blocks[lent / 2], lent % 2, 1, Direction::Forward);
            lent += 1;
        }
        assert_eq!((batch.len(), lent), (5, 5), "of three blocks");
        // Beside copies.
        let mut batch = lending(25 << 10);
        batch.push(b"key", &[0; 12 << 10], 3);
        batch.lend(&blocks[0], 9, 10, Direction::Backward);
        assert!(!batch.is_full());
        batch.lend(&blocks[1], 9, 1, Direction::Backward);
        assert!(batch.is_full());
        // The first comes however little it takes.
        let mut batch = lending(1);
        batch.lend(&blocks[0], 0, 10, Direction::Forward);
        assert!(batch.is_full() && batch.len() == 10);
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
            assert!(batch.place(3).is_none());
            assert_eq!(batch.last_key(), Some((&b"key"[..], &b""[..])));
        }
        assert_eq!(batch.take_bytes().len(), 21);
    }
}
