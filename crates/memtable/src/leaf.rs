//! The layout of a key and its versions in the arena. Both are immutable once a reader can reach
//! them. Only the links of the chain and the mark *was read* change.
//!
//! ```text
//! leaf     head: link to the newest version │ key length u16 │ key bytes …
//! version  lsn u64 │ next: link to an older version │
//!          (payload length << 5 | was read << 3 | kind) u32 │ payload bytes …
//!          behind an operand, at the next multiple of 8: link to a memo
//! memo     basis u32 │ (payload length << 5 | kind) u32 │ payload bytes …
//! ```
//!
//! A leaf and its first version are allocated together, so that a record occupies consecutive cache
//! lines. A chain is ordered by LSN, newest first. It is a lock-free list that only grows, so a
//! compare-and-swap on the link in front of a new version suffices. The operations of an unlogged
//! batch share one LSN. The version of a later one goes in front: a put or a delete then hides the
//! others, and operands count with what is behind them.
//!
//! A *memo* says in one message what the chain says from an operand on. A fold that meets a memo
//! needs nothing older of the chain. Without a *basis* a memo depends on the chain alone. Otherwise
//! it is a value that also depends on what the store held below the memtable, and the basis says
//! when that was. Memos change no chain: whoever does not ask for them sees the same versions.

use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::{self, NonNull};

use terrapin_base::sync::Ordering;
use terrapin_base::sync::atomic::{AtomicPtr, AtomicU32};
use terrapin_base::{Fold, Lsn, Message, MessageKind, Result, mutant};
use terrapin_disk::prefetch;

/// Alignment of leaves and versions.
pub(crate) const ALIGNMENT: usize = 8;
const LEAF_HEAD: usize = 10;
const VERSION_HEAD: usize = 20;
/// In [`VersionHead::what`]: the version was read. The kind is below.
const READ: u32 = 1 << MessageKind::BITS;
/// A bit behind it is free.
const LENGTH_SHIFT: u32 = MessageKind::BITS + 2;
/// Longest payload in bytes: its length shares 32 bits with the kind and flags.
pub(crate) const VALUE_BYTES_MAX: usize = (u32::MAX >> LENGTH_SHIFT) as usize;

#[repr(C)]
struct LeafHead {
    newest: AtomicPtr<VersionHead>,
    key_bytes: u16,
}

#[repr(C)]
struct VersionHead {
    lsn: u64,
    older: AtomicPtr<VersionHead>,
    /// Payload length << 5 | was read << 3 | kind. Only the bit *was read* changes.
    what: AtomicU32,
}

const _: () = assert!(std::mem::offset_of!(LeafHead, key_bytes) + 2 == LEAF_HEAD);
const _: () = assert!(std::mem::offset_of!(VersionHead, what) + 4 == VERSION_HEAD);
// A reference to a head covers its padding, which must exist even if no key or value bytes follow.
const _: () = assert!(size_of::<LeafHead>() <= LEAF_HEAD.next_multiple_of(ALIGNMENT));
const _: () = assert!(size_of::<VersionHead>() <= VERSION_HEAD.next_multiple_of(ALIGNMENT));

/// The head of a memo. Its payload follows.
#[repr(C)]
struct MemoHead {
    basis: u32,
    what: u32,
}

const MEMO_HEAD: usize = size_of::<MemoHead>();
/// The basis of a memo that depends on its chain alone.
const OF_CHAIN: u32 = u32::MAX;
/// Bytes of the link to a memo.
const MEMO_LINK: usize = size_of::<AtomicPtr<u8>>();

/// Arena bytes of a memo.
pub(crate) fn memo_bytes(message: Message<'_>) -> usize {
    (MEMO_HEAD + message.value_bytes()).next_multiple_of(ALIGNMENT)
}

/// Arena bytes of a leaf without its versions.
pub(crate) fn leaf_bytes(key: &[u8]) -> usize {
    (LEAF_HEAD + key.len()).next_multiple_of(ALIGNMENT)
}

