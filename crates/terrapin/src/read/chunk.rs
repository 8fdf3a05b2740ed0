//! What a range has fetched: copied records, one run of bytes, or records in the tree's blocks,
//! which the chunk holds.
//!
//! Who takes slices gets shares of a chunk of copies, and the next one lies elsewhere. Who borrows
//! is lent what lies in blocks, leaves the chunk's memory to the next one, and a short range the
//! last chunk's to the thread's next range: such scans allocate nothing for records.

use std::cell::Cell;

use terrapin_base::Slice;
use terrapin_base::sync::thread_local;
use terrapin_pages::block::KeyMemory;
use terrapin_structure::{Batch, BatchLimits, Located};

/// A chunk ends when it holds so many bytes, copied or lent.
pub(crate) const CHUNK_BYTES_MAX: usize = 64 << 10;
/// A chunk has room for so many records from the start, at most.
const CHUNK_RECORDS_RESERVED: usize = 512;
/// Bytes that a record is expected to take before any was seen.
const RECORD_BYTES_EXPECTED: usize = 128;
/// A thread keeps so many bytes for its next range, at most.
const SPARE_BYTES_MAX: usize = 16 << 10;

thread_local! {
    /// The memory of a chunk that is gone.
    static SPARE: Cell<Batch> = Cell::new(Batch::default());
}

/// Records in the order in which they were fetched, and which of them were not taken yet.
#[derive(Default)]
pub(crate) struct Chunk {
    records: Batch,
    /// Where in the batch the last record was found, and its key.
    run: usize,
    key: KeyMemory,
    /// The bytes of the records, all of them copies, once somebody has a share of them; until then
    /// they are the batch's.
    shared: Option<Slice>,
    /// Records from here on were not taken from the front,
    first: usize,
    /// and those from here on were taken from the back.
    end: usize,
}

impl Chunk {
    /// Takes the record that was fetched first.
    #[inline]
    pub fn take_first(&mut self) -> Option<usize> {
        let record = self.first;
        (record < self.end).then(|| {
            self.first += 1;
            record
        })
    }

    /// Takes the record that was fetched last.
    pub fn take_last(&mut self) -> Option<usize> {
        (self.first < self.end).then(|| {
            self.end -= 1;
            self.end
        })
    }

    /// How many records nobody took.
    pub fn left(&self) -> usize {
        self.end - self.first
    }

    /// A record that was taken.
    #[inline]
    pub fn record(&mut self, record: usize) -> (&[u8], &[u8]) {
        let copy = match self.records.locate(record, &mut self.run) {
            Located::Lent(block, number) => return block.lend(number, &mut self.key),
            Located::Copied(copy) => copy,
        };
        let (start, key_end, end) = self.records.copy_span(copy).unwrap_or_default();
        let bytes = match &self.shared {
            Some(shared) => shared,
            None => self.records.bytes(),
        };
        (&bytes[start..key_end], &bytes[key_end..end])
    }

    /// A record that was taken, as shares of the chunk.
    #[inline]
    pub fn slices(&mut self, record: usize) -> (Slice, Slice) {
        let (bytes, (start, key_end, end)) = self.share(record);
        (bytes.sub(start..key_end), bytes.sub(key_end..end))
    }

    /// A record that was taken: a share of the chunk that holds its key.
    #[inline]
    pub fn key_slice(&mut self, record: usize) -> Slice {
        let (bytes, (start, key_end, _)) = self.share(record);
        bytes.sub(start..key_end)
    }

    /// The bytes of the records, to be shared from now on, and where a record that was taken lies
    /// in them.
    #[inline]
    fn share(&mut self, record: usize) -> (&Slice, (usize, usize, usize)) {
        if self.records.has_lent() {
            self.copy_lent(record);
        }
        let place = self.records.copy_span(record).unwrap_or_default();
        let records = &mut self.records;
        let bytes = self
            .shared
            .get_or_insert_with(|| Slice::from_vec(records.take_bytes()));
        (bytes, place)
    }

    /// Makes copies of what was lent and is not taken, and of this record, so that they can be
    /// shared.
    #[inline(never)]
    fn copy_lent(&mut self, record: usize) {
        let wanted = record.min(self.first)..self.end.max(record + 1);
        let keys_only = self.records.keys_only();
        let mut copies = Batch::default();
        for number in 0..self.records.len() {
            // The others keep their numbers.
            let (key, value) = match wanted.contains(&number) {
                true => self.record(number),
                false => (&[][..], &[][..]),
            };
            copies.push(key, if keys_only { &[] } else { value }, 0);
        }
        self.records = copies;
    }

    /// Gives up the records of keys that are out and that nobody took; out are all up to a key, or
    /// all from one on.
    pub fn leave_out(&mut self, is_out: impl Fn(&[u8]) -> bool) {
        while self.first < self.end && is_out(self.record(self.first).0) {
            self.first += 1;
        }
        while self.first < self.end && is_out(self.record(self.end - 1).0) {
            self.end -= 1;
        }
    }

    /// Drops what there was, all of it taken, and makes room for records of the same kind. None of
    /// what is filled in can be taken before [`Chunk::fetched`].
    pub fn restart(&mut self, limits: BatchLimits) -> &mut Batch {
        let bytes = match &self.shared {
            Some(shared) => shared.len(),
            None => self.records.bytes().len(),
        };
        // What was lent takes nothing.
        let each = bytes.checked_div(self.records.len());
        self.shared = None;
        if self.records.memory_bytes() == 0 {
            self.records = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        let each = each.unwrap_or(RECORD_BYTES_EXPECTED);
        let bytes = limits.records.saturating_mul(each);
        self.records.restart(
            limits,
            limits.records.min(CHUNK_RECORDS_RESERVED),
            // The last record may go beyond.
            bytes.min(CHUNK_BYTES_MAX + each),
        );
        (self.first, self.end, self.run) = (0, 0, 0);
        &mut self.records
    }

    /// It was filled with so many records.
    pub fn fetched(&mut self, records: usize) {
        self.end = records;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        let is_whole = self.shared.is_none();
        if is_whole && (1..=SPARE_BYTES_MAX).contains(&records.memory_bytes()) {
            records.restart(BatchLimits::default(), 0, 0);
            // The thread may be ending.
            let _ = SPARE.try_with(|spare| spare.set(records));
        }
    }
}
