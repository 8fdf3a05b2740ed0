//! The table of readers in a real file: words in a shared mapping, and locks of open file
//! descriptions.
//!
//! The kernel drops such a lock with the last descriptor of the description, so with the reader's
//! process. A forked child has the descriptor, too: the lock of a reader that died lasts as long as
//! its children. The writer revokes such a slot once it is too old.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{self as sys, FallocateFlags, IFlags, Mode, OFlags};
use rustix::io::Errno;
use terrapin_base::{Error, ErrorKind, Result};

use super::Mapping;
use super::retry::retry;
use crate::readers::{READERS_BYTES, ReaderTable, ReaderWords};

/// Network file systems, by the magic numbers of `statfs`. Two machines do not share the memory of
/// a mapping there: NFS, SMB (three), CIFS, 9P, Ceph, AFS (two), Lustre, OCFS2, GFS2.
const NETWORK: [u64; 12] = [
    0x6969,
    0x517b,
    0xfe53_4d42,
    0x534d_4200,
    0xff53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x0bd0_0bd0,
    0x7461_636f,
    0x0116_1970,
];

struct MappedWords {
    mapping: Mapping,
    descriptor: OwnedFd,
    name: String,
}

/// Opens and maps the table with this name. `full_name` is for errors.
pub(super) fn open(
    directory: BorrowedFd<'_>,
    name: &str,
    full_name: String,
    create: bool,
) -> Result<ReaderTable> {
    let fail =
        |message: &'static str, e: Errno| Error::io(message, e.into()).with("file", &full_name);
    let system = retry(|| sys::fstatfs(directory));
    let system = system.map_err(|e| fail("cannot ask for the file system", e))?;
    #[allow(clippy::unnecessary_cast)] // the type differs between processors
    let kind = system.f_type as u64 & 0xffff_ffff;
    if NETWORK.contains(&kind) {
        let message = "readers beside a writer need a file system of this machine";
        return Err(Error::new(ErrorKind::Unsupported, message).with("file", full_name));
    }
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if create {
        flags |= OFlags::CREATE;
    }
    let descriptor = retry(|| sys::openat(directory, name, flags, Mode::from_raw_mode(0o666)))
        .map_err(|e| fail("cannot open the table of readers", e))?;
    let stat = || {
        retry(|| sys::fstat(&descriptor))
            .map_err(|e| fail("cannot look at the table of readers", e))
    };
    let found = stat()?;
    let is_file = sys::FileType::from_raw_mode(found.st_mode) == sys::FileType::RegularFile;
    if create && is_file {
        if found.st_size == 0
            && let Ok(flags) = sys::ioctl_getflags(&descriptor)
        {
            // With copy on write, a store could find no space.
            let _ = sys::ioctl_setflags(&descriptor, flags | IFlags::NOCOW);
        }
        allocate(&descriptor).map_err(|e| fail("cannot allocate the table of readers", e))?;
    }
    let bytes = stat()?.st_size;
    if !is_file || u64::try_from(bytes) != Ok(READERS_BYTES) {
        return Err(Error::corrupt("the table of readers has another size")
            .with("file", full_name)
            .with("bytes", bytes)
            .with("expected", READERS_BYTES));
    }
    let mapping = Mapping::of(descriptor.as_fd(), READERS_BYTES as usize, &full_name)?;
    let words = MappedWords {
        mapping,
        descriptor,
        name: full_name.clone(),
    };
    Ok(ReaderTable::new(Box::new(words), full_name))
}

/// Allocates the whole file. A store into a hole would raise SIGBUS on a full disk.
fn allocate(descriptor: &OwnedFd) -> rustix::io::Result<()> {
    match retry(|| sys::fallocate(descriptor, FallocateFlags::empty(), 0, READERS_BYTES)) {
        // Without `fallocate`, written bytes are allocated, too. Only the writer of the database
        // does this, and a file of this size keeps its words.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let mut bytes = [0; READERS_BYTES as usize];
            let mut there = 0;
            while let count @ 1.. =
                retry(|| rustix::io::pread(descriptor, &mut bytes[there..], there as u64))?
            {
                there += count;
            }
            if there < bytes.len() {
                retry(|| rustix::io::pwrite(descriptor, &bytes[there..], there as u64))?;
            }
            Ok(())
        }
        allocated => allocated,
    }
}

impl MappedWords {
    fn lock_as(&self, slot: usize, kind: libc::c_int) -> std::io::Result<()> {
        // SAFETY: zeros are a valid value of this plain C structure.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = slot as libc::off_t;
        lock.l_len = 1;
        loop {
            // SAFETY: the descriptor is open, and the kernel reads only the structure.
            let done =
                unsafe { libc::fcntl(self.descriptor.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
            if done == 0 {
                return Ok(());
            }
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl ReaderWords for MappedWords {
    fn load(&self, word: usize) -> u64 {
        self.mapping.word(word).load(Ordering::SeqCst)
    }

    fn store(&self, word: usize, value: u64) {
        self.mapping.word(word).store(value, Ordering::SeqCst);
    }

    fn exchange(&self, word: usize, from: u64, to: u64) -> bool {
        let word = self.mapping.word(word);
        let done = word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        done.is_ok()
    }

    fn try_lock(&self, slot: usize) -> Result<bool> {
        match self.lock_as(slot, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => {
                Err(Error::io("cannot lock a slot of the table of readers", e)
                    .with("file", &self.name))
            }
        }
    }

    fn unlock(&self, slot: usize) {
        // After a refusal, the lock ends with the descriptor.
        let _ = self.lock_as(slot, libc::F_UNLCK);
    }
}
