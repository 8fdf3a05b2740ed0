//! Keyspaces that are created, dropped and cleared.

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "keyspaces come and go",
        options: |_| {},
        script: "\
create users
@users put a 1
drop users
create users
@users put b 2
drop users
create posts
@posts put c 3 sync",
    },
    Workload {
        name: "a keyspace goes that a checkpoint holds",
        options: |_| {},
        script: "\
create users
for 0..10 @users put k{} ~{}@200
checkpoint
drop users
put a 1 sync
checkpoint
create users
@users put a 1
checkpoint",
    },
    Workload {
        name: "a keyspace goes while its memtable is full",
        options: |c| c.chi = Some(1),
        script: "\
create users
for 0..20 @users put k{} ~{}@100
drop users
for 0..10 put k{} ~{}@100
create users
@users put b 1
checkpoint",
    },
    Workload {
        name: "clear in the memtable",
        options: |_| {},
        script: "\
for 0..5 put k{} {}
clear
put a 1
clear
put b 2 sync",
    },
    Workload {
        name: "clear of what a checkpoint holds",
        options: |_| {},
        script: "\
for 0..12 put k{} ~{}@200
checkpoint
clear
put a 1 sync
checkpoint
put b 2
clear
checkpoint
put c 3",
    },
    Workload {
        name: "clear between checkpoints",
        options: |c| c.chi = Some(1),
        script: "\
create users
for 0..15 @users put k{} ~{}@100
@users clear
for 0..15 @users put j{} ~{}@100
@users clear
put a 1 sync
@users put z 1
checkpoint",
    },
    Workload {
        name: "names that were there before",
        options: |_| {},
        script: "\
create a
@a put k 1
checkpoint
drop a
create a
@a put k 2
checkpoint
drop a
checkpoint
create a
@a get k
@a put k 3 sync",
    },
    Workload {
        name: "many keyspaces",
        options: |_| {},
        script: "\
for 0..12 create ks{}
for 0..12 @ks{} put key {}
for 0..12 by 3 drop ks{}
checkpoint
for 1..12 by 3 @ks{} put key 2
for 2..12 by 3 drop ks{}
put a 1 sync",
    },
    Workload {
        name: "schema and records by turns",
        options: |_| {},
        script: "\
create a
@a put k 1
create b
batch @a put k 2 ; @b put k 2
@a clear
batch @a put j 3 ; @b put j 3
drop b
@a put k 4
checkpoint
create b
batch sync @a delete k ; @b put k 5
@b clear
drop a",
    },
];
