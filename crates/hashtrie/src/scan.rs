//! A scan: the leaves in the order of hashes, and in each leaf a merge of its runs.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{Message, Result};
use terrapin_pages::PageStore;
use terrapin_pages::group::GroupRef;
use terrapin_runs::bounds::{as_slice, is_empty, lets_in_above, lets_in_below};
use terrapin_runs::cursor::GroupCursor;
use terrapin_runs::walk::ReadAhead;
use terrapin_structure::{Batch, Direction, Filled, KeyBounds, Scan};

use crate::digits::{first_key, prefix_of};
use crate::node::Loaded;
use crate::version::TrieVersion;

/// A run of the current leaf.
struct Run {
    /// The groups that are not reached, in key order.
    groups: VecDeque<GroupRef>,
    cursor: Option<GroupCursor>,
    /// Whether the cursor's record is passed. The cursor moves when its next record is needed,
    /// since that may read.
    is_passed: bool,
}

impl Run {
    fn key(&self) -> Option<&[u8]> {
        self.cursor.as_ref().and_then(GroupCursor::current_key)
    }

    /// Whether its next record needs no read.
    fn is_ready(&self) -> bool {
        let cursor = self.cursor.as_ref();
        cursor.is_some_and(|cursor| match self.is_passed {
            true => cursor.has_next_at_hand(),
            false => cursor.current_key().is_some(),
        })
    }

    /// Moves to the next record that is not passed. Returns `false` at the end.
    fn load(
        &mut self,
        store: &Arc<PageStore>,
        bounds: KeyBounds<'_>,
        direction: Direction,
    ) -> Result<bool> {
        loop {
            match &mut self.cursor {
                Some(cursor) => {
                    if std::mem::take(&mut self.is_passed) {
                        cursor.step()?;
                    }
                    if cursor.current_key().is_some() {
                        return Ok(true);
                    }
                    self.cursor = None;
                }
                None => {
                    let group = match direction {
                        Direction::Forward => self.groups.pop_front(),
                        Direction::Backward => self.groups.pop_back(),
                    };
                    let Some(group) = group else {
                        return Ok(false);
                    };
                    let ahead = ReadAhead::SCAN;
                    let mut cursor = GroupCursor::prepare(store, &group, bounds, direction, ahead)?;
                    cursor.start()?;
                    self.cursor = Some(cursor);
                }
            }
        }
    }
}

/// A scan over one version.
pub(crate) struct TrieScan {
    store: Arc<PageStore>,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    root: Option<Arc<Loaded>>,
    /// The nodes down to the one above the current leaf, and their children to come.
    path: Vec<(Arc<Loaded>, Range<usize>)>,
    /// The runs of the leaf that are not over, newest first.
    runs: Vec<Run>,
    runs_at_start: usize,
    passed: u64,
    /// Deletes passed since the last record that was returned.
    deletes: u64,
    is_done: bool,
    /// The record that [`Scan::next`] returned, or the last one that the scan passed.
    key: Vec<u8>,
    value: Vec<u8>,
    has_passed: bool,
    /// The key that only a get resolves.
    unresolved: Vec<u8>,
    /// The handle of its value, if it has one and no operands.
    handle: Option<Vec<u8>>,
}

/// What comes next in a scan.
enum Next {
    /// A record of this run.
    Record(usize),
    /// Nothing inside the bound.
    Reached,
    /// A read would be needed, but the caller did not want one.
    Unread,
    /// Nothing.
    End,
}

fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
    }
}

/// The number of a prefix that a key begins with: a key shorter than a prefix comes before all
/// prefixes that begin with it.
fn floor(key: &[u8]) -> u64 {
    let mut padded = [0; 5];
    let bytes = key.len().min(5);
    padded[..bytes].copy_from_slice(&key[..bytes]);
    prefix_of(&padded).unwrap_or(0)
}

pub(crate) fn children_inside(node: &Loaded, (lower, upper): KeyBounds<'_>) -> Range<usize> {
    let own = &node.node;
    let number = |key: &[u8]| {
        let prefix = floor(key).clamp(own.stretch.lo(), own.stretch.hi() - 1);
        own.stretch.child_of(own.fanout, prefix)
    };
    let is_above = |key: &[u8]| floor(key) < own.stretch.lo();
    let is_behind = |key: &[u8]| floor(key) >= own.stretch.hi();
    if key_of(lower).is_some_and(is_behind) || key_of(upper).is_some_and(is_above) {
        return 0..0;
    }
    let first = key_of(lower).map_or(0, number);
    first..key_of(upper).map_or(own.children.len(), |key| number(key) + 1)
}

