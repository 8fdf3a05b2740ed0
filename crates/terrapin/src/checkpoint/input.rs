//! A sealed memtable as a merge reads it: a cursor over its newest versions, and a sketch of how
//! its bytes are spread over the keys, for plans. Of what the memtable's range deletes hide, the
//! merge gives up whole parts unread. For each other hidden key of the tree, the cursor has a
//! delete (`checkpoint::covered`).

use std::sync::Arc;

use terrapin_base::{Lsn, Operator, Result, checksum::hash64, mutant};
use terrapin_memtable::Memtable;
use terrapin_recordcache::{Collection, SealedRecord};
use terrapin_structure::{Erased, Estimate, MergeInput, MessageCursor, Version};

use crate::checkpoint::covered::{Below, Messages, Search};
use crate::engine::clock::Moment;
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;
use crate::planning::workload::Lookups;
use crate::read::resolve;
use crate::types::key_form::KeyForm;
use crate::types::sought::{Sought, StoredKey};

/// Number of marks that a sketch aims at. Each mark stands for an equal share of the bytes.
const MARKS: u64 = 2048;
/// One of this many marks is looked up in the tree, so a memtable costs a few reads of the device.
const MARKS_ASKED: usize = 64;
/// Each mark comes at least this many times its key's bytes after the previous mark.
const MARK_SHARE: u64 = 16;

/// The versions of a memtable within LSN bounds and, on a full disk, within a slice of the keys.
pub(crate) struct MemtableInput {
    memtable: Arc<Memtable>,
    after: Lsn,
    before: Lsn,
    /// Folds the operands of a key into one message.
    operator: Operator,
    /// Whether the memtable has large values.
    has_handles: bool,
    /// The tree below, if the memtable has range deletes.
    below: Option<Below>,
    slice: KeySlice,
    /// Marks by key. Each one holds the totals before it.
    marks: Vec<Mark>,
    total: Estimate,
    /// Number of records whose keys the tree is known to hold: the record cache held them, or a
    /// range delete hides them.
    replacing: u64,
    /// Share of the keyspace's writes that replace a record, in thousandths. 0 if unknown.
    replacing_permille: u16,
}

/// Keys from `lo` to below `hi`. None means unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySlice {
    /// Inclusive.
    pub lo: Option<Box<[u8]>>,
    /// Exclusive.
    pub hi: Option<Box<[u8]>>,
}

struct Mark {
    key: Box<[u8]>,
    before: Estimate,
}

/// Records that one step of a preparation visits: about a millisecond of work.
const STEP_RECORDS: usize = 16 << 10;

/// Builds a [`MemtableInput`] by walking a memtable once, in steps.
pub(crate) struct Preparation {
    /// Finds what the merge gives up unread. None without range deletes, and once that is known.
    search: Option<Search>,
    /// The next part of the record cache from which erased records are removed.
    erases_cached: Option<usize>,
    /// None before the walk.
    messages: Option<Messages>,
    spacing_bytes: u64,
    next_mark_bytes: u64,
    input: MemtableInput,
    /// Ends the slice once it holds this many bytes, if set.
    slice_bytes_max: Option<u64>,
    /// The cached records that the walk updates with the memtable's.
    sweeps: Option<Sweep>,
    /// The keyspace before the merge, whose tree is asked for some keys, and the answers.
    asks: Option<Arc<KeyspaceState>>,
    lookups: Lookups,
}

/// How the walk updates cached records.
struct Sweep {
    core: Arc<Core>,
    collection: Collection,
    /// Whether records that were not cached are added, as far as they were read or there is room.
    take: bool,
    form: KeyForm,
}

impl Sweep {
    /// Updates what caches have of a stored key. Returns whether its record was cached.
    fn record(&self, key: &[u8], said: SealedRecord<'_>) -> bool {
        let Some((cached, hash)) = self.form.in_caches(key) else {
            return false;
        };
        let records = &self.core.records;
        let was_there = records.sweep(self.collection, cached, hash, said, self.take);
        if let Some(locations) = self.core.locations.get() {
            let sought = StoredKey {
                form: self.form,
                key,
            };
            locations.remove(self.collection, sought.hash_of(key, hash));
        }
        was_there
    }
}

