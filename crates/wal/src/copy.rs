//! Recovery's first write: copies accepted records that may not be durable into segments.
//!
//! A readable segment need not be on stable storage. The kernel reports a failed sync once, and the
//! bytes stay readable until a power cut. So recovery copies what a segment holds above the last
//! mark into a new segment of the same life. The new segment begins at the mark, and its bytes
//! count from there on ([`crate::chain`]). It gets its name only after its content is synced, so a
//! kill in between loses nothing.
//!
//! If a segment holds nothing above the last mark, recovery writes the ring's records into the
//! segment behind the mark. A block below the mark may have been synced. Recovery rewrites such a
//! block only if the block is damaged and the ring still has its records.

use terrapin_base::sync::Arc;
use terrapin_base::{Error, Result, mutant};
use terrapin_disk::{AlignedBuf, File};

use crate::format::{
    BLOCK_BYTES, LifeId, SegmentHeader, block_down, block_up, branch_link, next_number,
};
use crate::segments::{Segments, Spare};
use crate::stream::{Life, Piece, Stream};

/// Most bytes that the copier collects before it writes them.
const CHUNK_BYTES: usize = 1 << 20;

/// The file that the copier writes to.
enum Target {
    /// A segment that existed before this recovery.
    Found(Arc<dyn File>),
    /// A spare that becomes a segment when it is full or the copy is complete.
    Fresh(Spare),
}

impl Target {
    fn file(&self) -> &dyn File {
        match self {
            Target::Found(file) => &**file,
            Target::Fresh(spare) => spare.file(),
        }
    }
}

/// Writes on in a life's last segment, or in new ones behind it.
pub(crate) struct Copier<'a> {
    segments: &'a Segments,
    database_id: u64,
    life_id: LifeId,
    target: Target,
    /// The segment that `target` is or becomes.
    piece: Piece,
    /// Existing segments behind `piece`, the next one last.
    found: Vec<Piece>,
    /// Blocks below this LSN were synced. The copier writes such a block only if its content
    /// differs.
    synced: u64,
    /// The segments that this copier added and named.
    added: Vec<Piece>,
    /// LSN of the first byte of `pending`: a block's start.
    at: u64,
    pending: AlignedBuf,
}

impl<'a> Copier<'a> {
    /// Continues with the block of `from` in the existing segment that contains it.
    pub(crate) fn behind(
        segments: &'a Segments,
        database_id: u64,
        life: &Life,
        from: u64,
        synced: u64,
    ) -> Result<Self> {
        let at = block_down(from);
        let mut found: Vec<Piece> = life.pieces.iter().rev().copied().collect();
        while found.len() > 1 && found.last().is_some_and(|piece| piece.end() <= at) {
            found.pop();
        }
        let Some(piece) = found.pop() else {
            return Err(Error::internal("a life without segments"));
        };
        let file = segments.open_for_writing(piece.number)?;
        Ok(Copier {
            segments,
            database_id,
            life_id: life.life_id,
            target: Target::Found(file),
            piece,
            found,
            synced,
            added: Vec::new(),
            at: at.max(piece.start),
            pending: AlignedBuf::new(),
        })
    }

    /// Begins a new segment of the life. `piece` gives the number and the start.
    pub(crate) fn beside(
        segments: &'a Segments,
        database_id: u64,
        life: &Life,
        piece: Piece,
        spare: Spare,
    ) -> Self {
        Copier {
            segments,
            database_id,
            life_id: life.life_id,
            target: Target::Fresh(spare),
            piece,
            found: Vec::new(),
            synced: piece.start,
            added: Vec::new(),
            at: piece.start,
            pending: AlignedBuf::new(),
        }
    }

