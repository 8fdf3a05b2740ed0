//! Publication of records in LSN order.
//!
//! A writer marks its record's slot as finished. Then it moves the visible bound over the first
//! unpublished record and over all finished records that follow without a gap. Each writer does
//! this for all of them, so no writer waits in order to move the bound itself.
//!
//! The obvious design lets each writer wait for its predecessor and then move the bound. Writers
//! that share a core then form a convoy: each record costs a thread switch. Two writers beside a
//! busy core reached 180,000 records per second that way; a single writer reached 600,000.

use terrapin_base::sync::{AtomicU64, Ordering, atomic::fence};

/// Most records that are appended and not yet published. Each writer has at most one, so this also
/// bounds the writers that run without waiting for a slot. The model checker uses a small number so
/// that its writers compete for slots.
const SLOTS: usize = if cfg!(terrapin_shuttle) { 2 } else { 256 };

/// The state of one unpublished record. Each slot fills a cache line, because different threads
/// write neighbouring slots.
#[derive(Default)]
#[repr(align(64))]
struct RecordSlot {
    /// The number of the last finished record in this slot, plus one.
    finished: AtomicU64,
    /// LSN at which that record ends.
    end: AtomicU64,
}

/// Publishes records in LSN order.
pub(crate) struct Publisher {
    slots: Box<[RecordSlot]>,
    bound: PublishedBound,
}

/// How far records are published. It has cache lines of its own, because all writers change it.
#[repr(align(128))]
struct PublishedBound {
    /// Records published.
    published: AtomicU64,
    /// End of the last published record.
    visible: AtomicU64,
}

impl Publisher {
    /// A publisher for a log whose first record starts at `start`.
    pub(crate) fn new(start: u64) -> Self {
        Publisher {
            slots: (0..SLOTS).map(|_| RecordSlot::default()).collect(),
            bound: PublishedBound {
                published: AtomicU64::new(0),
                visible: AtomicU64::new(start),
            },
        }
    }

    /// Every record that starts below this LSN is published.
    #[inline]
    pub(crate) fn visible(&self) -> u64 {
        self.bound.visible.load(Ordering::Acquire)
    }

    /// Whether a record's slot is free: all earlier records that used the slot are published.
    #[inline]
    pub(crate) fn has_slot(&self, number: u64) -> bool {
        self.bound.published.load(Ordering::Acquire) + SLOTS as u64 > number
    }

    /// Marks a record as finished, then moves the visible bound as far as possible. Returns whether
    /// this call moved the bound. The record's slot must be free ([`Publisher::has_slot`]).
    #[inline]
    pub(crate) fn finish(&self, number: u64, end: u64) -> bool {
        let slot = self.slot(number);
        slot.end.store(end, Ordering::Relaxed);
        slot.finished.store(number + 1, Ordering::Release);
        // Each writer stores its slot first and reads other slots second. So of two writers that
        // finish at once, at least one sees that both records are finished.
        fence(Ordering::SeqCst);
        let mut moved = false;
        loop {
            let next = self.bound.published.load(Ordering::SeqCst);
            let slot = self.slot(next);
            if slot.finished.load(Ordering::SeqCst) != next + 1 {
                return moved;
            }
            // Read `end` first: a later record may use the slot once `published` has moved.
            let end = slot.end.load(Ordering::Relaxed);
            let ours = self.bound.published.compare_exchange(
                next,
                next + 1,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if ours.is_ok() {
                self.bound.visible.fetch_max(end, Ordering::AcqRel);
                moved = true;
            }
            fence(Ordering::SeqCst);
        }
    }

    fn slot(&self, number: u64) -> &RecordSlot {
        &self.slots[number as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_moves_over_finished_records_only() {
        let publisher = Publisher::new(4096);
        assert!(!publisher.finish(1, 4300));
        assert!(!publisher.finish(2, 4400));
        assert_eq!(publisher.visible(), 4096);
        assert!(publisher.finish(0, 4200));
        assert_eq!(publisher.visible(), 4400);
        assert!(publisher.has_slot(258) && !publisher.has_slot(259));
        assert!(publisher.finish(3, 4500));
        assert_eq!(publisher.visible(), 4500);
    }

    #[test]
    fn many_threads_publish_everything_in_order() {
        let publisher = Publisher::new(0);
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= 40_000 {
                            return;
                        }
                        while !publisher.has_slot(number) {
                            std::thread::yield_now();
                        }
                        publisher.finish(number, number + 1);
                        while publisher.visible() <= number {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(publisher.visible(), 40_000);
    }
}
