//! Chooses the stretch of keys that a compaction takes next: one with leaves of about a given size,
//! for which buffers hold messages.
//!
//! A range visits a block or two of every buffer level that has messages in its stretch. In a tree
//! whose buffers are empty it visits leaves only. The engine decides whether this gain is worth a
//! merge. The stretch also has leaves of which enough has expired: a merge drops those records.

use terrapin_base::Result;
use terrapin_pages::PageStore;
use terrapin_pages::group::ExpiredPart;
use terrapin_structure::{Reclaimable, ToCompact};

use crate::load::{LoadedNode, load_child, load_node};
use crate::node::{Child, Root};
use terrapin_runs::run::{Key, KeyRange};

/// A stretch of keys for a compaction.
pub(crate) struct Stretch {
    /// From the lower bound of one leaf to that of another.
    pub(crate) range: KeyRange,
    /// Bytes of the leaves for which buffers hold messages, and of these messages.
    pub(crate) holds: ToCompact,
}

/// Finds the first stretch at or above `from` for whose leaves buffers hold messages, or that are
/// `expired`. It ends when `bytes_max` is reached, before the first leaf that starts above `to`, or
/// at the end. Loads the nodes that it visits.
pub(crate) fn find_stretch(
    store: &PageStore,
    root: &Root,
    from: &[u8],
    to: Option<&[u8]>,
    (bytes_max, expired): (u64, ExpiredPart),
) -> Result<Option<Stretch>> {
    let (page, height) = match root {
        Root::Node(page, height) => (page, height),
        Root::Leaf(leaf, deadlines) if deadlines.is_due(leaf.records, expired) => {
            let holds = ToCompact {
                merged_bytes: leaf.logical_bytes,
                buffered_bytes: 0,
            };
            let range = KeyRange::default();
            return Ok(Some(Stretch { range, holds }));
        }
        Root::Leaf(..) | Root::Empty => return Ok(None),
    };
    let root = load_node(store, page, *height)?;
    let mut search = Search {
        store,
        from,
        to,
        bytes_max,
        expired,
        holds: ToCompact::default(),
        lo: None,
        hi: None,
    };
    search.visit(&root, &[], None, false)?;
    let (holds, hi) = (search.holds, search.hi);
    Ok(search.lo.map(|lo| Stretch {
        range: KeyRange { lo: Some(lo), hi },
        holds,
    }))
}

struct Search<'a> {
    store: &'a PageStore,
    from: &'a [u8],
    to: Option<&'a [u8]>,
    bytes_max: u64,
    expired: ExpiredPart,
    holds: ToCompact,
    lo: Option<Key>,
    hi: Option<Key>,
}

impl Search<'_> {
    /// Visits a node's key range and returns whether the stretch ends in it. `is_above` says
    /// whether nodes above hold messages for this range.
    fn visit(
        &mut self,
        node: &LoadedNode,
        lower: &[u8],
        upper: Option<&[u8]>,
        is_above: bool,
    ) -> Result<bool> {
        for (i, pivot) in node.pivots.iter().enumerate() {
            let lo = if i == 0 { lower } else { &pivot.lower };
            let next = node.pivots.get(i + 1).map(|next| &next.lower[..]);
            let hi = next.or(upper);
            if hi.is_some_and(|hi| hi <= self.from) {
                continue;
            }
            if self.to.is_some_and(|to| lo > to) {
                self.hi = Some(lo.into());
                return Ok(true);
            }
            let is_buffered = is_above || pivot.pending_bytes > 0;
            let is_full = self.lo.is_some() && self.holds.merged_bytes >= self.bytes_max;
            if !is_full {
                self.add(pivot.pending_bytes, pivot.pending_bytes);
            }
            match &pivot.child {
                Child::Node { page, .. } => {
                    let child = load_child(self.store, page, node.height)?;
                    if self.visit(&child, lo, hi, is_buffered)? {
                        return Ok(true);
                    }
                }
                Child::Leaf(leaf)
                    if is_buffered || pivot.deadlines.is_due(leaf.records, self.expired) =>
                {
                    if is_full {
                        self.hi = Some(lo.into());
                        return Ok(true);
                    }
                    self.lo.get_or_insert_with(|| lo.into());
                    self.add(leaf.logical_bytes, 0);
                }
                Child::Leaf(_) => {}
            }
        }
        Ok(false)
    }

    /// Saturating: a damaged node may claim any number.
    fn add(&mut self, merged: u64, buffered: u64) {
        let holds = &mut self.holds;
        holds.merged_bytes = holds.merged_bytes.saturating_add(merged);
        holds.buffered_bytes = holds.buffered_bytes.saturating_add(buffered);
    }
}

/// Waste is reclaimed while it is at least this part (1/n) of the live bytes.
const WASTE_PART: u64 = 10;

/// Finds the node above leaves with most waste, if the tree has much. Loads all nodes.
pub(crate) fn find_waste(store: &PageStore, root: &Root) -> Result<Option<Reclaimable>> {
    let Root::Node(page, height) = root else {
        return Ok(None);
    };
    let root = load_node(store, page, *height)?;
    let mut found = Wasted::default();
    found.visit(store, &root, &[], None)?;
    let live = root.sums().live_bytes();
    let is_much = found.all >= (live / WASTE_PART).max(1);
    Ok(found
        .span
        .filter(|_| is_much)
        .map(|(from, to)| Reclaimable {
            waste_bytes: found.all,
            merged_bytes: 0,
            from,
            to,
        }))
}

/// A lower bound of keys, and an exclusive upper one.
type Span = (Box<[u8]>, Option<Box<[u8]>>);

/// Waste that a walk found.
#[derive(Default)]
struct Wasted {
    all: u64,
    most: u64,
    span: Option<Span>,
}

impl Wasted {
    fn visit(
        &mut self,
        store: &PageStore,
        node: &LoadedNode,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        let mut own = 0u64;
        for segment in node.levels.iter().flatten() {
            let (mut live, mut hidden) = (0u64, 0u64);
            for part in &segment.live {
                live = live.saturating_add(part.bytes);
                hidden = hidden.saturating_add(part.hidden_bytes);
            }
            let dead = segment.group.logical_bytes.saturating_sub(live);
            own = own.saturating_add(dead).saturating_add(hidden);
        }
        self.all = self.all.saturating_add(own);
        if node.height == 1 && own > self.most {
            self.most = own;
            self.span = Some((lower.into(), upper.map(Into::into)));
        }
        for (number, pivot) in node.pivots.iter().enumerate() {
            if let Child::Node { page, .. } = &pivot.child {
                let lo = if number == 0 { lower } else { &pivot.lower };
                let next = node.pivots.get(number + 1).map(|next| &next.lower[..]);
                let child = load_child(store, page, node.height)?;
                self.visit(store, &child, lo, next.or(upper))?;
            }
        }
        Ok(())
    }
}
