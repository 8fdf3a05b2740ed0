//! Estimates the content of a key range without visiting all of it.
//!
//! The estimate visits the part of the tree inside the range, level by level. If a level has more
//! than about [`LOOKED_AT`] entries, it looks at one of every n. That one represents all n,
//! together with the subtree below it. So a range of a few hundred keys is counted exactly. A
//! larger range is estimated from a smaller share of its keys. The estimate is good if the parts of
//! a level are alike, and worse if a few of them hold most of the records.

use std::ops::{Bound, RangeBounds};

use terrapin_base::{Lsn, Message};

use crate::Memtable;
use crate::fragments::Tree;
use crate::leaf::LeafRef;
use crate::node::{self, BEFORE_ALL, BEHIND_ALL, Child, NodeRef, TERMINAL};

/// Approximate number of entries of a level that an estimate looks at.
const LOOKED_AT: usize = 1024;

/// Approximate content of a range of a memtable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Keys whose visible version is a put.
    pub records: u64,
    /// Keys whose visible version is a delete.
    pub tombstones: u64,
    /// Bytes of these keys and values.
    pub bytes: u64,
}

/// A range of keys.
type KeyBounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// What an estimate sees: versions below an LSN that no fragment hides.
struct Seen<'a> {
    before: Lsn,
    fragments: Option<&'a Tree>,
}

/// Which bounds of the range may be inside a subtree.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OpenEnds {
    lower: bool,
    upper: bool,
}

/// The entries of a node that are in the range.
struct Span {
    from: u16,
    to: u16,
    /// The entry in which the range may start.
    lower_at: Option<u16>,
    /// The entry in which the range may end.
    upper_at: Option<u16>,
}

/// Takes one of every n entries, at a random index within each n. So it does not pick the same
/// phase of a repeating pattern each time.
struct Pick {
    every: usize,
    at: usize,
    taken: usize,
    random: u64,
}

impl Memtable {
    /// Estimates the content of a key range, of versions below `before`. It is exact for up to a
    /// few hundred keys while no thread writes. For the whole memtable it returns the counts,
    /// unless there are range deletes. Versions that a range delete hides do not count. The
    /// estimate looks at about a thousand entries of each level and makes no writer wait.
    #[must_use]
    pub fn estimate(&self, bounds: KeyBounds<'_>, before: Lsn) -> Estimate {
        let fragments = self.fragments();
        let seen = Seen {
            before,
            fragments: fragments.as_deref(),
        };
        if bounds == (Bound::Unbounded, Bound::Unbounded) && fragments.is_none() {
            return Estimate {
                records: self.records(),
                tombstones: self.tombstones(),
                bytes: self.live_bytes(),
            };
        }
        let mut sum = Estimate::default();
        let mut level: Vec<(NodeRef<'_>, OpenEnds)> = Vec::new();
        let ends = OpenEnds {
            lower: bounds.0 != Bound::Unbounded,
            upper: bounds.1 != Bound::Unbounded,
        };
        sum.look(self.root(), ends, bounds, &seen, 1, &mut level);
        let (mut weight, mut random) = (1, 0);
        while !level.is_empty() {
            let entries: usize = level.iter().map(|(node, _)| node.entries()).sum();
            let mut pick = Pick::new(entries.div_ceil(LOOKED_AT), random);
            weight = u64::saturating_mul(weight, pick.every as u64);
            for (node, ends) in std::mem::take(&mut level) {
                let Some(span) = Span::of(node, ends, bounds) else {
                    continue;
                };
                node.visit(span.from, span.to, |position, child| {
                    if pick.takes() {
                        let ends = OpenEnds {
                            lower: span.lower_at == Some(position),
                            upper: span.upper_at == Some(position),
                        };
                        sum.look(child, ends, bounds, &seen, weight, &mut level);
                    }
                });
            }
            random = pick.random;
        }
        // An estimate cannot exceed the memtable's counts.
        let keys = self.records() + self.tombstones();
        sum.records = sum.records.min(keys);
        sum.tombstones = sum.tombstones.min(keys);
        sum
    }
}

impl Estimate {
    /// Adds a leaf with a weight. A node is put on the list of the next level.
    fn look<'a>(
        &mut self,
        child: Child<'a>,
        ends: OpenEnds,
        bounds: KeyBounds<'_>,
        seen: &Seen<'_>,
        weight: u64,
        level: &mut Vec<(NodeRef<'a>, OpenEnds)>,
    ) {
        match child {
            Child::None => {}
            Child::Node(node) => level.push((node, ends)),
            Child::Leaf(leaf) => {
                let is_inside = !(ends.lower || ends.upper)
                    || RangeBounds::<[u8]>::contains(&bounds, leaf.key());
                if is_inside {
                    self.add(leaf, seen, weight);
                }
            }
        }
    }

