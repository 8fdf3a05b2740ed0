//! [`Expiry`]: the job of databases with deadlines. Each second it
//!
//! - notes the last now in the log, if a view took a later one since ([`Core::note_now`]), so that
//!   what a view saw expired stays expired after a restart with the wall clock set back;
//! - asks for the compaction of a tree of which a quarter has expired.
//!
//! It sleeps until the first write with a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Result, Step};
use terrapin_wal::Append;

use crate::engine::compactions::{KeySpan, Stretches};
use crate::engine::core::Core;
use crate::log_record::format::{NOW, now_payload};

/// The time between two looks, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The least time between two compactions of one keyspace, in nanoseconds: an estimate may stay
/// above the truth.
const REST_NS: u64 = 10 * LOOK_NS;
/// The expired share of a tree from which on it is compacted, in thousandths.
const EXPIRED_PERMILLE: u64 = 250;

/// The job. It ends with the schedule.
pub(crate) struct Expiry {
    core: Arc<Core>,
    /// When each keyspace that was compacted may be compacted again, on the environment's clock.
    rests: BTreeMap<KeyspaceId, u64>,
}

impl Expiry {
    /// Builds the job for a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Expiry {
            core: core.clone(),
            rests: BTreeMap::new(),
        })
    }

    /// Asks for the compaction of the first tree that is due.
    fn look(&mut self) {
        let core = self.core.clone();
        if core.compactions.is_any_asked() || core.schedule.disk_is_full() {
            return;
        }
        // Nobody sees what this finds. So it is no now that others may not precede.
        let now_ms = core.env.wall_ms().max(core.clock.last());
        for keyspace in core.state.load_full().keyspaces.iter() {
            let Some(compacts) = keyspace.structure.compacts() else {
                continue;
            };
            // A read that needs an unreadable node reports the error.
            let expired = compacts.expired_permille(&keyspace.version, now_ms);
            if expired.unwrap_or(0) < EXPIRED_PERMILLE {
                continue;
            }
            let now_ns = core.env.now_ns();
            let rests_until = self.rests.get(&keyspace.id).copied().unwrap_or(0);
            if now_ns < rests_until {
                continue;
            }
            let all = Stretches {
                keyspace: keyspace.id,
                span: KeySpan::default(),
                collects: false,
            };
            if core.compactions.ask(all) {
                core.counters.expiry_compactions.add(1);
                self.rests.retain(|_, until| now_ns < *until);
                self.rests
                    .insert(keyspace.id, now_ns.saturating_add(REST_NS));
                core.schedule.work().notify();
            }
            return;
        }
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
        if let Append::Done(appended) = log.try_append(NOW, &[&now_payload(now_ms)])? {
            log.publish(&appended);
            self.clock.noted(now_ms);
        }
        Ok(())
    }
}
