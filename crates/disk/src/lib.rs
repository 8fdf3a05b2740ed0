//! Files as the engine sees them (layer 1): [`Disk`] and [`File`], a production implementation on
//! direct I/O, the shared memory of the log ([`LogRing`]), and a simulated disk with crashes and
//! faults ([`SimDisk`]).
//!
//! Both disks obey one contract, which one set of scripts checks (`tests/conformance.rs`). `unsafe`
//! is here in few places only: the memory of [`AlignedBuf`], [`LongBox`], [`Words`] and [`Slabs`],
//! the mapping behind [`LogRing`], reads under way, on io_uring ([`Flight`]), what is asked about a
//! file's map, which process is a child ([`Process`]), how long a thread likes to compute
//! ([`let_wakers_in`]), and what memory is asked for ahead ([`prefetch()`]).

mod aligned;
mod flight;
mod long;
mod prefetch;
mod real;
mod region;
mod ring;
pub mod sim;
mod slab;
mod slice;
mod through;
mod words;

use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, Result};

pub use aligned::AlignedBuf;
pub use flight::{Flight, Show, Shown};
pub use long::LongBox;
pub use prefetch::{prefetch, prefetch_all};
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
    /// Create it; an error if it exists.
    pub create_new: bool,
    /// Open for writing too, and hold the `flock` on this very descriptor (D9).
    pub write: bool,
    /// Bypass the kernel's page cache where the file system allows it.
    pub direct: bool,
    /// Beside `direct`: reads that ask for it ([`File::read_cached_at`], [`Flight::cached`]) go by
    /// way of the page cache, which then has what they read for as long as the system wants its
    /// memory for nothing else. All other reads and all writes bypass it.
    pub cached: bool,
    /// Only with `write` off: as long as the file is open, nobody may hold it for writing, while
    /// any number may share it (D9). Writes nothing, and so works on a read-only file system too;
    /// where the system knows no locks, only writers of this process are kept out.
    pub shared: bool,
}

/// A database's directory: flat names, no paths.
pub trait Disk: Send + Sync {
    /// Opens or creates a file. [`terrapin_base::ErrorKind::Locked`] when another process (or
    /// handle) holds it in a way that these options exclude.
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>>;
    /// Names of the files there are, sorted.
    fn list(&self) -> Result<Vec<String>>;
    /// Removes a file; durable after [`Disk::sync_directory`].
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file over another; durable after [`Disk::sync_directory`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Makes creations, removals and renames durable.
    fn sync_directory(&self) -> Result<()>;
    /// Creates the ring file (allocated, written once, synced with the directory) or opens it, and
    /// maps it. A creation that fails may leave the file, to be removed before the next try. A
    /// reader that must not lock or write (D11) opens the file as any other and reads it.
    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing>;
    /// Bytes that may still be allocated.
    fn free_bytes(&self) -> Result<u64>;
    /// Names the directory in errors.
    fn describe(&self) -> String;
}

/// What tells a file from all others of its file system, and from its copies. Two of them are of
/// one file if they are equal ([`FileIdentity::is_of`]).
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
    /// Number of the inode.
    pub inode: u64,
    /// When the file was created, in nanoseconds since 1970; 0 where the file system does not say.
    pub birth_ns: u64,
}

impl FileIdentity {
    /// Whether both may be of one file: equal inodes, and equal birth times where both are known.
    #[must_use]
    pub fn is_of(&self, other: &FileIdentity) -> bool {
        let unknown = self.birth_ns == 0 || other.birth_ns == 0;
        self.inode == other.inode && (unknown || self.birth_ns == other.birth_ns)
    }
}

