//! [`Cover`]: the range deletes that a view sees above its tree, and which keys they hide.
//!
//! A range jumps over *gaps*. A gap is a stretch of keys that range deletes of the view's layers
//! cover without a hole, and as long as possible. The tree has nothing to show there. The layers
//! may: a put that is newer than the range delete.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Lsn, mutant};
use terrapin_memtable::FragmentTree;
use terrapin_structure::KeyBounds;

use crate::engine::state::{KeyspaceState, LoggedMemtable};
use crate::read::{Layer, layers};
use crate::run::Spilled;

/// The range deletes of the layers above a tree, newer layer first, as a view of an LSN sees them.
pub(crate) struct Cover {
    trees: [Option<Arc<FragmentTree>>; 2],
    before: Lsn,
}

/// A stretch of deleted keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The first key.
    pub lo: Vec<u8>,
    /// The first key behind the gap. None at the end of all keys.
    pub hi: Option<Vec<u8>>,
    /// Number of range deletes that were looked up one after the other to find the gap. Each took
    /// a range about as long as a delete of one key.
    pub links: u64,
}

impl Gap {
    /// The gap as a range of keys.
    pub fn bounds(&self) -> KeyBounds<'_> {
        let upper = self.hi.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(&self.lo), upper)
    }
}

impl Cover {
    /// The range deletes of a keyspace's layers. None if there are none.
    #[inline]
    pub fn of(keyspace: &KeyspaceState, before: Lsn) -> Option<Cover> {
        let sealed = keyspace.sealed.as_ref().map(|sealed| &sealed.records);
        let has_none = |records: &LoggedMemtable| !records.memtable.has_range_deletes();
        match keyspace.spilled.is_none()
            && has_none(&keyspace.active)
            && sealed.is_none_or(|records| has_none(records))
        {
            true => None,
            false => Self::of_layers(keyspace, before),
        }
    }

    #[cold]
    fn of_layers(keyspace: &KeyspaceState, before: Lsn) -> Option<Cover> {
        let none = Spilled::default();
        let spilled = keyspace.spilled.as_deref().unwrap_or(&none);
        let trees = layers(keyspace, spilled, before).map(|layer| match layer? {
            Layer::Memtable(memtable) => memtable.fragments(),
            Layer::Run(run) => run.fragments(),
        });
        Self::over(trees, before)
    }

    /// The range deletes below a bound. None if there are none.
    pub fn over(trees: [Option<Arc<FragmentTree>>; 2], before: Lsn) -> Option<Cover> {
        trees
            .iter()
            .any(Option::is_some)
            .then_some(Cover { trees, before })
    }

    /// The range deletes of the newer layer alone.
    pub fn of_newer(&self) -> Option<Cover> {
        Self::over([self.trees[0].clone(), None], self.before)
    }

    fn trees(&self) -> impl Iterator<Item = &FragmentTree> {
        self.trees.iter().flatten().map(|tree| &**tree)
    }

    /// Whether the newer layer hides a key of the older one.
    pub fn hides_below_newer(&self, key: &[u8]) -> bool {
        let newer = self.trees[0].as_ref();
        let newer = newer.filter(|_| !mutant::active("older-memtable-ignores-range-deletes"));
        newer.is_some_and(|tree| tree.newest_over(key, self.before).is_some())
    }

    /// The first gap that has a key at or above `from`. O(log fragments) for each of
    /// [`Gap::links`].
    pub fn gap_from(&self, from: &[u8]) -> Option<Gap> {
        if let Some(gap) = self.gap_at(from) {
            return Some(gap);
        }
        let starts = self.trees().filter_map(|t| t.next_start(from, self.before));
        self.gap_at(starts.min()?)
    }

    /// The part of a gap from one of its keys on.
    fn gap_at(&self, lo: &[u8]) -> Option<Gap> {
        let (mut hi, mut links) = (Some(lo), 0);
        while let Some(at) = hi {
            let ends = self.trees().filter_map(|t| t.end_over(at, self.before));
            // No end is the greatest.
            let Some((_, end)) = ends.map(|end| (end.is_none(), end)).max() else {
                break;
            };
            hi = end;
            links += 1;
        }
        (links > 0).then(|| Gap {
            lo: lo.to_vec(),
            hi: hi.map(<[u8]>::to_vec),
            links,
        })
    }

    /// The last gap that has a key below `below`. None is the end of all keys.
    pub fn gap_below(&self, below: Option<&[u8]>) -> Option<Gap> {
        let ends = self.trees().filter_map(|t| t.last_end(below, self.before));
        let (_, hi) = ends.map(|end| (end.is_none(), end)).max()?;
        // The gap may go on above the bound.
        let hi = match (hi, below) {
            (Some(hi), Some(below)) => Some(hi.min(below)),
            (hi, below) => hi.or(below),
        };
        let (mut at, mut links) = (hi, 0);
        loop {
            let starts = self
                .trees()
                .filter_map(|t| t.start_touching(at, self.before));
            match starts.min() {
                Some(start) => at = Some(start),
                None => break,
            }
            links += 1;
        }
        Some(Gap {
            lo: at.unwrap_or_default().to_vec(),
            hi: hi.map(<[u8]>::to_vec),
            links,
        })
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;
    use terrapin_memtable::Fragments;

    use super::*;

    #[test]
    fn gaps_are_the_stretches_of_deleted_keys() {
        let (_env, random) = Env::simulated(42);
        for _ in 0..400 {
            let mut deleted = [[false; 256]; 2];
            let mut all = [Fragments::default(), Fragments::default()];
            let before = Lsn(50);
            for _ in 0..random.below(14) {
                let (layer, lsn) = (random.below(2) as usize, Lsn(random.below(60)));
                let lo = random.below(60) as usize;
                let end = lo + 1 + random.below(9) as usize;
                let end = if random.below(20) == 0 { 256 } else { end };
                let hi = [end as u8];
                all[layer].insert(&[lo as u8], (end < 256).then_some(&hi[..]), lsn);
                if lsn < before {
                    deleted[layer][lo..end].fill(true);
                }
            }
            let trees = all.each_mut().map(|fragments| Some(fragments.tree()));
            let cover = Cover::over(trees, before).unwrap();
            let is_deleted = |key: usize| deleted[0][key] || deleted[1][key];
            let gap = |lo: usize, hi: usize| (vec![lo as u8], (hi < 256).then(|| vec![hi as u8]));
            let ends = |gap: Option<Gap>| {
                gap.map(|gap| {
                    assert!((1..=14).contains(&gap.links), "{gap:?}");
                    (gap.lo, gap.hi)
                })
            };
            for (key, &is_hidden) in deleted[0].iter().enumerate().take(70) {
                assert_eq!(cover.hides_below_newer(&[key as u8]), is_hidden);
                let lo = (key..256).find(|&k| is_deleted(k));
                let expected = lo.map(|lo| {
                    let hi = (lo..256).find(|&k| !is_deleted(k)).unwrap_or(256);
                    gap(lo, hi)
                });
                assert_eq!(ends(cover.gap_from(&[key as u8])), expected);
                for end in [key, 256] {
                    let hi = (0..end).rev().find(|&k| is_deleted(k)).map(|k| k + 1);
                    let expected = hi.map(|hi| {
                        let lo = (0..hi).rev().find(|&k| !is_deleted(k)).map_or(0, |k| k + 1);
                        gap(lo, hi)
                    });
                    let bound = [end as u8];
                    let below = (end < 256).then_some(&bound[..]);
                    assert_eq!(ends(cover.gap_below(below)), expected, "below {end}");
                }
            }
        }
    }
}
