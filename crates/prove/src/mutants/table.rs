//! The mutants: what each breaks, where, and what must notice it.

use super::checks;
use super::script::Script;

/// A deliberate breakage of the engine.
pub struct Mutant {
    /// What [`terrapin_base::mutant::active`] is asked for.
    pub number: u32,
    /// What it does wrong.
    pub name: &'static str,
    /// The file in which it does.
    pub place: &'static str,
    /// The promise or invariant that it breaks.
    pub breaks: &'static str,
    /// What must notice it.
    pub script: Script,
}

/// Every mutant there is.
pub const TABLE: &[Mutant] = &[
    Mutant {
        number: 1,
        name: "the log's segments are not synced",
        place: "crates/wal/src/drain.rs",
        breaks: "D2, Sync durability: what was acknowledged as synced survives a power cut",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 2,
        name: "a segment gets its name before its header is synced",
        place: "crates/wal/src/segments.rs",
        breaks: "D6: a named segment has a durable header",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 3,
        name: "the directory is not synced after a segment got its name",
        place: "crates/wal/src/segments.rs",
        breaks: "Sync durability: a synced record's segment is found after a power cut",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 4,
        name: "the directory is not synced after a segment lost its name",
        place: "crates/wal/src/segments.rs",
        breaks: "D3: a file is written again only when its old name is gone for good",
        script: Script::Crash {
            seeds: 2000,
            operations: 600,
        },
    },
    Mutant {
        number: 5,
        name: "the log is trimmed one segment too early",
        place: "crates/wal/src/segments.rs",
        breaks: "D3: the log is trimmed below the smallest applied LSN only",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 6,
        name: "recovery keeps the incarnation",
        place: "crates/wal/src/recovery.rs",
        breaks: "D6: bytes of an earlier life never count again",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 7,
        name: "what was accepted from the ring is not copied into segments",
        place: "crates/wal/src/recovery.rs",
        breaks: "D6: a second recovery finds what the first one found",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 8,
        name: "a log record's checksum does not cover its payload",
        place: "crates/wal/src/format.rs",
        breaks: "D8: a torn tail is cut",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 9,
        name: "no marks are written",
        place: "crates/wal/src/log.rs",
        breaks: "a bad record below what was synced is corruption, and is refused",
        script: Script::Check("damage of a synced log record", checks::damaged_log),
    },
    Mutant {
        number: 10,
        name: "a bad record below the highest mark is taken for the torn tail",
        place: "crates/wal/src/recovery.rs",
        breaks: "a bad record below what was synced is corruption, and is refused",
        script: Script::Check("damage of a synced log record", checks::damaged_log),
    },
    Mutant {
        number: 11,
        name: "pages are not synced before the first slot is written",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D2: pages are durable before a slot leads to them",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 12,
        name: "the log is not synced through the cut before the slots are written",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D3: no applied LSN exceeds what was synced",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 13,
        name: "pins do not keep pages",
        place: "crates/pages/src/space/live.rs",
        breaks: "D5: space is reused when no older view is left",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 14,
        name: "of a batch, only the first keyspace's operations are replayed",
        place: "crates/terrapin/src/recovery.rs",
        breaks: "D7: a batch is there whole or not at all, across keyspaces",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 15,
        name: "a Sync write does not wait for the sync",
        place: "crates/terrapin/src/write.rs",
        breaks: "Sync durability: on stable storage before the call returns",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 16,
        name: "a snapshot reads the newest records of its windows",
        place: "crates/terrapin/src/snapshot.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 17,
        name: "reads do not look into the sealed window",
        place: "crates/terrapin/src/read.rs",
        breaks: "a get sees the newest published write",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 18,
        name: "the drop of a keyspace is not in the log",
        place: "crates/terrapin/src/schema.rs",
        breaks: "D7: a dropped keyspace does not come back",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 19,
        name: "where two runs have a key, a merge takes the older",
        place: "crates/structure/src/merge.rs",
        breaks: "a get sees the newest published write",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 20,
        name: "deletes vanish above the leaves",
        place: "crates/betree/src/merge/write.rs",
        breaks: "no key returns whose delete was made",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 21,
        name: "what was flushed down counts on in the buffer",
        place: "crates/betree/src/merge/frame.rs",
        breaks: "live ranges say what of a segment still counts",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 22,
        name: "a filter is built without one key",
        place: "crates/pages/src/group/build.rs",
        breaks: "a filter never denies a key that is there",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 23,
        name: "the search in a group's index takes the block before a separator that equals the key",
        place: "crates/pages/src/group/index.rs",
        breaks: "a key is looked for in the only block that may hold it",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 24,
        name: "the search in a block leaves out the last of several candidates",
        place: "crates/pages/src/block/decode.rs",
        breaks: "a key that is in its block is found",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn numbers_in(directory: &Path, found: &mut Vec<(u32, String)>) {
        for entry in fs::read_dir(directory).expect("the sources") {
            let path = entry.expect("the sources").path();
            if path.is_dir() {
                numbers_in(&path, found);
                continue;
            }
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            for rest in text.split("mutant::active(").skip(1) {
                let number = rest.split(')').next().and_then(|n| n.parse().ok());
                found.extend(number.map(|n| (n, path.display().to_string())));
            }
        }
    }

    #[test]
    fn every_mutant_stands_where_the_table_says_and_nowhere_else() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for entry in fs::read_dir(&crates).expect("the crates") {
            let path = entry.expect("the crates").path();
            if !path.ends_with("prove") && path.join("src").is_dir() {
                numbers_in(&path.join("src"), &mut found);
            }
        }
        let mut numbers = BTreeSet::new();
        for mutant in TABLE {
            assert!(numbers.insert(mutant.number), "{} twice", mutant.number);
            let places: Vec<_> = found.iter().filter(|(n, _)| *n == mutant.number).collect();
            assert!(!places.is_empty(), "mutant {} is nowhere", mutant.number);
            let place = mutant
                .place
                .strip_prefix("crates/")
                .expect("a crate's file");
            for (_, path) in places {
                assert!(path.ends_with(place), "mutant {}: {path}", mutant.number);
            }
        }
        for (number, path) in found {
            assert!(
                numbers.contains(&number),
                "{path}: mutant {number} is not in the table"
            );
        }
    }
}
