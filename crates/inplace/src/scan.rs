//! A scan: the leaves of the map in order, and in each leaf a merge of the line with the groups
//! that wait for the leaf.
//!
//! A scan reads the pages of a segment that it probably wants in one device read, and the first
//! blocks of all waiting groups together with them. A long scan reads the next segments ahead.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{Message, MessageKind, Result};
use terrapin_pages::block::Block;
use terrapin_pages::{Fill, PageStore};
use terrapin_runs::bounds::{as_slice, is_empty, lets_in_above, lets_in_below};
use terrapin_runs::stream::Stream;
use terrapin_runs::walk::{BlockWalk, Pace, ReadAhead};
use terrapin_structure::{Batch, Direction, Filled, KeyBounds, Scan};

use crate::format::{ABOVE_LEAVES, Leaf};
use crate::node::Node;
use crate::version::InPlaceVersion;

/// Most bytes of the line that a long scan reads ahead.
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// Most blocks of the line that a scan reads at once before it is long.
const FIRST_BLOCKS_MAX: usize = 32;

/// One sorted run of a leaf: the line, or a waiting group.
struct Run {
    walk: BlockWalk,
    /// The line's further segments, by number.
    segments: Range<usize>,
    is_line: bool,
    block: Option<Arc<Block>>,
    /// The records of the block that are not passed.
    records: Range<usize>,
    /// The key of the next record.
    key: Vec<u8>,
}

impl Run {
    fn new(walk: BlockWalk, segments: Range<usize>, is_line: bool) -> Self {
        Run {
            walk,
            segments,
            is_line,
            block: None,
            records: 0..0,
            key: Vec::new(),
        }
    }

    /// The number of the next record in its block.
    fn at(&self, direction: Direction) -> usize {
        match direction {
            Direction::Forward => self.records.start,
            Direction::Backward => self.records.end - 1,
        }
    }

    /// Moves on by some records of the block.
    fn pass(&mut self, count: usize, direction: Direction) {
        match direction {
            Direction::Forward => self.records.start += count,
            Direction::Backward => self.records.end -= count,
        }
        self.set_key(direction);
    }

    fn set_key(&mut self, direction: Direction) {
        if let Some(block) = &self.block
            && !self.records.is_empty()
        {
            block.key_into(self.at(direction), &mut self.key);
        }
    }

    /// The next records of the block that come before a key, or up to it.
    fn records_before(&self, key: &[u8], with_it: bool, direction: Direction) -> usize {
        let Some(block) = &self.block else {
            return 0;
        };
        let (found, is_there) = match block.search(key) {
            Ok(at) => (at, true),
            Err(at) => (at, false),
        };
        let passes = usize::from(is_there && with_it);
        match direction {
            Direction::Forward => {
                (found + passes).clamp(self.records.start, self.records.end) - self.records.start
            }
            Direction::Backward => {
                let from = found + usize::from(is_there) - passes;
                self.records.end - from.clamp(self.records.start, self.records.end)
            }
        }
    }
}

/// A scan over one version.
pub(crate) struct InPlaceScan {
    store: Arc<PageStore>,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    root: Option<Arc<Node>>,
    /// The nodes down to the one above the current leaf, and their entries to come.
    path: Vec<(Arc<Node>, Range<usize>)>,
    leaf: Option<Arc<Leaf>>,
    /// The runs of the leaf that are not over, newest first.
    runs: Vec<Run>,
    /// Blocks of the line that are being read, and the walks behind the line's.
    stream: Option<Stream>,
    ahead: VecDeque<BlockWalk>,
    pace: Pace,
    /// Records that the reader probably still wants; 0 if unknown.
    expected: usize,
    runs_at_start: usize,
    passed: u64,
    /// Deletes passed since the last record that was returned.
    deletes: u64,
    is_done: bool,
    /// The record that [`Scan::next`] returned.
    key: Vec<u8>,
    value: Vec<u8>,
    /// The run of the record before which the last fill stopped.
    unresolved: Option<usize>,
    /// The last key that the scan passed, once it has passed one.
    last: Vec<u8>,
    has_passed: bool,
}

