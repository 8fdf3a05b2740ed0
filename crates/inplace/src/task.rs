//! The work of a merge on one leaf of the map, in steps of about a page group.
//!
//! A leaf that is merged: segments to which neither the input nor a waiting group brings a record
//! stay as they are, unless enough of their records has expired. Consecutive others are
//! streamed, together with these records, into new segments. If less than half a segment is left
//! over, the next segment joins it.
//!
//! A leaf whose records wait: the input's records, and those of the joined groups, become groups
//! that wait.

use std::cmp::Ordering;
use std::sync::Arc;

use terrapin_base::{Budget, Charge, Error, Fold, Message, Operator, Purpose, Result, mutant};
use terrapin_pages::group::{
    Deadlines, ExpiredPart, GroupBuilder, GroupOptions, GroupRef, PendingGroup,
};
use terrapin_pages::{Changes, PageRef, PageStore, PageUse, SpaceClass};
use terrapin_runs::cursor::GroupCursor;
use terrapin_runs::walk::ReadAhead;
use terrapin_structure::{
    Around, KWayMerge, MergeInput, MessageCursor, ValuesOwner, at_last_place, finish_fold,
    report_dropped,
};

use crate::format::{Leaf, encode_segment};
use crate::node::load_leaf;
use crate::plan::Fate;
use crate::source::{self, Newer, Source};

/// What all tasks of a merge share.
pub(crate) struct Context {
    pub(crate) store: Arc<PageStore>,
    pub(crate) input: Arc<dyn MergeInput>,
    pub(crate) budget: Arc<Budget>,
    /// Of segments of the line.
    pub(crate) segment: GroupOptions,
    /// Of groups that wait.
    pub(crate) waiting: GroupOptions,
    pub(crate) class: SpaceClass,
    /// Bytes of records after which a step ends.
    pub(crate) step_bytes: u64,
    /// Bytes that a put hides, in thousandths of its own.
    pub(crate) replacing_permille: u16,
    /// Mean key and value bytes of a record of the line.
    pub(crate) record_bytes: u64,
    /// Folds operands.
    pub(crate) operator: Operator,
    /// The moment of the merge, and the expired part of a segment from which on it is rewritten
    /// ([`terrapin_structure::MergeOptions::expired`]).
    pub(crate) expired: ExpiredPart,
    pub(crate) values: ValuesOwner,
    /// Damage that the merge stays away from.
    pub(crate) around: Around,
}

/// A segment of the next version, as its leaf will name it.
pub(crate) struct Segment {
    /// The bytes of its entry.
    pub(crate) entry: Vec<u8>,
    pub(crate) records: u64,
    /// Key and value bytes.
    pub(crate) bytes: u64,
    /// When its records expire.
    pub(crate) deadlines: Deadlines,
    /// Bytes of its extent.
    pub(crate) stored: u64,
    pub(crate) first_key: Box<[u8]>,
    pub(crate) last_key: Box<[u8]>,
}

impl Segment {
    /// A segment that stays as it is.
    pub(crate) fn kept(leaf: &Leaf, number: usize) -> Result<Segment> {
        let segment = leaf.segment(number)?;
        Ok(Segment {
            entry: segment.entry.to_vec(),
            records: segment.group.records,
            bytes: segment.group.logical_bytes,
            deadlines: leaf.deadlines(number)?,
            stored: segment.group.bytes,
            first_key: segment.index.first_key().into(),
            last_key: segment.index.last_key().into(),
        })
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let own = self.entry.capacity() + self.first_key.len() + self.last_key.len();
        (own + size_of::<Self>() + self.deadlines.memory_bytes()) as u64
    }
}

/// What came of a leaf.
pub(crate) enum Outcome {
    /// The segments in its place.
    Merged(Vec<Segment>),
    /// The groups that wait in place of the newest `joined` ones, newest first.
    Waits { new: Vec<GroupRef>, joined: usize },
}

/// The leaf of the base that a task works on.
pub(crate) struct OldLeaf {
    pub(crate) page: PageRef,
    /// All groups that wait for it, newest first.
    pub(crate) waiting: Vec<GroupRef>,
}

