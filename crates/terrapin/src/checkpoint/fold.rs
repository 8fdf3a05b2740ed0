//! Folding: registered views give their windows back (DESIGN §5, "held snapshots pin pages, never windows").
//!
//! A checkpoint merges a window whole; a view from the middle of it still needs the window to tell what was written
//! before its bound. So once a window has left the current state, and a view that still holds it is older than a second
//! (or memory is short), this job merges what the view sees of the window into the version that the view holds, on
//! private pages, and gives the view a state with that version and without the window. The pages die with the
//! view. Nothing of this is durable: a view does not outlive the process.
//!
//! Views of the same moment are folded once, together, and those of later moments go on from where the one before came to: all views that
//! need a window merge it about once. A range's view lets go of the windows of all keyspaces but its own, which it never looks at.
//!
//! The design's other form, a root for every held view made by the checkpoint itself in LSN steps, shares more pages, but
//! cannot serve a view that was young when the checkpoint began; see `docs/decisions/0002-folding-views.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, Job, KeyspaceId, Lsn, Result, Step, mutant};
use terrapin_memtable::Window;
use terrapin_pages::PrivatePages;
use terrapin_structure::{Merge, MergeInput, MergeStep, Version};

use super::input::{Preparation, WindowInput};
use super::merges::guarded;
use crate::core::Core;
use crate::state::{KeyspaceState, State, WriteWindow};
use crate::view::{Held, View};

/// Age from which on a view gives its windows back.
const AGE_NS: u64 = 1_000_000_000;
/// Pause of a view whose fold failed, and of all on a full disk.
const RETRY_NS: u64 = 1_000_000_000;

/// Most folds that go on from one another: a view keeps the pages of all that its own went on from.
const CHAIN_MAX: usize = 64;

/// The job.
pub(crate) struct FoldJob {
    core: Arc<Core>,
    work: Option<Fold>,
    /// What the last one came to, while a view may go on from there.
    last: Option<Folded>,
    /// Moments whose fold failed, and when each is tried again: the others do not wait for them.
    failed: Vec<(Lsn, u64)>,
    /// Nothing is folded before: the disk was full.
    rests_until_ns: Option<u64>,
}

/// One window on its way into a private version, as the views of one moment see it.
struct Fold {
    before: Lsn,
    held: Arc<Held>,
    keyspace: KeyspaceId,
    /// Where it begins: with nothing of the window, or with what an earlier one came to.
    from: Folded,
    stage: Stage,
}

/// The versions of a window below a bound are merged into what lay below the window.
#[derive(Clone)]
struct Folded {
    window: Arc<WriteWindow>,
    below: Arc<dyn Version>,
    before: Lsn,
    merged: Arc<dyn Version>,
    /// The pages of `merged` that are not `below`'s.
    pages: Vec<Arc<PrivatePages>>,
}

impl Folded {
    /// Nothing of a window.
    fn nothing(window: &Arc<WriteWindow>, below: &Arc<dyn Version>) -> Self {
        Folded {
            window: window.clone(),
            below: below.clone(),
            before: window.start,
            merged: below.clone(),
            pages: Vec::new(),
        }
    }

    /// Whether it is of that window, in a keyspace with that version below it.
    fn is_of(&self, window: &Arc<WriteWindow>, below: &Arc<dyn Version>) -> bool {
        Arc::ptr_eq(&self.window, window) && Arc::ptr_eq(&self.below, below)
    }
}

enum Stage {
    /// The window is being measured.
    Prepare(Box<Preparation>),
    /// Its records flow into new pages.
    Merge(Arc<dyn Merge>),
}

/// What looking for work found.
enum Search {
    Found(Box<Fold>),
    /// Nothing yet; look again at that time at the latest, if any.
    Later(Option<u64>),
}

impl FoldJob {
    /// The job of one open database.
    pub fn new(core: Arc<Core>) -> Self {
        FoldJob {
            core,
            work: None,
            last: None,
            failed: Vec::new(),
            rests_until_ns: None,
        }
    }

