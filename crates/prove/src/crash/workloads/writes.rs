//! Puts, deletes and batches of each durability, with few or no checkpoints between them.

use terrapin::Durability;
use terrapin_model::Deadlines;

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "one put",
        options: |_| {},
        script: "put a 1",
    },
    Workload {
        name: "puts and deletes of one key",
        options: |_| {},
        script: "\
put a 1
delete a
put a 2@40
delete a sync
put a 3
delete a",
    },
    Workload {
        name: "every durability in turn",
        options: |_| {},
        script: "\
put a 1
put b 2 sync
put c 3 process
delete a process
put d 4 sync
delete b sync
put e 5
flush
put f 6",
    },
    Workload {
        name: "range deletes",
        options: |_| {},
        script: "\
for 0..60 put k{} {}@80
checkpoint
erase range from k000010 to k000030
put k000020 new
erase prefix k00004 sync
checkpoint
batch put k000001 x ; erase range to k000005 ; put k000002 y
erase range from k000050
checkpoint
erase range
checkpoint
put a 1",
    },
    Workload {
        name: "range deletes under a view, and of everything twice",
        options: |_| {},
        script: "\
for 0..60 put k{} {}@80
snapshot s
erase range from k000005 to k000055 sync
checkpoint
%s range -> 60 records
erase range
for 0..10 put k{} again
erase range sync
checkpoint
range -> nothing",
    },
    Workload {
        name: "transactions across keyspaces, with conflicts and merges",
        options: |_| {},
        script: "\
create users
put a 1
transact get a ; put a 2 ; @users put ann 1 ; put b ~1@300
transact sync get a ; erase range from b ; put c 3 ; @users delete ann
transact get a ; beside put a 4 ; put b 5
transact range ; checkpoint ; put d 6 ; save ; put e 7 ; undo 0
checkpoint
transact snapshot sync lock a ; beside put c 8 ; put a 9 ; @users put bob 1
transact delete a ; @users put bob 2",
    },
    Workload {
        name: "every write synced",
        options: |c| c.durability = Durability::Sync,
        script: "\
for 0..6 put k{} {}@50
delete k000002
batch put k000003 x ; delete k000004 ; put k000009 y
put k000001 z process
put k000001 zz",
    },
    Workload {
        name: "batches across keyspaces",
        options: |_| {},
        script: "\
create users
create posts
batch put a 1 ; @users put ann 1 ; @posts put p 1
batch sync put a 2 ; @users put ann 2 ; @posts put p 2
batch delete a ; @users delete ann ; @posts put p 3
batch put b 4 ; @users put bob 4@300 ; @posts delete p
checkpoint
batch put a 5 ; @users put ann 5 ; @posts put p 5
batch sync delete a ; @users delete bob ; @posts put q 6",
    },
    Workload {
        name: "one key many times in a batch",
        options: |_| {},
        script: "\
batch put a 1 ; delete a ; put a 2 ; delete a ; put a 3
batch put a 4 ; put b 1 ; delete a
batch sync delete b ; put b 2 ; put a 5 ; delete b
checkpoint
batch put a 6 ; delete a",
    },
    Workload {
        name: "a batch as large as the ring takes",
        options: |_| {},
        script: "\
put a small
batch put b ~1@5000 ; put c ~2@5000 ; put d ~3@4000
put e small sync
batch put b ~4@5000 ; delete c ; put d ~5@5000 ; put f ~6@4000
delete a",
    },
    Workload {
        name: "values that grow and shrink",
        options: |_| {},
        script: "\
put a ~1@10
put a ~2@1000
put a ~3@4000
checkpoint
put a ~4@7000
put a ~5@100
checkpoint
put a \"\"
put b ~6@2000 sync
put b ~7@1",
    },
    Workload {
        name: "records larger than a group",
        options: |_| {},
        script: "\
for 0..4 put k{} ~{}@6000
checkpoint
for 0..4 by 2 put k{} ~7@9000
delete k000001
checkpoint
put k000003 small sync
delete k000000",
    },
    Workload {
        name: "empty keys and values",
        options: |_| {},
        script: "\
put \"\" empty
put a \"\"
put \"\\x00\" zero sync
checkpoint
delete \"\"
put \"\\xff\\xff\" last
checkpoint
put \"\" again sync",
    },
    Workload {
        name: "long keys that share what they begin with",
        options: |_| {},
        script: "\
for 0..6 put prefix/that/is/shared/{}/by/all/of/them@300 {}
checkpoint
for 0..6 by 2 delete prefix/that/is/shared/{}/by/all/of/them@300
put prefix 1 sync
put prefix/that 2
checkpoint",
    },
    Workload {
        name: "not logged beside logged",
        options: |_| {},
        script: "\
create bulk
checkpoint
@bulk put a 1 none
put a 1
@bulk put b 2 none
put b 2 sync
@bulk delete a none
flush
@bulk put c 3 none
delete a
checkpoint
@bulk put d 4 none
put d 4",
    },
    Workload {
        name: "nothing logged",
        options: |c| c.chi = Some(1),
        script: "\
create bulk
checkpoint
for 0..12 @bulk put k{} ~{}@200 none
for 0..12 by 2 @bulk delete k{} none
flush
@bulk put z 1 none",
    },
    Workload {
        name: "time passes between writes",
        options: |c| c.sync_interval_ms = 10,
        script: "\
put a 1
pass 20
put b 2
pass 5
put c 3
pass 1000
delete a
pass 20
put d 4",
    },
    Workload {
        name: "mostly merges",
        options: |c| c.chi = Some(1),
        script: "\
merge a 1
merge a 2 sync
put b base
for 0..20 merge c {}@20
checkpoint
merge a 3
batch merge a 4 ; merge a 5 ; put b x ; merge b 6
merge b 7
checkpoint
delete a
merge a 8
erase prefix b
merge b 9
for 0..20 merge c {}@30
checkpoint
batch sync merge a 10 ; merge c 11
merge a 12",
    },
    Workload {
        name: "values with deadlines, noted nows",
        options: |c| c.deadlines = Deadlines::Near,
        script: "\
create users
for 0..30 put k{} {}@60
checkpoint
for 0..30 by 2 delete k{}
put a 1 sync
pass 1500
checkpoint
delete a
batch put a 2 ; delete k000001 ; @users put ann 1
pass 1500
put b 3
checkpoint
delete b sync",
    },
    Workload {
        name: "one hot key",
        options: |c| c.chi = Some(1),
        script: "for 0..60 put hot {}@60",
    },
];
