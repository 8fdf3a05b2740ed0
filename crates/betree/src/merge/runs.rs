//! What flows down the tree in a merge: sorted runs, described by where they lie and never
//! materialised on the way.
//!
//! A run is the memtable, or one buffer level of one node; its pieces are key ranges of page groups
//! in which everything is alive. A child gets the runs of its parent's incoming stream, newest
//! first, and behind them those of the parent's levels, all narrowed to its range. Nothing is read
//! before a leaf or a level is written from them.

use std::sync::Arc;

use terrapin_base::{Budget, Error, Message, PageId, Result};
use terrapin_pages::group::{GroupOptions, GroupRef, GroupSums};
use terrapin_pages::{PageStore, SpaceClass, Standing};
use terrapin_structure::{Estimate, KWayMerge, MergeInput, MergeOptions, MessageCursor};

use crate::cursor::GroupCursor;
use crate::leaf_filters::LeafFilters;
use crate::load::LoadedNode;
use crate::node::Segment;
use crate::plan::Policy;
use crate::walk::ReadAhead;

/// A key that many tasks share.
pub(crate) type Key = Arc<[u8]>;

/// What all tasks of a merge work with.
pub(crate) struct Context {
    pub(crate) store: Arc<PageStore>,
    pub(crate) input: Arc<dyn MergeInput>,
    pub(crate) options: MergeOptions,
    pub(crate) policy: Policy,
    pub(crate) budget: Arc<Budget>,
    /// What lookups learnt of leaves' filters.
    pub(crate) leaf_filters: Arc<LeafFilters>,
    /// The node that the tree begins with, if that is in memory.
    pub(crate) root_node: Option<Arc<LoadedNode>>,
    /// Bytes that the merge brings to the tree, roughly.
    /// [`TreeMerge::begin`](super::TreeMerge::begin) sets it.
    pub(crate) brings: u64,
    /// All that buffers hold for these keys goes to their leaves: a compaction, which brings in
    /// nothing. None in other merges.
    pub(crate) stretch: Option<KeyRange>,
}

impl Context {
    /// How groups are built.
    pub(super) fn group_options(&self) -> GroupOptions {
        GroupOptions {
            target_bytes: self.options.group_bytes,
            block_bytes: self.options.block_bytes,
            unit: self.store.unit(),
            compression: self.options.compression,
            filter: true,
        }
    }

    /// Where space is taken from.
    pub(super) fn class(&self) -> SpaceClass {
        if self.options.space_is_short {
            SpaceClass::Reserve
        } else {
            SpaceClass::Normal
        }
    }

    /// L.
    pub(super) fn group_bytes(&self) -> u64 {
        self.options.group_bytes
    }
}

/// A range of keys: inclusive, exclusive; none is unbounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRange {
    pub(crate) lo: Option<Key>,
    pub(crate) hi: Option<Key>,
}

impl KeyRange {
    /// What both ranges have in common; none if that is nothing.
    pub(super) fn intersection(&self, other: &KeyRange) -> Option<KeyRange> {
        let lo = match (&self.lo, &other.lo) {
            (Some(a), Some(b)) => Some(if a >= b { a } else { b }),
            (a, b) => a.as_ref().or(b.as_ref()),
        };
        let hi = match (&self.hi, &other.hi) {
            (Some(a), Some(b)) => Some(if a <= b { a } else { b }),
            (a, b) => a.as_ref().or(b.as_ref()),
        };
        if let (Some(lo), Some(hi)) = (lo, hi)
            && lo >= hi
        {
            return None;
        }
        Some(KeyRange {
            lo: lo.cloned(),
            hi: hi.cloned(),
        })
    }

    /// Bytes that all keys of the range begin with.
    fn shared_bytes(&self) -> usize {
        match (&self.lo, &self.hi) {
            (Some(lo), Some(hi)) => lo.iter().zip(hi.iter()).take_while(|(a, b)| a == b).count(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug)]
enum Origin {
    Memtable,
    Group(GroupRef),
}

#[derive(Clone, Debug)]
struct Piece {
    origin: Origin,
    range: KeyRange,
}

/// A sorted run: pieces in key order that do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pieces: Vec<Piece>,
}

impl Run {
    /// The memtable's part of a range.
    pub(super) fn memtable(range: KeyRange) -> Run {
        Run {
            pieces: vec![Piece {
                origin: Origin::Memtable,
                range,
            }],
        }
    }

