//! Mutants: deliberate breakages of the engine, which show that the tests test.
//!
//! A mutant is a line in the engine that asks [`active`] whether its name is chosen, and then does
//! the wrong thing. [`NAMES`] lists all of them. `crates/prove/src/mutants` says what each mutant
//! breaks and which script must notice it. Code, table and reports spell a name alike.
//!
//! Only a build with `--cfg terrapin_mutants` has mutants. In every other build [`active`] is
//! `false` at compile time, and the compiler removes the wrong branch.

/// The name of every mutant, as [`active`] and `prove --layer mutants` spell it.
pub const NAMES: &[&str] = &[
    "read-shows-expired",
    "now-goes-back",
    "replay-forgets-now",
    "recovery-target-asks-nobody",
    "recovery-target-holds-nobody",
    "catalog-forgets-now",
    "merge-drops-expired-above-leaves",
    "expiring-record-is-cached",
    "writer-forgets-deadline-that-it-read",
    "now-goes-on-before-publication",
    "idle-trees-keep-expired",
    "little-expired-stays",
    "watch-begins-at-the-tail",
    "newer-range-delete-hides-older-ones",
    "failing-operands-are-dropped",
    "operands-are-merged-in-slices",
    "range-forgets-deadlines",
    "keyspace-forgets-ttl",
    "log-segments-unsynced",
    "segment-named-before-header-sync",
    "directory-unsynced-after-naming",
    "directory-unsynced-after-unnaming",
    "log-trimmed-too-early",
    "recovery-keeps-incarnation",
    "ring-not-copied-to-segments",
    "record-checksum-without-payload",
    "log-without-marks",
    "bad-record-below-mark-is-torn-tail",
    "commit-without-page-sync",
    "commit-without-log-sync",
    "pins-keep-no-pages",
    "replay-first-keyspace-of-batch",
    "sync-write-without-wait",
    "snapshot-reads-newest",
    "reads-skip-sealed-memtable",
    "drop-not-logged",
    "merge-prefers-older-run",
    "deletes-vanish-above-leaves",
    "flushed-messages-still-count",
    "filter-lacks-key",
    "index-search-before-equal-separator",
    "block-search-skips-last",
    "directory-unsynced-after-ring-naming",
    "copied-ring-unsynced",
    "segment-header-without-checksum",
    "ring-freed-before-drain",
    "ring-freed-by-bytes",
    "wrapped-record-lacks-byte",
    "log-sync-retried",
    "close-without-log-sync",
    "commit-without-first-slot-sync",
    "commit-without-second-slot-sync",
    "commit-without-second-slot",
    "commit-slot-before-page-sync",
    "commit-durable-before-first-slot-sync",
    "log-trimmed-to-catalog-lsn",
    "log-end-checked-against-applied-only",
    "backup-ignores-branches",
    "backup-log-not-closed",
    "backup-holds-no-trim",
    "backup-keeps-pin-on-full-disk",
    "backup-names-not-durable",
    "backup-manifest-not-durable",
    "backup-pages-not-durable",
    "backup-pins-later-generation",
    "backup-log-from-catalog-lsn",
    "backup-log-ends-at-applied",
    "restore-names-not-durable",
    "salvage-ignores-newer-damage",
    "salvage-trusts-damaged-log",
    "salvage-trusts-older-values",
    "merge-ignores-keyspace-options",
    "written-keyspace-counts-as-quiet",
    "found-slot-unsynced",
    "page-sync-retried",
    "large-values-unsynced-before-log",
    "large-values-unchecked-at-open",
    "recovery-claims-large-values",
    "rewritten-large-values-unsynced",
    "large-pages-of-the-log-are-free",
    "applied-records-name-large-pages",
    "failed-checkpoint-frees-large-pages",
    "large-pages-are-born-late",
    "given-up-large-pages-stay",
    "overwritten-large-pages-stay",
    "parts-of-large-values-are-off",
    "commit-takes-large-values-for-equal",
    "own-large-values-are-not-there",
    "expiring-large-value-is-cached",
    "expired-large-values-stay",
    "replay-forgets-large-deadlines",
    "renewed-large-values-keep-their-deadline",
    "operands-outlive-a-large-base",
    "folds-take-large-pages",
    "large-copies-are-not-checked",
    "salvage-takes-errors-for-loss",
    "ingest-forgets-large-pages",
    "catalog-pages-free-after-open",
    "hole-one-extent-too-far",
    "failed-page-write-ignored",
    "batch-published-before-memtables",
    "writer-takes-memtable-before-wait",
    "run-shows-later-writes",
    "run-pages-freed-at-once",
    "clear-keeps-active-memtable",
    "keyspace-number-reused",
    "schema-changes-replayed-twice",
    "read-only-opens-for-writing",
    "flush-forgets-unlogged-memtables",
    "second-open-admitted",
    "unreadable-block-is-not-found",
    "unreadable-block-ends-scan",
    "separator-one-byte-short",
    "level-written-without-older-runs",
    "block-checksum-ignored",
    "page-checksum-ignored",
    "superblock-checksum-ignored",
    "index-checksum-ignored",
    "group-checksum-ignored",
    "filter-checksum-ignored",
    "scan-prefix-one-byte-short",
    "index-counts-too-many-records",
    "merge-memory-never-returned",
    "earlier-operation-of-batch-wins",
    "earlier-version-of-lsn-wins",
    "operation-lsn-past-record",
    "view-sees-record-at-bound",
    "unallocated-log-file-accepted",
    "scan-run-passes-other-source",
    "applied-lsn-past-seal",
    "readable-segment-counts-as-durable",
    "replaced-block-cached-as-next",
    "seal-after-close-behind-sync",
    "replay-checkpoint-lowers-lsn",
    "late-write-left-out-of-log",
    "compaction-ignores-room",
    "old-view-pays-for-compaction",
    "page-ids-begin-at-zero",
    "newest-log-branch-unchecked",
    "log-branches-unchecked",
    "hidden-bytes-forgotten-in-buffer",
    "hidden-bytes-left-out-of-node",
    "merge-ignores-hidden-bytes",
    "any-view-gets-run",
    "older-run-of-view-wins",
    "chain-shows-later-writes",
    "last-earlier-block-freed",
    "last-mark-not-durable",
    "ring-marks-ignored",
    "extended-records-read-as-puts",
    "keyspace-opened-with-another-structure",
    "replayed-create-forgets-structure",
    "multi-get-forgets-last-key",
    "range-shows-handles",
    "hidden-values-take-no-room",
    "swept-keys-stay-located",
    "located-beside-its-match",
    "ambiguous-entries-stay",
    "place-enters-after-a-sweep",
    "located-keys-are-not-compared",
    "page-indexes-are-reused-at-once",
    "ended-pages-answer",
    "order-is-never-paid",
    "copy-leaves-a-live-record-out",
    "copies-take-dead-values-along",
    "holes-before-both-slots",
    "pins-keep-no-parts-of-pages",
    "ingest-keeps-collection",
    "conditional-append-ignores-collection",
    "checkpoint-merges-beneath-ingest",
    "ingest-grafts-onto-another-tree",
    "ingest-skips-first-merge",
    "ingest-takes-any-order",
    "ingest-leaves-buffers-above",
    "dropped-ingest-keeps-pages",
    "condition-tests-no-late-entries",
    "unknown-touches-are-none",
    "lost-touches-are-none",
    "conditional-append-touches-nothing",
    "version-outlives-its-memtable",
    "checkpoint-forgets-range-deletes",
    "memtable-of-range-deletes-is-empty",
    "range-deletes-hide-newer-puts",
    "run-forgets-range-deletes",
    "range-shows-deleted-gap",
    "older-memtable-ignores-range-deletes",
    "range-delete-touches-one-key",
    "transaction-forgets-reads",
    "transaction-forgets-ranges",
    "transaction-forgets-its-writes",
    "whole-range-ends-at-its-last-record",
    "get-for-update-is-forgotten",
    "rollback-keeps-writes",
    "own-range-delete-hides-nothing",
    "own-operands-forget-view",
    "look-sees-no-change",
    "look-skips-sealed-memtable",
    "look-compares-no-values",
    "erased-node-keeps-segments",
    "erased-child-takes-newer-puts-along",
    "erased-messages-flow-down",
    "erased-leaf-keeps-records",
    "separated-input-erases-nothing",
    "erased-records-stay-cached",
    "merge-misses-oldest-waiting-group",
    "deletes-vanish-while-they-wait",
    "newest-waiting-group-asked-last",
    "joined-groups-take-one-more-along",
    "operands-combine-newest-first",
    "merge-forgets-older-operands",
    "get-takes-newest-operand",
    "fold-skips-sealed-memtable",
    "run-keeps-newest-operand",
    "operands-ignore-range-deletes",
    "operands-leave-cached-value",
    "operands-below-memo-count-again",
    "memo-of-another-tree-counts",
    "reader-slot-not-tested-again",
    "revoked-reader-goes-on",
    "open-keeps-old-readers",
    "commit-ignores-readers",
    "readers-seen-after-the-freeing",
    "log-trimmed-under-a-reader",
    "short-disk-keeps-readers",
    "sink-looks-at-ends-only",
    "stack-forgets-what-comes-in",
    "split-shares-without-reference",
    "node-applies-operands",
    "append-takes-last-key",
    "stacks-hold-any-bytes",
    "append-looks-at-memtable-only",
    "stack-forgets-older-runs",
    "flush-passes-older-runs",
    "split-keeps-bounds-of-segments",
    "stacks-waste-without-bound",
    "damaged-runs-are-merged",
    "second-try-merges-runs",
    "idle-trees-keep-waste",
    "changed-structure-waits-for-open",
    "maplet-values-one-off",
    "maplet-cuts-fingerprints",
    "maplet-leaves-a-run-out",
    "maplet-bits-wrap-at-32",
    "maplet-takes-new-groups-for-old",
    "node-refuses-33rd-level",
    "leveled-keeps-many-runs",
    "hashed-range-in-hash-order",
    "table-misses-last-record",
    "oldest-run-asked-first",
    "leaf-left-out-by-estimate",
    "rewrite-leaves-oldest-run-out",
    "join-drops-deletes",
    "table-names-run-before",
    "split-sends-middle-digit-left",
    "hidden-bytes-not-counted",
    "damaged-leaves-are-merged",
    "second-try-merges-leaves",
    "map-bound-belongs-left",
];

