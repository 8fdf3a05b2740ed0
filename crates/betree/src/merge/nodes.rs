//! Splits nodes, joins nodes, and reads and writes their pages.

use terrapin_base::{Error, Result, mutant};
use terrapin_disk::LongBox;
use terrapin_pages::group::Deadlines;
use terrapin_pages::{Changes, PageKind, PageRef, PageUse};

use super::runs::Context;
use super::slot::{ChildSlot, ChildState, OpenNode};
use crate::format::PIVOTS_MAX;
use crate::load::load_node;
use crate::node::{Child, LivePart, Node, Pivot, Segment};
use terrapin_runs::run::Key;

/// Target bytes of an encoded node. A longer node is split, if each part keeps at least
/// [`PIVOTS_ALWAYS`] pivots.
const NODE_BYTES_MAX: usize = 64 << 10;
/// A node of at least this size is not small, however few pivots it has.
const NODE_BYTES_MIN: usize = NODE_BYTES_MAX / 4;
/// A node with tiered buffers has several times as many segments, and may be this many times as
/// long.
const STACKED_PART: usize = 4;
/// A split because of size leaves each node at least this many pivots.
const PIVOTS_ALWAYS: usize = 4;

/// Loads a copy of a node that will be replaced, and releases its page.
pub(super) fn load_open(
    context: &Context,
    page: &PageRef,
    height: u16,
    changes: &mut Changes,
) -> Result<Node> {
    let node = load_node(&context.store, page, height)?;
    changes.released.push(page.id);
    Ok(Node::clone(&node))
}

/// Writes a node's page. Returns the child, and how many records of it expire when.
pub(super) fn write_node(
    context: &Context,
    node: &Node,
    changes: &mut Changes,
) -> Result<(Child, Deadlines)> {
    let page = context
        .store
        .write_page(PageKind::Node, &node.encode()?, context.class())?;
    changes.added.push(PageUse::from(&page));
    let sums = node.sums();
    Ok((Child::Node { page, sums }, node.deadlines()))
}

/// Approximate bytes of the encoded node, rather too large than too small.
fn encoded_bytes(node: &Node) -> usize {
    let maplet = |pivot: &Pivot| pivot.maplet.as_ref().map_or(0, |m| m.encoded_bytes());
    let pivots = node.pivots.iter();
    let pivots: usize = pivots
        .map(|pivot| pivot.lower.len() + 50 + maplet(pivot))
        .sum();
    let segments = node.levels.iter().flatten();
    pivots
        + segments
            .map(|s| s.min.len() + s.max.len() + s.live.len() * 8 + 60)
            .sum::<usize>()
}

/// Joins neighbouring nodes; `middle` is the lower bound of the right one. Their levels are joined
/// in key order: no segments overlap, and relative age does not change. Returns an error if the
/// nodes have more pivots than any written node.
pub(super) fn concatenate(mut left: Node, mut right: Node, middle: &Key) -> Result<Node> {
    let pivots = left.pivots.len() + right.pivots.len();
    if pivots > PIVOTS_MAX {
        return Err(
            Error::corrupt("a node and its neighbour have too many pivots to be joined")
                .with("pivots", pivots)
                .with("limit", PIVOTS_MAX),
        );
    }
    let moved = left.pivots.len() as u16;
    if let Some(first) = right.pivots.first_mut() {
        first.lower = middle[..].into();
    }
    left.pivots.append(&mut right.pivots);
    if left.levels.len() < right.levels.len() {
        left.levels.resize_with(right.levels.len(), Vec::new);
    }
    for (level, mut segments) in left.levels.iter_mut().zip(right.levels) {
        for part in segments.iter_mut().flat_map(|segment| &mut segment.live) {
            part.pivot += moved;
        }
        level.append(&mut segments);
    }
    left.replaced_permille = left.replaced_permille.max(right.replaced_permille);
    left.counts_replaced |= right.counts_replaced;
    Ok(left)
}

