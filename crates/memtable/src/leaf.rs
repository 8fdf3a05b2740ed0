//! The layout of a key and its versions in the arena. Both are immutable once a reader can reach
//! them. Only the links of the chain and the mark *was read* change.
//!
//! ```text
//! leaf     head: link to the newest version │ key length u16 │ key bytes …
//! version  lsn u64 │ next: link to an older version │ (payload length << 4 | was read << 2 | kind) u32 │ payload bytes …
//! ```
//!
//! A leaf and its first version are allocated together, so that a record occupies consecutive cache
//! lines. A chain is ordered by LSN, newest first. It is a lock-free list that only grows, so a
//! compare-and-swap on the link in front of a new version suffices. The operations of an unlogged
//! batch share one LSN. The version of a later one goes in front: a put or a delete then hides the
//! others, and operands count with what is behind them.

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
    /// Payload length << 4 | was read << 2 | kind. Only the bit *was read* changes.
    what: AtomicU32,
}

const _: () = assert!(std::mem::offset_of!(LeafHead, key_bytes) + 2 == LEAF_HEAD);
const _: () = assert!(std::mem::offset_of!(VersionHead, what) + 4 == VERSION_HEAD);
// A reference to a head covers its padding, which must exist even if no key or value bytes follow.
const _: () = assert!(size_of::<LeafHead>() <= LEAF_HEAD.next_multiple_of(ALIGNMENT));
const _: () = assert!(size_of::<VersionHead>() <= VERSION_HEAD.next_multiple_of(ALIGNMENT));

/// Arena bytes of a leaf without its versions.
pub(crate) fn leaf_bytes(key: &[u8]) -> usize {
    (LEAF_HEAD + key.len()).next_multiple_of(ALIGNMENT)
}

/// Arena bytes of a version.
pub(crate) fn version_bytes(message: Message<'_>) -> usize {
    (VERSION_HEAD + message.value_bytes()).next_multiple_of(ALIGNMENT)
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
    pub(crate) fn from(newest: VersionRef<'a>) -> Self {
        Versions(Some(newest))
    }

    /// Adds these versions' messages to a fold, newest first, down to the first that needs nothing
    /// older. A range delete hides versions below the LSN `deleted`. Returns whether nothing older
    /// counts. O(operands).
    ///
    /// # Errors
    ///
    /// Those of [`Fold::push`].
    pub fn fold(self, deleted: Option<Lsn>, fold: &mut Fold) -> Result<bool> {
        let deleted = deleted.filter(|_| !mutant::active("operands-ignore-range-deletes"));
        for (lsn, message) in self {
            if deleted > Some(lsn) {
                break;
            }
            if fold.push(message)? {
                return Ok(true);
            }
        }
        match deleted {
            Some(_) => fold.push(Message::Delete),
            None => Ok(false),
        }
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
