//! Decodes blocks. A decoded block is immutable. Decoding checks every offset once, so accessors
//! check none.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use terrapin_base::codec::Reader;
use terrapin_base::{
    Error, KEY_BYTES_MAX, Message, MessageKind, PageId, Result, STACK_BYTES_MAX, Slice,
    VALUE_BYTES_MAX, mutant,
};
use terrapin_disk::{Piece, prefetch, prefetch_all};

use super::any::AnyBlock;
use super::codec::{Compression, decompress};
use super::format::{
    BLOCK_HEADER_BYTES, Header, KIND_BITS, KIND_DELETE, KIND_EXTENDED, KIND_PUT, START_BYTES,
    checksum, extended_message,
};
use super::record::Record;
use crate::heads::{head, head_mask};

/// Bytes at the start of a block that are prefetched before a scan of its records. The processor's
/// own prefetcher fetches the rest.
const FIRST_BYTES: usize = 128;

/// Bytes of a record's short head.
const SHORT_HEAD_BYTES: usize = 2;

/// The bits of a tag that hold the kind.
const KIND_MASK: u8 = (1 << KIND_BITS) - 1;
/// Longest key suffix whose tag takes one byte.
const PLAIN_SUFFIX_BYTES_MAX: usize = (PLAIN_TAG_MAX >> KIND_BITS) as usize;
/// Largest tag of one byte.
const PLAIN_TAG_MAX: u8 = 0x7f;
/// Smallest tag of a suffix that is at least as long as a short head.
const PLAIN_TAG_MIN: u8 = (SHORT_HEAD_BYTES as u8) << KIND_BITS;

/// The tag and the short head of a sound record whose tag is from [`PLAIN_TAG_MIN`] to `tag_max`.
/// `None` for other records. The caller checks the lengths of key and value.
#[inline]
fn prove_plain(record: &[u8], tag_max: u8) -> Option<(u8, [u8; SHORT_HEAD_BYTES])> {
    let [tag, first, second, ..] = *record else {
        return None;
    };
    let end = 1 + usize::from(tag >> KIND_BITS);
    let kind = tag & KIND_MASK;
    let known =
        kind == KIND_PUT && end <= record.len() || kind == KIND_DELETE && end == record.len();
    (known && (PLAIN_TAG_MIN..=tag_max).contains(&tag)).then_some((tag, [second, first]))
}

/// Checks a record. Returns its kind and its short head.
#[inline(never)]
fn prove(record: &[u8], prefix: usize) -> Result<(u8, [u8; SHORT_HEAD_BYTES])> {
    let mut reader = Reader::new("record", record);
    let tag = reader.varint()?;
    let suffix_bytes = usize::try_from(tag >> KIND_BITS).unwrap_or(usize::MAX);
    let mut value_bytes = reader
        .remaining()
        .checked_sub(suffix_bytes)
        .ok_or_else(|| Error::corrupt("record ends too early"))?;
    let kind = tag as u8 & KIND_MASK;
    let mut known = kind == KIND_PUT || kind == KIND_DELETE && value_bytes == 0;
    if kind == KIND_EXTENDED {
        value_bytes = Record::decode_extended(&record[record.len() - value_bytes..])?
            .value
            .len();
        known = true;
    }
    if !known || prefix + suffix_bytes > KEY_BYTES_MAX || value_bytes > STACK_BYTES_MAX {
        return Err(Error::corrupt("impossible record").with("kind", kind));
    }
    let head = match *reader.bytes(suffix_bytes)? {
        [first, second, ..] => [second, first],
        [first] => [0, first],
        [] => [0, 0],
    };
    Ok((kind, head))
}

