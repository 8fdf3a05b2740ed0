//! [`TreeSizes`]: an estimate of records and bytes for each tree, and the sums of all trees. The
//! planner therefore need not visit every keyspace.
//!
//! A tree does not know which of its buffered records replace others before they meet in a leaf. An
//! estimate is therefore the sum of what nodes say, less the records that buffers are known to hold
//! twice. A merge adds at most the records that it brought.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::Result;
use terrapin_base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use terrapin_structure::{Estimate, Version};

/// Stands for the number of records of a tree that was not measured yet.
const UNKNOWN: u64 = u64::MAX;
/// Stands for the number of records of a tree that could not be measured.
const UNREADABLE: u64 = u64::MAX - 1;

/// The sums of all keyspaces' [`TreeSize`]s.
#[derive(Default)]
pub(crate) struct TreeSizes(Mutex<Sums>);

#[derive(Clone, Copy, Default)]
struct Sums {
    held: Estimate,
    live_bytes: u64,
    /// Number of trees that were not measured yet, and of trees that could not be measured.
    unknown: u64,
    unreadable: u64,
}

impl TreeSizes {
    /// The content of all trees. None while one of them was not measured. An unreadable tree counts
    /// as empty.
    pub fn held(&self) -> Option<Estimate> {
        let sums = *self.0.lock();
        (sums.unknown == 0).then_some(sums.held)
    }

    /// Whether all trees were measured, and could be read.
    pub fn are_known(&self) -> bool {
        let sums = *self.0.lock();
        sums.unknown == 0 && sums.unreadable == 0
    }

    /// Key and value bytes in all trees: the sum of [`TreeSize::live_bytes`].
    pub fn live_bytes(&self) -> u64 {
        self.0.lock().live_bytes
    }
}

/// The content of a keyspace's tree, as far as it is known: roughly, every key once. Every change
/// holds the lock of the sums and keeps them correct.
pub(crate) struct TreeSize {
    all: Arc<TreeSizes>,
    records: AtomicU64,
    bytes: AtomicU64,
    /// Key and value bytes that readers see in the tree of the last commit, by its sums.
    live_bytes: AtomicU64,
    /// Set when the keyspace was dropped. The sums leave it out.
    is_gone: AtomicBool,
}

impl TreeSize {
    /// The size of a tree that was not measured yet.
    pub fn new(all: &Arc<TreeSizes>) -> Self {
        all.0.lock().unknown += 1;
        TreeSize {
            all: all.clone(),
            records: AtomicU64::new(UNKNOWN),
            bytes: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
        }
    }

    /// The content of the tree. None until it was measured.
    pub fn get(&self) -> Option<Estimate> {
        let records = self.records.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        match records {
            UNKNOWN => None,
            UNREADABLE => Some(Estimate::default()),
            records => Some(Estimate { records, bytes }),
        }
    }

    /// Makes a change and keeps the sums correct.
    fn change(&self, change: impl FnOnce()) {
        let mut sums = self.all.0.lock();
        let before = self.part();
        change();
        let after = self.part();
        let moved =
            |sum: u64, before: u64, after: u64| sum.wrapping_sub(before).wrapping_add(after);
        sums.held.records = moved(sums.held.records, before.held.records, after.held.records);
        sums.held.bytes = moved(sums.held.bytes, before.held.bytes, after.held.bytes);
        sums.live_bytes = moved(sums.live_bytes, before.live_bytes, after.live_bytes);
        sums.unknown = moved(sums.unknown, before.unknown, after.unknown);
        sums.unreadable = moved(sums.unreadable, before.unreadable, after.unreadable);
    }

    /// This tree's part of the sums.
    fn part(&self) -> Sums {
        if self.is_gone.load(Ordering::Relaxed) {
            return Sums::default();
        }
        let held = self.get();
        Sums {
            held: held.unwrap_or_default(),
            live_bytes: self.live_bytes(),
            unknown: u64::from(held.is_none()),
            unreadable: u64::from(!self.is_readable()),
        }
    }

