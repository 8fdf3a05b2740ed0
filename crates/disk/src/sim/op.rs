//! The calls on a simulated disk: their kinds, their counters, and the trace of them.

/// The kind of a call on the disk. Each read of a batch is a call. A question for a file's size or
/// allocation is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // each is the method of that name
pub enum Op {
    Open,
    List,
    Remove,
    Rename,
    SyncDirectory,
    OpenRing,
    FreeBytes,
    Read,
    Write,
    Sync,
    SetBytes,
    Allocate,
    PunchHole,
    /// A store into a log ring. It cannot fail, and [`super::SimDisk::ring_writes`] counts it.
    RingWrite,
}

/// Counters of one file or of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// Number of reads; each read of a batch counts.
    pub reads: u64,
    /// Bytes that reads asked for.
    pub read_bytes: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes that writes were given.
    pub written_bytes: u64,
    /// Number of syncs.
    pub syncs: u64,
    /// Number of allocations, failed ones included.
    pub allocations: u64,
    /// Number of failed allocations.
    pub refusals: u64,
}

/// One call in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// The kind of the call.
    pub op: Op,
    /// The file's name; empty for the directory.
    pub file: String,
    /// Offset in the file in bytes, or the file's new size.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}