    fn search(&mut self) -> Search {
        let now = self.core.env.now_ns();
        self.failed.retain(|(_, retry)| *retry > now);
        // Then views give windows back whatever their age.
        let short = self.core.windows_are_large();
        // In this order: then no view is of a later state than `state`, and what it lacks was merged (or cleared) indeed. A
        // window of a later state would look the same, and be folded below an older one.
        let views = self.core.views.all();
        let state = self.core.state.load_full();
        let (mut later, mut released) = (None, narrow(&views, &state));
        let mut goes_on = false;
        for view in views {
            let Ok(held) = view.held() else { continue };
            // Those that were not narrowed hold nothing that was retired.
            if view.only.is_some_and(|only| !held.is_of_only(only)) {
                continue;
            }
            let Some((keyspace, window)) = retired(&held, &state) else {
                continue;
            };
            let Ok(below) = held.keyspace(keyspace).map(|k| k.version.clone()) else {
                continue;
            };
            if window.start >= view.before {
                // Nothing in it is for this view.
                let state = without(&self.core, &held.state, keyspace, &window.window, below);
                let next = held.next(state, held.private.clone());
                view.replace(&held, Arc::new(next));
                // It may hold another.
                later = Some(now);
                released = true;
                continue;
            }
            let last = self
                .last
                .as_ref()
                .filter(|last| last.is_of(&window, &below));
            goes_on |= last.is_some();
            let failed = self.failed.iter().find(|(at, _)| *at == view.before);
            let due = match failed {
                Some((_, retry)) => *retry,
                None if short => now,
                None => view.born_ns.saturating_add(AGE_NS),
            };
            if now < due {
                later = Some(later.map_or(due, |at: u64| at.min(due)));
                continue;
            }
            let before = match mutant::active(47) {
                true => Lsn(u64::MAX),
                false => view.before,
            };
            let from = match last {
                Some(last) if last.before <= view.before && last.pages.len() < CHAIN_MAX => {
                    last.clone()
                }
                _ => Folded::nothing(&window, &below),
            };
            let preparation = WindowInput::prepare(window.window.clone(), from.before, before);
            let stage = Stage::Prepare(Box::new(preparation));
            return Search::Found(Box::new(Fold {
                before: view.before,
                held,
                keyspace,
                from,
                stage,
            }));
        }
        if !goes_on {
            released |= self.last.take().is_some();
        }
        if released {
            // Their memory may be what writers wait for.
            self.core.schedule.released();
        }
        Search::Later(later)
    }

    /// One step of the fold at hand; `true` when it is over.
    fn advance(&mut self) -> Result<bool> {
        let Some(fold) = &mut self.work else {
            return Ok(true);
        };
        if !self.core.views.any(|view| fold.serves(view)) {
            // Let go meanwhile.
            self.abandon();
            return Ok(true);
        }
        match &mut fold.stage {
            Stage::Prepare(preparation) => {
                let Some(input) = preparation.step() else {
                    return Ok(false);
                };
                if input.estimate(None, None).records == 0 {
                    let merged = fold.from.merged.clone();
                    self.last = Some(fold.finish(&self.core, merged, None));
                    return Ok(true);
                }
                let mut options = self.core.settings.merge.clone();
                options.space_is_short = false;
                options.is_private = true;
                let merge = self
                    .core
                    .structure
                    .begin_merge(&fold.from.merged, input, &options)?;
                fold.stage = Stage::Merge(merge);
                Ok(false)
            }
            Stage::Merge(merge) => match merge.step()? {
                MergeStep::Again => Ok(false),
                MergeStep::Pending(_) => {
                    Err(Error::internal("a merge with one worker waits for another"))
                }
                MergeStep::Done => {
                    let merged = merge.finish()?;
                    let pages = self.core.store.private(merged.changes);
                    let pages = Some(Arc::new(pages));
                    self.last = Some(fold.finish(&self.core, merged.version, pages));
                    self.core.counters.folds.add(1);
                    Ok(true)
                }
            },
        }
    }

    fn abandon(&mut self) {
        if let Some(Fold {
            stage: Stage::Merge(merge),
            ..
        }) = self.work.take()
        {
            merge.abandon();
        }
    }
}

impl Fold {
    /// Whether the result will be what that view sees, too.
    fn serves(&self, view: &View) -> bool {
        let same = |held: &Held| {
            // Private pages come with a state of their own.
            Arc::ptr_eq(&held.state, &self.held.state)
        };
        view.before == self.before && view.held().is_ok_and(|held| same(&held))
    }

