//! Records on their way from a scan to a reader: copied once, back to back, into memory that is used again.

/// What [`Batch::push_behind`] copies of a short first piece.
const WORD_BYTES: usize = 8;

/// How much a batch takes, and what it may cost.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// It is full with so many records,
    pub records: usize,
    /// or so many bytes; one record may go beyond.
    pub bytes: usize,
    /// Once it holds a record, it takes only what needs no further read: the reader may not want more.
    pub sparing: bool,
    /// Records come without their values.
    pub keys_only: bool,
}

/// Records in the order in which a scan showed them.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Where each record's key and value end; it starts where the one before ends.
    places: Vec<(usize, usize)>,
    limits: BatchLimits,
}

impl Default for BatchLimits {
    fn default() -> Self {
        BatchLimits {
            records: usize::MAX,
            bytes: usize::MAX,
            sparing: false,
            keys_only: false,
        }
    }
}

impl Batch {
    /// Drops all records, keeps the memory, sets new limits, and makes sure that so many records and bytes find room.
    pub fn restart(&mut self, limits: BatchLimits, records: usize, bytes: usize) {
        // The last record's word may reach beyond it.
        let bytes = bytes + WORD_BYTES;
        self.bytes.clear();
        self.places.clear();
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

    /// How many records more it takes, if its bytes allow.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limits.records.saturating_sub(self.places.len())
    }

    /// Whether a scan should rather stop than read: see [`BatchLimits::sparing`].
    #[inline]
    #[must_use]
    pub fn spares_reads(&self) -> bool {
        self.limits.sparing && !self.places.is_empty()
    }

    /// Whether records are to be appended without their values: see [`BatchLimits::keys_only`].
    #[inline]
    #[must_use]
    pub fn keys_only(&self) -> bool {
        self.limits.keys_only
    }

    /// Appends a record, key and value back to back in two pieces: the key ends `key_bytes` behind the start of the second.
    #[inline]
    pub fn push(&mut self, first: &[u8], second: &[u8], key_bytes: usize) {
        self.bytes.reserve(first.len() + second.len());
        self.bytes.extend_from_slice(first);
        let second_start = self.bytes.len();
        self.bytes.extend_from_slice(second);
        self.places
            .push((second_start + key_bytes, self.bytes.len()));
    }

    /// As [`Batch::push`]; `word` is what the first piece begins with, filled up, which costs less to copy than a short
    /// piece of unknown length.
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
        self.places.len()
    }

    /// Whether it holds none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Where a record's key starts, where its value does, and where it ends in [`Batch::bytes`]; none behind the last.
    #[inline]
    #[must_use]
    pub fn place(&self, record: usize) -> Option<(usize, usize, usize)> {
        let &(key_end, end) = self.places.get(record)?;
        let start = match record.checked_sub(1) {
            Some(before) => self.places[before].1,
            None => 0,
        };
        Some((start, key_end, end))
    }

    /// Keys and values, in order.
    pub fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).filter_map(|record| {
            let (start, key_end, end) = self.place(record)?;
            Some((
                self.bytes.get(start..key_end)?,
                self.bytes.get(key_end..end)?,
            ))
        })
    }

    /// The key of the last record.
    #[must_use]
    pub fn last_key(&self) -> Option<&[u8]> {
        let (start, key_end, _) = self.place(self.places.len().checked_sub(1)?)?;
        self.bytes.get(start..key_end)
    }

    /// All keys and values.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory that it has.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.places.capacity() * size_of::<(usize, usize)>()
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
    use super::*;

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
            assert_eq!(batch.last_key(), Some(&b"key"[..]));
        }
        assert_eq!(batch.take_bytes().len(), 21);
    }
}
