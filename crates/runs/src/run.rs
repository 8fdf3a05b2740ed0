//! Sorted runs and their merges. A run is described by where its messages are: nothing is copied
//! until a cursor opens it.
//!
//! A run is a list of pieces in key order. A piece is a key range of the merge's input or of a page
//! group, and all messages in it are live. A structure narrows runs to the keys of a part of
//! itself, and merges them, newest first, when it writes that part.

use std::sync::Arc;

use terrapin_base::{Error, Message, PageId, Result, mutant};
use terrapin_pages::group::{GroupRef, GroupSums};
use terrapin_pages::{PageStore, Standing};
use terrapin_structure::{Estimate, KWayMerge, MergeInput, MergeOptions, MessageCursor};

use crate::cursor::GroupCursor;
use crate::walk::ReadAhead;

/// A key that many tasks share.
pub type Key = Arc<[u8]>;

/// A key range, with an inclusive lower and an exclusive upper bound. `None` is unbounded.
#[derive(Clone, Debug, Default)]
pub struct KeyRange {
    /// The inclusive lower bound.
    pub lo: Option<Key>,
    /// The exclusive upper bound.
    pub hi: Option<Key>,
}

impl KeyRange {
    /// The keys that are in both ranges; `None` if there are none.
    #[must_use]
    pub fn intersection(&self, other: &KeyRange) -> Option<KeyRange> {
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
    Input,
    Group(GroupRef),
}

#[derive(Clone, Debug)]
struct Piece {
    origin: PieceOrigin,
    range: KeyRange,
}

/// A sorted run: pieces in key order that do not overlap.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pieces: Vec<Piece>,
}

impl Run {
    /// The input's messages of a range.
    pub fn input(range: KeyRange) -> Run {
        Run {
            pieces: vec![Piece {
                origin: PieceOrigin::Input,
                range,
            }],
        }
    }

    /// Whole groups, in key order.
    pub fn groups(groups: &[GroupRef]) -> Run {
        let piece = |&group| Piece {
            origin: PieceOrigin::Group(group),
            range: KeyRange::default(),
        };
        Run {
            pieces: groups.iter().map(piece).collect(),
        }
    }

    /// Appends the messages of a group inside a range. They are behind all that the run has.
    pub fn push(&mut self, group: GroupRef, range: KeyRange) {
        self.pieces.push(Piece {
            origin: PieceOrigin::Group(group),
            range,
        });
    }

