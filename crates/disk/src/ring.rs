//! The log's shared memory behind a safe interface: one writer, one reader, and two positions
//! between them.
//!
//! A position is a log sequence number; it lies in the ring at its remainder by the ring's size. At
//! any moment `freed <= published <= freed + bytes`. The reader may touch `[freed, published)` and
//! nothing else, the writer `[published, freed + bytes)` and nothing else, and only the writer
//! moves `published` and only the reader moves `freed`, each forward. So no byte is ever written
//! while it is read, whatever safe code does with the halves: bounds are checked at run time, and a
//! position outside them is a bug in the log and panics.
//!
//! `published` and `freed` are stored with Release after the copies that they cover and loaded with
//! Acquire before the copies that they allow. The memory itself is a shared mapping of the ring
//! file, so what was copied in outlives the process (DESIGN §4); nothing here makes it outlive the
//! machine's power.

use std::ops::Range;

use terrapin_base::sync::{Arc, AtomicU64, Ordering};
use terrapin_base::{Error, Result, mutant};

use crate::AlignedBuf;
use crate::real::Mapping;

/// Smallest ring in bytes.
pub const RING_BYTES_MIN: u64 = 4096;
/// Largest ring in bytes; a ring file that claims more is refused.
pub const RING_BYTES_MAX: u64 = 16 << 30;

/// How a ring file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// The ring's size: a power of two, [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`]. Used on creation
    /// only; an existing ring's size is its file's.
    pub bytes: u64,
    /// Create it; an error if it exists.
    pub create: bool,
}

impl RingOptions {
    /// Whether a ring can have that size.
    #[must_use]
    pub fn is_valid_size(bytes: u64) -> bool {
        bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
    }

    /// Refuses a size that was asked for ([`terrapin_base::ErrorKind::InvalidArgument`]).
    pub(crate) fn check_asked(bytes: u64, name: &str) -> Result<()> {
        if Self::is_valid_size(bytes) {
            return Ok(());
        }
        Err(
            Error::invalid("a log ring's size is a power of two from 4 KiB to 16 GiB")
                .with("file", name)
                .with("bytes", bytes),
        )
    }

    /// Refuses a size that a file has ([`terrapin_base::ErrorKind::Corrupt`], D8).
    pub(crate) fn check_found(bytes: u64, name: &str) -> Result<()> {
        if Self::is_valid_size(bytes) {
            return Ok(());
        }
        Err(
            Error::corrupt("a log ring's file must be a power of two from 4 KiB to 16 GiB long")
                .with("file", name)
                .with("bytes", bytes),
        )
    }
}

/// Ring memory that locks for every copy: what the simulated disk stands behind.
pub(crate) trait RingStore: Send + Sync {
    /// Copies out of the ring; the range lies within it.
    fn read(&self, offset: u64, out: &mut [u8]);
    /// Copies into the ring; the range lies within it.
    fn write(&self, offset: u64, bytes: &[u8]);
}

/// Where a ring's bytes are.
enum Memory {
    Mapped(Mapping),
    Store(Box<dyn RingStore>),
}

impl Memory {
    /// Copies out what lies at `position` and behind it, in two pieces at the ring's end.
    ///
    /// # Safety
    /// `out` is no longer than the ring, and nobody writes that range until this returns.
    unsafe fn copy_out(&self, ring_bytes: u64, position: u64, out: &mut [u8]) {
        let (offset, first) = first_piece(ring_bytes, position, out.len());
        let (head, tail) = out.split_at_mut(first);
        match self {
            Memory::Mapped(mapping) => {
                // SAFETY: both pieces lie within the ring (`first_piece`); the caller answers for
                // writers.
                unsafe {
                    mapping.copy_out(offset as usize, head);
                    mapping.copy_out(0, tail);
                }
            }
            Memory::Store(store) => {
                store.read(offset, head);
                if !tail.is_empty() {
                    store.read(0, tail);
                }
            }
        }
    }

