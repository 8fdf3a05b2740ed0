//! The messages that flow down the tree in a merge: sorted runs, described by where they are. They
//! are not copied on the way.
//!
//! A run is the memtable, or one buffer level of one node. Its pieces are key ranges of page groups
//! in which all messages are live. A child gets the runs of its parent's incoming stream, newest
//! first, and then those of the parent's levels. All are narrowed to the child's range. They are
//! read only when a leaf or a level is written from them.

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

/// The context that all tasks of a merge share.
pub(crate) struct Context {
    pub(crate) store: Arc<PageStore>,
    pub(crate) input: Arc<dyn MergeInput>,
    pub(crate) options: MergeOptions,
    pub(crate) policy: Policy,
    pub(crate) budget: Arc<Budget>,
    /// What lookups have learned about leaf filters.
    pub(crate) leaf_filters: Arc<LeafFilters>,
    /// The root node of the base version, if it is in memory.
    pub(crate) root_node: Option<Arc<LoadedNode>>,
    /// Approximate bytes that the merge brings to the tree.
    /// [`TreeMerge::begin`](super::TreeMerge::begin) sets it.
    pub(crate) brings: u64,
    /// For a compaction: all buffered messages for these keys go to their leaves, and nothing comes
    /// in. `None` for other merges.
    pub(crate) stretch: Option<KeyRange>,
}

impl Context {
    /// The options of new page groups.
    pub(super) fn group_options(&self) -> GroupOptions {
        GroupOptions {
            target_bytes: self.options.group_bytes,
            block_bytes: self.options.block_bytes,
            unit: self.store.unit(),
            compression: self.options.compression,
            filter: true,
        }
    }

    /// Where new pages are allocated.
    pub(super) fn class(&self) -> SpaceClass {
        if self.options.space_is_short {
            SpaceClass::Reserve
        } else {
            SpaceClass::Normal
        }
    }

    /// L: target bytes of a page group.
    pub(super) fn group_bytes(&self) -> u64 {
        self.options.group_bytes
    }
}

/// A key range, with an inclusive lower and an exclusive upper bound. `None` is unbounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRange {
    pub(crate) lo: Option<Key>,
    pub(crate) hi: Option<Key>,
}

impl KeyRange {
    /// The keys that are in both ranges; `None` if there are none.
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

    /// Length of the common prefix of all keys in the range.
    fn shared_bytes(&self) -> usize {
        match (&self.lo, &self.hi) {
            (Some(lo), Some(hi)) => lo.iter().zip(hi.iter()).take_while(|(a, b)| a == b).count(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug)]
enum PieceOrigin {
    Memtable,
    Group(GroupRef),
}

#[derive(Clone, Debug)]
struct Piece {
    origin: PieceOrigin,
    range: KeyRange,
}

/// A sorted run: pieces in key order that do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pieces: Vec<Piece>,
}

impl Run {
    /// The memtable's messages of a range.
    pub(super) fn memtable(range: KeyRange) -> Run {
        Run {
            pieces: vec![Piece {
                origin: PieceOrigin::Memtable,
                range,
            }],
        }
    }

    /// Whole groups, in key order.
    pub(super) fn groups(groups: &[GroupRef]) -> Run {
        let piece = |&group| Piece {
            origin: PieceOrigin::Group(group),
            range: KeyRange::default(),
        };
        Run {
            pieces: groups.iter().map(piece).collect(),
        }
    }