impl TrieScan {
    /// A scan at its start. It reads nodes.
    pub(crate) fn begin(
        version: &TrieVersion,
        bounds: KeyBounds<'_>,
        direction: Direction,
    ) -> Result<Self> {
        let root = match is_empty(bounds.0, bounds.1) {
            true => None,
            false => version.root_node()?,
        };
        let mut scan = TrieScan {
            store: version.store.clone(),
            direction,
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            root,
            path: Vec::new(),
            runs: Vec::new(),
            runs_at_start: 0,
            passed: 0,
            deletes: 0,
            is_done: false,
            key: Vec::new(),
            value: Vec::new(),
            has_passed: false,
            unresolved: Vec::new(),
            handle: None,
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
        self.runs.clear();
        if let Some(root) = self.root.clone() {
            let children = children_inside(&root, self.bounds());
            self.path.push((root, children));
            self.next_leaf()?;
        }
        Ok(())
    }

    /// The number of the next child of the lowest node of the path; `None` at the end.
    fn peek_child(&mut self) -> Option<usize> {
        loop {
            let (_, children) = self.path.last()?;
            if !children.is_empty() {
                return Some(match self.direction {
                    Direction::Forward => children.start,
                    Direction::Backward => children.end - 1,
                });
            }
            self.path.pop();
        }
    }

    /// Opens the next leaf. Returns `false` behind the last one.
    fn next_leaf(&mut self) -> Result<bool> {
        loop {
            let Some(number) = self.peek_child() else {
                return Ok(false);
            };
            let Some((node, children)) = self.path.last_mut() else {
                return Ok(false);
            };
            match self.direction {
                Direction::Forward => children.start += 1,
                Direction::Backward => children.end -= 1,
            }
            let node = node.clone();
            if let Some(child) = node.child(&self.store, number)? {
                let children = children_inside(&child, self.bounds());
                self.path.push((child, children));
            } else if let Some(leaf) = node.leaf(number) {
                let (lower, upper) = self.bounds();
                let lo = key_of(lower).map_or(0, floor);
                let hi = key_of(upper).map_or(u64::MAX, floor);
                let run = |run: &crate::format::RunRef| Run {
                    groups: run
                        .groups
                        .iter()
                        .filter(|part| part.prefixes.1 >= lo && part.prefixes.0 <= hi)
                        .map(|part| part.group)
                        .collect(),
                    cursor: None,
                    is_passed: false,
                };
                self.runs = leaf.leaf.runs.iter().map(run).collect();
                self.runs.retain(|run| !run.groups.is_empty());
                return Ok(true);
            }
        }
    }

    /// Finds the next record inside `until`. Reads nothing if `is_sparing`.
    fn find_next(&mut self, until: Bound<&[u8]>, is_sparing: bool) -> Result<Next> {
        loop {
            if self.runs.is_empty() {
                let Some(number) = self.peek_child() else {
                    return Ok(Next::End);
                };
                if is_sparing {
                    return Ok(Next::Unread);
                }
                if let (Direction::Forward, Some(key), Some((node, _))) =
                    (self.direction, key_of(until), self.path.last())
                    && first_key(node.stretch_of(number).lo())[..] > *key
                {
                    return Ok(Next::Reached);
                }
                self.next_leaf()?;
                continue;
            }
            if is_sparing && !self.runs.iter().all(Run::is_ready) {
                return Ok(Next::Unread);
            }
            let (store, direction) = (&self.store, self.direction);
            let bounds = (as_slice(&self.lower), as_slice(&self.upper));
            let mut at = 0;
            while at < self.runs.len() {
                match self.runs[at].load(store, bounds, direction)? {
                    true => at += 1,
                    false => {
                        self.runs.remove(at);
                    }
                }
            }
            if let Some(best) = self.choose() {
                let key = self.runs[best].key().unwrap_or_default();
                let is_inside = match direction {
                    Direction::Forward => lets_in_below(until, key),
                    Direction::Backward => lets_in_above(until, key),
                };
                return Ok(match is_inside {
                    true => Next::Record(best),
                    false => Next::Reached,
                });
            }
        }
    }

    /// The newest run with the next key. All runs are at a record.
    fn choose(&self) -> Option<usize> {
        let mut best: Option<(usize, &[u8])> = None;
        for (number, run) in self.runs.iter().enumerate() {
            let key = run.key()?;
            let comes_before = best.is_none_or(|(_, least)| match self.direction {
                Direction::Forward => key < least,
                Direction::Backward => key > least,
            });
            if comes_before {
                best = Some((number, key));
            }
        }
        best.map(|(number, _)| number)
    }

    /// Passes the record of a run, and the older ones of its key. The key is in `self.key` then.
    fn pass(&mut self, best: usize) {
        self.key.clear();
        if let Some(key) = self.runs[best].key() {
            self.key.extend_from_slice(key);
        }
        for run in &mut self.runs {
            let is_same = run.key() == Some(&self.key[..]);
            run.is_passed |= is_same;
        }
        self.has_passed = true;
    }

    fn message(&self, run: usize) -> Message<'_> {
        let cursor = self.runs[run].cursor.as_ref();
        cursor.map_or(Message::Delete, GroupCursor::current_message)
    }

