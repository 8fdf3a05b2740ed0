//! The two tasks that write page groups: leaves, and a level of a buffer. Both write group by
//! group. A call does about one group's work and returns whether there is more.

use std::cmp::Ordering;
use std::sync::Arc;

use terrapin_base::{Error, Message, Result, mutant};
use terrapin_pages::group::{Deadlines, GroupRef, GroupSums, PendingGroup};
use terrapin_pages::{Changes, PageUse};
use terrapin_runs::run::{Key, KeyRange, Run, RunCursor, place_record};
use terrapin_runs::writing::{Writing, look_bytes, separator};
use terrapin_structure::MessageCursor;

use super::hidden::Hiding;
use super::runs::Context;
use super::slot::{ChildSlot, ChildState, Target};
use crate::node::{Child, LivePart, Segment};

/// Writes the new leaves of some neighbouring leaves and the messages for them.
pub(super) struct WriteLeaves {
    pub(super) target: Target,
    pub(super) range: KeyRange,
    /// The old leaves, in order.
    pub(super) base: Vec<(GroupRef, Deadlines)>,
    /// The messages for them, newest first.
    pub(super) incoming: Vec<Run>,
    /// Whether to write even without messages, because the leaves are to be united.
    pub(super) always: bool,
    /// A leaf that stays as it is in front of the new ones, and the last key of its pivot.
    behind: Option<(GroupRef, Deadlines, Vec<u8>)>,
    /// Whether erased ranges are still in the old leaves.
    pub(super) erases: bool,
    /// Approximate bytes that the task will consume.
    pub(super) expected_bytes: u64,
    state: Option<LeavesState>,
}

struct LeavesState {
    writing: Writing,
    /// The number of the old leaves' run in the stream.
    base_run: usize,
    /// Key and value bytes merged so far, and how many there are at the next look at the cache
    /// standing.
    merged: u64,
    look: u64,
    base_seen: u64,
    messages: u64,
    /// Old records that were deleted.
    deleted: u64,
    slots: Vec<ChildSlot>,
    last_key: Vec<u8>,
}

/// The new leaves that replace some old ones.
pub(super) struct WrittenLeaves {
    pub(super) slots: Vec<ChildSlot>,
    /// Messages that came in, and how many of them were puts that replaced a record.
    pub(super) messages: u64,
    pub(super) replaced: u64,
}

impl WriteLeaves {
    pub(super) fn new(
        target: Target,
        range: KeyRange,
        base: Vec<(GroupRef, Deadlines)>,
        incoming: Vec<Run>,
        always: bool,
        expected_bytes: u64,
    ) -> Self {
        WriteLeaves {
            target,
            range,
            base,
            incoming,
            always,
            behind: None,
            erases: false,
            expected_bytes,
            state: None,
        }
    }

    /// Writes leaves behind one that stays. All that comes in is behind `last`.
    pub(super) fn behind(
        mut self,
        (leaf, deadlines): (GroupRef, Deadlines),
        last: Vec<u8>,
    ) -> Self {
        self.behind = Some((leaf, deadlines, last));
        self
    }

    /// Leaves out what is erased of the old leaves.
    pub(super) fn erasing(mut self, erases: bool) -> Self {
        self.erases = erases;
        self
    }

    /// Does a piece of the work. Returns the result once everything is written. Adds the merged
    /// bytes to `consumed`.
    pub(super) fn step(
        &mut self,
        context: &Arc<Context>,
        changes: &mut Changes,
        consumed: &mut u64,
    ) -> Result<Option<WrittenLeaves>> {
        let Some(mut state) = self
            .state
            .take()
            .map_or_else(|| self.open(context, changes), |state| Ok(Some(state)))?
        else {
            let slots = self
                .base
                .first()
                .map(|(leaf, deadlines)| self.slot(*leaf, deadlines.clone(), self.lower()))
                .or_else(|| self.stays())
                .into_iter()
                .collect();
            return Ok(Some(WrittenLeaves {
                slots,
                messages: 0,
                replaced: 0,
            }));
        };
        let before = state.merged;
        let slice = before + 2 * context.group_bytes();
        let look_bytes = look_bytes(&context.options);
        while state.writing.stream.key().is_some() {
            let finished = state.pass(look_bytes)?;
            if finished.is_some() || state.merged > slice {
                *consumed += state.merged - before;
                if let Some(group) = finished {
                    self.write(context, changes, &mut state, group)?;
                }
                state.writing.account();
                self.state = Some(state);
                return Ok(None);
            }
        }
        *consumed += state.merged - before;
        for group in state.writing.builder.finish() {
            self.write(context, changes, &mut state, group)?;
        }
        Ok(Some(self.written(context, state)))
    }