/// What comes next in a scan.
enum Next {
    /// A record of this run, and how many of its block's records precede those of other runs.
    Records(usize, usize),
    /// Nothing inside the bound.
    Reached,
    /// A read would be needed, but the caller did not want one.
    Unread,
    /// Nothing.
    End,
}

fn entries_inside(node: &Node, (lower, upper): KeyBounds<'_>) -> Range<usize> {
    let place = |bound| match bound {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(node.inner.find(key)),
    };
    let first = place(lower).unwrap_or(0);
    first..place(upper).map_or(node.inner.entries.len(), |last| last + 1)
}

impl InPlaceScan {
    /// A scan at its start. It reads nodes and the first records.
    pub(crate) fn begin(
        version: &InPlaceVersion,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Self> {
        let root = match is_empty(bounds.0, bounds.1) {
            true => None,
            false => version.root_node()?,
        };
        let mut scan = InPlaceScan {
            store: version.store.clone(),
            direction,
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            root,
            path: Vec::new(),
            leaf: None,
            runs: Vec::new(),
            stream: None,
            ahead: VecDeque::new(),
            pace: Pace::default(),
            expected,
            runs_at_start: 0,
            passed: 0,
            deletes: 0,
            is_done: false,
            key: Vec::new(),
            value: Vec::new(),
            unresolved: None,
            last: Vec::new(),
            has_passed: false,
        };
        scan.start()?;
        scan.runs_at_start = scan.runs.len().saturating_sub(1);
        Ok(scan)
    }

    fn bounds(&self) -> KeyBounds<'_> {
        (as_slice(&self.lower), as_slice(&self.upper))
    }

    /// Goes down to the first leaf of the range.
    fn start(&mut self) -> Result<()> {
        self.path.clear();
        self.leave_leaf();
        if let Some(root) = self.root.clone() {
            let entries = entries_inside(&root, self.bounds());
            self.path.push((root, entries));
            self.next_leaf()?;
        }
        Ok(())
    }

    /// Notes the last key that the scan passed, in two pieces.
    fn note_passed(&mut self, (front, rest): (&[u8], &[u8])) {
        self.last.clear();
        self.last.extend_from_slice(front);
        self.last.extend_from_slice(rest);
        self.has_passed = true;
    }

    fn leave_leaf(&mut self) {
        self.leaf = None;
        self.runs.clear();
        self.stream = None;
        self.ahead.clear();
    }

    /// The next entry of the lowest node of the path; `None` at the end.
    fn peek_entry(&mut self) -> Option<usize> {
        loop {
            let (_, entries) = self.path.last()?;
            if !entries.is_empty() {
                return Some(match self.direction {
                    Direction::Forward => entries.start,
                    Direction::Backward => entries.end - 1,
                });
            }
            self.path.pop();
        }
    }

    /// Opens the next leaf. Returns `false` behind the last one.
    fn next_leaf(&mut self) -> Result<bool> {
        loop {
            let Some(number) = self.peek_entry() else {
                return Ok(false);
            };
            let Some((node, entries)) = self.path.last_mut() else {
                return Ok(false);
            };
            match self.direction {
                Direction::Forward => entries.start += 1,
                Direction::Backward => entries.end -= 1,
            }
            let node = node.clone();
            if node.inner.height == ABOVE_LEAVES {
                self.open_leaf(&node, number)?;
                return Ok(true);
            }
            let child = node.child(&self.store, number)?;
            let entries = entries_inside(&child, self.bounds());
            self.path.push((child, entries));
        }
    }

