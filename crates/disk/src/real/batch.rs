//! Many reads at once through io_uring: one ring a thread, made when the thread first needs it. So many are in flight, and
//! each that completes makes room for the next, and is shown to the caller while the device works on the others.
//!
//! A read in flight writes into borrowed memory, so this never returns, and never unwinds, before every read that the kernel took has
//! completed ([`Flight`]). A kernel that refuses io_uring (old, or by a seccomp filter) is asked once; from then on reads go
//! one by one. Whatever is odd about a single read (off the device's bounds, cut short, interrupted, refused) is left to `pread`, which does it
//! again and says what is wrong.

use std::cell::Cell;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use terrapin_base::sync::{AtomicBool, Ordering};
use terrapin_base::{Error, Result};

use super::file::RealFile;
use crate::Read;

/// Reads in flight at once.
const DEPTH: usize = 64;
/// So many are handed to the kernel together, if there are so many, and waited for together: each time costs what several reads do.
const TOGETHER: usize = 16;
/// How often a submission that the kernel puts off is repeated before the ring is given up.
const PATIENCE: u32 = 1000;

/// Whether the kernel refused io_uring: then it is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Taken while in use: a batch within a batch has a ring of its own.
    static RING: Cell<Option<IoUring>> = const { Cell::new(None) };
}

/// Told the number of a read that is done, and its bytes.
type Done<'d> = &'d mut dyn FnMut(usize, &[u8]);

/// Does all reads; the first error of them, in their order.
pub(super) fn read(file: &RealFile, reads: &mut [Read<'_>], done: Done<'_>) -> Result<()> {
    let mut batch = Batch {
        file,
        reads,
        done,
        next: 0,
        left: Vec::new(),
        failed: None,
    };
    let ring = match batch.reads.len() {
        0 | 1 => None,
        _ => RING.take().or_else(make_ring),
    };
    if let Some(mut ring) = ring
        && batch.run(&mut ring)
    {
        RING.set(Some(ring));
    }
    batch.read_left();
    batch.failed.map_or(Ok(()), |(_, error)| Err(error))
}

fn make_ring() -> Option<IoUring> {
    if REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    let entries = DEPTH as u32;
    // Completions need no interrupt of this thread, since it waits for them; kernels before 5.19 do not know that flag.
    let made = IoUring::builder().setup_coop_taskrun().build(entries);
    match made.or_else(|_| IoUring::new(entries)) {
        Ok(ring) => Some(ring),
        Err(e) => {
            // Too many open files may pass; anything else will not.
            let passing = [Errno::MFILE, Errno::NFILE, Errno::INTR].map(Errno::raw_os_error);
            if !e.raw_os_error().is_some_and(|n| passing.contains(&n)) {
                REFUSED.store(true, Ordering::Relaxed);
                tracing::info!(error = %e, "no io_uring here, batches of reads go one by one");
            }
            None
        }
    }
}

/// What the kernel said of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It is in the caller's memory.
    Done,
    /// Something odd: `pread` does it again.
    Odd,
    /// Failed with that error number.
    Failed(i32),
}

fn said(result: i32, wanted: usize) -> Said {
    match usize::try_from(result) {
        Ok(count) if count >= wanted => Said::Done,
        Ok(_) => Said::Odd,
        Err(_) => {
            let number = result.wrapping_neg();
            let odd = [
                Errno::INTR,
                Errno::AGAIN,
                Errno::INVAL,
                Errno::OPNOTSUPP,
                Errno::CANCELED,
            ];
            if odd.iter().any(|e| e.raw_os_error() == number) {
                Said::Odd
            } else {
                Said::Failed(number)
            }
        }
    }
}

/// The reads of a call, and how far they are.
struct Batch<'b, 'm> {
    file: &'b RealFile,
    reads: &'b mut [Read<'m>],
    done: Done<'b>,
    /// The first that was not looked at.
    next: usize,
    /// Those before it that are left to `pread`.
    left: Vec<usize>,
    /// The first in order that failed.
    failed: Option<(usize, Error)>,
}

/// A ring with reads in it. Dropped only when the kernel has completed all that it took.
struct Flight<'r> {
    ring: &'r mut IoUring,
    /// The reads in it, by their slots; a bit for each slot in use.
    numbers: [usize; DEPTH],
    used: u64,
}

const _: () = assert!(DEPTH == u64::BITS as usize);

