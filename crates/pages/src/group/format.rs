//! Encodes the two descriptions of a group, which have equal content. Its node holds a
//! [`GroupRef`]; the group ends with a [`Footer`]. Also encodes the optional sums of groups and
//! trees.

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::{Error, KEY_BYTES_MAX, PageId, Result, STACK_BYTES_MAX};
use terrapin_filter::{partition_bytes, partitions_in};

use super::deadlines::Deadlines;
use crate::block::{PART_FOOTER, UNIT_BYTES_MAX, UNIT_BYTES_MIN, is_unit};
use crate::footer::FooterFrame;

/// Bytes of a footer, which ends a group. Zeros in front of it fill the group's last unit.
pub const FOOTER_BYTES: usize = 128;
const FRAME: FooterFrame<FOOTER_BYTES> = FooterFrame {
    name: "group footer",
    magic: *b"TPGROUP3",
    part: PART_FOOTER,
};

/// Most records of a group. The index counts them in 32 bits.
const RECORDS_MAX: u64 = u32::MAX as u64;
/// Most key and value bytes of a group: a generous bound for blocks within 4 GiB. With this limit,
/// sums over the groups of a hostile node cannot overflow a u64.
pub const LOGICAL_BYTES_MAX: u64 = 1 << 44;
/// Most bytes of separated values that a group or a tree can have.
pub const SEPARATED_BYTES_MAX: u64 = 1 << 47;
/// Most key and value bytes of a record.
pub const RECORD_BYTES_MAX: u64 = (KEY_BYTES_MAX + STACK_BYTES_MAX) as u64;

/// Filter kind: cells of a quotient filter.
const FILTER_CELLS: u8 = 0;
/// Filter kind: a list of hashes, which this version does not read.
const FILTER_HASH_LIST: u8 = 2;

/// Bits of the byte in front of optional sums. They say whether separated bytes and deadlines
/// follow.
const HAS_SEPARATED_BYTES: u8 = 1;
const HAS_DEADLINES: u8 = 2;
/// In a reference, the bits from here on hold the filter kind.
const FILTER_SHIFT: u32 = 2;

const _: () = assert!(FOOTER_BYTES <= UNIT_BYTES_MIN);

/// The position and the counts of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRef {
    /// The group's page id.
    pub id: PageId,
    /// Where it starts in the data file, in bytes.
    pub offset: u64,
    /// Bytes in use from there: a multiple of the unit. The extent may be longer.
    pub bytes: u64,
    /// Where the index starts in the group, in bytes.
    pub index_offset: u32,
    /// Bytes of the index: a multiple of the unit.
    pub index_bytes: u32,
    /// Where the filter starts in the group, in bytes.
    pub filter_offset: u32,
    /// Bytes of all partitions of the filter, which are equally long; 0 without a filter.
    pub filter_bytes: u32,
    /// Records, deletes included: at least one.
    pub records: u64,
    /// Deletes.
    pub tombstones: u64,
    /// Key and value bytes of all records.
    pub logical_bytes: u64,
    /// Bytes that the group's messages hide, as
    /// [`GroupBuilder::add_hiding`](super::GroupBuilder::add_hiding) defines them; 0 for a leaf.
    pub hidden_bytes: u64,
    /// Key and value bytes of its largest record.
    pub record_bytes_max: u32,
    /// Bytes of its records' values that lie outside of the group.
    pub separated_bytes: u64,
}

/// Refuses filter kinds that this version does not read.
fn check_filter_kind(kind: u8) -> Result<()> {
    match kind {
        FILTER_CELLS => Ok(()),
        FILTER_HASH_LIST => Err(Error::corrupt(
            "this version does not read lists of hashes in the place of the filter",
        )),
        _ => Err(Error::corrupt("unknown kind of filter").with("kind", kind)),
    }
}

/// Appends optional sums: one byte if there are none.
pub fn encode_optional_sums(separated_bytes: u64, deadlines: &Deadlines, out: &mut Vec<u8>) {
    encode_beside(0, separated_bytes, deadlines, out);
}

/// Like [`encode_optional_sums`], with further bits in the first byte.
fn encode_beside(others: u8, separated_bytes: u64, deadlines: &Deadlines, out: &mut Vec<u8>) {
    let at = out.len();
    out.push(others);
    if separated_bytes > 0 {
        out[at] |= HAS_SEPARATED_BYTES;
        put_varint(out, separated_bytes);
    }
    if !deadlines.is_empty() {
        out[at] |= HAS_DEADLINES;
        put_varint(out, deadlines.seen_from_ms());
        for count in deadlines.counts() {
            put_varint(out, count);
        }
        let (first_ms, last_ms) = deadlines.ends_ms();
        put_varint(out, first_ms);
        put_varint(out, last_ms.saturating_sub(first_ms));
    }
}

