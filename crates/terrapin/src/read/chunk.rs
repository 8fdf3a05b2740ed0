//! The records that a range has fetched. They are copies in one allocation, or are in blocks of the
//! tree, which the chunk keeps.
//!
//! A caller that takes slices gets shares of a chunk of copies, and the next chunk has a new
//! allocation. A caller that borrows records sees them in their blocks. The next chunk then reuses
//! the memory of this one. A short range leaves the memory of its last chunk to the next range of
//! the thread. Scans that borrow therefore allocate nothing for records.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrapin_base::Slice;
use terrapin_base::sync::thread_local;
use terrapin_pages::block::KeyMemory;
use terrapin_structure::{Batch, BatchLimits, Located};

/// Bytes of records, copied or lent, at which a chunk ends.
pub(crate) const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of records for which a chunk reserves memory at its beginning.
const CHUNK_RECORDS_RESERVED: usize = 512;
/// Expected bytes of a record before the range has fetched any.
const RECORD_BYTES_EXPECTED: usize = 128;
/// Maximum bytes that a thread keeps for its next range.
const SPARE_BYTES_MAX: usize = 16 << 10;

thread_local! {
    /// The memory of a dropped chunk.
    static SPARE: Cell<Batch> = Cell::new(Batch::default());
}

/// Records in the order of their fetching. The caller has taken some from either end.
#[derive(Default)]
pub(crate) struct Chunk {
    records: Batch,
    /// The position in the batch of the last record that was looked up, and its key.
    run: usize,
    key: KeyMemory,
    /// The bytes of the records, all of them copies, after the first slice was shared. Before that,
    /// `records` has the bytes.
    shared: Option<Slice>,
    /// The first record that was not taken.
    first: usize,
    /// The record after the last one that was not taken.
    end: usize,
}

impl Chunk {
    /// Takes the first record that was not taken.
    #[inline]
    pub fn take_first(&mut self) -> Option<usize> {
        let record = self.first;
        (record < self.end).then(|| {
            self.first += 1;
            record
        })
    }

    /// Takes the last record that was not taken.
    pub fn take_last(&mut self) -> Option<usize> {
        (self.first < self.end).then(|| {
            self.end -= 1;
            self.end
        })
    }

    /// Number of records that were not taken.
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

    /// Whether a record that was taken has the handle of its value in place of the value.
    pub fn has_handle(&mut self, record: usize) -> bool {
        match self.records.locate(record, &mut self.run) {
            Located::Lent(..) => false,
            Located::Copied(copy) => self.records.is_left(copy),
        }
    }

    /// The deadline of a record that was taken, if its value has one.
    pub fn deadline(&self, record: usize) -> Option<SystemTime> {
        let deadline_ms = self.records.deadline_ms(record)?;
        Some(UNIX_EPOCH + Duration::from_millis(deadline_ms))
    }

    /// A taken record, as shares of the chunk.
    #[inline]
    pub fn slices(&mut self, record: usize) -> (Slice, Slice) {
        let (bytes, (start, key_end, end)) = self.share(record);
        (bytes.sub(start..key_end), bytes.sub(key_end..end))
    }

    /// The key of a taken record, as a share of the chunk.
    #[inline]
    pub fn key_slice(&mut self, record: usize) -> Slice {
        let (bytes, (start, key_end, _)) = self.share(record);
        bytes.sub(start..key_end)
    }

    /// The shared bytes of all records, and the position of a taken record in them. Turns lent
    /// records into copies.
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

    /// Copies this record and the lent records that were not taken, so that they can be shared.
    #[inline(never)]
    fn copy_lent(&mut self, record: usize) {
        let wanted = record.min(self.first)..self.end.max(record + 1);
        let keys_only = self.records.keys_only();
        let mut copies = Batch::default();
        for number in 0..self.records.len() {
            // Empty records keep the numbers of the others.
            let (key, value) = match wanted.contains(&number) {
                true => self.record(number),
                false => (&[][..], &[][..]),
            };
            copies.push(key, if keys_only { &[] } else { value }, 0);
            if let Some(deadline_ms) = self.records.deadline_ms(number) {
                copies.note_deadline(deadline_ms);
            }
        }
        self.records = copies;
    }

    /// Gives up records that were not taken and whose keys `is_out` names. These are all keys up to
    /// some key, or all from some key on.
    pub fn leave_out(&mut self, is_out: impl Fn(&[u8]) -> bool) {
        while self.first < self.end && is_out(self.record(self.first).0) {
            self.first += 1;
        }
        while self.first < self.end && is_out(self.record(self.end - 1).0) {
            self.end -= 1;
        }
    }

    /// Drops all records, which were taken, and reserves memory for as many of the same size as
    /// `limits` allows. New records can be taken after [`Chunk::fetched`].
    pub fn restart(&mut self, limits: BatchLimits) -> &mut Batch {
        let bytes = match &self.shared {
            Some(shared) => shared.len(),
            None => self.records.bytes().len(),
        };
        // Lent records take no memory of the chunk.
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
            // The last record may exceed the limit.
            bytes.min(CHUNK_BYTES_MAX + each),
        );
        (self.first, self.end, self.run) = (0, 0, 0);
        &mut self.records
    }

    /// Says that the chunk was filled with `records` records.
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
