//! Many reads at once through io_uring: one ring a thread, made when the thread first needs it.
//!
//! A read in flight writes into borrowed memory, so this never returns, and never runs code that may panic, before every read
//! that the kernel took has completed. A kernel that refuses io_uring (old, or by a seccomp filter) is asked once; from then on reads go
//! one by one. Whatever is odd about a single read (cut short, interrupted, refused) is left to `pread`, which does it again and says what is wrong.

use std::cell::RefCell;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use terrapin_base::sync::{AtomicBool, Ordering};
use terrapin_base::{Error, Result};

use super::file::{BOUNCE_BYTES, RealFile, with_bounce};
use crate::Read;

/// Reads in flight at once.
const DEPTH: usize = 64;
/// How often a submission that the kernel puts off is repeated before the ring is given up.
const PATIENCE: u32 = 1000;

/// Whether the kernel refused io_uring: then it is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Does all reads; the first error of them, in their order.
pub(super) fn read(file: &RealFile, reads: &mut [Read<'_>]) -> Result<()> {
    if reads.len() < 2 || REFUSED.load(Ordering::Relaxed) {
        return read_each(file, reads);
    }
    RING.with_borrow_mut(|slot| {
        let mut outcome = Ok(());
        for chunk in reads.chunks_mut(DEPTH) {
            if slot.is_none() {
                *slot = make_ring();
            }
            outcome = outcome.and(match slot {
                Some(ring) => {
                    let (result, sound) = read_chunk(ring, file, chunk);
                    if !sound {
                        *slot = None;
                    }
                    result
                }
                None => read_each(file, chunk),
            });
        }
        outcome
    })
}

fn read_each(file: &RealFile, reads: &mut [Read<'_>]) -> Result<()> {
    let mut outcome = Ok(());
    for read in reads {
        outcome = outcome.and(file.read_exactly(read.buffer, read.offset));
    }
    outcome
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

/// How one read of a chunk goes.
#[derive(Clone, Copy)]
enum Plan {
    /// Not through the ring: nothing to read, out of bounds, or too large to bounce; or odd in the ring.
    Alone,
    /// The kernel reads `bytes` from `start` into the bounce buffer at `bounce`, or straight into the caller's memory; the wanted bytes
    /// begin behind `before` others.
    Ring {
        start: u64,
        bytes: u32,
        before: usize,
        bounce: Option<usize>,
    },
    /// Done and in the caller's memory.
    Done,
    /// Failed with that error number.
    Failed(i32),
}

/// Plans one read; takes its part of the bounce buffer.
fn plan(file: &RealFile, read: &Read<'_>, bounce_bytes: &mut usize) -> Plan {
    let wanted = read.buffer.len();
    let end = read.offset.checked_add(wanted as u64);
    if wanted == 0 || wanted > 1 << 30 || end.is_none_or(|end| end > 1 << 62) {
        return Plan::Alone;
    }
    if file.takes(read.buffer.as_ptr(), read.offset, wanted) {
        return Plan::Ring {
            start: read.offset,
            bytes: wanted as u32,
            before: 0,
            bounce: None,
        };
    }
    let (start, before) = file.widen(read.offset);
    let bytes = (before + wanted).next_multiple_of(file.alignment as usize);
    if bytes > BOUNCE_BYTES - *bounce_bytes {
        return Plan::Alone;
    }
    let at = *bounce_bytes;
    *bounce_bytes += bytes;
    Plan::Ring {
        start,
        bytes: bytes as u32,
        before,
        bounce: Some(at),
    }
}

/// Does up to [`DEPTH`] reads. The second value is `false` when the ring must not be used again.
fn read_chunk(ring: &mut IoUring, file: &RealFile, reads: &mut [Read<'_>]) -> (Result<()>, bool) {
    let mut plans = [Plan::Alone; DEPTH];
    let mut bounce_bytes = 0;
    for (slot, read) in plans.iter_mut().zip(reads.iter()) {
        *slot = plan(file, read, &mut bounce_bytes);
    }
    let sound = with_bounce(bounce_bytes, |bounce| {
        let mut results = [None; DEPTH];
        let sound = run(ring, file, &plans, reads, bounce, &mut results);
        for ((plan, read), result) in plans.iter_mut().zip(reads.iter_mut()).zip(results) {
            if let Plan::Ring {
                before, bounce: at, ..
            } = *plan
            {
                *plan = settle(read, result, before, at.map(|at| &bounce[at..]));
            }
        }
        sound
    });
    let mut outcome = Ok(());
    for (plan, read) in plans.iter().zip(reads) {
        outcome = outcome.and(match plan {
            Plan::Done => Ok(()),
            Plan::Failed(number) => Err(Error::io(
                "cannot read",
                std::io::Error::from_raw_os_error(*number),
            )
            .with("file", &file.path)
            .with("offset", read.offset)
            .with("bytes", read.buffer.len())),
            Plan::Alone | Plan::Ring { .. } => file.read_exactly(read.buffer, read.offset),
        });
    }
    (outcome, sound)
}

/// What a completed read came to; copies it out of the bounce buffer if it lies there.
fn settle(read: &mut Read<'_>, result: Option<i32>, before: usize, bounce: Option<&[u8]>) -> Plan {
    let wanted = read.buffer.len();
    match result.map(usize::try_from) {
        Some(Ok(count)) if count >= before + wanted => {
            if let Some(bounce) = bounce {
                read.buffer
                    .copy_from_slice(&bounce[before..before + wanted]);
            }
            Plan::Done
        }
        Some(Err(_)) => {
            let number = result.map_or(0, i32::unsigned_abs) as i32;
            let odd = [
                Errno::INTR,
                Errno::AGAIN,
                Errno::INVAL,
                Errno::OPNOTSUPP,
                Errno::CANCELED,
            ];
            if odd.iter().any(|e| e.raw_os_error() == number) {
                Plan::Alone
            } else {
                Plan::Failed(number)
            }
        }
        _ => Plan::Alone,
    }
}

/// Has the kernel do the planned reads and waits for all that it took; `results` tells what it said of each. `false` when the ring must be
/// dropped, because reads that it did not take are still queued in it.
fn run(
    ring: &mut IoUring,
    file: &RealFile,
    plans: &[Plan; DEPTH],
    reads: &mut [Read<'_>],
    bounce_buffer: &mut [u8],
    results: &mut [Option<i32>; DEPTH],
) -> bool {
    let descriptor = types::Fd(file.descriptor.as_raw_fd());
    let bounce_start = bounce_buffer.as_mut_ptr();
    let mut pushed = 0;
    for (index, (plan, read)) in plans.iter().zip(reads.iter_mut()).enumerate() {
        let Plan::Ring {
            start,
            bytes,
            bounce,
            ..
        } = *plan
        else {
            continue;
        };
        let memory = match bounce {
            // SAFETY: `plan` gave this read `bytes` bytes there, within the buffer's length, and no other read any of them.
            Some(at) => unsafe { bounce_start.add(at) },
            None => read.buffer.as_mut_ptr(),
        };
        let entry = opcode::Read::new(descriptor, memory, bytes)
            .offset(start)
            .build()
            .user_data(index as u64);
        // SAFETY: the descriptor and `bytes` bytes of memory are borrowed, the memory uniquely, by our caller until this returns; this does not
        // return before `drain` has seen every read complete that the kernel took, and the ring is dropped if any was not taken.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            break; // cannot be: the queue holds DEPTH entries and was empty; the read is then done alone
        }
        pushed += 1;
    }

    let mut completed = 0;
    let mut patience = PATIENCE;
    while completed < pushed {
        let outcome = ring.submit_and_wait(pushed - completed);
        let before = completed;
        completed += reap(ring, results);
        let Err(e) = outcome else { continue };
        match e.raw_os_error() {
            Some(number) if number == Errno::INTR.raw_os_error() => continue,
            // Short of memory, or of room for completions: it gets better as reads complete.
            Some(number)
                if number == Errno::AGAIN.raw_os_error()
                    || number == Errno::BUSY.raw_os_error() =>
            {
                if completed > before {
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
        // Give up what is still queued, wait for what is in flight. Entering the kernel (to yield) is what lets it complete reads.
        let queued = ring.submission().len();
        while completed + queued < pushed {
            std::thread::yield_now();
            completed += reap(ring, results);
        }
        return queued == 0;
    }
    true
}

/// Takes completions; returns how many.
fn reap(ring: &mut IoUring, results: &mut [Option<i32>; DEPTH]) -> usize {
    let mut count = 0;
    for entry in ring.completion() {
        if let Some(result) = results.get_mut(entry.user_data() as usize) {
            *result = Some(entry.result());
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ring_says_of_a_read_is_taken_failed_or_left_to_pread() {
        let mut buffer = [0u8; 4];
        let mut read = Read {
            offset: 3,
            buffer: &mut buffer,
        };
        let bounce = [9, 9, 9, 1, 2, 3, 4, 9];
        assert!(matches!(
            settle(&mut read, Some(8), 3, Some(&bounce)),
            Plan::Done
        ));
        assert_eq!(read.buffer, [1, 2, 3, 4]);
        assert!(matches!(
            settle(&mut read, Some(6), 3, Some(&bounce)),
            Plan::Alone
        ));
        assert!(matches!(settle(&mut read, Some(0), 0, None), Plan::Alone));
        assert!(matches!(settle(&mut read, None, 0, None), Plan::Alone));
        assert!(matches!(settle(&mut read, Some(-4), 0, None), Plan::Alone));
        assert!(matches!(
            settle(&mut read, Some(-5), 0, None),
            Plan::Failed(5)
        ));
    }
}
