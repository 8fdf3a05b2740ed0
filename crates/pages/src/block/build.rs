//! Builds blocks from sorted records. A block ends where the next record does not fit any more.
//!
//! Invariant: keys ascend within a block and across the blocks of a run.

use terrapin_base::codec::{put_varint, varint_bytes};
use terrapin_base::{Error, KEY_BYTES_MAX, Message, PageId, Result, STACK_BYTES_MAX};

use super::codec::{Compression, Compressor};
use super::common_prefix;
use super::format::{
    BLOCK_HEADER_BYTES, Extension, Header, KIND_BITS, KIND_DELETE, KIND_EXTENDED,
    MESSAGE_EXTENSION_BYTES, START_BYTES, TARGET_BYTES_MAX, checksum, kind_of,
};
use super::record::Record;

/// A payload is stored compressed if that saves at least one part in this many. A smaller saving
/// does not pay for the decompression by every reader.
const SAVED_PART: usize = 8;

/// Collects records and lays them out as blocks. Its memory is used again for every block.
///
/// ```
/// use terrapin_base::{Message, PageId};
/// use terrapin_pages::block::{Block, BlockBuilder, Compression};
/// let mut builder = BlockBuilder::new(4096, Compression::Lz4);
/// assert!(builder.add(b"apple", Message::Put(b"red"))?);
/// assert!(builder.add(b"apricot", Message::Delete)?);
/// let mut bytes = Vec::new();
/// builder.finish(PageId(7), 0, &mut bytes);
/// assert!(bytes.len() < 50);
/// let block = Block::decode(&bytes, PageId(7), 0)?;
/// assert_eq!(block.search(b"apricot"), Ok(1));
/// assert_eq!(block.message(0), Message::Put(b"red"));
/// # Ok::<(), terrapin_base::Error>(())
/// ```
pub struct BlockBuilder {
    target_bytes: usize,
    /// Most bytes of the next block: the target, or less if the block starts behind a unit's
    /// boundary.
    room: usize,
    compressor: Compressor,
    entries: Vec<Entry>,
    /// Key and value of every waiting record, without gaps.
    bytes: Vec<u8>,
    /// Bytes of the longest common prefix of all waiting keys.
    prefix: usize,
    /// Bytes of all records without the common prefix. Tags count, record starts do not.
    record_bytes: usize,
    /// The last key of the previous block, if this run of blocks has one.
    last_cut_key: Option<Vec<u8>>,
    /// The shortest separator in front of the last finished block.
    cut_separator: Vec<u8>,
    payload: Vec<u8>,
    starts: Vec<u8>,
    compressed: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    /// Bytes behind the key: extension and value.
    behind_key: u32,
    key_bytes: u16,
    /// The kind in the tag.
    kind: u8,
    extension_bytes: u8,
}

impl Entry {
    /// Bytes in the record area if the block stores `prefix` bytes of the key once for all records.
    fn bytes(self, prefix: usize) -> usize {
        let suffix = usize::from(self.key_bytes) - prefix;
        varint_bytes((suffix as u64) << KIND_BITS) + suffix + self.behind_key as usize
    }
}

/// Counts of a finished block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutBlock {
    /// Bytes on disk.
    pub bytes: u32,
    /// Records, deletes included.
    pub records: u32,
    /// Deletes.
    pub tombstones: u32,
    /// Key and value bytes of the records. A deadline counts as a part of the value.
    pub logical_bytes: u64,
    /// Key and value bytes of the largest record.
    pub record_bytes_max: u32,
}

fn total_bytes(prefix: usize, record_bytes: usize, count: usize) -> usize {
    let starts = if count > 1 { count * START_BYTES } else { 0 };
    BLOCK_HEADER_BYTES + prefix + record_bytes + starts
}

impl BlockBuilder {
    /// A builder of blocks of at most `target_bytes` on disk. Only a block of a single record may
    /// be longer.
    ///
    /// If the build lacks the compression, blocks are stored uncompressed: call
    /// [`Compression::check`] first. Panics if the target is above [`TARGET_BYTES_MAX`] or too
    /// small for a block.
    #[must_use]
    pub fn new(target_bytes: usize, compression: Compression) -> Self {
        assert!(
            (BLOCK_HEADER_BYTES..=TARGET_BYTES_MAX).contains(&target_bytes),
            "block target of {target_bytes} bytes"
        );
        BlockBuilder {
            target_bytes,
            room: target_bytes,
            compressor: Compressor::new(compression),
            entries: Vec::new(),
            bytes: Vec::new(),
            prefix: 0,
            record_bytes: 0,
            last_cut_key: None,
            cut_separator: Vec::new(),
            payload: Vec::new(),
            starts: Vec::new(),
            compressed: Vec::new(),
        }
    }