    /// Gives every view that it serves the version in the place of the window.
    fn finish(
        &self,
        core: &Core,
        merged: Arc<dyn Version>,
        added: Option<Arc<PrivatePages>>,
    ) -> Folded {
        let state = without(
            core,
            &self.held.state,
            self.keyspace,
            &self.from.window.window,
            merged.clone(),
        );
        let mut pages = self.from.pages.clone();
        pages.extend(added.filter(|_| !mutant::active(48)));
        let mut private = self.held.private.clone();
        private.extend(pages.iter().cloned());
        let next = Arc::new(self.held.next(state, private));
        for view in core
            .views
            .all()
            .into_iter()
            .filter(|view| self.serves(view))
        {
            if let Ok(held) = view.held() {
                view.replace(&held, next.clone());
            }
        }
        Folded {
            before: self.before,
            merged,
            pages,
            ..self.from.clone()
        }
    }
}

impl Job for FoldJob {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn step(&mut self) -> Step {
        let schedule = self.core.schedule.clone();
        if schedule.is_stopping() {
            self.abandon();
            self.last = None;
            return Step::Done;
        }
        if self.work.is_some() {
            match guarded(|| self.advance()) {
                Ok(false) => {}
                Ok(true) => {
                    self.work = None;
                    // The view's windows may have been the last to hold memory that writers wait for.
                    schedule.released();
                }
                Err(error) => {
                    let retry_ns = self.core.env.now_ns().saturating_add(RETRY_NS);
                    if error.kind() == ErrorKind::NoSpace {
                        self.rests_until_ns = Some(retry_ns);
                    } else if let Some(fold) = &self.work {
                        self.failed.push((fold.before, retry_ns));
                    }
                    self.abandon();
                    tracing::warn!(%error, "a view could not give its window back; it will be tried again");
                }
            }
            return Step::Again;
        }
        let releases = schedule.releases();
        let now = self.core.env.now_ns();
        if let Some(until) = self.rests_until_ns.filter(|&until| until > now) {
            let stopping = schedule.clone();
            return Step::Pending(
                Condition::new(schedule.work(), move || stopping.is_stopping()).until(until),
            );
        }
        match self.search() {
            Search::Found(fold) => {
                self.work = Some(*fold);
                Step::Again
            }
            Search::Later(at) => {
                let seen = schedule.clone();
                let changed = Condition::new(schedule.work(), move || {
                    seen.is_stopping() || seen.releases() != releases
                });
                Step::Pending(at.map_or(changed.clone(), |at| changed.until(at)))
            }
        }
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

/// Has ranges' views let go of all keyspaces but their own, if they hold a window that the current state does not; whether any did. Views of one
/// moment and keyspace hold the same afterwards, so that they are folded together.
fn narrow(views: &[Arc<View>], current: &State) -> bool {
    // By where the state lies that was held before, which is kept so that no other comes to lie there, and by keyspace.
    let mut narrowed: BTreeMap<(usize, KeyspaceId), (Arc<State>, Arc<Held>)> = BTreeMap::new();
    for view in views {
        let (Some(only), Ok(held)) = (view.only, view.held()) else {
            continue;
        };
        if held.is_of_only(only) || retired(&held, current).is_none() {
            continue;
        }
        // Private pages come with a state of their own: who holds the same state holds the same pages.
        let (_, next) = narrowed
            .entry((Arc::as_ptr(&held.state).addr(), only))
            .or_insert_with(|| (held.state.clone(), Arc::new(held.narrowed_to(only))));
        view.replace(&held, next.clone());
    }
    !narrowed.is_empty()
}

/// A window that a view holds and the current state does not: the older one of a keyspace first, since the merge of the
/// newer goes on top.
fn retired(held: &Held, current: &State) -> Option<(KeyspaceId, Arc<WriteWindow>)> {
    held.state.keyspaces.iter().find_map(|keyspace| {
        let now = current.keyspaces.get(keyspace.id);
        let is_current = |window: &Arc<WriteWindow>| {
            now.is_some_and(|now| {
                Arc::ptr_eq(&now.active.window, &window.window)
                    || now
                        .sealed
                        .as_ref()
                        .is_some_and(|s| Arc::ptr_eq(&s.records.window, &window.window))
            })
        };
        let windows = keyspace
            .sealed
            .as_ref()
            .map(|s| &s.records)
            .into_iter()
            .chain([&keyspace.active]);
        let window = windows
            .filter(|w| !w.window.is_empty())
            .find(|w| !is_current(w))?;
        Some((keyspace.id, window.clone()))
    })
}

/// The same state with `version` in the place of a keyspace's window and version.
fn without(
    core: &Core,
    state: &State,
    id: KeyspaceId,
    window: &Arc<Window>,
    version: Arc<dyn Version>,
) -> State {
    let mut keyspaces = state.keyspaces.clone();
    if let Some(keyspace) = keyspaces.get(id) {
        let mut next = KeyspaceState {
            version,
            ..(**keyspace).clone()
        };
        if next
            .sealed
            .as_ref()
            .is_some_and(|s| Arc::ptr_eq(&s.records.window, window))
        {
            next.sealed = None;
        } else {
            next.active = WriteWindow::new(next.active.start, Window::new(&core.budget));
        }
        keyspaces.insert(Arc::new(next));
    }
    State {
        generation: state.generation,
        pin: state.pin.clone(),
        floor: state.floor,
        keyspaces,
    }
}

#[cfg(test)]
mod tests {
    use terrapin_structure::Merged;

