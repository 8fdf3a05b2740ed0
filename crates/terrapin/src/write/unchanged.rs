//! The commit of a transaction: its record is appended only if nothing it depends on has changed.
//!
//! The log tells what the records since the transaction's bound touched, as for conditional writes
//! ([`crate::write::conditional`]). Where it does not tell exactly, the commit *looks*. The log
//! does not tell what it has forgotten, what a record touched that touches everything, and on which
//! side of a bound a key lies that shares its first 24 bytes.
//!
//! A look waits until all records in the log are published, takes a view with the bound V, and
//! tests the footprint from the bound B of the last look to V:
//!
//! - While the memtables reach back to B, it searches them for newer versions and range deletes.
//! - Otherwise it compares values: those that the transaction sees, and those at V.
//!
//! Meanwhile it follows the log's touches from V on, so that the log does not forget them however
//! long the look takes. So a transaction of any age commits beside fast writers.

use std::sync::Arc;

use terrapin_base::{Error, Lsn, Result, mutant};
use terrapin_wal::{Copied, From, Log, Touch, Touched, Watch};

use crate::engine::clock::Ends;
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;
use crate::engine::view::ViewHandle;
use crate::engine::views::Held;
use crate::pacing::patience::Patience;
use crate::read;
use crate::read::iter::Range;
use crate::read::large::Content;
use crate::types::condition::{Conflict, ConflictCause};
use crate::write::conditional::{AppendedRead, Seen, conflict};
use crate::write::footprint::{Footprint, Stretch};

/// Looks of one commit. Each failed one means that a record came meanwhile, of which the log does
/// not tell exactly what it touched.
const LOOKS_MAX: u32 = 100;
/// Keys that a look passes before it follows the log's touches again.
const FOLLOWS_EVERY: u32 = 128;

/// What must not have changed since a view was taken.
pub(crate) struct Unchanged<'a> {
    /// The transaction's view.
    pub view: &'a Arc<ViewHandle>,
    /// The keys.
    pub footprint: &'a Footprint,
    /// The deadlines of what the transaction depends on.
    pub ends: &'a Ends,
}

impl Core {
    /// Appends a record if nothing of a footprint has changed.
    pub(super) fn append_unchanged(
        &self,
        log: &Log,
        record: (u8, &[&[u8]], &[Touch]),
        frees: bool,
        unchanged: &Unchanged<'_>,
        patience: &mut Patience,
    ) -> Result<Result<AppendedRead<'_>, Conflict>> {
        let footprint = unchanged.footprint;
        let hits = |entry: &Touched| footprint.may_be_hit_by(entry);
        let held = unchanged.view.view().held()?;
        let seen = footprint.keyspaces().into_iter().map(|id| {
            let keyspace = held.keyspace(id)?;
            Ok((id, keyspace.collection))
        });
        let seen: Vec<Seen> = seen.collect::<Result<_>>()?;
        drop(held);
        let mut since = unchanged.view.view().before;
        let mut from = From::Lsn(since);
        for _ in 0..LOOKS_MAX {
            let read = (&mut from, &hits, (&seen[..], unchanged.ends));
            let appended = self.append_read(log, record, frees, read, patience)?;
            if let Some(appended) = appended {
                return Ok(Ok(appended));
            }
            if !unchanged.ends.have_not_come(&self.clock) {
                return Ok(Err(unchanged.names(self, ConflictCause::Changed)?));
            }
            self.counters.transaction_repeats.add(1);
            match self.look(log, unchanged, since)? {
                Ok(seen) => (since, from) = seen,
                Err(conflict) => return Ok(Err(conflict)),
            }
        }
        Ok(Err(unchanged.names(self, ConflictCause::Busy)?))
    }

    /// Looks for changes of the footprint from `since` on. Returns the bound up to which it looked,
    /// and the log's entry to go on from.
    fn look(
        &self,
        log: &Log,
        unchanged: &Unchanged<'_>,
        since: Lsn,
    ) -> Result<Result<(Lsn, From), Conflict>> {
        // The log notes touches as long as the look takes.
        let watch = log.watch();
        log.wait_until_published();
        self.env.breathe();
        let now = ViewHandle::new(unchanged.view.owner())?;
        let before = now.view().before;
        if mutant::active("look-sees-no-change") {
            return Ok(Ok((before, From::Lsn(before))));
        }
        let mut look = Look {
            core: self,
            log,
            _watch: watch,
            unchanged,
            then: unchanged.view.view().held()?,
            now: &now,
            held: now.view().held()?,
            since,
            next: Some(From::Lsn(before)),
            passed: 0,
            entries: Vec::new(),
        };
        let changed = look.find_change()?;
        // Equal values may have other deadlines now.
        if let Some(deadline_ms) = now.view().ends.first() {
            unchanged.ends.note(deadline_ms);
        }
        // A touch that hits makes the next attempt look again, from `before` on.
        let next = look.next.unwrap_or(From::Lsn(before));
        Ok(match changed {
            Some(conflict) => Err(conflict),
            None => Ok((before, next)),
        })
    }
}

