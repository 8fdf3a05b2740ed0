//! Which registered views hold which memtables, and how runs replace those memtables.
//!
//! Views of one state hold the same memtables, so this file groups views by state. All work is
//! O(views), with a constant of some tens of nanoseconds, and O(states that views hold) for each
//! memtable in question. The value that the views of one state hold next is made once and shared.
//! So is a keyspace state that several states share.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{KeyspaceId, Lsn, mutant};

use crate::checkpoint::run_writer::{RunWriter, Written};
use crate::engine::core::Core;
use crate::engine::state::{KeyspaceState, LoggedMemtable, SealedMemtable, State};
use crate::engine::views::{Held, View};
use crate::run::Run;

/// Age, in nanoseconds, from which a view releases memtables. When memtable memory is short, every
/// age is old enough.
pub(super) const AGE_NS: u64 = 1_000_000_000;

/// The registered views that hold memtables, grouped by what they hold.
pub(super) struct Holders(Vec<Group>);

/// The views that hold one state.
struct Group {
    state: Arc<State>,
    /// The keyspace of ranges, which read no other one.
    only: Option<KeyspaceId>,
    /// The views' LSN bounds, ascending, each once.
    moments: Vec<Lsn>,
    /// When the oldest view was made.
    oldest_ns: u64,
}

/// What views need of a memtable.
pub(super) struct Wanted {
    /// The bounds of the views that see records of the memtable, ascending, each once.
    pub moments: Vec<Lsn>,
    /// When the oldest view of their groups was made.
    pub oldest_ns: u64,
}

/// A memtable that left the current state while views still hold it.
pub(super) struct Retired {
    pub keyspace: KeyspaceId,
    pub memtable: Arc<LoggedMemtable>,
    groups: Vec<usize>,
}

impl Holders {
    /// Groups all views. A view that is being made may be missing.
    pub fn of(views: &[Arc<View>]) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        // Keyed by the address of the state, which the groups keep alive. Groups are in the order
        // of the views.
        let mut by_state: BTreeMap<(usize, Option<KeyspaceId>), usize> = BTreeMap::new();
        for view in views {
            let Ok(held) = view.held() else { continue };
            if held.is_settled {
                continue;
            }
            let place = Arc::as_ptr(&held.state).addr();
            let at = *by_state.entry((place, view.only)).or_insert(groups.len());
            if at == groups.len() {
                groups.push(Group {
                    state: held.state.clone(),
                    only: view.only,
                    moments: Vec::new(),
                    oldest_ns: u64::MAX,
                });
            }
            let group = &mut groups[at];
            group.moments.push(view.before);
            group.oldest_ns = group.oldest_ns.min(view.born_ns);
        }
        for group in &mut groups {
            group.moments.sort_unstable();
            group.moments.dedup();
        }
        Holders(groups)
    }

    /// Whether no view holds a memtable.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What views need of a memtable that they hold now.
    pub fn want(&self, id: KeyspaceId, memtable: &Arc<LoggedMemtable>) -> Wanted {
        let holds = |group: &&Group| {
            let is_looked_at = group.only.is_none_or(|only| only == id);
            let keyspace = group.state.keyspaces.get(id).filter(|_| is_looked_at);
            keyspace.is_some_and(|keyspace| role_of(keyspace, memtable).is_some())
        };
        wanted(self.0.iter().filter(holds), memtable)
    }

    /// What views need of a memtable that left the state.
    pub fn want_of(&self, retired: &Retired) -> Wanted {
        let groups = retired.groups.iter().map(|&at| &self.0[at]);
        wanted(groups, &retired.memtable)
    }

    /// The memtables that views hold and `current` does not. `current` was loaded after the views
    /// were listed, so a missing memtable was merged or cleared. The older memtable of a keyspace
    /// comes first.
    pub fn retired(&self, current: &State) -> Vec<Retired> {
        let mut all: Vec<Retired> = Vec::new();
        let mut by_memtable: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, group) in self.0.iter().enumerate() {
            let differing = group.state.keyspaces.differing_from(&current.keyspaces);
            for (keyspace, now) in differing {
                for memtable in retired(keyspace, now) {
                    let place = Arc::as_ptr(memtable).addr();
                    let at = *by_memtable.entry(place).or_insert(all.len());
                    if at == all.len() {
                        all.push(Retired {
                            keyspace: keyspace.id,
                            memtable: memtable.clone(),
                            groups: Vec::new(),
                        });
                    }
                    all[at].groups.push(number);
                }
            }
        }
        all
    }
}

