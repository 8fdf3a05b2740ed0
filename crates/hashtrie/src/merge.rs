//! A merge: a plan, a task for each leaf that changes, and at last the trie's changed nodes.
//!
//! Workers take tasks from a queue, do a step, and put them back; so several leaves are merged at
//! once. The worker that finds all tasks done writes the nodes. The pages written so far stay with
//! the tasks, so that a step that fails or panics loses none of them.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{Charge, Condition, Error, Purpose, Result, Signal};
use terrapin_pages::block::TARGET_BYTES_MAX;
use terrapin_pages::group::GROUP_TARGET_BYTES_MAX;
use terrapin_pages::{Changes, PageStore, SpaceClass};
use terrapin_runs::writing::group_options;
use terrapin_structure::{Merge, MergeInput, MergeOptions, MergeStep, Merged};

use crate::assemble::{Assembly, Settings};
use crate::format::{LEAF_BYTES_LOG2, Root, RunRef};
use crate::plan::{Mirror, Policy, Scope, Shape, plan};
use crate::structure::HashTrieParams;
use crate::task::{Context, Task};
use crate::version::TrieVersion;

/// S is this many groups, unless the parameters say otherwise.
const LEAF_GROUPS: u64 = 4;

/// A merge into a version.
pub(crate) struct TrieMerge(Arc<Shared>);

struct Shared {
    context: Context,
    base: Root,
    settings: Settings,
    shape: Shape,
    ended: Vec<RunRef>,
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
    /// The memory of the plan.
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

/// The settings of the next version's trie. The root keeps those that it began with.
pub(crate) fn settings(base: &Root, options: &MergeOptions, params: &HashTrieParams) -> Settings {
    if let Root::Trie(trie) = base {
        return Settings {
            fanout: trie.fanout,
            leaf_bytes_log2: trie.leaf_bytes_log2,
        };
    }
    let bytes = options.group_bytes.saturating_mul(LEAF_GROUPS);
    let log2 = params.leaf_bytes_log2.unwrap_or(bytes.max(1).ilog2() as u8);
    Settings {
        fanout: params.fanout,
        leaf_bytes_log2: log2.clamp(*LEAF_BYTES_LOG2.start(), *LEAF_BYTES_LOG2.end()),
    }
}

impl TrieMerge {
    pub(crate) fn begin(
        base: &TrieVersion,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
        params: &HashTrieParams,
        scope: &Scope,
    ) -> Result<Arc<Self>> {
        let store = &base.store;
        check(store, options)?;
        let settings = settings(&base.root, options, params);
        let sums = match &base.root {
            Root::Empty => Default::default(),
            Root::Trie(trie) => trie.sums,
        };
        let mut groups = group_options(options, store.unit());
        groups.filter_bits = 0;
        let context = Context {
            store: store.clone(),
            input: input.clone(),
            budget: params.budget.clone(),
            options: options.clone(),
            groups,
            class: match options.space_is_short {
                true => SpaceClass::Reserve,
                false => SpaceClass::Normal,
            },
            replacing_permille: input.replacing_permille(),
            record_bytes: sums.bytes / sums.records.max(1),
        };
        let mirror = Mirror::read(store, &base.root)?;
        let policy = Policy {
            fanout: settings.fanout,
            leaf_bytes: 1 << settings.leaf_bytes_log2,
            group_bytes: options.group_bytes,
            space_percent: options.space_amplification_percent,
            space_is_short: options.space_is_short,
        };
        // The shape has copies of all that stays.
        let charge = params
            .budget
            .charge(Purpose::Merge, mirror.memory_bytes().saturating_mul(2));
        let plan = plan(store, &mirror, &input, &policy, scope)?;
        let (mut queue, mut expected_bytes) = (VecDeque::new(), 0u64);
        for (number, task) in plan.tasks.into_iter().enumerate() {
            expected_bytes = expected_bytes.saturating_add(task.bytes);
            queue.push_back(Box::new(Task::new(&context, number, task)));
        }
        // Without work nothing changes.
        let root = queue.is_empty().then_some(base.root);
        Ok(Arc::new(TrieMerge(Arc::new(Shared {
            context,
            base: base.root,
            settings,
            shape: plan.shape,
            ended: plan.ended,
            state: Mutex::new(State {
                queue,
                root,
                expected_bytes,
                charge: Some(charge),
                ..State::default()
            }),
            changed: Signal::new(),
        }))))
    }
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

impl Merge for TrieMerge {
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
                let trie = (&shared.base, &shared.shape, &shared.ended[..]);
                let built = assembly.build(&shared.context, shared.settings, trie);
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
            version: TrieVersion::new(&self.0.context.store, root),
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
