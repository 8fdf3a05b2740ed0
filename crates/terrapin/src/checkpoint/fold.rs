//! The fold job: it takes memtables from views once those memtables have left the current state.
//! Held snapshots keep pages in use, and no memtables.
//!
//! A checkpoint itself writes the runs that old views need of its memtables, before it commits
//! (`spill.rs`). The fold job handles the rest:
//!
//! - memtables of views that were young then and grew old,
//! - memtables of cleared or dropped keyspaces,
//! - memtables whose run could not be written.
//!
//! It acts once a view of such a memtable is older than a second, or when memtable memory is short.
//! It writes one run for all views that hold the memtable, and gives the run to them. A range's
//! view releases the memtables of all other keyspaces, which the range never reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use terrapin_base::{Condition, Error, ErrorKind, Job, KeyspaceId, Lsn, Result, Step};

use super::held::{AGE_NS, Finished, Holders, hand_over, retired};
use crate::checkpoint::run_writer::RunWriter;
use crate::engine::core::Core;
use crate::engine::running_merge::guarded;
use crate::engine::state::{LoggedMemtable, State};
use crate::engine::views::{Held, View};

/// Rest, in nanoseconds, of a memtable whose run could not be written, and of all memtables on a
/// full disk.
const RETRY_NS: u64 = 1_000_000_000;

/// The fold job.
pub(crate) struct FoldJob {
    core: Arc<Core>,
    work: Option<RunWriter>,
    /// Finished runs that no view has yet. The job hands small ones over together.
    finished: Vec<Finished>,
    /// Memtables whose run failed, and the time of each retry. Other memtables do not wait for that
    /// time.
    failed: Vec<(Weak<LoggedMemtable>, u64)>,
    /// No run is written before this time, because the disk was full.
    rests_until_ns: Option<u64>,
}

/// The result of a search for work.
enum Search {
    Found(Box<RunWriter>),
    /// Some views got runs: search again.
    Again,
    /// Nothing to do yet. Search again at this time at the latest, if any.
    Later(Option<u64>),
}

impl FoldJob {
    /// Builds the job of one open database.
    pub fn new(core: Arc<Core>) -> Self {
        FoldJob {
            core,
            work: None,
            finished: Vec::new(),
            failed: Vec::new(),
            rests_until_ns: None,
        }
    }

    fn search(&mut self) -> Search {
        let now = self.core.env.now_ns();
        self.failed.retain(|(_, retry)| *retry > now);
        // Views then release memtables at any age.
        let short = self.core.memtables_are_large();
        // The views are listed before the state is loaded. No view is then of a later state than
        // `state`. A later state's memtable would look as if it had left the state.
        let views = self.core.views.all();
        let state = self.core.state.load_full();
        let narrowed = narrow(&self.core, &views, &state);
        let holders = Holders::of(&views);
        let mut later = None;
        let mut due = None;
        for retired in holders.retired(&state) {
            let is_finished = |finished: &Finished| finished.is_of(&retired.memtable);
            if due.is_some() || self.finished.iter().any(is_finished) {
                continue;
            }
            let wanted = holders.want_of(&retired);
            if wanted.moments.is_empty() {
                self.finished.push(Finished::unseen(&retired));
                continue;
            }
            let is_it = |(memtable, _): &&(Weak<LoggedMemtable>, u64)| {
                std::ptr::eq(memtable.as_ptr(), Arc::as_ptr(&retired.memtable))
            };
            let due_ns = match self.failed.iter().find(is_it) {
                Some((_, retry)) => *retry,
                None if short => now,
                None => wanted.oldest_ns.saturating_add(AGE_NS),
            };
            if now < due_ns {
                later = Some(later.map_or(due_ns, |at: u64| at.min(due_ns)));
            } else {
                let (id, memtable) = (retired.keyspace, retired.memtable);
                due = Some(RunWriter::new(&self.core, id, memtable, wanted.moments));
            }
        }
        if let Some(writer) = due {
            return Search::Found(Box::new(writer));
        }
        // The views' states go before their memtables are counted as released.
        drop((holders, views));
        if self.hand_over() || narrowed {
            self.core.schedule.released();
            return Search::Again;
        }
        Search::Later(later)
    }

    /// Hands finished runs to views. Returns whether there was any view for them.
    fn hand_over(&mut self) -> bool {
        let finished = std::mem::take(&mut self.finished);
        !finished.is_empty() && hand_over(&self.core, &finished)
    }

    /// Does one step of the current run. Returns `true` when the run is over.
    fn advance(&mut self) -> Result<bool> {
        let Some(writer) = &mut self.work else {
            return Ok(true);
        };
        if Arc::strong_count(&writer.memtable) == 1 {
            // All views of the memtable went meanwhile.
            self.abandon();
            return Ok(true);
        }
        let Some(run) = guarded(|| writer.step())? else {
            return Ok(false);
        };
        let finished = Finished::written(writer, run, Lsn(u64::MAX));
        self.finished.push(finished);
        let bytes: u64 = self.finished.iter().map(Finished::bytes).sum();
        if bytes >= self.core.settings.merge.group_bytes && self.hand_over() {
            // The views may have been the last to hold memtables whose memory writers wait for.
            self.work = None;
            self.core.schedule.released();
        }
        Ok(true)
    }

