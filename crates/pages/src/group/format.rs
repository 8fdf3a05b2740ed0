//! A group's two descriptions of equal content: [`GroupRef`], which its node holds, and [`Footer`],
//! at its own end.

use terrapin_base::checksum::crc32c_append;
use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, PageId, Result, VALUE_BYTES_MAX, mutant};
use terrapin_filter::{partition_bytes, partitions_in};

use crate::block::{PART_FOOTER, UNIT_BYTES_MAX, UNIT_BYTES_MIN, part_seed};

/// Bytes of a footer: the last of a group. In front of it lie zeros that fill the group's last
/// unit.
pub const FOOTER_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"TPGROUP3";
const RESERVED_BYTES: usize = 32;

/// Most records of a group: its index counts them in 32 bits.
const RECORDS_MAX: u64 = u32::MAX as u64;
/// Most key and value bytes of a group: what blocks within 4 GiB can come to, generously. Sums over
/// the groups of a node then stay far from the end of a u64, whatever the node says.
pub const LOGICAL_BYTES_MAX: u64 = 1 << 44;
/// Most key and value bytes of a record.
pub const RECORD_BYTES_MAX: u64 = (KEY_BYTES_MAX + VALUE_BYTES_MAX) as u64;

const _: () = assert!(FOOTER_BYTES == 8 + 3 * 8 + 4 * 4 + 4 * 8 + 3 * 4 + RESERVED_BYTES + 4);
const _: () = assert!(FOOTER_BYTES <= UNIT_BYTES_MIN);

/// Where a group lies and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRef {
    /// Its name.
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
    /// Bytes of the filter: of all its partitions, which are equally long; 0 when there is none.
    pub filter_bytes: u32,
    /// Records, deletes included: at least one.
    pub records: u64,
    /// Deletes.
    pub tombstones: u64,
    /// Key and value bytes of all records.
    pub logical_bytes: u64,
    /// Bytes that its messages hide: see
    /// [`GroupBuilder::add_hiding`](super::GroupBuilder::add_hiding). A leaf hides nothing.
    pub hidden_bytes: u64,
    /// Key and value bytes of its largest record.
    pub record_bytes_max: u32,
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

    /// Appends the reference: twenty to sixty bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for value in [
            self.id.0,
            self.offset,
            self.bytes,
            u64::from(self.index_offset),
            u64::from(self.index_bytes),
            u64::from(self.filter_offset),
            u64::from(self.filter_bytes),
            self.records,
            self.tombstones,
            self.logical_bytes,
            self.hidden_bytes,
            u64::from(self.record_bytes_max),
        ] {
            put_varint(out, value);
        }
    }

    /// Reads what [`GroupRef::encode`] wrote.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] when the bytes end early or no group can be like that.
    pub fn decode(reader: &mut Reader<'_>) -> Result<GroupRef> {
        let id = PageId(reader.varint()?);
        let offset = reader.varint()?;
        let bytes = reader.varint()?;
        let mut places = [0u32; 4];
        for place in &mut places {
            *place = u32::try_from(reader.varint()?)
                .map_err(|_| reader.corrupt("place in group out of bounds"))?;
        }
        let [index_offset, index_bytes, filter_offset, filter_bytes] = places;
        let group = GroupRef {
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
        };
        group.check()?;
        Ok(group)
    }

    /// Whether a group can be like that: parts in order, without gaps, counts that fit each other.
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
            && u64::from(self.record_bytes_max) <= self.logical_bytes.min(RECORD_BYTES_MAX);
        if possible {
            Ok(())
        } else {
            Err(Error::corrupt("impossible page group")
                .with("page", self.id)
                .with("offset", self.offset))
        }
    }
}

/// What stands at a group's end, so that the group can be checked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// What the group's node should say of it.
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
        out.extend_from_slice(&MAGIC);
        for value in [group.id.0, group.offset, group.bytes] {
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
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..out.len()].copy_from_slice(&out);
        let crc = checksum(&bytes, group.id);
        bytes[FOOTER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the footer of a group of which `bytes` are the last: at least [`FOOTER_BYTES`].
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] when this is no footer or is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Footer> {
        let start = bytes
            .len()
            .checked_sub(FOOTER_BYTES)
            .ok_or_else(|| Error::corrupt("group too short"))?;
        let bytes = &bytes[start..];
        let mut reader = Reader::new("group footer", bytes);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(reader.corrupt("no footer"));
        }
        let id = PageId(reader.u64()?);
        if bytes[FOOTER_BYTES - 4..] != checksum(bytes, id).to_le_bytes()
            && !mutant::active("group-checksum-ignored")
        {
            return Err(reader.corrupt("checksum"));
        }
        let group = GroupRef {
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
        };
        group.check()?;
        let footer = Footer {
            group,
            unit: reader.u32()?,
            blocks: reader.u32()?,
        };
        let unit_possible = footer.unit.is_power_of_two()
            && (UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&(footer.unit as usize))
            && group.bytes.is_multiple_of(u64::from(footer.unit));
        if !unit_possible || reader.bytes(RESERVED_BYTES)? != [0; RESERVED_BYTES] {
            return Err(reader.corrupt("impossible fields"));
        }
        Ok(footer)
    }
}

fn checksum(footer: &[u8], id: PageId) -> u32 {
    crc32c_append(part_seed(id, PART_FOOTER), &footer[..FOOTER_BYTES - 4])
}
