//! Collecting of separated values while nobody writes.
//!
//! Each merge collects as much as its writes ask for. When writes stop, dead values may take more
//! than the accepted space, and no merge follows. The coordinator notes such keyspaces after each
//! checkpoint. After a second without a checkpoint it collects them, a stretch at a time, each in a
//! checkpoint of its own. A memtable that is sealed meanwhile comes first.

use std::collections::BTreeSet;

use terrapin_base::KeyspaceId;

use super::Coordinator;
use crate::checkpoint::outcome::Part;
use crate::engine::compactions::{KeySpan, Stretches, Work};
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;

/// Time without a checkpoint after which garbage is collected, in nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;

/// Keyspaces whose dead values take more space than is accepted.
#[derive(Default)]
pub(super) struct Garbage {
    keyspaces: BTreeSet<KeyspaceId>,
    /// When collecting may begin.
    at_ns: u64,
}

impl Garbage {
    /// The garbage that an earlier process left.
    pub fn found(core: &Core) -> Self {
        let state = core.state.load();
        let keyspaces = state.keyspaces.iter();
        Garbage {
            keyspaces: keyspaces
                .filter(|keyspace| has_garbage(core, keyspace))
                .map(|keyspace| keyspace.id)
                .collect(),
            at_ns: core.env.now_ns().saturating_add(QUIET_NS),
        }
    }

    /// When the next collecting is due, if any is.
    pub fn due_ns(&self) -> Option<u64> {
        (!self.keyspaces.is_empty()).then_some(self.at_ns)
    }

    /// Asks for the next collecting, if it is due now.
    pub fn ask(&mut self, core: &Core) {
        let now_ns = core.env.now_ns();
        let Some(&keyspace) = self.keyspaces.first() else {
            return;
        };
        if now_ns < self.at_ns {
            return;
        }
        let span = KeySpan::default();
        let stretches = Stretches {
            keyspace,
            span,
            work: Work::Garbage,
        };
        match !core.schedule.disk_is_full() && core.compactions.ask(stretches) {
            true => _ = self.keyspaces.pop_first(),
            false => self.at_ns = now_ns.saturating_add(QUIET_NS),
        }
    }
}

fn has_garbage(core: &Core, keyspace: &KeyspaceState) -> bool {
    let options = core.settings.merge_of(&keyspace.options, false);
    let collects = keyspace.structure.collects();
    collects.is_some_and(|collects| collects.has_garbage(&keyspace.version, &options))
}

impl Coordinator {
    /// Notes which keyspaces of a checkpoint have garbage now.
    pub(super) fn take_note_of_garbage(&mut self, parts: &[Part]) {
        let core = &self.core;
        let state = core.state.load();
        for part in parts {
            let id = part.keyspace.id;
            // What could not be collected waits for the next merge.
            let is_stuck = part.sealed.is_none()
                && part
                    .merged
                    .as_ref()
                    .is_some_and(|merged| merged.root() == part.keyspace.version.root());
            let keyspace = state.keyspaces.get(id).filter(|_| !is_stuck);
            match keyspace.is_some_and(|keyspace| has_garbage(core, keyspace)) {
                true => self.garbage.keyspaces.insert(id),
                false => self.garbage.keyspaces.remove(&id),
            };
        }
        if parts.iter().any(|part| part.sealed.is_some()) {
            self.garbage.at_ns = core.env.now_ns().saturating_add(QUIET_NS);
        }
    }
}
