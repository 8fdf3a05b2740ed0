//! Copies a log as a closed one: an open of the copy needs no ring and repeats no write.
//!
//! The copy has one segment for each life, from the first record that is needed. Records keep their
//! LSNs and bytes. A closing record and a mark follow the last record, so recovery knows all of
//! the copy to be synced.

use terrapin_base::sync::Arc;
use terrapin_base::{Error, Result, mutant};
use terrapin_disk::{AlignedBuf, File};

use crate::format::{
    BLOCK_BYTES, KIND_CLOSE, KIND_FILLER, KIND_MARK, LifeId, SegmentHeader, block_down, block_up,
    branch_link, encode_mark, filler_bytes, segment_name,
};
use crate::recovery::Recovery;
use crate::stream::{Life, Stream};

/// Bytes that are collected before a write.
const CHUNK_BYTES: usize = 1 << 20;

/// One segment of the copy.
struct Writer {
    file: Arc<dyn File>,
    /// LSN of the segment's first byte.
    start: u64,
    /// LSN of the first byte of `pending`: a block's start.
    at: u64,
    pending: AlignedBuf,
}

impl Writer {
    fn position(&self) -> u64 {
        self.at + self.pending.len() as u64
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.extend_from_slice(bytes);
        match self.pending.len() < CHUNK_BYTES {
            true => Ok(()),
            false => self.flush(block_down(self.position())),
        }
    }

    /// Writes the pending bytes below `upto`, a block's start.
    fn flush(&mut self, upto: u64) -> Result<()> {
        let count = upto.saturating_sub(self.at) as usize;
        if count == 0 {
            return Ok(());
        }
        self.file
            .write_at(&self.pending[..count], BLOCK_BYTES + (self.at - self.start))?;
        self.pending = AlignedBuf::from(&self.pending[count..]);
        self.at = upto;
        Ok(())
    }

    /// Adds a closing record, unless the life has one, and a mark behind it. Returns the LSN that
    /// the mark names.
    fn close(&mut self, life_id: &LifeId, has_close: bool) -> Result<u64> {
        if !has_close {
            let close = life_id.record(KIND_CLOSE, &[], self.position());
            self.add(&close)?;
        }
        let filler = filler_bytes(self.position());
        if let Some(length) = filler.checked_sub(crate::format::RECORD_HEADER_BYTES) {
            let zeros = vec![0; length as usize];
            let filler = life_id.record(KIND_FILLER, &zeros, self.position());
            self.add(&filler)?;
        }
        let synced = self.position();
        let mark = life_id.record(KIND_MARK, &encode_mark(synced), synced);
        self.add(&mark)?;
        Ok(synced)
    }

    /// Writes the rest and the header, and syncs. Returns the file's bytes.
    fn finish(mut self, header: SegmentHeader) -> Result<u64> {
        let end = block_up(self.position()).max(self.start + BLOCK_BYTES);
        self.pending.resize((end - self.at) as usize, 0);
        self.flush(end)?;
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize);
        let capacity = end - self.start;
        SegmentHeader { capacity, ..header }.encode(&mut block);
        self.file.write_at(&block, 0)?;
        self.file.sync()?;
        Ok(BLOCK_BYTES + capacity)
    }
}

impl Recovery {
    /// Copies the accepted records from the needed LSN on into new segments, as a closed log, and
    /// syncs these. `create` makes a segment's file under the given name. `check` runs after each
    /// written piece; its error ends the copy. Returns the bytes written.
    ///
    /// Errors: those of reading, of the new files, and of `create` and `check`.
    pub fn copy_closed(
        &self,
        create: &mut dyn FnMut(&str) -> Result<Arc<dyn File>>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<u64> {
        let mut stream = self.stream(self.replay_from);
        let first = self.replay_from.life;
        let mut before: Option<&Life> = None;
        let mut written = 0;
        let mut lives = (0..).zip(self.chain.lives.iter().skip(first)).peekable();
        while let Some((number, life)) = lives.next() {
            let from = match before {
                None => self.replay_from.position,
                Some(_) => life.start(),
            };
            let start = block_down(from);
            let mut writer = Writer {
                file: create(&segment_name(number))?,
                start,
                at: start,
                pending: AlignedBuf::zeroed((from - start) as usize),
            };
            let is_last = lives.peek().is_none();
            let end = match is_last {
                true => self.end,
                false => life.end.unwrap_or(self.end),
            };
            copy_records(&mut stream, &mut writer, end, check)?;
            let mut whole_below = writer.position();
            if is_last && !mutant::active("backup-log-not-closed") {
                whole_below = writer.close(&life.life_id, self.clean)?;
            }
            let (previous_end, previous_branch) = match before {
                None => (start, life.life_id.branch),
                Some(before) => (before.end.unwrap_or(start), before.life_id.branch),
            };
            written += writer.finish(SegmentHeader {
                database_id: self.options.database_id,
                number,
                incarnation: life.life_id.incarnation,
                start,
                previous_end,
                whole_below,
                first: from,
                capacity: 0,
                branch: life.life_id.branch,
                previous_branch: branch_link(previous_branch),
            })?;
            check()?;
            before = Some(life);
        }
        Ok(written)
    }
}

/// Copies records up to `end`, where a record ends.
fn copy_records(
    stream: &mut Stream,
    writer: &mut Writer,
    end: u64,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut checked = writer.at;
    while writer.position() < end {
        let found = match stream.step()? {
            Some(found) if found.lsn == writer.position() => found,
            _ => return Err(Error::internal("the log changed while it was copied")),
        };
        writer.add(stream.bytes(&found))?;
        if writer.at != checked {
            checked = writer.at;
            check()?;
        }
    }
    Ok(())
}
