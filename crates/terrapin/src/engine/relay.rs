//! A value that is replaced by its equal now and then, and read without waiting: as an
//! `ArcSwapOption` of arc-swap, which takes four tenths of a microsecond when it is dropped, and
//! views of short ranges are dropped all the time. This one takes nothing then, and each read some
//! nanoseconds more.
//!
//! There are two cells, one of which has the value. Who replaces it fills the other one before it
//! empties that, and a reader that finds a cell empty, or somebody writing there, looks into the
//! other one. So readers wait for nobody: as often as they have to look again, somebody replaced
//! the value meanwhile. Who has read a new value may read the one before it once more, while that
//! is about to be emptied out.

use std::sync::Arc;

use terrapin_base::sync::{AtomicBool, Mutex, Ordering, RwLock, spin_loop};

/// See the module.
pub(crate) struct Relay<T> {
    cells: [RwLock<Option<Arc<T>>>; 2],
    /// There is no value any more, nor will there be.
    is_closed: AtomicBool,
    /// Held by who replaces.
    replacing: Mutex<()>,
}

impl<T> Relay<T> {
    pub fn new(value: T) -> Self {
        Relay {
            cells: [RwLock::new(Some(Arc::new(value))), RwLock::new(None)],
            is_closed: AtomicBool::new(false),
            replacing: Mutex::new(()),
        }
    }

    /// The value; none once it is closed.
    #[inline]
    pub fn load(&self) -> Option<Arc<T>> {
        loop {
            for cell in &self.cells {
                if let Some(value) = cell.try_read().and_then(|cell| cell.clone()) {
                    return Some(value);
                }
            }
            if self.is_closed.load(Ordering::Acquire) {
                return None;
            }
            spin_loop();
        }
    }

    /// Replaces what it holds, if that is `expected`.
    pub fn replace(&self, expected: &Arc<T>, next: Arc<T>) {
        let replacing = self.replacing.lock();
        let holds = |cell: &RwLock<Option<Arc<T>>>| {
            let value = cell.read();
            value
                .as_ref()
                .is_some_and(|value| Arc::ptr_eq(value, expected))
        };
        let [first, second] = &self.cells;
        let (from, to) = match (holds(first), holds(second)) {
            (true, _) => (first, second),
            (_, true) => (second, first),
            _ => return,
        };
        *to.write() = Some(next);
        let before = from.write().take();
        drop(replacing);
        // Outside of all locks: it may be the last of much.
        drop(before);
    }

    /// Lets go of what it holds, for good.
    pub fn close(&self) {
        let replacing = self.replacing.lock();
        self.is_closed.store(true, Ordering::Release);
        let before = self.cells.each_ref().map(|cell| cell.write().take());
        drop(replacing);
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_dropped_and_what_was_not_expected_is_not_replaced() {
        let relay = Relay::new(1);
        for next in 2..5 {
            let held = relay.load().unwrap();
            assert_eq!(*held, next - 1);
            relay.replace(&held, Arc::new(next));
            assert_eq!(Arc::strong_count(&held), 1);
            relay.replace(&held, Arc::new(100));
            assert_eq!(*relay.load().unwrap(), next);
        }
        let last = relay.load().unwrap();
        relay.close();
        assert!(relay.load().is_none());
        assert_eq!(Arc::strong_count(&last), 1);
        relay.replace(&last, Arc::new(5));
        assert!(relay.load().is_none());
    }

    #[test]
    fn readers_find_a_value_while_it_is_replaced_over_and_over() {
        let relay = Relay::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while let Some(value) = relay.load() {
                        assert!(*value + 1 >= last, "{value} after {last}");
                        last = last.max(*value);
                    }
                });
            }
            for next in 1..if cfg!(miri) { 50 } else { 20_000 } {
                let held = relay.load().unwrap();
                relay.replace(&held, Arc::new(next));
            }
            relay.close();
        });
    }
}
