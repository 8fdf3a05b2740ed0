//! The full check of one group, for `verify`: everything that its bytes alone can show.

use std::cmp::Ordering;
use terrapin_base::checksum::hash64;
use terrapin_base::{Error, Result};

use terrapin_filter::{check_cells, may_contain, partition_for};

use super::deadlines::Deadlines;
use super::format::{FOOTER_BYTES, Footer, GroupRef};
use super::index::GroupIndex;
use crate::block::Block;

/// The content of a sound group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupReport {
    /// Blocks.
    pub blocks: u64,
    /// Records, deletes included.
    pub records: u64,
    /// Deletes.
    pub tombstones: u64,
    /// Key and value bytes of all records.
    pub logical_bytes: u64,
    /// Bytes that the messages hide, as the index says.
    pub hidden_bytes: u64,
    /// Bytes of the records' values that lie outside of them.
    pub separated_bytes: u64,
    /// Key and value bytes of the largest record.
    pub record_bytes_max: u32,
    /// Bytes of all blocks on disk.
    pub block_bytes: u64,
    /// Bytes of all blocks decompressed, without headers and padding.
    pub payload_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes of the filter.
    pub filter_bytes: u64,
}

/// Checks a whole group. `bytes` are all that the group uses. The check covers every checksum, the
/// footer against the reference, and the order of keys within and across blocks. It compares the
/// index with the blocks, asks the filter for every key, and compares the counts.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] for the first fault, with page and position.
pub fn check_group(bytes: &[u8], group: &GroupRef) -> Result<GroupReport> {
    check(bytes, group).map_err(|e| e.with("page", group.id).with("offset", group.offset))
}

fn check(bytes: &[u8], group: &GroupRef) -> Result<GroupReport> {
    if bytes.len() as u64 != group.bytes {
        return Err(Error::corrupt("group of wrong size")
            .with("bytes", bytes.len())
            .with("expected", group.bytes));
    }
    let footer = Footer::decode(bytes)?;
    if footer.group != *group {
        return Err(Error::corrupt("footer and reference contradict each other"));
    }
    // A footer decodes only if its parts are in order within the group, so these bounds are valid.
    let (blocks, rest) = bytes.split_at(group.index_offset as usize);
    let (index, rest) = rest.split_at(group.index_bytes as usize);
    let (filter, last_unit) = rest.split_at(group.filter_bytes as usize);
    if last_unit[..last_unit.len() - FOOTER_BYTES]
        .iter()
        .any(|&b| b != 0)
    {
        return Err(Error::corrupt("bytes in front of the footer"));
    }
    for (number, partition) in (0..).zip(filter.chunks_exact(group.filter_partition_bytes().max(1)))
    {
        super::check_filter_partition(partition, group.id, number)?;
        check_cells(partition).map_err(|e| e.with("partition", number))?;
    }
    let index = GroupIndex::decode(index, group.id)?;
    if index.blocks_bytes() != group.index_offset
        || index.blocks() as u64 != u64::from(footer.blocks)
        || index.separated_before(index.blocks()) != group.separated_bytes
    {
        return Err(Error::corrupt("index and footer contradict each other"));
    }

    let mut report = GroupReport {
        blocks: index.blocks() as u64,
        hidden_bytes: index.hidden_before(index.blocks()),
        block_bytes: u64::from(group.index_offset),
        index_bytes: u64::from(group.index_bytes),
        filter_bytes: u64::from(group.filter_bytes),
        ..GroupReport::default()
    };
    let mut last_key = None;
    let mut deadlines = Deadlines::default();
    let seen_from_ms = index.deadlines().seen_from_ms();
    for number in 0..index.blocks() {
        let (start, length) = index.block_place(number);
        let block = Block::decode(
            &blocks[start as usize..][..length as usize],
            group.id,
            number as u32,
        )?;
        check_block(&block, number, &index, filter, &mut last_key, &mut report)
            .map_err(|e| e.with("block", number))?;
        for record in (0..block.len()).filter(|_| block.has_extended()) {
            if let Some(deadline_ms) = block.message(record).deadline_ms() {
                deadlines.count(seen_from_ms, deadline_ms);
            }
        }
    }
    if deadlines != index.deadlines() {
        return Err(Error::corrupt("deadlines and index contradict each other"));
    }
    if last_key.as_deref() != Some(index.last_key()) {
        return Err(Error::corrupt("last key and index contradict each other"));
    }
    let counts = (
        report.records,
        report.tombstones,
        report.logical_bytes,
        report.hidden_bytes,
        report.separated_bytes,
        report.record_bytes_max,
    );
    let expected = (
        group.records,
        group.tombstones,
        group.logical_bytes,
        group.hidden_bytes,
        group.separated_bytes,
        group.record_bytes_max,
    );
    if counts != expected {
        return Err(Error::corrupt("group counts")
            .with("records", report.records)
            .with("expected", group.records));
    }
    Ok(report)
}

fn check_block(
    block: &Block,
    number: usize,
    index: &GroupIndex,
    filter: &[u8],
    last_key: &mut Option<Vec<u8>>,
    report: &mut GroupReport,
) -> Result<()> {
    let separator = |key: &[u8]| index.compare_separator(number, key);
    if last_key
        .as_deref()
        .is_some_and(|last| separator(last) != Ordering::Greater)
    {
        return Err(Error::corrupt("separator not above the block before"));
    }
    let mut key = Vec::new();
    for i in 0..block.len() {
        block.key_into(i, &mut key);
        if i == 0
            && (separator(&key) == Ordering::Greater
                || number == 0 && separator(&key) != Ordering::Equal)
        {
            return Err(Error::corrupt(
                "separator and first key contradict each other",
            ));
        }
        if last_key.as_ref().is_some_and(|last| *last >= key) {
            return Err(Error::corrupt("keys do not ascend").with("record", i));
        }
        let hash = hash64(&key);
        if let Some(partition) = partition_for(filter, hash)
            && !may_contain(partition, hash)?
        {
            return Err(Error::corrupt("filter denies a key").with("record", i));
        }
        let message = block.message(i);
        report.records += 1;
        report.tombstones += u64::from(message.is_delete());
        let bytes = key.len() + message.value_bytes();
        report.logical_bytes += bytes as u64;
        report.separated_bytes += message.separated_bytes();
        report.record_bytes_max = report.record_bytes_max.max(bytes as u32);
        last_key.get_or_insert_default().clone_from(&key);
    }
    report.payload_bytes += block.bytes().len() as u64;
    let after = (
        index.records_before(number + 1),
        index.bytes_before(number + 1),
        index.separated_before(number + 1),
    );
    if after != (report.records, report.logical_bytes, report.separated_bytes) {
        return Err(Error::corrupt("index counts").with("records", report.records));
    }
    Ok(())
}
