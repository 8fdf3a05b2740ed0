//! Cursors: reading a memtable in key order, in both directions, while writers go on.
//!
//! A cursor keeps the way from the root to its position: the nodes, and for each the position of
//! the entry it took. It goes on by taking the next entry by *position*, that is by key byte,
//! however the node has changed meanwhile. The path of a node never changes and positions only
//! advance, so no key comes twice or out of order. A replaced node keeps all its entries (see
//! `memtable`), so the cursor misses no key that was there when it was placed. A key inserted later
//! may or may not be seen until the next seek.
//!
//! The cursor gathers leaves ahead of its position and prefetches them. Without this, each record
//! of a large memtable waits for memory: 246 ns a record instead of 43. The number of leaves ahead
//! grows with the steps since the last seek. So point lookups and short scans prefetch nothing
//! needlessly.

use std::fmt;
use terrapin_base::sync::Arc;
use terrapin_base::{Fold, Lsn, Message, Result};

use crate::Memtable;
use crate::fragments::Tree;
use crate::leaf::{LeafRef, VersionRef, Versions};
use crate::node::{self, BEFORE_ALL, BEHIND_ALL, Child, NodeRef, Stop};

/// Most leaves gathered ahead.
const AHEAD: usize = 16;
/// The distance at which a version that is not next to its leaf is prefetched. By then the leaf
/// itself is in the cache.
const NEWEST_AHEAD: usize = 4;

struct Frame<'a> {
    node: NodeRef<'a>,
    /// The position of the entry taken last.
    position: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Forward,
    Backward,
}

/// A position in a memtable, or nowhere. Results borrow from the memtable, not from the cursor.
pub struct Cursor<'a> {
    memtable: &'a Memtable,
    after: Lsn,
    before: Lsn,
    /// The range deletes of the memtable, if there are any.
    fragments: Option<Arc<Tree>>,
    current: Option<(LeafRef<'a>, VersionRef<'a>)>,
    /// The way to the last leaf gathered.
    way: Vec<Frame<'a>>,
    direction: Direction,
    /// Leaves beyond the current one in the cursor's direction, from `ahead_next` to `ahead_end`.
    ahead: [Option<LeafRef<'a>>; AHEAD],
    ahead_next: usize,
    ahead_end: usize,
    /// Number of leaves to gather next time.
    eagerness: usize,
}

/// Where a subtree is, relative to the key of a seek.
enum Side<'a> {
    /// The whole subtree is before the key.
    Before(Child<'a>),
    /// The whole subtree is at or behind the key.
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
            fragments: memtable.fragments(),
            current: None,
            way: Vec::new(),
            direction: Direction::Forward,
            ahead: [None; AHEAD],
            ahead_next: 0,
            ahead_end: 0,
            eagerness: 1,
        }
    }

    /// Goes to the first key at or above `key`. O(key length).
    pub fn seek(&mut self, key: &[u8]) {
        self.direction = Direction::Forward;
        match self.descend(key) {
            Side::Before(_) | Side::Between => {}
            Side::Behind(child) => self.enter(child, BEFORE_ALL),
        }
        self.advance();
    }

    /// Goes to the last key below `key`. O(key length).
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

    /// Goes to the next key, or to nowhere behind the last key. A cursor that is nowhere stays
    /// there.
    pub fn next(&mut self) {
        self.go(Direction::Forward);
    }

    /// Goes to the previous key, or to nowhere before the first key. A cursor that is nowhere stays
    /// there.
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
            // Seek to the current key and step over it.
            Direction::Forward => {
                self.seek(leaf.key());
                if self.key() == Some(leaf.key()) {
                    self.advance();
                }
            }
            Direction::Backward => self.seek_before(leaf.key()),
        }
    }

    /// Whether the cursor is at a key.
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.current.is_some()
    }

    /// The current key; `None` if the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.current.map(|(leaf, _)| leaf.key())
    }

    /// The message of the current version, or a delete if a newer range delete hides the version.
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn message(&self) -> Message<'a> {
        match &self.fragments {
            None => self.version().message(),
            Some(fragments) => self.message_under(fragments),
        }
    }

    /// Adds the current version and the older ones of its key to a fold, newest first, down to the
    /// first that needs nothing older, or to the delete of a range. Returns whether nothing older
    /// counts. O(operands that nobody [remembered](Memtable::remember)).
    ///
    /// # Errors
    ///
    /// Those of [`Fold::push`].
    ///
    /// # Panics
    /// If the cursor is nowhere.
    pub fn fold(&self, fold: &mut Fold) -> Result<bool> {
        let key = self.key().unwrap_or_default();
        let fragments = self.fragments.as_ref();
        let deleted = fragments.and_then(|fragments| fragments.newest_over(key, self.before));
        Ok(self.versions().fold(deleted, None, fold)?.is_based)
    }

    #[cold]
    fn message_under(&self, fragments: &Tree) -> Message<'a> {
        let version = self.version();
        let key = self.key().unwrap_or_default();
        match fragments.newest_over(key, self.before) {
            Some(deleted) if deleted > version.lsn() => Message::Delete,
            _ => version.message(),
        }
    }

    /// Whether the current version, or an older one of the key, was read with [`Memtable::read`].
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.version().was_read()
    }

    /// The LSN of the current version, also where a range delete hides it.
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.version().lsn()
    }

    /// The current version and all older ones of its key, newest first. They may be below the
    /// cursor's lower LSN bound, and hidden by range deletes.
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[must_use]
    pub fn versions(&self) -> Versions<'a> {
        Versions::from(self.version())
    }

    #[inline]
    fn version(&self) -> VersionRef<'a> {
        match self.current {
            Some((_, version)) => version,
            None => panic!("the cursor is nowhere"),
        }
    }

    fn reset(&mut self) {
        self.current = None;
        self.way.clear();
        self.ahead_next = 0;
        self.ahead_end = 0;
        self.eagerness = 1;
    }

    /// Puts the start (or end) of a subtree on the way. A leaf becomes the first leaf ahead.
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

    /// Goes down towards `key` until a whole subtree is on one side of it, and records the way.
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
                // The key ends on the node's path, or where the node branches.
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

    /// Goes to the next key in the cursor's direction that has a visible version.
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

