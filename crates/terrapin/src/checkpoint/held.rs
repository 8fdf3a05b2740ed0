//! Which registered views hold which memtables, and how they come to hold runs instead.
//!
//! Views of one state hold the same, so they are looked at by state: all work is O(views) with a
//! constant of some tens of nanoseconds, and O(states that views hold) for each memtable in
//! question. What views of one state hold next is made once and shared, and so is the keyspace
//! state that several states share.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{KeyspaceId, Lsn, mutant};

use crate::checkpoint::run_writer::{RunWriter, Written};
use crate::engine::core::Core;
use crate::engine::state::{KeyspaceState, LoggedMemtable, SealedMemtable, State};
use crate::engine::views::{Held, View};
use crate::run::Run;

/// Age from which on a view gives its memtables back; any does where memtable memory is short.
pub(super) const AGE_NS: u64 = 1_000_000_000;

/// The registered views that hold memtables, by what they hold.
pub(super) struct Holders(Vec<Group>);

/// Views that hold one state.
struct Group {
    state: Arc<State>,
    /// The keyspace of ranges, which look at no other.
    only: Option<KeyspaceId>,
    /// Their bounds, ascending, each once.
    moments: Vec<Lsn>,
    /// When the oldest was made.
    oldest_ns: u64,
}

/// What views want of a memtable.
pub(super) struct Wanted {
    /// The bounds of the views that see anything of it, ascending, each once.
    pub moments: Vec<Lsn>,
    /// When the oldest of their groups was made.
    pub oldest_ns: u64,
}

/// A memtable that left the current state, and is held by views.
pub(super) struct Retired {
    pub keyspace: KeyspaceId,
    pub memtable: Arc<LoggedMemtable>,
    groups: Vec<usize>,
}

impl Holders {
    /// Of all views. One that is being made may be missing.
    pub fn of(views: &[Arc<View>]) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        // By where the state lies; the groups keep the states there. Groups are in the order of the
        // views.
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

    /// What views want of a memtable that they hold, as they hold it now.
    pub fn want(&self, id: KeyspaceId, memtable: &Arc<LoggedMemtable>) -> Wanted {
        let holds = |group: &&Group| {
            let is_looked_at = group.only.is_none_or(|only| only == id);
            let keyspace = group.state.keyspaces.get(id).filter(|_| is_looked_at);
            keyspace.is_some_and(|keyspace| place_of(keyspace, memtable).is_some())
        };
        wanted(self.0.iter().filter(holds), memtable)
    }

    /// What views want of a memtable that left the state.
    pub fn want_of(&self, retired: &Retired) -> Wanted {
        let groups = retired.groups.iter().map(|&at| &self.0[at]);
        wanted(groups, &retired.memtable)
    }

    /// The memtables that views hold and a state does not, which was the current one after the
    /// views were listed: what it lacks was merged or cleared indeed. Of a keyspace the older
    /// memtable comes first.
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

/// A keyspace's memtables that hold something and are not among those that it has now, if it is
/// there: the older one first.
pub(super) fn retired<'a>(
    keyspace: &'a KeyspaceState,
    now: Option<&'a Arc<KeyspaceState>>,
) -> impl Iterator<Item = &'a Arc<LoggedMemtable>> {
    let sealed = keyspace.sealed.as_ref().map(|s| &s.records);
    let memtables = sealed.into_iter().chain([&keyspace.active]);
    memtables.filter(move |memtable| {
        !memtable.memtable.is_empty() && now.is_none_or(|now| place_of(now, memtable).is_none())
    })
}

fn wanted<'a>(groups: impl Iterator<Item = &'a Group>, memtable: &LoggedMemtable) -> Wanted {
    let mut wanted = Wanted {
        moments: Vec::new(),
        oldest_ns: u64::MAX,
    };
    for group in groups {
        // The others see nothing of it.
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

/// Where a keyspace has a memtable.
enum Place {
    Active,
    Sealed,
}

fn place_of(keyspace: &KeyspaceState, memtable: &Arc<LoggedMemtable>) -> Option<Place> {
    let is_sealed = |sealed: &SealedMemtable| Arc::ptr_eq(&sealed.records, memtable);
    if keyspace.sealed.as_ref().is_some_and(is_sealed) {
        Some(Place::Sealed)
    } else {
        Arc::ptr_eq(&keyspace.active, memtable).then_some(Place::Active)
    }
}

/// A memtable that views need no more: they have its run instead, or see nothing of it.
pub(super) struct Finished {
    keyspace: KeyspaceId,
    memtable: Arc<LoggedMemtable>,
    run: Written,
    /// The run's moments.
    moments: Arc<[Lsn]>,
    /// The memtable holds nothing from here on: all later moments see the same of it.
    end: Lsn,
}

impl Finished {
    /// Nobody sees anything of a memtable.
    pub fn unseen(retired: &Retired) -> Self {
        Finished {
            keyspace: retired.keyspace,
            memtable: retired.memtable.clone(),
            run: None,
            moments: Arc::default(),
            end: Lsn(u64::MAX),
        }
    }

    /// A writer came to that. The memtable holds nothing from `end` on.
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

    /// Whether it is that memtable.
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

/// Gives all views that hold such memtables what stands in their place, if that serves them;
/// whether there were any. O(views + states that they hold · memtables).
pub(super) fn hand_over(core: &Core, finished: &[Finished]) -> bool {
    let mut handed_over = false;
    // By the address of a state: what its holders hold next, and the memtables that leave it. The
    // states are kept alive, so that no other state gets such an address.
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
                keyspace.is_some_and(|k| place_of(k, &finished.memtable).is_some())
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

/// Keyspace states and what took their places: by where the former lie, which are kept there.
#[derive(Default)]
struct Replaced(BTreeMap<usize, (Arc<KeyspaceState>, Arc<KeyspaceState>)>);

impl Replaced {
    /// The same state with runs in the place of memtables that it has.
    fn state_without(&mut self, core: &Core, state: &State, gone: &[&Finished]) -> State {
        let mut keyspaces = state.keyspaces.clone();
        for finished in gone {
            // Of a keyspace both memtables may go.
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

/// The same keyspace with a run in the place of a memtable.
fn without(core: &Core, keyspace: &KeyspaceState, finished: &Finished) -> KeyspaceState {
    let mut next = keyspace.clone();
    let mut spilled = next.spilled.as_deref().cloned().unwrap_or_default();
    match place_of(keyspace, &finished.memtable) {
        Some(Place::Sealed) => {
            next.sealed = None;
            spilled.sealed = finished.run.clone();
        }
        Some(Place::Active) => {
            next.active = LoggedMemtable::over(next.active.start, core.no_memtable.clone());
            spilled.active = finished.run.clone();
        }
        None => {}
    }
    let has_run = spilled.active.is_some() || spilled.sealed.is_some();
    next.spilled = has_run.then(|| Arc::new(spilled));
    next
}