/// The memtables of a keyspace that hold a record and are not among its current ones, the older one
/// first. The keyspace may be gone.
pub(super) fn retired<'a>(
    keyspace: &'a KeyspaceState,
    now: Option<&'a Arc<KeyspaceState>>,
) -> impl Iterator<Item = &'a Arc<LoggedMemtable>> {
    let sealed = keyspace.sealed.as_ref().map(|s| &s.records);
    let memtables = sealed.into_iter().chain([&keyspace.active]);
    memtables.filter(move |memtable| {
        !memtable.memtable.is_empty() && now.is_none_or(|now| role_of(now, memtable).is_none())
    })
}

fn wanted<'a>(groups: impl Iterator<Item = &'a Group>, memtable: &LoggedMemtable) -> Wanted {
    let mut wanted = Wanted {
        moments: Vec::new(),
        oldest_ns: u64::MAX,
    };
    for group in groups {
        // Earlier moments see nothing of the memtable.
        let from = group.moments.partition_point(|m| *m <= memtable.start);
        if from < group.moments.len() {
            wanted.moments.extend_from_slice(&group.moments[from..]);
            wanted.oldest_ns = wanted.oldest_ns.min(group.oldest_ns);
        }
    }
    wanted.moments.sort_unstable();
    wanted.moments.dedup();
    wanted
}

/// Which of a keyspace's two memtables is meant.
enum MemtableRole {
    Active,
    Sealed,
}

fn role_of(keyspace: &KeyspaceState, memtable: &Arc<LoggedMemtable>) -> Option<MemtableRole> {
    let is_sealed = |sealed: &SealedMemtable| Arc::ptr_eq(&sealed.records, memtable);
    if keyspace.sealed.as_ref().is_some_and(is_sealed) {
        Some(MemtableRole::Sealed)
    } else {
        Arc::ptr_eq(&keyspace.active, memtable).then_some(MemtableRole::Active)
    }
}

/// A memtable that views need no more: they get its run, or they see nothing of it.
pub(super) struct Finished {
    keyspace: KeyspaceId,
    memtable: Arc<LoggedMemtable>,
    run: Written,
    /// The moments that the run serves.
    moments: Arc<[Lsn]>,
    /// The memtable holds no LSN at or above this. All later moments see the same of it.
    end: Lsn,
}

impl Finished {
    /// For a memtable of which no view sees anything.
    pub fn unseen(retired: &Retired) -> Self {
        Finished {
            keyspace: retired.keyspace,
            memtable: retired.memtable.clone(),
            run: None,
            moments: Arc::default(),
            end: Lsn(u64::MAX),
        }
    }

    /// For a memtable whose run a writer has finished. The memtable holds no LSN at or above `end`.
    pub fn written(writer: &RunWriter, run: Written, end: Lsn) -> Self {
        Finished {
            keyspace: writer.keyspace,
            memtable: writer.memtable.clone(),
            run,
            moments: writer.moments.clone(),
            end,
        }
    }

    /// Bytes of the run.
    pub fn bytes(&self) -> u64 {
        self.run.as_deref().map_or(0, Run::bytes)
    }

    /// Whether this is about `memtable`.
    pub fn is_of(&self, memtable: &Arc<LoggedMemtable>) -> bool {
        Arc::ptr_eq(&self.memtable, memtable)
    }