/// Arena bytes of a version.
pub(crate) fn version_bytes(message: Message<'_>) -> usize {
    let memo_link = MEMO_LINK * usize::from(matches!(message, Message::Merge(_)));
    memo_link_at(message.value_bytes()) + memo_link
}

/// Where the link to a memo is in a version whose payload has this many bytes.
fn memo_link_at(payload_bytes: usize) -> usize {
    (VERSION_HEAD + payload_bytes).next_multiple_of(ALIGNMENT)
}

/// A version in the arena of a memtable that lives for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct VersionRef<'a>(NonNull<VersionHead>, PhantomData<&'a ()>);

// SAFETY: a version is immutable but for its atomics, and lives for 'a.
unsafe impl Send for VersionRef<'_> {}
// SAFETY: a version is immutable but for its atomics, and lives for 'a.
unsafe impl Sync for VersionRef<'_> {}

impl<'a> VersionRef<'a> {
    /// Writes a version that no reader can reach yet.
    ///
    /// # Safety
    /// `at` is aligned to [`ALIGNMENT`], has [`version_bytes`] of room that nothing else uses, and
    /// stays allocated for `'a`. The value is at most [`VALUE_BYTES_MAX`] long.
    pub(crate) unsafe fn write(at: NonNull<u8>, lsn: Lsn, message: Message<'_>) -> Self {
        let value = message.payload();
        let kind = message.kind() as u32;
        let what = AtomicU32::new((value.len() as u32) << LENGTH_SHIFT | kind);
        let head = at.cast::<VersionHead>();
        // SAFETY: the contract gives alignment and room. The value is written after the head, whose
        // padding it shares.
        unsafe {
            head.write(VersionHead {
                lsn: lsn.0,
                older: AtomicPtr::default(),
                what,
            });
            ptr::copy_nonoverlapping(value.as_ptr(), at.as_ptr().add(VERSION_HEAD), value.len());
            if let Message::Merge(_) = message {
                let memo_link = at.add(memo_link_at(value.len()));
                memo_link.cast().write(AtomicPtr::<u8>::default());
            }
        }
        VersionRef(head, PhantomData)
    }

