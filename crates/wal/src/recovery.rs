//! Recovery: what of the log counts, and the beginning of its next life.
//!
//! The order of steps makes recovery idempotent (D6). Scanning writes nothing: accept the prefix
//! from segments and ring under the old incarnation, ending at E, and judge what stands at E: below
//! what the log knows to be synced it is corruption and refused, above it is the torn tail.
//! Beginning writes:
//!
//! 0. the directory is synced, so that what the scan saw of it is true; spares become as large as
//!    segments are now; what does not count of earlier lives, or is not needed any more, goes back
//!    to the file system; and a file is had for step 3, if a smaller one where there is little
//!    space;
//! 1. what is not known to be synced goes into the old life's segments as it is, which are synced,
//!    oldest first: what was taken from the ring (also where a segment's block is damaged), and
//!    what can be read from a segment but may be there for the eye only, because its sync failed;
//! 2. a ring that is missing or has another size is replaced (everything is in segments now);
//! 3. a segment {incarnation + 1, previous end E, start E rounded up to a block} gets its header,
//!    is synced, then named, then the directory is synced. Only from here on is anything different
//!    for the next recovery. Where the life before was empty, the segment takes its only one's
//!    number, and its name at one stroke: opens that fail, or are killed before anybody writes,
//!    leave one such file, however many they are;
//! 4. of the segments before it, what does not count goes back to the file system. (A recovery that
//!    was killed here leaves that to step 0 of the next.)
//!
//! Killed before 3, recovery finds the same E again: from the same files, or from the segments that
//! 1 has synced. Killed after it, the new life is empty, and E stands in its header.
//!
//! Where there is room for one more file only, 1 has used it up and 3 wants it. Then what 1 copied
//! to it is written where it came from, too, and synced; only then does the file lose its name, and
//! is there for 3. At every moment one of both places is durable.

use std::collections::{BTreeSet, VecDeque};

use terrapin_base::sync::Arc;
use terrapin_base::{Env, Error, ErrorKind, Incarnation, Lsn, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, LogRing, OpenOptions, RingOptions};

use crate::chain::{Chain, LogPosition, find_chain};
use crate::copy::Copier;
use crate::format::{
    BLOCK_BYTES, KIND_CLOSE, KIND_FILLER, KIND_MARK, RECORD_KIND_USER_MIN, RING_NAME,
    RING_NEW_NAME, SegmentHeader, block_down, block_up, branch_link, next_number, segment_name,
    segment_number, spare_number,
};
use crate::log::{Beginning, Log};
use crate::options::{LogOptions, RING_BYTES_MIN};
use crate::replay::Replay;
use crate::segments::{SPARES_MIN, Segments, Spare, TrimError, is_absent};
use crate::stream::{Life, Piece, RingFile, Stream};

/// What lies in the directory, before anything is written: found by [`Recovery::scan`], used by
/// [`Recovery::begin`] or [`Recovery::read_only`].
pub struct Recovery {
    env: Env,
    disk: Arc<dyn Disk>,
    options: LogOptions,
    needed_from: u64,
    chain: Chain,
    /// The first record that was read; what lies before it is not needed and may be damaged.
    read_from: LogPosition,
    spares: Vec<u64>,
    ring: Option<RingFile>,
    end: u64,
    clean: bool,
    /// Records below are known to have been synced.
    synced: u64,
    /// The first record that is only in the ring: the first of those that the segments never got,
    /// or one that is damaged there.
    ring_from: Option<u64>,
    /// Where the last record ends that is in the last life's segments.
    in_segments: u64,
    /// Where replay begins.
    replay_from: LogPosition,
    replay_records: u64,
}

