//! A [`State`] is the whole database at one moment, immutable: which memtables each keyspace has,
//! and which version of its structure lies below them. Reads take the current one without a lock;
//! it is replaced only under the core's `install` mutex, by cuts, commits of checkpoints, clears,
//! changes of the set of keyspaces and of their options, and the close.
//!
//! A keyspace's records lie, newest first, in `active` (LSNs from its start on), `sealed` (from its
//! start to its seal) and `version` (everything older). `sealed.seal == active.start`. On a full
//! disk a sealed memtable is merged in slices: then `version` holds some of its records already,
//! which the memtable says again.

use std::sync::Arc;
use terrapin_base::sync::{AtomicBool, AtomicU64, Ordering};

use terrapin_base::{Budget, Charge, Generation, KeyspaceId, Lsn, Purpose};
use terrapin_memtable::Memtable;
use terrapin_pages::Pin;
use terrapin_recordcache::Collection;
use terrapin_structure::Version;

use crate::engine::compactions::Visits;
use crate::engine::id_map::IdMap;
use crate::metrics::KeyspaceCounters;
use crate::pacing::forecast::Forecast;
use crate::pacing::pace::Pace;
use crate::pacing::patience::Mark;
use crate::planning::plan::ARENA_PERMILLE;
use crate::planning::tree_size::{TreeSize, TreeSizes};
use crate::planning::workload::OverwriteShare;
use crate::run::Spilled;
use crate::types::options::KeyspaceOptions;

/// The database at one moment.
pub(crate) struct State {
    /// The durable checkpoint that the versions belong to.
    pub generation: Generation,
    /// Keeps that checkpoint's pages from being reused (D5). None once the database is closed.
    pub pin: Option<Pin>,
    /// A view of this state must see at least up to here: below it lies a record (a clear, a drop)
    /// whose effect the state already shows. Every such record raises it.
    pub floor: Lsn,
    /// The keyspaces by id.
    pub keyspaces: Keyspaces,
}

/// A persistent map from id to keyspace: a copy shares all but the path to what changes
/// ([`IdMap`]).
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

    /// Those of an id and above.
    pub fn iter_from(&self, id: KeyspaceId) -> impl Iterator<Item = &Arc<KeyspaceState>> {
        self.0.iter_from(id.0).map(|(_, keyspace)| keyspace)
    }

    /// A map of one keyspace, or of none if that is not there.
    pub fn only(&self, id: KeyspaceId) -> Self {
        let mut only = Keyspaces::default();
        if let Some(keyspace) = self.get(id) {
            only.insert(keyspace.clone());
        }
        only
    }

    /// The keyspaces that another map does not have as they are here, with what it has in their
    /// place. O(n).
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
    /// Its number.
    pub id: KeyspaceId,
    /// What lives as long as the keyspace and does not belong to a moment.
    pub shared: Arc<KeyspaceShared>,
    /// What its cached records go by: another one after each clear.
    pub collection: Collection,
    /// Options as of this moment.
    pub options: KeyspaceOptions,
    /// Takes the writes from its start on.
    pub active: Arc<LoggedMemtable>,
    /// Waits to be merged, or is being merged.
    pub sealed: Option<SealedMemtable>,
    /// What lies on disk: every record that belongs to neither memtable.
    pub version: Arc<dyn Version>,
    /// Of a view's state: what stands in the place of memtables that are gone. The current state
    /// has none.
    pub spilled: Option<Arc<Spilled>>,
}

/// A memtable and the LSN from which on it takes a keyspace's writes.
pub(crate) struct LoggedMemtable {
    /// The first LSN that belongs here.
    pub start: Lsn,
    /// The records.
    pub memtable: Arc<Memtable>,
    /// Holds writes that the log does not ([`crate::Durability::None`]); set before the first of
    /// them enters.
    pub unlogged: AtomicBool,
    /// Holds a batch of several such writes: it becomes durable in one piece (D7). Set before the
    /// first of them enters.
    pub unlogged_batch: AtomicBool,
    /// Its keyspace is among those that are written ([`crate::engine::written::Written`]): set
    /// before the first write enters.
    pub noted: AtomicBool,
    /// Deletes in it that ranges passed, which show nothing for them and take as long as records
    /// do. A view's ranges count in the memtable that the view has as its active one, so that those
    /// of older views say nothing of a memtable that took the place of theirs.
    pub passed: AtomicU64,
}

impl LoggedMemtable {
    /// An empty memtable.
    pub fn new(start: Lsn, memtable: Memtable) -> Arc<Self> {
        Self::over(start, Arc::new(memtable))
    }

    /// Over a memtable that is there.
    pub fn over(start: Lsn, memtable: Arc<Memtable>) -> Arc<Self> {
        Arc::new(LoggedMemtable {
            start,
            memtable,
            unlogged: AtomicBool::new(false),
            unlogged_batch: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            passed: AtomicU64::new(0),
        })
    }
}

/// A memtable that takes no LSN from its seal on. Writers that hold older LSNs may still be
/// entering it until as much of the log is visible as the seal says (`SealMade::publish_to`); it is
/// merged only after that.
#[derive(Clone)]
pub(crate) struct SealedMemtable {
    /// The memtable with its start.
    pub records: Arc<LoggedMemtable>,
    /// Exclusive bound of the LSNs in it.
    pub seal: Lsn,
}

