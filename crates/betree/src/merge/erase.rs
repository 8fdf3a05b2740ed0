//! Erased ranges ([`terrapin_structure::MergeInput::erased`]) in a merge. All that a version holds
//! in them goes, and what the memtable brings for them stays.
//!
//! At each node, an erased range covers some pivots whole, and at its ends some in part:
//!
//! - The buffer loses its messages for a *whole* pivot, and the pivot's child is given up with all
//!   below it ([`Erase`]). Where the memtable brings messages, the merge goes down instead, with
//!   these alone, and gives up the other pivots there.
//! - A pivot covered *in part* is flushed. The messages that go down, and a leaf's records, are
//!   narrowed to the keys outside of erased ranges.
//!
//! So runs from above have nothing in erased ranges, and no page below a whole pivot is read, nodes
//! excepted.

use terrapin_base::{Result, mutant};
use terrapin_pages::{Changes, PageRef};
use terrapin_structure::Erased;

use super::runs::Context;
use super::slot::Target;
use crate::load::load_node;
use crate::node::Child;
use terrapin_runs::run::KeyRange;

/// How much of a pivot's range is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    Nothing,
    Part,
    Whole,
}

/// The erased ranges of a merge, ascending.
#[derive(Default, Clone)]
pub(crate) struct ErasedRanges(Vec<KeyRange>);

impl ErasedRanges {
    pub(crate) fn new(erased: &[Erased]) -> Self {
        let range = |erased: &Erased| KeyRange {
            lo: (!erased.lo.is_empty()).then(|| erased.lo[..].into()),
            hi: erased.hi.as_deref().map(Into::into),
        };
        ErasedRanges(erased.iter().map(range).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The erased ranges that overlap a range.
    fn within<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a KeyRange> {
        let from = match &range.lo {
            Some(lo) => self
                .0
                .partition_point(|erased| erased.hi.as_ref().is_some_and(|hi| hi <= lo)),
            None => 0,
        };
        let begins_inside = |erased: &&KeyRange| match (&erased.lo, &range.hi) {
            (Some(lo), Some(hi)) => lo < hi,
            _ => true,
        };
        self.0[from..].iter().take_while(begins_inside)
    }

    /// How much of a range is erased.
    pub(super) fn coverage(&self, range: &KeyRange) -> Coverage {
        if self.is_empty() {
            return Coverage::Nothing;
        }
        let mut within = self.within(range);
        let Some(first) = within.next() else {
            return Coverage::Nothing;
        };
        // `None` is below all keys, and above them.
        let from_start = first.lo <= range.lo;
        let to_end = match (&first.hi, &range.hi) {
            (Some(erased), Some(hi)) => erased >= hi,
            (Some(_), None) => false,
            (None, _) => true,
        };
        match from_start && to_end {
            true => Coverage::Whole,
            false => Coverage::Part,
        }
    }

    /// The parts of a range that are not erased, ascending.
    pub(super) fn kept_of(&self, range: &KeyRange) -> Vec<KeyRange> {
        let mut kept = Vec::new();
        let mut rest = range.clone();
        for erased in self.within(range) {
            let before = KeyRange {
                lo: rest.lo.clone(),
                hi: erased.lo.clone(),
            };
            if erased.lo.is_some()
                && let Some(before) = rest.intersection(&before)
            {
                kept.push(before);
            }
            if erased.hi.is_none() {
                return kept;
            }
            let behind = KeyRange {
                lo: erased.hi.clone(),
                hi: None,
            };
            let Some(behind) = rest.intersection(&behind) else {
                return kept;
            };
            rest = behind;
        }
        kept.push(rest);
        kept
    }
}

/// Gives up a node and all below it, one node in each step.
pub(super) struct Erase {
    pub(super) target: Target,
    /// Levels of the node down to the leaves.
    pub(super) height: u16,
    /// Nodes that are not read yet.
    left: Vec<(PageRef, u16)>,
}

impl Erase {
    pub(super) fn new(target: Target, page: PageRef, height: u16) -> Self {
        Erase {
            target,
            height,
            left: vec![(page, height)],
        }
    }

    /// Does a piece of the work. Returns whether there is more.
    ///
    /// Leaves and segments are not read. One with separated values ([`Child::sums`],
    /// `GroupRef::separated_bytes`) would be, to report where these are.
    pub(super) fn step(&mut self, context: &Context, changes: &mut Changes) -> Result<bool> {
        let Some((page, height)) = self.left.pop() else {
            return Ok(false);
        };
        let node = load_node(&context.store, &page, height)?;
        changes.released.push(page.id);
        for segment in node.levels.iter().flatten() {
            if !mutant::active("erased-node-keeps-segments") {
                changes.released.push(segment.group.id);
            }
        }
        for pivot in &node.pivots {
            changes
                .released
                .extend(pivot.maplet.as_ref().map(|maplet| maplet.page.id));
            match &pivot.child {
                Child::Leaf(leaf) => changes.released.push(leaf.id),
                Child::Node { page, .. } => self.left.push((*page, height - 1)),
            }
        }
        Ok(!self.left.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lo: u8, hi: u8) -> KeyRange {
        let key = |key: u8| Some(std::sync::Arc::from([key]));
        KeyRange {
            lo: if lo == 0 { None } else { key(lo) },
            hi: if hi == 99 { None } else { key(hi) },
        }
    }

    fn erased(ranges: &[(u8, u8)]) -> ErasedRanges {
        ErasedRanges(ranges.iter().map(|&(lo, hi)| range(lo, hi)).collect())
    }

    #[test]
    fn a_range_is_covered_or_kept() {
        let some = erased(&[(3, 6), (8, 9), (20, 99)]);
        let cases = [
            (range(0, 99), Coverage::Part, vec![(0, 3), (6, 8), (9, 20)]),
            (range(0, 3), Coverage::Nothing, vec![(0, 3)]),
            (range(6, 8), Coverage::Nothing, vec![(6, 8)]),
            (range(3, 6), Coverage::Whole, vec![]),
            (range(4, 5), Coverage::Whole, vec![]),
            (range(2, 6), Coverage::Part, vec![(2, 3)]),
            (range(4, 7), Coverage::Part, vec![(6, 7)]),
            (range(30, 99), Coverage::Whole, vec![]),
            (range(10, 99), Coverage::Part, vec![(10, 20)]),
        ];
        for (of, coverage, kept) in cases {
            assert_eq!(some.coverage(&of), coverage, "{of:?}");
            let kept: Vec<_> = kept.iter().map(|&(lo, hi)| range(lo, hi)).collect();
            let ends = |ranges: &[KeyRange]| format!("{ranges:?}");
            assert_eq!(ends(&some.kept_of(&of)), ends(&kept), "{of:?}");
        }
        let all = erased(&[(0, 99)]);
        assert_eq!(all.coverage(&range(0, 99)), Coverage::Whole);
        assert_eq!(all.coverage(&range(5, 6)), Coverage::Whole);
        assert!(all.kept_of(&range(0, 99)).is_empty());
        assert_eq!(erased(&[(0, 5)]).coverage(&range(0, 99)), Coverage::Part);
    }
}
