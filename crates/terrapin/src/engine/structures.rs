//! [`Structures`]: the structures that this build opens, by number.
//!
//! `MAKERS` lists what a release makes at open. Tests may register further ones
//! (`Options::structure_for_tests`). A keyspace whose structure is not here cannot be opened, and
//! the open says which one it is.

use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, Result};
use terrapin_betree::{BeTree, BeTreeParams, Buffers};
use terrapin_hashtrie::{HashTrie, HashTrieParams};
use terrapin_inplace::{InPlace, InPlaceParams};
use terrapin_structure::{Structure, StructureId};
use terrapin_valuelog::Separating;

use crate::types::options::KeyspaceOptions;
use crate::types::structures::{StructureMaker, StructureParts};

/// The structures of a release.
const MAKERS: [StructureMaker; 4] = [leveled, tiered, in_place, hashed];

fn leveled(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    turtle_tree(parts, Buffers::Leveled)
}

fn tiered(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    turtle_tree(parts, Buffers::Tiered)
}

fn turtle_tree(parts: &StructureParts<'_>, buffers: Buffers) -> Arc<dyn Structure> {
    let mut params = BeTreeParams::new(parts.budget.clone());
    params.fanout = parts.fanout.unwrap_or(params.fanout);
    params.buffers = buffers;
    BeTree::new(parts.store.clone(), params)
}

/// A lazy-trie, whose keys are order keys (`types::key_form`).
fn hashed(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    HashTrie::new(
        parts.store.clone(),
        HashTrieParams::new(parts.budget.clone()),
    )
}

fn in_place(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    InPlace::new(
        parts.store.clone(),
        InPlaceParams::new(parts.budget.clone()),
    )
}

/// The structures of an open database.
pub(crate) struct Structures {
    all: Vec<Arc<dyn Structure>>,
    of_runs: Arc<dyn Structure>,
    of_ingests: Arc<dyn Structure>,
}

impl Structures {
    /// Makes the structures of a release, and those of `further` makers. Fails with
    /// `InvalidArgument` if two have one number.
    pub fn new(parts: &StructureParts<'_>, further: &[StructureMaker]) -> Result<Self> {
        let makers = MAKERS.iter().chain(further);
        let places = leveled(parts);
        let separating = |make: &StructureMaker| -> Arc<dyn Structure> {
            let (store, budget) = (parts.store.clone(), parts.budget.clone());
            Separating::new(make(parts), places.clone(), store, budget)
        };
        let all: Vec<_> = makers.map(separating).collect();
        for (at, structure) in all.iter().enumerate() {
            if all[..at].iter().any(|other| other.id() == structure.id()) {
                let error = Error::invalid("two structures have the same number");
                return Err(error.with("structure", structure.id()));
            }
        }
        // A structure of a test writes the runs if it can.
        let mut first = all[MAKERS.len()..].iter().chain(&all);
        let writes_runs = first.find(|structure| structure.merges_privately());
        let of_runs = writes_runs.cloned().ok_or_else(|| {
            Error::internal("no structure writes the runs that replace memtables of views")
        })?;
        let ingests = all.iter().find(|structure| structure.ingests().is_some());
        let of_ingests = ingests
            .cloned()
            .ok_or_else(|| Error::internal("no structure takes in sorted records"))?;
        Ok(Structures {
            all,
            of_runs,
            of_ingests,
        })
    }

    /// The structure of a number. Fails with `Unsupported` if this build does not have it.
    pub fn get(&self, id: StructureId) -> Result<&Arc<dyn Structure>> {
        let found = self.all.iter().find(|structure| structure.id() == id);
        found.ok_or_else(|| {
            let message = "this build does not have the keyspace's structure: use the version \
                           that created the keyspace, or a later one";
            Error::new(ErrorKind::Unsupported, message).with("structure", id)
        })
    }

    /// The structure of changed options. Fails with `InvalidArgument` if a keyspace cannot change
    /// to it, and with `Unsupported` if this build does not have it.
    pub fn of_change(
        &self,
        before: &KeyspaceOptions,
        next: &KeyspaceOptions,
    ) -> Result<&Arc<dyn Structure>> {
        let (from, to) = (before.structure.id(), next.structure.id());
        let structure = self.get(to)?;
        if from == to || structure.adopts(from) {
            return Ok(structure);
        }
        let message = "the keyspace cannot change to this structure: create another keyspace and \
                       copy the records";
        let error = Error::invalid(message).with("structure", before.structure);
        Err(error.with("requested", next.structure))
    }

    /// The structure of the sorted runs that replace memtables of held views.
    pub fn of_runs(&self) -> &Arc<dyn Structure> {
        &self.of_runs
    }

    /// A structure that takes in sorted records, for keyspaces of structures that do not.
    pub fn of_ingests(&self) -> &Arc<dyn Structure> {
        &self.of_ingests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn an_unknown_number_is_refused_by_name_and_a_number_is_given_once() {
        let (database, _sim) = Options::small().open_simulated();
        let core = database.core();
        let structures = &core.structures;
        let leveled = structures.get(StructureId::LEVELED).unwrap();
        assert!(leveled.merges_privately());
        let error = structures.get(StructureId(9)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("unknown (9)"), "{error}");
        let parts = StructureParts {
            store: &core.store,
            budget: &core.budget,
            fanout: None,
        };
        let twice = Structures::new(&parts, &[super::leveled]).err().unwrap();
        assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
    }
}
