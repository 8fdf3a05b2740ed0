//! Nodes as the rest of the crate sees them: pivots, and a buffer of levels of segments (TurtleKV
//! §3.1).
//!
//! What holds of every node (a merge keeps it, `verify` checks it):
//!
//! 1. Pivots ascend; a pivot's key range goes from its lower bound to the next pivot's, the last
//!    one's to the end of the node's own range. All children are leaves (height 1) or nodes of the
//!    height below.
//! 2. Level 0 is newer than level 1, and so on; a buffer is newer than everything below it.
//! 3. What a segment says for a pivot is either wholly alive ([`Segment::live`] names the pivot) or
//!    wholly flushed. So the paper's array of flushed upper bounds is not needed: whole pivots are
//!    flushed.
//! 4. Of a segment's group, only the keys from [`Segment::min`] to [`Segment::max`] belong to the
//!    node. A node split leaves a group to both halves and cuts these bounds, so that what one half
//!    has flushed never comes back when its range is given to a neighbour.
//! 5. Segments of a level do not overlap: each ends (max) before the next begins (min).

use terrapin_base::mutant;
use terrapin_disk::LongBox;
use terrapin_pages::PageRef;
use terrapin_pages::group::GroupRef;

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// No records.
    Empty,
    /// A leaf alone.
    Leaf(GroupRef),
    /// A node of that height.
    Node(PageRef, u16),
}

/// A node: a page of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Levels of nodes from here down to the leaves: 1 when the children are leaves.
    pub(crate) height: u16,
    /// Of the messages that recent flushes brought to the leaves below, how many in a thousand were
    /// puts that found a record of their key, so that the leaves did not grow by them. Kept by
    /// nodes above leaves.
    pub(crate) replaced_permille: u16,
    /// The children in key order: at least one.
    pub(crate) pivots: Vec<Pivot>,
    /// The buffer, newest level first. Levels may be empty, but the last one is not.
    pub(crate) levels: Vec<Vec<Segment>>,
}

/// A child, and what the buffer holds for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pivot {
    /// Where its key range begins; empty for the first pivot, whose range begins where the node's
    /// does.
    pub(crate) lower: LongBox,
    /// What lies below.
    pub(crate) child: Child,
    /// Key and value bytes of all live parts for it. Not stored: summed up when a node is decoded.
    pub(crate) pending_bytes: u64,
}

/// What a pivot points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// A leaf: records without tombstones.
    Leaf(GroupRef),
    /// A node of the height below.
    Node {
        /// Its page.
        page: PageRef,
        /// What it and everything below it holds.
        sums: Sums,
    },
}

/// What a node and everything below it holds. A further sum is a further field here, in
/// [`Node::sums`], and in `format.rs`.
///
/// Merges and figures go by them; nothing depends on them for correctness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Records in leaves.
    pub(crate) records: u64,
    /// Their key and value bytes.
    pub(crate) leaf_bytes: u64,
    /// Key and value bytes of the messages in buffers.
    pub(crate) buffered_bytes: u64,
    /// How many of these replace an equally long record, by the averages of the nodes above leaves.
    pub(crate) replaced_bytes: u64,
    /// Bytes that messages in buffers are known to hide besides: see [`LivePart::hidden_bytes`].
    pub(crate) hidden_bytes: u64,
    /// Key and value bytes of the largest record, in a leaf or in a group that holds messages: no
    /// smaller than any of those that count.
    pub(crate) record_bytes_max: u64,
}

/// A part of a buffer level: a page group, or what a node still has of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The group. Several segments, of one node or of many, may share one.
    pub(crate) group: GroupRef,
    /// The first key of the group that belongs to this segment.
    pub(crate) min: LongBox,
    /// The last key of the group that belongs to this segment. Readers stay within `min..=max`:
    /// what the group holds outside is somebody else's, or dead.
    pub(crate) max: LongBox,
    /// The pivots that it still counts for, ascending; at least one.
    pub(crate) live: Vec<LivePart>,
}

/// What a segment holds for a pivot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LivePart {
    /// The pivot's number in the node.
    pub(crate) pivot: u16,
    /// Messages in the pivot's key range, deletes included: at least one.
    pub(crate) records: u32,
    /// Their key and value bytes.
    pub(crate) bytes: u64,
    /// Bytes that they hide. A delete hides its own bytes and the next older record of its key,
    /// wherever that is. A put hides as many bytes as that record is longer than itself. What a put
    /// hides of its own length is known on average: [`Node::replaced_permille`].
    pub(crate) hidden_bytes: u64,
}

impl Child {
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

    /// What it holds, and all below it.
    pub(crate) fn sums(&self) -> Sums {
        match self {
            Child::Leaf(group) => Sums {
                records: group.records,
                leaf_bytes: group.logical_bytes,
                record_bytes_max: u64::from(group.record_bytes_max),
                ..Sums::default()
            },
            Child::Node { sums, .. } => *sums,
        }
    }
}

/// Most that any sum over a subtree may be: so sums over a node's pivots, of which there are less
/// than 2^16, fit.
pub(crate) const SUM_MAX: u64 = 1 << 47;

impl Sums {
    /// Adds what lies beside it. No tree holds as much as the bound; nodes may say what they like
    /// (D8).
    pub(crate) fn add(&mut self, other: &Sums) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more).min(SUM_MAX);
        add(&mut self.records, other.records);
        add(&mut self.leaf_bytes, other.leaf_bytes);
        add(&mut self.buffered_bytes, other.buffered_bytes);
        add(&mut self.replaced_bytes, other.replaced_bytes);
        if !mutant::active(85) {
            add(&mut self.hidden_bytes, other.hidden_bytes);
        }
        self.record_bytes_max = self.record_bytes_max.max(other.record_bytes_max);
    }

    /// Bytes in buffers and below them that a merge all the way down would free.
    pub(crate) fn superseded_bytes(&self) -> u64 {
        self.replaced_bytes.saturating_add(self.hidden_bytes)
    }

    /// Key and value bytes of what a reader sees.
    pub(crate) fn live_bytes(&self) -> u64 {
        let all = self.leaf_bytes.saturating_add(self.buffered_bytes);
        all.saturating_sub(self.superseded_bytes())
    }
}

impl Node {
    /// A node above a leaf that was the whole tree.
    pub(crate) fn above(leaf: GroupRef) -> Node {
        Node {
            height: 1,
            replaced_permille: 0,
            pivots: vec![Pivot {
                lower: LongBox::default(),
                child: Child::Leaf(leaf),
                pending_bytes: 0,
            }],
            levels: Vec::new(),
        }
    }

    /// The leaf below it, if that is its only child.
    pub(crate) fn lone_leaf(&self) -> Option<GroupRef> {
        match &self.pivots[..] {
            [pivot] => match pivot.child {
                Child::Leaf(leaf) => Some(leaf),
                Child::Node { .. } => None,
            },
            _ => None,
        }
    }

    /// What the node and everything below it holds.
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
                    ..Sums::default()
                });
            }
        }
        // Nodes further up keep no average: theirs is taken for that of all below them.
        let (replaced, of) = match self.height {
            1 => (u64::from(self.replaced_permille), 1000),
            _ => (below.replaced_bytes, below.buffered_bytes.max(1)),
        };
        let replaced = u128::from(own.buffered_bytes) * u128::from(replaced) / u128::from(of);
        own.replaced_bytes = u64::try_from(replaced).unwrap_or(SUM_MAX);
        below.add(&own);
        below
    }

    /// Whether the buffer holds nothing.
    pub(crate) fn is_buffer_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }

    /// Drops empty levels at the end, and sums up again what is pending for each pivot.
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
