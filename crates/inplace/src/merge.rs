//! A merge: a plan, a task for each leaf that changes, and at last the map's changed nodes.
//!
//! Workers take tasks from a queue, do a step, and put them back; so several leaves are merged at
//! once. The worker that finds all tasks done writes the nodes. The pages written so far stay with
//! the tasks, so that a step that fails or panics loses none of them.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{Charge, Condition, Error, Purpose, Result, Signal};
use terrapin_pages::block::TARGET_BYTES_MAX;
use terrapin_pages::group::{GROUP_TARGET_BYTES_MAX, GroupOptions};
use terrapin_pages::{Changes, PageStore, SpaceClass};
use terrapin_structure::{Merge, MergeInput, MergeOptions, MergeStep, Merged};

use crate::assemble::{Assembly, Limits};
use crate::format::Root;
use crate::plan::{Fate, Mirror, Policy, Scope, plan_input, plan_stretch, span};
use crate::structure::InPlaceParams;
use crate::task::{Context, OldLeaf, Span, Task};
use crate::version::InPlaceVersion;

/// Pages of a segment.
const SEGMENT_PAGES: u64 = 16;
/// Bytes of a segment's extent that its index and footer take.
const SEGMENT_META_BYTES: u64 = 1024;
/// Most parts of an input into an empty tree.
const PARTS_MAX: usize = 8;

/// A merge into a version.
pub(crate) struct InPlaceMerge(Arc<Shared>);

struct Shared {
    context: Context,
    /// The base's map, down to the nodes above the leaves.
    mirror: Option<Mirror>,
    limits: Limits,
    state: Mutex<State>,
    changed: Arc<Signal>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Box<Task>>,
    done: Vec<Task>,
    /// Workers that have a task or write nodes.
    running: usize,
    /// The nodes that were written, and the root.
    assembly: Option<Box<Assembly>>,
    root: Option<Root>,
    failed: Option<Error>,
    /// `finish` or `abandon` was called.
    is_over: bool,
    /// The memory of the mirror.
    charge: Option<Charge>,
    consumed_bytes: u64,
    expected_bytes: u64,
}

impl State {
    /// All pages that the merge wrote and released. Gives the memory of the work back.
    fn take_changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        let queued = self.queue.iter_mut().map(|task| &mut **task);
        for task in queued.chain(&mut self.done) {
            changes.merge(std::mem::take(&mut task.changes));
        }
        if let Some(assembly) = &mut self.assembly {
            changes.merge(std::mem::take(&mut assembly.changes));
        }
        self.queue.clear();
        self.done.clear();
        self.assembly = None;
        self.charge = None;
        changes
    }
}

fn check(store: &PageStore, options: &MergeOptions) -> Result<()> {
    let (group_bytes, block_bytes) = (options.group_bytes, options.block_bytes);
    let blocks = store.unit() as usize..=TARGET_BYTES_MAX;
    match (1..=GROUP_TARGET_BYTES_MAX).contains(&group_bytes)
        && blocks.contains(&(block_bytes as usize))
    {
        true => Ok(()),
        false => Err(
            Error::invalid("group_bytes or block_bytes is out of bounds")
                .with("group bytes", group_bytes)
                .with("limit", GROUP_TARGET_BYTES_MAX)
                .with("block bytes", block_bytes)
                .with("limit", TARGET_BYTES_MAX),
        ),
    }
}

