//! A merge: streams the old records and the input into new page groups, and writes a new list.
//!
//! One worker at a time takes the work out of the lock, does a step, and puts it back; others wait
//! meanwhile. The pages written so far stay with the work, so that a step that fails or panics
//! loses none of them.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{Budget, Charge, Condition, Error, Message, Operator, Purpose, Result, Signal};
use terrapin_pages::block::{Block, TARGET_BYTES_MAX};
use terrapin_pages::group::{
    GROUP_TARGET_BYTES_MAX, GroupBuilder, GroupIndex, GroupOptions, PendingGroup,
};
use terrapin_pages::{Changes, Fill, PageKind, PageStore, PageUse, SpaceClass};
use terrapin_structure::{
    KWayMerge, Merge, MergeInput, MergeOptions, MergeStep, Merged, MessageCursor, ValuesOwner,
};

use crate::format::{List, Listed, Root};
use crate::version::{PlainVersion, check_block, index_of};

/// A merge into a version.
pub(crate) struct PlainMerge(Arc<Shared>);

struct Shared {
    base: PlainVersion,
    state: Mutex<State>,
    changed: Arc<Signal>,
}

struct State {
    /// The work, unless a worker has it or it is done.
    work: Option<Box<Work>>,
    is_running: bool,
    /// Pages of the work, once it is done.
    changes: Changes,
    root: Option<Root>,
    failed: Option<Error>,
    /// `finish` or `abandon` was called.
    is_over: bool,
    consumed_bytes: u64,
    expected_bytes: u64,
}

impl PlainMerge {
    pub(crate) fn begin(
        base: &PlainVersion,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
        budget: &Arc<Budget>,
    ) -> Result<Arc<Self>> {
        let (group_bytes, block_bytes) = (options.group_bytes, options.block_bytes);
        let blocks = base.store.unit() as usize..=TARGET_BYTES_MAX;
        if !(1..=GROUP_TARGET_BYTES_MAX).contains(&group_bytes)
            || !blocks.contains(&(block_bytes as usize))
        {
            return Err(
                Error::invalid("group_bytes or block_bytes is out of bounds")
                    .with("group bytes", group_bytes)
                    .with("limit", GROUP_TARGET_BYTES_MAX)
                    .with("block bytes", block_bytes)
                    .with("limit", TARGET_BYTES_MAX),
            );
        }
        let old = base.list()?;
        let arriving = input.estimate(None, None).bytes;
        let input = input.cursor(None, None)?;
        // Without input nothing changes.
        let root = input.key().is_none().then_some(base.root);
        let work = Work {
            store: base.store.clone(),
            old: old.clone(),
            input: Some(input),
            stream: None,
            builder: GroupBuilder::new(GroupOptions {
                target_bytes: group_bytes,
                block_bytes,
                unit: base.store.unit(),
                compression: options.compression,
                filter_bits: 0,
                now_ms: options.now_ms,
            }),
            operator: options.operator.clone(),
            now_ms: options.now_ms,
            values: options.values.clone(),
            class: match options.space_is_short {
                true => SpaceClass::Reserve,
                false => SpaceClass::Normal,
            },
            step_bytes: group_bytes,
            rest: None,
            groups: Vec::new(),
            changes: Changes::default(),
            charge: budget.charge(Purpose::Merge, 0),
            consumed_bytes: 0,
        };
        let groups = old.iter().flat_map(|list| &list.groups);
        let old_bytes = groups.map(|listed| listed.group.logical_bytes);
        Ok(Arc::new(PlainMerge(Arc::new(Shared {
            base: base.clone(),
            state: Mutex::new(State {
                work: root.is_none().then(|| Box::new(work)),
                is_running: false,
                changes: Changes::default(),
                root,
                failed: None,
                is_over: false,
                consumed_bytes: 0,
                expected_bytes: old_bytes.fold(arriving, u64::saturating_add),
            }),
            changed: Signal::new(),
        }))))
    }
}

/// A worker's turn: it has the work. Dropping it puts the work back, or only the work's pages at
/// its end. That happens also if a step panics.
struct Turn<'a> {
    shared: &'a Shared,
    work: Option<Box<Work>>,
    result: Result<Option<Root>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(mut work) = self.work.take() else {
            return;
        };
        if std::thread::panicking() {
            self.result = Err(Error::internal("a merge panicked"));
        }
        let mut state = self.shared.state.lock();
        state.is_running = false;
        state.consumed_bytes = state.consumed_bytes.max(work.consumed_bytes);
        state.expected_bytes = state.expected_bytes.max(state.consumed_bytes);
        match &self.result {
            Ok(None) => state.work = Some(work),
            Ok(Some(root)) => {
                state.changes = std::mem::take(&mut work.changes);
                state.root = Some(*root);
                state.consumed_bytes = state.expected_bytes;
            }
            Err(error) => {
                state.changes = std::mem::take(&mut work.changes);
                state.failed = Some(error.clone());
            }
        }
        drop(state);
        self.shared.changed.notify();
    }
}

