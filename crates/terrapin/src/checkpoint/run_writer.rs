//! [`RunWriter`]: it walks a memtable once to measure the run, and once for each of the run's
//! trees.

use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Lsn, Message, Operator, Purpose, Result, mutant};
use terrapin_memtable::{Estimate as Counted, FragmentTree, Memtable, OwnedCursor, OwnedVersions};
use terrapin_pages::PrivatePages;
use terrapin_structure::{
    Erased, Estimate, Merge, MergeInput, MergeOptions, MergeStep, MessageCursor, Version,
};

use crate::engine::core::Core;
use crate::engine::running_merge::guarded;
use crate::engine::state::LoggedMemtable;
use crate::run::chain::{Folding, kept, long_key, put_long, put_short, short_bytes};
use crate::run::{Run, Seen};

/// Keys that one step of the first walk passes: about a millisecond of work.
const STEP_KEYS: usize = 16 << 10;
/// The most moments for which a run stores totals, for estimates.
const SEEN_MAX: usize = 256;

/// Writes the run of one memtable, in steps of bounded size.
pub(crate) struct RunWriter {
    core: Arc<Core>,
    /// The memtable's keyspace.
    pub keyspace: KeyspaceId,
    /// The memtable. No write below the moments may still be entering it.
    pub memtable: Arc<LoggedMemtable>,
    /// Exclusive LSN bounds of the run's views, ascending, each once.
    pub moments: Arc<[Lsn]>,
    /// The merge operator of the memtable's operands.
    operator: Operator,
    stage: Stage,
    run: Run,
}

enum Stage {
    /// The first walk, which measures the run.
    Measure(Box<Measure>),
    /// A tree is being written. The estimate is that of the second tree, if one follows.
    Write(Arc<dyn Merge>, Option<Estimate>),
    Done,
}

/// The merge operator of a memtable's operands. It is known while the memtable is in the state: a
/// cleared keyspace may have got another one since. Operands without an operator stay side by side.
fn operator_of(core: &Core, keyspace: KeyspaceId, memtable: &Arc<LoggedMemtable>) -> Operator {
    let state = core.state.load();
    let keyspace = state.keyspaces.get(keyspace).filter(|keyspace| {
        let mut memtables = keyspace.memtables();
        memtables.any(|in_state| Arc::ptr_eq(in_state, memtable))
    });
    keyspace.map_or_else(Operator::default, |keyspace| keyspace.operator.clone())
}

/// The result of a writer: the run, or none if the views need nothing of the memtable.
pub(crate) type Written = Option<Arc<Run>>;

impl RunWriter {
    /// Builds a writer for views of these moments, which are ascending and distinct.
    pub fn new(
        core: &Arc<Core>,
        keyspace: KeyspaceId,
        memtable: Arc<LoggedMemtable>,
        moments: Vec<Lsn>,
    ) -> Self {
        let moments: Arc<[Lsn]> = moments.into();
        let operator = operator_of(core, keyspace, &memtable);
        let measure = Measure::new(&memtable.memtable, &moments, &operator);
        let mut run = Run::nothing(core.structures.of_runs().empty());
        let fragments = memtable.memtable.fragments();
        let fragments = fragments.filter(|_| !mutant::active("run-forgets-range-deletes"));
        run.ranges = fragments.map(|fragments| {
            let bytes = fragments.memory_bytes();
            (fragments, core.budget.charge(Purpose::Memtable, bytes))
        });
        RunWriter {
            core: core.clone(),
            keyspace,
            memtable,
            moments,
            operator,
            stage: Stage::Measure(Box::new(measure)),
            run,
        }
    }