impl Recovery {
    /// Reads segment headers, then every record from the segment on that `needed_from` lies in, and
    /// decides where the log ends. Writes nothing.
    ///
    /// Errors: [`ErrorKind::Corrupt`] for damage below what was synced (naming file and offset),
    /// for a log of another database, for one that begins after `needed_from` or ends before it
    /// (D3), and for a ring that is missing though the log does not end in a clean close;
    /// [`ErrorKind::NotFound`] when there is no segment at all; [`ErrorKind::NewerFormat`].
    pub fn scan(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: LogOptions,
        needed_from: Lsn,
    ) -> Result<Recovery> {
        let options = options.check()?;
        let names = disk.list()?;
        let numbers: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
        let (headers, lengths) = read_headers(disk, &numbers, options.database_id)?;
        check_branch(&headers, &options)?;
        let mut chain = find_chain(headers)?;
        chain.check_lengths(&lengths)?;
        let Some(start) = chain.start_for(needed_from.0) else {
            let oldest = chain.kept().front().map_or(0, |segment| segment.number);
            return Err(
                Error::corrupt("the log begins after what the database needs of it")
                    .with("file", segment_name(oldest))
                    .with("first", chain.first)
                    .with("needed", needed_from)
                    .with("directory", disk.describe()),
            );
        };
        let ring = if names.iter().any(|n| n == RING_NAME) {
            Some(open_ring_file(disk)?)
        } else {
            None
        };
        let mut recovery = Recovery {
            env: env.clone(),
            disk: disk.clone(),
            options,
            needed_from: needed_from.0,
            spares: names.iter().filter_map(|n| spare_number(n)).collect(),
            ring,
            end: start.position,
            clean: false,
            read_from: start,
            synced: chain.whole_below,
            ring_from: None,
            in_segments: start.position,
            replay_from: start,
            replay_records: 0,
            chain,
        };
        recovery.accept(start)?;
        Ok(recovery)
    }

    /// Accepts the prefix, then judges what stands behind it.
    fn accept(&mut self, start: LogPosition) -> Result<()> {
        let mut stream = self.stream(start);
        let mut replay_from = None;
        // Where a close ends that nothing follows, and in which life.
        let mut closed: Option<LogPosition> = None;
        while let Some(found) = stream.step()? {
            let (life, position) = (stream.life(), stream.position());
            if let Some(synced) = stream.mark(&found) {
                self.synced = self.synced.max(synced);
            }
            match found.kind {
                KIND_CLOSE => closed = Some(LogPosition { life, position }),
                // Behind a close they only say that it was synced.
                KIND_FILLER | KIND_MARK if closed.is_some_and(|c| c.life == life) => continue,
                KIND_FILLER => {}
                _ => closed = None,
            }
            if found.from_ring {
                self.ring_from.get_or_insert(found.lsn);
            } else {
                self.in_segments = position;
            }
            if found.lsn >= self.needed_from {
                replay_from.get_or_insert(LogPosition {
                    life,
                    position: found.lsn,
                });
                if found.kind >= RECORD_KIND_USER_MIN {
                    self.replay_records += 1;
                }
            }
        }
        // Another life's close says nothing about the last one: its ring may have held records.
        let closed = closed.filter(|c| c.life == stream.life());
        self.clean = closed.is_some();
        self.end = closed.map_or(stream.position(), |c| c.position);
        self.replay_from = replay_from.unwrap_or(LogPosition {
            life: stream.life(),
            position: self.end,
        });
        if !self.clean {
            if self.ring.is_none() {
                return Err(Error::corrupt(
                    "the log's ring is missing, and the log does not end in a clean close",
                )
                .with("file", RING_NAME)
                .with("directory", self.disk.describe()));
            }
            self.synced = self.synced.max(stream.highest_mark()?);
            if self.end < self.synced && !mutant::active("bad-record-below-mark-is-torn-tail") {
                return Err(stream
                    .corrupt("a log record that was synced is damaged")
                    .with("synced below", self.synced));
            }
        }
        // The record that reaches across the last segment's start ends where that says its first
        // one begins.
        if let Some((_, last)) = self.last_piece()
            && self.end > last.start
            && last.first > self.end
        {
            let error = "a log segment's first record begins behind the log's end";
            return Err(Error::corrupt(error)
                .with("file", segment_name(last.number))
                .with("first", last.first)
                .with("end", self.end)
                .with("directory", self.disk.describe()));
        }
        if self.end < self.needed_from {
            return Err(self
                .corrupt_at_end("the log ends before what the database needs of it")
                .with("needed", self.needed_from));
        }
        Ok(())
    }