    /// The messages of a buffer level for the pivots for which `wanted` is true. `range` returns
    /// the key range of a span of pivots, both ends included.
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
                        origin: PieceOrigin::Group(segment.group),
                        range,
                    });
                }
            }
        }
        Run { pieces }
    }

    /// The part of the run inside a range.
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

    /// The parts of the run inside several ranges, which ascend and do not overlap.
    pub(super) fn narrowed_to_all(&self, ranges: &[KeyRange]) -> Run {
        Run {
            pieces: ranges
                .iter()
                .flat_map(|range| self.narrowed(range).pieces)
                .collect(),
        }
    }

    /// Whether the run is known to be empty.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the run is the memtable's.
    pub(super) fn is_memtable(&self) -> bool {
        let is_memtable = |piece: &Piece| matches!(piece.origin, PieceOrigin::Memtable);
        self.pieces.first().is_some_and(is_memtable)
    }

    /// The messages of a memtable's run inside a range.
    pub(super) fn messages_of_memtable<'a>(
        &'a self,
        context: &'a Context,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = Box<dyn MessageCursor>> + 'a {
        let pieces = self.pieces.iter();
        let pieces = pieces.filter(|piece| matches!(piece.origin, PieceOrigin::Memtable));
        pieces
            .filter_map(|piece| piece.range.intersection(range))
            .map(|range| {
                let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
                context.input.clone().cursor(lo, hi)
            })
    }

    /// Whether the run is the memtable's and has a record in a range. This is exact, not an
    /// estimate.
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

    /// Estimates the content of the run inside a range, and how many bytes its groups' messages
    /// hide. Reads indexes of groups.
    pub(super) fn estimate(&self, context: &Context, range: &KeyRange) -> Result<GroupSums> {
        let mut sum = GroupSums::default();
        for piece in &self.pieces {
            let Some(range) = piece.range.intersection(range) else {
                continue;
            };
            let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
            let part = match &piece.origin {
                PieceOrigin::Memtable => {
                    let Estimate { records, bytes } = context.input.estimate(lo, hi);
                    GroupSums {
                        records,
                        bytes,
                        hidden_bytes: 0,
                    }
                }
                PieceOrigin::Group(group) => context.store.index(group)?.estimate(lo, hi),
            };
            sum.records = sum.records.saturating_add(part.records);
            sum.bytes = sum.bytes.saturating_add(part.bytes);
            sum.hidden_bytes = sum.hidden_bytes.saturating_add(part.hidden_bytes);
        }
        Ok(sum)
    }
}

/// A cursor over the messages of a run.
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
    /// Opens a cursor at the run's first message.
    pub(super) fn open(context: &Arc<Context>, run: Run) -> Result<Self> {
        let mut cursor = RunCursor {
            context: context.clone(),
            pieces: run.pieces.into_iter(),
            current: None,
        };
        cursor.next_piece()?;
        Ok(cursor)
    }

    /// Moves to the first message of the next piece that has one.
    fn next_piece(&mut self) -> Result<()> {
        self.current = None;
        for piece in self.pieces.by_ref() {
            let (lo, hi) = (piece.range.lo.as_deref(), piece.range.hi.as_deref());
            let cursor = match piece.origin {
                PieceOrigin::Memtable => {
                    PieceCursor::Memtable(self.context.input.clone().cursor(lo, hi))
                }
                PieceOrigin::Group(group) => PieceCursor::Group(Box::new(GroupCursor::for_merge(
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

    /// The page group of the current message; `None` for the memtable.
    fn page(&self) -> Option<PageId> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.page()),
            _ => None,
        }
    }

    /// The cache standing of the current message's block; `None` for the memtable.
    #[inline]
    pub(super) fn standing(&self) -> Option<Standing> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.standing()),
            _ => None,
        }
    }

    /// Bytes that the current message hides; `None` for a message of the memtable, for which this
    /// is not known yet.
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
pub(super) type RunMerge = KWayMerge<RunCursor>;

/// Opens a stream over `newer` runs and then `older` ones, all inside `range`. If the newer runs
/// have no messages, it returns `None` without opening the older ones, unless `always` is set.
pub(super) fn open_stream(
    context: &Arc<Context>,
    range: &KeyRange,
    newer: Vec<Run>,
    older: Vec<Run>,
    always: bool,
) -> Result<Option<RunMerge>> {
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

/// Most bytes of read-ahead that a stream's open cursors hold.
pub(super) fn stream_memory_bytes(stream: &RunMerge) -> u64 {
    stream
        .cursors()
        .iter()
        .map(RunCursor::memory_bytes_max)
        .sum()
}

/// Adds the page group of a stream's current message to an error.
#[cold]
pub(super) fn place_record(stream: &RunMerge, error: Error) -> Error {
    let cursor = stream.current().and_then(|run| stream.cursors().get(run));
    match cursor.and_then(RunCursor::page) {
        Some(page) => error.with("page", page),
        None => error,
    }
}