    /// Copies in at `position`, in two pieces at the ring's end.
    ///
    /// # Safety
    /// `bytes` is no longer than the ring, and nobody reads or writes that range until this
    /// returns.
    unsafe fn copy_in(&self, ring_bytes: u64, position: u64, bytes: &[u8]) {
        let (offset, first) = first_piece(ring_bytes, position, bytes.len());
        let (head, tail) = bytes.split_at(first);
        match self {
            Memory::Mapped(mapping) => {
                // SAFETY: both pieces lie within the ring (`first_piece`); the caller answers for
                // others.
                unsafe {
                    mapping.copy_in(offset as usize, head);
                    if !tail.is_empty() {
                        mapping.copy_in(0, tail);
                    }
                }
            }
            Memory::Store(store) => {
                store.write(offset, head);
                let tail = &tail[usize::from(
                    mutant::active("wrapped-record-lacks-byte") && !tail.is_empty(),
                )..];
                if !tail.is_empty() {
                    store.write(0, tail);
                }
            }
        }
    }
}

/// Offset of `position` in the ring, and how many of `count` bytes lie before the ring's end.
fn first_piece(ring_bytes: u64, position: u64, count: usize) -> (u64, usize) {
    let offset = position & (ring_bytes - 1);
    let to_end = usize::try_from(ring_bytes - offset).unwrap_or(usize::MAX);
    (offset, count.min(to_end))
}

/// The range of positions that `count` bytes at `position` cover.
fn range(position: u64, count: usize) -> Range<u64> {
    let Some(end) = position.checked_add(count as u64) else {
        panic!("log positions end at 2^64")
    };
    position..end
}

/// The two positions on cache lines of their own.
#[repr(align(128))]
struct Position(AtomicU64);

struct Positions {
    bytes: u64,
    published: Position,
    freed: Position,
}

/// The log's ring before it is in use: recovery reads it, then it is split into its halves.
pub struct LogRing {
    memory: Memory,
    bytes: u64,
}

impl LogRing {
    /// A ring over a mapped file. `bytes` is a valid ring size and the mapping is that long.
    pub(crate) fn mapped(mapping: Mapping) -> Self {
        let bytes = mapping.bytes() as u64;
        assert!(RingOptions::is_valid_size(bytes), "checked by who maps it");
        LogRing {
            memory: Memory::Mapped(mapping),
            bytes,
        }
    }

    /// A ring over memory that locks for every copy.
    pub(crate) fn stored(store: Box<dyn RingStore>, bytes: u64) -> Self {
        assert!(RingOptions::is_valid_size(bytes), "checked by who opens it");
        LogRing {
            memory: Memory::Store(store),
            bytes,
        }
    }

    /// The ring's size in bytes, a power of two.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies out what the ring holds at positions `position..position + out.len()` (each at its
    /// remainder by the ring's size): for recovery. The bytes are whatever an earlier life left
    /// there (D8). Panics when `out` is longer than the ring.
    pub fn read(&self, position: u64, out: &mut [u8]) {
        assert!(out.len() as u64 <= self.bytes, "longer than the ring");
        // SAFETY: the length is checked; before `split` there is no writer, and the ring file's
        // lock keeps others out.
        unsafe { self.memory.copy_out(self.bytes, position, out) };
    }

    /// One writer half, one reader half and a view of the positions; both positions begin at
    /// `start`.
    #[must_use]
    pub fn split(self, start: u64) -> (RingWriter, RingReader, RingSpace) {
        let memory = Arc::new(self.memory);
        let positions = Arc::new(Positions {
            bytes: self.bytes,
            published: Position(AtomicU64::new(start)),
            freed: Position(AtomicU64::new(start)),
        });
        let writer = RingWriter {
            memory: memory.clone(),
            positions: positions.clone(),
            published: start,
            freed_seen: start,
        };
        let reader = RingReader {
            memory,
            positions: positions.clone(),
            freed: start,
            copy: AlignedBuf::new(),
        };
        (writer, reader, RingSpace { positions })
    }
}

/// The half that appends. The ring's memory and its file's lock are released when both halves are
/// dropped.
pub struct RingWriter {
    memory: Arc<Memory>,
    positions: Arc<Positions>,
    /// Only this half stores the shared position, so this copy is exact.
    published: u64,
    /// What the reader's position was when last looked at; it only grows.
    freed_seen: u64,
}