    fn fill_batch(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        loop {
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            let best = match self.find_next(until, batch.spares_reads())? {
                Next::Record(best) => best,
                Next::Reached => return Ok(Filled::Reached),
                Next::Unread => return Ok(Filled::Full),
                Next::End => return Ok(Filled::End),
            };
            let key = self.runs[best].key().unwrap_or_default();
            match self.message(best) {
                Message::Put(value) => {
                    let is_first = batch.is_empty();
                    let value = if batch.keys_only() { &[] } else { value };
                    batch.push(key, value, 0);
                    let deletes = std::mem::take(&mut self.deletes);
                    self.passed += if is_first { deletes } else { 0 };
                }
                Message::Delete => self.deletes += 1,
                message @ (Message::Merge(_)
                | Message::Stack(_)
                | Message::Separated(_)
                | Message::Expiring(_)) => {
                    let handle = match message {
                        Message::Separated(handle) => Some(handle.to_vec()),
                        _ => None,
                    };
                    let key = key.to_vec();
                    (self.unresolved, self.handle) = (key, handle);
                    return Ok(Filled::Unresolved);
                }
            }
            self.pass(best);
        }
    }
}

impl Scan for TrieScan {
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_done {
            return Ok(None);
        }
        loop {
            let best = match self.find_next(Bound::Unbounded, false) {
                Ok(Next::Record(best)) => best,
                Ok(_) => {
                    self.is_done = true;
                    return Ok(None);
                }
                Err(error) => {
                    self.is_done = true;
                    return Err(error);
                }
            };
            let mut value = std::mem::take(&mut self.value);
            value.clear();
            // Of operands and handles, the key alone.
            let is_record = match self.message(best) {
                Message::Delete => false,
                Message::Put(bytes) => {
                    value.extend_from_slice(bytes);
                    true
                }
                Message::Merge(_)
                | Message::Stack(_)
                | Message::Separated(_)
                | Message::Expiring(_) => true,
            };
            self.value = value;
            self.pass(best);
            match is_record {
                true => {
                    self.deletes = 0;
                    return Ok(Some((&self.key, &self.value)));
                }
                false => self.passed += 1,
            }
        }
    }

    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        if self.is_done {
            return Ok(Filled::End);
        }
        let filled = self.fill_batch(until, batch);
        self.passed += std::mem::take(&mut self.deletes);
        self.is_done = matches!(filled, Ok(Filled::End) | Err(_));
        filled
    }

    fn unresolved(&self, key: &mut Vec<u8>) -> Option<&[u8]> {
        key.extend_from_slice(&self.unresolved);
        self.handle.as_deref()
    }

    fn skip(&mut self, key: &[u8]) {
        let at = self
            .runs
            .iter()
            .position(|run| run.key() == Some(key) && !run.is_passed);
        if let Some(at) = at {
            self.pass(at);
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let bound = match self.direction {
            Direction::Forward => as_slice(&self.lower),
            Direction::Backward => as_slice(&self.upper),
        };
        let last = self.has_passed.then_some(&self.key[..]);
        let is_passed = key_of(bound)
            .into_iter()
            .chain(last)
            .any(|place| match self.direction {
                Direction::Forward => key <= place,
                Direction::Backward => key >= place,
            });
        if self.is_done || is_passed {
            return Ok(());
        }
        let is_there = |run: &Run| {
            !run.is_passed
                && run.key().is_some_and(|own| match self.direction {
                    Direction::Forward => own >= key,
                    Direction::Backward => own <= key,
                })
        };
        if !self.runs.is_empty() && self.runs.iter().all(is_there) {
            return Ok(());
        }
        match self.direction {
            Direction::Forward => self.lower = Bound::Included(key.to_vec()),
            Direction::Backward => self.upper = Bound::Included(key.to_vec()),
        }
        if is_empty(as_slice(&self.lower), as_slice(&self.upper)) {
            self.path.clear();
            self.runs.clear();
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