impl Unchanged<'_> {
    /// A conflict that names the first key.
    fn names(&self, core: &Core, cause: ConflictCause) -> Result<Conflict> {
        let held = self.view.view().held()?;
        let first = self.footprint.keyspaces().into_iter().next();
        let id = first.ok_or_else(|| Error::internal("a conflict without a key"))?;
        let keyspace = held.keyspace(id).map_err(|_| core.dropped())?;
        Ok(conflict(&keyspace.shared, self.first_key(keyspace), cause))
    }

    fn first_key(&self, keyspace: &KeyspaceState) -> &[u8] {
        let mut stretches = self.footprint.stretches_of(keyspace.id);
        let stretch = || stretches.next().map(|stretch| &stretch.lo[..]);
        let mut keys = self.footprint.keys_of(keyspace.id);
        keys.next().or_else(stretch).unwrap_or_default()
    }
}

/// One search for changes of a footprint.
struct Look<'a> {
    core: &'a Core,
    log: &'a Log,
    _watch: Watch,
    unchanged: &'a Unchanged<'a>,
    /// What the transaction sees.
    then: Arc<Held>,
    /// The view up to which the search goes, and what it holds.
    now: &'a Arc<ViewHandle>,
    held: Arc<Held>,
    /// Up to this LSN nothing has changed.
    since: Lsn,
    /// The log's entry to follow from. None once an entry hit, or the log has forgotten some.
    next: Option<From>,
    /// Keys passed.
    passed: u32,
    entries: Vec<Touched>,
}

