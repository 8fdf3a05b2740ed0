//! Which structure each keyspace of a store under test has on disk.

use std::sync::Arc;

use crate::tail::Tail;
use terrapin::verify::VerifyOptions;
use terrapin::{Options, StructureId, StructureKind, StructureParts};
use terrapin_base::checksum::hash64;
use terrapin_plain::{Plain, PlainParams};
use terrapin_structure::Structure;

use crate::random::Random;

/// Which structure each keyspace has. It may change no answer, like any other option. It is fixed
/// for the life of a store, but for those that [change](Structures::Changing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Structures {
    /// All have the TurtleTree.
    #[default]
    Leveled,
    /// All have the plain structure, and so have the runs of held views.
    Plain,
    /// Some have the TurtleTree and some the plain structure, by their names and this seed. An odd
    /// seed also gives runs the plain structure.
    Mixed(u64),
    /// All have the page-grouped tree.
    InPlace,
    /// All have the TurtleTree with tiered buffers.
    Tiered,
    /// All have the TurtleTree, and its buffers are leveled or tiered, by a seed. They change with
    /// χ, and at checkpoints.
    Changing(u64),
    /// All have the plain structure without order: ranges are refused.
    WithoutOrder,
    /// All are hashed, and what needs order is refused.
    Hashed,
    /// Some are hashed and some have the TurtleTree, by their names and this seed. The subject
    /// answers ranges of hashed ones by sorting all of their records.
    SomeHashed(u64),
}

fn plain(parts: &StructureParts<'_>, is_ordered: bool, runs: bool) -> Arc<dyn Structure> {
    let params = PlainParams {
        is_ordered,
        merges_privately: runs,
        ..PlainParams::new(parts.budget.clone())
    };
    Plain::new(parts.store.clone(), params)
}

fn with_runs(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    plain(parts, true, true)
}

fn without_runs(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    plain(parts, true, false)
}

fn without_order(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    plain(parts, false, false)
}

impl Structures {
    /// Structures of a seed: a quarter of the stores have the TurtleTree only, another quarter
    /// tiered buffers, always or at times, and an eighth has the page-grouped tree.
    #[must_use]
    pub fn random(random: &mut Random) -> Self {
        match random.below(8) {
            0..2 => Structures::Leveled,
            2 => Structures::Plain,
            3 => Structures::InPlace,
            4 => Structures::SomeHashed(random.bits()),
            5 => Structures::Tiered,
            6 => Structures::Changing(random.bits()),
            _ => Structures::Mixed(random.bits()),
        }
    }

    /// The structure of a keyspace.
    #[must_use]
    pub fn of(self, keyspace: &str) -> StructureId {
        match self {
            Structures::Leveled => StructureId::LEVELED,
            Structures::InPlace => StructureId::IN_PLACE,
            Structures::Tiered => StructureId::TIERED,
            Structures::Changing(_) => self.after(keyspace, 0).unwrap_or_default(),
            Structures::Plain | Structures::WithoutOrder => StructureId::PLAIN,
            Structures::Hashed => StructureId::HASHED,
            Structures::SomeHashed(seed) => {
                let bits = Random::new(seed ^ hash64(keyspace.as_bytes())).bits();
                match bits % 4 {
                    0 => StructureId::LEVELED,
                    _ => StructureId::HASHED,
                }
            }
            Structures::Mixed(seed) => {
                let bits = Random::new(seed ^ hash64(keyspace.as_bytes())).bits();
                match bits % 2 {
                    0 => StructureId::LEVELED,
                    _ => StructureId::PLAIN,
                }
            }
        }
    }

    /// The structure to which a keyspace changes the nth time; `None` if it never does.
    #[must_use]
    pub fn after(self, keyspace: &str, changes: u64) -> Option<StructureId> {
        let Structures::Changing(seed) = self else {
            return None;
        };
        let bits = Random::new(seed ^ hash64(keyspace.as_bytes()) ^ changes << 32).bits();
        Some(match bits % 2 {
            0 => StructureId::LEVELED,
            _ => StructureId::TIERED,
        })
    }

    /// Whether a keyspace may have a structure.
    #[must_use]
    pub fn allow(self, keyspace: &str, structure: StructureKind) -> bool {
        match self {
            Structures::Changing(_) => {
                matches!(structure, StructureKind::Leveled | StructureKind::Tiered)
            }
            _ => structure == self.of(keyspace).into(),
        }
    }

    /// Whether ranges are answered.
    #[must_use]
    pub fn keep_order(self) -> bool {
        !matches!(self, Structures::WithoutOrder | Structures::Hashed)
    }

