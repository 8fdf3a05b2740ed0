//! Checkpoints: full memtables, growing and shrinking trees, alternating superblocks, space that
//! comes back.

use terrapin::Compression;

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "checkpoints of little",
        options: |_| {},
        script: "\
put a 1
checkpoint
put b 2
checkpoint
delete a
checkpoint
checkpoint
put c 3",
    },
    Workload {
        name: "a checkpoint of nothing",
        options: |_| {},
        script: "\
checkpoint
checkpoint
put a 1
flush
flush
checkpoint",
    },
    Workload {
        name: "memtables fill by themselves",
        options: |c| c.chi = Some(1),
        script: "\
for 0..40 put k{} {}@100
pass 10
for 0..40 by 3 put k{} {}@90
pass 10",
    },
    Workload {
        name: "memtables fill while others are merged",
        options: |c| {
            c.chi = Some(1);
            c.threads = 2;
        },
        script: "\
for 0..50 shuffled 3 put k{} ~{}@120
for 0..50 shuffled 4 put k{} ~1@60",
    },
    Workload {
        name: "ingests",
        options: |c| c.chi = Some(2),
        script: "\
put k000005 logged
for 0..40 joined ingest k{} ~{}@150
put k000006 later sync
for 10..80 by 3 joined ingest k{} ~7@150
delete k000010
put k000099 unsynced
for 50..120 joined ingest k{} ~8@100
ingest b 1 ; a 2 -> error InvalidArgument
put a 1",
    },
    Workload {
        name: "ingests among keyspaces, under a view",
        options: |c| c.chi = Some(4),
        script: "\
create users
batch put a 1 ; @users put ann 1
for 0..60 joined @users ingest u{} ~{}@120
snapshot s
batch put a 2 ; @users put u000003 2
for 0..60 by 2 joined @users ingest u{} ~9@120
%s @users get u000002 -> ~2@120
@users clear
for 5..30 joined @users ingest u{} ~3@90
drop users
put b 1",
    },
    Workload {
        name: "a tree grows a level",
        options: |c| c.chi = Some(4),
        script: "\
for 0..60 put k{} ~{}@200
checkpoint
for 0..60 by 2 put k{}x ~{}@200
checkpoint",
    },
    Workload {
        name: "deletes shrink the tree",
        options: |c| c.chi = Some(4),
        script: "\
for 0..50 put k{} ~{}@200
checkpoint
for 0..50 delete k{}
checkpoint
put a 1
checkpoint",
    },
    Workload {
        name: "deletes shrink the tree bit by bit",
        options: |c| c.chi = Some(1),
        script: "\
for 0..40 put k{} ~{}@150
checkpoint
for 0..13 delete k{}
checkpoint
for 13..26 delete k{} sync
checkpoint
for 26..40 delete k{}
checkpoint",
    },
    Workload {
        name: "overwrites free what they replace",
        options: |c| c.chi = Some(2),
        script: "\
for 0..10 put k{} ~{}@400
checkpoint
for 0..10 put k{} ~1@400
checkpoint
for 0..10 put k{} ~2@400
checkpoint
for 0..10 put k{} ~3@400
checkpoint
pass 100",
    },
    Workload {
        name: "space goes back to the file system",
        options: |c| c.chi = Some(4),
        script: "\
for 0..12 put k{} ~{}@4000
checkpoint
for 0..12 delete k{}
checkpoint
pass 2000
put a 1
checkpoint
pass 2000
put b 2",
    },
    Workload {
        name: "compressed pages",
        options: |c| {
            c.compression = Compression::Lz4;
            c.block_bytes = 4096;
            c.group_bytes = 4096;
        },
        script: "\
for 0..20 put k{} {}@900
checkpoint
for 0..20 by 2 put k{} ~1@500
delete k000001
checkpoint
delete k000003 sync",
    },
    Workload {
        name: "the paper's bound",
        options: |c| {
            c.space_amplification = None;
            c.chi = Some(1);
        },
        script: "\
for 0..60 shuffled 9 put k{} ~{}@90
checkpoint
for 0..60 shuffled 8 put k{} ~1@90
checkpoint",
    },
    Workload {
        name: "several keyspaces in one checkpoint",
        options: |c| c.threads = 2,
        script: "\
create a
create b
create c
for 0..8 @a put k{} ~{}@200
for 0..8 @b put k{} ~{}@300
for 0..8 @c put k{} ~{}@100
put d 1
checkpoint
batch @a delete k000001 ; @b delete k000001 ; @c delete k000001 ; put d 2
checkpoint",
    },
    Workload {
        name: "checkpoints while writes are synced",
        options: |c| c.chi = Some(1),
        script: "\
for 0..12 put k{} ~{}@150 sync
for 0..12 put k{} ~1@150 sync
checkpoint
delete k000003 sync",
    },
    Workload {
        name: "chi moves up and down",
        options: |c| c.chi = Some(8),
        script: "\
for 0..12 put k{} ~{}@200
chi 1
for 0..12 put j{} ~{}@200
chi 16
for 0..6 put k{} ~1@200
chi 2
put a 1 sync
chi auto
delete a",
    },
    Workload {
        name: "one keyspace's dial is durable",
        options: |c| c.chi = Some(8),
        script: "\
create users
@users dial 1
for 0..10 @users put k{} ~{}@200
dial 3
for 0..10 put k{} ~{}@200
@users dial 16
@users put a 1 sync
dial auto
checkpoint
@users dial 2
put b 2",
    },
    Workload {
        name: "memory moves up and down",
        options: |c| c.chi = None,
        script: "\
for 0..12 put k{} ~{}@400
memory 4096
for 0..12 put k{} ~1@400
memory 1024
for 0..6 delete k{}
checkpoint
memory 2048
put a 1 sync",
    },
    Workload {
        name: "mass deletes in one memtable",
        options: |c| c.chi = Some(16),
        script: "\
for 0..60 put k{} ~{}@60
for 0..60 delete k{}
checkpoint
for 0..30 put k{} again
checkpoint",
    },
];