/// A file of fixed identity. All methods may be called from any thread at once.
pub trait File: Send + Sync {
    /// Fills the buffer from that offset; reading past the end is an error
    /// ([`terrapin_base::ErrorKind::Corrupt`]). Any alignment works; multiples of
    /// [`File::alignment`] in offset, length and memory avoid a copy.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;
    /// As [`File::read_at`], of bytes that may be asked for again: by way of the page cache where
    /// the file was opened for that ([`OpenOptions::cached`]).
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buffer, offset)
    }
    /// As [`File::read_at`], or as [`File::read_cached_at`] if it is `cached`; does something
    /// `meanwhile`, once, whether the read succeeds or not: while the device reads, where that is
    /// waited for awake, else before it. What is done must not use files.
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
    /// Begins the reads that were added to a flight: in parallel where the system can, as many as
    /// it takes at once; else they are done here, in order. All reads of a flight are of one file.
    fn start(&self, flight: &mut Flight) -> Result<()> {
        flight.read_waiting(&mut |buffer, offset| self.read_at(buffer, offset));
        Ok(())
    }
    /// Begins what was not begun, waits for some reads of a flight, and shows each of these once:
    /// its number, and its bytes or what is wrong with it. Nothing is shown when nothing is left.
    fn show(&self, flight: &mut Flight, which: Show, shown: Shown<'_>) -> Result<()> {
        self.start(flight)?;
        flight.show(
            which,
            &mut |buffer, offset| self.read_at(buffer, offset),
            shown,
        );
        Ok(())
    }
    /// Writes at that offset, extending the file if need be. Offset and length must be multiples of
    /// [`File::alignment`] when opened `direct`.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;
    /// Makes written data and the file's size durable (`fdatasync`).
    fn sync(&self) -> Result<()>;
    /// The file's size in bytes.
    fn bytes(&self) -> Result<u64>;
    /// What tells the file from its copies. It stays the same over renames, crashes and remounts.
    fn identity(&self) -> Result<FileIdentity>;
    /// Bytes that the file occupies on the disk.
    fn allocated_bytes(&self) -> Result<u64>;
    /// Cuts or extends the file.
    fn set_bytes(&self, bytes: u64) -> Result<()>;
    /// Allocates space, so that later writes there cannot run out of it; the file grows if need be.
    /// `NoSpace` when there is none. After an error the file is as long as it was, also where the
    /// file system had taken what there was (ext4 does).
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Gives space back to the file system; the range reads as zeros afterwards. A file system that
    /// cannot, or was found to be unable to allocate it again, is no error: then nothing changes,
    /// content included.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()>;
    /// What direct I/O wants of offsets and lengths here: 512 or more, a power of two.
    fn alignment(&self) -> u32;
    /// Names the file in errors.
    fn describe(&self) -> String;
}

/// Reads a whole file that may be at most `bytes_max` long; a longer one is [`ErrorKind::Corrupt`],
/// so that a damaged or foreign file cannot make anyone allocate without bound (D8).
pub fn read_whole(file: &dyn File, bytes_max: u64) -> Result<Vec<u8>> {
    let bytes = file.bytes()?;
    let too_long = || {
        Error::corrupt("a file is longer than it can be")
            .with("file", file.describe())
            .with("bytes", bytes)
            .with("limit", bytes_max)
    };
    if bytes > bytes_max {
        return Err(too_long());
    }
    let mut content = vec![0; usize::try_from(bytes).map_err(|_| too_long())?];
    file.read_at(&mut content, 0)?;
    Ok(content)
}

/// Refuses what is not a flat file name ([`ErrorKind::InvalidArgument`]).
fn check_name(name: &str) -> Result<()> {
    let flat = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if flat && name.len() <= 255 {
        return Ok(());
    }
    Err(Error::invalid("not a plain file name").with("name", format!("{name:?}")))
}

/// Refuses options that contradict each other, for any disk.
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

/// Refuses a direct write off the alignment, for any disk.
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

/// Refuses a range that passes 2^63, where files end, for any disk.
fn check_range(describe: &dyn Fn() -> String, offset: u64, bytes: u64) -> Result<u64> {
    match offset.checked_add(bytes) {
        Some(end) if i64::try_from(end).is_ok() => Ok(end),
        _ => Err(Error::invalid("a file cannot reach that far")
            .with("file", describe())
            .with("offset", offset)
            .with("bytes", bytes)),
    }
}

/// A write through a handle that was opened for reading.
fn read_only(file: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, "the file was opened for reading only").with("file", file)
}

/// A read past the end of a file.
fn past_end(file: &str, offset: u64, bytes: usize) -> Error {
    Error::corrupt("read past the end of the file")
        .with("file", file)
        .with("offset", offset)
        .with("bytes", bytes)
}