impl Preparation {
    /// Updates the keyspace's cached records during the walk. With `take`, the walk also adds
    /// records that were not cached, as far as they were read or there is room.
    pub fn sweep(mut self, core: &Arc<Core>, keyspace: &KeyspaceState, take: bool) -> Self {
        self.sweeps = Some(Sweep {
            core: core.clone(),
            collection: keyspace.collection,
            take,
            form: keyspace.shared.form,
        });
        self
    }

    /// Sets the tree that the merge starts from, whose keys the memtable's range deletes hide.
    pub fn into_tree(mut self, version: &Arc<dyn Version>) -> Self {
        let MemtableInput {
            memtable, before, ..
        } = &self.input;
        self.input.below = Below::of(memtable, version, *before);
        self
    }

    /// Says whether the memtable has large values.
    pub fn with_handles(mut self, has_handles: bool) -> Self {
        self.input.has_handles = has_handles;
        self
    }

    /// Lets the merge give up unread what range deletes hide, in parts of at least `bytes_min`
    /// bytes.
    pub fn giving_up(mut self, bytes_min: u64) -> Self {
        let has_ranges = self.input.below.is_some();
        self.search = has_ranges.then(|| Search::new(bytes_min));
        self
    }

    /// Estimates during the walk how much of the memtable replaces records of the keyspace's tree.
    pub fn asking(mut self, keyspace: &Arc<KeyspaceState>) -> Self {
        self.asks = Some(keyspace.clone());
        self
    }

    /// Restricts the walk to a slice: it starts at a key, and ends once its records hold
    /// `bytes_max` bytes.
    pub fn slice(mut self, lo: Option<Box<[u8]>>, bytes_max: u64) -> Self {
        self.input.slice.lo = lo;
        self.slice_bytes_max = Some(bytes_max);
        self
    }

    /// Does one step. Returns the input once the walk is done.
    pub fn step(&mut self) -> Result<Option<Arc<MemtableInput>>> {
        if let (Some(search), Some(below)) = (&mut self.search, &mut self.input.below) {
            if search.step(below)? {
                self.search = None;
                let is_sweeping = self.sweeps.is_some() && !below.erased().is_empty();
                self.erases_cached = is_sweeping.then_some(0);
            }
            return Ok(None);
        }
        if let Some(part) = self.erases_cached {
            self.erases_cached = self.erase_cached(part);
            return Ok(None);
        }
        let messages = match &mut self.messages {
            Some(messages) => messages,
            none => none.insert(self.input.messages(None, None)?),
        };
        // An expired record that is replaced is a record.
        let anytime = Moment {
            before: self.input.before,
            now_ms: 0,
            ends: None,
        };
        for _ in 0..STEP_RECORDS {
            let Some(key) = messages.key() else {
                return Ok(Some(self.finish()));
            };
            let total = &mut self.input.total;
            if total.records > 0 && self.slice_bytes_max.is_some_and(|max| total.bytes >= max) {
                self.input.slice.hi = Some(key.into());
                return Ok(Some(self.finish()));
            }
            let mut is_asked = false;
            if total.bytes >= self.next_mark_bytes {
                self.input.marks.push(Mark {
                    key: key.into(),
                    before: *total,
                });
                // No budget is charged for the keys of marks. This spacing makes them a small part
                // of the memtable, however long the keys are.
                let spacing_bytes = self.spacing_bytes.max(MARK_SHARE * key.len() as u64);
                self.next_mark_bytes = total.bytes + spacing_bytes;
                is_asked = self.input.marks.len().is_multiple_of(MARKS_ASKED);
            }
            let message = messages.message();
            // A cached value is older than operands without a base, and goes.
            let (value, mut was_there) = (message.put_value(), messages.is_of_tree());
            total.records += 1;
            total.bytes += (key.len() + message.value_bytes()) as u64;
            let is_skipped =
                message.has_operands() && mutant::active("operands-leave-cached-value");
            if let Some(sweep) = self.sweeps.as_ref().filter(|_| !is_skipped) {
                let said = SealedRecord {
                    value,
                    was_read: messages.was_read(),
                };
                was_there |= sweep.record(key, said);
            }
            self.input.replacing += u64::from(was_there);
            if is_asked && let Some(keyspace) = &self.asks {
                let is_there = match was_there {
                    true => Ok(true),
                    false => resolve::contains(keyspace, anytime, key, hash64(key)),
                };
                // A read that needs an unreadable node reports the error.
                if let Ok(is_there) = is_there {
                    self.lookups.asked += 1;
                    self.lookups.found += u64::from(is_there);
                }
            }
            messages.advance()?;
        }
        Ok(None)
    }

