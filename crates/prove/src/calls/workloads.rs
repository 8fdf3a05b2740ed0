//! The workloads during which calls fail: short, in the model's script language. Together they make
//! every kind of call from every part of the engine. New ones go at the end, since a workload's
//! position is its unit's number.

use terrapin::{Compression, Durability};
use terrapin_model::{Configuration, Operation, Script};

use crate::Find;

/// A workload.
pub(super) struct Workload {
    /// The name in finds.
    pub name: &'static str,
    setting: Setting,
    script: &'static str,
}

/// The options it runs with.
#[derive(Clone, Copy)]
enum Setting {
    /// Memtables of two groups of 1 KiB, log files of 16 KiB.
    Tiny,
    /// The same with every write synced.
    Synced,
    /// The same with two workers, larger groups, and compressed blocks.
    Workers,
    /// All values are separated, larger groups.
    Separated,
    /// Values of more than 50 bytes are large.
    Large,
    /// A log of at most four files, so that lagging keyspaces are checkpointed for the log's sake.
    ShortLog,
}

impl Workload {
    /// Its options.
    pub fn configuration(&self) -> Configuration {
        let tiny = Configuration {
            group_bytes: 1 << 10,
            chi: Some(2),
            segment_bytes: 16 << 10,
            ..Configuration::small()
        };
        match self.setting {
            Setting::Tiny => tiny,
            Setting::Synced => Configuration {
                durability: Durability::Sync,
                ..tiny
            },
            Setting::Workers => Configuration {
                group_bytes: 4 << 10,
                compression: Compression::Lz4,
                threads: 2,
                ..tiny
            },
            Setting::Separated => Configuration {
                separate_from: Some(0),
                group_bytes: 4 << 10,
                ..tiny
            },
            Setting::Large => Configuration {
                large_above: Some(50),
                ..tiny
            },
            Setting::ShortLog => Configuration {
                segments_max: 4,
                ..tiny
            },
        }
    }

    /// The operations.
    pub fn operations(&self) -> Result<Vec<Operation>, Find> {
        let script = Script::parse(self.name, self.script)?;
        Ok(script.steps.into_iter().map(|s| s.operation).collect())
    }
}

const fn tiny(name: &'static str, script: &'static str) -> Workload {
    with(Setting::Tiny, name, script)
}

const fn with(setting: Setting, name: &'static str, script: &'static str) -> Workload {
    Workload {
        name,
        setting,
        script,
    }
}

