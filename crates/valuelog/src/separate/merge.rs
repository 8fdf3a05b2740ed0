//! A merge that keeps long values out of the inner structure.
//!
//! Its phases: write long values (*births*), merge the inner structure, note dead values and
//! collect pages, merge the tree of dead places, write the value table. Several workers share the
//! merges; one worker does each step of the other phases.

use std::sync::Arc;

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};
use terrapin_base::{Condition, Error, Message, Operator, Result, Signal};
use terrapin_pages::{Changes, PageUse};
use terrapin_structure::{
    Erased, Estimate, Merge, MergeInput, MergeOptions, MergeStep, Merged, MessageCursor, Version,
};

use super::Separating;
use super::births::{Births, class_of};
use super::collecting::Collecting;
use super::input::SeparatedInput;
use super::version::{DroppedValues, SeparatedVersion, next_moment};
use crate::table::PartRef;

/// What comes next. A phase with a merge in it is done by several workers.
enum Phase {
    Births(Box<Births>),
    Tree(Arc<dyn Merge>, Vec<PartRef>, Vec<PartRef>, u64),
    Collect(Box<Collecting>),
    Dead(Arc<dyn Merge>, Box<Collecting>),
    Table(Box<Collecting>, Arc<dyn Version>),
    Done(Arc<dyn Version>),
    /// A worker does a step.
    Busy,
    Failed(Error),
}

struct Graph {
    phase: Phase,
    /// Workers in the inner merge of the phase.
    inside: usize,
    /// Changes of finished merges.
    changes: Changes,
    unread: Vec<Error>,
    is_over: bool,
}

struct Shared {
    graph: Mutex<Graph>,
    changed: Arc<Signal>,
    owner: Separating,
    base: SeparatedVersion,
    input: Option<Arc<dyn MergeInput>>,
    options: MergeOptions,
    values: Arc<DroppedValues>,
    /// Value pages that were written and that no changes name yet.
    written: Arc<Mutex<Vec<PageUse>>>,
    passed_bytes: AtomicU64,
    input_bytes: u64,
    /// The inner merge's progress at the last call, which only grows.
    tree_done: AtomicU64,
    tree_bytes: AtomicU64,
}

/// See the module.
pub(super) struct SeparatingMerge(Arc<Shared>);

impl SeparatingMerge {
    /// Merges an input.
    pub(super) fn of_input(
        owner: &Separating,
        base: SeparatedVersion,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let values = base.values();
        let written = Arc::default();
        let phase = match least_separated(options, &input) {
            Some(from) => {
                let (cursor, next) = (input.clone(), base.next_birth);
                let births =
                    Births::begin(owner, cursor, next, from, options, Arc::clone(&written))?;
                Phase::Births(Box::new(births))
            }
            None => {
                let inner = inner_options(options, &base, &values);
                let merge = owner
                    .inner
                    .begin_merge(&base.inner, input.clone(), &inner)?;
                Phase::Tree(merge, Vec::new(), Vec::new(), base.next_birth)
            }
        };
        Ok(Self::start(
            owner,
            base,
            Some(input),
            options,
            values,
            written,
            phase,
        ))
    }

    /// Goes on after a merge of the inner structure without input.
    pub(super) fn of_tree(
        owner: &Separating,
        base: SeparatedVersion,
        merge: Arc<dyn Merge>,
        values: Arc<DroppedValues>,
        options: &MergeOptions,
    ) -> Arc<dyn Merge> {
        let phase = Phase::Tree(merge, Vec::new(), Vec::new(), base.next_birth);
        Self::start(owner, base, None, options, values, Arc::default(), phase)
    }

