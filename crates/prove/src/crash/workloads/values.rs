//! Separated values: births, collections, holes, and their end by clears and drops.

use terrapin_model::Structures;

use super::super::workload::Workload;

/// "default" is hashed, "users" has the TurtleTree.
const HASHED_DEFAULT: Structures = Structures::SomeHashed(3);

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "values are separated, die and are collected",
        options: |c| c.separate_from = Some(0),
        script: "\
for 0..10 put k{} ~{}@300
checkpoint
for 0..10 by 2 put k{} ~1@300
checkpoint
for 0..10 by 3 put k{} ~2@300
delete k000004
checkpoint
pass 3000
put k000001 ~3@300 sync
checkpoint",
    },
    Workload {
        name: "values on both sides of the threshold",
        options: |c| c.separate_from = Some(100),
        script: "\
for 0..8 put k{} ~{}@99
for 0..8 put j{} ~{}@100
checkpoint
for 0..8 put k{} ~{}@101
for 0..8 put j{} x
batch sync delete k000001 ; delete j000001 ; put a ~1@4000
checkpoint
reopen dropped
put a ~2@50
checkpoint",
    },
    Workload {
        name: "separated values under a view",
        options: |c| {
            c.separate_from = Some(0);
            c.chi = Some(4);
        },
        script: "\
for 0..8 put k{} ~{}@300
checkpoint
snapshot old
for 0..8 put k{} ~1@300
checkpoint
for 0..8 put k{} ~2@300
checkpoint
%old get k000003
%old range
release old
put a 1
checkpoint
pass 3000",
    },
    Workload {
        name: "separated values of keyspaces that end",
        options: |c| {
            c.separate_from = Some(0);
            c.structures = HASHED_DEFAULT;
        },
        script: "\
create users
for 0..8 batch put k{} ~{}@300 ; @users put k{} ~{}@300
checkpoint
@users clear
batch put k000001 ~1@300 ; @users put k000001 ~1@300
checkpoint
drop users
create users
batch sync @users put a ~2@300 ; delete k000002
checkpoint
clear
put b ~3@300 sync
checkpoint",
    },
    Workload {
        name: "separated values that are whole extents become holes",
        options: |c| {
            c.separate_from = Some(512);
            c.group_bytes = 16 << 10;
        },
        script: "\
for 0..6 put k{} ~{}@9000
checkpoint
for 0..6 by 2 put k{} ~1@9000
checkpoint
put a 1
checkpoint
pass 3000
put k000001 ~2@9000 sync
checkpoint",
    },
];