    /// Does one step. Returns the run once it is written. After an error, the caller calls
    /// [`RunWriter::abandon`].
    pub fn step(&mut self) -> Result<Option<Written>> {
        match &mut self.stage {
            Stage::Measure(measure) => {
                let Some(measured) = guarded(|| Ok(measure.step()))? else {
                    return Ok(None);
                };
                if measured.keys.records == 0 {
                    self.stage = Stage::Done;
                    return Ok(Some(self.ranges_alone()));
                }
                self.run.count = measured.keys.records;
                self.run.seen = measured.seen;
                let long = (measured.long.records > 0).then_some(measured.long);
                self.write(Part::Keys, measured.keys, long)
            }
            Stage::Write(merge, long) => {
                match guarded(|| merge.step())? {
                    MergeStep::Again => return Ok(None),
                    MergeStep::Pending(_) => {
                        return Err(Error::internal("a merge with one worker waits for another"));
                    }
                    MergeStep::Done => {}
                }
                let merged = guarded(|| merge.finish())?;
                if mutant::active("folds-take-large-pages") {
                    let pages = self.memtable.large.ids();
                    let give_back = |id| self.core.store.abandon_large(id, false);
                    pages.into_iter().for_each(give_back);
                }
                let next = long.take();
                self.stage = Stage::Done;
                self.take(merged.version, self.core.store.private(merged.changes));
                match next {
                    Some(long) => {
                        self.run.long = Some(self.core.structures.of_runs().empty());
                        self.write(Part::Long, long, None)
                    }
                    None => {
                        self.core.counters.folds.add(1);
                        let nothing = Run::nothing(self.core.structures.of_runs().empty());
                        let run = std::mem::replace(&mut self.run, nothing);
                        Ok(Some(Some(Arc::new(run))))
                    }
                }
            }
            Stage::Done => Ok(Some(None)),
        }
    }

    /// The run of a memtable that has no record that a moment sees: its range deletes, if a moment
    /// may see one.
    fn ranges_alone(&mut self) -> Written {
        let nothing = Run::nothing(self.core.structures.of_runs().empty());
        let run = std::mem::replace(&mut self.run, nothing);
        run.ranges.is_some().then(|| Arc::new(run))
    }

    /// Takes a tree that is written.
    fn take(&mut self, version: Arc<dyn Version>, pages: PrivatePages) {
        match &mut self.run.long {
            Some(long) => *long = version,
            None => self.run.keys = version,
        }
        if !mutant::active("run-pages-freed-at-once") {
            self.run.pages.push(pages);
        }
    }

    fn write(
        &mut self,
        part: Part,
        total: Estimate,
        long: Option<Estimate>,
    ) -> Result<Option<Written>> {
        let input = Arc::new(Input {
            memtable: self.memtable.memtable.clone(),
            moments: self.moments.clone(),
            operator: self.operator.clone(),
            fragments: self.memtable.memtable.fragments(),
            part,
            total,
        });
        let core = &self.core;
        // A dropped keyspace has no options any more.
        let state = core.state.load();
        let keyspace = state.keyspaces.get(self.keyspace);
        let options = keyspace.map_or_else(Default::default, |keyspace| keyspace.options);
        // Runs of views hold all values.
        let options = MergeOptions {
            separate_from: None,
            ..core.settings.merge_of(&options, false)
        };
        let structure = core.structures.of_runs();
        let empty = structure.empty();
        let merge = guarded(|| structure.begin_merge(&empty, input, &options))?;
        self.stage = Stage::Write(merge, long);
        Ok(None)
    }

    /// Frees the pages that were written.
    pub fn abandon(&mut self) {
        if let Stage::Write(merge, _) = std::mem::replace(&mut self.stage, Stage::Done) {
            merge.abandon();
        }
        self.run.pages.clear();
    }
}

#[cfg(test)]
impl RunWriter {
    /// Whether the first walk is over.
    pub fn is_writing(&self) -> bool {
        matches!(self.stage, Stage::Write(..))
    }

    /// Replaces the merge of the tree that is being written, and returns the previous merge.
    pub fn replace_merge(&mut self, merge: Arc<dyn Merge>) -> Arc<dyn Merge> {
        match &mut self.stage {
            Stage::Write(now, _) => std::mem::replace(now, merge),
            Stage::Measure(_) | Stage::Done => panic!("no tree is being written"),
        }
    }
}

/// A walk over a memtable that measures its run, and what each moment sees of it.
struct Measure {
    cursor: OwnedCursor,
    moments: Arc<[Lsn]>,
    operator: Operator,
    fragments: Option<Arc<FragmentTree>>,
    keys: Estimate,
    long: Estimate,
    /// What appears and what disappears, from one moment on.
    changes: Vec<Change>,
}