    fn open_leaf(&mut self, node: &Node, number: usize) -> Result<()> {
        self.leaf = None;
        self.runs.clear();
        let (store, direction) = (self.store.clone(), self.direction);
        for (group, handle) in node.waiting(number) {
            let index = store.index_by(group, handle)?;
            let walk = BlockWalk::new(group, index, self.bounds(), direction, ReadAhead::SCAN);
            if !walk.is_over() {
                self.runs.push(Run::new(walk, 0..0, false));
            }
        }
        let leaf = node.leaf(&store, number)?;
        let first = match &self.lower {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => leaf.up_to(key).saturating_sub(1),
        };
        let end = match &self.upper {
            Bound::Unbounded => leaf.len(),
            Bound::Included(key) | Bound::Excluded(key) => leaf.up_to(key),
        };
        self.leaf = Some(leaf);
        let mut segments = first..end;
        if let Some(walk) = self.next_walk(&mut segments)? {
            self.runs.push(Run::new(walk, segments, true));
        }
        self.read_first()
    }

    /// A walk over the next of some segments of the leaf.
    fn next_walk(&self, segments: &mut Range<usize>) -> Result<Option<BlockWalk>> {
        let number = match self.direction {
            _ if segments.start >= segments.end => return Ok(None),
            Direction::Forward => segments.next(),
            Direction::Backward => segments.next_back(),
        };
        let (Some(leaf), Some(number)) = (&self.leaf, number) else {
            return Ok(None);
        };
        let segment = leaf.segment(number)?;
        let index = segment.cached_index(&self.store)?;
        let (bounds, direction) = (self.bounds(), self.direction);
        Ok(Some(BlockWalk::new(
            &segment.group,
            index,
            bounds,
            direction,
            ReadAhead::SCAN,
        )))
    }

    /// Reads the first blocks of all runs together, and of the line those that are probably wanted.
    fn read_first(&mut self) -> Result<()> {
        if self.stream.is_some() {
            return Ok(());
        }
        let expected = self.expected;
        let counts: Vec<_> = self
            .runs
            .iter()
            .map(|run| match run.is_line {
                true => expected
                    .div_ceil(run.walk.records_of_block())
                    .saturating_add(usize::from(expected > 1))
                    .clamp(1, FIRST_BLOCKS_MAX),
                false => 1,
            })
            .collect();
        if counts.iter().sum::<usize>() < 2 {
            return Ok(());
        }
        let mut wants = Vec::new();
        let mut taken = Vec::with_capacity(counts.len());
        for (run, &count) in self.runs.iter().zip(&counts) {
            let before = wants.len();
            let (index, numbers) = run.walk.want(count);
            wants.extend(numbers.map(|number| (*run.walk.group(), index.clone(), number)));
            taken.push(wants.len() - before);
        }
        // A damaged block is an error only when the scan reaches it.
        let Ok(blocks) = self.store.blocks(&wants, Fill::Low) else {
            return Ok(());
        };
        let mut blocks = blocks.into_iter();
        for (run, count) in self.runs.iter_mut().zip(taken) {
            run.walk.give(blocks.by_ref().take(count));
        }
        Ok(())
    }

    /// Whether no record of a run's further blocks is inside `until`, as far as its index says.
    fn is_behind(&self, run: &Run, until: Bound<&[u8]>) -> bool {
        let (Bound::Included(key) | Bound::Excluded(key)) = until else {
            return false;
        };
        if run.walk.is_over() {
            return false;
        }
        let (front, rest) = run.walk.edge();
        let edge = front.iter().chain(rest);
        match self.direction {
            Direction::Forward => edge.gt(key),
            Direction::Backward => edge.lt(key),
        }
    }

    /// Moves a run to its next record, which is in another block. Returns `false` at its end.
    fn load(&mut self, number: usize) -> Result<bool> {
        let store = self.store.clone();
        loop {
            let is_line = self.runs[number].is_line;
            if is_line {
                self.feed(number)?;
            }
            let run = &mut self.runs[number];
            let bounds = (as_slice(&self.lower), as_slice(&self.upper));
            let stream = self.stream.as_mut().filter(|_| is_line);
            let next = run.walk.next(&store, || bounds, stream)?;
            match next {
                Some((_, records)) if records.is_empty() => {}
                Some((block, records)) => {
                    run.block = Some(block);
                    run.records = records;
                    run.set_key(self.direction);
                    return Ok(true);
                }
                None => {
                    if !is_line {
                        return Ok(false);
                    }
                    self.pace = self.runs[number].walk.pace();
                    let next = match self.ahead.pop_front() {
                        Some(walk) => Some(walk),
                        None => {
                            let mut segments = self.runs[number].segments.clone();
                            let walk = self.next_walk(&mut segments)?;
                            self.runs[number].segments = segments;
                            walk
                        }
                    };
                    let Some(walk) = next else {
                        return Ok(false);
                    };
                    self.runs[number].walk = walk.at_pace(self.pace);
                }
            }
        }
    }

