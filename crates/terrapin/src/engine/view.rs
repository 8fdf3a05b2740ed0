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
use terrapin_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, STRIPES, Share, stripe};

use crate::engine::core::{Core, Observed};
use crate::engine::owner::Owner;
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
    held: Relay<Held>,
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
    pub fn next(&self, core: &Core, state: State) -> Held {
        let has_none = |k: &Arc<KeyspaceState>| {
            k.sealed.is_none() && Arc::ptr_eq(&k.active.memtable, &core.no_memtable)
        };
        let is_settled = state.keyspaces.iter().all(has_none);
        Held {
            turn: self.turn + 1,
            state: Guard::from_inner(Arc::new(state)),
            is_settled,
        }
    }

    /// The same without all other keyspaces, whose memtables it then keeps no more.
    pub fn narrowed_to(&self, core: &Core, id: KeyspaceId) -> Held {
        let state = State {
            generation: self.state.generation,
            pin: self.state.pin.clone(),
            floor: self.state.floor,
            keyspaces: self.state.keyspaces.only(id),
        };
        self.next(core, state)
    }
}

/// A view that is registered for as long as this lives, and keeps the database open.
pub(crate) struct ViewHandle {
    view: Arc<View>,
    place: Place,
    owner: Arc<Share<Owner>>,
}

impl ViewHandle {
    /// A view of everything published so far.
    pub fn new(owner: &Arc<Owner>) -> Result<Arc<Self>> {
        Self::of(&Share::lone(owner), owner.core.observe()?, None)
    }

    /// A view of everything published so far, which nobody is going to ask for another keyspace.
    pub fn of_keyspace(owner: &Arc<Share<Owner>>, id: KeyspaceId) -> Result<Arc<Self>> {
        Self::of(owner, owner.core.observe()?, Some(id))
    }

    /// A view of what was observed, of `only` one keyspace or all.
    fn of(
        owner: &Arc<Share<Owner>>,
        observed: Observed,
        only: Option<KeyspaceId>,
    ) -> Result<Arc<Self>> {
        let core = &owner.core;
        let mut state = observed.state;
        // Threads have eight guards that cost them nothing: what may stay for long leaves these to
        // who comes and goes.
        if only.is_none() || core.views.are_many_here() {
            state = Guard::from_inner(Guard::into_inner(state));
        }
        let seen = Arc::as_ptr(&state);
        let held = Held {
            turn: 0,
            state,
            is_settled: false,
        };
        let view = Arc::new(View {
            before: observed.before,
            born_ns: core.env.now_ns(),
            only,
            held: Relay::new(held),
        });
        let place = core.views.register(&view);
        let handle = Arc::new(ViewHandle {
            view,
            place,
            owner: owner.clone(),
        });
        // A close that came between `observe` and `register` has not seen this view.
        core.health.check_open()?;
        // A memtable that left the state in between is for views to give back, and who sees to that
        // has not seen this one.
        if Arc::as_ptr(&core.state.load()) != seen {
            core.schedule.released();
        }
        Ok(handle)
    }

    /// The view.
    #[inline]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The engine.
    #[inline]
    pub fn core(&self) -> &Core {
        &self.owner.core
    }

    /// The open database.
    pub fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }
}

impl Drop for ViewHandle {
    fn drop(&mut self) {
        // In a forked child the view stays: another thread may have held the registry's lock at the
        // fork.
        if self.owner.core.health.process().is_this() {
            self.owner.core.views.unregister(self.place);
        }
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
struct Place {
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
    const FEW: usize = 4;
    /// So many places are looked at under a lock at once: a thread that makes a view may wait for
    /// it.
    const TAKEN_AT_ONCE: usize = 1024;

    fn register(&self, view: &Arc<View>) -> Place {
        let stripe = stripe();
        let part = &self.0[stripe];
        let mut places = part.places.lock();
        let place = places.free.pop().unwrap_or(places.views.len());
        match places.views.get_mut(place) {
            Some(free) => *free = Some(view.clone()),
            None => places.views.push(Some(view.clone())),
        }
        part.count.store(places.count(), Ordering::Relaxed);
        Place { stripe, place }
    }

    fn unregister(&self, at: Place) {
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
    fn are_many_here(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;

    /// Views that threads of all stripes made, more in each than have guards to themselves; they
    /// see their moments while the state is replaced, and go in other threads than they came from.
    #[test]
    fn views_of_many_threads_are_all_listed_and_leave_nothing() {
        const ROUNDS: u64 = 2 * (Views::FEW as u64 + 6);
        let (database, sim) = Options::small().open_simulated();
        // Two threads must not take the jobs' steps at once.
        sim.set_breathing(false);
        let keyspace = database.default_keyspace();
        let core = database.core();
        let mut ranges = Vec::new();
        for round in 0..ROUNDS {
            keyspace.put("a", round.to_be_bytes()).unwrap();
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..STRIPES)
                    .map(|_| scope.spawn(|| (round, keyspace.iter())))
                    .collect();
                ranges.extend(threads.into_iter().map(|t| t.join().unwrap()));
            });
            if round % 5 == 0 {
                database.checkpoint().unwrap();
                sim.settle();
            }
        }
        assert_eq!(core.views.len(), ranges.len());
        let bounds: Vec<Lsn> = core.views.all().iter().map(|view| view.before).collect();
        assert_eq!(bounds.len(), ranges.len());
        let some = core.state.load_full();
        std::thread::scope(|scope| {
            for (checkpoint, mut range) in ranges.drain(..) {
                scope.spawn(move || {
                    let (_, value) = range.next_ref().unwrap().unwrap();
                    assert_eq!(value, checkpoint.to_be_bytes());
                    assert!(range.next_ref().unwrap().is_none());
                });
            }
        });
        assert!(core.views.len() == 0 && !core.views.any(|_| true));
        // Places are used again.
        let range = keyspace.iter();
        assert_eq!(core.views.all().len(), 1);
        drop(range);
        keyspace.put("b", "").unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        // The state of before is held here alone.
        assert_eq!(Arc::strong_count(&some), 1);
        database.close().unwrap();
    }

    /// Nobody gave the memtable of a view back that was made as the memtable left the state.
    #[test]
    fn a_view_of_a_state_that_was_replaced_has_its_memtables_looked_at() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        keyspace.put("a", "1").unwrap();
        let (owner, id) = (&database.owner, keyspace.id());
        let observed = owner.core.observe().unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        let holds_a_memtable = |handle: &ViewHandle| {
            let held = handle.view().held().unwrap();
            !held.keyspace(id).unwrap().active.memtable.is_empty()
        };
        let handle = ViewHandle::of(&Share::lone(owner), observed, None).unwrap();
        assert!(holds_a_memtable(&handle));
        // Past the age from which on views give memtables back.
        sim.advance_ns(2_000_000_000);
        sim.settle();
        assert!(!holds_a_memtable(&handle));
        let releases = owner.core.schedule.releases();
        let newest = ViewHandle::new(owner).unwrap();
        assert_eq!(owner.core.schedule.releases(), releases);
        drop((handle, newest));
        database.close().unwrap();
    }
}