    /// Collects garbage, without a merge of the inner structure. `None` if nothing is due.
    pub(super) fn at_rest(
        owner: &Separating,
        base: SeparatedVersion,
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Arc<dyn Merge>>> {
        let (values, written) = (base.values(), Arc::default());
        let pages = Arc::clone(&written);
        let due = Collecting::at_rest(owner, base.clone(), bytes_max, options, pages)?;
        Ok(due.map(|collecting| {
            let phase = Phase::Collect(Box::new(collecting));
            Self::start(owner, base, None, options, values, written, phase)
        }))
    }

    fn start(
        owner: &Separating,
        base: SeparatedVersion,
        input: Option<Arc<dyn MergeInput>>,
        options: &MergeOptions,
        values: Arc<DroppedValues>,
        written: Arc<Mutex<Vec<PageUse>>>,
        phase: Phase,
    ) -> Arc<dyn Merge> {
        let input_bytes = match &phase {
            Phase::Births(_) => input
                .as_ref()
                .map_or(0, |input| input.estimate(None, None).bytes),
            _ => 0,
        };
        Arc::new(SeparatingMerge(Arc::new(Shared {
            graph: Mutex::new(Graph {
                phase,
                inside: 0,
                changes: Changes::default(),
                unread: Vec::new(),
                is_over: false,
            }),
            changed: Signal::new(),
            owner: owner.clone(),
            base,
            input,
            options: options.clone(),
            values,
            written,
            passed_bytes: AtomicU64::new(0),
            input_bytes,
            tree_done: AtomicU64::new(0),
            tree_bytes: AtomicU64::new(0),
        })))
    }
}

/// The length from which on an input's values are separated. `None` if the input need not be
/// walked: without a threshold, only large values are outside of the tree.
fn least_separated(options: &MergeOptions, input: &Arc<dyn MergeInput>) -> Option<usize> {
    let no_threshold = || input.has_handles().then_some(usize::MAX);
    let from = options.separate_from.map(|from| from as usize);
    from.or_else(no_threshold)
}

/// The options of the inner structure's merge.
pub(super) fn inner_options(
    options: &MergeOptions,
    base: &SeparatedVersion,
    values: &Arc<DroppedValues>,
) -> MergeOptions {
    let accepted = options.space_amplification_percent;
    MergeOptions {
        values: Some(values.clone()),
        separate_from: None,
        space_amplification_percent: accepted.map(|percent| base.tree_percent(percent)),
        ..options.clone()
    }
}

impl Shared {
    /// Does a step that one worker does alone, and returns the next phase.
    fn alone(&self, phase: Phase) -> Result<Phase> {
        match phase {
            Phase::Births(mut births) => {
                let is_done = births.step(&self.owner.store)?;
                self.passed_bytes
                    .store(births.passed_bytes, Ordering::Relaxed);
                match is_done {
                    true => self.begin_tree(*births),
                    false => Ok(Phase::Births(births)),
                }
            }
            Phase::Collect(mut collecting) => match collecting.step(&self.owner)? {
                true => self.begin_dead(collecting),
                false => Ok(Phase::Collect(collecting)),
            },
            Phase::Table(collecting, dead) => self.write_table(*collecting, dead),
            phase => Ok(phase),
        }
    }

    fn begin_tree(&self, births: Births) -> Result<Phase> {
        let from = |input| Some((input, least_separated(&self.options, input)?));
        let Some((input, from)) = self.input.as_ref().and_then(from) else {
            return Err(Error::internal("births without an input"));
        };
        let born = births.finish();
        born.unused
            .iter()
            .for_each(|handle| self.values.drop_handle(*handle));
        let input = SeparatedInput::new(input.clone(), born.handles, from, born.charge);
        let options = inner_options(&self.options, &self.base, &self.values);
        let inner = &self.owner.inner;
        let merge = inner.begin_merge(&self.base.inner, Arc::new(input), &options)?;
        Ok(Phase::Tree(
            merge,
            born.parts,
            born.adopted,
            born.next_birth,
        ))
    }

    /// All workers have left a finished merge.
    fn merged(&self, phase: Phase, changes: &mut Changes) -> Result<Phase> {
        match phase {
            Phase::Tree(merge, parts, adopted, next_birth) => {
                let merged = merge.finish()?;
                changes.merge(merged.changes);
                let collecting = Collecting::begin(
                    &self.owner,
                    self.base.clone(),
                    merged.version,
                    (parts, adopted, next_birth),
                    self.values.take(),
                    &self.options,
                    self.written.clone(),
                )?;
                Ok(Phase::Collect(Box::new(collecting)))
            }
            Phase::Dead(merge, collecting) => {
                let merged = merge.finish()?;
                changes.merge(merged.changes);
                Ok(Phase::Table(collecting, merged.version))
            }
            phase => Ok(phase),
        }
    }