    /// Removes cached records that the merge gives up. Returns the next part of the cache.
    fn erase_cached(&self, part: usize) -> Option<usize> {
        let (sweep, below) = (self.sweeps.as_ref()?, self.input.below.as_ref()?);
        let is_erased =
            |key: &[u8]| below.is_erased(key) && !mutant::active("erased-records-stay-cached");
        let records = &sweep.core.records;
        records.sweep_erased(part, sweep.collection, is_erased)
    }

    fn finish(&mut self) -> Arc<MemtableInput> {
        if let Some(keyspace) = self.asks.take() {
            let share = &keyspace.shared.overwrite_share;
            share.note(self.lookups);
            self.input.replacing_permille = share.permille().unwrap_or(0);
        }
        let memtable = self.input.memtable.clone();
        let bounds = (self.input.after, self.input.before);
        let nothing = MemtableInput::over(memtable, bounds, &self.input.operator);
        Arc::new(std::mem::replace(&mut self.input, nothing))
    }
}

impl MemtableInput {
    /// Prepares the versions of `memtable` in `[after, before)`. The caller steps the preparation
    /// to its end.
    pub fn prepare(
        memtable: Arc<Memtable>,
        (after, before): (Lsn, Lsn),
        operator: &Operator,
    ) -> Preparation {
        let spacing_bytes = (memtable.live_bytes() / MARKS).clamp(128, 64 << 10);
        let input = MemtableInput::over(memtable, (after, before), operator);
        Preparation {
            search: None,
            erases_cached: None,
            messages: None,
            spacing_bytes,
            next_mark_bytes: spacing_bytes,
            input,
            slice_bytes_max: None,
            sweeps: None,
            asks: None,
            lookups: Lookups::default(),
        }
    }

    fn over(memtable: Arc<Memtable>, (after, before): (Lsn, Lsn), operator: &Operator) -> Self {
        MemtableInput {
            memtable,
            below: None,
            after,
            before,
            operator: operator.clone(),
            has_handles: false,
            slice: KeySlice::default(),
            marks: Vec::new(),
            total: Estimate::default(),
            replacing: 0,
            replacing_permille: 0,
        }
    }

    /// The most records that this input can add to the tree, as far as the record cache can tell.
    pub fn added(&self) -> u64 {
        self.total.records - self.replacing
    }

    /// The end of the slice. None if the input reaches the memtable's last key.
    pub fn slice_end(&self) -> Option<&[u8]> {
        self.slice.hi.as_deref()
    }

    /// An estimate of what the input holds below a key: halfway between the marks around it.
    fn before(&self, key: &[u8]) -> Estimate {
        let place = self.marks.partition_point(|m| *m.key < *key);
        let low = place
            .checked_sub(1)
            .map_or(Estimate::default(), |i| self.marks[i].before);
        let high = self.marks.get(place).map_or(self.total, |m| m.before);
        let middle = |a: u64, b: u64| a + (b - a) / 2;
        Estimate {
            records: middle(low.records, high.records),
            bytes: middle(low.bytes, high.bytes),
        }
    }

    /// The messages of a range, within the slice.
    fn messages(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<Messages> {
        // None is below all keys.
        let lo = lo.max(self.slice.lo.as_deref());
        let hi = match (hi, self.slice.hi.as_deref()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let points = self.memtable.cursor_owned(self.after, self.before);
        Messages::new((points, &self.operator), self.below.as_ref(), lo, hi)
    }
}

impl MergeInput for MemtableInput {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        Ok(Box::new(self.messages(lo, hi)?))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let low = lo.map_or(Estimate::default(), |k| self.before(k));
        let high = hi.map_or(self.total, |k| self.before(k));
        Estimate {
            records: high.records.saturating_sub(low.records),
            bytes: high.bytes.saturating_sub(low.bytes),
        }
    }

    fn erased(&self) -> &[Erased] {
        self.below.as_ref().map_or(&[], Below::erased)
    }

    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let parts = parts as u64;
        let mut places: Vec<usize> = (1..parts)
            .map(|part| {
                let bytes = self.total.bytes / parts * part;
                self.marks.partition_point(|m| m.before.bytes < bytes)
            })
            .collect();
        places.dedup();
        let marks = places.into_iter().filter_map(|place| self.marks.get(place));
        marks.map(|mark| mark.key.clone()).collect()
    }