    /// Copies the stream from its position, a record's start, to `end`: a record's end or a block's
    /// start. Skips records before the first block that it writes.
    pub(crate) fn copy(&mut self, stream: &mut Stream, end: u64) -> Result<()> {
        if self.at < stream.position() {
            self.pending
                .extend_from_slice(&stream.bytes_before(self.at)?);
        }
        while stream.position() < end {
            let Some(found) = stream.step()? else {
                return Err(stream.corrupt("a log record changed while it was recovered"));
            };
            let passed = (self.at + self.pending.len() as u64).saturating_sub(found.lsn);
            let passed = passed.min(found.bytes) as usize;
            self.pending
                .extend_from_slice(&stream.bytes(&found)[passed..]);
            self.pending
                .truncate(end.saturating_sub(self.at).min(self.pending.len() as u64) as usize);
            while self.at + self.pending.len() as u64 > self.piece.end() {
                // The record that was added last is the one that reaches across.
                let bound = self.piece.end();
                self.flush(bound)?;
                self.next_segment(found.lsn.min(bound), found.end())?;
            }
            if self.pending.len() >= CHUNK_BYTES {
                self.flush(block_down(self.at + self.pending.len() as u64))?;
            }
        }
        let padded = block_up(self.at + self.pending.len() as u64) - self.at;
        self.pending.resize(padded as usize, 0);
        self.flush(self.at + padded)
    }

    /// Writes the pending bytes below `upto`, a block's start.
    fn flush(&mut self, upto: u64) -> Result<()> {
        let count = (upto - self.at) as usize;
        let offset = BLOCK_BYTES + (self.at - self.piece.start);
        let known = self.synced.saturating_sub(self.at).min(count as u64);
        let known = block_down(known) as usize;
        let file = self.target.file();
        let mut present = AlignedBuf::zeroed(known);
        file.read_at(&mut present, offset)?;
        let block = BLOCK_BYTES as usize;
        for at in (0..known).step_by(block) {
            let wanted = &self.pending[at..at + block];
            if present[at..at + block] != *wanted {
                file.write_at(wanted, offset + at as u64)?;
            }
        }
        if known < count {
            file.write_at(&self.pending[known..count], offset + known as u64)?;
        }
        let rest = AlignedBuf::from(&self.pending[count..]);
        self.pending = rest;
        self.at = upto;
        Ok(())
    }

    /// Settles the full segment and continues in the next one. `start` and `end` are those of the
    /// record that reaches across the segment's end, or begins there.
    fn next_segment(&mut self, start: u64, end: u64) -> Result<()> {
        // Settle the older segment first: a header may report only what was synced before it.
        self.settle(start)?;
        if let Some(next) = self.found.pop() {
            self.target = Target::Found(self.segments.open_for_writing(next.number)?);
            self.piece = next;
            return Ok(());
        }
        self.piece = Piece {
            number: next_number(self.piece.number)?,
            start: self.at,
            capacity: self.segments.capacity(),
            first: if start < self.at { end } else { self.at },
        };
        self.target = Target::Fresh(self.segments.obtain()?);
        // A new file holds no synced blocks.
        self.synced = self.at;
        Ok(())
    }

    /// Syncs the written bytes. A new segment then gets its header and its name. From then on,
    /// records below `whole_below` are known to be synced.
    fn settle(&mut self, whole_below: u64) -> Result<()> {
        let piece = self.piece;
        let spare = match &self.target {
            Target::Found(_) if mutant::active("copied-ring-unsynced") => return Ok(()),
            Target::Found(file) => return file.sync(),
            Target::Fresh(spare) => spare,
        };
        let header = SegmentHeader {
            database_id: self.database_id,
            number: piece.number,
            incarnation: self.life_id.incarnation,
            start: piece.start,
            previous_end: piece.start,
            whole_below,
            first: piece.first,
            capacity: piece.capacity,
            branch: self.life_id.branch,
            previous_branch: branch_link(self.life_id.branch),
        };
        self.segments.install(spare, &header)?;
        self.added.push(piece);
        Ok(())
    }

    /// Syncs the copy, which ends at `end`. Returns the added segments.
    pub(crate) fn finish(mut self, end: u64) -> Result<Vec<Piece>> {
        self.settle(end)?;
        Ok(self.added)
    }
}
