//! An io_uring ring for the reads of one flight. The process keeps some rings for later flights.
//!
//! Invariant: a ring is not dropped before every read that the kernel accepted has completed, since
//! such a read writes into memory of a caller.
//!
//! A kernel that refuses io_uring (too old, or a seccomp filter) is asked only once. From then on
//! reads go one by one. So do reads of flights beyond the limit on rings, since a process may have
//! few open files.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use terrapin_base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};

use super::awake::look;
use super::process::Process;

/// Most reads in a ring.
const DEPTH: usize = 64;
/// Most idle rings that the process keeps. A long scan has one flight for each level of a node,
/// about eight. A ring is an open file, and by default a process may have 1024. Idle rings must not
/// take the descriptors that the database's files need.
const KEPT_MAX: usize = 32;
/// Most rings of the process, idle ones included. A paused range keeps its ring, and there may be
/// hundreds of paused ranges.
const RINGS_MAX: usize = 64;
/// How often a submission that the kernel defers is repeated. Then the ring is dropped.
const PATIENCE: u32 = 1000;

/// Whether the kernel refused io_uring. It is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Idle rings, the last used one at the back; that one is used next. A small read takes this lock
/// twice, so nothing but a push or a pop runs under it.
static KEPT: Mutex<Vec<Ring>> = Mutex::new(Vec::new());

/// Number of [`RingPermit`]s in use.
static RINGS: AtomicUsize = AtomicUsize::new(0);

/// The right to one ring. There are [`RINGS_MAX`] of them.
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

/// A ring of the kernel. Its permit is free again after the ring is closed.
struct Ring {
    open: ManuallyDrop<IoUring>,
    /// The process that made the ring. A child forked later does not have the ring's memory.
    process: Process,
    _permit: RingPermit,
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: this value is dropped, so nothing else uses the ring.
            unsafe { ManuallyDrop::drop(&mut self.open) };
        } else {
            // A child may have other memory at the addresses of its parent's ring. SAFETY: only
            // this ring owns the descriptor, and nothing uses it after the drop.
            drop(unsafe { OwnedFd::from_raw_fd(self.open.as_raw_fd()) });
        }
    }
}

/// The reason for having no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRing {
    /// The process has its maximum of rings now. Later it may have fewer.
    Now,
    /// The system refused a ring.
    Here,
}

/// A ring with its reads.
pub(crate) struct Uring {
    /// `None` only during the drop.
    ring: Option<Ring>,
    /// The caller's number of each read, and a bit for each index in use.
    numbers: [u64; DEPTH],
    used: u64,
}

const _: () = assert!(DEPTH == u64::BITS as usize);

impl Uring {
    /// Takes an idle ring, or makes a new one.
    pub(crate) fn take() -> Result<Self, NoRing> {
        let ring = loop {
            let kept = KEPT.lock().pop();
            match kept {
                // A child closes the rings that its parent kept.
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

    /// The ring, unless it belongs to a parent process.
    fn ring(&mut self) -> Option<&mut Ring> {
        mine(&mut self.ring)
    }

    /// Number of reads in the ring.
    pub(crate) fn flying(&self) -> usize {
        self.used.count_ones() as usize
    }

    /// Adds a read. The kernel gets it with the next [`Uring::enter`]. Returns `false` if the ring
    /// is full.
    ///
    /// # Safety
    ///
    /// No other code may access the memory until [`Uring::complete`] returns the number or the ring
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
        // SAFETY: the caller keeps the memory for the read until it is over.
        if unsafe { ring.open.submission().push(&entry) }.is_err() {
            return false; // unreachable: the queue has room for each index
        }
        self.numbers[index] = number;
        self.used |= 1 << index;
        true
    }

    /// Submits all added reads and waits until `count` reads are over.
    ///
    /// Returns `false` if the ring must be dropped: the kernel does not accept the queued reads,
    /// and no other reads are in flight.
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
            // Memory or room for completions is short. It helps to process completed reads.
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

    /// Whether a read is over. The kernel reports that in the ring whenever the thread enters it.
    fn is_over(&mut self) -> bool {
        let Some(ring) = self.ring() else {
            return false;
        };
        !ring.open.completion().is_empty()
    }

    /// Takes a read that is over: its number, and the count of bytes read unless it failed.
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

    /// Waits until all reads that the kernel accepted have completed. Yielding enters the kernel,
    /// which lets it report completions.
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
        // Queued reads that the kernel did not accept are dropped with the ring.
        if self.used == 0 {
            let mut kept = KEPT.lock();
            if kept.len() < KEPT_MAX {
                kept.extend(self.ring.take());
            }
            // Otherwise the ring is closed with `self`, not under the lock.
        }
    }
}

fn mine(ring: &mut Option<Ring>) -> Option<&mut Ring> {
    ring.as_mut().filter(|ring| ring.process.is_this())
}

/// Reads once into `memory`, waits awake, and calls `meanwhile` while the read is in flight.
///
/// Returns `None` if there is no ring or the read failed. The caller then reads with `pread`, which
/// also reports errors.
pub(super) fn read_awake(
    descriptor: BorrowedFd<'_>,
    memory: &mut [u8],
    offset: u64,
    meanwhile: impl FnOnce(),
) -> Option<usize> {
    let start = NonNull::new(memory.as_mut_ptr())?;
    let mut ring = Uring::take().ok()?;
    // SAFETY: this function borrows the memory, and it drops the ring before it returns.
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
    // A forked child must not use its parent's ring, since it would take the parent's completions.
    // So it gets no copy of the ring's memory. Completions need not interrupt this thread, which
    // waits for them. Kernels before 5.19 do not know that flag.
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
                tracing::info!(error = %e, "no io_uring on this system, reads go one by one");
            }
            Err(NoRing::Here)
        }
    }
}

/// Whether the error can pass: too many open files, or too little memory. Kernels before 5.12 count
/// a ring as locked memory, and a user may lock little.
fn may_pass(error: &io::Error) -> bool {
    const PASSING: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::INTR, Errno::NOMEM];
    let passing = PASSING.map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|n| passing.contains(&n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lasting_error_turns_io_uring_off() {
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
