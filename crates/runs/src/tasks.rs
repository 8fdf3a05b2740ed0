//! [`TaskMerge`]: a merge of leaves that do not depend on one another. The structure plans a task
//! for each leaf that changes, and writes the nodes above the leaves once all tasks are done.
//!
//! Workers take tasks from a queue, do a step, and put them back; so several leaves are merged at
//! once. The worker that finds all tasks done writes the nodes. The pages written so far stay with
//! the tasks, so that a step that fails or panics loses none of them.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{Charge, Condition, Error, Result, Signal};
use terrapin_pages::{Changes, PageStore};
use terrapin_structure::{Merge, MergeStep, Merged, Version};

/// The work on one leaf.
pub trait Task: Send {
    /// Its place among the tasks.
    fn number(&self) -> usize;
    /// The pages that it has written and released.
    fn changes(&mut self) -> &mut Changes;
    /// Key and value bytes that it has moved.
    fn consumed_bytes(&self) -> u64;
}

/// What a structure does in its merge.
pub trait Tasks: Send + Sync + 'static {
    /// The work on one leaf.
    type Task: Task;
    /// The root of a version.
    type Root: Copy + Send;
    /// Where the pages are.
    fn store(&self) -> &PageStore;
    /// Does a step of a task. Returns whether the task is done.
    fn step(&self, task: &mut Self::Task) -> Result<bool>;
    /// Writes the nodes above the leaves of all tasks, which come by number, and adds what it
    /// writes and releases to `changes`. The changes of the tasks are there already.
    fn write_nodes(&self, done: Vec<Self::Task>, changes: &mut Changes) -> Result<Self::Root>;
    /// The version with this root.
    fn version(&self, root: Self::Root) -> Arc<dyn Version>;
}

/// A merge into a version.
pub struct TaskMerge<T: Tasks>(Arc<Shared<T>>);

struct Shared<T: Tasks> {
    tasks: T,
    state: Mutex<State<T>>,
    changed: Arc<Signal>,
}

/// The nodes of the next version.
struct Nodes<T: Tasks> {
    done: Vec<T::Task>,
    changes: Changes,
    root: Option<T::Root>,
}

struct State<T: Tasks> {
    queue: VecDeque<Box<T::Task>>,
    done: Vec<T::Task>,
    /// Workers that have a task or write nodes.
    running: usize,
    /// The nodes that were written.
    nodes: Option<Box<Nodes<T>>>,
    root: Option<T::Root>,
    failed: Option<Error>,
    /// `finish` or `abandon` was called.
    is_over: bool,
    /// The memory of the plan.
    charge: Option<Charge>,
    consumed_bytes: u64,
    expected_bytes: u64,
}

/// Takes the changes of tasks.
fn changes_of<'a, T: Task + 'a>(tasks: impl Iterator<Item = &'a mut T>) -> Changes {
    let mut changes = Changes::default();
    tasks.for_each(|task| changes.merge(std::mem::take(task.changes())));
    changes
}

impl<T: Tasks> State<T> {
    /// All pages that the merge wrote and released. Gives the memory of the work back.
    fn take_changes(&mut self) -> Changes {
        let queued = self.queue.iter_mut().map(|task| &mut **task);
        let mut changes = changes_of(queued.chain(&mut self.done));
        if let Some(nodes) = &mut self.nodes {
            changes.merge(std::mem::take(&mut nodes.changes));
        }
        self.queue.clear();
        self.done.clear();
        self.nodes = None;
        self.charge = None;
        changes
    }
}

/// What a worker has in its turn.
enum Work<T: Tasks> {
    Task(Box<T::Task>),
    Nodes(Box<Nodes<T>>),
}

/// A worker's turn. Dropping it puts the work back. That happens also if a step panics.
struct Turn<'a, T: Tasks> {
    shared: &'a Shared<T>,
    work: Option<Work<T>>,
    result: Result<bool>,
}

impl<T: Tasks> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.result = Err(Error::internal("a merge panicked"));
        }
        let mut state = self.shared.state.lock();
        state.running -= 1;
        match (self.work.take(), &self.result) {
            (Some(Work::Task(task)), Ok(false)) => state.queue.push_front(task),
            (Some(Work::Task(task)), _) => state.done.push(*task),
            (Some(Work::Nodes(nodes)), result) => {
                if result.is_ok() {
                    state.root = nodes.root;
                    state.consumed_bytes = state.expected_bytes;
                }
                state.nodes = Some(nodes);
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

impl<T: Tasks> Shared<T> {
    /// Takes a turn: a task, or the nodes once all tasks are done. `None` if others have all work.
    fn turn(&self) -> Result<Result<Turn<'_, T>, MergeStep>> {
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
                done.sort_unstable_by_key(Task::number);
                Work::Nodes(Box::new(Nodes {
                    changes: changes_of(done.iter_mut()),
                    done,
                    root: None,
                }))
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

impl<T: Tasks> TaskMerge<T> {
    /// A merge into the version of the root `base`, by the tasks of `queue`. They are expected to
    /// move `expected_bytes` key and value bytes. `charge` is for the memory of the plan.
    #[must_use]
    pub fn new(
        tasks: T,
        base: T::Root,
        (queue, expected_bytes): (VecDeque<Box<T::Task>>, u64),
        charge: Charge,
    ) -> Arc<Self> {
        Arc::new(TaskMerge(Arc::new(Shared {
            tasks,
            state: Mutex::new(State {
                // Without work nothing changes.
                root: queue.is_empty().then_some(base),
                queue,
                done: Vec::new(),
                running: 0,
                nodes: None,
                failed: None,
                is_over: false,
                charge: Some(charge),
                consumed_bytes: 0,
                expected_bytes,
            }),
            changed: Signal::new(),
        })))
    }
}

impl<T: Tasks> Merge for TaskMerge<T> {
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
                let before = task.consumed_bytes();
                turn.result = shared.tasks.step(task);
                moved = task.consumed_bytes() - before;
                false
            }
            Some(Work::Nodes(nodes)) => {
                let done = std::mem::take(&mut nodes.done);
                let written = shared.tasks.write_nodes(done, &mut nodes.changes);
                turn.result = written.map(|root| {
                    nodes.root = Some(root);
                    true
                });
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
            version: self.0.tasks.version(root),
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
        self.0.tasks.store().abandon(changes);
    }
}
