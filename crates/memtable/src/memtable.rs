//! The memtable: insert and get on the tree of `node`. Readers and writers run concurrently.
//!
//! The protocol is optimistic lock coupling after Leis et al., "The ART of Practical
//! Synchronization" (2016, §3). It is simpler here because a memtable only grows. No key is
//! removed, no memory is reused, and the path of a node never changes (`node`).
//!
//! *Readers* validate one node at a time (`lock`), never the node above, and never restart. This is
//! correct for the following reason. A reader reaches node n by a link that was in place at some
//! moment t of the read. After t, n keeps every key on its path that was there at t, until a larger
//! copy replaces n. Then n stays as it was, with all these keys. So each node shows the reader a
//! state that is not older than t. The read finds every key that was there before it began. A
//! replaced node lacks only keys inserted during the read, and those may be ordered after the read.
//! A loaded link is always safe to follow.
//!
//! *Writers* go down like readers. To change a node they lock it at the version under which they
//! read it. To replace a node they lock the node above too. They replace a node by a larger copy,
//! or put a new node above it where paths part. The version of the node above proves that its link
//! still leads to a live node. Writers try locks and never wait for them. If a lock fails or a node
//! was replaced, the writer restarts at the root. Allocations may fault memory in, so they come
//! before the locks.
//!
//! A new *version* of a key that is there already changes only the key's chain (`leaf`).
//!
//! *Range deletes* are beside the tree (`fragments`). A read takes the newest of the key's version
//! and of the fragments that cover the key. A memtable that never got a fragment pays one test.

use std::fmt;

use terrapin_base::sync::{Arc, AtomicBool, Backoff, Mutex, OnceLock, Ordering, atomic::AtomicPtr};
use terrapin_base::{Budget, Charge, Fold, KEY_BYTES_MAX, Lsn, Message, Purpose, Result, mutant};

use crate::arena::{Arena, Count, Entered};
use crate::bytes;
use crate::chunk::Pool;
use crate::cursor::{Cursor, OwnedCursor};
use crate::fragments::{Fragments, Tree};
use crate::leaf::{self, Added, Folded, LeafRef, ValueOrFold, VersionRef, Versions};
use crate::lock::{NodeGuard, Version, VersionLock};
use crate::node::{self, Child, NodeRef};

/// An ordered, versioned, concurrent map in memory. The crate's page has an example.
pub struct Memtable {
    /// The topmost link and its lock. They act like a node with one child.
    root: AtomicPtr<u8>,
    root_lock: VersionLock,
    arena: Arena,
    /// Made at the first range delete.
    ranges: OnceLock<Box<Ranges>>,
    /// Set before the first version with operands enters.
    has_operands: AtomicBool,
}

/// The range deletes of a memtable, and the charge for their memory.
struct Ranges {
    fragments: Fragments,
    charge: Mutex<Charge>,
}

/// A link as a writer read it, with the lock and the version of the node that holds it.
struct Edge<'a> {
    link: &'a AtomicPtr<u8>,
    lock: &'a VersionLock,
    version: Version,
}

impl<'a> Edge<'a> {
    fn try_lock(&self) -> Option<NodeGuard<'a>> {
        self.lock.try_lock(self.version)
    }
}

/// An insert in progress.
struct Insert<'a, 'k> {
    entered: Entered<'a>,
    key: &'k [u8],
    lsn: Lsn,
    message: Message<'k>,
    /// The new leaf and its version, once an attempt needed them.
    fresh: Option<(LeafRef<'a>, VersionRef<'a>)>,
    /// Whether the key has many operands that no memo holds.
    is_long: bool,
}

/// Operands of a key after which the first memo is due. Later ones are due after twice as many,
/// four times as many, and so on, as long as there is none. An operand that grows gets memos of
/// doubling length so.
const OPERANDS_WITHOUT_MEMO: usize = 64;

/// The tree changed during an attempt. The insert must restart.
struct Conflict;

