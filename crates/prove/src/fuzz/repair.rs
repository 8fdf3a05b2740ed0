//! Repairs the checksums of changed bytes, so that a fuzzer reaches what they protect. It is
//! written from docs/FORMAT.md and shares no code with the engine. It leaves bytes alone that are
//! too damaged to find.

use terrapin_base::checksum::{crc32c, crc32c_append};

/// Where pages may start.
const EXTENT_BYTES: usize = 4096;
const SLOT_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
const FOOTER_BYTES: usize = 128;
const VALUE_FOOTER_BYTES: usize = 96;
const VALUE_HEADER_BYTES: usize = 28;
const LARGE_FOOTER_BYTES: usize = 64;
const PARTITION_BYTES_MAX: usize = 4096;
const PART_FILTER: u32 = 1 << 31;
const PART_DIRECTORY: u32 = 0x4000_0000;
const PART_VALUE_FOOTER: u32 = 0x4000_0001;
const PART_LARGE_FOOTER: u32 = 0x4000_0002;
const PART_LARGE_TAIL: u32 = 0x4000_0003;
const PART_FOOTER: u32 = u32::MAX - 1;
const PART_INDEX: u32 = u32::MAX;

/// The bytes of a slice at a place, if it reaches that far.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// A number of four bytes.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// A number of eight bytes.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