    /// Adds a record that is newer than all that the task merges. Records below its key, which is
    /// in the task's range and above all added before, go first.
    #[inline]
    pub(super) fn add(
        &mut self,
        context: &Arc<Context>,
        changes: &mut Changes,
        key: &[u8],
        message: Message<'_>,
    ) -> Result<()> {
        let mut state = match &mut self.state {
            Some(state) => state,
            None => {
                let state = self.open(context, changes)?;
                let state = state.ok_or_else(|| Error::internal("an ingest opened no leaf"))?;
                self.state.insert(state)
            }
        };
        let look_bytes = look_bytes(&context.options);
        loop {
            let stream = &mut state.writing.stream;
            let order = stream
                .key()
                .map_or(Ordering::Greater, |there| there.cmp(key));
            let finished = match order {
                Ordering::Less => state.pass(look_bytes)?,
                Ordering::Equal | Ordering::Greater => {
                    if order == Ordering::Equal {
                        stream.settle(|_| ())?;
                        stream.advance()?;
                    }
                    state.messages += 1;
                    state.writing.builder.add(key, message)?
                }
            };
            if let Some(group) = finished {
                let mut state = self.state.take();
                if let Some(state) = &mut state {
                    self.write(context, changes, state, group)?;
                    state.writing.account();
                }
                self.state = state;
            }
            if order != Ordering::Less {
                return Ok(());
            }
            let Some(next) = &mut self.state else {
                return Err(Error::internal("an ingest lost its leaf"));
            };
            state = next;
        }
    }

    /// Number of leaves written so far.
    pub(super) fn leaves(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.slots.len())
    }

    fn written(&self, context: &Context, state: LeavesState) -> WrittenLeaves {
        let mut slots = state.slots;
        if let [slot] = &mut slots[..]
            && self.behind.is_none()
        {
            slot.is_small = matches!(slot.child, ChildState::Child(Child::Leaf(leaf)) if is_small(context, &leaf));
        }
        let base_records: u64 = self.base.iter().map(|(leaf, _)| leaf.records).sum();
        // Of leaves that are erased in part, the records that are gone were not counted.
        let replaced = match self.erases {
            true => 0,
            false => base_records.saturating_sub(state.base_seen + state.deleted),
        };
        WrittenLeaves {
            slots,
            messages: state.messages,
            replaced,
        }
    }

    fn open(
        &mut self,
        context: &Arc<Context>,
        changes: &mut Changes,
    ) -> Result<Option<LeavesState>> {
        let newer = std::mem::take(&mut self.incoming);
        let base_run = newer.len();
        let base: Vec<GroupRef> = self.base.iter().map(|(leaf, _)| *leaf).collect();
        let mut older = Run::groups(&base);
        if self.erases && !mutant::active("erased-leaf-keeps-records") {
            older = older.narrowed_to_all(&context.erased.kept_of(&self.range));
        }
        let expired = context.options.expired();
        let is_due =
            |(leaf, deadlines): &(GroupRef, Deadlines)| deadlines.is_due(leaf.records, expired);
        let always = self.always || self.erases || self.base.iter().any(is_due);
        let stream = context.open_stream(&self.range, newer, vec![older], always, true)?;
        let Some(stream) = stream else {
            return Ok(None);
        };
        changes.released.extend(base.iter().map(|leaf| leaf.id));
        Ok(Some(LeavesState {
            writing: Writing::new(context.group_options(), &context.budget, stream),
            base_run,
            merged: 0,
            look: 0,
            base_seen: 0,
            messages: 0,
            deleted: 0,
            slots: self.stays().into_iter().collect(),
            last_key: (self.behind.as_ref()).map_or(Vec::new(), |(_, _, last)| last.clone()),
        }))
    }

    /// The slot of the leaf that stays.
    fn stays(&self) -> Option<ChildSlot> {
        let (leaf, deadlines, _) = self.behind.as_ref()?;
        Some(self.slot(*leaf, deadlines.clone(), self.lower()))
    }

    fn write(
        &self,
        context: &Context,
        changes: &mut Changes,
        state: &mut LeavesState,
        mut pending: PendingGroup,
    ) -> Result<()> {
        let lower = if state.slots.is_empty() {
            self.lower()
        } else {
            separator(&state.last_key, &pending.first_key)
        };
        state.last_key = std::mem::take(&mut pending.last_key);
        if !context.leaf_filters.are_asked() {
            pending.keep_filter_out();
        }
        let deadlines = std::mem::take(&mut pending.deadlines);
        let leaf = context.store.write_group(pending, context.class())?;
        changes.added.push(PageUse::from(&leaf));
        state.slots.push(self.slot(leaf, deadlines, lower));
        Ok(())
    }

    fn lower(&self) -> Key {
        self.range.lo.clone().unwrap_or_default()
    }

    fn slot(&self, leaf: GroupRef, deadlines: Deadlines, lower: Key) -> ChildSlot {
        ChildSlot {
            lower,
            child: ChildState::Child(Child::Leaf(leaf)),
            deadlines,
            is_small: false,
        }
    }
}

