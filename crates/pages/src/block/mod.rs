//! A block is the unit of a point read: sorted records that can be read, checked and searched
//! without anything else.
//!
//! Its bytes are those of `docs/FORMAT.md`, section "Block"; they are encoded in [`BlockBuilder`]
//! and decoded in [`Block`], and nowhere else. A block knows whose it is: its CRC32C starts from
//! the page id and the number of the block in its group, so that a stale or misplaced block is
//! refused (page ids are never used twice).
//!
//! A record costs three bytes besides its key suffix and value: a tag that merges the suffix length
//! with the kind, and its start in an array at the end. The value's length is not stored: it ends
//! where the next record starts. So a lookup is a binary search over the array that decodes no
//! neighbours.
//!
//! A [`Record`] is all that the format can say about a key; a [`terrapin_base::Message`] is what
//! this version executes. [`AnyBlock`] decodes records, [`Block`] refuses what is no message.

mod any;
mod build;
mod codec;
mod decode;
mod format;
mod record;

pub use any::AnyBlock;
pub use build::{BlockBuilder, CutBlock, seal_block};
pub use codec::Compression;
pub use decode::{Block, Entry, KeyMemory, RecordPlace};
pub use format::{
    BLOCK_HEADER_BYTES, DEADLINE_MS_MAX, PART_FILTER, PART_FOOTER, PART_INDEX, TARGET_BYTES_MAX,
    UNIT_BYTES_MAX, UNIT_BYTES_MIN, part_seed,
};
pub use record::{Record, RecordKind};

/// Bytes that two strings have in common at their start.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let bytes = a.len().min(b.len());
    let (a, b) = (&a[..bytes], &b[..bytes]);
    let mut at = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        if x != y {
            break;
        }
        at += 8;
    }
    while at < bytes && a[at] == b[at] {
        at += 1;
    }
    at
}
