//! [`Sorted`]: the records of a hashed keyspace in the order of their keys, by an external sort.
//!
//! The sort reads all records in hash order and collects those of the range. Whenever it has
//! collected its memory, it sorts that part and writes it as a private tree, whose pages no
//! superblock reaches. The iterator merges the trees. Its pages are freed with it.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Charge, Error, Message, Purpose, Result, Slice};
use terrapin_pages::PrivatePages;
use terrapin_structure::{
    Direction, Erased, Estimate, KWayMerge, MergeInput, MergeOptions, MergeStep, MessageCursor,
    Scan, Version,
};

use crate::engine::owner::Owner;
use crate::engine::running_merge::guarded;

/// Bytes that a collected record takes besides its key and value.
const RECORD_BYTES: u64 = 96;

/// The records of a hashed keyspace in key order, as of one moment: `Item = Result<(key, value)>`.
/// [`Keyspace::sorted`](crate::Keyspace::sorted) makes it. It ends after an error.
pub struct Sorted {
    // The scans end before the pages that they read.
    merge: KWayMerge<TreeCursor>,
    is_begun: bool,
    is_over: bool,
    _pages: Vec<PrivatePages>,
    owner: Arc<Owner>,
}

/// Collects and sorts records.
pub(crate) struct Sorter {
    owner: Arc<Owner>,
    options: MergeOptions,
    memory_bytes: u64,
    collected: Vec<(Slice, Slice)>,
    collected_bytes: u64,
    charge: Charge,
    trees: Vec<(Arc<dyn Version>, PrivatePages)>,
}

impl Sorter {
    /// A sorter that collects up to `memory_bytes` at once and writes with these options.
    pub fn new(owner: &Arc<Owner>, options: MergeOptions, memory_bytes: u64) -> Self {
        Sorter {
            charge: owner.core.budget.charge(Purpose::Merge, 0),
            owner: owner.clone(),
            options,
            memory_bytes,
            collected: Vec::new(),
            collected_bytes: 0,
            trees: Vec::new(),
        }
    }

    /// Adds a record. Its key was not added before.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.collected_bytes += (key.len() + value.len()) as u64 + RECORD_BYTES;
        self.collected.push((Slice::copy(key), Slice::copy(value)));
        if self.collected_bytes >= self.memory_bytes {
            self.write()?;
        } else if self.collected.len().is_power_of_two() {
            self.charge.resize(self.collected_bytes);
        }
        Ok(())
    }

    /// Writes what was collected as a tree.
    fn write(&mut self) -> Result<()> {
        let core = &self.owner.core;
        core.health.check_open()?;
        self.charge.resize(self.collected_bytes);
        let mut records = std::mem::take(&mut self.collected);
        records.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        self.collected_bytes = 0;
        let structure = core.structures.of_runs();
        let (empty, input) = (structure.empty(), Arc::new(Collected(records)));
        let merge = guarded(|| structure.begin_merge(&empty, input, &self.options))?;
        let merged = loop {
            match guarded(|| merge.step()) {
                Ok(MergeStep::Again) => {}
                Ok(MergeStep::Done) => break guarded(|| merge.finish()),
                Ok(MergeStep::Pending(_)) => {
                    break Err(Error::internal("a merge with one worker waits for another"));
                }
                Err(error) => break Err(error),
            }
        };
        match merged {
            Ok(merged) => {
                let pages = core.store.private(merged.changes);
                self.trees.push((merged.version, pages));
            }
            Err(error) => {
                merge.abandon();
                return Err(error);
            }
        }
        self.charge.resize(0);
        Ok(())
    }

    /// The records in order.
    pub fn finish(mut self) -> Result<Sorted> {
        if !self.collected.is_empty() {
            self.write()?;
        }
        let cursors = self.trees.iter().map(|(tree, _)| TreeCursor::open(&**tree));
        let cursors = cursors.collect::<Result<Vec<_>>>()?;
        Ok(Sorted {
            merge: KWayMerge::new(cursors, 0),
            is_begun: false,
            is_over: false,
            _pages: self.trees.into_iter().map(|(_, pages)| pages).collect(),
            owner: self.owner,
        })
    }
}

impl Sorted {
    /// The next record, borrowed until the next call.
    ///
    /// # Errors
    ///
    /// Those of [`Range::next_ref`](crate::Range::next_ref).
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_over {
            return Ok(None);
        }
        let opened = self.owner.core.health.check_open();
        let moved = opened.and_then(|()| match std::mem::replace(&mut self.is_begun, true) {
            true => self.merge.advance(),
            false => Ok(()),
        });
        self.is_over = moved.is_err() || self.merge.key().is_none();
        moved?;
        let merge = &self.merge;
        let record = |key| (key, merge.message().put_value().unwrap_or_default());
        Ok(merge.key().map(record))
    }
}

impl Iterator for Sorted {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.next_ref().transpose()?;
        Some(record.map(|(key, value)| (Slice::copy(key), Slice::copy(value))))
    }
}

impl std::iter::FusedIterator for Sorted {}

impl std::fmt::Debug for Sorted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sorted")
            .field("trees", &self.merge.cursors().len())
            .finish_non_exhaustive()
    }
}

/// The record at which a scan of a tree is.
struct TreeCursor {
    scan: Box<dyn Scan>,
    key: Vec<u8>,
    value: Vec<u8>,
    is_over: bool,
}

impl TreeCursor {
    fn open(tree: &dyn Version) -> Result<Self> {
        let ordered = tree.ordered();
        let ordered = ordered.ok_or_else(|| Error::internal("a sorted tree has no order"))?;
        let mut cursor = TreeCursor {
            scan: ordered.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)?,
            key: Vec::new(),
            value: Vec::new(),
            is_over: false,
        };
        cursor.advance()?;
        Ok(cursor)
    }
}

impl MessageCursor for TreeCursor {
    fn key(&self) -> Option<&[u8]> {
        (!self.is_over).then_some(&self.key)
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.value)
    }

    fn advance(&mut self) -> Result<()> {
        match self.scan.next()? {
            Some((key, value)) => {
                for (own, new) in [(&mut self.key, key), (&mut self.value, value)] {
                    own.clear();
                    own.extend_from_slice(new);
                }
            }
            None => self.is_over = true,
        }
        Ok(())
    }
}

/// Records in order, each key once.
struct Collected(Vec<(Slice, Slice)>);

impl Collected {
    /// The numbers of the records of a range.
    fn within(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> std::ops::Range<usize> {
        let below = |end: &[u8]| self.0.partition_point(|(key, _)| **key < *end);
        let start = lo.map_or(0, below);
        start..hi.map_or(self.0.len(), below).max(start)
    }
}

impl MergeInput for Collected {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let left = self.within(lo, hi);
        Ok(Box::new(CollectedCursor {
            collected: self,
            left,
        }))
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let records = &self.0[self.within(lo, hi)];
        Estimate {
            records: records.len() as u64,
            bytes: records
                .iter()
                .map(|(k, v)| (k.len() + v.len()) as u64)
                .sum(),
        }
    }
}

struct CollectedCursor {
    collected: Arc<Collected>,
    left: std::ops::Range<usize>,
}

impl MessageCursor for CollectedCursor {
    fn key(&self) -> Option<&[u8]> {
        let at = self.left.clone().next()?;
        Some(&self.collected.0[at].0)
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.collected.0[self.left.start].1)
    }

    fn advance(&mut self) -> Result<()> {
        self.left.next();
        Ok(())
    }
}
