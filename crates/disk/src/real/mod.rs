//! Files of the operating system: one open directory, and files by names within it.
//!
//! Exclusive writing (D9):
//!
//! - A file opened for writing holds an `flock` on the descriptor of its writes. So a second
//!   process waits until the last write of a killed process has ended.
//! - A registry of this process refuses a second writer at once. It also lets only one [`RealDisk`]
//!   at a time write in a directory.
//! - A handle for reading takes no lock, except with [`OpenOptions::shared`]: then it holds a
//!   shared lock, which keeps writers out (D11).
//! - A forked child has copies of all descriptors, and changes nothing through them.

mod alignment;
mod awake;
mod cached;
mod extents;
mod file;
mod lock;
mod mapping;
pub(crate) mod process;
mod readers;
mod retry;
mod uring;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use terrapin_base::sync::{AtomicBool, Mutex, OnceLock, Weak};
use terrapin_base::{Env, Error, ErrorKind, Result};

use crate::{AlignedBuf, Disk, File, LogRing, OpenOptions, Process, ReaderTable, RingOptions};
use cached::Cached;
use extents::Extents;
use file::RealFile;
use lock::Claim;
pub(crate) use mapping::Mapping;
use retry::retry;
pub(crate) use uring::{NoRing, Uring};

/// A new ring is filled with zeros in pieces of this many bytes.
const ZEROS_BYTES: usize = 1 << 20;

/// A directory of the operating system. Files are opened relative to the open directory, so a
/// change of the working directory or a renamed parent changes nothing.
pub struct RealDisk {
    env: Env,
    path: PathBuf,
    directory: OwnedFd,
    /// The claim on the directory. It lives as long as any file is open for writing.
    claim: Mutex<Weak<Claim>>,
    /// The process that opened the directory. No other process may change anything here.
    process: Process,
    /// Alignment of direct I/O, learnt from the first file that tells it.
    alignment: OnceLock<u32>,
}

/// Creates a directory and its missing parents, and makes each durable in its parent.
///
/// Also syncs the parent of the first existing directory, since a killed process may have created
/// that directory without a sync.
fn create_directory(path: &Path) -> std::io::Result<()> {
    use std::io::ErrorKind;
    let not_ours = [ErrorKind::PermissionDenied, ErrorKind::InvalidInput];
    let mut missing = Vec::new();
    for directory in path.ancestors().filter(|a| !a.as_os_str().is_empty()) {
        if !directory.exists() {
            missing.push(directory);
            continue;
        }
        match sync_parent(directory) {
            // Another user created it, or it is a mount point without stored names.
            Err(e) if not_ours.contains(&e.kind()) => {}
            synced => synced?,
        }
        break;
    }
    for directory in missing.into_iter().rev() {
        match std::fs::create_dir(directory) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        sync_parent(directory)?;
    }
    Ok(())
}

/// Makes a directory's name durable in its parent.
fn sync_parent(directory: &Path) -> std::io::Result<()> {
    std::fs::File::open(directory.join(".."))?.sync_all()
}

/// The error for a path that has no usable directory.
fn no_directory(message: &'static str, e: std::io::Error, path: &Path) -> Error {
    let error = match e.kind() {
        std::io::ErrorKind::NotADirectory => Error::new(
            ErrorKind::NotADatabase,
            "a database is a directory; this path, or a part of it, is a file",
        ),
        _ => Error::io(message, e),
    };
    error.with("directory", path.display())
}

impl RealDisk {
    /// Opens a directory, and with `create` first creates it and its missing parents.
    ///
    /// Takes no lock; each file opened for writing does, and waits for locks through `env`.
    /// [`ErrorKind::NotFound`] if the directory is missing, [`ErrorKind::NotADatabase`] if the path
    /// names a file.
    pub fn open(env: Env, path: impl AsRef<Path>, create: bool) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        if create {
            create_directory(&path)
                .map_err(|e| no_directory("cannot create the directory", e, &path))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = retry(|| sys::open(&path, flags, Mode::empty()))
            .map_err(|e| no_directory("cannot open the directory", e.into(), &path))?;
        Ok(RealDisk {
            env,
            path,
            directory,
            claim: Mutex::default(),
            process: Process::this(),
            alignment: OnceLock::new(),
        })
    }

