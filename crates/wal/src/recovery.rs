//! Recovery: decides which records of the log count, and begins the log's next life.
//!
//! The order of the steps makes recovery idempotent (D6).
//!
//! **The scan** writes nothing. It accepts the longest prefix of records from segments and ring
//! under the old incarnation; that prefix ends at E. Then it judges the bytes at E. Below the LSN
//! that the log knows to be synced, a bad record is corruption, and the scan refuses the log. Above
//! that LSN it is the torn tail.
//!
//! **The beginning** writes:
//!
//! 0. Sync the directory, so that the names which the scan saw are durable. Resize the spares,
//!    return unused ends of earlier lives to the file system, and trim segments that are no longer
//!    needed. Prepare a spare for step 3, a smaller one if there is little space.
//! 1. Copy records that are not known to be synced into segments of the old life, and sync these,
//!    oldest first. Such records are only in the ring (also where a segment's block is damaged), or
//!    are readable in a segment whose sync may have failed.
//! 2. Replace the ring if it is missing or has another size. All records are in segments now.
//! 3. Take a segment {incarnation + 1, previous end E, start E rounded up to a block}: write its
//!    header, sync it, name it, sync the directory. Only from here on does the next recovery find
//!    anything different. If the life before is empty, the new segment replaces that life's only
//!    one, by one rename and with its number. So opens that fail, or are killed before a write,
//!    leave one such file in total.
//! 4. Return the unused ends of earlier segments to the file system. After a kill here, step 0 of
//!    the next recovery does this.
//!
//! After a kill before step 3, recovery finds the same E again, in the same files or in the
//! segments of step 1. After a kill behind step 3, the new life is empty and its header holds E.
//!
//! If the disk has room for only one more file, step 1 uses it and step 3 needs one too. Then
//! recovery writes what step 1 copied to its old place as well, and syncs that. Only then does the
//! file lose its name and become the file of step 3. So at every moment one of the two copies is
//! durable.
//!
//! One case needs more room than the reserve has: the ring's records do not fit the last segment.
//! Step 1 then needs the one spare for good, and step 3 another file. Without room for it, the open
//! fails with `NoSpace` and takes nothing. It succeeds once there is room.

use std::ops::ControlFlow;

use terrapin_base::sync::Arc;
use terrapin_base::{Env, Error, ErrorKind, Incarnation, Lsn, Result, mutant};
use terrapin_disk::Disk;

use crate::chain::{Chain, LogPosition, find_chain};
use crate::copy::Copier;
use crate::format::{
    BLOCK_BYTES, KIND_CLOSE, KIND_FILLER, KIND_MARK, RECORD_KIND_USER_MIN, RING_NAME,
    RING_NEW_NAME, SegmentHeader, block_down, block_up, branch_link, next_number, segment_name,
    segment_number, spare_number,
};
use crate::headers::{check_branch, read_headers};
use crate::log::{Beginning, Log};
use crate::options::LogOptions;
use crate::replay::{Record, Replay};
use crate::ring::{RingFile, copy_ring_file, open_or_make_ring, open_ring_file};
use crate::segments::{SPARES_MIN, Segments, Spare, TrimError, is_absent};
use crate::stream::{Life, Piece, Stream};

/// The result of a scan of the log's directory, before recovery writes anything. [`Recovery::scan`]
/// returns it; [`Recovery::begin`] or [`Recovery::read_only`] consumes it.
pub struct Recovery {
    env: Env,
    disk: Arc<dyn Disk>,
    pub(crate) options: LogOptions,
    needed_from: u64,
    pub(crate) chain: Chain,
    /// Position of the first record that the scan read. Bytes before it are not needed and may be
    /// damaged.
    read_from: LogPosition,
    spares: Vec<u64>,
    ring: Option<RingFile>,
    pub(crate) end: u64,
    pub(crate) clean: bool,
    /// Records below this LSN are known to be synced.
    synced: u64,
    /// LSN of the first record that is only in the ring. Either the segments never received it, or
    /// its copy there is damaged.
    ring_from: Option<u64>,
    /// End of the last record that is in the last life's segments.
    in_segments: u64,
    /// The position at which replay begins.
    pub(crate) replay_from: LogPosition,
    replay_records: u64,
}

impl Recovery {
    /// Reads all segment headers, then all records from the segment that contains `needed_from` on,
    /// and finds the log's end. Writes nothing.
    ///
    /// Errors:
    ///
    /// - [`ErrorKind::Corrupt`]: damage below the synced LSN (with file and offset); a log of
    ///   another database; a log that begins after `needed_from` or ends before it (D3); a missing
    ///   ring, if the log does not end in a clean close;
    /// - [`ErrorKind::NotFound`]: there is no segment;
    /// - [`ErrorKind::NewerFormat`]: a newer version wrote the log.
    pub fn scan(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: LogOptions,
        needed_from: Lsn,
    ) -> Result<Recovery> {
        Self::scan_with(env, disk, options, needed_from, None).map(|(recovery, _)| recovery)
    }

