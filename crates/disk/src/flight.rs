//! Reads in flight: a caller starts several reads of one file and works until it needs one.
//!
//! A [`Flight`] owns the memory that its reads fill. Dropping it waits until the device no longer
//! uses that memory. The memory is a circular buffer: reads take it in order, and it is free again
//! once a read and all earlier reads were shown.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use terrapin_base::{MEMORY_ALIGNMENT, Result};

use crate::AlignedBuf;
use crate::real::{NoRing, Uring};

/// Fewest and most reads to wait for at once, since one wait costs as much as several reads.
const TOGETHER: std::ops::RangeInclusive<usize> = 4..=16;
/// The part of the flying reads to wait for at once, as a divisor. The caller handles these while
/// the device works on the others.
const PARTS: usize = 4;

/// Which reads [`crate::File::show`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Only the oldest read that was not shown.
    Oldest,
    /// One or more reads, those that complete first.
    Some,
}

/// Receives a completed read: its number, and its bytes or error.
pub type Shown<'d> = &'d mut dyn FnMut(u64, Result<&[u8]>);

/// Reads from an offset into memory, while the caller waits.
pub(crate) type ReadNow<'r> = &'r mut dyn FnMut(&mut [u8], u64) -> Result<()>;

/// Reads that own the memory that they fill. Their numbers count from 0 in the order of adding.
#[derive(Default)]
pub struct Flight {
    /// The first field, so that it is dropped first: that waits for reads into `memory`.
    ring: Option<Uring>,
    /// Accessed only through pointers, since the kernel may write there.
    memory: AlignedBuf,
    /// All reads from the oldest one that was not shown.
    reads: VecDeque<Wanted>,
    /// The number of the first read in `reads`.
    first: u64,
    /// How many of `reads` were started.
    started: usize,
    /// How many of `reads` were not shown.
    left: usize,
    /// Numbers of reads that the ring completed. Some of them may have been shown.
    over: Vec<u64>,
    /// The system refused a ring, so this flight asks for none again.
    ringless: bool,
    /// Whether reads use the kernel's page cache.
    cached: bool,
}

/// One read, and the part of memory that it fills.
struct Wanted {
    offset: u64,
    at: usize,
    bytes: usize,
    state: State,
}

enum State {
    /// Not started.
    Waiting,
    /// In the ring.
    Flying,
    /// Refused or failed by the ring. The flight reads it when it is shown.
    Alone,
    Over(Result<()>),
    Shown,
}

impl Flight {
    /// A flight that reads into this memory, up to its capacity.
    #[must_use]
    pub fn new(memory: AlignedBuf) -> Self {
        Flight {
            memory,
            ..Flight::default()
        }
    }

    /// Sets whether reads use the kernel's page cache, like [`crate::File::read_cached_at`]. The
    /// default is `false`.
    #[must_use]
    pub fn cached(mut self, on: bool) -> Self {
        self.cached = on;
        self
    }