impl KeyspaceState {
    /// Whether a memtable holds a record: then the keyspace takes a share of the memtables' memory.
    pub fn is_written(&self) -> bool {
        self.sealed.is_some() || !self.active.memtable.is_empty()
    }

    /// The memtable that owns a write of that LSN. None when the keyspace was cleared above it:
    /// then the write does not matter any more, as long as nothing is durable without it unless the
    /// clear is, too (`checkpoint::job`).
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

/// Bytes that an open keyspace takes, besides its name: what does not belong to one moment, one
/// moment of it, an empty memtable, and an entry of each map of keyspaces. As measured.
const KEYSPACE_BYTES: u64 = 1800;

/// What of a keyspace does not belong to one moment: shared by every state and every handle.
pub(crate) struct KeyspaceShared {
    /// Its number.
    pub id: KeyspaceId,
    /// Its name.
    pub name: Box<str>,
    /// Bytes at which the active memtable is sealed (χ·L in force); the broker moves it with memory
    /// and χ.
    pub memtable_bytes: AtomicU64,
    /// What that is where the disk has room.
    pub ample_memtable_bytes: AtomicU64,
    /// What its last memtable's arena took for a thousand bytes that it counted.
    pub arena_permille: AtomicU64,
    /// What its tree holds.
    pub tree_size: TreeSize,
    /// How long the sealed memtable still needs.
    pub forecast: Forecast,
    /// What writers are held to while there is one.
    pub pace: Pace,
    /// That one waited for a sealed memtable in vain: the memtable's seal is the progress.
    pub stalled: Mark,
    /// How long ranges turn out to be.
    pub range_length: RangeLength,
    /// What they visited since it was compacted.
    pub visits: Visits,
    /// What share of its writes replaces something.
    pub overwrite_share: OverwriteShare,
    /// What was done to it since the database was opened.
    pub counters: KeyspaceCounters,
    /// What the keyspace takes, used or not.
    _memory: Charge,
}

/// About how many records the ranges of a keyspace were read for lately: a moving average, in
/// sixteenths, and one of the squares. Races lose a range now and then, which does not matter.
#[derive(Default)]
pub(crate) struct RangeLength {
    mean: AtomicU64,
    square: AtomicU64,
}

/// How long a range is expected to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedLength {
    /// The mean; 0 when nobody knows.
    pub mean: usize,
    /// How far lengths are from it, as a rule (their standard deviation).
    pub spread: usize,
}

impl ExpectedLength {
    /// A range that must read reads for the mean and so much of the spread. A block more costs
    /// about a fifteenth of another wait, as was reckoned, so it goes beyond the mean as far as
    /// lengths differ, and not where all are the same.
    const BEYOND_PERCENT: usize = 60;
    /// Fewer records are not worth a wait.
    const AHEAD_MIN: usize = 16;

    /// How many records more to read for, of a range that has come to so many already. Beyond what
    /// was expected, as many as ranges differ by: how far it goes is not known, but that it went so
    /// far says little of how far it will.
    pub fn ahead(self, taken: usize) -> usize {
        let reach = self.mean + self.spread * Self::BEYOND_PERCENT / 100;
        match reach.saturating_sub(taken) {
            0 => self.spread.max(Self::AHEAD_MIN),
            ahead => ahead,
        }
    }
}

impl RangeLength {
    /// A longer range counts as so long: one of them should not make many short ones read ahead.
    const RECORDS_MAX: u64 = 256;

    /// What is to be expected; nothing while there was no range.
    pub fn expected(&self) -> ExpectedLength {
        let mean = self.mean.load(Ordering::Relaxed) / 16;
        let variance = (self.square.load(Ordering::Relaxed) / 16).saturating_sub(mean * mean);
        ExpectedLength {
            mean: mean as usize,
            spread: variance.isqrt() as usize,
        }
    }

    /// Takes note of a range that was read so far.
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
    /// For a keyspace that is being created or found in the catalog.
    pub fn new(
        id: KeyspaceId,
        name: &str,
        memtable_bytes: u64,
        (sizes, budget): (&Arc<TreeSizes>, &Arc<Budget>),
    ) -> Arc<Self> {
        let own_bytes = KEYSPACE_BYTES + name.len() as u64;
        Arc::new(KeyspaceShared {
            _memory: budget.charge(Purpose::Keyspaces, own_bytes),
            id,
            name: name.into(),
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_ranges_follows_what_they_were_read_for() {
        let length = RangeLength::default();
        assert_eq!(length.expected(), ExpectedLength::default());
        for (records, expected) in [(50, 50), (3, 3), (0, 0), (1 << 40, 256)] {
            for _ in 0..200 {
                length.note(records);
            }
            let now = length.expected();
            assert!(now.mean.abs_diff(expected) <= 1, "{now:?} of {expected}");
            // All alike: nothing is read for beyond that.
            assert!(now.spread <= 4, "{now:?}");
            assert!(now.mean == 0 || now.ahead(0) - now.mean <= 2, "{now:?}");
        }
        let before = length.expected().mean;
        length.note(1);
        assert!(length.expected().mean > before - before / 10);
        // Lengths from 1 to 100, all as likely.
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
