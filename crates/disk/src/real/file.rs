//! One file of the operating system.
//!
//! Direct I/O that is off the device's bounds, in offset, length or memory, goes through a buffer
//! of the thread's, at most [`BOUNCE_BYTES`] large.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, Stat, StatxFlags, fallocate, fdatasync, fstat, ftruncate, statx,
};
use rustix::io::{Errno, pread, pwrite};
use terrapin_base::sync::{AtomicBool, Ordering};
use terrapin_base::{Env, Error, Result};

use super::awake;
use super::cached::Cached;
use super::extents::{self, Extents};
use super::lock::{SharedLock, WriteLock};
use super::retry::retry;
use super::uring::read_awake;
use crate::{AlignedBuf, File, FileIdentity, Flight, OpenOptions, Show, Shown};

/// Longer reads take the device longer than it takes a thread to fall asleep and wake up.
const AWAKE_BYTES_MAX: usize = 16 << 10;
/// Most memory that a thread keeps for copies of unaligned I/O.
pub(super) const BOUNCE_BYTES: usize = 1 << 20;

/// The kernel does longer reads in pieces.
const READ_BYTES_MAX: usize = 1 << 30;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = const { RefCell::new(AlignedBuf::new()) };
}

/// What somebody who waits for a read does meanwhile, once; if anything.
struct Meanwhile<'m>(Cell<Option<&'m mut dyn FnMut()>>);