impl Look<'_> {
    fn find_change(&mut self) -> Result<Option<Conflict>> {
        let footprint = self.unchanged.footprint;
        let (then, held) = (self.then.clone(), self.held.clone());
        for id in footprint.keyspaces() {
            let before = then.keyspace(id)?;
            let same = |now: &&Arc<KeyspaceState>| now.collection == before.collection;
            let Some(now) = held.state.keyspaces.get(id).filter(same) else {
                let key = self.unchanged.first_key(before);
                return Ok(Some(conflict(&before.shared, key, ConflictCause::Cleared)));
            };
            let oldest = now.sealed.as_ref().map_or(&now.active, |s| &s.records);
            let tell = now.spilled.is_none() && oldest.start <= self.since;
            for key in footprint.keys_of(id) {
                let changed = match tell {
                    true => self.is_newer(now, key),
                    false => self.differs(before, now, key)?,
                };
                if changed {
                    return Ok(Some(conflict(&now.shared, key, ConflictCause::Changed)));
                }
                self.pass();
            }
            for stretch in footprint.stretches_of(id) {
                let changed = match tell {
                    true => self.newer_key(now, stretch),
                    false => self.differing_key(stretch)?,
                };
                if let Some(key) = changed {
                    return Ok(Some(conflict(&now.shared, &key, ConflictCause::Changed)));
                }
            }
        }
        Ok(None)
    }

    /// Whether the memtables have a new version of a key.
    fn is_newer(&self, now: &KeyspaceState, key: &[u8]) -> bool {
        let newest = now
            .memtables()
            .find_map(|memtable| memtable.memtable.get_versioned(key, self.now.view().before));
        newest.is_some_and(|(lsn, _)| lsn >= self.since)
    }

    /// A key of a stretch of which the memtables have a new version.
    fn newer_key(&mut self, now: &KeyspaceState, stretch: &Stretch) -> Option<Vec<u8>> {
        let (before, since) = (self.now.view().before, self.since);
        let hi = stretch.hi.as_deref();
        let memtables = now.memtables();
        let memtables = memtables.take(match mutant::active("look-skips-sealed-memtable") {
            true => 1,
            false => 2,
        });
        for memtable in memtables {
            let memtable = &memtable.memtable;
            if let Some(fragments) = memtable.fragments()
                && let Some(deleted) = fragments.any_since((&stretch.lo, hi), since, before)
            {
                return Some((&*deleted.lo).max(&stretch.lo[..]).to_vec());
            }
            // It shows old versions, too, so that the loop passes here often.
            let mut cursor = memtable.cursor(Lsn(0), before);
            cursor.seek(&stretch.lo);
            while let Some(key) = cursor.key() {
                if hi.is_some_and(|hi| key >= hi) {
                    break;
                }
                if cursor.lsn() >= since {
                    return Some(key.to_vec());
                }
                self.pass();
                cursor.next();
            }
        }
        None
    }

    /// Whether a key has another value than the transaction sees.
    fn differs(&self, then: &KeyspaceState, now: &KeyspaceState, key: &[u8]) -> Result<bool> {
        if mutant::active("look-compares-no-values") {
            return Ok(false);
        }
        self.core.counters.transaction_comparisons.add(1);
        let (before, after) = (
            self.unchanged.view.view().moment(),
            self.now.view().moment(),
        );
        // A large value is compared by its handle: each write of one has its own.
        let (then, now) = (
            read::large::find(then, before, key)?,
            read::large::find(now, after, key)?,
        );
        let are_large = matches!((&then, &now), (Content::Large(_), Content::Large(_)));
        let is_blind = are_large && mutant::active("commit-takes-large-values-for-equal");
        Ok(then != now && !is_blind)
    }

    /// A key of a stretch that has another value than the transaction sees.
    fn differing_key(&mut self, stretch: &Stretch) -> Result<Option<Vec<u8>>> {
        if mutant::active("look-compares-no-values") {
            return Ok(None);
        }
        let tag = self.core.env.random();
        let range = |view: &Arc<ViewHandle>| {
            let hi = stretch.hi.clone();
            let upper = hi.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
            let bounds = (std::ops::Bound::Included(stretch.lo.clone()), upper);
            Range::new(Ok(view.clone()), stretch.keyspace, bounds).with_large_by_handle(tag)
        };
        let (mut then, mut now) = (range(self.unchanged.view), range(self.now));
        loop {
            self.core.counters.transaction_comparisons.add(1);
            self.pass();
            let (before, after) = (then.next_ref()?, now.next_ref()?);
            let key = match (before, after) {
                (None, None) => return Ok(None),
                (before, after) if before == after => continue,
                (Some((one, _)), Some((other, _))) => one.min(other),
                (Some((key, _)), None) | (None, Some((key, _))) => key,
            };
            return Ok(Some(key.to_vec()));
        }
    }

    /// Counts a key, and follows the log's touches now and then.
    fn pass(&mut self) {
        self.passed += 1;
        if !self.passed.is_multiple_of(FOLLOWS_EVERY) {
            return;
        }
        while let Some(from) = self.next {
            self.entries.clear();
            let copied = self.log.touched_since(from, &mut self.entries);
            let footprint = self.unchanged.footprint;
            let is_hit = self
                .entries
                .iter()
                .any(|entry| footprint.may_be_hit_by(entry));
            self.next = match copied {
                Copied::All(next) | Copied::Some(next) if !is_hit => Some(next),
                _ => None,
            };
            if matches!(copied, Copied::All(_)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;
    use crate::write::footprint::Reads;

    /// A look follows the log, however much others write meanwhile. It notices a touch of its
    /// footprint, and a gap.
    #[test]
    fn a_look_follows_what_records_touch_meanwhile() {
        let (database, _sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        keyspace.put("key", "1").unwrap();
        let core = database.core();
        let log = core.log().unwrap();
        let mut reads = Reads::new(1 << 20);
        reads.add(keyspace.id(), b"key").unwrap();
        let footprint = reads.footprint(std::iter::empty(), std::iter::empty());
        let watch = log.watch();
        let view = ViewHandle::new(&database.owner).unwrap();
        let unchanged = Unchanged {
            view: &view,
            footprint: &footprint,
            ends: &Ends::default(),
        };
        let begun = |view: &'_ Arc<ViewHandle>| view.view().held().unwrap();
        let mut look = Look {
            core,
            log,
            _watch: watch,
            unchanged: &unchanged,
            then: begun(&view),
            now: &view,
            held: begun(&view),
            since: view.view().before,
            next: Some(From::Lsn(view.view().before)),
            passed: 0,
            entries: Vec::new(),
        };
        let write_and_pass = |look: &mut Look<'_>, key: &str, count: u32| {
            (0..count).for_each(|_| keyspace.put(key, "x").unwrap());
            (0..FOLLOWS_EVERY).for_each(|_| look.pass());
            look.next
        };
        // More records in all than the log keeps.
        for _ in 0..100 {
            assert!(write_and_pass(&mut look, "beside", 300).is_some());
        }
        let mut copied = Vec::new();
        let lost = log.touched_since(From::Lsn(look.since), &mut copied);
        assert_eq!(lost, Copied::Lost);
        assert!(write_and_pass(&mut look, "key", 1).is_none());
        assert!(write_and_pass(&mut look, "beside", 1).is_none());
        // What the log has forgotten between two steps.
        look.next = Some(From::Lsn(log.visible()));
        assert!(write_and_pass(&mut look, "beside", 20_000).is_none());
    }
}