/// A block in memory, decompressed and without padding. All its records are messages that this
/// version executes.
///
/// Accessors panic when an index is not below [`Block::len`], as a slice does; bytes from disk
/// cannot make them panic.
#[derive(Debug)]
pub struct Block {
    /// Prefix, records and starts, then the short heads. A short head is the first two bytes of a
    /// key suffix as a big-endian number, padded with zeros. A search reads the adjacent short
    /// heads before it reads any record.
    payload: Piece,
    /// The head of the prefix. A short prefix is compared without reading the payload.
    prefix_head: u64,
    prefix: usize,
    count: u32,
    /// Whether any record is a delete.
    has_deletes: bool,
    /// Whether any record is extended.
    has_extended: bool,
    /// Where the records end and the starts begin.
    records_end: usize,
    /// Where the starts end and the short heads begin.
    heads_start: usize,
}

impl Block {
    /// Decodes a block's bytes on disk, padding included. Copies or decompresses the payload, so
    /// the caller can use the buffer again. Linear in the number of records: checks each record,
    /// but does not compare keys.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`], with page and block, if the block is damaged, belongs
    /// to another page or number, or has a record that this version does not execute.
    /// [`terrapin_base::ErrorKind::Unsupported`] if this build cannot decompress it.
    pub fn decode(bytes: &[u8], id: PageId, block_number: u32) -> Result<Block> {
        Self::decode_into(bytes, id, block_number, |_| None)
    }

    /// Like [`Block::decode`]. The payload goes into the memory that `memory` returns for its
    /// length, or into an allocation of its own.
    pub(crate) fn decode_into(
        bytes: &[u8],
        id: PageId,
        block_number: u32,
        memory: impl FnOnce(usize) -> Option<Piece>,
    ) -> Result<Block> {
        AnyBlock::decode_into(bytes, id, block_number, memory)
            .and_then(AnyBlock::executable)
            .map_err(|e| e.with("page", id).with("block", block_number))
    }

    /// Decodes records of every kind.
    pub(super) fn decode_checked(
        bytes: &[u8],
        id: PageId,
        block_number: u32,
        memory: impl FnOnce(usize) -> Option<Piece>,
    ) -> Result<Block> {
        if bytes.len() < BLOCK_HEADER_BYTES {
            return Err(Error::corrupt("block too short").with("bytes", bytes.len()));
        }
        if bytes[..4] != checksum(bytes, id, block_number).to_le_bytes()
            && !mutant::active("block-checksum-ignored")
        {
            return Err(Error::corrupt("block checksum"));
        }
        Self::parse_into(bytes, memory)
    }

