//! One file of the operating system.
//!
//! Direct I/O with an unaligned offset, length or memory is copied through a buffer of the thread,
//! of at most [`BOUNCE_BYTES`].

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, Stat, StatxFlags, fallocate, fdatasync, fstat, ftruncate,
    ioctl_ficlone, statx,
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

/// Longest read in bytes that a thread waits for awake. A longer read takes longer than it takes
/// the thread to fall asleep and wake up.
const AWAKE_BYTES_MAX: usize = 16 << 10;
/// Largest buffer in bytes that a thread keeps for unaligned I/O.
pub(super) const BOUNCE_BYTES: usize = 1 << 20;

/// Longest read in bytes that goes to io_uring. The kernel splits longer ones.
const READ_BYTES_MAX: usize = 1 << 30;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = const { RefCell::new(AlignedBuf::new()) };
}

/// Work that a caller does while its read is in flight, at most once.
struct Meanwhile<'m>(Cell<Option<&'m mut dyn FnMut()>>);

impl Meanwhile<'_> {
    fn nothing() -> Self {
        Meanwhile(Cell::new(None))
    }

    /// Does the work, unless it is done.
    fn be_done(&self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// Lends this thread's buffer, with at least `bytes` bytes.
pub(super) fn with_bounce<T>(bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    debug_assert!(bytes <= BOUNCE_BYTES);
    BOUNCE.with_borrow_mut(|bounce| {
        if bounce.len() < bytes {
            bounce.resize(bytes, 0);
        }
        work(bounce)
    })
}

/// An open file. The order of the fields is the order of their drops. So the file is unlocked and
/// leaves the registry while the descriptor still keeps the inode.
pub(crate) struct RealFile {
    pub(super) write_lock: Option<WriteLock>,
    pub(super) _shared_lock: Option<SharedLock>,
    pub(super) descriptor: OwnedFd,
    /// The second descriptor, for reads through the page cache.
    pub(super) cached: Option<Cached>,
    pub(super) path: String,
    pub(super) options: OpenOptions,
    /// Whether the descriptor uses direct I/O.
    pub(super) direct: bool,
    pub(super) alignment: u32,
    pub(super) extents: Extents,
    /// Whether the file system cannot allocate. It could never fill a punched hole again, so
    /// nothing is punched then.
    pub(super) cannot_allocate: AtomicBool,
    /// The clock that measures reads.
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

    /// Whether the kernel accepts this range and memory without a copy.
    pub(super) fn takes(&self, memory: *const u8, offset: u64, bytes: usize) -> bool {
        let mask = u64::from(self.alignment) - 1;
        !self.direct || (memory as u64 | offset | bytes as u64) & mask == 0
    }

    /// The aligned start of a range that begins at `offset`, and the bytes between the two.
    pub(super) fn widen(&self, offset: u64) -> (u64, usize) {
        let before = offset & (u64::from(self.alignment) - 1);
        (offset - before, before as usize)
    }

    /// The page cache descriptor, if the reads of this flight use it.
    fn way_of(&self, flight: &Flight) -> Option<&Cached> {
        self.cached.as_ref().filter(|_| flight.is_cached())
    }

    /// The descriptor for a read: the page cache's, or the file's own.
    fn descriptor<'f>(&'f self, cached: Option<&'f Cached>) -> BorrowedFd<'f> {
        cached.map_or(self.descriptor.as_fd(), Cached::as_fd)
    }

    /// Makes one read call. Offset and memory must be aligned.
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

    /// Reads until `buffer` is full or the file ends, and returns the number of bytes. Offset and
    /// memory must be aligned.
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
            // A direct read with an unaligned end met the file's end. The kernel would refuse
            // another read from there.
            if count == 0 || (self.direct && !done.is_multiple_of(self.alignment as usize)) {
                break;
            }
        }
        Ok(done)
    }

    /// Fills `buffer` from any offset and into any memory.
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

    /// Puts the waiting reads of a flight into its ring, as far as the ring accepts them.
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

    /// Writes all of `buffer`. Its memory must be aligned.
    fn write_all(&self, buffer: &[u8], offset: u64) -> rustix::io::Result<()> {
        let (mut done, mut broke) = (0, false);
        while done < buffer.len() {
            let rest = &buffer[done..];
            let count = retry(|| pwrite(&self.descriptor, rest, offset + done as u64))?;
            // A partly written block is written again. If it fails again, that call tells why.
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

    /// Whether the file is at least `end` bytes long and fully allocated from `offset` to there.
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

    /// Handles the system's answer to an allocation. `before` is the file's size before the call.
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
            // XFS asks for free space and quota even if everything is allocated already.
            Err(Errno::NOSPC | Errno::DQUOT)
                if end <= before && self.is_allocated(offset, end)? =>
            {
                Ok(())
            }
            Err(e) => {
                // Only the caller that extends a file may truncate it: other threads allocate
                // within it.
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

/// Allocates by writing zeros after a file's end, for file systems that cannot allocate. Holes
/// within the file stay, so the caller must not have made any.
///
/// An error leaves the file's size as it was. The file is never longer than what is allocated,
/// since the next try continues at its end.
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
        // The next try works in either case.
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
        // Without a wait, the work is not done yet.
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
            // The caller waits for this read alone: a plain read costs less than a ring.
            _ if flight.is_lone() => {}
            Show::Oldest => self.start(flight)?,
            // The kernel sees the reads when `show` enters the ring to wait.
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

    fn share_content(&self, source: &dyn File) -> Result<bool> {
        self.check_writable()?;
        let Some(from) = source.descriptor() else {
            return Ok(false);
        };
        match retry(|| ioctl_ficlone(&self.descriptor, from)) {
            Ok(()) => Ok(true),
            // These say that the file system has no shared blocks, or that both files are not on
            // one file system.
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
                Ok(false)
            }
            Err(e) => Err(self
                .fail("cannot share the content of a file", e)
                .with("source", source.describe())),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
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

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.check_writable()?;
        self.check_range(offset, bytes)?;
        if bytes == 0 || self.cannot_allocate.load(Ordering::Relaxed) {
            return Ok(bytes == 0);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| fallocate(&self.descriptor, flags, offset, bytes)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
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
mod tests;