impl Memtable {
    /// Makes an empty memtable. Its memory is charged to `budget` as
    /// [`Purpose::Memtable`](terrapin_base::Purpose::Memtable) until it is dropped. An empty
    /// memtable takes none, and the first insert takes 1.5 KiB.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self::with_arena(Arena::new(budget, None, false))
    }

    /// Makes an empty memtable that takes chunks from a pool first, and gives its own chunks to the
    /// pool when it is dropped.
    #[must_use]
    pub fn with_pool(budget: &Arc<Budget>, pool: &Arc<Pool>) -> Self {
        Self::with_arena(Arena::new(budget, Some(pool.clone()), false))
    }

    /// Makes a memtable in which each piece is an allocation of its own. It is slow, but a memory
    /// checker sees every overrun.
    #[doc(hidden)]
    #[must_use]
    pub fn new_for_memory_checkers(budget: &Arc<Budget>) -> Self {
        Self::with_arena(Arena::new(budget, None, true))
    }

    fn with_arena(arena: Arena) -> Self {
        Memtable {
            root: AtomicPtr::default(),
            root_lock: VersionLock::new(),
            arena,
            ranges: OnceLock::new(),
            has_operands: AtomicBool::new(false),
        }
    }

    /// Adds a version of a key, concurrently with other threads. It replaces a version of the same
    /// LSN. Otherwise LSNs may come in any order. O(key length + newer versions of the key).
    ///
    /// Returns whether the key has many operands that a read would fold one by one. Once the LSN is
    /// visible, the caller is to [fold](Memtable::fold) and [remember](Memtable::remember) them.
    ///
    /// # Panics
    /// If the key is longer than 65,535 bytes or the payload longer than 256 MiB - 1. The process
    /// aborts if the system has no memory, as for any allocation.
    pub fn insert(&self, key: &[u8], lsn: Lsn, message: Message<'_>) -> bool {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        assert!(
            message.value_bytes() <= leaf::VALUE_BYTES_MAX,
            "a value of {} bytes",
            message.value_bytes()
        );
        if message.has_operands() {
            self.has_operands.store(true, Ordering::Release);
        }
        let mut insert = Insert {
            entered: self.arena.enter(),
            key,
            lsn,
            message,
            fresh: None,
            is_long: false,
        };
        let mut backoff = Backoff::default();
        while insert.attempt(self).is_err() {
            backoff.pause();
        }
        insert.is_long
    }

    /// Deletes all keys from `lo` to below `hi` whose messages are older than the LSN, concurrently
    /// with other threads. `None` is the end of all keys. O(log range deletes) expected.
    pub fn insert_range(&self, lo: &[u8], hi: Option<&[u8]>, lsn: Lsn) {
        let ranges = self.ranges.get_or_init(|| {
            Box::new(Ranges {
                fragments: Fragments::default(),
                charge: Mutex::new(self.arena.budget().charge(Purpose::Memtable, 0)),
            })
        });
        ranges.fragments.insert(lo, hi, lsn);
        let mut charge = ranges.charge.lock();
        charge.resize(ranges.fragments.tree().memory_bytes());
    }

    /// Whether there ever was a range delete. Those that enter later do not count.
    #[must_use]
    #[inline]
    pub fn has_range_deletes(&self) -> bool {
        self.ranges.get().is_some()
    }

    /// The range deletes, if there ever was one. Those that enter later are missing.
    #[must_use]
    #[inline]
    pub fn fragments(&self) -> Option<Arc<Tree>> {
        self.ranges.get().map(|ranges| ranges.fragments.tree())
    }

    /// Bytes of memory of the range deletes.
    fn range_bytes(&self) -> u64 {
        self.fragments().map_or(0, |tree| tree.memory_bytes())
    }

    /// What counts for a key, given its newest version below `before`: that version, or a delete by
    /// a newer fragment.
    #[cold]
    fn under<'a>(
        ranges: &Ranges,
        key: &[u8],
        before: Lsn,
        found: Option<(Lsn, Message<'a>)>,
    ) -> Option<(Lsn, Message<'a>)> {
        let covered = ranges.fragments.tree().newest_over(key, before);
        match (covered, found) {
            (Some(deleted), Some((lsn, _)))
                if lsn < deleted || mutant::active("range-deletes-hide-newer-puts") =>
            {
                Some((deleted, Message::Delete))
            }
            (Some(deleted), None) => Some((deleted, Message::Delete)),
            (_, found) => found,
        }
    }

    /// Returns the newest message for a key below the LSN `before`: a version of the key, or the
    /// delete of a range. O(key length + versions at or above `before`); allocates nothing.
    #[must_use]
    pub fn get(&self, key: &[u8], before: Lsn) -> Option<Message<'_>> {
        self.get_versioned(key, before).map(|(_, message)| message)
    }

    /// Like [`Self::get`], and marks the version as read. [`Cursor::was_read`] reports the mark,
    /// and later versions of the key inherit it.
    #[must_use]
    #[inline(always)] // gets ask two memtables one after the other
    pub fn read(&self, key: &[u8], before: Lsn) -> Option<Message<'_>> {
        let newest = self.leaf(key).and_then(|leaf| leaf.newest(before));
        if let Some(version) = newest {
            version.mark_read();
        }
        match self.ranges.get() {
            None => newest.map(VersionRef::message),
            Some(ranges) => {
                let found = newest.map(|version| (version.lsn(), version.message()));
                Self::under(ranges, key, before, found).map(|(_, message)| message)
            }
        }
    }

    /// Adds the messages of a key below the LSN `before` to a fold, newest first, down to the first
    /// that needs nothing older, or to the delete of a range. `None` if there is no message. Uses
    /// what was [remembered](Memtable::remember) without a basis, or with this one. O(key length +
    /// operands that nobody remembered).
    ///
    /// # Errors
    ///
    /// Those of [`Fold::push`].
    pub fn fold(
        &self,
        key: &[u8],
        before: Lsn,
        basis: Option<u32>,
        fold: &mut Fold,
    ) -> Result<Option<Folded<'_>>> {
        match self.newest(key, before) {
            None => Ok(None),
            Some((versions, deleted)) => versions.fold(deleted, basis, fold).map(Some),
        }
    }

    /// Like [`Self::fold`], but adds nothing to the fold if what was remembered last is the key's
    /// value, or that it has none.
    ///
    /// # Errors
    ///
    /// Those of [`Fold::push`].
    pub fn value_or_fold(
        &self,
        key: &[u8],
        before: Lsn,
        basis: Option<u32>,
        fold: &mut Fold,
    ) -> Result<Option<ValueOrFold<'_>>> {
        let Some((versions, deleted)) = self.newest(key, before) else {
            return Ok(None);
        };
        if let Some(value) = versions.remembered(deleted, basis) {
            return Ok(Some(ValueOrFold::Value(value)));
        }
        let folded = versions.fold(deleted, basis, fold)?;
        Ok(Some(ValueOrFold::Fold(folded)))
    }

    /// The versions of a key below `before`, and the newest range delete over it.
    fn newest(&self, key: &[u8], before: Lsn) -> Option<(Versions<'_>, Option<Lsn>)> {
        let newest = self.leaf(key).and_then(|leaf| leaf.newest(before));
        let deleted = match self.ranges.get() {
            None => None,
            Some(ranges) => ranges.fragments.tree().newest_over(key, before),
        };
        let is_known = newest.is_some() || deleted.is_some();
        is_known.then(|| (Versions::from(newest), deleted))
    }

    /// Remembers what a fold came to, so that the next folds of the key begin there. Does nothing
    /// if that takes more memory than the messages that were folded: so remembering takes no more
    /// memory than operands do, and no more time than writing them.
    ///
    /// Every version below the bound of the fold must have been in the memtable. `message` is what
    /// the memtable says of the key, without a basis. With a basis it is the key's value, as it
    /// follows from the memtable and from what was below it. `basis` numbers that, and is not
    /// `u32::MAX`.
    pub fn remember(&self, folded: Folded<'_>, basis: Option<u32>, message: Message<'_>) {
        let bytes = leaf::memo_bytes(message);
        let Some(newest) = folded.newest else { return };
        if bytes > folded.bytes || message.value_bytes() > leaf::VALUE_BYTES_MAX {
            return;
        }
        // A reader waits for no writer: another one will remember.
        let Some(entered) = self.arena.try_enter() else {
            return;
        };
        let at = entered.record(bytes);
        // SAFETY: taken just now, that long, from the arena, which lives as long as the fold's
        // borrow of this memtable; the length was checked.
        unsafe { newest.link_memo(at, basis, message) };
        entered.add(Count::GarbageBytes, bytes as i64);
    }

    /// Like [`Self::get`], and returns the message's LSN too.
    #[must_use]
    pub fn get_versioned(&self, key: &[u8], before: Lsn) -> Option<(Lsn, Message<'_>)> {
        let newest = self.leaf(key).and_then(|leaf| leaf.newest(before));
        let found = newest.map(|version| (version.lsn(), version.message()));
        match self.ranges.get() {
            None => found,
            Some(ranges) => Self::under(ranges, key, before, found),
        }
    }

    fn leaf(&self, key: &[u8]) -> Option<LeafRef<'_>> {
        let mut child = self.root();
        loop {
            match child {
                Child::None => return None,
                // The way down skipped the paths, so only the leaf's key decides.
                Child::Leaf(leaf) => return (leaf.key() == key).then_some(leaf),
                Child::Node(node) => {
                    let Some(&byte) = key.get(node.depth()) else {
                        return node.terminal().filter(|leaf| leaf.key() == key);
                    };
                    child = node.child(byte);
                }
            }
        }
    }

    /// The child of the topmost link.
    pub(crate) fn root(&self) -> Child<'_> {
        // SAFETY: the link starts as null, and only `Insert::attempt` changes it, to children in
        // this memtable's arena, which lives as long as the borrow.
        unsafe { Child::load(&self.root) }
    }

    /// A cursor over the keys that have a version with `after <= lsn < before`. It shows the newest
    /// such version of each key. The cursor is nowhere until the first seek.
    #[must_use]
    pub fn cursor(&self, after: Lsn, before: Lsn) -> Cursor<'_> {
        Cursor::new(self, after, before)
    }

    /// Like [`Self::cursor`], for callers that cannot borrow: the cursor keeps the memtable alive.
    #[must_use]
    pub fn cursor_owned(self: &Arc<Self>, after: Lsn, before: Lsn) -> OwnedCursor {
        OwnedCursor::new(self, after, before)
    }

    /// Key and value bytes of the newest version of each key, which a checkpoint would merge, and
    /// the bytes of range deletes. Exact while no thread writes. O(threads that wrote).
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.arena.count(Count::LiveBytes) + self.range_bytes()
    }

    /// Arena bytes of superseded versions and of replaced nodes. Exact while no thread writes.
    /// O(threads that wrote).
    #[must_use]
    pub fn garbage_bytes(&self) -> u64 {
        self.arena.count(Count::GarbageBytes)
    }

    /// All memory that the memtable has taken, used or not, in bytes. O(1).
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes() + self.range_bytes()
    }

    /// Keys whose newest version is a put or a merge. Exact while no thread writes.
    /// O(threads that wrote).
    #[must_use]
    pub fn records(&self) -> u64 {
        self.arena.count(Count::Records)
    }

    /// Keys whose newest version is a delete. Exact while no thread writes. O(threads that wrote).
    #[must_use]
    pub fn tombstones(&self) -> u64 {
        self.arena.count(Count::Tombstones)
    }

    /// Whether a merge's operand was ever inserted. O(1).
    #[must_use]
    pub fn has_operands(&self) -> bool {
        self.has_operands.load(Ordering::Acquire)
    }

    /// Whether nothing was ever inserted, no range delete either. Always exact. O(1).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.root(), Child::None)
            && (self.ranges.get().is_none() || mutant::active("memtable-of-range-deletes-is-empty"))
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memtable")
            .field("records", &self.records())
            .field("tombstones", &self.tombstones())
            .field("live_bytes", &self.live_bytes())
            .field("garbage_bytes", &self.garbage_bytes())
            .field("arena_bytes", &self.arena_bytes())
            .finish()
    }
}