impl LeavesState {
    /// Moves the stream's next record to the builder. Returns the group that this completes, if
    /// any.
    #[inline(always)] // the loop of every merge
    fn pass(&mut self, look_bytes: u64) -> Result<Option<PendingGroup>> {
        let Writing {
            stream, builder, ..
        } = &mut self.writing;
        if self.merged >= self.look {
            self.look = self.merged + look_bytes;
            // Behind the last record of the old leaves there is no standing.
            let among = stream.cursors()[self.base_run].standing();
            builder.takes_place_of(among.unwrap_or_default());
        }
        let mut replaced_base = false;
        stream.settle(|run| replaced_base |= run == self.base_run)?;
        let Some(key) = stream.key() else {
            return Ok(None);
        };
        let message = stream.message();
        self.merged += (key.len() + message.value_bytes()) as u64;
        if stream.current() == Some(self.base_run) {
            self.base_seen += 1;
        } else {
            self.messages += 1;
        }
        let finished = if message.is_delete() {
            self.deleted += u64::from(replaced_base);
            None
        } else {
            builder
                .add(key, message)
                .map_err(|error| place_record(stream, error))?
        };
        stream.advance()?;
        Ok(finished)
    }
}

/// Whether a leaf that was written alone is less than half full. Leaves that are written together
/// never are, because the builder balances them. Separators count towards a builder's target, so
/// the index counts here too.
fn is_small(context: &Context, leaf: &GroupRef) -> bool {
    u64::from(leaf.index_offset) + u64::from(leaf.index_bytes) < context.group_bytes() / 2
}

/// A segment of this many bytes ends with the current pivot. The parts of a segment are flushed one
/// by one, and its space is freed with the last part. So less space is dead if fewer pivots share a
/// segment. But each segment costs a footer, an index and a filter.
fn segment_bytes_min(group_bytes: u64) -> u64 {
    (group_bytes / SEGMENT_SHARE).max(SEGMENT_BYTES_MIN.min(group_bytes))
}

/// The minimum of [`segment_bytes_min`]: a share (1/n) of L, and a lower limit in bytes.
const SEGMENT_SHARE: u64 = 4;
const SEGMENT_BYTES_MIN: u64 = 128 << 10;

/// The part of a buffer level that a task writes.
#[derive(Clone, Copy)]
pub(super) struct LevelPart {
    pub(super) frame: u64,
    pub(super) level: usize,
    /// The part's number in key order.
    pub(super) part: usize,
    /// This part is the whole level.
    pub(super) is_whole: bool,
}