    fn has_handles(&self) -> bool {
        self.has_handles
    }

    fn replacing_permille(&self) -> u16 {
        self.replacing_permille
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{Budget, Generation, Incarnation, Message};
    use terrapin_betree::{BeTree, BeTreeParams};
    use terrapin_disk::SimDisk;
    use terrapin_pages::{PageStore, StoreOptions};
    use terrapin_structure::{MergeOptions, MergeStep, Structure, Version};

    use super::*;
    use crate::types::options::Options;

    fn memtable() -> Arc<Memtable> {
        let memtable = Arc::new(Memtable::new(&Budget::new(1 << 30)));
        for i in 0..10_000u64 {
            memtable.insert(&i.to_be_bytes(), Lsn(100 + i), Message::Put(&[1; 92]));
            memtable.insert(&i.to_be_bytes(), Lsn(100_000), Message::Delete);
        }
        memtable
    }

    fn all(input: &Arc<MemtableInput>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Vec<u64> {
        let mut cursor = input.clone().cursor(lo, hi).unwrap();
        let mut keys = Vec::new();
        while let Some(key) = cursor.key() {
            keys.push(u64::from_be_bytes(key.try_into().unwrap()));
            assert!(matches!(cursor.message(), Message::Put(v) if v.len() == 92));
            cursor.advance().unwrap();
        }
        keys
    }

    /// The sketch of a memtable of long keys was a second copy of the memtable, which no budget was
    /// charged for.
    #[test]
    fn a_sketch_of_long_keys_is_a_small_part_of_their_memtable() {
        let memtable = Arc::new(Memtable::new(&Budget::new(1 << 30)));
        for i in 0..600_u64 {
            let mut key = vec![b'k'; 60_000];
            key[..8].copy_from_slice(&i.to_be_bytes());
            memtable.insert(&key, Lsn(1 + i), Message::Put(b""));
        }
        let input = prepared(MemtableInput::prepare(
            memtable.clone(),
            (Lsn(0), Lsn(1000)),
            &Operator::default(),
        ));
        let sketch: usize = input.marks.iter().map(|mark| mark.key.len()).sum();
        assert!(input.marks.len() > 10);
        assert!((sketch as u64) < memtable.live_bytes() / 8, "{sketch}");
    }

    #[test]
    fn a_sketch_estimates_within_a_mark_and_the_cursor_keeps_its_bounds() {
        let memtable = memtable();
        let mut preparation = MemtableInput::prepare(
            memtable.clone(),
            (Lsn(0), Lsn(50_000)),
            &Operator::default(),
        );
        let input = std::iter::from_fn(|| Some(preparation.step().unwrap()))
            .flatten()
            .next()
            .unwrap();
        assert_eq!(
            input.total,
            Estimate {
                records: 10_000,
                bytes: 1_000_000
            }
        );
        assert_eq!(input.estimate(None, None), input.total);
        for (lo, hi) in [(0u64, 10_000u64), (1234, 4321), (9000, 9100), (5000, 5000)] {
            let (low, high) = (lo.to_be_bytes(), hi.to_be_bytes());
            let estimate = input.estimate(Some(&low), Some(&high));
            assert!(
                estimate.bytes.abs_diff((hi - lo) * 100) <= 1000,
                "{lo}..{hi}: {estimate:?}"
            );
            assert_eq!(
                all(&input, Some(&low), Some(&high)),
                (lo..hi).collect::<Vec<_>>()
            );
        }
        assert!(
            input.estimate(Some(b"\xff"), None).records <= 5,
            "at most half a mark"
        );
    }

    fn prepared(mut preparation: Preparation) -> Arc<MemtableInput> {
        std::iter::from_fn(|| Some(preparation.step().unwrap()))
            .flatten()
            .next()
            .unwrap()
    }

    /// A slice of one record contains no mark. The sketch then estimates that half of it comes
    /// first and half comes last.
    #[test]
    fn a_slice_of_one_record_leaves_the_first_and_the_last_leaves_of_a_tree_alone() {
        let budget = Budget::new(64 << 20);
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 0,
            system_cache: false,
        };
        let store = PageStore::create(&SimDisk::new(1).handle(), options, 1).unwrap();
        store.begin_life(Incarnation(1));
        let params = BeTreeParams {
            fanout: 4,
            ..BeTreeParams::new(budget)
        };
        let tree = BeTree::new(store.clone(), params);
        let settings = Options::new().group_bytes(16 << 10).settle().unwrap();
        let mut generation = Generation(1);
        let mut merge = |version: &Arc<dyn Version>, input, options: &MergeOptions| {
            let merge = tree.begin_merge(version, input, options).unwrap();
            while !matches!(merge.step().unwrap(), MergeStep::Done) {}
            let merged = merge.finish().unwrap();
            generation.0 += 1;
            store.commit(generation, merged.changes);
            merged.version
        };
        let memtable = memtable();
        let input = prepared(MemtableInput::prepare(
            memtable.clone(),
            (Lsn(0), Lsn(50_000)),
            &Operator::default(),
        ));
        let version = merge(&tree.empty(), input, &settings.merge);
        let pages = |version: &Arc<dyn Version>| {
            let mut pages = Vec::new();
            version
                .pages(&mut |page| {
                    pages.push(page.id);
                    Ok(())
                })
                .unwrap();
            pages
        };
        let (before, records) = (pages(&version), version.stats().unwrap().leaf_records);
        let options = MergeOptions {
            space_is_short: true,
            ..settings.merge
        };
        // The delete of a key in the middle.
        let from: Box<[u8]> = 5000u64.to_be_bytes().into();
        let slice =
            MemtableInput::prepare(memtable, (Lsn(50_000), Lsn(200_000)), &Operator::default())
                .slice(Some(from), 1);
        let input = prepared(slice);
        assert_eq!((input.total.records, input.marks.len()), (1, 0));
        assert!(input.estimate(None, Some(&[])).bytes * 2 >= input.total.bytes - 1);
        let after = merge(&version, input, &options);
        let stats = after.stats().unwrap();
        assert_eq!(
            (stats.leaf_records, stats.buffered_records),
            (records - 1, 0)
        );
        let now = pages(&after);
        let replaced = before.iter().filter(|page| !now.contains(page)).count();
        // The delete replaces its leaf and each node above the leaf.
        assert_eq!(
            replaced as u64,
            stats.figure("height").unwrap() + 1,
            "of {}",
            before.len()
        );
    }

    #[test]
    fn seals_make_equal_parts() {
        let memtable = memtable();
        let mut preparation =
            MemtableInput::prepare(memtable, (Lsn(0), Lsn(50_000)), &Operator::default());
        let input = std::iter::from_fn(|| Some(preparation.step().unwrap()))
            .flatten()
            .next()
            .unwrap();
        assert!(input.cuts(1).is_empty());
        let cuts = input.cuts(8);
        assert_eq!(cuts.len(), 7);
        let edges: Vec<_> = std::iter::once(None)
            .chain(cuts.iter().map(|seal| Some(&**seal)))
            .chain([None])
            .collect();
        for edge in edges.windows(2) {
            let part = all(&input, edge[0], edge[1]).len();
            assert!(part.abs_diff(1250) <= 20, "{part}");
        }
        let most = input.cuts(100_000);
        assert!(most.len() > 500 && most.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn slices_follow_each_other_without_gap_or_overlap() {
        let memtable = memtable();
        let (mut lo, mut keys, mut slices) = (None, Vec::new(), 0);
        loop {
            let mut preparation = MemtableInput::prepare(
                memtable.clone(),
                (Lsn(0), Lsn(50_000)),
                &Operator::default(),
            )
            .slice(lo.clone(), 70_050);
            let input = std::iter::from_fn(|| Some(preparation.step().unwrap()))
                .flatten()
                .next()
                .unwrap();
            keys.extend(all(&input, None, None));
            slices += 1;
            match input.slice_end() {
                Some(end) => lo = Some(end.into()),
                None => break,
            }
        }
        assert_eq!(keys, (0..10_000).collect::<Vec<_>>());
        assert_eq!(slices, 15);
    }
}
