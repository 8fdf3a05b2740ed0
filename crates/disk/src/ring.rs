//! The log's shared memory with a safe interface: one writer, one reader, and two positions.
//!
//! A position is a log sequence number. Its offset in the ring is its remainder by the ring's size.
//! Invariants:
//!
//! - `freed <= published <= freed + bytes` holds at any moment.
//! - The reader accesses `[freed, published)` only, and it alone moves `freed`, forward.
//! - The writer accesses `[published, freed + bytes)` only, and it alone moves `published`,
//!   forward.
//!
//! So no byte is written while it is read. The halves check these bounds at run time and panic
//! outside them: a violation is a bug in the log.
//!
//! Each half stores its position with Release after its copies, and loads the other position with
//! Acquire before its copies. The memory is a shared mapping of the ring file. So what was copied
//! in survives the process (docs/DURABILITY.md), but not a power cut.

use std::ops::Range;

use terrapin_base::sync::{Arc, AtomicU64, Ordering};
use terrapin_base::{Error, Result, mutant};

use crate::AlignedBuf;
use crate::real::Mapping;

/// Smallest size of a ring in bytes.
pub const RING_BYTES_MIN: u64 = 4096;
/// Largest size of a ring in bytes. A larger ring file is refused.
pub const RING_BYTES_MAX: u64 = 16 << 30;

/// How a ring file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// The ring's size in bytes: a power of two, [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`]. Used for
    /// creation only; an existing ring has the size of its file.
    pub bytes: u64,
    /// Create the file. An existing file is an error.
    pub create: bool,
}

impl RingOptions {
    /// Whether a ring can have this size.
    #[must_use]
    pub fn is_valid_size(bytes: u64) -> bool {
        bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
    }

    /// Refuses an invalid size in options ([`terrapin_base::ErrorKind::InvalidArgument`]).
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

