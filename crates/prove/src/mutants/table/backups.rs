//! The mutants of backups, restores and salvages.

use super::{MEDIA, Mutant};
use crate::mutants::checks::{backups, salvages};
use crate::mutants::script::Script;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "backup-ignores-branches",
        does: "an incremental backup takes a life of another branch for its own",
        file: "crates/terrapin/src/backup/pages.rs",
        breaks: "a backup has the pages of its database",
        script: Script::Check(
            "incremental backups of two copies of a database",
            backups::branches,
        ),
    },
    Mutant {
        name: "backup-log-not-closed",
        does: "the log of a backup lacks its closing record",
        file: "crates/wal/src/closed_copy.rs",
        breaks: "an open of a restored copy needs no ring",
        script: Script::Check("a backup beside merges", backups::beside_merges),
    },
    Mutant {
        name: "backup-holds-no-trim",
        does: "checkpoints trim the log that a backup copies",
        file: "crates/wal/src/segments.rs",
        breaks: "a backup has every record that no tree of it has",
        script: Script::Check("a backup beside merges", backups::beside_merges),
    },
    Mutant {
        name: "backup-pins-later-generation",
        does: "a backup pins the generation behind the one that it copies",
        file: "crates/pages/src/store/mod.rs",
        breaks: "D5: a page that a backup copies is not reused",
        script: Script::Check("a backup beside merges", backups::beside_merges),
    },
    Mutant {
        name: "backup-log-from-catalog-lsn",
        does: "a backup's log begins at the catalog's applied LSN",
        file: "crates/terrapin/src/backup/mod.rs",
        breaks: "D7: a batch of a restored copy is whole",
        script: Script::Check(
            "backups of keyspaces with different applied LSNs",
            backups::whole_batches,
        ),
    },
    Mutant {
        name: "backup-log-ends-at-applied",
        does: "a backup's log ends at the catalog's applied LSN",
        file: "crates/terrapin/src/backup/mod.rs",
        breaks: "a backup has every write that returned before",
        script: Script::Check(
            "backups of keyspaces with different applied LSNs",
            backups::whole_batches,
        ),
    },
    Mutant {
        name: "backup-keeps-pin-on-full-disk",
        does: "a backup keeps its pin on a full disk",
        file: "crates/terrapin/src/engine/backups.rs",
        breaks: "D10: deletes make room",
        script: Script::Check("a backup on a disk that fills", backups::on_full_disk),
    },
    Mutant {
        name: "backup-names-not-durable",
        does: "a manifest is written before the names of its set are durable",
        file: "crates/terrapin/src/backup/target.rs",
        breaks: "a killed backup leaves the old one or the new one",
        script: Script::Check("backups killed at any call", backups::killed_backups),
    },
    Mutant {
        name: "backup-manifest-not-durable",
        does: "a manifest gets its name before it is durable",
        file: "crates/terrapin/src/backup/target.rs",
        breaks: "a killed backup leaves the old one or the new one",
        script: Script::Check("backups killed at any call", backups::killed_backups),
    },
    Mutant {
        name: "backup-pages-not-durable",
        does: "a manifest is written before the pages of its set are durable",
        file: "crates/terrapin/src/backup/mod.rs",
        breaks: "a killed backup leaves the old one or the new one",
        script: Script::Check("backups killed at any call", backups::killed_backups),
    },
    Mutant {
        name: "restore-names-not-durable",
        does: "the data file gets its name before those of the log are durable",
        file: "crates/terrapin/src/backup/restore.rs",
        breaks: "a killed restore leaves no database, or all of it",
        script: Script::Check("restores killed at any call", backups::killed_restores),
    },
    Mutant {
        name: "salvage-ignores-newer-damage",
        does: "a record counts although a damaged newer place may have had its key",
        file: "crates/terrapin/src/salvage/sink.rs",
        breaks: "no deleted record returns",
        script: Script::Check("salvage of damaged trees", salvages::damaged_trees),
    },
    Mutant {
        name: "salvage-trusts-damaged-log",
        does: "records count although the end of the log is lost",
        file: "crates/terrapin/src/salvage/mod.rs",
        breaks: "no deleted record returns",
        script: Script::Check("salvage with a damaged log", salvages::damaged_log),
    },
    Mutant {
        name: "salvage-trusts-older-values",
        does: "a record counts although a newer value of its key is lost with its page",
        file: "crates/terrapin/src/salvage/sink.rs",
        breaks: "no deleted or replaced record is certain (decision 0047)",
        script: MEDIA,
    },
];