    /// Has a long scan read the line ahead.
    fn feed(&mut self, number: usize) -> Result<()> {
        let store = self.store.clone();
        if self.stream.is_none() {
            let walk = &self.runs[number].walk;
            if !walk.wants_stream() {
                return Ok(());
            }
            let passed = walk.pace().scan_bytes();
            self.stream = Stream::new(&store, Fill::Low, AHEAD_BYTES_MAX, passed);
        }
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        stream.ends_after(self.runs[number].walk.pace().rest());
        self.runs[number].walk.send(&store, stream)?;
        for walk in &mut self.ahead {
            walk.send(&store, stream)?;
        }
        let last = self.ahead.back().unwrap_or(&self.runs[number].walk);
        let mut is_sent = last.is_sent();
        while is_sent && self.stream.as_ref().is_some_and(Stream::has_room) {
            let mut segments = self.runs[number].segments.clone();
            let walk = self.next_walk(&mut segments)?;
            self.runs[number].segments = segments;
            let (Some(mut walk), Some(stream)) = (walk, &mut self.stream) else {
                break;
            };
            walk.send(&store, stream)?;
            is_sent = walk.is_sent();
            self.ahead.push_back(walk);
        }
        Ok(())
    }

    /// Finds the next record inside `until`. Reads nothing if `is_sparing`.
    fn find_next(&mut self, until: Bound<&[u8]>, is_sparing: bool) -> Result<Next> {
        loop {
            if self.runs.is_empty() {
                let Some(number) = self.peek_entry() else {
                    return Ok(Next::End);
                };
                if is_sparing {
                    return Ok(Next::Unread);
                }
                if let (
                    Direction::Forward,
                    Bound::Included(key) | Bound::Excluded(key),
                    Some((node, _)),
                ) = (self.direction, until, self.path.last())
                    && &node.inner.entries[number].bound[..] > key
                {
                    return Ok(Next::Reached);
                }
                self.next_leaf()?;
                continue;
            }
            let (mut number, mut is_any_behind) = (0, false);
            while number < self.runs.len() {
                let run = &self.runs[number];
                if !run.records.is_empty() {
                    number += 1;
                } else if self.is_behind(run, until) {
                    is_any_behind = true;
                    number += 1;
                } else if is_sparing && !self.runs[number].walk.take_cached(&self.store) {
                    if self.runs[number].walk.is_over()
                        && self.runs[number].segments.is_empty()
                        && self.ahead.is_empty()
                    {
                        self.runs.remove(number);
                        continue;
                    }
                    return Ok(Next::Unread);
                } else if self.load(number)? {
                    number += 1;
                } else {
                    self.runs.remove(number);
                }
            }
            if let Some(next) = self.choose(until) {
                return Ok(next);
            }
            if is_any_behind {
                return Ok(Next::Reached);
            }
        }
    }

