//! How much a range of keys holds, roughly, without a walk over all of it.
//!
//! The tree is gone through level by level, as far as the range goes. Where a level has more
//! entries than [`LOOKED_AT`], one of so many stands for all of them, with what lies below it. So a
//! range of some hundred keys is counted, and of a larger one the less is seen the more there is:
//! that comes near where the parts of a level are alike, and less so where few of them hold most of
//! it.

use std::ops::{Bound, RangeBounds};

use terrapin_base::{Lsn, Message};

use crate::Memtable;
use crate::leaf::LeafRef;
use crate::node::{self, BEFORE_ALL, BEHIND_ALL, Child, NodeRef, TERMINAL};

/// Entries of a level that are looked at, about.
const LOOKED_AT: usize = 1024;

/// About how much a range of a memtable holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Keys with a value.
    pub records: u64,
    /// Keys that say that there is none.
    pub tombstones: u64,
    /// Bytes of these keys and values.
    pub bytes: u64,
}

/// A range of keys.
type KeyBounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// Which ends of the range may lie inside a subtree.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cut {
    lower: bool,
    upper: bool,
}

/// The entries of a node that the range has.
struct Span {
    from: u16,
    to: u16,
    /// The entry that the range's start may cut,
    lower_at: Option<u16>,
    /// and that which its end may.
    upper_at: Option<u16>,
}

/// Takes one of so many, at a place of its own among each so many: what repeats itself is not met
/// at the same place again and again.
struct Pick {
    every: usize,
    at: usize,
    taken: usize,
    random: u64,
}

impl Memtable {
    /// About how much lies between two bounds, of versions below `before`: exact for up to some
    /// hundred keys when nobody writes. Where all is asked for, it is what the counts say. Looks at
    /// about a thousand places on each level, and makes no writer wait.
    #[must_use]
    pub fn estimate(&self, bounds: KeyBounds<'_>, before: Lsn) -> Estimate {
        if bounds == (Bound::Unbounded, Bound::Unbounded) {
            return Estimate {
                records: self.records(),
                tombstones: self.tombstones(),
                bytes: self.live_bytes(),
            };
        }
        let mut sum = Estimate::default();
        let mut level: Vec<(NodeRef<'_>, Cut)> = Vec::new();
        let cut = Cut {
            lower: bounds.0 != Bound::Unbounded,
            upper: bounds.1 != Bound::Unbounded,
        };
        sum.look(self.root(), cut, bounds, before, 1, &mut level);
        let (mut weight, mut random) = (1, 0);
        while !level.is_empty() {
            let entries: usize = level.iter().map(|(node, _)| node.entries()).sum();
            let mut pick = Pick::new(entries.div_ceil(LOOKED_AT), random);
            weight = u64::saturating_mul(weight, pick.every as u64);
            for (node, cut) in std::mem::take(&mut level) {
                let Some(span) = Span::of(node, cut, bounds) else {
                    continue;
                };
                node.visit(span.from, span.to, |position, child| {
                    if pick.takes() {
                        let cut = Cut {
                            lower: span.lower_at == Some(position),
                            upper: span.upper_at == Some(position),
                        };
                        sum.look(child, cut, bounds, before, weight, &mut level);
                    }
                });
            }
            random = pick.random;
        }
        // There is no more than all.
        let keys = self.records() + self.tombstones();
        sum.records = sum.records.min(keys);
        sum.tombstones = sum.tombstones.min(keys);
        sum
    }
}

impl Estimate {
    /// Adds a leaf that stands for so many; a node goes to those of the next level.
    fn look<'a>(
        &mut self,
        child: Child<'a>,
        cut: Cut,
        bounds: KeyBounds<'_>,
        before: Lsn,
        weight: u64,
        level: &mut Vec<(NodeRef<'a>, Cut)>,
    ) {
        match child {
            Child::None => {}
            Child::Node(node) => level.push((node, cut)),
            Child::Leaf(leaf) => {
                let is_inside =
                    !(cut.lower || cut.upper) || RangeBounds::<[u8]>::contains(&bounds, leaf.key());
                if is_inside {
                    self.add(leaf, before, weight);
                }
            }
        }
    }

    fn add(&mut self, leaf: LeafRef<'_>, before: Lsn, weight: u64) {
        let Some(version) = leaf.newest(before) else {
            return;
        };
        let message = version.message();
        let counted = match message {
            Message::Put(_) => &mut self.records,
            Message::Delete => &mut self.tombstones,
        };
        *counted = counted.saturating_add(weight);
        let bytes = (leaf.key().len() + message.value_bytes()) as u64;
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(weight));
    }
}

impl Span {
    /// None where the range has nothing of the node.
    fn of(node: NodeRef<'_>, cut: Cut, bounds: KeyBounds<'_>) -> Option<Span> {
        let mut span = Span {
            from: BEFORE_ALL,
            to: BEHIND_ALL,
            lower_at: None,
            upper_at: None,
        };
        if let (true, Bound::Included(key) | Bound::Excluded(key)) = (cut.lower, bounds.0) {
            match Place::of(key, node) {
                Place::BeforeAll => {}
                Place::BehindAll => return None,
                Place::At(position) => (span.from, span.lower_at) = (position, Some(position)),
            }
        }
        if let (true, Bound::Included(key) | Bound::Excluded(key)) = (cut.upper, bounds.1) {
            match Place::of(key, node) {
                Place::BeforeAll => return None,
                Place::BehindAll => {}
                Place::At(position) => (span.to, span.upper_at) = (position, Some(position)),
            }
        }
        Some(span)
    }
}

/// Where a key lies among the entries of a node.
enum Place {
    BeforeAll,
    BehindAll,
    /// In this entry, or where it would be.
    At(u16),
}

impl Place {
    fn of(key: &[u8], node: NodeRef<'_>) -> Place {
        let common = node.common(key, 0);
        match key.get(common) {
            // The key is the terminal's, or ends before.
            None if common == node.depth() => Place::At(TERMINAL),
            None => Place::BeforeAll,
            Some(&byte) if common == node.depth() => Place::At(node::position(byte)),
            Some(&byte) if node.path_byte(common) > byte => Place::BeforeAll,
            Some(_) => Place::BehindAll,
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
        // A linear congruential generator (Knuth's MMIX), by its upper half.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let upper = self.random >> 32;
        self.taken = ((upper * self.every as u64) >> 32) as usize;
        self.at = 0;
    }

    /// Whether the next one is taken.
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
    fn one_of_so_many_is_taken_at_places_of_their_own() {
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
