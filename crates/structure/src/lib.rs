//! The interface of every on-disk structure (layer 3). The engine above uses it and does not know
//! which structure a keyspace has chosen.
//!
//! A [`Version`] is the immutable content of a structure at one moment. A [`Merge`] takes a version
//! and the content of a sealed memtable ([`MergeInput`]). It builds the next version on fresh
//! pages, step by step, and leaves the old version readable. The engine decides when a version
//! becomes durable (D2). A merge hands its page [`Changes`] over for that.
#![forbid(unsafe_code)]

mod batch;
mod merge;

use std::any::Any;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Condition, Message, Result, Slice};
pub use terrapin_pages::{Changes, PageUse};

pub use batch::{Batch, BatchLimits, Filled, Located};
pub use merge::KWayMerge;

/// A range of keys. Both ends are bounds over byte strings.
pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From small keys to large.
    Forward,
    /// From large keys to small.
    Backward,
}

/// Approximate content of a key range. Correctness must never depend on an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Records, including tombstones.
    pub records: u64,
    /// Key and value bytes.
    pub bytes: u64,
}

/// A cursor over sorted messages with unique keys. It only moves forward; merges read from it.
pub trait MessageCursor: Send {
    /// The current key; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// The current message. Panics at the end.
    fn message(&self) -> Message<'_>;
    /// Moves to the next message. The caller drops the cursor after an error.
    fn advance(&mut self) -> Result<()>;
}

/// The content of a sealed memtable, as a merge sees it. Its messages are newer than everything in
/// the version that the merge starts from.
pub trait MergeInput: Send + Sync {
    /// A cursor over the messages of a range: `lo` is inclusive, `hi` is exclusive, and `None` is
    /// unbounded.
    fn cursor(self: Arc<Self>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Box<dyn MessageCursor>;
    /// Estimates the content of a range, within a few per cent for large ranges.
    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate;
    /// Keys that divide the input into about `parts` equal parts, in ascending order. Each is above
    /// the input's first key. The list may be shorter, or empty.
    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let _ = parts;
        Vec::new()
    }
    /// The share of messages known to replace a record, in thousandths. It covers this memtable and
    /// those before it. 0 means that the share is not known.
    fn replacing_permille(&self) -> u16 {
        0
    }
}

/// Settings of one merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// L: target bytes of a page group.
    pub group_bytes: u64,
    /// Target bytes of a block.
    pub block_bytes: u32,
    /// Compression of new blocks.
    pub compression: terrapin_pages::block::Compression,
    /// Space amplification that is accepted while records are overwritten, in per cent (130 means
    /// 1.3×). `None` bounds buffers by the rule of the paper only.
    pub space_amplification_percent: Option<u32>,
    /// Bits of filter for each record of new page groups; 0 for groups without a filter.
    pub filter_bits: u32,
    /// Disk space is short (D10). The merge flushes the input straight to the leaves, changes
    /// little else, and allocates from the reserve.
    pub space_is_short: bool,
}

/// The result of one step of a merge.
pub enum MergeStep {
    /// The merge has more work that can start at once.
    Again,
    /// Other workers hold all the work there is. Call again when the condition holds.
    Pending(Condition),
    /// All pages are written but not synced. Call [`Merge::finish`].
    Done,
}

/// The result of a finished merge.
pub struct Merged {
    /// The next version.
    pub version: Arc<dyn Version>,
    /// Pages that the next version added, and pages that it no longer refers to.
    /// `PageStore::commit` takes them.
    pub changes: Changes,
}

/// A merge in progress. Several workers may call `step` at the same time.
pub trait Merge: Send + Sync {
    /// Does a bounded piece of work: reads or writes about one page group at most. After an error
    /// only [`Merge::abandon`] may be called.
    fn step(&self) -> Result<MergeStep>;
    /// Bytes of input and page groups consumed so far, and the total that is expected so far. Both
    /// only grow.
    fn progress(&self) -> (u64, u64);
    /// Returns the result. Call it once, after [`MergeStep::Done`].
    fn finish(&self) -> Result<Merged>;
    /// Gives back the pages written so far. Call it once, instead of `finish`, when no worker is in
    /// `step`.
    fn abandon(&self);
}

