//! A merge: a plan, a task for each leaf that changes, and at last the map's changed nodes
//! ([`terrapin_runs::tasks`]).

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::{Purpose, Result};
use terrapin_pages::group::GroupOptions;
use terrapin_pages::{Changes, PageStore};
use terrapin_runs::tasks::{TaskMerge, Tasks};
use terrapin_runs::writing::{check_sizes, group_options, space_class};
use terrapin_structure::{MergeInput, MergeOptions, Version};

use crate::assemble::{Limits, write_nodes};
use crate::format::Root;
use crate::plan::{Fate, Mirror, Policy, Scope, blocked, plan_input, plan_stretch, span};
use crate::structure::InPlaceParams;
use crate::task::{Context, OldLeaf, Span, Task};
use crate::version::InPlaceVersion;

/// Bytes of a segment's extent that its index and footer take.
const SEGMENT_META_BYTES: u64 = 1024;
/// Most parts of an input into an empty tree.
const PARTS_MAX: usize = 8;

/// What a merge into a version does.
pub(crate) struct InPlaceMerge {
    context: Context,
    /// The base's map, down to the nodes above the leaves.
    mirror: Option<Mirror>,
    limits: Limits,
}

impl InPlaceMerge {
    pub(crate) fn begin(
        base: &InPlaceVersion,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
        params: &InPlaceParams,
        scope: &Scope,
    ) -> Result<Arc<TaskMerge<Self>>> {
        let store = &base.store;
        check_sizes(options, store.unit())?;
        let pages = u64::from(options.block_bytes) * params.segment_pages;
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
        let waiting = group_options(options, store.unit());
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
            class: space_class(options),
            step_bytes: options.group_bytes,
            replacing_permille: input.replacing_permille(),
            record_bytes: sums.bytes / sums.records.max(1),
            operator: options.operator.clone(),
            expired: options.expired(),
            values: options.values.clone(),
            around: options.around.clone(),
        };
        let mirror = Mirror::read(store, &base.root)?;
        let work = match &mirror {
            None => tasks_of_empty(&context)?,
            Some(mirror) => {
                let policy = Policy {
                    segment_bytes,
                    space_percent: options.space_amplification_percent,
                    space_is_short: options.space_is_short,
                    around: &options.around,
                };
                tasks(&context, mirror, &policy, scope)?
            }
        };
        let charged = mirror.as_ref().map_or(0, Mirror::memory_bytes);
        let merge = InPlaceMerge {
            limits: Limits {
                node_bytes: params.node_bytes as u64,
                leaf_extents: options.group_bytes.saturating_mul(4).max(4 * segment_bytes),
                height,
            },
            context,
            mirror,
        };
        let charge = params.budget.charge(Purpose::Merge, charged);
        Ok(TaskMerge::new(merge, base.root, work, charge))
    }
}

impl Tasks for InPlaceMerge {
    type Task = Task;
    type Root = Root;

    fn store(&self) -> &PageStore {
        &self.context.store
    }

    fn step(&self, task: &mut Task) -> Result<bool> {
        task.step(&self.context)
    }

    fn write_nodes(&self, done: Vec<Task>, changes: &mut Changes) -> Result<Root> {
        let mirror = self.mirror.as_ref();
        write_nodes(&self.context, mirror, &self.limits, done, changes)
    }

    fn version(&self, root: Root) -> Arc<dyn Version> {
        InPlaceVersion::new(&self.context.store, root)
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
    policy: &Policy<'_>,
    scope: &Scope,
) -> Result<(VecDeque<Box<Task>>, u64)> {
    let leaves = mirror.leaves();
    let fates = match scope {
        Scope::Input => plan_input(&context.store, &leaves, &context.input, policy)?,
        Scope::Stretch { from, to } => {
            let is_blocked = blocked(&context.store, &leaves, policy.around)?;
            let stretch = (&from[..], to.as_deref());
            plan_stretch(&leaves, stretch, context.expired, is_blocked)
        }
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
