//! Files, and memory that goes back to the kernel (layer 1).
//!
//! The crate owns the contract of [`Disk`] and [`File`], and two implementations: [`RealDisk`] on
//! direct I/O, and [`SimDisk`] with crashes and faults. It also owns the log's shared memory
//! ([`LogRing`]), and the table of readers beside a writer ([`ReaderTable`]).
//!
//! Both disks obey one contract, which `tests/conformance.rs` checks on both. `unsafe` serves these
//! purposes only:
//!
//! - the memory of [`AlignedBuf`], [`LongBox`], [`Words`] and [`Slabs`];
//! - the mappings behind [`LogRing`] and [`ReaderTable`];
//! - reads in flight on io_uring ([`Flight`]);
//! - questions about a file's extent map;
//! - the detection of forked children ([`Process`]);
//! - the scheduler slice of a thread ([`let_wakers_in`]);
//! - prefetching ([`prefetch()`]).

mod aligned;
mod flight;
mod long;
mod prefetch;
mod readers;
mod real;
mod region;
mod ring;
pub mod sim;
mod slab;
mod slice;
mod through;
mod words;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, Result};

pub use aligned::AlignedBuf;
pub use flight::{Flight, Show, Shown};
pub use long::LongBox;
pub use prefetch::{prefetch, prefetch_all};
pub use readers::{READER_SLOTS, READERS_BYTES, ReaderSlot, ReaderTable, Taken};
pub use real::RealDisk;
pub use real::process::{Forked, Process};
pub use region::largest_buffer;
pub use ring::{
    LogRing, RING_BYTES_MAX, RING_BYTES_MIN, RingOptions, RingReader, RingSpace, RingWriter,
};
pub use sim::SimDisk;
pub use slab::{Filler, Piece, Slab, Slabs};
pub use slice::let_wakers_in;
pub use through::{DiskThrough, FileThrough, FilesThrough};
pub use words::Words;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Create the file. An existing file is an error.
    pub create_new: bool,
    /// Open for writing too, and hold an `flock` on this descriptor (D9).
    pub write: bool,
    /// Bypass the kernel's page cache where the file system allows it.
    pub direct: bool,
    /// Only with `direct`: some reads ([`File::read_cached_at`], [`Flight::cached`]) use the
    /// kernel's page cache, which may keep what they read. All other reads and all writes bypass
    /// it.
    pub cached: bool,
    /// Only without `write`: while the file is open, no handle may open it for writing. Other
    /// shared handles may (D9). Works on a read-only file system too. Without file locks in the
    /// system, this excludes only writers of this process.
    pub shared: bool,
    /// Only with `write` or `shared`: an open that another process excludes fails at once. Other
    /// opens wait some seconds.
    pub at_once: bool,
}

/// A database's directory. Names are flat: there are no paths.
pub trait Disk: Send + Sync {
    /// Opens or creates a file. [`terrapin_base::ErrorKind::Locked`] when another process or handle
    /// holds the file and the options exclude that.
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>>;
    /// Names of all files, sorted.
    fn list(&self) -> Result<Vec<String>>;
    /// Removes a file. The removal is durable after [`Disk::sync_directory`].
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file and replaces `to`. The new name is durable after [`Disk::sync_directory`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Makes creations, removals and renames durable.
    fn sync_directory(&self) -> Result<()>;
    /// Opens or creates the ring file, and maps it.
    ///
    /// A creation allocates the file, writes it once, and syncs it with the directory. A failed
    /// creation may leave the file, and the caller removes it before the next try. A reader that
    /// must neither lock nor write (D11) opens the file with [`Disk::open`] instead.
    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing>;
    /// Opens the table of readers, and maps it. With `create`, makes the file if it is missing, and
    /// allocates it whole. Takes no lock on the file.
    ///
    /// [`ErrorKind::NotFound`] without a file; [`ErrorKind::Corrupt`] for a file of another size;
    /// [`ErrorKind::Unsupported`] on a network file system, where two machines would not share the
    /// memory; [`ErrorKind::NoSpace`]; [`ErrorKind::PermissionDenied`].
    fn open_readers(&self, name: &str, create: bool) -> Result<ReaderTable>;
    /// Number of bytes that can still be allocated.
    fn free_bytes(&self) -> Result<u64>;
    /// The directory's name for errors.
    fn describe(&self) -> String;
}

/// The identity of a file: it differs from all other files of the file system, and from copies.
/// [`FileIdentity::is_of`] compares two identities.
///
/// ```
/// use terrapin_disk::FileIdentity;
/// let found = FileIdentity { inode: 12, birth_ns: 5_000 };
/// assert!(found.is_of(&found));
/// assert!(!found.is_of(&FileIdentity { birth_ns: 6_000, ..found }));
/// // A file system without birth times tells files apart by their inodes alone.
/// assert!(found.is_of(&FileIdentity { birth_ns: 0, ..found }));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileIdentity {
    /// Number of the file's inode.
    pub inode: u64,
    /// Creation time of the file in nanoseconds since 1970; 0 if the file system does not tell it.
    pub birth_ns: u64,
}

impl FileIdentity {
    /// Whether both can be of one file: equal inodes, and equal birth times if both are known.
    #[must_use]
    pub fn is_of(&self, other: &FileIdentity) -> bool {
        let unknown = self.birth_ns == 0 || other.birth_ns == 0;
        self.inode == other.inode && (unknown || self.birth_ns == other.birth_ns)
    }
}

