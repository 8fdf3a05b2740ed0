//! A merge: the work that builds the next version of a structure, and its settings.

use std::sync::Arc;

use terrapin_base::{Condition, Operator, PageId, Result};
use terrapin_pages::Changes;
use terrapin_pages::group::ExpiredPart;

use crate::{ValuesOwner, Version};

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
    /// The keyspace's merge operator. Operands that it does not combine or apply stay as they are.
    pub operator: Operator,
    /// The moment of the merge, in milliseconds since 1970: a value whose deadline is not later is
    /// dropped at its last place. 0 drops none.
    pub now_ms: u64,
    /// The expired part of a leaf from which on a compaction rewrites it, in thousandths.
    pub expired_permille: u64,
    /// The owner of values that are stored outside of the structure, if it has handles.
    pub values: ValuesOwner,
    /// Values of at least this many bytes go into value pages. `None`: no value does.
    pub separate_from: Option<u32>,
    /// Sorted runs that a read visits in a node, from which on a structure with tiered buffers
    /// merges them. `None` lets the structure choose.
    pub runs: Option<u32>,
    /// Lookups are common enough that a structure with sorted runs should write maplets over them.
    pub maplets: bool,
    /// Damage that the merge stays away from.
    pub around: Around,
}

/// The expired part of a leaf from which on it is rewritten, in thousandths. At most three bytes
/// are written for each byte that goes.
pub const EXPIRED_PERMILLE: u64 = 250;

impl MergeOptions {
    /// The part of a leaf that has to be expired for a compaction to rewrite it.
    #[must_use]
    pub fn expired(&self) -> ExpiredPart {
        ExpiredPart {
            now_ms: self.now_ms,
            permille: self.expired_permille,
        }
    }

    /// Groups of this many bytes, blocks of 4 KiB without compression, filters of 12 bits, and a
    /// space amplification of 1.3. Nothing else is asked for.
    #[must_use]
    pub fn new(group_bytes: u64) -> Self {
        MergeOptions {
            group_bytes,
            block_bytes: 4096,
            compression: terrapin_pages::block::Compression::None,
            space_amplification_percent: Some(130),
            filter_bits: 12,
            space_is_short: false,
            operator: Operator::default(),
            now_ms: 0,
            expired_permille: EXPIRED_PERMILLE,
            values: None,
            separate_from: None,
            runs: None,
            maplets: false,
            around: Around::default(),
        }
    }
}

/// Damage that a merge stays away from ([`crate::Structure::merges_around_damage`]).
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Pages that could not be read, ascending.
    pub pages: Arc<[PageId]>,
    /// Reads no page group: the merge adds the input as a sorted run, and merges nothing.
    pub adds_only: bool,
}

impl Around {
    /// Whether a page is known to be damaged.
    #[must_use]
    pub fn has(&self, page: PageId) -> bool {
        !self.pages.is_empty() && self.pages.binary_search(&page).is_ok()
    }

    /// Whether the merge stays away from anything.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.adds_only || !self.pages.is_empty()
    }
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
