//! A ring of io_uring for the reads of one flight. Some are kept for the next flights, whichever
//! threads have them.
//!
//! A read in flight writes into memory that somebody owns, so a ring is never dropped before every
//! read that the kernel took has completed. A kernel that refuses io_uring (old, or by a seccomp
//! filter) is asked once; from then on reads go one by one. So do those of flights for which there
//! are not rings enough: a process may have few files open.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use terrapin_base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};

use super::awake::look;
use super::process::Process;

/// Reads in a ring at once.
const DEPTH: usize = 64;
/// Rings that the process keeps: a long scan has a flight for each level of a node, some eight.
/// Each is an open file, of which a process may have 1024 by default, and files of the database
/// must not find these taken by rings that wait for nothing.
const KEPT_MAX: usize = 32;
/// Rings that there are at once, kept or in flights: a range that somebody pauses at has one as
/// long as it lives, and there may be hundreds.
const RINGS_MAX: usize = 64;
/// How often a submission that the kernel puts off is repeated before the ring is given up.
const PATIENCE: u32 = 1000;

/// Whether the kernel refused io_uring: then it is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Not in use: a flight beside a flight has a ring of its own. That used last is at the back, and
/// the next to be used. Nothing is done under the lock but to take one or to lay one there: a small
/// read does both, and locks what `awake` has learnt twice besides.
static KEPT: Mutex<Vec<Ring>> = Mutex::new(Vec::new());

/// How many [`RingPermit`]s are taken.
static RINGS: AtomicUsize = AtomicUsize::new(0);

/// One of the rings that there may be: [`RINGS_MAX`].
struct RingPermit(());

impl RingPermit {
    fn take() -> Option<Self> {
        let permit = RingPermit(());
        let others = RINGS.fetch_add(1, Ordering::Relaxed);
        (others < RINGS_MAX).then_some(permit)
    }
}

impl Drop for RingPermit {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A ring of the kernel's. Its place is free once it is closed.
struct Ring {
    open: ManuallyDrop<IoUring>,
    /// A child that was forked since does not have the ring's memory.
    process: Process,
    _permit: RingPermit,
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.open) };
        } else {
            // In a child, something else may lie where its parent has the ring's memory.
            // SAFETY: the descriptor is this ring's alone, and nobody uses it any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.open.as_raw_fd()) });
        }
    }
}

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRing {
    /// There are as many as may be: some other time.
    Now,
    /// The system gave none.
    Here,
}

/// A ring, and the reads in it.
pub(crate) struct Uring {
    /// None once it is dropped.
    ring: Option<Ring>,
    /// The numbers of the reads, by their slots; a bit for each slot in use.
    numbers: [u64; DEPTH],
    used: u64,
}

const _: () = assert!(DEPTH == u64::BITS as usize);

impl Uring {
    /// One of those that are kept, or a new one.
    pub(crate) fn take() -> Result<Self, NoRing> {
        let ring = loop {
            let kept = KEPT.lock().pop();
            match kept {
                // A child closes what its parent kept.
                Some(ring) if !ring.process.is_this() => drop(ring),
                Some(ring) => break ring,
                None => break make()?,
            }
        };
        Ok(Uring {
            ring: Some(ring),
            numbers: [0; DEPTH],
            used: 0,
        })
    }

    /// The ring, unless it is closed, or a parent's.
    fn ring(&mut self) -> Option<&mut Ring> {
        mine(&mut self.ring)
    }

    /// How many reads are in it.
    pub(crate) fn flying(&self) -> usize {
        self.used.count_ones() as usize
    }

    /// Adds a read, which the kernel gets with the next [`Uring::enter`]; `false` when the ring is
    /// full.
    ///
    /// # Safety
    ///
    /// The memory must be nobody else's until [`Uring::complete`] returns the number, or the ring
    /// is dropped.
    pub(crate) unsafe fn push(
        &mut self,
        descriptor: BorrowedFd<'_>,
        memory: NonNull<u8>,
        bytes: usize,
        offset: u64,
        number: u64,
    ) -> bool {
        let index = self.used.trailing_ones() as usize;
        let (Some(ring), Ok(bytes)) = (mine(&mut self.ring), u32::try_from(bytes)) else {
            return false;
        };
        if index == DEPTH {
            return false;
        }
        let descriptor = types::Fd(descriptor.as_raw_fd());
        let entry = opcode::Read::new(descriptor, memory.as_ptr(), bytes)
            .offset(offset)
            .build()
            .user_data(index as u64);
        // SAFETY: the memory is the read's until it is over, as our caller promises.
        if unsafe { ring.open.submission().push(&entry) }.is_err() {
            return false; // cannot be: the queue has a place for each index
        }
        self.numbers[index] = number;
        self.used |= 1 << index;
        true
    }