    /// Removes a dropped keyspace from the sums.
    pub fn leave(&self) {
        self.change(|| self.is_gone.store(true, Ordering::Relaxed));
    }

    /// Notes that the tree could not be measured because a node cannot be read. The tree counts as
    /// empty until it is measured. A read that needs the node reports the error.
    pub fn unreadable(&self) {
        self.change(|| self.records.store(UNREADABLE, Ordering::Relaxed));
    }

    /// Whether the tree is not known to be unreadable.
    pub fn is_readable(&self) -> bool {
        self.records.load(Ordering::Relaxed) != UNREADABLE
    }

    /// Key and value bytes that readers see in the tree of the last commit. Reads no node.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Stores the live bytes of the keyspace's current tree. May read its root.
    pub fn begin(&self, version: &dyn Version) -> Result<()> {
        let live_bytes = version.live_bytes()?;
        self.change(|| self.live_bytes.store(live_bytes, Ordering::Relaxed));
        Ok(())
    }

    /// Notes that the tree is empty. Other trees may have its share of memory at once.
    pub fn cleared(&self) {
        self.change(|| self.live_bytes.store(0, Ordering::Relaxed));
        self.set(Estimate::default());
    }

    /// Sets the known content of the tree.
    pub fn set(&self, held: Estimate) {
        self.change(|| {
            self.bytes.store(held.bytes, Ordering::Relaxed);
            self.records.store(held.records, Ordering::Relaxed);
        });
    }

    /// Measures the tree. May read nodes: all of them if it might fit in `budget_bytes`.
    pub fn measure(&self, version: &dyn Version, budget_bytes: u64) -> Result<()> {
        self.set(held(version, stored(version)?, budget_bytes)?);
        Ok(())
    }

    /// Measures the tree after a merge that added at most `added` records. May read nodes, as
    /// [`TreeSize::measure`] does.
    pub fn measure_merged(
        &self,
        version: &dyn Version,
        added: u64,
        budget_bytes: u64,
    ) -> Result<()> {
        let all = stored(version)?;
        self.begin(version)?;
        let now = held(version, all, budget_bytes)?;
        let before = self.get().filter(|_| self.is_readable());
        let before = before.map_or(now.records, |before| before.records);
        let records = now.records.min(before.saturating_add(added));
        let bytes = u128::from(now.bytes) * u128::from(records) / u128::from(now.records.max(1));
        let bytes = u64::try_from(bytes).unwrap_or(now.bytes);
        self.set(Estimate { records, bytes });
        Ok(())
    }
}

/// All records that a version stores, some of them twice. May read nodes: all of them if the
/// structure keeps no order.
pub(crate) fn stored(version: &dyn Version) -> Result<Estimate> {
    if let Some(ordered) = version.ordered() {
        return ordered.estimate((Bound::Unbounded, Bound::Unbounded));
    }
    let stats = version.stats()?;
    Ok(Estimate {
        records: stats.leaf_records.saturating_add(stats.buffered_records),
        bytes: stats.leaf_bytes.saturating_add(stats.buffered_bytes),
    })
}

/// The content of a version that stores `all`. If it might fit in the budget, a record that is
/// stored twice counts once. This visits all nodes.
fn held(version: &dyn Version, all: Estimate, budget_bytes: u64) -> Result<Estimate> {
    if all.bytes / 2 > budget_bytes {
        return Ok(all);
    }
    let stats = version.stats()?;
    let twice = stats.superseded_bytes.min(stats.buffered_bytes);
    let records = u128::from(stats.buffered_records) * u128::from(stats.buffered_bytes - twice)
        / u128::from(stats.buffered_bytes.max(1));
    Ok(Estimate {
        records: stats.leaf_records + u64::try_from(records).unwrap_or(0),
        bytes: (stats.leaf_bytes + stats.buffered_bytes).saturating_sub(stats.superseded_bytes),
    })
}