    fn head(self) -> &'a VersionHead {
        // SAFETY: points to a written version that lives for 'a; only its atomics change.
        unsafe { self.0.as_ref() }
    }

    /// The version's LSN.
    #[inline]
    pub(crate) fn lsn(self) -> Lsn {
        Lsn(self.head().lsn)
    }

    /// The version's message.
    #[inline]
    pub(crate) fn message(self) -> Message<'a> {
        let what = self.head().what.load(Ordering::Relaxed);
        // SAFETY: that many bytes were written behind the head and never change.
        let payload = unsafe {
            std::slice::from_raw_parts(
                self.0.as_ptr().cast::<u8>().add(VERSION_HEAD),
                (what >> LENGTH_SHIFT) as usize,
            )
        };
        Message::of(MessageKind::from_bits(what), payload)
    }

    /// Marks the version as read. It writes only if the mark is missing, so that the cache line
    /// stays shared among readers.
    #[inline]
    pub(crate) fn mark_read(self) {
        if !self.was_read() {
            self.head().what.fetch_or(READ, Ordering::Relaxed);
        }
    }

    /// Whether the version was marked as read.
    #[inline]
    pub(crate) fn was_read(self) -> bool {
        self.head().what.load(Ordering::Relaxed) & READ != 0
    }

    /// The link of an operand to its memo. It is null, a memo, or an odd number: twice the operands
    /// since the last memo, plus 1.
    fn memo_link(self) -> Option<&'a AtomicPtr<u8>> {
        let Message::Merge(operand) = self.message() else {
            return None;
        };
        // SAFETY: `write` put the link there, aligned. Only its value changes.
        Some(unsafe {
            let at = self.0.as_ptr().cast::<u8>();
            &*at.add(memo_link_at(operand.len())).cast()
        })
    }

    /// The memo of an operand, if it depends on the chain alone or has this basis.
    fn memo(self, basis: Option<u32>) -> Option<Message<'a>> {
        let link = self.memo_link()?.load(Ordering::Acquire);
        if link.addr() % 2 != 0 {
            return None;
        }
        let at = NonNull::new(link)?;
        // SAFETY: a link that is even and not null leads to a memo, which lives for 'a and never
        // changes. Its payload follows its head.
        let (head, payload) = unsafe {
            let head = at.cast::<MemoHead>().as_ref();
            let bytes = (head.what >> LENGTH_SHIFT) as usize;
            let payload = std::slice::from_raw_parts(at.as_ptr().add(MEMO_HEAD), bytes);
            (head, payload)
        };
        let holds = head.basis == OF_CHAIN
            || basis == Some(head.basis)
            || mutant::active("memo-of-another-tree-counts");
        holds.then(|| Message::of(MessageKind::from_bits(head.what), payload))
    }

    /// Writes a memo and links it, unless another thread does so at the same time. Returns whether
    /// it is linked.
    ///
    /// # Safety
    /// `at` is aligned to [`ALIGNMENT`], has [`memo_bytes`] of room that nothing else uses, and
    /// stays allocated for `'a`. The payload is at most [`VALUE_BYTES_MAX`] long.
    pub(crate) unsafe fn link_memo(
        self,
        at: NonNull<u8>,
        basis: Option<u32>,
        message: Message<'_>,
    ) -> bool {
        let Some(link) = self.memo_link() else {
            return false;
        };
        let before = link.load(Ordering::Relaxed);
        let payload = message.payload();
        let head = MemoHead {
            basis: basis.unwrap_or(OF_CHAIN),
            what: (payload.len() as u32) << LENGTH_SHIFT | message.kind() as u32,
        };
        // SAFETY: the contract gives alignment and room.
        unsafe {
            at.cast().write(head);
            let behind = at.as_ptr().add(MEMO_HEAD);
            ptr::copy_nonoverlapping(payload.as_ptr(), behind, payload.len());
        }
        // Release publishes the bytes of the memo.
        let linked =
            link.compare_exchange(before, at.as_ptr(), Ordering::Release, Ordering::Relaxed);
        linked.is_ok()
    }

    /// Notes how many operands there are since the last memo, if this version, which no reader sees
    /// yet, is an operand in front of `older`. Returns the number. Other writers make it inexact.
    pub(crate) fn count_operands(self, older: VersionRef<'a>) -> usize {
        let Some(link) = self.memo_link() else {
            return 0;
        };
        let before = older.memo_link().map(|link| link.load(Ordering::Relaxed));
        let count = match before.map(|link| link.addr()) {
            Some(number) if number % 2 != 0 => number / 2 + 1,
            // The older operand has a memo, or nobody counted it.
            _ => 1,
        };
        let number = ptr::without_provenance_mut(2 * count + 1);
        link.store(number, Ordering::Relaxed);
        count
    }

    /// The next older version of its key.
    fn older(self) -> Option<Self> {
        let older = self.head().older.load(Ordering::Acquire);
        Some(VersionRef(NonNull::new(older)?, PhantomData))
    }
}

/// The versions of one key from one version on, newest first, each with its LSN. The operations of
/// an unlogged batch share an LSN. Of several on one key, the last operation comes first.
#[derive(Clone)]
pub struct Versions<'a>(Option<VersionRef<'a>>);

impl<'a> Versions<'a> {
    pub(crate) fn from(newest: impl Into<Option<VersionRef<'a>>>) -> Self {
        Versions(newest.into())
    }