/// All workloads.
pub(super) const WORKLOADS: &[Workload] = &[
    tiny(
        "puts and gets",
        "for 0..24 put k{} v{}@90
         get k000003
         checkpoint
         get k000003
         multi k000001 k000020 k000099
         range",
    ),
    with(
        Setting::Synced,
        "every write synced",
        "for 0..8 put k{} v{}@60
         delete k000002
         get k000002
         batch put a 1 ; put b 2 ; delete k000003
         range",
    ),
    tiny(
        "sync now and then",
        "put a 1
         put b 2 sync
         put c 3
         delete a sync
         pass 200
         put d 4
         pass 200
         flush
         range",
    ),
    tiny(
        "keyspaces come and go",
        "create users
         @users put ann 1
         put x 1
         create logs
         for 0..12 @logs put l{} v@120
         drop users
         keyspaces
         checkpoint
         @logs clear
         create users
         @users get ann
         checkpoint",
    ),
    tiny(
        "batches across keyspaces",
        "create a
         create b
         for 0..8 batch @a put k{} v{}@50 ; @b put k{} w{}@50 ; put k{} x
         batch sync @a delete k000001 ; @b delete k000001
         checkpoint
         @a range
         @b range reverse",
    ),
    with(
        Setting::ShortLog,
        "the log rotates and is trimmed",
        "for 0..40 put k{} ~1@1800
         pass 500
         for 0..20 put j{} ~2@1800
         checkpoint
         get k000013",
    ),
    tiny(
        "snapshots outlive checkpoints",
        "for 0..10 put k{} v@100
         snapshot s
         for 0..10 put k{} w@100
         checkpoint
         %s range
         %s get k000004
         pass 3000
         for 0..10 delete k{}
         checkpoint
         %s range reverse
         release s
         range",
    ),
    tiny(
        "open ranges",
        "for 0..30 put k{} v@80
         checkpoint
         open r range from k000004
         next r 5
         for 0..20 put k{} w@80
         back r 5
         checkpoint
         next r 40
         shut r",
    ),
    tiny(
        "closed and opened",
        "for 0..10 put k{} v@100
         reopen
         get k000003
         put z 1
         reopen inspected
         range
         put z 2 sync
         reopen",
    ),
    tiny(
        "dropped and recovered",
        "for 0..10 put k{} v@100
         reopen dropped
         put a 1
         reopen dropped
         put a 2
         delete k000004
         reopen dropped
         range",
    ),
    tiny(
        "deletes shrink the tree",
        "for 0..40 put k{} v@100
         checkpoint
         for 0..40 delete k{}
         checkpoint
         range
         put a 1
         checkpoint",
    ),
    tiny(
        "a hot key",
        "for 0..60 put hot v{}@100
         get hot
         flush
         get hot",
    ),
    tiny(
        "values of all sizes",
        "put a ~1@9000
         put b ~2@5
         put a ~3@4000
         checkpoint
         get a
         put a \"\"
         put c ~4@12000
         checkpoint
         multi a b c",
    ),
    with(
        Setting::Workers,
        "two workers, compressed",
        "for 0..80 shuffled 7 put k{} v{}@200
         checkpoint
         for 0..80 by 3 delete k{}
         checkpoint
         range",
    ),
    tiny(
        "writes that are not logged",
        "create bulk
         for 0..20 @bulk put k{} v@90 none
         put a 1
         flush
         @bulk range
         @bulk put k000001 w none
         checkpoint
         @bulk get k000001",
    ),
    tiny(
        "the dial turns",
        "for 0..10 put k{} v@100
         chi 8
         for 10..30 put k{} v@100
         chi 1
         checkpoint
         chi auto
         put a 1
         reopen
         range",
    ),
    tiny(
        "the budget moves",
        "for 0..20 put k{} v@100
         memory 2048
         for 20..40 put k{} v@100
         memory 1024
         checkpoint
         range limit 10
         range reverse limit 10",
    ),
    tiny(
        "cleared keyspaces",
        "for 0..20 put k{} v@90
         checkpoint
         clear
         range
         put a 1 sync
         checkpoint
         clear
         checkpoint
         range",
    ),
    with(
        Setting::Synced,
        "synced batches and closes",
        "batch put a 1 ; put b 2
         reopen
         batch put a 2 ; delete b
         reopen dropped
         batch put c ~1@3000
         range",
    ),
    with(
        Setting::ShortLog,
        "quiet keyspaces do not hold up the log",
        "create quiet
         @quiet put a 1
         for 0..40 put k{} ~3@2000
         pass 1000
         @quiet get a
         put z 1 sync",
    ),
    tiny(
        "reads of what is cold",
        "for 0..40 put k{} v{}@110
         reopen
         get k000007
         get k000031
         contains k000012
         multi k000001 k000011 k000021 k000039 nothing
         first
         last
         count
         prefix k00001
         range ends 5",
    ),
    tiny(
        "other options at the next open",
        "for 0..20 put k{} v@100
         reopen vary 3
         for 10..30 put k{} w@100
         reopen dropped vary 9
         checkpoint
         range",
    ),
    tiny(
        "an overwritten tree",
        "for 0..20 put k{} v@100
         checkpoint
         for 0..20 put k{} w@100
         checkpoint
         for 0..20 put k{} x@100
         checkpoint
         pass 2000
         range",
    ),
    with(
        Setting::Workers,
        "several keyspaces merge at once",
        "create a
         create b
         for 0..30 @a put k{} v@200
         for 0..30 @b put k{} v@200
         for 0..30 put k{} v@200
         checkpoint
         drop a
         checkpoint
         @b range limit 5
         keyspaces",
    ),
    tiny(
        "long and nested keys",
        "put a 1
         put a@300 2
         put a@299 3
         put ab@1000 4
         for 0..10 put prefix@200 v{}
         for 0..12 put long_{} ~9@200
         checkpoint
         prefix a
         delete a@300 sync
         checkpoint
         range reverse",
    ),
    with(
        Setting::Synced,
        "a large synced write",
        "put a ~1@14000
         put b ~2@14000
         get a
         checkpoint
         put a ~3@100
         get a",
    ),
    with(
        Setting::ShortLog,
        "recovery of a long log",
        "for 0..24 put k{} ~5@1500
         reopen dropped
         for 0..8 put k{} ~6@1500
         reopen dropped inspected
         range",
    ),
    tiny(
        "idle for long",
        "put a 1
         pass 5000
         put b 2
         pass 5000
         checkpoint
         pass 20000
         put c 3 sync",
    ),
    tiny(
        "a snapshot at a close",
        "for 0..12 put k{} v@100
         snapshot s
         open r range
         next r 2
         put k000001 w
         reopen
         get k000001
         snapshot t
         drop default -> error InvalidArgument
         put k000001 x
         %t get k000001
         reopen dropped
         range",
    ),
    tiny(
        "deletes of what is not there",
        "for 0..10 delete k{}
         checkpoint
         put k000003 v sync
         for 0..10 delete k{}
         flush
         range
         checkpoint
         count",
    ),
    with(
        Setting::Workers,
        "grown, shrunk and grown",
        "for 0..60 put k{} v{}@250
         checkpoint
         for 0..60 put k{} x
         checkpoint
         for 0..60 shuffled 3 put k{} ~1@250
         reopen
         multi k000000 k000059
         count",
    ),
    tiny(
        "an empty database",
        "range
         get a
         keyspaces
         checkpoint
         reopen
         reopen dropped inspected
         flush
         first",
    ),
    with(
        Setting::Separated,
        "separated values are read, superseded and collected",
        "for 0..16 put k{} ~{}@300
         checkpoint
         for 0..16 by 2 put k{} ~1@300
         checkpoint
         for 0..16 by 3 put k{} ~2@300
         delete k000005
         checkpoint
         get k000001
         multi k000002 k000005 k000007 k000011
         range
         range reverse limit 4
         pass 3000
         reopen
         get k000013
         range",
    ),
    with(
        Setting::Separated,
        "values of whole extents become holes",
        "for 0..5 put k{} ~{}@9000
         checkpoint
         for 0..5 by 2 put k{} ~1@9000
         checkpoint
         put a 1
         checkpoint
         pass 3000
         get k000002
         reopen dropped
         range",
    ),
    with(
        Setting::Separated,
        "separated values outlive their keyspace for a view",
        "create users
         for 0..8 batch put k{} ~{}@200 ; @users put k{} ~{}@200
         checkpoint
         snapshot s
         @users clear
         for 0..8 put k{} ~1@200
         checkpoint
         drop users
         checkpoint
         %s get k000003
         release s
         put a 1
         checkpoint",
    ),
    with(
        Setting::Large,
        "large values are put, read, overwritten and deleted",
        "put a ~1@300
         put b ~2@9000 sync
         batch put c ~3@300 ; put a ~4@300
         get a
         checkpoint
         get b
         multi a b c
         put b ~5@300
         insert d ~6@300
         swap c ~3@300 ~7@400
         transact put e ~8@300 ; get e ; put a ~9@300
         delete d
         checkpoint
         range
         reopen dropped
         get e
         take a
         checkpoint
         range",
    ),
    with(
        Setting::Large,
        "large values outlive their keyspace for a view",
        "create users
         @users put a ~1@300
         put a ~2@300
         snapshot s
         @users clear
         @users put a ~3@300
         put a ~4@300
         checkpoint
         drop users
         checkpoint
         %s get a
         release s
         merge a more
         get a
         checkpoint
         get a",
    ),
];
