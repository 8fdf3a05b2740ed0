//! A decoded block of any records that the format has.

use terrapin_base::{PageId, Result, mutant};
use terrapin_disk::Piece;

use super::Block;
use super::format::{KIND_DELETE, KIND_EXTENDED};
use super::record::{Record, RecordKind};

/// A block in memory whose records are checked, of any kind that the format has. This version may
/// not execute some of them, so callers can only read their bytes. [`AnyBlock::executable`] returns
/// the [`Block`].
///
/// ```
/// use terrapin_base::PageId;
/// use terrapin_pages::block::{AnyBlock, BlockBuilder, Compression, Record, RecordKind};
/// let mut builder = BlockBuilder::new(4096, Compression::None);
/// let large = Record { kind: RecordKind::Large, deadline_ms: None, value: b"handle" };
/// assert!(builder.add_record(b"film", large)?);
/// let mut bytes = Vec::new();
/// builder.finish(PageId(7), 0, &mut bytes);
/// let block = AnyBlock::decode(&bytes, PageId(7), 0)?;
/// assert_eq!(block.record(0), large);
/// assert!(block.executable().is_err());
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Debug)]
pub struct AnyBlock(Block);

impl AnyBlock {
    /// Decodes as [`Block::decode`] does, but takes records of every kind.
    ///
    /// # Errors
    ///
    /// Those of [`Block::decode`], except for known kinds of records that this version does not
    /// execute.
    pub fn decode(bytes: &[u8], id: PageId, block_number: u32) -> Result<AnyBlock> {
        Self::decode_into(bytes, id, block_number, |_| None)
            .map_err(|e| e.with("page", id).with("block", block_number))
    }

    /// Like [`AnyBlock::decode`]. The payload goes into the memory that `memory` returns for its
    /// length. Errors do not name page and block.
    pub(super) fn decode_into(
        bytes: &[u8],
        id: PageId,
        block_number: u32,
        memory: impl FnOnce(usize) -> Option<Piece>,
    ) -> Result<AnyBlock> {
        Block::decode_checked(bytes, id, block_number, memory).map(AnyBlock)
    }

    /// The block, if this version executes all its records. O(1) for a block of plain puts and
    /// deletes, otherwise linear.
    ///
    /// # Errors
    ///
    /// Those of [`Record::check`], with the record's number.
    #[inline]
    pub fn executable(self) -> Result<Block> {
        if self.0.has_extended() && !mutant::active("extended-records-read-as-puts") {
            for index in 0..self.0.len() {
                let checked = self.record(index).check();
                checked.map_err(|e| e.with("record", index))?;
            }
        }
        Ok(self.0)
    }

    /// Records in the block: at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces the content of `out` with a key. Panics when there is no such record.
    pub fn key_into(&self, index: usize, out: &mut Vec<u8>) {
        self.0.key_into(index, out);
    }

    /// A record without its key. Panics if there is no such record.
    #[must_use]
    pub fn record(&self, index: usize) -> Record<'_> {
        let (kind, behind_key) = self.0.behind_key(index);
        let kind = match kind {
            KIND_EXTENDED => match Record::decode_extended(behind_key) {
                Ok(record) => return record,
                Err(_) => unreachable!("decoding proved the record"),
            },
            KIND_DELETE => RecordKind::Delete,
            _ => RecordKind::Put,
        };
        Record {
            kind,
            deadline_ms: None,
            value: behind_key,
        }
    }
}