    /// Whether reads use the kernel's page cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached
    }

    /// Waits for all reads in flight and returns the memory. Reads that were not shown are lost.
    #[must_use]
    pub fn into_memory(self) -> AlignedBuf {
        drop(self.ring);
        self.memory
    }

    /// Whether every read was shown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Whether a read of `bytes` can be added now.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.room_for(bytes).is_some()
    }

    /// Adds a read and returns its number. Returns `None` if other reads must be shown first to
    /// free memory.
    pub fn push(&mut self, offset: u64, bytes: usize) -> Option<u64> {
        let at = self.room_for(bytes)?;
        let number = self.first + self.reads.len() as u64;
        self.reads.push_back(Wanted {
            offset,
            at,
            bytes,
            state: State::Waiting,
        });
        self.left += 1;
        Some(number)
    }

    /// Memory in bytes that a read of `bytes` takes.
    fn room_of(bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(MEMORY_ALIGNMENT)
    }

    /// Offset of free memory for a read of `bytes`.
    fn room_for(&self, bytes: usize) -> Option<usize> {
        let bytes = Self::room_of(bytes)?;
        let capacity = self.memory.capacity();
        let (Some(oldest), Some(newest)) = (self.reads.front(), self.reads.back()) else {
            return (bytes <= capacity).then_some(0);
        };
        let end = newest.at + Self::room_of(newest.bytes)?;
        if newest.at < oldest.at {
            return (oldest.at - end >= bytes).then_some(end);
        }
        if capacity - end >= bytes {
            return Some(end);
        }
        (oldest.at >= bytes).then_some(0)
    }

    /// Reads everything that was not started, while the caller waits.
    pub(crate) fn read_waiting(&mut self, read: ReadNow<'_>) {
        for wanted in self.reads.range_mut(self.started..) {
            wanted.read(&mut self.memory, read);
        }
        self.started = self.reads.len();
    }

    /// Number of reads that were not started.
    pub(crate) fn waiting(&self) -> usize {
        self.reads.len() - self.started
    }

    /// Whether only one read is left and it was not started. Such a read needs no ring if its
    /// caller waits for it at once.
    pub(crate) fn is_lone(&self) -> bool {
        self.left == 1 && self.waiting() == 1
    }

    /// Puts reads that were not started into the ring, as far as it has room. The kernel sees them
    /// when the ring is entered. `takes` says whether a read can go there: its memory, offset and
    /// bytes.
    pub(crate) fn queue(
        &mut self,
        descriptor: BorrowedFd<'_>,
        takes: impl Fn(*const u8, u64, usize) -> bool,
    ) {
        if self.waiting() == 0 {
            return;
        }
        if self.ring.is_none() && !self.ringless {
            match Uring::take() {
                Ok(ring) => self.ring = Some(ring),
                // A ring that another flight uses now may be free for the next reads.
                Err(none) => self.ringless = none == NoRing::Here,
            }
        }
        while let Some(wanted) = self.reads.get_mut(self.started) {
            let start = wanted.start(&self.memory);
            wanted.state = match &mut self.ring {
                Some(ring) if takes(start.as_ptr(), wanted.offset, wanted.bytes) => {
                    let number = self.first + self.started as u64;
                    let (offset, bytes) = (wanted.offset, wanted.bytes);
                    // SAFETY: `room_for` gave this memory to no other read that is not shown. No
                    // code accesses it before the ring says that the read is over. The ring is
                    // dropped before the memory.
                    if !unsafe { ring.push(descriptor, start, bytes, offset, number) } {
                        break;
                    }
                    State::Flying
                }
                _ => State::Alone,
            };
            self.started += 1;
        }
    }

    /// Starts the reads in the ring.
    pub(crate) fn submit(&mut self) {
        self.enter(0);
    }

    /// Waits until `count` reads of the ring are over, and records all that are over.
    fn enter(&mut self, count: usize) {
        let Some(ring) = &mut self.ring else { return };
        let sound = ring.enter(count);
        while let Some((number, read)) = ring.complete() {
            let wanted = number
                .checked_sub(self.first)
                .and_then(|at| self.reads.get_mut(at as usize));
            let Some(wanted) = wanted else { continue };
            wanted.state = match read {
                Some(bytes) if bytes >= wanted.bytes => State::Over(Ok(())),
                _ => State::Alone,
            };
            self.over.push(number);
        }
        if !sound {
            // The ring has nothing in flight, and reads that it refused are lost with it.
            self.ring = None;
            self.ringless = true;
            for wanted in &mut self.reads {
                if matches!(wanted.state, State::Flying) {
                    wanted.state = State::Alone;
                }
            }
        }
    }

    /// Shows reads after waiting for them. `read` does the reads that the ring did not do.
    pub(crate) fn show(&mut self, which: Show, read: ReadNow<'_>, shown: Shown<'_>) {
        if self.left == 0 {
            return;
        }
        match which {
            Show::Oldest => {
                let flying = |wanted: &Wanted| matches!(wanted.state, State::Flying);
                while self.reads.front().is_some_and(flying) {
                    self.enter(1);
                }
                self.show_one(self.first, read, shown);
                let first = self.first;
                self.over.retain(|&number| number >= first);
            }
            Show::Some => self.show_some(read, shown),
        }
    }

    fn show_some(&mut self, read: ReadNow<'_>, shown: Shown<'_>) {
        let before = self.left;
        while self.left == before {
            let flying = self.ring.as_ref().map_or(0, Uring::flying);
            if self.over.is_empty() && flying > 0 {
                let part = flying.div_ceil(PARTS);
                self.enter(part.clamp(*TOGETHER.start(), *TOGETHER.end()).min(flying));
            }
            while let Some(number) = self.over.pop() {
                self.show_one(number, read, shown);
            }
            if flying == 0 && self.left == before {
                // The read is done, or the ring did not take it.
                let wants = |wanted: &Wanted| !matches!(wanted.state, State::Shown);
                let Some(at) = self.reads.iter().position(wants) else {
                    return;
                };
                self.show_one(self.first + at as u64, read, shown);
            }
        }
    }

    /// Shows a read that is not in the ring, unless it was shown before.
    fn show_one(&mut self, number: u64, read: ReadNow<'_>, shown: Shown<'_>) {
        let wanted = number
            .checked_sub(self.first)
            .and_then(|at| self.reads.get_mut(at as usize));
        let Some(wanted) = wanted else { return };
        if let State::Waiting | State::Alone = wanted.state {
            wanted.read(&mut self.memory, read);
        }
        let bytes = match std::mem::replace(&mut wanted.state, State::Shown) {
            State::Over(Ok(())) => Ok(&*wanted.content(&mut self.memory)),
            State::Over(Err(error)) => Err(error),
            _ => return,
        };
        self.left -= 1;
        shown(number, bytes);
        while let Some(State::Shown) = self.reads.front().map(|wanted| &wanted.state) {
            self.reads.pop_front();
            self.first += 1;
            self.started = self.started.saturating_sub(1);
        }
    }
}

impl Wanted {
    /// Start of the read's memory.
    fn start(&self, memory: &AlignedBuf) -> NonNull<u8> {
        // SAFETY: `Flight::room_for` found this offset within the memory.
        unsafe { memory.start().add(self.at) }
    }

    /// The read's memory. The read must not be in the ring.
    fn content<'m>(&self, memory: &'m mut AlignedBuf) -> &'m mut [u8] {
        debug_assert!(!matches!(self.state, State::Flying));
        // SAFETY: these bytes are within the memory, which is initialised. No other read has them.
        // This read is in no ring, so the kernel does not write there. The result borrows the
        // flight's memory.
        unsafe { std::slice::from_raw_parts_mut(self.start(memory).as_ptr(), self.bytes) }
    }

    /// Does the read now.
    fn read(&mut self, memory: &mut AlignedBuf, read: ReadNow<'_>) {
        let done = read(self.content(memory), self.offset);
        self.state = State::Over(done);
    }
}
