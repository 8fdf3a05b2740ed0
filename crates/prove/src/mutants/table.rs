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
        script: Script::Layer {
            name: "crash-points",
            units: 69,
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
        place: "crates/wal/src/log/append.rs",
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
        script: Script::Watched {
            seeds: 60,
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
        place: "crates/terrapin/src/open/recovery.rs",
        breaks: "D7: a batch is there whole or not at all, across keyspaces",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 15,
        name: "a Sync write does not wait for the sync",
        place: "crates/terrapin/src/write/mod.rs",
        breaks: "Sync durability: on stable storage before the call returns",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 16,
        name: "a snapshot reads the newest records of its memtables",
        place: "crates/terrapin/src/api/snapshot.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 17,
        name: "reads do not look into the sealed memtable",
        place: "crates/terrapin/src/read/mod.rs",
        breaks: "a get sees the newest published write",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 18,
        name: "the drop of a keyspace is not in the log",
        place: "crates/terrapin/src/keyspaces/schema.rs",
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
    Mutant {
        number: 25,
        name: "the directory is not synced after the ring got its name",
        place: "crates/wal/src/recovery.rs",
        breaks: "a log without a ring is damage, never a crash",
        script: Script::Check("a creation cut short", checks::cut_creation),
    },
    Mutant {
        number: 26,
        name: "what was copied from the ring is not synced before the new life begins",
        place: "crates/wal/src/copy.rs",
        breaks: "D6: what recovery found is durable before it is built upon",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 27,
        name: "a log segment's header is believed without its checksum",
        place: "crates/wal/src/format.rs",
        breaks: "D8: what is damaged is refused",
        script: Script::Check("damage of a synced log record", checks::damaged_log),
    },
    Mutant {
        number: 28,
        name: "the ring's space is given back before it is drained",
        place: "crates/wal/src/drain.rs",
        breaks: "ring space is free once the write has returned",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 29,
        name: "the ring's space is given back by bytes, not by whole records",
        place: "crates/wal/src/drain.rs",
        breaks: "D6: every record is whole in a segment or in the ring",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 30,
        name: "a record that wraps around the ring's end lacks a byte",
        place: "crates/disk/src/ring.rs",
        breaks: "Process durability: what was acknowledged survives a kill",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 31,
        name: "a failed sync of the log is tried again",
        place: "crates/wal/src/drain.rs",
        breaks: "a failed sync poisons the database",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 32,
        name: "a clean close does not wait for the log's sync",
        place: "crates/wal/src/log/mod.rs",
        breaks: "close is durable",
        script: Script::Check(
            "a closed store without its ring",
            checks::close_without_ring,
        ),
    },
    Mutant {
        number: 33,
        name: "the first slot is not synced before the second is written",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D2: one slot is sound at every moment",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 34,
        name: "the second slot is not synced before space is freed",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D2, D5: freed once both slots hold the checkpoint",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 35,
        name: "the second slot is not written",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D1: what either slot reaches is not overwritten",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 36,
        name: "the first slot is written before the pages are synced and the log is",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D2: pages, log, slot, in this order",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 37,
        name: "a checkpoint counts as durable once its first slot is written",
        place: "crates/terrapin/src/checkpoint/commit.rs",
        breaks: "D2, D5: freed and trimmed once both slots are durable",
        script: Script::Watched {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 38,
        name: "the log is trimmed to the catalog's applied LSN, whatever keyspaces need",
        place: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D3: trimmed below the smallest applied LSN",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 39,
        name: "a keyspace that is being written to counts as quiet",
        place: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: "D3: only an empty memtable counts as applied through the cut",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 40,
        name: "a slot that was found is built upon without a sync",
        place: "crates/pages/src/store/write.rs",
        breaks: "D2, D6: what a recovery found is durable",
        script: Script::Check(
            "what was flushed after a clear",
            checks::flushed_after_clear,
        ),
    },
    Mutant {
        number: 41,
        name: "a failed sync of the pages is tried again",
        place: "crates/pages/src/store/write.rs",
        breaks: "a failed sync poisons the database",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 42,
        name: "the catalog's own pages count as free after an open",
        place: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D4: free is what no walk from the superblock reaches",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 43,
        name: "a hole is punched one extent too far",
        place: "crates/pages/src/space/reclaim.rs",
        breaks: "D1: what a slot reaches is not destroyed",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 44,
        name: "a page that could not be written counts as written",
        place: "crates/pages/src/store/write.rs",
        breaks: "D10: a failed write is an error",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 45,
        name: "a batch is published before it is in its memtables",
        place: "crates/terrapin/src/write/mod.rs",
        breaks: "D7: a batch is visible whole or not at all",
        script: Script::Check("batches seen by another thread", checks::whole_batches),
    },
    Mutant {
        number: 46,
        name: "a writer takes its memtable before it waits",
        place: "crates/terrapin/src/write/mod.rs",
        breaks: "a write enters the memtable that owns its LSN",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 47,
        name: "a run gives a view what was written after it",
        place: "crates/terrapin/src/run/chain.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 48,
        name: "the pages of a run are freed at once",
        place: "crates/terrapin/src/checkpoint/run_writer.rs",
        breaks: "D5: no page is reused that a view reaches",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 49,
        name: "a clear keeps the active memtable",
        place: "crates/terrapin/src/keyspaces/schema.rs",
        breaks: "D7: clear cuts the memtable",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 50,
        name: "the number of a dropped keyspace is given again",
        place: "crates/terrapin/src/keyspaces/catalog/mod.rs",
        breaks: "D7: ids are never reused",
        script: Script::Crash {
            seeds: 400,
            operations: 600,
        },
    },
    Mutant {
        number: 51,
        name: "changes of keyspaces that the catalog has are applied again",
        place: "crates/terrapin/src/open/recovery.rs",
        breaks: "D7: skipped below the catalog's applied LSN",
        script: Script::Check(
            "what was flushed after a clear",
            checks::flushed_after_clear,
        ),
    },
    Mutant {
        number: 52,
        name: "a read-only open opens the pages for writing",
        place: "crates/terrapin/src/open/mod.rs",
        breaks: "D11: read-only opens write nothing",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 53,
        name: "flush forgets which memtables hold what is not in the log",
        place: "crates/terrapin/src/write/mod.rs",
        breaks: "flush makes writes of durability None durable",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 54,
        name: "a second open in one process is let in",
        place: "crates/disk/src/real/lock.rs",
        breaks: "D9: one opener at a time",
        script: Script::Check("a second open", checks::second_open),
    },
    Mutant {
        number: 55,
        name: "a block that cannot be read means that the key is not there",
        place: "crates/betree/src/get.rs",
        breaks: "an I/O error is never not-found",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 56,
        name: "a scan ends at a block that cannot be read",
        place: "crates/betree/src/scan/mod.rs",
        breaks: "an I/O error is never the end of a scan",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 57,
        name: "separators of leaves are one byte short",
        place: "crates/betree/src/merge/write.rs",
        breaks: "a key is looked for in the leaf that has it",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 58,
        name: "a level is written without what it held",
        place: "crates/betree/src/merge/descend.rs",
        breaks: "nothing acknowledged is lost",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 59,
        name: "a block's checksum is not looked at",
        place: "crates/pages/src/block/decode.rs",
        breaks: "D8: what is damaged is refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        number: 60,
        name: "a page's checksum is not looked at",
        place: "crates/pages/src/page/format.rs",
        breaks: "D8: what is damaged is refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        number: 61,
        name: "a superblock's checksum is not looked at",
        place: "crates/pages/src/superblock/format.rs",
        breaks: "D8: what is damaged is refused",
        script: Script::Check("one damaged superblock slot", checks::damaged_slot),
    },
    Mutant {
        number: 62,
        name: "an index's checksum is not looked at",
        place: "crates/pages/src/group/index.rs",
        breaks: "D8: what is damaged is refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        number: 63,
        name: "a group's footer is believed without its checksum",
        place: "crates/pages/src/group/format.rs",
        breaks: "verify notices damage of every live byte",
        script: Script::Check("a changed byte in a page group", checks::damaged_group),
    },
    Mutant {
        number: 64,
        name: "a filter's checksum is not looked at",
        place: "crates/pages/src/store/read.rs",
        breaks: "D8: what is damaged is refused",
        script: Script::Check(
            "a changed byte in the pages of a closed store",
            checks::damaged_pages,
        ),
    },
    Mutant {
        number: 65,
        name: "a scan cuts a key back to one byte less than the prefix",
        place: "crates/betree/src/scan/source.rs",
        breaks: "scans give the keys that were put",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 66,
        name: "an index counts one record too many for each block",
        place: "crates/pages/src/group/index.rs",
        breaks: "cumulative counts are exact",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 67,
        name: "what a merge took of the memory budget is never given back",
        place: "crates/base/src/budget.rs",
        breaks: "what is charged is what is held",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 68,
        name: "of two operations of a batch on one key the earlier wins",
        place: "crates/memtable/src/leaf.rs",
        breaks: "a batch is applied in its order",
        script: Script::Conformance,
    },
    Mutant {
        number: 69,
        name: "a view sees the record at its bound, too",
        place: "crates/memtable/src/leaf.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 70,
        name: "a log file that the disk has no room for counts as allocated",
        place: "crates/wal/src/segments.rs",
        breaks: "D10: a full disk shows at the allocation",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 71,
        name: "a scan's run of records goes past where another source comes first",
        place: "crates/betree/src/scan/mod.rs",
        breaks: "a scan returns its records in the order of their keys",
        script: Script::Random {
            seeds: 60,
            operations: 600,
        },
    },
    Mutant {
        number: 72,
        name: "the catalog's applied LSN is one past the cut",
        place: "crates/terrapin/src/engine/core.rs",
        breaks: "D3: no record is skipped that is not in a tree",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 73,
        name: "what a recovery can read in a segment is taken for durable",
        place: "crates/wal/src/recovery.rs",
        breaks: "D6: what a failed sync has lost is not built upon",
        script: Script::Layer {
            name: "failed-calls",
            units: 32,
        },
    },
    Mutant {
        number: 74,
        name: "a block that replaces a cached one is cached as the one behind it",
        place: "crates/pages/src/store/write.rs",
        breaks: "reads: the cache never shows another block than the one asked for",
        script: Script::Random {
            seeds: 60,
            operations: 1000,
        },
    },
    Mutant {
        number: 75,
        name: "a cut after a close lies behind what the close's sync added",
        place: "crates/wal/src/log/mod.rs",
        breaks: "D3: a log never ends before what a tree holds",
        script: Script::Check("a cut after a close", checks::cut_after_close),
    },
    Mutant {
        number: 76,
        name: "a checkpoint during a replay takes applied LSNs back to where the replay is",
        place: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: "D3: no record is replayed over what a tree has beyond it",
        script: Script::Check(
            "a kill after a checkpoint during a replay",
            checks::checkpoint_in_replay,
        ),
    },
    Mutant {
        number: 77,
        name: "a checkpoint leaves out of the log what a late write of it was swallowed by",
        place: "crates/terrapin/src/checkpoint/job.rs",
        breaks: "D2, D7: what is durable is a prefix of the commits, and batches are whole",
        script: Script::Check("writes that are late for a clear", checks::late_writes),
    },
    Mutant {
        number: 78,
        name: "a stretch is compacted without a look at the room",
        place: "crates/terrapin/src/disk_space/room.rs",
        breaks: "D10: puts are refused for want of what was acknowledged, and of nothing else",
        script: Script::Check(
            "puts after ranges on a nearly full disk",
            checks::room_for_puts,
        ),
    },
    Mutant {
        number: 79,
        name: "ranges over an older tree pay for a compaction",
        place: "crates/terrapin/src/checkpoint/compaction.rs",
        breaks: "a tree is compacted for ranges that it makes cheaper (decision 0018)",
        script: Script::Check("ranges over an old snapshot", checks::old_views),
    },
    Mutant {
        number: 80,
        name: "page ids of every branch begin at 0",
        place: "crates/pages/src/store/mod.rs",
        breaks: "a page of another copy of the database is damage (decision 0032)",
        script: Script::Layer {
            name: "media",
            units: 40,
        },
    },
    Mutant {
        number: 81,
        name: "the log's newest branch is not held against the superblock",
        place: "crates/wal/src/recovery.rs",
        breaks: "a file of another copy of the database is refused (decision 0032)",
        script: Script::Layer {
            name: "media",
            units: 40,
        },
    },
    Mutant {
        number: 82,
        name: "segments of the log join whatever their branches are",
        place: "crates/wal/src/chain.rs",
        breaks: "a file of another copy of the database is refused (decision 0032)",
        script: Script::Layer {
            name: "media",
            units: 40,
        },
    },
    Mutant {
        number: 83,
        name: "a copy of an open database is served unchecked",
        place: "crates/terrapin/src/open/verify.rs",
        breaks: "a copy is refused, or every record of it reads right (decision 0033)",
        script: Script::Layer {
            name: "media",
            units: 12,
        },
    },
    Mutant {
        number: 84,
        name: "what messages hide is forgotten when they come into a buffer",
        place: "crates/betree/src/merge/write.rs",
        breaks: "space: deletes give it back, and figures say what is in use (decision 0035)",
        script: Script::Check("space after deletes", checks::space_after_deletes),
    },
    Mutant {
        number: 85,
        name: "nodes leave out of their sums what messages hide",
        place: "crates/betree/src/node.rs",
        breaks: "space: deletes give it back, and figures say what is in use (decision 0035)",
        script: Script::Check("space after deletes", checks::space_after_deletes),
    },
    Mutant {
        number: 86,
        name: "a merge counts messages for as long as they are, whatever they hide",
        place: "crates/betree/src/merge/descend.rs",
        breaks: "space: deletes give it back, and figures say what is in use (decision 0035)",
        script: Script::Layer {
            name: "space",
            units: 24,
        },
    },
    Mutant {
        number: 340,
        name: "views of any moment get a run",
        place: "crates/terrapin/src/checkpoint/held.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Check("a snapshot beside a checkpoint", checks::late_views),
    },
    Mutant {
        number: 341,
        name: "of a view's runs the older one counts",
        place: "crates/terrapin/src/read/mod.rs",
        breaks: "of equal keys the newest counts",
        script: Script::Random {
            seeds: 60,
            operations: 4000,
        },
    },
    Mutant {
        number: 342,
        name: "a long chain shows what was written after its moment",
        place: "crates/terrapin/src/run/chain.rs",
        breaks: "a snapshot sees one moment",
        script: Script::Conformance,
    },
    Mutant {
        number: 90,
        name: "the last block that counts of an earlier life is given back",
        place: "crates/wal/src/segments.rs",
        breaks: "D6: a recovery loses nothing that the one before accepted",
        script: Script::Crash {
            seeds: 100,
            operations: 600,
        },
    },
    Mutant {
        number: 91,
        name: "the mark of the last sync does not become durable",
        place: "crates/wal/src/drain.rs",
        breaks: "damage to what was synced looks like no torn tail after an idle time (decision 0030)",
        script: Script::Check("a bad block in the log", checks::bad_block_in_log),
    },
    Mutant {
        number: 92,
        name: "marks in the ring do not count",
        place: "crates/wal/src/stream.rs",
        breaks: "damage to what was synced looks like no torn tail after a kill (decision 0030)",
        script: Script::Check("a bad block in the log", checks::bad_block_in_log),
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