    /// Reads the log of a database that a writer goes on with. The result holds a prefix of the
    /// log with all records whose append ended before this call. It serves
    /// [`Recovery::read_only`] only. The caller keeps the writer from trimming the log meanwhile.
    ///
    /// The ring is copied first, then the segments are read. The writer overwrites a record in the
    /// ring only after it wrote the record to a segment. So each record is in the copy, or in a
    /// segment that is read later.
    ///
    /// A mark that is found behind the prefix may be newer than the prefix. Then the log is read
    /// once more, and must reach that mark.
    ///
    /// Errors as [`Recovery::scan`], and [`ErrorKind::NotFound`] for a segment that the writer
    /// trimmed meanwhile: try again.
    pub fn scan_beside_writer(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: LogOptions,
        needed_from: Lsn,
    ) -> Result<Recovery> {
        let (found, marked) = Self::scan_with(env, disk, options, needed_from, Some(0))?;
        if found.end >= marked {
            return Ok(found);
        }
        Self::scan_with(env, disk, options, needed_from, Some(marked)).map(|(found, _)| found)
    }

    /// Scans a log. `marked` is none if no writer goes on, else an LSN that the log must reach.
    /// Returns the highest mark behind the log's end, too.
    fn scan_with(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: LogOptions,
        needed_from: Lsn,
        marked: Option<u64>,
    ) -> Result<(Recovery, u64)> {
        let copied = marked.map(|_| copy_ring_file(disk)).transpose()?;
        let names = disk.list()?;
        let (mut recovery, start) = Self::find(env, disk, options, needed_from, &names)?;
        recovery.ring = match copied {
            None if names.iter().any(|n| n == RING_NAME) => Some(open_ring_file(disk)?),
            copied => copied,
        };
        let highest = recovery.accept(start, marked)?;
        Ok((recovery, highest))
    }

    /// Reads the log of a running life, for a copy: from the segment that contains `needed_from`
    /// up to the last record that ends at or below `synced`. The caller must keep the log from
    /// trims ([`Log::hold_trims`]). Reads no ring and writes nothing.
    ///
    /// Errors: those of [`Recovery::scan`]; [`ErrorKind::Corrupt`] for a damaged record below
    /// `needed_through`.
    pub fn scan_running(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: LogOptions,
        needed_from: Lsn,
        needed_through: Lsn,
        synced: Lsn,
    ) -> Result<Recovery> {
        let names = disk.list()?;
        let (mut recovery, start) = Self::find(env, disk, options, needed_from, &names)?;
        let mut stream = recovery.stream(start);
        let mut replay_from = None;
        loop {
            let before = LogPosition {
                life: stream.life(),
                position: stream.position(),
            };
            match stream.step()? {
                Some(found) if found.end() <= synced.0 => {
                    if found.lsn >= needed_from.0 {
                        replay_from.get_or_insert(LogPosition {
                            life: stream.life(),
                            position: found.lsn,
                        });
                    }
                }
                // The step may have gone on to an empty last life.
                None if stream.life() != before.life => {
                    recovery.end = stream.position();
                    break;
                }
                _ => {
                    recovery.end = before.position;
                    break;
                }
            }
        }
        let life = recovery.chain.lives.len().saturating_sub(1);
        if stream.life() != life || recovery.end < needed_through.0 {
            return Err(stream
                .corrupt("a synced record of the log is damaged")
                .with("needed through", needed_through));
        }
        recovery.replay_from = replay_from.unwrap_or(LogPosition {
            life,
            position: recovery.end,
        });
        Ok(recovery)
    }

