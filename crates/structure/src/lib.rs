//! What every on-disk structure promises (layer 3), so that the engine above need not know which
//! one a keyspace chose.
//!
//! A structure's content at one moment is an immutable [`Version`]. A [`Merge`] takes a version and
//! the content of a sealed memtable ([`MergeInput`]) and builds the next version on fresh pages, in
//! steps, leaving the old one readable. Nothing here decides when a version becomes durable: the
//! engine does (D2), with the page [`Changes`] that a merge hands over.
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

/// A range of keys; both ends are bounds over byte strings.
pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From small keys to large.
    Forward,
    /// From large keys to small.
    Backward,
}

/// What a range holds, roughly: nothing may depend on it for correctness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Records, tombstones included.
    pub records: u64,
    /// Key and value bytes.
    pub bytes: u64,
}

/// Sorted messages, unique keys, forward only: what merges consume.
pub trait MessageCursor: Send {
    /// The current key, or none at the end.
    fn key(&self) -> Option<&[u8]>;
    /// The current message. Panics at the end.
    fn message(&self) -> Message<'_>;
    /// Moves on. After an error the cursor is not used again.
    fn advance(&mut self) -> Result<()>;
}

/// The content of a sealed memtable, as a merge sees it: newer than everything in the version it is
/// merged into.
pub trait MergeInput: Send + Sync {
    /// The messages of a range: `lo` inclusive, `hi` exclusive, none means unbounded.
    fn cursor(self: Arc<Self>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Box<dyn MessageCursor>;
    /// How much a range holds, within a few per cent for large ranges.
    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate;
    /// Keys that cut it into about so many equal parts, in ascending order, each above the first
    /// key; fewer, or none, where no such are known.
    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let _ = parts;
        Vec::new()
    }
    /// The share in thousandths that is known to replace something, here and in what came before: 0
    /// where that is not known.
    fn replacing_permille(&self) -> u16 {
        0
    }
}

/// How to merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// L: target bytes of a page group.
    pub group_bytes: u64,
    /// Target bytes of a block.
    pub block_bytes: u32,
    /// Compression of new blocks.
    pub compression: terrapin_pages::block::Compression,
    /// Accepted space amplification while overwriting, times 100 (130 means 1.3×); none bounds
    /// buffers by the paper's rule only.
    pub space_amplification_percent: Option<u32>,
    /// Disk space is short: flush what the input brings straight to the leaves, touch little else,
    /// and allocate from the reserve (D10).
    pub space_is_short: bool,
}

/// What a merge's step came to.
pub enum MergeStep {
    /// More can be done at once.
    Again,
    /// Other workers hold all the work there is; ask again when the condition holds.
    Pending(Condition),
    /// Everything is written (not synced); call [`Merge::finish`].
    Done,
}

/// What a finished merge hands over.
pub struct Merged {
    /// The next version.
    pub version: Arc<dyn Version>,
    /// Pages that it added, and those that it no longer refers to, for `PageStore::commit`.
    pub changes: Changes,
}

/// A merge under way. Several workers may step it at once.
pub trait Merge: Send + Sync {
    /// Does a piece of bounded size: at most about one page group read or written. After an error
    /// only [`Merge::abandon`] makes sense.
    fn step(&self) -> Result<MergeStep>;
    /// Bytes of input and of page groups consumed so far, and the total that the plan expects so
    /// far; both only grow.
    fn progress(&self) -> (u64, u64);
    /// The result; call once, after [`MergeStep::Done`].
    fn finish(&self) -> Result<Merged>;
    /// Gives back the pages written so far. Call once, instead of `finish`, when no worker is in
    /// `step`.
    fn abandon(&self);
}

/// A forward or backward scan over live records: it stands between two of them, and may be asked
/// for what follows one by one or in batches, in any mixture.
pub trait Scan: Send {
    /// The next record, valid until the next call; nothing after an error or the end.
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>>;
    /// Appends the next records to a batch until it is full, the scan at its end, or a record comes
    /// that `until` (in the scan's direction: an upper bound forward, a lower one backward) does
    /// not let in. Reads nothing for a batch that is full, and nothing only to know what follows
    /// its last record; what it must read may come with what is likely to be asked for next. The
    /// end after an error. Values are left out where [`Batch::keys_only`] says so, and records may
    /// stay in their blocks where [`Batch::lends`] does.
    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled>;
    /// Steps over the next record, or the delete that the scan stands at, if it is that of this
    /// key. Only after [`Filled::Reached`] or [`Filled::End`].
    fn skip(&mut self, key: &[u8]);
    /// How many sorted runs it began in besides that which holds most of what there is: each costs
    /// it a visit to a block or two.
    fn runs(&self) -> usize;
    /// How many deletes it went over since it was last asked, other than among the records that it
    /// gave: they took as long, and showed nothing.
    fn take_passed(&mut self) -> u64;
}

