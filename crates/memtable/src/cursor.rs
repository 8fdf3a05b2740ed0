//! Reading a memtable in key order, either way, beside its writers.
//!
//! A cursor keeps the way from the root to where it is: nodes, and in each the position of the
//! entry it took. Going on means to take the next entry by *position*, that is by key byte,
//! whatever became of the node meanwhile. As a node's path never changes and positions only
//! advance, no key comes twice or out of order; as a replaced node keeps all it had (see
//! `memtable`), no key is missed that was there when the cursor was placed. Keys that are inserted
//! while it stands may or may not be seen, until the next seek.
//!
//! Leaves are gathered ahead of what is shown, and prefetched: reading a large memtable in order
//! would otherwise wait for memory at every record (DESIGN §4: 43 against 246 ns a record). How far
//! ahead grows with the steps taken since the last seek, so that a point lookup or a short scan
//! fetches nothing in vain.

use std::fmt;
use terrapin_base::sync::Arc;
use terrapin_base::{Lsn, Message};

use crate::Memtable;
use crate::leaf::{LeafRef, VersionRef, Versions};
use crate::node::{self, BEFORE_ALL, BEHIND_ALL, Child, NodeRef, Stop};

/// Leaves gathered ahead at most.
const AHEAD: usize = 16;
/// How far ahead a version that does not lie with its leaf is fetched; its leaf has arrived by
/// then.
const NEWEST_AHEAD: usize = 4;

struct Frame<'a> {
    node: NodeRef<'a>,
    /// Of the entry taken last.
    position: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Forward,
    Backward,
}

/// A place in a memtable, or nowhere. What it shows borrows from the memtable, not from the cursor.
pub struct Cursor<'a> {
    memtable: &'a Memtable,
    after: Lsn,
    before: Lsn,
    current: Option<(LeafRef<'a>, VersionRef<'a>)>,
    /// The way to the last leaf gathered.
    way: Vec<Frame<'a>>,
    direction: Direction,
    /// Leaves beyond the current one in that direction, from `ahead_next` to `ahead_end`.
    ahead: [Option<LeafRef<'a>>; AHEAD],
    ahead_next: usize,
    ahead_end: usize,
    /// How many leaves to gather next time.
    eagerness: usize,
}