    /// Whether range deletes and pops of a keyspace are refused.
    #[must_use]
    pub fn refuse_spans(self, keyspace: &str) -> bool {
        !self.keep_order() || self.is_hashed(keyspace)
    }

    /// Whether a keyspace is hashed.
    #[must_use]
    pub fn is_hashed(self, keyspace: &str) -> bool {
        self.of(keyspace) == StructureId::HASHED
    }

    /// These structures, or the TurtleTree if some keyspaces refuse range deletes and pops. Stores
    /// that are compared with one another refuse the same calls.
    #[must_use]
    pub fn without_refusals(self) -> Self {
        match self {
            Structures::WithoutOrder | Structures::Hashed | Structures::SomeHashed(_) => {
                Structures::Leveled
            }
            other => other,
        }
    }

    /// The same structures on disk, with ranges.
    #[must_use]
    pub fn in_order(self) -> Self {
        match self {
            Structures::WithoutOrder => Structures::Plain,
            other => other,
        }
    }

    /// The options, with what these structures need.
    #[must_use]
    pub fn choose(self, options: Options) -> Options {
        let maker = match self {
            Structures::Leveled
            | Structures::InPlace
            | Structures::Tiered
            | Structures::Changing(_)
            | Structures::Hashed
            | Structures::SomeHashed(_) => without_runs,
            Structures::Plain => with_runs,
            Structures::Mixed(seed) if seed % 2 == 1 => with_runs,
            Structures::Mixed(_) => without_runs,
            Structures::WithoutOrder => without_order,
        };
        options
            .structure_for_tests(maker)
            .default_structure_for_tests(self.of("default"))
            .merge_operator(Tail)
            .default_operator_for_tests(Tail::NAME)
    }

    /// Options of a verification of any of these stores.
    #[must_use]
    pub fn verify_options() -> VerifyOptions {
        VerifyOptions::new().structure_for_tests(without_runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Configuration;
    use crate::operation::Answer;
    use crate::script::Script;
    use crate::simulated::Simulated;
    use crate::subject::Subject;

    #[test]
    fn keyspaces_have_their_structures_before_and_after_checkpoint_and_recovery() {
        for (structures, wanted) in [
            (Structures::Leveled, ["leveled", "leveled"]),
            (Structures::Plain, ["plain", "plain"]),
            (Structures::InPlace, ["inplace", "inplace"]),
            (Structures::Tiered, ["tiered", "tiered"]),
            (Structures::WithoutOrder, ["plain", "plain"]),
            (Structures::Hashed, ["hashed", "hashed"]),
            (Structures::SomeHashed(3), ["hashed", "leveled"]),
            (Structures::Mixed(21), ["leveled", "plain"]),
            (Structures::Mixed(16), ["plain", "leveled"]),
        ] {
            let configuration = Configuration {
                structures,
                ..Configuration::small()
            };
            let mut subject = Simulated::new("of a test", 1, configuration).unwrap();
            let operation = |line| {
                let script = Script::parse("a line", line).unwrap();
                script.steps.into_iter().map(|step| step.operation)
            };
            for line in ["create users", "checkpoint", "put a 1"] {
                for operation in operation(line) {
                    assert!(matches!(subject.apply(&operation), Answer::Done));
                }
                for crashes in [false, true] {
                    let listed = subject.database().unwrap().keyspaces().unwrap();
                    let own: Vec<_> = listed.iter().map(|k| k.structure).collect();
                    assert_eq!(own, wanted, "{structures:?} {line}");
                    if !crashes {
                        subject.crash(None);
                        subject.open().unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn a_mix_has_keyspaces_of_both_kinds_and_every_kind_is_drawn() {
        let mut random = Random::new(1);
        let drawn: Vec<_> = (0..64).map(|_| Structures::random(&mut random)).collect();
        for kind in [
            Structures::Leveled,
            Structures::Plain,
            Structures::InPlace,
            Structures::Tiered,
        ] {
            assert!(drawn.contains(&kind));
        }
        let kinds = |mix: &Structures| {
            let names = ["default", "users", "a/b", "log.2026"];
            let plain = names
                .iter()
                .filter(|name| mix.of(name) == StructureId::PLAIN);
            plain.count()
        };
        let mixed = drawn
            .iter()
            .filter(|mix| matches!(mix, Structures::Mixed(_)));
        let both = mixed.filter(|mix| (1..4).contains(&kinds(mix)));
        assert!(both.count() > 4);
        let changing = drawn
            .iter()
            .filter(|drawn| matches!(drawn, Structures::Changing(_)));
        assert!(changing.count() > 4);
    }
}