    /// Reads all segment headers and finds where to read records from.
    fn find(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: LogOptions,
        needed_from: Lsn,
        names: &[String],
    ) -> Result<(Recovery, LogPosition)> {
        let options = options.check()?;
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
        let recovery = Recovery {
            env: env.clone(),
            disk: disk.clone(),
            options,
            needed_from: needed_from.0,
            spares: names.iter().filter_map(|n| spare_number(n)).collect(),
            ring: None,
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
        Ok((recovery, start))
    }

    /// Accepts the prefix of valid records, then judges the bytes behind it. Returns the highest
    /// mark there, as an LSN that a writer had synced. A log that a writer goes on with must reach
    /// `marked`, and no other mark.
    fn accept(&mut self, start: LogPosition, marked: Option<u64>) -> Result<u64> {
        let mut stream = self.stream(start);
        let mut replay_from = None;
        // End of the last closing record that no user's record follows.
        let mut closed: Option<LogPosition> = None;
        while let Some(found) = stream.step()? {
            let (life, position) = (stream.life(), stream.position());
            if let Some(synced) = stream.mark(&found) {
                self.synced = self.synced.max(synced);
            }
            match found.kind {
                KIND_CLOSE => closed = Some(LogPosition { life, position }),
                // Behind a closing record they only report the sync of the close.
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
        // Only a close of the last life counts: without one, the last life's ring may have held
        // more records.
        let closed = closed.filter(|c| c.life == stream.life());
        self.clean = closed.is_some();
        self.end = closed.map_or(stream.position(), |c| c.position);
        self.replay_from = replay_from.unwrap_or(LogPosition {
            life: stream.life(),
            position: self.end,
        });
        let mut found_behind = 0;
        if !self.clean {
            if self.ring.is_none() {
                return Err(Error::corrupt(
                    "the log's ring is missing, and the log does not end in a clean close",
                )
                .with("file", RING_NAME)
                .with("directory", self.disk.describe()));
            }
            let highest = stream.highest_mark()?;
            if marked == Some(0) {
                found_behind = highest;
            } else {
                self.synced = self.synced.max(marked.unwrap_or(highest));
            }
            if self.end < self.synced && !mutant::active("bad-record-below-mark-is-torn-tail") {
                return Err(stream
                    .corrupt("a log record that was synced is damaged")
                    .with("synced below", self.synced));
            }
        }
        // A record that reaches across the last segment's start ends at that segment's `first`.
        if let Some((_, last)) = self.last_piece()
            && self.end > last.start
            && last.first > self.end
        {
            let error = "the first record of a log segment begins behind the end of the log";
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
        Ok(found_behind)
    }

    pub(crate) fn stream(&self, start: LogPosition) -> Stream {
        let lives = self.chain.lives.clone();
        Stream::new(
            &self.disk,
            lives,
            self.ring.clone(),
            start.life,
            start.position,
        )
    }

    /// LSN below which records are known to be on stable storage.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn(self.synced.min(self.end))
    }

    /// Shows the users' records that a replay would hand out, in order, until `visit` says that the
    /// log ends in front of one. That record and all behind it then count as torn. It must not be
    /// below [`Recovery::synced`]. Reads the log again.
    ///
    /// # Errors
    ///
    /// Those of reading and of `visit`; [`ErrorKind::Corrupt`] for an end below what was synced.
    pub fn end_at(
        &mut self,
        visit: &mut dyn FnMut(Record<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut replay = self.replay_to_end();
        while let Some(record) = replay.next()? {
            let lsn = record.lsn.0;
            if visit(record)?.is_break() {
                return self.cut(lsn);
            }
        }
        Ok(())
    }

    /// Ends the log at an LSN, a record's start.
    fn cut(&mut self, lsn: u64) -> Result<()> {
        let last_start = self.last_piece().map_or(0, |(_, last)| last.first);
        if lsn < self.synced || lsn < last_start {
            return Err(self
                .corrupt_at_end("a log record that was synced names a value that is damaged")
                .with("record at LSN", lsn)
                .with("synced below", self.synced));
        }
        self.end = lsn;
        self.clean = false;
        self.in_segments = self.in_segments.min(lsn);
        self.ring_from = self.ring_from.filter(|from| *from < lsn);
        Ok(())
    }

    /// LSN at which the accepted log ends.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.end)
    }

    /// An error of corruption at the end of the accepted log, with file and offset.
    #[must_use]
    pub fn corrupt_at_end(&self, message: &'static str) -> Error {
        let life = self.chain.lives.len().saturating_sub(1);
        let end = LogPosition {
            life,
            position: self.end,
        };
        self.stream(end).corrupt(message)
    }

    /// LSN of the oldest record.
    #[must_use]
    pub fn first(&self) -> Lsn {
        Lsn(self.chain.first)
    }

    /// Whether the log ends in a clean close.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.clean
    }

    /// Number of users' records from the needed LSN on.
    #[must_use]
    pub fn records_to_replay(&self) -> u64 {
        self.replay_records
    }

    /// Number of lives whose segments count, the last one included.
    #[must_use]
    pub fn lives(&self) -> usize {
        self.chain.lives.len()
    }

    /// Number of the last life; [`Recovery::begin`] starts the next one.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        let life = self.chain.lives.last();
        Incarnation(life.map_or(0, |life| life.life_id.incarnation))
    }

    /// Branch of the last life.
    #[must_use]
    pub fn branch(&self) -> u64 {
        self.chain
            .lives
            .last()
            .map_or(0, |life| life.life_id.branch)
    }

    /// Begins the log's next life and returns the log with the replay of its records. The process
    /// may be killed at any step, any number of times (D6).
    ///
    /// Errors leave the log ready for another try. [`ErrorKind::NoSpace`]: there is no room for a
    /// segment. [`ErrorKind::Unsupported`]: no life can follow the last one, whose number is the
    /// highest.
    pub fn begin(mut self) -> Result<(Log, Replay)> {
        let Some(last) = self.chain.lives.last() else {
            return Err(Error::internal("a log without a life"));
        };
        let step = u32::from(!mutant::active("recovery-keeps-incarnation"));
        if last.life_id.incarnation >= Incarnation::MAX.0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the database has reached its highest number of opens: export it, and import it into a new one",
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

        // A killed process may have changed names that are visible but not yet durable. A spare may
        // be written only once its old name is durably gone. Otherwise a power cut could restore
        // that name with another segment's header under it.
        self.disk.sync_directory()?;
        // A new ring whose process was killed before the rename.
        self.disk.remove(RING_NEW_NAME).or_else(is_absent)?;
        segments.take_over(&self.spares)?;
        let first_of_last = last.pieces.first().map_or(0, |piece| piece.number);
        segments.give_ends_back(first_of_last)?;
        // A process may have died between the commit of a checkpoint and the trim.
        let trimmed = segments.trim(Lsn(self.needed_from));
        trimmed.map_err(TrimError::into_error)?;
        segments.prepare_at_open()?;

        // 1.
        let (number, added) = self.copy_what_is_not_synced(&segments)?;
        if let Some(last) = self.chain.lives.last_mut() {
            added.into_iter().for_each(|piece| last.push(piece));
            last.ends_at(self.end);
        }

        // 2. Before the new life, which is not clean: recovery refuses such a life without a ring.
        let ring = open_or_make_ring(&self.disk, self.ring.take(), self.options.ring_bytes)?;

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

    /// Makes everything below the end durable. Returns the last segment's number and the added
    /// segments.
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
        // An interrupted recovery may have copied all of it already, into a segment that does not
        // end at a block's start.
        if not_known && self.end > self.synced.max(last.start) {
            let (piece, from) = self.piece_beside(life, &last, segments)?;
            let copier = match segments.obtain_for(piece.capacity) {
                Ok(spare) => Copier::beside(segments, id, life, piece, spare),
                // Without space (D10): files are now smaller than the one that holds these bytes,
                // so rewrite the bytes in place.
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

    /// Returns a file for the next life's first segment, and the number of the segment before it.
    /// Without room for another file, it is the file to which this recovery, or an interrupted one,
    /// copied the log's end, so that the open needs no space (D10).
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

    /// Frees the last segment's file if that segment replaced the end of the one before
    /// ([`Copier::beside`]). Writes its records into the segment before, then takes its name away.
    /// Returns the number of the segment before, or `None` if there is no such segment.
    ///
    /// The bytes stay in the last segment until they are durable in their old place too. They may
    /// have been durable before, so a power cut during the write must not lose them.
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
        // A segment without counted records holds nothing to write back. The segment before may
        // lack the room for it.
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

    /// Copies the last life's records from `from` to `end`. Returns the added segments.
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

    /// Whether the last life consists of its first segment's header only.
    fn is_empty_life(&self) -> bool {
        let life = self.chain.lives.last();
        life.is_some_and(|life| matches!(life.pieces[..], [only] if only.start == self.end))
    }

    fn last_piece(&self) -> Option<(&Life, Piece)> {
        let life = self.chain.lives.last()?;
        Some((life, *life.pieces.last()?))
    }

    /// The new segment for records of the last one that are not known to be synced, and the LSN
    /// from which to read these records.
    fn piece_beside(&self, life: &Life, last: &Piece, segments: &Segments) -> Result<(Piece, u64)> {
        let marked = self.synced > last.start && self.synced.is_multiple_of(BLOCK_BYTES);
        let (start, first, from) = if marked {
            (self.synced, self.synced, self.synced)
        } else {
            // Read from the record that reaches across the segment's start, if that record is still
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

    /// Returns the replay without writing anything (D11). Records that are only in the ring are
    /// read from there.
    #[must_use]
    pub fn read_only(self) -> Replay {
        self.replay_to_end()
    }

    /// A replay that reads nothing behind the accepted end: no segment need go on there.
    fn replay_to_end(&self) -> Replay {
        let mut stream = self.stream(self.replay_from);
        stream.end_at(self.end);
        Replay {
            stream,
            needed_from: self.needed_from,
            end: self.end,
        }
    }
}

fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::NoSpace
}