    fn full_name(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn fail(&self, message: &'static str, name: &str, e: Errno) -> Error {
        Error::io(message, e.into()).with("file", self.full_name(name))
    }

    /// The claim on this directory, made if no open file of this disk holds it.
    fn claim(&self) -> Result<Arc<Claim>> {
        self.process.check()?;
        let mut held = self.claim.lock();
        if let Some(claim) = held.upgrade() {
            return Ok(claim);
        }
        let claim = Arc::new(Claim::new(self.directory.as_fd(), || {
            self.path.display().to_string()
        })?);
        *held = Arc::downgrade(&claim);
        Ok(claim)
    }

    /// Opens the descriptor without locks. An existing file must be a regular file: opening a pipe
    /// would wait for its other end.
    fn open_descriptor(&self, name: &str, options: OpenOptions) -> Result<OwnedFd> {
        let mut flags = OFlags::CLOEXEC;
        flags |= if options.write {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        if options.create_new {
            flags |= OFlags::CREATE | OFlags::EXCL;
        } else {
            let stat = retry(|| sys::statat(&self.directory, name, AtFlags::empty()))
                .map_err(|e| self.fail("cannot open the file", name, e))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(Error::corrupt("not a regular file").with("file", self.full_name(name)));
            }
        }
        retry(|| sys::openat(&self.directory, name, flags, Mode::from_raw_mode(0o666))).map_err(
            |e| {
                let message = if options.create_new {
                    "cannot create the file"
                } else {
                    "cannot open the file"
                };
                self.fail(message, name, e)
            },
        )
    }

    fn open_file(&self, name: &str, options: OpenOptions) -> Result<RealFile> {
        crate::check_options(name, options)?;
        let directory = options.write.then(|| self.claim()).transpose()?;
        let describe = || self.full_name(name);
        let (descriptor, held, shared) = loop {
            let descriptor = self.open_descriptor(name, options)?;
            let Some(directory) = directory.clone() else {
                if !options.shared {
                    break (descriptor, None, None);
                }
                let at_once = options.at_once;
                let shared =
                    lock::SharedLock::new(&self.env, descriptor.as_fd(), at_once, describe)?;
                if shared.waited && !self.is_still(name, &descriptor) {
                    continue;
                }
                break (descriptor, None, Some(shared));
            };
            let at_once = options.at_once;
            let locked =
                lock::WriteLock::new(&self.env, descriptor.as_fd(), directory, at_once, describe);
            match locked {
                // During the wait, another file may have taken the name.
                Ok(held) if held.waited && !self.is_still(name, &descriptor) => {}
                Ok(held) => break (descriptor, Some(held), None),
                Err(error) => {
                    if options.create_new && error.kind() != ErrorKind::Locked {
                        let _ = sys::unlinkat(&self.directory, name, AtFlags::empty());
                    }
                    return Err(error);
                }
            }
        };
        let direct = options.direct && alignment::set_direct(&descriptor, &describe)?;
        let alignment = alignment::of(
            &self.alignment,
            &self.directory,
            &descriptor,
            direct,
            options.write,
        );
        let (direct, alignment) =
            alignment::within_ours(&descriptor, direct, alignment, &describe)?;
        let cached = (options.cached && direct)
            .then(|| Cached::open(&self.directory, name, &descriptor))
            .flatten();
        Ok(RealFile {
            cached,
            env: self.env.clone(),
            write_lock: held,
            _shared_lock: shared,
            extents: Extents::new(&descriptor, direct),
            cannot_allocate: AtomicBool::new(false),
            descriptor,
            path: describe(),
            options,
            direct,
            alignment,
        })
    }

    /// Whether the name still refers to the file of this descriptor.
    fn is_still(&self, name: &str, descriptor: &OwnedFd) -> bool {
        let now = sys::statat(&self.directory, name, AtFlags::empty());
        let then = sys::fstat(descriptor);
        matches!((now, then), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(name, options)?))
    }

    fn list(&self) -> Result<Vec<String>> {
        let fail = |e: Errno| {
            Error::io("cannot list the directory", e.into()).with("directory", self.describe())
        };
        let mut names = Vec::new();
        for entry in sys::Dir::read_from(&self.directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            // A name that is not UTF-8 is not a Terrapin file.
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    match retry(|| sys::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)) {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                        Err(Errno::NOENT) => continue,
                        Err(e) => return Err(self.fail("cannot look at the file", name, e)),
                    }
                }
                kind => kind,
            };
            if kind != FileType::Directory {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        crate::check_name(name)?;
        self.process.check()?;
        retry(|| sys::unlinkat(&self.directory, name, AtFlags::empty()))
            .map_err(|e| self.fail("cannot remove the file", name, e))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        crate::check_name(from)?;
        crate::check_name(to)?;
        self.process.check()?;
        retry(|| sys::renameat(&self.directory, from, &self.directory, to))
            .map_err(|e| self.fail("cannot rename the file", from, e).with("to", to))
    }

    fn sync_directory(&self) -> Result<()> {
        retry(|| sys::fsync(&self.directory)).map_err(|e| {
            Error::io("cannot sync the directory", e.into()).with("directory", self.describe())
        })
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        if ring.create {
            RingOptions::check_asked(ring.bytes, name)?;
        }
        let options = OpenOptions {
            create_new: ring.create,
            write: true,
            ..OpenOptions::default()
        };
        let file = Arc::new(self.open_file(name, options)?);
        let bytes = if ring.create {
            // On a file system with copy on write, a store could find no space. This flag turns
            // copy on write off, and must be set before the first byte.
            if let Ok(flags) = sys::ioctl_getflags(&file.descriptor) {
                let _ = sys::ioctl_setflags(&file.descriptor, flags | sys::IFlags::NOCOW);
            }
            file.allocate(0, ring.bytes)?;
            let piece = usize::try_from(ring.bytes).map_or(ZEROS_BYTES, |b| b.min(ZEROS_BYTES));
            let zeros = AlignedBuf::zeroed(piece);
            for offset in (0..ring.bytes).step_by(piece) {
                file.write_at(&zeros, offset)?;
            }
            file.sync()?;
            self.sync_directory()?;
            ring.bytes
        } else {
            let bytes = file.bytes()?;
            RingOptions::check_found(bytes, &self.full_name(name))?;
            // A copied ring file may have holes, and a store into a hole could find no space.
            file.allocate(0, bytes)?;
            bytes
        };
        let length = usize::try_from(bytes).map_err(|_| {
            Error::invalid("the log ring does not fit into the address space")
                .with("file", self.full_name(name))
        })?;
        Ok(LogRing::mapped(Mapping::new(file, length)?))
    }

    fn open_readers(&self, name: &str, create: bool) -> Result<ReaderTable> {
        crate::check_name(name)?;
        self.process.check()?;
        readers::open(self.directory.as_fd(), name, self.full_name(name), create)
    }

    fn free_bytes(&self) -> Result<u64> {
        let stat = retry(|| sys::fstatvfs(&self.directory)).map_err(|e| {
            Error::io("cannot ask for free space", e.into()).with("directory", self.describe())
        })?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

impl std::fmt::Debug for RealDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RealDisk({})", self.path.display())
    }
}
