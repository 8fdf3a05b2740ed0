//! Runs: what of a memtable held views need, on pages of its own, written once and shared by all of
//! them.
//!
//! A checkpoint merges a memtable's newest versions into the tree. Snapshots and ranges that were
//! taken in the middle of the memtable see older versions, and a memtable is memory, which has to
//! go. So the versions that any held view of the memtable sees are written as a [`Run`]
//! (`checkpoint/run_writer.rs`). From then on such a view consists of the tree below the memtable,
//! the run, and its LSN: a [`Spilled`] keyspace state has the run in the place of the memtable. A
//! view needs at most two runs a keyspace: of the memtable that was active when it was taken, and
//! of the one that was sealed. What is written later lies above its LSN, and its tree is pinned.
//!
//! A run is a tree of one record for each key, which holds the key's versions (`chain.rs`). So a
//! read of a run costs what a read of a tree of one level does: a filter, and a block where the
//! filter lets the key through. A second tree holds the versions of keys that have many or long
//! ones. Neither is in a catalog: a run dies with its last view, or with the process.

pub(crate) mod chain;
mod scan;

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Lsn, Message, Result, Slice};
use terrapin_memtable::Estimate;
use terrapin_pages::PrivatePages;
use terrapin_structure::{Direction, KeyBounds, Version};

use chain::{Said, look};
pub(crate) use scan::RunScan;

/// The versions of one memtable that held views see.
pub(crate) struct Run {
    /// A record for each key.
    pub(crate) keys: Arc<dyn Version>,
    /// The versions of long chains, if there are any.
    pub(crate) long: Option<Arc<dyn Version>>,
    /// Keys.
    pub(crate) count: u64,
    /// What some moments see, in ascending order of these.
    pub(crate) seen: Vec<Seen>,
    /// Freed with the run.
    pub(crate) pages: Vec<PrivatePages>,
}

/// What a moment sees of a run.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub before: Lsn,
    pub all: Estimate,
}

/// The runs that stand in the place of a keyspace's memtables in a view's state.
#[derive(Clone, Default)]
pub(crate) struct Spilled {
    /// In the place of the active memtable.
    pub active: Option<Arc<Run>>,
    /// In the place of the sealed one, which is older.
    pub sealed: Option<Arc<Run>>,
}

/// What a run says of a key at a moment, if anything: its value, or that it is gone.
pub(crate) type Answer = Option<Option<Slice>>;

impl Run {
    /// A run that says nothing, over a version without records.
    pub fn nothing(empty: Arc<dyn Version>) -> Self {
        Run {
            keys: empty,
            long: None,
            count: 0,
            seen: Vec::new(),
            pages: Vec::new(),
        }
    }

    /// Bytes of its pages.
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(PrivatePages::bytes).sum()
    }

    /// What it says of a key to a view of that LSN.
    pub fn get(&self, key: &[u8], hash: u64, before: Lsn) -> Result<Answer> {
        match self.keys.get(key, hash)? {
            Some(record) => self.answer(&record, before),
            None => Ok(None),
        }
    }

    /// What it says of many keys; device reads go out in parallel. Fills `out[i]` for `keys[i]`.
    pub fn multi_get(&self, keys: &[(&[u8], u64)], before: Lsn, out: &mut [Answer]) -> Result<()> {
        let mut records = vec![None; keys.len()];
        self.keys.multi_get(keys, &mut records)?;
        for (answer, record) in out.iter_mut().zip(records) {
            *answer = match record {
                Some(record) => self.answer(&record, before)?,
                None => None,
            };
        }
        Ok(())
    }

    fn answer(&self, record: &[u8], before: Lsn) -> Result<Answer> {
        let value = |message: Message<'_>| message.value().map(Slice::copy);
        match look(record, before)? {
            Said::Nothing => Ok(None),
            Said::Message(message) => Ok(Some(value(message))),
            Said::Long(number) => self.in_long(number, before, value),
        }
    }

    /// What a long chain says at a moment, if anything.
    fn in_long<R>(
        &self,
        number: u64,
        before: Lsn,
        take: impl FnOnce(Message<'_>) -> R,
    ) -> Result<Option<R>> {
        let (Some(long), Some((from, until))) = (&self.long, chain::long_place(number, before))
        else {
            return Ok(None);
        };
        let bounds = (Bound::Included(&from[..]), Bound::Excluded(&until[..]));
        let mut scan = long.scan_expecting(bounds, Direction::Forward, 1)?;
        match scan.next()? {
            Some((key, value)) => Ok(Some(take(chain::long_message(key, value)?))),
            None => Ok(None),
        }
    }

    /// A scan of what it says in a range to a view of that LSN, about so many keys of which are
    /// going to be wanted.
    pub fn scan(
        self: &Arc<Self>,
        bounds: KeyBounds<'_>,
        direction: Direction,
        before: Lsn,
        expected: usize,
    ) -> Result<RunScan> {
        let scan = self.keys.scan_expecting(bounds, direction, expected)?;
        Ok(RunScan::new(self.clone(), scan, before))
    }

    /// About how much it says in a range to a view of that LSN: of what the view sees in all, the
    /// range's share of the keys. Where all is asked for, that is exact for as many moments as a
    /// run remembers.
    pub fn estimate(&self, bounds: KeyBounds<'_>, before: Lsn) -> Result<Estimate> {
        let at = self.seen.partition_point(|seen| seen.before < before);
        let Some(seen) = self.seen.get(at).or_else(|| self.seen.last()) else {
            return Ok(Estimate::default());
        };
        let keys = self.keys.estimate(bounds)?.records.min(self.count);
        let share = |of: u64| {
            let part = u128::from(of) * u128::from(keys) / u128::from(self.count.max(1));
            u64::try_from(part).unwrap_or(of)
        };
        Ok(Estimate {
            records: share(seen.all.records),
            tombstones: share(seen.all.tombstones),
            bytes: share(seen.all.bytes),
        })
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Run({} keys, {} bytes)", self.count, self.bytes())
    }
}