/// A key range of a task: inclusive and exclusive.
pub(crate) type Span = (Option<Box<[u8]>>, Option<Box<[u8]>>);

/// The work on one leaf, or on a part of an empty tree.
pub(crate) struct Task {
    /// The number of the leaf, or of the part.
    pub(crate) number: usize,
    span: Span,
    old: Option<OldLeaf>,
    fate: Fate,
    phase: Phase,
    newer: Option<Newer>,
    builder: GroupBuilder,
    leaf: Option<Arc<Leaf>>,
    /// The next segment of the leaf.
    next: usize,
    /// The segment that is being rewritten.
    line: Option<GroupCursor>,
    /// The operands of a key and its record of the line.
    fold: Fold,
    segments: Vec<Segment>,
    groups: Vec<GroupRef>,
    changes: Changes,
    charge: Charge,
    /// Key and value bytes that the task has moved.
    consumed_bytes: u64,
}

enum Phase {
    Begin,
    Records,
    Done,
}

impl terrapin_runs::tasks::Task for Task {
    fn number(&self) -> usize {
        self.number
    }

    fn changes(&mut self) -> &mut Changes {
        &mut self.changes
    }

    fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }
}

impl Task {
    pub(crate) fn new(
        context: &Context,
        number: usize,
        span: Span,
        old: Option<OldLeaf>,
        fate: Fate,
    ) -> Task {
        let builder = match fate {
            Fate::Waits { .. } => GroupBuilder::new(context.waiting),
            Fate::Merged | Fate::Nothing => {
                let mut builder = GroupBuilder::new(context.segment);
                builder.fit_models();
                builder
            }
        };
        Task {
            number,
            span,
            old,
            fate,
            phase: Phase::Begin,
            newer: None,
            builder,
            leaf: None,
            next: 0,
            line: None,
            fold: Fold::default(),
            segments: Vec::new(),
            groups: Vec::new(),
            changes: Changes::default(),
            charge: context.budget.charge(Purpose::Merge, 0),
            consumed_bytes: 0,
        }
    }

    /// Does a bounded piece of work. Returns whether the task is done.
    pub(crate) fn step(&mut self, context: &Context) -> Result<bool> {
        let stepped = match (&self.phase, self.fate) {
            (Phase::Begin, _) => self.begin(context),
            (Phase::Records, Fate::Waits { .. }) => self.write_waiting(context),
            (Phase::Records, _) => self.merge_line(context),
            (Phase::Done, _) => Ok(()),
        };
        let segments = self.segments.iter().map(Segment::memory_bytes).sum::<u64>();
        let newer = self.newer.as_ref().map_or(0, source::memory_bytes);
        let line = self.line.as_ref().map_or(0, GroupCursor::memory_bytes_max);
        let builder = self.builder.memory_bytes() as u64;
        self.charge.resize(segments + newer + line + builder);
        stepped.map(|()| matches!(self.phase, Phase::Done))
    }

    pub(crate) fn outcome(&mut self) -> Outcome {
        match self.fate {
            Fate::Waits { joined } => Outcome::Waits {
                new: std::mem::take(&mut self.groups),
                joined,
            },
            Fate::Merged | Fate::Nothing => Outcome::Merged(std::mem::take(&mut self.segments)),
        }
    }

    /// Opens what the task reads.
    fn begin(&mut self, context: &Context) -> Result<()> {
        let store = &context.store;
        let (lo, hi) = (self.span.0.as_deref(), self.span.1.as_deref());
        let mut sources = vec![Source::Input(context.input.clone().cursor(lo, hi)?)];
        if let Some(old) = &self.old {
            let taken = match self.fate {
                Fate::Waits { joined } => joined,
                Fate::Merged | Fate::Nothing => old.waiting.len(),
            };
            for group in &old.waiting[..taken] {
                self.changes.released.push(group.id);
                let cursor = GroupCursor::for_merge(store, group, None, None, ReadAhead::MERGE)?;
                sources.push(Source::Waiting(Box::new(cursor)));
            }
            if sources.len() > 1 && mutant::active("merge-misses-oldest-waiting-group") {
                sources.pop();
            }
            if self.fate == Fate::Merged {
                self.leaf = Some(load_leaf(store, &old.page)?);
                self.changes.released.push(old.page.id);
            }
        }
        let newer = KWayMerge::new(sources, 0).folding(&context.operator, None);
        self.newer = Some(newer.reporting(&context.values));
        self.phase = Phase::Records;
        Ok(())
    }