impl Meanwhile<'_> {
    fn nothing() -> Self {
        Meanwhile(Cell::new(None))
    }

    /// Does it, unless it was done.
    fn be_done(&self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// Lends this thread's buffer, at least `bytes` long.
pub(super) fn with_bounce<T>(bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    debug_assert!(bytes <= BOUNCE_BYTES);
    BOUNCE.with_borrow_mut(|bounce| {
        if bounce.len() < bytes {
            bounce.resize(bytes, 0);
        }
        work(bounce)
    })
}

/// An open file. Fields are dropped in this order: the file is unlocked, and the registry forgets
/// it, while its descriptor still keeps the inode.
pub(crate) struct RealFile {
    pub(super) write_lock: Option<WriteLock>,
    pub(super) _shared_lock: Option<SharedLock>,
    pub(super) descriptor: OwnedFd,
    /// For reads by way of the page cache, if there are to be any.
    pub(super) cached: Option<Cached>,
    pub(super) path: String,
    pub(super) options: OpenOptions,
    /// Whether the descriptor really does direct I/O.
    pub(super) direct: bool,
    pub(super) alignment: u32,
    pub(super) extents: Extents,
    /// The file system was asked to allocate and cannot: what it got back would be a hole for good,
    /// and count as allocated all the same.
    pub(super) cannot_allocate: AtomicBool,
    /// Tells how long reads take.
    pub(super) env: Env,
}

impl RealFile {
    fn fail(&self, message: &'static str, e: Errno) -> Error {
        Error::io(message, e.into()).with("file", &self.path)
    }

    fn fail_at(&self, message: &'static str, e: Errno, offset: u64, bytes: usize) -> Error {
        self.fail(message, e)
            .with("offset", offset)
            .with("bytes", bytes)
    }

    fn check_range(&self, offset: u64, bytes: u64) -> Result<u64> {
        crate::check_range(&|| self.path.clone(), offset, bytes)
    }

    fn check_writable(&self) -> Result<()> {
        match &self.write_lock {
            Some(lock) => lock.check_process(),
            None => Err(crate::read_only(&self.path)),
        }
    }

    fn stat(&self) -> Result<Stat> {
        retry(|| fstat(&self.descriptor)).map_err(|e| self.fail("cannot look at the file", e))
    }

    /// Whether the kernel takes this range and memory as they are.
    pub(super) fn takes(&self, memory: *const u8, offset: u64, bytes: usize) -> bool {
        let mask = u64::from(self.alignment) - 1;
        !self.direct || (memory as u64 | offset | bytes as u64) & mask == 0
    }

    /// The range that covers this one on the device's bounds: its start, and how many bytes lie
    /// before the wanted ones.
    pub(super) fn widen(&self, offset: u64) -> (u64, usize) {
        let before = offset & (u64::from(self.alignment) - 1);
        (offset - before, before as usize)
    }

    /// By way of what the reads of a flight are done, if not as the file was opened.
    fn way_of(&self, flight: &Flight) -> Option<&Cached> {
        self.cached.as_ref().filter(|_| flight.is_cached())
    }

    /// What reads done that way are done on.
    fn descriptor<'f>(&'f self, cached: Option<&'f Cached>) -> BorrowedFd<'f> {
        cached.map_or(self.descriptor.as_fd(), Cached::as_fd)
    }

    /// Reads as much as the kernel does at once, from an offset and into memory that it takes.
    fn read_some(
        &self,
        buffer: &mut [u8],
        offset: u64,
        cached: Option<&Cached>,
        meanwhile: &Meanwhile<'_>,
    ) -> rustix::io::Result<usize> {
        if let Some(count) = cached.and_then(|cached| cached.at_hand(buffer, offset)) {
            return Ok(count);
        }
        let descriptor = self.descriptor(cached);
        let asleep = |buffer: &mut [u8]| {
            meanwhile.be_done();
            retry(|| pread(descriptor, &mut *buffer, offset))
        };
        if !self.direct || buffer.len() > AWAKE_BYTES_MAX {
            return asleep(buffer);
        }
        awake::read(
            &self.env,
            buffer,
            |buffer| read_awake(descriptor, buffer, offset, || meanwhile.be_done()).map(Ok),
            asleep,
        )
    }

    /// Reads until `buffer` is full or the file ends, from an offset and into memory that the
    /// kernel takes; returns how much was read.
    fn read_until_end(
        &self,
        buffer: &mut [u8],
        offset: u64,
        cached: Option<&Cached>,
        meanwhile: &Meanwhile<'_>,
    ) -> rustix::io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let count = self.read_some(rest, offset + done as u64, cached, meanwhile)?;
            done += count;
            // A direct read that ends off the bounds has met the file's end; another there would be
            // refused.
            if count == 0 || (self.direct && !done.is_multiple_of(self.alignment as usize)) {
                break;
            }
        }
        Ok(done)
    }

    /// Fills `buffer`.
    fn read_exactly(
        &self,
        buffer: &mut [u8],
        offset: u64,
        cached: Option<&Cached>,
        meanwhile: &Meanwhile<'_>,
    ) -> Result<()> {
        let bytes = buffer.len();
        if bytes == 0 {
            return Ok(());
        }
        let past_end = || crate::past_end(&self.path, offset, bytes);
        if self.check_range(offset, bytes as u64).is_err() {
            return Err(past_end());
        }
        let fail = |e| self.fail_at("cannot read", e, offset, bytes);
        self.extents.count(&self.descriptor, 1);
        if self.takes(buffer.as_ptr(), offset, bytes) {
            let count = self
                .read_until_end(buffer, offset, cached, meanwhile)
                .map_err(fail)?;
            return if count < bytes {
                Err(past_end())
            } else {
                Ok(())
            };
        }
        let mut done = 0;
        while done < bytes {
            let (start, before) = self.widen(offset + done as u64);
            let wanted = (bytes - done).min(BOUNCE_BYTES - before);
            let covering = (before + wanted).next_multiple_of(self.alignment as usize);
            with_bounce(covering, |bounce| {
                let bounce = &mut bounce[..covering];
                let count = self
                    .read_until_end(bounce, start, cached, meanwhile)
                    .map_err(fail)?;
                if count < before + wanted {
                    return Err(past_end());
                }
                buffer[done..done + wanted].copy_from_slice(&bounce[before..before + wanted]);
                Ok(())
            })?;
            done += wanted;
        }
        Ok(())
    }

    /// Puts the reads of a flight that nobody began into its ring, as far as that takes them.
    fn queue(&self, flight: &mut Flight) {
        self.extents.count(&self.descriptor, flight.waiting());
        let descriptor = self.descriptor(self.way_of(flight));
        flight.queue(descriptor, |memory, offset, bytes| {
            let end = offset.checked_add(bytes as u64);
            (1..=READ_BYTES_MAX).contains(&bytes)
                && end.is_some_and(|end| i64::try_from(end).is_ok())
                && self.takes(memory, offset, bytes)
        });
    }

    /// Writes all of `buffer`, from memory that the kernel takes.
    fn write_all(&self, buffer: &[u8], offset: u64) -> rustix::io::Result<()> {
        let (mut done, mut broke) = (0, false);
        while done < buffer.len() {
            let rest = &buffer[done..];
            let count = retry(|| pwrite(&self.descriptor, rest, offset + done as u64))?;
            // What was written of a broken block is written again, and says why it broke.
            let whole = match self.direct {
                true => count - count % self.alignment as usize,
                false => count,
            };
            if whole == 0 && (count == 0 || broke) {
                return Err(Errno::IO);
            }
            broke = whole == 0;
            done += whole;
        }
        Ok(())
    }

    /// Whether the file reaches so far and has all the space that it needs from the offset on.
    fn is_allocated(&self, offset: u64, end: u64) -> Result<bool> {
        let bytes = self.bytes()?;
        if end > bytes {
            return Ok(false);
        }
        match extents::is_allocated(&self.descriptor, offset, end) {
            Some(allocated) => Ok(allocated),
            None => Ok(bytes <= self.allocated_bytes()?),
        }
    }

    /// What the system's answer to an allocation comes to, in a file that was so long before.
    fn allocated(
        &self,
        asked: rustix::io::Result<()>,
        offset: u64,
        end: u64,
        before: u64,
    ) -> Result<()> {
        match asked {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.cannot_allocate.store(true, Ordering::Relaxed);
                allocate_by_writing(self, end)
            }
            // XFS asks for free space, and for room in quotas, even where all is allocated already.
            Err(Errno::NOSPC | Errno::DQUOT)
                if end <= before && self.is_allocated(offset, end)? =>
            {
                Ok(())
            }
            Err(e) => {
                // Only who makes a file longer may cut it: others allocate within it meanwhile.
                if end > before {
                    let _ = self.set_bytes(before);
                }
                Err(self
                    .fail("cannot allocate space", e)
                    .with("offset", offset)
                    .with("bytes", end - offset))
            }
        }
    }
}