    fn begin_dead(&self, mut collecting: Box<Collecting>) -> Result<Phase> {
        let places = std::mem::take(&mut collecting.places);
        let dead = self.base.dead.clone();
        if places.is_empty() {
            return Ok(Phase::Table(collecting, dead));
        }
        let options = MergeOptions {
            filter_bits: 0,
            operator: Operator::default(),
            values: None,
            separate_from: None,
            ..self.options.clone()
        };
        let input = Arc::new(PlacesInput(places.into_iter().collect()));
        let merge = self.owner.places.begin_merge(&dead, input, &options)?;
        Ok(Phase::Dead(merge, collecting))
    }

    fn write_table(&self, collecting: Collecting, dead: Arc<dyn Version>) -> Result<Phase> {
        let written = std::mem::take(&mut *self.written.lock());
        let class = class_of(&self.options);
        let mut changes = Changes::default();
        let table = self
            .base
            .table
            .edited(&collecting.edit, &written, class, &mut changes);
        let mut graph = self.graph.lock();
        graph.changes.merge(changes);
        graph.unread.extend(collecting.unread);
        let table = table?;
        if table.root().is_none() && dead.root() == self.owner.places.empty().root() {
            // No value is separated any more.
            return Ok(Phase::Done(collecting.inner));
        }
        Ok(Phase::Done(Arc::new(SeparatedVersion {
            inner: collecting.inner,
            table,
            dead,
            next_birth: collecting.next_birth,
            moment: next_moment(),
        })))
    }

    fn has_news(&self) -> bool {
        let graph = self.graph.lock();
        match &graph.phase {
            Phase::Busy => false,
            Phase::Tree(..) | Phase::Dead(..) => graph.inside == 0,
            _ => true,
        }
    }

    fn wait(self: &Arc<Self>) -> MergeStep {
        let waiting = self.clone();
        MergeStep::Pending(Condition::new(&self.changed, move || waiting.has_news()))
    }
}

/// A worker in a step. If the step fails or panics, the merge has failed.
struct Step<'a> {
    shared: &'a Arc<Shared>,
    next: Option<Phase>,
    is_inside: bool,
    changes: Changes,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let mut graph = self.shared.graph.lock();
        graph.inside -= usize::from(self.is_inside);
        graph.changes.merge(std::mem::take(&mut self.changes));
        match self.next.take() {
            Some(next) => graph.phase = next,
            None if std::thread::panicking() => {
                graph.phase = Phase::Failed(Error::internal("a merge panicked"));
            }
            None => {}
        }
        drop(graph);
        self.shared.changed.notify();
    }
}

impl Merge for SeparatingMerge {
    fn step(&self) -> Result<MergeStep> {
        let shared = &self.0;
        let mut step = Step {
            shared,
            next: None,
            is_inside: false,
            changes: Changes::default(),
        };
        let mut graph = shared.graph.lock();
        let merge = match &graph.phase {
            Phase::Failed(error) => return Err(error.clone()),
            Phase::Done(_) => return Ok(MergeStep::Done),
            Phase::Busy => return Ok(shared.wait()),
            Phase::Tree(merge, ..) | Phase::Dead(merge, _) => Some(merge.clone()),
            Phase::Births(_) | Phase::Collect(_) | Phase::Table(..) => None,
        };
        let Some(merge) = merge else {
            let phase = std::mem::replace(&mut graph.phase, Phase::Busy);
            drop(graph);
            let next = shared.alone(phase);
            return step.went(next);
        };
        graph.inside += 1;
        step.is_inside = true;
        drop(graph);
        match merge.step() {
            Ok(MergeStep::Done) => {}
            Ok(other) => return Ok(other),
            Err(error) => {
                // The merge stays, so that it is abandoned.
                return Err(error);
            }
        }
        let mut graph = shared.graph.lock();
        let is_same = match &graph.phase {
            Phase::Tree(now, ..) | Phase::Dead(now, _) => Arc::ptr_eq(now, &merge),
            _ => false,
        };
        if !is_same {
            return Ok(MergeStep::Again);
        }
        if graph.inside > 1 {
            return Ok(shared.wait());
        }
        let phase = std::mem::replace(&mut graph.phase, Phase::Busy);
        drop(graph);
        let mut changes = Changes::default();
        let next = shared.merged(phase, &mut changes);
        step.changes = changes;
        step.went(next)
    }

