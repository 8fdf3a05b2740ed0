//! The log as one stream of records, joined from segments and ring, for recovery and replay.
//!
//! A record comes from the segments if it is whole there, otherwise from the ring if it is whole
//! there. The drain frees ring space by whole records only, so no record has to be joined from both
//! places. Recovery trusts no byte before its checksum. It allocates no memory for a length that
//! the files could not hold (D8).

use std::ops::Range;

use terrapin_base::sync::Arc;
use terrapin_base::{Error, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions};

use crate::format::{
    BLOCK_BYTES, KIND_CLOSE, LifeId, MARK_BYTES, RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN,
    RING_NAME, RecordHeader, block_down, block_up, decode_mark, decode_mark_in_ring, segment_name,
};
use crate::ring::RingFile;

/// Bytes that one read loads ahead.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// A segment's part of the stream, `[start, start + capacity)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) start: u64,
    /// Bytes of the stream that count in the segment. The next segment's start may end them early.
    pub(crate) capacity: u64,
    /// LSN of the first record that starts in the segment or behind it.
    pub(crate) first: u64,
}

impl Piece {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.capacity
    }
}

/// The counted segments of one life of the log.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The life to which the records' checksums must belong.
    pub(crate) life_id: LifeId,
    /// LSN at which a recovery found this life's end. `None` for the last life until it is scanned.
    pub(crate) end: Option<u64>,
    /// The segments' parts: without gaps, oldest first, never empty.
    pub(crate) pieces: Vec<Piece>,
}

impl Life {
    pub(crate) fn start(&self) -> u64 {
        self.pieces.first().map_or(0, |p| p.start)
    }

    /// Adds the next segment, which may replace the last one's bytes from some block on.
    pub(crate) fn push(&mut self, piece: Piece) {
        if let Some(last) = self.pieces.last_mut() {
            last.capacity = last.capacity.min(piece.start.saturating_sub(last.start));
        }
        self.pieces.push(piece);
    }

    /// Sets the life's end. Bytes of the last segment behind the end's block do not count.
    pub(crate) fn ends_at(&mut self, end: u64) {
        self.end = Some(end);
        if let Some(last) = self.pieces.last_mut() {
            let counts = block_up(end).saturating_sub(last.start);
            last.capacity = last.capacity.min(counts);
        }
    }

    /// LSN at which the life's last segment ends.
    fn limit(&self) -> u64 {
        self.pieces.last().map_or(0, Piece::end)
    }
}

/// Bytes read ahead: `[low, low + buffer)`.
#[derive(Default)]
struct ReadAhead {
    buffer: AlignedBuf,
    low: u64,
}

impl ReadAhead {
    fn holds(&self, lsn: u64, count: u64) -> bool {
        lsn >= self.low && lsn + count <= self.low + self.buffer.len() as u64
    }

    /// Loads `[lsn, lsn + count)` unless it is loaded. `limit`, a block's start, bounds the range.
    fn load(
        &mut self,
        lsn: u64,
        count: u64,
        limit: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        if self.holds(lsn, count) {
            return Ok(());
        }
        let low = block_down(lsn);
        let high = block_up(lsn + count).max(low + READ_AHEAD_BYTES).min(limit);
        // If the read fails, no stale bytes must seem loaded.
        self.buffer.clear();
        self.low = low;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize((high - low) as usize, 0);
        read(low, &mut buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    fn get(&self, lsn: u64, count: u64) -> &[u8] {
        let from = (lsn - self.low) as usize;
        &self.buffer[from..from + count as usize]
    }
}

/// Reads segments by LSN; keeps one file open.
struct SegmentFiles {
    disk: Arc<dyn Disk>,
    open: Option<(u64, Arc<dyn File>)>,
}

impl SegmentFiles {
    fn file(&mut self, number: u64) -> Result<Arc<dyn File>> {
        if let Some((open, file)) = &self.open
            && *open == number
        {
            return Ok(file.clone());
        }
        let options = OpenOptions {
            direct: true,
            ..OpenOptions::default()
        };
        let file = self.disk.open(&segment_name(number), options)?;
        self.open = Some((number, file.clone()));
        Ok(file)
    }

    /// Reads `out` from a life's segments, from `lsn` on.
    fn read(&mut self, life: &Life, mut lsn: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let Some(piece) = life
                .pieces
                .iter()
                .rev()
                .find(|p| p.start <= lsn && lsn < p.end())
            else {
                // A segment that was cut short, or a damaged header.
                let error = "the segments of the log lack bytes that its records reach over";
                return Err(Error::corrupt(error)
                    .with("lsn", lsn)
                    .with("directory", self.disk.describe()));
            };
            let count = (out.len() as u64).min(piece.end() - lsn);
            let (head, tail) = out.split_at_mut(count as usize);
            self.file(piece.number)?
                .read_at(head, BLOCK_BYTES + (lsn - piece.start))?;
            lsn += count;
            out = tail;
        }
        Ok(())
    }
}

/// A valid record. [`Stream::bytes`] returns its bytes until the next step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    pub(crate) lsn: u64,
    pub(crate) kind: u8,
    /// Bytes of the record, its header included.
    pub(crate) bytes: u64,
    pub(crate) from_ring: bool,
}

