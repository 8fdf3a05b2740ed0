//! Inner nodes of the radix tree: four sizes, path compression, and their layout in the arena.
//!
//! After Leis et al., "The Adaptive Radix Tree" (2013, §III), with three differences:
//!
//! * **A node's path never changes.** A node stores the absolute `depth` of the byte on which it
//!   branches. It also stores a leaf below it whose key spells the path. The start of its
//!   compressed path follows from the way that a reader came. So splitting a path only puts a new
//!   node above: the node below is neither changed nor locked. The node also holds the last
//!   [`TAIL_BYTES`] bytes of its path, so that the leaf is rarely visited. Paths of any length cost
//!   the same.
//! * **A key may be a prefix of another.** The key that ends at `depth` is the node's *terminal*.
//!   Then it is also the leaf that spells the path, and one tagged pointer says both.
//! * **The third size has a bitmap** of its bytes, and its children in order, instead of a table of
//!   256 indexes. It takes 448 bytes instead of 704. A find touches two cache lines instead of
//!   three, and scans go from child to child.
//!
//! All sizes keep entries in byte order. The position of an entry is a number with the same order:
//! 1 for the terminal, byte + 2 for a child. The locking rules are in `lock`.

mod entries;

use std::marker::PhantomData;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

use terrapin_base::sync::{
    AtomicU32, AtomicU64, Ordering,
    atomic::{AtomicPtr, AtomicU16},
};
use terrapin_disk::prefetch;

use crate::bytes::{common, insert_key, is_present, next_present, rank, simd};
use crate::leaf::LeafRef;
use crate::lock::{NodeGuard, Version, VersionLock};

pub(crate) use entries::Stop;

/// Bytes of its path that the node itself holds.
const TAIL_BYTES: usize = 7;
/// Position before every entry of a node.
pub(crate) const BEFORE_ALL: u16 = 0;
/// Position behind every entry of a node.
pub(crate) const BEHIND_ALL: u16 = 258;
/// Position of the terminal.
pub(crate) const TERMINAL: u16 = 1;

/// The position of the child under `byte`.
#[inline]
pub(crate) fn position(byte: u8) -> u16 {
    u16::from(byte) + 2
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    N4,
    N16,
    N48,
    N256,
}

impl Kind {
    fn capacity(self) -> usize {
        match self {
            Kind::N4 => 4,
            Kind::N16 => 16,
            Kind::N48 => 48,
            Kind::N256 => 256,
        }
    }

    fn bytes(self) -> usize {
        let bytes = match self {
            Kind::N4 => size_of::<Node4>(),
            Kind::N16 => size_of::<Node16>(),
            Kind::N48 => size_of::<Node48>(),
            Kind::N256 => size_of::<Node256>(),
        };
        bytes.next_multiple_of(64)
    }

    fn larger(self) -> Kind {
        match self {
            Kind::N4 => Kind::N16,
            Kind::N16 => Kind::N48,
            Kind::N48 | Kind::N256 => Kind::N256,
        }
    }
}

/// A link to a child: null, a leaf (tagged), or a node.
type Link = AtomicPtr<u8>;

#[repr(C)]
struct Head {
    lock: VersionLock,
    /// A leaf below the node; tagged if it is the terminal.
    path: Link,
    /// Keys of a `Node4`, in order. The first is in the lowest bits.
    keys: AtomicU32,
    /// Number of children.
    count: AtomicU16,
    depth: u16,
    kind: Kind,
    /// The last bytes of the path, right-aligned.
    tail: [u8; TAIL_BYTES],
}

#[repr(C)]
struct Node4 {
    head: Head,
    children: [Link; 4],
}

#[repr(C)]
struct Node16 {
    head: Head,
    /// Keys in order. The first is in the lowest bits of the first word.
    keys: [AtomicU64; 2],
    children: [Link; 16],
}

#[repr(C)]
struct Node48 {
    head: Head,
    present: [AtomicU64; 4],
    children: [Link; 48],
}

#[repr(C)]
struct Node256 {
    head: Head,
    present: [AtomicU64; 4],
    children: [Link; 256],
}