impl Merge for PlainMerge {
    fn step(&self) -> Result<MergeStep> {
        let shared = &*self.0;
        let work = {
            let mut state = shared.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.root.is_some() {
                return Ok(MergeStep::Done);
            }
            let Some(work) = state.work.take() else {
                let waiting = self.0.clone();
                let is_free = move || !waiting.state.lock().is_running;
                return Ok(MergeStep::Pending(Condition::new(&shared.changed, is_free)));
            };
            state.is_running = true;
            work
        };
        let mut turn = Turn {
            shared,
            work: Some(work),
            result: Ok(None),
        };
        if let Some(work) = &mut turn.work {
            turn.result = work.step(&shared.base.root);
        }
        match &turn.result {
            Ok(None) => Ok(MergeStep::Again),
            Ok(Some(_)) => Ok(MergeStep::Done),
            Err(error) => Err(error.clone()),
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
        let base = &self.0.base;
        Ok(Merged {
            version: PlainVersion::new(&base.store, root, base.is_ordered),
            changes: std::mem::take(&mut state.changes),
        })
    }

    fn abandon(&self) {
        let mut state = self.0.state.lock();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        let mut changes = std::mem::take(&mut state.changes);
        if let Some(work) = state.work.take() {
            changes.merge(work.changes);
        }
        state.root = None;
        let abandoned = || Error::internal("an abandoned merge was stepped");
        state.failed.get_or_insert_with(abandoned);
        drop(state);
        self.0.base.store.abandon(changes);
    }
}

/// What a merge does next, and what it did so far.
struct Work {
    store: Arc<PageStore>,
    old: Option<Arc<List>>,
    /// The input's cursor, until the stream has it.
    input: Option<Box<dyn MessageCursor>>,
    stream: Option<KWayMerge<Source>>,
    builder: GroupBuilder,
    operator: Operator,
    now_ms: u64,
    values: ValuesOwner,
    class: SpaceClass,
    /// Bytes of records after which a step ends.
    step_bytes: u64,
    /// The last groups, once the stream has ended.
    rest: Option<VecDeque<PendingGroup>>,
    groups: Vec<Listed>,
    changes: Changes,
    charge: Charge,
    consumed_bytes: u64,
}

impl Work {
    /// Merges about a group, or writes one, or at last the list. Returns the root at the end.
    fn step(&mut self, base: &Root) -> Result<Option<Root>> {
        let step = match &mut self.rest {
            None => self.merge_some().map(|()| None),
            Some(rest) => match rest.pop_front() {
                Some(group) => self.write(group).map(|()| None),
                None => self.write_list(base).map(Some),
            },
        };
        let keys = self
            .groups
            .iter()
            .map(|listed| listed.first_key.len() + listed.last_key.len());
        let groups = self.groups.len() * size_of::<Listed>() + keys.sum::<usize>();
        let rest = self.rest.iter().flatten().map(PendingGroup::memory_bytes);
        let bytes = self.builder.memory_bytes() + groups + rest.sum::<usize>();
        let block = self
            .stream
            .iter()
            .flat_map(KWayMerge::cursors)
            .map(Source::memory_bytes);
        self.charge.resize(bytes as u64 + block.sum::<u64>());
        step
    }

    fn merge_some(&mut self) -> Result<()> {
        if let Some(input) = self.input.take() {
            let old = OldRecords::open(&self.store, self.old.clone())?;
            let sources = vec![Source::Input(input), Source::Old(old)];
            self.stream = Some(
                KWayMerge::new(sources, 0)
                    .folding(&self.operator, Some(self.now_ms))
                    .reporting(&self.values),
            );
        }
        let Some(stream) = &mut self.stream else {
            return Err(Error::internal("a merge has no stream"));
        };
        let (mut merged, mut finished) = (0, None);
        loop {
            stream.settle(|_| {})?;
            let Some(key) = stream.key() else { break };
            let message = stream.message();
            merged += (key.len() + message.value_bytes()) as u64;
            finished = match message {
                Message::Put(_)
                | Message::Merge(_)
                | Message::Stack(_)
                | Message::Separated(_)
                | Message::Expiring(_) => self.builder.add(key, message)?,
                Message::Delete => None,
            };
            stream.advance()?;
            if finished.is_some() || merged >= self.step_bytes {
                break;
            }
        }
        self.consumed_bytes += merged;
        if stream.key().is_none() {
            self.stream = None;
            self.rest = Some(self.builder.finish().into());
        }
        match finished {
            Some(group) => self.write(group),
            None => Ok(()),
        }
    }