/// Decodes optional sums: separated bytes, and deadlines.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] if the bytes end early or are no such sums.
pub fn decode_optional_sums(reader: &mut Reader<'_>) -> Result<(u64, Deadlines)> {
    match decode_beside(reader)? {
        (separated_bytes, deadlines, 0) => Ok((separated_bytes, deadlines)),
        _ => Err(reader.corrupt("unknown sums")),
    }
}

/// Decodes optional sums: separated bytes, deadlines, and the further bits of the first byte.
fn decode_beside(reader: &mut Reader<'_>) -> Result<(u64, Deadlines, u8)> {
    let first = reader.u8()?;
    let mut separated_bytes = 0;
    if first & HAS_SEPARATED_BYTES != 0 {
        separated_bytes = reader.varint()?;
        if !(1..=SEPARATED_BYTES_MAX).contains(&separated_bytes) {
            return Err(reader.corrupt("impossible sum of separated bytes"));
        }
    }
    let mut deadlines = Deadlines::default();
    if first & HAS_DEADLINES != 0 {
        let seen_from_ms = reader.varint()?;
        let mut counts = deadlines.counts();
        for count in &mut counts {
            *count = reader.varint()?;
        }
        let (first_ms, more_ms) = (reader.varint()?, reader.varint()?);
        let last_ms = first_ms.saturating_add(more_ms);
        deadlines = Deadlines::new(seen_from_ms, counts, (first_ms, last_ms));
        let is_in_time = seen_from_ms.max(last_ms) <= DEADLINE_MS_MAX;
        let kept = is_in_time && deadlines.counts() == counts;
        if !kept || deadlines.is_empty() {
            return Err(reader.corrupt("impossible counters of deadlines"));
        }
    }
    let others = first & !(HAS_SEPARATED_BYTES | HAS_DEADLINES);
    Ok((separated_bytes, deadlines, others))
}

impl GroupRef {
    /// Partitions of the filter; 0 when there is none.
    #[inline]
    #[must_use]
    pub fn filter_partitions(&self) -> u32 {
        partitions_in(self.filter_bytes)
    }

    /// Bytes of a filter partition; 0 when there is no filter.
    #[must_use]
    pub fn filter_partition_bytes(&self) -> usize {
        partition_bytes(self.filter_bytes).unwrap_or(0) as usize
    }

    /// Where a filter partition starts in the data file, in bytes.
    #[must_use]
    pub fn filter_partition_offset(&self, partition: u32) -> u64 {
        let before = u64::from(partition) * self.filter_partition_bytes() as u64;
        self.offset + u64::from(self.filter_offset) + before
    }

    /// Appends the reference and the deadlines of the group: 20 to 60 bytes, more with deadlines.
    /// The filter starts where the index ends, so its start is not stored.
    pub fn encode(&self, deadlines: &Deadlines, out: &mut Vec<u8>) {
        for value in [
            self.id.0,
            self.offset,
            self.bytes,
            u64::from(self.index_offset),
            u64::from(self.index_bytes),
            u64::from(self.filter_bytes),
            self.records,
            self.tombstones,
            self.logical_bytes,
            self.hidden_bytes,
            u64::from(self.record_bytes_max),
        ] {
            put_varint(out, value);
        }
        let others = FILTER_CELLS << FILTER_SHIFT;
        encode_beside(others, self.separated_bytes, deadlines, out);
    }

