//! What follows on a failure: a rest, and without which memtables checkpoints go on until those are
//! tried again.

use terrapin_base::{KeyspaceId, Lsn};

use super::outcome::Part;
use crate::engine::schedule::{Asked, Schedule};

/// A rest after a failure.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub until_ns: u64,
    /// What was asked for: who asks for more, or again, ends it.
    pub asked: Asked,
    /// Where memtables were left out: others end it.
    pub aside: Option<LeftOut>,
}

/// What was left out of a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct LeftOut {
    /// So many memtables.
    memtables: usize,
    /// [`Schedule::seals`] as the checkpoint knows it.
    seals: u64,
}

impl Rest {
    /// Whether there is reason not to wait for its end.
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
    /// By their cuts.
    memtables: Vec<(KeyspaceId, Lsn)>,
    /// When they are tried again, unless somebody asks for more than was asked for, or again.
    retry_ns: u64,
    asked: Asked,
}

impl Aside {
    /// None of them: checkpoints merge all there is.
    pub fn is_empty(&self) -> bool {
        self.memtables.is_empty()
    }

    /// The keyspaces that they are of, each of which has one.
    pub fn keyspaces(&self) -> impl ExactSizeIterator<Item = KeyspaceId> {
        self.memtables.iter().map(|(id, _)| *id)
    }

    /// Whether that of a part is among them.
    pub fn has(&self, part: &Part) -> bool {
        name(part).is_some_and(|name| self.memtables.contains(&name))
    }

    /// A part could not be merged.
    pub fn add(&mut self, id: KeyspaceId, seal: Lsn) {
        self.memtables.push((id, seal));
    }

    /// Makes its memtables the last of a checkpoint's parts, and no parts of it while it is too
    /// early for that. [`Aside::tried`] follows.
    pub fn arrange(&mut self, parts: &mut Vec<Part>, now_ns: u64, asked: Asked) {
        self.memtables
            .retain(|memtable| parts.iter().any(|part| name(part) == Some(*memtable)));
        if now_ns < self.retry_ns && asked <= self.asked {
            parts.retain(|part| !self.has(part));
        } else {
            parts.sort_by_key(|part| self.has(part));
        }
    }

    /// Those that are parts of a checkpoint are none of its memtables any more, unless they are
    /// added again.
    pub fn tried(&mut self, parts: &[Part]) {
        self.memtables
            .retain(|memtable| !parts.iter().any(|part| name(part) == Some(*memtable)));
    }

    /// They are tried again after that rest, which others need not wait for. The checkpoint knows
    /// of so many [`Schedule::seals`].
    pub fn after(&mut self, rest: Rest, seals: u64) -> Rest {
        (self.retry_ns, self.asked) = (rest.until_ns, rest.asked);
        self.rest(seals)
    }

    /// What is left of their rest.
    pub fn rest(&self, seals: u64) -> Rest {
        let memtables = self.memtables.len();
        Rest {
            until_ns: self.retry_ns,
            asked: self.asked,
            aside: Some(LeftOut { memtables, seals }),
        }
    }
}

/// A sealed memtable, by its seal.
fn name(part: &Part) -> Option<(KeyspaceId, Lsn)> {
    Some((part.keyspace.id, part.sealed.as_ref()?.seal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_what_was_asked_for_before_ends_a_rest() {
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

    /// One memtable was cleared and another sealed before anyone looked: as many as were left out,
    /// but not those.
    #[test]
    fn a_memtable_that_is_sealed_ends_a_rest_though_another_went() {
        let schedule = Schedule::default();
        schedule.sealed(1);
        let aside = Aside {
            memtables: vec![(KeyspaceId(1), Lsn(1))],
            retry_ns: u64::MAX,
            asked: schedule.asked(),
        };
        let rest = aside.rest(schedule.seals());
        assert!(!rest.is_broken(&schedule));
        schedule.unsealed(1);
        schedule.sealed(1);
        assert!(rest.is_broken(&schedule));
    }
}