    fn progress(&self) -> (u64, u64) {
        let shared = &self.0;
        if let Phase::Tree(merge, ..) = &shared.graph.lock().phase {
            let (done, all) = merge.progress();
            shared.tree_done.fetch_max(done, Ordering::Relaxed);
            shared.tree_bytes.fetch_max(all, Ordering::Relaxed);
        }
        let passed = shared
            .passed_bytes
            .load(Ordering::Relaxed)
            .min(shared.input_bytes);
        let done = passed.saturating_add(shared.tree_done.load(Ordering::Relaxed));
        let all = shared
            .input_bytes
            .saturating_add(shared.tree_bytes.load(Ordering::Relaxed));
        (done, all.max(done))
    }

    fn finish(&self) -> Result<Merged> {
        let mut graph = self.0.graph.lock();
        match &graph.phase {
            Phase::Done(version) if !graph.is_over => {
                let version = version.clone();
                graph.is_over = true;
                Ok(Merged {
                    version,
                    changes: std::mem::take(&mut graph.changes),
                })
            }
            _ => Err(Error::internal(
                "a merge was finished before it was done, or twice",
            )),
        }
    }

    fn abandon(&self) {
        let (phase, mut changes) = {
            let mut graph = self.0.graph.lock();
            if std::mem::replace(&mut graph.is_over, true) {
                return;
            }
            let failed = Phase::Failed(Error::internal("an abandoned merge was stepped"));
            let phase = std::mem::replace(&mut graph.phase, failed);
            (phase, std::mem::take(&mut graph.changes))
        };
        if let Phase::Tree(merge, ..) | Phase::Dead(merge, _) = phase {
            merge.abandon();
        }
        changes.added.append(&mut self.0.written.lock());
        self.0.owner.store.abandon(changes);
    }
}

impl Step<'_> {
    fn went(mut self, next: Result<Phase>) -> Result<MergeStep> {
        match next {
            Ok(next) => {
                let is_done = matches!(next, Phase::Done(_));
                self.next = Some(next);
                Ok(if is_done {
                    MergeStep::Done
                } else {
                    MergeStep::Again
                })
            }
            Err(error) => {
                self.next = Some(Phase::Failed(error.clone()));
                Err(error)
            }
        }
    }
}

/// Changes of dead places, as a merge's input.
struct PlacesInput(Vec<([u8; 12], bool)>);

impl MergeInput for PlacesInput {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let at = |key: &[u8]| self.0.partition_point(|(own, _)| &own[..] < key);
        let (at, end) = (lo.map_or(0, at), hi.map_or(self.0.len(), at));
        Ok(Box::new(PlacesCursor {
            at,
            end: end.max(at),
            input: self.clone(),
        }))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let at = |key: &[u8]| self.0.partition_point(|(own, _)| &own[..] < key);
        let (from, to) = (lo.map_or(0, at), hi.map_or(self.0.len(), at));
        let records = to.saturating_sub(from) as u64;
        Estimate {
            records,
            bytes: records * 12,
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

struct PlacesCursor {
    input: Arc<PlacesInput>,
    at: usize,
    end: usize,
}

impl MessageCursor for PlacesCursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then(|| &self.input.0[self.at].0[..])
    }

    fn message(&self) -> Message<'_> {
        match self.input.0[self.at].1 {
            true => Message::Put(&[]),
            false => Message::Delete,
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}