impl<'a> Insert<'a, '_> {
    fn attempt(&mut self, memtable: &'a Memtable) -> Result<(), Conflict> {
        let mut edge = Edge {
            link: &memtable.root,
            lock: &memtable.root_lock,
            version: memtable.root_lock.read(),
        };
        let mut child = memtable.root();
        // The first `at` bytes of the key led to `child`.
        let mut at = 0;
        loop {
            let node = match child {
                Child::None => return self.put_root(&edge),
                Child::Leaf(leaf) => {
                    let there = leaf.key();
                    let common = at + bytes::common(&self.key[at..], &there[at..]);
                    if common == self.key.len() && common == there.len() {
                        self.add_version(leaf);
                        return Ok(());
                    }
                    return self.part(&edge, child, leaf, there.get(common).copied(), common);
                }
                Child::Node(node) => node,
            };
            let depth = node.depth();
            let common = node.common(self.key, at);
            if common < depth {
                return self.part(
                    &edge,
                    child,
                    node.path(),
                    Some(node.path_byte(common)),
                    common,
                );
            }
            let version = node.lock().read();
            if version.obsolete() {
                return Err(Conflict);
            }
            let Some(&byte) = self.key.get(depth) else {
                return self.end_at(node, version);
            };
            let link = node.find(byte);
            let next = link.map_or(Child::None, |link| node.load(link));
            let full = node.is_full();
            if !node.lock().still(version) {
                return Err(Conflict);
            }
            match (link, next) {
                (Some(link), Child::Leaf(_) | Child::Node(_)) => {
                    edge = Edge {
                        link,
                        lock: node.lock(),
                        version,
                    };
                    child = next;
                    at = depth + 1;
                }
                _ if full => return self.grow(&edge, node, version, byte),
                _ => {
                    let leaf = self.fresh_leaf();
                    let guard = node.try_lock(version).ok_or(Conflict)?;
                    node.add(byte, Child::Leaf(leaf));
                    drop(guard);
                    self.count_key();
                    return Ok(());
                }
            }
        }
    }

    /// Inserts the first key of the memtable.
    fn put_root(&mut self, edge: &Edge<'a>) -> Result<(), Conflict> {
        let leaf = self.fresh_leaf();
        let guard = edge.try_lock().ok_or(Conflict)?;
        Child::Leaf(leaf).store(edge.link);
        drop(guard);
        self.count_key();
        Ok(())
    }

    /// Puts a new node above a child whose path parts from the key at `depth`. There the path has
    /// `byte`, or ends.
    fn part(
        &mut self,
        edge: &Edge<'a>,
        child: Child<'a>,
        path: LeafRef<'a>,
        byte: Option<u8>,
        depth: usize,
    ) -> Result<(), Conflict> {
        let leaf = self.fresh_leaf();
        let at = self.entered.node(node::FIRST_NODE_BYTES);
        // SAFETY: taken just now for this node, from the arena that lives for 'a.
        let above = unsafe { NodeRef::new(at, depth, path) };
        match byte {
            Some(byte) => above.add(byte, child),
            None => above.set_terminal(path),
        }
        match self.key.get(depth) {
            Some(&byte) => above.add(byte, Child::Leaf(leaf)),
            None => above.set_terminal(leaf),
        }
        let Some(guard) = edge.try_lock() else {
            self.entered.node_unused(at, node::FIRST_NODE_BYTES);
            return Err(Conflict);
        };
        Child::Node(above).store(edge.link);
        drop(guard);
        self.count_key();
        Ok(())
    }

    /// The key equals the node's path: it becomes the terminal, or a version of it.
    fn end_at(&mut self, node: NodeRef<'a>, version: Version) -> Result<(), Conflict> {
        if let Some(terminal) = node.terminal() {
            self.add_version(terminal);
            return Ok(());
        }
        let leaf = self.fresh_leaf();
        let guard = node.try_lock(version).ok_or(Conflict)?;
        node.set_terminal(leaf);
        drop(guard);
        self.count_key();
        Ok(())
    }

    /// Replaces a full node by a larger copy that has the key.
    fn grow(
        &mut self,
        edge: &Edge<'a>,
        node: NodeRef<'a>,
        version: Version,
        byte: u8,
    ) -> Result<(), Conflict> {
        let leaf = self.fresh_leaf();
        let bytes = node.larger_bytes();
        let at = self.entered.node(bytes);
        let Some(above) = edge.try_lock() else {
            self.entered.node_unused(at, bytes);
            return Err(Conflict);
        };
        let Some(guard) = node.try_lock(version) else {
            above.cancel();
            self.entered.node_unused(at, bytes);
            return Err(Conflict);
        };
        // SAFETY: taken just now for this node, from the arena that lives for 'a; the node is
        // locked.
        let larger = unsafe { node.grow(at, &guard) };
        larger.add(byte, Child::Leaf(leaf));
        Child::Node(larger).store(edge.link);
        guard.retire();
        drop(above);
        self.entered.add(Count::GarbageBytes, node.bytes() as i64);
        self.count_key();
        Ok(())
    }

    /// A leaf for the key that no reader can reach yet. All attempts use the same leaf.
    #[inline(always)] // puts
    fn fresh_leaf(&mut self) -> LeafRef<'a> {
        if let Some((leaf, _)) = self.fresh {
            return leaf;
        }
        let bytes = leaf::leaf_bytes(self.key) + leaf::version_bytes(self.message);
        let at = self.entered.record(bytes);
        // SAFETY: taken just now, that long, from the arena that lives for 'a; `Memtable::insert`
        // checked the lengths.
        let fresh = unsafe { LeafRef::write(at, self.key, self.lsn, self.message) };
        self.fresh = Some(fresh);
        fresh.0
    }

    /// Counts the key, whose leaf is in the tree now.
    fn count_key(&self) {
        self.entered.add(
            Count::LiveBytes,
            (self.key.len() + self.message.value_bytes()) as i64,
        );
        self.entered.add(kind(self.message), 1);
    }

    /// Adds the version to the key's leaf, which is in the tree already.
    fn add_version(&mut self, leaf: LeafRef<'a>) {
        let version = match self.fresh {
            // Another thread inserted the key between two attempts. The new leaf is garbage; its
            // version is used.
            Some((_, version)) => {
                self.entered
                    .add(Count::GarbageBytes, leaf::leaf_bytes(self.key) as i64);
                version
            }
            None => {
                let at = self.entered.record(leaf::version_bytes(self.message));
                // SAFETY: taken just now, that long, from the arena that lives for 'a;
                // `Memtable::insert` checked the length.
                unsafe { VersionRef::write(at, self.lsn, self.message) }
            }
        };
        match leaf.add(version) {
            Added::Newest(old) => {
                // The mark belongs to the key, so the new version inherits it.
                if old.was_read() {
                    version.mark_read();
                }
                if let Message::Merge(_) = self.message {
                    let count = version.count_operands(old);
                    self.is_long = count >= OPERANDS_WITHOUT_MEMO && count.is_power_of_two();
                }
                let old = old.message();
                self.entered
                    .add(Count::GarbageBytes, leaf::version_bytes(old) as i64);
                self.entered.add(
                    Count::LiveBytes,
                    self.message.value_bytes() as i64 - old.value_bytes() as i64,
                );
                self.entered.add(kind(old), -1);
                self.entered.add(kind(self.message), 1);
            }
            Added::Older => self.entered.add(
                Count::GarbageBytes,
                leaf::version_bytes(self.message) as i64,
            ),
        }
    }
}

fn kind(message: Message<'_>) -> Count {
    match message {
        Message::Put(_)
        | Message::Merge(_)
        | Message::Stack(_)
        | Message::Separated(_)
        | Message::Expiring(_) => Count::Records,
        Message::Delete => Count::Tombstones,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that read a node before it was replaced must not write to it: its key would be
    /// lost.
    #[test]
    fn a_node_that_is_replaced_is_retired_and_counted_as_garbage() {
        let memtable = Memtable::new(&Budget::new(1 << 30));
        let (mut garbage, mut replaced) = (0, 0);
        for byte in 0..=255u8 {
            let before = memtable.root();
            memtable.insert(&[byte], Lsn(1), Message::Delete);
            let (Child::Node(old), Child::Node(new)) = (before, memtable.root()) else {
                continue;
            };
            if old.bytes() != new.bytes() {
                assert!(old.lock().read().obsolete(), "at {byte}");
                garbage += old.bytes() as u64;
                replaced += 1;
            }
            assert!(!new.lock().read().obsolete());
            assert_eq!(memtable.garbage_bytes(), garbage);
        }
        assert_eq!(replaced, 3);
    }
}
