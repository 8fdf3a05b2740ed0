//! The mutants: what each breaks, where, and which script must notice it.

mod backups;
mod conditions;
mod expiry;
mod hashtrie;
mod ingests;
mod inplace;
mod large;
mod log;
mod merges;
mod readers;
mod tiered;
mod transactions;
mod trees;
mod values;

use super::checks;
use super::script::Script;

/// A deliberate breakage of the engine.
pub struct Mutant {
    /// Its name in [`terrapin_base::mutant::NAMES`].
    pub name: &'static str,
    /// What the engine does wrong.
    pub does: &'static str,
    /// The file that asks for the mutant.
    pub file: &'static str,
    /// The promise or invariant that it breaks.
    pub breaks: &'static str,
    /// The script that must notice the mutant.
    pub script: Script,
}

/// Random runs of the model beside its oracle.
pub(super) const RANDOM: Script = Script::Random {
    seeds: 60,
    operations: 600,
};
/// Crash runs of the model.
pub(super) const CRASHES: Script = Script::Crash {
    seeds: 100,
    operations: 600,
};
/// Crash runs of the model on a disk that watches the protocol of checkpoints.
pub(super) const WATCHED: Script = Script::Watched {
    seeds: 60,
    operations: 600,
};
/// The failed calls of the layer `failed-calls`.
pub(super) const FAILED_CALLS: Script = Script::Layer {
    name: "failed-calls",
    units: 32,
};
/// The damaged media of the layer `media`.
pub(super) const MEDIA: Script = Script::Layer {
    name: "media",
    units: 40,
};

/// The number of mutants.
pub const COUNT: usize = log::MUTANTS.len()
    + trees::MUTANTS.len()
    + inplace::MUTANTS.len()
    + tiered::MUTANTS.len()
    + hashtrie::MUTANTS.len()
    + conditions::MUTANTS.len()
    + expiry::MUTANTS.len()
    + transactions::MUTANTS.len()
    + backups::MUTANTS.len()
    + merges::MUTANTS.len()
    + readers::MUTANTS.len()
    + ingests::MUTANTS.len()
    + values::MUTANTS.len()
    + large::MUTANTS.len()
    + ENGINE.len();

/// Every mutant.
pub fn table() -> impl Iterator<Item = &'static Mutant> {
    let tables = [
        log::MUTANTS,
        trees::MUTANTS,
        inplace::MUTANTS,
        tiered::MUTANTS,
        hashtrie::MUTANTS,
        conditions::MUTANTS,
        expiry::MUTANTS,
        merges::MUTANTS,
        transactions::MUTANTS,
        backups::MUTANTS,
        readers::MUTANTS,
        ingests::MUTANTS,
        values::MUTANTS,
        large::MUTANTS,
        ENGINE,
    ];
    tables.into_iter().flatten()
}

