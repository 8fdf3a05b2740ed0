//! [`State`]: the whole database at one moment, immutable. A state lists the memtables of each
//! keyspace and the version of the tree below them. Reads load the current state without a lock.
//! These replace it, under the core's `install` mutex only: seals, commits of checkpoints, clears,
//! changes of the set of keyspaces or their options, and the close.
//!
//! The newest records of a keyspace are in `active` (LSNs from its start). Older ones are in
//! `sealed` (from its start to its seal), and the oldest in `version`. The bounds meet:
//! `sealed.seal == active.start`. On a full disk, a checkpoint merges a slice of a sealed memtable.
//! Then `version` holds some records of the memtable, too.

use std::sync::Arc;
use terrapin_base::sync::{AtomicBool, AtomicU64, Ordering};

use terrapin_base::{
    Budget, Charge, Error, ErrorKind, Generation, KeyspaceId, Lsn, Operator, Purpose, Result,
    mutant,
};
use terrapin_memtable::Memtable;
use terrapin_pages::{PageStore, Pin};
use terrapin_recordcache::Collection;
use terrapin_structure::{Ordered, Structure, Version};
use terrapin_valuelog::large::LargeValues;

use crate::engine::compactions::Visits;
use crate::engine::id_map::IdMap;
use crate::engine::large::LargePages;
use crate::metrics::KeyspaceCounters;
use crate::pacing::forecast::Forecast;
use crate::pacing::pace::Pace;
use crate::pacing::patience::Mark;
use crate::planning::plan::ARENA_PERMILLE;
use crate::planning::tree_size::{TreeSize, TreeSizes};
use crate::planning::workload::OverwriteShare;
use crate::run::Spilled;
use crate::types::key_form::KeyForm;
use crate::types::options::KeyspaceOptions;

/// The database at one moment.
pub(crate) struct State {
    /// The durable checkpoint to which the versions belong.
    pub generation: Generation,
    /// Keeps the pages of that checkpoint from reuse (D5). None once the database is closed.
    pub pin: Option<Pin>,
    /// A view of this state must see at least the records below this LSN. The state already shows
    /// the effect of a clear or drop below it. Every clear and drop raises the floor.
    pub floor: Lsn,
    /// The keyspaces by id.
    pub keyspaces: Keyspaces,
}

/// A persistent map from id to keyspace. A copy shares all nodes except those on the path to a
/// change ([`IdMap`]).
#[derive(Clone, Default)]
pub(crate) struct Keyspaces(IdMap<Arc<KeyspaceState>>);

impl Keyspaces {
    /// The keyspace of an id. O(log n): one step for each factor of 64.
    #[inline]
    pub fn get(&self, id: KeyspaceId) -> Option<&Arc<KeyspaceState>> {
        self.0.get(id.0)
    }

    /// All keyspaces in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<KeyspaceState>> {
        self.iter_from(KeyspaceId(0))
    }

    /// The keyspaces of this id and above, in the order of their ids.
    pub fn iter_from(&self, id: KeyspaceId) -> impl Iterator<Item = &Arc<KeyspaceState>> {
        self.0.iter_from(id.0).map(|(_, keyspace)| keyspace)
    }

    /// A map of this keyspace alone. Empty if the keyspace is missing.
    pub fn only(&self, id: KeyspaceId) -> Self {
        let mut only = Keyspaces::default();
        if let Some(keyspace) = self.get(id) {
            only.insert(keyspace.clone());
        }
        only
    }

    /// The keyspaces that differ from those of another map, each with the other map's entry. O(n).
    pub fn differing_from<'a>(
        &'a self,
        other: &'a Keyspaces,
    ) -> impl Iterator<Item = (&'a Arc<KeyspaceState>, Option<&'a Arc<KeyspaceState>>)> {
        let pairs = self
            .iter()
            .map(|keyspace| (keyspace, other.get(keyspace.id)));
        pairs.filter(|(keyspace, now)| now.is_none_or(|now| !Arc::ptr_eq(now, keyspace)))
    }

    /// Adds a keyspace or replaces the one of the same id. O(log n).
    pub fn insert(&mut self, keyspace: Arc<KeyspaceState>) {
        self.0.insert(keyspace.id.0, keyspace);
    }

    /// Removes a keyspace. O(log n).
    pub fn remove(&mut self, id: KeyspaceId) {
        self.0.remove(id.0);
    }
}