/// A [`Cursor`] that keeps its memtable alive. Results borrow from the cursor.
pub struct OwnedCursor {
    /// Borrows from `memtable`, whose `Arc` keeps it at its address. Declared before it, hence
    /// dropped before it.
    cursor: Cursor<'static>,
    memtable: Arc<Memtable>,
}

impl OwnedCursor {
    pub(crate) fn new(memtable: &Arc<Memtable>, after: Lsn, before: Lsn) -> Self {
        // SAFETY: the `Arc` next to the cursor keeps the memtable at this address. No result of the
        // cursor leaves this struct with a lifetime longer than a borrow of the struct.
        let forever: &'static Memtable = unsafe { &*Arc::as_ptr(memtable) };
        OwnedCursor {
            cursor: Cursor::new(forever, after, before),
            memtable: memtable.clone(),
        }
    }

    /// Goes to the first key at or above `key`. O(key length).
    pub fn seek(&mut self, key: &[u8]) {
        self.cursor.seek(key);
    }

    /// Goes to the first key.
    pub fn seek_first(&mut self) {
        self.cursor.seek_first();
    }

    /// Goes to the next key, or to nowhere behind the last key.
    #[inline]
    pub fn next(&mut self) {
        self.cursor.next();
    }

    /// The current key; `None` if the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.cursor.key()
    }

    /// The message of the current version.
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        self.cursor.message()
    }

    /// Whether the current version, or an older one of the key, was read with [`Memtable::read`].
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.cursor.was_read()
    }

    /// The current version and all older ones of its key, newest first, hidden ones as well.
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[must_use]
    pub fn versions(&self) -> Versions<'_> {
        self.cursor.versions()
    }
}

impl OwnedCursor {
    /// As [`Cursor::fold`].
    ///
    /// # Errors
    ///
    /// Those of [`Fold::push`].
    ///
    /// # Panics
    /// If the cursor is nowhere.
    pub fn fold(&self, fold: &mut Fold) -> Result<bool> {
        self.cursor.fold(fold)
    }

    /// The current version and all older ones of its key, newest first, in a value that keeps the
    /// memtable alive.
    ///
    /// # Panics
    /// If the cursor is nowhere.
    #[must_use]
    pub fn versions_owned(&self) -> OwnedVersions {
        OwnedVersions {
            versions: self.cursor.versions(),
            memtable: self.memtable.clone(),
        }
    }
}

/// The versions of one key, newest first, and the memtable that holds them. Results borrow from
/// this value.
#[derive(Debug)]
pub struct OwnedVersions {
    /// Borrows from `memtable`, as in [`OwnedCursor`]. Declared before it, hence dropped before it.
    versions: Versions<'static>,
    #[allow(dead_code)] // keeps the versions in place
    memtable: Arc<Memtable>,
}

impl OwnedVersions {
    /// Returns the newest version below a bound that was not returned before, and all that are
    /// older. Bounds must not grow from call to call. O(versions passed).
    pub fn below(&mut self, before: Lsn) -> Option<Versions<'_>> {
        loop {
            let rest = self.versions.clone();
            let (lsn, _) = self.versions.next()?;
            if lsn < before {
                return Some(rest);
            }
        }
    }
}

impl fmt::Debug for OwnedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)
    }
}