/// The mutants of the engine, of memtables and of the memory budget.
const ENGINE: &[Mutant] = &[
    Mutant {
        name: "commit-without-page-sync",
        does: "pages are not synced before the first slot is written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2: pages are durable before a slot refers to them",
        script: WATCHED,
    },
    Mutant {
        name: "commit-without-log-sync",
        does: "the log is not synced up to the boundary before the slots are written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D3: no applied LSN exceeds the synced LSN",
        script: CRASHES,
    },
    Mutant {
        name: "replay-first-keyspace-of-batch",
        does: "a replay applies only the operations of a batch's first keyspace",
        file: "crates/terrapin/src/open/recovery.rs",
        breaks: "D7: a batch exists whole or not at all, across keyspaces",
        script: CRASHES,
    },
    Mutant {
        name: "sync-write-without-wait",
        does: "a Sync write does not wait for the sync",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "Sync durability: a write is on stable storage before its call returns",
        script: CRASHES,
    },
    Mutant {
        name: "snapshot-reads-newest",
        does: "a snapshot reads the newest records of its memtables",
        file: "crates/terrapin/src/api/snapshot.rs",
        breaks: "a snapshot sees one moment",
        script: RANDOM,
    },
    Mutant {
        name: "reads-skip-sealed-memtable",
        does: "reads do not look into the sealed memtable",
        file: "crates/terrapin/src/read/mod.rs",
        breaks: "a get sees the newest published write",
        script: RANDOM,
    },
    Mutant {
        name: "checkpoint-forgets-range-deletes",
        does: "a merge brings no deletes for the keys that range deletes hide",
        file: "crates/terrapin/src/checkpoint/covered.rs",
        breaks: "a deleted key stays deleted",
        script: RANDOM,
    },
    Mutant {
        name: "erased-records-stay-cached",
        does: "the record cache keeps the records that a merge gives up unread",
        file: "crates/terrapin/src/checkpoint/input.rs",
        breaks: "a deleted key stays deleted",
        script: trees::SUBTREES,
    },
    Mutant {
        name: "separated-input-erases-nothing",
        does: "a merge that separates values keeps the records that it should erase",
        file: "crates/valuelog/src/separate/input.rs",
        breaks: "a deleted key stays deleted",
        script: Script::Conformance,
    },
    Mutant {
        name: "memtable-of-range-deletes-is-empty",
        does: "a memtable with range deletes and no keys counts as empty",
        file: "crates/memtable/src/memtable.rs",
        breaks: "D3: a trimmed record is in a tree",
        script: RANDOM,
    },
    Mutant {
        name: "newer-range-delete-hides-older-ones",
        does: "of range deletes that cover a key, a view sees the newest or none",
        file: "crates/memtable/src/fragments.rs",
        breaks: "a snapshot shows one moment",
        script: Script::Check(
            "a view between two range deletes",
            checks::range_deletes::between_two,
        ),
    },
    Mutant {
        name: "range-deletes-hide-newer-puts",
        does: "a range delete hides puts that are newer",
        file: "crates/memtable/src/memtable.rs",
        breaks: "the newest write of a key counts",
        script: RANDOM,
    },
    Mutant {
        name: "run-forgets-range-deletes",
        does: "a run of held views lacks its memtable's range deletes",
        file: "crates/terrapin/src/checkpoint/run_writer.rs",
        breaks: "a snapshot shows one moment",
        script: RANDOM,
    },
    Mutant {
        name: "hashed-range-in-hash-order",
        does: "ranges of hashed keyspaces answer, in the order of hashes",
        file: "crates/terrapin/src/api/keyspace.rs",
        breaks: "records come in the order of keys, or not at all",
        script: Script::Conformance,
    },
    Mutant {
        name: "range-shows-deleted-gap",
        does: "ranges do not jump over what range deletes hide in the tree",
        file: "crates/terrapin/src/read/iter.rs",
        breaks: "a deleted key stays deleted",
        script: RANDOM,
    },
    Mutant {
        name: "older-memtable-ignores-range-deletes",
        does: "ranges show keys of the sealed memtable that the active one's range deletes hide",
        file: "crates/terrapin/src/read/cover.rs",
        breaks: "a deleted key stays deleted",
        script: RANDOM,
    },
    Mutant {
        name: "drop-not-logged",
        does: "the drop of a keyspace is not in the log",
        file: "crates/terrapin/src/keyspaces/schema.rs",
        breaks: "D7: a dropped keyspace does not return",
        script: CRASHES,
    },
    Mutant {
        name: "commit-without-first-slot-sync",
        does: "the first slot is not synced before the second is written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2: one slot is sound at every moment",
        script: WATCHED,
    },
    Mutant {
        name: "commit-without-second-slot-sync",
        does: "the second slot is not synced before space is freed",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2, D5: space is freed once both slots hold the checkpoint",
        script: WATCHED,
    },
    Mutant {
        name: "commit-without-second-slot",
        does: "the second slot is not written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D1: a page that a slot reaches is not overwritten",
        script: WATCHED,
    },
    Mutant {
        name: "commit-slot-before-page-sync",
        does: "the first slot is written before the pages and the log are synced",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2: pages, log and slot become durable in this order",
        script: WATCHED,
    },
    Mutant {
        name: "commit-durable-before-first-slot-sync",
        does: "a checkpoint counts as durable once its first slot is written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2, D5: space is freed and the log trimmed once both slots are durable",
        script: WATCHED,
    },
    Mutant {
        name: "log-trimmed-to-catalog-lsn",
        does: "the log is trimmed to the catalog's applied LSN, without regard to keyspaces",
        file: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D3: the log is trimmed below the smallest applied LSN only",
        script: CRASHES,
    },
    Mutant {
        name: "log-end-checked-against-applied-only",
        does: "an open compares the log's end with the catalog's applied LSN only",
        file: "crates/terrapin/src/open/files.rs",
        breaks: "D3, D7: the log reaches the clear that a checkpoint relies on",
        script: Script::Check(
            "writes that are late for a clear",
            checks::lives::late_writes,
        ),
    },
    Mutant {
        name: "merge-ignores-keyspace-options",
        does: "merges use the database's options, whatever a keyspace has",
        file: "crates/terrapin/src/types/options/keyspace.rs",
        breaks: "a keyspace's own options count for its merges",
        script: Script::Check(
            "filters and compression of a keyspace",
            checks::lives::own_options,
        ),
    },
    Mutant {
        name: "written-keyspace-counts-as-quiet",
        does: "a keyspace with a write under way counts as quiet",
        file: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: "D3: only a keyspace with an empty memtable counts as applied up to the boundary",
        script: CRASHES,
    },
    Mutant {
        name: "catalog-pages-free-after-open",
        does: "the catalog's own pages count as free after an open",
        file: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D4: only space that no walk from the superblock reaches is free",
        script: CRASHES,
    },
    Mutant {
        name: "batch-published-before-memtables",
        does: "a batch is published before it is in its memtables",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "D7: a batch is visible whole or not at all",
        script: Script::Check(
            "batches beside a reading thread",
            checks::views::whole_batches,
        ),
    },
    Mutant {
        name: "writer-takes-memtable-before-wait",
        does: "a writer chooses its memtable before it waits",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "a write enters the memtable that owns its LSN",
        script: RANDOM,
    },
    Mutant {
        name: "run-shows-later-writes",
        does: "a run shows a view writes of after its moment",
        file: "crates/terrapin/src/run/chain.rs",
        breaks: "a snapshot sees one moment",
        script: RANDOM,
    },
    Mutant {
        name: "run-pages-freed-at-once",
        does: "the pages of a run are freed at once",
        file: "crates/terrapin/src/checkpoint/run_writer.rs",
        breaks: "D5: a page that a view reaches is not reused",
        script: RANDOM,
    },
    Mutant {
        name: "clear-keeps-active-memtable",
        does: "a clear keeps the active memtable",
        file: "crates/terrapin/src/keyspaces/schema.rs",
        breaks: "D7: a clear ends the active memtable",
        script: RANDOM,
    },
    Mutant {
        name: "keyspace-number-reused",
        does: "a new keyspace gets the number of a dropped one",
        file: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D7: the numbers of keyspaces are never reused",
        script: Script::Crash {
            seeds: 400,
            operations: 600,
        },
    },
    Mutant {
        name: "schema-changes-replayed-twice",
        does: "a replay applies changes of keyspaces that the catalog has already",
        file: "crates/terrapin/src/open/recovery.rs",
        breaks: "D7: a replay skips changes below the catalog's applied LSN",
        script: Script::Check(
            "a record flushed after a clear",
            checks::lives::flushed_after_clear,
        ),
    },
    Mutant {
        name: "read-only-opens-for-writing",
        does: "a read-only open opens the pages for writing",
        file: "crates/terrapin/src/open/files.rs",
        breaks: "D11: read-only opens write nothing",
        script: RANDOM,
    },
    Mutant {
        name: "flush-forgets-unlogged-memtables",
        does: "a flush forgets which memtables hold writes outside of the log",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "a flush makes writes of durability None durable",
        script: CRASHES,
    },
    Mutant {
        name: "merge-memory-never-returned",
        does: "the memory charge of a merge is never released",
        file: "crates/base/src/budget.rs",
        breaks: "charges equal the memory in use",
        script: RANDOM,
    },
    Mutant {
        name: "earlier-operation-of-batch-wins",
        does: "of two operations of a batch on one key, the earlier wins",
        file: "crates/terrapin/src/log_record/format.rs",
        breaks: "the operations of a batch apply in order",
        script: Script::Conformance,
    },
    Mutant {
        name: "earlier-version-of-lsn-wins",
        does: "of two operations of an unlogged batch on one key, the earlier wins",
        file: "crates/memtable/src/leaf.rs",
        breaks: "the operations of a batch apply in order",
        script: Script::Conformance,
    },
    Mutant {
        name: "operation-lsn-past-record",
        does: "the last operations of a long batch get LSNs at or above the end of its record",
        file: "crates/terrapin/src/log_record/format.rs",
        breaks: "D7: a batch is visible whole or not at all; bounds lie between records",
        script: Script::Conformance,
    },
    Mutant {
        name: "view-sees-record-at-bound",
        does: "a view sees the record at its bound, too",
        file: "crates/memtable/src/leaf.rs",
        breaks: "a snapshot sees one moment",
        script: RANDOM,
    },
    Mutant {
        name: "applied-lsn-past-seal",
        does: "the catalog's applied LSN is one past the boundary",
        file: "crates/terrapin/src/memory/seal.rs",
        breaks: "D3: a replay skips no record that no tree holds",
        script: CRASHES,
    },
    Mutant {
        name: "replay-checkpoint-lowers-lsn",
        does: "a checkpoint during a replay lowers applied LSNs to the replay's position",
        file: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: "D3: no record is replayed over newer ones of a tree",
        script: Script::Check(
            "a kill after a checkpoint during a replay",
            checks::lives::checkpoint_in_replay,
        ),
    },
    Mutant {
        name: "recovery-target-asks-nobody",
        does: "a log that is too long for the recovery target begins no checkpoint",
        file: "crates/terrapin/src/checkpoint/job/freeze.rs",
        breaks: "a kill leaves no more to replay than the target allows (decision 0075)",
        script: Script::Check("what a kill leaves to replay", checks::lives::replay_target),
    },
    Mutant {
        name: "recovery-target-holds-nobody",
        does: "writes do not wait for the checkpoint that the recovery target needs",
        file: "crates/terrapin/src/write/pressure.rs",
        breaks: "a kill leaves no more to replay than the target allows (decision 0075)",
        script: Script::Check("what a kill leaves to replay", checks::lives::replay_target),
    },
    Mutant {
        name: "late-write-left-out-of-log",
        does: "a checkpoint does not sync the clear that removed the memtable of a late write",
        file: "crates/terrapin/src/checkpoint/job.rs",
        breaks: "D2, D7: durable writes are a prefix of the commits, with whole batches",
        script: Script::Check(
            "writes that are late for a clear",
            checks::lives::late_writes,
        ),
    },
    Mutant {
        name: "compaction-ignores-room",
        does: "a stretch is compacted without a check of the room",
        file: "crates/terrapin/src/disk_space/room.rs",
        breaks: "D10: puts are refused only if acknowledged writes need the room",
        script: Script::Check(
            "puts after ranges on a nearly full disk",
            checks::views::room_for_puts,
        ),
    },
    Mutant {
        name: "old-view-pays-for-compaction",
        does: "ranges over an older tree pay for a compaction",
        file: "crates/terrapin/src/checkpoint/compaction.rs",
        breaks: "a tree is compacted for ranges that it makes cheaper (decision 0018)",
        script: Script::Check("ranges over an old snapshot", checks::views::old_views),
    },
    Mutant {
        name: "any-view-gets-run",
        does: "a run serves views of moments that it does not hold",
        file: "crates/terrapin/src/checkpoint/held.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Check("a snapshot beside a checkpoint", checks::views::late_views),
    },
    Mutant {
        name: "older-run-of-view-wins",
        does: "the older of a view's runs wins",
        file: "crates/terrapin/src/read/mod.rs",
        breaks: "of equal keys, the newest record wins",
        script: Script::Random {
            seeds: 60,
            operations: 4000,
        },
    },
    Mutant {
        name: "chain-shows-later-writes",
        does: "a long version chain shows writes of after the view's moment",
        file: "crates/terrapin/src/run/chain.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Conformance,
    },
    Mutant {
        name: "keyspace-opened-with-another-structure",
        does: "an open reads the root of every keyspace with the first structure",
        file: "crates/terrapin/src/open/base.rs",
        breaks: "a keyspace keeps the structure with which it was created",
        script: Script::Conformance,
    },
    Mutant {
        name: "replayed-create-forgets-structure",
        does: "a keyspace that the log creates again gets the first structure",
        file: "crates/terrapin/src/open/recovery.rs",
        breaks: "a keyspace keeps the structure with which it was created",
        script: CRASHES,
    },
    Mutant {
        name: "multi-get-forgets-last-key",
        does: "what a structure found for the last of many keys is forgotten",
        file: "crates/terrapin/src/read/resolve.rs",
        breaks: "a read of many keys answers each like a read of one",
        script: Script::Conformance,
    },
    Mutant {
        name: "range-shows-handles",
        does: "a range shows the handles of separated values in place of the values",
        file: "crates/terrapin/src/read/resolve.rs",
        breaks: "scans return the values that were put",
        script: Script::Conformance,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use terrapin_base::mutant::NAMES;

    use super::*;

    /// Collects each name that a file below the directory asks for, with the file's path.
    fn names_in(directory: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).expect("the sources") {
            let path = entry.expect("the sources").path();
            if path.is_dir() {
                names_in(&path, found);
                continue;
            }
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            for rest in text.split("mutant::active(").skip(1) {
                let name = rest.split('"').nth(1).expect("a name");
                found.push((name.to_owned(), path.display().to_string()));
            }
        }
    }

    #[test]
    fn table_code_and_list_of_names_have_the_same_mutants() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for entry in fs::read_dir(&crates).expect("the crates") {
            let path = entry.expect("the crates").path();
            if !path.ends_with("prove") && path.join("src").is_dir() {
                names_in(&path.join("src"), &mut found);
            }
        }
        let mut names = BTreeSet::new();
        for mutant in table() {
            let name = mutant.name;
            assert!(names.insert(name), "the table has {name} twice");
            let files: Vec<_> = found.iter().filter(|(found, _)| found == name).collect();
            assert!(!files.is_empty(), "no file asks for {name}");
            let file = mutant.file.strip_prefix("crates/").expect("a crate's file");
            for (_, path) in files {
                assert!(path.ends_with(file), "{path} asks for {name}");
            }
        }
        assert_eq!(names, NAMES.iter().copied().collect());
        for (name, path) in found {
            let known = names.contains(name.as_str());
            assert!(known, "{path} asks for {name}, which the table lacks");
        }
    }
}
