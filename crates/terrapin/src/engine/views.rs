//! Registered views: what snapshots and iterators see, for longer than one call.
//!
//! A view is an LSN bound and a state that covers everything below it. It keeps that state's pages
//! (through the state's pin) and its memtables. Memtables are memory, so a checkpoint, or the fold
//! job after it (`checkpoint::held`), may replace the state of a view by an equal one that holds
//! runs instead of memtables; readers of a view therefore load its state anew at every call, and
//! keep nothing of it between calls but pages.
//!
//! Short ranges come and go by the hundred thousand a second, each with a view. So nothing that one
//! does writes a cache line that another thread's does, too: the registry is in stripes, the state
//! is not counted (arc-swap's guards), and the database is kept open by a share of it
//! ([`terrapin_base::Shares`]).

use std::sync::Arc;

use arc_swap::Guard;
use terrapin_base::sync::{AtomicUsize, Mutex, Ordering};
use terrapin_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, STRIPES, stripe};
use terrapin_memtable::Memtable;

use crate::engine::relay::Relay;
use crate::engine::state::{KeyspaceState, State};

/// One view: a bound and, until the database closes, a state.
pub(crate) struct View {
    /// Exclusive bound of the LSNs that this view sees.
    pub before: Lsn,
    /// When it was made, on the environment's clock.
    pub born_ns: u64,
    /// The keyspace of a range, whose view nobody asks for another one. None for a snapshot's.
    pub only: Option<KeyspaceId>,
    pub held: Relay<Held>,
}

/// What a view holds now.
pub(crate) struct Held {
    /// How many others the view held before.
    pub turn: u64,
    /// Covers every record below the view's bound.
    pub state: Guard<Arc<State>>,
    /// No keyspace of it has a memtable, not even an empty one, which later writes may enter: it
    /// stays as it is.
    pub is_settled: bool,
}

impl View {
    /// What it holds; `Closed` once the database is.
    #[inline]
    pub fn held(&self) -> Result<Arc<Held>> {
        self.held.load().ok_or_else(closed)
    }

    /// Replaces what the view holds by something that reads the same, unless the database was
    /// closed or somebody else replaced it meanwhile.
    pub fn replace(&self, expected: &Arc<Held>, next: Arc<Held>) {
        self.held.replace(expected, next);
    }
}

impl Held {
    /// A keyspace as the view sees it.
    #[inline]
    pub fn keyspace(&self, id: KeyspaceId) -> Result<&Arc<KeyspaceState>> {
        self.state.keyspaces.get(id).ok_or_else(missing)
    }

    /// Whether it has no other keyspace.
    pub fn is_of_only(&self, id: KeyspaceId) -> bool {
        self.state.keyspaces.iter().all(|k| k.id == id)
    }

    /// What a view that held this holds next.
    /// `no_memtable` is what stands in the place of memtables that are gone.
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

    /// The same without all other keyspaces, whose memtables it then keeps no more.
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

/// The views that threads of one stripe made.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    /// How many there are.
    count: AtomicUsize,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    views: Vec<Option<Arc<View>>>,
    free: Vec<usize>,
}

/// Where a view is in the registry.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    stripe: usize,
    place: usize,
}

impl Places {
    fn count(&self) -> usize {
        self.views.len() - self.free.len()
    }
}

impl Views {
    /// More than so many in a stripe are many.
    pub const FEW: usize = 4;
    /// So many places are looked at under a lock at once: a thread that makes a view may wait for
    /// it.
    const TAKEN_AT_ONCE: usize = 1024;

    /// Registers a view.
    pub fn register(&self, view: &Arc<View>) -> Registered {
        let stripe = stripe();
        let part = &self.0[stripe];
        let mut places = part.places.lock();
        let place = places.free.pop().unwrap_or(places.views.len());
        match places.views.get_mut(place) {
            Some(free) => *free = Some(view.clone()),
            None => places.views.push(Some(view.clone())),
        }
        part.count.store(places.count(), Ordering::Relaxed);
        Registered { stripe, place }
    }

    /// Forgets a view.
    pub fn unregister(&self, at: Registered) {
        let part = &self.0[at.stripe];
        let mut places = part.places.lock();
        let view = places.views[at.place].take();
        places.free.push(at.place);
        part.count.store(places.count(), Ordering::Relaxed);
        drop(places);
        // Outside the lock: it may be the last to hold a memtable or a state.
        drop(view);
    }

    /// Whether the thread's stripe has more than a few.
    #[inline]
    pub fn are_many_here(&self) -> bool {
        self.0[stripe()].count.load(Ordering::Relaxed) > Self::FEW
    }

    /// The views there are. One that is made meanwhile may be missing. O(views), and no lock is
    /// held for more than some microseconds.
    pub fn all(&self) -> Vec<Arc<View>> {
        let mut all = Vec::with_capacity(self.len());
        for part in &self.0 {
            let mut from = 0;
            // A view keeps its place.
            while let Some(next) = part.places.lock().views.get(from..) {
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

    /// Whether one is like that. Under the registry's locks: be short.
    #[cfg(test)]
    pub fn any(&self, is: impl Fn(&View) -> bool) -> bool {
        let of_stripe = |part: &Stripe| part.places.lock().views.iter().flatten().any(|v| is(v));
        self.0.iter().any(of_stripe)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let count = |part: &Stripe| part.count.load(Ordering::Relaxed);
        self.0.iter().map(count).sum()
    }

    /// Lets go of everything that registered views hold; their next call gets `Closed`.
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
