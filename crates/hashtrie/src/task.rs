//! The work of a merge on one leaf, in steps of about a page group: a stream of the leaf's runs and
//! the input, written as one run, and its list of hashes.

use std::sync::Arc;

use terrapin_base::{Budget, Charge, Error, Message, Purpose, Result, mutant};
use terrapin_pages::group::{GroupOptions, PendingGroup};
use terrapin_pages::{Changes, PageKind, PageStore, PageUse, SpaceClass};
use terrapin_runs::run::{RunCursor, open_stream, place_record};
use terrapin_runs::writing::Writing;
use terrapin_structure::{MergeInput, MergeOptions, MessageCursor};

use crate::digits::prefix_of;
use crate::format::{Leaf, Part, RunRef};
use crate::list;
use crate::node::newest;
use crate::plan::TaskPlan;
use crate::table::{SLOTS, Table};

/// What all tasks of a merge share.
pub(crate) struct Context {
    pub(crate) store: Arc<PageStore>,
    pub(crate) input: Arc<dyn MergeInput>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) options: MergeOptions,
    pub(crate) groups: GroupOptions,
    pub(crate) class: SpaceClass,
    /// Bytes that a put hides, in thousandths of its own.
    pub(crate) replacing_permille: u16,
    /// Mean key and value bytes of a record.
    pub(crate) record_bytes: u64,
}

/// The work on one leaf.
pub(crate) struct Task {
    /// Its place among the tasks.
    number: usize,
    plan: TaskPlan,
    is_begun: bool,
    writing: Option<Writing>,
    groups: Vec<Part>,
    prefixes: Vec<u64>,
    changes: Changes,
    charge: Charge,
    /// Key and value bytes that the task has moved.
    consumed_bytes: u64,
    /// The leaf, once the task is done; `None` if it has no records.
    pub(crate) leaf: Option<Leaf>,
}

impl terrapin_runs::tasks::Task for Task {
    fn number(&self) -> usize {
        self.number
    }

    fn changes(&mut self) -> &mut Changes {
        &mut self.changes
    }

    fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }
}

impl Task {
    pub(crate) fn new(context: &Context, number: usize, plan: TaskPlan) -> Task {
        Task {
            number,
            plan,
            is_begun: false,
            writing: None,
            groups: Vec::new(),
            prefixes: Vec::new(),
            changes: Changes::default(),
            charge: context.budget.charge(Purpose::Merge, 0),
            consumed_bytes: 0,
            leaf: None,
        }
    }

    /// Does a bounded piece of work. Returns whether the task is done.
    pub(crate) fn step(&mut self, context: &Context) -> Result<bool> {
        if !std::mem::replace(&mut self.is_begun, true) {
            let stream = open_stream(
                (&context.store, &context.input),
                &self.plan.range,
                std::mem::take(&mut self.plan.runs),
                Vec::new(),
                true,
                (&context.options, self.plan.is_base),
            )?;
            let stream = stream.ok_or_else(|| Error::internal("a merge has no stream"))?;
            self.writing = Some(Writing::new(context.groups, &context.budget, stream));
        }
        let is_done = self.write(context)?;
        self.charge.resize(self.prefixes.capacity() as u64 * 8);
        Ok(is_done)
    }

    /// Writes up to a group.
    fn write(&mut self, context: &Context) -> Result<bool> {
        let Some(writing) = &mut self.writing else {
            return Ok(true);
        };
        let mut moved = 0;
        let finished = loop {
            if moved >= context.groups.target_bytes {
                break None;
            }
            if let Err(error) = writing.stream.settle(|_| {}) {
                return Err(place_record(&writing.stream, error));
            }
            let Some(key) = writing.stream.key() else {
                let rest = writing.builder.finish();
                self.consumed_bytes += moved;
                self.writing = None;
                for group in rest {
                    self.write_group(context, group)?;
                }
                self.finish(context)?;
                return Ok(true);
            };
            let message = writing.stream.message();
            let bytes = (key.len() + message.value_bytes()) as u64;
            moved += bytes;
            let cursor = writing.stream.current();
            let cursor = cursor.and_then(|run| writing.stream.cursors().get(run));
            let drops = self.plan.is_base || mutant::active("join-drops-deletes");
            let group = match message {
                Message::Delete if drops => None,
                message => {
                    self.prefixes.push(prefix_of(key)?);
                    if let Some(standing) = cursor.and_then(RunCursor::standing) {
                        writing.builder.takes_place_of(standing);
                    }
                    let hidden = match self.plan.is_base {
                        _ if mutant::active("hidden-bytes-not-counted") => 0,
                        true => 0,
                        false => cursor
                            .and_then(RunCursor::hidden_bytes)
                            .unwrap_or_else(|| hidden_by(context, message, bytes)),
                    };
                    writing.builder.add_hiding(key, message, hidden)?
                }
            };
            if let Err(error) = writing.stream.advance() {
                return Err(place_record(&writing.stream, error));
            }
            if group.is_some() {
                break group;
            }
        };
        writing.account();
        self.consumed_bytes += moved;
        if let Some(group) = finished {
            self.write_group(context, group)?;
        }
        Ok(false)
    }

