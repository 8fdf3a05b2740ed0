//! Estimates the content of a key range without reading blocks. Nodes give the sizes of leaves and
//! live parts. Group indexes give the parts that the range's ends cut. Of the many nodes wholly
//! inside a large range, the estimate reads only a few. They show how much the buffers of the
//! others add to the leaf records that the parents know.

use std::ops::Bound;

use terrapin_base::Result;
use terrapin_pages::PageStore;
use terrapin_pages::group::GroupRef;
use terrapin_structure::{Estimate, KeyBounds};

use crate::get::Top;
use crate::load::{LoadedNode, load_child};
use crate::node::Child;
use terrapin_runs::bounds::{is_empty, lets_in_above, lets_in_below, tighter_lower, tighter_upper};

/// About this many of a node's children that are wholly inside the range are read.
const SAMPLED_CHILDREN: usize = 8;

/// Estimates the content of a tree between two bounds: messages in buffers and records in leaves.
/// Messages and records that a newer message hides count too.
pub(crate) fn estimate(store: &PageStore, top: Top<'_>, bounds: KeyBounds<'_>) -> Result<Estimate> {
    let mut sum = Estimate::default();
    if !is_empty(bounds.0, bounds.1) {
        match top {
            Top::Empty => {}
            Top::Leaf(group, _) => add_group(store, group, bounds, &mut sum)?,
            Top::Node(node) => add_node(store, node, bounds, &mut sum)?,
        }
    }
    Ok(sum)
}

/// Adds the content of a group between the bounds.
fn add_group(
    store: &PageStore,
    group: &GroupRef,
    bounds: KeyBounds<'_>,
    sum: &mut Estimate,
) -> Result<()> {
    let (records, bytes) = if bounds == (Bound::Unbounded, Bound::Unbounded) {
        (group.records, group.logical_bytes)
    } else {
        let (lo, hi) = (key_of(bounds.0), key_of(bounds.1));
        let sums = store.index(group)?.estimate(lo, hi);
        (sums.records, sums.bytes)
    };
    add(sum, records, bytes);
    Ok(())
}

/// Adds a count, saturating. Each number in a damaged node is bounded, but scaling may exceed the
/// bound (D8).
fn add(sum: &mut Estimate, records: u64, bytes: u64) {
    sum.records = sum.records.saturating_add(records);
    sum.bytes = sum.bytes.saturating_add(bytes);
}

/// Adds the content of a node and all below it between the bounds. A bound outside of the node is
/// given as unbounded.
fn add_node(
    store: &PageStore,
    node: &LoadedNode,
    bounds: KeyBounds<'_>,
    sum: &mut Estimate,
) -> Result<()> {
    let first = key_of(bounds.0).map_or(0, |key| node.pivot_of(key));
    let last = match bounds.1 {
        Bound::Unbounded => node.pivots.len() - 1,
        Bound::Included(key) => node.pivot_of(key),
        Bound::Excluded(key) => node.pivot_before(key),
    };
    let mut unread = Estimate::default();
    let (mut sampled, mut sampled_leaves) = (Estimate::default(), Estimate::default());
    let stride = ((last + 1).saturating_sub(first)).div_ceil(SAMPLED_CHILDREN);
    for number in first..=last {
        let cut_lower = if number == first {
            bounds.0
        } else {
            Bound::Unbounded
        };
        let cut_upper = if number == last {
            bounds.1
        } else {
            Bound::Unbounded
        };
        let cut = (cut_lower, cut_upper);
        let whole = cut == (Bound::Unbounded, Bound::Unbounded);
        let child = &node.pivots[number].child;
        match child {
            Child::Leaf(group) => add_group(store, group, cut, sum)?,
            Child::Node { page, .. } if !whole => {
                add_node(store, &*load_child(store, page, node.height)?, cut, sum)?;
            }
            Child::Node { page, sums } if (number - first) % stride == stride / 2 => {
                add_node(
                    store,
                    &*load_child(store, page, node.height)?,
                    cut,
                    &mut sampled,
                )?;
                add(&mut sampled_leaves, sums.records, sums.leaf_bytes);
            }
            Child::Node { sums, .. } => add(&mut unread, sums.records, sums.leaf_bytes),
        }
        add_buffered(store, node, number, cut, sum)?;
    }
    add(sum, sampled.records, sampled.bytes);
    let records = scale(unread.records, sampled.records, sampled_leaves.records);
    let bytes = scale(unread.bytes, sampled.bytes, sampled_leaves.bytes);
    add(sum, records, bytes);
    Ok(())
}

/// Adds the messages for a pivot, between the bounds, in the node's own buffer.
fn add_buffered(
    store: &PageStore,
    node: &LoadedNode,
    number: usize,
    cut: KeyBounds<'_>,
    sum: &mut Estimate,
) -> Result<()> {
    let whole = cut == (Bound::Unbounded, Bound::Unbounded);
    let lower = if number == 0 {
        Bound::Unbounded
    } else {
        Bound::Included(&node.pivots[number].lower[..])
    };
    let upper = node
        .pivots
        .get(number + 1)
        .map_or(Bound::Unbounded, |next| Bound::Excluded(&next.lower[..]));
    let (lower, upper) = (tighter_lower(lower, cut.0), tighter_upper(upper, cut.1));
    for segment in node.segments_for(number) {
        let part = segment
            .live
            .binary_search_by_key(&number, |part| usize::from(part.pivot));
        let Some(part) = part.ok().map(|at| &segment.live[at]) else {
            continue;
        };
        if whole {
            add(sum, u64::from(part.records), part.bytes);
        } else if lets_in_above(lower, &segment.max) && lets_in_below(upper, &segment.min) {
            let mut inside = Estimate::default();
            let lower = tighter_lower(lower, Bound::Included(&segment.min));
            let upper = tighter_upper(upper, Bound::Included(&segment.max));
            add_group(store, &segment.group, (lower, upper), &mut inside)?;
            let records = inside.records.min(u64::from(part.records));
            add(sum, records, inside.bytes.min(part.bytes));
        }
    }
    Ok(())
}

/// `what` times `to / of`; `what` if `of` is 0.
fn scale(what: u64, to: u64, of: u64) -> u64 {
    if of == 0 {
        what
    } else {
        u64::try_from(u128::from(what) * u128::from(to) / u128::from(of)).unwrap_or(u64::MAX)
    }
}

/// The key of a bound, included or not: an estimate ignores the difference.
fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
    }
}
