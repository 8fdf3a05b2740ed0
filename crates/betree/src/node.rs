//! Nodes as the rest of the crate sees them: pivots, and a buffer of levels of segments (TurtleKV,
//! §3.1).
//!
//! Invariants of every node. Merges keep them and `verify` checks them:
//!
//! 1. Pivots ascend. The key range of a pivot goes from its lower bound to the next pivot's. The
//!    last one's goes to the end of the node's range. All children are leaves (height 1), or all
//!    are nodes of the height below.
//! 2. Level 0 is newer than level 1, and so on. A buffer is newer than everything below it.
//! 3. A segment's messages for one pivot are either all live ([`Segment::live`] names the pivot) or
//!    all flushed. A flush always takes whole pivots. This departs from the paper, whose nodes keep
//!    an array of flushed upper bounds.
//! 4. Of a segment's group, only the keys from [`Segment::min`] to [`Segment::max`] that lie in the
//!    node's range belong to the node. If a split leaves a group to both halves, it cuts these
//!    bounds at the half's own. So flushed messages of one half never reappear when its range is
//!    given to a neighbour.
//! 5. The segments of a level do not overlap: each ends (max) before the next begins (min). A bound
//!    that was cut at a pivot may be both, if no pivot is live in both segments.

use terrapin_base::{PageId, mutant};
use terrapin_disk::LongBox;
use terrapin_pages::PageRef;
use terrapin_pages::group::{Deadlines, GroupRef};

use crate::maplet::Maplet;

/// The top of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// A tree without records.
    Empty,
    /// A tree of one leaf, and how many of its records expire when.
    Leaf(GroupRef, Deadlines),
    /// A node, and its height.
    Node(PageRef, u16),
}

/// A node, stored as one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Levels of nodes from this one down to the leaves: 1 if the children are leaves.
    pub(crate) height: u16,
    /// Share of messages, in thousandths, that were puts and found a record of their key. It covers
    /// recent flushes to the leaves below. Such puts did not make the leaves grow. Only nodes of
    /// height 1 keep it.
    pub(crate) replaced_permille: u16,
    /// [`LivePart::hidden_bytes`] counts the whole records that puts replace, as far as they are
    /// known. Nodes with tiered buffers count so, since their runs differ: an average over all
    /// runs says little.
    pub(crate) counts_replaced: bool,
    /// The children in key order, at least one.
    pub(crate) pivots: Vec<Pivot>,
    /// The buffer, newest level first. Levels may be empty, but not the last one.
    pub(crate) levels: Vec<Vec<Segment>>,
}

/// A child, and the amount of messages that the buffer holds for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pivot {
    /// The lower bound of the key range. It is empty for the first pivot, whose range begins where
    /// the node's does.
    pub(crate) lower: LongBox,
    /// The child.
    pub(crate) child: Child,
    /// How many records of the child and all below it expire when.
    pub(crate) deadlines: Deadlines,
    /// Key and value bytes of all live parts for the child. Not stored: computed when a node is
    /// decoded.
    pub(crate) pending_bytes: u64,
    /// Tells which of the pivot's segments may hold a key. Segments that it does not name are asked
    /// themselves. All its segments had, when it was made, the keys that they have for the pivot
    /// now.
    pub(crate) maplet: Option<Box<Maplet>>,
}

/// The target of a pivot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// A leaf: records without tombstones.
    Leaf(GroupRef),
    /// A node of the height below.
    Node {
        /// The node's page.
        page: PageRef,
        /// The content of the node and all below it.
        sums: Sums,
    },
}

/// The content of a node and all below it, as sums. To add a sum, add a field here, to
/// [`Node::sums`], and to `format.rs`.
///
/// Merges and figures use the sums. Correctness does not depend on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Records in leaves.
    pub(crate) records: u64,
    /// Key and value bytes of these records.
    pub(crate) leaf_bytes: u64,
    /// Key and value bytes of the messages in buffers.
    pub(crate) buffered_bytes: u64,
    /// The part of these messages that replaces equally long records, by the averages of the nodes
    /// of height 1.
    pub(crate) replaced_bytes: u64,
    /// Further bytes that messages in buffers are known to hide, as [`LivePart::hidden_bytes`]
    /// counts them.
    pub(crate) hidden_bytes: u64,
    /// An upper bound of the key and value bytes of each record and message below.
    pub(crate) record_bytes_max: u64,
    /// Bytes of values that lie outside of leaves and live parts.
    pub(crate) separated_bytes: u64,
}

