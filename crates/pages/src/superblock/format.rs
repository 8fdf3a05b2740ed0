//! The bytes of a superblock slot. All fields are in the first 512 bytes, one sector, so that a
//! slot can hardly tear. Magic, version and checksum keep their offsets in every future format.

use terrapin_base::checksum::crc32c;
use terrapin_base::codec::Reader;
use terrapin_base::{Generation, Incarnation, Result, mutant};
use terrapin_disk::{AlignedBuf, FileIdentity};

use super::{FORMAT_VERSION, GENERATION_MAX, PAGES_START, SLOT_BYTES, SLOTS, Slot, Superblock};
use crate::page::PageRef;

/// First eight bytes of a slot.
pub(crate) const MAGIC: [u8; 8] = *b"TERRAPIN";
/// Bytes of the sector that the checksum ends.
pub(crate) const SECTOR_BYTES: usize = 512;
const CRC_AT: usize = SECTOR_BYTES - size_of::<u32>();
/// Offset of the life that wrote the slot, behind the catalog's root.
const LIFE_AT: usize = 40 + PageRef::BYTES;
/// Bytes in use before the zeros.
const USED_BYTES: usize = LIFE_AT + 4 * size_of::<u64>() + size_of::<u32>();
const _: () = assert!(USED_BYTES <= CRC_AT && SECTOR_BYTES as u64 <= SLOT_BYTES);

impl Superblock {
    /// Both slots, each with this superblock: the bytes of a file below [`PAGES_START`]. For a copy
    /// of the data file that no process has open.
    #[must_use]
    pub fn slots(&self) -> AlignedBuf {
        let mut bytes = AlignedBuf::with_capacity(PAGES_START as usize);
        for slot in 1..=SLOTS {
            bytes.extend_from_slice(&self.encode());
            bytes.resize(slot * SLOT_BYTES as usize, 0);
        }
        bytes
    }

    /// The slot's used sector.
    pub(crate) fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut out = Vec::with_capacity(SECTOR_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.format_version.to_le_bytes());
        out.extend_from_slice(&self.unit.to_le_bytes());
        out.extend_from_slice(&self.database_id.to_le_bytes());
        out.extend_from_slice(&self.generation.0.to_le_bytes());
        out.extend_from_slice(&self.incarnation.0.to_le_bytes());
        out.extend_from_slice(&u32::from(self.catalog.is_some()).to_le_bytes());
        if let Some(catalog) = &self.catalog {
            catalog.encode(&mut out);
        }
        out.resize(LIFE_AT, 0);
        for field in [
            self.branch,
            self.log_branch,
            self.home.inode,
            self.home.birth_ns,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&u32::from(self.closed).to_le_bytes());
        let mut sector = [0; SECTOR_BYTES];
        sector[..out.len()].copy_from_slice(&out);
        let crc = crc32c(&sector[..CRC_AT]);
        sector[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        sector
    }
}

/// Decodes the bytes of a slot. Fewer bytes than a sector are damaged or foreign.
pub(crate) fn decode(bytes: &[u8]) -> Slot {
    if !bytes.starts_with(&MAGIC) {
        return Slot::Foreign;
    }
    parse(bytes).unwrap_or(Slot::Damaged)
}