    /// Sets how many bytes behind a unit's boundary the next block starts. A read of the block
    /// begins at the boundary, so the block gets that many bytes less. Panics unless the builder is
    /// empty and the target leaves room.
    pub(crate) fn start_behind(&mut self, bytes: usize) {
        assert!(
            self.is_empty() && bytes < self.target_bytes,
            "no place for a block"
        );
        self.room = self.target_bytes - bytes;
    }

    /// Whether the record alone fits a block of the full target, but not the next block.
    pub(crate) fn is_cramped(&self, key: &[u8], message: Message<'_>) -> bool {
        let alone = self.entry(key, message).bytes(key.len());
        let bytes = total_bytes(key.len(), alone, 1);
        self.room < bytes && bytes <= self.target_bytes
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of records that wait for a block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first key that waits for a block.
    #[must_use]
    pub fn first_key(&self) -> Option<&[u8]> {
        (!self.is_empty()).then(|| self.key(0))
    }

    /// The last key that waits for a block.
    #[must_use]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.entries.len().checked_sub(1).map(|i| self.key(i))
    }

    /// The shortest separator between the last two finished blocks: above all keys of the first,
    /// and not above any key of the second.
    pub(crate) fn cut_separator(&self) -> &[u8] {
        &self.cut_separator
    }

