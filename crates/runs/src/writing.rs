//! A merge of runs on its way into page groups.

use std::sync::Arc;

use terrapin_base::{Budget, Charge, Error, Purpose, Result, mutant};
use terrapin_pages::SpaceClass;
use terrapin_pages::block::TARGET_BYTES_MAX;
use terrapin_pages::group::{GROUP_TARGET_BYTES_MAX, GroupBuilder, GroupOptions};
use terrapin_structure::MergeOptions;

use crate::run::{Key, RunMerge, stream_memory_bytes};

/// A merge that is being written: the caller moves each record from the stream to the builder. The
/// memory of both is charged to the budget.
pub struct Writing {
    /// The records to come.
    pub stream: RunMerge,
    /// The group under construction.
    pub builder: GroupBuilder,
    charge: Charge,
}

impl Writing {
    /// Starts to write a stream.
    #[must_use]
    pub fn new(options: GroupOptions, budget: &Arc<Budget>, stream: RunMerge) -> Self {
        Writing {
            stream,
            builder: GroupBuilder::new(options),
            charge: budget.charge(Purpose::Merge, 0),
        }
    }

    /// Charges the memory that stream and builder take now. Call it after each group.
    pub fn account(&mut self) {
        self.charge
            .resize(self.builder.memory_bytes() as u64 + stream_memory_bytes(&self.stream));
    }
}

/// Checks the sizes of blocks and groups that a merge is to write.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::InvalidArgument`], with the size and its limit.
pub fn check_sizes(options: &MergeOptions, unit: u32) -> Result<()> {
    if !(1..=GROUP_TARGET_BYTES_MAX).contains(&options.group_bytes) {
        return Err(Error::invalid("group_bytes is out of bounds")
            .with("bytes", options.group_bytes)
            .with("limit", GROUP_TARGET_BYTES_MAX));
    }
    if !(unit as usize..=TARGET_BYTES_MAX).contains(&(options.block_bytes as usize)) {
        return Err(Error::invalid("block_bytes is out of bounds")
            .with("bytes", options.block_bytes)
            .with("limit", TARGET_BYTES_MAX));
    }
    Ok(())
}

/// The space that a merge may use: the reserve, while space is short.
#[must_use]
pub fn space_class(options: &MergeOptions) -> SpaceClass {
    match options.space_is_short {
        true => SpaceClass::Reserve,
        false => SpaceClass::Normal,
    }
}

/// The options of the page groups that a merge writes.
#[must_use]
pub fn group_options(options: &MergeOptions, unit: u32) -> GroupOptions {
    GroupOptions {
        target_bytes: options.group_bytes,
        block_bytes: options.block_bytes,
        unit,
        compression: options.compression,
        filter_bits: options.filter_bits,
        now_ms: options.now_ms,
    }
}

/// After this many bytes a task checks the cache standing of the blocks that it replaces again: a
/// few times for each block.
#[must_use]
pub fn look_bytes(options: &MergeOptions) -> u64 {
    u64::from(options.block_bytes) / LOOKS
}

/// Checks of the cache standing for each block's bytes.
const LOOKS: u64 = 8;

/// The shortest key above `before` and at most `key`; `key` must be above `before`.
#[must_use]
pub fn separator(before: &[u8], key: &[u8]) -> Key {
    let common = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    let bytes = common + usize::from(!mutant::active("separator-one-byte-short"));
    key[..bytes.min(key.len())].into()
}
