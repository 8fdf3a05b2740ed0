//! A set of disjoint byte ranges, found by offset and by size. Adjacent ranges always form one run.

use std::collections::{BTreeMap, BTreeSet};

use crate::page::Extent;

/// Runs whose size is within this share (1/n) above the wanted one compete by offset. This keeps
/// files short.
const NEAR_FIT_SHARE: u64 = 8;
/// Most near fits that a search compares.
const NEAR_FIT_PROBES: usize = 16;

/// Disjoint, coalesced ranges. Every operation is O(log n) for each run that it touches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Runs {
    /// The bytes of all runs.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    fn add_run(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_size.insert((bytes, offset));
        self.total += bytes;
    }

    fn drop_run(&mut self, offset: u64, bytes: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(bytes, offset));
        self.total -= bytes;
    }

    /// Adds a range. Bytes that are in the set already stay.
    pub(crate) fn insert(&mut self, extent: Extent) {
        if extent.bytes == 0 {
            return;
        }
        let (mut start, mut end) = (extent.offset, extent.end());
        while let Some((&offset, &bytes)) = self.by_offset.range(..=end).next_back() {
            if offset + bytes < start {
                break;
            }
            start = start.min(offset);
            end = end.max(offset + bytes);
            self.drop_run(offset, bytes);
        }
        self.add_run(start, end - start);
    }

    /// Removes the bytes of a range from the set.
    pub(crate) fn remove(&mut self, extent: Extent) {
        if extent.bytes == 0 {
            return;
        }
        let (start, end) = (extent.offset, extent.end());
        while let Some((&offset, &bytes)) = self.by_offset.range(..end).next_back() {
            let run_end = offset + bytes;
            if run_end <= start {
                break;
            }
            self.drop_run(offset, bytes);
            if run_end > end {
                self.add_run(end, run_end - end);
            }
            if offset < start {
                self.add_run(offset, start - offset);
                break;
            }
        }
    }

    /// The parts of a range that are in the set, from high to low offsets.
    pub(crate) fn within(&self, extent: Extent) -> impl Iterator<Item = Extent> + '_ {
        let (start, end) = (extent.offset, extent.end());
        self.by_offset
            .range(..end)
            .rev()
            .map_while(move |(&offset, &bytes)| {
                let run_end = offset + bytes;
                (run_end > start).then(|| {
                    let from = offset.max(start);
                    Extent {
                        offset: from,
                        bytes: run_end.min(end) - from,
                    }
                })
            })
    }

    /// The parts of a range that are not in the set, ascending.
    pub(crate) fn gaps(&self, extent: Extent) -> Vec<Extent> {
        let mut gaps = Vec::new();
        let mut end = extent.end();
        for part in self.within(extent) {
            if part.end() < end {
                gaps.push(Extent {
                    offset: part.end(),
                    bytes: end - part.end(),
                });
            }
            end = part.offset;
        }
        if extent.offset < end {
            gaps.push(Extent {
                offset: extent.offset,
                bytes: end - extent.offset,
            });
        }
        gaps.reverse();
        gaps
    }

    /// Whether a range shares a byte with the set.
    pub(crate) fn overlaps(&self, extent: Extent) -> bool {
        self.within(extent).next().is_some()
    }

    /// The run that ends at this offset.
    pub(crate) fn ending_at(&self, end: u64) -> Option<Extent> {
        let (&offset, &bytes) = self.by_offset.range(..end).next_back()?;
        (offset + bytes == end).then_some(Extent { offset, bytes })
    }

    /// The run with the highest offset.
    pub(crate) fn last(&self) -> Option<Extent> {
        self.by_offset
            .last_key_value()
            .map(|(&offset, &bytes)| Extent { offset, bytes })
    }

    /// The largest run.
    pub(crate) fn largest(&self) -> Option<Extent> {
        self.by_size
            .last()
            .map(|&(bytes, offset)| Extent { offset, bytes })
    }

    /// The first `wanted` bytes of the best fitting run: the lowest of the runs that are little
    /// larger than `wanted`. A run that ends at `except_end` is skipped.
    pub(crate) fn fit(&self, wanted: u64, except_end: Option<u64>) -> Option<Extent> {
        let mut candidates = self
            .by_size
            .range((wanted, 0)..)
            .filter(|&&(bytes, offset)| Some(offset + bytes) != except_end)
            .take(NEAR_FIT_PROBES);
        let &(best_bytes, best_offset) = candidates.next()?;
        let near = best_bytes.saturating_add(wanted / NEAR_FIT_SHARE);
        let offset = candidates
            .take_while(|&&(bytes, _)| bytes <= near)
            .map(|&(_, o)| o)
            .fold(best_offset, u64::min);
        Some(Extent {
            offset,
            bytes: wanted,
        })
    }

    /// All runs, the shortest first.
    pub(crate) fn ascending(&self) -> impl Iterator<Item = Extent> + '_ {
        self.by_size
            .iter()
            .map(|&(bytes, offset)| Extent { offset, bytes })
    }

    /// All runs, by offset.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.by_offset
            .iter()
            .map(|(&offset, &bytes)| Extent { offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(offset: u64, bytes: u64) -> Extent {
        Extent { offset, bytes }
    }

    proptest! {
        #[test]
        fn runs_equal_a_set_of_cells(ops in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 1..80)) {
            let mut runs = Runs::default();
            let mut cells = [false; 80];
            for (insert, offset, bytes) in ops {
                if insert { runs.insert(extent(offset, bytes)) } else { runs.remove(extent(offset, bytes)) }
                cells[offset as usize..(offset + bytes) as usize].fill(insert);
                let list: Vec<_> = runs.iter().collect();
                for pair in list.windows(2) {
                    prop_assert!(pair[0].end() < pair[1].offset, "not coalesced: {:?}", list);
                }
                let mut seen = [false; 80];
                for run in &list {
                    seen[run.offset as usize..run.end() as usize].fill(true);
                }
                prop_assert_eq!(seen, cells);
                prop_assert_eq!(runs.total(), cells.iter().filter(|&&c| c).count() as u64);
                prop_assert_eq!(runs.by_size.len(), list.len());
                let gaps = runs.gaps(extent(10, 40));
                let inside: u64 = runs.within(extent(10, 40)).map(|e| e.bytes).sum();
                prop_assert_eq!(gaps.iter().map(|g| g.bytes).sum::<u64>() + inside, 40);
                for gap in gaps {
                    prop_assert!(gap.bytes > 0 && !runs.overlaps(gap));
                }
            }
        }

        #[test]
        fn fit_finds_a_run_whenever_one_is_large_enough(
            list in prop::collection::btree_map(0u64..50, 1u64..15, 0..20), wanted in 1u64..20,
        ) {
            let mut runs = Runs::default();
            for (slot, bytes) in &list {
                runs.insert(extent(slot * 16, *bytes));
            }
            let possible = list.values().any(|&b| b >= wanted);
            match runs.fit(wanted, None) {
                Some(e) => {
                    prop_assert_eq!(e.bytes, wanted);
                    prop_assert_eq!(runs.within(e).map(|p| p.bytes).sum::<u64>(), wanted);
                    prop_assert!(list.contains_key(&(e.offset / 16)) && e.offset % 16 == 0);
                }
                None => prop_assert!(!possible),
            }
        }
    }

    #[test]
    fn the_lowest_of_equal_fits_is_found_and_the_tail_is_skipped() {
        let mut runs = Runs::default();
        for offset in [300, 100, 200] {
            runs.insert(extent(offset, 16));
        }
        assert_eq!(runs.fit(16, None), Some(extent(100, 16)));
        runs.remove(extent(100, 16));
        runs.remove(extent(200, 16));
        assert_eq!(runs.fit(16, Some(316)), None);
        assert_eq!(runs.ending_at(316), Some(extent(300, 16)));
    }
}
