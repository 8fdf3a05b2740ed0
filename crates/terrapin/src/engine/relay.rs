//! [`Relay`]: a value that threads read without waiting, and replace now and then by an equal one.
//! arc-swap's `ArcSwapOption` does the same, but dropping it takes 0.4 µs, and each short range
//! drops a view. Dropping a relay costs nothing. A read costs some nanoseconds more.
//!
//! A relay has two cells, one of which holds the value. A replacement fills the empty cell before
//! it empties the other. A reader that finds a cell empty or locked looks into the other cell.
//! Readers therefore wait for no thread: each further look means that a replacement happened
//! meanwhile. A reader of the new value may read the old one once more, until its cell is emptied.

use std::sync::Arc;

use terrapin_base::sync::{AtomicBool, Mutex, Ordering, RwLock, spin_loop};

/// A value in two cells, read without waiting.
pub(crate) struct Relay<T> {
    cells: [RwLock<Option<Arc<T>>>; 2],
    /// Set once the value was dropped by a close. No value follows.
    is_closed: AtomicBool,
    /// Serializes replacements.
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

    /// The value. None once the relay is closed.
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

    /// Replaces the value if it still is `expected`.
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
        // Dropped outside all locks: it may be the last reference to much memory.
        drop(before);
    }

    /// Drops the value. The relay stays empty.
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
    fn replace_drops_the_expected_value_and_keeps_any_other() {
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
    fn readers_find_a_value_during_many_replacements() {
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