/// A scan over live records, forward or backward. Its position is between two records. Calls of
/// [`Scan::next`] and [`Scan::fill`] may be mixed.
pub trait Scan: Send {
    /// Returns the next record, valid until the next call. Returns `None` at the end and after an
    /// error.
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>>;
    /// Appends the next records to a batch. It stops when the batch is full, at the end, or before
    /// the first record outside `until`.
    ///
    /// `until` is an upper bound for a forward scan and a lower bound for a backward scan. The call
    /// reads nothing when the batch is full. It also reads nothing only to find out what follows
    /// the batch's last record. A read that it needs may include blocks that the caller will
    /// probably ask for next.
    ///
    /// Values are left out if [`Batch::keys_only`] is set. Records may stay in their blocks if
    /// [`Batch::lends`] is set. After an error the scan is at its end.
    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled>;
    /// Steps over the next record or tombstone if it has this key. Allowed only after
    /// [`Filled::Reached`] or [`Filled::End`].
    fn skip(&mut self, key: &[u8]);
    /// The number of sorted runs in which the scan began, without the run that holds most records.
    /// Each of them costs the scan a visit to a block or two.
    fn runs(&self) -> usize;
    /// The number of tombstones passed since the last call, other than those between returned
    /// records. They cost time and returned nothing.
    fn take_passed(&mut self) -> u64;
}

/// Figures of one version, for `stat`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StructureStats {
    /// Records in leaves, including those that buffered messages supersede.
    pub leaf_records: u64,
    /// Messages in buffers.
    pub buffered_records: u64,
    /// Key and value bytes in leaves.
    pub leaf_bytes: u64,
    /// Live key and value bytes in buffers.
    pub buffered_bytes: u64,
    /// Levels of nodes above the leaves. It is 0 for an empty tree and for a tree of one leaf.
    pub height: u32,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of leaves and buffer segments.
    pub groups: u64,
    /// Bytes of all pages on disk. A page counts once, however often it is referred to.
    pub page_bytes: u64,
    /// The same bytes, by what they hold.
    pub parts: PageParts,
    /// Approximate bytes that a merge down to the leaves would free: records that newer messages
    /// replace or delete, and the deletes.
    pub superseded_bytes: u64,
    /// Live buffered bytes of each buffer level, summed over all nodes. The smallest level comes
    /// first.
    pub level_bytes: Vec<u64>,
}

/// The bytes of pages on disk, by what they hold. The parts add up to all space that the pages
/// occupy, including the ends of their extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageParts {
    /// Blocks of leaves.
    pub leaf_blocks: u64,
    /// Blocks of buffer segments, in proportion to the messages that are still live.
    pub buffer_blocks: u64,
    /// The rest of those blocks. Flushed messages occupy space until the last part of their segment
    /// is flushed.
    pub flushed_blocks: u64,
    /// Indexes of page groups.
    pub indexes: u64,
    /// Filters of page groups.
    pub filters: u64,
    /// Nodes.
    pub nodes: u64,
    /// Footers, and the padding that fills pages up to whole extents.
    pub padding: u64,
}

impl PageParts {
    /// Adds the bytes of `other`, saturating.
    pub fn add(&mut self, other: &PageParts) {
        self.leaf_blocks = self.leaf_blocks.saturating_add(other.leaf_blocks);
        self.buffer_blocks = self.buffer_blocks.saturating_add(other.buffer_blocks);
        self.flushed_blocks = self.flushed_blocks.saturating_add(other.flushed_blocks);
        self.indexes = self.indexes.saturating_add(other.indexes);
        self.filters = self.filters.saturating_add(other.filters);
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.padding = self.padding.saturating_add(other.padding);
    }