    fn abandon(&mut self) {
        if let Some(mut writer) = self.work.take() {
            writer.abandon();
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
            self.finished.clear();
            return Step::Done;
        }
        if self.work.is_some() {
            match self.advance() {
                Ok(false) => {}
                Ok(true) => self.work = None,
                Err(error) => {
                    let retry_ns = self.core.env.now_ns().saturating_add(RETRY_NS);
                    if error.kind() == ErrorKind::NoSpace {
                        self.rests_until_ns = Some(retry_ns);
                    } else if let Some(writer) = &self.work {
                        let memtable = Arc::downgrade(&writer.memtable);
                        self.failed.push((memtable, retry_ns));
                    }
                    self.abandon();
                    tracing::warn!(%error, "a memtable that snapshots or iterators hold could not be written out; the engine retries in a second");
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
            Search::Found(writer) => {
                self.work = Some(*writer);
                Step::Again
            }
            Search::Again => Step::Again,
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

/// Makes the views of ranges release all keyspaces but their own, if they hold a memtable that is
/// not in the current state. Returns whether any view did. Afterwards, views of one moment and
/// keyspace hold the same value, so one fold serves them all.
fn narrow(core: &Core, views: &[Arc<View>], current: &State) -> bool {
    // Keyed by the address of the previous state and by keyspace. The map keeps that state, so no
    // other state gets its address.
    let mut narrowed: BTreeMap<(usize, KeyspaceId), (Arc<State>, Arc<Held>)> = BTreeMap::new();
    for view in views {
        let (Some(only), Ok(held)) = (view.only, view.held()) else {
            continue;
        };
        if held.is_of_only(only) || !holds_retired(&held, current) {
            continue;
        }
        let (_, next) = narrowed
            .entry((Arc::as_ptr(&held.state).addr(), only))
            .or_insert_with(|| {
                (
                    held.state.clone(),
                    Arc::new(held.narrowed_to(&core.no_memtable, only)),
                )
            });
        view.replace(&held, next.clone());
    }
    !narrowed.is_empty()
}

/// Whether a view holds a memtable that the current state does not hold.
fn holds_retired(held: &Held, current: &State) -> bool {
    let mut differing = held.state.keyspaces.differing_from(&current.keyspaces);
    !held.is_settled && differing.any(|(keyspace, now)| retired(keyspace, now).next().is_some())
}

#[cfg(test)]
mod tests {
    use terrapin_structure::{Merge, MergeStep, Merged};

    use super::*;
    use crate::Options;
    use crate::engine::core::Core;

    fn holds_a_memtable(core: &Core) -> bool {
        let state = core.state.load();
        let mut views = core.views.all().into_iter();
        views.any(|view| holds_retired(&view.held().unwrap(), &state))
    }

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

    /// A range held the memtables of all keyspaces, and the fold merged them all for it.
    #[test]
    fn ranges_release_memtables_of_other_keyspaces_unread() {
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
        assert!(!holds_a_memtable(core));
        let folds = core.counters.folds.get();
        assert_eq!(folds, 2, "one for both ranges of a keyspace");
        for range in &mut ranges {
            let keys: Vec<_> = range.map(|record| record.unwrap().0).collect();
            assert_eq!(keys, ["a", "b"]);
        }
        drop(ranges);
        // A snapshot may read any keyspace.
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

    /// The job used to end with the panic. From then on every view kept its memtables.
    #[test]
    fn a_fold_that_panics_is_retried() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        keyspace.put("a", "1").unwrap();
        let snapshot = database.snapshot().unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        sim.set_breathing(false);
        let core = database.core();
        assert!(holds_a_memtable(core));
        sim.advance_ns(AGE_NS);
        // This job replaces the database's own, which takes no steps here.
        let mut job = FoldJob::new(core.clone());
        while !job.work.as_ref().is_some_and(RunWriter::is_writing) {
            assert!(matches!(job.step(), Step::Again));
        }
        let writer = job.work.as_mut().unwrap();
        writer.replace_merge(Arc::new(Panics)).abandon();
        assert!(matches!(job.step(), Step::Again));
        assert_eq!((job.work.is_none(), job.failed.len()), (true, 1));
        assert!(matches!(job.step(), Step::Pending(_)) && holds_a_memtable(core));
        sim.advance_ns(RETRY_NS);
        while matches!(job.step(), Step::Again) {}
        assert!(!holds_a_memtable(core));
        let value = snapshot.get(&keyspace, "a").unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]));
        drop((job, snapshot));
        database.close().unwrap();
    }
}
