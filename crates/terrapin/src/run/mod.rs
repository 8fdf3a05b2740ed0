//! [`Run`]: the part of a memtable that held views need, on pages of its own. It is written once,
//! and all these views share it.
//!
//! A checkpoint merges a memtable's newest versions into the tree. Snapshots and ranges taken in
//! the middle of the memtable see older versions. A memtable takes memory and must go. The engine
//! therefore writes the versions that any held view of the memtable sees as a run
//! (`checkpoint/run_writer.rs`). From then on, such a view consists of the tree below the memtable,
//! the run, and the view's LSN. [`Spilled`] holds the runs of a keyspace state. A view needs at
//! most two runs per keyspace: for the memtable that was active when the view was made, and for the
//! sealed one. Later writes are above the view's LSN, and the view's tree is pinned.
//!
//! A run is a tree with one record per key, which holds the key's versions (`chain.rs`). A read of
//! a run costs as much as a read of a tree of one level: a filter, and a block if the filter passes
//! the key. A second tree holds the versions of keys with many or long versions. No catalog names
//! these trees. The memtable's range deletes stay in memory, beside the trees. A run ends with its
//! last view or with the process.

pub(crate) mod chain;
mod scan;

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Charge, Error, Lsn, Message, MessageKind, Result, Slice};
use terrapin_memtable::{Estimate, FragmentTree};
use terrapin_pages::PrivatePages;
use terrapin_structure::{Direction, Found, KeyBounds, Ordered, Version};

use chain::{Said as InRecord, look};
pub(crate) use scan::RunScan;

/// The versions of one memtable that held views see.
pub(crate) struct Run {
    /// The first tree: one record per key.
    pub(crate) keys: Arc<dyn Version>,
    /// The second tree: the versions of long chains, if there are any.
    pub(crate) long: Option<Arc<dyn Version>>,
    /// Number of keys.
    pub(crate) count: u64,
    /// Totals of what some moments see, ascending by moment.
    pub(crate) seen: Vec<Seen>,
    /// The run's pages. They are freed with the run.
    pub(crate) pages: Vec<PrivatePages>,
    /// The memtable's range deletes, if there are any, and the charge for their memory.
    pub(crate) ranges: Option<(Arc<FragmentTree>, Charge)>,
}

/// Totals of what one moment sees of a run.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub before: Lsn,
    pub all: Estimate,
}

/// The runs that replace a keyspace's memtables in a view's state.
#[derive(Clone, Default)]
pub(crate) struct Spilled {
    /// The run that replaces the active memtable.
    pub active: Option<Arc<Run>>,
    /// The run that replaces the sealed memtable, which is older.
    pub sealed: Option<Arc<Run>>,
}

/// A run's answer for a key at a moment, if it has one. It finds nothing for a deleted key.
pub(crate) type Answer = Option<Said>;

/// What a run says of a key. Its operands need what is below the run.
#[derive(Clone)]
pub(crate) struct Said {
    kind: MessageKind,
    payload: Slice,
}

impl Said {
    fn copy(message: Message<'_>) -> Self {
        Said {
            kind: message.kind(),
            payload: Slice::copy(message.payload()),
        }
    }

    /// The message.
    pub fn message(&self) -> Message<'_> {
        Message::of(self.kind, &self.payload)
    }
}

impl Run {
    /// A run that holds no version, over a tree without records.
    pub fn nothing(empty: Arc<dyn Version>) -> Self {
        Run {
            keys: empty,
            long: None,
            count: 0,
            seen: Vec::new(),
            pages: Vec::new(),
            ranges: None,
        }
    }

    /// The range deletes of the memtable. They are older than the moments that they are not of.
    pub fn fragments(&self) -> Option<Arc<FragmentTree>> {
        self.ranges.as_ref().map(|(fragments, _)| fragments.clone())
    }

    /// The LSN of the newest range delete that hides older messages of a key from a view.
    fn deleted(&self, key: &[u8], before: Lsn) -> Option<Lsn> {
        let (fragments, _) = self.ranges.as_ref()?;
        fragments.newest_over(key, before)
    }