    /// The run with the next record, newest first, and how many of its records come before those of
    /// the others. Older records of the same key are passed. `None` if no run has a record.
    fn choose(&mut self, until: Bound<&[u8]>) -> Option<Next> {
        let direction = self.direction;
        let comes_before = |a: &[u8], b: &[u8]| match direction {
            Direction::Forward => a < b,
            Direction::Backward => a > b,
        };
        let mut best: Option<usize> = None;
        for (number, run) in self.runs.iter().enumerate() {
            if !run.records.is_empty()
                && best.is_none_or(|best| comes_before(&run.key, &self.runs[best].key))
            {
                best = Some(number);
            }
        }
        let best = best?;
        let is_inside = match direction {
            Direction::Forward => lets_in_below(until, &self.runs[best].key),
            Direction::Backward => lets_in_above(until, &self.runs[best].key),
        };
        if !is_inside {
            return Some(Next::Reached);
        }
        let mut count = match until {
            Bound::Unbounded => self.runs[best].records.len(),
            Bound::Included(key) => self.runs[best].records_before(key, true, direction),
            Bound::Excluded(key) => self.runs[best].records_before(key, false, direction),
        };
        if self.runs.len() == 1 {
            return Some(Next::Records(best, count));
        }
        let mut limit: Option<usize> = None;
        for number in 0..self.runs.len() {
            if number == best || self.runs[number].records.is_empty() {
                continue;
            }
            if self.runs[number].key == self.runs[best].key {
                // An older record of the key. The one behind it may be in a block to be read.
                self.runs[number].pass(1, direction);
                if self.runs[number].records.is_empty() {
                    count = 1;
                    continue;
                }
            }
            let key = &self.runs[number].key;
            if limit.is_none_or(|limit| comes_before(key, &self.runs[limit].key)) {
                limit = Some(number);
            }
        }
        // A run whose next block is not read begins behind `until`, so it limits nothing.
        if let Some(limit) = limit {
            let before = self.runs[best].records_before(&self.runs[limit].key, false, direction);
            count = count.min(before);
        }
        Some(Next::Records(best, count.max(1)))
    }

    /// Appends up to `count` records of a run's block to the batch.
    fn take(&mut self, number: usize, count: usize, batch: &mut Batch) {
        let direction = self.direction;
        let run = &mut self.runs[number];
        let Some(block) = run.block.clone() else {
            return;
        };
        let first = run.at(direction);
        if batch.lends() && !batch.keys_only() && block.is_plain() {
            let lent = count.min(batch.room());
            batch.lend(&block, first, lent, direction);
            run.pass(lent, direction);
            self.deletes = 0;
            return;
        }
        let (prefix, bytes) = (block.prefix(), block.bytes());
        let word = block.prefix_word();
        let mut taken = 0;
        while taken < count && !batch.is_full() {
            let at = match direction {
                Direction::Forward => first + taken,
                Direction::Backward => first - taken,
            };
            let (place, _) = block.look(at);
            if !place.is_put() && !place.is_delete() {
                break;
            }
            taken += 1;
            if place.is_delete() {
                self.deletes += 1;
                continue;
            }
            if batch.is_empty() {
                self.passed += self.deletes;
            }
            self.deletes = 0;
            let suffix = place.suffix().len();
            let record = match batch.keys_only() {
                true => place.suffix(),
                false => place.suffix_and_value(),
            };
            batch.push_behind(prefix, word, &bytes[record], suffix);
        }
        run.pass(taken, direction);
    }

    /// Whether only `get` resolves the next record of a run: operands of merges, or a handle.
    fn is_unresolved(&self, run: usize) -> bool {
        let run = &self.runs[run];
        let block = run.block.as_ref().filter(|block| block.has_extended());
        block.is_some_and(|block| {
            let kind = block.kind(run.at(self.direction));
            !matches!(kind, MessageKind::Put | MessageKind::Delete)
        })
    }

    fn fill_batch(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        loop {
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            self.expected = batch.wanted();
            if self.expected >= usize::MAX / 2 {
                self.expected = 0;
            }
            match self.find_next(until, batch.spares_reads())? {
                Next::Records(run, _) if self.is_unresolved(run) => {
                    self.key.clone_from(&self.runs[run].key);
                    self.unresolved = Some(run);
                    return Ok(Filled::Unresolved);
                }
                Next::Records(run, count) => self.take(run, count, batch),
                Next::Reached => return Ok(Filled::Reached),
                Next::Unread => return Ok(Filled::Full),
                Next::End => return Ok(Filled::End),
            }
        }
    }
}

