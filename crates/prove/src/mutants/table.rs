//! The mutants: what each breaks, where, and what must notice it.

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

/// Every mutant there is.
pub const TABLE: &[Mutant] = &[
    Mutant {
        name: "log-segments-unsynced",
        does: "the log's segments are not synced",
        file: "crates/wal/src/drain.rs",
        breaks: "D2, Sync durability: a synced write survives a power cut",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "segment-named-before-header-sync",
        does: "a segment gets its name before its header is synced",
        file: "crates/wal/src/segments.rs",
        breaks: "D6: a named segment has a durable header",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "directory-unsynced-after-naming",
        does: "the directory is not synced after a segment got its name",
        file: "crates/wal/src/segments.rs",
        breaks: "Sync durability: a synced record's segment is found after a power cut",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "directory-unsynced-after-unnaming",
        does: "the directory is not synced after a segment lost its name",
        file: "crates/wal/src/segments.rs",
        breaks: "D3: a log file is reused only once its old name is durably gone",
        script: Script::Layer {
            name: "crash-points",
            units: 69,
        },
    },
    Mutant {
        name: "log-trimmed-too-early",
        does: "the log is trimmed one segment too early",
        file: "crates/wal/src/segments.rs",
        breaks: "D3: the log is trimmed below the smallest applied LSN only",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "recovery-keeps-incarnation",
        does: "recovery keeps the incarnation",
        file: "crates/wal/src/recovery.rs",
        breaks: "D6: bytes of an earlier life never count again",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "ring-not-copied-to-segments",
        does: "records that a recovery accepts from the ring are not copied into segments",
        file: "crates/wal/src/recovery.rs",
        breaks: "D6: a second recovery finds every record that the first one found",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "record-checksum-without-payload",
        does: "a log record's checksum does not cover its payload",
        file: "crates/wal/src/format.rs",
        breaks: "D8: recovery drops a torn tail",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "log-without-marks",
        does: "no marks are written",
        file: "crates/wal/src/log/append.rs",
        breaks: "a bad record below the synced LSN is corruption, and is refused",
        script: Script::Check("damage of a synced log record", checks::damaged_log),
    },
    Mutant {
        name: "bad-record-below-mark-is-torn-tail",
        does: "a bad record below the highest mark counts as the torn tail",
        file: "crates/wal/src/recovery.rs",
        breaks: "a bad record below the synced LSN is corruption, and is refused",
        script: Script::Check("damage of a synced log record", checks::damaged_log),
    },
    Mutant {
        name: "commit-without-page-sync",
        does: "pages are not synced before the first slot is written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2: pages are durable before a slot refers to them",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "commit-without-log-sync",
        does: "the log is not synced up to the boundary before the slots are written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D3: no applied LSN exceeds the synced LSN",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "pins-keep-no-pages",
        does: "pins do not keep pages",
        file: "crates/pages/src/space/live.rs",
        breaks: "D5: space is reused only once no older view is left",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "replay-first-keyspace-of-batch",
        does: "a replay applies only the operations of a batch's first keyspace",
        file: "crates/terrapin/src/open/recovery.rs",
        breaks: "D7: a batch exists whole or not at all, across keyspaces",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "sync-write-without-wait",
        does: "a Sync write does not wait for the sync",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "Sync durability: a write is on stable storage before its call returns",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "snapshot-reads-newest",
        does: "a snapshot reads the newest records of its memtables",
        file: "crates/terrapin/src/api/snapshot.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "reads-skip-sealed-memtable",
        does: "reads do not look into the sealed memtable",
        file: "crates/terrapin/src/read/mod.rs",
        breaks: "a get sees the newest published write",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "drop-not-logged",
        does: "the drop of a keyspace is not in the log",
        file: "crates/terrapin/src/keyspaces/schema.rs",
        breaks: "D7: a dropped keyspace does not return",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "merge-prefers-older-run",
        does: "of two runs that have a key, a merge takes the older record",
        file: "crates/structure/src/merge.rs",
        breaks: "a get sees the newest published write",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "deletes-vanish-above-leaves",
        does: "deletes vanish above the leaves",
        file: "crates/betree/src/merge/write.rs",
        breaks: "a deleted key does not return",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "flushed-messages-still-count",
        does: "flushed messages still count in the buffer",
        file: "crates/betree/src/merge/frame.rs",
        breaks: "live parts say which messages of a segment still count",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "filter-lacks-key",
        does: "a filter is built without one key",
        file: "crates/pages/src/group/build.rs",
        breaks: "a filter never denies a key of its group",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "index-search-before-equal-separator",
        does: "the search in a group's index takes the block before a separator that equals the key",
        file: "crates/pages/src/group/index.rs",
        breaks: "a search reads the only block that may hold the key",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "block-search-skips-last",
        does: "the search in a block skips the last of several candidates",
        file: "crates/pages/src/block/decode.rs",
        breaks: "a search finds every key of a block",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "directory-unsynced-after-ring-naming",
        does: "the directory is not synced after the ring got its name",
        file: "crates/wal/src/ring.rs",
        breaks: "a log without a ring is damage, never a crash",
        script: Script::Check("an interrupted creation", checks::interrupted_creation),
    },
    Mutant {
        name: "copied-ring-unsynced",
        does: "records copied from the ring are not synced before the new life begins",
        file: "crates/wal/src/copy.rs",
        breaks: "D6: records that a recovery found are durable before new ones follow",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "segment-header-without-checksum",
        does: "the checksum of a log segment's header is ignored",
        file: "crates/wal/src/format.rs",
        breaks: "D8: damaged bytes are refused",
        script: Script::Check("damage of a synced log record", checks::damaged_log),
    },
    Mutant {
        name: "ring-freed-before-drain",
        does: "ring space is freed before it is drained",
        file: "crates/wal/src/drain.rs",
        breaks: "ring space is freed only once its records are in a segment",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "ring-freed-by-bytes",
        does: "ring space is freed by bytes, not by whole records",
        file: "crates/wal/src/drain.rs",
        breaks: "D6: every record is whole in a segment or in the ring",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "wrapped-record-lacks-byte",
        does: "a record that wraps around the ring's end lacks a byte",
        file: "crates/disk/src/ring.rs",
        breaks: "Process durability: an acknowledged write survives a kill",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "log-sync-retried",
        does: "a failed sync of the log is tried again",
        file: "crates/wal/src/drain.rs",
        breaks: "a failed sync poisons the database",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "close-without-log-sync",
        does: "a clean close does not wait for the log's sync",
        file: "crates/wal/src/log/shared.rs",
        breaks: "close is durable",
        script: Script::Check(
            "a closed store without its ring",
            checks::close_without_ring,
        ),
    },
    Mutant {
        name: "commit-without-first-slot-sync",
        does: "the first slot is not synced before the second is written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2: one slot is sound at every moment",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "commit-without-second-slot-sync",
        does: "the second slot is not synced before space is freed",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2, D5: space is freed once both slots hold the checkpoint",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "commit-without-second-slot",
        does: "the second slot is not written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D1: a page that a slot reaches is not overwritten",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "commit-slot-before-page-sync",
        does: "the first slot is written before the pages and the log are synced",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2: pages, log and slot become durable in this order",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "commit-durable-before-first-slot-sync",
        does: "a checkpoint counts as durable once its first slot is written",
        file: "crates/terrapin/src/checkpoint/commit_mutants.rs",
        breaks: "D2, D5: space is freed and the log trimmed once both slots are durable",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "log-trimmed-to-catalog-lsn",
        does: "the log is trimmed to the catalog's applied LSN, without regard to keyspaces",
        file: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D3: the log is trimmed below the smallest applied LSN only",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "written-keyspace-counts-as-quiet",
        does: "a keyspace with a write under way counts as quiet",
        file: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: "D3: only a keyspace with an empty memtable counts as applied up to the boundary",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "found-slot-unsynced",
        does: "a recovery uses the slot that it found without a sync",
        file: "crates/pages/src/store/write.rs",
        breaks: "D2, D6: the state that a recovery found is durable",
        script: Script::Check(
            "a record flushed after a clear",
            checks::flushed_after_clear,
        ),
    },
    Mutant {
        name: "page-sync-retried",
        does: "a failed sync of the pages is tried again",
        file: "crates/pages/src/store/write.rs",
        breaks: "a failed sync poisons the database",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "catalog-pages-free-after-open",
        does: "the catalog's own pages count as free after an open",
        file: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D4: only space that no walk from the superblock reaches is free",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "hole-one-extent-too-far",
        does: "a hole is punched one extent too far",
        file: "crates/pages/src/space/reclaim.rs",
        breaks: "D1: a page that a slot reaches is not destroyed",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "failed-page-write-ignored",
        does: "a page that could not be written counts as written",
        file: "crates/pages/src/store/write.rs",
        breaks: "D10: a failed write is an error",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "batch-published-before-memtables",
        does: "a batch is published before it is in its memtables",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "D7: a batch is visible whole or not at all",
        script: Script::Check("batches beside a reading thread", checks::whole_batches),
    },
    Mutant {
        name: "writer-takes-memtable-before-wait",
        does: "a writer chooses its memtable before it waits",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "a write enters the memtable that owns its LSN",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "run-shows-later-writes",
        does: "a run shows a view writes of after its moment",
        file: "crates/terrapin/src/run/chain.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "run-pages-freed-at-once",
        does: "the pages of a run are freed at once",
        file: "crates/terrapin/src/checkpoint/run_writer.rs",
        breaks: "D5: a page that a view reaches is not reused",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "clear-keeps-active-memtable",
        does: "a clear keeps the active memtable",
        file: "crates/terrapin/src/keyspaces/schema.rs",
        breaks: "D7: a clear ends the active memtable",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
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
            checks::flushed_after_clear,
        ),
    },
    Mutant {
        name: "read-only-opens-for-writing",
        does: "a read-only open opens the pages for writing",
        file: "crates/terrapin/src/open/files.rs",
        breaks: "D11: read-only opens write nothing",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "flush-forgets-unlogged-memtables",
        does: "a flush forgets which memtables hold writes outside of the log",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: "a flush makes writes of durability None durable",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "second-open-admitted",
        does: "a second open for writing in one process succeeds",
        file: "crates/disk/src/real/lock.rs",
        breaks: "D9: one open for writing at a time",
        script: Script::Check("a second open", checks::second_open),
    },
    Mutant {
        name: "unreadable-block-is-not-found",
        does: "an unreadable block reads as a missing key",
        file: "crates/betree/src/get.rs",
        breaks: "an I/O error never reads as not found",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "unreadable-block-ends-scan",
        does: "a scan ends at an unreadable block",
        file: "crates/betree/src/scan/mod.rs",
        breaks: "an I/O error never reads as the end of a scan",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "separator-one-byte-short",
        does: "separators of leaves are one byte short",
        file: "crates/betree/src/merge/write.rs",
        breaks: "a search reads the leaf that holds the key",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "level-written-without-older-runs",
        does: "a level is written without its old messages",
        file: "crates/betree/src/merge/descend.rs",
        breaks: "no acknowledged write is lost",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "block-checksum-ignored",
        does: "a block's checksum is ignored",
        file: "crates/pages/src/block/decode.rs",
        breaks: "D8: damaged bytes are refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        name: "page-checksum-ignored",
        does: "a page's checksum is ignored",
        file: "crates/pages/src/page/format.rs",
        breaks: "D8: damaged bytes are refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        name: "superblock-checksum-ignored",
        does: "a superblock's checksum is ignored",
        file: "crates/pages/src/superblock/format.rs",
        breaks: "D8: damaged bytes are refused",
        script: Script::Check("one damaged superblock slot", checks::damaged_slot),
    },
    Mutant {
        name: "index-checksum-ignored",
        does: "an index's checksum is ignored",
        file: "crates/pages/src/group/index.rs",
        breaks: "D8: damaged bytes are refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        name: "group-checksum-ignored",
        does: "the checksum of a group's footer is ignored",
        file: "crates/pages/src/group/format.rs",
        breaks: "verify notices damage of every live byte",
        script: Script::Check("a changed byte in a page group", checks::damaged_group),
    },
    Mutant {
        name: "filter-checksum-ignored",
        does: "a filter's checksum is ignored",
        file: "crates/pages/src/store/read.rs",
        breaks: "D8: damaged bytes are refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        name: "scan-prefix-one-byte-short",
        does: "a scan shortens a key to one byte less than the prefix",
        file: "crates/betree/src/scan/source.rs",
        breaks: "scans return the keys that were put",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "index-counts-too-many-records",
        does: "an index counts one record too many for each block",
        file: "crates/pages/src/group/index.rs",
        breaks: "cumulative counts are exact",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "merge-memory-never-returned",
        does: "the memory charge of a merge is never released",
        file: "crates/base/src/budget.rs",
        breaks: "charges equal the memory in use",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "earlier-operation-of-batch-wins",
        does: "of two operations of a batch on one key, the earlier wins",
        file: "crates/memtable/src/leaf.rs",
        breaks: "the operations of a batch apply in order",
        script: Script::Conformance,
    },
    Mutant {
        name: "view-sees-record-at-bound",
        does: "a view sees the record at its bound, too",
        file: "crates/memtable/src/leaf.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "unallocated-log-file-accepted",
        does: "a log file that the disk has no room for counts as allocated",
        file: "crates/wal/src/segments.rs",
        breaks: "D10: a full disk shows at the allocation",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "scan-run-passes-other-source",
        does: "a scan takes a run of records beyond the first key of another source",
        file: "crates/betree/src/scan/mod.rs",
        breaks: "a scan returns its records in the order of their keys",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        name: "applied-lsn-past-seal",
        does: "the catalog's applied LSN is one past the boundary",
        file: "crates/terrapin/src/memory/seal.rs",
        breaks: "D3: a replay skips no record that no tree holds",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "readable-segment-counts-as-durable",
        does: "a recovery takes all readable bytes of a segment for durable",
        file: "crates/wal/src/recovery.rs",
        breaks: "D6: no record follows records that a failed sync may have lost",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        name: "replaced-block-cached-as-next",
        does: "a block that replaces a cached one is cached under the next block's number",
        file: "crates/pages/src/store/write.rs",
        breaks: "the cache returns the block that a read asked for",
        script: Script::Random {
            seeds: 60,
            operations: 1000,
        },
    },
    Mutant {
        name: "seal-after-close-behind-sync",
        does: "a boundary after a close is beyond the real end of the log",
        file: "crates/wal/src/log/mod.rs",
        breaks: "D3: a log never ends before the applied LSN of a tree",
        script: Script::Check("the boundary after a close", checks::boundary_after_close),
    },
    Mutant {
        name: "replay-checkpoint-lowers-lsn",
        does: "a checkpoint during a replay lowers applied LSNs to the replay's position",
        file: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: "D3: no record is replayed over newer ones of a tree",
        script: Script::Check(
            "a kill after a checkpoint during a replay",
            checks::checkpoint_in_replay,
        ),
    },
    Mutant {
        name: "late-write-left-out-of-log",
        does: "a checkpoint does not sync the clear that removed the memtable of a late write",
        file: "crates/terrapin/src/checkpoint/job.rs",
        breaks: "D2, D7: durable writes are a prefix of the commits, with whole batches",
        script: Script::Check("writes that are late for a clear", checks::late_writes),
    },
    Mutant {
        name: "compaction-ignores-room",
        does: "a stretch is compacted without a check of the room",
        file: "crates/terrapin/src/disk_space/room.rs",
        breaks: "D10: puts are refused only if acknowledged writes need the room",
        script: Script::Check(
            "puts after ranges on a nearly full disk",
            checks::room_for_puts,
        ),
    },
    Mutant {
        name: "old-view-pays-for-compaction",
        does: "ranges over an older tree pay for a compaction",
        file: "crates/terrapin/src/checkpoint/compaction.rs",
        breaks: "a tree is compacted for ranges that it makes cheaper (decision 0018)",
        script: Script::Check("ranges over an old snapshot", checks::old_views),
    },
    Mutant {
        name: "page-ids-begin-at-zero",
        does: "page ids of every branch begin at 0",
        file: "crates/pages/src/store/mod.rs",
        breaks: "a page of another copy of the database is damage (decision 0032)",
        script: Script::Layer {
            name: "media",
            units: 40,
        },
    },
    Mutant {
        name: "newest-log-branch-unchecked",
        does: "the log's newest branch is not compared with the superblock",
        file: "crates/wal/src/headers.rs",
        breaks: "a file of another copy of the database is refused (decision 0032)",
        script: Script::Layer {
            name: "media",
            units: 40,
        },
    },
    Mutant {
        name: "log-branches-unchecked",
        does: "log segments of different branches join",
        file: "crates/wal/src/chain.rs",
        breaks: "a file of another copy of the database is refused (decision 0032)",
        script: Script::Layer {
            name: "media",
            units: 40,
        },
    },
    Mutant {
        name: "open-copy-unchecked",
        does: "a copy of an open database is served unchecked",
        file: "crates/terrapin/src/open/verify.rs",
        breaks: "a copy is refused, or each of its records reads right (decision 0033)",
        script: Script::Layer {
            name: "media",
            units: 12,
        },
    },
    Mutant {
        name: "hidden-bytes-forgotten-in-buffer",
        does: "hidden bytes of messages are forgotten in a buffer",
        file: "crates/betree/src/merge/write.rs",
        breaks: "deletes free space, and metrics count the space in use (decision 0035)",
        script: Script::Check("space after deletes", checks::space_after_deletes),
    },
    Mutant {
        name: "hidden-bytes-left-out-of-node",
        does: "nodes leave hidden bytes out of their sums",
        file: "crates/betree/src/node.rs",
        breaks: "deletes free space, and metrics count the space in use (decision 0035)",
        script: Script::Check("space after deletes", checks::space_after_deletes),
    },
    Mutant {
        name: "merge-ignores-hidden-bytes",
        does: "a merge counts the bytes of messages without their hidden bytes",
        file: "crates/betree/src/merge/descend.rs",
        breaks: "deletes free space, and metrics count the space in use (decision 0035)",
        script: Script::Layer {
            name: "space",
            units: 24,
        },
    },
    Mutant {
        name: "any-view-gets-run",
        does: "a run serves views of moments that it does not hold",
        file: "crates/terrapin/src/checkpoint/held.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Check("a snapshot beside a checkpoint", checks::late_views),
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
        name: "last-earlier-block-freed",
        does: "the last log block of an earlier life is freed",
        file: "crates/wal/src/segments.rs",
        breaks: "D6: a recovery loses no record that an earlier one accepted",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        name: "last-mark-not-durable",
        does: "the mark of the last sync does not become durable",
        file: "crates/wal/src/drain.rs",
        breaks: "after an idle time, damage of synced records is no torn tail (decision 0030)",
        script: Script::Check("a bad block in the log", checks::bad_block_in_log),
    },
    Mutant {
        name: "ring-marks-ignored",
        does: "marks in the ring do not count",
        file: "crates/wal/src/stream.rs",
        breaks: "after a kill, damage of synced records is no torn tail (decision 0030)",
        script: Script::Check("a bad block in the log", checks::bad_block_in_log),
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
        for mutant in TABLE {
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
