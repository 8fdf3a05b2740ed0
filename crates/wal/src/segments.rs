//! The log's files: the segments that the log keeps, and the spares that wait to become segments.
//!
//! Invariants:
//!
//! - A file gets the name `log-N` only after its header is on stable storage. So a `log-N` without
//!   a valid header is damage, never the result of a crash.
//! - A segment loses its name durably before anything overwrites its header, and the oldest segment
//!   loses it first. So a crash leaves no gap among the needed segments, and no header under
//!   another segment's name (D3, D6).
//! - The newest segment has two exceptions. A successor may take its name in one rename. It may
//!   also just lose its name, once all its content is durable in the segment before.
//! - A spare is ready whenever space allows. It makes the change of segments cheap. It is also the
//!   log's part of the reserve that lets deletes through on a full disk (D10).
//! - All spares are as large as segments. An earlier life may have used another size, so a new life
//!   resizes the spares that it finds.

use std::cmp::Reverse;
use std::collections::VecDeque;

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Error, ErrorKind, Lsn, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions};

use crate::format::{BLOCK_BYTES, SegmentHeader, block_down, block_up, segment_name, spare_name};
use crate::options::SEGMENT_BYTES_MIN;

/// Most spares that a trim keeps; it returns further files to the file system. Under load, one trim
/// frees several files that the log soon needs again. The device writes a file faster if the file
/// was written before.
pub(crate) const SPARES_MAX: usize = 8;
/// Most spares that a trim keeps while space is scarce.
pub(crate) const SPARES_MIN: usize = 2;
/// Spares of a log at rest. One is the log's part of the reserve.
pub(crate) const SPARES_AT_REST: usize = 1;

/// Options that open segments and spares for writing.
const WRITE: OpenOptions = OpenOptions {
    create_new: false,
    write: true,
    direct: true,
    cached: false,
    shared: false,
    at_once: false,
};

/// A segment that may still be needed.
#[derive(Clone, Debug)]
pub(crate) struct KeptSegment {
    pub(crate) number: u64,
    /// LSN of the segment's first byte of stream.
    pub(crate) start: u64,
    /// LSN at which the bytes that count end.
    pub(crate) end: u64,
    /// LSN of the first record that begins in the segment or behind it.
    pub(crate) first: u64,
    /// Bytes of stream that the segment has room for.
    pub(crate) capacity: u64,
    /// The file is known to be written to its end.
    pub(crate) full: bool,
}

impl KeptSegment {
    /// Bytes of stream that count in the segment, rounded up to a block.
    pub(crate) fn used(&self) -> u64 {
        block_up(self.end).saturating_sub(self.start)
    }
}

/// A spare of an earlier life: its length in bytes and its name.
type FoundSpare = (u64, String);

/// A file that waits to become a segment.
struct SpareFile {
    name: String,
    /// The file is known to be written to its end.
    written: bool,
}

/// A spare that is allocated and open for writing.
pub(crate) struct Spare {
    listed: SpareFile,
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
    /// Blocks below this LSN were written before, in this use of the file or an earlier one. Blocks
    /// above were perhaps only allocated.
    pub(crate) written_to: u64,
}

impl CurrentSegment {
    /// Writes blocks of the stream at their place in the file.
    pub(crate) fn write(&self, bytes: &[u8], lsn: u64) -> Result<()> {
        let written = self.file.write_at(bytes, BLOCK_BYTES + (lsn - self.start));
        written.map_err(|error| self.name_in(error))
    }

    /// Adds the segment's name to an error. The file's handle knows only the spare's name under
    /// which the file was opened.
    pub(crate) fn name_in(&self, error: Error) -> Error {
        error.with("segment", segment_name(self.number))
    }
}

/// The state that a failed trim leaves.
pub(crate) enum TrimError {
    /// Nothing changed; the trim may be tried again.
    Undone(Error),
    /// The file's name is gone, but perhaps not durably.
    Unknown(Error),
}

impl TrimError {
    /// The error, for callers that treat both cases alike.
    pub(crate) fn into_error(self) -> Error {
        match self {
            TrimError::Undone(error) | TrimError::Unknown(error) => error,
        }
    }
}

/// Trims that wait until nobody reads the segments for a copy.
#[derive(Default)]
struct HeldBack {
    /// Number of readers.
    holds: usize,
    /// The highest LSN below which a trim was to give segments up.
    below: u64,
}

/// The files of one log.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    capacity: u64,
    next_spare: AtomicU64,
    /// Oldest first; the last one is the current segment.
    kept: Mutex<VecDeque<KeptSegment>>,
    /// Files as large as segments, whose content is durably not needed.
    spares: Mutex<Vec<SpareFile>>,
    /// Most spares that a trim keeps.
    spares_max: AtomicUsize,
    /// Held by a trim: one trim runs at a time.
    trimming: Mutex<HeldBack>,
}