/// The difference between what a moment and the moment before it see of a run.
#[derive(Clone, Copy, Default)]
struct Change {
    records: i64,
    tombstones: i64,
    bytes: i64,
}

struct Measured {
    keys: Estimate,
    long: Estimate,
    seen: Vec<Seen>,
}

impl Measure {
    fn new(memtable: &Arc<Memtable>, moments: &Arc<[Lsn]>, operator: &Operator) -> Self {
        Measure {
            cursor: cursor_over(memtable, moments),
            moments: moments.clone(),
            operator: operator.clone(),
            fragments: memtable.fragments(),
            keys: Estimate::default(),
            long: Estimate::default(),
            changes: vec![Change::default(); moments.len() + 1],
        }
    }

    fn step(&mut self) -> Option<Measured> {
        for _ in 0..STEP_KEYS {
            let Some(key) = self.cursor.key() else {
                return Some(self.finish());
            };
            let folding = Folding {
                operator: &self.operator,
                key,
                fragments: self.fragments.as_deref(),
            };
            let versions = || kept(self.cursor.versions(), &self.moments, folding);
            let short = short_bytes(versions().map(|(lsn, kept, _)| (lsn, kept)));
            let is_long = short.is_none();
            let mut is_kept = false;
            for (_, kept, seen_by) in versions() {
                is_kept = true;
                let value = kept.message().value_bytes();
                let (records, tombstones) = match kept.message() {
                    Message::Put(_)
                    | Message::Merge(_)
                    | Message::Stack(_)
                    | Message::Separated(_)
                    | Message::Expiring(_) => (1, 0),
                    Message::Delete => (0, 1),
                };
                let bytes = (key.len() + value) as i64;
                let begin = &mut self.changes[seen_by.start];
                begin.records += records;
                begin.tombstones += tombstones;
                begin.bytes += bytes;
                let end = &mut self.changes[seen_by.end];
                end.records -= records;
                end.tombstones -= tombstones;
                end.bytes -= bytes;
                if is_long {
                    self.long.records += 1;
                    self.long.bytes += (crate::run::chain::LONG_KEY_BYTES + value) as u64;
                }
            }
            if is_kept {
                self.keys.records += 1;
                self.keys.bytes += (key.len() + short.unwrap_or(2)) as u64;
            }
            self.cursor.next();
        }
        None
    }

    fn finish(&mut self) -> Measured {
        let every = self.moments.len().div_ceil(SEEN_MAX).max(1);
        let mut seen = Vec::new();
        let mut now = Change::default();
        for (at, (moment, change)) in self.moments.iter().zip(&self.changes).enumerate() {
            now.records += change.records;
            now.tombstones += change.tombstones;
            now.bytes += change.bytes;
            if (at + 1).is_multiple_of(every) || at + 1 == self.moments.len() {
                let count = |of: i64| u64::try_from(of).unwrap_or(0);
                seen.push(Seen {
                    before: *moment,
                    all: Counted {
                        records: count(now.records),
                        tombstones: count(now.tombstones),
                        bytes: count(now.bytes),
                    },
                });
            }
        }
        Measured {
            keys: self.keys,
            long: self.long,
            seen,
        }
    }
}

/// A cursor at the first key with a version that the last moment sees.
fn cursor_over(memtable: &Arc<Memtable>, moments: &[Lsn]) -> OwnedCursor {
    let last = moments.last().copied().unwrap_or(Lsn(0));
    let mut cursor = memtable.cursor_owned(Lsn(0), last);
    cursor.seek_first();
    cursor
}

/// The two trees of a run.
#[derive(Clone, Copy)]
enum Part {
    Keys,
    Long,
}

/// A memtable as the merge into one of the run's trees reads it. That merge has one task, so the
/// spread of bytes over the keys does not matter.
struct Input {
    memtable: Arc<Memtable>,
    moments: Arc<[Lsn]>,
    operator: Operator,
    fragments: Option<Arc<FragmentTree>>,
    part: Part,
    total: Estimate,
}

impl Input {
    /// How the operands of a key are folded.
    fn folding<'f>(&'f self, key: &'f [u8]) -> Folding<'f> {
        Folding {
            operator: &self.operator,
            key,
            fragments: self.fragments.as_deref(),
        }
    }
}