/// Allocates by writing zeros behind a file's end, for file systems that cannot otherwise. Holes
/// within the file stay, so none are made there. An error leaves the file as long as it was, and at
/// no time is it longer than what is allocated: the next try goes by its length.
fn allocate_by_writing(file: &dyn File, end: u64) -> Result<()> {
    let start = file.bytes()?;
    if end <= start {
        return Ok(());
    }
    let unit = u64::from(file.alignment());
    let zeros = AlignedBuf::zeroed(BOUNCE_BYTES);
    let write = || {
        let (mut at, whole) = (start.next_multiple_of(unit), end - end % unit);
        while at < whole {
            let rest = usize::try_from(whole - at).unwrap_or(usize::MAX);
            let count = rest.min(zeros.len());
            file.write_at(&zeros[..count], at)?;
            at += count as u64;
        }
        file.set_bytes(end)
    };
    write().inspect_err(|_| {
        // It can be tried again either way.
        let _ = file.set_bytes(start);
    })
}

impl File for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_exactly(buffer, offset, None, &Meanwhile::nothing())
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_exactly(buffer, offset, self.cached.as_ref(), &Meanwhile::nothing())
    }

    fn read_meanwhile(
        &self,
        buffer: &mut [u8],
        offset: u64,
        cached: bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        let meanwhile = Meanwhile(Cell::new(Some(meanwhile)));
        let cached = self.cached.as_ref().filter(|_| cached);
        let done = self.read_exactly(buffer, offset, cached, &meanwhile);
        // Where nothing was waited for it was not done yet.
        meanwhile.be_done();
        done
    }

    fn start(&self, flight: &mut Flight) -> Result<()> {
        if flight.waiting() > 0 {
            self.queue(flight);
            flight.submit();
        }
        Ok(())
    }

    fn show(&self, flight: &mut Flight, which: Show, shown: Shown<'_>) -> Result<()> {
        match which {
            // It is what the caller waits for: a plain read costs less than a ring.
            _ if flight.is_lone() => {}
            Show::Oldest => self.start(flight)?,
            // The kernel learns of them when it is entered to wait.
            Show::Some => self.queue(flight),
        }
        let cached = self.way_of(flight);
        flight.show(
            which,
            &mut |buffer, offset| self.read_exactly(buffer, offset, cached, &Meanwhile::nothing()),
            shown,
        );
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        let bytes = buffer.len();
        self.check_range(offset, bytes as u64)?;
        if self.options.direct {
            crate::check_aligned(&|| self.path.clone(), self.alignment, offset, bytes)?;
        }
        let fail = |e| self.fail_at("cannot write", e, offset, bytes);
        if self.takes(buffer.as_ptr(), offset, bytes) {
            return self.write_all(buffer, offset).map_err(fail);
        }
        for (index, piece) in buffer.chunks(BOUNCE_BYTES).enumerate() {
            let at = offset + (index * BOUNCE_BYTES) as u64;
            with_bounce(piece.len(), |bounce| {
                let bounce = &mut bounce[..piece.len()];
                bounce.copy_from_slice(piece);
                self.write_all(bounce, at).map_err(fail)
            })?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if let Some(lock) = &self.write_lock {
            lock.check_process()?;
        }
        retry(|| fdatasync(&self.descriptor)).map_err(|e| self.fail("cannot sync", e))
    }

    fn bytes(&self) -> Result<u64> {
        Ok(u64::try_from(self.stat()?.st_size).unwrap_or(0))
    }

    fn identity(&self) -> Result<FileIdentity> {
        let flags = StatxFlags::INO | StatxFlags::BTIME;
        let found = retry(|| statx(&self.descriptor, "", AtFlags::EMPTY_PATH, flags));
        match found {
            Ok(found) => {
                let birth = found.stx_btime;
                let seconds = u64::try_from(birth.tv_sec).unwrap_or(0);
                let nanoseconds = seconds.saturating_mul(1_000_000_000);
                let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
                Ok(FileIdentity {
                    inode: found.stx_ino,
                    birth_ns: match is_known {
                        true => nanoseconds.saturating_add(u64::from(birth.tv_nsec)),
                        false => 0,
                    },
                })
            }
            // A kernel or a sandbox without this call.
            Err(Errno::NOSYS | Errno::PERM) => Ok(FileIdentity {
                inode: self.stat()?.st_ino,
                birth_ns: 0,
            }),
            Err(e) => Err(self.fail("cannot ask which file it is", e)),
        }
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(u64::try_from(self.stat()?.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512))
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.check_range(bytes, 0)?;
        retry(|| ftruncate(&self.descriptor, bytes)).map_err(|e| {
            self.fail("cannot set the file's size", e)
                .with("bytes", bytes)
        })
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable()?;
        let end = self.check_range(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let before = self.bytes()?;
        let asked = retry(|| fallocate(&self.descriptor, FallocateFlags::empty(), offset, bytes));
        self.allocated(asked, offset, end, before)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.check_range(offset, bytes)?;
        if bytes == 0 || self.cannot_allocate.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| fallocate(&self.descriptor, flags, offset, bytes)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(self
                .fail("cannot give space back", e)
                .with("offset", offset)
                .with("bytes", bytes)),
        }
    }

    fn alignment(&self) -> u32 {
        self.alignment
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::RealDisk;
    use crate::{Disk, SimDisk};
    use terrapin_base::ErrorKind;

    #[test]
    fn an_allocation_by_writing_that_failed_is_not_done_when_it_is_tried_again() {
        let disk = SimDisk::new(1);
        let options = OpenOptions {
            create_new: true,
            write: true,
            direct: true,
            ..OpenOptions::default()
        };
        let file = disk.handle().open("file", options).unwrap();
        file.write_at(&AlignedBuf::zeroed(4096), 0).unwrap();
        let end = (4 << 20) + 100;
        disk.set_capacity(3 << 20);
        for _ in 0..2 {
            let error = allocate_by_writing(&*file, end).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            assert_eq!(file.bytes().unwrap(), 4096);
        }
        disk.set_capacity(8 << 20);
        allocate_by_writing(&*file, end).unwrap();
        assert_eq!(file.bytes().unwrap(), end);
        assert!(file.allocated_bytes().unwrap() >= 4 << 20);
        allocate_by_writing(&*file, 1 << 20).unwrap();
        assert_eq!(file.bytes().unwrap(), end);
    }

    const CREATE: OpenOptions = OpenOptions {
        create_new: true,
        write: true,
        direct: false,
        cached: false,
        shared: false,
    };

    /// A new directory for one test.
    fn directory(test: &str) -> (std::path::PathBuf, RealDisk) {
        let name = format!("terrapin-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let disk = RealDisk::open(Env::simulated(1).0, &path, true).unwrap();
        (path, disk)
    }

    /// ext3, as ext4 has it, punches holes and cannot fill them: the reserve came to consist of
    /// them, and a full disk was seen by a write.
    #[test]
    fn where_nothing_can_be_allocated_nothing_that_is_goes_back() {
        let (path, disk) = directory("holes");
        let file = disk.open_file("file", CREATE).unwrap();
        let content = vec![7; 64 << 10];
        file.write_at(&content, 0).unwrap();
        let refused = |offset, end| {
            let before = file.bytes().unwrap();
            file.allocated(Err(Errno::OPNOTSUPP), offset, end, before)
        };
        refused(0, 64 << 10).unwrap();
        refused(64 << 10, 96 << 10).unwrap();
        assert_eq!(file.bytes().unwrap(), 96 << 10);
        file.punch_hole(0, 64 << 10).unwrap();
        let mut read = vec![0; 64 << 10];
        file.read_at(&mut read, 0).unwrap();
        assert!(read == content, "a hole");
        file.set_bytes(4096).unwrap();
        assert_eq!(file.bytes().unwrap(), 4096, "the end still goes");
        drop(file);
        disk.remove("file").unwrap();
        std::fs::remove_dir(&path).unwrap();
    }

    /// A database refused to be opened there, also for reading.
    #[test]
    fn a_device_with_larger_blocks_than_ours_is_used_by_way_of_the_page_cache() {
        let (path, disk) = directory("blocks");
        disk.alignment.set(64 << 10).unwrap();
        let options = OpenOptions {
            direct: true,
            ..CREATE
        };
        let file = disk.open_file("file", options).unwrap();
        assert!(!file.direct);
        assert_eq!(file.alignment(), 4096);
        let content = vec![7; 8192];
        file.write_at(&content, 4096).unwrap();
        file.sync().unwrap();
        drop(file);
        let options = OpenOptions {
            direct: true,
            ..OpenOptions::default()
        };
        let file = disk.open_file("file", options).unwrap();
        assert_eq!(file.alignment(), 4096);
        let mut read = vec![0; 8192];
        file.read_at(&mut read, 4096).unwrap();
        assert!(read == content);
        drop(file);
        disk.remove("file").unwrap();
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn a_full_disk_or_quota_refuses_no_space_that_a_file_has_already() {
        let (path, disk) = directory("quota");
        let file = disk.open_file("file", CREATE).unwrap();
        file.allocate(0, 64 << 10).unwrap();
        for refusal in [Errno::NOSPC, Errno::DQUOT] {
            let before = file.bytes().unwrap();
            assert_eq!(before, 64 << 10);
            let refused = |offset, end| file.allocated(Err(refusal), offset, end, before);
            refused(4 << 10, before).unwrap();
            // As the system leaves it: longer, with a part of the space.
            file.set_bytes(before + 4096).unwrap();
            let error = refused(0, before + 8192).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        }
        file.set_bytes(1 << 20).unwrap();
        for refusal in [Errno::NOSPC, Errno::DQUOT] {
            let error = file.allocated(Err(refusal), 0, 1 << 20, 1 << 20);
            assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace, "a hole");
        }
        drop(file);
        disk.remove("file").unwrap();
        std::fs::remove_dir(&path).unwrap();
    }
}