    /// Like [`Block::decode`], for a block without a checksum.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Block> {
        Self::parse_into(bytes, |_| None)
    }

    fn parse_into(bytes: &[u8], memory: impl FnOnce(usize) -> Option<Piece>) -> Result<Block> {
        let header = Header::decode(bytes)?;
        let stored = &bytes[BLOCK_HEADER_BYTES..][..header.stored_bytes as usize];
        let compression = Compression::from_number(header.compression).ok_or_else(|| {
            Error::corrupt("unknown compression").with("kind", header.compression)
        })?;
        let count = usize::from(header.count);
        let heads_bytes = count * SHORT_HEAD_BYTES;
        let payload_bytes = header.payload_bytes as usize;
        let starts_bytes = if count > 1 { count * START_BYTES } else { 0 };
        let prefix = usize::from(header.prefix_bytes);
        let records_end = payload_bytes
            .checked_sub(starts_bytes)
            .filter(|&end| end >= prefix);
        let records_end =
            records_end.ok_or_else(|| Error::corrupt("block lengths contradict each other"))?;
        let plain = compression == Compression::None;
        if plain && stored.len() != payload_bytes {
            return Err(Error::corrupt("block of unequal lengths"));
        }
        // The payload is present, so its length bounds the memory of the short heads.
        let bytes = payload_bytes + heads_bytes;
        let payload = match memory(bytes) {
            None if plain => Piece::alone(bytes, stored),
            memory => {
                let mut memory = memory.unwrap_or_else(|| Piece::alone(bytes, &[]));
                decompress(compression, stored, &mut memory[..payload_bytes])?;
                memory
            }
        };
        let mut block = Block {
            prefix_head: head(&payload[..prefix]),
            payload,
            prefix,
            count: header.count.into(),
            has_deletes: false,
            has_extended: false,
            records_end,
            heads_start: payload_bytes,
        };
        block.check()?;
        Ok(block)
    }

    /// Checks every record, as accessors require, and fills in the short heads.
    fn check(&mut self) -> Result<()> {
        let (records, behind) = self.payload.split_at_mut(self.records_end);
        let (starts, heads) = behind.split_at_mut(self.heads_start - self.records_end);
        let starts: &[[u8; START_BYTES]] = starts.as_chunks().0;
        if starts
            .first()
            .is_some_and(|first| *first != [0; START_BYTES])
        {
            return Err(Error::corrupt(
                "first record does not start behind the prefix",
            ));
        }
        // Keys with a plain tag and all values are short enough. Otherwise no record counts as
        // plain.
        let bounded = self.prefix + PLAIN_SUFFIX_BYTES_MAX <= KEY_BYTES_MAX
            && self.records_end <= VALUE_BYTES_MAX;
        let tag_max = if bounded { PLAIN_TAG_MAX } else { 0 };
        let mut ends = starts.get(1..).unwrap_or_default().iter();
        let (mut start, mut tags) = (self.prefix, KIND_PUT);
        for (i, head) in heads.as_chunks_mut().0.iter_mut().enumerate() {
            let end = match ends.next() {
                Some(next) => self.prefix + usize::from(u16::from_le_bytes(*next)),
                None => self.records_end,
            };
            let record = records
                .get(start..end)
                .ok_or_else(|| Error::corrupt("record out of bounds").with("record", i))?;
            let (tag, head_of_key) = match prove_plain(record, tag_max) {
                Some(plain) => plain,
                None => prove(record, self.prefix).map_err(|e| e.with("record", i))?,
            };
            *head = head_of_key;
            tags |= tag;
            start = end;
        }
        // One bit for each kind except plain puts.
        self.has_deletes = tags & KIND_DELETE != 0;
        self.has_extended = tags & KIND_EXTENDED != 0;
        Ok(())
    }

    /// The position of the first record, behind the prefix. The array of starts leaves it out.
    #[inline]
    fn starts(&self) -> &[[u8; START_BYTES]] {
        self.payload[self.records_end..self.heads_start]
            .as_chunks()
            .0
    }

    /// Where a record starts and ends in the payload.
    #[inline]
    fn extent(&self, index: usize) -> (usize, usize) {
        let place =
            |start: &[u8; START_BYTES]| self.prefix + usize::from(u16::from_le_bytes(*start));
        // One read of two adjacent starts serves all records except the last.
        let at = self.records_end + index * START_BYTES;
        if let Some([a, b, c, d]) = self.payload[at..self.heads_start].first_chunk() {
            return (place(&[*a, *b]), place(&[*c, *d]));
        }
        (
            self.starts().get(index).map_or(self.prefix, place),
            self.records_end,
        )
    }

    /// Kind, where the key suffix starts, where the value starts, where the record ends.
    #[inline]
    fn record(&self, index: usize) -> (u8, usize, usize, usize) {
        assert!(index < self.len(), "record {index} of {}", self.count);
        let (start, end) = self.extent(index);
        let (tag, at) = self.tag(start);
        (tag as u8 & KIND_MASK, at, at + (tag >> KIND_BITS), end)
    }

    /// The tag at a record's start, and where it ends.
    #[inline]
    fn tag(&self, start: usize) -> (usize, usize) {
        let first = usize::from(self.payload[start]);
        // A suffix below 32 bytes: the tag is one byte.
        if first < 0x80 {
            (first, start + 1)
        } else {
            self.long_tag(start)
        }
    }

    /// Where a record's key suffix lies in the payload.
    #[inline]
    fn suffix_range(&self, index: usize) -> (usize, usize) {
        let start = match self.starts().get(index) {
            Some(start) => self.prefix + usize::from(u16::from_le_bytes(*start)),
            None => self.prefix,
        };
        let (tag, at) = self.tag(start);
        (at, at + (tag >> KIND_BITS))
    }

    /// A tag of several bytes, and where it ends.
    fn long_tag(&self, mut at: usize) -> (usize, usize) {
        let (mut tag, mut shift) = (0, 0);
        loop {
            let byte = self.payload[at];
            at += 1;
            tag |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (tag, at);
            }
            shift += 7;
        }
    }

    /// The [`head`] of `payload[from..to]`. Reads beyond `to` if the payload continues there, which
    /// costs less than a copy of unknown length.
    #[inline]
    fn head_at(&self, from: usize, to: usize) -> u64 {
        let Some(eight) = self.payload[from..].first_chunk::<8>() else {
            return head(&self.payload[from..to]);
        };
        let eight = u64::from_be_bytes(*eight);
        match to - from {
            8.. => eight,
            0 => 0,
            known => eight & (u64::MAX << (64 - 8 * known)),
        }
    }

    /// Records in the block: at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether any record is a delete.
    #[inline]
    #[must_use]
    pub fn has_deletes(&self) -> bool {
        self.has_deletes
    }

    /// Whether any record is an extended one: operands of merges.
    #[inline]
    #[must_use]
    pub fn has_extended(&self) -> bool {
        self.has_extended
    }

    /// Whether all records are plain puts.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.has_deletes && !self.has_extended
    }

    /// The kind in a record's tag, and what lies behind its key.
    pub(super) fn behind_key(&self, index: usize) -> (u8, &[u8]) {
        let (kind, _, behind_key, end) = self.record(index);
        (kind, &self.payload[behind_key..end])
    }

    /// The common prefix of all keys.
    #[inline]
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.payload[..self.prefix]
    }

    /// The key's bytes behind the prefix.
    #[inline]
    #[must_use]
    pub fn key_suffix(&self, index: usize) -> &[u8] {
        let (_, suffix, value, _) = self.record(index);
        &self.payload[suffix..value]
    }

    /// Replaces the content of `out` with a key.
    #[inline]
    pub fn key_into(&self, index: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.prefix());
        out.extend_from_slice(self.key_suffix(index));
    }

    /// A copy of a key.
    #[must_use]
    pub fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.key_into(index, &mut key);
        key
    }

    /// Compares a key of the block with another.
    #[inline]
    #[must_use]
    pub fn compare_key(&self, index: usize, other: &[u8]) -> Ordering {
        match self.compare_prefix(other) {
            Ordering::Equal => self.key_suffix(index).cmp(&other[self.prefix..]),
            unequal => unequal,
        }
    }

    /// Compares the prefix with the first bytes of another key. A key shorter than the prefix is
    /// below every key of the block.
    #[inline]
    fn compare_prefix(&self, other: &[u8]) -> Ordering {
        if self.prefix <= 8 && other.len() >= self.prefix {
            let mask = head_mask(self.prefix);
            return self.prefix_head.cmp(&(head(other) & mask));
        }
        let common = self.prefix.min(other.len());
        self.prefix().cmp(&other[..common])
    }

    /// The records whose short heads equal that of a suffix. An empty range at their position if
    /// there are none.
    #[inline]
    fn same_short_head(&self, wanted: u16) -> Range<usize> {
        let heads: &[[u8; SHORT_HEAD_BYTES]] = self.payload[self.heads_start..].as_chunks().0;
        let low = heads.partition_point(|&head| u16::from_le_bytes(head) < wanted);
        let equal = |&head: &[u8; SHORT_HEAD_BYTES]| u16::from_le_bytes(head) == wanted;
        let rest = &heads[low..];
        // Usually none or one.
        let same = match rest.get(1) {
            Some(second) if equal(second) => rest.partition_point(equal),
            _ => usize::from(rest.first().is_some_and(equal)),
        };
        low..low + same
    }

    /// Prefetches the fields that hold the block's position and counts.
    #[inline]
    pub(crate) fn prefetch(self: &Arc<Self>) {
        let block = Arc::as_ptr(self);
        prefetch(block.wrapping_byte_sub(1).cast());
        prefetch(block.wrapping_add(1).wrapping_byte_sub(1).cast());
    }

    /// Prefetches the record starts and the first records.
    #[inline]
    pub(crate) fn prefetch_ends(&self) {
        prefetch_all(&self.payload[self.records_end..self.heads_start]);
        prefetch_all(&self.payload[..self.payload.len().min(FIRST_BYTES)]);
    }

    /// Prefetches the bytes that a search reads first.
    #[inline]
    pub fn prefetch_search(&self) {
        prefetch_all(&self.payload[self.records_end..]);
    }

    /// The number of keys below a key: `Ok` if the block has the key, otherwise `Err`. Logarithmic.
    /// Copies nothing.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match self.compare_prefix(key) {
            Ordering::Less => return Err(self.len()),
            Ordering::Greater => return Err(0),
            Ordering::Equal => {}
        }
        let suffix = &key[self.prefix..];
        let wanted = head(suffix);
        let Range {
            start: mut low,
            end: mut high,
        } = self.same_short_head(short_head(wanted));
        high -= usize::from(mutant::active("block-search-skips-last") && high > low + 1);
        while low < high {
            let middle = low.midpoint(high);
            let (from, to) = self.suffix_range(middle);
            // Different heads compare like the strings. Equal heads decide nothing.
            let order = match self.head_at(from, to).cmp(&wanted) {
                Ordering::Equal => self.payload[from..to].cmp(suffix),
                unequal => unequal,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Prefetches the first bytes of a record, if there is such a record.
    #[inline]
    pub fn prefetch_record(&self, index: usize) {
        if let Some(start) = self.starts().get(index) {
            let start = self.prefix + usize::from(u16::from_le_bytes(*start));
            prefetch(self.payload.as_ptr().wrapping_add(start));
        }
    }

    /// Decodes a record once: its key suffix and its message.
    #[inline]
    #[must_use]
    pub fn entry(&self, index: usize) -> Entry<'_> {
        let (kind, suffix, value, end) = self.record(index);
        Entry {
            suffix: &self.payload[suffix..value],
            place: EntryPlace {
                behind_key: value..end,
                kind,
            },
        }
    }

    /// Decodes a record once: its position, and the [head](crate::heads::head) of its key.
    #[inline(always)]
    #[must_use]
    pub fn look(&self, index: usize) -> (RecordPlace, u64) {
        let place = self.record_place(index);
        (place, self.head_of(place))
    }

    #[inline(always)]
    fn record_place(&self, index: usize) -> RecordPlace {
        let at = self.records_end + index * START_BYTES;
        // Two adjacent starts and a short suffix: nearly all records.
        if index + 1 < self.len()
            && let Some([a, b, c, d]) = self.payload.get(at..).and_then(<[u8]>::first_chunk)
            && let start = self.prefix + usize::from(u16::from_le_bytes([*a, *b]))
            && let Some(&tag) = self.payload.get(start)
            && tag < 0x80
        {
            // Most callers read this record next, and then look at the following one.
            for line in [64, 128] {
                prefetch(self.payload.as_ptr().wrapping_add(start + line));
            }
            let suffix = start as u32 + 1;
            return RecordPlace {
                suffix,
                value: suffix + u32::from(tag >> KIND_BITS),
                end: self.prefix as u32 + u32::from(u16::from_le_bytes([*c, *d])),
                kind: tag & KIND_MASK,
            };
        }
        self.any_record_place(index)
    }

    #[inline(never)]
    fn any_record_place(&self, index: usize) -> RecordPlace {
        let (kind, suffix, value, end) = self.record(index);
        // The header stores the payload's length in 32 bits.
        RecordPlace {
            suffix: suffix as u32,
            value: value as u32,
            end: end as u32,
            kind,
        }
    }

    /// The head of a record's key.
    #[inline(always)]
    fn head_of(&self, place: RecordPlace) -> u64 {
        if self.prefix >= 8 {
            return self.prefix_head;
        }
        let suffix = place.suffix();
        // The shift removes the bytes behind the suffix.
        if suffix.len() + self.prefix >= 8
            && let Some(eight) = self
                .payload
                .get(suffix.start..)
                .and_then(<[u8]>::first_chunk)
        {
            return self.prefix_head | u64::from_be_bytes(*eight) >> (8 * self.prefix);
        }
        self.any_head_of(place)
    }

    #[inline(never)]
    fn any_head_of(&self, place: RecordPlace) -> u64 {
        let suffix = place.suffix();
        self.prefix_head | self.head_at(suffix.start, suffix.end) >> (8 * self.prefix)
    }

    /// Borrows a record: its key and its value, which is empty for a delete. Assembles the key in
    /// `key` unless the block holds the whole key.
    #[inline]
    #[must_use]
    pub fn lend<'a>(&'a self, index: usize, key: &'a mut KeyMemory) -> (&'a [u8], &'a [u8]) {
        let place = self.record_place(index);
        let (suffix, value) = (&self.payload[place.suffix()], &self.payload[place.value()]);
        if self.prefix == 0 {
            return (suffix, value);
        }
        // Assemble a short key as a number. Two copies of unknown length cost several times as
        // much.
        let bytes = self.prefix + suffix.len();
        if bytes <= key.word.len() {
            key.word = self.head_of(place).to_be_bytes();
            return (&key.word[..bytes], value);
        }
        key.long.clear();
        key.long.extend_from_slice(self.prefix());
        key.long.extend_from_slice(suffix);
        (&key.long, value)
    }

    /// The first eight bytes of the common prefix, padded with zeros.
    #[inline]
    #[must_use]
    pub fn prefix_word(&self) -> [u8; 8] {
        self.prefix_head.to_be_bytes()
    }

    /// The message of a record.
    #[inline]
    #[must_use]
    pub fn message(&self, index: usize) -> Message<'_> {
        let (kind, _, behind_key, end) = self.record(index);
        message_of(kind, &self.payload[behind_key..end])
    }

    /// What an entry of this block says.
    #[inline]
    #[must_use]
    pub fn message_of(&self, entry: &EntryPlace) -> Message<'_> {
        message_of(entry.kind, &self.payload[entry.behind_key.clone()])
    }

    /// What a record says, by its place in this block.
    #[must_use]
    pub fn message_at(&self, place: RecordPlace) -> Message<'_> {
        message_of(place.kind, &self.payload[place.value()])
    }

    /// The kind of a record.
    #[inline]
    #[must_use]
    pub fn kind(&self, index: usize) -> MessageKind {
        match self.record(index) {
            (KIND_PUT, ..) => MessageKind::Put,
            (KIND_DELETE, ..) => MessageKind::Delete,
            _ => self.message(index).kind(),
        }
    }

    /// Where a put's value lies in [`Block::bytes`]; empty for a delete. What an extended record
    /// has behind its key.
    #[inline]
    #[must_use]
    pub fn value_range(&self, index: usize) -> Range<usize> {
        let (_, _, value, end) = self.record(index);
        value..end
    }

    /// A record's value as a slice; empty for a delete. The slice shares the block's memory if the
    /// block has an allocation of its own and the value is at least half of it. The block's memory
    /// then lives as long as the slice. Otherwise the value is copied.
    #[must_use]
    pub fn value_slice(self: &Arc<Self>, index: usize) -> Slice {
        self.slice(self.value_range(index))
    }

    /// As [`Block::value_slice`], for a put; the kind of another record.
    #[inline(always)] // each lookup
    pub fn put_slice(self: &Arc<Self>, index: usize) -> Result<Slice, MessageKind> {
        match self.record(index) {
            (KIND_PUT, _, value, end) => Ok(self.slice(value..end)),
            _ => Err(self.kind(index)),
        }
    }

    fn slice(self: &Arc<Self>, range: Range<usize>) -> Slice {
        struct Shared(Arc<Block>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                self.0.bytes()
            }
        }
        // A slab holds many blocks: a slice would keep all of it.
        if range.len() * 2 < self.bytes().len() || self.payload.is_in_slab() {
            Slice::copy(&self.payload[range])
        } else {
            Slice::from_owner(Shared(self.clone())).sub(range)
        }
    }

    /// The decompressed payload, which contains the values.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.payload[..self.heads_start]
    }

    /// The payload and the short heads behind it.
    pub(crate) fn payload(&self) -> &Piece {
        &self.payload
    }

    /// A copy with its payload in `memory`, which has the same length.
    pub(crate) fn copied_to(&self, mut memory: Piece) -> Block {
        memory.copy_from_slice(&self.payload);
        Block {
            payload: memory,
            ..*self
        }
    }
}

