//! Files as the engine sees them (layer 1): [`Disk`] and [`File`], a production implementation on direct I/O, the shared
//! memory of the log ([`LogRing`]), and a simulated disk with crashes and faults.

use std::sync::Arc;

use terrapin_base::Result;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Create it; an error if it exists.
    pub create_new: bool,
    /// Open for writing too, and hold the `flock` on this very descriptor (D9).
    pub write: bool,
    /// Bypass the kernel's page cache where the file system allows it.
    pub direct: bool,
}

/// One read of a batch.
pub struct Read<'a> {
    /// Where in the file.
    pub offset: u64,
    /// What to fill, wholly.
    pub buffer: &'a mut [u8],
}

/// A database's directory: flat names, no paths.
pub trait Disk: Send + Sync {
    /// Opens or creates a file. [`terrapin_base::ErrorKind::Locked`] when another process (or handle) holds it.
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>>;
    /// Names of the files there are, sorted.
    fn list(&self) -> Result<Vec<String>>;
    /// Removes a file; durable after [`Disk::sync_directory`].
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file over another; durable after [`Disk::sync_directory`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Makes creations, removals and renames durable.
    fn sync_directory(&self) -> Result<()>;
    /// Creates the ring file (allocated, written once, synced with the directory) or opens it, and maps it.
    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing>;
    /// Bytes that may still be allocated.
    fn free_bytes(&self) -> Result<u64>;
    /// Names the directory in errors.
    fn describe(&self) -> String;
}

/// A file of fixed identity. All methods may be called from any thread at once.
pub trait File: Send + Sync {
    /// Fills the buffer from that offset; reading past the end is an error ([`terrapin_base::ErrorKind::Corrupt`]). Any alignment works;
    /// multiples of [`File::alignment`] in offset, length and memory avoid a copy.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;
    /// Does many reads, in parallel where the system can. All are tried; the first error is returned.
    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<()>;
    /// Writes at that offset, extending the file if need be. Offset and length must be multiples of [`File::alignment`] when opened `direct`.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;
    /// Makes written data and the file's size durable (`fdatasync`).
    fn sync(&self) -> Result<()>;
    /// The file's size in bytes.
    fn bytes(&self) -> Result<u64>;
    /// Bytes that the file occupies on the disk.
    fn allocated_bytes(&self) -> Result<u64>;
    /// Cuts or extends the file.
    fn set_bytes(&self, bytes: u64) -> Result<()>;
    /// Allocates space, so that later writes there cannot run out of it; the file grows if need be. `NoSpace` when there is none.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Gives space back to the file system; the range reads as zeros afterwards. A file system that cannot is no error.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()>;
    /// What direct I/O wants of offsets and lengths here: 512 or more, a power of two.
    fn alignment(&self) -> u32;
    /// Names the file in errors.
    fn describe(&self) -> String;
}
