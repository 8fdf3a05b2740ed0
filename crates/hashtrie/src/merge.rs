//! A merge: a plan, a task for each leaf that changes, and at last the trie's changed nodes
//! ([`terrapin_runs::tasks`]).

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::{Purpose, Result};
use terrapin_pages::{Changes, PageStore};
use terrapin_runs::tasks::{TaskMerge, Tasks};
use terrapin_runs::writing::{check_sizes, group_options, space_class};
use terrapin_structure::{MergeInput, MergeOptions, Version};

use crate::assemble::{Assembly, Settings};
use crate::format::{LEAF_BYTES_LOG2, Root, RunRef};
use crate::plan::{Mirror, Policy, Scope, Shape, plan};
use crate::structure::HashTrieParams;
use crate::task::{Context, Task};
use crate::version::TrieVersion;

/// S is this many groups, unless the parameters say otherwise.
pub(crate) const LEAF_GROUPS: u64 = 16;

/// What a merge into a version does.
pub(crate) struct TrieMerge {
    context: Context,
    base: Root,
    settings: Settings,
    shape: Shape,
    ended: Vec<RunRef>,
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
    ) -> Result<Arc<TaskMerge<Self>>> {
        let store = &base.store;
        check_sizes(options, store.unit())?;
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
            class: space_class(options),
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
            expired: options.expired(),
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
        let merge = TrieMerge {
            context,
            base: base.root,
            settings,
            shape: plan.shape,
            ended: plan.ended,
        };
        let work = (queue, expected_bytes);
        Ok(TaskMerge::new(merge, base.root, work, charge))
    }
}

impl Tasks for TrieMerge {
    type Task = Task;
    type Root = Root;

    fn store(&self) -> &PageStore {
        &self.context.store
    }

    fn step(&self, task: &mut Task) -> Result<bool> {
        task.step(&self.context)
    }

    fn write_nodes(&self, done: Vec<Task>, changes: &mut Changes) -> Result<Root> {
        let trie = (&self.base, &self.shape, &self.ended[..]);
        Assembly::new(done, changes).build(&self.context, self.settings, trie)
    }

    fn version(&self, root: Root) -> Arc<dyn Version> {
        TrieVersion::new(&self.context.store, root)
    }
}