impl InPlaceMerge {
    pub(crate) fn begin(
        base: &InPlaceVersion,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
        params: &InPlaceParams,
        scope: &Scope,
    ) -> Result<Arc<Self>> {
        let store = &base.store;
        check(store, options)?;
        let pages = u64::from(options.block_bytes) * SEGMENT_PAGES;
        let whole = pages.min(options.group_bytes);
        // A segment with its index and footer fills its extent.
        let segment_bytes = whole
            .checked_sub(SEGMENT_META_BYTES)
            .filter(|left| *left > whole / 2);
        let segment_bytes = segment_bytes.unwrap_or(whole);
        let (sums, height) = match &base.root {
            Root::Empty => Default::default(),
            Root::Map(map) => (map.sums, map.height),
        };
        let waiting = GroupOptions {
            target_bytes: options.group_bytes,
            block_bytes: options.block_bytes,
            unit: store.unit(),
            compression: options.compression,
            filter_bits: options.filter_bits,
            now_ms: options.now_ms,
        };
        let context = Context {
            store: store.clone(),
            input: input.clone(),
            budget: params.budget.clone(),
            segment: GroupOptions {
                target_bytes: segment_bytes,
                filter_bits: 0,
                ..waiting
            },
            waiting,
            class: match options.space_is_short {
                true => SpaceClass::Reserve,
                false => SpaceClass::Normal,
            },
            step_bytes: options.group_bytes,
            replacing_permille: input.replacing_permille(),
            record_bytes: sums.bytes / sums.records.max(1),
            operator: options.operator.clone(),
            now_ms: options.now_ms,
            values: options.values.clone(),
        };
        let mirror = Mirror::read(store, &base.root)?;
        let (queue, expected_bytes) = match &mirror {
            None => tasks_of_empty(&context)?,
            Some(mirror) => {
                let policy = Policy {
                    segment_bytes,
                    space_percent: options.space_amplification_percent,
                    space_is_short: options.space_is_short,
                };
                tasks(&context, mirror, &policy, scope)?
            }
        };
        let charged = mirror.as_ref().map_or(0, Mirror::memory_bytes);
        // Without work nothing changes.
        let root = queue.is_empty().then_some(base.root);
        Ok(Arc::new(InPlaceMerge(Arc::new(Shared {
            limits: Limits {
                node_bytes: params.node_bytes as u64,
                leaf_extents: options.group_bytes.saturating_mul(4).max(4 * segment_bytes),
                height,
            },
            context,
            mirror,
            state: Mutex::new(State {
                queue,
                root,
                expected_bytes,
                charge: Some(params.budget.charge(Purpose::Merge, charged)),
                ..State::default()
            }),
            changed: Signal::new(),
        }))))
    }
}

fn owned((lo, hi): (Option<&[u8]>, Option<&[u8]>)) -> Span {
    (lo.map(Box::from), hi.map(Box::from))
}

/// Tasks for parts of the input, and the bytes that they move.
fn tasks_of_empty(context: &Context) -> Result<(VecDeque<Box<Task>>, u64)> {
    let input = &context.input;
    if input.clone().cursor(None, None)?.key().is_none() {
        return Ok((VecDeque::new(), 0));
    }
    let bytes = input.estimate(None, None).bytes;
    let parts = (bytes / context.step_bytes.max(1)) as usize;
    let cuts = input.cuts(parts.clamp(1, PARTS_MAX));
    let cut = |at: usize| cuts.get(at).map(|key| &key[..]);
    let task = |number: usize| {
        let span = (number.checked_sub(1).and_then(cut), cut(number));
        Box::new(Task::new(context, number, owned(span), None, Fate::Merged))
    };
    Ok(((0..=cuts.len()).map(task).collect(), bytes))
}

/// Tasks for leaves of the base, and the bytes that they move.
fn tasks(
    context: &Context,
    mirror: &Mirror,
    policy: &Policy,
    scope: &Scope,
) -> Result<(VecDeque<Box<Task>>, u64)> {
    let leaves = mirror.leaves();
    let fates = match scope {
        Scope::Input => plan_input(&context.store, &leaves, &context.input, policy)?,
        Scope::Stretch { from, to } => plan_stretch(&leaves, from, to.as_deref()),
    };
    let mut queue = VecDeque::new();
    let mut expected = context.input.estimate(None, None).bytes;
    for (number, &fate) in fates.iter().enumerate() {
        if fate == Fate::Nothing {
            continue;
        }
        let leaf = leaves[number];
        if fate == Fate::Merged {
            expected = expected.saturating_add(leaf.sums.bytes);
            expected = expected.saturating_add(leaf.sums.waiting_bytes);
        }
        let old = OldLeaf {
            page: leaf.page,
            waiting: leaf.waiting.clone(),
        };
        let span = owned(span(&leaves, number));
        queue.push_back(Box::new(Task::new(context, number, span, Some(old), fate)));
    }
    Ok((queue, expected))
}

/// What a worker has in its turn.
enum Work {
    Task(Box<Task>),
    Nodes(Box<Assembly>),
}

