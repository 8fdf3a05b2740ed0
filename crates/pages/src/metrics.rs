//! Counters of a page store since it was opened.

use terrapin_base::sync::{AtomicU64, Ordering};

/// Lookups in the cache by kind of entry. A merge or get adds its lookups of nodes that it already
/// holds in groups, so these counts may lag a little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheCounts {
    /// Data blocks.
    pub blocks: u64,
    /// Group indexes.
    pub indexes: u64,
    /// Filter partitions.
    pub filters: u64,
    /// Decoded nodes and other objects.
    pub objects: u64,
}

/// Device reads, as calls and bytes, by the kind of reader. They include reads that the system's
/// page cache served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceReads {
    /// Reads of blocks for gets.
    pub get_reads: u64,
    /// Bytes read for gets.
    pub get_bytes: u64,
    /// Reads of blocks for scans.
    pub scan_reads: u64,
    /// Bytes read for scans.
    pub scan_bytes: u64,
    /// Reads of blocks for merges.
    pub merge_reads: u64,
    /// Bytes read for merges.
    pub merge_bytes: u64,
    /// Reads of nodes, catalog pages, indexes, filters and superblocks.
    pub meta_reads: u64,
    /// Bytes read of nodes, catalog pages, indexes, filters and superblocks.
    pub meta_bytes: u64,
    /// Reads of whole groups, to verify them.
    pub verify_reads: u64,
    /// Bytes read to verify whole groups.
    pub verify_bytes: u64,
}

impl DeviceReads {
    /// Reads of all kinds.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.get_reads + self.scan_reads + self.merge_reads + self.meta_reads + self.verify_reads
    }
}

/// Bytes written to the data file, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WrittenBytes {
    /// Page groups written as leaves.
    pub leaves: u64,
    /// Page groups written as buffer segments, and the maplets over them.
    pub segments: u64,
    /// Nodes.
    pub nodes: u64,
    /// Catalog pages.
    pub catalog: u64,
    /// Superblocks.
    pub superblocks: u64,
    /// Pages of separated values.
    pub values: u64,
}

impl WrittenBytes {
    /// Bytes of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.leaves + self.segments + self.nodes + self.catalog + self.superblocks + self.values
    }
}

/// Figures of a page store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreMetrics {
    /// Lookups that found an entry.
    pub hits: CacheCounts,
    /// Lookups that found no entry.
    pub misses: CacheCounts,
    /// First uses of blocks in the oldest quarter of the cache. With a quarter less memory, each
    /// would have been a device read.
    pub block_rescues: u64,
    /// Entries that left the cache to make room.
    pub evictions: u64,
    /// Entries in the cache now.
    pub cache_entries: u64,
    /// Bytes that the entries are charged for.
    pub cache_bytes: u64,
    /// Reads of the data file.
    pub read: DeviceReads,
    /// Bytes written to the data file.
    pub written: WrittenBytes,
    /// Bytes returned to the file system.
    pub reclaimed_bytes: u64,
}

/// Why bytes of the data file are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFor {
    /// For a get.
    Get,
    /// For a scan.
    Scan,
    /// For a merge, or for collecting values.
    Merge,
    /// For nodes, indexes, filters, and other pages that lead to records.
    Meta,
    /// To verify them.
    Verify,
}

impl ReadFor {
    /// Whether the same bytes are likely to be read again. Pages that a merge reads are dead
    /// afterwards, and verification must read the device.
    pub(crate) fn may_come_again(self) -> bool {
        match self {
            ReadFor::Get | ReadFor::Scan | ReadFor::Meta => true,
            ReadFor::Merge | ReadFor::Verify => false,
        }
    }
}

/// The kind of bytes that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOf {
    Leaf,
    Segment,
    Node,
    Catalog,
    Superblock,
    Values,
}

/// The device's counters. They are relaxed: each addition stands beside an I/O that takes
/// microseconds.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: [(AtomicU64, AtomicU64); 5],
    written: [AtomicU64; 6],
    reclaimed: AtomicU64,
    /// How many bytes the reads for scans were shorter than long ones.
    scans_short_by: AtomicU64,
}

/// A read of this many bytes is long: data in the best order need it, too.
const LONG_READ_BYTES: u64 = 32 << 10;
/// Bytes of a usual block.
const BLOCK_BYTES: u64 = 4 << 10;

impl Counters {
    pub(crate) fn read(&self, purpose: ReadFor, calls: u64, bytes: u64) {
        let (reads, read_bytes) = &self.reads[purpose as usize];
        reads.fetch_add(calls, Ordering::Relaxed);
        read_bytes.fetch_add(bytes, Ordering::Relaxed);
        if purpose == ReadFor::Scan {
            let short_by = (calls * LONG_READ_BYTES).saturating_sub(bytes);
            self.scans_short_by.fetch_add(short_by, Ordering::Relaxed);
        }
    }

    /// Reads for scans. A read of a block counts fully, a longer one in part, and one of 32 KiB not
    /// at all.
    pub(crate) fn short_scan_reads(&self) -> u64 {
        self.scans_short_by.load(Ordering::Relaxed) / (LONG_READ_BYTES - BLOCK_BYTES)
    }

    pub(crate) fn reads(&self, purpose: ReadFor) -> u64 {
        self.reads[purpose as usize].0.load(Ordering::Relaxed)
    }

    pub(crate) fn written(&self, what: WriteOf, bytes: u64) {
        self.written[what as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn reclaimed(&self, bytes: u64) {
        self.reclaimed.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn reclaimed_bytes(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    /// Copies the counters into `metrics`.
    pub(crate) fn fill(&self, metrics: &mut StoreMetrics) {
        let read = |purpose: ReadFor| {
            let (calls, bytes) = &self.reads[purpose as usize];
            (calls.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
        };
        let out = &mut metrics.read;
        (out.get_reads, out.get_bytes) = read(ReadFor::Get);
        (out.scan_reads, out.scan_bytes) = read(ReadFor::Scan);
        (out.merge_reads, out.merge_bytes) = read(ReadFor::Merge);
        (out.meta_reads, out.meta_bytes) = read(ReadFor::Meta);
        (out.verify_reads, out.verify_bytes) = read(ReadFor::Verify);
        let written = |what: WriteOf| self.written[what as usize].load(Ordering::Relaxed);
        metrics.written = WrittenBytes {
            leaves: written(WriteOf::Leaf),
            segments: written(WriteOf::Segment),
            nodes: written(WriteOf::Node),
            catalog: written(WriteOf::Catalog),
            superblocks: written(WriteOf::Superblock),
            values: written(WriteOf::Values),
        };
        metrics.reclaimed_bytes = self.reclaimed_bytes();
    }
}
