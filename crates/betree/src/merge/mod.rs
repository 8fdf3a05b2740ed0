//! A merge as a graph of tasks: plan, then stream. A node is planned. Its leaves, its new buffer
//! level and its child nodes are written. Then it settles, and its result goes up.
//!
//! Tasks are on a stack. Any number of workers take one, do a piece of it without the lock, and put
//! back the rest of it and its new tasks. Last in, first out: the merge passes through the tree in
//! key order and depth first, so few nodes are open at a time. Nodes that wait for tasks are in
//! [`Graph::frames`].
//!
//! The events of one node are in this order: `Descend` (plan); `WriteLevel`, `WriteLeaves`, or
//! `Descend` for children; `Settle`. `Settle` may add tasks of a second phase, and runs again after
//! them. The last tasks of a node make maplets. The result goes to the frame above, or becomes the
//! root.
//!
//! `slot`, `frame` and `task` hold the data of a merge. `first`, `descend`, `settle` and `root`
//! decide; `stack` decides for tiered buffers. `erase` gives up what range deletes hide, and
//! `ingest` goes through the tree with sorted records. `write` writes page groups, and `nodes`
//! changes and writes nodes. `map` makes maplets. `runs` describes what flows down, and `hidden`
//! counts what messages hide.

mod descend;
mod erase;
mod first;
mod frame;
mod hidden;
mod ingest;
mod map;
mod nodes;
mod root;
mod runs;
mod settle;
mod slot;
mod stack;
mod task;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};
use terrapin_base::{Condition, Error, Result, Signal};
use terrapin_pages::Changes;
use terrapin_structure::{Merge, MergeStep, Merged};

use crate::node::{Root, Segment};
use crate::version::TreeVersion;
use first::first_tasks;
use frame::Frame;
use map::MadeMaplet;
use root::Made;
use settle::Settled;
use slot::{ChildSlot, Target};
use task::{Descend, NodeOrigin, Task};
use terrapin_runs::run::{KeyRange, Run};
use write::{LevelPart, WriteLeaves, WrittenLeaves};

pub(crate) use erase::ErasedRanges;
pub(crate) use ingest::TreeIngest;
pub(crate) use runs::Context;

/// The result of a piece of a task.
enum Outcome {
    Unfinished(Task),
    Waits(Frame, Vec<Task>),
    Leaves(Target, WrittenLeaves),
    Level(LevelPart, Option<Vec<Segment>>),
    /// The maplet of a frame's slot.
    Maplet(u64, MadeMaplet),
    Slots(Target, Vec<ChildSlot>, u16),
    Root(Made),
}

/// The state under the lock.
#[derive(Default)]
struct Graph {
    /// Tasks that can run, the next one last.
    ready: Vec<(Task, Credit)>,
    /// Number of pieces in progress.
    running: usize,
    frames: BTreeMap<u64, Frame>,
    changes: Changes,
    root: Option<Made>,
    failed: Option<Error>,
    /// `finish` or `abandon` was called.
    is_over: bool,
}

/// The id of the frame that a merge may begin with. Other ids follow.
const FIRST_FRAME: u64 = 0;

/// Bytes that a task is expected to consume and has not consumed yet.
#[derive(Clone, Copy)]
struct Credit(u64);

struct Shared {
    context: Arc<Context>,
    graph: Mutex<Graph>,
    changed: Arc<Signal>,
    next_frame: AtomicU64,
    consumed_bytes: AtomicU64,
    expected_bytes: AtomicU64,
}

/// A merge of a memtable into a version.
pub(crate) struct TreeMerge(Arc<Shared>);