/// Memory for a key that [`Block::lend`] assembles.
#[derive(Debug, Default)]
pub struct KeyMemory {
    word: [u8; 8],
    long: Vec<u8>,
}

/// What a record says, from the kind in its tag and the bytes behind its key. All records of a
/// block are proven to be messages.
#[inline]
fn message_of(kind: u8, behind_key: &[u8]) -> Message<'_> {
    match kind {
        KIND_PUT => Message::Put(behind_key),
        KIND_DELETE => Message::Delete,
        _ => proven_message(behind_key),
    }
}

#[cold]
fn proven_message(behind_key: &[u8]) -> Message<'_> {
    match extended_message(behind_key) {
        Some(message) => message,
        // `AnyBlock::executable` refuses such a block.
        None => unreachable!("decoding proved the record"),
    }
}

/// A record of a block, as [`Block::entry`] decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key's bytes behind the block's prefix.
    pub suffix: &'a [u8],
    /// What it says, for [`Block::message_of`].
    pub place: EntryPlace,
}

/// The kind of a record, and where it has what its kind needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPlace {
    behind_key: Range<usize>,
    kind: u8,
}

/// A record's position in [`Block::bytes`], as [`Block::look`] decodes it. The value follows the
/// key suffix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPlace {
    suffix: u32,
    value: u32,
    end: u32,
    kind: u8,
}

impl RecordPlace {
    /// Whether the record is a plain put.
    #[inline]
    #[must_use]
    pub fn is_put(self) -> bool {
        self.kind == KIND_PUT
    }

    /// Whether the record says that the key has no value.
    #[inline]
    #[must_use]
    pub fn is_delete(self) -> bool {
        self.kind == KIND_DELETE
    }

    /// What the key has behind the block's prefix.
    #[inline]
    #[must_use]
    pub fn suffix(self) -> Range<usize> {
        self.suffix as usize..self.value as usize
    }

    /// The value; empty for a delete.
    #[inline]
    #[must_use]
    pub fn value(self) -> Range<usize> {
        self.value as usize..self.end as usize
    }

    /// Key suffix and value.
    #[inline]
    #[must_use]
    pub fn suffix_and_value(self) -> Range<usize> {
        self.suffix as usize..self.end as usize
    }
}

/// The first two bytes of a head. If they differ, they compare like the heads.
#[inline]
fn short_head(head: u64) -> u16 {
    (head >> 48) as u16
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