    use super::*;
    use crate::Options;

    struct Panics;

    impl Merge for Panics {
        fn step(&self) -> Result<MergeStep> {
            panic!("a merge's, on purpose")
        }

        fn progress(&self) -> (u64, u64) {
            (0, 0)
        }

        fn finish(&self) -> Result<Merged> {
            Err(Error::internal("it was never done"))
        }

        fn abandon(&self) {}
    }

    /// A range had the windows of all keyspaces merged for it.
    #[test]
    fn ranges_give_the_windows_of_other_keyspaces_back_as_they_are() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        let others = ["one", "two"].map(|name| database.keyspace(name).unwrap());
        for keyspace in others.iter().chain([&keyspace]) {
            keyspace.put("a", "1").unwrap();
            keyspace.put("b", "2").unwrap();
        }
        let mut ranges = [keyspace.iter(), keyspace.range("a"..), others[0].iter()];
        database.checkpoint().unwrap();
        sim.advance_ns(2 * AGE_NS);
        sim.settle();
        let core = database.core();
        assert!(!core.views.any(|view| {
            let held = view.held().unwrap();
            retired(&held, &core.state.load()).is_some()
        }));
        let folds = core.counters.folds.get();
        assert_eq!(folds, 2, "one for both ranges of a keyspace");
        for range in &mut ranges {
            let keys: Vec<_> = range.map(|record| record.unwrap().0).collect();
            assert_eq!(keys, ["a", "b"]);
        }
        drop(ranges);
        // A snapshot may be asked for any.
        let snapshot = database.snapshot().unwrap();
        for keyspace in others.iter().chain([&keyspace]) {
            keyspace.delete("a").unwrap();
        }
        let later = others[1].iter();
        database.checkpoint().unwrap();
        sim.advance_ns(2 * AGE_NS);
        sim.settle();
        for keyspace in others.iter().chain([&keyspace]) {
            let value = snapshot.get(keyspace, "a").unwrap();
            assert_eq!(value.as_deref(), Some(&b"1"[..]));
        }
        assert_eq!(later.count(), 1);
        drop(snapshot);
        database.close().unwrap();
    }

    /// The job was gone, and from then on every view kept its windows.
    #[test]
    fn a_fold_that_panics_is_tried_again() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        keyspace.put("a", "1").unwrap();
        let snapshot = database.snapshot().unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        sim.set_breathing(false);
        let core = database.core();
        let holds_a_window = || {
            core.views.any(|view| {
                let held = view.held().unwrap();
                retired(&held, &core.state.load()).is_some()
            })
        };
        assert!(holds_a_window());
        sim.advance_ns(AGE_NS);
        // In the place of the database's own, which is not stepped any more.
        let mut job = FoldJob::new(core.clone());
        let is_merging = |job: &FoldJob| {
            let stage = job.work.as_ref().map(|fold| &fold.stage);
            matches!(stage, Some(Stage::Merge(_)))
        };
        while !is_merging(&job) {
            assert!(matches!(job.step(), Step::Again));
        }
        let fold = job.work.as_mut().unwrap();
        let begun = std::mem::replace(&mut fold.stage, Stage::Merge(Arc::new(Panics)));
        if let Stage::Merge(begun) = begun {
            begun.abandon();
        }
        assert!(matches!(job.step(), Step::Again));
        assert_eq!((job.work.is_none(), job.failed.len()), (true, 1));
        assert!(matches!(job.step(), Step::Pending(_)) && holds_a_window());
        sim.advance_ns(RETRY_NS);
        while matches!(job.step(), Step::Again) {}
        assert!(!holds_a_window());
        let value = snapshot.get(&keyspace, "a").unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]));
        drop((job, snapshot));
        database.close().unwrap();
    }
}