fn parse(bytes: &[u8]) -> Result<Slot> {
    let mut whole = Reader::new("superblock", bytes);
    let covered = whole.bytes(CRC_AT)?;
    if crc32c(covered) != whole.u32()? && !mutant::active("superblock-checksum-ignored") {
        return Ok(Slot::Damaged);
    }
    let mut reader = Reader::new("superblock", covered);
    reader.bytes(MAGIC.len())?;
    let format_version = reader.u32()?;
    if format_version > FORMAT_VERSION {
        return Ok(Slot::Newer(format_version));
    }
    if (1..FORMAT_VERSION).contains(&format_version) {
        return Ok(Slot::Older(format_version));
    }
    let unit = reader.u32()?;
    let database_id = reader.u64()?;
    let generation = Generation(reader.u64()?);
    let incarnation = Incarnation(reader.u32()?);
    let catalog = match reader.u32()? {
        0 => reader.bytes(PageRef::BYTES).map(|_| None)?,
        1 => Some(PageRef::decode(&mut reader)?),
        _ => return Ok(Slot::Damaged),
    };
    let branch = reader.u64()?;
    let log_branch = reader.u64()?;
    let home = FileIdentity {
        inode: reader.u64()?,
        birth_ns: reader.u64()?,
    };
    let closed = match reader.u32()? {
        0 => false,
        1 => true,
        _ => return Ok(Slot::Damaged),
    };
    let unit_possible = unit.is_power_of_two() && (512..=4096).contains(&unit);
    if format_version == 0 || !unit_possible || generation > GENERATION_MAX {
        return Ok(Slot::Damaged);
    }
    Ok(Slot::Valid(Superblock {
        format_version,
        database_id,
        generation,
        incarnation,
        unit,
        catalog,
        branch,
        log_branch,
        home,
        closed,
    }))
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;

    use super::*;

    fn sample() -> Superblock {
        Superblock {
            format_version: FORMAT_VERSION,
            database_id: 0x1122_3344_5566_7788,
            generation: Generation(0x0102),
            incarnation: Incarnation(3),
            unit: 512,
            catalog: Some(PageRef {
                id: PageId(0x0300_0000_0007),
                offset: 0x2000,
                bytes: 0x200,
            }),
            branch: 0x2122_2324_2526_2728,
            log_branch: 0x3132_3334_3536_3738,
            home: FileIdentity {
                inode: 0x4142,
                birth_ns: 0x5152_5354_5556_5758,
            },
            closed: true,
        }
    }

    #[test]
    fn a_slot_has_the_bytes_of_the_format_document() {
        let sector = sample().encode();
        let hex: Vec<String> = sector.iter().map(|b| format!("{b:02x}")).collect();
        let golden = "54 45 52 52 41 50 49 4e 03 00 00 00 00 02 00 00 \
                      88 77 66 55 44 33 22 11 02 01 00 00 00 00 00 00 \
                      03 00 00 00 01 00 00 00 07 00 00 00 00 03 00 00 \
                      00 20 00 00 00 00 00 00 00 02 00 00 28 27 26 25 \
                      24 23 22 21 38 37 36 35 34 33 32 31 42 41 00 00 \
                      00 00 00 00 58 57 56 55 54 53 52 51 01 00 00 00";
        assert_eq!(hex[..96].join(" "), golden);
        assert!(sector[96..508].iter().all(|&b| b == 0));
        assert_eq!(hex[508..].join(" "), "04 ff 92 82");
    }

    #[test]
    fn slots_round_trip_and_each_flipped_bit_is_noticed() {
        for catalog in [None, sample().catalog] {
            let superblock = Superblock {
                catalog,
                ..sample()
            };
            let good = superblock.encode();
            assert_eq!(decode(&good), Slot::Valid(superblock));
            for i in 0..SECTOR_BYTES {
                for bit in 0..8 {
                    let mut bad = good;
                    bad[i] ^= 1 << bit;
                    let wanted = if i < MAGIC.len() {
                        Slot::Foreign
                    } else {
                        Slot::Damaged
                    };
                    assert_eq!(decode(&bad), wanted, "byte {i} bit {bit}");
                }
            }
        }
        assert_eq!(decode(&[]), Slot::Foreign);
        assert_eq!(decode(&[0; 4096]), Slot::Foreign);
        assert_eq!(decode(b"TERRAPIN"), Slot::Damaged);
    }

    #[test]
    fn another_version_counts_only_with_a_sound_checksum() {
        let of = |format_version| {
            let superblock = Superblock {
                format_version,
                ..sample()
            };
            decode(&superblock.encode())
        };
        assert_eq!(of(FORMAT_VERSION + 1), Slot::Newer(FORMAT_VERSION + 1));
        assert_eq!(of(FORMAT_VERSION - 1), Slot::Older(FORMAT_VERSION - 1));
        assert_eq!(of(0), Slot::Damaged);
        for version in [2, 4] {
            let mut flipped = sample().encode();
            flipped[8] = version;
            assert_eq!(decode(&flipped), Slot::Damaged);
        }
        let absurd = Superblock {
            unit: 700,
            ..sample()
        };
        assert_eq!(decode(&absurd.encode()), Slot::Damaged);
    }

    #[test]
    fn a_slot_with_the_highest_generation_is_damaged() {
        let of = |generation| {
            let generation = Generation(generation);
            decode(
                &Superblock {
                    generation,
                    ..sample()
                }
                .encode(),
            )
        };
        assert!(matches!(of(u64::MAX - 1), Slot::Valid(_)));
        assert_eq!(of(u64::MAX), Slot::Damaged);
    }
}
