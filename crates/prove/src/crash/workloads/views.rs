//! Snapshots and ranges held while memtables are sealed and pages replaced.

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "a snapshot across checkpoints",
        options: |_| {},
        script: "\
for 0..10 put k{} ~{}@150
snapshot old
for 0..10 put k{} ~1@150
checkpoint
%old get k000003
for 0..10 by 2 delete k{}
checkpoint
%old range
release old
checkpoint
put a 1",
    },
    Workload {
        name: "several snapshots in one memtable",
        options: |c| c.chi = Some(16),
        script: "\
put a 1
snapshot one
put a 2
snapshot two
delete a
snapshot three
put a 4
checkpoint
pass 3000
%one get a
%two get a
%three get a
release two
checkpoint
put b 1 sync",
    },
    Workload {
        name: "snapshots are folded",
        options: |c| c.chi = Some(1),
        script: "\
for 0..12 put k{} ~{}@100
snapshot old
pass 1500
for 0..12 put k{} ~1@100
pass 1500
for 0..12 put k{} ~2@100
pass 1500
%old get k000001
checkpoint
pass 1500",
    },
    Workload {
        name: "a checkpoint writes a run",
        options: |c| c.chi = Some(16),
        script: "\
put a 1
put long ~1@3000
snapshot one
put a 2
put long ~2@3000
snapshot two
delete a
pass 1500
checkpoint
%one get a
%two get long
%one range
put long 3
checkpoint
release one
%two range
checkpoint",
    },
    Workload {
        name: "an open range across checkpoints",
        options: |c| c.chi = Some(1),
        script: "\
for 0..20 put k{} ~{}@100
open r range
next r 3
for 0..20 by 2 delete k{}
checkpoint
next r 3
pass 1500
back r 4
checkpoint
shut r
checkpoint",
    },
    Workload {
        name: "a snapshot of a keyspace that goes",
        options: |_| {},
        script: "\
create users
for 0..6 @users put k{} ~{}@100
snapshot old
@users clear
checkpoint
%old @users get k000001
drop users
checkpoint
%old @users get k000002
release old
checkpoint",
    },
    Workload {
        name: "a store dies with its snapshots",
        options: |_| {},
        script: "\
for 0..10 put k{} ~{}@150
checkpoint
snapshot old
for 0..10 delete k{}
checkpoint
pass 1500
reopen dropped
checkpoint
put a 1 sync",
    },
];
