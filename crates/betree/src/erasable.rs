//! The part of a deleted range that a merge gives up without reading it: whole leaves, and the end
//! leaves if most of them is deleted.
//!
//! The merge walks the nodes of that part and rewrites those at its ends (`merge/erase.rs`). The
//! records at the ends of the range that are outside of the part get a delete each. So a short
//! range makes no merge rewrite a leaf.

use std::ops::Bound;

use terrapin_base::Result;
use terrapin_pages::PageStore;
use terrapin_pages::group::GroupRef;
use terrapin_structure::Erased;

use crate::estimate::estimate;
use crate::get::Top;
use crate::load::{LoadedNode, load_child};
use crate::node::Child;

/// A leaf with an end of the range, and its own key range.
struct EndLeaf {
    leaf: GroupRef,
    /// `None`: below all keys.
    lower: Option<Box<[u8]>>,
    /// `None`: the end of all keys.
    upper: Option<Box<[u8]>>,
}

impl EndLeaf {
    /// Whether the range has most of the leaf's bytes.
    fn is_mostly(&self, store: &PageStore, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<bool> {
        let inside = store.index(&self.leaf)?.estimate(lo, hi).bytes;
        Ok(inside > self.leaf.logical_bytes / 2)
    }
}

/// The part of the keys from `lo` to below `hi` that a merge gives up, if it holds `bytes_min`
/// bytes.
pub(crate) fn erasable(
    store: &PageStore,
    top: Top<'_>,
    (lo, hi): (&[u8], Option<&[u8]>),
    bytes_min: u64,
) -> Result<Option<Erased>> {
    let (first, last) = match top {
        Top::Empty => return Ok(None),
        Top::Leaf(leaf, _) => {
            let whole = || EndLeaf {
                leaf: *leaf,
                lower: None,
                upper: None,
            };
            (whole(), whole())
        }
        Top::Node(root) => {
            let last = end_leaf(store, root, |node| match hi {
                Some(hi) => node.pivot_before(hi),
                None => node.pivots.len() - 1,
            })?;
            (end_leaf(store, root, |node| node.pivot_of(lo))?, last)
        }
    };
    let begins_in_leaf = first.lower.as_deref().unwrap_or_default() < lo;
    let ends_in_leaf = match (hi, last.upper.as_deref()) {
        (Some(hi), Some(upper)) => hi < upper,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let from = match begins_in_leaf {
        false => Some(Box::from(lo)),
        true if first.is_mostly(store, Some(lo), hi)? => Some(Box::from(lo)),
        true => first.upper,
    };
    let to = match ends_in_leaf {
        false => hi.map(Box::from),
        true if last.is_mostly(store, Some(lo), hi)? => hi.map(Box::from),
        true => Some(last.lower.unwrap_or_default()),
    };
    // Without a key behind it, the first leaf is the last one as well.
    let Some(lo) = from else {
        return Ok(None);
    };
    if to.as_ref().is_some_and(|to| *to <= lo) {
        return Ok(None);
    }
    let upper = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let lower = match lo.is_empty() {
        true => Bound::Unbounded,
        false => Bound::Included(&lo[..]),
    };
    let holds = estimate(store, top, (lower, upper))?.bytes;
    Ok((holds >= bytes_min).then_some(Erased { lo, hi: to }))
}

/// The leaf that is reached by these pivots.
fn end_leaf(
    store: &PageStore,
    root: &LoadedNode,
    pivot_of: impl Fn(&LoadedNode) -> usize,
) -> Result<EndLeaf> {
    let (mut lower, mut upper) = (None, None);
    let mut below = None;
    loop {
        let node = below.as_deref().unwrap_or(root);
        let number = pivot_of(node);
        if number > 0 {
            lower = Some(Box::from(&node.pivots[number].lower[..]));
        }
        if let Some(next) = node.pivots.get(number + 1) {
            upper = Some(Box::from(&next.lower[..]));
        }
        let child = match &node.pivots[number].child {
            Child::Leaf(leaf) => {
                return Ok(EndLeaf {
                    leaf: *leaf,
                    lower,
                    upper,
                });
            }
            Child::Node { page, .. } => load_child(store, page, node.height)?,
        };
        below = Some(child);
    }
}