const _: () = assert!(size_of::<Head>() == 32 && size_of::<Node4>() == 64);
const _: () = assert!(offset_of!(Node48, present) == offset_of!(Node256, present));

/// The target of a link.
#[derive(Clone, Copy)]
pub(crate) enum Child<'a> {
    None,
    Leaf(LeafRef<'a>),
    Node(NodeRef<'a>),
}

const TAG: usize = 1;

impl<'a> Child<'a> {
    /// Follows a link.
    ///
    /// # Safety
    /// The link was null at first, and only [`Child::store`] has changed it, to children that live
    /// for `'a`.
    #[inline]
    pub(crate) unsafe fn load(link: &Link) -> Self {
        // SAFETY: by contract.
        unsafe { Self::from_link(link.load(Ordering::Acquire)) }
    }

    /// # Safety
    /// `link` was read from a link that fulfils the contract of [`Child::load`].
    #[inline]
    unsafe fn from_link(link: *mut u8) -> Self {
        let untagged = link.map_addr(|a| a & !TAG);
        match NonNull::new(untagged) {
            None => Child::None,
            // SAFETY: a tagged link is a leaf, and lives for 'a by contract.
            Some(at) if link.addr() & TAG != 0 => Child::Leaf(unsafe { LeafRef::from_ptr(at) }),
            Some(at) => Child::Node(NodeRef(at.cast(), PhantomData)),
        }
    }

    fn link(self) -> *mut u8 {
        match self {
            Child::None => std::ptr::null_mut(),
            Child::Leaf(leaf) => leaf.as_ptr().as_ptr().map_addr(|a| a | TAG),
            Child::Node(node) => node.0.as_ptr().cast(),
        }
    }

    /// Points a link to this child, and publishes the child's content.
    pub(crate) fn store(self, link: &Link) {
        link.store(self.link(), Ordering::Release);
    }
}

/// A node in the arena of a memtable that lives for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct NodeRef<'a>(NonNull<Head>, PhantomData<&'a ()>);

// SAFETY: a node is immutable but for atomics, and lives for 'a.
unsafe impl Send for NodeRef<'_> {}
// SAFETY: a node is immutable but for atomics, and lives for 'a.
unsafe impl Sync for NodeRef<'_> {}

/// Arena bytes of a node that [`NodeRef::new`] makes.
pub(crate) const FIRST_NODE_BYTES: usize = size_of::<Node4>();

impl<'a> NodeRef<'a> {
    /// Writes an empty node of the smallest size, which no reader can reach yet. It branches at
    /// `depth` of the keys that start like `path`.
    ///
    /// # Safety
    /// `at` is aligned to a pointer, has [`FIRST_NODE_BYTES`] of room that nothing else uses, and
    /// stays allocated for `'a`.
    pub(crate) unsafe fn new(at: NonNull<u8>, depth: usize, path: LeafRef<'a>) -> Self {
        // SAFETY: by contract.
        unsafe {
            Self::write(
                at,
                Kind::N4,
                depth as u16,
                path,
                tail_of(&path.key()[..depth]),
            )
        }
    }

    /// # Safety
    /// The contract of [`NodeRef::new`], with room for a node of this kind.
    unsafe fn write(
        at: NonNull<u8>,
        kind: Kind,
        depth: u16,
        path: LeafRef<'a>,
        tail: [u8; TAIL_BYTES],
    ) -> Self {
        let head = Head {
            lock: VersionLock::new(),
            path: AtomicPtr::new(path.as_ptr().as_ptr()),
            keys: AtomicU32::new(0),
            count: AtomicU16::new(0),
            depth,
            kind,
            tail,
        };
        // SAFETY: the room is ours by contract. Zero is a valid value of everything behind the
        // head: no keys, no children.
        unsafe {
            at.write_bytes(0, kind.bytes());
            at.cast::<Head>().write(head);
        }
        NodeRef(at.cast(), PhantomData)
    }

    #[inline]
    fn head(self) -> &'a Head {
        // SAFETY: points to a written node that lives for 'a; what changes in it is atomic.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn n4(self) -> &'a Node4 {
        debug_assert_eq!(self.head().kind, Kind::N4);
        // SAFETY: as in `head`, and the node was written as that kind.
        unsafe { self.0.cast().as_ref() }
    }

    #[inline]
    fn n16(self) -> &'a Node16 {
        debug_assert_eq!(self.head().kind, Kind::N16);
        // SAFETY: as in `head`, and the node was written as that kind.
        unsafe { self.0.cast().as_ref() }
    }

    #[inline]
    fn n48(self) -> &'a Node48 {
        debug_assert_eq!(self.head().kind, Kind::N48);
        // SAFETY: as in `head`, and the node was written as that kind.
        unsafe { self.0.cast().as_ref() }
    }

    #[inline]
    fn n256(self) -> &'a Node256 {
        debug_assert_eq!(self.head().kind, Kind::N256);
        // SAFETY: as in `head`, and the node was written as that kind.
        unsafe { self.0.cast().as_ref() }
    }

    #[inline]
    fn present(self) -> &'a [AtomicU64; 4] {
        if self.head().kind == Kind::N48 {
            &self.n48().present
        } else {
            &self.n256().present
        }
    }

    /// All links of the node, used or not.
    #[inline]
    fn links(self) -> &'a [Link] {
        match self.head().kind {
            Kind::N4 => &self.n4().children,
            Kind::N16 => &self.n16().children,
            Kind::N48 => &self.n48().children,
            Kind::N256 => &self.n256().children,
        }
    }

    #[inline]
    pub(crate) fn lock(self) -> &'a VersionLock {
        &self.head().lock
    }

    /// The index of the byte on which the node branches. All keys below the node are at least this
    /// long and equal before it.
    #[inline]
    pub(crate) fn depth(self) -> usize {
        usize::from(self.head().depth)
    }

    /// Arena bytes of the node.
    pub(crate) fn bytes(self) -> usize {
        self.head().kind.bytes()
    }

    /// Arena bytes of the copy that [`Self::grow`] makes.
    pub(crate) fn larger_bytes(self) -> usize {
        self.head().kind.larger().bytes()
    }

    /// A leaf whose key starts with the node's path. The result needs no validation: every such
    /// leaf is correct.
    pub(crate) fn path(self) -> LeafRef<'a> {
        let link = self
            .head()
            .path
            .load(Ordering::Acquire)
            .map_addr(|a| a & !TAG);
        match NonNull::new(link) {
            // SAFETY: the link always leads to a leaf that lives for 'a.
            Some(at) => unsafe { LeafRef::from_ptr(at) },
            None => unreachable!("a node has a path from its first moment"),
        }
    }

    /// The leaf whose key is the node's path. A terminal stays, so `Some` needs no validation.
    #[inline]
    pub(crate) fn terminal(self) -> Option<LeafRef<'a>> {
        let link = self.head().path.load(Ordering::Acquire);
        if link.addr() & TAG == 0 {
            return None;
        }
        // SAFETY: the link leads to a leaf that lives for 'a.
        NonNull::new(link.map_addr(|a| a & !TAG)).map(|at| unsafe { LeafRef::from_ptr(at) })
    }

    /// Makes a leaf whose key is the node's path the terminal. The node must be locked or out of
    /// reach of other threads.
    pub(crate) fn set_terminal(self, leaf: LeafRef<'a>) {
        debug_assert_eq!(leaf.key().len(), self.depth());
        self.head().path.store(
            leaf.as_ptr().as_ptr().map_addr(|a| a | TAG),
            Ordering::Release,
        );
    }

    /// Length of the common prefix of `key` and the node's path, at most [`Self::depth`]. The first
    /// `at` bytes are known to agree. The result needs no validation.
    #[inline]
    pub(crate) fn common(self, key: &[u8], at: usize) -> usize {
        let depth = self.depth();
        if at >= depth {
            return depth;
        }
        let span = depth - at;
        let rest = &key[at..key.len().min(depth)];
        let path = match span.checked_sub(TAIL_BYTES) {
            None | Some(0) => &self.head().tail[TAIL_BYTES - span..],
            Some(_) => &self.path().key()[at..depth],
        };
        at + common(rest, path)
    }

    /// The byte of the path at `index`, which is below [`Self::depth`].
    pub(crate) fn path_byte(self, index: usize) -> u8 {
        let back = self.depth() - index;
        if back <= TAIL_BYTES {
            self.head().tail[TAIL_BYTES - back]
        } else {
            self.path().key()[index]
        }
    }

    /// The link under `byte`, if any. The caller must validate it.
    #[inline]
    pub(crate) fn find(self, byte: u8) -> Option<&'a Link> {
        match self.head().kind {
            Kind::N4 => {
                let keys = self.head().keys.load(Ordering::Relaxed);
                let differ = keys ^ (0x0101_0101 * u32::from(byte));
                // The lowest zero byte sets its high bit first. Unused bytes come last.
                let equal = differ.wrapping_sub(0x0101_0101) & !differ & 0x8080_8080;
                let index = equal.trailing_zeros() as usize / 8;
                if index < self.count() {
                    self.n4().children.get(index)
                } else {
                    None
                }
            }
            Kind::N16 => {
                let node = self.n16();
                let index = simd::find(load_keys(node), byte) as usize;
                if index < self.count() {
                    node.children.get(index)
                } else {
                    None
                }
            }
            Kind::N48 => {
                let node = self.n48();
                let words = load_present(&node.present);
                if !is_present(&words, byte) {
                    None
                } else {
                    node.children.get(rank(&words, byte))
                }
            }
            Kind::N256 => {
                let link = &self.n256().children[usize::from(byte)];
                if link.load(Ordering::Relaxed).is_null() {
                    None
                } else {
                    Some(link)
                }
            }
        }
    }

    #[inline]
    fn count(self) -> usize {
        usize::from(self.head().count.load(Ordering::Relaxed))
    }

    /// The child under `byte`, from one consistent state of the node.
    #[inline]
    pub(crate) fn child(self, byte: u8) -> Child<'a> {
        // In one loop, the compiler would prepare the byte for all node sizes before each attempt.
        self.try_child(byte)
            .unwrap_or_else(|| self.child_at_last(byte))
    }

    #[inline]
    fn try_child(self, byte: u8) -> Option<Child<'a>> {
        let version = self.lock().read();
        let child = self.find(byte).map_or(Child::None, |link| self.load(link));
        self.lock().still(version).then_some(child)
    }

    #[cold]
    fn child_at_last(self, byte: u8) -> Child<'a> {
        loop {
            if let Some(child) = self.try_child(byte) {
                return child;
            }
        }
    }

    /// Follows a link of this node.
    #[inline]
    pub(crate) fn load(self, link: &'a Link) -> Child<'a> {
        // SAFETY: links of nodes start as null and are changed by `Child::store`, `add` and `grow`
        // only, which put children of the same memtable there.
        unsafe { Child::load(link) }
    }

    /// Whether the node has no room for another child. The caller must validate the result.
    #[inline]
    pub(crate) fn is_full(self) -> bool {
        self.count() == self.head().kind.capacity()
    }

    /// Adds a child under a byte that has none. The node must have room, and must be locked or out
    /// of reach of other threads.
    pub(crate) fn add(self, byte: u8, child: Child<'a>) {
        let count = self.count();
        debug_assert!(count < self.head().kind.capacity() && self.find(byte).is_none());
        match self.head().kind {
            Kind::N4 => {
                let keys = u128::from(self.head().keys.load(Ordering::Relaxed));
                let index = simd::rank(keys, count, byte);
                self.head()
                    .keys
                    .store(insert_key(keys, index, byte) as u32, Ordering::Relaxed);
                insert_link(&self.n4().children, index, count, child);
            }
            Kind::N16 => {
                let node = self.n16();
                let keys = load_keys(node);
                let index = simd::rank(keys, count, byte);
                let keys = insert_key(keys, index, byte);
                node.keys[0].store(keys as u64, Ordering::Relaxed);
                node.keys[1].store((keys >> 64) as u64, Ordering::Relaxed);
                insert_link(&node.children, index, count, child);
            }
            Kind::N48 => {
                let node = self.n48();
                let index = rank(&load_present(&node.present), byte);
                set_present(&node.present, byte);
                insert_link(&node.children, index, count, child);
            }
            Kind::N256 => {
                let node = self.n256();
                set_present(&node.present, byte);
                child.store(&node.children[usize::from(byte)]);
            }
        }
        self.head().count.store(count as u16 + 1, Ordering::Relaxed);
    }

    /// Writes the next larger copy of the node, which no reader can reach yet.
    ///
    /// # Safety
    /// `at` is aligned to a pointer, has [`Self::larger_bytes`] of room that nothing else uses, and
    /// stays allocated for `'a`. The caller holds this node's lock.
    pub(crate) unsafe fn grow(self, at: NonNull<u8>, _guard: &NodeGuard<'_>) -> NodeRef<'a> {
        let head = self.head();
        // SAFETY: by contract.
        let larger =
            unsafe { NodeRef::write(at, head.kind.larger(), head.depth, self.path(), head.tail) };
        if let Some(terminal) = self.terminal() {
            larger.set_terminal(terminal);
        }
        let count = self.count();
        let links = self.links();
        let copy =
            |to: &Link, from: &Link| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        match head.kind {
            Kind::N4 => {
                let node = larger.n16();
                node.keys[0].store(
                    u64::from(head.keys.load(Ordering::Relaxed)),
                    Ordering::Relaxed,
                );
                node.children
                    .iter()
                    .zip(links)
                    .for_each(|(to, from)| copy(to, from));
            }
            Kind::N16 => {
                let node = larger.n48();
                for (byte, _) in load_keys(self.n16()).to_le_bytes().iter().zip(0..count) {
                    set_present(&node.present, *byte);
                }
                node.children
                    .iter()
                    .zip(links)
                    .for_each(|(to, from)| copy(to, from));
            }
            Kind::N48 | Kind::N256 => {
                let node = larger.n256();
                let words = load_present(self.present());
                let mut byte = next_present(&words, 0);
                for from in links {
                    let Some(here) = byte else { break };
                    set_present(&node.present, here);
                    copy(&node.children[usize::from(here)], from);
                    byte = here.checked_add(1).and_then(|b| next_present(&words, b));
                }
            }
        }
        larger.head().count.store(count as u16, Ordering::Relaxed);
        larger
    }

    /// Prefetches the node.
    #[inline]
    pub(crate) fn prefetch(self) {
        for line in 0..4 {
            prefetch(self.0.as_ptr().cast::<u8>().wrapping_add(line * 64));
        }
    }

    /// Locks the node if it has not changed since `version`.
    #[inline]
    pub(crate) fn try_lock(self, version: Version) -> Option<NodeGuard<'a>> {
        self.head().lock.try_lock(version)
    }
}