    /// Bytes of heap that the builder holds. The compressor's memory does not count.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.bytes.capacity()
            + self.payload.capacity()
            + self.compressed.capacity()
            + self.last_cut_key.as_ref().map_or(0, Vec::capacity)
            + self.cut_separator.capacity()
    }

    fn key(&self, index: usize) -> &[u8] {
        let entry = self.entries[index];
        &self.bytes[entry.start as usize..][..usize::from(entry.key_bytes)]
    }

    /// Common prefix and record bytes if the builder took this record. `None` if its key is not
    /// above the last key.
    fn with_record(&self, key: &[u8], entry: Entry) -> Option<(usize, usize)> {
        let Some(last) = self.last_key() else {
            let before = self.last_cut_key.as_deref();
            return before
                .is_none_or(|before| before < key)
                .then(|| (key.len(), entry.bytes(key.len())));
        };
        let common = common_prefix(last, key);
        if last.get(common) >= key.get(common) {
            return None;
        }
        // Keys are sorted: all share the prefix that the first and the new key share.
        let prefix = self.prefix.min(common);
        let before = if prefix == self.prefix {
            self.record_bytes
        } else {
            self.entries.iter().map(|e| e.bytes(prefix)).sum()
        };
        Some((prefix, before + entry.bytes(prefix)))
    }

    fn entry(&self, key: &[u8], message: Message<'_>) -> Entry {
        let kind = kind_of(message);
        let extension_bytes = match kind {
            KIND_EXTENDED => MESSAGE_EXTENSION_BYTES,
            _ => 0,
        };
        self.entry_of(key, kind, message.value_bytes(), extension_bytes)
    }

    #[inline(always)]
    fn entry_of(&self, key: &[u8], kind: u8, value_bytes: usize, extension_bytes: usize) -> Entry {
        assert!(
            key.len() <= KEY_BYTES_MAX && value_bytes <= STACK_BYTES_MAX,
            "record too large"
        );
        Entry {
            start: self.bytes.len() as u32,
            behind_key: (extension_bytes + value_bytes) as u32,
            key_bytes: key.len() as u16,
            kind,
            extension_bytes: extension_bytes as u8,
        }
    }

    fn fits(&self, prefix: usize, record_bytes: usize) -> bool {
        self.is_empty() || total_bytes(prefix, record_bytes, self.len() + 1) <= self.room
    }

    /// Whether [`BlockBuilder::add`] would take the record. An empty builder takes every record
    /// whose key is above the last one.
    #[must_use]
    pub fn would_fit(&self, key: &[u8], message: Message<'_>) -> bool {
        self.with_record(key, self.entry(key, message))
            .is_some_and(|(prefix, record_bytes)| self.fits(prefix, record_bytes))
    }

    /// Adds a record. Returns false, and adds nothing, if the block must be finished first.
    /// Amortised linear in the record's bytes.
    ///
    /// Panics if key or value exceed their limits. Callers check user input before, and decoding
    /// refuses blocks with such records.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the key is not above the last one. Memtables are
    /// sorted, so the key came from a damaged page.
    pub fn add(&mut self, key: &[u8], message: Message<'_>) -> Result<bool> {
        let kind = kind_of(message);
        if kind == KIND_EXTENDED {
            return self.add_record(key, Record::from(message));
        }
        let entry = self.entry_of(key, kind, message.value_bytes(), 0);
        self.push(key, entry, &[], message.payload())
    }

    /// Like [`BlockBuilder::add`], for a record of any kind. Also panics if [`Record::is_possible`]
    /// is false.
    ///
    /// # Errors
    ///
    /// Those of [`BlockBuilder::add`].
    pub fn add_record(&mut self, key: &[u8], record: Record<'_>) -> Result<bool> {
        let extension = Extension::of(record);
        let (kind, bytes) = (extension.tag_kind(record.kind), extension.bytes());
        let mut entry = self.entry_of(key, kind, record.value.len(), bytes.len());
        entry.extension_bytes = entry.extension_bytes.min(MESSAGE_EXTENSION_BYTES as u8);
        self.push(key, entry, bytes, record.value)
    }

    #[inline(always)]
    fn push(&mut self, key: &[u8], entry: Entry, extension: &[u8], value: &[u8]) -> Result<bool> {
        let Some((prefix, record_bytes)) = self.with_record(key, entry) else {
            return Err(Error::corrupt("keys do not ascend"));
        };
        if !self.fits(prefix, record_bytes) {
            return Ok(false);
        }
        self.prefix = prefix;
        self.record_bytes = record_bytes;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(extension);
        self.bytes.extend_from_slice(value);
        self.entries.push(entry);
        Ok(true)
    }

    /// Appends a block of all records to `out`. [`seal_block`] writes its checksum later. `None` if
    /// there are no records.
    pub fn cut(&mut self, out: &mut Vec<u8>) -> Option<CutBlock> {
        (!self.is_empty()).then(|| self.emit(out))
    }

    /// Like [`BlockBuilder::cut`], and ends the run. The next run may begin with any key, and its
    /// first block starts on a unit's boundary.
    pub fn cut_last(&mut self, out: &mut Vec<u8>) -> Option<CutBlock> {
        let cut = self.cut(out);
        self.last_cut_key = None;
        self.room = self.target_bytes;
        cut
    }

    /// Appends one block of all records, with its checksum, to `out`. `None` if there are no
    /// records.
    pub fn finish(&mut self, id: PageId, block_number: u32, out: &mut Vec<u8>) -> Option<CutBlock> {
        let start = out.len();
        let cut = self.cut_last(out)?;
        seal_block(&mut out[start..], id, block_number);
        Some(cut)
    }

    fn emit(&mut self, out: &mut Vec<u8>) -> CutBlock {
        let (count, prefix) = (self.len(), self.prefix);
        let mut cut = CutBlock {
            records: count as u32,
            ..CutBlock::default()
        };

        self.payload.clear();
        self.payload.extend_from_slice(&self.bytes[..prefix]);
        self.starts.clear();
        for entry in &self.entries {
            let at = (self.payload.len() - prefix) as u16;
            self.starts.extend_from_slice(&at.to_le_bytes());
            let suffix = usize::from(entry.key_bytes) - prefix;
            put_varint(
                &mut self.payload,
                (suffix as u64) << KIND_BITS | u64::from(entry.kind),
            );
            let behind_prefix = suffix + entry.behind_key as usize;
            self.payload
                .extend_from_slice(&self.bytes[entry.start as usize + prefix..][..behind_prefix]);
            cut.tombstones += u32::from(entry.kind == KIND_DELETE);
            let logical = prefix + behind_prefix - usize::from(entry.extension_bytes);
            cut.logical_bytes += logical as u64;
            cut.record_bytes_max = cut.record_bytes_max.max(logical as u32);
        }
        if count > 1 {
            self.payload.extend_from_slice(&self.starts);
        }

        let mut stored = &self.payload;
        let mut compression = Compression::None;
        if let Some(how) = self
            .compressor
            .compress(&self.payload, &mut self.compressed)
            && self.compressed.len() + self.payload.len() / SAVED_PART <= self.payload.len()
        {
            stored = &self.compressed;
            compression = how;
        }
        let header = Header {
            compression: compression.number(),
            prefix_bytes: prefix as u16,
            count: count as u16,
            payload_bytes: self.payload.len() as u32,
            stored_bytes: stored.len() as u32,
        };
        cut.bytes = (BLOCK_HEADER_BYTES + stored.len()) as u32;
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(stored);

        self.forget();
        cut
    }

    /// Drops the records and keeps the last key, from which the next separator follows.
    fn forget(&mut self) {
        let (first, last) = (self.entries[0], self.entries[self.len() - 1]);
        let first_key = &self.bytes[..usize::from(first.key_bytes)];
        let last_key = &self.bytes[last.start as usize..][..usize::from(last.key_bytes)];
        let last_cut_key = self.last_cut_key.get_or_insert_default();
        let separator_bytes = first_key
            .len()
            .min(common_prefix(last_cut_key, first_key) + 1);
        self.cut_separator.clear();
        self.cut_separator
            .extend_from_slice(&first_key[..separator_bytes]);
        last_cut_key.clear();
        last_cut_key.extend_from_slice(last_key);

        self.bytes.clear();
        self.entries.clear();
        (self.prefix, self.record_bytes) = (0, 0);
    }
}

/// Writes the checksum of a block, which depends on the page id and on the block's number. `block`
/// includes the padding. Panics if `block` is shorter than a header.
pub fn seal_block(block: &mut [u8], id: PageId, block_number: u32) {
    let crc = checksum(block, id, block_number);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}