impl FoundRecord {
    pub(crate) fn end(&self) -> u64 {
        self.lsn + self.bytes
    }
}

/// Reads records one after the other.
pub(crate) struct Stream {
    lives: Vec<Life>,
    life: usize,
    position: u64,
    ring: Option<RingFile>,
    files: SegmentFiles,
    segment_read_ahead: ReadAhead,
    ring_read_ahead: ReadAhead,
    /// The record before the position is only in the ring.
    in_ring: bool,
}

impl Stream {
    /// A stream that begins with the record at `position` in the life with that index. The ring
    /// belongs to the last life.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        lives: Vec<Life>,
        ring: Option<RingFile>,
        life: usize,
        position: u64,
    ) -> Self {
        Stream {
            lives,
            life,
            position,
            ring,
            files: SegmentFiles {
                disk: disk.clone(),
                open: None,
            },
            segment_read_ahead: ReadAhead::default(),
            ring_read_ahead: ReadAhead::default(),
            in_ring: false,
        }
    }

    /// From now on the last life is known to end at an LSN.
    pub(crate) fn end_at(&mut self, lsn: u64) {
        if let Some(last) = self.lives.last_mut() {
            last.end = Some(lsn);
        }
    }

    /// LSN of the next record, or the end.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Index of the life that contains the position.
    pub(crate) fn life(&self) -> usize {
        self.life
    }

    /// Steps over the next record and returns it. Returns `None` at the end of the last life if
    /// that end is known, otherwise at the first position without a valid record. A bad record
    /// before a known end is an error: corruption.
    pub(crate) fn step(&mut self) -> Result<Option<FoundRecord>> {
        loop {
            let Some(life) = self.lives.get(self.life) else {
                return Ok(None);
            };
            if life.end != Some(self.position) {
                break;
            }
            let Some(next) = self.lives.get(self.life + 1) else {
                return Ok(None);
            };
            self.position = next.start();
            self.life += 1;
            // Where recovery cut a torn tail, two lives overlap in LSN. Bytes read ahead of the old
            // life are not the new life's.
            self.segment_read_ahead = ReadAhead::default();
        }
        let Some(found) = self.find()? else {
            return match self.lives[self.life].end {
                Some(_) => Err(self.corrupt("a log record does not match its checksum")),
                None => Ok(None),
            };
        };
        if self.lives[self.life]
            .end
            .is_some_and(|known| found.end() > known)
        {
            return Err(self.corrupt("a log record reaches beyond the log's end"));
        }
        if found.kind > KIND_CLOSE && found.kind < RECORD_KIND_USER_MIN {
            return Err(self
                .corrupt("a log record of an unknown kind")
                .with("kind", found.kind));
        }
        self.position = found.end();
        Ok(Some(found))
    }

    /// The whole record that the last step found.
    pub(crate) fn bytes(&self, found: &FoundRecord) -> &[u8] {
        let read_ahead = if found.from_ring {
            &self.ring_read_ahead
        } else {
            &self.segment_read_ahead
        };
        read_ahead.get(found.lsn, found.bytes)
    }

    /// The synced LSN in the record of the last step, if the record is a mark.
    pub(crate) fn mark(&self, found: &FoundRecord) -> Option<u64> {
        let life_id = self.lives.get(self.life)?.life_id;
        decode_mark(&life_id, found.lsn, self.bytes(found))
    }

    /// The record at the position: from the segments, else from the ring.
    ///
    /// Behind a record that only the ring has, the ring is asked first. What the segment holds
    /// there is often older bytes of a file that is used again. Read as a header, such bytes may
    /// ask for a read and a checksum of all the rest of the segment.
    fn find(&mut self) -> Result<Option<FoundRecord>> {
        if self.in_ring
            && let Some(found) = self.find_in_ring()?
        {
            self.in_ring = !self.is_in_segment(&found)?;
            return Ok(Some(FoundRecord {
                from_ring: self.in_ring,
                ..found
            }));
        }
        let life = &self.lives[self.life];
        let files = &mut self.files;
        let found = find_in(
            &mut self.segment_read_ahead,
            life.life_id,
            self.position,
            life.limit(),
            life.limit(),
            |at, out| files.read(life, at, out),
        )?;
        if found.is_some() || self.life + 1 < self.lives.len() {
            self.in_ring = false;
            return Ok(found);
        }
        // If it was in the ring, the ring has been asked.
        if self.in_ring {
            return Ok(None);
        }
        let found = self.find_in_ring()?;
        self.in_ring = found.is_some();
        Ok(found)
    }

    /// The record at the position, if the ring has it.
    fn find_in_ring(&mut self) -> Result<Option<FoundRecord>> {
        let Some(ring) = &self.ring else {
            return Ok(None);
        };
        let lsn = self.position;
        let limit = block_down(lsn) + ring.bytes;
        let longest = lsn + ring.bytes / 4;
        let found = find_in(
            &mut self.ring_read_ahead,
            self.lives[self.life].life_id,
            lsn,
            limit,
            longest.min(limit),
            |at, out| ring.read(at, out),
        )?;
        Ok(found.map(|found| FoundRecord {
            from_ring: true,
            ..found
        }))
    }

    /// Whether the segments hold the bytes of a record that was found in the ring.
    fn is_in_segment(&mut self, found: &FoundRecord) -> Result<bool> {
        let life = &self.lives[self.life];
        if found.end() > life.limit() {
            return Ok(false);
        }
        let files = &mut self.files;
        self.segment_read_ahead
            .load(found.lsn, found.bytes, life.limit(), |at, out| {
                files.read(life, at, out)
            })?;
        let in_ring = self.ring_read_ahead.get(found.lsn, found.bytes);
        Ok(self.segment_read_ahead.get(found.lsn, found.bytes) == in_ring)
    }

    /// Reads the segments' bytes from `low`, a block's start, up to the position.
    pub(crate) fn bytes_before(&mut self, low: u64) -> Result<Vec<u8>> {
        let mut out = vec![0; self.position.saturating_sub(low) as usize];
        self.files.read(&self.lives[self.life], low, &mut out)?;
        Ok(out)
    }

    /// The highest LSN that a mark reports as synced. Marks are searched at each later block's
    /// start in the last life's segments, and at each block's start in the ring. Marks in the ring
    /// may have LSNs far above the position: the drain had freed the ring up to there, and the
    /// records in between were lost.
    pub(crate) fn highest_mark(&mut self) -> Result<u64> {
        let Some(life) = self.lives.last() else {
            return Ok(0);
        };
        let life_id = life.life_id;
        let mut highest = 0;
        let files = &mut self.files;
        let from = block_up(self.position);
        each_block(
            from..life.limit(),
            |at, out| files.read(life, at, out),
            |lsn, block| highest = highest.max(decode_mark(&life_id, lsn, block).unwrap_or(0)),
        )?;
        if let Some(ring) = &self.ring
            && !mutant::active("ring-marks-ignored")
        {
            each_block(
                0..ring.bytes,
                |at, out| ring.read(at, out),
                |offset, block| {
                    let mark = decode_mark_in_ring(&life_id, ring.bytes, offset, block);
                    highest = highest.max(mark.unwrap_or(0));
                },
            )?;
        }
        Ok(highest)
    }

    /// An error of corruption at the position, with file and offset.
    pub(crate) fn corrupt(&self, message: &'static str) -> Error {
        let lsn = self.position;
        let error = Error::corrupt(message);
        let piece = self.lives.get(self.life).and_then(|life| {
            life.pieces
                .iter()
                .rev()
                .find(|p| p.start <= lsn && lsn < p.end())
        });
        let error = match (piece, &self.ring) {
            (Some(piece), _) => error
                .with("file", segment_name(piece.number))
                .with("offset", BLOCK_BYTES + (lsn - piece.start)),
            (None, Some(ring)) => error
                .with("file", RING_NAME)
                .with("offset", lsn & (ring.bytes - 1)),
            (None, None) => error,
        };
        error
            .with("lsn", lsn)
            .with("directory", self.files.disk.describe())
    }
}

