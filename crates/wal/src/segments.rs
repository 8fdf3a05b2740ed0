//! The log's files: which segments are kept, which allocated files wait to become one, and how one becomes the other.
//!
//! A name `log-N` is given to a file only after its header is on stable storage, so a `log-N` without a valid header is damage and never a
//! crash. A segment loses its name durably before anything overwrites its header, oldest first, so a crash can leave neither a
//! gap among the segments that are needed nor a header under another segment's name (D3, D6).
//!
//! One spare is kept ready whenever space allows: it makes the change of segments cheap, and it is the log's part of the
//! reserve that lets deletes through on a full disk (D10).

use std::collections::VecDeque;

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Error, Lsn, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions};

use crate::format::{BLOCK_BYTES, SegmentHeader, segment_name, spare_name};

/// Most files that wait to become segments again; what a trim frees beyond them goes back to the file system. In the midst of work a trim
/// frees several at once that are needed again soon, and a file that was written before is written faster.
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
pub(crate) struct Kept {
    pub(crate) number: u64,
    /// Where the stream's bytes that count in it end (exclusive).
    pub(crate) end: u64,
    /// LSN of the first record that begins in it or behind it.
    pub(crate) first: u64,
    /// Bytes of stream that it has room for.
    pub(crate) capacity: u64,
}

/// An allocated file, open for writing.
pub(crate) struct Spare {
    name: String,
    file: Arc<dyn File>,
}

impl Spare {
    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }
}

/// How a trim failed.
pub(crate) enum TrimError {
    /// The file is what it was; the trim may be tried again.
    Undone(Error),
    /// The file's name is gone, perhaps not durably.
    Unknown(Error),
}

/// The files of one log.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    capacity: u64,
    next_spare: AtomicU64,
    /// Oldest first; the last one is being written.
    kept: Mutex<VecDeque<Kept>>,
    /// Names whose content nobody needs, durably so.
    spares: Mutex<Vec<String>>,
    /// How many of them are kept when a trim frees more.
    spares_max: AtomicUsize,
    /// One trim at a time.
    trimming: Mutex<()>,
}

impl Segments {
    /// `spares` are the numbers of spare files found; `capacity` is what new segments hold.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        capacity: u64,
        kept: VecDeque<Kept>,
        spares: &[u64],
    ) -> Self {
        let next = spares.iter().max().map_or(0, |n| n.saturating_add(1));
        Segments {
            disk,
            capacity,
            next_spare: AtomicU64::new(next),
            kept: Mutex::new(kept),
            spares: Mutex::new(spares.iter().map(|&n| spare_name(n)).collect()),
            spares_max: AtomicUsize::new(SPARES_MAX),
            trimming: Mutex::new(()),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn file_bytes(&self) -> u64 {
        BLOCK_BYTES + self.capacity
    }

    /// An allocated file. An error leaves everything as it was, and the same may be tried again later.
    pub(crate) fn obtain(&self) -> Result<Spare> {
        loop {
            let Some(name) = self.spares.lock().pop() else {
                return self.allocate(self.capacity);
            };
            match self.reopen(&name) {
                Ok(Some(file)) => return Ok(Spare { name, file }),
                Ok(None) => self.disk.remove(&name)?,
                Err(error) => {
                    self.spares.lock().push(name);
                    return Err(error);
                }
            }
        }
    }

    /// Opens a spare; `None` if it has another size than segments have now.
    fn reopen(&self, name: &str) -> Result<Option<Arc<dyn File>>> {
        let file = self.disk.open(name, WRITE)?;
        let bytes = file.bytes()?;
        if bytes > self.file_bytes() {
            return Ok(None);
        }
        // It may have been left half allocated; allocating what is allocated costs nothing.
        file.allocate(0, self.file_bytes())?;
        Ok(Some(file))
    }

    /// An allocated file for a segment of that capacity.
    pub(crate) fn obtain_for(&self, capacity: u64) -> Result<Spare> {
        if capacity == self.capacity {
            self.obtain()
        } else {
            self.allocate(capacity)
        }
    }

    /// Takes back what was obtained and not used.
    pub(crate) fn put_back(&self, spare: Spare) {
        self.spares.lock().push(spare.name);
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
            && !mutant::active(70)
        {
            drop(file);
            // On a full disk, half a spare is in the way of everyone. Should the removal fail too, the next open takes care of it.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        Ok(Spare { name, file })
    }

    /// Sees to it that a spare waits, as far as space allows.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.spares.lock().is_empty() {
            let spare = self.allocate(self.capacity)?;
            self.put_back(spare);
        }
        Ok(())
    }

    /// Makes a spare the next segment: header, sync, name, sync of the directory. An error leaves open what is on the disk.
    pub(crate) fn install(&self, spare: &Spare, header: &SegmentHeader) -> Result<Arc<dyn File>> {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize);
        header.encode(&mut block);
        spare.file.write_at(&block, 0)?;
        if !mutant::active(2) {
            spare.file.sync()?;
        }
        self.disk
            .rename(&spare.name, &segment_name(header.number))?;
        if !mutant::active(3) {
            self.disk.sync_directory()?;
        }
        let mut kept = self.kept.lock();
        if let Some(last) = kept.back_mut() {
            last.end = last.end.min(header.previous_end);
        }
        kept.push_back(Kept {
            number: header.number,
            end: header.start + header.capacity,
            first: header.first,
            capacity: header.capacity,
        });
        Ok(spare.file.clone())
    }

    /// Opens a kept segment for writing.
    pub(crate) fn open_for_writing(&self, number: u64) -> Result<Arc<dyn File>> {
        self.disk.open(&segment_name(number), WRITE)
    }

    /// Gives up whole segments below an LSN, oldest first, and never the one that is being written.
    pub(crate) fn trim(&self, below: Lsn) -> Result<(), TrimError> {
        let below = match mutant::active(5) {
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
            self.give_up(
                &segment_name(oldest.number),
                oldest.capacity == self.capacity,
            )?;
            self.kept.lock().pop_front();
        }
    }

    /// Takes a file's name away durably; only then may it be written again.
    fn give_up(&self, name: &str, fits: bool) -> Result<(), TrimError> {
        let recycled = fits && self.spares.lock().len() < self.spares_max.load(Ordering::Relaxed);
        let spare = spare_name(self.next_spare.fetch_add(1, Ordering::Relaxed));
        let renamed = if recycled {
            self.disk.rename(name, &spare)
        } else {
            self.disk.remove(name)
        };
        renamed.map_err(TrimError::Undone)?;
        if !mutant::active(4) {
            self.disk.sync_directory().map_err(TrimError::Unknown)?;
        }
        if recycled {
            self.spares.lock().push(spare);
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
            let name = {
                let mut spares = self.spares.lock();
                match spares.len() > kept {
                    true => spares.pop(),
                    false => None,
                }
            };
            match name {
                Some(name) => self.disk.remove(&name)?,
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

    /// Files that wait to become segments.
    pub(crate) fn spare_count(&self) -> usize {
        self.spares.lock().len()
    }

    pub(crate) fn count(&self) -> u64 {
        self.kept.lock().len() as u64
    }
}