/// One keyspace at one moment.
#[derive(Clone)]
pub(crate) struct KeyspaceState {
    /// The keyspace's number.
    pub id: KeyspaceId,
    /// Data that lives as long as the keyspace and belongs to no moment.
    pub shared: Arc<KeyspaceShared>,
    /// The number of the keyspace's cached records. Each clear gives a new number.
    pub collection: Collection,
    /// The options at this moment.
    pub options: KeyspaceOptions,
    /// The merge operator that the options name.
    pub operator: Operator,
    /// Takes the writes from its start on.
    pub active: Arc<LoggedMemtable>,
    /// A memtable that waits for its merge or is being merged.
    pub sealed: Option<SealedMemtable>,
    /// The structure of `version`.
    pub structure: Arc<dyn Structure>,
    /// The tree on disk: every record that belongs to neither memtable.
    pub version: Arc<dyn Version>,
    /// In a view's state: the runs that replace memtables that left memory. The current state has
    /// none.
    pub spilled: Option<Arc<Spilled>>,
}

/// A memtable, and the LSN from which it takes the writes of a keyspace.
pub(crate) struct LoggedMemtable {
    /// The first LSN that belongs to the memtable.
    pub start: Lsn,
    /// The records.
    pub memtable: Arc<Memtable>,
    /// Set before the first write enters that the log does not hold ([`crate::Durability::None`]).
    pub unlogged: AtomicBool,
    /// Set before the first batch of several unlogged operations enters. Such a batch becomes
    /// durable as a whole (D7).
    pub unlogged_batch: AtomicBool,
    /// Set before the first write enters: the keyspace is then listed in
    /// [`crate::engine::written::Written`].
    pub noted: AtomicBool,
    /// Number of this memtable's deletes that ranges passed. A passed delete shows the user nothing
    /// and costs as much as a record. A view's ranges count in the view's own active memtable.
    /// Ranges of older views therefore do not count for a memtable that replaced theirs.
    pub passed: AtomicU64,
    /// Bytes of the tree that this memtable's range deletes hide, by estimates.
    pub hidden_bytes: AtomicU64,
    /// The LSN below which range deletes count in `hidden_bytes`. Only the coordinator uses it.
    pub weighed: AtomicU64,
    /// The pages of the large values that entered.
    pub large: LargePages,
}

impl LoggedMemtable {
    /// Wraps an empty memtable.
    pub fn new(start: Lsn, memtable: Memtable) -> Arc<Self> {
        Self::over(start, Arc::new(memtable))
    }

    /// Wraps an existing memtable.
    pub fn over(start: Lsn, memtable: Arc<Memtable>) -> Arc<Self> {
        Arc::new(LoggedMemtable {
            start,
            memtable,
            unlogged: AtomicBool::new(false),
            unlogged_batch: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            hidden_bytes: AtomicU64::new(0),
            weighed: AtomicU64::new(0),
            large: LargePages::default(),
        })
    }
}

/// A memtable that takes no LSN from its seal on. Writers of older LSNs may still enter it until
/// the log is visible as far as the seal says (`SealMade::publish_to`). Its merge begins only after
/// that.
#[derive(Clone)]
pub(crate) struct SealedMemtable {
    /// The memtable, with its start.
    pub records: Arc<LoggedMemtable>,
    /// Exclusive bound of the memtable's LSNs.
    pub seal: Lsn,
}

impl KeyspaceState {
    /// The active memtable, then the sealed one.
    pub fn memtables(&self) -> impl Iterator<Item = &Arc<LoggedMemtable>> + Clone {
        let sealed = self.sealed.as_ref().map(|sealed| &sealed.records);
        std::iter::once(&self.active).chain(sealed)
    }

    /// Scans and estimates of the tree. Fails with `Unsupported` if its structure keeps no order.
    #[inline]
    pub fn ordered(&self) -> Result<&dyn Ordered> {
        self.version
            .ordered()
            .ok_or_else(|| keeps_no_order(&*self.structure))
    }