/// What a seek found out about a subtree.
enum Side<'a> {
    /// All of it lies before the key.
    Before(Child<'a>),
    /// All of it lies at or behind the key.
    Behind(Child<'a>),
    /// The way ends inside a node, between two of its entries.
    Between,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(memtable: &'a Memtable, after: Lsn, before: Lsn) -> Self {
        Cursor {
            memtable,
            after,
            before,
            current: None,
            way: Vec::new(),
            direction: Direction::Forward,
            ahead: [None; AHEAD],
            ahead_next: 0,
            ahead_end: 0,
            eagerness: 1,
        }
    }

    /// Goes to the first key at or behind `key`. O(key length).
    pub fn seek(&mut self, key: &[u8]) {
        self.direction = Direction::Forward;
        match self.descend(key) {
            Side::Before(_) | Side::Between => {}
            Side::Behind(child) => self.enter(child, BEFORE_ALL),
        }
        self.advance();
    }

    /// Goes to the last key before `key`. O(key length).
    pub fn seek_before(&mut self, key: &[u8]) {
        self.direction = Direction::Backward;
        match self.descend(key) {
            Side::Behind(_) | Side::Between => {}
            Side::Before(child) => self.enter(child, BEHIND_ALL),
        }
        self.advance();
    }

    /// Goes to the first key.
    pub fn seek_first(&mut self) {
        self.reset();
        self.direction = Direction::Forward;
        self.enter(self.memtable.root(), BEFORE_ALL);
        self.advance();
    }

    /// Goes to the last key.
    pub fn seek_last(&mut self) {
        self.reset();
        self.direction = Direction::Backward;
        self.enter(self.memtable.root(), BEHIND_ALL);
        self.advance();
    }

    /// Goes to the next key; nowhere behind the last. From nowhere it stays there.
    pub fn next(&mut self) {
        self.go(Direction::Forward);
    }

    /// Goes to the previous key; nowhere before the first. From nowhere it stays there.
    pub fn prev(&mut self) {
        self.go(Direction::Backward);
    }

    #[inline]
    fn go(&mut self, direction: Direction) {
        let Some((leaf, _)) = self.current else {
            return;
        };
        if self.direction == direction {
            self.advance();
            return;
        }
        match direction {
            // The first key behind the current one: seek to it and step over it.
            Direction::Forward => {
                self.seek(leaf.key());
                if self.key() == Some(leaf.key()) {
                    self.advance();
                }
            }
            Direction::Backward => self.seek_before(leaf.key()),
        }
    }

    /// Whether it stands on a key.
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.current.is_some()
    }

    /// The key it stands on.
    #[inline]
    #[must_use]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.current.map(|(leaf, _)| leaf.key())
    }

    /// What the version shown says.
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[inline]
    #[must_use]
    pub fn message(&self) -> Message<'a> {
        self.version().message()
    }

    /// Whether somebody read the version shown, or one before it, with [`Memtable::read`].
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[inline]
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.version().was_read()
    }

    /// The LSN of the version shown.
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[inline]
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.version().lsn()
    }

    /// The version shown and all older ones of its key, newest first. They may reach below the
    /// cursor's lower LSN bound.
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[must_use]
    pub fn versions(&self) -> Versions<'a> {
        Versions::from(self.version())
    }

    #[inline]
    fn version(&self) -> VersionRef<'a> {
        match self.current {
            Some((_, version)) => version,
            None => panic!("the cursor stands nowhere"),
        }
    }

    fn reset(&mut self) {
        self.current = None;
        self.way.clear();
        self.ahead_next = 0;
        self.ahead_end = 0;
        self.eagerness = 1;
    }

    /// Puts the start (or end) of a subtree on the way; a leaf goes to those ahead.
    fn enter(&mut self, child: Child<'a>, position: u16) {
        match child {
            Child::None => {}
            Child::Leaf(leaf) => {
                self.ahead[0] = Some(leaf);
                (self.ahead_next, self.ahead_end) = (0, 1);
            }
            Child::Node(node) => self.way.push(Frame { node, position }),
        }
    }

    /// Goes down towards `key` until a subtree lies on one side of it, and notes the way.
    fn descend(&mut self, key: &[u8]) -> Side<'a> {
        self.reset();
        let mut child = self.memtable.root();
        let mut at = 0;
        loop {
            let node = match child {
                Child::None => return Side::Between,
                Child::Leaf(leaf) if leaf.key() < key => return Side::Before(child),
                Child::Leaf(_) => return Side::Behind(child),
                Child::Node(node) => node,
            };
            let depth = node.depth();
            let common = node.common(key, at);
            match key.get(common) {
                // The key ends on the node's path, or where it branches.
                None => return Side::Behind(child),
                Some(&byte) if common < depth => {
                    let behind = node.path_byte(common) > byte;
                    return if behind {
                        Side::Behind(child)
                    } else {
                        Side::Before(child)
                    };
                }
                Some(&byte) => {
                    self.way.push(Frame {
                        node,
                        position: node::position(byte),
                    });
                    child = node.child(byte);
                    at = depth + 1;
                }
            }
        }
    }

    /// Goes to the next key in the cursor's direction that has a version to show.
    #[inline]
    fn advance(&mut self) {
        loop {
            if self.ahead_next == self.ahead_end {
                self.fill();
            }
            let Some(leaf) = self.ahead[..self.ahead_end]
                .get(self.ahead_next)
                .copied()
                .flatten()
            else {
                self.current = None;
                return;
            };
            self.ahead_next += 1;
            if let Some(Some(later)) =
                self.ahead[..self.ahead_end].get(self.ahead_next + NEWEST_AHEAD)
            {
                later.prefetch_newest();
            }
            if let Some(version) = leaf.newest(self.before)
                && version.lsn() >= self.after
            {
                self.current = Some((leaf, version));
                return;
            }
        }
    }

    /// Gathers leaves ahead.
    fn fill(&mut self) {
        let wanted = self.eagerness;
        self.eagerness = (wanted * 2).min(AHEAD);
        (self.ahead_next, self.ahead_end) = (0, 0);
        while self.ahead_end < wanted {
            let Some(frame) = self.way.last_mut() else {
                break;
            };
            let room = &mut self.ahead[self.ahead_end..wanted];
            let (count, position, stop) = match self.direction {
                Direction::Forward => frame.node.gather::<true>(frame.position, room),
                Direction::Backward => frame.node.gather::<false>(frame.position, room),
            };
            if wanted > 1 {
                room.iter()
                    .take(count)
                    .flatten()
                    .for_each(|leaf| leaf.prefetch());
            }
            self.ahead_end += count;
            frame.position = position;
            match stop {
                Stop::Full => {}
                Stop::End => {
                    self.way.pop();
                }
                Stop::Node(node) => {
                    let position = match self.direction {
                        Direction::Forward => BEFORE_ALL,
                        Direction::Backward => BEHIND_ALL,
                    };
                    self.way.push(Frame { node, position });
                }
            }
        }
    }
}

impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self
            .current
            .map(|(leaf, version)| (leaf.key(), version.lsn()));
        f.debug_struct("Cursor")
            .field("after", &self.after)
            .field("before", &self.before)
            .field("at", &at)
            .finish()
    }
}

/// A [`Cursor`] that keeps its memtable alive. What it shows borrows from the cursor.
pub struct OwnedCursor {
    /// Borrows from `memtable`, whose `Arc` keeps it in place; declared, hence dropped, before it.
    cursor: Cursor<'static>,
    memtable: Arc<Memtable>,
}

impl OwnedCursor {
    pub(crate) fn new(memtable: &Arc<Memtable>, after: Lsn, before: Lsn) -> Self {
        // SAFETY: the memtable lives at this address as long as the `Arc` beside the cursor does,
        // and nothing that the cursor shows leaves this struct with a longer life than a borrow of
        // it.
        let forever: &'static Memtable = unsafe { &*Arc::as_ptr(memtable) };
        OwnedCursor {
            cursor: Cursor::new(forever, after, before),
            memtable: memtable.clone(),
        }
    }

    /// The memtable it reads.
    #[must_use]
    pub fn memtable(&self) -> &Arc<Memtable> {
        &self.memtable
    }

    /// See [`Cursor::seek`].
    pub fn seek(&mut self, key: &[u8]) {
        self.cursor.seek(key);
    }

    /// See [`Cursor::seek_before`].
    pub fn seek_before(&mut self, key: &[u8]) {
        self.cursor.seek_before(key);
    }

    /// See [`Cursor::seek_first`].
    pub fn seek_first(&mut self) {
        self.cursor.seek_first();
    }

    /// See [`Cursor::seek_last`].
    pub fn seek_last(&mut self) {
        self.cursor.seek_last();
    }

    /// See [`Cursor::next`].
    #[inline]
    pub fn next(&mut self) {
        self.cursor.next();
    }

    /// See [`Cursor::prev`].
    #[inline]
    pub fn prev(&mut self) {
        self.cursor.prev();
    }

    /// See [`Cursor::is_valid`].
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.cursor.is_valid()
    }

    /// See [`Cursor::key`].
    #[inline]
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.cursor.key()
    }

    /// See [`Cursor::message`].
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[inline]
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        self.cursor.message()
    }

    /// See [`Cursor::was_read`].
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[inline]
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.cursor.was_read()
    }

    /// See [`Cursor::lsn`].
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[inline]
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.cursor.lsn()
    }

    /// See [`Cursor::versions`].
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[must_use]
    pub fn versions(&self) -> Versions<'_> {
        self.cursor.versions()
    }
}

impl OwnedCursor {
    /// As [`Cursor::versions`], for those who cannot borrow.
    ///
    /// # Panics
    /// If the cursor stands nowhere.
    #[must_use]
    pub fn versions_owned(&self) -> OwnedVersions {
        OwnedVersions {
            versions: self.cursor.versions(),
            memtable: self.memtable.clone(),
        }
    }
}

/// The versions of one key, newest first, and the memtable that they lie in. What it shows borrows
/// from it.
#[derive(Debug)]
pub struct OwnedVersions {
    /// Borrows from `memtable`, as in [`OwnedCursor`]; declared, hence dropped, before it.
    versions: Versions<'static>,
    #[allow(dead_code)] // keeps the versions in place
    memtable: Arc<Memtable>,
}

impl OwnedVersions {
    /// The newest version below a bound that was not shown yet. Bounds only descend. O(versions
    /// passed).
    pub fn below(&mut self, before: Lsn) -> Option<(Lsn, Message<'_>)> {
        self.versions.find(|(lsn, _)| *lsn < before)
    }
}

impl fmt::Debug for OwnedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)
    }
}