    /// Bytes of the run's pages.
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(PrivatePages::bytes).sum()
    }

    /// The answer for a key to a view of LSN `before`.
    pub fn get(&self, key: &[u8], hash: u64, before: Lsn) -> Result<Answer> {
        self.answer(key, self.keys.get(key, hash)?, before)
    }

    /// The answers for many keys, in their order, with parallel device reads.
    pub fn multi_get(&self, keys: &[(&[u8], u64)], before: Lsn) -> Result<Vec<Answer>> {
        let mut records = vec![Found::Nothing; keys.len()];
        self.keys.multi_get(keys, &mut records)?;
        let answers = keys.iter().zip(records);
        answers
            .map(|((key, _), record)| self.answer(key, record, before))
            .collect()
    }

    /// The answer for a key, given its record in the first tree.
    fn answer(&self, key: &[u8], record: Found, before: Lsn) -> Result<Answer> {
        let deleted = self.deleted(key, before);
        let hidden = deleted.map(|_| Said::copy(Message::Delete));
        let record = match record {
            Found::Value(record) => record,
            Found::Nothing => return Ok(hidden),
            Found::Handle(_) | Found::Operands(_) | Found::Expiring(_) => {
                return Err(Error::corrupt("a record of a run is no chain of versions"));
            }
        };
        let found = |lsn: Lsn, message: Message<'_>| match deleted < Some(lsn) {
            true => Said::copy(message),
            false => Said::copy(Message::Delete),
        };
        match look(&record, before)? {
            InRecord::Nothing => Ok(hidden),
            InRecord::Message(lsn, message) => Ok(Some(found(lsn, message))),
            InRecord::Long(number) => Ok(self.in_long(number, before, found)?.or(hidden)),
        }
    }

    /// The order of keys of a run's tree.
    fn ordered(tree: &Arc<dyn Version>) -> Result<&dyn Ordered> {
        let ordered = tree.ordered();
        ordered.ok_or_else(|| Error::internal("the structure of runs keeps no order"))
    }

    /// The answer of a long chain at a moment, if it has one.
    fn in_long<R>(
        &self,
        number: u64,
        before: Lsn,
        take: impl FnOnce(Lsn, Message<'_>) -> R,
    ) -> Result<Option<R>> {
        let (Some(long), Some((from, until))) = (&self.long, chain::long_place(number, before))
        else {
            return Ok(None);
        };
        let bounds = (Bound::Included(&from[..]), Bound::Excluded(&until[..]));
        let mut scan = Self::ordered(long)?.scan_expecting(bounds, Direction::Forward, 1)?;
        match scan.next()? {
            Some((key, value)) => {
                let (lsn, message) = chain::long_message(key, value)?;
                Ok(Some(take(lsn, message)))
            }
            None => Ok(None),
        }
    }

    /// A scan of a range for a view of LSN `before`. The caller expects to read about `expected`
    /// keys.
    pub fn scan(
        self: &Arc<Self>,
        bounds: KeyBounds<'_>,
        direction: Direction,
        before: Lsn,
        expected: usize,
    ) -> Result<RunScan> {
        let scan = Self::ordered(&self.keys)?.scan_expecting(bounds, direction, expected)?;
        Ok(RunScan::new(self.clone(), scan, before))
    }

    /// Estimates what a view of LSN `before` sees of the run in a range: the view's total, times
    /// the range's share of the keys. For the whole key space, the estimate is exact for the
    /// moments whose totals the run stores.
    pub fn estimate(&self, bounds: KeyBounds<'_>, before: Lsn) -> Result<Estimate> {
        let at = self.seen.partition_point(|seen| seen.before < before);
        let Some(seen) = self.seen.get(at).or_else(|| self.seen.last()) else {
            return Ok(Estimate::default());
        };
        let keys = Self::ordered(&self.keys)?
            .estimate(bounds)?
            .records
            .min(self.count);
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
