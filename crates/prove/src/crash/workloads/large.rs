//! Large values: their pages before, behind and without a record, in the log and in trees, and
//! their end.

use terrapin_model::Deadlines;

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "large values are put, overwritten and deleted",
        options: |c| c.large_above = Some(100),
        script: "\
put a ~1@300
put b ~2@5000 sync
put a ~3@300
checkpoint
put b ~4@300
delete a sync
put c ~5@9000
checkpoint
put a ~6@300
put c ~7@101 sync
reopen dropped
put d ~8@300
checkpoint",
    },
    Workload {
        name: "large values of batches, conditions and transactions",
        options: |c| {
            c.large_above = Some(0);
            c.chi = Some(4);
        },
        script: "\
batch put a ~1@300 ; put b ~2@300 ; delete b ; put c 1
insert a ~3@300
insert d ~4@300
swap a ~1@300 ~5@400
transact put e ~6@300 ; get e ; save ; put a ~7@300 ; undo 0 ; put b ~8@300
transact put f ~9@300 ; beside put g ~1@300 ; put f ~2@50
checkpoint
take a
guarded require d present ; put a ~4@5000 ; delete e
batch sync put a ~5@300 ; put b x
checkpoint",
    },
    Workload {
        name: "large values under views, and of keyspaces that end",
        options: |c| {
            c.large_above = Some(50);
            c.separate_from = Some(0);
        },
        script: "\
create users
put a ~1@300
@users put a ~2@300
snapshot old
put a ~3@300
@users clear
checkpoint
%old get a
@users put b ~4@300
drop users
put b ~5@40
checkpoint
%old get a
release old
put a ~6@300 sync
checkpoint",
    },
    Workload {
        name: "operands over large values",
        options: |c| c.large_above = Some(20),
        script: "\
put a ~1@300
merge a more
checkpoint
merge a more
put b ~2@30
merge b x
checkpoint
put a ~3@300
merge a y sync
delete b
checkpoint",
    },
    Workload {
        name: "large values with deadlines",
        options: |c| {
            c.large_above = Some(20);
            c.deadlines = Deadlines::Near;
        },
        script: "\
for 0..12 put k{} ~{}@60
checkpoint
put k000001 ~1@300 sync
delete k000002
pass 1500
batch put k000003 ~3@90 ; delete k000004 ; put k000005 x
merge k000006 more
checkpoint
pass 1500
delete k000001 sync
put k000006 ~7@300
checkpoint",
    },
];