/// Writes a buffer level, or the part of it for some pivots. It merges what came in for pivots that
/// are not flushed with the levels down to this one.
pub(super) struct WriteLevel {
    pub(super) of: LevelPart,
    /// Lower bounds of all of the node's pivots but the first.
    lowers: Arc<[Key]>,
    range: KeyRange,
    incoming: Vec<Run>,
    levels: Vec<Run>,
    pub(super) expected_bytes: u64,
    /// What is below the level.
    hiding: Arc<Hiding>,
    /// For a node that counts whole replaced records: how many of a thousand messages of the
    /// memtable replace one.
    replaced_permille: Option<u16>,
    /// Number of runs that come in.
    newer: usize,
    state: Option<LevelState>,
}

struct LevelState {
    writing: Writing,
    /// The pivot of the stream's current message, and where in the stream each pivot up to it
    /// began.
    pivot: usize,
    marks: Vec<(usize, GroupSums)>,
    /// Sums of the messages passed so far.
    sums: GroupSums,
    /// Sums of the messages in `segments`.
    written: GroupSums,
    segments: Vec<Segment>,
}

impl WriteLevel {
    pub(super) fn new(
        of: LevelPart,
        lowers: Arc<[Key]>,
        range: KeyRange,
        incoming: Vec<Run>,
        levels: Vec<Run>,
        expected_bytes: u64,
        hiding: Arc<Hiding>,
    ) -> Self {
        WriteLevel {
            of,
            lowers,
            range,
            incoming,
            levels,
            expected_bytes,
            hiding,
            replaced_permille: None,
            newer: 0,
            state: None,
        }
    }

    /// Counts the whole records that puts replace as hidden.
    pub(super) fn counting_replaced(mut self, permille: u16) -> Self {
        self.replaced_permille = Some(permille);
        self
    }

    /// Does a piece of the work. Once everything is written it returns the segments. It returns
    /// `None` inside if nothing came in for the whole level, and the old levels stay.
    #[expect(
        clippy::option_option,
        reason = "unfinished, finished without effect, finished with a level"
    )]
    pub(super) fn step(
        &mut self,
        context: &Arc<Context>,
        changes: &mut Changes,
        consumed: &mut u64,
    ) -> Result<Option<Option<Vec<Segment>>>> {
        let Some(mut state) = self
            .state
            .take()
            .map_or_else(|| self.open(context), |state| Ok(Some(state)))?
        else {
            return Ok(Some(None));
        };
        let before = state.sums.bytes;
        let least = segment_bytes_min(context.group_bytes());
        let look_bytes = look_bytes(&context.options);
        let mut look = before;
        let Writing {
            stream, builder, ..
        } = &mut state.writing;
        loop {
            let mut replaces = false;
            stream.settle(|_| replaces = true)?;
            let Some(key) = stream.key() else { break };
            let message = stream.message();
            while self
                .lowers
                .get(state.pivot)
                .is_some_and(|next| **next <= *key)
            {
                state.pivot += 1;
            }
            if state.marks.last().is_none_or(|mark| mark.0 != state.pivot) {
                let (pending, left) = (
                    state.sums.bytes - state.written.bytes,
                    self.expected_bytes.saturating_sub(state.sums.bytes),
                );
                if pending.min(left) >= least {
                    *consumed += state.sums.bytes - before;
                    for group in builder.finish() {
                        state.write(context, changes, group)?;
                    }
                    state.writing.account();
                    self.state = Some(state);
                    return Ok(None);
                }
                state.marks.push((state.pivot, state.sums));
            }
            let run = stream.current().map(|run| &stream.cursors()[run]);
            if state.sums.bytes >= look {
                look = state.sums.bytes + look_bytes;
                // A message of the memtable keeps the standing of the message before it.
                if let Some(standing) = run.and_then(RunCursor::standing) {
                    builder.takes_place_of(standing);
                }
            }
            let known = || {
                let known = run.and_then(RunCursor::hidden_bytes);
                known.filter(|_| !replaces)
            };
            let hidden = match mutant::active("hidden-bytes-forgotten-in-buffer") {
                true => 0,
                false => match self.replaced_permille {
                    None => self
                        .hiding
                        .of(&context.store, (state.pivot, key), message, known)?,
                    Some(permille) => {
                        let comes_in = stream.current().is_some_and(|run| run < self.newer);
                        let counted = run.and_then(RunCursor::hidden_bytes);
                        // Of a run from above, nothing may have been known there.
                        let counted = counted.filter(|&bytes| bytes > 0 || !comes_in);
                        let place = (state.pivot, key);
                        self.hiding.with_replaced(
                            &context.store,
                            place,
                            message,
                            counted,
                            permille,
                        )?
                    }
                },
            };
            state.sums.records += 1;
            state.sums.bytes += (key.len() + message.value_bytes()) as u64;
            state.sums.hidden_bytes += hidden;
            state.sums.separated_bytes += message.separated_bytes();
            let finished =
                match mutant::active("deletes-vanish-above-leaves") && message.is_delete() {
                    true => None,
                    false => builder
                        .add_hiding(key, message, hidden)
                        .map_err(|error| place_record(stream, error))?,
                };
            stream.advance()?;
            if let Some(group) = finished {
                *consumed += state.sums.bytes - before;
                state.write(context, changes, group)?;
                state.writing.account();
                self.state = Some(state);
                return Ok(None);
            }
        }
        *consumed += state.sums.bytes - before;
        for group in state.writing.builder.finish() {
            state.write(context, changes, group)?;
        }
        Ok(Some(Some(state.segments)))
    }

    fn open(&mut self, context: &Arc<Context>) -> Result<Option<LevelState>> {
        let newer = std::mem::take(&mut self.incoming);
        self.newer = newer.len();
        let older = std::mem::take(&mut self.levels);
        // If there are other parts, the old levels are replaced even without new messages for this
        // part.
        let always = !self.of.is_whole;
        let is_last = mutant::active("node-applies-operands");
        let stream = context.open_stream(&self.range, newer, older, always, is_last)?;
        Ok(stream.map(|stream| {
            let mut writing = Writing::new(context.group_options(), &context.budget, stream);
            if context.store.has_room_for_outlines() {
                writing.builder.outline_filters();
            }
            LevelState {
                writing,
                pivot: 0,
                marks: Vec::new(),
                sums: GroupSums::default(),
                written: GroupSums::default(),
                segments: Vec::new(),
            }
        }))
    }
}