impl TreeMerge {
    /// Plans a merge below a root.
    pub(crate) fn begin(mut context: Context, root: Root) -> Result<Arc<Self>> {
        let all = KeyRange::default();
        let arriving = context.input.estimate(None, None).bytes;
        // A compaction writes levels like the merge of a full memtable.
        context.brings = match context.stretch {
            Some(_) => context.group_bytes(),
            None => arriving,
        };
        let context = Arc::new(context);
        let is_compaction = context.stretch.is_some();
        let erases = !context.erased.is_empty();
        let incoming = || match is_compaction {
            true => Vec::new(),
            false => vec![Run::input(all.clone())],
        };
        let (frame, tasks) = match root {
            Root::Node(page, height) => {
                let range = all.clone();
                let origin = NodeOrigin::Page(page);
                let task = Descend::new(Target::Root, origin, height, range, incoming(), arriving);
                let task = task.erasing(erases);
                (None, vec![Task::Descend(Box::new(task))])
            }
            Root::Leaf(leaf, ref deadlines)
                if !is_compaction && !context.policy.flush_what_comes && !erases =>
            {
                let (range, origin) = (all.clone(), NodeOrigin::Leaf(leaf, deadlines.clone()));
                let task = Descend::new(Target::Root, origin, 1, range, incoming(), arriving);
                (None, vec![Task::Descend(Box::new(task))])
            }
            Root::Leaf(leaf, ref deadlines) => {
                let expected = arriving + leaf.logical_bytes;
                let (range, base) = (all.clone(), vec![(leaf, deadlines.clone())]);
                let task = WriteLeaves::new(Target::Root, range, base, incoming(), false, expected);
                let task = task.erasing(erases);
                (None, vec![Task::Leaves(Box::new(task))])
            }
            Root::Empty => first_tasks(&context, FIRST_FRAME),
        };
        let expected = tasks.iter().map(Task::expected_bytes).sum();
        let is_idle =
            !is_compaction && !erases && context.input.clone().cursor(None, None)?.key().is_none();
        let graph = if is_idle {
            Graph {
                root: Some((root, context.root_node.clone())),
                ..Graph::default()
            }
        } else {
            let credited = |task: Task| {
                let credit = Credit(task.expected_bytes());
                (task, credit)
            };
            Graph {
                ready: tasks.into_iter().rev().map(credited).collect(),
                frames: frame.map(|frame| (frame.id, frame)).into_iter().collect(),
                ..Graph::default()
            }
        };
        Ok(Self::over(context, graph, expected))
    }

    /// A merge with this work, which is expected to consume so many bytes.
    fn over(context: Arc<Context>, graph: Graph, expected: u64) -> Arc<Self> {
        Arc::new(TreeMerge(Arc::new(Shared {
            context,
            graph: Mutex::new(graph),
            changed: Signal::new(),
            next_frame: AtomicU64::new(FIRST_FRAME + 1),
            consumed_bytes: AtomicU64::new(0),
            expected_bytes: AtomicU64::new(expected),
        })))
    }
}

impl Shared {
    fn new_frame(&self) -> u64 {
        self.next_frame.fetch_add(1, Ordering::Relaxed)
    }

    /// Does a piece of a task.
    fn run(&self, task: Task, changes: &mut Changes, consumed: &mut u64) -> Result<Outcome> {
        let context = &self.context;
        Ok(match task {
            Task::Descend(task) => {
                let (frame, tasks) = task.plan(context, self.new_frame(), changes)?;
                Outcome::Waits(frame, tasks)
            }
            Task::Erase(mut task) => match task.step(context, changes)? {
                true => Outcome::Unfinished(Task::Erase(task)),
                false => Outcome::Slots(task.target, Vec::new(), task.height),
            },
            Task::Leaves(mut task) => match task.step(context, changes, consumed)? {
                None => Outcome::Unfinished(Task::Leaves(task)),
                Some(leaves) => Outcome::Leaves(task.target, leaves),
            },
            Task::Level(mut task) => match task.step(context, changes, consumed)? {
                None => Outcome::Unfinished(Task::Level(task)),
                Some(segments) => Outcome::Level(task.of, segments),
            },
            Task::Map(mut task) => match task.step(context, changes, consumed)? {
                None => Outcome::Unfinished(Task::Map(task)),
                Some(made) => Outcome::Maplet(task.frame, made),
            },
            Task::Settle(frame) => {
                let height = frame.height;
                match (*frame).settle(context, &mut || self.new_frame(), changes)? {
                    Settled::Waits(frame, tasks) => Outcome::Waits(frame, tasks),
                    Settled::Done(target, slots) => Outcome::Slots(target, slots, height),
                }
            }
            Task::Finish(slots, height) => {
                Outcome::Root(root::make_root(context, slots, height, changes)?)
            }
        })
    }

