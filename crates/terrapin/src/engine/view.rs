//! [`ViewHandle`]: a registered view, which keeps the database open.

use std::sync::Arc;

use arc_swap::Guard;
use terrapin_base::{KeyspaceId, Result, Share};

use crate::engine::clock::Ends;
use crate::engine::core::{Core, Observed};
use crate::engine::owner::Owner;
use crate::engine::relay::Relay;
use crate::engine::views::{Held, Registered, View};

/// A view that stays registered, and keeps the database open, until the handle is dropped.
pub(crate) struct ViewHandle {
    view: Arc<View>,
    place: Registered,
    owner: Arc<Share<Owner>>,
}

impl ViewHandle {
    /// A view of everything published so far.
    pub fn new(owner: &Arc<Owner>) -> Result<Arc<Self>> {
        Self::of(&Share::lone(owner), owner.core.observe()?, None)
    }

    /// A view of everything published so far. Its user reads one keyspace only.
    pub fn of_keyspace(owner: &Arc<Share<Owner>>, id: KeyspaceId) -> Result<Arc<Self>> {
        Self::of(owner, owner.core.observe()?, Some(id))
    }

    /// Registers a view of what was observed, of the keyspace `only` or of all.
    fn of(
        owner: &Arc<Share<Owner>>,
        observed: Observed,
        only: Option<KeyspaceId>,
    ) -> Result<Arc<Self>> {
        let core = &owner.core;
        let mut state = observed.state;
        // A thread has eight arc-swap guards that cost nothing. Long-lived views leave those to
        // short-lived ones.
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
            now_ms: observed.now_ms,
            ends: Ends::default(),
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
        // A close between `observe` and `register` did not see this view.
        core.health.check_open()?;
        // A memtable may have left the state meanwhile. The job that lists its views did not see
        // this one.
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
        // In a forked child the view stays registered: another thread may have held the registry's
        // lock at the time of the fork.
        if self.owner.core.health.process().is_this() {
            self.owner.core.views.unregister(self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{Lsn, STRIPES};

    use super::*;
    use crate::engine::views::Views;
    use crate::types::options::Options;

    /// Threads of all stripes make views, more in each stripe than the thread has free guards. The
    /// views see their moments while the state is replaced, and other threads drop them.
    #[test]
    fn views_of_many_threads_are_all_listed_and_all_freed() {
        const ROUNDS: u64 = 2 * (Views::FEW as u64 + 6);
        let (database, sim) = Options::small().open_simulated();
        // Two threads must not run the jobs' steps at the same time.
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
        // The registry reuses slots.
        let range = keyspace.iter();
        assert_eq!(core.views.all().len(), 1);
        drop(range);
        keyspace.put("b", "").unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        // Only this test still holds the previous state.
        assert_eq!(Arc::strong_count(&some), 1);
        database.close().unwrap();
    }

    /// A view that was made while a memtable left the state never released that memtable.
    #[test]
    fn a_view_made_while_the_state_is_replaced_releases_its_memtable() {
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
        // Past the age at which views release memtables.
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