    /// Refuses an invalid size of a ring file ([`terrapin_base::ErrorKind::Corrupt`], D8).
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

/// Ring memory that takes a lock for every copy. The simulated disk implements it.
pub(crate) trait RingStore: Send + Sync {
    /// Copies out of the ring. The range must be within the ring.
    fn read(&self, offset: u64, out: &mut [u8]);
    /// Copies into the ring. The range must be within the ring.
    fn write(&self, offset: u64, bytes: &[u8]);
}

/// The memory of a ring.
enum Memory {
    Mapped(Mapping),
    Store(Box<dyn RingStore>),
}

impl Memory {
    /// Copies out from `position` on, in two pieces if the range wraps around.
    ///
    /// # Safety
    /// `out` is no longer than the ring, and no thread writes that range until this returns.
    unsafe fn copy_out(&self, ring_bytes: u64, position: u64, out: &mut [u8]) {
        let (offset, first) = first_piece(ring_bytes, position, out.len());
        let (head, tail) = out.split_at_mut(first);
        match self {
            Memory::Mapped(mapping) => {
                // SAFETY: both pieces are within the ring (`first_piece`). The caller excludes
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

    /// Copies in from `position` on, in two pieces if the range wraps around.
    ///
    /// # Safety
    /// `bytes` is no longer than the ring, and no thread reads or writes that range until this
    /// returns.
    unsafe fn copy_in(&self, ring_bytes: u64, position: u64, bytes: &[u8]) {
        let (offset, first) = first_piece(ring_bytes, position, bytes.len());
        let (head, tail) = bytes.split_at(first);
        match self {
            Memory::Mapped(mapping) => {
                // SAFETY: both pieces are within the ring (`first_piece`). The caller excludes
                // other accesses.
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

/// Offset of `position` in the ring, and how many of `count` bytes precede the ring's end.
fn first_piece(ring_bytes: u64, position: u64, count: usize) -> (u64, usize) {
    let offset = position & (ring_bytes - 1);
    let to_end = usize::try_from(ring_bytes - offset).unwrap_or(usize::MAX);
    (offset, count.min(to_end))
}

/// The positions of `count` bytes from `position` on.
fn range(position: u64, count: usize) -> Range<u64> {
    let Some(end) = position.checked_add(count as u64) else {
        panic!("log positions end at 2^64")
    };
    position..end
}

/// A position on its own cache lines.
#[repr(align(128))]
struct Position(AtomicU64);

struct Positions {
    bytes: u64,
    published: Position,
    freed: Position,
}

/// The log's ring before use. Recovery reads it, then splits it into its halves.
pub struct LogRing {
    memory: Memory,
    bytes: u64,
}

impl LogRing {
    /// A ring over a mapped file. The mapping's length must be a valid ring size.
    pub(crate) fn mapped(mapping: Mapping) -> Self {
        let bytes = mapping.bytes() as u64;
        assert!(
            RingOptions::is_valid_size(bytes),
            "invalid size of a mapped ring"
        );
        LogRing {
            memory: Memory::Mapped(mapping),
            bytes,
        }
    }

    /// A ring over memory that takes a lock for every copy.
    pub(crate) fn stored(store: Box<dyn RingStore>, bytes: u64) -> Self {
        assert!(
            RingOptions::is_valid_size(bytes),
            "invalid size of a stored ring"
        );
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

    /// Copies out the bytes at positions `position..position + out.len()`, for recovery.
    ///
    /// An earlier life left these bytes, so they may be anything (D8). Panics if `out` is longer
    /// than the ring.
    pub fn read(&self, position: u64, out: &mut [u8]) {
        assert!(out.len() as u64 <= self.bytes, "longer than the ring");
        // SAFETY: the length is checked. Before `split` there is no writer, and the lock of the
        // ring file excludes other processes.
        unsafe { self.memory.copy_out(self.bytes, position, out) };
    }

    /// Splits the ring into its writer, its reader and a view of the positions. Both positions
    /// start at `start`.
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

/// The half that appends. When both halves are dropped, the ring's memory and the file's lock are
/// released.
pub struct RingWriter {
    memory: Arc<Memory>,
    positions: Arc<Positions>,
    /// An exact copy of the shared position, since only this half stores it.
    published: u64,
    /// The reader's position when it was last loaded. The real one may be larger.
    freed_seen: u64,
}

impl RingWriter {
    /// Copies bytes in. No reader sees them before [`RingWriter::publish`].
    ///
    /// Panics unless they fit into `[published, freed + ring size)`. The caller waits for room
    /// first.
    #[inline]
    pub fn write(&mut self, position: u64, bytes: &[u8]) {
        let range = range(position, bytes.len());
        assert!(
            range.start >= self.published,
            "written below what was published"
        );
        self.assert_room(range.end);
        // SAFETY: the range is within `[published, freed + size)`, so it is no longer than the
        // ring. The only reader stays below `published`, which only this half moves. There is no
        // other writer.
        unsafe { self.memory.copy_in(self.positions.bytes, position, bytes) };
    }

    /// Lets the reader see everything below `upto`. Panics if `upto` is lower than before or beyond
    /// `freed + ring size`.
    #[inline]
    pub fn publish(&mut self, upto: u64) {
        assert!(upto >= self.published, "published position went back");
        self.assert_room(upto);
        self.published = upto;
        self.positions.published.0.store(upto, Ordering::Release);
    }

    #[inline]
    fn assert_room(&mut self, end: u64) {
        // `end - freed` instead of `freed + size`, since the sum could pass 2^64. The invariant
        // `freed <= published <= end` makes the difference valid.
        if end.wrapping_sub(self.freed_seen) > self.positions.bytes {
            self.freed_seen = self.positions.freed.0.load(Ordering::Acquire);
            assert!(
                end.wrapping_sub(self.freed_seen) <= self.positions.bytes,
                "written over what was not freed"
            );
        }
    }
}

/// The half that drains the ring.
pub struct RingReader {
    memory: Arc<Memory>,
    positions: Arc<Positions>,
    /// An exact copy of the shared position, since only this half stores it.
    freed: u64,
    /// Buffer for bytes of a simulated ring, which cannot be borrowed.
    copy: AlignedBuf,
}

impl RingReader {
    /// Copies published bytes out. Panics unless they are within `[freed, published)`.
    pub fn read(&mut self, position: u64, out: &mut [u8]) {
        self.assert_readable(position, out.len());
        // SAFETY: the range is within `[freed, published)`, so it is no longer than the ring. The
        // writer does not access it before this half moves `freed`.
        unsafe { self.memory.copy_out(self.positions.bytes, position, out) };
    }

    /// Borrows `count` published bytes, for a write to a file.
    ///
    /// Returns fewer bytes if the ring's end comes first. Panics unless they are within `[freed,
    /// published)`. A simulated ring returns a copy.
    pub fn lend(&mut self, position: u64, count: usize) -> &[u8] {
        self.assert_readable(position, count);
        let (offset, first) = first_piece(self.positions.bytes, position, count);
        match &*self.memory {
            Memory::Mapped(mapping) => {
                let offset = offset as usize;
                // SAFETY: the range is within the ring (`first_piece`) and within `[freed,
                // published)`. The writer does not access it before this half moves `freed`, which
                // takes `&mut self`, and the slice borrows `self`.
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

    /// Lets the writer overwrite everything below `upto`. Panics if `upto` is lower than before or
    /// beyond what was published.
    pub fn free(&mut self, upto: u64) {
        assert!(upto >= self.freed, "freed position went back");
        let published = self.positions.published.0.load(Ordering::Acquire);
        assert!(upto <= published, "freed beyond what was published");
        self.freed = upto;
        self.positions.freed.0.store(upto, Ordering::Release);
    }
}

/// A view of the ring's two positions, for conditions and metrics. It holds neither memory nor
/// lock.
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
