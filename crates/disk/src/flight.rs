//! Reads under way. A [`Flight`] owns the memory that its reads fill, so a caller may hand some to
//! the device, do other work meanwhile, and look at each when it needs it; who drops it waits until
//! the device is done with that memory.
//!
//! The memory is taken from front to back and around, in the order of the reads, and is free again
//! once a read and all before it were shown.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use terrapin_base::{MEMORY_ALIGNMENT, Result};

use crate::AlignedBuf;
use crate::real::{NoRing, Uring};

/// Fewest and most reads that are waited for together, as each wait costs what several reads do,
const TOGETHER: std::ops::RangeInclusive<usize> = 4..=16;
/// and which part of those under way: what has come is looked at while the device works on the
/// others.
const PARTS: usize = 4;

/// Which reads [`crate::File::show`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// The oldest that was not shown, and no other.
    Oldest,
    /// Those that complete first, one or more.
    Some,
}

/// Told the number of a read that is over, and its bytes, or what is wrong with it.
pub type Shown<'d> = &'d mut dyn FnMut(u64, Result<&[u8]>);

/// Reads into this memory at that offset: what one read is done with at the caller's own time.
pub(crate) type ReadNow<'r> = &'r mut dyn FnMut(&mut [u8], u64) -> Result<()>;

/// Reads that own the memory that they fill. They are numbered as they are added, from 0.
#[derive(Default)]
pub struct Flight {
    /// Dropped first: that waits for what is under way, which goes to the memory.
    ring: Option<Uring>,
    /// Its content is reached by pointer only, since the kernel may write there.
    memory: AlignedBuf,
    /// From the oldest that was not shown on.
    reads: VecDeque<Wanted>,
    /// The number of the first of these.
    first: u64,
    /// How many of these were looked at by [`crate::File::start`].
    started: usize,
    /// How many of these were not shown.
    left: usize,
    /// Those that the ring has read, and perhaps some that were shown.
    over: Vec<u64>,
    /// There is none to be had.
    ringless: bool,
    /// See [`Flight::cached`].
    cached: bool,
}

/// A read, and where in memory its bytes go.
struct Wanted {
    offset: u64,
    at: usize,
    bytes: usize,
    state: State,
}

enum State {
    /// Nobody began it.
    Waiting,
    /// In the ring.
    Flying,
    /// The ring does not take it, or did not do it: it is read when it is to be shown.
    Alone,
    Over(Result<()>),
    Shown,
}

impl Flight {
    /// A flight into this memory: as much as it has capacity for.
    #[must_use]
    pub fn new(memory: AlignedBuf) -> Self {
        Flight {
            memory,
            ..Flight::default()
        }
    }

    /// Whether its reads are of bytes that may be asked for again: as
    /// [`crate::File::read_cached_at`]. Default false.
    #[must_use]
    pub fn cached(mut self, on: bool) -> Self {
        self.cached = on;
        self
    }

    /// See [`Flight::cached`].
    pub(crate) fn is_cached(&self) -> bool {
        self.cached
    }

    /// The memory, once nothing is under way. What was not shown is forgotten.
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

    /// Whether a read of so many bytes can be added before others are shown.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.room_for(bytes).is_some()
    }

    /// Adds a read of so many bytes of a file; its number, or none when there is no room for it
    /// before others are shown.
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

    /// Bytes of memory that a read of so many takes.
    fn room_of(bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(MEMORY_ALIGNMENT)
    }

    /// Where there is free memory for a read of so many bytes.
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

    /// Does at once what nobody began.
    pub(crate) fn read_waiting(&mut self, read: ReadNow<'_>) {
        for wanted in self.reads.range_mut(self.started..) {
            wanted.read(&mut self.memory, read);
        }
        self.started = self.reads.len();
    }

    /// How many reads nobody began.
    pub(crate) fn waiting(&self) -> usize {
        self.reads.len() - self.started
    }

    /// Whether there is nothing but one read that nobody began, which needs no ring unless its
    /// caller does something else meanwhile.
    pub(crate) fn is_lone(&self) -> bool {
        self.left == 1 && self.waiting() == 1
    }

    /// Puts what nobody began into the ring, as far as there is room: the kernel learns of it when
    /// it is entered. `takes` says whether a read can go there: its memory, offset and bytes.
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
                // Those that others have now may be free when the next reads come.
                Err(none) => self.ringless = none == NoRing::Here,
            }
        }
        while let Some(wanted) = self.reads.get_mut(self.started) {
            let start = wanted.start(&self.memory);
            wanted.state = match &mut self.ring {
                Some(ring) if takes(start.as_ptr(), wanted.offset, wanted.bytes) => {
                    let number = self.first + self.started as u64;
                    let (offset, bytes) = (wanted.offset, wanted.bytes);
                    // SAFETY: `room_for` gave this memory to no other read that is not shown,
                    // nobody looks there before the ring says that the read is over, and the ring
                    // is dropped before the memory is.
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

    /// Has the kernel begin what was put into the ring.
    pub(crate) fn submit(&mut self) {
        self.enter(0);
    }

    /// Lets the kernel work until so many reads of the ring are over, and takes note of those that
    /// are.
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
            // It has nothing under way any more; what it did not take goes with it.
            self.ring = None;
            self.ringless = true;
            for wanted in &mut self.reads {
                if matches!(wanted.state, State::Flying) {
                    wanted.state = State::Alone;
                }
            }
        }
    }

    /// Shows reads that [`crate::File::start`] began, once they are over; `read` does those that
    /// were left to it.
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
                // Read already, or left to be read here.
                let wants = |wanted: &Wanted| !matches!(wanted.state, State::Shown);
                let Some(at) = self.reads.iter().position(wants) else {
                    return;
                };
                self.show_one(self.first + at as u64, read, shown);
            }
        }
    }

    /// Shows a read that is not in the ring, unless it was shown.
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
    /// Where its memory starts.
    fn start(&self, memory: &AlignedBuf) -> NonNull<u8> {
        // SAFETY: `Flight::room_for` found the place within the memory.
        unsafe { memory.start().add(self.at) }
    }

    /// Its memory, while it is in no ring.
    fn content<'m>(&self, memory: &'m mut AlignedBuf) -> &'m mut [u8] {
        debug_assert!(!matches!(self.state, State::Flying));
        // SAFETY: so many bytes from there on lie within the memory, all of which is initialised;
        // no other read has them, and as this one is in no ring the kernel writes nothing there.
        // The flight is borrowed as long as the bytes are.
        unsafe { std::slice::from_raw_parts_mut(self.start(memory).as_ptr(), self.bytes) }
    }

    /// Reads it here and now.
    fn read(&mut self, memory: &mut AlignedBuf, read: ReadNow<'_>) {
        let done = read(self.content(memory), self.offset);
        self.state = State::Over(done);
    }
}