    fn write_group(&mut self, context: &Context, group: PendingGroup) -> Result<()> {
        let prefixes = (prefix_of(&group.first_key)?, prefix_of(&group.last_key)?);
        let deadlines = group.deadlines.clone();
        let group = match self.plan.is_base {
            true => context.store.write_group(group, context.class)?,
            false => context.store.write_segment(group, context.class)?,
        };
        self.changes.added.push(PageUse::from(&group));
        self.groups.push(Part {
            group,
            deadlines,
            prefixes,
        });
        Ok(())
    }

    /// Writes the list of hashes, and makes the leaf and its table.
    fn finish(&mut self, context: &Context) -> Result<()> {
        let mut runs = std::mem::take(&mut self.plan.kept);
        let prefixes = std::mem::take(&mut self.prefixes);
        if prefixes.is_empty() {
            // The input had no record of a run that is joined.
            self.leaf = (!runs.is_empty()).then_some(Leaf { runs });
            return Ok(());
        }
        let content = list::encode(&prefixes)?;
        let store = &context.store;
        let list = store.write_page(PageKind::HashList, &content, context.class)?;
        self.changes.added.push(PageUse::from(&list));
        let taken = runs.iter().fold(0u16, |slots, run| slots | 1 << run.slot);
        let slot = (!taken).trailing_zeros() as u8;
        if usize::from(slot) >= SLOTS {
            return Err(Error::internal("a chain has no slot for one more run"));
        }
        let old = self
            .plan
            .joined
            .first()
            .or(runs.first())
            .map(|run| run.list);
        let cached = old.and_then(|list| store.cached_object::<Table>(&list, 0));
        let table = match (runs.is_empty(), cached) {
            (true, _) => Some(Table::build(self.plan.stretch, &[(slot, &prefixes)])),
            (false, Some(table)) => {
                let joined = self.plan.joined.iter();
                let dropped = joined.fold(0u16, |slots, run| slots | 1 << run.slot);
                let named = match runs.first() {
                    Some(before) if mutant::active("table-names-run-before") => before.slot,
                    _ => slot,
                };
                table.with_run(dropped, named, &prefixes)
            }
            (false, None) => None,
        };
        if let Some(table) = table {
            let memory_bytes = table.memory_bytes();
            store.cache_object(&list, Arc::new(table), memory_bytes);
        }
        let tiers = self.plan.joined.iter().map(|run| run.tier);
        let tier = tiers.max().map_or(0, |tier| tier.saturating_add(1));
        let run = RunRef {
            slot,
            is_base: self.plan.is_base,
            tier: if self.plan.is_base { 0 } else { tier },
            list,
            groups: std::mem::take(&mut self.groups),
        };
        runs.insert(0, run);
        let leaf = Leaf { runs };
        newest(&leaf)?;
        self.leaf = Some(leaf);
        Ok(())
    }
}

/// Bytes that a message of the input hides, about.
fn hidden_by(context: &Context, message: Message<'_>, bytes: u64) -> u64 {
    match message {
        Message::Delete => bytes + context.record_bytes,
        Message::Merge(_) | Message::Stack(_) => bytes,
        Message::Put(_) | Message::Separated(_) | Message::Expiring(_) => {
            bytes * u64::from(context.replacing_permille) / 1000
        }
    }
}