#[cfg(terrapin_mutants)]
mod chosen {
    // Not from `crate::sync`: a static needs a constant, and no model checker looks at this.
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::NAMES;

    /// The index of the chosen name in [`NAMES`]; `usize::MAX` while none is chosen.
    static CHOSEN: AtomicUsize = AtomicUsize::new(usize::MAX);
    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// Switches one mutant on in the whole process, and all others off. `None` switches all off.
    /// Resets the count of [`reached`].
    ///
    /// # Panics
    ///
    /// When [`NAMES`] lacks the name.
    pub fn choose(name: Option<&str>) {
        let index = name.map_or(usize::MAX, |name| {
            let index = NAMES.iter().position(|known| *known == name);
            index.unwrap_or_else(|| panic!("no mutant is named {name}"))
        });
        CHOSEN.store(index, Ordering::SeqCst);
        REACHED.store(0, Ordering::SeqCst);
    }

    /// How many calls of [`active`] named the chosen mutant since [`choose`].
    #[must_use]
    pub fn reached() -> u64 {
        REACHED.load(Ordering::SeqCst)
    }

    /// Whether the mutant of this name is chosen.
    #[inline]
    #[must_use]
    pub fn active(name: &str) -> bool {
        let chosen = NAMES.get(CHOSEN.load(Ordering::Relaxed));
        let active = chosen.is_some_and(|chosen| *chosen == name);
        if active {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        active
    }
}

#[cfg(terrapin_mutants)]
pub use chosen::{active, choose, reached};

/// Whether the mutant of this name is chosen: never, in this build.
#[cfg(not(terrapin_mutants))]
#[inline(always)]
#[must_use]
pub const fn active(_name: &str) -> bool {
    false
}