impl RingWriter {
    /// Copies bytes in, which nobody reads before they are published. They must lie in
    /// `[published, freed + ring size)`, else this panics: who appends waits for room first.
    #[inline]
    pub fn write(&mut self, position: u64, bytes: &[u8]) {
        let range = range(position, bytes.len());
        assert!(
            range.start >= self.published,
            "written below what was published"
        );
        self.assert_room(range.end);
        // SAFETY: the range lies in `[published, freed + size)`: no longer than the ring; the only
        // reader stays below `published`, which only this half moves; and there is no other writer.
        unsafe { self.memory.copy_in(self.positions.bytes, position, bytes) };
    }

    /// Lets the reader see everything below `upto`. It must not go back nor beyond
    /// `freed + ring size`, else this panics.
    #[inline]
    pub fn publish(&mut self, upto: u64) {
        assert!(upto >= self.published, "published position went back");
        self.assert_room(upto);
        self.published = upto;
        self.positions.published.0.store(upto, Ordering::Release);
    }

    #[inline]
    fn assert_room(&mut self, end: u64) {
        // `end - freed` instead of `freed + size`: the sum could pass 2^64.
        // `freed <= published <= end` holds.
        if end.wrapping_sub(self.freed_seen) > self.positions.bytes {
            self.freed_seen = self.positions.freed.0.load(Ordering::Acquire);
            assert!(
                end.wrapping_sub(self.freed_seen) <= self.positions.bytes,
                "written over what was not freed"
            );
        }
    }
}

/// The half that drains.
pub struct RingReader {
    memory: Arc<Memory>,
    positions: Arc<Positions>,
    /// Only this half stores the shared position, so this copy is exact.
    freed: u64,
    /// What is lent of memory that can only be copied.
    copy: AlignedBuf,
}

impl RingReader {
    /// Copies published bytes out. They must lie in `[freed, published)`, else this panics.
    pub fn read(&mut self, position: u64, out: &mut [u8]) {
        self.assert_readable(position, out.len());
        // SAFETY: the range lies in `[freed, published)`: no longer than the ring, and the writer
        // stays out of it until this half moves `freed`.
        unsafe { self.memory.copy_out(self.positions.bytes, position, out) };
    }

    /// Published bytes where they lie, for a write to a file: `count` of them, or fewer where the
    /// ring's end comes before. They must lie in `[freed, published)`, else this panics. A
    /// simulated ring lends a copy.
    pub fn lend(&mut self, position: u64, count: usize) -> &[u8] {
        self.assert_readable(position, count);
        let (offset, first) = first_piece(self.positions.bytes, position, count);
        match &*self.memory {
            Memory::Mapped(mapping) => {
                let offset = offset as usize;
                // SAFETY: the range lies within the ring (`first_piece`) and in
                // `[freed, published)`, which the writer stays out of until this half moves
                // `freed`; that takes `&mut self`, which the slice borrows.
                unsafe { mapping.bytes_of(offset..offset + first) }
            }
            Memory::Store(store) => {
                self.copy.resize(first, 0);
                store.read(offset, &mut self.copy);
                &self.copy
            }
        }
    }

    fn assert_readable(&self, position: u64, count: usize) {
        let range = range(position, count);
        let published = self.positions.published.0.load(Ordering::Acquire);
        assert!(range.start >= self.freed, "read below what was freed");
        assert!(range.end <= published, "read beyond what was published");
    }

    /// Gives everything below `upto` back to the writer. It must not go back nor beyond what was
    /// published, else this panics.
    pub fn free(&mut self, upto: u64) {
        assert!(upto >= self.freed, "freed position went back");
        let published = self.positions.published.0.load(Ordering::Acquire);
        assert!(upto <= published, "freed beyond what was published");
        self.freed = upto;
        self.positions.freed.0.store(upto, Ordering::Release);
    }
}

/// The ring's two positions for everyone: conditions and metrics test them. Holds neither memory
/// nor lock.
#[derive(Clone)]
pub struct RingSpace {
    positions: Arc<Positions>,
}

impl RingSpace {
    /// Everything below this position may be read.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.positions.published.0.load(Ordering::Acquire)
    }

    /// Everything below this position may be overwritten.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.positions.freed.0.load(Ordering::Acquire)
    }

    /// The ring's size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.positions.bytes
    }
}
