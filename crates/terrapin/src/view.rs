//! Registered views: what snapshots and iterators see, for longer than one call.
//!
//! A view is an LSN bound and a state that covers everything below it. It keeps that state's pages (through the state's
//! pin) and its windows. Windows are memory, so the fold job (`checkpoint::fold`) may replace the state of a view by an
//! equal one that holds a private version instead of windows; readers of a view therefore load its state anew at every
//! call, and keep nothing of it between calls but pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::sync::Mutex;
use terrapin_base::{Error, ErrorKind, KeyspaceId, Lsn, Result};
use terrapin_pages::PrivatePages;

use crate::core::{Core, Observed};
use crate::owner::Owner;
use crate::relay::Relay;
use crate::state::{KeyspaceState, State};

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
    /// Covers every record below the view's bound.
    pub state: Arc<State>,
    /// Pages of the private versions in `state`; they are freed when the last holder goes.
    pub private: Vec<Arc<PrivatePages>>,
}

impl View {
    /// What it holds; `Closed` once the database is.
    #[inline]
    pub fn held(&self) -> Result<Arc<Held>> {
        self.held.load().ok_or_else(closed)
    }

    /// Replaces what the view holds by something that reads the same, unless the database was closed or somebody else
    /// replaced it meanwhile.
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

    /// The same without all other keyspaces, whose windows it then keeps no more.
    pub fn narrowed_to(&self, id: KeyspaceId) -> Held {
        Held {
            state: Arc::new(State {
                generation: self.state.generation,
                pin: self.state.pin.clone(),
                floor: self.state.floor,
                keyspaces: self.state.keyspaces.only(id),
            }),
            private: self.private.clone(),
        }
    }
}

/// A view that is registered for as long as this lives, and keeps the database open.
pub(crate) struct ViewHandle {
    view: Arc<View>,
    number: u64,
    owner: Arc<Owner>,
}

impl ViewHandle {
    /// A view of everything published so far.
    pub fn new(owner: &Arc<Owner>) -> Result<Arc<Self>> {
        Self::of(owner, owner.core.observe()?, None)
    }

    /// A view of everything published so far, which nobody is going to ask for another keyspace.
    pub fn of_keyspace(owner: &Arc<Owner>, id: KeyspaceId) -> Result<Arc<Self>> {
        Self::of(owner, owner.core.observe()?, Some(id))
    }

    /// A view of what was observed, of `only` one keyspace or all.
    fn of(owner: &Arc<Owner>, observed: Observed, only: Option<KeyspaceId>) -> Result<Arc<Self>> {
        let core = &owner.core;
        let state = arc_swap::Guard::into_inner(observed.state);
        let seen = Arc::as_ptr(&state);
        let held = Held {
            state,
            private: Vec::new(),
        };
        let view = Arc::new(View {
            before: observed.before,
            born_ns: core.env.now_ns(),
            only,
            held: Relay::new(held),
        });
        let number = core.views.register(&view);
        let handle = Arc::new(ViewHandle {
            view,
            number,
            owner: owner.clone(),
        });
        // A close that came between `observe` and `register` has not seen this view.
        core.health.check_open()?;
        // A window that left the state in between is for views to give back, and who sees to that has not seen this one.
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
        self.owner.core.views.unregister(self.number);
    }
}

/// The registry of views, by a number that only grows.
#[derive(Default)]
pub(crate) struct Views {
    next: AtomicU64,
    views: Mutex<BTreeMap<u64, Arc<View>>>,
}

impl Views {
    fn register(&self, view: &Arc<View>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.views.lock().insert(number, view.clone());
        number
    }

    fn unregister(&self, number: u64) {
        // Dropped outside the lock: it may be the last to hold a window or a state.
        let view = self.views.lock().remove(&number);
        drop(view);
    }

    /// The views there are, oldest first.
    pub fn all(&self) -> Vec<Arc<View>> {
        self.views.lock().values().cloned().collect()
    }

    /// Whether one is like that. Under the registry's lock: be short.
    pub fn any(&self, is: impl Fn(&View) -> bool) -> bool {
        self.views.lock().values().any(|view| is(view))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.views.lock().len()
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
        ErrorKind::NotFound,
        "the keyspace does not exist in this view: it was created later, or dropped before",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    /// Nobody gave the window of a view back that was made as the window left the state.
    #[test]
    fn a_view_of_a_state_that_was_replaced_has_its_windows_looked_at() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        keyspace.put("a", "1").unwrap();
        let (owner, id) = (&database.owner, keyspace.id());
        let observed = owner.core.observe().unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        let holds_a_window = |handle: &ViewHandle| {
            let held = handle.view().held().unwrap();
            !held.keyspace(id).unwrap().active.window.is_empty()
        };
        let handle = ViewHandle::of(owner, observed, None).unwrap();
        assert!(holds_a_window(&handle));
        // Past the age from which on views give windows back.
        sim.advance_ns(2_000_000_000);
        sim.settle();
        assert!(!holds_a_window(&handle));
        let releases = owner.core.schedule.releases();
        let newest = ViewHandle::new(owner).unwrap();
        assert_eq!(owner.core.schedule.releases(), releases);
        drop((handle, newest));
        database.close().unwrap();
    }
}
