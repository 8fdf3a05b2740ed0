//! What follows on a failure: a rest, and without which windows rounds go on until those are tried again.

use terrapin_base::{KeyspaceId, Lsn};

use super::round::Part;
use super::{Asked, Schedule};

/// A rest after a failure.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub until_ns: u64,
    /// What was asked for: who asks for more, or again, ends it.
    pub asked: Asked,
    /// Where windows were left out, how many: others end it.
    pub aside: Option<usize>,
}

impl Rest {
    /// Whether there is reason not to wait for its end.
    pub fn is_broken(self, schedule: &Schedule) -> bool {
        let sealed = schedule.sealed_count();
        schedule.asked() > self.asked || self.aside.is_some_and(|aside| aside != sealed)
    }
}

/// Sealed windows that could not be merged.
#[derive(Default)]
pub(super) struct Aside {
    /// By their cuts.
    windows: Vec<(KeyspaceId, Lsn)>,
    /// When they are tried again, unless somebody asks for more than was asked for, or again.
    retry_ns: u64,
    asked: Asked,
}

impl Aside {
    /// None of them: rounds merge all there is.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.windows.len()
    }

    /// A part could not be merged.
    pub fn add(&mut self, id: KeyspaceId, cut: Lsn) {
        self.windows.push((id, cut));
    }

    /// Makes its windows the last of a round's parts, and no parts of it while it is too early for that.
    pub fn arrange(&mut self, parts: &mut Vec<Part>, now_ns: u64, asked: Asked) {
        let name = |part: &Part| Some((part.keyspace.id, part.sealed.as_ref()?.cut));
        self.windows
            .retain(|window| parts.iter().any(|part| name(part) == Some(*window)));
        let is_aside = |part: &Part| name(part).is_some_and(|name| self.windows.contains(&name));
        if now_ns < self.retry_ns && asked <= self.asked {
            parts.retain(|part| !is_aside(part));
        } else {
            parts.sort_by_key(is_aside);
            self.windows.clear();
        }
    }

    /// They are tried again after that rest, which others need not wait for.
    pub fn after(&mut self, rest: Rest) -> Rest {
        (self.retry_ns, self.asked) = (rest.until_ns, rest.asked);
        self.rest()
    }

    /// What is left of their rest.
    pub fn rest(&self) -> Rest {
        Rest {
            until_ns: self.retry_ns,
            asked: self.asked,
            aside: Some(self.windows.len()),
        }
    }
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
}
