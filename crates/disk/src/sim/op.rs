//! The calls on a simulated disk: their kinds, their counts, and the trace of them.

/// A call on the disk, for faults and traces. Each read of a batch is a call of its own. Asking for
/// a file's size or allocation is none.
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
    /// A store into a log ring. It cannot fail and is counted apart ([`SimDisk::ring_writes`]).
    RingWrite,
}

/// What was done to a file, or to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// Reads; each of a batch counts.
    pub reads: u64,
    /// Bytes that reads asked for.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that writes brought.
    pub written_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Allocations.
    pub allocations: u64,
    /// Allocations that failed, for lack of space or otherwise.
    pub refusals: u64,
}

/// One call, as a trace records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// What was called.
    pub op: Op,
    /// On which file; empty for the directory.
    pub file: String,
    /// Where in it, or its new size.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
}