impl Batch<'_, '_> {
    /// Has the kernel do as many as it takes. `false` when the ring must be dropped, because reads that it did not take are still
    /// queued in it.
    fn run(&mut self, ring: &mut IoUring) -> bool {
        let mut flight = Flight {
            ring,
            numbers: [0; DEPTH],
            used: 0,
        };
        let mut patience = PATIENCE;
        loop {
            if flight.used.count_zeros() as usize >= TOGETHER {
                self.push(&mut flight);
            }
            let waits = (flight.used.count_ones() as usize).min(TOGETHER);
            if waits == 0 {
                return true;
            }
            let outcome = flight.ring.submit_and_wait(waits);
            let completed = self.reap(&mut flight);
            let Err(e) = outcome else { continue };
            match e.raw_os_error() {
                Some(number) if number == Errno::INTR.raw_os_error() => continue,
                // Short of memory, or of room for completions: it gets better as reads complete.
                Some(number)
                    if number == Errno::AGAIN.raw_os_error()
                        || number == Errno::BUSY.raw_os_error() =>
                {
                    if completed > 0 {
                        continue;
                    }
                    patience -= 1;
                    std::thread::yield_now();
                    if patience > 0 {
                        continue;
                    }
                }
                _ => {}
            }
            while flight.in_flight() > 0 {
                std::thread::yield_now();
                self.reap(&mut flight);
            }
            // What is still queued is given up with the ring.
            let sound = flight.used == 0;
            while let Some(number) = flight.take(flight.used.trailing_zeros() as usize) {
                self.left.push(number);
            }
            return sound;
        }
    }

    /// Fills the ring up.
    fn push(&mut self, flight: &mut Flight<'_>) {
        let descriptor = types::Fd(self.file.descriptor.as_raw_fd());
        while flight.used != u64::MAX
            && let Some(read) = self.reads.get_mut(self.next)
        {
            let wanted = read.buffer.len();
            let end = read.offset.checked_add(wanted as u64);
            let possible = (1..=1 << 30).contains(&wanted)
                && end.is_some_and(|end| end <= 1 << 62)
                && self.file.takes(read.buffer.as_ptr(), read.offset, wanted);
            if !possible {
                self.left.push(self.next);
                self.next += 1;
                continue;
            }
            let slot = flight.used.trailing_ones() as usize;
            let entry = opcode::Read::new(descriptor, read.buffer.as_mut_ptr(), wanted as u32)
                .offset(read.offset)
                .build()
                .user_data(slot as u64);
            // SAFETY: the descriptor and the memory are borrowed, the memory uniquely, by our caller until `run` is left, by a return or by
            // unwinding; nobody touches the memory before the read was completed, and `flight` is not dropped before
            // every read has been that the kernel took. What it did not take is never submitted, since the ring is dropped then.
            if unsafe { flight.ring.submission().push(&entry) }.is_err() {
                return; // cannot be: the queue has a place for each slot
            }
            flight.numbers[slot] = self.next;
            flight.used |= 1 << slot;
            self.next += 1;
        }
    }

    /// Takes completions, and shows what was read; returns how many.
    fn reap(&mut self, flight: &mut Flight<'_>) -> usize {
        let mut count = 0;
        while let Some((number, result)) = flight.complete() {
            count += 1;
            let Some(number) = number else { continue };
            let read = &self.reads[number];
            match said(result, read.buffer.len()) {
                Said::Done => (self.done)(number, read.buffer),
                Said::Odd => self.left.push(number),
                Said::Failed(code) => {
                    let error = std::io::Error::from_raw_os_error(code);
                    let error = Error::io("cannot read", error)
                        .with("file", &self.file.path)
                        .with("offset", read.offset)
                        .with("bytes", read.buffer.len());
                    self.fail(number, error);
                }
            }
        }
        count
    }

    /// Reads one by one what was left to that.
    fn read_left(&mut self) {
        for number in std::mem::take(&mut self.left)
            .into_iter()
            .chain(self.next..self.reads.len())
        {
            let read = &mut self.reads[number];
            match self.file.read_exactly(read.buffer, read.offset) {
                Ok(()) => (self.done)(number, read.buffer),
                Err(error) => self.fail(number, error),
            }
        }
    }

    fn fail(&mut self, number: usize, error: Error) {
        if self
            .failed
            .as_ref()
            .is_none_or(|(first, _)| number < *first)
        {
            self.failed = Some((number, error));
        }
    }
}

impl Flight<'_> {
    /// Reads that the kernel took and did not complete.
    fn in_flight(&mut self) -> usize {
        self.used.count_ones() as usize - self.ring.submission().len()
    }

    /// Takes one completion: the number of the read, and what the kernel says of it.
    fn complete(&mut self) -> Option<(Option<usize>, i32)> {
        let entry = self.ring.completion().next()?;
        let slot = usize::try_from(entry.user_data()).unwrap_or(DEPTH);
        Some((self.take(slot), entry.result()))
    }

    /// Empties a slot.
    fn take(&mut self, slot: usize) -> Option<usize> {
        let number = *self.numbers.get(slot)?;
        let bit = 1 << slot;
        let there = self.used & bit != 0;
        self.used &= !bit;
        there.then_some(number)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Only while something unwinds. Entering the kernel (to yield) is what lets it complete reads.
        while self.in_flight() > 0 {
            std::thread::yield_now();
            while self.complete().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ring_says_of_a_read_is_taken_failed_or_left_to_pread() {
        assert_eq!(said(8, 8), Said::Done);
        assert_eq!(said(6, 8), Said::Odd);
        assert_eq!(said(0, 8), Said::Odd);
        assert_eq!(said(-4, 8), Said::Odd);
        assert_eq!(said(-5, 8), Said::Failed(5));
    }
}
