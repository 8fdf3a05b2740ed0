//! Folding: registered views give their windows back (DESIGN §5, "held snapshots pin pages, never windows").
//!
//! A checkpoint merges a window whole; a view from the middle of it still needs the window to tell what was written
//! before its bound. So once a window has left the current state, and a view that still holds it is older than a second
//! (or memory is short), this job merges what the view sees of the window into the version that the view holds, on
//! private pages, and gives the view a state with that version and without the window. The pages die with the
//! view. Nothing of this is durable: a view does not outlive the process.
//!
//! Views of the same moment are folded once, together.
//!
//! The design's other form, a root for every held view made by the checkpoint itself in LSN steps, shares more pages, but
//! cannot serve a view that was young when the checkpoint began; see `docs/decisions/0002-folding-views.md`.

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

/// The job.
pub(crate) struct FoldJob {
    core: Arc<Core>,
    work: Option<Fold>,
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
    window: Arc<WriteWindow>,
    stage: Stage,
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
        let (mut later, mut released) = (None, false);
        for view in views {
            let Ok(held) = view.held() else { continue };
            let Some((keyspace, window)) = retired(&held, &state) else {
                continue;
            };
            if window.start >= view.before {
                // Nothing in it is for this view.
                let version = match held.keyspace(keyspace) {
                    Ok(keyspace) => keyspace.version.clone(),
                    Err(_) => continue,
                };
                let state = without(&self.core, &held.state, keyspace, &window.window, version);
                view.replace(
                    &held,
                    Arc::new(Held {
                        state: Arc::new(state),
                        private: held.private.clone(),
                    }),
                );
                // It may hold another.
                later = Some(now);
                released = true;
                continue;
            }
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
            let preparation = WindowInput::prepare(window.window.clone(), window.start, before);
            let stage = Stage::Prepare(Box::new(preparation));
            return Search::Found(Box::new(Fold {
                before: view.before,
                held,
                keyspace,
                window,
                stage,
            }));
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
                let keyspace = fold.held.keyspace(fold.keyspace)?;
                if input.estimate(None, None).records == 0 {
                    fold.finish(&self.core, keyspace.version.clone(), None);
                    return Ok(true);
                }
                let mut options = self.core.settings.merge.clone();
                options.space_is_short = false;
                options.is_private = true;
                let merge = self
                    .core
                    .structure
                    .begin_merge(&keyspace.version, input, &options)?;
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
                    fold.finish(&self.core, merged.version, Some(Arc::new(pages)));
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
    fn finish(&self, core: &Core, version: Arc<dyn Version>, pages: Option<Arc<PrivatePages>>) {
        let state = without(
            core,
            &self.held.state,
            self.keyspace,
            &self.window.window,
            version,
        );
        let mut private = self.held.private.clone();
        private.extend(pages.filter(|_| !mutant::active(48)));
        let next = Arc::new(Held {
            state: Arc::new(state),
            private,
        });
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