    /// Writes some records that wait.
    fn write_waiting(&mut self, context: &Context) -> Result<()> {
        let Some(newer) = &mut self.newer else {
            return Err(Error::internal("a merge has no stream"));
        };
        let mut moved = 0;
        while moved < context.step_bytes {
            newer.settle(|_| {})?;
            let Some(key) = newer.key() else {
                for group in self.builder.finish() {
                    self.write_waiting_group(context, group)?;
                }
                self.newer = None;
                self.groups.reverse();
                self.phase = Phase::Done;
                break;
            };
            let message = newer.message();
            let bytes = (key.len() + message.value_bytes()) as u64;
            moved += bytes;
            let hidden = match message {
                Message::Delete => bytes + context.record_bytes,
                Message::Merge(_) | Message::Stack(_) => bytes,
                Message::Put(_) | Message::Separated(_) | Message::Expiring(_) => {
                    bytes * u64::from(context.replacing_permille) / 1000
                }
            };
            let group = match message {
                Message::Delete if mutant::active("deletes-vanish-while-they-wait") => None,
                message => self.builder.add_hiding(key, message, hidden)?,
            };
            newer.advance()?;
            if let Some(group) = group {
                self.consumed_bytes += moved;
                return self.write_waiting_group(context, group);
            }
        }
        self.consumed_bytes += moved;
        Ok(())
    }

    fn write_waiting_group(&mut self, context: &Context, group: PendingGroup) -> Result<()> {
        let group = context.store.write_segment(group, context.class)?;
        self.changes.added.push(PageUse::from(&group));
        self.groups.push(group);
        Ok(())
    }

    /// Merges some records into the line.
    fn merge_line(&mut self, context: &Context) -> Result<()> {
        let mut moved = 0;
        while moved < context.step_bytes && !matches!(self.phase, Phase::Done) {
            match self.line {
                Some(_) => self.stream(context, &mut moved)?,
                None => self.next_segment(context, &mut moved)?,
            }
        }
        self.consumed_bytes += moved;
        Ok(())
    }

    /// Keeps the next segment, or opens it.
    fn next_segment(&mut self, context: &Context, moved: &mut u64) -> Result<()> {
        let next = self.next;
        let Some(leaf) = self.leaf.clone().filter(|leaf| next < leaf.len()) else {
            return self.stream(context, moved);
        };
        let newer = self.newer.as_ref().and_then(MessageCursor::key);
        let is_touched = newer.is_some_and(|key| is_below(key, self.segment_end(&leaf, next)));
        let is_small = !self.builder.is_empty()
            && self.builder.pending_bytes() < context.segment.target_bytes / 2;
        let segment = leaf.segment(next)?;
        let is_expired = context.expired.now_ms > 0
            && leaf
                .deadlines(next)?
                .is_due(segment.group.records, context.expired);
        if is_touched || is_small || is_expired {
            let index = Arc::new(segment.index.decode(&segment.group, &mut Vec::new())?);
            let ahead = ReadAhead::MERGE;
            let cursor = GroupCursor::for_merge_by(&context.store, &segment.group, index, ahead)?;
            self.changes.released.push(segment.group.id);
            self.line = Some(cursor);
        } else {
            self.flush(context)?;
            self.segments.push(Segment::kept(&leaf, next)?);
            self.next += 1;
        }
        Ok(())
    }

