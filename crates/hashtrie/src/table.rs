//! A leaf's table: which runs may hold a key, in two bytes for each record.
//!
//! A table has parts of about `PART_RECORDS` records, which divide the leaf's prefixes evenly. The
//! buckets of a part divide its range evenly. An entry has the lowest
//! twelve bits of a prefix and the slot of a run. Within a bucket the newest run's entries come
//! first. For each record of each run there is an entry (H3): too many are allowed, one too few
//! never.

use terrapin_base::mutant;

use crate::digits::Stretch;

/// Runs of a chain at most, and slots.
pub(crate) const SLOTS: usize = 16;
/// Entries of a bucket on average.
const BUCKET_ENTRIES: u64 = 12;
const FINGERPRINT: u64 = 0xfff;

/// Records of a part on average, at most.
const PART_RECORDS: u64 = 16_000;
/// Buckets may grow to this many times their size when they were built.
const GROWTH_MAX: u64 = 2;

/// The slots of runs to ask for a key, newest first, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotList {
    slots: [u8; SLOTS],
    count: u8,
}

impl SlotList {
    /// Adds a slot unless it is there.
    fn add(&mut self, slot: u8) {
        if !self.as_slice().contains(&slot) && usize::from(self.count) < SLOTS {
            self.slots[usize::from(self.count)] = slot;
            self.count += 1;
        }
    }

    /// The slots.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.slots[..usize::from(self.count)]
    }
}

/// The table of a leaf.
#[derive(Debug)]
pub(crate) struct Table {
    lo: u64,
    /// The parts divide the leaf's prefixes by these bits.
    part_shift: u32,
    parts: Vec<Part>,
}

impl Table {
    /// Builds the table of a leaf. `runs` has the slot and the prefixes of each run, newest first.
    pub(crate) fn build(stretch: Stretch, runs: &[(u8, &[u64])]) -> Table {
        let total: u64 = runs.iter().map(|(_, prefixes)| prefixes.len() as u64).sum();
        let most = stretch.len().ilog2();
        let width = total
            .div_ceil(PART_RECORDS)
            .max(1)
            .next_power_of_two()
            .ilog2()
            .min(most);
        let part_shift = most - width;
        let part = |number: u64| {
            let lo = stretch.lo() + (number << part_shift);
            Part::build(lo, lo + (1 << part_shift), runs)
        };
        Table {
            lo: stretch.lo(),
            part_shift,
            parts: (0..1 << width).map(part).collect(),
        }
    }

    /// The table with a new run in front, and without the runs of the slots in `dropped`. `None` if
    /// it should rather be built anew.
    pub(crate) fn with_run(&self, dropped: u16, slot: u8, prefixes: &[u64]) -> Option<Table> {
        let parts = self.parts.iter();
        let parts = parts.map(|part| part.with_run(dropped, slot, prefixes));
        Some(Table {
            lo: self.lo,
            part_shift: self.part_shift,
            parts: parts.collect::<Option<_>>()?,
        })
    }

    /// The runs to ask for a key of this prefix, newest first.
    pub(crate) fn slots(&self, prefix: u64) -> SlotList {
        let number = prefix.checked_sub(self.lo).map(|at| at >> self.part_shift);
        let part = number.and_then(|number| self.parts.get(number as usize));
        part.map_or_else(SlotList::default, |part| part.slots(prefix))
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let parts = self.parts.iter().map(Part::memory_bytes);
        size_of::<Self>() + parts.sum::<usize>()
    }
}

/// A part of a table.
#[derive(Debug)]
pub(crate) struct Part {
    lo: u64,
    hi: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// `starts` has one number more than there are buckets.
    Entries { starts: Vec<u16>, entries: Vec<u16> },
    /// Too many records for the numbers of `Entries`: the runs that have any, newest first.
    Runs(SlotList),
}