/// Splits a node into as many nodes of equal fan-out as needed, usually one. Parts on both sides of
/// a cut share a segment there. Each keeps the bounds of its own keys: see rule 4 of
/// [`crate::node`].
pub(super) fn split(
    context: &Context,
    mut node: Node,
    lower: Key,
    changes: &mut Changes,
) -> Result<Vec<ChildSlot>> {
    let (policy, pivots, bytes) = (&context.policy, node.pivots.len(), encoded_bytes(&node));
    let bytes_max = match node.counts_replaced {
        true => NODE_BYTES_MAX * STACKED_PART,
        false => NODE_BYTES_MAX,
    };
    // Nodes of long keys with fewer pivots would be too many, and the tree too high.
    let by_size = bytes.div_ceil(bytes_max).min(pivots / PIVOTS_ALWAYS);
    let parts = pivots.div_ceil(policy.fanout).max(by_size);
    if parts <= 1 {
        node.tidy();
        let is_small = pivots < policy.pivots_min() && bytes < NODE_BYTES_MIN;
        let open = OpenNode {
            node,
            has_small_child: false,
        };
        return Ok(vec![ChildSlot {
            lower,
            child: ChildState::Open(Box::new(open)),
            deadlines: Deadlines::default(),
            is_small,
        }]);
    }
    let mut slots = Vec::with_capacity(parts);
    let cuts: Vec<usize> = (0..=parts).map(|part| pivots * part / parts).collect();
    let mut lowers: Vec<Key> = cuts[1..parts]
        .iter()
        .map(|&cut| node.pivots[cut].lower[..].into())
        .collect();
    lowers.insert(0, lower);
    let mut all_levels: Vec<Vec<Vec<Segment>>> = (0..parts)
        .map(|_| Vec::with_capacity(node.levels.len()))
        .collect();
    for level in std::mem::take(&mut node.levels) {
        for levels in &mut all_levels {
            levels.push(Vec::new());
        }
        for segment in level {
            let mut is_first = true;
            for (part, levels) in all_levels.iter_mut().enumerate() {
                let (from, to) = (cuts[part], cuts[part + 1]);
                let own = (part > 0).then(|| &lowers[part]);
                let Some(piece) = cut_segment(&segment, from..to, own, lowers.get(part + 1)) else {
                    continue;
                };
                if !is_first && !mutant::active("split-shares-without-reference") {
                    changes.retained.push(segment.group.id);
                }
                is_first = false;
                if let Some(level) = levels.last_mut() {
                    level.push(piece);
                }
            }
        }
    }
    let mut pivots = node.pivots.into_iter();
    for (part, (lower, levels)) in lowers.into_iter().zip(all_levels).enumerate() {
        let mut pivots: Vec<_> = pivots.by_ref().take(cuts[part + 1] - cuts[part]).collect();
        if let Some(first) = pivots.first_mut() {
            first.lower = LongBox::default();
        }
        let mut part = Node {
            height: node.height,
            replaced_permille: node.replaced_permille,
            counts_replaced: node.counts_replaced,
            pivots,
            levels,
        };
        part.tidy();
        let open = OpenNode {
            node: part,
            has_small_child: false,
        };
        slots.push(ChildSlot {
            lower,
            child: ChildState::Open(Box::new(open)),
            deadlines: Deadlines::default(),
            is_small: false,
        });
    }
    Ok(slots)
}

/// The part of a segment for some pivots, whose keys go from `lower` to `upper`; `None` if it has
/// no live messages.
fn cut_segment(
    segment: &Segment,
    pivots: std::ops::Range<usize>,
    lower: Option<&Key>,
    upper: Option<&Key>,
) -> Option<Segment> {
    let own = segment
        .live
        .iter()
        .filter(|part| pivots.contains(&usize::from(part.pivot)));
    let live: Vec<LivePart> = own
        .map(|part| LivePart {
            pivot: part.pivot - pivots.start as u16,
            ..*part
        })
        .collect();
    if live.is_empty() {
        return None;
    }
    let mut piece = Segment {
        live,
        ..segment.clone()
    };
    if !mutant::active("split-keeps-bounds-of-segments") {
        piece.trim(lower.map(|key| &key[..]), upper.map(|key| &key[..]));
    }
    Some(piece)
}