fn put(bytes: &mut [u8], at: usize, crc: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// A superblock slot's sector.
pub(super) fn slot(sector: &mut [u8]) {
    if sector.starts_with(b"TERRAPIN") && sector.len() >= SECTOR_BYTES {
        let crc = crc32c(&sector[..SECTOR_BYTES - 4]);
        put(sector, SECTOR_BYTES - 4, crc);
    }
}

/// A page (node or catalog page) that starts here; `false` if there is none.
pub(super) fn page(bytes: &mut [u8]) -> bool {
    let Some(length) = u32_at(bytes, 16).filter(|_| bytes.starts_with(b"TpPg")) else {
        return false;
    };
    let Some(content) = bytes.get(24..).and_then(|rest| rest.get(..length as usize)) else {
        return false;
    };
    let crc = crc32c_append(crc32c(&bytes[..20]), content);
    put(bytes, 20, crc);
    true
}

fn part_seed(id: u64, part: u32) -> u32 {
    crc32c_append(crc32c(&id.to_le_bytes()), &part.to_le_bytes())
}

/// A page group that ends where these bytes end: blocks, index, filter and footer. The index
/// locates its blocks, and the footer's length the group's start. Returns the decompressed size of
/// its compressed blocks.
pub(super) fn group(bytes: &mut [u8]) -> Option<usize> {
    let footer = bytes.len().checked_sub(FOOTER_BYTES)?;
    if !bytes[footer..].starts_with(b"TPGROUP3") {
        return None;
    }
    let id = u64_at(bytes, footer + 8)?;
    let crc = crc32c_append(part_seed(id, PART_FOOTER), &bytes[footer..bytes.len() - 4]);
    let end = bytes.len();
    put(bytes, end - 4, crc);
    let length = usize::try_from(u64_at(bytes, footer + 24)?).ok()?;
    let start = end.checked_sub(length)?;
    let group = &mut bytes[start..];
    let footer = length - FOOTER_BYTES.min(length);
    let place = |at| u32_at(group, footer + at).map(|n| n as usize);
    let (index_at, index_bytes) = (place(32)?, place(36)?);
    let (filter_at, filter_bytes) = (place(40)?, place(44)?);
    if let Some(filter) = group
        .get_mut(filter_at..)
        .and_then(|rest| rest.get_mut(..filter_bytes))
    {
        let partitions = filter_bytes.div_ceil(PARTITION_BYTES_MAX).max(1);
        let each = (filter_bytes / partitions).max(1);
        for (number, partition) in (0..).zip(filter.chunks_exact_mut(each)) {
            self::partition(partition, part_seed(id, PART_FILTER | number));
        }
    }
    let index = group.get_mut(index_at..)?.get_mut(..index_bytes)?;
    let crc = crc32c_append(part_seed(id, PART_INDEX), index.get(4..)?);
    put(index, 0, crc);
    let mut inflated = 0;
    let mut at = 0usize;
    for (number, bytes) in (0..).zip(block_lengths(index)?) {
        let end = at.checked_add(bytes)?;
        let Some(block) = group.get_mut(at..end) else {
            break;
        };
        inflated += self::block(block, part_seed(id, number));
        at = end;
    }
    Some(inflated)
}

/// A value page that ends where these bytes end: footer, directory, and the records that follow one
/// another. Returns the bytes that compressed values say they have.
pub(super) fn value_page(bytes: &mut [u8]) -> usize {
    let Some(footer) = bytes.len().checked_sub(VALUE_FOOTER_BYTES) else {
        return 0;
    };
    if !bytes[footer..].starts_with(b"TPVALUE1") {
        return 0;
    }
    let end = bytes.len();
    let id = u64_at(bytes, footer + 8).unwrap_or(0);
    let crc = crc32c_append(part_seed(id, PART_VALUE_FOOTER), &bytes[footer..end - 4]);
    put(bytes, end - 4, crc);
    let place = |at| u32_at(bytes, footer + at).unwrap_or(0) as usize;
    let length = usize::try_from(u64_at(bytes, footer + 24).unwrap_or(0)).ok();
    let (record_bytes, directory_bytes) = (place(32), place(36));
    let Some(start) = length.and_then(|length| end.checked_sub(length)) else {
        return 0;
    };
    let page = &mut bytes[start..];
    let directory = page
        .get_mut(record_bytes..)
        .and_then(|rest| rest.get_mut(..directory_bytes));
    if let Some(directory) = directory.filter(|directory| directory.len() >= 4) {
        let crc = crc32c_append(part_seed(id, PART_DIRECTORY), &directory[4..]);
        put(directory, 0, crc);
    }
    let records = record_bytes.min(page.len());
    self::records(&mut page[..records])
}

/// A large page: its value in one piece, key, checksums and footer. Returns the footer's checksum.
pub(super) fn large_page(bytes: &mut [u8]) -> Option<u32> {
    let end = bytes.len();
    let footer = end.checked_sub(LARGE_FOOTER_BYTES)?;
    if !bytes[footer..].starts_with(b"TPLARGE1") {
        return None;
    }
    let id = u64_at(bytes, footer + 8)?;
    let length = usize::try_from(u64_at(bytes, footer + 32)?).ok()?;
    let key_bytes = u32_at(bytes, footer + 40)? as usize;
    let checksums = length.saturating_add(key_bytes);
    if length > 0 && checksums <= footer.saturating_sub(4) {
        let crc = crc32c_append(part_seed(id, 0), &bytes[..length]);
        put(bytes, checksums, crc);
        let tail = &bytes[length..checksums + 4];
        let crc = crc32c_append(part_seed(id, PART_LARGE_TAIL), tail);
        put(bytes, footer + 44, crc);
    }
    let crc = crc32c_append(part_seed(id, PART_LARGE_FOOTER), &bytes[footer..end - 4]);
    put(bytes, end - 4, crc);
    Some(crc)
}

/// Records of a value page, one after the other.
fn records(mut rest: &mut [u8]) -> usize {
    let mut inflated = 0;
    while rest.len() >= VALUE_HEADER_BYTES {
        let number = |at| u32_at(rest, at).unwrap_or(0) as usize;
        let (stored, value, key) = (number(16), number(20), number(24) & 0xffff);
        let used = VALUE_HEADER_BYTES + key + stored;
        let Some(body) = rest.get(4..used) else {
            break;
        };
        if body[..VALUE_HEADER_BYTES - 4].iter().all(|&byte| byte == 0) {
            // The padding behind the last record.
            break;
        }
        let crc = crc32c(body);
        put(rest, 0, crc);
        if rest[26] != 0 {
            inflated += value.min(stored * 255);
        }
        let step = used.next_multiple_of(32).min(rest.len());
        rest = &mut rest[step..];
    }
    inflated
}

/// A whole partition of a filter.
pub(super) fn partition(partition: &mut [u8], seed: u32) {
    let Some(body) = partition.len().checked_sub(4) else {
        return;
    };
    let crc = crc32c_append(seed, &partition[..body]);
    put(partition, body, crc);
}

/// A block of a page. Returns its largest decompressed size if it is compressed.
pub(super) fn block_of(bytes: &mut [u8], id: u64, number: u32) -> usize {
    block(bytes, part_seed(id, number))
}

/// A block. Returns its largest decompressed size if it is compressed.
fn block(block: &mut [u8], seed: u32) -> usize {
    if block.len() < 20 {
        return 0;
    }
    let crc = crc32c_append(seed, &block[4..]);
    put(block, 0, crc);
    let number = |at| u32_at(block, at).unwrap_or(0) as usize;
    if block[5] == 0 {
        return 0;
    }
    // Each byte of LZ4's block format stands for at most 255 bytes.
    number(12).min(number(16).min(block.len()) * 255)
}

/// The length of each block in bytes, by the index.
fn block_lengths(index: &[u8]) -> Option<Vec<usize>> {
    let count = u32_at(index, 8)? as usize;
    let mut rest = index.get(12..)?;
    for _ in 0..3 {
        let length = usize::try_from(varint(&mut rest)?).ok()?;
        rest = rest.get(length..)?;
    }
    let (&optional, behind) = rest.split_first()?;
    rest = behind;
    let has_separated_bytes = optional & 1 != 0;
    if has_separated_bytes {
        varint(&mut rest)?;
    }
    if optional & 2 != 0 {
        // Deadlines: a moment and 16 counters.
        for _ in 0..17 {
            varint(&mut rest)?;
        }
    }
    let further = 3 + usize::from(has_separated_bytes);
    let mut lengths = Vec::new();
    for _ in 0..count.min(index.len()) {
        let Some(bytes) = varint(&mut rest) else {
            break;
        };
        for _ in 0..further {
            varint(&mut rest);
        }
        lengths.push(usize::try_from(bytes).ok()?);
    }
    Some(lengths)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A whole data file: both slots, every page where pages may start, every group and value page with
/// a recognizable footer. Returns the decompressed size of compressed blocks and values.
pub fn data_file(bytes: &mut [u8]) -> usize {
    for at in [0, SLOT_BYTES] {
        if let Some(sector) = bytes.get_mut(at..at + SECTOR_BYTES) {
            slot(sector);
        }
    }
    for at in (2 * SLOT_BYTES..bytes.len()).step_by(EXTENT_BYTES) {
        page(&mut bytes[at..]);
    }
    let mut inflated = 0;
    // Footers end on whole units, and no unit is smaller than 512 bytes here.
    for end in (2 * SLOT_BYTES..=bytes.len()).step_by(512) {
        inflated += group(&mut bytes[..end]).unwrap_or(0);
        inflated += value_page(&mut bytes[..end]);
    }
    inflated
}

#[cfg(test)]
mod tests {
    use super::super::{seeds, template};
    use super::*;

    /// The repair shares no code with the engine, so the engine's own files show whether it is
    /// right.
    #[test]
    fn sound_files_stay_and_zeroed_checksums_are_repaired() {
        let data_of = |name| {
            let mut files = template::files(name).into_iter();
            let data = files.find(|file| file.name() == "data");
            data.expect("a data file").content
        };
        for name in ["closed", "separated"] {
            let data = data_of(name);
            let mut repaired = data.clone();
            data_file(&mut repaired);
            let changed = (0..data.len()).find(|&at| repaired[at] != data[at]);
            assert_eq!(changed, None, "the first changed byte of {name}");
        }
        let separated = data_of("separated");
        for (start, bytes) in super::super::values::value_pages(&separated) {
            let sound = &separated[start..start + bytes];
            let mut changed = sound.to_vec();
            let directory = u32_at(sound, bytes - 96 + 32).expect("a footer") as usize;
            for at in [0, directory, bytes - 4] {
                changed[at..at + 4].fill(0);
            }
            value_page(&mut changed);
            assert!(changed == sound, "a value page");
        }
        let data = data_of("closed");
        let mut zeroed = data.clone();
        for at in [508, 4096 + 508] {
            zeroed[at..at + 4].fill(0);
        }
        data_file(&mut zeroed);
        assert_eq!(zeroed, data);
        for (_, input) in seeds::groups() {
            let sound = input[1..].to_vec();
            let mut changed = sound.clone();
            let end = changed.len();
            changed[..4].fill(0);
            changed[end - 4..].fill(0);
            assert_ne!(changed, sound);
            group(&mut changed).expect("a group");
            assert_eq!(changed, sound);
        }
    }
}