    fn write(&mut self, mut pending: PendingGroup) -> Result<()> {
        let first_key = std::mem::take(&mut pending.first_key);
        let last_key = std::mem::take(&mut pending.last_key);
        let group = self.store.write_group(pending, self.class)?;
        self.changes.added.push(PageUse::from(&group));
        self.groups.push(Listed {
            group,
            first_key,
            last_key,
        });
        Ok(())
    }

    fn write_list(&mut self, base: &Root) -> Result<Root> {
        let list = List {
            groups: std::mem::take(&mut self.groups),
        };
        let mut root = Root::Empty;
        if !list.groups.is_empty() {
            let content = list.encode();
            let page = self
                .store
                .write_page(PageKind::Node, &content, self.class)?;
            self.changes.added.push(PageUse::from(&page));
            root = Root::List(list.referred(page));
            let memory_bytes = list.memory_bytes();
            self.store.cache_object(&page, Arc::new(list), memory_bytes);
        }
        if let Root::List(base) = base {
            self.changes.released.push(base.page.id);
        }
        let old = self.old.iter().flat_map(|old| &old.groups);
        self.changes
            .released
            .extend(old.map(|listed| listed.group.id));
        Ok(root)
    }
}

/// A source of the stream.
enum Source {
    Input(Box<dyn MessageCursor>),
    Old(OldRecords),
}

impl Source {
    /// Bytes of memory that it holds, the input's aside.
    fn memory_bytes(&self) -> u64 {
        match self {
            Source::Old(old) => old
                .block
                .as_ref()
                .map_or(0, |block| block.bytes().len() as u64),
            Source::Input(_) => 0,
        }
    }
}

impl MessageCursor for Source {
    fn key(&self) -> Option<&[u8]> {
        match self {
            Source::Input(input) => input.key(),
            Source::Old(old) => old.block.is_some().then_some(&old.key[..]),
        }
    }

    fn message(&self) -> Message<'_> {
        match self {
            Source::Input(input) => input.message(),
            Source::Old(old) => match &old.block {
                Some(block) => block.message(old.at),
                None => Message::Delete,
            },
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Source::Input(input) => input.advance(),
            Source::Old(old) => old.advance(),
        }
    }
}

/// A cursor over the records of all groups of the old version.
struct OldRecords {
    store: Arc<PageStore>,
    list: Option<Arc<List>>,
    /// The group, its index once it is open, and the next block.
    group: usize,
    index: Option<Arc<GroupIndex>>,
    next_block: usize,
    /// The current block; `None` behind the last record.
    block: Option<Arc<Block>>,
    at: usize,
    key: Vec<u8>,
}

impl OldRecords {
    /// A cursor at the first record.
    fn open(store: &Arc<PageStore>, list: Option<Arc<List>>) -> Result<Self> {
        let mut old = OldRecords {
            store: store.clone(),
            list,
            group: 0,
            index: None,
            next_block: 0,
            block: None,
            at: 0,
            key: Vec::new(),
        };
        old.enter_block()?;
        Ok(old)
    }

    fn advance(&mut self) -> Result<()> {
        match &self.block {
            Some(block) if self.at + 1 < block.len() => {
                self.at += 1;
                block.key_into(self.at, &mut self.key);
                Ok(())
            }
            Some(_) => self.enter_block(),
            None => Ok(()),
        }
    }

    /// Moves to the first record of the next block.
    fn enter_block(&mut self) -> Result<()> {
        self.block = None;
        let Some(list) = &self.list else {
            return Ok(());
        };
        while let Some(listed) = list.groups.get(self.group) {
            let index = match &self.index {
                Some(index) => index,
                None => self.index.insert(index_of(&self.store, listed)?),
            };
            if self.next_block < index.blocks() {
                let group = &listed.group;
                let block = self.store.block(group, index, self.next_block, Fill::No)?;
                check_block(&block, listed)?;
                self.next_block += 1;
                self.at = 0;
                block.key_into(0, &mut self.key);
                self.block = Some(block);
                return Ok(());
            }
            self.group += 1;
            self.next_block = 0;
            self.index = None;
        }
        Ok(())
    }
}
