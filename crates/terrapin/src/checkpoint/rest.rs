//! What follows a failure: a rest, and the memtables that checkpoints leave out until their retry.

use terrapin_base::{KeyspaceId, Lsn};

use super::outcome::Part;
use crate::engine::schedule::{Asked, Schedule};

/// A rest after a failure.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub until_ns: u64,
    /// The requests when the rest began. A further request ends the rest.
    pub asked: Asked,
    /// Set if memtables were left out. Any other sealed memtable ends the rest.
    pub aside: Option<LeftOut>,
}

/// The memtables that a checkpoint left out.
#[derive(Clone, Copy)]
pub(super) struct LeftOut {
    /// Number of memtables that were left out.
    memtables: usize,
    /// The value of [`Schedule::seals`] that the checkpoint saw.
    seals: u64,
}

impl Rest {
    /// A rest while ingests hold the keyspaces of all sealed memtables: `left.0` of them, when
    /// [`Schedule::seals`] was `left.1`.
    pub fn of_held(until_ns: u64, asked: Asked, left: (usize, u64)) -> Self {
        let (memtables, seals) = left;
        Rest {
            until_ns,
            asked,
            aside: Some(LeftOut { memtables, seals }),
        }
    }

    /// Whether there is a reason to end the rest early.
    pub fn is_broken(self, schedule: &Schedule) -> bool {
        let has_others = |left: LeftOut| {
            left.memtables != schedule.sealed_count() || left.seals != schedule.seals()
        };
        schedule.asked() > self.asked || self.aside.is_some_and(has_others)
    }
}

/// Sealed memtables that could not be merged.
#[derive(Default)]
pub(super) struct Aside {
    /// The memtables, by keyspace and seal.
    memtables: Vec<(KeyspaceId, Lsn)>,
    /// Time of the retry in nanoseconds. A further request causes an earlier one.
    retry_ns: u64,
    asked: Asked,
}

impl Aside {
    /// Whether there are none, so that checkpoints merge all memtables.
    pub fn is_empty(&self) -> bool {
        self.memtables.is_empty()
    }

    /// The keyspaces of these memtables. Each keyspace has one.
    pub fn keyspaces(&self) -> impl ExactSizeIterator<Item = KeyspaceId> {
        self.memtables.iter().map(|(id, _)| *id)
    }

    /// Whether the memtable of a part is among these.
    pub fn has(&self, part: &Part) -> bool {
        name(part).is_some_and(|name| self.memtables.contains(&name))
    }

    /// Adds the memtable of a part that could not be merged.
    pub fn add(&mut self, id: KeyspaceId, seal: Lsn) {
        self.memtables.push((id, seal));
    }

    /// Moves these memtables behind all other parts of a checkpoint, or removes them if it is too
    /// early for a retry. A call of [`Aside::tried`] follows.
    pub fn arrange(&mut self, parts: &mut Vec<Part>, now_ns: u64, asked: Asked) {
        self.memtables
            .retain(|memtable| parts.iter().any(|part| name(part) == Some(*memtable)));
        if now_ns < self.retry_ns && asked <= self.asked {
            parts.retain(|part| !self.has(part));
        } else {
            parts.sort_by_key(|part| self.has(part));
        }
    }

    /// Forgets those that are parts of a checkpoint. A part that fails again is added again.
    pub fn tried(&mut self, parts: &[Part]) {
        self.memtables
            .retain(|memtable| !parts.iter().any(|part| name(part) == Some(*memtable)));
    }

    /// Sets the retry after `rest`, for which other memtables need not wait. `seals` is the value
    /// of [`Schedule::seals`] that the checkpoint saw, and `held` the number of memtables that it
    /// left to ingests.
    pub fn after(&mut self, rest: Rest, seals: u64, held: usize) -> Rest {
        (self.retry_ns, self.asked) = (rest.until_ns, rest.asked);
        self.rest(seals, held)
    }

    /// The rest that is left.
    pub fn rest(&self, seals: u64, held: usize) -> Rest {
        let memtables = self.memtables.len() + held;
        Rest {
            until_ns: self.retry_ns,
            asked: self.asked,
            aside: Some(LeftOut { memtables, seals }),
        }
    }
}

/// The name of a sealed memtable: its keyspace and its seal.
fn name(part: &Part) -> Option<(KeyspaceId, Lsn)> {
    Some((part.keyspace.id, part.sealed.as_ref()?.seal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_request_of_a_waiting_caller_ends_a_rest() {
        let schedule = Schedule::default();
        schedule.ask(Lsn(5));
        let rest = Rest {
            until_ns: u64::MAX,
            asked: schedule.asked(),
            aside: None,
        };
        schedule.ask(Lsn(5));
        assert!(!rest.is_broken(&schedule));
        schedule.ask_again(Lsn(5));
        assert!(rest.is_broken(&schedule));
        let rest = Rest {
            asked: schedule.asked(),
            ..rest
        };
        assert!(!rest.is_broken(&schedule));
        schedule.ask(Lsn(6));
        assert!(rest.is_broken(&schedule));
    }

    /// One memtable was cleared and another one sealed in between. The number of sealed memtables
    /// is that of the left-out ones, but the set differs.
    #[test]
    fn a_sealed_memtable_ends_a_rest_even_if_another_one_went() {
        let schedule = Schedule::default();
        schedule.sealed(1);
        let aside = Aside {
            memtables: vec![(KeyspaceId(1), Lsn(1))],
            retry_ns: u64::MAX,
            asked: schedule.asked(),
        };
        let rest = aside.rest(schedule.seals(), 0);
        assert!(!rest.is_broken(&schedule));
        schedule.unsealed(1);
        schedule.sealed(1);
        assert!(rest.is_broken(&schedule));
    }
}