impl LevelState {
    /// Writes a segment, and counts its messages for each pivot. The marks tell where in the stream
    /// each pivot began.
    fn write(
        &mut self,
        context: &Context,
        changes: &mut Changes,
        mut pending: PendingGroup,
    ) -> Result<()> {
        let (min, max) = (
            std::mem::take(&mut pending.first_key),
            std::mem::take(&mut pending.last_key),
        );
        let deadlines = std::mem::take(&mut pending.deadlines);
        let group = context.store.write_segment(pending, context.class())?;
        changes.added.push(PageUse::from(&group));
        let from = self.written;
        let to = GroupSums {
            records: from.records + group.records,
            bytes: from.bytes + group.logical_bytes,
            hidden_bytes: from.hidden_bytes + group.hidden_bytes,
            separated_bytes: from.separated_bytes + group.separated_bytes,
        };
        let mut live = Vec::new();
        for (i, &(pivot, start)) in self.marks.iter().enumerate() {
            let end = self.marks.get(i + 1).map_or(self.sums, |next| next.1);
            let within = |sum: fn(&GroupSums) -> u64| {
                let (start, end) = (sum(&start).max(sum(&from)), sum(&end).min(sum(&to)));
                end.saturating_sub(start)
            };
            let records = within(|sums| sums.records);
            if records > 0 {
                live.push(LivePart {
                    pivot: pivot as u16,
                    records: records as u32,
                    bytes: within(|sums| sums.bytes),
                    hidden_bytes: within(|sums| sums.hidden_bytes),
                    separated_bytes: within(|sums| sums.separated_bytes),
                });
            }
        }
        self.written = to;
        let done = self
            .marks
            .partition_point(|mark| mark.1.records <= to.records);
        self.marks.drain(..done.saturating_sub(1));
        self.segments.push(Segment {
            group,
            deadlines,
            min: min.into(),
            max: max.into(),
            live,
        });
        Ok(())
    }
}
