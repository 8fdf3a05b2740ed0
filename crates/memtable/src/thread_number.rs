//! A small number for each living thread, by which it owns a slot of every memtable without
//! locking.
//!
//! A thread takes the lowest free number when it first asks, and gives it back when it ends. Two
//! living threads never have the same number. The next owner of a number sees everything that the
//! last owner did (release on giving back, acquire on taking). So a slot can be plain memory.
//! Threads beyond [`OWNED`], and threads that are ending, get one of the shared numbers in turn. A
//! thread with a shared number locks.

use terrapin_base::sync::{AtomicU32, Ordering, thread_local};

/// How many threads can have a number of their own at a time.
pub(crate) const OWNED: usize = 32;
/// How many further numbers threads share.
pub(crate) const SHARED: usize = 8;

/// One bit for each own number in use.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// How often a shared number was handed out.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// A thread's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// Below [`OWNED`]: no other living thread has this number.
    Own(usize),
    /// From [`OWNED`] on: other threads may have this number too.
    Shared(usize),
}

impl Number {
    fn shared() -> Self {
        let turn = GIVEN.fetch_add(1, Ordering::Relaxed) as usize;
        Number::Shared(OWNED + turn % SHARED)
    }
}

struct Lease(Number);

impl Lease {
    fn take() -> Self {
        let mut taken = TAKEN.load(Ordering::Relaxed);
        while taken != u32::MAX {
            let number = taken.trailing_ones();
            match TAKEN.compare_exchange_weak(
                taken,
                taken | 1 << number,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Lease(Number::Own(number as usize)),
                Err(now) => taken = now,
            }
        }
        Lease(Number::shared())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Number::Own(number) = self.0 {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

thread_local! {
    static NUMBER: Lease = Lease::take();
}

/// The number of the current thread. It stays the same until the thread ends.
#[inline]
pub(crate) fn current() -> Number {
    NUMBER
        .try_with(|lease| lease.0)
        .unwrap_or_else(|_| Number::shared())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn living_threads_have_different_numbers_and_surplus_threads_share() {
        let threads = OWNED + 4;
        let barrier = Barrier::new(threads);
        let numbers: Vec<Number> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let number = current();
                        barrier.wait();
                        assert_eq!(current(), number);
                        number
                    })
                })
                .collect();
            all.into_iter().map(|t| t.join().expect("thread")).collect()
        });
        let mut own: Vec<usize> = numbers
            .iter()
            .filter_map(|number| match number {
                Number::Own(number) => Some(*number),
                Number::Shared(number) => {
                    assert!((OWNED..OWNED + SHARED).contains(number));
                    None
                }
            })
            .collect();
        // Threads of other tests may have some numbers as well.
        assert!(own.len() <= OWNED && !own.is_empty());
        let count = own.len();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), count);
        assert!(own.iter().all(|number| *number < OWNED));
    }
}