    /// The part of the run inside a range.
    pub fn narrowed(&self, range: &KeyRange) -> Run {
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
    pub fn narrowed_to_all(&self, ranges: &[KeyRange]) -> Run {
        Run {
            pieces: ranges
                .iter()
                .flat_map(|range| self.narrowed(range).pieces)
                .collect(),
        }
    }

    /// Whether the run is known to be empty.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the run is the input's.
    pub fn is_input(&self) -> bool {
        let is_input = |piece: &Piece| matches!(piece.origin, PieceOrigin::Input);
        self.pieces.first().is_some_and(is_input)
    }

    /// The messages of a input's run inside a range.
    pub fn messages_of_input<'a>(
        &'a self,
        input: &'a Arc<dyn MergeInput>,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = Result<Box<dyn MessageCursor>>> + 'a {
        let pieces = self.pieces.iter();
        let pieces = pieces.filter(|piece| matches!(piece.origin, PieceOrigin::Input));
        pieces
            .filter_map(|piece| piece.range.intersection(range))
            .map(|range| {
                let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
                input.clone().cursor(lo, hi)
            })
    }

    /// Whether the run is the input's and has a record in a range. This is exact, not an
    /// estimate.
    pub fn brings(&self, input: &Arc<dyn MergeInput>, range: &KeyRange) -> Result<bool> {
        if !self.is_input() {
            return Ok(false);
        }
        for cursor in self.messages_of_input(input, range) {
            if cursor?.key().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether all messages of the run are above a key. It may say no although they are. Reads
    /// indexes of groups.
    pub fn is_behind(
        &self,
        store: &PageStore,
        input: &Arc<dyn MergeInput>,
        key: &[u8],
    ) -> Result<bool> {
        let is_above = |first: &[u8], key: &[u8]| {
            first > key || first == key && mutant::active("append-takes-last-key")
        };
        for piece in &self.pieces {
            let lo = piece.range.lo.as_deref();
            if lo.is_some_and(|lo| lo > key) {
                continue;
            }
            let is_behind = match &piece.origin {
                PieceOrigin::Input => {
                    let cursor = input.clone().cursor(lo, piece.range.hi.as_deref())?;
                    cursor.key().is_none_or(|first| is_above(first, key))
                }
                PieceOrigin::Group(group) => is_above(store.index(group)?.first_key(), key),
            };
            if !is_behind {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Estimates the content of the run inside a range, and how many bytes its groups' messages
    /// hide. Reads indexes of groups.
    pub fn estimate(
        &self,
        store: &PageStore,
        input: &Arc<dyn MergeInput>,
        range: &KeyRange,
    ) -> Result<GroupSums> {
        let mut sum = GroupSums::default();
        for piece in &self.pieces {
            let Some(range) = piece.range.intersection(range) else {
                continue;
            };
            let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
            let part = match &piece.origin {
                PieceOrigin::Input => {
                    let Estimate { records, bytes } = input.estimate(lo, hi);
                    GroupSums {
                        records,
                        bytes,
                        hidden_bytes: 0,
                        separated_bytes: 0,
                    }
                }
                PieceOrigin::Group(group) => store.index(group)?.estimate(lo, hi),
            };
            sum.records = sum.records.saturating_add(part.records);
            sum.bytes = sum.bytes.saturating_add(part.bytes);
            sum.hidden_bytes = sum.hidden_bytes.saturating_add(part.hidden_bytes);
            let separated = sum.separated_bytes.saturating_add(part.separated_bytes);
            sum.separated_bytes = separated;
        }
        Ok(sum)
    }
}

/// A cursor over the messages of a run.
pub struct RunCursor {
    store: Arc<PageStore>,
    input: Arc<dyn MergeInput>,
    pieces: std::vec::IntoIter<Piece>,
    current: Option<PieceCursor>,
}

enum PieceCursor {
    Input(Box<dyn MessageCursor>),
    Group(Box<GroupCursor>),
}

impl RunCursor {
    /// Opens a cursor at the run's first message.
    pub fn open(store: &Arc<PageStore>, input: &Arc<dyn MergeInput>, run: Run) -> Result<Self> {
        let mut cursor = RunCursor {
            store: store.clone(),
            input: input.clone(),
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
            let cursor =
                match piece.origin {
                    PieceOrigin::Input => PieceCursor::Input(self.input.clone().cursor(lo, hi)?),
                    PieceOrigin::Group(group) => PieceCursor::Group(Box::new(
                        GroupCursor::for_merge(&self.store, &group, lo, hi, ReadAhead::MERGE)?,
                    )),
                };
            if cursor.key().is_some() {
                self.current = Some(cursor);
                break;
            }
        }
        Ok(())
    }

    /// The page group of the current message; `None` for the input.
    fn page(&self) -> Option<PageId> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.page()),
            _ => None,
        }
    }

    /// The cache standing of the current message's block; `None` for the input.
    #[inline]
    pub fn standing(&self) -> Option<Standing> {
        match &self.current {
            Some(PieceCursor::Group(cursor)) => Some(cursor.standing()),
            _ => None,
        }
    }

    /// Bytes that the current message hides; `None` for a message of the input, for which this
    /// is not known yet.
    #[inline]
    pub fn hidden_bytes(&self) -> Option<u64> {
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
            PieceCursor::Input(cursor) => cursor.key(),
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
            Some(PieceCursor::Input(cursor)) => cursor.message(),
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
            Some(PieceCursor::Input(cursor)) => {
                cursor.advance()?;
                cursor.key().is_none()
            }
            None => return Ok(()),
        };
        if at_end { self.next_piece() } else { Ok(()) }
    }
}

/// A merge of runs, newest first.
pub type RunMerge = KWayMerge<RunCursor>;

/// Opens a stream over `newer` runs and then `older` ones, all inside `range`. If the newer runs
/// have no messages, it returns `None` without opening the older ones, unless `always` is set.
/// Operands are folded by the options' operator, and their owner of values learns which handles the
/// stream drops. `is_last` says that nothing older than the runs exists.
pub fn open_stream(
    (store, input): (&Arc<PageStore>, &Arc<dyn MergeInput>),
    range: &KeyRange,
    newer: Vec<Run>,
    older: Vec<Run>,
    always: bool,
    (options, is_last): (&MergeOptions, bool),
) -> Result<Option<RunMerge>> {
    let mut cursors = Vec::with_capacity(newer.len() + older.len());
    for run in newer {
        cursors.push(RunCursor::open(store, input, run)?);
    }
    if !always && cursors.iter().all(|cursor| cursor.key().is_none()) {
        return Ok(None);
    }
    for run in older {
        cursors.push(RunCursor::open(store, input, run)?);
    }
    let stream = KWayMerge::new(cursors, range.shared_bytes());
    let stream = stream.folding(&options.operator, is_last.then_some(options.now_ms));
    Ok(Some(stream.reporting(&options.values)))
}

/// Most bytes of read-ahead that a stream's open cursors hold.
pub fn stream_memory_bytes(stream: &RunMerge) -> u64 {
    stream
        .cursors()
        .iter()
        .map(RunCursor::memory_bytes_max)
        .sum()
}

/// Adds the page group of a stream's current message to an error.
#[cold]
pub fn place_record(stream: &RunMerge, error: Error) -> Error {
    let cursor = stream.current().and_then(|run| stream.cursors().get(run));
    match cursor.and_then(RunCursor::page) {
        Some(page) => error.with("page", page),
        None => error,
    }
}