    /// Applies an outcome under the lock. `credit` is the rest of the task's credit.
    fn apply(&self, graph: &mut Graph, outcome: Outcome, credit: u64) -> Result<()> {
        let mut left = credit;
        match outcome {
            Outcome::Unfinished(task) => {
                graph.ready.push((task, Credit(credit)));
                return Ok(());
            }
            Outcome::Waits(frame, tasks) => {
                let expected: u64 = tasks.iter().map(Task::expected_bytes).sum();
                self.expected_bytes
                    .fetch_add(expected.saturating_sub(credit), Ordering::Relaxed);
                left = credit.saturating_sub(expected);
                if frame.waiting == 0 {
                    graph.ready.push((Task::Settle(Box::new(frame)), Credit(0)));
                } else {
                    graph.frames.insert(frame.id, frame);
                }
                graph.ready.extend(tasks.into_iter().rev().map(|task| {
                    let credit = Credit(task.expected_bytes());
                    (task, credit)
                }));
            }
            Outcome::Leaves(target @ Target::Root, leaves) => {
                self.take_slots(graph, target, leaves.slots, 0)?
            }
            Outcome::Leaves(Target::Child { frame, slot }, leaves) => {
                frame_of(&mut graph.frames, frame)?.take_leaves(slot, leaves);
                self.settle_if_complete(graph, frame);
            }
            Outcome::Level(of, segments) => {
                let Graph {
                    frames, changes, ..
                } = graph;
                frame_of(frames, of.frame)?.take_level(of, segments, changes);
                self.settle_if_complete(graph, of.frame);
            }
            Outcome::Maplet(frame, made) => {
                let Graph {
                    frames, changes, ..
                } = graph;
                frame_of(frames, frame)?.take_maplet(made, changes);
                self.settle_if_complete(graph, frame);
            }
            Outcome::Slots(target, slots, height) => {
                self.take_slots(graph, target, slots, height)?
            }
            Outcome::Root(root) => graph.root = Some(root),
        }
        self.consumed_bytes.fetch_add(left, Ordering::Relaxed);
        Ok(())
    }

    fn take_slots(
        &self,
        graph: &mut Graph,
        target: Target,
        slots: Vec<ChildSlot>,
        height: u16,
    ) -> Result<()> {
        match target {
            Target::Root => graph.ready.push((Task::Finish(slots, height), Credit(0))),
            Target::Child { frame, slot } => {
                frame_of(&mut graph.frames, frame)?.take_slots(slot, slots);
                self.settle_if_complete(graph, frame);
            }
        }
        Ok(())
    }

    fn settle_if_complete(&self, graph: &mut Graph, id: u64) {
        if graph
            .frames
            .get(&id)
            .is_some_and(|frame| frame.waiting == 0)
            && let Some(frame) = graph.frames.remove(&id)
        {
            graph.ready.push((Task::Settle(Box::new(frame)), Credit(0)));
        }
    }

    /// Whether a worker that found no task should look again.
    fn has_news(&self) -> bool {
        let graph = self.graph.lock();
        !graph.ready.is_empty() || graph.root.is_some() || graph.failed.is_some()
    }
}

fn frame_of(frames: &mut BTreeMap<u64, Frame>, id: u64) -> Result<&mut Frame> {
    frames
        .get_mut(&id)
        .ok_or_else(|| Error::internal("a result came for a node that does not wait for it"))
}

