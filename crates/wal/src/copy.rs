//! Recovery's first write: what was accepted from the ring goes into the old life's segments, as it is.
//!
//! A block that already holds its bytes is left alone: a synced block is never written again, and at the place where segments
//! and ring meet there may be one.

use terrapin_base::sync::Arc;
use terrapin_base::{Error, Result};
use terrapin_disk::{AlignedBuf, File};

use crate::format::{BLOCK_BYTES, SegmentHeader, block_down, block_up};
use crate::segments::Segments;
use crate::stream::{Life, Piece, Stream};

/// Most bytes that are collected before they are written.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes on in a life's segments, and in new ones behind them.
pub(crate) struct Copier<'a> {
    segments: &'a Segments,
    database_id: u64,
    incarnation: u32,
    /// The life's segments: those that were found, then those that were added.
    pieces: Vec<Piece>,
    found: usize,
    /// The one that `file` is.
    index: usize,
    file: Arc<dyn File>,
    /// LSN of `pending`'s first byte, a block's start.
    at: u64,
    pending: AlignedBuf,
    present: AlignedBuf,
}

impl<'a> Copier<'a> {
    /// Opens the segment in which the block of `from` lies, or the last one.
    pub(crate) fn open(
        segments: &'a Segments,
        database_id: u64,
        life: &Life,
        from: Option<u64>,
    ) -> Result<Self> {
        let pieces = life.pieces.clone();
        let at = from.map_or(u64::MAX, block_down);
        let Some(last) = pieces.len().checked_sub(1) else {
            return Err(Error::internal("a life without segments"));
        };
        let index = pieces.iter().position(|p| at < p.end()).unwrap_or(last);
        let file = segments.open_for_writing(pieces[index].number)?;
        Ok(Copier {
            segments,
            database_id,
            incarnation: life.incarnation,
            found: pieces.len(),
            pieces,
            index,
            file,
            at,
            pending: AlignedBuf::new(),
            present: AlignedBuf::new(),
        })
    }

    fn piece(&self) -> &Piece {
        &self.pieces[self.index]
    }

    /// Copies the stream from its position, a record's start in the block that this was opened for, to `end`.
    pub(crate) fn copy(&mut self, stream: &mut Stream, end: u64) -> Result<()> {
        if self.at < stream.position() {
            self.pending.extend_from_slice(&stream.block_before()?);
        }
        while stream.position() < end {
            let Some(found) = stream.step()? else {
                return Err(stream.corrupt("a log record changed while it was recovered"));
            };
            self.pending.extend_from_slice(stream.bytes(&found));
            while self.at + self.pending.len() as u64 > self.piece().end() {
                // The record that was added last is the one that reaches across.
                let bound = self.piece().end();
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

    /// Writes what is pending below `upto`, a block's start.
    fn flush(&mut self, upto: u64) -> Result<()> {
        let count = (upto - self.at) as usize;
        let offset = BLOCK_BYTES + (self.at - self.piece().start);
        self.present.resize(count, 0);
        self.file.read_at(&mut self.present, offset)?;
        let block = BLOCK_BYTES as usize;
        let differs =
            |from: usize| self.present[from..from + block] != self.pending[from..from + block];
        let mut from = 0;
        while from < count {
            let mut to = from + block;
            if differs(from) {
                while to < count && differs(to) {
                    to += block;
                }
                self.file
                    .write_at(&self.pending[from..to], offset + from as u64)?;
            }
            from = to;
        }
        let rest = AlignedBuf::from(&self.pending[count..]);
        self.pending = rest;
        self.at = upto;
        Ok(())
    }

    /// The segment is full; goes on to the next. `start` and `end` are the record's that reaches across its end, or begins there.
    fn next_segment(&mut self, start: u64, end: u64) -> Result<()> {
        // The older first: what a header says was synced before it.
        self.file.sync()?;
        self.index += 1;
        if let Some(piece) = self.pieces.get(self.index) {
            self.file = self.segments.open_for_writing(piece.number)?;
            return Ok(());
        }
        let number = self.pieces[self.index - 1].number;
        let header = SegmentHeader {
            database_id: self.database_id,
            number: number
                .checked_add(1)
                .ok_or_else(|| Error::internal("log segments are numbered to the end"))?,
            incarnation: self.incarnation,
            start: self.at,
            previous_end: self.at,
            whole_below: start,
            first: if start < self.at { end } else { self.at },
            capacity: self.segments.capacity(),
        };
        let spare = self.segments.obtain()?;
        self.file = self.segments.install(spare, &header)?;
        self.pieces.push(Piece {
            number: header.number,
            start: header.start,
            capacity: header.capacity,
            first: header.first,
        });
        Ok(())
    }

    /// Syncs; returns the number of the last segment, and the segments that were added.
    pub(crate) fn finish(mut self) -> Result<(u64, Vec<Piece>)> {
        self.file.sync()?;
        let number = self.pieces.last().map_or(0, |piece| piece.number);
        Ok((number, self.pieces.split_off(self.found)))
    }
}
