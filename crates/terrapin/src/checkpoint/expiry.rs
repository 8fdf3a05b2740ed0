//! [`Expiry`]: the job of databases with deadlines. Each second it
//!
//! - notes the last now in the log, if a view took a later one since ([`Core::note_now`]), so that
//!   what a view saw expired stays expired after a restart with the wall clock set back;
//! - asks for the compaction of a tree of which enough has expired.
//!
//! A compaction writes what it does not drop. A tree of which a quarter has expired is due at once:
//! three bytes are written for each byte that goes. Less is due once it will not soon be more, and
//! while nobody writes ([`Tree::due_permille`]): a twentieth, for 19 bytes written. The least part
//! of a leaf is that of the tree.
//!
//! The job sleeps until the first write with a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Result, Step, mutant};
use terrapin_structure::{Compacts, EXPIRED_PERMILLE};
use terrapin_wal::{Append, Touch};

use crate::engine::compactions::{KeySpan, Stretches, Work};
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;
use crate::log_record::format::{NOW, now_payload};

/// The time between two looks, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The least time between two compactions of one keyspace, in nanoseconds. It doubles while a tree
/// stays due, up to [`REST_NS_MAX`]: an estimate may stay above the truth.
const REST_NS: u64 = 10 * LOOK_NS;
const REST_NS_MAX: u64 = 3600 * LOOK_NS;
/// The expired part of a tree, in thousandths, from which on it is compacted once no more expires
/// soon. What stays is less than that of a tree and of each leaf.
const RESTING_PERMILLE: u64 = 50;
/// The least time in which no more than a quarter of what has expired may expire further, in
/// milliseconds.
const SOON_MS: u64 = 2000;

/// The job. It ends with the schedule.
pub(crate) struct Expiry {
    core: Arc<Core>,
    trees: BTreeMap<KeyspaceId, Tree>,
}

/// What the job knows of a tree with deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tree {
    /// The first look since the last compaction that found expired records, in milliseconds since
    /// 1970.
    expires_since_ms: Option<u64>,
    /// Bytes that users had written into the keyspace at the last look.
    written_bytes: u64,
    /// When the tree may be compacted again, on the environment's clock.
    rests_until_ns: u64,
    /// How long it rests after the next compaction.
    rest_ns: u64,
}

impl Tree {
    /// The expired part from which on a compaction rewrites the tree and its leaves now, in
    /// thousandths; none if too little has expired. `expired` estimates the expired part of the
    /// tree at a moment.
    ///
    /// Less than a quarter waits as long again as it gathered, or [`SOON_MS`]. If about as much
    /// will expire by then, it waits for that too. So trees whose records expire evenly are
    /// compacted at a quarter, and those whose records expired together at what that left.
    fn due_permille(
        &mut self,
        expired: impl Fn(u64) -> Result<u64>,
        now_ms: u64,
        is_idle: bool,
    ) -> Result<Option<u64>> {
        let now = expired(now_ms)?;
        if now == 0 {
            self.expires_since_ms = None;
            return Ok(None);
        }
        let since_ms = *self.expires_since_ms.get_or_insert(now_ms);
        if now >= EXPIRED_PERMILLE {
            return Ok(Some(EXPIRED_PERMILLE));
        }
        if now < RESTING_PERMILLE || !is_idle || mutant::active("little-expired-stays") {
            return Ok(None);
        }
        let ahead_ms = now_ms.saturating_sub(since_ms).max(SOON_MS);
        let soon = expired(now_ms.saturating_add(ahead_ms))?;
        Ok((soon <= now + now / 4).then_some(RESTING_PERMILLE))
    }

    /// Notes that a compaction was asked for.
    fn asked(&mut self, now_ns: u64) {
        self.expires_since_ms = None;
        self.rest_ns = self.rest_ns.clamp(REST_NS, REST_NS_MAX);
        self.rests_until_ns = now_ns.saturating_add(self.rest_ns);
        self.rest_ns = self.rest_ns.saturating_mul(2);
    }
}

impl Expiry {
    /// Builds the job for a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Expiry {
            core: core.clone(),
            trees: BTreeMap::new(),
        })
    }

    /// Asks for the compaction of the first tree that is due.
    fn look(&mut self) {
        let core = self.core.clone();
        if core.compactions.is_any_asked() || core.schedule.disk_is_full() {
            return;
        }
        let state = core.state.load_full();
        self.trees
            .retain(|id, _| state.keyspaces.get(*id).is_some());
        for keyspace in state.keyspaces.iter() {
            if let Some(compacts) = keyspace.structure.compacts()
                && self.ask(keyspace, compacts)
            {
                return;
            }
        }
    }

    /// Asks for the compaction of a tree if it is due. Returns whether it did.
    fn ask(&mut self, keyspace: &KeyspaceState, compacts: &dyn Compacts) -> bool {
        let core = &self.core;
        // Nobody sees what this finds. So it is no now that others may not precede.
        let now_ms = core.env.wall_ms().max(core.clock.last());
        let now_ns = core.env.now_ns();
        let tree = self.trees.entry(keyspace.id).or_default();
        let written = keyspace.shared.counters.user_bytes_written();
        let before = std::mem::replace(&mut tree.written_bytes, written);
        let is_idle = written.saturating_sub(before) < core.settings.merge.group_bytes
            && core.schedule.sealed_count() == 0;
        let expired = |now_ms| compacts.expired_permille(&keyspace.version, now_ms);
        // A read that needs an unreadable node reports the error.
        let due = tree.due_permille(expired, now_ms, is_idle).unwrap_or(None);
        if now_ns < tree.rests_until_ns {
            return false;
        }
        let Some(permille) = due else {
            tree.rest_ns = REST_NS;
            return false;
        };
        let all = Stretches {
            keyspace: keyspace.id,
            span: KeySpan::default(),
            work: Work::Expired(permille),
        };
        if !core.compactions.ask(all) {
            return false;
        }
        core.counters.expiry_compactions.add(1);
        tree.asked(now_ns);
        core.schedule.work().notify();
        true
    }
}