/// A piece in progress. If the piece panics, drop marks the merge as failed, records the pages that
/// the piece has written, and wakes the other workers.
struct Running<'a> {
    shared: &'a Shared,
    /// Changes of the piece, until the graph takes them.
    changes: Changes,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut graph = self.shared.graph.lock();
        graph.changes.merge(std::mem::take(&mut self.changes));
        graph.running -= 1;
        if std::thread::panicking() {
            graph
                .failed
                .get_or_insert_with(|| Error::internal("a merge panicked"));
        }
        drop(graph);
        self.shared.changed.notify();
    }
}

impl Merge for TreeMerge {
    fn step(&self) -> Result<MergeStep> {
        let shared = &*self.0;
        let (task, credit) = {
            let mut graph = shared.graph.lock();
            if let Some(error) = &graph.failed {
                return Err(error.clone());
            }
            if graph.root.is_some() {
                return Ok(MergeStep::Done);
            }
            let Some((task, Credit(credit))) = graph.ready.pop() else {
                if graph.running == 0 {
                    return Err(Error::internal("a merge has no tasks left and no result"));
                }
                let waiting = self.0.clone();
                return Ok(MergeStep::Pending(Condition::new(
                    &shared.changed,
                    move || waiting.has_news(),
                )));
            };
            graph.running += 1;
            (task, credit)
        };
        let mut running = Running {
            shared,
            changes: Changes::default(),
        };
        let mut consumed = 0;
        let outcome = shared.run(task, &mut running.changes, &mut consumed);
        // Progress never exceeds the task's expectation, even if the task consumes more.
        let consumed = consumed.min(credit);
        shared.consumed_bytes.fetch_add(consumed, Ordering::Relaxed);
        let mut graph = shared.graph.lock();
        graph.changes.merge(std::mem::take(&mut running.changes));
        let applied =
            outcome.and_then(|outcome| shared.apply(&mut graph, outcome, credit - consumed));
        if let Err(error) = applied {
            graph.failed.get_or_insert(error.clone());
            return Err(error);
        }
        Ok(if graph.root.is_some() {
            MergeStep::Done
        } else {
            MergeStep::Again
        })
    }

    fn progress(&self) -> (u64, u64) {
        let consumed = self.0.consumed_bytes.load(Ordering::Relaxed);
        (
            consumed,
            self.0.expected_bytes.load(Ordering::Relaxed).max(consumed),
        )
    }

    fn finish(&self) -> Result<Merged> {
        let over = || Error::internal("a merge was finished before it was done, or twice");
        let (root, node) = {
            let graph = self.0.graph.lock();
            let made = graph.root.clone().filter(|_| !graph.is_over);
            made.ok_or_else(over)?
        };
        // If this panics, `abandon` can still give back the written pages.
        let context = &self.0.context;
        let (store, leaf_filters) = (&context.store, &context.leaf_filters);
        let version = match (&root, node) {
            (Root::Node(..), None) => {
                TreeVersion::next(store, root, leaf_filters).inspect_err(|_| self.abandon())?
            }
            (_, node) => TreeVersion::made(store, root, node, leaf_filters),
        };
        let mut graph = self.0.graph.lock();
        if std::mem::replace(&mut graph.is_over, true) {
            return Err(over());
        }
        Ok(Merged {
            version,
            changes: std::mem::take(&mut graph.changes),
        })
    }

    fn abandon(&self) {
        let changes = {
            let mut graph = self.0.graph.lock();
            if graph.is_over {
                return;
            }
            graph.is_over = true;
            graph.root = None;
            graph.ready.clear();
            graph.frames.clear();
            graph
                .failed
                .get_or_insert_with(|| Error::internal("an abandoned merge was stepped"));
            std::mem::take(&mut graph.changes)
        };
        self.0.context.store.abandon(changes);
    }
}
