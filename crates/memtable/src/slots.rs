//! A small number for each living thread, so that it can own a slot of every window without locking.
//!
//! A thread takes the lowest free number when it first asks and gives it back when it ends. Two living threads never have
//! the same number, and a number's next owner sees everything that the last one did (release on giving back, acquire on
//! taking): this is what lets a slot be plain memory. Threads beyond [`COUNT`], and threads that are ending, get none.

use terrapin_base::sync::{AtomicU32, Ordering, thread_local};

/// How many threads at a time can have a number.
pub(crate) const COUNT: usize = 32;

/// A bit for each number in use.
static TAKEN: AtomicU32 = AtomicU32::new(0);

struct Number(Option<u32>);

impl Number {
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
                Ok(_) => return Number(Some(number)),
                Err(now) => taken = now,
            }
        }
        Number(None)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

thread_local! {
    static NUMBER: Number = Number::take();
}

/// The number of the current thread, below [`COUNT`]; always the same for a thread until it ends.
#[inline]
pub(crate) fn current() -> Option<usize> {
    NUMBER
        .try_with(|number| number.0.map(|n| n as usize))
        .ok()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn living_threads_have_different_numbers_and_surplus_ones_none() {
        let threads = COUNT + 4;
        let barrier = Barrier::new(threads);
        let mut numbers: Vec<Option<usize>> = std::thread::scope(|scope| {
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
        numbers.retain(Option::is_some);
        // Other tests' threads may hold some as well.
        assert!(numbers.len() <= COUNT && !numbers.is_empty());
        let count = numbers.len();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
