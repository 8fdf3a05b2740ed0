//! A block is the unit of a point read: sorted records that can be read, checked and searched
//! without anything else.
//!
//! `docs/FORMAT.md` shows the bytes in the section "Block". Only [`BlockBuilder`] encodes them, and
//! only [`Block`] decodes them. The CRC32C of a block starts from the page id and the number of the
//! block in its group. Page ids are never used twice, so a stale or misplaced block is refused.
//!
//! A record costs three bytes besides its key suffix and value. A tag of one byte holds the suffix
//! length and the kind, and an array at the end holds the record's start in two bytes. The value
//! ends where the next record starts, so its length is not stored. A lookup is a binary search over
//! the array and decodes no neighbours.
//!
//! A [`Record`] is any record of the format. A [`terrapin_base::Message`] is a record that this
//! version executes. [`AnyBlock`] decodes all records; [`Block`] refuses records that are no
//! message.

mod any;
mod build;
mod codec;
mod decode;
mod format;
mod record;

pub use any::AnyBlock;
pub use build::{BlockBuilder, CutBlock, seal_block};
pub use codec::{Compression, Compressor, decompress};
pub use decode::{Block, Entry, EntryPlace, KeyMemory, RecordPlace};
pub(crate) use format::stored_block_bytes;
pub use format::{
    BLOCK_HEADER_BYTES, PART_FILTER, PART_FOOTER, PART_INDEX, PART_MAPLET, TARGET_BYTES_MAX,
    UNIT_BYTES_MAX, UNIT_BYTES_MIN, is_unit, part_seed,
};
pub use record::{Record, RecordKind};

/// Length of the common prefix of two strings, in bytes.
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