impl Job for Expiry {
    fn name(&self) -> &'static str {
        "expiry"
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() {
            return Step::Done;
        }
        let begun = core.clock.begun().clone();
        if core.clock.last() == 0 {
            return Step::Pending(Condition::new(&begun, move || {
                core.schedule.is_stopping() || core.clock.last() > 0
            }));
        }
        // The next look tries again.
        // A close notes it itself, and then checkpoints the last record of the log.
        if core.health.is_open() {
            let _ = core.note_now();
        }
        self.look();
        let next_ns = core.env.now_ns().saturating_add(LOOK_NS);
        let stops = move || core.schedule.is_stopping();
        Step::Pending(Condition::new(&begun, stops).until(next_ns))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

impl Core {
    /// Notes the last now in the log, if it is later than the one that was noted. Does nothing if
    /// the log has no room.
    pub fn note_now(&self) -> Result<()> {
        let log = self.log()?;
        let Some(now_ms) = self.clock.to_note() else {
            return Ok(());
        };
        if self.schedule.disk_is_full() {
            return Ok(());
        }
        // It changes no key, so no conditional write or transaction tries again because of it.
        let payload = now_payload(now_ms);
        if let Append::Done(appended) = log.try_append_touching(NOW, &[&payload], &[Touch::NONE])? {
            log.publish(&appended);
            self.clock.noted(now_ms);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use terrapin_wal::From;

    use super::*;
    use crate::types::options::Options;

    /// What is due each second of `seconds`, with the expired part of each second. What is due is
    /// compacted at once, and leaves nothing.
    fn due(seconds: u64, part: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        let (mut tree, mut gone, mut out) = (Tree::default(), 0, Vec::new());
        for second in 0..seconds {
            let expired = |now_ms: u64| Ok(part(now_ms / 1000).saturating_sub(gone));
            if let Some(permille) = tree.due_permille(expired, second * 1000, true).unwrap() {
                out.push((second, permille));
                tree.asked(second * 1_000_000_000);
                gone = part(second);
            }
        }
        out
    }

    #[test]
    fn a_noted_now_is_in_no_writers_way() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        keyspace
            .put_with_ttl("a", "1", Duration::from_secs(60))
            .unwrap();
        keyspace.insert_if_absent("b", "1").unwrap();
        let core = database.core();
        let log = core.log().unwrap();
        sim.set_breathing(false);
        sim.advance_ns(5 * LOOK_NS);
        keyspace.get("a").unwrap();
        let from = From::Lsn(log.tail());
        core.note_now().unwrap();
        assert_eq!(core.clock.to_note(), None);
        let mut entries = Vec::new();
        log.touched_since(from, &mut entries);
        let touches: Vec<_> = entries.iter().map(|entry| entry.touch).collect();
        assert_eq!(touches, [Touch::NONE]);
        drop(keyspace);
        database.close().unwrap();
    }

    #[test]
    fn what_expires_evenly_is_compacted_by_quarters() {
        for per_second in [1, 2, 10, 30] {
            let times = due(2000 / per_second, |second| second * per_second);
            assert!(times.iter().all(|&(_, permille)| permille == 250));
            assert_eq!(times.len() as u64, 1999 / 250, "{per_second}");
        }
    }

    #[test]
    fn what_expired_together_is_compacted_soon() {
        for (part, expected) in [
            (49, vec![]),
            (50, vec![(100, 50)]),
            (200, vec![(100, 50)]),
            (250, vec![(100, 250)]),
        ] {
            let times = due(1000, |second| if second < 100 { 0 } else { part });
            assert_eq!(times, expected);
        }
        // Over 80 seconds: a quarter, and the rest once no more expires.
        let times = due(1000, |second| second.clamp(100, 180) * 4 - 400);
        assert_eq!(times, [(163, 250), (177, 50)]);
    }

    #[test]
    fn little_stays_while_users_write() {
        let mut tree = Tree::default();
        let expired = |_| Ok(249);
        assert_eq!(tree.due_permille(expired, 5000, false).unwrap(), None);
        assert_eq!(tree.due_permille(expired, 5000, true).unwrap(), Some(50));
        let unreadable = |_| Err(Error::internal("a node"));
        assert!(tree.due_permille(unreadable, 5000, true).is_err());
    }

    #[test]
    fn a_tree_that_stays_due_rests_longer_and_longer() {
        let mut tree = Tree::default();
        let mut rest = || {
            tree.asked(7);
            (tree.rests_until_ns - 7) / LOOK_NS
        };
        assert_eq!([rest(), rest(), rest()], [10, 20, 40]);
        assert_eq!((0..20).map(|_| rest()).last(), Some(3600));
    }
}