impl Part {
    /// Builds a part of the prefixes from `lo` to below `hi`, which is above. `runs` has the slot
    /// and the prefixes of each run of the chain, newest first, and maybe prefixes outside.
    pub(crate) fn build(lo: u64, hi: u64, runs: &[(u8, &[u64])]) -> Part {
        let inside = |prefixes: &'_ [u64]| {
            let start = prefixes.partition_point(|&prefix| prefix < lo);
            start..prefixes.partition_point(|&prefix| prefix < hi)
        };
        let total: usize = runs
            .iter()
            .map(|(_, prefixes)| inside(prefixes).len())
            .sum();
        if total > usize::from(u16::MAX) {
            let mut slots = SlotList::default();
            for (slot, prefixes) in runs {
                if !inside(prefixes).is_empty() {
                    slots.add(*slot);
                }
            }
            return Part {
                lo,
                hi,
                kind: Kind::Runs(slots),
            };
        }
        let buckets = (total as u64).div_ceil(BUCKET_ENTRIES).clamp(1, hi - lo) as usize;
        let mut part = Part {
            lo,
            hi,
            kind: Kind::Runs(SlotList::default()),
        };
        let mut counts = vec![0u16; buckets + 1];
        let all = || {
            runs.iter().flat_map(|(slot, prefixes)| {
                prefixes[inside(prefixes)]
                    .iter()
                    .map(move |&prefix| (*slot, prefix))
            })
        };
        for (_, prefix) in all() {
            counts[part.bucket(prefix, buckets) + 1] += 1;
        }
        for at in 1..counts.len() {
            counts[at] += counts[at - 1];
        }
        let starts = counts.clone();
        let mut entries = vec![0; total];
        // Newest run first, so that within a bucket the newest entry comes first.
        for (slot, prefix) in all() {
            let next = &mut counts[part.bucket(prefix, buckets)];
            entries[usize::from(*next)] = entry(prefix, slot);
            *next += 1;
        }
        part.kind = Kind::Entries { starts, entries };
        part
    }

    /// The part with the entries of a new run in front, and without those of some slots. `None` if
    /// it would have too many entries for its buckets.
    fn with_run(&self, dropped: u16, slot: u8, prefixes: &[u64]) -> Option<Part> {
        let start = prefixes.partition_point(|&prefix| prefix < self.lo);
        let end = prefixes.partition_point(|&prefix| prefix < self.hi);
        let mut coming = prefixes[start..end].iter().copied().peekable();
        let (old_starts, old) = match &self.kind {
            Kind::Entries { starts, entries } => (starts, entries),
            Kind::Runs(_) => return None,
        };
        let buckets = old_starts.len() - 1;
        let total = old.len() + (end - start);
        if total > usize::from(u16::MAX)
            || total as u64 > (buckets as u64 * BUCKET_ENTRIES + BUCKET_ENTRIES) * GROWTH_MAX
        {
            return None;
        }
        let mut starts = Vec::with_capacity(buckets + 1);
        let mut entries = Vec::with_capacity(total);
        for bucket in 0..buckets {
            starts.push(entries.len() as u16);
            while let Some(prefix) =
                coming.next_if(|&prefix| self.bucket(prefix, buckets) == bucket)
            {
                if coming.peek().is_some() || !mutant::active("table-misses-last-record") {
                    entries.push(entry(prefix, slot));
                }
            }
            let own = usize::from(old_starts[bucket])..usize::from(old_starts[bucket + 1]);
            let kept = old[own]
                .iter()
                .filter(|own| dropped >> (**own & 0xf) & 1 == 0);
            entries.extend(kept);
        }
        starts.push(entries.len() as u16);
        Some(Part {
            lo: self.lo,
            hi: self.hi,
            kind: Kind::Entries { starts, entries },
        })
    }

    fn bucket(&self, prefix: u64, buckets: usize) -> usize {
        let behind = u128::from(prefix - self.lo) * buckets as u128;
        (behind / u128::from(self.hi - self.lo)) as usize
    }

    /// The runs to ask for a key of this prefix, newest first. The prefix is in the part.
    pub(crate) fn slots(&self, prefix: u64) -> SlotList {
        let (starts, entries) = match &self.kind {
            Kind::Entries { starts, entries } => (starts, entries),
            Kind::Runs(slots) => return *slots,
        };
        let bucket = self.bucket(prefix, starts.len() - 1);
        let bucket = usize::from(starts[bucket])..usize::from(starts[bucket + 1]);
        let mut slots = SlotList::default();
        for &own in &entries[bucket] {
            if own >> 4 == (prefix & FINGERPRINT) as u16 {
                slots.add((own & 0xf) as u8);
            }
        }
        slots
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let kind = match &self.kind {
            Kind::Entries { starts, entries } => (starts.capacity() + entries.capacity()) * 2,
            Kind::Runs(_) => 0,
        };
        size_of::<Self>() + kind
    }
}