    /// The sum of all parts in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        let groups = [
            self.leaf_blocks,
            self.buffer_blocks,
            self.flushed_blocks,
            self.indexes,
            self.filters,
        ];
        let sum = groups.into_iter().fold(self.nodes, u64::saturating_add);
        sum.saturating_add(self.padding)
    }
}

/// A fault that `verify` found. It is displayed as place and message in one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Where the fault is: page, block, or key range.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

impl Finding {
    /// Makes a finding.
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Finding {
            place: place.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// The immutable content of a keyspace at one checkpoint.
pub trait Version: Send + Sync + Any {
    /// The bytes that the catalog stores, from which [`Structure::open`] opens this version again.
    fn root(&self) -> Vec<u8>;
    /// Returns the value of a key. `hash` is `base::checksum::hash64(key)`.
    fn get(&self, key: &[u8], hash: u64) -> Result<Option<Slice>>;
    /// Returns whether the key has a value. `hash` is `base::checksum::hash64(key)`.
    fn contains(&self, key: &[u8], hash: u64) -> Result<bool>;
    /// Looks up many keys with parallel device reads. `out[i]` receives the value of `keys[i]`.
    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Option<Slice>]) -> Result<()>;
    /// Starts a scan of the live records of a range.
    fn scan(&self, bounds: KeyBounds<'_>, direction: Direction) -> Result<Box<dyn Scan>> {
        self.scan_expecting(bounds, direction, 0)
    }
    /// Starts a scan from which the caller expects to take about `expected` records; 0 means
    /// unknown. A wrong expectation costs time only.
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Box<dyn Scan>>;
    /// Estimates the content of a range.
    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate>;
    /// Calls `visit` for every page that this version refers to, once for each reference (D4). It
    /// reads nodes only.
    ///
    /// If a node cannot be read, the walk skips all that is below it and returns that error at the
    /// end. An error of `visit` ends the walk at once.
    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()>;
    /// Approximate key and value bytes that readers see. Tombstones and whatever newer messages
    /// hide do not count. Reads the root node at most.
    fn live_bytes(&self) -> Result<u64>;
    /// Figures of this version. Reads nodes only.
    fn stats(&self) -> Result<StructureStats>;
    /// The work of compactions from the first key to the last. Reads nodes only.
    fn to_compact(&self) -> Result<ToCompact>;
    /// Checks every byte and every invariant. Calls `found` for each fault and goes on. Returns an
    /// error only if the check itself cannot go on.
    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()>;
    /// Gives a structure access to its own type.
    fn as_any(&self) -> &dyn Any;
}

/// The work of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToCompact {
    /// Key and value bytes that it merges; 0 if it has nothing to do.
    pub merged_bytes: u64,
    /// The part of those bytes that is in buffers.
    pub buffered_bytes: u64,
}

/// A merge without input. It makes ranges over one stretch of keys cheaper: afterwards one sorted
/// run holds the stretch.
pub struct Compaction {
    /// The merge.
    pub merge: Arc<dyn Merge>,
    /// The end of the stretch, where the next stretch may begin. `None` at the end of all keys, or
    /// of the keys that were asked for.
    pub next: Option<Box<[u8]>>,
}

/// A kind of structure, bound to a page store.
pub trait Structure: Send + Sync {
    /// The name that the catalog and `stat` use.
    fn name(&self) -> &'static str;
    /// The version without records.
    fn empty(&self) -> Arc<dyn Version>;
    /// Opens the version that [`Version::root`] described.
    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>>;
    /// Plans a merge of `input` into `base`.
    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>>;
    /// Plans a compaction of the first stretch at or above `keys.0` that has work to do. The
    /// stretch holds about `bytes_max` key and value bytes, and ends soon after `keys.1`, if given.
    /// Returns `None` if no stretch has work to do.
    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>>;
}
