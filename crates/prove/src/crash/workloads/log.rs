//! The log: appending, rotation of its segments, the ring's end, trimming.

use std::time::Duration;

use terrapin::Durability;

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "segments fill and rotate",
        options: |c| c.chi = Some(64),
        script: "\
for 0..12 put k{} ~{}@3000
put a 1 sync
for 0..4 put k{} ~9@3000
delete k000001 sync",
    },
    Workload {
        name: "the ring goes round",
        options: |c| c.chi = Some(64),
        script: "\
for 0..24 put k{} ~{}@4000
delete k000003
put k000004 ~5@4000",
    },
    Workload {
        name: "the ring goes round with odd records",
        options: |c| {
            c.chi = Some(64);
            c.sync_interval_ms = 1;
        },
        script: "\
for 0..10 put k{} ~{}@7777
pass 5
for 0..10 put j{} ~{}@3333
batch put a ~1@3000 ; put b ~2@5001 ; delete k000001
put c 1 sync",
    },
    Workload {
        name: "synced writes while the ring goes round",
        options: |c| c.chi = Some(64),
        script: "\
for 0..6 put k{} ~{}@5000
put a 1 sync
for 0..6 put k{} ~8@5000
put b 2 sync
for 0..6 put k{} ~9@5000
delete a sync",
    },
    Workload {
        name: "checkpoints trim the log",
        options: |c| c.segments_max = 2,
        script: "\
for 0..8 put k{} ~{}@3000
checkpoint
for 0..8 put k{} ~7@3000
checkpoint
for 0..8 by 2 delete k{}
put a 1 sync
checkpoint
put b 2",
    },
    Workload {
        name: "a log that is too long cuts the memtables",
        options: |c| {
            c.segments_max = 2;
            c.chi = Some(64);
        },
        script: "\
for 0..14 put k{} ~{}@4000
pass 10
for 0..6 put k{} ~1@4000
pass 10",
    },
    Workload {
        name: "a recovery target cuts the memtables",
        options: |c| {
            c.recovery_target = Some(Duration::from_nanos(1));
            c.chi = Some(64);
        },
        script: "\
create quiet
@quiet put a 1
for 0..8 put k{} ~{}@4000
pass 10
@quiet get a
reopen
for 0..6 put k{} ~2@4000
@quiet put b 2
pass 10",
    },
    Workload {
        name: "a quiet keyspace does not keep the log",
        options: |c| c.segments_max = 2,
        script: "\
create quiet
@quiet put a 1
for 0..10 put k{} ~{}@4000
pass 10
@quiet get a
for 0..4 put k{} ~5@4000",
    },
    Workload {
        name: "spares become segments again",
        options: |c| {
            c.segments_max = 2;
            c.chi = Some(1);
        },
        script: "\
for 0..10 put k{} ~{}@3000
checkpoint
pass 50
for 0..10 put k{} ~1@3000
checkpoint
pass 50
for 0..5 put k{} ~2@3000",
    },
    Workload {
        name: "old records lie where new ones end",
        options: |c| c.chi = Some(64),
        script: "\
for 0..18 put same ~{}@3500
reopen dropped
put same new
delete same
reopen dropped
put same newer sync
reopen dropped
delete same",
    },
    Workload {
        name: "many small records",
        options: |c| c.chi = Some(8),
        script: "\
for 0..80 put k{} {}
put a 1 sync
for 0..80 by 3 delete k{}",
    },
    Workload {
        name: "small and large records by turns",
        options: |c| c.chi = Some(32),
        script: "\
for 0..6 put k{} ~{}@9000
put a 1
put b ~1@9000
put c 2 sync
put d ~2@9000
delete a
put e ~3@9000 sync
delete b
put f 3",
    },
    Workload {
        name: "writes are synced as often as can be",
        options: |c| {
            c.durability = Durability::Sync;
            c.sync_interval_ms = 1;
            c.chi = Some(64);
        },
        script: "\
for 0..8 put k{} ~{}@2500
pass 3
for 0..4 delete k{}
pass 3
put k000001 again",
    },
];