    /// Whether a memtable holds a record. If so, the keyspace takes a share of the memory of
    /// memtables.
    pub fn is_written(&self) -> bool {
        self.sealed.is_some() || !self.active.memtable.is_empty()
    }

    /// The memtable that owns a write of this LSN. None when a clear above the LSN removed the
    /// memtable. Then the write has no effect, provided that nothing becomes durable without it
    /// before the clear does (`checkpoint::job`).
    #[inline]
    pub fn memtable_of(&self, lsn: Lsn) -> Option<&Arc<LoggedMemtable>> {
        if lsn >= self.active.start {
            return Some(&self.active);
        }
        self.sealed
            .as_ref()
            .map(|s| &s.records)
            .filter(|w| lsn >= w.start)
    }
}

#[cold]
fn keeps_no_order(structure: &dyn Structure) -> Error {
    let message = "the keyspace's structure keeps no order of keys, so it has no ranges: use get, \
                   contains and multi_get, or a keyspace of the structure leveled";
    Error::new(ErrorKind::Unsupported, message).with("structure", structure.id())
}

/// Bytes that an open keyspace takes, besides its name, as measured. They include its state at one
/// moment, an empty memtable, and an entry in each map of keyspaces.
const KEYSPACE_BYTES: u64 = 1900;

/// The data of a keyspace that belongs to no moment. All states and handles share it.
pub(crate) struct KeyspaceShared {
    /// The keyspace's number.
    pub id: KeyspaceId,
    /// The keyspace's name.
    pub name: Box<str>,
    /// The form in which the keyspace stores keys.
    pub form: KeyForm,
    /// How long values last that get no time of their own, in milliseconds; 0 for ever.
    ttl_ms: AtomicU64,
    /// Bytes at which the active memtable is sealed: χ·L in force. The memory plan changes this
    /// value.
    pub memtable_bytes: AtomicU64,
    /// The value of `memtable_bytes` when the disk has room.
    pub ample_memtable_bytes: AtomicU64,
    /// Bytes that the last memtable's arena took, per thousand bytes that it counted.
    pub arena_permille: AtomicU64,
    /// The size of the keyspace's tree.
    pub tree_size: TreeSize,
    /// The time that the merge of the sealed memtable still needs.
    pub forecast: Forecast,
    /// The pace that writers keep while a sealed memtable exists.
    pub pace: Pace,
    /// Set by a write that missed its deadline while waiting for a sealed memtable. The memtable's
    /// seal counts as the progress.
    pub stalled: Mark,
    /// The usual length of ranges.
    pub range_length: RangeLength,
    /// The runs that ranges visited since the keyspace was compacted.
    pub visits: Visits,
    /// The share of writes that replace a record.
    pub overwrite_share: OverwriteShare,
    /// Counters since the database was opened.
    pub counters: KeyspaceCounters,
    /// The large values of the data file.
    pub large: LargeValues,
    /// The charge for the memory of an open keyspace, used or not.
    _memory: Charge,
}

/// The number of records for which ranges of a keyspace were lately read: a moving average in
/// sixteenths, and an average of the squares. A race may lose one range, which does no harm.
#[derive(Default)]
pub(crate) struct RangeLength {
    mean: AtomicU64,
    square: AtomicU64,
}

/// The expected length of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedLength {
    /// The mean, in records. 0 when no range has been read.
    pub mean: usize,
    /// The standard deviation of lengths, in records.
    pub spread: usize,
}

impl ExpectedLength {
    /// A range that must read the device reads for the mean plus this percentage of the spread. One
    /// more block costs about a fifteenth of one more wait. A range therefore reads beyond the mean
    /// where lengths differ, and not where all are equal.
    const BEYOND_PERCENT: usize = 60;
    /// Reading ahead for fewer records saves less than a wait costs.
    const AHEAD_MIN: usize = 16;

    /// Number of further records to read for, when a range has returned `taken` records. Beyond the
    /// expected length, that is as many as lengths differ by: the range's length so far says little
    /// about its end.
    pub fn ahead(self, taken: usize) -> usize {
        let reach = self.mean + self.spread * Self::BEYOND_PERCENT / 100;
        match reach.saturating_sub(taken) {
            0 => self.spread.max(Self::AHEAD_MIN),
            ahead => ahead,
        }
    }
}

