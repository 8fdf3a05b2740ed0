//! [`Views`]: the registered views, which are what snapshots and iterators see for longer than one
//! call.
//!
//! A view is an LSN bound and a state that covers everything below it. It keeps the state's pages,
//! through the state's pin, and its memtables. Memtables take memory. A checkpoint, or the fold job
//! after it (`checkpoint::held`), may therefore give a view an equal state that holds runs instead.
//! Readers of a view load its state anew at every call. Between calls they keep only pages.
//!
//! Threads make hundreds of thousands of short ranges a second, each with a view. No range may
//! therefore write a cache line that another thread's range writes. The registry is in stripes.
//! Views hold the state through arc-swap's guards, without a count. A share of the database keeps
//! it open ([`terrapin_base::Shares`]).

use std::sync::Arc;

use arc_swap::Guard;
use terrapin_base::sync::{AtomicUsize, Mutex, Ordering};
use terrapin_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, STRIPES, stripe};
use terrapin_memtable::Memtable;

use crate::engine::clock::{Ends, Moment};
use crate::engine::relay::Relay;
use crate::engine::state::{KeyspaceState, State};

/// One view: a bound and, until the database closes, a state.
pub(crate) struct View {
    /// Exclusive bound of the LSNs that the view sees.
    pub before: Lsn,
    /// Now, for deadlines, in milliseconds since 1970.
    pub now_ms: u64,
    /// The deadlines that reads of the view met.
    pub ends: Ends,
    /// Time at which the view was made, on the environment's clock, in nanoseconds.
    pub born_ns: u64,
    /// The keyspace of a range, which reads no other one. None for a snapshot.
    pub only: Option<KeyspaceId>,
    pub held: Relay<Held>,
}

/// What a view holds at present.
pub(crate) struct Held {
    /// Number of values that the view held before this one.
    pub turn: u64,
    /// Covers every record below the view's bound.
    pub state: Guard<Arc<State>>,
    /// True if no keyspace of the state has a memtable, not even an empty one that later writes may
    /// enter. Such a state does not change any more.
    pub is_settled: bool,
}

impl View {
    /// What a read of the view sees.
    #[inline]
    pub fn moment(&self) -> Moment<'_> {
        Moment {
            before: self.before,
            now_ms: self.now_ms,
            ends: Some(&self.ends),
        }
    }

    /// What the view holds. Fails with `Closed` once the database is closed.
    #[inline]
    pub fn held(&self) -> Result<Arc<Held>> {
        self.held.load().ok_or_else(closed)
    }

    /// Replaces what the view holds by something that reads the same. Does nothing if the database
    /// was closed, or if another thread replaced it meanwhile.
    pub fn replace(&self, expected: &Arc<Held>, next: Arc<Held>) {
        self.held.replace(expected, next);
    }
}

impl Held {
    /// A keyspace as this view sees it.
    #[inline]
    pub fn keyspace(&self, id: KeyspaceId) -> Result<&Arc<KeyspaceState>> {
        self.state.keyspaces.get(id).ok_or_else(missing)
    }

    /// Whether the state has no other keyspace than this one.
    pub fn is_of_only(&self, id: KeyspaceId) -> bool {
        self.state.keyspaces.iter().all(|k| k.id == id)
    }

    /// The successor of this value, with a new state. `no_memtable` replaces memtables that left
    /// memory.
    pub fn next(&self, no_memtable: &Arc<Memtable>, state: State) -> Held {
        let has_none = |k: &Arc<KeyspaceState>| {
            k.sealed.is_none() && Arc::ptr_eq(&k.active.memtable, no_memtable)
        };
        let is_settled = state.keyspaces.iter().all(has_none);
        Held {
            turn: self.turn + 1,
            state: Guard::from_inner(Arc::new(state)),
            is_settled,
        }
    }