    /// Where the records of a segment end: at the next segment's first key; `None` behind the last
    /// segment of the leaf.
    fn segment_end<'a>(&self, leaf: &'a Leaf, number: usize) -> Option<&'a [u8]> {
        (number + 1 < leaf.len()).then(|| leaf.first_key(number + 1))
    }

    /// Streams records of the open segment, and those that go there, into the builder. Behind the
    /// last segment, streams what is left.
    fn stream(&mut self, context: &Context, moved: &mut u64) -> Result<()> {
        let leaf = self.leaf.clone();
        let end = leaf
            .as_ref()
            .and_then(|leaf| self.segment_end(leaf, self.next));
        let Some(newer) = &mut self.newer else {
            return Err(Error::internal("a merge has no stream"));
        };
        let finished = loop {
            if *moved >= context.step_bytes {
                return Ok(());
            }
            newer.settle(|_| {})?;
            let new = newer.key().filter(|key| is_below(key, end));
            let old = self.line.as_ref().and_then(GroupCursor::current_key);
            let order = match (new, old) {
                (None, None) => break None,
                (Some(new), Some(old)) => new.cmp(old),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            let has_operands = order != Ordering::Greater && newer.message().has_operands();
            if has_operands {
                self.fold.clear();
                let is_based = self.fold.push(newer.message())?;
                if let Some(line) = self.line.as_mut().filter(|_| order == Ordering::Equal) {
                    if !is_based {
                        self.fold.push(line.current_message())?;
                    } else {
                        report_dropped(&context.values, line.current_message())?;
                    }
                    line.step()?;
                }
            } else if order == Ordering::Equal
                && let Some(line) = &mut self.line
            {
                // The newer record replaces it.
                report_dropped(&context.values, line.current_message())?;
                line.step()?;
                continue;
            }
            let takes_new = order != Ordering::Greater;
            let finished = if takes_new {
                let key = newer.key().unwrap_or_default();
                let message = match has_operands {
                    true => {
                        let (operator, last) = (&context.operator, Some(context.expired.now_ms));
                        finish_fold(&context.values, operator, key, &mut self.fold, last)?
                    }
                    false => {
                        at_last_place(&context.values, newer.message(), context.expired.now_ms)?
                    }
                };
                *moved += (key.len() + message.value_bytes()) as u64;
                let finished = match message {
                    Message::Delete => None,
                    message => self.builder.add(key, message)?,
                };
                newer.advance()?;
                finished
            } else if let Some(line) = &mut self.line {
                let key = line.current_key().unwrap_or_default();
                let message = line.current_message();
                *moved += (key.len() + message.value_bytes()) as u64;
                self.builder.takes_place_of(line.standing());
                let now_ms = context.expired.now_ms;
                let finished = match at_last_place(&context.values, message, now_ms)? {
                    Message::Delete => None,
                    message => self.builder.add(key, message)?,
                };
                line.step()?;
                finished
            } else {
                None
            };
            if finished.is_some() {
                break finished;
            }
        };
        match finished {
            Some(group) => self.write_segment(context, group),
            None if self.line.take().is_some() => {
                self.next += 1;
                Ok(())
            }
            None => {
                self.flush(context)?;
                self.newer = None;
                self.phase = Phase::Done;
                Ok(())
            }
        }
    }

    /// Writes what the builder holds.
    fn flush(&mut self, context: &Context) -> Result<()> {
        for group in self.builder.finish() {
            self.write_segment(context, group)?;
        }
        Ok(())
    }

    fn write_segment(&mut self, context: &Context, mut group: PendingGroup) -> Result<()> {
        group.keep_index_out();
        let first_key = std::mem::take(&mut group.first_key).into();
        let last_key = std::mem::take(&mut group.last_key).into();
        let deadlines: Deadlines = group.deadlines.clone();
        let (group, index) = context.store.write_group_with_index(group, context.class)?;
        self.changes.added.push(PageUse::from(&group));
        let mut entry = Vec::new();
        encode_segment(&group, &deadlines, &index, &mut entry);
        self.segments.push(Segment {
            entry,
            records: group.records,
            bytes: group.logical_bytes,
            deadlines,
            stored: group.bytes,
            first_key,
            last_key,
        });
        Ok(())
    }
}

#[inline]
fn is_below(key: &[u8], end: Option<&[u8]>) -> bool {
    end.is_none_or(|end| key < end)
}