impl Scan for InPlaceScan {
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_done {
            return Ok(None);
        }
        loop {
            let found = self.find_next(Bound::Unbounded, false);
            let run = match found {
                Ok(Next::Records(run, _)) => run,
                Ok(_) => {
                    self.is_done = true;
                    return Ok(None);
                }
                Err(error) => {
                    self.is_done = true;
                    return Err(error);
                }
            };
            let direction = self.direction;
            let run = &mut self.runs[run];
            let (Some(block), at) = (run.block.clone(), run.at(direction)) else {
                return Ok(None);
            };
            std::mem::swap(&mut self.key, &mut run.key);
            run.pass(1, direction);
            // Of operands and handles, the key alone.
            let value = match block.message(at) {
                Message::Put(value) => Some(value),
                Message::Delete => None,
                Message::Merge(_)
                | Message::Stack(_)
                | Message::Separated(_)
                | Message::Expiring(_) => Some(&[][..]),
            };
            match value {
                Some(value) => {
                    self.value.clear();
                    self.value.extend_from_slice(value);
                    self.deletes = 0;
                    self.last.clear();
                    self.last.extend_from_slice(&self.key);
                    self.has_passed = true;
                    return Ok(Some((&self.key, &self.value)));
                }
                None => self.passed += 1,
            }
        }
    }

    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        if self.is_done {
            return Ok(Filled::End);
        }
        let before = batch.len();
        if batch.most() != usize::MAX {
            // Hardly any records are waiting, so all may be the line's.
            for run in &mut self.runs {
                let at_hand = run.records.len() + run.walk.ready_records();
                run.walk.ends_after(batch.most().saturating_sub(at_hand));
            }
        }
        let filled = self.fill_batch(until, batch);
        if batch.len() > before
            && let Some(last) = batch.last_key()
        {
            self.note_passed(last);
        }
        self.passed += std::mem::take(&mut self.deletes);
        self.is_done = matches!(filled, Ok(Filled::End) | Err(_));
        filled
    }

    fn unresolved(&self, key: &mut Vec<u8>) -> Option<&[u8]> {
        key.extend_from_slice(&self.key);
        let run = &self.runs[self.unresolved?];
        match run.block.as_ref()?.message(run.at(self.direction)) {
            Message::Separated(handle) => Some(handle),
            _ => None,
        }
    }

    fn skip(&mut self, key: &[u8]) {
        let direction = self.direction;
        let mut is_next = false;
        for run in &mut self.runs {
            if !run.records.is_empty() && run.key == key {
                run.pass(1, direction);
                is_next = true;
            }
        }
        if is_next {
            self.note_passed((key, &[]));
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let bound = match self.direction {
            Direction::Forward => &mut self.lower,
            Direction::Backward => &mut self.upper,
        };
        let is_passed = match &bound {
            Bound::Unbounded => false,
            Bound::Included(old) | Bound::Excluded(old) => match self.direction {
                Direction::Forward => key <= &old[..],
                Direction::Backward => key >= &old[..],
            },
        };
        let last = self.has_passed.then_some(&self.last[..]);
        let is_passed = is_passed
            || last.is_some_and(|last| match self.direction {
                Direction::Forward => key <= last,
                Direction::Backward => key >= last,
            });
        if self.is_done || is_passed {
            return Ok(());
        }
        // In the block that a single run is in, only the position changes. Other scans start anew,
        // unless they are there already.
        if let [run] = &mut self.runs[..]
            && !run.records.is_empty()
        {
            let before = run.records_before(key, false, self.direction);
            if before < run.records.len() {
                if before > 0 {
                    run.pass(before, self.direction);
                }
                return Ok(());
            }
        }
        let is_there = |run: &Run| match self.direction {
            Direction::Forward => &run.key[..] >= key,
            Direction::Backward => &run.key[..] <= key,
        };
        if !self.runs.is_empty()
            && self
                .runs
                .iter()
                .all(|run| !run.records.is_empty() && is_there(run))
        {
            return Ok(());
        }
        *bound = Bound::Included(key.to_vec());
        if is_empty(as_slice(&self.lower), as_slice(&self.upper)) {
            self.path.clear();
            self.leave_leaf();
            return Ok(());
        }
        self.start()
    }

    fn runs(&self) -> usize {
        self.runs_at_start
    }

    fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }
}