    /// The successor of this value that has this keyspace only. It releases the memtables of all
    /// others.
    pub fn narrowed_to(&self, no_memtable: &Arc<Memtable>, id: KeyspaceId) -> Held {
        let state = State {
            generation: self.state.generation,
            pin: self.state.pin.clone(),
            floor: self.state.floor,
            keyspaces: self.state.keyspaces.only(id),
        };
        self.next(no_memtable, state)
    }
}

/// The registry of views, in stripes.
#[derive(Default)]
pub(crate) struct Views([Stripe; STRIPES]);

/// The views that threads of one stripe registered.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    /// Number of views in the stripe.
    count: AtomicUsize,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    views: Vec<Option<Arc<View>>>,
    free: Vec<usize>,
}

/// The slot of a view in the registry.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    stripe: usize,
    slot: usize,
}

impl Slots {
    fn count(&self) -> usize {
        self.views.len() - self.free.len()
    }
}

impl Views {
    /// A stripe with more views than this has many.
    pub const FEW: usize = 4;
    /// Number of slots read under one lock. A thread that makes a view may wait for that lock.
    const TAKEN_AT_ONCE: usize = 1024;

    /// Registers a view.
    pub fn register(&self, view: &Arc<View>) -> Registered {
        let stripe = stripe();
        let part = &self.0[stripe];
        let mut slots = part.slots.lock();
        let slot = slots.free.pop().unwrap_or(slots.views.len());
        match slots.views.get_mut(slot) {
            Some(free) => *free = Some(view.clone()),
            None => slots.views.push(Some(view.clone())),
        }
        part.count.store(slots.count(), Ordering::Relaxed);
        Registered { stripe, slot }
    }

    /// Removes a view from the registry.
    pub fn unregister(&self, at: Registered) {
        let part = &self.0[at.stripe];
        let mut slots = part.slots.lock();
        let view = slots.views[at.slot].take();
        slots.free.push(at.slot);
        part.count.store(slots.count(), Ordering::Relaxed);
        drop(slots);
        // Dropped outside the lock: the view may be the last to hold a memtable or a state.
        drop(view);
    }

    /// Whether the calling thread's stripe has more than [`Views::FEW`] views.
    #[inline]
    pub fn are_many_here(&self) -> bool {
        self.0[stripe()].count.load(Ordering::Relaxed) > Self::FEW
    }

    /// All registered views. A view that is being made may be missing. O(views). Holds each lock
    /// for some microseconds at most.
    pub fn all(&self) -> Vec<Arc<View>> {
        let mut all = Vec::with_capacity(self.len());
        for part in &self.0 {
            let mut from = 0;
            // A view keeps its slot, so reading in pieces misses none.
            while let Some(next) = part.slots.lock().views.get(from..) {
                if next.is_empty() {
                    break;
                }
                let taken = &next[..next.len().min(Self::TAKEN_AT_ONCE)];
                all.extend(taken.iter().flatten().cloned());
                from += taken.len();
            }
        }
        all
    }

    /// Whether a view satisfies `is`. Runs under the registry's locks, so `is` must be short.
    #[cfg(test)]
    pub fn any(&self, is: impl Fn(&View) -> bool) -> bool {
        let of_stripe = |part: &Stripe| part.slots.lock().views.iter().flatten().any(|v| is(v));
        self.0.iter().any(of_stripe)
    }

    /// Number of registered views.
    pub fn len(&self) -> usize {
        let count = |part: &Stripe| part.count.load(Ordering::Relaxed);
        self.0.iter().map(count).sum()
    }

    /// Drops what all registered views hold. Their next call fails with `Closed`.
    pub fn close(&self) {
        for view in self.all() {
            view.held.close();
        }
    }
}

#[cold]
fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

#[cold]
pub(crate) fn missing() -> Error {
    Error::new(
        ErrorKind::KeyspaceNotFound,
        "the keyspace does not exist in this view: it was created later, or dropped before",
    )
}