    /// Whole groups, one behind the other.
    pub(super) fn groups(groups: &[GroupRef]) -> Run {
        let piece = |&group| Piece {
            origin: Origin::Group(group),
            range: KeyRange::default(),
        };
        Run {
            pieces: groups.iter().map(piece).collect(),
        }
    }

    /// What a buffer level has for the pivots that `wanted` names. `range` gives the key range of a
    /// span of pivots, both ends included.
    pub(super) fn level(
        segments: &[Segment],
        wanted: impl Fn(usize) -> bool,
        range: impl Fn(usize, usize) -> KeyRange,
    ) -> Run {
        let mut pieces = Vec::new();
        for segment in segments {
            let mut live = segment
                .live
                .iter()
                .map(|part| usize::from(part.pivot))
                .filter(|&p| wanted(p))
                .peekable();
            let mut own = None;
            while let Some(first) = live.next() {
                let mut last = first;
                while live.next_if_eq(&(last + 1)).is_some() {
                    last += 1;
                }
                let own = own.get_or_insert_with(|| KeyRange {
                    lo: Some(segment.min[..].into()),
                    hi: Some(segment.max.iter().copied().chain([0]).collect()),
                });
                if let Some(range) = range(first, last).intersection(own) {
                    pieces.push(Piece {
                        origin: Origin::Group(segment.group),
                        range,
                    });
                }
            }
        }
        Run { pieces }
    }

    /// The part of the run that lies in a range.
    pub(super) fn narrowed(&self, range: &KeyRange) -> Run {
        let narrowed = |piece: &Piece| {
            Some(Piece {
                origin: piece.origin.clone(),
                range: piece.range.intersection(range)?,
            })
        };
        Run {
            pieces: self.pieces.iter().filter_map(narrowed).collect(),
        }
    }

    /// The parts of the run that lie in several ranges, which ascend and do not overlap.
    pub(super) fn narrowed_to_all(&self, ranges: &[KeyRange]) -> Run {
        Run {
            pieces: ranges
                .iter()
                .flat_map(|range| self.narrowed(range).pieces)
                .collect(),
        }
    }

    /// Whether the run is known to hold nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether it is the memtable's.
    pub(super) fn is_memtable(&self) -> bool {
        let is_memtable = |piece: &Piece| matches!(piece.origin, Origin::Memtable);
        self.pieces.first().is_some_and(is_memtable)
    }

    /// The messages of a memtable's run that lie in a range.
    pub(super) fn messages_of_memtable<'a>(
        &'a self,
        context: &'a Context,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = Box<dyn MessageCursor>> + 'a {
        let pieces = self.pieces.iter();
        let pieces = pieces.filter(|piece| matches!(piece.origin, Origin::Memtable));
        pieces
            .filter_map(|piece| piece.range.intersection(range))
            .map(|range| {
                let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
                context.input.clone().cursor(lo, hi)
            })
    }

    /// Whether the run is the memtable's and has a record in a range: no estimate.
    pub(super) fn brings(&self, context: &Context, range: &KeyRange) -> bool {
        let brings = |range: KeyRange| {
            let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
            context.input.clone().cursor(lo, hi).key().is_some()
        };
        let mut ranges = self
            .pieces
            .iter()
            .filter_map(|piece| piece.range.intersection(range));
        self.is_memtable() && ranges.any(brings)
    }

    /// How much the run holds in a range, and how much of what lies below its groups' messages
    /// hide. Reads indexes of groups.
    pub(super) fn estimate(&self, context: &Context, range: &KeyRange) -> Result<GroupSums> {
        let mut sum = GroupSums::default();
        for piece in &self.pieces {
            let Some(range) = piece.range.intersection(range) else {
                continue;
            };
            let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
            let part = match &piece.origin {
                Origin::Memtable => {
                    let Estimate { records, bytes } = context.input.estimate(lo, hi);
                    GroupSums {
                        records,
                        bytes,
                        hidden_bytes: 0,
                    }
                }
                Origin::Group(group) => context.store.index(group)?.estimate(lo, hi),
            };
            sum.records = sum.records.saturating_add(part.records);
            sum.bytes = sum.bytes.saturating_add(part.bytes);
            sum.hidden_bytes = sum.hidden_bytes.saturating_add(part.hidden_bytes);
        }
        Ok(sum)
    }
}

/// The records of a run.
pub(super) struct RunCursor {
    context: Arc<Context>,
    pieces: std::vec::IntoIter<Piece>,
    current: Option<PieceCursor>,
}

enum PieceCursor {
    Memtable(Box<dyn MessageCursor>),
    Group(Box<GroupCursor>),
}

impl RunCursor {
    /// A cursor at the run's first record.
    pub(super) fn open(context: &Arc<Context>, run: Run) -> Result<Self> {
        let mut cursor = RunCursor {
            context: context.clone(),
            pieces: run.pieces.into_iter(),
            current: None,
        };
        cursor.next_piece()?;
        Ok(cursor)
    }