/// A part of a buffer level: a page group, or the part of one that the node still uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The group. Several segments, of one node or of many, may share it.
    pub(crate) group: GroupRef,
    /// How many messages of the whole group expire when.
    pub(crate) deadlines: Deadlines,
    /// The first key of the group that belongs to this segment, or a bound below it.
    pub(crate) min: LongBox,
    /// The last key of the group that belongs to this segment, or the first key behind the last
    /// live pivot. Readers stay within `min..=max` and within the live pivots. The group's content
    /// outside belongs to other segments or is dead.
    pub(crate) max: LongBox,
    /// The pivots for which the segment is live, ascending, at least one.
    pub(crate) live: Vec<LivePart>,
}

/// A segment's messages for one pivot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LivePart {
    /// The pivot's number in the node.
    pub(crate) pivot: u16,
    /// Messages in the pivot's key range, including deletes; at least one.
    pub(crate) records: u32,
    /// Key and value bytes of these messages.
    pub(crate) bytes: u64,
    /// Bytes that these messages hide. A delete hides its own bytes and the next older record of
    /// its key, wherever that is. A put hides the bytes by which that record is longer than the
    /// put. The rest of what puts hide is known as an average: [`Node::replaced_permille`].
    pub(crate) hidden_bytes: u64,
    /// Bytes of the messages' values that lie outside of them.
    pub(crate) separated_bytes: u64,
}

impl Segment {
    /// Cuts the bounds at those of the live pivots. `hi` is exclusive, and becomes `max` itself: a
    /// key below it would have to be read.
    pub(crate) fn trim(&mut self, lo: Option<&[u8]>, hi: Option<&[u8]>) {
        if let Some(lo) = lo
            && self.min[..] < *lo
        {
            self.min = lo.into();
        }
        if let Some(hi) = hi
            && self.max[..] > *hi
        {
            self.max = hi.into();
        }
    }

    /// Whether this segment ends before another of its level begins (rule 5).
    pub(crate) fn ends_before(&self, next: &Segment) -> bool {
        let pivot = |part: Option<&LivePart>| part.map(|part| part.pivot);
        match self.max.cmp(&next.min) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => pivot(self.live.last()) < pivot(next.live.first()),
            std::cmp::Ordering::Greater => false,
        }
    }

    /// The live parts' share of the deadlines in the group.
    fn live_deadlines(&self) -> Deadlines {
        let records = self.live.iter().map(|part| u64::from(part.records)).sum();
        self.deadlines.share(records, self.group.records)
    }
}

impl Child {
    /// The page of the child.
    pub(crate) fn page(&self) -> PageId {
        match self {
            Child::Leaf(leaf) => leaf.id,
            Child::Node { page, .. } => page.id,
        }
    }

    /// Records in the leaves below.
    pub(crate) fn records(&self) -> u64 {
        match self {
            Child::Leaf(group) => group.records,
            Child::Node { sums, .. } => sums.records,
        }
    }

    /// Key and value bytes in the leaves below.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        match self {
            Child::Leaf(group) => group.logical_bytes,
            Child::Node { sums, .. } => sums.leaf_bytes,
        }
    }

    /// Sums over the child and all below it.
    pub(crate) fn sums(&self) -> Sums {
        match self {
            Child::Leaf(group) => Sums {
                records: group.records,
                leaf_bytes: group.logical_bytes,
                record_bytes_max: u64::from(group.record_bytes_max),
                separated_bytes: group.separated_bytes,
                ..Sums::default()
            },
            Child::Node { sums, .. } => *sums,
        }
    }
}

/// Upper bound of each sum over a subtree. Sums over a node's pivots, fewer than 2^16, then fit
/// into 64 bits.
pub(crate) const SUM_MAX: u64 = 1 << 47;

