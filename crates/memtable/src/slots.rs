//! A small number for each living thread, so that it can own a slot of every memtable without
//! locking.
//!
//! A thread takes the lowest free number when it first asks and gives it back when it ends. Two
//! living threads never have the same number, and a number's next owner sees everything that the
//! last one did (release on giving back, acquire on taking): this is what lets a slot be plain
//! memory. Threads beyond [`OWNED`], and threads that are ending, get one of the numbers that are
//! shared, by turns; who has such a number locks.

use terrapin_base::sync::{AtomicU32, Ordering, thread_local};

/// How many threads at a time can have a number of their own.
pub(crate) const OWNED: usize = 32;
/// Numbers behind these that any thread may have.
pub(crate) const SHARED: usize = 8;

/// A bit for each number in use.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// Shared numbers that were given out so far.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// A thread's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// Below [`OWNED`]: no other living thread has it.
    Own(usize),
    /// From [`OWNED`] on: others may have it, too.
    Shared(usize),
}

impl Number {
    fn shared() -> Self {
        let turn = GIVEN.fetch_add(1, Ordering::Relaxed) as usize;
        Number::Shared(OWNED + turn % SHARED)
    }
}

struct Held(Number);

impl Held {
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
                Ok(_) => return Held(Number::Own(number as usize)),
                Err(now) => taken = now,
            }
        }
        Held(Number::shared())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Number::Own(number) = self.0 {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

thread_local! {
    static NUMBER: Held = Held::take();
}

/// The number of the current thread; always the same for a thread until it ends.
#[inline]
pub(crate) fn current() -> Number {
    NUMBER
        .try_with(|held| held.0)
        .unwrap_or_else(|_| Number::shared())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn living_threads_have_different_numbers_and_surplus_ones_share() {
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
        // Other tests' threads may hold some as well.
        assert!(own.len() <= OWNED && !own.is_empty());
        let count = own.len();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), count);
        assert!(own.iter().all(|number| *number < OWNED));
    }
}