    fn stream(&self, place: LogPosition) -> Stream {
        let lives = self.chain.lives.clone();
        Stream::new(
            &self.disk,
            lives,
            self.ring.clone(),
            place.life,
            place.position,
        )
    }

    /// Where the accepted log ends.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.end)
    }

    /// Corruption where the accepted log ends, by file and offset.
    #[must_use]
    pub fn corrupt_at_end(&self, message: &'static str) -> Error {
        let life = self.chain.lives.len().saturating_sub(1);
        let place = LogPosition {
            life,
            position: self.end,
        };
        self.stream(place).corrupt(message)
    }

    /// LSN of the oldest record that is there.
    #[must_use]
    pub fn first(&self) -> Lsn {
        Lsn(self.chain.first)
    }

    /// Whether the log ends in a clean close.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.clean
    }

    /// Users' records from the needed LSN on.
    #[must_use]
    pub fn records_to_replay(&self) -> u64 {
        self.replay_records
    }

    /// How many lives have left segments that count, the one that ends here included.
    #[must_use]
    pub fn lives(&self) -> usize {
        self.chain.lives.len()
    }

    /// The life that ends here; [`Recovery::begin`] starts the next one.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        let life = self.chain.lives.last();
        Incarnation(life.map_or(0, |life| life.life_id.incarnation))
    }

    /// The branch of the life that ends here.
    #[must_use]
    pub fn branch(&self) -> u64 {
        self.chain
            .lives
            .last()
            .map_or(0, |life| life.life_id.branch)
    }

    /// Begins the log's next life (this file's head tells the steps) and replays the last one. May
    /// be killed at any step, again and again (D6). Errors leave everything for another try;
    /// [`ErrorKind::NoSpace`] when there is no room for a segment.
    pub fn begin(mut self) -> Result<(Log, Replay)> {
        let Some(last) = self.chain.lives.last() else {
            return Err(Error::internal("a log without a life"));
        };
        let step = u32::from(!mutant::active("recovery-keeps-incarnation"));
        if last.life_id.incarnation >= Incarnation::MAX.0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the database was opened as often as one can be: export it, and import it into a new one",
            )
            .with("lives", last.life_id.incarnation));
        }
        let incarnation = last.life_id.incarnation + step;
        let last_branch = last.life_id.branch;
        let mut segments = Segments::new(
            self.disk.clone(),
            self.options.segment_bytes,
            self.chain.kept(),
        );

        // Names that a killed process changed are seen but perhaps not durable: a spare may only be
        // written once its old name is gone for good, or a power cut would bring that back with
        // another segment's header under it.
        self.disk.sync_directory()?;
        // One that was to be of another size, and was killed before it took the name.
        self.disk.remove(RING_NEW_NAME).or_else(is_absent)?;
        segments.take_over(&self.spares)?;
        let first_of_last = last.pieces.first().map_or(0, |piece| piece.number);
        segments.give_ends_back(first_of_last)?;
        // A checkpoint was committed, and its process died before it trimmed.
        let trimmed = segments.trim(Lsn(self.needed_from));
        trimmed.map_err(TrimError::into_error)?;
        segments.prepare_at_open()?;

        // 1.
        let (number, added) = self.copy_what_is_not_synced(&segments)?;
        if let Some(last) = self.chain.lives.last_mut() {
            added.into_iter().for_each(|piece| last.push(piece));
            last.ends_at(self.end);
        }

        // 2. Before the new life, which is not clean: were it to begin without a ring, it would be
        //    refused.
        let ring = self.make_ring()?;

        // 3.
        let (spare, number) = self.obtain_next(&segments, number)?;
        let start = block_up(self.end);
        let (number, previous_end, previous_branch) = match self.is_empty_life() {
            true => (number, self.chain.previous_end, self.chain.previous_branch),
            false => (next_number(number)?, self.end, branch_link(last_branch)),
        };
        let header = SegmentHeader {
            database_id: self.options.database_id,
            number,
            incarnation,
            start,
            previous_end,
            whole_below: previous_end,
            first: start,
            capacity: segments.capacity(),
            branch: self.options.branch,
            previous_branch,
        };
        let current = segments.install(&spare, &header)?;
        segments.drop_spares(SPARES_MIN)?;
        // 4.
        segments.give_ends_back(number)?;

        self.ring = None;
        let replay = Replay {
            stream: self.stream(self.replay_from),
            needed_from: self.needed_from,
            end: self.end,
        };
        let beginning = Beginning {
            options: self.options,
            incarnation,
            ring,
            segments,
            current,
        };
        Ok((Log::start(&self.env, beginning), replay))
    }

    /// Sees to it that everything below the end is on stable storage; returns the last segment's
    /// number, and the segments that were added.
    fn copy_what_is_not_synced(&self, segments: &Segments) -> Result<(u64, Vec<Piece>)> {
        let Some((life, last)) = self.last_piece() else {
            return Err(Error::internal("a log without a life"));
        };
        // A segment was synced to its end before the next one got its name.
        let synced = block_down(self.synced).max(last.start);
        let id = self.options.database_id;
        let not_known =
            self.in_segments > synced && !mutant::active("readable-segment-counts-as-durable");
        let mut added = Vec::new();
        if let Some(from) = self.ring_from
            && (from < synced || !not_known)
        {
            let end = if not_known { synced } else { self.end };
            let copier = Copier::behind(segments, id, life, from, synced)?;
            added = self.copied(copier, from, end)?;
        }
        // A recovery that was cut short may have seen to all of it, in a segment that does not end
        // with a block.
        if not_known && self.end > self.synced.max(last.start) {
            let (piece, from) = self.piece_beside(life, &last, segments)?;
            let copier = match segments.obtain_for(piece.capacity) {
                Ok(spare) => Copier::beside(segments, id, life, piece, spare),
                // An open must not need space (D10). Files are smaller now than the one that this
                // is in: the same bytes once more in their own place are the next best.
                Err(error) if is_full(&error) && piece.capacity > segments.capacity() => {
                    Copier::behind(segments, id, life, piece.start, piece.start)?
                }
                Err(error) => return Err(error),
            };
            added = self.copied(copier, from, self.end)?;
        }
        let number = added.last().map_or(last.number, |piece| piece.number);
        Ok((number, added))
    }

    /// A file for the next life's first segment, and the number of the segment before it. Where
    /// there is no room for another file, that is the one which this recovery, or one that was cut
    /// short, has copied the log's end to: an open must not need space (D10).
    fn obtain_next(&mut self, segments: &Segments, number: u64) -> Result<(Spare, u64)> {
        match segments.obtain() {
            Err(error) if is_full(&error) => {
                let Some(before) = self.fold_back(segments)? else {
                    return Err(error);
                };
                Ok((segments.obtain()?, before))
            }
            obtained => Ok((obtained?, number)),
        }
    }

    /// Where the last segment took the place of the end of the one before ([`Copier::beside`]),
    /// writes what it holds there and takes its name away, for another to use its file; the number
    /// of the one before. The bytes stay where they were made durable until they are durable in
    /// their old place, too: they may have been so before, and a power cut in the midst of the
    /// writing takes nothing away.
    fn fold_back(&mut self, segments: &Segments) -> Result<Option<u64>> {
        let Some(life) = self.chain.lives.last() else {
            return Ok(None);
        };
        let [earlier @ .., before, last] = &life.pieces[..] else {
            return Ok(None);
        };
        let Some(capacity) = segments.capacity_of(before.number) else {
            return Ok(None);
        };
        let whole = Piece {
            capacity,
            ..*before
        };
        if whole.end() < block_up(self.end) {
            return Ok(None);
        }
        let mut pieces = earlier.to_vec();
        pieces.push(whole);
        let folded = Life {
            pieces,
            ..life.clone()
        };
        let id = self.options.database_id;
        // Of a segment of which no record counts there is nothing to write, nor room for it.
        if self.end > last.start {
            let copier = Copier::behind(segments, id, &folded, last.start, last.start)?;
            self.copied(copier, last.first, self.end)?;
        }
        segments.give_up_last(self.end)?;
        if let Some(last) = self.chain.lives.last_mut() {
            *last = folded;
            last.ends_at(self.end);
        }
        Ok(Some(whole.number))
    }

    /// Copies the last life's records from one on to `end`; the segments that this added.
    fn copied(&self, mut copier: Copier<'_>, from: u64, end: u64) -> Result<Vec<Piece>> {
        let mut stream = self.stream(LogPosition {
            life: self.chain.lives.len() - 1,
            position: from,
        });
        if !mutant::active("ring-not-copied-to-segments") {
            copier.copy(&mut stream, end)?;
        }
        copier.finish(end)
    }

    /// Whether the last life has come to nothing but its first segment's header.
    fn is_empty_life(&self) -> bool {
        let life = self.chain.lives.last();
        life.is_some_and(|life| matches!(life.pieces[..], [only] if only.start == self.end))
    }

    fn last_piece(&self) -> Option<(&Life, Piece)> {
        let life = self.chain.lives.last()?;
        Some((life, *life.pieces.last()?))
    }

    /// A segment for what the last one holds and nobody knows to be synced, and where its records
    /// are to be read from.
    fn piece_beside(&self, life: &Life, last: &Piece, segments: &Segments) -> Result<(Piece, u64)> {
        let marked = self.synced > last.start && self.synced.is_multiple_of(BLOCK_BYTES);
        let (start, first, from) = if marked {
            (self.synced, self.synced, self.synced)
        } else {
            // From the record on that reaches across the segment's start, if it is still there as a
            // whole.
            let across = self.chain.whole_below;
            let is_last = self.read_from.life + 1 == self.chain.lives.len();
            let read_from = match is_last {
                true => self.read_from.position,
                false => life.start(),
            };
            let is_there = read_from <= across && across < last.start;
            let from = if is_there { across } else { last.first };
            (last.start, last.first, from)
        };
        let piece = Piece {
            number: next_number(last.number)?,
            start,
            capacity: segments.capacity().max(block_up(self.in_segments) - start),
            first,
        };
        Ok((piece, from))
    }

    /// Replays without writing anything (D11). The ring's part is read from the ring.
    #[must_use]
    pub fn read_only(mut self) -> Replay {
        if let Some(last) = self.chain.lives.last_mut() {
            last.end = Some(self.end);
        }
        Replay {
            stream: self.stream(self.replay_from),
            needed_from: self.needed_from,
            end: self.end,
        }
    }

    /// Opens the ring; replaces it when it is missing or of another size. The new one takes the
    /// name at one stroke. On a disk that is too full for it the old one serves on, whatever its
    /// size: an open must not need space (D10).
    fn make_ring(&mut self) -> Result<LogRing> {
        let wanted = self.options.ring_bytes;
        let Some(old) = self.ring.take() else {
            return make_ring(&self.disk, wanted);
        };
        if old.bytes != wanted {
            match make_ring(&self.disk, wanted) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    tracing::warn!(%error, "no space for a ring of the size asked for; the old one is kept");
                    self.disk.remove(RING_NEW_NAME).or_else(is_absent)?;
                }
                made => return made,
            }
        }
        let options = RingOptions {
            bytes: old.bytes,
            create: false,
        };
        self.disk.open_ring(RING_NAME, options)
    }
}

fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::NoSpace
}

/// A new ring, durably under its name.
pub(crate) fn make_ring(disk: &Arc<dyn Disk>, bytes: u64) -> Result<LogRing> {
    disk.remove(RING_NEW_NAME).or_else(is_absent)?;
    let ring = disk.open_ring(
        RING_NEW_NAME,
        RingOptions {
            bytes,
            create: true,
        },
    )?;
    disk.rename(RING_NEW_NAME, RING_NAME)?;
    if !mutant::active("directory-unsynced-after-ring-naming") {
        disk.sync_directory()?;
    }
    Ok(ring)
}

fn open_ring_file(disk: &Arc<dyn Disk>) -> Result<RingFile> {
    let file = disk.open(RING_NAME, OpenOptions::default())?;
    let bytes = file.bytes()?;
    if !RingOptions::is_valid_size(bytes) || bytes < RING_BYTES_MIN {
        return Err(Error::corrupt("the log's ring has an impossible size")
            .with("file", RING_NAME)
            .with("bytes", bytes));
    }
    Ok(RingFile { file, bytes })
}

/// The headers of the segments that follow each other without a gap up to the highest number,
/// oldest first, and the lengths of their files.
fn read_headers(
    disk: &Arc<dyn Disk>,
    numbers: &[u64],
    database_id: u64,
) -> Result<(Vec<SegmentHeader>, Vec<u64>)> {
    let numbers: BTreeSet<u64> = numbers.iter().copied().collect();
    let Some(&highest) = numbers.last() else {
        return Err(
            Error::new(ErrorKind::NotFound, "there is no log").with("directory", disk.describe())
        );
    };
    let (mut headers, mut lengths) = (VecDeque::new(), VecDeque::new());
    for (&number, expected) in numbers.iter().rev().zip((0..=highest).rev()) {
        // What lies below a gap was given up: names go away oldest first, and what is needed of the
        // log is checked against its first LSN.
        if number != expected {
            break;
        }
        let (header, bytes) = read_header(disk, number, database_id)?;
        headers.push_front(header);
        lengths.push_front(bytes);
    }
    Ok((headers.into(), lengths.into()))
}