/// A worker's turn. Dropping it puts the work back. That happens also if a step panics.
struct Turn<'a> {
    shared: &'a Shared,
    work: Option<Work>,
    result: Result<bool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.result = Err(Error::internal("a merge panicked"));
        }
        let mut state = self.shared.state.lock();
        state.running -= 1;
        match (self.work.take(), &self.result) {
            (Some(Work::Task(task)), Ok(false)) => state.queue.push_front(task),
            (Some(Work::Task(task)), _) => state.done.push(*task),
            (Some(Work::Nodes(assembly)), result) => {
                if result.is_ok() {
                    state.root = Some(assembly.root);
                    state.consumed_bytes = state.expected_bytes;
                }
                state.assembly = Some(assembly);
            }
            (None, _) => {}
        }
        if let Err(error) = &self.result {
            state.failed = Some(error.clone());
        }
        drop(state);
        self.shared.changed.notify();
    }
}

impl Shared {
    /// Takes a turn: a task, or the nodes once all tasks are done. `None` if others have all work.
    fn turn(&self) -> Result<Result<Turn<'_>, MergeStep>> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.root.is_some() {
            return Ok(Err(MergeStep::Done));
        }
        let work = match state.queue.pop_front() {
            Some(task) => Work::Task(task),
            None if state.running == 0 => {
                let mut done = std::mem::take(&mut state.done);
                done.sort_unstable_by_key(|task| task.number);
                Work::Nodes(Box::new(Assembly::new(done)))
            }
            None => return Ok(Err(MergeStep::Again)),
        };
        state.running += 1;
        Ok(Ok(Turn {
            shared: self,
            work: Some(work),
            result: Ok(false),
        }))
    }

    fn has_turn(&self) -> bool {
        let state = self.state.lock();
        let is_idle = state.running == 0;
        state.failed.is_some() || state.root.is_some() || !state.queue.is_empty() || is_idle
    }
}

impl Merge for InPlaceMerge {
    fn step(&self) -> Result<MergeStep> {
        let shared = &*self.0;
        let mut turn = match shared.turn()? {
            Ok(turn) => turn,
            Err(MergeStep::Done) => return Ok(MergeStep::Done),
            Err(_) => {
                let waiting = self.0.clone();
                let condition = Condition::new(&shared.changed, move || waiting.has_turn());
                return Ok(MergeStep::Pending(condition));
            }
        };
        let mut moved = 0;
        let is_last = match &mut turn.work {
            Some(Work::Task(task)) => {
                let before = task.consumed_bytes;
                turn.result = task.step(&shared.context);
                moved = task.consumed_bytes - before;
                false
            }
            Some(Work::Nodes(assembly)) => {
                let built = assembly.build(&shared.context, shared.mirror.as_ref(), &shared.limits);
                turn.result = built.map(|()| true);
                true
            }
            None => false,
        };
        let result = turn.result.clone();
        drop(turn);
        if moved > 0 {
            let mut state = shared.state.lock();
            state.consumed_bytes += moved;
            state.expected_bytes = state.expected_bytes.max(state.consumed_bytes);
        }
        match result {
            Err(error) => Err(error),
            Ok(_) if is_last => Ok(MergeStep::Done),
            Ok(_) => Ok(MergeStep::Again),
        }
    }

    fn progress(&self) -> (u64, u64) {
        let state = self.0.state.lock();
        (state.consumed_bytes, state.expected_bytes)
    }

    fn finish(&self) -> Result<Merged> {
        let mut state = self.0.state.lock();
        let root = state.root.filter(|_| !state.is_over);
        let root = root
            .ok_or_else(|| Error::internal("a merge was finished before it was done, or twice"))?;
        state.is_over = true;
        Ok(Merged {
            version: InPlaceVersion::new(&self.0.context.store, root),
            changes: state.take_changes(),
        })
    }

    fn abandon(&self) {
        let mut state = self.0.state.lock();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        let changes = state.take_changes();
        state.root = None;
        let abandoned = || Error::internal("an abandoned merge was stepped");
        state.failed.get_or_insert_with(abandoned);
        drop(state);
        self.0.context.store.abandon(changes);
    }
}