impl MergeInput for Input {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let mut cursor = ChainCursor {
            cursor: cursor_over(&self.memtable, &self.moments),
            input: self,
            hi: hi.map(Into::into),
            chains: 0,
            is_long: false,
            older: None,
            record: Record::default(),
            is_inside: false,
        };
        // From the start: the numbers of long chains follow from all earlier keys.
        cursor.look();
        while lo.is_some_and(|lo| cursor.key().is_some_and(|key| key < lo)) {
            cursor.go_on();
        }
        Ok(Box::new(cursor))
    }

    fn estimate(&self, _lo: Option<&[u8]>, _hi: Option<&[u8]>) -> Estimate {
        self.total
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

/// A record of a run on its way into a tree.
#[derive(Default)]
struct Record {
    key: Vec<u8>,
    value: Vec<u8>,
}

struct ChainCursor {
    cursor: OwnedCursor,
    input: Arc<Input>,
    hi: Option<Box<[u8]>>,
    /// Number of long chains before the memtable's current key, and whether that key has one.
    chains: u64,
    is_long: bool,
    /// For the second tree: older versions of the key, and the number of moments that see one of
    /// them.
    older: Option<(OwnedVersions, usize)>,
    /// The current record.
    record: Record,
    is_inside: bool,
}

impl ChainCursor {
    /// Moves to the first record of the memtable's current key, or of the next key that has any.
    fn look(&mut self) {
        self.is_inside = false;
        while let Some(key) = self.cursor.key() {
            let versions = || {
                let folding = self.input.folding(key);
                kept(self.cursor.versions(), &self.input.moments, folding)
                    .map(|(lsn, kept, _)| (lsn, kept))
            };
            self.is_long = short_bytes(versions()).is_none();
            match self.input.part {
                Part::Keys if versions().next().is_some() => {
                    let record = &mut self.record;
                    record.key.clear();
                    record.key.extend_from_slice(key);
                    record.value.clear();
                    match self.is_long {
                        false => put_short(versions(), &mut record.value),
                        true => put_long(self.chains, &mut record.value),
                    }
                    return self.shown();
                }
                Part::Long if self.is_long => {
                    let all = self.cursor.versions_owned();
                    self.older = Some((all, self.input.moments.len()));
                    if self.show_older() {
                        return;
                    }
                }
                Part::Keys | Part::Long => {}
            }
            self.pass();
        }
    }

    /// Moves to the next older version of a long chain, if there is one.
    fn show_older(&mut self) -> bool {
        let Some((versions, end)) = &mut self.older else {
            return false;
        };
        let moments = &self.input.moments[..*end];
        let Some(last) = moments.last() else {
            return false;
        };
        let Some(mut versions) = versions.below(*last) else {
            return false;
        };
        let Some((lsn, message)) = versions.next() else {
            return false;
        };
        let user_key = self.cursor.key().unwrap_or_default();
        let kept = self.input.folding(user_key).of((lsn, message), versions);
        *end = moments.partition_point(|moment| *moment <= lsn);
        let record = &mut self.record;
        record.key.clear();
        let key = long_key(self.chains, lsn, kept.message());
        record.key.extend_from_slice(&key);
        record.value.clear();
        record.value.extend_from_slice(kept.message().payload());
        self.shown();
        true
    }

    fn shown(&mut self) {
        let is_below = |hi: &[u8]| self.record.key[..] < *hi;
        self.is_inside = self.hi.as_deref().is_none_or(is_below);
    }

    /// Moves to the memtable's next key.
    fn pass(&mut self) {
        self.older = None;
        self.chains += u64::from(self.is_long);
        self.cursor.next();
    }

    /// Moves to the next record.
    fn go_on(&mut self) {
        if !self.show_older() {
            self.pass();
            self.look();
        }
    }
}

impl MessageCursor for ChainCursor {
    fn key(&self) -> Option<&[u8]> {
        self.is_inside.then_some(&self.record.key[..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.record.value)
    }

    fn advance(&mut self) -> Result<()> {
        if !self.is_inside {
            return Err(Error::internal("a cursor over a run moved past its end"));
        }
        self.go_on();
        Ok(())
    }
}