    /// Hands all that was added to the kernel, and waits until so many reads are over. `false` when
    /// the ring must be dropped: it does not take what is still queued, and has nothing else under
    /// way.
    pub(crate) fn enter(&mut self, count: usize) -> bool {
        let Some(ring) = mine(&mut self.ring) else {
            return false;
        };
        let mut patience = PATIENCE;
        loop {
            let error = match ring.open.submit_and_wait(count) {
                Ok(_) if ring.open.submission().is_empty() => return true,
                Ok(_) => None,
                Err(e) => e.raw_os_error(),
            };
            let is = |errno: Errno| error == Some(errno.raw_os_error());
            if is(Errno::INTR) {
                continue;
            }
            // Short of memory, or of room for completions: it gets better as reads are looked at.
            if error.is_none() || is(Errno::AGAIN) || is(Errno::BUSY) {
                if count > 0 && !ring.open.completion().is_empty() {
                    return true;
                }
                patience -= 1;
                std::thread::yield_now();
                if patience > 0 {
                    continue;
                }
            }
            self.settle();
            return false;
        }
    }

    /// Whether a read is over. The kernel says so in the ring while the thread is with it, for
    /// whatever reason.
    fn is_over(&mut self) -> bool {
        let Some(ring) = self.ring() else {
            return false;
        };
        !ring.open.completion().is_empty()
    }

    /// A read that is over: its number, and how many bytes were read unless it failed.
    pub(crate) fn complete(&mut self) -> Option<(u64, Option<usize>)> {
        loop {
            let entry = self.ring()?.open.completion().next()?;
            let index = usize::try_from(entry.user_data()).unwrap_or(DEPTH);
            let Some(&number) = self.numbers.get(index) else {
                continue;
            };
            let was_used = self.used & 1 << index != 0;
            self.used &= !(1 << index);
            if was_used {
                return Some((number, usize::try_from(entry.result()).ok()));
            }
        }
    }

    /// Waits until the kernel has completed all that it took. Entering it (to yield) is what lets
    /// it.
    fn settle(&mut self) {
        let Some(ring) = mine(&mut self.ring) else {
            return;
        };
        loop {
            let queued = ring.open.submission().len();
            let over = ring.open.completion().len();
            if self.used.count_ones() as usize <= queued + over {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.ring().is_none() {
            return;
        }
        self.settle();
        while self.complete().is_some() {}
        // What is still queued is given up with the ring.
        if self.used == 0 {
            let mut kept = KEPT.lock();
            if kept.len() < KEPT_MAX {
                kept.extend(self.ring.take());
            }
            // A ring that is left over is closed with `self`, outside of the lock.
        }
    }
}

fn mine(ring: &mut Option<Ring>) -> Option<&mut Ring> {
    ring.as_mut().filter(|ring| ring.process.is_this())
}

/// Reads into this memory as much as there is, waiting awake, and does something `meanwhile`, once
/// the read is under way. None where that is not to be, or the read has failed: `pread` does it, or
/// says why not.
pub(super) fn read_awake(
    descriptor: BorrowedFd<'_>,
    memory: &mut [u8],
    offset: u64,
    meanwhile: impl FnOnce(),
) -> Option<usize> {
    let start = NonNull::new(memory.as_mut_ptr())?;
    let mut ring = Uring::take().ok()?;
    // SAFETY: the memory is ours until we return, and by then the ring was dropped.
    if !unsafe { ring.push(descriptor, start, memory.len(), offset, 0) } || !ring.enter(0) {
        return None;
    }
    meanwhile();
    look(|| ring.is_over());
    if !ring.is_over() && !ring.enter(1) {
        return None;
    }
    ring.complete()?.1
}

fn make() -> Result<Ring, NoRing> {
    if REFUSED.load(Ordering::Relaxed) {
        return Err(NoRing::Here);
    }
    let permit = RingPermit::take().ok_or(NoRing::Now)?;
    let entries = DEPTH as u32;
    // A forked child does not have the memory, and uses no ring of its parent's: it would take what
    // that waits for. Completions need no interrupt of this thread, since it waits for them;
    // kernels before 5.19 do not know that flag.
    let made = IoUring::builder()
        .dontfork()
        .setup_coop_taskrun()
        .build(entries);
    match made.or_else(|_| IoUring::builder().dontfork().build(entries)) {
        Ok(open) => Ok(Ring {
            open: ManuallyDrop::new(open),
            process: Process::this(),
            _permit: permit,
        }),
        Err(e) => {
            if !may_pass(&e) {
                REFUSED.store(true, Ordering::Relaxed);
                tracing::info!(error = %e, "no io_uring here, batches of reads go one by one");
            }
            Err(NoRing::Here)
        }
    }
}

/// Whether another ring may be had later although this one was not: too many files are open, or
/// memory is short. (Kernels before 5.12 count the memory of rings as locked, of which a user may
/// have little.)
fn may_pass(error: &io::Error) -> bool {
    const PASSING: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::INTR, Errno::NOMEM];
    let passing = PASSING.map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|n| passing.contains(&n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_will_not_pass_turns_io_uring_off_for_good() {
        let refused = |errno: Errno| !may_pass(&io::Error::from(errno));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(
                !refused(errno),
                "{errno}: of files or memory there may be more later"
            );
        }
        for errno in [Errno::NOSYS, Errno::PERM, Errno::INVAL] {
            assert!(refused(errno), "{errno}: an old kernel or a filter stays");
        }
    }
}