fn entry(prefix: u64, slot: u8) -> u16 {
    ((prefix & FINGERPRINT) as u16) << 4 | u16::from(slot & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        *state >> 24
    }

    fn runs(sizes: &[usize], below: u64, state: &mut u64) -> Vec<(u8, Vec<u64>)> {
        let run = |(at, &size): (usize, &usize)| {
            let mut prefixes: Vec<_> = (0..size).map(|_| random(state) % below).collect();
            prefixes.sort_unstable();
            ((at as u8 * 7) % 16, prefixes)
        };
        sizes.iter().enumerate().map(run).collect()
    }

    /// H3: no record lacks an entry, and newer runs come first.
    #[test]
    fn every_record_is_found_newest_run_first() {
        let mut state = 11;
        for (sizes, below) in [
            (&[1][..], 1 << 30),
            (&[100, 900, 15_000], 1 << 30),
            (
                &[
                    10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 900,
                ],
                4_000,
            ),
            (&[500, 500], 1),
            (&[40_000, 40_000], 1 << 30),
        ] {
            let runs = runs(sizes, below, &mut state);
            let borrowed: Vec<_> = runs.iter().map(|(slot, own)| (*slot, &own[..])).collect();
            let order: Vec<u8> = runs.iter().map(|(slot, _)| *slot).collect();
            for (lo, hi) in [(0, below), (below / 2, below / 2 + below.div_ceil(4))] {
                let part = Part::build(lo, hi, &borrowed);
                for (slot, own) in &runs {
                    for &prefix in own.iter().filter(|prefix| (lo..hi).contains(prefix)) {
                        let found = part.slots(prefix);
                        assert!(found.as_slice().contains(slot));
                        let places = found.as_slice().iter();
                        let places = places.map(|slot| order.iter().position(|own| own == slot));
                        assert!(places.is_sorted(), "{found:?}");
                    }
                }
            }
        }
    }

    /// A table that grew run by run names the same runs as one that is built at once.
    #[test]
    fn a_table_grows_by_runs_and_forgets_joined_ones() {
        let mut state = 17;
        let stretch = Stretch::new(0, 4).unwrap();
        let runs = runs(&[700, 50, 900, 20_000], stretch.len(), &mut state);
        let borrowed: Vec<_> = runs.iter().map(|(slot, own)| (*slot, &own[..])).collect();
        let mut grown = Table::build(stretch, &borrowed[3..]);
        for (slot, prefixes) in borrowed[1..3].iter().rev() {
            grown = grown.with_run(0, *slot, prefixes).unwrap();
        }
        // The two newest runs are joined into the last one.
        let mut joined = [borrowed[0].1, borrowed[1].1].concat();
        joined.sort_unstable();
        grown = grown.with_run(1 << borrowed[1].0, 15, &joined).unwrap();
        let now = [(15, &joined[..]), borrowed[2], borrowed[3]];
        let mut more = 0;
        for prefix in runs.iter().flat_map(|(_, own)| own) {
            let has = now
                .iter()
                .filter(|(_, own)| own.binary_search(prefix).is_ok());
            let wanted: Vec<u8> = has.map(|(slot, _)| *slot).collect();
            let found = grown.slots(*prefix);
            let mut left = wanted.iter().peekable();
            for slot in found.as_slice() {
                more += usize::from(left.next_if(|wanted| *wanted == slot).is_none());
            }
            assert!(left.next().is_none(), "{wanted:?} of {found:?}");
        }
        assert!(more < 200, "{more} false ones");
        let much: Vec<u64> = (0..60_000).collect();
        assert!(grown.with_run(0, 0, &much).is_none());
    }

    #[test]
    fn few_absent_keys_name_a_run_and_a_record_takes_little() {
        let mut state = 13;
        let runs = runs(&[2_000, 14_000], 1 << 36, &mut state);
        let borrowed: Vec<_> = runs.iter().map(|(slot, own)| (*slot, &own[..])).collect();
        let part = Part::build(0, 1 << 36, &borrowed);
        let named = (0..100_000).filter(|_| {
            let prefix = random(&mut state) % (1 << 36);
            !part.slots(prefix).as_slice().is_empty()
        });
        // Twelve entries of twelve bits: 0.3 %.
        let named = named.count();
        assert!(named < 500, "{named}");
        assert!(
            part.memory_bytes() < 16_000 * 23 / 10,
            "{}",
            part.memory_bytes()
        );
    }
}