/// The record at `lsn`, if a whole and valid one starts there. Bytes exist below `limit`, a block's
/// start. The record must end by `end_max`.
fn find_in(
    read_ahead: &mut ReadAhead,
    life_id: LifeId,
    lsn: u64,
    limit: u64,
    end_max: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Option<FoundRecord>> {
    if lsn + RECORD_HEADER_BYTES > end_max {
        return Ok(None);
    }
    read_ahead.load(lsn, RECORD_HEADER_BYTES, limit, &mut read)?;
    let Some(header) = RecordHeader::decode(read_ahead.get(lsn, RECORD_HEADER_BYTES)) else {
        return Ok(None);
    };
    let bytes = header.record_bytes();
    if lsn + bytes > end_max {
        return Ok(None);
    }
    read_ahead.load(lsn, bytes, limit, &mut read)?;
    let payload = &read_ahead.get(lsn, bytes)[RECORD_HEADER_BYTES as usize..];
    let valid = life_id.holds(&header, payload, lsn);
    Ok(valid.then_some(FoundRecord {
        lsn,
        kind: header.kind,
        bytes,
        from_ring: false,
    }))
}

/// Reads the blocks of a range and passes the first bytes of each block to `show`.
fn each_block(
    range: Range<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    mut show: impl FnMut(u64, &[u8]),
) -> Result<()> {
    let mut buffer = AlignedBuf::new();
    let mut at = range.start;
    while at < range.end {
        let count = READ_AHEAD_BYTES.min(range.end - at);
        buffer.resize(count as usize, 0);
        read(at, &mut buffer)?;
        let blocks = buffer.chunks(BLOCK_BYTES as usize);
        for (start, block) in (at..).step_by(BLOCK_BYTES as usize).zip(blocks) {
            show(start, &block[..block.len().min(MARK_BYTES as usize)]);
        }
        at += count;
    }
    Ok(())
}
