//! The entries of a node in order: leaves gathered for cursors, and visits for estimates.

use terrapin_base::sync::Ordering;

use super::{Child, Kind, Link, NodeRef, TERMINAL, load_keys, load_present, position};
use crate::bytes::{next_present, popcount, previous_present, rank, simd};
use crate::leaf::LeafRef;

/// Why [`NodeRef::gather`] stopped.
pub(crate) enum Stop<'a> {
    /// The node has no more entries in that direction.
    End,
    /// The room is full.
    Full,
    /// An inner node is next.
    Node(NodeRef<'a>),
}

impl<'a> NodeRef<'a> {
    /// Collects leaves behind `position`, in key order or against it, from one consistent state. It
    /// stops at the first inner node or when `room` is full. It returns the number of leaves, the
    /// position of the last entry taken (the inner node's if it stopped there), and the reason. It
    /// prefetches the inner nodes that come next.
    pub(crate) fn gather<const FORWARD: bool>(
        self,
        position: u16,
        room: &mut [Option<LeafRef<'a>>],
    ) -> (usize, u16, Stop<'a>) {
        loop {
            let version = self.lock().read();
            let gathered = self.gather_once::<FORWARD>(position, room);
            if self.lock().still(version) {
                return gathered;
            }
        }
    }

    fn gather_once<const FORWARD: bool>(
        self,
        from: u16,
        room: &mut [Option<LeafRef<'a>>],
    ) -> (usize, u16, Stop<'a>) {
        let (mut count, mut last) = (0, from);
        if FORWARD
            && from < TERMINAL
            && let Some(leaf) = self.terminal()
        {
            let Some(place) = room.get_mut(count) else {
                return (count, last, Stop::Full);
            };
            *place = Some(leaf);
            (count, last) = (1, TERMINAL);
        }
        let mut entries = Entries::new::<FORWARD>(self, from);
        while let Some((byte, link)) = entries.next::<FORWARD>() {
            match self.load(link) {
                Child::Leaf(leaf) => {
                    let Some(place) = room.get_mut(count) else {
                        return (count, last, Stop::Full);
                    };
                    *place = Some(leaf);
                    count += 1;
                    last = position(byte);
                }
                Child::Node(node) => {
                    if count < room.len() {
                        for _ in 0..2 {
                            let Some((_, link)) = entries.next::<FORWARD>() else {
                                break;
                            };
                            if let Child::Node(later) = self.load(link) {
                                later.prefetch();
                            }
                        }
                        return (count, position(byte), Stop::Node(node));
                    }
                    return (count, last, Stop::Full);
                }
                // A torn read, which the caller discards.
                Child::None => {}
            }
        }
        if !FORWARD
            && from > TERMINAL
            && let Some(leaf) = self.terminal()
        {
            let Some(place) = room.get_mut(count) else {
                return (count, last, Stop::Full);
            };
            *place = Some(leaf);
            (count, last) = (count + 1, TERMINAL);
        }
        (count, last, Stop::End)
    }

    /// Number of entries. It may be out of date.
    pub(crate) fn entries(self) -> usize {
        self.count() + usize::from(self.terminal().is_some())
    }

    /// Calls `show` for the entries between two positions, both included, in key order. The result
    /// is approximate: with a concurrent writer an entry may come twice or not at all.
    pub(crate) fn visit(self, from: u16, to: u16, mut show: impl FnMut(u16, Child<'a>)) {
        if from <= TERMINAL
            && let Some(leaf) = self.terminal()
        {
            show(TERMINAL, Child::Leaf(leaf));
        }
        let mut entries = Entries::new::<true>(self, from.max(position(0)) - 1);
        while let Some((byte, link)) = entries.next::<true>() {
            if position(byte) > to {
                break;
            }
            show(position(byte), self.load(link));
        }
    }
}

/// The children of a node beyond a position, one after the other. The caller validates them
/// together.
struct Entries<'a> {
    links: &'a [Link],
    keys: Keys,
    /// The next child's byte if the node has a bitmap, else its index among the sorted keys. Out of
    /// range if there is no next child.
    next: i32,
    /// The next child's index in `links`, if that is not its byte.
    index: usize,
}

enum Keys {
    Sorted { keys: u128, count: usize },
    Dense([u64; 4]),
    Direct([u64; 4]),
}

impl<'a> Entries<'a> {
    #[inline]
    fn new<const FORWARD: bool>(node: NodeRef<'a>, from: u16) -> Self {
        let links = node.links();
        // Forward: the first byte. Backward: one more than the first byte, 0 to 256.
        let bound = if FORWARD {
            i32::from(from.saturating_sub(1))
        } else {
            i32::from(from.saturating_sub(2))
        };
        let count = node.count();
        let keys = match node.head().kind {
            Kind::N4 => Keys::Sorted {
                keys: u128::from(node.head().keys.load(Ordering::Relaxed)),
                count,
            },
            Kind::N16 => Keys::Sorted {
                keys: load_keys(node.n16()),
                count,
            },
            Kind::N48 => Keys::Dense(load_present(node.present())),
            Kind::N256 => Keys::Direct(load_present(node.present())),
        };
        let (next, index) = match &keys {
            Keys::Sorted { keys, count } => {
                let below =
                    u8::try_from(bound).map_or(*count, |byte| simd::rank(*keys, *count, byte));
                (
                    if FORWARD {
                        below as i32
                    } else {
                        below as i32 - 1
                    },
                    0,
                )
            }
            Keys::Dense(words) => {
                let below = u8::try_from(bound).map_or(links.len(), |byte| rank(words, byte));
                let next = if FORWARD { bound } else { bound - 1 };
                (
                    next,
                    if FORWARD {
                        below
                    } else {
                        popcount(words).min(below).wrapping_sub(1)
                    },
                )
            }
            Keys::Direct(_) => (if FORWARD { bound } else { bound - 1 }, 0),
        };
        Entries {
            links,
            keys,
            next,
            index,
        }
    }

    #[inline]
    fn next<const FORWARD: bool>(&mut self) -> Option<(u8, &'a Link)> {
        let step = if FORWARD { 1 } else { -1 };
        match &self.keys {
            Keys::Sorted { keys, count } => {
                let place = usize::try_from(self.next)
                    .ok()
                    .filter(|place| place < count)?;
                self.next += step;
                Some((keys.to_le_bytes()[place & 15], self.links.get(place)?))
            }
            Keys::Dense(words) | Keys::Direct(words) => {
                let from = u8::try_from(self.next).ok()?;
                let byte = if FORWARD {
                    next_present(words, from)
                } else {
                    previous_present(words, from)
                }?;
                self.next = i32::from(byte) + step;
                let place = if matches!(self.keys, Keys::Direct(_)) {
                    usize::from(byte)
                } else {
                    self.index
                };
                self.index = self.index.wrapping_add_signed(step as isize);
                Some((byte, self.links.get(place)?))
            }
        }
    }
}