    /// Whether a view sees in the run what it sees in the memtable.
    fn serves(&self, view: &View) -> bool {
        let looks = view.only.is_none_or(|only| only == self.keyspace);
        let moment = view.before.min(self.end);
        let is_known =
            self.moments.binary_search(&moment).is_ok() || mutant::active("any-view-gets-run");
        !looks || view.before <= self.memtable.start || is_known
    }
}

/// Replaces finished memtables by their runs, in all views that the runs serve. Returns whether
/// there were such views. O(views + states that they hold · memtables).
pub(super) fn hand_over(core: &Core, finished: &[Finished]) -> bool {
    let mut handed_over = false;
    // By the address of a state: what its holders hold next, and the memtables that leave it. The
    // map keeps the states alive, so no other state gets such an address.
    type Next<'f> = Option<(Arc<Held>, Vec<&'f Finished>)>;
    let mut next_of: BTreeMap<usize, (Arc<State>, Next<'_>)> = BTreeMap::new();
    let mut replaced = Replaced::default();
    for view in core.views.all() {
        let Ok(held) = view.held() else { continue };
        if held.is_settled {
            continue;
        }
        let place = Arc::as_ptr(&held.state).addr();
        let (_, next) = next_of.entry(place).or_insert_with(|| {
            let state = held.state.clone();
            let has = |finished: &&Finished| {
                let keyspace = state.keyspaces.get(finished.keyspace);
                keyspace.is_some_and(|k| role_of(k, &finished.memtable).is_some())
            };
            let gone: Vec<_> = finished.iter().filter(has).collect();
            let next = (!gone.is_empty()).then(|| {
                let next = held.next(
                    &core.no_memtable,
                    replaced.state_without(core, &state, &gone),
                );
                (Arc::new(next), gone)
            });
            (state, next)
        });
        if let Some((next, gone)) = next
            && gone.iter().all(|finished| finished.serves(&view))
        {
            view.replace(&held, next.clone());
            handed_over = true;
        }
    }
    handed_over
}

/// Keyspace states and their replacements, by the address of the former, which the map keeps alive.
#[derive(Default)]
struct Replaced(BTreeMap<usize, (Arc<KeyspaceState>, Arc<KeyspaceState>)>);

impl Replaced {
    /// The same state, with runs in place of memtables.
    fn state_without(&mut self, core: &Core, state: &State, gone: &[&Finished]) -> State {
        let mut keyspaces = state.keyspaces.clone();
        for finished in gone {
            // Both memtables of a keyspace may go.
            if let Some(before) = keyspaces.get(finished.keyspace).cloned() {
                let place = Arc::as_ptr(&before).addr();
                let (_, after) = self.0.entry(place).or_insert_with(|| {
                    let after = Arc::new(without(core, &before, finished));
                    (before, after)
                });
                keyspaces.insert(after.clone());
            }
        }
        State {
            generation: state.generation,
            pin: state.pin.clone(),
            floor: state.floor,
            keyspaces,
        }
    }
}

/// The same keyspace state, with a run in place of one memtable.
fn without(core: &Core, keyspace: &KeyspaceState, finished: &Finished) -> KeyspaceState {
    let mut next = keyspace.clone();
    let mut spilled = next.spilled.as_deref().cloned().unwrap_or_default();
    match role_of(keyspace, &finished.memtable) {
        Some(MemtableRole::Sealed) => {
            next.sealed = None;
            spilled.sealed = finished.run.clone();
        }
        Some(MemtableRole::Active) => {
            next.active = LoggedMemtable::over(next.active.start, core.no_memtable.clone());
            spilled.active = finished.run.clone();
        }
        None => {}
    }
    let has_run = spilled.active.is_some() || spilled.sealed.is_some();
    next.spilled = has_run.then(|| Arc::new(spilled));
    next
}