    fn add(&mut self, leaf: LeafRef<'_>, seen: &Seen<'_>, weight: u64) {
        let Some(version) = leaf.newest(seen.before) else {
            return;
        };
        if let Some(fragments) = seen.fragments
            && fragments.newest_over(leaf.key(), seen.before) > Some(version.lsn())
        {
            return;
        }
        let message = version.message();
        let counted = match message {
            Message::Put(_)
            | Message::Merge(_)
            | Message::Stack(_)
            | Message::Separated(_)
            | Message::Expiring(_) => &mut self.records,
            Message::Delete => &mut self.tombstones,
        };
        *counted = counted.saturating_add(weight);
        let bytes = (leaf.key().len() + message.value_bytes()) as u64;
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(weight));
    }
}

impl Span {
    /// The range's entries of a node; `None` if there are none.
    fn of(node: NodeRef<'_>, ends: OpenEnds, bounds: KeyBounds<'_>) -> Option<Span> {
        let mut span = Span {
            from: BEFORE_ALL,
            to: BEHIND_ALL,
            lower_at: None,
            upper_at: None,
        };
        if let (true, Bound::Included(key) | Bound::Excluded(key)) = (ends.lower, bounds.0) {
            match EntryPosition::of(key, node) {
                EntryPosition::BeforeAll => {}
                EntryPosition::BehindAll => return None,
                EntryPosition::At(position) => {
                    (span.from, span.lower_at) = (position, Some(position))
                }
            }
        }
        if let (true, Bound::Included(key) | Bound::Excluded(key)) = (ends.upper, bounds.1) {
            match EntryPosition::of(key, node) {
                EntryPosition::BeforeAll => return None,
                EntryPosition::BehindAll => {}
                EntryPosition::At(position) => {
                    (span.to, span.upper_at) = (position, Some(position))
                }
            }
        }
        Some(span)
    }
}

/// The position of a key among the entries of a node.
enum EntryPosition {
    BeforeAll,
    BehindAll,
    /// In this entry, or where its entry would be.
    At(u16),
}

impl EntryPosition {
    fn of(key: &[u8], node: NodeRef<'_>) -> EntryPosition {
        let common = node.common(key, 0);
        match key.get(common) {
            // The key is the terminal's key, or ends before it.
            None if common == node.depth() => EntryPosition::At(TERMINAL),
            None => EntryPosition::BeforeAll,
            Some(&byte) if common == node.depth() => EntryPosition::At(node::position(byte)),
            Some(&byte) if node.path_byte(common) > byte => EntryPosition::BeforeAll,
            Some(_) => EntryPosition::BehindAll,
        }
    }
}

impl Pick {
    fn new(every: usize, random: u64) -> Self {
        let mut pick = Pick {
            every: every.max(1),
            at: 0,
            taken: 0,
            random,
        };
        pick.choose();
        pick
    }

    fn choose(&mut self) {
        // A linear congruential generator (Knuth's MMIX); its upper half is used.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let upper = self.random >> 32;
        self.taken = ((upper * self.every as u64) >> 32) as usize;
        self.at = 0;
    }

    /// Whether to take the next entry.
    #[inline]
    fn takes(&mut self) -> bool {
        let takes = self.at == self.taken;
        self.at += 1;
        if self.at == self.every {
            self.choose();
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_n_is_taken_at_varying_indexes() {
        for every in [1, 2, 7, 1000] {
            let mut pick = Pick::new(every, 0);
            let mut places = Vec::new();
            for _ in 0..200 {
                let taken: Vec<usize> = (0..every).filter(|_| pick.takes()).collect();
                assert_eq!(taken.len(), 1);
                places.push(taken[0]);
            }
            places.sort_unstable();
            places.dedup();
            assert!(places.len() * 2 >= every.min(200), "{every}: {places:?}");
        }
    }
}
