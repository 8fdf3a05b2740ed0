//! Nodes as the rest of the crate sees them: pivots, and a buffer of levels of segments (TurtleKV §3.1).
//!
//! What holds of every node (a merge keeps it, `verify` checks it):
//!
//! 1. Pivots ascend; a pivot's key range goes from its lower bound to the next pivot's, the last one's to the end of the
//!    node's own range. All children are leaves (height 1) or nodes of the height below.
//! 2. Level 0 is newer than level 1, and so on; a buffer is newer than everything below it.
//! 3. What a segment says for a pivot is either wholly alive ([`Segment::live`] names the pivot) or wholly flushed. So the
//!    paper's array of flushed upper bounds is not needed: whole pivots are flushed.
//! 4. Of a segment's group, only the keys from [`Segment::min`] to [`Segment::max`] belong to the node. A node split leaves
//!    a group to both halves and cuts these bounds, so that what one half has flushed never comes back when its range is
//!    given to a neighbour.
//! 5. Segments of a level do not overlap: each ends (max) before the next begins (min).

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
    /// Of the messages that recent flushes brought to the leaves below, how many in a thousand found a record of their key
    /// (or a deleted one), so that the leaves did not grow by them. Kept by nodes above leaves.
    pub(crate) replaced_permille: u16,
    /// The children in key order: at least one.
    pub(crate) pivots: Vec<Pivot>,
    /// The buffer, newest level first. Levels may be empty, but the last one is not.
    pub(crate) levels: Vec<Vec<Segment>>,
}

/// A child, and what the buffer holds for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pivot {
    /// Where its key range begins; empty for the first pivot, whose range begins where the node's does.
    pub(crate) lower: Box<[u8]>,
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
        /// Records in the leaves below it.
        records: u64,
        /// Their key and value bytes.
        leaf_bytes: u64,
    },
}

/// A part of a buffer level: a page group, or what a node still has of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The group. Several segments, of one node or of many, may share one.
    pub(crate) group: GroupRef,
    /// The first key of the group that belongs to this segment.
    pub(crate) min: Box<[u8]>,
    /// The last key of the group that belongs to this segment. Readers stay within `min..=max`: what the group holds
    /// outside is somebody else's, or dead.
    pub(crate) max: Box<[u8]>,
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
}

impl Child {
    /// Records in the leaves below.
    pub(crate) fn records(&self) -> u64 {
        match self {
            Child::Leaf(group) => group.records,
            Child::Node { records, .. } => *records,
        }
    }

    /// Key and value bytes in the leaves below.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        match self {
            Child::Leaf(group) => group.logical_bytes,
            Child::Node { leaf_bytes, .. } => *leaf_bytes,
        }
    }
}

impl Node {
    /// A node above a leaf that was the whole tree.
    pub(crate) fn above(leaf: GroupRef) -> Node {
        Node {
            height: 1,
            replaced_permille: 0,
            pivots: vec![Pivot {
                lower: Box::default(),
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

    /// Records in the leaves below.
    pub(crate) fn records(&self) -> u64 {
        self.pivots.iter().map(|p| p.child.records()).sum()
    }

    /// Key and value bytes in the leaves below.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        self.pivots.iter().map(|p| p.child.leaf_bytes()).sum()
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