impl RangeLength {
    /// A longer range counts as this many records, so that one long range does not make many short
    /// ones read ahead.
    const RECORDS_MAX: u64 = 256;

    /// The expected length. Zero before the first range.
    pub fn expected(&self) -> ExpectedLength {
        let mean = self.mean.load(Ordering::Relaxed) / 16;
        let variance = (self.square.load(Ordering::Relaxed) / 16).saturating_sub(mean * mean);
        ExpectedLength {
            mean: mean as usize,
            spread: variance.isqrt() as usize,
        }
    }

    /// Notes a range that was read for `records` records.
    pub fn note(&self, records: usize) {
        let records = (records as u64).min(Self::RECORDS_MAX);
        for (average, value) in [(&self.mean, records), (&self.square, records * records)] {
            let before = average.load(Ordering::Relaxed);
            let after = before - before / 16 + value;
            if after != before {
                average.store(after, Ordering::Relaxed);
            }
        }
    }
}

impl KeyspaceShared {
    /// For a keyspace that is being created, or that the catalog lists.
    pub fn new(
        id: KeyspaceId,
        (name, options): (&str, &KeyspaceOptions),
        memtable_bytes: u64,
        (sizes, budget, store): (&Arc<TreeSizes>, &Arc<Budget>, &Arc<PageStore>),
    ) -> Arc<Self> {
        let own_bytes = KEYSPACE_BYTES + name.len() as u64;
        Arc::new(KeyspaceShared {
            _memory: budget.charge(Purpose::Keyspaces, own_bytes),
            id,
            name: name.into(),
            form: options.key_form(),
            ttl_ms: AtomicU64::new(options.ttl_ms()),
            memtable_bytes: AtomicU64::new(memtable_bytes),
            ample_memtable_bytes: AtomicU64::new(memtable_bytes),
            arena_permille: AtomicU64::new(ARENA_PERMILLE),
            tree_size: TreeSize::new(sizes),
            forecast: Forecast::default(),
            pace: Pace::default(),
            stalled: Mark::default(),
            range_length: RangeLength::default(),
            visits: Visits::default(),
            overwrite_share: OverwriteShare::default(),
            counters: KeyspaceCounters::default(),
            large: LargeValues::new(store),
        })
    }

    /// How long values last that get no time of their own, in milliseconds; 0 for ever.
    #[inline]
    pub fn ttl_ms(&self) -> u64 {
        match mutant::active("keyspace-forgets-ttl") {
            true => 0,
            false => self.ttl_ms.load(Ordering::Relaxed),
        }
    }

    /// Takes over what later writes need of changed options.
    pub fn follow(&self, options: &KeyspaceOptions) {
        self.ttl_ms.store(options.ttl_ms(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_length_follows_the_lengths_of_ranges() {
        let length = RangeLength::default();
        assert_eq!(length.expected(), ExpectedLength::default());
        for (records, expected) in [(50, 50), (3, 3), (0, 0), (1 << 40, 256)] {
            for _ in 0..200 {
                length.note(records);
            }
            let now = length.expected();
            assert!(now.mean.abs_diff(expected) <= 1, "{now:?} of {expected}");
            // All lengths are equal: ranges read nothing beyond them.
            assert!(now.spread <= 4, "{now:?}");
            assert!(now.mean == 0 || now.ahead(0) - now.mean <= 2, "{now:?}");
        }
        let before = length.expected().mean;
        length.note(1);
        assert!(length.expected().mean > before - before / 10);
        // Lengths from 1 to 100, equally likely.
        for n in 0..1000 {
            length.note(1 + n * 37 % 100);
        }
        let now = length.expected();
        assert!(
            (45..=56).contains(&now.mean) && (25..=32).contains(&now.spread),
            "{now:?}"
        );
        assert!((60..=75).contains(&now.ahead(0)), "{now:?}");
        assert_eq!(now.ahead(40), now.ahead(0) - 40);
        assert_eq!(now.ahead(90), now.spread);
    }
}
