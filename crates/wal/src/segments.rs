//! The log's files: which segments are kept, which allocated files wait to become one, and how one
//! becomes the other.
//!
//! A name `log-N` is given to a file only after its header is on stable storage, so a `log-N`
//! without a valid header is damage and never a crash. A segment loses its name durably before
//! anything overwrites its header, oldest first, so a crash can leave neither a gap among the
//! segments that are needed nor a header under another segment's name (D3, D6). (The newest may
//! lose it to its successor, at one stroke, or to nobody once all that it holds is durable in the
//! one before.)
//!
//! One spare is kept ready whenever space allows: it makes the change of segments cheap, and it is
//! the log's part of the reserve that lets deletes through on a full disk (D10). So every spare is
//! as large as segments are; those of an earlier life, whose segments may have had another size,
//! are made so when this one begins.

use std::cmp::Reverse;
use std::collections::VecDeque;

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Error, ErrorKind, Lsn, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions};

use crate::format::{BLOCK_BYTES, SegmentHeader, block_down, block_up, segment_name, spare_name};
use crate::options::SEGMENT_BYTES_MIN;

/// Most files that wait to become segments again; what a trim frees beyond them goes back to the
/// file system. In the midst of work a trim frees several at once that are needed again soon, and a
/// file that was written before is written faster.
pub(crate) const SPARES_MAX: usize = 8;
/// As many where space is scarce.
pub(crate) const SPARES_MIN: usize = 2;
/// As many at rest: one is the log's part of the reserve.
pub(crate) const SPARES_AT_REST: usize = 1;

/// How segments and spares are opened for writing.
const WRITE: OpenOptions = OpenOptions {
    create_new: false,
    write: true,
    direct: true,
    cached: false,
    shared: false,
};

/// A segment that may still be needed.
#[derive(Clone, Debug)]
pub(crate) struct KeptSegment {
    pub(crate) number: u64,
    /// Where the stream's bytes begin in it.
    pub(crate) start: u64,
    /// Where those that count end (exclusive).
    pub(crate) end: u64,
    /// LSN of the first record that begins in it or behind it.
    pub(crate) first: u64,
    /// Bytes of stream that it has room for.
    pub(crate) capacity: u64,
    /// Known to have been written to its end.
    pub(crate) full: bool,
}

impl KeptSegment {
    /// Bytes of stream that count in it, up to a block's end.
    pub(crate) fn used(&self) -> u64 {
        block_up(self.end).saturating_sub(self.start)
    }
}

/// A spare of an earlier life: its length and its name.
type FoundSpare = (u64, String);

/// A file that waits.
struct SpareFile {
    name: String,
    /// Known to have been written to its end.
    written: bool,
}

/// One of these, allocated and open for writing.
pub(crate) struct Spare {
    waiting: SpareFile,
    file: Arc<dyn File>,
}

impl Spare {
    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }
}

/// The segment that is being written.
pub(crate) struct CurrentSegment {
    pub(crate) number: u64,
    pub(crate) start: u64,
    pub(crate) file: Arc<dyn File>,
    /// Blocks of the stream below were written before, in this use of the file or another; those
    /// above were perhaps only allocated.
    pub(crate) written_to: u64,
}

impl CurrentSegment {
    /// Writes blocks of the stream where they belong.
    pub(crate) fn write(&self, bytes: &[u8], lsn: u64) -> Result<()> {
        let written = self.file.write_at(bytes, BLOCK_BYTES + (lsn - self.start));
        written.map_err(|error| self.name_in(error))
    }

    /// Its handle knows only the name under which the file was opened, as a spare.
    pub(crate) fn name_in(&self, error: Error) -> Error {
        error.with("segment", segment_name(self.number))
    }
}

/// How a trim failed.
pub(crate) enum TrimError {
    /// The file is what it was; the trim may be tried again.
    Undone(Error),
    /// The file's name is gone, perhaps not durably.
    Unknown(Error),
}

impl TrimError {
    /// What went wrong, to whom both are alike.
    pub(crate) fn into_error(self) -> Error {
        match self {
            TrimError::Undone(error) | TrimError::Unknown(error) => error,
        }
    }
}

/// The files of one log.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    capacity: u64,
    next_spare: AtomicU64,
    /// Oldest first; the last one is being written.
    kept: Mutex<VecDeque<KeptSegment>>,
    /// Names whose content nobody needs, durably so, of files that are as large as segments.
    spares: Mutex<Vec<SpareFile>>,
    /// How many of them are kept when a trim frees more.
    spares_max: AtomicUsize,
    /// One trim at a time.
    trimming: Mutex<()>,
}