    /// Decodes a reference.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes end early or describe an impossible
    /// group.
    pub fn decode(reader: &mut Reader<'_>) -> Result<(GroupRef, Deadlines)> {
        let id = PageId(reader.varint()?);
        let offset = reader.varint()?;
        let bytes = reader.varint()?;
        let out_of_bounds = |reader: &Reader<'_>| reader.corrupt("place in group out of bounds");
        let mut places = [0u32; 3];
        for place in &mut places {
            *place = u32::try_from(reader.varint()?).map_err(|_| out_of_bounds(reader))?;
        }
        let [index_offset, index_bytes, filter_bytes] = places;
        let filter_offset = index_offset
            .checked_add(index_bytes)
            .ok_or_else(|| out_of_bounds(reader))?;
        let mut group = GroupRef {
            id,
            offset,
            bytes,
            index_offset,
            index_bytes,
            filter_offset,
            filter_bytes,
            records: reader.varint()?,
            tombstones: reader.varint()?,
            logical_bytes: reader.varint()?,
            hidden_bytes: reader.varint()?,
            record_bytes_max: u32::try_from(reader.varint()?)
                .map_err(|_| reader.corrupt("record of impossible length"))?,
            separated_bytes: 0,
        };
        let (separated_bytes, deadlines, others) = decode_beside(reader)?;
        check_filter_kind(others >> FILTER_SHIFT)?;
        group.separated_bytes = separated_bytes;
        group.check()?;
        if deadlines.records() > group.records {
            return Err(reader
                .corrupt("more deadlines than records")
                .with("page", id));
        }
        Ok((group, deadlines))
    }

    /// Whether such a group is possible: parts in order and without gaps, and consistent counts.
    fn check(&self) -> Result<()> {
        let index_end = u64::from(self.index_offset) + u64::from(self.index_bytes);
        let filter_end = u64::from(self.filter_offset) + u64::from(self.filter_bytes);
        let footer = self.bytes.checked_sub(filter_end);
        let possible = self.index_offset > 0
            && self.index_bytes > 0
            && u64::from(self.filter_offset) == index_end
            && (self.filter_bytes == 0 || partition_bytes(self.filter_bytes).is_some())
            && footer.is_some_and(|bytes| {
                (FOOTER_BYTES as u64..=UNIT_BYTES_MAX as u64).contains(&bytes)
            })
            && self.offset.checked_add(self.bytes).is_some()
            && (1..=RECORDS_MAX).contains(&self.records)
            && self.records >= self.tombstones
            && self.logical_bytes <= LOGICAL_BYTES_MAX
            && self.hidden_bytes <= LOGICAL_BYTES_MAX
            && u64::from(self.record_bytes_max) <= self.logical_bytes.min(RECORD_BYTES_MAX)
            && self.separated_bytes <= SEPARATED_BYTES_MAX;
        if possible {
            Ok(())
        } else {
            Err(Error::corrupt("impossible page group")
                .with("page", self.id)
                .with("offset", self.offset))
        }
    }
}

/// The end of a group. It allows a check of the group without its node. Only the index holds
/// deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The reference that the group's node should hold.
    pub group: GroupRef,
    /// Its unit in bytes.
    pub unit: u32,
    /// Its number of blocks.
    pub blocks: u32,
}

impl Footer {
    /// The footer's bytes, checksum included.
    #[must_use]
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let group = &self.group;
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        for value in [group.offset, group.bytes] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for value in [
            group.index_offset,
            group.index_bytes,
            group.filter_offset,
            group.filter_bytes,
        ] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for value in [
            group.records,
            group.tombstones,
            group.logical_bytes,
            group.hidden_bytes,
        ] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for value in [group.record_bytes_max, self.unit, self.blocks] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&group.separated_bytes.to_le_bytes());
        out.push(FILTER_CELLS);
        FRAME.encode(group.id, &out)
    }

    /// Decodes a footer from the last bytes of a group: at least [`FOOTER_BYTES`].
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are damaged or no footer.
    pub fn decode(bytes: &[u8]) -> Result<Footer> {
        let (id, mut reader) = FRAME.decode(bytes)?;
        let mut group = GroupRef {
            id,
            offset: reader.u64()?,
            bytes: reader.u64()?,
            index_offset: reader.u32()?,
            index_bytes: reader.u32()?,
            filter_offset: reader.u32()?,
            filter_bytes: reader.u32()?,
            records: reader.u64()?,
            tombstones: reader.u64()?,
            logical_bytes: reader.u64()?,
            hidden_bytes: reader.u64()?,
            record_bytes_max: reader.u32()?,
            separated_bytes: 0,
        };
        let (unit, blocks) = (reader.u32()?, reader.u32()?);
        group.separated_bytes = reader.u64()?;
        check_filter_kind(reader.u8()?)?;
        group.check()?;
        let footer = Footer {
            group,
            unit,
            blocks,
        };
        if !is_unit(unit) || !group.bytes.is_multiple_of(u64::from(unit)) {
            return Err(reader.corrupt("impossible fields"));
        }
        FRAME.end(reader)?;
        Ok(footer)
    }
}