    /// Goes on to the first record of the next piece that has one.
    fn next_piece(&mut self) -> Result<()> {
        self.current = None;
        for piece in self.pieces.by_ref() {
            let (lo, hi) = (piece.range.lo.as_deref(), piece.range.hi.as_deref());
            let cursor = match piece.origin {
                Origin::Memtable => {
                    PieceCursor::Memtable(self.context.input.clone().cursor(lo, hi))
                }
                Origin::Group(group) => PieceCursor::Group(Box::new(GroupCursor::for_merge(
                    &self.context.store,
                    &group,
                    lo,
                    hi,
                    ReadAhead::MERGE,
                )?)),
            };
            if cursor.key().is_some() {
                self.current = Some(cursor);
                break;
            }
        }
        Ok(())
    }

    /// The page group that the current record lies in; none for the memtable.
    fn page(&self) -> Option<PageId> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.page()),
            _ => None,
        }
    }

    /// How the block of the current record stands in the cache; none for the memtable.
    #[inline]
    pub(super) fn standing(&self) -> Option<Standing> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.standing()),
            _ => None,
        }
    }

    /// Bytes that the current message hides; none for the memtable's, of which nobody knows yet.
    #[inline]
    pub(super) fn hidden_bytes(&self) -> Option<u64> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.hidden_bytes()),
            _ => None,
        }
    }

    fn memory_bytes_max(&self) -> u64 {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => cursor.memory_bytes_max(),
            _ => 0,
        }
    }
}

impl PieceCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            PieceCursor::Group(cursor) => cursor.current_key(),
            PieceCursor::Memtable(cursor) => cursor.key(),
        }
    }
}

impl MessageCursor for RunCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref()?.key()
    }

    #[inline]
    fn message(&self) -> Message<'_> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => cursor.current_message(),
            Some(PieceCursor::Memtable(cursor)) => cursor.message(),
            None => Message::Delete,
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let at_end = match &mut self.current {
            Some(PieceCursor::Group(cursor)) => {
                cursor.step()?;
                cursor.current_key().is_none()
            }
            Some(PieceCursor::Memtable(cursor)) => {
                cursor.advance()?;
                cursor.key().is_none()
            }
            None => return Ok(()),
        };
        if at_end { self.next_piece() } else { Ok(()) }
    }
}

/// A merge of runs, newest first.
pub(super) type Stream = KWayMerge<RunCursor>;

/// Opens a stream over `newer` runs and then `older` ones, all inside `range`. None, and the older
/// ones are not opened, when the newer ones turn out to hold nothing, unless `always`.
pub(super) fn open_stream(
    context: &Arc<Context>,
    range: &KeyRange,
    newer: Vec<Run>,
    older: Vec<Run>,
    always: bool,
) -> Result<Option<Stream>> {
    let mut cursors = Vec::with_capacity(newer.len() + older.len());
    for run in newer {
        cursors.push(RunCursor::open(context, run)?);
    }
    if !always && cursors.iter().all(|cursor| cursor.key().is_none()) {
        return Ok(None);
    }
    for run in older {
        cursors.push(RunCursor::open(context, run)?);
    }
    Ok(Some(KWayMerge::new(cursors, range.shared_bytes())))
}

/// Most bytes that the read-ahead of a stream's open cursors takes.
pub(super) fn stream_memory_bytes(stream: &Stream) -> u64 {
    stream
        .cursors()
        .iter()
        .map(RunCursor::memory_bytes_max)
        .sum()
}

/// Adds to an error about a stream's current record which page group that lies in.
#[cold]
pub(super) fn place_record(stream: &Stream, error: Error) -> Error {
    let cursor = stream.current().and_then(|run| stream.cursors().get(run));
    match cursor.and_then(RunCursor::page) {
        Some(page) => error.with("page", page),
        None => error,
    }
}