impl Segments {
    /// The files of a log whose new segments hold `capacity` bytes of stream.
    pub(crate) fn new(disk: Arc<dyn Disk>, capacity: u64, kept: VecDeque<KeptSegment>) -> Self {
        Segments {
            disk,
            capacity,
            next_spare: AtomicU64::new(0),
            kept: Mutex::new(kept),
            spares: Mutex::default(),
            spares_max: AtomicUsize::new(SPARES_MAX),
            trimming: Mutex::default(),
        }
    }

    /// Takes over the spares of an earlier life, given by number, and resizes them to the size of a
    /// segment. It enlarges smaller spares only until there are two: one for the next segment and
    /// one in reserve. It removes the others.
    ///
    /// The disk may be too full to enlarge any spare. Then segments become as small as the largest
    /// spare, so that the open needs no space (D10).
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
        let unwritten = |name| SpareFile {
            name,
            written: false,
        };
        self.spares = Mutex::new(spares.into_iter().map(unwritten).collect());
        small
            .iter()
            .try_for_each(|(_, name)| self.disk.remove(name))
    }

    /// Resizes the spares that are needed. Returns these, and the other files with their lengths.
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

    /// Resizes and allocates a file to the size of a segment. Returns whether there was space.
    fn fit(&self, name: &str) -> Result<bool> {
        let file = self.disk.open(name, WRITE)?;
        if file.bytes()? > self.file_bytes() {
            file.set_bytes(self.file_bytes())?;
        }
        // A file of the right size may have holes if it was copied.
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

    /// An allocated file for the next segment. After an error the caller may try again later.
    ///
    /// A spare that was a segment until now may still be open: a job that wrote or synced the
    /// segment has not dropped its handle yet. Such a spare stays for later.
    pub(crate) fn obtain(&self) -> Result<Spare> {
        let mut open_elsewhere = Vec::new();
        let obtained = self.obtain_unless_open(&mut open_elsewhere);
        self.spares.lock().append(&mut open_elsewhere);
        obtained
    }

    fn obtain_unless_open(&self, open_elsewhere: &mut Vec<SpareFile>) -> Result<Spare> {
        loop {
            let Some(listed) = take(&mut self.spares.lock(), true) else {
                return self.allocate(self.capacity);
            };
            match self.reopen(&listed.name) {
                Ok(file) => return Ok(Spare { listed, file }),
                Err(error) if error.kind() == ErrorKind::Locked => open_elsewhere.push(listed),
                // A copied file whose holes cannot be filled is useless. Its removal may free space
                // for the next file.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    self.disk.remove(&listed.name).or_else(is_absent)?
                }
                // Another process removed the file. Its content was not needed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    self.spares.lock().push(listed);
                    return Err(error);
                }
            }
        }
    }

    /// Opens a spare. To allocate an allocated range costs nothing.
    fn reopen(&self, name: &str) -> Result<Arc<dyn File>> {
        let file = self.disk.open(name, WRITE)?;
        file.allocate(0, self.file_bytes())?;
        Ok(file)
    }

    /// An allocated file for a segment of `capacity` bytes of stream.
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
            // On a full disk, half a spare only takes space. If the removal fails too, the next
            // open handles the file.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        let listed = SpareFile {
            name,
            written: false,
        };
        Ok(Spare { listed, file })
    }

    /// Prepares a spare if there is none. The error says why no file was available.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.spares.lock().is_empty() {
            let spare = self.allocate(self.capacity)?;
            self.spares.lock().push(spare.listed);
        }
        Ok(())
    }

    /// Prepares a spare for an open to continue in. If the disk has no room for the wanted size,
    /// segments become as small as fits (D10).
    pub(crate) fn prepare_at_open(&mut self) -> Result<()> {
        let wanted = self.capacity;
        loop {
            match self.prepare() {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    let half = block_down(self.capacity / 2);
                    if half < SEGMENT_BYTES_MIN {
                        // The open may reuse a file that an interrupted recovery left. If it
                        // cannot, it reports the missing space.
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

    /// Makes a spare the next segment: writes the header, syncs, renames, syncs the directory. If
    /// the number is the newest segment's, the spare replaces that segment. After an error, the
    /// state on the disk is unknown.
    pub(crate) fn install(&self, spare: &Spare, header: &SegmentHeader) -> Result<CurrentSegment> {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize);
        header.encode(&mut block);
        if let Err(error) = Self::write_header(spare, &block) {
            // The next call, or the next open, would take the same file and fail too.
            let _ = self.disk.remove(&spare.listed.name);
            return Err(error);
        }
        self.disk
            .rename(&spare.listed.name, &segment_name(header.number))?;
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
            written_to: match spare.listed.written {
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

    /// Gives up whole segments below an LSN, oldest first, but never the current one.
    pub(crate) fn trim(&self, below: Lsn) -> Result<(), TrimError> {
        let below = match mutant::active("log-trimmed-too-early") {
            true => Lsn(below.0 + self.capacity),
            false => below,
        };
        let mut one = self.trimming.lock();
        one.below = one.below.max(below.0);
        if one.holds > 0 && !mutant::active("backup-holds-no-trim") {
            return Ok(());
        }
        let below = Lsn(one.below);
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

    /// Keeps all segments until as many calls of [`Segments::let_trims_go`] follow. Waits for a
    /// trim that is under way.
    pub(crate) fn hold_trims(&self) {
        self.trimming.lock().holds += 1;
    }

    /// Ends one hold. The next trim also does what was held back.
    pub(crate) fn let_trims_go(&self) {
        let mut one = self.trimming.lock();
        one.holds = one.holds.saturating_sub(1);
    }

    /// Takes a segment's name away durably. Only then may the file be written again.
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

    /// Returns unused ends of segments to the file system, for segments with numbers below `below`.
    /// The durable headers of later segments say where these segments end. So a life that ends soon
    /// leaves only as much as it wrote (decision 0031). A power cut may undo the change; the next
    /// open repeats it.
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

    /// Bytes of stream that a kept segment has room for; `None` if it is not kept.
    pub(crate) fn capacity_of(&self, number: u64) -> Option<u64> {
        let kept = self.kept.lock();
        let found = kept.iter().find(|segment| segment.number == number);
        found.map(|segment| segment.capacity)
    }

    /// Gives up the newest segment. All that it holds, up to `end`, is durable in the segment
    /// before.
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

    /// Sets how many spares a trim keeps.
    pub(crate) fn set_spares_max(&self, count: usize) {
        self.spares_max.store(count, Ordering::Relaxed);
    }

    /// Removes spares until `kept` are left.
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
                Some(spare) => self.disk.remove(&spare.name).or_else(is_absent)?,
                None => return Ok(()),
            }
        }
    }

    /// LSN of the oldest kept record, or of the next record if there is none.
    pub(crate) fn oldest(&self) -> u64 {
        self.kept.lock().front().map_or(0, |s| s.first)
    }

    /// Bytes of all segments and spares, the current segment included.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let kept: u64 = self
            .kept
            .lock()
            .iter()
            .map(|s| BLOCK_BYTES + s.capacity)
            .sum();
        kept + self.spares.lock().len() as u64 * self.file_bytes()
    }

    /// The LSN that the stream reaches once it fills all segments and spares.
    pub(crate) fn room_end(&self) -> u64 {
        let end = self.kept.lock().back().map_or(0, |s| s.end);
        end.saturating_add(self.spare_count() as u64 * self.capacity)
    }

    /// Whether disk space is scarce, as [`Log::set_space_is_scarce`](crate::Log) set it.
    pub(crate) fn space_is_scarce(&self) -> bool {
        self.spares_max.load(Ordering::Relaxed) <= SPARES_MIN
    }

    /// Number of spares.
    pub(crate) fn spare_count(&self) -> usize {
        self.spares.lock().len()
    }

    pub(crate) fn count(&self) -> u64 {
        self.kept.lock().len() as u64
    }
}

/// Takes the newest spare that was written before (`written`), or the newest that was not. Without
/// such a spare, takes any other.
fn take(spares: &mut Vec<SpareFile>, written: bool) -> Option<SpareFile> {
    let wanted = spares.iter().rposition(|spare| spare.written == written);
    match wanted {
        Some(index) => Some(spares.remove(index)),
        None => spares.pop(),
    }
}

/// Ignores the error that a file to be removed did not exist.
pub(crate) fn is_absent(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;
    use terrapin_disk::RealDisk;

    use super::*;

    #[test]
    fn a_spare_that_is_still_open_waits_for_its_turn() {
        let directory =
            std::env::temp_dir().join(format!("terrapin-spares-{}", std::process::id()));
        let disk = RealDisk::open(Env::threads(), &directory, true).unwrap();
        let segments = Segments::new(Arc::new(disk), SEGMENT_BYTES_MIN, VecDeque::new());
        segments.prepare().unwrap();
        let listed = || -> Vec<String> {
            let spares = segments.spares.lock();
            spares.iter().map(|spare| spare.name.clone()).collect()
        };
        let only = listed();
        let open = segments.disk.open(&only[0], WRITE).unwrap();
        let other = segments.obtain().unwrap();
        assert_ne!(other.listed.name, only[0]);
        assert_eq!(listed(), only);
        drop(open);
        assert_eq!(segments.obtain().unwrap().listed.name, only[0]);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