/// An open file. Any threads may call all methods at the same time.
pub trait File: Send + Sync {
    /// Fills the buffer from `offset`. A read past the end is
    /// [`terrapin_base::ErrorKind::Corrupt`].
    ///
    /// Any alignment works. A read copies less if offset, length and memory are multiples of
    /// [`File::alignment`].
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;
    /// Reads like [`File::read_at`], but through the kernel's page cache if the file was opened
    /// with [`OpenOptions::cached`]. For bytes that are likely to be read again.
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buffer, offset)
    }
    /// Reads like [`File::read_at`], or like [`File::read_cached_at`] if `cached`, and calls
    /// `meanwhile` once.
    ///
    /// `meanwhile` runs while the device reads if the thread waits awake, and before the read
    /// otherwise. It also runs if the read fails. It must not use files.
    fn read_meanwhile(
        &self,
        buffer: &mut [u8],
        offset: u64,
        cached: bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        meanwhile();
        match cached {
            true => self.read_cached_at(buffer, offset),
            false => self.read_at(buffer, offset),
        }
    }
    /// Starts the reads that were added to a flight. The system reads in parallel as far as it can;
    /// other reads are done here in order. All reads of a flight must be of one file.
    fn start(&self, flight: &mut Flight) -> Result<()> {
        flight.read_waiting(&mut |buffer, offset| self.read_at(buffer, offset));
        Ok(())
    }
    /// Starts the waiting reads of a flight, waits for some reads, and calls `shown` once for each.
    /// `shown` gets the read's number and its bytes or error. Does nothing if no read is left.
    fn show(&self, flight: &mut Flight, which: Show, shown: Shown<'_>) -> Result<()> {
        self.start(flight)?;
        flight.show(
            which,
            &mut |buffer, offset| self.read_at(buffer, offset),
            shown,
        );
        Ok(())
    }
    /// Writes at `offset` and extends the file if necessary. With `direct`, offset and length must
    /// be multiples of [`File::alignment`].
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;
    /// Makes written data and the file's size durable (`fdatasync`).
    fn sync(&self) -> Result<()>;
    /// The file's size in bytes.
    fn bytes(&self) -> Result<u64>;
    /// The identity that tells the file from its copies. Renames, crashes and remounts keep it.
    fn identity(&self) -> Result<FileIdentity>;
    /// Number of bytes that the file occupies on the disk.
    fn allocated_bytes(&self) -> Result<u64>;
    /// Truncates or extends the file to `bytes`.
    fn set_bytes(&self, bytes: u64) -> Result<()>;
    /// Allocates space, so that later writes there cannot run out of space. Extends the file if
    /// necessary.
    ///
    /// `NoSpace` when the disk is full. An error leaves the file's size as it was, even where a
    /// file system allocates a part first, as ext4 does.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Frees the space of a range, which reads as zeros afterwards. Returns whether it did.
    ///
    /// Changes nothing, without an error, on a file system that cannot punch holes or cannot
    /// allocate them again. The content stays there too.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool>;
    /// Gives this file the content of another one without copying it: both share their blocks until
    /// one of them is written. Returns false, and changes nothing, where the file system cannot do
    /// that.
    fn share_content(&self, source: &dyn File) -> Result<bool> {
        let _ = source;
        Ok(false)
    }
    /// The descriptor of a file of the operating system.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Alignment in bytes of offsets and lengths for direct I/O: a power of two from 512.
    fn alignment(&self) -> u32;
    /// The file's name for errors.
    fn describe(&self) -> String;
}

/// Refuses a name that is not a flat file name ([`ErrorKind::InvalidArgument`]).
fn check_name(name: &str) -> Result<()> {
    let flat = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if flat && name.len() <= 255 {
        return Ok(());
    }
    Err(Error::invalid("not a plain file name").with("name", format!("{name:?}")))
}

/// Refuses options that contradict each other.
fn check_options(name: &str, options: OpenOptions) -> Result<()> {
    check_name(name)?;
    if options.create_new && !options.write {
        return Err(Error::invalid("a file is created for writing only").with("file", name));
    }
    if options.shared && options.write {
        return Err(Error::invalid("a file is shared for reading only").with("file", name));
    }
    Ok(())
}

/// Refuses a direct write that is not aligned.
fn check_aligned(
    describe: &dyn Fn() -> String,
    alignment: u32,
    offset: u64,
    bytes: usize,
) -> Result<()> {
    let unit = u64::from(alignment);
    if offset.is_multiple_of(unit) && (bytes as u64).is_multiple_of(unit) {
        return Ok(());
    }
    Err(
        Error::invalid("a direct write is off the device's alignment")
            .with("file", describe())
            .with("offset", offset)
            .with("bytes", bytes)
            .with("alignment", alignment),
    )
}

/// Returns the end of a range. Refuses a range that passes 2^63, the largest file size.
fn check_range(describe: &dyn Fn() -> String, offset: u64, bytes: u64) -> Result<u64> {
    match offset.checked_add(bytes) {
        Some(end) if i64::try_from(end).is_ok() => Ok(end),
        _ => Err(Error::invalid("a file cannot reach that far")
            .with("file", describe())
            .with("offset", offset)
            .with("bytes", bytes)),
    }
}

/// The error of a write through a handle that was opened for reading.
fn read_only(file: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, "the file was opened for reading only").with("file", file)
}

/// The error of a read past the end of a file.
fn past_end(file: &str, offset: u64, bytes: usize) -> Error {
    Error::corrupt("read past the end of the file")
        .with("file", file)
        .with("offset", offset)
        .with("bytes", bytes)
}