    /// The value of the key, if the newest version's memo says it: a put, or a delete for none.
    pub(crate) fn remembered(
        &self,
        deleted: Option<Lsn>,
        basis: Option<u32>,
    ) -> Option<Message<'a>> {
        let newest = self.0.filter(|newest| deleted <= Some(newest.lsn()))?;
        let memo = newest.memo(basis)?;
        let is_value = matches!(memo, Message::Put(_) | Message::Delete);
        (is_value && !mutant::active("operands-below-memo-count-again")).then_some(memo)
    }

    /// Adds these versions' messages to a fold, newest first, down to the first that needs nothing
    /// older. A range delete hides versions below the LSN `deleted`. Memos stand for what is older:
    /// those of the chain alone, and those of a `basis`. O(operands since the last memo).
    ///
    /// # Errors
    ///
    /// Those of [`Fold::push`].
    pub(crate) fn fold(
        self,
        deleted: Option<Lsn>,
        basis: Option<u32>,
        fold: &mut Fold,
    ) -> Result<Folded<'a>> {
        let deleted = deleted.filter(|_| !mutant::active("operands-ignore-range-deletes"));
        let mut folded = Folded {
            newest: self.0,
            bytes: 0,
            is_based: false,
        };
        let mut next = self.0;
        while let Some(version) = next {
            if deleted > Some(version.lsn()) {
                break;
            }
            if let Some(memo) = version.memo(basis) {
                folded.is_based = fold.push(memo)?;
                if !mutant::active("operands-below-memo-count-again") {
                    return Ok(folded);
                }
            }
            let message = version.message();
            folded.bytes += version_bytes(message);
            if fold.push(message)? {
                folded.is_based = true;
                return Ok(folded);
            }
            next = version.older();
        }
        if deleted.is_some() {
            folded.is_based = fold.push(Message::Delete)?;
        }
        Ok(folded)
    }
}

/// What [`crate::Memtable::value_or_fold`] found.
#[derive(Clone, Copy, Debug)]
pub enum ValueOrFold<'a> {
    /// The key's value, as a put, or a delete if it has none. The fold is as it was.
    Value(Message<'a>),
    /// The messages are in the fold.
    Fold(Folded<'a>),
}

/// What [`crate::Memtable::fold`] found.
#[derive(Clone, Copy)]
pub struct Folded<'a> {
    pub(crate) newest: Option<VersionRef<'a>>,
    /// Arena bytes of the versions that were folded one by one.
    pub(crate) bytes: usize,
    /// Whether nothing older than the memtable counts.
    pub is_based: bool,
}

impl Folded<'_> {
    /// Arena bytes of the messages that the fold took one by one: those that no memo holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl std::fmt::Debug for Folded<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folded")
            .field("bytes", &self.bytes)
            .field("is_based", &self.is_based)
            .finish()
    }
}

impl<'a> Iterator for Versions<'a> {
    type Item = (Lsn, Message<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let version = self.0?;
        self.0 = version.older();
        Some((version.lsn(), version.message()))
    }
}

impl std::fmt::Debug for Versions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// The result of adding a version to a chain.
pub(crate) enum Added<'a> {
    /// The new version is the newest. The version in the variant was the newest before.
    Newest(VersionRef<'a>),
    /// A newer version was there already.
    Older,
}

/// A leaf in the arena of a memtable that lives for `'a`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeafRef<'a>(NonNull<LeafHead>, PhantomData<&'a ()>);

// SAFETY: a leaf is immutable but for an atomic, and lives for 'a.
unsafe impl Send for LeafRef<'_> {}
// SAFETY: a leaf is immutable but for an atomic, and lives for 'a.
unsafe impl Sync for LeafRef<'_> {}