impl Sums {
    /// Adds the sums of a sibling. No real tree exceeds the bound, but a damaged node may claim any
    /// number (D8).
    pub(crate) fn add(&mut self, other: &Sums) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more).min(SUM_MAX);
        add(&mut self.records, other.records);
        add(&mut self.leaf_bytes, other.leaf_bytes);
        add(&mut self.buffered_bytes, other.buffered_bytes);
        add(&mut self.replaced_bytes, other.replaced_bytes);
        if !mutant::active("hidden-bytes-left-out-of-node") {
            add(&mut self.hidden_bytes, other.hidden_bytes);
        }
        self.record_bytes_max = self.record_bytes_max.max(other.record_bytes_max);
        add(&mut self.separated_bytes, other.separated_bytes);
    }

    /// Bytes in buffers and below that a merge down to the leaves would free.
    pub(crate) fn superseded_bytes(&self) -> u64 {
        self.replaced_bytes.saturating_add(self.hidden_bytes)
    }

    /// Key and value bytes of all records and messages.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.leaf_bytes.saturating_add(self.buffered_bytes)
    }

    /// Key and value bytes that a reader sees.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.stored_bytes().saturating_sub(self.superseded_bytes())
    }
}

impl Node {
    /// A node above a leaf that was the whole tree.
    pub(crate) fn above(leaf: GroupRef, deadlines: Deadlines) -> Node {
        Node {
            height: 1,
            replaced_permille: 0,
            counts_replaced: false,
            pivots: vec![Pivot {
                lower: LongBox::default(),
                child: Child::Leaf(leaf),
                deadlines,
                pending_bytes: 0,
                maplet: None,
            }],
            levels: Vec::new(),
        }
    }

    /// The leaf below the node, if it is the only child.
    pub(crate) fn lone_leaf(&self) -> Option<GroupRef> {
        match &self.pivots[..] {
            [pivot] => match pivot.child {
                Child::Leaf(leaf) => Some(leaf),
                Child::Node { .. } => None,
            },
            _ => None,
        }
    }

    /// Sums over the node and all below it.
    pub(crate) fn sums(&self) -> Sums {
        let mut below = Sums::default();
        for pivot in &self.pivots {
            below.add(&pivot.child.sums());
        }
        let mut own = Sums::default();
        for segment in self.levels.iter().flatten() {
            own.record_bytes_max = own
                .record_bytes_max
                .max(u64::from(segment.group.record_bytes_max));
            for part in &segment.live {
                own.add(&Sums {
                    buffered_bytes: part.bytes,
                    hidden_bytes: part.hidden_bytes,
                    separated_bytes: part.separated_bytes,
                    ..Sums::default()
                });
            }
        }
        // A higher node keeps no average of its own: it uses the average of all nodes below it.
        let (replaced, of) = match self.height {
            // The live parts count it.
            _ if self.counts_replaced => (0, 1),
            1 => (u64::from(self.replaced_permille), 1000),
            _ => (below.replaced_bytes, below.buffered_bytes.max(1)),
        };
        let replaced = u128::from(own.buffered_bytes) * u128::from(replaced) / u128::from(of);
        own.replaced_bytes = u64::try_from(replaced).unwrap_or(SUM_MAX);
        below.add(&own);
        below
    }

    /// How many records of the node and all below it expire when. Of a segment's messages, the live
    /// parts have the share that their number has.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let mut sum = Deadlines::default();
        for pivot in &self.pivots {
            sum.add(&pivot.deadlines);
        }
        for segment in self.levels.iter().flatten() {
            sum.add(&segment.live_deadlines());
        }
        sum
    }

    /// Whether the buffer holds no messages.
    pub(crate) fn is_buffer_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }

    /// Drops empty levels at the end, and computes `pending_bytes` of each pivot.
    pub(crate) fn tidy(&mut self) {
        while self.levels.last().is_some_and(Vec::is_empty) {
            self.levels.pop();
        }
        for pivot in &mut self.pivots {
            pivot.pending_bytes = 0;
        }
        for part in self
            .levels
            .iter()
            .flatten()
            .flat_map(|segment| &segment.live)
        {
            if let Some(pivot) = self.pivots.get_mut(usize::from(part.pivot)) {
                pivot.pending_bytes = pivot.pending_bytes.saturating_add(part.bytes);
            }
        }
    }
}