/// The newest segment belongs to the copy of the database that the log's user knows: older ones are
/// judged by it.
fn check_branch(headers: &[SegmentHeader], options: &LogOptions) -> Result<()> {
    match headers.last() {
        Some(newest)
            if !options.known_branches.contains(&newest.branch)
                && !mutant::active("newest-log-branch-unchecked") =>
        {
            let error = "a log segment belongs to another copy of this database than the data file";
            Err(Error::corrupt(error).with("file", segment_name(newest.number)))
        }
        _ => Ok(()),
    }
}

fn read_header(
    disk: &Arc<dyn Disk>,
    number: u64,
    database_id: u64,
) -> Result<(SegmentHeader, u64)> {
    let name = segment_name(number);
    let file = disk.open(
        &name,
        OpenOptions {
            direct: true,
            ..OpenOptions::default()
        },
    )?;
    let bytes = file.bytes()?;
    let in_file = |error: Error| error.with("file", &name).with("offset", 0);
    if bytes < BLOCK_BYTES {
        return Err(in_file(
            Error::corrupt("a log segment is too short for its header").with("bytes", bytes),
        ));
    }
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize);
    file.read_at(&mut block, 0)?;
    let header = SegmentHeader::decode(&block).map_err(in_file)?;
    if header.database_id != database_id {
        return Err(in_file(Error::corrupt(
            "a log segment belongs to another database",
        )));
    }
    if header.number != number {
        return Err(in_file(
            Error::corrupt("a log segment has another's name").with("number", header.number),
        ));
    }
    Ok((header, bytes))
}