impl<'a> LeafRef<'a> {
    /// Writes a leaf with its first version. No reader can reach them yet.
    ///
    /// # Safety
    /// `at` is aligned to [`ALIGNMENT`], has [`leaf_bytes`] + [`version_bytes`] of room that
    /// nothing else uses, and stays allocated for `'a`. The key is at most 65,535 bytes long, the
    /// value at most [`VALUE_BYTES_MAX`].
    pub(crate) unsafe fn write(
        at: NonNull<u8>,
        key: &[u8],
        lsn: Lsn,
        message: Message<'_>,
    ) -> (Self, VersionRef<'a>) {
        let head = at.cast::<LeafHead>();
        // SAFETY: the contract gives alignment and room. The version starts where the leaf ends, at
        // a multiple of the alignment. The key is written after the head, whose padding it shares.
        unsafe {
            let version = VersionRef::write(at.add(leaf_bytes(key)), lsn, message);
            head.write(LeafHead {
                newest: AtomicPtr::new(version.0.as_ptr()),
                key_bytes: key.len() as u16,
            });
            ptr::copy_nonoverlapping(key.as_ptr(), at.as_ptr().add(LEAF_HEAD), key.len());
            (LeafRef(head, PhantomData), version)
        }
    }

    /// Makes a leaf from a pointer of [`Self::as_ptr`].
    ///
    /// # Safety
    /// `at` came from [`Self::as_ptr`] of a leaf that lives for `'a`.
    #[inline]
    pub(crate) unsafe fn from_ptr(at: NonNull<u8>) -> Self {
        LeafRef(at.cast(), PhantomData)
    }

    /// The leaf's address.
    #[inline]
    pub(crate) fn as_ptr(self) -> NonNull<u8> {
        self.0.cast()
    }

    fn head(self) -> &'a LeafHead {
        // SAFETY: points to a written leaf that lives for 'a; only its atomic changes.
        unsafe { self.0.as_ref() }
    }

    /// The leaf's key.
    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        let bytes = usize::from(self.head().key_bytes);
        // SAFETY: that many bytes were written behind the head and never change.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(LEAF_HEAD), bytes) }
    }

    /// The newest version below `before`. O(newer versions).
    #[inline]
    pub(crate) fn newest(self, before: Lsn) -> Option<VersionRef<'a>> {
        let mut link = &self.head().newest;
        loop {
            let version = VersionRef(NonNull::new(link.load(Ordering::Acquire))?, PhantomData);
            let at_bound = version.lsn() == before && mutant::active("view-sees-record-at-bound");
            if version.lsn() < before || at_bound {
                return Some(version);
            }
            link = &version.head().older;
        }
    }

    /// Inserts a version at its position in the chain. O(newer versions), lock-free.
    pub(crate) fn add(self, version: VersionRef<'a>) -> Added<'a> {
        let mut link = &self.head().newest;
        let mut first = true;
        loop {
            let next = link.load(Ordering::Acquire);
            if let Some(there) = NonNull::new(next) {
                let there = VersionRef(there, PhantomData);
                let same =
                    there.lsn() == version.lsn() && mutant::active("earlier-version-of-lsn-wins");
                if there.lsn() > version.lsn() || same {
                    link = &there.head().older;
                    first = false;
                    continue;
                }
            }
            version.head().older.store(next, Ordering::Relaxed);
            // Release publishes the bytes of the version. After a lost race, the loop looks at this
            // link again.
            if link
                .compare_exchange(
                    next,
                    version.0.as_ptr(),
                    Ordering::Release,
                    Ordering::Relaxed,
                )
                .is_ok()
            {
                return match NonNull::new(next) {
                    Some(there) if first => Added::Newest(VersionRef(there, PhantomData)),
                    _ => Added::Older,
                };
            }
        }
    }

    /// Prefetches the leaf and its first version.
    #[inline]
    pub(crate) fn prefetch(self) {
        for line in 0..3 {
            prefetch(self.0.as_ptr().cast::<u8>().wrapping_add(line * 64));
        }
    }

    /// Prefetches the newest version if it is not next to the leaf. The leaf itself should be
    /// cached already.
    #[inline]
    pub(crate) fn prefetch_newest(self) {
        let newest = self.head().newest.load(Ordering::Relaxed).cast::<u8>();
        let offset = newest.addr().wrapping_sub(self.0.as_ptr().addr());
        if offset > 128 {
            prefetch(newest);
            prefetch(newest.wrapping_add(64));
        }
    }
}