/// Figures of one version, for `stat`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StructureStats {
    /// Records in leaves, superseded by buffered messages or not.
    pub leaf_records: u64,
    /// Messages in buffers.
    pub buffered_records: u64,
    /// Key and value bytes in leaves.
    pub leaf_bytes: u64,
    /// Live key and value bytes in buffers.
    pub buffered_bytes: u64,
    /// Levels of nodes above the leaves; 0 for an empty tree or a lone leaf.
    pub height: u32,
    /// Nodes.
    pub nodes: u64,
    /// Leaf groups and buffer segments.
    pub groups: u64,
    /// Bytes of all pages on disk, each counted once.
    pub page_bytes: u64,
    /// What these bytes are.
    pub parts: PageParts,
    /// About how many bytes a merge all the way down would free: records that newer messages
    /// replace or delete, and the deletes.
    pub superseded_bytes: u64,
    /// Live buffered bytes per buffer level, summed over nodes, from the smallest level.
    pub level_bytes: Vec<u64>,
}

/// What the bytes of pages on disk are: together all that the pages occupy, the ends of their
/// extents included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageParts {
    /// Blocks of leaves.
    pub leaf_blocks: u64,
    /// Blocks of buffer segments, as far as what they hold is alive.
    pub buffer_blocks: u64,
    /// The rest of these blocks: what was flushed from a segment takes space until the last of it
    /// is.
    pub flushed_blocks: u64,
    /// Indexes of page groups.
    pub indexes: u64,
    /// Filters of page groups.
    pub filters: u64,
    /// Nodes.
    pub nodes: u64,
    /// Footers, and what fills pages up to whole extents.
    pub padding: u64,
}

impl PageParts {
    /// Adds another's bytes.
    pub fn add(&mut self, other: &PageParts) {
        self.leaf_blocks = self.leaf_blocks.saturating_add(other.leaf_blocks);
        self.buffer_blocks = self.buffer_blocks.saturating_add(other.buffer_blocks);
        self.flushed_blocks = self.flushed_blocks.saturating_add(other.flushed_blocks);
        self.indexes = self.indexes.saturating_add(other.indexes);
        self.filters = self.filters.saturating_add(other.filters);
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.padding = self.padding.saturating_add(other.padding);
    }

    /// All of them.
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

/// Something wrong that `verify` found; it is shown as its place and message in one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Where: page, block, key range.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

impl Finding {
    /// A finding.
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

/// The immutable content of a keyspace at a checkpoint.
pub trait Version: Send + Sync + Any {
    /// What the catalog stores so that [`Structure::open`] finds this version again.
    fn root(&self) -> Vec<u8>;
    /// The value of a key. `hash` is `base::checksum::hash64(key)`.
    fn get(&self, key: &[u8], hash: u64) -> Result<Option<Slice>>;
    /// Whether the key has a value.
    fn contains(&self, key: &[u8], hash: u64) -> Result<bool>;
    /// The values of many keys; device reads go out in parallel. Fills `out[i]` for `keys[i]`.
    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Option<Slice>]) -> Result<()>;
    /// Scans live records of a range.
    fn scan(&self, bounds: KeyBounds<'_>, direction: Direction) -> Result<Box<dyn Scan>> {
        self.scan_expecting(bounds, direction, 0)
    }
    /// As [`Version::scan`], where about so many records are going to be asked for, 0 when nobody
    /// knows. Costs time when it is wrong, and nothing else.
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Box<dyn Scan>>;
    /// How much a range holds.
    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate>;
    /// Every page this version refers to, once per reference (D4). Reads nodes only. One that
    /// cannot be read is passed over, with all below it, and is the error in the end; an error of
    /// `visit` ends the walk.
    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()>;
    /// About how many key and value bytes readers see: what newer messages hide, and deletes, do
    /// not count. Reads the root node at most.
    fn live_bytes(&self) -> Result<u64>;
    /// Figures.
    fn stats(&self) -> Result<StructureStats>;
    /// What compactions from the first key to the last would do. Reads nodes only.
    fn to_compact(&self) -> Result<ToCompact>;
    /// Checks every byte and invariant; calls back for each finding and goes on. An error only when
    /// checking itself cannot go on.
    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()>;
    /// For a structure to find its own type again.
    fn as_any(&self) -> &dyn Any;
}

/// What a compaction has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToCompact {
    /// Key and value bytes that it merges: 0 where it has nothing to do.
    pub merged_bytes: u64,
    /// What of these buffers hold.
    pub buffered_bytes: u64,
}

/// A merge that brings in nothing, and makes ranges over a stretch of keys cheaper: afterwards one
/// sorted run holds them.
pub struct Compaction {
    /// The merge.
    pub merge: Arc<dyn Merge>,
    /// Where the stretch ends, and the next may begin; none where that is the end of all keys, or
    /// of those that were asked for.
    pub next: Option<Box<[u8]>>,
}

/// A kind of structure, bound to a page store.
pub trait Structure: Send + Sync {
    /// Its name in the catalog and in `stat`.
    fn name(&self) -> &'static str;
    /// The version without records.
    fn empty(&self) -> Arc<dyn Version>;
    /// The version that a [`Version::root`] names.
    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>>;
    /// Plans a merge of `input` into `base`.
    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>>;
    /// Plans a compaction of the first stretch at or behind a key that has anything to merge, of
    /// about `bytes_max` key and value bytes, and not much beyond another key, if one is given;
    /// none where nothing has.
    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>>;
}