fn tail_of(path: &[u8]) -> [u8; TAIL_BYTES] {
    let mut tail = [0; TAIL_BYTES];
    let bytes = path.len().min(TAIL_BYTES);
    tail[TAIL_BYTES - bytes..].copy_from_slice(&path[path.len() - bytes..]);
    tail
}

#[inline]
fn load_keys(node: &Node16) -> u128 {
    u128::from(node.keys[0].load(Ordering::Relaxed))
        | u128::from(node.keys[1].load(Ordering::Relaxed)) << 64
}

fn insert_link(links: &[Link], index: usize, count: usize, child: Child<'_>) {
    for pair in links[index..=count].windows(2).rev() {
        // Release: a reader that follows a moved link sees the child's content.
        pair[1].store(pair[0].load(Ordering::Relaxed), Ordering::Release);
    }
    child.store(&links[index]);
}

#[inline]
fn load_present(words: &[AtomicU64; 4]) -> [u64; 4] {
    [0, 1, 2, 3].map(|i| words[i].load(Ordering::Relaxed))
}

fn set_present(words: &[AtomicU64; 4], byte: u8) {
    let word = &words[usize::from(byte >> 6)];
    word.store(
        word.load(Ordering::Relaxed) | 1 << (byte & 63),
        Ordering::Relaxed,
    );
}