impl Segments {
    /// `capacity` is what new segments hold.
    pub(crate) fn new(disk: Arc<dyn Disk>, capacity: u64, kept: VecDeque<KeptSegment>) -> Self {
        Segments {
            disk,
            capacity,
            next_spare: AtomicU64::new(0),
            kept: Mutex::new(kept),
            spares: Mutex::default(),
            spares_max: AtomicUsize::new(SPARES_MAX),
            trimming: Mutex::new(()),
        }
    }

    /// Takes over the spares of an earlier life, by their numbers, and makes them as large as
    /// segments are now. Smaller ones are made larger only until there is one for the next segment
    /// and one that waits; the others go.
    ///
    /// Where the disk is too full to make a single one larger, segments are made as small as the
    /// largest of them: an open must not need space (D10).
    pub(crate) fn take_over(&mut self, numbers: &[u64]) -> Result<()> {
        let next = numbers.iter().max().map_or(0, |n| n.saturating_add(1));
        self.next_spare = AtomicU64::new(next);
        let mut found = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let name = spare_name(number);
            let bytes = self.disk.open(&name, OpenOptions::default())?.bytes()?;
            found.push((bytes, name));
        }
        found.sort_by_key(|&(bytes, _)| Reverse(bytes));
        let (mut spares, mut small) = self.fit_all(found)?;
        let possible = BLOCK_BYTES + SEGMENT_BYTES_MIN..self.file_bytes();
        let mut largest = small.iter().map(|&(bytes, _)| bytes);
        if spares.is_empty()
            && let Some(bytes) = largest.find(|bytes| possible.contains(bytes))
        {
            self.capacity = block_down(bytes) - BLOCK_BYTES;
            tracing::warn!(
                bytes = self.capacity,
                "no space for log files of the size asked for; they stay as small as they were"
            );
            (spares, small) = self.fit_all(small)?;
        }
        let waiting = |name| SpareFile {
            name,
            written: false,
        };
        self.spares = Mutex::new(spares.into_iter().map(waiting).collect());
        small
            .iter()
            .try_for_each(|(_, name)| self.disk.remove(name))
    }

    /// Fits those files that are needed; these, and the others with their lengths.
    fn fit_all(&self, found: Vec<FoundSpare>) -> Result<(Vec<String>, Vec<FoundSpare>)> {
        let (mut spares, mut small) = (Vec::new(), Vec::new());
        for (bytes, name) in found {
            if (bytes >= self.file_bytes() || spares.len() < SPARES_MIN) && self.fit(&name)? {
                spares.push(name);
            } else {
                small.push((bytes, name));
            }
        }
        Ok((spares, small))
    }

    /// Makes a file as large as a segment, allocated; whether there was space for it.
    fn fit(&self, name: &str) -> Result<bool> {
        let file = self.disk.open(name, WRITE)?;
        if file.bytes()? > self.file_bytes() {
            file.set_bytes(self.file_bytes())?;
        }
        // Also one of the right size may have holes, if it was copied.
        match file.allocate(0, self.file_bytes()) {
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
            allocated => allocated.map(|()| true),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn file_bytes(&self) -> u64 {
        BLOCK_BYTES + self.capacity
    }

    /// An allocated file. After an error the same may be tried again later.
    pub(crate) fn obtain(&self) -> Result<Spare> {
        loop {
            let Some(waiting) = take(&mut self.spares.lock(), true) else {
                return self.allocate(self.capacity);
            };
            match self.reopen(&waiting.name) {
                Ok(file) => return Ok(Spare { waiting, file }),
                // A segment that was copied, with holes that cannot be filled: it is of use to
                // nobody, and what it has may be to the next.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    self.disk.remove(&waiting.name).or_else(is_absent)?
                }
                // Somebody removed it, and its content means nothing.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    self.spares.lock().push(waiting);
                    return Err(error);
                }
            }
        }
    }

    /// Opens a spare. Allocating what is allocated costs nothing.
    fn reopen(&self, name: &str) -> Result<Arc<dyn File>> {
        let file = self.disk.open(name, WRITE)?;
        file.allocate(0, self.file_bytes())?;
        Ok(file)
    }

    /// An allocated file for a segment of that capacity.
    pub(crate) fn obtain_for(&self, capacity: u64) -> Result<Spare> {
        if capacity == self.capacity {
            self.obtain()
        } else {
            self.allocate(capacity)
        }
    }

    fn allocate(&self, capacity: u64) -> Result<Spare> {
        let name = spare_name(self.next_spare.fetch_add(1, Ordering::Relaxed));
        let file = self.disk.open(
            &name,
            OpenOptions {
                create_new: true,
                ..WRITE
            },
        )?;
        if let Err(error) = file.allocate(0, BLOCK_BYTES + capacity)
            && !mutant::active("unallocated-log-file-accepted")
        {
            drop(file);
            // On a full disk, half a spare is in the way of everyone. Should the removal fail too,
            // the next open takes care of it.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        let waiting = SpareFile {
            name,
            written: false,
        };
        Ok(Spare { waiting, file })
    }

    /// Sees to it that a spare waits, as far as space allows.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.spares.lock().is_empty() {
            let spare = self.allocate(self.capacity)?;
            self.spares.lock().push(spare.waiting);
        }
        Ok(())
    }

    /// Sees to it that a spare waits for an open to go on in. Where the disk has no room for one of
    /// the size asked for, segments become as small as what it has room for: an open must not need
    /// space (D10).
    pub(crate) fn prepare_at_open(&mut self) -> Result<()> {
        let wanted = self.capacity;
        loop {
            match self.prepare() {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    let half = block_down(self.capacity / 2);
                    if half < SEGMENT_BYTES_MIN {
                        // What a cut recovery left may be used again; else the open says what it
                        // lacks.
                        self.capacity = wanted;
                        return Ok(());
                    }
                    self.capacity = half;
                }
                prepared => {
                    if self.capacity < wanted {
                        let bytes = self.capacity;
                        tracing::warn!(
                            bytes,
                            "no space for log files of the size asked for; they are smaller for now"
                        );
                    }
                    return prepared;
                }
            }
        }
    }

    /// Makes a spare the next segment, or the newest in its place if the number is that one's:
    /// header, sync, name, sync of the directory. An error leaves open what is on the disk.
    pub(crate) fn install(&self, spare: &Spare, header: &SegmentHeader) -> Result<CurrentSegment> {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize);
        header.encode(&mut block);
        if let Err(error) = Self::write_header(spare, &block) {
            // Who comes next, the next open among them, would take the same file, and fail.
            let _ = self.disk.remove(&spare.waiting.name);
            return Err(error);
        }
        self.disk
            .rename(&spare.waiting.name, &segment_name(header.number))?;
        if !mutant::active("directory-unsynced-after-naming") {
            self.disk.sync_directory()?;
        }
        let end = header.start + header.capacity;
        let mut kept = self.kept.lock();
        kept.pop_back_if(|last| last.number == header.number);
        if let Some(last) = kept.back_mut() {
            last.full = last.start + last.capacity == header.previous_end;
            last.end = last.end.min(header.previous_end);
        }
        kept.push_back(KeptSegment {
            number: header.number,
            start: header.start,
            end,
            first: header.first,
            capacity: header.capacity,
            full: false,
        });
        Ok(CurrentSegment {
            number: header.number,
            start: header.start,
            file: spare.file.clone(),
            written_to: match spare.waiting.written {
                true => end,
                false => header.start,
            },
        })
    }

    fn write_header(spare: &Spare, block: &AlignedBuf) -> Result<()> {
        spare.file.write_at(block, 0)?;
        match mutant::active("segment-named-before-header-sync") {
            true => Ok(()),
            false => spare.file.sync(),
        }
    }

    /// Opens a kept segment for writing.
    pub(crate) fn open_for_writing(&self, number: u64) -> Result<Arc<dyn File>> {
        self.disk.open(&segment_name(number), WRITE)
    }

    /// Gives up whole segments below an LSN, oldest first, and never the one that is being written.
    pub(crate) fn trim(&self, below: Lsn) -> Result<(), TrimError> {
        let below = match mutant::active("log-trimmed-too-early") {
            true => Lsn(below.0 + self.capacity),
            false => below,
        };
        let _one = self.trimming.lock();
        loop {
            let oldest = {
                let kept = self.kept.lock();
                match kept.front() {
                    Some(oldest) if kept.len() > 1 && oldest.end <= below.0 => oldest.clone(),
                    _ => return Ok(()),
                }
            };
            self.give_up(&oldest)?;
            self.kept.lock().pop_front();
        }
    }

    /// Takes a file's name away durably; only then may it be written again.
    fn give_up(&self, segment: &KeptSegment) -> Result<(), TrimError> {
        let name = &segment_name(segment.number);
        let fits = segment.capacity == self.capacity;
        let recycled = fits && self.spares.lock().len() < self.spares_max.load(Ordering::Relaxed);
        let spare = spare_name(self.next_spare.fetch_add(1, Ordering::Relaxed));
        let renamed = if recycled {
            self.disk.rename(name, &spare)
        } else {
            self.disk.remove(name)
        };
        renamed.map_err(TrimError::Undone)?;
        if !mutant::active("directory-unsynced-after-unnaming") {
            self.disk.sync_directory().map_err(TrimError::Unknown)?;
        }
        if recycled {
            self.spares.lock().push(SpareFile {
                name: spare,
                written: segment.full,
            });
        }
        Ok(())
    }

    /// Gives what does not count of segments back to the file system: of those before segment
    /// `below`, whose ends later segments' durable headers say. Lives that end soon leave as much
    /// as they wrote then (decision 0031). A power cut may undo it, and the next open does it
    /// again.
    pub(crate) fn give_ends_back(&self, below: u64) -> Result<()> {
        let mut kept = self.kept.lock();
        for segment in kept.iter_mut().take_while(|s| s.number < below) {
            let used = match mutant::active("last-earlier-block-freed") {
                true => block_down(segment.end).saturating_sub(segment.start),
                false => segment.used(),
            };
            if used < segment.capacity {
                let file = self.open_for_writing(segment.number)?;
                file.set_bytes(BLOCK_BYTES + used)?;
                segment.capacity = used;
            }
        }
        Ok(())
    }

    /// Bytes of stream that a kept segment has room for.
    pub(crate) fn capacity_of(&self, number: u64) -> Option<u64> {
        let kept = self.kept.lock();
        let found = kept.iter().find(|segment| segment.number == number);
        found.map(|segment| segment.capacity)
    }

    /// Gives up the newest segment: all that it holds, to `end`, is durable in the one before.
    pub(crate) fn give_up_last(&self, end: u64) -> Result<()> {
        let _one = self.trimming.lock();
        let last = match self.kept.lock().back() {
            Some(last) => last.clone(),
            None => return Err(Error::internal("a log without segments")),
        };
        self.give_up(&last).map_err(TrimError::into_error)?;
        let mut kept = self.kept.lock();
        kept.pop_back();
        if let Some(before) = kept.back_mut() {
            before.end = end;
        }
        Ok(())
    }

    /// How many spares are kept from now on when a trim frees more.
    pub(crate) fn set_spares_max(&self, count: usize) {
        self.spares_max.store(count, Ordering::Relaxed);
    }

    /// Removes spares but so many.
    pub(crate) fn drop_spares(&self, kept: usize) -> Result<()> {
        loop {
            let dropped = {
                let mut spares = self.spares.lock();
                match spares.len() > kept {
                    true => take(&mut spares, false),
                    false => None,
                }
            };
            match dropped {
                Some(waiting) => self.disk.remove(&waiting.name).or_else(is_absent)?,
                None => return Ok(()),
            }
        }
    }

    /// LSN of the oldest record that is still there, or of the next one to be appended.
    pub(crate) fn oldest(&self) -> u64 {
        self.kept.lock().front().map_or(0, |s| s.first)
    }

    /// Bytes of segments, the one being written and the spares included.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let kept: u64 = self
            .kept
            .lock()
            .iter()
            .map(|s| BLOCK_BYTES + s.capacity)
            .sum();
        kept + self.spares.lock().len() as u64 * self.file_bytes()
    }

    /// Where the stream would end that fills every file that is there.
    pub(crate) fn room_end(&self) -> u64 {
        let end = self.kept.lock().back().map_or(0, |s| s.end);
        end.saturating_add(self.spare_count() as u64 * self.capacity)
    }

    /// Whether the file system has little space left, by what the log was told.
    pub(crate) fn space_is_scarce(&self) -> bool {
        self.spares_max.load(Ordering::Relaxed) <= SPARES_MIN
    }

    /// Files that wait to become segments.
    pub(crate) fn spare_count(&self) -> usize {
        self.spares.lock().len()
    }

    pub(crate) fn count(&self) -> u64 {
        self.kept.lock().len() as u64
    }
}

/// Takes a file of those that wait: the one that came last of those that were written, or were not;
/// any other, if there is none like that.
fn take(spares: &mut Vec<SpareFile>, written: bool) -> Option<SpareFile> {
    let wanted = spares.iter().rposition(|spare| spare.written == written);
    match wanted {
        Some(place) => Some(spares.remove(place)),
        None => spares.pop(),
    }
}

/// After the removal of a file: that it was not there is no error.
pub(crate) fn is_absent(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}
